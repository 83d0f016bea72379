"""Facts and planes of both operands in one launch: compute capability 9.0 on.

Clusters of blocks keep lines in shared memory, so that every entry is read once.
Structures here mirror those of lines_in_clusters.cu, winograd_planes.cu and
winograd_in_clusters.cu.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from np_ozaki._kernels.render import Variant, is_wide
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cuda_lines import Facts, Operands, structure, word_bytes
from np_ozaki.engines.cuda_stages import plane_count
from np_ozaki.tiling import padded

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = [
    "Shape",
    "cluster_shape",
    "facts_and_planes",
    "facts_and_winograd_planes",
    "facts_only",
    "has_winograd",
    "winograd_planes",
    "winograd_shape",
]

FactsAndPlanes = tuple[Facts, Any] | tuple[Facts, Any, Any]
WinogradPlanes = tuple[Any, Any]
FactsAndWinogradPlanes = tuple[Facts, Any, Any]

_TILE = 8192
"""Words of a block, of float64 64 KiB: a multiprocessor then has room for three
blocks."""

_TILE_BYTES = 1 << 16
"""Of float32, a block takes more words where otherwise it would take fewer lines."""

_LINE_BITS = {1: (3, 2, 1), 2: (2, 1, 0)}
"""Lines of a cluster, by parts of entries: eight neighbours, read across, are 64 bytes,
and so are four complex ones."""

_HALVED = range(513, 8193)
"""Lengths of lines of which a block that makes planes takes half as many entries, of
four lines: more blocks are at different things at a time (66 instead of 70 us for both
operands at n = 2048, 262 instead of 275 at 4096; at 1024 a product takes 64.7 instead
of 67.3 us)."""

_CLUSTERS = (1, 2, 4, 8)
_STEP = 512
"""Entries that the eight warps of a block take at a time."""

_WORD = 8
_SLOT_BYTES = (2 * 2 * 8 * 8 + 2) * _WORD
"""Two words of each warp of a cluster, twice."""

_BANK_BYTES = 128
"""Of all banks, in a row."""

_ALONG, _WIDE, _ACROSS = range(3)
_WIDE_BYTES = 16
_LARGEST_GRID = 2**31 - 1

_PRODUCTS = 7
_QUADRANT_LINES, _QUADRANT_DEPTH = 8, 128
_QUADRANT_BITS = 2, 1
"""Lines of a quadrant in a cluster, as powers of two.  The second is for lines along
which entries are neighbours: of others, it would read 16 bytes at a time, which took
longer than two reads of more (11.7 instead of 9.4 ms for both operands at n = 16384).
"""

_SCALING_BYTES = 8 * 12
"""Of the eight lines that a block has at most."""

_NOTHING = 0


class Shape(NamedTuple):
    """How a cluster of blocks holds lines.

    Attributes
    ----------
    line_bits : int
        A cluster holds so many lines, as a power of two.
    chunk : int
        Entries of each line in one block.
    blocks : int
        Blocks of a cluster, which share k.
    parts : int
        Rows that a line has in shared memory: 2 for complex entries.
    word : int
        Bytes of a part of an entry.
    """

    line_bits: int
    chunk: int
    blocks: int
    parts: int = 1
    word: int = _WORD

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: its tile, and what its warps find out."""
        row_bits = self.line_bits + self.parts - 1
        return _tile_bytes(row_bits, self.chunk, self.word) + _SLOT_BYTES


def _tile_bytes(line_bits: int, chunk: int, word: int) -> int:
    """Return the bytes of so many rows, the next one some banks further each."""
    banks = _BANK_BYTES // word
    return word * (chunk + (banks >> line_bits) << line_bits)


def _tile_sizes(word: int) -> list[int]:
    """Return the most words of a block, those that are tried first before others."""
    return sorted({_TILE, _TILE_BYTES // word})


@functools.cache
def cluster_shape(
    k: int, *, with_planes: bool, parts: int = 1, word: int = _WORD
) -> Shape | None:
    """Return the smallest cluster that holds lines of some length.

    Parameters
    ----------
    k : int
        Entries of a line.
    with_planes : bool
        Whether planes are made, besides facts.
    parts : int, optional
        2 for complex entries.
    word : int, optional
        Bytes of a part of an entry.

    Returns
    -------
    Shape or None
        As many lines at a time as possible; None where not even two, or one of complex
        entries, would fit, or none is needed.
    """
    halved = with_planes and parts == 1 and k in _HALVED
    sizes = [_TILE >> 1] if halved else _tile_sizes(word)
    for line_bits, most in itertools.product(_LINE_BITS[parts][halved:], sizes):
        for blocks in _CLUSTERS:
            chunk = padded(-(-k // blocks), _STEP >> line_bits)
            if 0 < parts * chunk << line_bits <= most:
                return Shape(line_bits, chunk, blocks, parts, word)
    return None


def facts_and_planes(
    stages: Stages,
    left: Operands | None,
    right: Operands | None,
    scheme: Scheme,
    variant: Variant,
) -> tuple[FactsAndPlanes | None, FactsAndPlanes | None] | None:
    """Return facts and residues of the operands of a product, each entry read once.

    Parameters
    ----------
    stages : Stages
        Of a device with clusters.
    left, right : Operands or None
        Lines of A and of B; None for an operand that is known already.
    scheme : Scheme
        Of the product.
    variant : Variant
        Of the product, with the plane of a certificate or without.

    Returns
    -------
    tuple of (Facts, planes) or None
        For A and for B, as `Stages.fused` returns them, and after the planes of complex
        operands what `Stages.cuts` returns, or None; None in place of an operand that
        was not given.  None alone where lines are too long, or there are none.
    """
    return _of_lines(stages, (left, right), scheme, variant, with_planes=True)


def facts_only(
    stages: Stages,
    left: Operands | None,
    right: Operands | None,
    scheme: Scheme,
    variant: Variant,
) -> tuple[Facts | None, Facts | None] | None:
    """Return what `facts_and_planes` does, without planes.

    Parameters
    ----------
    stages : Stages
        Of a device with clusters.
    left, right : Operands or None
        As for `facts_and_planes`.
    scheme : Scheme
        Of the product.
    variant : Variant
        Whose kernels are used: one that the product needs anyway.

    Returns
    -------
    tuple of Facts or None
        For A and for B; None alone where lines are too long, or there are none.
    """
    found = _of_lines(stages, (left, right), scheme, variant, with_planes=False)
    if found is None:
        return None
    first, second = (None if side is None else side[0] for side in found)
    return first, second


def _of_lines(
    stages: Stages,
    operands: tuple[Operands | None, Operands | None],
    scheme: Scheme,
    variant: Variant,
    *,
    with_planes: bool,
) -> tuple[FactsAndPlanes | None, FactsAndPlanes | None] | None:
    """Queue one launch, or one for each operand where their kernels differ."""
    given = [x for x in operands if x is not None]
    if not given or not all(x.x.size for x in given):
        return None
    longest = max(x.x.shape[2] for x in given)
    shape = cluster_shape(
        longest,
        with_planes=with_planes,
        parts=variant.parts,
        word=word_bytes(given[0].x),
    )
    if shape is None or shape.shared_bytes > stages.device.shared_bytes():
        return None
    sides = [
        None if x is None else _Side(stages, x, scheme, variant, shape, i == 0)
        for i, x in enumerate(operands)
    ]
    if sum(side.blocks for side in sides if side is not None) > _LARGEST_GRID:
        return None
    stages.device.mark("residues" if with_planes else "scaling_exponents")
    launches: dict[Variant, list[_Side]] = {}
    for side in sides:
        if side is not None:
            side.allocate(with_planes)
            kernels = side.variant
            if not with_planes:
                kernels = kernels._replace(lent_bits=0)
            launches.setdefault(kernels, []).append(side)
    for kernels, group in launches.items():
        fields = [side.fields() for side in group]
        stages.launch(
            "lines_in_clusters",
            f"lines_in_cluster_of_{shape.blocks}",
            (sum(side.blocks for side in group),),
            (
                structure(
                    *fields[0],
                    *fields[-1],
                    group[0].blocks,
                    shape.chunk,
                    shape.line_bits,
                ),
            ),
            variant=kernels,
            shared=shape.shared_bytes,
        )
    first, second = (None if s is None else s.made() for s in sides)
    return first, second


class _Side:
    """One operand of a launch.

    Attributes
    ----------
    variant : Variant
        Of the kernels that make its planes.
    blocks : int
        Blocks that work on it.
    facts, planes, cuts
        Results, once `allocate` was called.
    """

    def __init__(
        self,
        stages: Stages,
        operand: Operands,
        scheme: Scheme,
        variant: Variant,
        shape: Shape,
        left: bool,
    ) -> None:
        self.variant = stages.operand_variant(variant, scheme, operand, left=left)
        self._stages = stages
        self._operand = operand
        self._left = left
        self._rule = stages.rule(scheme, left)
        batch, lines, _ = operand.x.shape
        self._groups = padded(lines) >> shape.line_bits
        self.blocks = batch * self._groups * shape.blocks
        self.facts: Facts
        self.planes: Any = None
        self.cuts: Any = None

    def allocate(self, with_planes: bool) -> None:
        """Make room for the results, which nothing needs to be in at first."""
        batch, lines, _ = self._operand.x.shape
        device = self._stages.device
        self.facts = Facts(device.empty((4, batch, lines), np.uint64))
        if with_planes:
            count = plane_count(self.variant)
            self.planes = self._stages.new_planes(self._operand, count)
            if self._operand.is_complex and self.variant.cut_plane:
                self.cuts = self._stages.new_cuts(self._operand, left=self._left)

    def made(self) -> FactsAndPlanes:
        """Return the results."""
        if self._operand.is_complex:
            return self.facts, self.planes, self.cuts
        return self.facts, self.planes

    def fields(self) -> tuple[int, ...]:
        """Return the fields of the kernels' structure."""
        device, x = self._stages.device, self._operand
        more: tuple[int, ...] = ()
        if x.is_complex:
            more = (_NOTHING,) * 5
            if self.cuts is not None:
                more = self._stages.cut_fields(self.cuts, left=self._left)
        return (
            *x.fields(),
            *self.facts.fields(device),
            *map(int, self._rule.view(np.int64)),
            *_planes_fields(self._stages, self.planes),
            _how_copied(self._stages, x),
            self._groups,
            *more,
        )


def _planes_fields(stages: Stages, planes: Any) -> tuple[int, ...]:
    """Return the fields of (num_planes, ..., lines, k) planes, or of none."""
    if planes is None:
        return (_NOTHING,) * 4
    stride = math.prod(planes.shape[1:])
    return (stages.device.pointer(planes), stride, *planes.shape[-2:])


def _how_copied(stages: Stages, operand: Operands) -> int:
    """Return the way in which lines go to shared memory."""
    if not operand.along:
        return _ACROSS
    if operand.is_complex:
        return _ALONG
    pointer, batch_stride, line_stride, k_stride, lines, _ = operand.fields()
    strides = (
        *((batch_stride,) if operand.x.shape[0] > 1 else ()),
        *((line_stride,) if lines > 1 else ()),
    )
    words = _WIDE_BYTES // word_bytes(operand.x)
    aligned = pointer % _WIDE_BYTES == 0 and all(s % words == 0 for s in strides)
    return _WIDE if k_stride == 1 and aligned else _ALONG


# ---- Winograd's sums of quadrants ----


def has_winograd(scheme: Scheme) -> bool:
    """Return whether `winograd_planes` makes planes for a scheme.

    Parameters
    ----------
    scheme : Scheme
        Of a product.

    Returns
    -------
    bool
        Where scaled integers are short enough that sums of four fit 64 bits.
    """
    return not scheme.shift and not is_wide(
        scheme.num_moduli, scheme.scaling, family=scheme.family
    )


def winograd_planes(
    stages: Stages,
    left: tuple[Operands, Facts] | None,
    right: tuple[Operands, Facts] | None,
    scheme: Scheme,
    variant: Variant,
) -> tuple[WinogradPlanes | None, WinogradPlanes | None] | None:
    """Return the residues of the factors of Winograd's seven products.

    Lines and k are halved, and the halves padded with zeros.  With quadrants X00, X01,
    X10 and X11 of an operand, first by lines, the factors are, for A,
    ``X00, X01, S4, X11, S1, S2, S3`` with ``S1 = X10 + X11``, ``S2 = S1 - X00``,
    ``S3 = X00 - X10`` and ``S4 = X01 - S2``; for B, whose lines are columns,
    ``X00, X01, X11, T4, T1, T2, T3`` with ``T1 = X10 - X00``, ``T2 = X11 - T1``,
    ``T3 = X11 - X10`` and ``T4 = T2 - X01``.

    Parameters
    ----------
    stages : Stages
        Of a device with clusters.
    left, right : (Operands, Facts) or None
        Lines of A and of B and their exponents; one matrix each.
    scheme : Scheme
        Of the product.
    variant : Variant
        Of the product, with the plane of a certificate or without.

    Returns
    -------
    tuple of (planes, cuts) or None
        For A and for B: (num_moduli, 7, lines, k) int8, and the plane of a certificate
        as `Stages.residues` has it, (1, 1, lines, k), or None.  None alone where scaled
        integers are too long for sums of 64 bits, or where there is not one matrix.
    """
    given = [x for x, _ in filter(None, (left, right))]
    variants = _winograd_variants(stages, given, (left, right), scheme, variant)
    if variants is None:
        return None
    halves = [
        None if x is None else _Quadrants(stages, *x, variant, i == 0)
        for i, x in enumerate((left, right))
    ]
    stages.device.mark("residues")
    queued = [x for x in halves if x is not None]
    sides = [
        (x.fields(), x.lines // _QUADRANT_LINES * -(-x.k // _QUADRANT_DEPTH))
        for x in queued
    ]
    _launch_winograd(
        stages,
        ("winograd_planes", "winograd_planes"),
        list(zip(variants, sides, strict=True)),
        (),
        _tile_bytes(3, 4 * _QUADRANT_DEPTH, word_bytes(given[0].x)),
    )
    first, second = (None if x is None else (x.planes, x.cuts) for x in halves)
    return first, second


@functools.cache
def winograd_shape(k: int, *, along: bool, word: int = _WORD) -> Shape | None:
    """Return the smallest cluster that holds lines of both halves.

    Parameters
    ----------
    k : int
        Entries of a line.
    along : bool
        Whether the entries of a line are neighbours in memory: then fewer lines will
        do.
    word : int, optional
        Bytes of an entry.

    Returns
    -------
    Shape or None
        Lines and chunk are those of a quadrant: a block has four of them.  None where
        they do not fit (k > 8192, or 16384 along the lines; of float32 twice that), or
        none is needed.
    """
    half = padded(-(-k // 2))
    bits = _QUADRANT_BITS[: 2 if along else 1]
    for line_bits, most in itertools.product(bits, _tile_sizes(word)):
        for blocks in _CLUSTERS:
            chunk = padded(-(-half // blocks), _STEP >> line_bits)
            if 0 < 4 * chunk << line_bits <= most:
                return Shape(line_bits, chunk, blocks, word=word)
    return None


def facts_and_winograd_planes(
    stages: Stages,
    left: Operands | None,
    right: Operands | None,
    scheme: Scheme,
    variant: Variant,
) -> tuple[FactsAndWinogradPlanes | None, FactsAndWinogradPlanes | None] | None:
    """Return what `facts_only` and `winograd_planes` do, each entry read once.

    Parameters
    ----------
    stages : Stages
        Of a device with clusters.
    left, right : Operands or None
        Lines of A and of B; one matrix each.
    scheme : Scheme
        Of the product.
    variant : Variant
        Of the product, with the plane of a certificate or without.

    Returns
    -------
    tuple of (Facts, planes, cuts) or None
        For A and for B.  None alone where `winograd_planes` returns it, or where lines
        are too long.
    """
    given = [x for x in (left, right) if x is not None]
    variants = _winograd_variants(stages, given, (left, right), scheme, variant)
    if variants is None:
        return None
    word = word_bytes(given[0].x)
    shape = winograd_shape(
        max(x.x.shape[2] for x in given),
        along=all(x.along for x in given),
        word=word,
    )
    if shape is None:
        return None
    # Of each line a block has two chunks, one after the other.
    shared = 2 * _tile_bytes(shape.line_bits, 2 * shape.chunk, word)
    shared += _SLOT_BYTES + _SCALING_BYTES
    if shared > stages.device.shared_bytes():
        return None
    halves = []
    for i, x in enumerate((left, right)):
        if x is not None:
            facts = Facts(stages.device.empty((4, 1, x.x.shape[1]), np.uint64))
            halves.append(_Quadrants(stages, x, facts, variant, i == 0))
    stages.device.mark("residues")
    sides = [
        (
            (*x.fields(), *x.rule(scheme)),
            (x.lines >> shape.line_bits) * shape.blocks,
        )
        for x in halves
    ]
    _launch_winograd(
        stages,
        ("winograd_in_clusters", f"winograd_in_cluster_of_{shape.blocks}"),
        list(zip(variants, sides, strict=True)),
        (shape.chunk, shape.line_bits),
        shared,
    )
    made = iter([(x.facts, x.planes, x.cuts) for x in halves])
    first, second = (None if x is None else next(made) for x in (left, right))
    return first, second


def _winograd_variants(
    stages: Stages,
    given: Sequence[Operands],
    sides: tuple[object | None, object | None],
    scheme: Scheme,
    variant: Variant,
) -> list[Variant] | None:
    """Return the kernels of the given sides, or None where there are none."""
    if not given or not all(x.x.shape[0] == 1 and x.x.size for x in given):
        return None
    variants = [
        stages.operand_variant(variant, scheme, given[0], left=i == 0)
        for i, side in enumerate(sides)
        if side is not None
    ]
    if any(is_wide(v.num_moduli, v.scaling, v.lent_bits, v.family) for v in variants):
        return None
    return variants


def _launch_winograd(
    stages: Stages,
    names: tuple[str, str],
    sides: Sequence[tuple[Variant, tuple[tuple[int, ...], int]]],
    fields: tuple[int, ...],
    shared: int,
) -> None:
    """Queue one launch, or one for each operand where their kernels differ.

    `sides` holds fields and blocks of each operand, `fields` what follows for both.
    """
    launches: dict[Variant, list[tuple[tuple[int, ...], int]]] = {}
    for kernels, side in sides:
        launches.setdefault(kernels, []).append(side)
    for kernels, group in launches.items():
        work = structure(*group[0][0], *group[-1][0], group[0][1], *fields)
        blocks = sum(blocks for _, blocks in group)
        stages.launch(*names, (blocks,), (work,), variant=kernels, shared=shared)


class _Quadrants:
    """One operand, its facts, and where its sums go.

    Attributes
    ----------
    facts, planes, cuts
        As `facts_and_winograd_planes` returns them.
    lines, k : int
        Of a quadrant.
    """

    def __init__(
        self,
        stages: Stages,
        operand: Operands,
        facts: Facts,
        variant: Variant,
        left: bool,
    ) -> None:
        _, lines, k = operand.x.shape
        self._stages = stages
        self._operand = operand
        self._left = left
        self.facts = facts
        self.lines, self.k = (padded(-(-size // 2)) for size in (lines, k))
        shape = (variant.num_moduli, _PRODUCTS, self.lines, self.k)
        self.planes = stages.device.empty(shape, np.int8)
        self.cuts = stages.new_planes(operand, 1) if variant.cut_plane else None

    def fields(self) -> tuple[int, ...]:
        """Return the fields of the kernels' structure."""
        device = self._stages.device
        return (
            *self._operand.fields(),
            *self.facts.fields(device),
            *_planes_fields(self._stages, self.planes),
            math.prod(self.planes.shape[2:]),
            *_planes_fields(self._stages, self.cuts),
            _how_copied(self._stages, self._operand),
            int(self._left),
        )

    def rule(self, scheme: Scheme) -> tuple[int, ...]:
        """Return the fields of the rule of exponents."""
        return tuple(map(int, self._stages.rule(scheme, self._left).view(np.int64)))
