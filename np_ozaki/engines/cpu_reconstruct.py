"""Stage 4: from residue products to float64 or float32, with one rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_checksum import Tally
from np_ozaki.engines.cpu_exponents import Exponents
from np_ozaki.engines.cpu_limbs import (
    rest_of,
    sign_of,
    sum_terms,
    unscale,
    unscale_to_odd,
)
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
    ResidueSystem,
    balanced_limbs,
)
from np_ozaki.engines.rounding import add_to_odd
from np_ozaki.numerics.formats import SINGLE, format_of
from np_ozaki.numerics.moduli import modulus_product, product_bound

__all__ = ["reconstruct"]

Array = NDArray[np.float64]

_PLAIN_EXPONENT = 450
"""C' < 2^342, so two factors within 2^-450..2^450 neither over- nor underflow early."""


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
            _wrap(limbs, near, system)
    return limbs


def _wrap(limbs: list[Array], near: NDArray[np.bool_], system: ResidueSystem) -> None:
    """Bring entries near +-P/2 exactly into [-(P // 2), (P - 1) // 2]."""
    kind = system.num_moduli, system.family
    product, count = modulus_product(*kind), len(limbs)
    part = [limb[near] for limb in limbs]
    for sign, edge in ((1, product_bound(*kind)), (-1, -(product // 2))):
        beyond = [
            limb - e for limb, e in zip(part, balanced_limbs(edge, count), strict=True)
        ]
        outside = sign_of(beyond) == sign
        for limb, unit in zip(part, balanced_limbs(product, count), strict=True):
            limb -= sign * outside * float(unit)
    for limb, fixed in zip(limbs, part, strict=True):
        limb[near] = fixed


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
    out : (batch, m, n) ndarray of float64 or float32
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
    single = format_of(out.dtype) is SINGLE
    unscaled = unscale_to_odd if single else unscale

    def work(share: Sequence[Block]) -> None:
        buffer = np.empty((len(system.moduli), min(BLOCK_ELEMENTS, out.size)))
        scratch = None if tally is None else tally.scratch()
        for block in share:
            limbs, head = _exact_terms(products, block, system, buffer)
            shift = system.head_shift
            if tally is not None and scratch is not None:
                tally.add(block, limbs, head, scratch)
            kept = [] if low is None else [limb.copy() for limb in limbs]
            high, rest = sum_terms(limbs, head, shift)
            of_rows = (of_batch(block[0], mu), block[1])
            of_columns = (of_batch(block[0], nu), slice(None), block[2])
            if factors is None:
                exponent = -(rows[of_rows] + columns[of_columns])
                exponent = np.broadcast_to(exponent, high.shape)
                out[block] = unscaled(high, rest, exponent)
            elif single:
                # Assigned, not multiplied into place: that would be in float32.
                result = add_to_odd(high, rest)
                result *= factors[0][of_rows]
                result *= factors[1][of_columns]
                out[block] = result
            else:
                result = high + rest
                result *= factors[0][of_rows]
                np.multiply(result, factors[1][of_columns], out=out[block])
            if low is not None:
                exponent = np.broadcast_to(
                    rows[of_rows] + columns[of_columns], high.shape
                )
                low[block] = rest_of(kept, head, shift, out[block], exponent)

    run_blocks(work, blocks(out.shape), threads)


def _within(exponents: Exponents) -> bool:
    return bool(np.maximum.reduce(np.abs(exponents), axis=None) <= _PLAIN_EXPONENT)


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
