"""Products that are asked for by name: by `np_ozaki.matmul` or an OzArray.

No `min_flops` here; what is not the engine's business goes to NumPy and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.config import Options
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.gemm import matmul_arrays
from np_ozaki.routes.decision import FLOAT64, as_common
from np_ozaki.stats import CallInfo

__all__ = ["dtype_reason", "left_to_numpy", "matmul_product", "native_reason", "run"]

_PLAIN = frozenset({np.ndarray, np.memmap})

_OTHERS = frozenset("fDF")
"""float32, complex128 and complex64."""

_Result = tuple[Any, CallInfo]
_Product = Callable[[NDArray[Any], NDArray[Any], NDArray[Any] | None, Options], _Result]


def native_reason(
    *operands: object, to_float64: bool = False, complex_too: bool = False
) -> str | None:
    """Return why operands of a product are not the engine's business, or None.

    Parameters
    ----------
    *operands : object
        On the host.
    to_float64 : bool, optional
        The caller asked for a float64 product of whatever is real.
    complex_too : bool, optional
        Products of dtype complex128, float32 and complex64 are the engine's, too.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    for x in operands:
        if type(x) not in _PLAIN:
            return f"operand of type {type(x).__name__}"
    return dtype_reason(*operands, to_float64=to_float64, complex_too=complex_too)


def dtype_reason(
    *operands: Any, to_float64: bool = False, complex_too: bool = False
) -> str | None:
    """Return why operands of these dtypes are not the engine's business, or None.

    Parameters
    ----------
    *operands : array
        On the host or a GPU.
    to_float64 : bool, optional
        The caller asked for a float64 product of whatever is real.
    complex_too : bool, optional
        Products of dtype complex128, float32 and complex64 are the engine's, too.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    for x in operands:
        if x.dtype is not FLOAT64:
            break
    else:
        return None
    dtypes = [x.dtype for x in operands]
    if complex_too and not to_float64 and _multiplies_to_other(dtypes):
        return None
    if any(d.kind not in "biuf" for d in dtypes) or (
        not to_float64 and np.result_type(*dtypes) != np.float64
    ):
        return f"dtypes {', '.join(d.name for d in dtypes)}"
    return None


def _multiplies_to_other(dtypes: list[np.dtype[Any]]) -> bool:
    """Return whether the common dtype is one of the engine's, but float64."""
    return {d.kind for d in dtypes} <= set("biufc") and (
        np.result_type(*dtypes).char in _OTHERS
    )


def matmul_product(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any] | None,
    options: Options,
    bounded: bool = False,
    prepared: Pair = UNPREPARED,
) -> _Result:
    """Multiply two operands on the engine.

    Parameters
    ----------
    a, b : ndarray of float64, or both of float32, complex128 or complex64
        1-D or more.
    out : ndarray or None
        Where to write.
    options : Options
        Of the call.
    bounded : bool, optional
        Let the info carry a bound of the error.
    prepared : tuple of Prepared or None, optional
        What is kept of `a` and of `b`.

    Returns
    -------
    result : ndarray or numpy scalar
    CallInfo
        What happened.
    """
    return matmul_arrays(
        a,
        b,
        out,
        route="matmul",
        options=options,
        bounded=bounded,
        prepared=prepared,
    )


def run(
    name: str,
    native: Callable[..., Any],
    engine: _Product,
    operands: tuple[Any, Any],
    out: NDArray[Any] | None,
    options: Options,
    to_float64: bool = False,
) -> _Result:
    """Multiply two unwrapped operands, by NumPy where the engine has no business.

    Parameters
    ----------
    name : str
        Route, for the counters.
    native : callable
        NumPy's function.
    engine : callable
        What multiplies float64 operands, as `matmul_product`; for the name "matmul"
        it takes float32, complex128 and complex64 ones, too.
    operands : tuple of two array_like
        Unwrapped.
    out : ndarray or None
        Where to write.
    options : Options
        Of the call.
    to_float64 : bool, optional
        The caller asked for a float64 product of whatever is real.

    Returns
    -------
    result : array or scalar
    CallInfo
        What happened.
    """
    a, b = operands
    a = a if hasattr(a, "__array_ufunc__") else np.asarray(a)
    b = b if hasattr(b, "__array_ufunc__") else np.asarray(b)
    reason = native_reason(a, b, to_float64=to_float64, complex_too=name == "matmul")
    if reason is None and name == "dot" and not (a.ndim and b.ndim):
        reason = "scalar operand"
    if reason is None:
        return engine(*as_common(a, b, wide=to_float64), out, options)
    result = native(a, b) if out is None else native(a, b, out=out)
    return result, left_to_numpy(name, a, b, reason)


def left_to_numpy(name: str, a: Any, b: Any, reason: str) -> CallInfo:
    """Count a product that was left to NumPy or CuPy.

    Parameters
    ----------
    name : str
        Route.
    a, b : array
        Operands.
    reason : str
        Why.

    Returns
    -------
    CallInfo
        As recorded.
    """
    m, k = (*np.shape(a), 1, 1)[:2]
    n = np.shape(b)[-1] if np.ndim(b) else 1
    info = CallInfo(name, "native", 1, m, n, k, fallback=reason, dtype=_dtype(a, b))
    context.record(info)
    return info


def _dtype(a: Any, b: Any) -> str:
    """Return the name of the dtype that NumPy multiplies in, as far as it is told."""
    try:
        return str(np.result_type(a.dtype, b.dtype).name)
    except (AttributeError, TypeError):
        return "unknown"
