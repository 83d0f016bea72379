"""Exact products of some entries, in Python integers, apart from every engine.

A vector is held as integers times one power of two, so that a dot product is a sum
of integer products: exact whatever the range of the data.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki.numerics.formats import DOUBLE, Format
from np_ozaki.numerics.reference import round_to

__all__ = ["ExactEntry", "Vectors", "exact_entry"]


class Vectors:
    """Finite rows as exact integers; row i is ``integers[i] * 2**exponents[i]``.

    Parameters
    ----------
    rows : (count, k) ndarray of float64
        Finite.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        fractions, exponents = np.frexp(rows)
        mantissas = np.ldexp(fractions, 53).astype(np.int64)
        # Without the zeros at the end, integer data stay small and so do the sums.
        lowest = (mantissas & -mantissas).astype(np.float64)
        zeros = np.where(mantissas == 0, 0, np.frexp(lowest)[1] - 1).astype(np.int64)
        mantissas >>= zeros
        places = exponents - 53 + zeros
        self.integers: list[list[int]] = []
        self.sizes: list[list[int]] = []
        self.exponents: list[int] = []
        for row, place in zip(mantissas, places, strict=True):
            base = int(place[row != 0].min()) if row.any() else 0
            shifts = np.where(row == 0, 0, place - base)
            values = list(map(operator.lshift, row.tolist(), shifts.tolist()))
            self.integers.append(values)
            self.sizes.append(list(map(abs, values)))
            self.exponents.append(base)


@dataclass(frozen=True)
class ExactEntry:
    """One entry of a product: ``total * 2**exponent``.

    Attributes
    ----------
    total : int
        The sum of the products.
    size : int
        The sum of their magnitudes: the entry of abs(A) abs(B), in the same unit.
    exponent : int
        Of that unit.
    to : Format
        What it is rounded to; errors are counted in its u.
    """

    total: int
    size: int
    exponent: int
    to: Format = DOUBLE

    def rounded(self) -> float:
        """Return the number nearest to the entry, ties to even.

        Returns
        -------
        float
            Infinite where the entry overflows.
        """
        return round_to(self.total, self.exponent, self.to)

    def in_units(self, value: float) -> float:
        """Return a magnitude relative to abs(A) abs(B).

        Parameters
        ----------
        value : float
            Not negative.

        Returns
        -------
        float
            In u; 0 for 0, infinite where there is nothing to compare with.
        """
        if math.isinf(value):
            return math.inf
        mantissa, place = _mantissa(value)
        return self._ratio(mantissa, place)

    def error(self, value: float) -> float:
        """Return the error of a computed entry relative to abs(A) abs(B).

        Parameters
        ----------
        value : float
            The entry as computed.

        Returns
        -------
        float
            In u.  0 for an infinity that is the rounded entry; infinite for any
            other value that is not finite.
        """
        if not math.isfinite(value):
            return 0.0 if value == self.rounded() else math.inf
        return self._ratio(*self._difference(value))

    def within(self, value: float, bound: float) -> bool:
        """Return whether a computed entry keeps to a bound, by comparing integers.

        Parameters
        ----------
        value : float
            The entry as computed.
        bound : float
            Of the absolute error; may be infinite.

        Returns
        -------
        bool
            False for NaN, and for an infinity where the rounded entry is finite and
            far from overflow.
        """
        if not math.isfinite(value):
            # An infinite bound says nothing.  A result may overflow if its error
            # may have carried it there: the entry is at least half of the range.
            near = math.isinf(value) and abs(self.rounded()) >= 2.0 ** (self.to.top - 1)
            return near and math.copysign(1.0, value) == _sign(self.total)
        if math.isinf(bound):
            return True
        distance, place = self._difference(value)
        limit, limit_place = _mantissa(bound)
        shift = place - limit_place
        return distance << max(shift, 0) <= limit << max(-shift, 0)

    def _difference(self, value: float) -> tuple[int, int]:
        """Return (d, e) with ``abs(value - entry) == d * 2**e``."""
        mantissa, place = _mantissa(value)
        base = min(place, self.exponent) if mantissa else self.exponent
        computed = mantissa << (place - base) if mantissa else 0
        return abs(computed - (self.total << (self.exponent - base))), base

    def _ratio(self, numerator: int, exponent: int) -> float:
        if not numerator:
            return 0.0
        if not self.size:
            return math.inf
        shift = exponent - self.exponent + self.to.bits
        try:
            return (numerator << max(shift, 0)) / (self.size << max(-shift, 0))
        except OverflowError:
            return math.inf


def exact_entry(
    a: Vectors, i: int, b: Vectors, j: int, to: Format = DOUBLE
) -> ExactEntry:
    """Return one entry of a product, exactly.

    Parameters
    ----------
    a : Vectors
        Rows of the left operand.
    i : int
        Which of them.
    b : Vectors
        Columns of the right operand.
    j : int
        Which of them.
    to : Format, optional
        Of the products that it is compared with.

    Returns
    -------
    ExactEntry
        Of row i and column j.
    """
    return ExactEntry(
        total=sum(map(operator.mul, a.integers[i], b.integers[j])),
        size=sum(map(operator.mul, a.sizes[i], b.sizes[j])),
        exponent=a.exponents[i] + b.exponents[j],
        to=to,
    )


def _mantissa(value: float) -> tuple[int, int]:
    """Return integers (f, e) with ``value == f * 2**e``."""
    fraction, exponent = math.frexp(value)
    return int(math.ldexp(fraction, 53)), exponent - 53


def _sign(value: int) -> float:
    return -1.0 if value < 0 else 1.0
