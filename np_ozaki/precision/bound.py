"""Guaranteed bounds of the error of every entry, from O(mk + kn + mn) operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines.base import Engine, Scheme
from np_ozaki.engines.cpu_slices import slice_exponents
from np_ozaki.numerics import bounds, slice_bounds
from np_ozaki.numerics.formats import DOUBLE, Format, format_of
from np_ozaki.numerics.moduli import Family
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.precision.multiply import Way
from np_ozaki.precision.schemes import check_keeps_tolerance, plain_scheme

__all__ = ["bound_of_ways", "promised_bound"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_OUTWARD = 1.0 + 2.0**-48
"""Above the relative error of the few operations that follow a bound."""


def promised_bound(
    engine: Engine,
    a: Array,
    b: Array,
    c: Array | None,
    options: Options,
    *,
    double: bool = False,
    family: Family = "real",
) -> Array:
    """Bound the error that a product under these options may have at most.

    Parameters
    ----------
    engine : Engine
        Who tells scaling exponents, of operands on the host.
    a : (batch, m, k) ndarray of float64 or float32
    b : (batch, k, n) ndarray of the same dtype, that of the product
        Batch 1 broadcasts.
    c : (batch, m, n) ndarray, or None
        The product, if it is known, of a double-double the lower half: it tells more
        of the last rounding.
    options : Options
        Precision and scaling, or slices; not "legacy".
    double : bool, optional
        Whether the product is a double-double.
    family : {"real", "complex"}, optional
        Whose moduli, and what operands stand for, as in a `Scheme`.

    Returns
    -------
    (batch, m, n) ndarray of float64
        NaN where a row or a column is not finite, infinite where an entry or its
        bound overflows.

    Raises
    ------
    OptionError
        A tolerance is below what float32 can keep, or there are fewer moduli.
    """
    batch, to = a.shape[0], DOUBLE if double else format_of(a.dtype)
    result = np.zeros((batch, a.shape[1], b.shape[2]))
    scheme = None if options.engine == "native" else plain_scheme(options, family, to)
    for i in range(batch if result.size and a.shape[2] else 0):
        x, y, odd = _finite(_matrix(a, i), _matrix(b, i))
        z = None if c is None else _matrix(c, i)
        with np.errstate(all="ignore"):
            if isinstance(scheme, Slicing):
                bound = _of_slices(x, y, z, scheme, to, double)
            elif scheme is not None:
                bound = _of_moduli(engine, x, y, z, scheme, to, double)
            else:
                check_keeps_tolerance(options, to)
                bound = _of_promise(x, y, z, options, to, double)
        result[i] = np.where(odd, np.nan, bound)
    return result


def bound_of_ways(
    engine: Engine,
    a: Array,
    b: Array,
    c: Array,
    ways: Sequence[Way],
) -> Array:
    """Bound the error of a product that was multiplied in known ways.

    Parameters
    ----------
    engine : Engine
        Who tells scaling exponents, of operands on the host.
    a : (batch, m, k) ndarray of float64 or float32
        Batch 1 broadcasts.
    b : (batch, k, n) ndarray of the same dtype
        Batch 1 broadcasts.
    c : (batch, m, n) ndarray of the product's dtype
        The product, or its lower half if it is a double-double: what was rounded last.
    ways : sequence of Way
        One a matrix.

    Returns
    -------
    (batch, m, n) ndarray of float64
        As `promised_bound`.
    """
    result, to = np.zeros(c.shape), format_of(c.dtype)
    for i, way in enumerate(ways if result.size and a.shape[2] else ()):
        x, y, odd = _finite(_matrix(a, i), _matrix(b, i))
        with np.errstate(all="ignore"):
            if way.elsewhere == "native":
                bound = _of_native(x, y, to)
            elif way.elsewhere == "exact":
                bound = _of_rounding(_matrix(c, i), to)
            elif way.slicing is not None:
                bound = _of_slices(x, y, _matrix(c, i), way.slicing, to)
            elif way.balanced:
                bound = _of_balanced(engine, x, y, _matrix(c, i), way, to)
            else:
                bound = _of_moduli(engine, x, y, _matrix(c, i), way.scheme, to)
        result[i] = np.where(odd, np.nan, bound)
    return result


def _matrix(x: Array, i: int) -> Array:
    """Return one of a stack as float64."""
    return np.asarray(x[i if x.shape[0] > 1 else 0], dtype=np.float64)


def _finite(a: Array, b: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return finite operands, and which entries do not belong to them."""
    rows, columns = np.isfinite(a), np.isfinite(b)
    odd = np.logical_or.outer(~rows.all(axis=1), ~columns.all(axis=0))
    if odd.any():
        a, b = np.where(rows, a, 0.0), np.where(columns, b, 0.0)
    return a, b, odd


def _upwards(bound: Array) -> Array:
    """Return a bound that the roundings of its own computing cannot have spoilt."""
    upper: Array = bound * _OUTWARD
    return upper


def _of_rounding(c: Array, to: Format) -> Array:
    """Bound one rounding by its result."""
    return bounds.half_unit(np.abs(c), to)


def _of_native(a: Array, b: Array, to: Format) -> Array:
    """Bound a conventional product, in any order of summation."""
    k = a.shape[1]
    size = bounds.magnitude_bound(a, b)
    bound = _upwards(k * to.unit * size + k * to.tiny)
    # Sums of float32 overflow where those of float64, as a bound is one, do not.
    return np.where(_upwards(size + bound) < to.overflow, bound, np.inf)


def _of_last(size: Array, c: Array | None, to: Format, double: bool) -> Array:
    """Bound the last rounding of what is at most `size`, by its result if known."""
    if c is None:
        # The lower half is what one rounding left.
        c = bounds.half_unit(size, to) if double else size
    return _of_rounding(c, to)


def _of_promise(
    a: Array,
    b: Array,
    c: Array | None,
    options: Options,
    to: Format,
    double: bool,
) -> Array:
    """Bound what "auto", "exact", a tolerance or NumPy keep to."""
    k, precision = a.shape[1], options.precision
    size = bounds.magnitude_bound(a, b)
    if options.engine == "native":
        return _of_native(a, b, to)
    if not isinstance(precision, str):
        # The last rounding is part of a tolerance.
        bound = _upwards(float(precision) * size + k * to.tiny)
        return np.where(_upwards(size + bound) < to.overflow, bound, np.inf)
    before = np.zeros_like(size)
    if precision == "auto":
        unit = to.unit * to.unit if double else to.unit
        before = _upwards(k * unit * size + (0 if double else k) * to.tiny)
    return _upwards(before + _of_last(size + before, c, to, double))


def _exponents(
    engine: Engine, a: Array, b: Array, scheme: Scheme
) -> tuple[Integers, Integers]:
    """Return mu and nu of the first matrices, with lent bits."""
    mu, nu = engine.scaling_exponents(
        a, b, scheme.num_moduli, scheme.scaling, scheme.family
    )
    return mu[0] - scheme.shift, nu[0] + scheme.shift


def _of_moduli(
    engine: Engine,
    a: Array,
    b: Array,
    c: Array | None,
    scheme: Scheme,
    to: Format,
    double: bool = False,
) -> Array:
    """Bound a product by moduli."""
    mu, nu = _exponents(engine, a[np.newaxis], b[np.newaxis], scheme)
    if c is not None:
        return bounds.error_bound(a, b, c, mu, nu, to=to)
    if not double:
        return bounds.product_bound(a, b, mu, nu, to=to)
    before = _before_rounding(a, b, mu, nu)
    size = bounds.magnitude_bound(a, b) + before
    return _upwards(before + _of_last(size, c, to, double))


def _of_slices(
    a: Array,
    b: Array,
    c: Array | None,
    slicing: Slicing,
    to: Format,
    double: bool = False,
) -> Array:
    """Bound a product of slices."""
    mu = slice_exponents(np.abs(a).max(axis=1, initial=0.0), slicing)
    nu = slice_exponents(np.abs(b).max(axis=0, initial=0.0), slicing)
    if c is not None:
        return slice_bounds.error_bound(a, b, c, mu, nu, slicing, to)
    if not double:
        return slice_bounds.product_bound(a, b, mu, nu, slicing, to)
    before = _before_rounding(a, b, mu, nu)
    before = _upwards(before + slice_bounds.pairs_bound(a, b, mu, nu, slicing))
    size = bounds.magnitude_bound(a, b) + before
    return _upwards(before + _of_last(size, c, to, double))


def _before_rounding(a: Array, b: Array, mu: Integers, nu: Integers) -> Array:
    return np.minimum(
        bounds.exponent_bound(a, b, mu, nu), bounds.residual_bound(a, b, mu, nu)
    )


def _of_balanced(
    engine: Engine, a: Array, b: Array, c: Array, way: Way, to: Format
) -> Array:
    """Bound a product whose inner index was rebalanced: the same steps again."""
    moved = engine.rebalance(a[np.newaxis], b[np.newaxis], way.scheme.family)
    mu, nu = _exponents(engine, moved.a, moved.b, way.scheme)
    before = _before_rounding(moved.a[0], moved.b[0], mu, nu)
    shifts = np.add.outer(moved.rows[0], moved.columns[0]).astype(np.int32)
    # Rounded up where it becomes subnormal, which ldexp rounds to nearest.
    before = np.nextafter(
        np.ldexp(before, -shifts), np.inf, where=before > 0, out=before
    )
    return _upwards(before + _of_rounding(c, to))
