"""NumPy's products: the inner loop of the matmul ufunc, and dot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context, hooks
from np_ozaki.config import Options
from np_ozaki.errors import ShapeError
from np_ozaki.gemm import matmul_arrays, min_flops, native_reason, product
from np_ozaki.plan import flops
from np_ozaki.stats import CallInfo

__all__ = ["dot", "handle_matmul_loop"]

Array = NDArray[np.float64]
Steps = tuple[int, int, int]


def handle_matmul_loop(
    a_pointer: int,
    a_steps: Steps,
    b_pointer: int,
    b_steps: Steps,
    out_pointer: int,
    out_steps: Steps,
    outer: int,
    m: int,
    k: int,
    n: int,
) -> int | None:
    """Answer one call of the matmul ufunc's float64 inner loop.

    Parameters
    ----------
    a_pointer, b_pointer, out_pointer : int
        Addresses of the first entries, aligned.
    a_steps, b_steps, out_steps : tuple of int
        Strides in bytes: outer, rows, columns; 0 repeats.
    outer, m, k, n : int
        Matrices and their sizes.

    Returns
    -------
    int or None
        Floating-point exceptions for NumPy to report, as bits of `np_ozaki.hooks`;
        None leaves the call to NumPy.
    """
    scope = context.active_scope()
    if scope is None or scope.options is None:
        return None
    options = scope.options
    if flops(m, n, k) < min_flops(options):
        return None
    reason = native_reason(options)
    if reason is not None:
        context.record(CallInfo("matmul", "native", outer, m, n, k, fallback=reason))
        return None
    a = hooks.array_from_loop(a_pointer, (outer, m, k), a_steps, writeable=False)
    b = hooks.array_from_loop(b_pointer, (outer, k, n), b_steps, writeable=False)
    out = hooks.array_from_loop(out_pointer, (outer, m, n), out_steps, writeable=True)
    _, outcome = product(
        a[:1] if not a_steps[0] else a,
        b[:1] if not b_steps[0] else b,
        out,
        route="matmul",
        options=options,
    )
    return (
        hooks.RAISE_OVERFLOW * outcome.overflow | hooks.RAISE_INVALID * outcome.invalid
    )


def dot(
    a: Array, b: Array, out: NDArray[Any] | None, options: Options
) -> tuple[Any, CallInfo]:
    """Return `numpy.dot` of two float64 arrays of one or more dimensions.

    Parameters
    ----------
    a : (..., k) ndarray of float64
        Left operand.
    b : (..., k, n) or (k,) ndarray of float64
        Right operand.
    out : ndarray or None
        Exactly what `numpy.dot` would make: shape, float64, C order.
    options : Options
        Precision, scaling, engine.

    Returns
    -------
    result : ndarray of float64 or numpy.float64
        Sums over the last axis of `a` and the second-to-last of `b`.
    CallInfo
        What happened.

    Raises
    ------
    ShapeError
        Shapes do not fit, or `out` is not the array that `numpy.dot` would make.
    """
    if a.shape[-1] != b.shape[max(0, b.ndim - 2)]:
        raise ShapeError(
            f"a.shape={a.shape}, b.shape={b.shape}: the last axis of a and the "
            "second-to-last (or only) axis of b must have equal length; "
            "transpose or reshape one of them"
        )
    shape = a.shape[:-1] + b.shape[:-2] + b.shape[-1:] * (b.ndim > 1)
    _check_dot_out(out, shape)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) if a.ndim > 2 else a
    columns = b
    if b.ndim > 2:
        inner = b.shape[-2]
        columns = np.moveaxis(b, -2, 0).reshape(inner, math.prod(shape[a.ndim - 1 :]))
    result, info = matmul_arrays(rows, columns, None, route="dot", options=options)
    if out is not None:
        out[...] = np.reshape(result, shape)
        return out, info
    return (np.reshape(result, shape) if shape else result), info


def _check_dot_out(out: NDArray[Any] | None, shape: tuple[int, ...]) -> None:
    """Refuse what numpy.dot refuses: anything but the array it would make itself."""
    if out is None:
        return
    acceptable = (
        type(out) is np.ndarray
        and out.dtype == np.float64
        and out.dtype.isnative
        and out.shape == shape
        and out.flags.c_contiguous
        and out.flags.writeable
    )
    if not acceptable:
        raise ShapeError(
            f"out of type {type(out).__name__}, shape {out.shape}, dtype {out.dtype}: "
            f"dot writes only to a C-contiguous float64 ndarray of shape {shape}; "
            "use matmul for other layouts"
        )
