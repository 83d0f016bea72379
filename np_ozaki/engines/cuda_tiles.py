"""Residues of one byte in the order of matrix units' accumulators, and C from them.

A tile is 128 rows by 256 columns of one matrix of the batch.  Of tile T, plane l
(modulus) times products plus q (product), the residue of

    row     64 g + 16 (t // 32) + t % 32 // 4 + 8 (b // 2 % 2)
    column  32 c + 8 (b // 4) + 2 (t % 4) + b % 2

lies at byte ((((T planes + plane) 2 + g) 8 + c) 128 + t) 16 + b: group of rows g, chunk
of columns c, thread t, byte b.  T counts tiles of a batch's matrices row by row.  With
seven products they are those of matrices of half the size, as a level of Strassen's
algorithm multiplies them in Winograd's form.  Of a symmetric result only squares of two
tiles on the diagonal and above it are there, row by row, the upper tile first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from np_ozaki._kernels.render import TILE_STEP, Variant
from np_ozaki.engines.cuda_lines import (
    Facts,
    Operands,
    PlaneStack,
    is_single,
    result_fields,
    structure,
)
from np_ozaki.numerics.moduli import MODULI, Family, moduli_of
from np_ozaki.tiling import GROUP_ROWS, TILE_COLUMNS, TILE_ROWS, padded

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = [
    "WORK",
    "TileShape",
    "first_modulus",
    "queue_residue_tiles",
    "reconstruct_tiles",
    "residue_tiles_bytes",
    "tile_shape",
]

_PLANE_BYTES = TILE_ROWS * TILE_COLUMNS
_GROUPS = 2
_PATCHES = 32
"""Parts of a group that a warp takes at a time."""

_LANES = 32
_MOST_WARPS = 4
_STEP_BYTES = 128
_STEPS_IN_MEMORY = {(1, 1): 4, (7, 1): 1, (1, 2): 2}
"""Steps of a warp in shared memory, by products and parts."""

_MIRROR_ENTRIES = 32 * (16 + 2)
_ENOUGH_BLOCKS = 4096

_TALL_STEPS = 48
"""Steps along k from which blocks take three groups of rows: then what they save of
copies, at the power limit, is more than what their fewer registers cost (37.1 instead
of 38.5 ms at n = 12288, by products of k = 6144; the same at 8192, k = 4096)."""

WORK = np.dtype(
    [
        ("tiles", np.uint64),
        ("lower", np.uint64),
        ("lower_batch_stride", np.int64),
        ("lower_row_stride", np.int64),
        ("num_planes", np.int32),
        ("all_planes", np.int32),
        ("products", np.int32),
        ("batch", np.int32),
        ("batch_a", np.int32),
        ("batch_b", np.int32),
        ("rows", np.int32),
        ("columns", np.int32),
        ("steps", np.int32),
        ("groups", np.int32),
        ("symmetric", np.int32),
        ("first_modulus", np.int32),
        ("block_groups", np.int32),
        ("unused", np.int32),
    ]
)
"""`Work` of tile_order.cuh, field by field."""


class TileShape(NamedTuple):
    """How a result is cut to tiles.

    Attributes
    ----------
    rows, columns : int
        Of the matrices that are cut: all of C, or its upper left quarter.
    tile_rows, tile_columns : int
        Tiles down and across.
    tiles : int
        Tiles of one matrix.
    """

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    tiles: int


def tile_shape(
    m: int, n: int, products: int = 1, *, symmetric: bool = False
) -> TileShape:
    """Return how a result is cut to tiles.

    Parameters
    ----------
    m, n : int
        Rows and columns of C.
    products : int, optional
        1, or 7 of matrices of half the size.
    symmetric : bool, optional
        Whether tiles lie on and above the diagonal only; m = n, and one product.

    Returns
    -------
    TileShape
        Halves are padded as operands are.
    """
    rows, columns = m, n
    if products != 1:
        rows, columns = (padded(-(-size // 2)) for size in (m, n))
    down, across = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    tiles = across * (across + 1) if symmetric else down * across
    return TileShape(rows, columns, down, across, tiles)


def residue_tiles_bytes(
    batch: int,
    m: int,
    n: int,
    residues: int,
    products: int = 1,
    *,
    symmetric: bool = False,
) -> int:
    """Return the size of the residues of a product.

    Parameters
    ----------
    batch, m, n : int
        Shape of C.
    residues : int
        Of an entry: N, or 2 N of a complex one.
    products : int, optional
        1 or 7.
    symmetric : bool, optional
        As for `tile_shape`.

    Returns
    -------
    int
        Bytes.
    """
    tiles = tile_shape(m, n, products, symmetric=symmetric).tiles
    return batch * tiles * residues * products * _PLANE_BYTES


def first_modulus(num_moduli: int, family: Family) -> int:
    """Return where the moduli of a product begin in the kernel's tables.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    family : {"real", "complex"}
        Whose moduli.

    Returns
    -------
    int
        Those of the real table come first.
    """
    moduli = moduli_of(num_moduli, family)
    return 0 if moduli[0] == MODULI[0] else len(MODULI)


def queue_residue_tiles(
    stages: Stages,
    left: Any,
    right: Any,
    tiles: Any,
    lower: Any,
    shape: tuple[int, int, int],
    num_planes: int,
    products: int = 1,
    *,
    first_modulus: int = 0,
    symmetric: bool = False,
) -> None:
    """Queue products of planes, as residues in tiles.

    Parameters
    ----------
    stages : Stages
        Where the kernel is queued.
    left : (all_planes, batch, lines, k) device array of int8
        Lines and k padded with zeros; batch 1 broadcasts; k at most 2^17.
    right : (all_planes, batch, lines, k) device array of int8
        Likewise.
    tiles : device array of uint8
        Takes the residues of the first `num_planes` planes.
    lower : (batch, rows, columns) device array of int32 or None
        Takes the products of the last plane, if that is one more.
    shape : tuple of int
        batch, rows, columns of the products.
    num_planes : int
        Planes of moduli.
    products : int, optional
        How many planes belong to one modulus.
    first_modulus : int, optional
        From `first_modulus`.
    symmetric : bool, optional
        Whether `right` is `left`: squares of tiles below the diagonal are left out, and
        `lower` is mirrored.
    """
    device = stages.device
    batch, rows, columns = shape
    all_planes, k = left.shape[0], left.shape[3]
    steps = -(-k // TILE_STEP)
    groups = _block_groups(steps, symmetric=symmetric)
    pairs = -(-rows // (2 * groups * GROUP_ROWS))
    across = pairs + 1 if symmetric else -(-columns // TILE_COLUMNS)
    items = batch * pairs * across // (2 if symmetric else 1) * all_planes
    work = np.zeros(1, WORK)
    work[0] = (
        device.pointer(tiles),
        0 if lower is None else device.pointer(lower),
        *((0, 0) if lower is None else (s // 4 for s in lower.strides[:2])),
        num_planes,
        all_planes,
        products,
        batch,
        left.shape[1],
        right.shape[1],
        rows,
        columns,
        steps,
        device.tile_clusters(),
        symmetric,
        first_modulus,
        groups,
        0,
    )
    device.mark("residue_gemm")
    device.residue_tiles(
        _stack(stages, left),
        _stack(stages, right),
        work,
        2 * min(device.tile_clusters(), items),
    )


def _block_groups(steps: int, *, symmetric: bool) -> int:
    """Return the groups of rows that a block takes: 3 of long products, or 2."""
    return 3 if steps >= _TALL_STEPS and not symmetric else 2


def _stack(stages: Stages, planes: Any) -> PlaneStack:
    count, batch, lines, k = planes.shape
    return PlaneStack(stages.device.pointer(planes), count * batch, lines, k)


def reconstruct_tiles(
    stages: Stages,
    residues: Any,
    left: Operands,
    right: Operands,
    facts: tuple[Facts, Facts],
    variant: Variant,
    out: Any,
    flags: Any,
    low: Any = None,
    remainders: Any = None,
    products: int = 1,
    *,
    symmetric: bool = False,
) -> None:
    """Write C, rounded once, to `out`; NaN and Inf where IEEE products have them.

    Parameters
    ----------
    stages : Stages
        Where the kernel is queued.
    residues : device array of uint8
        `residue_tiles_bytes` of them, from a multiple of 16 bytes on.  Residues are
        of any kind that fits int8; those of entries outside are not looked at.
    left, right : Operands
        Lines of A and of B, for NaN and Inf.
    facts : tuple of Facts
        Exponents of both.
    variant : Variant
        Of the product.
    out : (batch, m, n) device array
        Any strides; entries are rounded to its type.
    flags : (1,) device array of int32
        Overflow and invalid are joined to it.
    low : (batch, m, n) device array of float64, optional
        Takes what the one rounding left; 0 where `out` is not finite.  Not beside
        float32.
    remainders : (batch, m, n) device array of uint64, optional
        Takes C' modulo the prime of `checksum`.
    products : int, optional
        1, or 7 of matrices of half the size.
    symmetric : bool, optional
        Whether there are residues on and above the diagonal only, for C = A A^T.
    """
    stages.device.mark("reconstruct")
    device, (batch, m, n) = stages.device, out.shape
    shape = tile_shape(m, n, products, symmetric=symmetric)
    groups = _GROUPS * batch * shape.tiles
    if not groups:
        return
    planes = variant.planes * products
    steps = _STEPS_IN_MEMORY[products, variant.parts]
    bytes_a_warp = steps * planes * _STEP_BYTES
    if symmetric:
        bytes_a_warp += _MIRROR_ENTRIES * out.itemsize
    warps = max(1, min(_MOST_WARPS, device.shared_bytes() // bytes_a_warp))
    blocks = min(_PATCHES // warps, -(-_ENOUGH_BLOCKS // groups))
    results = (out, *(out if x is None else x for x in (low, remainders)))
    tiles = structure(
        device.pointer(residues),
        shape.tile_rows,
        shape.tile_columns,
        shape.rows,
        shape.columns,
        blocks,
        *left.fields(),
        *facts[0].fields(device),
        left.x.shape[0],
        *right.fields(),
        *facts[1].fields(device),
        right.x.shape[0],
        *(field for x in results for field in result_fields(device, x)),
        device.pointer(flags),
    )
    # What else a variant tells is no matter here, and would have more texts compiled.
    variant = Variant(
        variant.num_moduli,
        "norm",
        cut_plane=False,
        with_low=low is not None,
        with_check=remainders is not None,
        products=products,
        symmetric=symmetric,
        family=variant.family,
        parts=variant.parts,
        single=left.is_single,
        single_result=is_single(out),
    )
    device.launch(
        "reconstruct_tiles",
        variant,
        "reconstruct_tiles",
        (blocks * groups,),
        _LANES * warps,
        (tiles,),
        shared=warps * bytes_a_warp,
    )
