"""NumPy's products: the inner loops of its ufuncs, dot and inner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.config import Options
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.errors import ShapeError
from np_ozaki.gemm import matmul_arrays, product
from np_ozaki.routes.decision import (
    as_array,
    as_dtype,
    options_for,
    routed_dtype,
)
from np_ozaki.stats import CallInfo

__all__ = ["dot", "handle_dot", "handle_inner", "handle_loop"]

Array = NDArray[Any]
"""Of float64, complex128, float32 or complex64."""

Steps = tuple[int, int, int]

_OF_CONJUGATES: Mapping[str, Conjugated] = {
    "vecdot": (True, False),
    "vecmat": (True, False),
}
"""Ufuncs that multiply the conjugate of a complex operand."""


def handle_loop(
    route: str,
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
    dtype: str,
) -> int | None:
    """Answer one call of an inner loop of matmul, vecdot, matvec or vecmat.

    Parameters
    ----------
    route : str
        The ufunc's name, for the counters.
    a_pointer, b_pointer, out_pointer : int
        Addresses of the first entries, aligned.
    a_steps, b_steps, out_steps : tuple of int
        Strides in bytes: outer, rows, columns; 0 repeats.
    outer, m, k, n : int
        Matrices and their sizes.
    dtype : {"d", "D", "f", "F"}
        Of operands and result, as NumPy's letters have it.

    Returns
    -------
    int or None
        Floating-point exceptions for NumPy to report, as bits of `np_ozaki.hooks`;
        None leaves the call to NumPy.
    """
    of = np.dtype(dtype)
    options = options_for(route, outer, m, n, k, of)
    if options is None:
        return None
    a = hooks.array_from_loop(a_pointer, (outer, m, k), a_steps, False, of)
    b = hooks.array_from_loop(b_pointer, (outer, k, n), b_steps, False, of)
    out = hooks.array_from_loop(out_pointer, (outer, m, n), out_steps, True, of)
    conjugated = _OF_CONJUGATES.get(route) if of.kind == "c" else None
    _, outcome = product(
        a[:1] if not a_steps[0] else a,
        b[:1] if not b_steps[0] else b,
        out,
        route=route,
        options=options,
        conjugated=conjugated or UNCONJUGATED,
    )
    return (
        hooks.RAISE_OVERFLOW * outcome.overflow | hooks.RAISE_INVALID * outcome.invalid
    )


# ---- dot ----


def dot(
    a: Array,
    b: Array,
    out: NDArray[Any] | None,
    options: Options,
    route: str = "dot",
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
) -> tuple[Any, CallInfo]:
    """Return `numpy.dot` of two arrays of one or more dimensions.

    Parameters
    ----------
    a : (..., k) ndarray
        Left operand, of float64, complex128, float32 or complex64.
    b : (..., k, n) or (k,) ndarray
        Right operand, of the same dtype.
    out : ndarray or None
        Exactly what `numpy.dot` would make: shape, dtype, C order.
    options : Options
        Precision, scaling, engine.
    route : str
        Name for the counters.
    prepared : tuple of Prepared or None, optional
        What is kept of `a` and of `b`.
    conjugated : tuple of bool, optional
        Whether conj(a) takes the place of a, conj(b) that of b.

    Returns
    -------
    result : ndarray or scalar
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
    shape = _dot_shape(a, b)
    if out is not None and not _dot_accepts(out, shape, a.dtype):
        raise ShapeError(
            f"out of type {type(out).__name__}, shape {out.shape}, dtype {out.dtype}: "
            f"dot writes only to a C-contiguous {a.dtype} ndarray of shape {shape}; "
            "use matmul for other layouts"
        )
    columns = b
    if b.ndim > 2:
        inner = b.shape[-2]
        columns = np.moveaxis(b, -2, 0).reshape(inner, math.prod(shape[a.ndim - 1 :]))
    return _rows_by_columns(
        a, columns, shape, out, options, route, np.dot, prepared, conjugated
    )


def _dot_shape(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, ...]:
    return a.shape[:-1] + b.shape[:-2] + b.shape[-1:] * (b.ndim > 1)


def _dot_accepts(
    out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> bool:
    """Return whether `out` is what numpy.dot would make; it refuses all else."""
    return (
        type(out) is np.ndarray
        and out.dtype == dtype
        and out.dtype.isnative
        and out.shape == shape
        and out.flags.c_contiguous
        and out.flags.aligned
        and out.flags.writeable
    )


def _rows_by_columns(
    a: Array,
    columns: Array,
    shape: tuple[int, ...],
    out: NDArray[Any] | None,
    options: Options,
    route: str,
    native: Callable[[Any, Any], Any],
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
) -> tuple[Any, CallInfo]:
    """Multiply (..., k) by (k, n) or (k,) and give the result its shape."""
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) if a.ndim > 2 else a
    if not shape:
        result, info = matmul_arrays(
            rows,
            columns,
            None,
            route=route,
            options=options,
            native=native,
            prepared=prepared,
            conjugated=conjugated,
        )
        if out is None:
            return result, info
        out[...] = result
        return out, info
    # Written through a view, so that the result owns its memory, as NumPy's does.
    result = np.empty(shape, a.dtype)
    flat = result.reshape(rows.shape[:-1] + columns.shape[1:])
    _, info = matmul_arrays(
        rows,
        columns,
        flat,
        route=route,
        options=options,
        native=native,
        prepared=prepared,
        conjugated=conjugated,
    )
    if out is None:
        return result, info
    out[...] = result
    return out, info


# ---- What the hooks of the builtin functions call ----

# Classes whose products numpy.dot gives the class of the higher priority; the values
# are these priorities.
_PRIORITIES: Mapping[type, float] = {
    np.ndarray: 0.0,
    np.memmap: np.memmap.__array_priority__,
    np.matrix: np.matrix.__array_priority__,
}
_CLASSES = frozenset(_PRIORITIES)


def _class_of_result(a: Any, b: Any) -> type:
    """Return the class that numpy.dot and numpy.inner give their result."""
    left, right = (
        type(x) if type(x) in _CLASSES else np.ndarray  # lists become arrays
        for x in (a, b)
    )
    return right if _PRIORITIES[right] > _PRIORITIES[left] else left


def _room(cls: type, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return an array for a result of another class, or None where that is an ndarray.

    It owns its memory, as NumPy's result does; a view would not.
    """
    if cls is np.ndarray or not shape:
        return None
    return np.ndarray.__new__(cls, shape, dtype)


def _bound(
    names: tuple[str, ...],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Return arguments by name, or None where NumPy would complain."""
    if len(arguments) > len(names):
        return None
    values = dict(zip(names, arguments, strict=False))
    for key, value in (keywords or {}).items():
        if key in values or key not in names:
            return None
        values[key] = value
    return values if values.keys() >= {"a", "b"} else None


def handle_dot(
    route: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None
) -> Any:
    """Answer one call of `numpy.dot` or `numpy.ndarray.dot`.

    Parameters
    ----------
    route : str
        "dot" or "ndarray.dot".
    arguments : tuple
        Positional ones; a method's object first.
    keywords : mapping or None
        Others.

    Returns
    -------
    object
        What NumPy would return, or NotImplemented, which leaves the call to NumPy.
    """
    values = _bound(("a", "b", "out"), arguments, keywords)
    if values is None:
        return NotImplemented
    a, b = as_array(values["a"], _CLASSES), as_array(values["b"], _CLASSES)
    if a is None or b is None or not a.ndim or not b.ndim:
        return NotImplemented
    k = a.shape[-1]
    dtype = routed_dtype(a, b)
    if k != b.shape[max(0, b.ndim - 2)] or dtype is None:
        return NotImplemented
    out, shape = values.get("out"), _dot_shape(a, b)
    cls = _class_of_result(values["a"], values["b"])
    if cls is np.matrix and len(shape) > 2:
        return NotImplemented
    if out is not None and (
        cls is not np.ndarray or not _dot_accepts(out, shape, dtype)
    ):
        return NotImplemented
    m = math.prod(a.shape[:-1])
    options = options_for(route, 1, m, math.prod(shape[a.ndim - 1 :]), k, dtype)
    if options is None:
        return NotImplemented
    room = _room(cls, shape, dtype)
    if room is not None:
        out = room.view(np.ndarray).reshape(shape)  # a matrix has two dimensions
    result, _ = dot(as_dtype(a, dtype), as_dtype(b, dtype), out, options, route)
    # numpy.dot returns a scalar for no dimensions, though it has filled `out`.
    if not shape:
        return result[()]
    return result if room is None else room


def handle_inner(arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None) -> Any:
    """Answer one call of `numpy.inner`.

    Parameters
    ----------
    arguments : tuple
        Positional ones.
    keywords : mapping or None
        NumPy takes none.

    Returns
    -------
    object
        What NumPy would return, or NotImplemented, which leaves the call to NumPy.
    """
    values = _bound(("a", "b"), arguments, None)
    if values is None or keywords:
        return NotImplemented
    a, b = as_array(values["a"], _CLASSES), as_array(values["b"], _CLASSES)
    if a is None or b is None or not a.ndim or not b.ndim:
        return NotImplemented
    k = a.shape[-1]
    dtype = routed_dtype(a, b)
    if k != b.shape[-1] or dtype is None:
        return NotImplemented
    shape = a.shape[:-1] + b.shape[:-1]
    cls = _class_of_result(*arguments)
    if cls is np.matrix and len(shape) > 2:
        return NotImplemented
    m, n = math.prod(a.shape[:-1]), math.prod(b.shape[:-1])
    options = options_for("inner", 1, m, n, k, dtype)
    if options is None:
        return NotImplemented
    right = as_dtype(b, dtype)
    columns = right if b.ndim == 1 else right.reshape(n, k).T
    room = _room(cls, shape, dtype)
    out = None if room is None else room.view(np.ndarray).reshape(shape)
    result, _ = _rows_by_columns(
        as_dtype(a, dtype), columns, shape, out, options, "inner", np.inner
    )
    return result if room is None else room
