"""The two tables of moduli, and the CRT constants that follow from them.

The contract multiplies modulo N pairwise coprime moduli that fit INT8 residues.
Nothing here is typed in.  The table of real products is the greedy descent from 256
that keeps every number coprime to those before it (and stops at `MAX_MODULI` numbers).
256 is first because a balanced residue modulo 256 is exactly an int8 and int32 wraps
harmlessly modulo it.

The table of complex products is the same descent, run to its end, among the odd
numbers in which -1 is a square.  With s s = -1 modulo p, complex integers modulo p are
pairs of plain ones, x + i y -> (x + s y, x - s y), and a complex product is one plain
product of each: two INT8 products.  2 must have an inverse for the way back, hence no
even modulus.  The descent ends after 22; products that take more have the real table.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

from np_ozaki.errors import OptionError, refusal

__all__ = [
    "COMPLEX_MODULI",
    "MAX_MODULI",
    "MIN_MODULI",
    "MODULI",
    "Family",
    "balanced_residue",
    "check_num_moduli",
    "coprime_descent",
    "crt_weights",
    "log2_modulus_product",
    "moduli_of",
    "modulus_product",
    "product_bound",
    "root_of_minus_one",
    "scaling_bits",
]

Family = Literal["real", "complex"]
"""Which table a product takes its moduli from."""

MIN_MODULI = 2
MAX_MODULI = 49


def coprime_descent(
    start: int, admits: Callable[[int], bool] = lambda candidate: True
) -> Iterator[int]:
    """Yield integers below `start + 1`, each coprime to all that came before.

    Parameters
    ----------
    start : int
        First and largest candidate.
    admits : callable, optional
        Whether a candidate may be a modulus at all.

    Yields
    ------
    int
        Strictly descending, pairwise coprime, down to 2.
    """
    product = 1
    for candidate in range(start, 1, -1):
        if math.gcd(candidate, product) == 1 and admits(candidate):
            product *= candidate
            yield candidate


MODULI: tuple[int, ...] = tuple(itertools.islice(coprime_descent(256), MAX_MODULI))
"""Moduli of the contract, descending; a product with N moduli uses the first N."""


@functools.cache
def root_of_minus_one(modulus: int) -> int:
    """Return the least s with ``s * s`` congruent to -1.

    Parameters
    ----------
    modulus : int
        p >= 2.

    Returns
    -------
    int
        0 where there is none.  No result depends on which root is taken.
    """
    roots = (s for s in range(1, modulus) if (s * s + 1) % modulus == 0)
    return next(roots, 0)


COMPLEX_MODULI: tuple[int, ...] = tuple(
    coprime_descent(256, lambda p: p % 2 == 1 and root_of_minus_one(p) > 0)
)
"""Moduli of complex products, descending, all that there are."""


def check_num_moduli(num_moduli: int) -> None:
    """Raise `OptionError` unless `num_moduli` lies in 2..49.

    Parameters
    ----------
    num_moduli : int
        N of the contract.

    Raises
    ------
    OptionError
        Outside `MIN_MODULI`..`MAX_MODULI`.
    """
    if not MIN_MODULI <= num_moduli <= MAX_MODULI:
        raise OptionError(
            refusal(
                "num_moduli",
                num_moduli,
                f"the table holds {MIN_MODULI} to {MAX_MODULI} moduli",
                "15 moduli give FP64 accuracy on ordinary data",
            )
        )


def moduli_of(num_moduli: int, family: Family = "real") -> tuple[int, ...]:
    """Return the moduli of a product.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    family : {"real", "complex"}, optional
        Of products.

    Returns
    -------
    tuple of int
        The first N of the family's table.  A complex product that takes more than
        `COMPLEX_MODULI` holds has those of a real one.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range.
    """
    check_num_moduli(num_moduli)
    if family == "complex" and num_moduli <= len(COMPLEX_MODULI):
        return COMPLEX_MODULI[:num_moduli]
    return MODULI[:num_moduli]


@functools.cache
def modulus_product(num_moduli: int, family: Family = "real") -> int:
    """Return P, the product of the first `num_moduli` moduli.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        P; a C' with ``2 * abs(C') < P`` is recovered exactly.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range.
    """
    return math.prod(moduli_of(num_moduli, family))


def product_bound(num_moduli: int, family: Family = "real") -> int:
    """Return M = (P - 1) // 2, the largest ``abs(C')`` that the scaling allows.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        M; the scaling exponents keep ``sum(abs(A') * abs(B')) <= M``.
    """
    return (modulus_product(num_moduli, family) - 1) // 2


def log2_modulus_product(num_moduli: int, family: Family = "real") -> float:
    """Return log2(P).

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    float
        Bits of the residue number system: 117.783 for N = 15, complex 117.691 for 16.
    """
    return math.log2(modulus_product(num_moduli, family))


def scaling_bits(num_moduli: int, family: Family = "real") -> float:
    """Return P' = (log2(P) - 1) / 2, the bits that each operand may use.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    float
        log2 of the largest 2-norm of a scaled row or column.
    """
    return (log2_modulus_product(num_moduli, family) - 1.0) / 2.0


@functools.cache
def crt_weights(moduli: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights w_l with ``x = sum(w_l * (x mod p_l)) mod P``.

    Parameters
    ----------
    moduli : tuple of int
        Pairwise coprime moduli p_l.

    Returns
    -------
    tuple of int
        ``w_l = (P / p_l) * ((P / p_l)**-1 mod p_l)``, each in 0..P-1.
    """
    product = math.prod(moduli)
    return tuple((product // p) * pow(product // p, -1, p) for p in moduli)


def balanced_residue(value: int, modulus: int) -> int:
    """Return the representative of `value` in the balanced interval.

    Parameters
    ----------
    value : int
        Any integer.
    modulus : int
        p >= 2.

    Returns
    -------
    int
        r congruent to `value` with ``-(p // 2) <= r <= (p - 1) // 2``; for
        p = 256 exactly the int8 range.
    """
    half = modulus // 2
    return (value + half) % modulus - half
