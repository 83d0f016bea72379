"""Rigorous bounds of the error of one product by slices, computed in float64.

As in `np_ozaki.numerics.bounds`, whose bounds of what is rounded these extend: all
functions round outward, norms are of lines divided by powers of two, no BLAS is
called, and u = 2**-53.  q_i are the slices of a row of A', r_j those of a column of B',
slice 0 the most significant; slice i counts ``2**(b (S - 1 - i))`` times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from np_ozaki.errors import ShapeError, refusal
from np_ozaki.numerics import bounds
from np_ozaki.numerics.formats import DOUBLE, SINGLE, Format
from np_ozaki.numerics.slicing import Slicing, chosen_pairs

__all__ = ["error_bound", "pair_weights", "pairs_bound", "product_bound"]

_Float = npt.NDArray[np.float64]
_Int = npt.NDArray[np.intc]

_UNIT = 2.0**-53
# Above the relative error of the few hundred operations on norms of slices.
_OUTWARD = 1.0 + 2.0**-40
_SMALLEST_NORMAL = 2.0**-1022
_TINY = 2.0**-1074
_TO_SINGLE = 1.0 + 2.0**-28
"""Of a bound that counts a rounding to float32: room for the one of the last addition,
which errs by 2**-53 of the same."""


class _Norms(NamedTuple):
    """Norms of the slices of lines, rounded up; each (S, lines)."""

    norm1: _Float
    norm2: _Float
    largest: _Float


def pair_weights(slicing: Slicing, k: int) -> _Float:
    """Return how much of each pair's product may be missing from the result.

    Parameters
    ----------
    slicing : Slicing
        Which pairs are multiplied, and how their sums are added.
    k : int
        Inner dimension.

    Returns
    -------
    ndarray of float64, shape (S, S)
        For the product of slices i and j, relative to the magnitudes of its terms: 1 if
        it is left out, else what additions in float64 may take from it before the last
        one, which is a rounding of the result.

    Notes
    -----
    With ``accumulate="float64"`` and sums of D weights, from the least one up, the
    first addition, to +0, is exact.  Additions 2 to D - 1 err by at most u times the
    partial sum that they make (rounding to nearest), and that is at most the sum of the
    magnitudes of the weights so far, each 1 + u larger for every addition before.  So
    a weight counts u times for each partial sum it is in.  Sums of 2**53 and more are
    rounded before they are added, which counts u once more.
    """
    size = slicing.num_slices
    weights = np.ones((size, size))
    kept = chosen_pairs(slicing.pairs, size)
    weights[tuple(np.transpose(kept))] = 0.0
    if slicing.accumulate == "exact":
        return weights
    diagonals = slicing.diagonals
    largest_product = k << 2 * slicing.bits_per_slice - 2
    last = len(diagonals) - 1
    for position, (weight, runs) in enumerate(diagonals):
        # Of the partial sums 0 to last, the first and the last one do not count.
        count = max(0, last - max(position, 1))
        if diagonals[position].num_pairs * largest_product > 2**53:
            count += 1
        for first, length in runs:
            for i in range(first, first + length):
                j = 2 * size - 2 - weight - i
                weights[i, j] = count * _UNIT * _OUTWARD
    return weights


def pairs_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    slicing: Slicing,
) -> _Float:
    """Bound what pairs that are left out and additions in float64 take.

    Zero for ``pairs="all"``, ``accumulate="exact"``; O(S (mk + kn + mn)) otherwise.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A, by the rule of slices.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    slicing : Slicing
        S, b, pairs, accumulate.

    Returns
    -------
    ndarray of float64, shape (m, n)
        At least ``abs(V - A' B') * 2**-(mu + nu)``, V the sum of the pairs just before
        the last addition is rounded.

    Raises
    ------
    ShapeError
        If shapes do not fit each other.

    Notes
    -----
    Proof.  By Hoelder's inequality, the terms of ``q_i @ r_j`` have a sum of
    magnitudes of at most ``norm(q_i) * norm(r_j)``, ``norm1(q_i) * max(abs(r_j))`` and
    ``max(abs(q_i)) * norm1(r_j)``.  V lacks the pairs that are left out, and errs by
    what `pair_weights` says of the others; for each i the least of the three sums over
    j is taken.  Slices are integers of at most 2**(b - 1), so float64 holds them, and
    sums of squares of fewer than 2**39, exactly.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mu, nu = np.asarray(mu, dtype=np.intc), np.asarray(nu, dtype=np.intc)
    _check_shapes(a, b, mu, nu)
    weights = pair_weights(slicing, a.shape[1])
    total = np.zeros((a.shape[0], b.shape[1]))
    if not weights.any():
        return total
    rows = _norms_of_slices(a, mu, slicing)
    columns = _norms_of_slices(np.ascontiguousarray(b.T), nu, slicing)
    size, bits = slicing.num_slices, slicing.bits_per_slice
    scale = np.ldexp(1.0, -bits * np.arange(size))
    weights = weights * np.multiply.outer(scale, scale)
    for i in np.flatnonzero(weights.any(axis=1)):
        missing = _Norms(*(_combined(weights[i], norms) for norms in columns))
        part = np.multiply.outer(rows.norm2[i], missing.norm2)
        for left, right in (
            (rows.norm1[i], missing.largest),
            (rows.largest[i], missing.norm1),
        ):
            np.minimum(part, np.multiply.outer(left, right), out=part)
        total += part
    with np.errstate(all="ignore"):
        exponents = 2 * bits * (size - 1) - np.add.outer(mu, nu)
        bound = np.nextafter(np.ldexp(total * _OUTWARD, exponents), np.inf)
        return np.where(total > 0.0, bound, 0.0)


def error_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    slicing: Slicing,
    to: Format = DOUBLE,
) -> _Float:
    """Bound the whole error of a product by slices, entry by entry.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    c : array_like of float64, shape (m, n)
        The product that the contract of slices gives for these operands.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A, by the rule of slices.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    slicing : Slicing
        S, b, pairs, accumulate.
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
    Proof.  `bounds.error_bound` is at least ``abs(A' B' * 2**-(mu + nu) - AB)`` plus
    the error of the one rounding that made C, of V, and V differs from A' B' by
    `pairs_bound` at most.  What that function says of C holds for any integer that is
    a multiple of the same powers of two as A' B' and was rounded to C; slices of
    multiples of a power of two are such multiples, and so are sums of them that
    float64 rounds.  With ``accumulate="float64"`` the last addition is that rounding,
    of relative size u, and a subnormal result is rounded once more.  Below 2**-1023
    both together stay below the 2**-1074 that are allowed for; up to 2**-1022 they do
    not, and one more is added; from there on the second one is exact.  To float32 the
    second one is the rounding that is counted, unless both are exact.
    """
    bound = bounds.error_bound(a, b, c, mu, nu, to=to)
    with np.errstate(all="ignore"):
        bound += pairs_bound(a, b, mu, nu, slicing)
        if slicing.accumulate == "float64" and to is SINGLE:
            bound *= _TO_SINGLE
        elif slicing.accumulate == "float64":
            size = np.abs(np.asarray(c, dtype=np.float64))
            twice = (size > _SMALLEST_NORMAL / 2.0) & (size <= _SMALLEST_NORMAL)
            bound += np.where(twice, _TINY, 0.0)
        return np.asarray(bound * _OUTWARD)


def product_bound(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    slicing: Slicing,
    to: Format = DOUBLE,
) -> _Float:
    """Bound the whole error of a product by slices that is not known yet.

    Parameters
    ----------
    a : array_like of float64, shape (m, k)
        Left operand, finite.
    b : array_like of float64, shape (k, n)
        Right operand, finite.
    mu : array_like of int, shape (m,)
        Exponents of the rows of A, by the rule of slices.
    nu : array_like of int, shape (n,)
        Exponents of the columns of B.
    slicing : Slicing
        S, b, pairs, accumulate.
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
    Proof.  As `error_bound`; `bounds.product_bound` allows for u times a bound of
    A' B', to which u times `pairs_bound` is added for V, and for the rounding of a
    subnormal result, which counts twice with ``accumulate="float64"``.
    """
    bound = bounds.product_bound(a, b, mu, nu, to=to)
    with np.errstate(all="ignore"):
        bound += pairs_bound(a, b, mu, nu, slicing)
        if slicing.accumulate == "float64" and to is SINGLE:
            bound *= _TO_SINGLE
        elif slicing.accumulate == "float64":
            bound += _TINY
        return np.asarray(bound * _OUTWARD)


def _norms_of_slices(vectors: _Float, exponents: _Int, slicing: Slicing) -> _Norms:
    """Return the norms of all slices of each line, from the last slice up.

    A quotient by 2**b is exact, and so is what is left of an integer of 53 bits when
    its last digit is taken away, divided by 2**b.
    """
    size, base = slicing.num_slices, 2.0**slicing.bits_per_slice
    norms = _Norms(*(np.zeros((size, len(vectors))) for _ in range(3)))
    rest = np.rint(np.ldexp(vectors, exponents[:, np.newaxis]))
    for i in reversed(range(size)):
        if i:
            higher = np.rint(rest / base)
            digits = rest - base * higher
            high = digits == base / 2.0
            digits[high] -= base
            higher[high] += 1.0
            rest = higher
        else:
            digits = rest
        squares = np.einsum("ij,ij->i", digits, digits)
        norms.norm2[i] = np.sqrt(squares) * _OUTWARD
        np.abs(digits, out=digits)
        norms.norm1[i] = digits.sum(axis=1)
        norms.largest[i] = digits.max(axis=1, initial=0.0)
    return norms


def _combined(weights: _Float, norms: _Float) -> _Float:
    """Return the weighted sum over slices, for each line."""
    total = np.zeros(norms.shape[1])
    for weight, line in zip(weights, norms, strict=True):
        total += weight * line
    return total


def _check_shapes(a: _Float, b: _Float, mu: _Int, nu: _Int) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        limit = "A is (m, k) and B (k, n)"
        remedy = "pass operands that fit each other"
        raise ShapeError(refusal("a, b", (a.shape, b.shape), limit, remedy))
    if (mu.shape, nu.shape) != (a.shape[:1], b.shape[1:]):
        limit = f"A has {a.shape[0]} rows and B {b.shape[1]} columns"
        remedy = "pass an exponent for each"
        raise ShapeError(refusal("mu, nu", (mu.shape, nu.shape), limit, remedy))
