"""Products of the CUDA engine and their operands, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from np_ozaki._kernels.render import Variant
from np_ozaki.engines.base import Exponents, Scheme, Target
from np_ozaki.engines.cuda_hopper_lines import (
    facts_and_planes,
    facts_and_winograd_planes,
    facts_only,
    winograd_planes,
)
from np_ozaki.engines.cuda_lines import Facts, Operands
from np_ozaki.engines.cuda_stages import Stages, gained, plane_count
from np_ozaki.engines.parallel import of_batch
from np_ozaki.engines.prepared import Keeper
from np_ozaki.tiling import CudaTiles, padded

__all__ = ["Job", "Side", "enter_both"]

_FACT_BYTES = 32
"""Of one line."""


@dataclass(frozen=True)
class Job:
    """A product or a part of its batch, and how it is to be multiplied.

    Operands, results, line shifts and keepers are those of the contract, or of
    C^T = B^T A^T.

    Attributes
    ----------
    a, b, out : (batch, rows, columns) arrays
        Real or complex, on the device or the host, all on one side; operands are of one
        type, and the result may be of single precision where they are not.
    low : array or None
        Takes what the rounding to `out` left, which is of double precision then.
    line_shifts : tuple of (batch, lines) ndarray of int64, or None
        As for `Engine.matmul`.
    scheme : Scheme
        Moduli, scaling, shift.
    target : "conventional", "single", int or None
        What a certificate shall show.
    check : bool
        Whether C' is held to checksums.
    keepers : tuple of Keeper
        Of A and of B.
    conjugated : tuple of bool
        Whether conj(A) takes the place of A, conj(B) that of B.
    is_turned : bool
        Whether this is the job of C^T.
    """

    a: Any
    b: Any
    out: Any
    low: Any
    line_shifts: tuple[Exponents, Exponents] | None
    scheme: Scheme
    target: Target | None
    check: bool
    keepers: tuple[Keeper, Keeper]
    conjugated: tuple[bool, bool] = (False, False)
    is_turned: bool = False

    @property
    def variant(self) -> Variant:
        """The kernels' variant, but for the residues of an operand that gains bits."""
        scheme, certified = self.scheme, self.target is not None
        return Variant(
            scheme.num_moduli,
            scheme.scaling,
            certified,
            family=scheme.family,
            parts=1 + self.is_complex,
        )

    @property
    def is_complex(self) -> bool:
        """Whether operands are complex ones, not embedded in real ones."""
        return bool(self.out.dtype.kind == "c")

    def turned(self) -> Job:
        """Return the job of C^T."""
        a, b, out = (x.swapaxes(1, 2) for x in (self.b, self.a, self.out))
        low = None if self.low is None else self.low.swapaxes(1, 2)
        shifts = None if self.line_shifts is None else self.line_shifts[::-1]
        scheme = replace(self.scheme, shift=-self.scheme.shift)
        return replace(
            self,
            a=a,
            b=b,
            out=out,
            low=low,
            line_shifts=shifts,
            scheme=scheme,
            keepers=self.keepers[::-1],
            conjugated=self.conjugated[::-1],
            is_turned=not self.is_turned,
        )

    def part(self, part: slice) -> Job:
        """Return the job of a part of the batch."""
        shifts = self.line_shifts
        if shifts is not None:
            shifts = shifts[0][part], shifts[1][part]
        return replace(
            self,
            a=self.a[of_batch(part, self.a)],
            b=self.b[of_batch(part, self.b)],
            out=self.out[part],
            low=None if self.low is None else self.low[part],
            line_shifts=shifts,
            keepers=(
                _keeper_of_part(self.keepers[0], self.a, part),
                _keeper_of_part(self.keepers[1], self.b, part),
            ),
        )

    def with_whole_batches(self) -> Job:
        """Return the job with operands that do not broadcast."""
        batch = self.out.shape[0]
        a, b = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (self.a, self.b))
        return replace(self, a=a, b=b)


def _keeper_of_part(keeper: Keeper, x: Any, part: slice) -> Keeper:
    return keeper.of(part.start, part.stop) if x.shape[0] > 1 else keeper


class Side:
    """One operand of a product, from host or device memory to planes, tile by tile.

    What is made for a tile of lines is kept until another tile is entered: `facts`,
    and `moved`, the facts with line shifts that the last stage sees.

    Parameters
    ----------
    engine : Stages
        Who makes them.
    job : Job
        The product.
    tiles : CudaTiles
        How the product is cut.
    copies : Copies
        How operands come from the host.
    left : bool
        Whether this is A.
    """

    def __init__(
        self, engine: Stages, job: Job, tiles: CudaTiles, copies: Any, *, left: bool
    ) -> None:
        self.engine = engine
        self.x = job.a if left else job.b.swapaxes(1, 2)
        self.scheme = job.scheme
        self.variant = engine.operand_variant(
            job.variant, job.scheme, Operands(self.x, engine.device), left=left
        )
        self.left = left
        self.known: Facts | None = None
        shifts = job.line_shifts
        self._shifts = None if shifts is None else shifts[0 if left else 1]
        self._of_product = job.variant
        self._conjugated = job.conjugated[0 if left else 1]
        self._tiles = tiles
        self._keeper = job.keepers[0 if left else 1]
        self._source = copies.source(self.x)
        self._lines: slice | None = None
        self._planes: tuple[slice, Sequence[Any]] | None = None
        self._whole: Any = None
        self.operand: Operands
        self.facts: Facts
        self.moved: Facts

    def whole(self) -> Operands:
        """Return all lines on the device."""
        if self._whole is None:
            self._whole = self._source.load(slice(0, self.x.shape[1]))
        return self._operands(self._whole)

    def _operands(self, x: Any) -> Operands:
        return Operands(x, self.engine.device, self._conjugated)

    def prefetch(self, lines: slice) -> None:
        """Start to bring a tile of lines to the device."""
        if self._whole is None:
            self._source.prefetch(lines)

    def enter(self, lines: slice) -> None:
        """Go on to a tile of lines."""
        if self._lines == lines:
            return
        self._load(lines)
        self._make(lines)

    def _make(self, lines: slice) -> None:
        """Make facts of the lines that were loaded, and planes that come along."""
        k = self.x.shape[2]
        at_once = self.known is None and k <= self._tiles.k
        if at_once and (self._has_room() or self._made_at_once()):
            words, *planes = self._kept_or_made(self._facts_and_planes, "planes")
            self._take(Facts(words), planes)
        elif self.known is not None:
            single = self.known.words.shape[1] == 1
            self._take(self.known.part(lines) if single else self.known)
        else:
            (words,) = self._kept_or_made(self._facts, "facts")
            self._take(Facts(words))

    def _load(self, lines: slice) -> None:
        self._planes = None
        self._lines = lines
        if self._whole is not None:
            self.operand = self.whole().of(lines)
        else:
            self.operand = self._operands(self._source.load(lines))

    def _take(self, facts: Facts, planes: Sequence[Any] | None = None) -> None:
        self.facts = self.moved = facts
        if planes is not None:
            self._planes = (slice(0, self.x.shape[2]), planes)
        if self._shifts is not None and self._lines is not None:
            shifts = self._shifts[:, self._lines]
            self.moved = self.engine.moved_facts(self.operand, facts, shifts)

    def _joins(self) -> bool:
        """Return whether facts and planes may come from a launch for both operands."""
        return (
            self.known is None
            and self._tiles.fused
            and self.engine.device.tile_clusters() > 0
            and not self._has_room()
        )

    def _made_at_once(self) -> bool:
        """Return whether facts and planes come from the same kernel."""
        engine = self.engine
        return engine.device.tile_clusters() > 0 or engine.fits_shared(self.operand)

    def _has_room(self) -> bool:
        """Return whether planes of all lines would be kept."""
        return self._keeper.has_room(self._bytes(self.x.shape[1]))

    def _bytes(self, lines: int) -> int:
        """Return the bytes of facts and planes of so many lines."""
        batch, _, k = self.x.shape
        variant = self.variant
        planes = plane_count(variant)
        if variant.cut_plane and variant.parts == 2:
            planes += 4 if self.left else 2
        if self._tiles.products > 1:
            planes = planes * self._tiles.products // 4
        return int(batch * padded(lines) * (planes * padded(k) + _FACT_BYTES))

    def _kept_or_made(
        self, make: Callable[[], tuple[Any, ...]], name: str
    ) -> tuple[Any, ...]:
        """Return what is kept of the current lines, or made of them now."""
        if name == "planes" and not self._has_room():
            return make()
        lines, scheme = self._lines, self.scheme
        assert lines is not None  # noqa: S101 - told to the type checker
        nbytes = self._bytes(self.operand.x.shape[1]) if name == "planes" else 0
        return self._keeper.value(
            make,
            name,
            self.variant,
            self._conjugated,
            gained(scheme, self.left),
            self._tiles.products,
            (lines.start, lines.stop),
            nbytes=nbytes,
            is_operand=lines.start == 0,
        )

    def _pair(self, side: Any) -> tuple[Any, Any]:
        """Return this operand in its place of a pair, and None in the other."""
        return (side, None) if self.left else (None, side)

    def _of_pair(self, pair: tuple[Any, Any] | None) -> Any:
        return None if pair is None else pair[0 if self.left else 1]

    def _facts(self) -> tuple[Any]:
        """Return the words of the facts of the current lines."""
        engine, facts = self.engine, None
        if engine.device.tile_clusters() > 0:
            pair = self._pair(self.operand)
            found = facts_only(engine, *pair, self.scheme, self._of_product)
            facts = self._of_pair(found)
        if facts is None:
            facts = engine.line_facts(self.operand, self.scheme, left=self.left)
        return (facts.words,)

    def _facts_and_planes(self) -> tuple[Any, ...]:
        """Return the same and planes of all k, as `operand_planes` returns them."""
        engine, scheme = self.engine, self.scheme
        if engine.device.tile_clusters() > 0:
            pair = self._pair(self.operand)
            make = self._of_clusters()
            found = make(engine, *pair, scheme, self._of_product)
            if found is not None:
                facts, *planes = self._of_pair(found)
                return facts.words, *(x for x in planes if x is not None)
        if self._tiles.products > 1:
            (words,) = self._facts()
            return words, *self._winograd(Facts(words))
        if engine.fits_shared(self.operand):
            facts, planes = engine.fused(
                self.operand, self.variant, scheme, left=self.left
            )
            return facts.words, planes, *self._cuts(self.operand, facts)
        (words,) = self._facts()
        return words, *self._residues(self.operand, Facts(words))

    def _residues(self, operand: Operands, facts: Facts) -> tuple[Any, ...]:
        """Return planes, and of complex operands that of a certificate behind them."""
        planes = self.engine.residues(operand, facts, self.variant)
        return planes, *self._cuts(operand, facts)

    def _cuts(self, operand: Operands, facts: Facts) -> tuple[Any, ...]:
        if not (operand.is_complex and self.variant.cut_plane):
            return ()
        return (self.engine.cuts(operand, facts, left=self.left),)

    def _of_clusters(self) -> Callable[..., Any]:
        """Return what makes facts and planes in one launch, for one side or both."""
        if self._tiles.products > 1:
            return facts_and_winograd_planes
        return facts_and_planes

    def _winograd(self, facts: Facts) -> tuple[Any, ...]:
        pair = self._pair((self.operand, facts))
        found = winograd_planes(self.engine, *pair, self.scheme, self._of_product)
        planes, cuts = self._of_pair(found)
        return (planes,) if cuts is None else (planes, cuts)

    def planes(self, inner: slice) -> Any:
        """Return the planes of a block of k of the current tile."""
        return self.operand_planes(inner)[0]

    def operand_planes(self, inner: slice) -> Sequence[Any]:
        """Return the same, and the plane of a certificate where it is by itself.

        That is so of Winograd's factors and of complex operands.
        """
        if self._planes is None or self._planes[0] != inner:
            self._planes = None
            if self._tiles.products > 1:
                self._planes = (inner, self._winograd(self.facts))
            else:
                operand = self.operand.of(slice(None), inner)
                self._planes = (inner, self._residues(operand, self.facts))
        return self._planes[1]


def enter_both(left: Side, right: Side, rows: slice, columns: slice) -> None:
    """Go on to a tile of both operands, in one launch where that is possible.

    Parameters
    ----------
    left, right : Side
        Of A and of B.
    rows, columns : slice
        Their lines.
    """
    if left is right or not (left._joins() and right._joins()):
        left.enter(rows)
        right.enter(columns)
        return
    left._load(rows)
    right._load(columns)
    make = left._of_clusters()
    found = make(
        left.engine, left.operand, right.operand, left.scheme, left._of_product
    )
    if found is None:
        left._make(rows)
        right._make(columns)
        return
    for side, (facts, *planes) in zip((left, right), found, strict=True):
        side._take(facts, [x for x in planes if x is not None])
