"""The error of a product against the exact one, entry by entry."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from np_ozaki import hooks
from np_ozaki.errors import OperandTypeError, OptionError, ShapeError, refusal
from np_ozaki.numerics.formats import Format, format_of
from np_ozaki.numerics.reference import exact_fractions, exact_product
from np_ozaki.testing.arguments import integer, operand_pair
from np_ozaki.testing.bits import shown
from np_ozaki.testing.parts import concatenated, is_complex, join

__all__ = ["assert_error_bound"]

Array = NDArray[Any]
Index = tuple[int, ...]


def assert_error_bound(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    bound: ArrayLike | None = None,
    *,
    entries: int = 256,
) -> None:
    """Raise unless a computed product is as near to the exact one as a bound says.

    Errors are exact: entries of the product are computed in Python integers and
    compared as fractions.

    Parameters
    ----------
    a : (..., m, k) array_like
        Left operand.
    b : (..., k, n) array_like
        Right operand.
    c : (..., m, n) array_like of float64 or complex128
        The product as computed; of two operands of float32 perhaps in float32, and of
        complex64 in complex64.
    bound : array_like of float64 or complex128, optional
        Of the absolute error, in any shape that broadcasts to that of `c`; an infinite
        bound says nothing.  By default ``(k + 1) u |A||B| + k 2**-1075`` with
        u = 2**-53, which conventional FP64 products and ``precision="auto"`` keep to,
        the former if nothing overflows on the way; for float32 u is 2**-24 and the
        last term k 2**-150.  Of complex products the parts of a complex bound are for
        the parts of the error, a real one is for both; the default has 2k for k, and
        |A||B| is of the 2k real products that make up a part.
    entries : int, default 256
        How many entries to look at if there are more: half of them where `c` is
        farthest from a native product, the others anywhere, the same in every call.
        Each takes some microseconds times k.  Of complex products parts are counted.

    Raises
    ------
    AssertionError
        Names the first entry whose error passes the bound, with both values, error,
        bound and their ratio, and tells how many there are.  The last index of a
        complex one is 0 for the real part, 1 for the imaginary one.
    OperandTypeError
        An operand has no numbers, or a bound of real products is complex.
    OptionError
        A bound is negative or NaN, or `entries` is below 1.
    ShapeError
        Operands, or the bound, do not fit.

    See Also
    --------
    np_ozaki.numerics.bounds.error_bound : what a fixed number of moduli guarantees.

    Notes
    -----
    An entry that meets a NaN or an infinity of an operand must be what IEEE products
    give, complex ones as four real products and two sums.  Infinity is accepted where
    the bound lets the exact entry overflow, and a NaN of finite operands never.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_error_bound
    >>> a, b = np.full((2, 3), 0.1), np.full((3, 2), 0.7)
    >>> assert_error_bound(a, b, np_ozaki.matmul(a, b))
    >>> assert_error_bound(a, b, a.astype(np.float32) @ b)
    Traceback (most recent call last):
    AssertionError: 4 of 4 entries err by more than the bound, first at (0, 0): \
0x1.ae147b4ccccccp-3 is not 0x1.ae147ae147ae1p-3, error 3.1e-09, bound 9.3e-17, \
ratio 3.4e+07
    """
    left, right = operand_pair(a, b)
    integer("entries", entries, 1)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    computed = np.asarray(c)
    wide = np.dtype(np.complex128 if is_complex(left) else np.float64)
    if computed.dtype not in {wide, left.dtype}:
        wanted = " or ".join(dict.fromkeys((left.dtype.name, wide.name)))
        raise AssertionError(f"dtype {computed.dtype} of the product is not {wanted}")
    to = format_of(computed.dtype)
    # The same numbers; nothing here may be rounded to less.
    left, right = left.astype(wide), right.astype(wide)
    if computed.shape != shape:
        raise AssertionError(f"shape {computed.shape} of the product is not {shape}")
    limits = None if bound is None else _checked_bound(bound, shape, wide)
    rows = shape[-2] if is_complex(left) else None
    if is_complex(left):
        # Each part is an entry of a real product: rows of real parts, then of others.
        lower = np.concatenate([left.imag, left.real], -1)
        left = np.concatenate([concatenated(left.conj(), -1), lower], -2)
        right, computed = concatenated(right, -2), concatenated(computed, -2)
        limits = None if limits is None else concatenated(limits, -2)
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    chosen = _chosen(left, right, computed, limits, entries)
    failures = []
    for index in chosen:
        matrix, i, j = index[:-2], *index[-2:]
        failure = _failure(
            left[matrix][i],
            right[matrix][:, j],
            float(computed[index]),
            None if limits is None else float(limits[index]),
            to,
        )
        if failure is not None:
            failures.append((_of_parts(index, rows), failure))
    if failures:
        where, first = min(failures)
        looked_at = f"{len(chosen)}"
        if len(chosen) < computed.size:
            looked_at += f" (sampled from {computed.size})"
        raise AssertionError(
            f"{len(failures)} of {looked_at} entries err by more than the bound, "
            f"first at {where}: {first}"
        )


def _of_parts(index: Index, rows: int | None) -> Index:
    """Return the index of an entry, with the part if rows of parts were stacked."""
    if rows is None:
        return index
    part, i = divmod(index[-2], rows)
    return (*index[:-2], i, index[-1], part)


def _checked_bound(
    bound: ArrayLike, shape: tuple[int, ...], wide: np.dtype[Any]
) -> Array:
    limits = np.asarray(bound)
    if limits.dtype.kind == "c" and wide.kind != "c":
        limit = "the product is real"
        raise OperandTypeError(
            refusal("bound.dtype", limits.dtype.name, limit, "pass magnitudes")
        )
    if limits.dtype.kind != "c" and wide.kind == "c":
        limits = limits.astype(np.float64)
        limits = join(limits, limits)
    limits = limits.astype(wide)
    parts = concatenated(np.atleast_1d(limits), -1)
    if not (parts >= 0.0).all():
        wrong = float(parts[~(parts >= 0.0)][0])
        raise OptionError(
            refusal("bound", wrong, "an error is not negative", "pass magnitudes")
        )
    try:
        return np.broadcast_to(limits, shape)
    except ValueError:
        limit = f"the product has shape {shape}"
        raise ShapeError(
            refusal("bound.shape", limits.shape, limit, "pass a bound that broadcasts")
        ) from None


def _chosen(
    a: Array, b: Array, c: Array, limits: Array | None, entries: int
) -> list[Index]:
    """Return the indices to look at, in order."""
    if c.size <= entries:
        return list(np.ndindex(c.shape))
    with np.errstate(all="ignore"), hooks.unrouted():
        distances = np.abs(c - np.matmul(a, b))
        sizes = np.matmul(np.abs(a), np.abs(b)) if limits is None else limits
        # Infinite or NaN on both sides is suspicious, too.
        ratios = np.nan_to_num(distances / sizes, nan=np.inf)
    ratios[distances == 0.0] = 0.0
    worst = np.argsort(ratios, axis=None, kind="stable")[c.size - entries // 2 :]
    rest = np.setdiff1d(np.arange(c.size), worst, assume_unique=True)
    rng = np.random.default_rng(0)
    others = rng.choice(rest, entries - worst.size, replace=False)
    places = np.sort(np.concatenate([worst, others]))
    return [
        tuple(map(int, place))
        for place in zip(*np.unravel_index(places, c.shape), strict=True)
    ]


def _failure(
    row: Array, column: Array, value: float, bound: float | None, to: Format
) -> str | None:
    """Return what is wrong with an entry, or None."""
    rows, columns = row[np.newaxis], column[:, np.newaxis]
    if not (np.isfinite(row).all() and np.isfinite(column).all()):
        special = exact_product(rows, columns)[0][0]
        if value == special or (math.isnan(value) and math.isnan(special)):
            return None
        return f"{shown(value)} is not {shown(special)}"
    ((exact,),) = exact_fractions(rows, columns)
    if bound is None:
        ((size,),) = exact_fractions(np.abs(rows), np.abs(columns))
        k = row.size
        limit = (k + 1) * size / 2**to.bits + Fraction(k, 2 ** (1 - to.lowest))
    elif math.isinf(bound):
        return None
    else:
        limit = Fraction(bound)
    if math.isfinite(value):
        error = abs(Fraction(value) - exact)
        if error <= limit:
            return None
        ratio = _as_float(error / limit) if limit else math.inf
        found = f"error {_as_float(error):.2g}"
    else:
        # An error within the bound may have carried the entry past the range.
        reached = exact + limit if value > 0 else limit - exact
        overflow = 2**to.top - 2 ** (to.top - to.bits - 1)
        if math.isinf(value) and reached >= overflow:
            return None
        ratio, found = math.inf, "error inf"
    nearest = exact_product(rows, columns, to)[0][0]
    return (
        f"{shown(value)} is not {shown(nearest)}, {found}, "
        f"bound {_as_float(limit):.2g}, ratio {ratio:.2g}"
    )


def _as_float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf
