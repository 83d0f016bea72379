"""What every route of a scope asks first: whether a product may leave NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.config import Options
from np_ozaki.gemm import FLOAT64, min_flops, native_reason
from np_ozaki.stats import CallInfo
from np_ozaki.tiling import flops

__all__ = [
    "FLOAT64",
    "as_array",
    "as_common",
    "as_float64",
    "common_dtype",
    "multiplies_to_float64",
    "options_for",
]


FLOAT32: Final = np.dtype(np.float32)
COMPLEX128: Final = np.dtype(np.complex128)
COMPLEX64: Final = np.dtype(np.complex64)


def options_for(route: str, batch: int, m: int, n: int, k: int) -> Options | None:
    """Return the options of the scope that decides here, if it routes a product.

    Parameters
    ----------
    route : str
        Name for the counters.
    batch, m, n, k : int
        Matrices, rows, columns, inner length.

    Returns
    -------
    Options or None
        None leaves the product to NumPy; where the scope's options say so, it is
        counted with the reason.  Products below `min_flops` are not counted.
    """
    scope = context.active_scope()
    if scope is None or scope.options is None:
        return None
    options = scope.options
    if flops(m, n, k) < min_flops(options):
        return None
    reason = native_reason(options)
    if reason is not None:
        context.record(CallInfo(route, "native", batch, m, n, k, fallback=reason))
        return None
    return options


def as_array(x: Any, classes: frozenset[type]) -> NDArray[Any] | None:
    """Return an operand as NumPy's C code would see it, or None for what it may not be.

    Parameters
    ----------
    x : object
        What was passed.
    classes : frozenset of type
        Classes of arrays that the route treats as NumPy does.

    Returns
    -------
    ndarray or None
        `x` itself, or the array of a list or tuple; None leaves it to NumPy, with
        its error if there is one.
    """
    if type(x) in classes:
        return np.asarray(x)  # of a subclass: a view as plain ndarray
    if type(x) not in {list, tuple}:
        return None
    try:
        converted = np.asarray(x)
    except (ValueError, TypeError, OverflowError, DeprecationWarning):
        return None
    return converted


def multiplies_to_float64(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether NumPy would multiply two arrays as float64 numbers.

    Parameters
    ----------
    a, b : ndarray
        Operands.

    Returns
    -------
    bool
        Both are real and their common dtype is float64.
    """
    if a.dtype == b.dtype == np.float64:
        return True
    real = a.dtype.kind in "biuf" and b.dtype.kind in "biuf"
    return real and np.result_type(a.dtype, b.dtype) == np.float64


def as_float64(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return aligned native float64, the very array where it is one already.

    Parameters
    ----------
    x : ndarray
        Real; a subclass comes back as an ndarray.

    Returns
    -------
    ndarray of float64
        Same entries, cast as NumPy's products cast them.
    """
    if type(x) is np.ndarray and x.dtype is FLOAT64 and x.flags.aligned:
        return x
    return np.require(x, dtype=np.float64, requirements="A").view(np.ndarray)


def as_common(
    a: NDArray[Any], b: NDArray[Any], *, wide: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both operands as entries of the one dtype that they multiply in.

    Parameters
    ----------
    a, b : ndarray
        Subclasses come back as ndarrays.
    wide : bool, optional
        Whether it is float64 or complex128 in any case.

    Returns
    -------
    tuple of two ndarrays
        Same entries, cast as NumPy's products cast them.
    """
    dtype = common_dtype(a, b, wide=wide)
    if dtype is FLOAT64:
        return as_float64(a), as_float64(b)
    left, right = (
        np.require(x, dtype=dtype, requirements="A").view(np.ndarray) for x in (a, b)
    )
    return left, right


def common_dtype(a: Any, b: Any, *, wide: bool = False) -> np.dtype[Any]:
    """Return the one dtype that two operands of the engine multiply in.

    Parameters
    ----------
    a, b : array
        Of the host or a GPU.
    wide : bool, optional
        Whether it is float64 or complex128 in any case.

    Returns
    -------
    dtype
        Of native byte order.
    """
    left: np.dtype[Any] = a.dtype
    right: np.dtype[Any] = b.dtype
    if left is FLOAT64 is right:
        return FLOAT64
    whole = "c" in left.kind + right.kind
    if not wide and np.result_type(left, right).char in "fF":
        return COMPLEX64 if whole else FLOAT32
    return COMPLEX128 if whole else FLOAT64
