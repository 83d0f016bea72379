"""Sizes before anything runs: tiles, k blocks, workspace bytes.  No arrays here."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

__all__ = [
    "CPU_MIN_FLOPS",
    "CUDA_MIN_FLOPS",
    "GROUP_ROWS",
    "INT8_K_BLOCK",
    "TILE_COLUMNS",
    "TILE_ROWS",
    "CudaTiles",
    "Tiles",
    "choose_cuda_tiles",
    "choose_residue_tiles",
    "choose_tiles",
    "flops",
    "num_tiles",
    "padded",
]

CPU_MIN_FLOPS = 2 * 256**3
"""Default `min_flops` of a scope on the CPU engine: below it native takes over."""

CUDA_MIN_FLOPS = 2 * 1024**3
"""The same on a GPU, where a product pays for launches and copies."""

INT8_K_BLOCK = 1 << 17
"""Longest inner length whose INT8 products fit int32: k 127^2 is below 2^31."""

TILE_ROWS, TILE_COLUMNS = 128, 256
"""Entries of a residue tile."""

GROUP_ROWS = TILE_ROWS // 2
"""Rows of a tile's two groups: Hopper's kernel takes two or three at a time."""

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


# ---- The CUDA engine ----

_ALIGNMENT = 16
_PRODUCT_BYTES = 1 << 30
_PANEL_BYTES = 64 << 20
_GOOD_TILE = 1024
_GOOD_K = 4096
_SMALLEST_TILE = 64
_MOST_MATRICES = 1 << 15
"""Matrices of one strided batch: cuBLAS takes grids of less than 2^16."""


def padded(size: int, to: int = _ALIGNMENT) -> int:
    """Return a size rounded up, by default to what the matrix units want.

    Parameters
    ----------
    size : int
        Lines or k.
    to : int, optional
        Multiple to round to.

    Returns
    -------
    int
        The least multiple that is not smaller.
    """
    return -(-size // to) * to


@dataclass(frozen=True)
class CudaTiles:
    """How a product is cut on a GPU.  Another cut gives the same bits.

    Attributes
    ----------
    batch, m, n, k : int
        Matrices, rows, columns and inner indices of one tile.
    inner : int
        All of k.
    num_planes : int
        INT8 products per tile.
    host : bool
        Whether operands and result pass through panels on the device.
    fused : bool
        Whether residue products leave the matrix unit as bytes, in residue tiles.
    products : int
        INT8 products of a modulus: 7 of half the size by the Strassen-Winograd scheme.
    symmetric : bool
        Whether B is A^T: one operand, and the tiles on and above the diagonal.
    sums_bytes : int
        Bytes of all products of one entry, where these are not int32 of each plane.
    parts : int
        Words that an entry of an operand or of the result has.
    word : int
        Bytes of one.
    """

    batch: int
    m: int
    n: int
    k: int
    inner: int
    num_planes: int
    host: bool
    fused: bool = False
    products: int = 1
    symmetric: bool = False
    sums_bytes: int = 0
    parts: int = 1
    word: int = 8

    @property
    def entry_bytes(self) -> int:
        """Bytes of all products of one entry, where they are not fused."""
        return self.sums_bytes or 4 * self.num_planes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of planes, products and panels of one tile."""
        m, n, k = padded(self.m), padded(self.n), padded(self.k)
        if self.fused:
            # The products of a certificate's plane are int32; one of them at most.
            tiles = padded(m, 2 * TILE_ROWS) * padded(n, 2 * TILE_COLUMNS)
            lines = m + n
            if self.symmetric:
                tiles, lines = tiles // 2 + 2 * TILE_ROWS * n, m
            planes = self.num_planes * (lines * k + tiles) + 4 * self.parts * m * n
            if self.products > 1:
                # Seven operands of a quarter of the size, of 32 more lines and k.
                planes = planes * self.products // 4 + 128 * self.num_planes * (
                    m + n + 2 * k
                )
        else:
            planes = self.num_planes * (m + n) * k + self.entry_bytes * m * n
        panels = 0
        if self.host:
            # Two of each operand and three results, so that copies and kernels overlap.
            entries = 2 * (self.m + self.n) * self.inner + 3 * self.m * self.n
            panels = self.word * self.parts * entries
        return self.batch * (planes + panels)


def _half(size: int) -> int:
    return padded(-(-size // 2))


@functools.lru_cache(maxsize=1024)
def choose_cuda_tiles(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    num_planes: int,
    budget: int,
    host: bool = False,
    sums_bytes: int = 0,
    exact_k: int | None = None,
    parts: int = 1,
    word: int = 8,
) -> CudaTiles:
    """Return the tiles of a product on a GPU that fit a budget.

    Parameters
    ----------
    batch, m, n, k : int
        The product: `batch` times (m, k) by (k, n).
    num_planes : int
        INT8 planes of each operand.
    budget : int
        Bytes of device memory.
    host : bool, optional
        Whether operands and result are in host memory.
    sums_bytes : int, optional
        As in `CudaTiles`.
    exact_k : int, optional
        Longest inner length of a tile; by default `INT8_K_BLOCK`.
    parts, word : int, optional
        As in `CudaTiles`.

    Returns
    -------
    CudaTiles
        All of m where possible, so that A's planes are made once.  Never below one
        line in any direction, whatever the budget.
    """
    # The plane of a certificate of complex operands is twice as long.
    deep = min(k, exact_k or INT8_K_BLOCK // parts)
    tiles = CudaTiles(
        1,
        m,
        n,
        deep,
        k,
        num_planes,
        host,
        sums_bytes=sums_bytes,
        parts=parts,
        word=word,
    )
    most = _PRODUCT_BYTES
    if sums_bytes:
        # Panels as wide as those of planes are long: A's are read again for each.
        most = max(most, num_planes * (m + n) * deep)
    while tiles.entry_bytes * tiles.m * tiles.n > most:
        if tiles.n > _GOOD_TILE or tiles.n >= tiles.m:
            tiles = replace(tiles, n=_half(tiles.n))
        else:
            tiles = replace(tiles, m=_half(tiles.m))
    if host:
        # A few panels, so that copies and kernels overlap.
        panel = word * parts * k * n
        while tiles.n > _GOOD_TILE and 4 * tiles.n > n and panel > _PANEL_BYTES:
            tiles = replace(tiles, n=_half(tiles.n))
    floors = ((_GOOD_TILE, _GOOD_K), (_SMALLEST_TILE, _SMALLEST_TILE), (1, _ALIGNMENT))
    for smallest, smallest_k in floors:
        while tiles.workspace_bytes > budget:
            if tiles.n > smallest and (tiles.n >= tiles.m or tiles.m <= smallest):
                tiles = replace(tiles, n=max(smallest, -(-tiles.n // 2)))
            elif tiles.m > smallest:
                tiles = replace(tiles, m=max(smallest, -(-tiles.m // 2)))
            elif tiles.k > smallest_k:
                tiles = replace(tiles, k=max(smallest_k, _half(tiles.k)))
            else:
                break
    return _with_batch(tiles, batch, (m, n, k), budget)


_ROWS_TO_REMAKE = (8192, 4096, 2048, 1024)
"""Rows of a tile where A's planes do not fit as a whole: they are made once for every
panel of columns, which is wide therefore."""

_WINOGRAD_SIZE = 6144
"""m, n and k from which seven half-size products are faster than the eight that they
replace: what is more work for planes and reconstruction is made good."""


@functools.lru_cache(maxsize=1024)
def choose_residue_tiles(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    num_planes: int,
    budget: int,
    host: bool = False,
    winograd: bool = True,
    symmetric: bool = False,
    parts: int = 1,
    word: int = 8,
) -> CudaTiles | None:
    """Return the tiles of a product on a GPU that makes residue tiles.

    Parameters
    ----------
    batch, m, n, k : int
        The product: `batch` times (m, k) by (k, n).
    num_planes : int
        INT8 planes of each operand.
    budget : int
        Bytes of device memory.
    host : bool, optional
        Whether operands and result are in host memory.
    winograd : bool, optional
        Whether a tile may take the Strassen-Winograd scheme.
    symmetric : bool, optional
        Whether B is A^T, on the device.
    parts, word : int, optional
        As in `CudaTiles`.

    Returns
    -------
    CudaTiles or None
        None where all of k does not fit a tile, which residue tiles ask for.
    """
    if k > INT8_K_BLOCK // parts:
        return None
    if symmetric and m > 1:
        tiles = CudaTiles(
            1, m, m, k, k, num_planes, host, True, symmetric=True, word=word
        )
        if tiles.workspace_bytes <= budget:
            return _with_batch(tiles, batch, (m, n, k), budget)
    large = min(m, n, k) >= _WINOGRAD_SIZE and winograd
    for products in (7, 1) if large else (1,):
        least = _WINOGRAD_SIZE if products > 1 else 1
        for rows in (m, *(x for x in _ROWS_TO_REMAKE if least <= x < m)):
            tiles = CudaTiles(
                1,
                rows,
                n,
                k,
                k,
                num_planes,
                host,
                True,
                products,
                parts=parts,
                word=word,
            )
            tiles = _narrowed(tiles, budget)
            if tiles.workspace_bytes <= budget and tiles.n >= min(n, least):
                return _with_batch(tiles, batch, (m, n, k), budget)
    return None


def _narrowed(tiles: CudaTiles, budget: int) -> CudaTiles:
    """Return tiles with panels of columns that keep to the limits, if any do."""
    n = tiles.n
    count = -(-tiles.num_planes * tiles.m * n // _PRODUCT_BYTES)
    if tiles.host:
        # A few panels, so that copies and kernels overlap.
        panels = tiles.word * tiles.parts * tiles.k * n // _PANEL_BYTES
        count = max(count, min(4, -(-n // _GOOD_TILE), panels))
    while count * _GOOD_TILE < 2 * n:
        width = min(n, padded(-(-n // max(count, 1)), 2 * TILE_COLUMNS))
        tiles = replace(tiles, n=width)
        if tiles.workspace_bytes <= budget:
            break
        count = max(count, 1) + 1
    return tiles


def _with_batch(
    tiles: CudaTiles, batch: int, size: tuple[int, int, int], budget: int
) -> CudaTiles:
    """Return tiles with as many matrices as there is room for, where they are whole."""
    if (tiles.m, tiles.n, tiles.k) != size or tiles.products > 1:
        return tiles
    room = min(budget, _PRODUCT_BYTES) // tiles.workspace_bytes
    most = _MOST_MATRICES // tiles.num_planes
    return replace(tiles, batch=max(1, min(batch, room, most)))


def num_tiles(size: tuple[int, int, int, int], tiles: Tiles | CudaTiles) -> int:
    """Return the number of tiles that a product is cut to.

    Parameters
    ----------
    size : tuple of int
        Batch, m, n, k; all at least 1.
    tiles : Tiles or CudaTiles
        Of an engine.

    Returns
    -------
    int
        Blocks of k are none: they add to one result.
    """
    batch, m, n, _ = size
    parts = ((batch, tiles.batch), (m, tiles.m), (n, tiles.n))
    return math.prod(-(-whole // part) for whole, part in parts)
