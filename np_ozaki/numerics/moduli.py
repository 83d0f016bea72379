"""The one table of moduli, and the CRT constants that follow from it.

The contract multiplies modulo N pairwise coprime moduli that fit INT8 residues.
Nothing here is typed in: the table is the greedy descent from 256 that keeps every
number coprime to those before it (and stops at `MAX_MODULI` numbers).  256 is first
because a balanced residue modulo 256 is exactly an int8 and int32 wraps harmlessly
modulo it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from np_ozaki.errors import OptionError, refusal

__all__ = [
    "MAX_MODULI",
    "MIN_MODULI",
    "MODULI",
    "balanced_residue",
    "check_num_moduli",
    "coprime_descent",
    "crt_weights",
    "log2_modulus_product",
    "modulus_product",
    "product_bound",
    "scaling_bits",
]

MIN_MODULI = 2
MAX_MODULI = 49


def coprime_descent(start: int) -> Iterator[int]:
    """Yield integers below `start + 1`, each coprime to all that came before.

    Parameters
    ----------
    start : int
        First and largest modulus.

    Yields
    ------
    int
        Strictly descending, pairwise coprime, down to 2.
    """
    product = 1
    for candidate in range(start, 1, -1):
        if math.gcd(candidate, product) == 1:
            product *= candidate
            yield candidate


def _contract_moduli() -> tuple[int, ...]:
    source = coprime_descent(256)
    return tuple(next(source) for _ in range(MAX_MODULI))


MODULI: tuple[int, ...] = _contract_moduli()
"""Moduli of the contract, descending; a product with N moduli uses the first N."""


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


@functools.cache
def modulus_product(num_moduli: int) -> int:
    """Return P, the product of the first `num_moduli` moduli.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.

    Returns
    -------
    int
        P; a C' with ``2 * abs(C') < P`` is recovered exactly.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range.
    """
    check_num_moduli(num_moduli)
    return math.prod(MODULI[:num_moduli])


def product_bound(num_moduli: int) -> int:
    """Return M = (P - 1) // 2, the largest ``abs(C')`` that the scaling allows.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.

    Returns
    -------
    int
        M; the scaling exponents keep ``sum(abs(A') * abs(B')) <= M``.
    """
    return (modulus_product(num_moduli) - 1) // 2


def log2_modulus_product(num_moduli: int) -> float:
    """Return log2(P).

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.

    Returns
    -------
    float
        Bits of the residue number system: 117.783 for N = 15.
    """
    return math.log2(modulus_product(num_moduli))


def scaling_bits(num_moduli: int) -> float:
    """Return P' = (log2(P) - 1) / 2, the bits that each operand may use.

    Parameters
    ----------
    num_moduli : int
        N of the contract, 2 to 49.

    Returns
    -------
    float
        log2 of the largest 2-norm of a scaled row or column.
    """
    return (log2_modulus_product(num_moduli) - 1.0) / 2.0


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
