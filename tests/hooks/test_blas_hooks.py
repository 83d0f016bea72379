"""Hooked BLAS routines of SciPy: when they are hooked, and that all comes back."""

import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes import run_python
from scipy.linalg import blas

from np_ozaki import hooks
from np_ozaki.hooks import extension, installation, table

pytestmark = pytest.mark.skipif(
    extension.extension is None, reason=f"no extension: {extension.extension_reason}"
)

ROUTINES = [hook.name for hook in table.HOOKS if hook.kind == "BLAS"]
SEEN = """
import sys
import _imp
import ctypes

class Definition(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p)]

class Builtin(ctypes.Structure):
    _fields_ = [
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("definition", ctypes.POINTER(Definition)),
    ]

def import_pointer():
    return Builtin.from_address(id(_imp.exec_dynamic)).definition.contents.function

native = import_pointer()

import numpy as np
import np_ozaki
from np_ozaki import hooks

def active():
    return {s.name for s in hooks.status() if s.active}

def routed():
    from scipy.linalg.blas import dgemm
    before = np_ozaki.stats().calls("cpu")
    assert (dgemm(1.0, np.eye(3), np.eye(3)) == np.eye(3)).all()
    return np_ozaki.stats().calls("cpu") - before

scope = np_ozaki.enabled(engine="cpu", min_flops=0)
"""


@pytest.fixture
def route() -> Iterator[Callable[..., None]]:
    """Install one handler for all routines behind an open gate; undo it afterwards."""
    gate = installation._state.gate

    def install(handler: Callable[..., Any], min_flops: int = 0) -> None:
        statuses = hooks.install(dict.fromkeys(ROUTINES, handler))
        active = [s.name for s in statuses if s.active]
        assert active == ROUTINES, statuses
        hooks.set_gate(1, min_flops)

    yield install
    hooks.set_gate(*gate)
    hooks.install({})


# ---- Imports ----


@pytest.mark.parametrize(
    "statement",
    [
        "import scipy.linalg",
        "from scipy.linalg import blas",
        "import scipy.linalg.blas",
        "import scipy.linalg.lapack",
        "import scipy.stats",
        "import importlib; importlib.import_module('scipy.linalg.blas')",
        "import scipy; scipy.linalg",
    ],
)
def test_import_inside_a_scope(statement: str) -> None:
    run_python(
        SEEN
        + f"""
with scope:
    assert "scipy.linalg" not in sys.modules
    assert "dgemm" not in active() and not any(s.escapes for s in hooks.status())
    assert import_pointer() != native
    {statement}
    assert import_pointer() == native
    assert routed() == 1
assert routed() == 0
"""
    )


def test_import_before_and_between_scopes() -> None:
    run_python(SEEN + "import scipy.linalg\nwith scope: assert routed() == 1")
    run_python(
        SEEN
        + """
with scope:
    pass
assert import_pointer() != native
import scipy.linalg
assert "dgemm" in active() and import_pointer() == native
assert routed() == 0
with scope:
    assert routed() == 1
"""
    )


def test_nothing_is_imported_and_nothing_shows() -> None:
    run_python(
        SEEN
        + """
import builtins
before = (list(sys.meta_path), list(sys.path_hooks), builtins.__import__,
          _imp.exec_dynamic, id(_imp.exec_dynamic))
with scope:
    after = (list(sys.meta_path), list(sys.path_hooks), builtins.__import__,
             _imp.exec_dynamic, id(_imp.exec_dynamic))
assert before == after
assert "scipy" not in sys.modules
"""
    )


def test_import_inside_a_scope_in_a_thread() -> None:
    run_python(
        SEEN
        + """
import threading

def work():
    for _ in range(20):
        with np_ozaki.enabled(engine="cpu", min_flops=0):
            np.dot(np.eye(3), np.eye(3))

with scope:
    threads = [threading.Thread(target=work) for _ in range(4)]
    threads += [threading.Thread(target=__import__, args=("scipy.linalg",))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not any(thread.is_alive() for thread in threads)
    assert routed() == 1
"""
    )


def test_switched_off_hooks_watch_no_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NP_OZAKI_HOOKS", "matmul,dot")
    run_python(
        SEEN
        + """
with scope:
    assert import_pointer() == native
    assert active() == {"matmul", "dot"}
    import scipy.linalg
    assert routed() == 0
    assert active() == {"matmul", "dot"}
"""
    )


def test_single_routines_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NP_OZAKI_HOOKS", "dtrsm")
    run_python(
        SEEN
        + """
with scope:
    import scipy.linalg
    assert active() == {"dtrsm"}
    assert routed() == 0
    scipy.linalg.blas.dtrsm(1.0, np.eye(3), np.eye(3))
    assert np_ozaki.stats().calls("cpu") == 1
"""
    )


def test_import_that_fails_stays_as_it_is() -> None:
    run_python(
        SEEN
        + """
with scope:
    try:
        import np_ozaki_is_no_such_module
    except ModuleNotFoundError as error:
        assert error.name == "np_ozaki_is_no_such_module"
    import _ctypes_test  # an extension module of no interest
    assert import_pointer() != native
"""
        if _has_ctypes_test()
        else "pass"
    )


def _has_ctypes_test() -> bool:
    import importlib.util

    return importlib.util.find_spec("_ctypes_test") is not None


def test_exception_of_the_watch_is_the_imports() -> None:
    run_python(
        SEEN
        + """
from np_ozaki import _hooks

def interrupted(module):
    raise KeyboardInterrupt(module.__name__)

_hooks.install("imports", _imp.exec_dynamic, interrupted)
try:
    import scipy.linalg
except KeyboardInterrupt as error:
    assert str(error)
else:
    raise SystemExit("the exception was lost")
assert _hooks.uninstall("imports") is True
assert import_pointer() == native
"""
    )


def test_imports_that_cannot_be_watched_are_explained() -> None:
    run_python(
        SEEN
        + """
from np_ozaki.hooks import installation
class NotBuiltin:
    pass
installation._imp = NotBuiltin()
installation._imp.exec_dynamic = NotBuiltin()
with scope:
    status = {s.name: s for s in hooks.status()}["dgemm"]
    assert "inside a scope are not seen" in status.reason, status
    import scipy.linalg
    assert "dgemm" not in active()
    with scope:
        assert routed() == 1
assert import_pointer() == native
"""
    )


# ---- Pointers and refusals ----

FORTRAN = """
import ctypes
import numpy as np
from scipy.linalg import blas

class Fortran(ctypes.Structure):
    _fields_ = [
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("len", ctypes.c_int),
        ("defs", ctypes.POINTER(ctypes.c_void_p * 44)),
    ]

names = "dgemm dgemv dsymm dsyrk dsyr2k dtrmm dtrsm".split()

def pointers():
    return {
        name: Fortran.from_address(id(getattr(blas, name))).defs.contents[43]
        for name in names
    }
"""


def test_native_pointers_come_back() -> None:
    run_python(
        FORTRAN
        + """
from np_ozaki import hooks

before = pointers()
for _ in range(3):
    hooks.install(dict.fromkeys(names, lambda *arguments: None))
    after = pointers()
    assert len(set(after.values()) | set(before.values())) == 14
    hooks.install({"dsyrk": lambda *arguments: None})
    assert [k for k in names if pointers()[k] != before[k]] == ["dsyrk"]
    hooks.install({})
    assert pointers() == before
"""
    )


def test_function_of_another_library_is_left_alone() -> None:
    run_python(
        FORTRAN
        + """
from np_ozaki import _hooks, hooks

native = pointers()
hooks.install({"dgemm": lambda *arguments: None})
ours = pointers()["dgemm"]
slot = Fortran.from_address(id(blas.dgemm)).defs.contents
slot[43] = native["dgemm"] + 1
assert _hooks.uninstall("dgemm") is False
assert slot[43] == native["dgemm"] + 1
slot[43] = ours
assert (blas.dgemm(1.0, np.eye(2), np.eye(2)) == np.eye(2)).all()
assert _hooks.uninstall("dgemm") is True
assert pointers() == native
"""
    )


def test_address_that_is_not_the_native_one_is_refused() -> None:
    run_python(
        FORTRAN
        + """
from np_ozaki import hooks

# As if another library had put its routine there; f2py remembers the native address
# from the first time that it is asked.
blas.dtrmm._cpointer
slot = Fortran.from_address(id(blas.dtrmm)).defs.contents
slot[43] = pointers()["dtrsm"]
before = pointers()
status = {s.name: s for s in hooks.install({"dtrmm": lambda *arguments: None})}["dtrmm"]
assert status.escapes and "unknown layout" in status.reason, status
assert pointers() == before
"""
    )


def test_refusals() -> None:
    compiled: Any = extension.extension
    hooks.install({})
    for target in (3, len, np.eye(2), blas.dgemv, blas.sgemm):
        with pytest.raises((TypeError, AttributeError)):
            compiled.install("dgemm", target, print)
    assert compiled.uninstall("dgemm") is True


def test_wide_integers_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    compiled: Any = extension.extension
    hooks.install({})
    (tmp_path / "_fblas_64.so").touch()
    fake = types.ModuleType(table.BLAS)
    fake.__file__ = str(tmp_path / "_fblas.so")
    monkeypatch.setitem(table.sys.modules, table.BLAS, fake)
    monkeypatch.setattr(installation, "_state", installation._State(compiled))
    status = {s.name: s for s in hooks.install({"dgemm": print})}["dgemm"]
    assert status.escapes
    assert "64-bit" in status.reason


def test_routine_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = extension.extension
    hooks.install({})
    monkeypatch.setitem(table.sys.modules, table.BLAS, types.ModuleType(table.BLAS))
    monkeypatch.setattr(installation, "_state", installation._State(compiled))
    status = {s.name: s for s in hooks.install({"dgemm": print})}["dgemm"]
    assert (status.active, status.escapes) == (False, False)
    assert "no dgemm" in status.reason


# ---- Handlers ----


@pytest.mark.parametrize("answer", [0, 1, "done", False, NotImplemented])
def test_answer_of_a_wrong_type(route: Callable[..., None], answer: object) -> None:
    route(lambda *arguments: answer)
    with pytest.raises(TypeError, match="dgemm handler returned"):
        blas.dgemm(1.0, np.eye(2), np.eye(2))


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (lambda: blas.dgemm(1.0, np.eye(2, 3), np.eye(3, 4)), 48),
        (lambda: blas.dgemm(1.0, np.eye(3, 2), np.eye(3, 4), trans_a=1), 48),
        (lambda: blas.dgemv(1.0, np.eye(2, 3), np.ones(3)), 12),
        (lambda: blas.dsymm(1.0, np.eye(2), np.eye(2, 5)), 40),
        (lambda: blas.dsymm(1.0, np.eye(5), np.eye(2, 5), side=1), 100),
        (lambda: blas.dsyrk(1.0, np.eye(3, 2)), 36),
        (lambda: blas.dsyr2k(1.0, np.eye(3, 2), np.eye(3, 2)), 36),
        (lambda: blas.dtrmm(1.0, np.eye(2), np.eye(2, 5)), 40),
        (lambda: blas.dtrsm(1.0, np.eye(2), np.eye(2, 5)), 40),
    ],
)
def test_gate_counts_flops(
    route: Callable[..., None], call: Callable[[], Any], flops: int
) -> None:
    calls: list[Any] = []

    def handler(*arguments: Any) -> None:
        calls.append(arguments)

    route(handler, min_flops=flops + 1)
    call()
    assert calls == []
    hooks.set_gate(1, flops)
    call()
    assert len(calls) == 1
    hooks.set_gate(0, 0)
    call()
    with hooks.unrouted():
        hooks.set_gate(1, 0)
        call()
    assert len(calls) == 1


def test_exception_leaves_f2py_as_it_was(route: Callable[..., None]) -> None:
    error = KeyboardInterrupt()

    def handler(*arguments: Any) -> None:
        raise error

    route(handler)
    c = np.full((2, 2), 7.0, order="F")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt) as caught:
            blas.dgemm(1.0, np.eye(2), np.eye(2), 0.0, c, overwrite_c=1)
        assert caught.value is error
    assert (c == 7.0).all()


def test_products_in_the_handler_are_native(route: Callable[..., None]) -> None:
    depth = 0

    def handler(*arguments: Any) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        blas.dgemm(1.0, np.eye(3), np.eye(3))
        depth -= 1

    route(handler)
    np.testing.assert_array_equal(blas.dgemm(1.0, np.eye(2), np.eye(2)), np.eye(2))


def test_cpointer_stays_native(route: Callable[..., None]) -> None:
    before = repr(blas.dgemm._cpointer)
    route(lambda *arguments: None)
    assert repr(blas.dgemm._cpointer) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_child() -> None:
    run_python(
        SEEN
        + """
import os
with scope:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if routed() == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert routed() == 1
""",
        "-W",
        "ignore::DeprecationWarning",
    )
