"""Checksums of a tile of C' modulo the prime q = 2^61 - 1: what both engines share.

With weights v and w, none of them a multiple of q, the integers of a tile must keep

    C' v = A' (B' v)    and    w C' = (w A') B'    modulo q,

which costs O(mk + kn + mn).  The right sides come from A and B and their exponents,
not from residues, so residues, GEMMs and CRT are all covered.

What is certain.  One wrong residue product changes C' by j P / p with 0 < |j| < p, for
the P of the engine that multiplies, and one wrong bit by a power of two: q divides
neither.  Such an entry shows in its row and in its column.  So do several of them in
one row, each alone in its column, or in one column, which is what a wrong residue
makes.  Others are missed where a difference is a multiple of q, or where the weights,
which know nothing of them, happen to cancel them in every row and in every column.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki.errors import CheckError

__all__ = ["PRIME", "WEIGHT_BITS", "TileSums", "verify", "weights"]

PRIME = 2**61 - 1
"""q, a Mersenne prime: 2^61 is 1 modulo q."""

WEIGHT_BITS = 18
"""Weights are from 1 to 2^18 - 1."""

Sums = NDArray[np.uint64]


@functools.lru_cache(maxsize=64)
def weights(count: int, *, left: bool) -> NDArray[np.int64]:
    """Return w for the rows of A (left), or v for the columns of B.

    A hash of the index, so that kernels make them on the way: see checksum.cuh.

    Parameters
    ----------
    count : int
        Lines.
    left : bool
        Whether lines are A's.

    Returns
    -------
    (count,) ndarray of int64
        From 1 to 2^18 - 1, the same at every call, shared and never written.
    """
    x = np.arange(count, dtype=np.uint32) * np.uint32(2) + np.uint32(left)
    x *= np.uint32(0x9E3779B1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x85EBCA77)
    x ^= x >> np.uint32(13)
    x = np.maximum(x >> np.uint32(32 - WEIGHT_BITS), np.uint32(1))
    drawn: NDArray[np.int64] = x.astype(np.int64)
    drawn.flags.writeable = False
    return drawn


@dataclass(frozen=True)
class TileSums:
    """Both sides of the two identities for one tile, reduced to 0 .. q - 1.

    Attributes
    ----------
    batch, rows, columns : slice
        Where the tile lies in the result, (batch, m, n).
    of_rows : tuple of (batch, rows) ndarray of uint64
        A' (B' v) and C' v.
    of_columns : tuple of (batch, columns) ndarray of uint64
        (w A') B' and w C'.
    """

    batch: slice
    rows: slice
    columns: slice
    of_rows: tuple[Sums, Sums]
    of_columns: tuple[Sums, Sums]


def verify(tiles: Iterable[TileSums]) -> None:
    """Raise an error for the first tile whose sums differ.

    Parameters
    ----------
    tiles : iterable of TileSums
        On the host.

    Raises
    ------
    CheckError
        Names the matrix, the tile, and rows and columns in it.
    """
    for tile in tiles:
        rows, columns = (
            np.not_equal(*pair) for pair in (tile.of_rows, tile.of_columns)
        )
        wrong = rows.any(axis=1) | columns.any(axis=1)
        if not wrong.any():
            continue
        matrix = int(np.flatnonzero(wrong)[0])
        raise CheckError(
            tile.batch.start + matrix,
            (tile.rows, tile.columns),
            tuple(int(i) + tile.rows.start for i in np.flatnonzero(rows[matrix])),
            tuple(int(j) + tile.columns.start for j in np.flatnonzero(columns[matrix])),
        )
