"""Rigorous bounds of the error of one product, computed in float64.

All functions round outward: whatever the data, exponents and summation order, the
returned number is not below the quantity it names; it is infinite where that exceeds
the range.  Norms are taken of rows divided by a power of two, so neither large nor
subnormal operands spoil them.  Only elementwise operations are used, no BLAS, so the
analysis holds on every machine and no routed product is ever called.

Notation: mu and nu are the exponents of a product, ``A' = round(A * 2**mu)`` its
integers, ``dA = A - A' * 2**-mu`` what rounding removed, h = 1/2 for rounding to
nearest and 1 for truncation, u = 2**-53; of products that are rounded to float32 (`to`)
2**-24, and 2**-149 for 2**-1074.  C is the product before any BLAS alpha or
beta, computed without CRT wrap (scaling "legacy" does not guarantee that).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from np_ozaki import hooks
from np_ozaki.errors import OptionError, ShapeError, refusal
from np_ozaki.numerics.formats import DOUBLE, Format

__all__ = [
    "conventional_bound",
    "error_bound",
    "exponent_bound",
    "half_unit",
    "magnitude_bound",
    "product_bound",
    "residual_bound",
    "rounding_bound",
]

_Float = npt.NDArray[np.float64]
_Int = npt.NDArray[np.intc]

# Above the relative error of the few operations that follow a norm.
_OUTWARD = 1.0 + 2.0**-50
_SMALLEST_NORMAL = 2.0**-1022
_LARGEST_EXPONENT = 1022
_PLAIN_EXPONENT = 400
_SAMPLE = 8


class _Scaled(NamedTuple):
    """Nonnegative numbers ``value * 2**exponent``; value is 0 or at least 1/4."""

    value: _Float
    exponent: _Int


class _Lines:
    """Rows of A, or columns of B as rows; each norm is made once, rounded up."""

    def __init__(self, vectors: _Float) -> None:
        self.vectors = vectors
        self.k = vectors.shape[1]

    @functools.cached_property
    def _normalised(self) -> tuple[_Float, _Int]:
        return _normalised(self.vectors)

    @functools.cached_property
    def largest(self) -> _Scaled:
        """Largest magnitudes."""
        values, exponents = self._normalised
        return _Scaled(values.max(axis=1, initial=0.0), exponents)

    @functools.cached_property
    def norm1(self) -> _Scaled:
        """1-norms."""
        values, exponents = self._normalised
        return _Scaled(values.sum(axis=1) * _outward(self.k), exponents)

    @functools.cached_property
    def norm2(self) -> _Scaled:
        """2-norms."""
        return _norm2(*self._normalised)


class _Product(NamedTuple):
    """Checked arguments: rows of A, columns of B as rows, and their exponents."""

    rows: _Lines
    columns: _Lines
    mu: _Int
    nu: _Int


def exponent_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    truncated: bool = False,
) -> _Float:
    """Bound the error of the integers from the exponents and 1-norms alone.

    Tight for data of wide range; O(mk + kn + mn).

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    truncated : bool, optional
        Integers were rounded toward zero instead of to nearest.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(C' * 2**-(mu + nu) - A @ B)``.

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  ``AB - (A - dA)(B - dB) = dA B + A dB - dA dB`` and
    ``abs(dA_ih) <= h * 2**-mu_i``, so the three terms are at most
    ``h * 2**-mu_i * norm1(b_j)``, ``h * 2**-nu_j * norm1(a_i)`` and
    ``h**2 * k * 2**-(mu_i + nu_j)``.  With truncation ``abs(A - dA) <= abs(A)``, and
    ``dA B + (A - dA) dB`` needs no third term.  (Error analysis as in arXiv
    2602.02549.)
    """
    with np.errstate(all="ignore"):
        return _exponent_bound(_checked(a, b, mu, nu), truncated)


def residual_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    truncated: bool = False,
) -> _Float:
    """Bound the error of the integers from what rounding actually removed.

    Tight for data of uniform size, and zero where nothing was rounded;
    O(mk + kn + mn).

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    truncated : bool, optional
        Integers were rounded toward zero instead of to nearest.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(C' * 2**-(mu + nu) - A @ B)``.

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  By Cauchy-Schwarz the terms of ``dA B + A dB - dA dB`` are at most
    ``norm(da_i) * norm(b_j)``, ``norm(a_i) * norm(db_j)`` and
    ``norm(da_i) * norm(db_j)``.  With truncation ``abs(A - dA) <= abs(A)``, and
    ``dA B + (A - dA) dB`` needs no third term.  Residuals are exact in float64 but
    for those below 2**-1022 units, which are rounded up.
    """
    with np.errstate(all="ignore"):
        return _residual_bound(_checked(a, b, mu, nu), truncated)


def rounding_bound(
    c: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    to: Format = DOUBLE,
) -> _Float:
    """Bound the error of the one rounding of ``V = C' * 2**-(mu + nu)`` to C.

    Parameters
    ----------
    c : array_like of float64, shape (m, n)
        The product; infinities are allowed, NaN is not.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A, or any others with which C' is an integer.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B, likewise.
    to : Format, optional
        Of C.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(C - V)``: zero where C is V for certain, infinite where C is.

    Raises
    ------
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  Rounding to nearest errs by half a unit in the last place of C: at most
    u * abs(C) if C is normal, 2**-1075 if it is subnormal or zero.  The double after
    fl(u * abs(C)) exceeds both; for float32, whose 2**-150 is a double, it exceeds the
    larger one of both.  If mu + nu <= 1074 and abs(C) * 2**(mu + nu) < 2**53, then
    ``abs(C') < 2**53`` (a larger C' would have been rounded to at least 2**53 units),
    and such an integer multiple of a power of two not below 2**-1074 is a double.
    """
    c = np.asarray(c, dtype=np.float64)
    mu, nu = np.asarray(mu, dtype=np.intc), np.asarray(nu, dtype=np.intc)
    if c.shape != mu.shape + nu.shape or c.ndim != 2:
        raise _shape_error("c", c.shape, "shape (len(mu), len(nu))")
    with np.errstate(all="ignore"):
        shift = np.add.outer(mu, nu)
        size = np.abs(c)
        exact = (shift <= -to.lowest) & (np.ldexp(size, shift) < 2.0**to.bits)
        return np.where(exact, 0.0, half_unit(size, to))


def half_unit(size: _Float, to: Format) -> _Float:
    """Return a bound of the error of a rounding to nearest, by its result.

    Parameters
    ----------
    size : ndarray of float64
        Magnitudes of results, or bounds of what is rounded; not NaN.
    to : Format
        Of results.

    Returns
    -------
    ndarray of float64
        Half a unit in the last place at least, infinite where `size` is, or would be
        in that format.
    """
    if to is DOUBLE:
        return np.asarray(np.nextafter(size * to.unit, np.inf))
    bound = np.nextafter(np.maximum(size * to.unit, to.tiny / 2.0), np.inf)
    return np.where(size < to.overflow, bound, np.inf)


def error_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    truncated: bool = False,
    to: Format = DOUBLE,
) -> _Float:
    """Bound the whole error of a computed product, entry by entry.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    c : array_like of float64, shape (m, n)
        The product that the contract gives for these exponents.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    truncated : bool, optional
        Integers were rounded toward zero instead of to nearest.
    to : Format, optional
        What the product is rounded to.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(C - A @ B)``; infinite where C or the bound overflows.

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  With ``V = C' * 2**-(mu + nu)``, ``abs(C - AB) <= abs(V - AB) +
    abs(C - V)``.  The first part is at most the smaller of `exponent_bound` and
    `residual_bound`, the second at most `rounding_bound`.  If all entries of a row of
    A are multiples of 2**l, those of ``A' * 2**-mu`` are multiples of
    ``2**-min(mu, -l)``, which takes the place of mu there: a product of integers
    below 2**53 has bound zero.
    """
    product = _checked(a, b, mu, nu)
    with np.errstate(all="ignore"):
        # All rows of A' * 2**-mu are multiples of this power of two, and so on.
        rounding = rounding_bound(c, *_units(product, c, to), to)
        return (_integer_bound(product, truncated) + rounding) * _OUTWARD


def product_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    truncated: bool = False,
    to: Format = DOUBLE,
) -> _Float:
    """Bound the whole error of a product that is not known yet, entry by entry.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    truncated : bool, optional
        Integers were rounded toward zero instead of to nearest.
    to : Format, optional
        What the product is rounded to.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(C - A @ B)``; infinite where the bound overflows.

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  As `error_bound`, but for the last rounding, of ``V = C' * 2**-(mu + nu)``:
    it errs by u * abs(V) or 2**-1075, and abs(V) is at most `magnitude_bound` plus the
    first part.
    """
    product = _checked(a, b, mu, nu)
    with np.errstate(all="ignore"):
        bound = _integer_bound(product, truncated)
        size = _magnitude_bound(product.rows, product.columns)
        size += bound
        bound += half_unit(size * _OUTWARD, to)
        bound *= _OUTWARD
        return bound


def _integer_bound(product: _Product, truncated: bool) -> _Float:
    """Return the smaller bound of the error of the integers."""
    bound = _exponent_bound(product, truncated)
    return np.minimum(bound, _residual_bound(product, truncated), out=bound)


def _units(product: _Product, c: npt.ArrayLike, to: Format) -> tuple[_Int, _Int]:
    """Return exponents for `rounding_bound`, of all bits only where they matter."""

    def of(count: int | None) -> tuple[_Int, _Int]:
        rows = -_least_exponents(product.rows.vectors[:, :count])
        columns = -_least_exponents(product.columns.vectors[:, :count])
        return np.minimum(product.mu, rows), np.minimum(product.nu, columns)

    # A few entries bound a unit from below: with that, are integers far above 2**53?
    few = of(_SAMPLE)
    if np.all(rounding_bound(c, *few, to) > 0.0):
        return few
    return of(None)


def conventional_bound(a: npt.ArrayLike, b: npt.ArrayLike) -> _Float:
    """Bound the error of any conventional float64 product.

    This is what FP64 GEMM is guaranteed to keep to, with or without FMA and in any
    order of summation, as long as nothing overflows.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``k * u * abs(A) @ abs(B) + k * 2**-1074``.

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  A sum of k products errs by at most k * u times the sum of their
    magnitudes, for every k and order (Jeannerod and Rump, SIAM J. Matrix Anal. Appl.
    34, 2013), plus 2**-1075 for each product that underflows.  Here rows and columns
    are first divided by powers of two above their largest entries, so the scaled sum
    cannot overflow.  If no scaled product can be below 2**-1000, it errs by k * u,
    less than the factor applied; else also by at most k * 2**-1073, less than the
    k * 2**-1000 added.  Either way it is zero or a normal number.
    """
    a, b = _operands(a, b)
    k = a.shape[1]
    with np.errstate(all="ignore"):
        rows, row_exponents = _normalised(a)
        columns, column_exponents = _normalised(b.T)
        # Rank-one updates, K-major: no routed product, no BLAS.
        total = np.zeros((a.shape[0], b.shape[1]))
        buffer = np.empty_like(total)
        for row_entries, column_entries in zip(rows.T, columns.T, strict=True):
            np.multiply.outer(row_entries, column_entries, out=buffer)
            total += buffer
        row_least = rows.min(axis=1, initial=np.inf, where=a != 0.0)
        column_least = columns.min(axis=1, initial=np.inf, where=b.T != 0.0)
        may_underflow = np.multiply.outer(row_least, column_least) < 2.0**-1000
        total += np.where(may_underflow, k * 2.0**-1000, 0.0)
        exponents = np.add.outer(row_exponents, column_exponents) - 53
        bound = np.nextafter(np.ldexp(total * (k * _outward(k)), exponents), np.inf)
        underflow = k * 2.0**-1074
        upper: _Float = (np.where(total > 0.0, bound, 0.0) + underflow) * _OUTWARD
        return upper


def magnitude_bound(a: npt.ArrayLike, b: npt.ArrayLike) -> _Float:
    """Bound the sum of magnitudes |A||B| by norms of rows and columns.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(A) @ abs(B)``; O(mk + kn + mn).

    Raises
    ------
    OptionError
        If an operand is not finite.
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  Hoelder's inequality with the exponents (2, 2), (1, inf) and (inf, 1); the
    smallest of the three is taken.  The last two are the better ones where a few
    entries outweigh the others.
    """
    a, b = _operands(a, b)
    with np.errstate(all="ignore"):
        return _magnitude_bound(_Lines(a), _Lines(np.ascontiguousarray(b.T)))


def _magnitude_bound(rows: _Lines, columns: _Lines) -> _Float:
    bound = _outer(rows.norm2, columns.norm2)
    np.minimum(bound, _outer(rows.norm1, columns.largest), out=bound)
    np.minimum(bound, _outer(rows.largest, columns.norm1), out=bound)
    return bound


def _exponent_bound(product: _Product, truncated: bool) -> _Float:
    rows, columns, mu, nu = product
    h = 1.0 if truncated else 0.5
    a_unit = _Scaled(np.full(len(mu), h), -mu)
    b_unit = _Scaled(np.full(len(nu), h), -nu)
    bound = _outer(a_unit, columns.norm1) + _outer(rows.norm1, b_unit)
    if rows.k and not truncated:
        bound += _outer(_Scaled(np.full(len(mu), h * rows.k), -mu), b_unit)
    bound *= _OUTWARD
    return bound


def _residual_bound(product: _Product, truncated: bool) -> _Float:
    rows, columns, mu, nu = product
    a_rest = _norm2_of_residuals(rows.vectors, mu, truncated)
    b_rest = _norm2_of_residuals(columns.vectors, nu, truncated)
    bound = _outer(a_rest, columns.norm2) + _outer(rows.norm2, b_rest)
    if not truncated:
        bound += _outer(a_rest, b_rest)
    bound *= _OUTWARD
    return bound


def _norm2_of_residuals(vectors: _Float, exponents: _Int, truncated: bool) -> _Scaled:
    values, own = _normalised(_residuals(vectors, exponents, truncated))
    return _norm2(values, own - exponents)


def _residuals(vectors: _Float, exponents: _Int, truncated: bool) -> _Float:
    """Return ``abs(x - round(x))`` for ``x = vectors * 2**exponents``, rounded up.

    From 2**53 on (and where x overflows) x is an integer.  Below, the subtraction is
    exact.  Only a subnormal x can differ from ``vectors * 2**exponents``, by 2**-1075
    at most.
    """
    least, most = exponents.min(initial=0), exponents.max(initial=0)
    if 0 <= least and most <= _LARGEST_EXPONENT:
        # Exact unless it overflows: then the difference is not a number, but 0.
        x = vectors * np.ldexp(1.0, exponents)[:, np.newaxis]
    else:
        x = np.ldexp(vectors, exponents[:, np.newaxis])
    rest = np.trunc(x) if truncated else np.rint(x)
    np.subtract(x, rest, out=rest)
    np.abs(rest, out=rest)
    if not np.isfinite(rest.sum()):
        rest[~np.isfinite(x)] = 0.0
    if least < 0:
        inexact = (np.abs(x) < _SMALLEST_NORMAL) & (vectors != 0.0)
        rest = np.where(inexact, np.nextafter(rest, 1.0), rest)
    return rest


def _least_exponents(vectors: _Float) -> _Int:
    """Return l such that all entries of a vector are multiples of 2**l."""
    fractions, exponents = np.frexp(vectors)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    lowest = (mantissas & -mantissas).astype(np.float64)
    least = exponents - 53 + np.frexp(lowest)[1] - 1
    # A zero vector is a multiple of anything; any power above the range will do.
    nonzero = vectors != 0.0
    return np.asarray(least.min(axis=1, initial=2000, where=nonzero), dtype=np.intc)


def _normalised(vectors: _Float) -> tuple[_Float, _Int]:
    """Return magnitudes below 1 and exponents e with ``abs(x) == value * 2**e``.

    The largest value of a vector is at least 1/2; values below 2**-1022 are off by
    up to 2**-1075, which is nothing beside that.
    """
    values = np.abs(vectors)
    largest = values.max(axis=1, initial=0.0)
    exponents = np.frexp(largest)[1].astype(np.intc)
    if exponents.min(initial=0) >= -_LARGEST_EXPONENT:
        values *= np.ldexp(1.0, -exponents)[:, np.newaxis]
    else:
        values = np.ldexp(values, -exponents[:, np.newaxis])
    return values, exponents


def _outward(k: int) -> float:
    """Return a factor above the relative error of a sum of k products."""
    return 1.0 + (k + 8) * 2.0**-52


def _norm2(values: _Float, exponents: _Int) -> _Scaled:
    """Return the 2-norms of ``values * 2**exponents``, rounded up."""
    # In a scope they might have fewer bits than the factor allows for.
    with hooks.unrouted():
        squares = np.einsum("ij,ij->i", values, values) * _outward(values.shape[1])
    return _Scaled(np.sqrt(squares), exponents)


def _outer(left: _Scaled, right: _Scaled) -> _Float:
    """Return the products of all pairs, rounded up; a zero factor gives zero."""
    near = all(
        np.abs(x.exponent).max(initial=0) <= _PLAIN_EXPONENT for x in (left, right)
    )
    if near:
        # Nothing here is subnormal: the factor covers every rounding.
        plain = (np.ldexp(x.value, x.exponent) for x in (left, right))
        bound = np.multiply.outer(*plain)
        bound *= _OUTWARD
        return np.asarray(bound)
    values = np.multiply.outer(left.value, right.value)
    exponents = np.add.outer(left.exponent, right.exponent)
    bound = np.nextafter(np.ldexp(values * _OUTWARD, exponents), np.inf)
    return np.where(values > 0.0, bound, 0.0)


def _operands(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[_Float, _Float]:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2:
            raise _shape_error(name, x.shape, "an operand has two dimensions")
        if not np.isfinite(x).all():
            raise OptionError(
                refusal(
                    name,
                    "non-finite entries",
                    "only finite products have an error",
                    "leave those rows and columns out",
                )
            )
    if a.shape[1] != b.shape[0]:
        raise _shape_error("b", b.shape, f"A has {a.shape[1]} columns")
    return a, b


def _checked(
    a: npt.ArrayLike, b: npt.ArrayLike, mu: npt.ArrayLike, nu: npt.ArrayLike
) -> _Product:
    a, b = _operands(a, b)
    mu, nu = np.asarray(mu, dtype=np.intc), np.asarray(nu, dtype=np.intc)
    if mu.shape != a.shape[:1]:
        raise _shape_error("mu", mu.shape, f"A has {a.shape[0]} rows")
    if nu.shape != b.shape[1:]:
        raise _shape_error("nu", nu.shape, f"B has {b.shape[1]} columns")
    return _Product(_Lines(a), _Lines(np.ascontiguousarray(b.T)), mu, nu)


def _shape_error(argument: str, shape: tuple[int, ...], limit: str) -> ShapeError:
    return ShapeError(
        refusal(argument, shape, limit, "pass operands that fit each other")
    )
