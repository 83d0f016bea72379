"""Find a script or module and run it as the interpreter itself would.

The program gets a module of its own in ``sys.modules["__main__"]``, so that pickle,
multiprocessing and ``import __main__`` find what they find in a plain run.  `runpy`
does not do that: it runs a copy and takes it away before the exit handlers.

What is not handed back (``sys.argv``, ``sys.path``, ``__main__``) is meant to stay: a
program owns its process until the process ends, exit handlers included.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, Protocol, cast

__all__ = ["Program", "ProgramError", "execute", "find_module", "find_script"]


class ProgramError(Exception):
    """There is nothing to run.

    Attributes
    ----------
    status : int
        Exit status that the interpreter gives in this case.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _CodeLoader(Protocol):
    """A loader that runpy could use."""

    def get_code(self, name: str) -> CodeType | None: ...


@dataclass(frozen=True)
class Program:
    """What will run.

    Attributes
    ----------
    code : callable
        Returns the compiled program; raises its SyntaxError.
    module : ModuleType
        The future ``__main__``, still empty.
    name : str
        ``sys.argv[0]``.
    folder : str
        ``sys.path[0]``.
    """

    code: Callable[[], CodeType]
    module: ModuleType
    name: str
    folder: str


def find_script(path: str) -> Program:
    """Return the program of ``python path``.

    Parameters
    ----------
    path : str
        A source file, or a folder or zip file with a ``__main__.py``.

    Returns
    -------
    Program
        Source files are read now, compiled later.

    Raises
    ------
    ProgramError
        With status 2 if there is nothing to run.
    """
    filename = _absolute(path)
    spec = PathFinder.find_spec("__main__", [filename])
    if spec is not None and spec.loader is not None:
        return _from_spec(spec, "__main__", name=path, folder=filename)
    if os.path.isdir(path):
        raise ProgramError(
            f"can't find '__main__' module in '{path}': give a script, a folder with "
            "a __main__.py, or -m and the name of a module",
            2,
        )
    try:
        with io.open_code(filename) as file:
            source = file.read()
    except OSError as error:
        raise ProgramError(
            f"can't open file '{filename}': [Errno {error.errno}] {error.strerror}; "
            "give a script, or -m and the name of a module",
            2,
        ) from None
    module = _main_module(
        file=filename, loader=SourceFileLoader("__main__", filename), package=None
    )
    return Program(
        # The flags of this module's own __future__ imports are not the script's.
        code=lambda: compile(source, filename, "exec", dont_inherit=True),
        module=module,
        name=path,
        folder=os.path.dirname(os.path.realpath(path)),
    )


def find_module(name: str) -> Program:
    """Return the program of ``python -m name``; imports the packages it is in.

    Parameters
    ----------
    name : str
        Absolute name of a module, or of a package with a ``__main__``.

    Returns
    -------
    Program
        Not compiled yet.

    Raises
    ------
    ProgramError
        With status 1 if there is nothing to run.
    """
    folder = os.getcwd()
    # Packages are imported on the way, and look as they do under the interpreter.
    _enter_folder(folder)
    sys.argv = ["-m"]
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        if name.endswith(".__main__"):
            raise ProgramError("Cannot use package as __main__ module", 1)
        package, name = name, f"{name}.__main__"
        spec = _find_spec(name)
        if spec is None:
            raise ProgramError(
                f"No module named {name}; '{package}' is a package and cannot be "
                "directly executed; name a module of it",
                1,
            )
    if spec is None or spec.loader is None:
        raise ProgramError(
            f"No module named {name}; install it, or give the path of a script", 1
        )
    if not hasattr(spec.loader, "get_code"):
        raise ProgramError(f"No code object available for {name}; it is no Python", 1)
    return _from_spec(spec, name, name=spec.origin or name, folder=folder)


def execute(program: Program, arguments: Sequence[str]) -> None:
    """Run a program as ``__main__``.

    Parameters
    ----------
    program : Program
        From `find_script` or `find_module`.
    arguments : sequence of str
        ``sys.argv`` after the program's name.

    Raises
    ------
    BaseException
        Whatever the program raises, SystemExit included; `hide_own_frames` has been
        called on it.
    """
    sys.argv = [program.name, *arguments]
    _enter_folder(program.folder)
    sys.modules["__main__"] = program.module
    exec(program.code(), vars(program.module))


def hide_own_frames(error: BaseException) -> None:
    """Have the interpreter print a traceback that begins in the program.

    Parameters
    ----------
    error : BaseException
        As caught, to be raised again: exit status, KeyboardInterrupt and the rest
        are best left to the interpreter, and so is ``sys.excepthook``.
    """
    entry = error.__traceback__
    while entry is not None and _is_machinery(entry):
        entry = entry.tb_next
    shown = sys.excepthook

    def show_from_program(
        kind: type[BaseException],
        value: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        if value is error:
            traceback = entry
            value.__traceback__ = entry
        shown(kind, value, traceback)

    sys.excepthook = show_from_program


_MACHINERY = ("np_ozaki.cli", "importlib", "zipimport")


def _is_machinery(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__"))
    return name.startswith(_MACHINERY)


def _absolute(path: str) -> str:
    """Return the path as the interpreter makes it absolute: dots and links stay."""
    if os.name == "nt":
        return os.path.abspath(path)
    return os.path.join(os.getcwd(), path)


def _enter_folder(folder: str) -> None:
    """Put the program's folder where the interpreter had put ours."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ProgramError(
            f"Error while finding module specification for {name!r} "
            f"({type(error).__name__}: {error})",
            1,
        ) from error


def _from_spec(spec: ModuleSpec, code_name: str, *, name: str, folder: str) -> Program:
    loader = cast("_CodeLoader", spec.loader)

    def code() -> CodeType:
        found = loader.get_code(code_name)
        if found is None:
            raise ProgramError(f"No code object available for {code_name}", 1)
        return found

    module = _main_module(
        file=spec.origin, loader=spec.loader, package=spec.parent, spec=spec
    )
    return Program(code=code, module=module, name=name, folder=folder)


def _main_module(
    *,
    file: str | None,
    loader: object,
    package: str | None,
    spec: ModuleSpec | None = None,
) -> ModuleType:
    module = ModuleType("__main__")
    names: dict[str, Any] = {
        "__builtins__": builtins,
        "__cached__": None if spec is None else spec.cached,
        "__file__": file,
        "__loader__": loader,
        "__package__": package,
        "__spec__": spec,
    }
    if sys.version_info < (3, 14):
        # Annotations of a module that has none yet; later versions make them lazily.
        names["__annotations__"] = {}
    vars(module).update(names)
    return module
