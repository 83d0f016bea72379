"""The one place where NumPy's own loops are caught.

`a @ b` on plain arrays goes through C to the matmul ufunc, past every Python name.
The extension `np_ozaki._hooks` replaces that ufunc's float64 loop, once; a gate in C
decides before any Python runs whether a product is worth asking about.  Entering and
leaving a scope only moves the gate (`set_gate`).

Nothing is installed by importing this module.  A hook that cannot work says why in
its `HookStatus`, and every function here stays callable without the extension.

Notes
-----
Threads and forks: the gate and the handler belong to the process, `unrouted` to the
thread.  A forked child inherits all of it in the state of the forking thread; whether
its engine still works is the handler's business.

Legacy subinterpreters (NumPy before 2.4) share NumPy's loops with the main one.
Their products stay native, but under Python 3.11 a small product there waits for ever
while a scope is open in the main interpreter: `PyGILState_Ensure` knows only one
interpreter a thread.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from np_ozaki.errors import HookUnavailableError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "MATMUL",
    "RAISE_INVALID",
    "RAISE_OVERFLOW",
    "RAISE_UNDERFLOW",
    "Handler",
    "HookStatus",
    "array_from_loop",
    "install",
    "set_gate",
    "status",
    "unrouted",
]

MATMUL: Final = "matmul"
"""Name of the hook, in `HookStatus` and in ``disabled``."""

RAISE_OVERFLOW: Final = 1
RAISE_INVALID: Final = 2
RAISE_UNDERFLOW: Final = 4
"""Bits of a handler's answer: the floating-point flags that NumPy shall find."""

Strides: TypeAlias = tuple[int, int, int]
Matrix: TypeAlias = NDArray[np.float64]

_INTERFACE: Final = 1
_REMEDY: Final = "wrap the arrays in np_ozaki.OzArray instead"


class Handler(Protocol):
    """What `install` takes: called with one batch of products, GIL held.

    The arguments are pointers, byte strides and sizes: ``a`` is (outer, m, k), ``b``
    (outer, k, n), ``out`` (outer, m, n), float64, aligned, in native byte order; any
    size and any stride can be 0, strides can be negative.  NumPy splits some batches
    into several calls.  ``out`` is uninitialised memory that overlaps neither
    operand.

    None declines: the native loop runs.  An int is the answer when ``out`` is
    written: RAISE_* bits for NumPy's ``errstate``, 0 for none.  An exception becomes
    the exception of the product.  Products that the handler makes in its own thread
    are native.
    """

    def __call__(
        self,
        a_pointer: int,
        a_strides: Strides,
        b_pointer: int,
        b_strides: Strides,
        out_pointer: int,
        out_strides: Strides,
        outer: int,
        m: int,
        k: int,
        n: int,
        /,
    ) -> int | None:
        """Take or decline one batch."""
        ...


@dataclass(frozen=True)
class HookStatus:
    """State of one hook.

    Attributes
    ----------
    name : str
        Name of the hook, as in `NP_OZAKI_HOOKS`.
    active : bool
        Whether products reach the handler while the gate is open.
    reason : str
        Why it is active or not, with the remedy where there is one.
    """

    name: str
    active: bool
    reason: str


@dataclass
class _State:
    handler: Handler | None = None
    status: HookStatus = field(
        default_factory=lambda: _inactive("not installed: no scope was entered yet")
    )
    settled: bool = False
    gate: tuple[int, int] = (0, 0)


class _SelfTestError(Exception):
    """The installed hook does not do what it must."""


def _inactive(reason: str) -> HookStatus:
    return HookStatus(MATMUL, active=False, reason=reason)


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
        return f"{sys.implementation.name} has no stable C loops to hook"
    # Even with the GIL switched on: such a build cannot load the stable ABI.  Its
    # version says so (documented), sysconfig would cost milliseconds at import.
    if "free-threading build" in sys.version:
        return "free-threaded Python: NumPy's loops cannot be swapped safely"
    if _is_subinterpreter():
        return "subinterpreter: NumPy's loops belong to the main interpreter"
    return None


def _load_extension() -> tuple[ModuleType | None, str]:
    # By name: an import statement would count as importing np_ozaki/__init__, which
    # is above this layer.
    try:
        extension = importlib.import_module("np_ozaki._hooks")
    except ImportError as error:
        return None, (
            f"np_ozaki._hooks is not available ({error}): install a C compiler and "
            f"repeat the installation of np_ozaki, or {_REMEDY}"
        )
    found = getattr(extension, "INTERFACE", None)
    if found != _INTERFACE:
        return None, (
            f"np_ozaki._hooks has interface {found}, not {_INTERFACE}: it is left "
            "over from another version; reinstall np_ozaki"
        )
    return extension, ""


def _numpy_obstacle() -> str | None:
    # The extension relies on places in a table that is stable within NumPy 2 only.
    major = np.__version__.partition(".")[0]
    if major != "2":
        return f"NumPy {np.__version__}: only the C ABI of NumPy 2 is known"
    if not hasattr(_multiarray(), "_UFUNC_API"):
        return f"NumPy {np.__version__} exports no _UFUNC_API capsule"
    return None


def _multiarray() -> Any:
    return importlib.import_module("numpy._core._multiarray_umath")


def _matmul_ufunc() -> object:
    # Not np.matmul: that name may have been rebound, `@` does not follow it.
    return _multiarray().matmul


_interpreter_reason: Final = _interpreter_obstacle()
_extension, _extension_reason = (
    _load_extension() if _interpreter_reason is None else (None, _interpreter_reason)
)
_state: Final = _State()
# Reentrant: a signal handler or a finaliser may enter a scope during an install.
_lock: Final = threading.RLock()


class _NothingToLeave:
    """Stands in for the extension's scope where nothing is ever routed."""

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


_unrouted: Final["AbstractContextManager[None, None]"] = (
    _NothingToLeave() if _extension is None else _extension.UnroutedScope()
)


def install(
    handler: Handler, disabled: frozenset[str] = frozenset()
) -> tuple[HookStatus, ...]:
    """Install the hooks, or only change their handler if they are installed.

    Parameters
    ----------
    handler : Handler
        Asked about each product that passes the gate.
    disabled : frozenset of str, optional
        Names of hooks to leave out; one that is installed is taken out.  Names of
        hooks that live elsewhere are ignored.

    Returns
    -------
    tuple of HookStatus
        One a hook.  A missing extension, an unknown NumPy or a failed self-test
        gives an inactive hook with its reason, not an exception.

    Raises
    ------
    HookUnavailableError
        On PyPy, free-threaded Python and in subinterpreters.
    """
    if _interpreter_reason is not None:
        raise HookUnavailableError(f"{_interpreter_reason}; {_REMEDY}")
    with _lock:
        if MATMUL in disabled:
            _disable()
        elif _extension is None:
            _state.status = _inactive(_extension_reason)
        elif _state.settled:
            _replace_handler(_extension, handler)
        else:
            _install_first(_extension, handler)
        return (_state.status,)


def status() -> tuple[HookStatus, ...]:
    """Return the state of every hook without installing anything.

    Returns
    -------
    tuple of HookStatus
        In the order of `install`.
    """
    with _lock:
        if _extension is None:
            return (_inactive(_extension_reason),)
        return (_state.status,)


def set_gate(depth: int, min_flops: int) -> None:
    """Open or close the gate in front of the handler, for the whole process.

    Parameters
    ----------
    depth : int
        Number of open scopes; at 0 every product is native at once.
    min_flops : int
        Products with 2*m*k*n of one matrix below this are native at once.  Numbers
        from 2**63 on let nothing pass.
    """
    if _extension is None:
        return
    with _lock:
        _extension.set_gate(depth, min_flops)
        _state.gate = (depth, min_flops)


def unrouted() -> "AbstractContextManager[None, None]":
    """Return the context in which this thread's products are native.

    For engines and their worker threads.  It can be nested, and it is one object:
    entering only counts, in C, so that Ctrl-C cannot leave the count wrong.

    Returns
    -------
    context manager
        Its target is None.
    """
    return _unrouted


class _LoopMemory:
    """Memory of a running loop, described to NumPy."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


_FLOAT64: Final = np.dtype(np.float64).str


def array_from_loop(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> Matrix:
    """Return a view of the memory that a loop was called with.

    Parameters
    ----------
    pointer : int
        Address of the first element.
    shape : tuple of int
        Sizes; 0 is allowed.
    strides : tuple of int
        Bytes, as many as sizes; negative and 0 are allowed.
    writeable : bool
        False for operands.

    Returns
    -------
    ndarray of float64
        Shares the memory, copies nothing.  Valid until the handler returns: NumPy
        may free the memory after that.
    """
    interface: dict[str, object] = {
        "version": 3,
        "typestr": _FLOAT64,
        "data": (pointer, not writeable),
        "shape": shape,
        "strides": strides,
    }
    return np.asarray(_LoopMemory(interface))


def _disable() -> None:
    if _state.settled and _state.status.active and _extension is not None:
        _extension.uninstall()
    _state.handler = None
    _state.settled = False
    _state.status = _inactive("switched off by configuration")


def _replace_handler(extension: ModuleType, handler: Handler) -> None:
    if _state.status.active and _state.handler is not handler:
        extension.install(_matmul_ufunc(), handler)
        _state.handler = handler


def _install_first(extension: ModuleType, handler: Handler) -> None:
    obstacle = _numpy_obstacle() or _trial(extension)
    if obstacle is None:
        extension.install(_matmul_ufunc(), handler)
        _state.handler = handler
        _state.status = HookStatus(MATMUL, active=True, reason="installed, self-tested")
    else:
        _state.status = _inactive(obstacle)
    _state.settled = True


def _trial(extension: ModuleType) -> str | None:
    """Install with probes and test; on failure uninstall and return the reason."""
    passed = False
    unrouted_before = extension.swap_unrouted(0)
    try:
        _self_test(extension)
        passed = True
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, NumPy must live
        return f"self-test on NumPy {np.__version__} failed: {error!r}"
    finally:
        extension.set_gate(*_state.gate)
        extension.swap_unrouted(unrouted_before)
        if not passed:
            extension.uninstall()
    return None


def _self_test(extension: ModuleType) -> None:
    left = np.array([[1.0, 2.0], [3.0, 4.0]])
    right = np.array([[5.0, 6.0], [7.0, 8.0]])
    native = np.array([[19.0, 22.0], [43.0, 50.0]])
    ufunc = _matmul_ufunc()

    extension.install(ufunc, _Probe(left, right, _take))
    extension.set_gate(1, 0)
    if not np.array_equal(left @ right.T, _no_product(left, right.T)):
        raise _SelfTestError("the product did not reach the handler")
    extension.install(ufunc, _Probe(left, right, _fail))
    try:
        _ = left @ right
    except _ProbeFailure:
        pass
    else:
        raise _SelfTestError("the handler's exception was lost")
    extension.install(ufunc, _Probe(left, right, _decline))
    if not np.array_equal(left @ right, native):
        raise _SelfTestError("a declined product is wrong")
    extension.set_gate(0, 0)
    if not np.array_equal(left @ right, native):
        raise _SelfTestError("a native product is wrong")


class _ProbeFailure(Exception):
    """Raised by a probe to see it arrive."""


def _no_product(a: Matrix, b: Matrix) -> Matrix:
    """Return what no product gives, and what both operands' layouts decide."""
    return np.asarray(a - 10.0 * b)


def _take(a: Matrix, b: Matrix, out: Matrix) -> int | None:
    out[...] = _no_product(a, b)
    return 0


def _fail(a: Matrix, b: Matrix, out: Matrix) -> int | None:
    raise _ProbeFailure


def _decline(a: Matrix, b: Matrix, out: Matrix) -> int | None:
    return None


@dataclass(frozen=True)
class _Probe:
    """A handler that acts on one pair of 2x2 operands.

    During the self-test other threads' products arrive here too; they are declined.
    """

    left: Matrix
    right: Matrix
    action: Callable[[Matrix, Matrix, Matrix], int | None]

    def __call__(self, *loop: Any) -> int | None:
        if (loop[0], loop[2]) != (self.left.ctypes.data, self.right.ctypes.data):
            return None
        a, b, out = (
            array_from_loop(pointer, (2, 2), strides[1:], writeable=True)
            for pointer, strides in zip(loop[:6:2], loop[1:6:2], strict=True)
        )
        return self.action(a, b, out)


# Held across a fork, so that no child inherits a half-done install or a lock whose
# owner it lacks.  The unrouted count needs no reset: the child goes on inside the
# same calls as the thread that forked, and leaves them as often.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )
