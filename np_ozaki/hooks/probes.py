"""Self-tests: a hook counts as installed when it was seen to work, both ways.

Each hook has a product for each dtype that is easy to recognise.  It is taken (with an
answer that no product gives), failed, declined, and made behind a closed gate.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from np_ozaki.hooks.memory import Matrix, array_from_loop
from np_ozaki.hooks.table import DTYPES, Hook

__all__ = ["self_test", "trials_of"]

_OFFSET: Final = 4096.0


class _SelfTestError(Exception):
    """The installed hook does not do what it must."""


class _ProbeFailure(Exception):
    """Raised by a probe to see it arrive."""


@dataclass(frozen=True)
class Trial:
    """One product, and what handlers make of it.

    Attributes
    ----------
    product : callable
        Makes the product by the function that is hooked.
    take : callable
        A handler that answers with something no product gives.
    taken : callable
        Takes the result and the native one; whether the result is that answer.
    declined : object
        What a handler of this kind returns to decline.
    """

    product: Callable[[], Any]
    take: Callable[..., Any]
    taken: Callable[[Any, Any], bool]
    declined: object = None


_FLOAT64: Final = DTYPES["d"]


def _integers(*shape: int, dtype: np.dtype[Any] = _FLOAT64) -> Matrix:
    # In no order in which another layout would give the same product.
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    real = (numbers * 7 % 11 - 3).astype(dtype)
    return real + 1j * (numbers * 5 % 7 - 2) if dtype.kind == "c" else real


# ---- Loops of ufuncs ----

# Sizes of a, and of b before it is transposed.
_LOOP_OPERANDS: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "matmul": ((2, 3), (4, 3)),
    "vecdot": ((2, 3), (3, 2)),
    "matvec": ((2, 3), (3,)),
    "vecmat": ((3,), (4, 3)),
}
_CONJUGATING: Final = frozenset({"vecdot", "vecmat"})


def _take_loop(conjugating: bool, *loop: Any) -> int:
    """Write the product plus an offset, without any matrix product."""
    outer, m, k, n, dtype = loop[6:]
    shapes = (outer, m, k), (outer, k, n), (outer, m, n)
    a, b, out = (
        array_from_loop(pointer, shape, strides, True, np.dtype(dtype))
        for pointer, strides, shape in zip(loop[:6:2], loop[1:6:2], shapes, strict=True)
    )
    if conjugating:
        a = a.conj()
    out[...] = (a[..., np.newaxis] * b[..., np.newaxis, :, :]).sum(-2) + _OFFSET
    return 0


def _loop_trial(name: str, ufunc: Any, dtype: np.dtype[Any]) -> Trial:
    a_shape, b_shape = _LOOP_OPERANDS[name]
    a, b = _integers(*a_shape, dtype=dtype), _integers(*b_shape, dtype=dtype).T
    return Trial(
        product=lambda: ufunc(a, b),
        take=functools.partial(_take_loop, name in _CONJUGATING),
        taken=lambda result, native: np.array_equal(result, native + _OFFSET),
    )


# ---- Builtin functions ----


def _builtin_trial(name: str, function: Any, dtype: np.dtype[Any]) -> Trial:
    a, b = _integers(2, 3, dtype=dtype), _integers(3, 3, dtype=dtype)
    operands: tuple[Any, ...] = ("ij,jk", a, b) if name == "einsum" else (a, b)
    call = a.dot if name == "ndarray.dot" else function
    given = operands[1:] if name == "ndarray.dot" else operands
    answer = object()

    def take(arguments: tuple[Any, ...], keywords: object) -> object:
        same = len(arguments) == len(operands) and all(
            x is y for x, y in zip(arguments, operands, strict=True)
        )
        if not same or keywords is not None:
            raise _SelfTestError(f"the handler was called with {arguments}, {keywords}")
        return answer

    return Trial(
        product=lambda: call(*given),
        take=take,
        taken=lambda result, native: result is answer,
        declined=NotImplemented,
    )


# ---- BLAS ----

# Sizes of a and b (or x), keywords, and what the routine must be called with: None
# for an address, "out" for the output's.
_BlasCall: TypeAlias = tuple[
    tuple[tuple[int, ...], ...], dict[str, int], tuple[Any, ...]
]
_BLAS_CALLS: Final[dict[str, _BlasCall]] = {
    "gemm": (
        ((4, 2), (4, 3)),
        {"trans_a": 1},
        ("T", "N", 2, 3, 4, 2.0, None, 4, None, 4, 0.0, "out", 2),
    ),
    "gemv": (
        ((4, 2), (2,)),
        {},
        ("N", 4, 2, 2.0, None, 4, None, 1, 0.0, "out", 1),
    ),
    "symm": (
        ((3, 3), (3, 2)),
        {"lower": 1},
        ("L", "L", 3, 2, 2.0, None, 3, None, 3, 0.0, "out", 3),
    ),
    "syrk": (
        ((3, 2),),
        {"trans": 1},
        ("U", "T", 2, 3, 2.0, None, 3, 0.0, "out", 2),
    ),
    "syr2k": (
        ((3, 2), (3, 2)),
        {"trans": 1},
        ("U", "T", 2, 3, 2.0, None, 3, None, 3, 0.0, "out", 2),
    ),
    "herk": (
        ((3, 2),),
        {"trans": 2},
        ("U", "C", 2, 3, 2.0, None, 3, 0.0, "out", 2),
    ),
    "her2k": (
        ((3, 2), (3, 2)),
        {"trans": 2},
        ("U", "C", 2, 3, 2.0, None, 3, None, 3, 0.0, "out", 2),
    ),
    "trmm": (
        ((3, 3), (3, 2)),
        {"lower": 1, "diag": 1},
        ("L", "L", "N", "U", 3, 2, 2.0, None, 3, "out", 3),
    ),
}
_BLAS_CALLS["hemm"] = _BLAS_CALLS["symm"]
_BLAS_CALLS["trsm"] = _BLAS_CALLS["trmm"]


def _blas_trial(name: str, function: Any) -> Trial:
    dtype = DTYPES[name[0]]
    shapes, keywords, expected = _BLAS_CALLS[name[1:]]
    operands = [_integers(*shape, dtype=dtype) for shape in shapes]
    place = expected.index("out")

    def take(*arguments: Any) -> bool:
        told = tuple(
            y if y in {None, "out"} else x
            for x, y in zip(arguments, expected, strict=True)
        )
        if told != expected:
            raise _SelfTestError(f"the handler was called with {told}, not {expected}")
        out = array_from_loop(arguments[place], (1,), (dtype.itemsize,), True, dtype)
        out[0] = _OFFSET
        return True

    return Trial(
        product=lambda: function(2.0, *operands, **keywords),
        take=take,
        taken=lambda result, native: bool(result.flat[0] == _OFFSET),
    )


# ---- The test ----


def trials_of(hook: Hook, target: Any) -> tuple[Trial, ...]:
    """Return the trials of a hook.

    Parameters
    ----------
    hook : Hook
        Row of the table.
    target : object
        What its `find` returned.

    Returns
    -------
    tuple of Trial
        Their products are native as long as the hook is not installed.
    """
    if hook.kind == "BLAS":
        return (_blas_trial(hook.name, target),)
    make = _loop_trial if hook.kind == "loop" else _builtin_trial
    return tuple(make(hook.name, target, dtype) for dtype in DTYPES.values())


def _fail(*arguments: Any) -> Any:
    raise _ProbeFailure


def self_test(extension: ModuleType, hook: Hook, target: Any) -> None:
    """Install one hook with probes and see it work; leaves it and the gate as it is.

    Parameters
    ----------
    extension : module
        np_ozaki._hooks.
    hook : Hook
        Row of the table.
    target : object
        What its `find` returned.

    Raises
    ------
    Exception
        Says what does not work; the hook may be installed then.
    """
    for trial in trials_of(hook, target):
        _try(extension, hook, target, trial)


def _try(extension: ModuleType, hook: Hook, target: Any, trial: Trial) -> None:
    # The hook may be installed, by the trial before; then the gate is closed.
    native = trial.product()
    thread = threading.get_ident()

    def install(handler: Callable[..., Any]) -> None:
        def here(*arguments: Any) -> Any:
            # Meanwhile other threads' products arrive too.
            own = threading.get_ident() == thread
            return handler(*arguments) if own else trial.declined

        extension.install(hook.name, target, here)

    install(trial.take)
    extension.set_gate(1, 0)
    if not trial.taken(trial.product(), native):
        raise _SelfTestError("the product did not reach the handler")
    install(_fail)
    try:
        trial.product()
    except _ProbeFailure:
        pass
    else:
        raise _SelfTestError("the handler's exception was lost")
    install(lambda *arguments: trial.declined)
    if not np.array_equal(trial.product(), native):
        raise _SelfTestError("a declined product is wrong")
    install(_fail)
    extension.set_gate(0, 0)
    if not np.array_equal(trial.product(), native):
        raise _SelfTestError("a native product is wrong")
