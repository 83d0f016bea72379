"""NumPy's contractions of OzArrays, each put together of products.

Operands are transposed, reshaped and multiplied by one product of `gemm`, as NumPy does
it in its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from np_ozaki import context
from np_ozaki.array.core import Core, mapped, unwrap, written_on_host
from np_ozaki.array.indexing import put
from np_ozaki.array.products import as_array, dot, matmul, multiply, on_host, placed
from np_ozaki.array.shapes import ravel, reshape
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.routes import explicit
from np_ozaki.routes.einsum import einsum_product

__all__ = ["FUNCTIONS", "UFUNCS"]


_LEFT: Final[Conjugated] = (True, False)
"""What vdot, vecdot and vecmat conjugate."""


def _transposed(x: Any, axes: Sequence[int]) -> Any:
    return x._see(x._view.transpose(axes)) if isinstance(x, Core) else x.transpose(axes)


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return reshape(x, (shape,), "C") if isinstance(x, Core) else np.reshape(x, shape)


def _indexed(x: Any, key: Any) -> Any:
    return x._see(x._view[key]) if isinstance(x, Core) else x[key]


def _view(x: Any) -> Any:
    return x._view if isinstance(x, Core) else x


def _are_ours(*arrays: Any) -> bool:
    """Return whether the engine multiplies arrays of these types and dtypes."""
    return explicit.native_reason(*map(_view, arrays)) is None


def _tensordot(
    cls: type[Core], a: Any, b: Any, axes: Any = 2, *, name: str = "tensordot"
) -> Any:
    a, b = as_array(a), as_array(b)
    if not _are_ours(a, b):
        return NotImplemented
    shape_a, shape_b = _view(a).shape, _view(b).shape
    try:
        if hasattr(axes, "__iter__"):
            axes_a, axes_b = (
                [operator.index(i) for i in x] if hasattr(x, "__iter__") else [x]
                for x in axes
            )
        else:
            axes_a, axes_b = list(range(-axes, 0)), list(range(axes))
        sums = [
            (range(len(shape_a))[i], range(len(shape_b))[j])
            for i, j in zip(axes_a, axes_b, strict=True)
        ]
    except (IndexError, ValueError, TypeError):
        return NotImplemented  # NumPy's own error
    if any(shape_a[i] != shape_b[j] for i, j in sums):
        return NotImplemented
    inner_a, inner_b = [i for i, _ in sums], [j for _, j in sums]
    if len(set(inner_a)) != len(sums) or len(set(inner_b)) != len(sums):
        return NotImplemented
    rows = [i for i in range(len(shape_a)) if i not in inner_a]
    columns = [j for j in range(len(shape_b)) if j not in inner_b]
    k = math.prod(shape_a[i] for i in inner_a)
    m = math.prod(shape_a[i] for i in rows)
    n = math.prod(shape_b[j] for j in columns)
    left = _reshaped(_transposed(a, rows + inner_a), (m, k))
    right = _reshaped(_transposed(b, inner_b + columns), (k, n))
    result = dot(cls, left, right, name=name)
    shape = (*(shape_a[i] for i in rows), *(shape_b[j] for j in columns))
    return _reshaped(result, shape)


def _inner(cls: type[Core], a: Any, b: Any) -> Any:
    a, b = as_array(a), as_array(b)
    if not _view(a).ndim or not _view(b).ndim:
        return NotImplemented
    result = _tensordot(cls, a, b, (-1, -1), name="inner")
    if result is NotImplemented or _view(result).ndim:
        return result
    return unwrap(result)[()]


def _vdot(cls: type[Core], a: Any, b: Any) -> Any:
    a, b = as_array(a), as_array(b)
    if not _are_ours(a, b) or _view(a).size != _view(b).size:
        return NotImplemented
    left, right = (
        ravel(x, "C") if isinstance(x, Core) else np.ravel(x) for x in (a, b)
    )
    return dot(cls, left, right, name="vdot", conjugated=_LEFT)


def _einsum(
    cls: type[Core],
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    **kwargs: Any,
) -> Any:
    options = context.default_options()
    there = _einsum_there(cls, operands, kwargs, options) if out is None else None
    if there is not None:
        return there
    plain = mapped(operands, lambda leaf: on_host(leaf, "einsum"))
    target = out._read_unasked("einsum") if isinstance(out, Core) else out
    given = kwargs if out is None else {**kwargs, "out": target}
    with written_on_host([out]):
        result = einsum_product(plain, given, options)
    if result is NotImplemented:
        return result
    if out is not None:
        return out
    return cls._own(result) if isinstance(result, np.ndarray) else result


def _einsum_there(
    cls: type[Core], given: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Any:
    """Return einsum on the device, or None for what the host does."""
    first = int(bool(given) and isinstance(given[0], str))
    second = first + 1 if first else 2
    if len(given) not in ({3} if first else {4, 5}):
        return None
    there = placed(cls, given[first], given[second], options)
    if there is None:
        return None
    arguments = list(given)
    arguments[first], arguments[second] = there
    try:
        result = einsum_product(tuple(arguments), kwargs, options)
    except MemoryError:
        return None
    if result is NotImplemented:
        return None
    return cls._on_device(result) if result.ndim else choice.to_host(result)[()]


def _multi_dot(cls: type[Core], arrays: Sequence[Any], *, out: Any = None) -> Any:
    arrays = [as_array(x) for x in arrays]
    shapes = [_view(x).shape for x in arrays]
    ends = {0, len(arrays) - 1}
    fits = len(arrays) > 1 and all(
        len(s) == 2 or (len(s) == 1 and i in ends) for i, s in enumerate(shapes)
    )
    if not fits or not all(_are_ours(x, x) for x in arrays):
        return NotImplemented
    first, last = len(shapes[0]) == 1, len(shapes[-1]) == 1
    shape = shapes[0][: 1 - first] + shapes[-1][len(shapes[-1]) - 1 + last :]
    dtype = np.result_type(*(_view(x).dtype for x in arrays))
    if out is not None and not _takes(out, shape, dtype):
        return NotImplemented
    if first:
        arrays[0] = _indexed(arrays[0], np.newaxis)
    if last:
        arrays[-1] = _indexed(arrays[-1], (slice(None), np.newaxis))
    sizes = [*(_view(x).shape[0] for x in arrays), _view(arrays[-1]).shape[1]]
    splits = _best_splits(sizes)

    def chain(i: int, j: int) -> Any:
        if i == j:
            return arrays[i]
        middle = splits[i, j]
        left, right = chain(i, middle), chain(middle + 1, j)
        return dot(cls, left, right, name="multi_dot")

    result = chain(0, len(arrays) - 1)
    if first:
        result = result[0]
    if last:
        result = result[..., 0]
    if not shape:
        result = unwrap(result)[()]
    return _delivered(result, out)


def _takes(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether a target is what numpy.dot would make."""
    view = _view(out)
    return (
        type(view) is np.ndarray
        and view.dtype == dtype
        and view.shape == shape
        and view.flags.c_contiguous
        and view.flags.writeable
    )


def _best_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of products for the least work."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            work = {
                middle: cost[i, middle]
                + cost[middle + 1, j]
                + sizes[i] * sizes[middle + 1] * sizes[j + 1]
                for middle in range(i, j)
            }
            splits[i, j] = min(work, key=work.__getitem__)
            cost[i, j] = work[splits[i, j]]
    return splits


def _matrix_power(cls: type[Core], a: Any, n: Any) -> Any:
    try:
        n = operator.index(n)
    except TypeError:
        return NotImplemented
    shape = a._view.shape if isinstance(a, Core) else ()
    if n < 2 or len(shape) < 2 or shape[-1] != shape[-2] or not _are_ours(a, a):
        return NotImplemented
    result, power = None, a
    while n:
        if n & 1:
            result = power if result is None else matmul(cls, result, power)
        n >>= 1
        if n:
            power = matmul(cls, power, power)
    return result


def _vecdot(cls: type[Core], a: Any, b: Any, axis: int = -1) -> Any:
    a, b = as_array(a), as_array(b)
    if not _are_ours(a, b) or not _view(a).ndim or not _view(b).ndim:
        return NotImplemented
    if axis != -1:
        a, b = (np.moveaxis(x, axis, -1) for x in (a, b))
    rows = _indexed(a, (..., np.newaxis, slice(None)))
    columns = _indexed(b, (..., np.newaxis))
    return _product_of_vectors(cls, rows, columns, (..., 0, 0), _LEFT)


def _matvec(cls: type[Core], a: Any, x: Any) -> Any:
    a, x = as_array(a), as_array(x)
    if not _are_ours(a, x) or _view(a).ndim < 2 or not _view(x).ndim:
        return NotImplemented
    columns = _indexed(x, (..., np.newaxis))
    return _product_of_vectors(cls, a, columns, (..., 0))


def _vecmat(cls: type[Core], x: Any, a: Any) -> Any:
    a, x = as_array(a), as_array(x)
    if not _are_ours(a, x) or _view(a).ndim < 2 or not _view(x).ndim:
        return NotImplemented
    rows = _indexed(x, (..., np.newaxis, slice(None)))
    return _product_of_vectors(cls, rows, a, (..., 0, slice(None)), _LEFT)


def _product_of_vectors(
    cls: type[Core],
    a: Any,
    b: Any,
    key: tuple[Any, ...],
    conjugated: Conjugated = UNCONJUGATED,
) -> Any:
    left, right = _view(a).shape, _view(b).shape
    if left[-1] != right[-2]:
        return NotImplemented
    options = context.default_options()
    result, _ = multiply(cls, "matmul", a, b, None, options, conjugated=conjugated)
    found = result[key]
    return found if _view(found).ndim else unwrap(found)[()]


def _delivered(result: Any, out: Any) -> Any:
    """Return a result, or the target that it is copied to."""
    if out is None:
        return result
    if isinstance(out, Core):
        put(out, ..., result)
    else:
        np.copyto(out, unwrap(result), casting="same_kind")
    return out


def _linalg_tensordot(cls: type[Core], a: Any, b: Any, /, *, axes: Any = 2) -> Any:
    return _tensordot(cls, a, b, axes)


def _linalg_vecdot(cls: type[Core], a: Any, b: Any, /, *, axis: int = -1) -> Any:
    return _vecdot(cls, a, b, axis)


def _linalg_matmul(cls: type[Core], a: Any, b: Any, /) -> Any:
    return matmul(cls, a, b)


FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.dot: dot,
    np.tensordot: _tensordot,
    np.inner: _inner,
    np.vdot: _vdot,
    np.einsum: _einsum,
    np.linalg.matmul: _linalg_matmul,
    np.linalg.tensordot: _linalg_tensordot,
    np.linalg.vecdot: _linalg_vecdot,
    np.linalg.multi_dot: _multi_dot,
    np.linalg.matrix_power: _matrix_power,
}
"""Functions of NumPy that end in products; NotImplemented leaves a call to NumPy."""

_LATER: Final[Mapping[str, Callable[..., Any]]] = {
    "vecdot": _vecdot,
    "matvec": _matvec,
    "vecmat": _vecmat,
}

UFUNCS: Final[Mapping[np.ufunc, Callable[..., Any]]] = {
    getattr(np, name): handler
    for name, handler in _LATER.items()
    if hasattr(np, name)  # vecdot came with NumPy 2.0, the others with 2.2
}
"""Universal functions besides matmul that are products, without keywords."""
