"""Scheme "slices" of the CPU engine: exact products of digits by FP64 BLAS.

The digits of A follow each other along k, those of B in reverse order.  So all pairs of
one weight, or a run of them, are one product with a longer k; and its entries, below
2^53, are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.engines import workspace
from np_ozaki.engines.base import Cut, Outcome
from np_ozaki.engines.cpu_exponents import Exponents, power_of_two
from np_ozaki.engines.cpu_limbs import (
    absorb,
    carry,
    rest_of,
    sum_terms,
    unscale,
    unscale_to_odd,
)
from np_ozaki.engines.cpu_operand import finite_lines, keeper_of
from np_ozaki.engines.parallel import Block, blocks, of_batch, ranges, run_blocks
from np_ozaki.engines.prepared import NO_KEEPER, Keeper, Pair
from np_ozaki.engines.residue_system import LIMB_BITS
from np_ozaki.engines.special_values import set_special_values
from np_ozaki.numerics.formats import SINGLE, format_of
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.tiling import Tiles, choose_tiles, num_tiles

__all__ = ["cut_slices", "digits", "multiply_by_slices", "slice_exponents"]

Array = NDArray[np.float64]

_EXACT_BITS = 53
_MOST_BITS = 33
"""Bits that sums over k and pairs may have beyond those of one product."""


def slice_exponents(largest: Array, slicing: Slicing) -> Exponents:
    """Return mu of lines, or nu.

    Parameters
    ----------
    largest : (batch, lines) ndarray of float64
        Magnitude of the largest entry, finite.
    slicing : Slicing
        S and b.

    Returns
    -------
    (batch, lines) ndarray of int64
        0 for lines of zeros.
    """
    fraction, e = np.frexp(largest)
    mantissa = np.ldexp(fraction, _EXACT_BITS)
    mu = slicing.bits_per_slice * slicing.num_slices - 1 - e.astype(np.int64)
    # Exact: F has 53 bits at most.
    mu -= mantissa > float(slicing.largest_mantissa)
    return np.where(largest > 0, mu, 0)


def digits(
    x: Array, exponents: Exponents, slicing: Slicing, out: Array, threads: int
) -> None:
    """Write the digits of round(x 2^exponents).

    Parameters
    ----------
    x : (batch, rows, columns) ndarray of float64
        Finite, any strides.
    exponents : ndarray of int64
        Broadcasts against `x`.
    slicing : Slicing
        S and b.
    out : (num_slices, batch, rows, columns) ndarray of float64
        Most significant digit first; integers from -2^(b-1) to 2^(b-1) - 1.
    threads : int
        For the pass over `x`.
    """
    factors = [f for f in power_of_two(exponents) if f is not None]
    base = 2.0**slicing.bits_per_slice

    def work(share: Sequence[Block]) -> None:
        for block in share:
            rest = x[block] * factors[0][_of(block, factors[0])]
            for factor in factors[1:]:
                rest *= factor[_of(block, factor)]
            np.rint(rest, out=rest)
            for t in range(slicing.num_slices - 1, -1, -1):
                # Floor and comparison are exact, whatever the size; an addition of
                # half a base would not be.
                upper = np.floor(rest * (1 / base))
                rest -= upper * base
                high = rest >= base / 2
                upper += high
                rest -= base * high
                out[(t, *block)] = rest
                rest = upper

    run_blocks(work, blocks(x.shape), threads)


def _of(block: Block, x: NDArray[np.generic]) -> Block:
    """Return the part of a block that an array, which broadcasts, has."""
    batch, rows, columns = (
        part if size > 1 else slice(None)
        for part, size in zip(block, x.shape, strict=True)
    )
    return batch, rows, columns


@dataclass(frozen=True)
class _Side:
    """One operand: finite entries, exponents, and the planes if they are kept.

    `planes` is (batch, m, S, k) of A, (batch, S, k, n) of B, the latter with the
    slices in reverse order.
    """

    x: Array
    exponents: Exponents
    special: bool
    left: bool
    planes: Array | None = None

    def of(self, part: slice) -> _Side:
        """Return a part of the batch."""
        chosen = of_batch(part, self.x)
        planes = None if self.planes is None else self.planes[chosen]
        exponents = self.exponents[chosen]
        return _Side(self.x[chosen], exponents, self.special, self.left, planes)

    def made(
        self,
        lines: slice,
        inner: slice,
        slicing: Slicing,
        threads: int,
        take: Callable[[tuple[int, ...]], Array] = np.empty,
    ) -> Array:
        """Return the planes of a tile, sliced now where they are not kept."""
        if self.planes is not None:
            part = self.planes[:, lines, :, inner], self.planes[:, :, inner, lines]
            return part[0 if self.left else 1]
        s = slicing.num_slices
        if self.left:
            x = self.x[:, lines, inner]
            planes = take((x.shape[0], x.shape[1], s, x.shape[2]))
            exponents = self.exponents[:, lines, np.newaxis]
            digits(x, exponents, slicing, np.moveaxis(planes, 2, 0), threads)
        else:
            x = self.x[:, inner, lines]
            planes = take((x.shape[0], s, x.shape[1], x.shape[2]))
            exponents = self.exponents[:, np.newaxis, lines]
            digits(x, exponents, slicing, np.moveaxis(planes, 1, 0)[::-1], threads)
        return planes


def _side(
    x: Array, slicing: Slicing, keeper: Keeper, threads: int, *, left: bool
) -> _Side:
    """Return what is made of one operand alone."""
    axis = -1 if left else -2
    finite, largest, special = keeper.value(
        lambda: finite_lines(x, axis, threads), "lines"
    )
    side = _Side(
        x if finite is None else finite,
        slice_exponents(largest, slicing),
        special,
        left,
    )
    size = 8 * slicing.num_slices * x.size
    if not keeper.has_room(size):
        return side
    everything = slice(None)

    def make() -> tuple[Array]:
        planes = side.made(everything, everything, slicing, threads)
        planes.flags.writeable = False
        return (planes,)

    key = slicing.num_slices, slicing.bits_per_slice
    (planes,) = keeper.value(make, "slices", key, nbytes=size, is_operand=True)
    return _Side(side.x, side.exponents, special, left, planes)


def _tiles(
    size: tuple[int, int, int, int], slicing: Slicing, budget: int | None = None
) -> Tiles:
    planes = max(slicing.num_slices, len(slicing.diagonals))
    pairs = max(diagonal.num_pairs for diagonal in slicing.diagonals)
    bits = _EXACT_BITS - 2 * (slicing.bits_per_slice - 1)
    return choose_tiles(
        *size, num_planes=planes, exact_k=(1 << bits) // pairs, budget=budget
    )


def cut_slices(
    size: tuple[int, int, int, int], slicing: Slicing, workspace_bytes: int | None
) -> Cut:
    """Return how a product of (batch, m, n, k) would be cut.

    Parameters
    ----------
    size : tuple of int
        Batch, m, n, k.
    slicing : Slicing
        What is multiplied.
    workspace_bytes : int or None
        As for `multiply_by_slices`.

    Returns
    -------
    Cut
        With the products of slices as its products.
    """
    if not all(size):
        return Cut(0, 0, 0)
    limit = workspace_bytes or workspace.DEFAULT_BYTES
    wanted = _tiles(size, slicing).workspace_bytes
    tiles = _tiles(size, slicing, min(wanted, limit))
    count = num_tiles(size, tiles)
    return Cut(slicing.num_products, count, tiles.workspace_bytes)


def multiply_by_slices(
    a: Array,
    b: Array,
    out: Array,
    slicing: Slicing,
    *,
    threads: int,
    workspace_bytes: int | None = None,
    low: Array | None = None,
    prepared: Pair,
) -> Outcome:
    """Write the product of scheme "slices" to `out`.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Any strides; batch 1 broadcasts; k and the result are not empty.
    b : (batch, k, n) ndarray of float64
        Any strides; batch 1 broadcasts.
    out : (batch, m, n) ndarray of float64 or float32
        Any strides; must not overlap an operand.
    slicing : Slicing
        S, b, pairs, accumulate.
    threads : int
        For the elementwise stages.
    workspace_bytes : int, optional
        Limit for all products that run in this process; None is 1 GiB.
    low : (batch, m, n) ndarray of float64, optional
        Takes what the rounding to `out` left; for accumulate "exact".
    prepared : tuple of Prepared or None
        Of A and of B: what is made of them is looked for there, and kept.

    Returns
    -------
    Outcome
        Exceptions that IEEE arithmetic would have flagged, and the tiling.
    """
    size = (*out.shape, a.shape[2])
    wanted = _tiles(size, slicing).workspace_bytes
    limit = workspace_bytes or workspace.DEFAULT_BYTES
    with (
        np.errstate(all="ignore"),
        hooks.unrouted(),
        workspace.reserve(wanted, limit) as space,
    ):
        left, right = (
            _side(
                x,
                slicing,
                NO_KEEPER if kept is None else keeper_of(x, kept, limit, left=is_left),
                threads,
                left=is_left,
            )
            for x, kept, is_left in zip((a, b), prepared, (True, False), strict=True)
        )
        tiles = _tiles(size, slicing, space.granted)
        count = 0
        for part in ranges(out.shape[0], tiles.batch):
            job = _Job(
                left.of(part), right.of(part), out[part], slicing, tiles, space, threads
            )
            count += job.run(None if low is None else low[part])
        overflow = bool(np.isinf(out).any())
        invalid = False
        if left.special or right.special:
            invalid = set_special_values(a, b, out)
            if low is not None:
                low[~np.isfinite(out)] = 0.0
    return Outcome(overflow, invalid, tiles.workspace_bytes, count)


@dataclass(frozen=True)
class _Job:
    """A part of a batch."""

    left: _Side
    right: _Side
    out: Array
    slicing: Slicing
    tiles: Tiles
    space: workspace.Workspace
    threads: int

    def run(self, low: Array | None) -> int:
        """Multiply tile by tile; return their number."""
        count = 0
        for i, j, sums in self._sums():
            recombine(
                sums,
                self.left.exponents[:, i, np.newaxis],
                self.right.exponents[:, np.newaxis, j],
                self.slicing,
                self.out[:, i, j],
                self.threads,
                None if low is None else low[:, i, j],
            )
            count += 1
        return count

    def _sums(self) -> Iterator[tuple[slice, slice, Array]]:
        """Yield (rows, columns, sums of all weights) of every tile."""
        tiles, space = self.tiles, self.space
        batch, m, n = self.out.shape
        inner = ranges(self.left.x.shape[2], tiles.k)
        for j in ranges(n, tiles.n):
            kept: Array | None = None
            for i in ranges(m, tiles.m):
                shape = (batch, i.stop - i.start, j.stop - j.start)
                total = space.take((len(self.slicing.diagonals), *shape))
                for h in inner:
                    if kept is None or len(inner) > 1:
                        space.give(kept)
                        kept = None
                        kept = self._planes(self.right, j, h)
                    planes = self._planes(self.left, i, h)
                    self._multiply(planes, kept, total, first=h is inner[0])
                    space.give(planes)
                yield i, j, total
                space.give(total)
            space.give(kept)

    def _planes(self, side: _Side, lines: slice, inner: slice) -> Array:
        return side.made(lines, inner, self.slicing, self.threads, self.space.take)

    def _multiply(
        self, left: Array, right: Array, total: Array, *, first: bool
    ) -> None:
        """Multiply all runs of pairs, each as one product."""
        s, k = self.slicing.num_slices, left.shape[3]
        left = left.reshape(*left.shape[:2], s * k)
        right = right.reshape(right.shape[0], s * k, right.shape[3])
        for (weight, runs), target in zip(self.slicing.diagonals, total, strict=True):
            for number, (i, pairs) in enumerate(runs):
                # Slice j of B is the (S - 1 - j)th there.
                partner = i + weight + 1 - s
                x = left[:, :, i * k : (i + pairs) * k]
                y = right[:, partner * k : (partner + pairs) * k]
                if first and not number:
                    np.matmul(x, y, out=target)
                else:
                    target += np.matmul(x, y)


def recombine(
    sums: Array,
    rows: Exponents,
    columns: Exponents,
    slicing: Slicing,
    out: Array,
    threads: int,
    low: Array | None = None,
) -> None:
    """Write C from the sums of all weights.

    Parameters
    ----------
    sums : (weights, batch, m, n) ndarray of float64
        Exact, the least weight first.
    rows, columns : (batch, m, 1) and (batch, 1, n) ndarray of int64
        mu and nu; batch 1 broadcasts.
    slicing : Slicing
        Of the product.
    out : (batch, m, n) ndarray of float64 or float32
        Any strides.
    threads : int
        For the pass over the entries.
    low : (batch, m, n) ndarray of float64, optional
        Takes what the rounding to `out` left.
    """
    b = slicing.bits_per_slice
    weights = [b * diagonal.weight for diagonal in slicing.diagonals]
    count = -(-(weights[-1] + 2 * b + _MOST_BITS) // LIMB_BITS) + 2
    unscaled = unscale_to_odd if format_of(out.dtype) is SINGLE else unscale

    def work(share: Sequence[Block]) -> None:
        for block in share:
            parts = sums[(slice(None), *block)]
            exponents = rows[_of(block, rows)] + columns[_of(block, columns)]
            exponents = np.broadcast_to(exponents, parts.shape[1:])
            if slicing.accumulate == "float64":
                total = np.zeros(parts.shape[1:])
                for part, w in zip(parts, weights, strict=True):
                    total += part * 2.0**w
                out[block] = unscaled(total, np.zeros_like(total), -exponents)
                continue
            limbs = [np.zeros(parts.shape[1:]) for _ in range(count)]
            for part, w in zip(parts, weights, strict=True):
                first, bits = divmod(w, LIMB_BITS)
                absorb(limbs[first : first + 3], part * 2.0**bits)
            carry(limbs)
            kept = [] if low is None else [limb.copy() for limb in limbs]
            out[block] = unscaled(*sum_terms(limbs, None, 0), -exponents)
            if low is not None:
                low[block] = rest_of(kept, None, 0, out[block], exponents)

    run_blocks(work, blocks(out.shape), threads)
