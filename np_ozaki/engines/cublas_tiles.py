"""How products are cut for the FP64 emulation of cuBLAS.  No arrays here."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

__all__ = ["CublasTiles", "choose_cublas_tiles", "emulation_bytes", "num_slices"]

_PADDED_LINES, _PADDED_K = 1024, 128
_SPLIT_K, _BLOCK_K = 8192, 64
_MOST_SUMS = 1 << 32
_CONSTANT = 128 << 20
"""Of NVIDIA's formula for the memory that the emulation may take at most."""


def num_slices(mantissa_bits: int) -> int:
    """Return the 8-bit slices that hold a mantissa and its sign.

    Parameters
    ----------
    mantissa_bits : int
        Without the sign.

    Returns
    -------
    int
        cuBLAS fills the last one, so that some bits more may be kept.
    """
    return -(-(mantissa_bits + 1) // 8)


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def emulation_bytes(
    batch: int, m: int, n: int, k: int, mantissa_bits: int, *, dynamic: bool
) -> int:
    """Return the workspace with which cuBLAS emulates for certain.

    Parameters
    ----------
    batch, m, n, k : int
        The product, in one call.
    mantissa_bits : int
        The most that an entry may keep.
    dynamic : bool
        Whether cuBLAS chooses the number of bits.

    Returns
    -------
    int
        A bound from above, as section 1.5.2.4 of the cuBLAS manual gives it.
    """
    rows, columns = _padded(m, _PADDED_LINES), _padded(n, _PADDED_LINES)
    slices = num_slices(mantissa_bits)
    operands = (rows + columns) * _padded(k, _PADDED_K) * slices + 4 * (rows + columns)
    sums = min(4 * rows * columns * slices, _MOST_SUMS) * -(-k // _SPLIT_K)
    looks = 4 * ((m + n) * -(-k // _BLOCK_K) + m * n) if dynamic else 0
    return max(operands + sums, looks) * batch * 5 // 4 + _CONSTANT


@dataclass(frozen=True)
class CublasTiles:
    """How a product is cut for cuBLAS.  The inner length stays whole.

    Attributes
    ----------
    batch, m, n : int
        Matrices, rows and columns of one call.
    emulation_bytes : int
        Workspace that cuBLAS is given.
    workspace_bytes : int
        The same, and copies of operands and result on the device.
    """

    batch: int
    m: int
    n: int
    emulation_bytes: int = 0
    workspace_bytes: int = 0

    def calls(self, batch: int, m: int, n: int) -> int:
        """Return the number of tiles of a whole product."""
        parts = ((batch, self.batch), (m, self.m), (n, self.n))
        return math.prod(-(-whole // max(1, part)) for whole, part in parts)


@functools.lru_cache(maxsize=1024)
def choose_cublas_tiles(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    mantissa_bits: int,
    dynamic: bool,
    copied: tuple[bool, bool, bool],
    host: bool,
    budget: int,
) -> CublasTiles | None:
    """Return the largest tiles that fit a budget.

    Parameters
    ----------
    batch, m, n, k : int
        The product; none is 0.
    mantissa_bits : int
        The most that an entry may keep.
    dynamic : bool
        Whether cuBLAS chooses the number of bits.
    copied : tuple of bool
        Whether A, B and the result have copies on the device.
    host : bool
        Whether they lie on the host: tiles then come while others are multiplied.
    budget : int
        Bytes.

    Returns
    -------
    CublasTiles or None
        None where even the smallest tile takes more.  They depend on the arguments
        alone, not on the memory that happens to be free.
    """
    tiles = CublasTiles(batch, m, n)
    while True:
        size = (tiles.batch, tiles.m, tiles.n)
        bytes_of_cublas = emulation_bytes(*size, k, mantissa_bits, dynamic=dynamic)
        copies = _copies_bytes(tiles, (batch, m, n), k, copied, host)
        total = bytes_of_cublas + copies
        if total <= budget:
            return replace(
                tiles, emulation_bytes=bytes_of_cublas, workspace_bytes=total
            )
        if tiles.batch > 1:
            tiles = replace(tiles, batch=-(-tiles.batch // 2))
        elif max(tiles.m, tiles.n) <= _PADDED_LINES:
            return None
        elif tiles.m >= tiles.n:
            tiles = replace(tiles, m=_half(tiles.m))
        else:
            tiles = replace(tiles, n=_half(tiles.n))


def _half(size: int) -> int:
    """Return half of a number of lines, in units that cuBLAS pads to."""
    return min(size - 1, _padded(-(-size // 2), _PADDED_LINES))


def _copies_bytes(
    tiles: CublasTiles,
    whole: tuple[int, int, int],
    k: int,
    copied: tuple[bool, bool, bool],
    host: bool,
) -> int:
    """Return the bytes of copies; of the host's, two of what is cut."""
    batch, m, n = tiles.batch, tiles.m, tiles.n
    left, right, result = copied
    entries = 0
    if left:
        entries += batch * m * k * (2 if host and m < whole[1] else 1)
    if right:
        entries += batch * n * k * (2 if host and n < whole[2] else 1)
    if result:
        entries += batch * m * n * (2 if host and (batch, m, n) != whole else 1)
    return 8 * entries
