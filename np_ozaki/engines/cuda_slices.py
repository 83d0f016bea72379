"""Scheme "slices" on a GPU: digits of the operands, their products, one rounding.

A line's slices follow each other along k, those of B in reverse order: pairs of one
weight that follow each other are one INT8 product with a longer k, and a weight's sum
is one plane.  Sums of all weights are held for a tile of the result at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki._kernels.render import Digits, Sums
from np_ozaki.engines.base import Cut, Outcome
from np_ozaki.engines.cuda_lines import (
    Facts,
    Operands,
    is_single,
    structure,
    word_bytes,
)
from np_ozaki.engines.cuda_shortage import within_memory
from np_ozaki.engines.cuda_stages import Stages, spread_bytes
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.engines.prepared import NO_KEEPER, Keeper
from np_ozaki.numerics import slicing as rules
from np_ozaki.numerics.slicing import Diagonal, Slicing
from np_ozaki.tiling import CudaTiles, choose_cuda_tiles, num_tiles, padded

__all__ = [
    "Planes",
    "cut_slices",
    "facts_and_slices",
    "multiply_by_slices",
    "planes_of",
    "recombine",
    "slice_facts",
    "slice_planes",
]

_OVERFLOW, _INVALID = 1, 2
"""Flags that kernels set."""

_STEP = 16
"""What k is padded to: blocks of it end at a multiple."""

_FACT_BYTES = 32
"""Of one line."""


@dataclass(frozen=True)
class Planes:
    """Planes of sums that a product is made of.

    Attributes
    ----------
    parts : tuple of Diagonal
        What each plane sums, the least weight first.
    wide : bool
        Whether sums are int64: those of a weight are added up from int32 ones.
    exact_k : int
        Longest block of k.
    """

    parts: tuple[Diagonal, ...]
    wide: bool
    exact_k: int

    @property
    def sums_bytes(self) -> int:
        """Bytes of all sums of one entry."""
        count = len(self.parts)
        return 8 * count + 4 if self.wide else 4 * count


def _most_pairs(k: int, bits_per_slice: int, limit: int) -> int:
    """Return how many pairs of slices of k entries sum up to a limit at most."""
    return limit // (k << 2 * (bits_per_slice - 1))


def planes_of(slicing: Slicing, k: int) -> Planes:
    """Return the planes of sums of a product.

    Parameters
    ----------
    slicing : Slicing
        What is multiplied.
    k : int
        Inner length, at least 1.

    Returns
    -------
    Planes
        A weight whose sum int32 does not hold has several planes, while that takes
        no more memory than int64 sums would.
    """
    return _planes_of(slicing, k, rules.EXACT_SUM)


@functools.lru_cache(maxsize=256)
def _planes_of(slicing: Slicing, k: int, limit: int) -> Planes:
    diagonals = slicing.diagonals
    room = _most_pairs(k, slicing.bits_per_slice, limit)
    if room:
        parts = tuple(part for each in diagonals for part in _split(each, room))
        if len(parts) <= 2 * len(diagonals):
            return Planes(parts, False, k)
    exact = limit >> 2 * (slicing.bits_per_slice - 1)
    return Planes(diagonals, True, max(exact // _STEP * _STEP, _STEP))


def _split(diagonal: Diagonal, most: int) -> Iterator[Diagonal]:
    """Yield parts of at most so many pairs."""
    runs: list[tuple[int, int]] = []
    room = most
    for first, count in diagonal.runs:
        while count:
            taken = min(count, room)
            runs.append((first, taken))
            first, count, room = first + taken, count - taken, room - taken
            if not room:
                yield Diagonal(diagonal.weight, tuple(runs))
                runs, room = [], most
    if runs:
        yield Diagonal(diagonal.weight, tuple(runs))


def _tiles(
    size: tuple[int, int, int, int],
    slicing: Slicing,
    planes: Planes,
    budget: int,
    *,
    host: bool,
    word: int = 8,
) -> CudaTiles:
    return choose_cuda_tiles(
        *size,
        num_planes=slicing.num_slices,
        budget=budget,
        host=host,
        sums_bytes=planes.sums_bytes,
        exact_k=planes.exact_k,
        word=word,
    )


def cut_slices(
    size: tuple[int, int, int, int], slicing: Slicing, budget: int, word: int = 8
) -> Cut:
    """Return how a product of operands on the host would be cut.

    Parameters
    ----------
    size : tuple of int
        Batch, m, n, k, all at least 1.
    slicing : Slicing
        What is multiplied.
    budget : int
        Bytes of device memory.
    word : int, optional
        Bytes of an entry of operands and result.

    Returns
    -------
    Cut
        With the products of slices as its products.
    """
    planes = planes_of(slicing, size[3])
    tiles = _tiles(size, slicing, planes, budget, host=True, word=word)
    count = num_tiles(size, tiles)
    return Cut(slicing.num_products, count, tiles.workspace_bytes)


# ---- Stages -------------------------------------------------------------------------


def slice_facts(stages: Stages, operand: Operands, slicing: Slicing) -> Facts:
    """Queue the kernels that find the exponents of lines.

    Parameters
    ----------
    stages : Stages
        Who queues them.
    operand : Operands
        Lines of A or of B; NaN and Inf count as 0.
    slicing : Slicing
        S and b.

    Returns
    -------
    Facts
        Without sums.
    """
    facts = stages.new_facts(operand)
    view = facts.struct(stages.device)
    stages.device.mark("slice_exponents")
    stages.by_shares("slice_exponents", "whole_largest", operand, (view,))
    _, batch, lines = facts.words.shape
    bits = slicing.num_slices * slicing.bits_per_slice
    args = (view, batch * lines, bits, slicing.largest_mantissa)
    grid = stages.flat_grid(batch * lines)
    kernels = operand.kernels()
    stages.launch("slice_exponents", "exponents_of_slices", grid, args, variant=kernels)
    return facts


def slice_planes(
    stages: Stages, operand: Operands, facts: Facts, slicing: Slicing, *, left: bool
) -> Any:
    """Queue the kernel that cuts lines to slices.

    Parameters
    ----------
    stages : Stages
        Who queues it.
    operand : Operands
        Lines of A (left) or of B, or a block of k of them.
    facts : Facts
        Exponents.
    slicing : Slicing
        S and b.
    left : bool
        Whether it is A.

    Returns
    -------
    (batch, lines, S k) device array of int8
        Lines and k padded with zeros; S slices of k entries one after the other, those
        of B in reverse order.
    """
    stages.device.mark("slices")
    planes, view, shape = _new_planes(stages, operand, slicing, left=left)
    digits = _digits(operand, slicing)
    stages.by_lines("slices", "slices", operand, facts, view, shape, digits)
    return planes


def _digits(operand: Operands, slicing: Slicing) -> Digits:
    return Digits(slicing.num_slices, slicing.bits_per_slice, operand.is_single)


def _new_planes(
    stages: Stages, operand: Operands, slicing: Slicing, *, left: bool
) -> tuple[Any, NDArray[Any], tuple[int, int, int]]:
    """Return memory for slices, the kernels' view of it, and batch, lines, k there."""
    device, count = stages.device, slicing.num_slices
    batch, lines, k = operand.x.shape
    lines, k = padded(lines), padded(k)
    planes = device.empty((batch, lines, count * k), np.int8)
    first, step = (0, k) if left else ((count - 1) * k, -k)
    view = structure(device.pointer(planes) + first, step, count * k, lines, k)
    return planes, view, (batch, lines, k)


def facts_and_slices(
    stages: Stages, operand: Operands, slicing: Slicing, *, left: bool
) -> tuple[Facts, Any]:
    """Queue the kernels that make both of all k, one for lines that are short enough.

    Parameters
    ----------
    stages : Stages
        Who queues them.
    operand : Operands
        Lines of A (left) or of B.
    slicing : Slicing
        S and b.
    left : bool
        Whether it is A.

    Returns
    -------
    facts : Facts
        As `slice_facts` returns them.
    planes : (batch, lines, S k) device array of int8
        As `slice_planes` returns them.
    """
    if not stages.fits_shared(operand):
        facts = slice_facts(stages, operand, slicing)
        return facts, slice_planes(stages, operand, facts, slicing, left=left)
    device = stages.device
    device.mark("slices")
    # All that anybody reads is written.
    facts = Facts(device.empty((4, *operand.x.shape[:2]), np.uint64))
    planes, view, (batch, lines, _) = _new_planes(stages, operand, slicing, left=left)
    bits = slicing.num_slices * slicing.bits_per_slice
    rule = bits, slicing.largest_mantissa
    stages.launch(
        "slices",
        "exponents_and_slices",
        (batch * lines,),
        (operand.struct(), facts.struct(device), *rule, view),
        variant=_digits(operand, slicing),
        shared=spread_bytes(operand.x.shape[2]),
    )
    return facts, planes


def recombine(
    stages: Stages,
    sums: Any,
    left: Operands,
    right: Operands,
    facts: tuple[Facts, Facts],
    variant: Sums,
    out: Any,
    flags: Any,
    low: Any = None,
) -> None:
    """Queue the kernel that writes C, rounded once; NaN and Inf as `reconstruct` does.

    Parameters
    ----------
    stages : Stages
        Who queues it.
    sums : (planes, batch, m, n) device array of int32 or int64
        Padding in m and n is not looked at.
    left, right : Operands
        Lines of A and of B, for NaN and Inf.
    facts : tuple of Facts
        Exponents of both.
    variant : Sums
        Of the product.
    out : (batch, m, n) device array of float64 or float32
        Any strides.
    flags : (1,) device array of int32
        Overflow and invalid are joined to it.
    low : (batch, m, n) device array of float64, optional
        Takes what the one rounding left; 0 where `out` is not finite.
    """
    device = stages.device
    device.mark("recombine")
    grid, width = stages.entry_grid(*out.shape)
    strides = (s // sums.itemsize for s in sums.strides[:3])
    args = (
        structure(device.pointer(sums), *strides),
        left.struct(),
        facts[0].struct(device),
        left.x.shape[0],
        right.struct(),
        facts[1].struct(device),
        right.x.shape[0],
        stages.result_struct(out),
        width,
        flags,
        stages.result_struct(out if low is None else low),
    )
    kernels = variant._replace(single=left.is_single, single_result=is_single(out))
    stages.launch("recombine", "recombine", grid, args, variant=kernels)


# ---- The product --------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A product or a part of its batch, or that of C^T = B^T A^T.

    Attributes
    ----------
    a, b, out : (batch, rows, columns) arrays of float64
        On the device or the host, all on one side.
    low : array of float64 or None
        Takes what the rounding to `out` left.
    slicing : Slicing
        What is multiplied.
    planes : Planes
        Of sums.
    keepers : tuple of Keeper
        Of A and of B.
    """

    a: Any
    b: Any
    out: Any
    low: Any
    slicing: Slicing
    planes: Planes
    keepers: tuple[Keeper, Keeper]

    def part(self, part: slice) -> _Job:
        """Return the job of a part of the batch."""
        of_a, of_b = (
            keeper.of(part.start, part.stop) if x.shape[0] > 1 else keeper
            for keeper, x in zip(self.keepers, (self.a, self.b), strict=True)
        )
        return replace(
            self,
            a=self.a[of_batch(part, self.a)],
            b=self.b[of_batch(part, self.b)],
            out=self.out[part],
            low=None if self.low is None else self.low[part],
            keepers=(of_a, of_b),
        )


class _Side:
    """One operand of a product, from host or device memory to slices, tile by tile."""

    def __init__(
        self, stages: Stages, job: _Job, tiles: CudaTiles, copies: Any, *, left: bool
    ) -> None:
        self.x = job.a if left else job.b.swapaxes(1, 2)
        self.operand: Operands
        self.facts: Facts
        self._stages = stages
        self._slicing = job.slicing
        self._left = left
        self._keeper = job.keepers[0 if left else 1]
        self._at_once = tiles.k >= self.x.shape[2]
        self._source = copies.source(self.x)
        self._lines: slice | None = None
        self._planes: tuple[slice, Any] | None = None

    def prefetch(self, lines: slice) -> None:
        """Start to bring a tile of lines to the device."""
        self._source.prefetch(lines)

    def enter(self, lines: slice) -> None:
        """Go on to a tile of lines."""
        if self._lines == lines:
            return
        self._lines, self._planes = lines, None
        self.operand = Operands(self._source.load(lines), self._stages.device)
        if not self._at_once:
            self.facts = slice_facts(self._stages, self.operand, self._slicing)
            return
        words, planes = self._kept_or_made(lines)
        self.facts = Facts(words)
        self._planes = slice(0, self.x.shape[2]), planes

    def _kept_or_made(self, lines: slice) -> tuple[Any, ...]:
        """Return what is kept of these lines, or made of them now."""
        batch, whole, k = self.x.shape
        of_line = self._slicing.num_slices * padded(k) + _FACT_BYTES
        if not self._keeper.has_room(batch * padded(whole) * of_line):
            return self._facts_and_planes()
        return self._keeper.value(
            self._facts_and_planes,
            "slices",
            self._slicing.num_slices,
            self._slicing.bits_per_slice,
            # The order of slices: C^T = B^T A^T has them the other way round.
            self._left,
            (lines.start, lines.stop),
            nbytes=batch * padded(lines.stop - lines.start) * of_line,
            is_operand=lines.start == 0,
        )

    def _facts_and_planes(self) -> tuple[Any, ...]:
        facts, planes = facts_and_slices(
            self._stages, self.operand, self._slicing, left=self._left
        )
        return facts.words, planes

    def _cut(self, operand: Operands, facts: Facts) -> Any:
        return slice_planes(
            self._stages, operand, facts, self._slicing, left=self._left
        )

    def planes(self, inner: slice) -> Any:
        """Return the slices of a block of k of the current tile."""
        if self._planes is None or self._planes[0] != inner:
            self._planes = None
            operand = self.operand.of(slice(None), inner)
            self._planes = inner, self._cut(operand, self.facts)
        return self._planes[1]


def multiply_by_slices(
    stages: Stages,
    a: Any,
    b: Any,
    out: Any,
    slicing: Slicing,
    workspace_bytes: int | None,
    low: Any,
    keepers: tuple[Keeper, Keeper],
) -> Outcome:
    """Write the product of scheme "slices" to `out`.

    Parameters
    ----------
    stages : Stages
        Of the engine.
    a : (batch, m, k) array of float64 or float32
        On the device or the host, any strides; k and the result are not empty.
    b : (batch, k, n) array of the same type
        On the same side, any strides; batch 1 broadcasts, as for A.
    out : (batch, m, n) array of float64 or float32
        On the same side, any strides; must not overlap an operand.
    slicing : Slicing
        S, b, pairs, accumulate.
    workspace_bytes : int or None
        Device memory for this product; None is the device's own default.
    low : (batch, m, n) array of float64 or None
        Takes what the rounding to `out` left; for accumulate "exact".
    keepers : tuple of Keeper
        Of A and of B.

    Returns
    -------
    Outcome
        As of a product by moduli.
    """
    if abs(out.strides[1]) < abs(out.strides[2]):
        # C^T = B^T A^T: results are written along the smaller stride.
        a, b, out = (x.swapaxes(1, 2) for x in (b, a, out))
        low = None if low is None else low.swapaxes(1, 2)
        slicing, keepers = slicing.turned(), keepers[::-1]
    device, k = stages.device, a.shape[2]
    planes = planes_of(slicing, k)
    job = _Job(a, b, out, low, slicing, planes, keepers)
    host = device.is_host(out)
    size = (*out.shape, k)

    word = max(word_bytes(a), word_bytes(out))

    def multiply(tiles: CudaTiles, keeps: bool) -> Outcome:
        unkept = NO_KEEPER, NO_KEEPER
        return _tiled(stages, job if keeps else replace(job, keepers=unkept), tiles)

    return within_memory(
        device,
        workspace_bytes,
        lambda budget: _tiles(size, slicing, planes, budget, host=host, word=word),
        multiply,
    )


def _tiled(stages: Stages, job: _Job, tiles: CudaTiles) -> Outcome:
    device = stages.device
    host = device.is_host(job.out)
    # On the device nobody reads what kernels join to the flags.
    flags = (device.zeros if host else device.empty)((1,), np.int32)
    count = 0
    with device.transfer() as copies:
        for part in ranges(job.out.shape[0], tiles.batch):
            count += _part(stages, job.part(part), tiles, copies, flags)
    happened = int(device.fetch(flags)[0]) if host else 0
    return Outcome(
        overflow=bool(happened & _OVERFLOW),
        invalid=bool(happened & _INVALID),
        workspace_bytes=tiles.workspace_bytes,
        tiles=count,
    )


def _part(stages: Stages, job: _Job, tiles: CudaTiles, copies: Any, flags: Any) -> int:
    """Multiply one part of a batch; return the number of tiles."""
    left = _Side(stages, job, tiles, copies, left=True)
    right = _Side(stages, job, tiles, copies, left=False)
    slicing = job.slicing
    variant = Sums(
        slicing.bits_per_slice,
        tuple(part.weight for part in job.planes.parts),
        job.planes.wide,
        slicing.accumulate,
        job.low is not None,
    )
    rows = ranges(job.out.shape[1], tiles.m)
    columns = ranges(job.out.shape[2], tiles.n)
    for number, j in enumerate(columns):
        right.enter(j)
        for i in rows:
            left.enter(i)
            tile = copies.result(job.out[:, i, j])
            rest = None if job.low is None else copies.result(job.low[:, i, j])
            sums = _sums(stages, job, tiles, left, right)
            facts = left.facts, right.facts
            recombine(
                stages,
                sums,
                left.operand,
                right.operand,
                facts,
                variant,
                tile,
                flags,
                rest,
            )
            del sums
            copies.deliver(tile, job.out[:, i, j])
            if rest is not None:
                copies.deliver(rest, job.low[:, i, j])
        if number + 1 < len(columns):
            right.prefetch(columns[number + 1])
    return len(rows) * len(columns)


def _sums(
    stages: Stages, job: _Job, tiles: CudaTiles, left: _Side, right: _Side
) -> Any:
    """Return the sums of a tile, (planes, batch, m, n)."""
    device, planes, slicing = stages.device, job.planes, job.slicing
    inner = ranges(left.x.shape[2], tiles.k)
    total: Any = None
    a: Any = None
    b: Any = None
    for h in inner:
        # The last block's memory is free before the next one's is taken.
        a = b = folded = None
        a, b = left.planes(h), right.planes(h)
        folded = _folded(a, b)
        if total is None:
            shape = folded[0].shape[0], folded[0].shape[1], folded[1].shape[1]
            make = device.zeros if planes.wide else device.empty
            kind = np.int64 if planes.wide else np.int32
            total = make((len(planes.parts), *shape), kind)
            scratch = device.empty(shape, np.int32) if planes.wide else None
        device.mark("slice_gemm")
        if planes.wide:
            size, bits = h.stop - h.start, slicing.bits_per_slice
            most = max(1, _most_pairs(size, bits, rules.EXACT_SUM))
            for target, whole in zip(total, planes.parts, strict=True):
                for part in _split(whole, most):
                    _multiply(stages, *folded, slicing, part, scratch)
                    stages.widen(scratch, target)
        else:
            for target, part in zip(total, planes.parts, strict=True):
                add = h is not inner[0]
                _multiply(stages, *folded, slicing, part, target, add=add)
    return stages.per_matrix(total, a[np.newaxis], b[np.newaxis])


def _folded(a: Any, b: Any) -> tuple[Any, Any]:
    """Return slices as stacks of matrices, those that serve a whole batch as one.

    The other operand's lines of all matrices are the lines of one then.
    """
    if b.shape[0] == 1 < a.shape[0]:
        a = a.reshape(1, -1, a.shape[2])
    elif a.shape[0] == 1 < b.shape[0]:
        b = b.reshape(1, -1, b.shape[2])
    return a, b


def _multiply(
    stages: Stages,
    a: Any,
    b: Any,
    slicing: Slicing,
    part: Diagonal,
    out: Any,
    *,
    add: bool = False,
) -> None:
    """Queue the products of runs of pairs, whose sum `out` takes."""
    k = a.shape[2] // slicing.num_slices
    for number, (first, count) in enumerate(part.runs):
        # Slice j of B is the (S - 1 - j)th there, j = 2 S - 2 - weight - first.
        partner = first + part.weight + 1 - slicing.num_slices
        stages.device.gemm(
            a[:, :, first * k : (first + count) * k],
            b[:, :, partner * k : (partner + count) * k],
            out,
            accumulate=add or number > 0,
        )
