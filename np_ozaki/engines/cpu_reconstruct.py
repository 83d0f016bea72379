"""Stage 4: from residue products to float64, with one rounding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_checksum import Tally
from np_ozaki.engines.cpu_exponents import Exponents
from np_ozaki.engines.cpu_residues import reduce_balanced
from np_ozaki.engines.parallel import (
    BLOCK_ELEMENTS,
    Block,
    blocks,
    of_batch,
    run_blocks,
)
from np_ozaki.engines.residue_system import (
    HEAD_SPLIT_BITS,
    LIMB_BITS,
    ResidueSystem,
    balanced_limbs,
)
from np_ozaki.engines.rounding import add_term, two_sum
from np_ozaki.numerics.moduli import modulus_product, product_bound

__all__ = ["reconstruct"]

Array = NDArray[np.float64]

_UNIT = 2.0**LIMB_BITS
_HEAD_PIECE_BITS = 18
_PLAIN_EXPONENT = 450
"""C' < 2^342, so two factors within 2^-450..2^450 neither over- nor underflow early."""

_SMALLEST = -1074
_SMALLEST_NORMAL = -1022


def _limbs_of_remainder(products: Array, system: ResidueSystem) -> list[Array]:
    """Return the limbs of D = C' - h 2^s, lowest first, from reduced products.

    `products` holds gamma_l; D = sum gamma_l (Q / p_l) - K Q with the integer K that
    brings it into (-Q/2, Q/2).  All sums but the quotient's are exact in any order.
    """
    # Not by BLAS: its threads would wait for each other beside those of this stage.
    sums: Array = np.einsum("lt,tbij->lbij", system.weights, products)
    limbs: list[Array] = list(sums[:-1])
    quotient = sums[-1]
    fold = np.rint(quotient)
    for limb, unit in zip(limbs, system.product_limbs, strict=True):
        limb -= fold * unit
    if system.wraps:
        quotient -= fold
        near = np.abs(quotient) > 0.5 - 2.0**-20
        if near.any():
            _wrap(limbs, near, system.num_moduli)
    return limbs


def _carry(limbs: list[Array]) -> None:
    """Bring all limbs but the highest into [-2^29, 2^29], in place."""
    for low, high in itertools.pairwise(limbs):
        carry = np.rint(low * (1 / _UNIT))
        high += carry
        carry *= _UNIT
        low -= carry


def _sign(limbs: list[Array]) -> Array:
    """Return the sign of the integers that limbs stand for."""
    _carry(limbs)
    sign = np.zeros_like(limbs[0])
    for limb in limbs:
        # The highest nonzero limb outweighs all below it.
        sign = np.where(limb != 0, np.sign(limb), sign)
    return sign


def _wrap(limbs: list[Array], near: NDArray[np.bool_], num_moduli: int) -> None:
    """Bring entries near +-P/2 exactly into [-(P // 2), (P - 1) // 2]."""
    product, count = modulus_product(num_moduli), len(limbs)
    part = [limb[near] for limb in limbs]
    for sign, edge in ((1, product_bound(num_moduli)), (-1, -(product // 2))):
        beyond = [
            limb - e for limb, e in zip(part, balanced_limbs(edge, count), strict=True)
        ]
        outside = _sign(beyond) == sign
        for limb, unit in zip(part, balanced_limbs(product, count), strict=True):
            limb -= sign * outside * float(unit)
    for limb, fixed in zip(limbs, part, strict=True):
        limb[near] = fixed


def _sum_terms(
    limbs: list[Array], head: Array | None, shift: int
) -> tuple[Array, Array]:
    """Return the pair that stands for sum limbs_i 2^(30 i) + head 2^shift."""
    if len(limbs) > 3:
        # More than 106 bits: make terms that do not overlap, head included.
        if head is not None:
            limbs = _absorb_head(limbs, head, shift)
            head = None
        _carry(limbs)
    if len(limbs) == 1:
        high, low = limbs[0], np.zeros_like(limbs[0])
    else:
        high, low = two_sum(limbs[1] * _UNIT, limbs[0])
    for i, limb in enumerate(limbs[2:], start=2):
        high, low = add_term(limb * 2.0 ** (LIMB_BITS * i), high, low)
    if head is not None:
        high, low = add_term(head * 2.0**shift, high, low)
    return high, low


def _absorb(limbs: list[Array], value: Array) -> None:
    """Add integers of any size, as float64, to limbs that have room for them."""
    rest = value.copy()
    for i in range(len(limbs) - 1, -1, -1):
        unit = _UNIT**i
        piece = np.rint(rest * (1 / unit))
        rest -= piece * unit
        limbs[i] += piece


def _rest(
    limbs: list[Array], head: Array | None, shift: int, value: Array
) -> tuple[Array, Array]:
    """Return the pair that stands for sum limbs_i 2^(30 i) + head 2^shift - value.

    `value` are integers, as float64.
    """
    size = max((shift + 56) // LIMB_BITS + 2, len(limbs) + 1)
    zeros = [np.zeros_like(value) for _ in range(size - len(limbs))]
    limbs = [limb.copy() for limb in limbs] + zeros
    if head is not None:
        _absorb(limbs, head * 2.0**shift)
    _absorb(limbs, -value)
    # Balanced limbs cannot cancel each other, which rounding to odd could not stand.
    _carry(limbs)
    return _sum_terms(limbs, None, 0)


def _absorb_head(limbs: list[Array], head: Array, shift: int) -> list[Array]:
    """Add head 2^shift, cut to pieces of 18 bits, to the limbs."""
    limbs = limbs + [
        np.zeros_like(head) for _ in range((shift + 56) // LIMB_BITS + 2 - len(limbs))
    ]
    rest = head.copy()
    for i in (2, 1, 0):
        unit = 2.0 ** (_HEAD_PIECE_BITS * i)
        piece = np.rint(rest * (1 / unit))
        rest -= piece * unit
        index, bits = divmod(shift + _HEAD_PIECE_BITS * i, LIMB_BITS)
        limbs[index] += piece * 2.0**bits
    return limbs


def _unscale(high: Array, low: Array, exponent: Exponents) -> Array:
    """Return (high + low) 2^exponent, rounded once, for any exponents."""
    exponent = exponent.astype(np.int32)
    # C' = 0 comes out as +0 whatever signs its terms had: `low` is never -0.
    result = high + low
    scaled = np.ldexp(result, exponent)
    # The contract rounds once: a subnormal result is rounded at 2^-1074, not before.
    tiny = np.frexp(result)[1] + exponent <= _SMALLEST_NORMAL
    tiny &= result != 0
    if tiny.any():
        high, low, exponent = high[tiny], low[tiny], exponent[tiny]
        place = np.clip(_SMALLEST - exponent, 0, 400)
        # Below 2^(52 + place), so adding that (of one sign) makes 2^place the last bit;
        # it is an even multiple, so ties still go to even.
        anchor = np.copysign(np.ldexp(1.0, 52 + place), result[tiny])
        moved, rest = add_term(anchor, high, low)
        rounded = np.ldexp((moved + rest) - anchor, exponent)
        scaled[tiny] = np.copysign(rounded, result[tiny])
    return cast("Array", scaled)


def reconstruct(
    products: Array,
    mu: Exponents,
    nu: Exponents,
    system: ResidueSystem,
    out: Array,
    threads: int,
    low: Array | None = None,
    tally: Tally | None = None,
) -> None:
    """Write C = round(C' 2^-(mu + nu)) to `out`.

    Parameters
    ----------
    products : (num_planes, batch, m, n) ndarray of float64
        From the residue GEMMs; overwritten.
    mu : (batch, m) or (1, m) ndarray of int64
        Exponents of A's rows.
    nu : (batch, n) or (1, n) ndarray of int64
        Exponents of B's columns.
    system : ResidueSystem
        As for the operands.
    out : (batch, m, n) ndarray of float64
        Result, any strides.
    threads : int
        Threads for the pass over the entries.
    low : (batch, m, n) ndarray of float64, optional
        Takes round(C' 2^-(mu + nu) - C), and 0 where C is infinite.
    tally : Tally, optional
        Is given the integers C' of every block before they are rounded.
    """
    rows, columns = mu[:, :, np.newaxis], nu[:, np.newaxis, :]
    # Factors that neither over- nor underflow on the way serve ordinary data.
    plain = _within(mu) and _within(nu)
    factors = (np.ldexp(1.0, -rows), np.ldexp(1.0, -columns)) if plain else None

    def work(share: Sequence[Block]) -> None:
        buffer = np.empty((len(system.moduli), min(BLOCK_ELEMENTS, out.size)))
        scratch = None if tally is None else tally.scratch()
        for block in share:
            limbs, head = _exact_terms(products, block, system, buffer)
            shift = system.head_shift
            if tally is not None and scratch is not None:
                tally.add(block, limbs, head, scratch)
            kept = [] if low is None else [limb.copy() for limb in limbs]
            high, rest = _sum_terms(limbs, head, shift)
            of_rows = (of_batch(block[0], mu), block[1])
            of_columns = (of_batch(block[0], nu), slice(None), block[2])
            if factors is None:
                exponent = -(rows[of_rows] + columns[of_columns])
                exponent = np.broadcast_to(exponent, high.shape)
                out[block] = _unscale(high, rest, exponent)
            else:
                result = high + rest
                result *= factors[0][of_rows]
                np.multiply(result, factors[1][of_columns], out=out[block])
            if low is not None:
                exponent = np.broadcast_to(
                    rows[of_rows] + columns[of_columns], high.shape
                )
                low[block] = _low(kept, head, shift, out[block], exponent)

    run_blocks(work, blocks(out.shape), threads)


def _within(exponents: Exponents) -> bool:
    return bool(np.maximum.reduce(np.abs(exponents), axis=None) <= _PLAIN_EXPONENT)


def _low(
    limbs: list[Array],
    head: Array | None,
    shift: int,
    result: Array,
    exponents: Exponents,
) -> Array:
    """Return round(C' 2^-exponents - result), 0 where `result` is infinite."""
    finite = np.isfinite(result)
    # C 2^(mu + nu) is an integer: C' itself, or C' rounded at one of its own bits.
    value = np.ldexp(np.where(finite, result, 0.0), exponents.astype(np.int32))
    pair = _rest(limbs, head, shift, value)
    return np.where(finite, _unscale(*pair, -exponents), 0.0)


def _exact_terms(
    products: Array, block: Block, system: ResidueSystem, buffer: Array
) -> tuple[list[Array], Array | None]:
    """Return limbs and h with C' = sum limbs_i 2^(30 i) + h 2^s of one block."""
    head: Array | None = None
    if system.has_head:
        head = products[(0, *block)] * 2.0**-system.head_shift
        np.rint(head, out=head)
        if not system.moduli:
            return [head], None
    value = products[(slice(int(system.has_head), None), *block)]
    scratch = buffer[:, : value[0].size].reshape(value.shape)
    if head is not None:
        split = 2.0**HEAD_SPLIT_BITS
        upper = head * (1 / split)
        np.rint(upper, out=upper)
        np.multiply(system.head_high, upper, out=scratch)
        value -= scratch
        upper *= split
        np.subtract(head, upper, out=upper)
        np.multiply(system.head_low, upper, out=scratch)
        value -= scratch
    reduce_balanced(value, system, scratch)
    return _limbs_of_remainder(value, system), head
