"""How many bits the entries of an operand have, on NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_exponents import Exponents, Lines, largest_exponents
from np_ozaki.engines.parallel import Block

__all__ = ["ZERO_UNIT", "entry_units", "line_units", "sample", "sample_steps"]

Array = NDArray[np.float64]

ZERO_UNIT = 2000
"""l of a line of zeros, which are multiples of anything."""

_SIDE = 8
"""Rows and columns of a sample, which tells whether a matrix is worth a full pass."""


def entry_units(x: Array) -> Exponents:
    """Return the largest l for which each entry is a multiple of 2^l.

    Parameters
    ----------
    x : ndarray of float64
        Finite.

    Returns
    -------
    ndarray of int64
        -1074 to 1023; `ZERO_UNIT` where x is 0.
    """
    fractions, exponents = np.frexp(x)
    mantissas = (fractions * 2.0**53).astype(np.int64)
    lowest = (mantissas & -mantissas).astype(np.float64)
    units = exponents.astype(np.int64) - 54 + np.frexp(lowest)[1]
    return np.where(mantissas == 0, ZERO_UNIT, units)


def line_units(lines: Lines, largest: Array) -> tuple[Exponents, Exponents]:
    """Return e and l of each line.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    largest : (batch, lines) ndarray of float64
        From `cpu_exponents.magnitudes`.

    Returns
    -------
    e : (batch, lines) ndarray of int64
        ``2^e <= largest < 2^(e + 1)``; 0 for a line of zeros.
    unit : (batch, lines) ndarray of int64
        Largest l for which every entry is a multiple of 2^l; `ZERO_UNIT` for zeros.
    """
    axis = 2 if lines.along else 1

    def reduce(block: Block) -> Exponents:
        # Maxima of what is never negative merge into zeros.
        below = ZERO_UNIT - entry_units(lines.x[block])
        return np.asarray(np.maximum.reduce(below, axis=axis))

    units = ZERO_UNIT - lines.collect(reduce, np.maximum, np.int64)
    return np.where(largest > 0, largest_exponents(largest), 0), units


def sample(x: Array) -> Array:
    """Return entries from all over each matrix.

    Parameters
    ----------
    x : (batch, rows, columns) ndarray of float64
        At least one entry a matrix.

    Returns
    -------
    (batch, entries) ndarray of float64
        At most 8 by 8 of them; which ones is of no consequence.
    """
    rows, columns = sample_steps(x.shape)
    return x[:, ::rows, ::columns].reshape(x.shape[0], -1)


def sample_steps(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return from how many rows and columns a sample takes the first one.

    Parameters
    ----------
    shape : (batch, rows, columns)
        Of an operand.

    Returns
    -------
    rows, columns : int
        At least 1.
    """
    _, rows, columns = shape
    return -(-rows // _SIDE), -(-columns // _SIDE)
