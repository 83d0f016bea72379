"""Which moduli the CPU engine multiplies in, and the constants that follow.

The contract fixes the integer C' = sum A'B', not the way to it.  FP64 units multiply
integers of 26 bits exactly, so fifteen INT8 moduli would be a waste on a CPU.  Cheapest
found: one ordinary FP64 product C~ = A'B', which is off by at most k u M (any order of
summation, fused or not), and the small remainder D = C' - h 2^s modulo a few primes
near 2^19.75, where h 2^s is C~ cut to the bits worth keeping.  For N = 15 that is one
product and four moduli.

The legacy scaling defines C' only modulo P, so it runs on the N moduli of the contract
themselves, without C~.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki.numerics.moduli import Family, moduli_of, product_bound

__all__ = ["LIMB_BITS", "ResidueSystem", "paired_tables", "residue_system"]

LIMB_BITS = 30
"""Weights are cut to balanced limbs: 16 terms of 29 + 18.8 bits stay exact."""

HEAD_SPLIT_BITS = 27
"""h < 2^54 is multiplied as two halves."""

OPERAND_PLANE_BITS = 30
"""A' is cut to planes of 30 bits: 12 terms of 29 + 18.8 bits stay below 2^53."""

_LARGEST_PRIME = 882_700
# R = p/2 + 4 bounds a residue that was reduced with a rounded reciprocal; with
# R < 2^18.76, 2^14 products of two residues stay below 2^52 and leave room for h.
EXACT_K_BLOCK = 1 << 14


def _primes_below(limit: int) -> list[int]:
    """Return the 24 largest primes below `limit`, descending."""
    roots = range(2, math.isqrt(limit) + 1)
    primes = (p for p in range(limit - 1, 1, -1) if all(p % q for q in roots))
    return list(itertools.islice(primes, 24))


@functools.cache
def _engine_moduli() -> tuple[int, ...]:
    return tuple(_primes_below(_LARGEST_PRIME))


Column = NDArray[np.float64]


def _column(values: list[int]) -> Column:
    """Return integers below 2^53 as a (len, 1, 1, 1) float64 column.

    The shape broadcasts over (modulus, batch, row, column).
    """
    return np.array(values, dtype=np.float64).reshape(-1, 1, 1, 1)


def _balanced(value: int, modulus: int) -> int:
    return (value + modulus // 2) % modulus - modulus // 2


def balanced_limbs(value: int, count: int) -> list[int]:
    """Cut an integer to `count` balanced limbs of `LIMB_BITS`, lowest first.

    All but the highest lie in [-2^29, 2^29); the highest takes what is left.
    """
    limbs = []
    for _ in range(count - 1):
        limb = _balanced(value, 1 << LIMB_BITS)
        limbs.append(limb)
        value = (value - limb) >> LIMB_BITS
    return [*limbs, value]


@dataclass(frozen=True, eq=False)
class ResidueSystem:
    """Constants of one (N, scaling, k) on FP64 units.

    Attributes
    ----------
    num_moduli : int
        N of the contract.
    family : {"real", "complex"}
        Whose moduli these are.
    moduli : tuple of int
        The engine's own moduli p_l; empty where C~ is already exact.
    has_head : bool
        Whether plane 0 is the FP64 product C~.
    head_shift : int
        s; h = rint(C~ 2^-s).
    num_limbs : int
        30-bit limbs that hold D.
    wraps : bool
        Whether the result is defined modulo P only (legacy scaling).
    modulus, reciprocal : (T, 1, 1, 1) float64
        p_l and fl(1 / p_l).
    left, right : tuple of (T, 1, 1, 1) float64
        2^(30 i) modulo p_l, lowest plane first, as many as hold an A' (a B'); the left
        one carries the CRT inverse (Q / p_l)^-1, so that products come out ready to be
        weighted.
    head_high, head_low : (T, 1, 1, 1) float64
        2^(s + 27) and 2^s times the CRT inverse, modulo p_l.
    weights : (num_limbs + 1, T) float64
        Limbs of Q / p_l, and fl(1 / p_l) in the last row.
    product_limbs : (num_limbs,) float64
        Limbs of Q = prod p_l.
    """

    num_moduli: int
    family: Family
    moduli: tuple[int, ...]
    has_head: bool
    head_shift: int
    num_limbs: int
    wraps: bool
    modulus: Column
    reciprocal: Column
    left: tuple[Column, ...]
    right: tuple[Column, ...]
    head_high: Column
    head_low: Column
    weights: NDArray[np.float64]
    product_limbs: NDArray[np.float64]

    @property
    def num_planes(self) -> int:
        """GEMMs of one product: C~, if there is one, and one for each modulus."""
        return self.has_head + len(self.moduli)


def _limbs_needed(product: int, count: int) -> int:
    """Return the fewest limbs whose top one stays exact in float64.

    abs(K) <= count / 2 + 1 multiplies the top limb of Q.
    """
    limbs = 1
    while (product >> (LIMB_BITS * (limbs - 1))) * (count // 2 + 1) >= 1 << 51:
        limbs += 1
    return limbs


def _head(bound: int, k: int) -> tuple[tuple[int, ...], int]:
    """Return (moduli, s) for a product with a head, |C'| <= bound."""
    if bound <= 1 << 53:
        # sum |A'||B'| <= 2^53: every partial sum of C~ is exact.
        return (), 0
    # gamma_k = k u / (1 - k u) <= k u (1 + 2^-10) below k = 2^43.
    error = (k * bound * 1025 // 1024 >> 53) + 1
    shift = error.bit_length() - 1
    largest = error + (1 << shift)
    moduli: tuple[int, ...] = ()
    product = 1
    for p in _engine_moduli():
        # The quotient K is certain while |D| / Q stays clear of one half.
        if product * 2047 // 4096 > largest:
            break
        moduli = (*moduli, p)
        product *= p
    return moduli, shift


@functools.lru_cache(maxsize=512)
def residue_system(
    num_moduli: int,
    scaling: str,
    k_class: int,
    lent: int = 0,
    family: Family = "real",
) -> ResidueSystem:
    """Return the residue system for N moduli, a scaling and ``k <= 2^k_class``.

    Parameters
    ----------
    num_moduli : int
        N of the contract.
    scaling : str
        "norm", "accurate" or "legacy".
    k_class : int
        ceil(log2(k)): one system serves all k up to that power of two.
    lent : int, optional
        Bits that entries of A have less and entries of B have more.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    ResidueSystem
        Constants, shared and never written.
    """
    wraps = scaling == "legacy"
    bound = product_bound(num_moduli, family)
    norm_bits = bound.bit_length() // 2 + 1
    if wraps:
        moduli, shift = moduli_of(num_moduli, family), 0
    else:
        moduli, shift = _head(bound, 1 << k_class)
    # A norm-scaled entry is below sqrt(M); the accurate rule may add 7 bits to it
    # where its partners vanish.
    operand_bits = norm_bits + (8 if scaling == "accurate" else 1)
    planes_a, planes_b = (
        max(1, -(-(operand_bits + more) // OPERAND_PLANE_BITS))
        for more in (-lent, lent)
    )
    product = math.prod(moduli)
    limbs = _limbs_needed(product, len(moduli))
    inverses = [pow(product // p, -1, p) for p in moduli]

    def tables(factor: list[int], planes: int) -> tuple[Column, ...]:
        return tuple(
            _column(table(factor, OPERAND_PLANE_BITS * i)) for i in range(planes)
        )

    def table(factor: list[int], exponent: int) -> list[int]:
        return [
            _balanced(f << exponent, p) for f, p in zip(factor, moduli, strict=True)
        ]

    ones = [1] * len(moduli)
    weights = np.array(
        [balanced_limbs(product // p, limbs) for p in moduli], dtype=np.float64
    ).reshape(len(moduli), limbs)
    return ResidueSystem(
        num_moduli=num_moduli,
        family=family,
        moduli=tuple(moduli),
        has_head=not wraps,
        head_shift=shift,
        num_limbs=limbs,
        wraps=wraps,
        modulus=_column(list(moduli)),
        reciprocal=1.0 / _column(list(moduli)),
        left=tables(inverses, planes_a),
        right=tables(ones, planes_b),
        head_high=_column(table(inverses, shift + HEAD_SPLIT_BITS)),
        head_low=_column(table(inverses, shift)),
        weights=np.vstack([weights.T, 1.0 / np.array(moduli, dtype=np.float64)]),
        product_limbs=np.array(balanced_limbs(product, limbs), dtype=np.float64),
    )


@functools.lru_cache(maxsize=512)
def paired_tables(system: ResidueSystem, m: int, n: int) -> tuple[Column, ...]:
    """Return the tables for m rows of A and n columns of B, stacked as rows.

    Parameters
    ----------
    system : ResidueSystem
        Moduli and tables.
    m, n : int
        Rows of A and columns of B.

    Returns
    -------
    tuple of (T, 1, m + n, 1) ndarray of float64
        Lowest plane first; shared and never written.
    """
    return tuple(
        np.concatenate((left.repeat(m, axis=2), right.repeat(n, axis=2)), axis=2)
        for left, right in zip(system.left, system.right, strict=True)
    )
