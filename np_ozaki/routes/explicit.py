"""Products that are asked for by name: by `np_ozaki.matmul` or an OzArray.

No `min_flops` here; what is not the engine's business goes to NumPy and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.config import Options
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.gemm import matmul_arrays
from np_ozaki.routes.decision import FLOAT64, as_common, is_multiplied
from np_ozaki.stats import CallInfo

__all__ = ["dtype_reason", "left_to_numpy", "matmul_product", "native_reason", "run"]

_PLAIN = frozenset({np.ndarray, np.memmap})

_Result = tuple[Any, CallInfo]
_Product = Callable[[NDArray[Any], NDArray[Any], NDArray[Any] | None, Options], _Result]


def native_reason(*operands: object, dtype: np.dtype[Any] | None = None) -> str | None:
    """Return why operands of a product are not the engine's business, or None.

    Parameters
    ----------
    *operands : object
        On the host.
    dtype : dtype, optional
        The caller asked for a product of this dtype, whatever can be cast to it.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    for x in operands:
        if type(x) not in _PLAIN:
            return f"operand of type {type(x).__name__}"
    return dtype_reason(*operands, dtype=dtype)


def dtype_reason(*operands: Any, dtype: np.dtype[Any] | None = None) -> str | None:
    """Return why operands of these dtypes are not the engine's business, or None.

    Parameters
    ----------
    *operands : array
        On the host or a GPU.
    dtype : dtype, optional
        The caller asked for a product of this dtype, whatever can be cast to it.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    if dtype is None:
        for x in operands:
            if x.dtype is not FLOAT64:
                break
        else:
            return None
    dtypes = [x.dtype for x in operands]
    if all(d.kind in "biufc" for d in dtypes):
        found = np.result_type(*dtypes) if dtype is None else dtype
        # NumPy does not cast complex entries to real ones.
        fits = found.kind == "c" or all(d.kind != "c" for d in dtypes)
        if fits and is_multiplied(found):
            return None
    return f"dtypes {', '.join(d.name for d in dtypes)}"


def matmul_product(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any] | None,
    options: Options,
    bounded: bool = False,
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
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
    conjugated : tuple of bool, optional
        Whether conj(a) takes the place of a, conj(b) that of b.

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
        conjugated=conjugated,
    )


def run(
    name: str,
    native: Callable[..., Any],
    engine: _Product,
    operands: tuple[Any, Any],
    out: NDArray[Any] | None,
    options: Options,
    dtype: np.dtype[Any] | None = None,
) -> _Result:
    """Multiply two unwrapped operands, by NumPy where the engine has no business.

    Parameters
    ----------
    name : str
        Route, for the counters.
    native : callable
        NumPy's function.
    engine : callable
        What multiplies operands of one dtype, as `matmul_product`.
    operands : tuple of two array_like
        Unwrapped.
    out : ndarray or None
        Where to write.
    options : Options
        Of the call.
    dtype : dtype, optional
        The caller asked for a product of this dtype, whatever can be cast to it.

    Returns
    -------
    result : array or scalar
    CallInfo
        What happened.
    """
    a, b = operands
    a = a if hasattr(a, "__array_ufunc__") else np.asarray(a)
    b = b if hasattr(b, "__array_ufunc__") else np.asarray(b)
    reason = native_reason(a, b, dtype=dtype)
    if reason is None and name == "dot" and not (a.ndim and b.ndim):
        reason = "scalar operand"
    if reason is None:
        return engine(*as_common(a, b, dtype), out, options)
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
