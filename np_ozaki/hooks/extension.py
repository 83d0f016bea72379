"""The compiled extension: whether it can be loaded, and what it does for threads."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "REMEDY",
    "arithmetic",
    "extension",
    "extension_reason",
    "interpreter_reason",
    "unrouted",
]

REMEDY: Final = "wrap the arrays in np_ozaki.OzArray instead"

_INTERFACE: Final = 4


def _is_subinterpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def _interpreter_obstacle() -> str | None:
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} has no stable C functions to hook"
    # Even with the GIL switched on: such a build cannot load the stable ABI.  Its
    # version says so (documented), sysconfig would cost milliseconds at import.
    if "free-threading build" in sys.version:
        return "free-threaded Python: C functions cannot be swapped safely"
    if _is_subinterpreter():
        return "subinterpreter: NumPy's functions belong to the main interpreter"
    return None


def _load() -> tuple[ModuleType | None, str]:
    # By name: an import statement would count as importing np_ozaki/__init__, which
    # is above this layer.
    try:
        found = importlib.import_module("np_ozaki._hooks")
    except ImportError as error:
        return None, (
            f"np_ozaki._hooks is not available ({error}): install a C compiler and "
            f"repeat the installation of np_ozaki, or {REMEDY}"
        )
    interface = getattr(found, "INTERFACE", None)
    if interface != _INTERFACE:
        return None, (
            f"np_ozaki._hooks has interface {interface}, not {_INTERFACE}: it is left "
            "over from another version; reinstall np_ozaki"
        )
    return found, ""


interpreter_reason: Final = _interpreter_obstacle()
"""Why nothing can be hooked in this interpreter, or None."""

extension, extension_reason = (
    _load() if interpreter_reason is None else (None, interpreter_reason)
)
"""The extension, or None and why."""


class _Nothing:
    """Stands in for the extension's scopes where there is none."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


_unrouted: Final[AbstractContextManager[None, None]] = (
    _Nothing() if extension is None else extension.UnroutedScope()
)
_arithmetic: Final[AbstractContextManager[None, None]] = (
    _Nothing() if extension is None else extension.ArithmeticScope()
)


def unrouted() -> AbstractContextManager[None, None]:
    """Return the context in which this thread's products are native.

    For engines and their worker threads.  It can be nested, and it is one object:
    entering only counts, in C, so that Ctrl-C cannot leave the count wrong.

    Returns
    -------
    context manager
        Its target is None.
    """
    return _unrouted


def arithmetic() -> AbstractContextManager[None, None]:
    """Return the context in which this thread rounds to nearest, and never to zero.

    Other libraries may have left it otherwise: in another rounding mode, without
    subnormal numbers (as whatever is linked with -ffast-math), with traps.  For
    whatever depends on the rounding of float64.  Without the extension nothing changes.

    Returns
    -------
    context manager
        As `unrouted` returns it: one object, to be nested.
    """
    return _arithmetic
