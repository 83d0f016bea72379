"""What every route of a scope asks first: whether a product may leave NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context, hooks
from np_ozaki.config import Options
from np_ozaki.gemm import FLOAT64, left_out, min_flops, native_reason
from np_ozaki.numerics.formats import format_of
from np_ozaki.numerics.moduli import COMPLEX_MODULI, MIN_MODULI
from np_ozaki.precision import keeps_tolerance
from np_ozaki.stats import CallInfo
from np_ozaki.tiling import flops

__all__ = [
    "COMPLEX128",
    "FLOAT64",
    "as_array",
    "as_common",
    "as_dtype",
    "common_dtype",
    "is_multiplied",
    "options_for",
    "routed_dtype",
]

COMPLEX128: Final = np.dtype(np.complex128)

FLOAT32: Final = np.dtype(np.float32)
COMPLEX64: Final = np.dtype(np.complex64)

_MULTIPLIED: Final = {
    dtype: dtype for dtype in (FLOAT64, COMPLEX128, FLOAT32, COMPLEX64)
}
"""The dtypes of products that an engine makes, each found by what is equal to it."""


def options_for(
    route: str, batch: int, m: int, n: int, k: int, dtype: np.dtype[Any]
) -> Options | None:
    """Return the options of the scope that decides here, if it routes a product.

    Parameters
    ----------
    route : str
        Name for the counters.
    batch, m, n, k : int
        Matrices, rows, columns, inner length.
    dtype : dtype
        Of the product.

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
    parts = 2 if dtype.kind == "c" else 1
    if flops(parts * m, n, parts * k) < min_flops(options):
        return None
    reason = (
        native_reason(options)
        or left_out(options, dtype, scoped=True)
        or _too_precise(options, dtype)
    )
    if reason is not None:
        info = CallInfo(
            route, "native", batch, m, n, k, fallback=reason, dtype=dtype.name
        )
        context.record(info)
        return None
    return options


def _too_precise(options: Options, dtype: np.dtype[Any]) -> str | None:
    """Return why a scope's precision is none of products of a dtype, or None.

    Whoever asks for such a product by name gets an error, and so do scopes that allow
    no native product.
    """
    given, most = options.precision, len(COMPLEX_MODULI)
    if options.scheme != "moduli" or options.reproducible:
        return None
    if dtype.kind == "c" and type(given) is int and given > most:
        return f"precision={given}: complex products take {MIN_MODULI} to {most} moduli"
    if not keeps_tolerance(options, format_of(dtype)):
        return f"precision={given}: float32 keeps no tolerance below 2**-23"
    return None


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


def routed_dtype(a: NDArray[Any], b: NDArray[Any]) -> np.dtype[Any] | None:
    """Return the dtype in which NumPy would multiply two arrays, if an engine does.

    Parameters
    ----------
    a, b : ndarray
        Operands.

    Returns
    -------
    dtype or None
        The one object of it that has native byte order.
    """
    if a.dtype is b.dtype is FLOAT64:
        return FLOAT64
    if a.dtype.kind not in "biufc" or b.dtype.kind not in "biufc":
        return None
    return _MULTIPLIED.get(np.result_type(a.dtype, b.dtype))


def as_dtype(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an aligned array of a dtype, the very array where it is one already.

    Parameters
    ----------
    x : ndarray
        A subclass comes back as an ndarray.
    dtype : dtype
        From `routed_dtype`.

    Returns
    -------
    ndarray
        Same entries, cast as NumPy's products cast them.
    """
    if type(x) is np.ndarray and x.dtype is dtype and x.flags.aligned:
        return x
    with hooks.arithmetic():  # else subnormal numbers may be lost
        return np.require(x, dtype=dtype, requirements="A").view(np.ndarray)


def is_multiplied(dtype: np.dtype[Any]) -> bool:
    """Return whether products of a dtype are an engine's business.

    Parameters
    ----------
    dtype : dtype
        Of the product.

    Returns
    -------
    bool
    """
    return dtype in _MULTIPLIED


def as_common(
    a: NDArray[Any],
    b: NDArray[Any],
    dtype: np.dtype[Any] | None = None,
    *,
    wide: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both operands as entries of the one dtype that they multiply in.

    Parameters
    ----------
    a, b : ndarray
        Subclasses come back as ndarrays.
    dtype : dtype, optional
        What the caller asked for.
    wide : bool, optional
        Whether it is float64 or complex128 in any case.

    Returns
    -------
    tuple of two ndarrays
        Same entries, cast as NumPy's products cast them.
    """
    found = common_dtype(a, b, wide=wide) if dtype is None else dtype
    return as_dtype(a, found), as_dtype(b, found)


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
