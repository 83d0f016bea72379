"""Rebalancing of the inner index: A D times D^-1 B, with powers of two in D.

Graded data, A = R D^-1 and B = D R', have rows and columns of wide range although their
product has none.  D is found from exponents alone: with alpha_h the largest exponent in
column h of A relative to its row's largest, and beta_h likewise for row h of B,

    d_h += (beta_h - alpha_h) / 2, rounded toward zero,

a few times over.  Indices with a column or row of zeros keep d_h = 0.  The rule is odd
under (A, B) -> (B^T, A^T) and gives d = 0 for A A^T.

Of complex operands (embedded as `Scheme` says) an index has one d_h for both of its
parts, from the larger exponent of each entry's.

Rows of A D are brought to a common size, so that powers of two neither overflow nor
underflow; where they would nevertheless, nothing is rebalanced.  All of it is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.base import Balanced
from np_ozaki.engines.cpu_exponents import Exponents
from np_ozaki.numerics.moduli import Family

__all__ = ["LINE_TOP", "ROUNDS", "rebalance"]

Array = NDArray[np.float64]

ROUNDS = 4
"""Passes over the exponents."""

LINE_TOP = 512
"""Exponent of the largest entry of every rebalanced line."""

_NOTHING = -(1 << 20)
_SMALLEST_NORMAL = -1022


def _exponents(x: Array) -> Exponents:
    """Return the exponents of entries; `_NOTHING` for 0, NaN and Inf."""
    usual = np.isfinite(x) & (x != 0)
    return np.asarray(np.where(usual, np.frexp(x)[1] - 1, _NOTHING), dtype=np.int64)


def _half(x: Exponents) -> Exponents:
    """Return x / 2 rounded toward zero."""
    return np.asarray(np.sign(x) * (np.abs(x) >> 1))


def _excess(exponents: Exponents, d: Exponents) -> Exponents:
    """Return the largest exponent of each column of x D relative to its row's."""
    moved = exponents + d[:, np.newaxis, :]
    top = moved.max(axis=2, keepdims=True)
    # A row of zeros has no say.
    relative = np.where(top > _NOTHING >> 1, moved - top, _NOTHING)
    return np.asarray(relative.max(axis=1))


def _of_both_parts(exponents: Exponents) -> Exponents:
    """Return the larger exponents of (batch, lines, [real parts, imaginary parts])."""
    k = exponents.shape[2] // 2
    return np.maximum(exponents[..., :k], exponents[..., k:])


def _inner_shifts(left: Exponents, right: Exponents, batch: int) -> Exponents:
    """Return d, (batch, k), from exponents of A and of B's columns."""
    d = np.zeros((batch, left.shape[2]), dtype=np.int64)
    for _ in range(ROUNDS):
        alpha, beta = _excess(left, d), _excess(right, -d)
        known = np.minimum(alpha, beta) > _NOTHING >> 1
        d += np.where(known, _half(beta - alpha), 0)
    return d


def rebalance(a: Array, b: Array, family: Family = "real") -> Balanced:
    """Return A D and D^-1 B for each matrix of a batch.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Batch 1 broadcasts; NaN and Inf stay what they are.
    b : (batch, k, n) ndarray of float64
        Batch 1 broadcasts.
    family : {"real", "complex"}, optional
        What operands stand for, as in a `Scheme`.

    Returns
    -------
    Balanced
        With spread 0, and then of no use, where D would not be finite.
    """
    batch = max(a.shape[0], b.shape[0])
    left, right = _exponents(a), _exponents(b.swapaxes(1, 2))
    if family == "complex":
        upper = left[:, : a.shape[1] // 2]
        d = _inner_shifts(_of_both_parts(upper), _of_both_parts(right), batch)
        d = np.tile(d, 2)
    else:
        d = _inner_shifts(left, right, batch)
    rows, fits_a = _line_shifts(left, d)
    columns, fits_b = _line_shifts(right, -d)
    spread = d.max(axis=1, initial=0) - d.min(axis=1, initial=0)
    spread = np.where(fits_a & fits_b, spread, 0)
    # Entries may leave the range of float32, in which they came.
    a, b = (np.asarray(x, dtype=np.float64) for x in (a, b))
    return Balanced(
        np.ldexp(a, d[:, np.newaxis, :] + rows[:, :, np.newaxis]),
        np.ldexp(b, columns[:, np.newaxis, :] - d[:, :, np.newaxis]),
        rows,
        columns,
        spread,
    )


def _line_shifts(
    exponents: Exponents, d: Exponents
) -> tuple[Exponents, NDArray[np.bool_]]:
    """Return what brings lines to `LINE_TOP`, and whether no entry then underflows."""
    moved = exponents + d[:, np.newaxis, :]
    top = moved.max(axis=2)
    shifts = np.where(top > _NOTHING >> 1, LINE_TOP - top, 0)
    final = np.where(moved > _NOTHING >> 1, moved + shifts[:, :, np.newaxis], 0)
    return shifts, final.min(axis=(1, 2), initial=0) >= _SMALLEST_NORMAL
