"""Sizes before anything runs: tiles, k blocks, workspace bytes.  No arrays here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

__all__ = ["CPU_MIN_FLOPS", "Tiles", "choose_tiles", "flops"]

CPU_MIN_FLOPS = 2 * 256**3
"""Default `min_flops` of a scope on the CPU engine: below it native takes over."""

_PREFERRED_ROWS = 512
_PREFERRED_BYTES = 32 << 20
_SMALL = 64


def flops(m: int, n: int, k: int) -> int:
    """Return 2 m n k, the operations of one conventional product.

    Parameters
    ----------
    m, n, k : int
        Rows, columns, inner length.

    Returns
    -------
    int
        Count of multiplications and additions.
    """
    return 2 * m * n * k


@dataclass(frozen=True)
class Tiles:
    """How a product is cut.  Another cut gives the same bits.

    Attributes
    ----------
    batch, m, n, k : int
        Matrices, rows, columns and inner indices of one tile.
    num_planes : int
        GEMMs per tile.
    accumulates : bool
        Whether k is cut, so that a second product buffer is needed.
    """

    batch: int
    m: int
    n: int
    k: int
    num_planes: int
    accumulates: bool

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the operand planes and product planes of one tile."""
        products = self.m * self.n * (2 if self.accumulates else 1)
        entries = self.m * self.k + self.k * self.n + products
        return 8 * self.num_planes * self.batch * entries


def _halve(size: int) -> int:
    return max(1, -(-size // 2))


@functools.lru_cache(maxsize=1024)
def choose_tiles(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    num_planes: int,
    exact_k: int,
    budget: int | None = None,
) -> Tiles:
    """Return the tiles of a product that fit a budget.

    Parameters
    ----------
    batch, m, n, k : int
        The product: `batch` times (m, k) by (k, n).
    num_planes : int
        float64 planes of operands and products.
    exact_k : int
        Longest inner length for which a product is exact.
    budget : int, optional
        Bytes; without it the tiles that run fastest.

    Returns
    -------
    Tiles
        Wide in n, so that B's planes are made once; short in m, so that products stay
        in cache.  Never below 1 in any direction, whatever the budget.
    """
    wide, deep = max(1, n), max(1, min(k, exact_k))
    # Short tiles keep products in cache; thin products would pay for too many of them.
    tall = max(_PREFERRED_ROWS, _PREFERRED_BYTES // (8 * num_planes * (wide + deep)))
    tiles = Tiles(1, max(1, min(m, tall)), wide, deep, num_planes, k > exact_k)
    limit = tiles.workspace_bytes if budget is None else budget
    while tiles.workspace_bytes > limit and max(tiles.m, tiles.n, tiles.k) > 1:
        if tiles.n > tiles.m:
            tiles = replace(tiles, n=_halve(tiles.n))
        elif tiles.k > max(tiles.m, _SMALL):
            tiles = replace(tiles, k=_halve(tiles.k), accumulates=True)
        elif tiles.m > 1:
            tiles = replace(tiles, m=_halve(tiles.m))
        else:
            tiles = replace(tiles, k=_halve(tiles.k), accumulates=True)
    if tiles.m >= m and tiles.n >= n and tiles.k >= k:
        room = min(budget or _PREFERRED_BYTES, _PREFERRED_BYTES)
        matrices = max(1, room // tiles.workspace_bytes)
        tiles = replace(tiles, batch=max(1, min(batch, matrices)))
    return tiles
