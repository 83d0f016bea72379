"""Exact sums modulo q = 2^61 - 1 on FP64 units, for the checksums of the CPU engine.

Everything is a matrix of integers times a few vectors.  The integers are cut to pieces
of at most 2^28.  A block with sums of `length` terms leaves

    r = 53 - 28 - ceil(log2(length))

bits to the pieces of the vectors: 18 where a block has 128 entries a side, so that a
weight is one piece, and 11 in the longest.  So FP64 products of blocks are exact in any
order, and only such sums, one a line and pair of pieces, are ever reduced modulo q.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.checksum import PRIME, WEIGHT_BITS, Sums, weights
from np_ozaki.engines.parallel import ranges

__all__ = [
    "Accumulator",
    "cut",
    "room",
    "times_vector",
    "vector_pieces",
    "weight_pieces",
    "weighted_rows",
]

Array = NDArray[np.float64]

_BITS = PRIME.bit_length()
_PIECE = 28
"""Pieces are at most 2^28."""

_LARGEST_SUM = 2.0**53
_ADDITIONS = 1 << 9
"""Sums of a block that fit int64 beside a remainder: 2^9 2^53 + 2^61 < 2^63."""

_SERIAL = 1 << 13
"""Entries of a matrix that OpenBLAS multiplies by one vector without its threads, which
would wait for each other beside those of the pass."""


def _reduced(x: Sums) -> Sums:
    """Return x modulo q, for any uint64."""
    x = (x & np.uint64(PRIME)) + (x >> np.uint64(_BITS))
    return np.where(x >= PRIME, x - np.uint64(PRIME), x)


def _times_power(x: Sums, exponent: int | NDArray[np.int64]) -> Sums:
    """Return x 2^exponent modulo q, for x < q: its 61 bits rotate."""
    turn = np.asarray(exponent % _BITS, dtype=np.uint64)
    rotated: Sums = (x << turn) & np.uint64(PRIME)
    rotated |= x >> (np.uint64(_BITS) - turn)
    return rotated


def _sum(x: Sums) -> Sums:
    """Return sums of x < q over the first and the last axis modulo q, a few terms."""
    half = 31
    lower = np.add.reduce(x & np.uint64((1 << half) - 1), axis=(0, -1))
    upper = np.add.reduce(x >> np.uint64(half), axis=(0, -1))
    return _reduced(lower + _times_power(upper, half))


def room(length: int) -> int:
    """Return the bits r of pieces of a vector in sums of `length` terms.

    Parameters
    ----------
    length : int
        Terms of a block's sums.

    Returns
    -------
    int
        At least 11 for blocks of `parallel`.
    """
    return 53 - _PIECE - (length - 1).bit_length()


def vector_pieces(x: NDArray[Any], size: int, bits: int) -> Array:
    """Cut integers from 0 to 2^size - 1 to pieces, on a new last axis, lowest first.

    Parameters
    ----------
    x : ndarray of int64 or uint64
        The integers.
    size, bits : int
        Bits of the integers and of a piece.

    Returns
    -------
    (..., pieces) ndarray of float64
        The highest piece takes what is left, at most 2^bits; the others are balanced.
    """
    rest = x.astype(np.int64)
    pieces = []
    for _ in range(-(-size // bits) - 1):
        upper = (rest + (1 << (bits - 1))) >> bits
        pieces.append(rest - (upper << bits))
        rest = upper
    return np.stack([*pieces, rest], axis=-1).astype(np.float64)


def weight_pieces(count: int, bits: int, *, left: bool) -> Array:
    """Return the weights of lines in pieces.

    Parameters
    ----------
    count : int
        Lines.
    bits : int
        Of a piece.
    left : bool
        Whether lines are A's.

    Returns
    -------
    (count, pieces) ndarray of float64
        Lowest piece first.
    """
    return vector_pieces(weights(count, left=left), WEIGHT_BITS, bits)


def _serial_rows(pieces: Array, vectors: int) -> list[slice]:
    """Return ranges of rows to be multiplied by `vectors` vectors, one at a time."""
    rows, columns = pieces.shape[-2:]
    return ranges(rows, max(1, _SERIAL // columns) if vectors == 1 else rows)


def times_vector(pieces: Array, vector: Array, out: Array) -> None:
    """Multiply pieces by vectors.

    Parameters
    ----------
    pieces : (..., rows, columns) ndarray of float64
        Of a block.
    vector : (..., columns, vectors) ndarray of float64
        Pieces of a vector.
    out : (..., rows, vectors) ndarray of float64
        Overwritten.
    """
    for some in _serial_rows(pieces, vector.shape[-1]):
        np.matmul(pieces[..., some, :], vector, out=out[..., some, :])


def weighted_rows(weight: Array, pieces: Array) -> Array:
    """Return sums of rows, each times its weight.

    Parameters
    ----------
    weight : (rows, vectors) ndarray of float64
        Pieces of weights.
    pieces : (..., rows, columns) ndarray of float64
        Of a block.

    Returns
    -------
    (..., columns, vectors) ndarray of float64
        Exact.
    """
    sums: Array
    sums, *others = (
        np.matmul(weight[some].T, pieces[..., some, :])
        for some in _serial_rows(pieces, weight.shape[1])
    )
    for part in others:
        sums += part
    return sums.swapaxes(-1, -2)


def cut(whole: Array, bits: int, pieces: Array) -> None:
    """Cut integers to pieces, lowest first, multiples of 1, 2^bits, 2^(2 bits), ...

    Parameters
    ----------
    whole : ndarray of float64
        Integers.
    bits : int
        Of a piece.
    pieces : (pieces, ...) ndarray of float64
        Overwritten; pieces[0] may be `whole` itself.  All but the highest are balanced.
    """
    lowest = pieces[0]
    if len(pieces) == 1 and lowest is not whole:
        np.copyto(lowest, whole)
    for i in range(len(pieces) - 1, 0, -1):
        # The last place of the anchor is 2^(bits i), for entries below half of it.
        anchor = 1.5 * 2.0 ** (52 + bits * i)
        upper = pieces[i]
        np.add(whole, anchor, out=upper)
        upper -= anchor
        np.subtract(whole, upper, out=lowest)
        whole = lowest


class Accumulator:
    """Exact sums of integers that come as float64, a few of them from each block.

    Parameters
    ----------
    shape : tuple of int
        (pieces, batch, lines, pieces of the vector).
    bits : sequence of int
        For each piece, the exponent that it stands for.
    grid : sequence of int
        For each piece, the exponent that it is a multiple of.
    vector_bits : int
        Bits between two pieces of the vector.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        bits: Sequence[int],
        grid: Sequence[int],
        vector_bits: int,
    ) -> None:
        self._total = np.zeros(shape, dtype=np.int64)
        self._spoiled = np.zeros(shape[1:3], dtype=np.bool_)
        self._exponents = np.array(bits, dtype=np.int64).reshape(-1, 1, 1, 1)
        self._exponents = self._exponents + vector_bits * np.arange(shape[3])
        self._units = np.ldexp(1.0, -np.array(grid)).reshape(-1, 1, 1, 1)
        self._additions = 0
        self._lock = threading.Lock()

    def add(self, batch: slice, lines: slice, sums: Array) -> None:
        """Add sums of one block, (pieces, batch, lines, pieces of the vector)."""
        sums *= self._units
        whole = sums.astype(np.int64)
        with self._lock:
            if self._additions == _ADDITIONS:
                self._total %= PRIME
                self._additions = 0
            self._additions += 1
            self._total[:, batch, lines] += whole

    def add_doubtful(self, batch: slice, lines: slice, sums: Array) -> None:
        """Add sums that are exact unless something went wrong before."""
        self.add(batch, lines, sums)
        # Sums that are not might vanish modulo q.  The largest is NaN if any is.
        if not np.abs(sums).max() <= _LARGEST_SUM:
            exact = (np.abs(sums) <= _LARGEST_SUM).all(axis=(0, 3))
            with self._lock:
                self._spoiled[batch, lines] |= ~exact

    def modulo(self) -> tuple[Sums, NDArray[np.bool_]]:
        """Return (batch, lines) sums modulo q, and which of them mean nothing."""
        total = (self._total % PRIME).astype(np.uint64)
        return _sum(_times_power(total, self._exponents)), self._spoiled
