"""Whether a product is as accurate as a conventional one is guaranteed to be.

Every entry shall satisfy |C - AB| <= k u |A||B| (plus one final rounding), whatever the
data; or theta |A||B| with another theta.  Rounding A and B to integers moves an entry
by at most

    E = 2^-(mu+1) norm1(b) + 2^-(nu+1) norm1(a) + k 2^-(mu+nu+2),

and |A||B| is at least L, the product of entries cut down to few bits.  Norms, cut
entries and their product are integers, so every machine decides alike: the comparisons
below are between float64 numbers that hold those integers exactly.

The first look takes 7 bits, one more product; on this engine it begins with every
eighth inner index, since a part of a sum of magnitudes is a lower bound as well, and
goes on to all only where that leaves an entry in doubt.  Where it does not suffice, a
second look takes 18 bits, leaves out lines that scaling did not round at all, and
entries whose terms are all zero; entries whose terms are all below that are judged by
the largest of them, from exponents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.base import Target
from np_ozaki.engines.cpu_exponents import (
    Exponents,
    Lines,
    ceilings,
    largest_exponents,
    power_of_two,
)
from np_ozaki.engines.parallel import Block

__all__ = [
    "HOPELESS",
    "Side",
    "first_look_facts",
    "missing_bits",
    "side",
    "split",
    "threshold",
    "whole_threshold",
]

Array = NDArray[np.float64]

HOPELESS = 1 << 20
"""Missing bits of a product that no number of moduli can certify."""

FIRST_LOOK_BITS = 7
SECOND_LOOK_BITS = 18

_NORM_BITS = 16
_DOUBLE_BITS = 53
_SINGLE_POWER = _DOUBLE_BITS - 24
"""log2 of u of float32 over u."""
_TILE = 512
_K_TILE = 2048
_MOST_EXPONENTS = 1 << 28
"""Terms that are looked at one by one before a product counts as hopeless."""

_STEP = 8
_LEAST_K_TO_SKIP = 128
"""From here on the first look begins with every eighth inner index."""


@dataclass
class Side:
    """One operand: what its lines contribute to E and to L.

    Attributes
    ----------
    x : (batch, m, k) or (batch, k, n) ndarray of float64
        The operand.
    bits : int
        c, to which entries are cut.
    shift : (batch, lines) ndarray of int64
        bits - 1 - e: |x| 2^shift is cut to an integer below 2^bits.
    norm : (batch, lines) ndarray of float64
        sum of ceil(|x| 2^(15 - e)): the 1-norm from above, an exact integer.
    unit : (batch, lines) ndarray of float64
        2^(57 - (mu + e)), the rounding error of an entry; 0 for lines without one.
    spare : (batch, lines) ndarray of int64
        mu + e.
    cut : ndarray of float64 or None
        Every eighth inner index of `x`, cut to 7 bits, where it was kept.
    """

    x: Array
    bits: int
    shift: Exponents
    norm: Array
    unit: Array
    spare: Exponents
    cut: Array | None = None


def _norm_sums(lines: Lines, e: Exponents) -> Array:
    """Return sum of ceil(|x| 2^(15 - e)) of each line; exact below k = 2^37."""
    shift = _NORM_BITS - 1 - e
    factors = power_of_two(lines.spread(shift))
    shrinks = bool(np.minimum.reduce(shift, axis=None, initial=0) < 0)
    axis = 2 if lines.along else 1

    def reduce(block: Block) -> Array:
        x = lines.x[block]
        t = np.empty(x.shape)
        first, second = (f if f is None else lines.part(f, block) for f in factors)
        assert first is not None  # noqa: S101 - only the second may be missing
        ceilings(x, (first, second), shrinks, t)
        total: Array = np.add.reduce(t, axis=axis)
        return total

    return lines.collect(reduce, np.add, np.float64)


def _rounded_lines(lines: Lines, exponents: Exponents) -> NDArray[np.bool_]:
    """Return which lines have an entry that scaling to integers rounds."""
    factors = power_of_two(lines.spread(exponents))
    axis = 2 if lines.along else 1

    def reduce(block: Block) -> NDArray[np.bool_]:
        scaled = lines.x[block]
        for factor in factors:
            if factor is not None:
                scaled = scaled * lines.part(factor, block)
        # A product that underflows lost bits, too: it is below one half, not 0.
        lost = (np.rint(scaled) != scaled) | ((scaled == 0) & (lines.x[block] != 0))
        return np.asarray(np.logical_or.reduce(lost, axis=axis))

    return lines.collect(reduce, np.logical_or, np.bool_)


def first_look_facts(
    lines: Lines, largest: Array, *, left: bool
) -> tuple[Array, Array | None]:
    """Return what a look at one operand, whatever its partner and moduli, finds.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    largest : (batch, lines) ndarray of float64
        From `cpu_exponents.magnitudes`.
    left : bool
        Whether this is A.

    Returns
    -------
    norm : (batch, lines) ndarray of float64
        As `Side.norm`.
    cut : ndarray of float64 or None
        As `Side.cut`; None for an inner length of which no index is left out.
    """
    e = largest_exponents(largest)
    norm, x = _norm_sums(lines, e), lines.matrix(-1 if left else -2)
    if x.shape[2 if left else 1] < _LEAST_K_TO_SKIP:
        return norm, None
    shift = FIRST_LOOK_BITS - 1 - e
    if left:
        return norm, _cut(x[:, :, ::_STEP], shift[:, :, np.newaxis])
    return norm, _cut(x[:, ::_STEP], shift[:, np.newaxis])


def side(
    lines: Lines,
    largest: Array,
    exponents: Exponents,
    *,
    left: bool,
    thorough: bool = False,
    known: tuple[Array, Array | None] | None = None,
) -> Side:
    """Return what one operand contributes to E and to L.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    largest : (batch, lines) ndarray of float64
        From `cpu_exponents.magnitudes`.
    exponents : (batch, lines) ndarray of int64
        mu or nu.
    left : bool
        Whether this is A, or both operands stacked as rows (see `split`).
    thorough : bool
        For the second look.
    known : tuple, optional
        From `first_look_facts`.

    Returns
    -------
    Side
        Exact integers and powers of two.
    """
    bits = SECOND_LOOK_BITS if thorough else FIRST_LOOK_BITS
    e = largest_exponents(largest)
    spare = exponents + e
    unit = np.ldexp(1.0, 57 - spare)
    unit[largest == 0] = 0.0
    if thorough:
        unit[~_rounded_lines(lines, exponents)] = 0.0
    x = lines.matrix(-1 if left else -2)
    norm, cut = (_norm_sums(lines, e), None) if known is None else known
    return Side(x, bits, bits - 1 - e, norm, unit, spare, cut)


def split(both: Side, m: int) -> tuple[Side, Side]:
    """Return the sides of operands that were stacked: m rows of A, then columns of B.

    Parameters
    ----------
    both : Side
        Of an array of (batch, m + n, k).
    m : int
        Rows of A.

    Returns
    -------
    tuple of Side
        Of A and of B.
    """
    above, below = (slice(None), slice(m)), (slice(None), slice(m, None))
    left, right = (
        Side(
            both.x[rows],
            both.bits,
            both.shift[rows],
            both.norm[rows],
            both.unit[rows],
            both.spare[rows],
        )
        for rows in (above, below)
    )
    return left, replace(right, x=right.x.swapaxes(1, 2))


def _cut(x: Array, shift: Exponents) -> Array:
    """Return floor(|x| 2^shift); what underflows on the way is 0 anyway."""
    result: Array = np.abs(x, dtype=np.float64)
    for factor in power_of_two(shift):
        if factor is not None:
            result *= factor
    np.floor(result, out=result)
    return result


def _nonzero(x: Array, shift: Exponents) -> Array:
    """Return 1 for every entry that is not zero."""
    return np.asarray(x != 0, dtype=np.float64)


_Plane = Callable[[Array, Exponents], Array]


def _tile_product(left: Side, right: Side, i: slice, j: slice, plane: _Plane) -> Array:
    """Return the product of the planes of rows i and columns j, exact integers."""
    total: Array = np.zeros((1, 1, 1))
    for start in range(0, left.x.shape[2], _K_TILE):
        h = slice(start, start + _K_TILE)
        total = total + np.matmul(
            plane(left.x[:, i, h], left.shift[:, i, np.newaxis]),
            plane(right.x[:, h, j], right.shift[:, np.newaxis, j]),
        )
    return np.asarray(total)


def _skipping_product(left: Side, right: Side, i: slice, j: slice) -> Array:
    """Return the product of entries cut, of every eighth inner index only."""
    total: Array = np.zeros((1, 1, 1))
    few = -(-left.x.shape[2] // _STEP)
    for start in range(0, few, _K_TILE // _STEP):
        stop = min(start + _K_TILE // _STEP, few)
        some, h = slice(start, stop), slice(_STEP * start, _STEP * stop, _STEP)
        if left.cut is None:
            a = _cut(left.x[:, i, h], left.shift[:, i, np.newaxis])
        else:
            a = left.cut[:, i, some]
        if right.cut is None:
            b = _cut(right.x[:, h, j], right.shift[:, np.newaxis, j])
        else:
            b = right.cut[:, some, j]
        total = total + np.matmul(a, b)
    return np.asarray(total)


def threshold(target: Target, k: int, bits: int) -> tuple[int, int]:
    """Return (f, s) with ``f * 2**s <= theta / u``, for the look that takes `bits`.

    Parameters
    ----------
    target : "conventional", "single" or int
        theta is k u, k 2^-24, or 2^target.
    k : int
        Inner dimension.
    bits : int
        To which entries are cut.

    Returns
    -------
    f, s : int
        k and 0 (29 for float32); where 127 f L' might exceed 2^53, or for another
        theta, 1 and an exponent.
    """
    factor, power = whole_threshold(target, k)
    if factor > 1 and 2 * (k.bit_length() + bits) + 7 > _DOUBLE_BITS:
        return 1, power + k.bit_length() - 1
    return factor, power


def whole_threshold(target: Target, k: int) -> tuple[int, int]:
    """Return (f, s) with ``f * 2**s = theta / u``, for the look at largest terms.

    Parameters
    ----------
    target : "conventional", "single" or int
        As for `threshold`.
    k : int
        Inner dimension.

    Returns
    -------
    f, s : int
    """
    if isinstance(target, str):
        return k, _SINGLE_POWER if target == "single" else 0
    return 1, target + _DOUBLE_BITS


def _tile_missing(
    left: Side, right: Side, i: slice, j: slice, target: Target
) -> Exponents:
    """Return the bits that each matrix of the batch misses in one tile."""
    k, bits = left.x.shape[2], left.bits
    factor, power = threshold(target, k, bits)
    scale = 127 * factor * 2.0 ** (power + 2 * (FIRST_LOOK_BITS - bits))
    error = left.unit[:, i, np.newaxis] * right.norm[:, np.newaxis, j]
    other = right.unit[:, np.newaxis, j] * left.norm[:, i, np.newaxis]
    np.maximum(error, other, out=error)
    if bits == FIRST_LOOK_BITS and k >= _LEAST_K_TO_SKIP:
        # A part of a sum of magnitudes is below it, too, and mostly does.
        lower = _skipping_product(left, right, i, j)
        lower *= scale
        if not (error > lower).any():
            return np.zeros(lower.shape[0], dtype=np.int64)
    lower = _tile_product(left, right, i, j, _cut)
    lower *= scale
    if bits > FIRST_LOOK_BITS:
        # Entries without a single nonzero term are exact zeros.
        error[_tile_product(left, right, i, j, _nonzero) == 0] = 0.0
    bad = error > lower
    missing = np.zeros(bad.shape[0], dtype=np.int64)
    if bad.any():
        with np.errstate(divide="ignore"):
            ratio = np.divide(error, lower, out=np.ones_like(error), where=bad)
        need = np.where(np.isfinite(ratio), np.frexp(ratio)[1], HOPELESS)
        unknown = bad & (lower == 0)
        if bits > FIRST_LOOK_BITS and unknown.any():
            index = np.nonzero(unknown)
            need[index] = _bits_by_exponents(
                left, right, i, j, index, error[index], target
            )
        missing = np.max(need, axis=(1, 2), where=bad, initial=0).astype(np.int64)
    return missing


def _bits_by_exponents(
    left: Side,
    right: Side,
    i: slice,
    j: slice,
    index: tuple[NDArray[np.intp], ...],
    error: Array,
    target: Target,
) -> Exponents:
    """Return the bits that single entries miss, with L their largest term alone.

    The largest power of two below a term is known from exponents, so this look sees
    as far as float64 does, at the price of k additions an entry.
    """
    k, whole = left.x.shape[2], index[0]
    # Each matrix by itself, whoever shares the batch.
    few = np.bincount(whole) * k <= _MOST_EXPONENTS
    chosen = few[whole]
    need = np.full(whole.size, HOPELESS)
    index = tuple(x[chosen] for x in index)
    if index[0].size:
        need[chosen] = _bits_by_largest(left, right, i, j, index, error[chosen], target)
    return need


def _bits_by_largest(
    left: Side,
    right: Side,
    i: slice,
    j: slice,
    index: tuple[NDArray[np.intp], ...],
    error: Array,
    target: Target,
) -> Exponents:
    """Return the same for entries that are few enough."""
    k, count = left.x.shape[2], error.size
    batch, rows, columns = index
    of_a = _entry_exponents(left.x[:, i])
    of_b = _entry_exponents(right.x[:, :, j].swapaxes(1, 2))
    largest = np.empty(count, dtype=np.int64)
    step = max(1, _TILE * _TILE // k)
    for start in range(0, count, step):
        part = slice(start, start + step)
        terms = of_a[batch[part] if of_a.shape[0] > 1 else 0, rows[part]]
        terms += of_b[batch[part] if of_b.shape[0] > 1 else 0, columns[part]]
        largest[part] = np.max(terms, axis=1)
    rows, columns = rows + i.start, columns + j.start

    def of_entries(x: Exponents, line: NDArray[np.intp]) -> Exponents:
        return np.asarray(x[batch if x.shape[0] > 1 else 0, line])

    # L' of the first look would be 2^(largest - e - f + 2 (7 - 1)).
    e = left.bits - 1 - of_entries(left.shift, rows)
    f = right.bits - 1 - of_entries(right.shift, columns)
    lower = largest - e - f + 2 * (FIRST_LOOK_BITS - 1)
    factor, power = whole_threshold(target, k)
    allowed = (127 * factor).bit_length() - 1 + power + lower
    need: Exponents = np.frexp(error)[1] - allowed
    # The exponent of an infinite error, which scaling "legacy" gets to, means nothing.
    need = np.where(np.isfinite(error), need, HOPELESS)
    return np.clip(need, 0, HOPELESS)


def _entry_exponents(x: Array) -> NDArray[np.int32]:
    """Return the exponents of entries, one far below all others for 0."""
    exponents = np.where(x == 0, np.int32(-HOPELESS), np.frexp(x)[1] - 1)
    return np.ascontiguousarray(exponents, dtype=np.int32)


def _deficit(side: Side, k: int) -> Exponents:
    """Return the bits that lines are short of making k 2^-(mu+nu+2) negligible.

    Below 1/512 of the other two terms of E, the factor 127 / 256 leaves room for it.
    Against 2^-(mu+1) norm1(b) it is k 2^-(nu+1) / norm1(b), with norm1(b) taken at
    least as large as the power of two below it.
    """
    growth = np.frexp(side.norm)[1] - _NORM_BITS  # of norm1 over the largest entry
    short = k.bit_length() + 9 - growth - side.spare
    short = np.where(side.unit > 0, short, 0)
    return np.asarray(np.max(short, axis=1, initial=0))


def missing_bits(left: Side, right: Side, target: Target = "conventional") -> Exponents:
    """Return how many bits more both operands of each product would need.

    Parameters
    ----------
    left, right : Side
        Of A and of B, equal batches or 1, for the same look.
    target : "conventional", "single" or int
        What is to be shown.

    Returns
    -------
    (batch,) ndarray of int64
        0 where every entry is certified; `HOPELESS` where L is 0 and no number of
        bits can tell.
    """
    k, rows, columns = left.x.shape[2], left.x.shape[1], right.x.shape[2]
    missing = np.zeros(max(left.x.shape[0], right.x.shape[0]), dtype=np.int64)
    for one in (left, right):
        np.maximum(missing, _deficit(one, k), out=missing)
    for i in range(0, rows, _TILE):
        for j in range(0, columns, _TILE):
            tile = slice(i, i + _TILE), slice(j, j + _TILE)
            np.maximum(missing, _tile_missing(left, right, *tile, target), out=missing)
    return missing
