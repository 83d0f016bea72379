"""Integers beyond 53 bits as limbs, arrays of float64, and their one rounding.

Limbs count by powers of 2^30, the least significant first.
"""

from __future__ import annotations

import itertools
from typing import cast

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_exponents import Exponents
from np_ozaki.engines.residue_system import LIMB_BITS
from np_ozaki.engines.rounding import add_term, add_to_odd, two_sum

__all__ = [
    "absorb",
    "carry",
    "rest_of",
    "sign_of",
    "sum_terms",
    "unscale",
    "unscale_to_odd",
]

Array = NDArray[np.float64]

_UNIT = 2.0**LIMB_BITS
_HEAD_PIECE_BITS = 18
_SMALLEST = -1074
_SMALLEST_NORMAL = -1022


def carry(limbs: list[Array]) -> None:
    """Bring all limbs but the highest into [-2^29, 2^29], in place.

    Parameters
    ----------
    limbs : list of ndarray of float64
        Integers, at most 2^52 in magnitude.
    """
    for low, high in itertools.pairwise(limbs):
        carried = np.rint(low * (1 / _UNIT))
        high += carried
        carried *= _UNIT
        low -= carried


def sign_of(limbs: list[Array]) -> Array:
    """Return the sign of the integers that limbs stand for.

    Parameters
    ----------
    limbs : list of ndarray of float64
        Integers; carried, in place.

    Returns
    -------
    ndarray of float64
        -1, 0 or 1.
    """
    carry(limbs)
    sign = np.zeros_like(limbs[0])
    for limb in limbs:
        # The highest nonzero limb outweighs all below it.
        sign = np.where(limb != 0, np.sign(limb), sign)
    return sign


def sum_terms(
    limbs: list[Array], head: Array | None, shift: int
) -> tuple[Array, Array]:
    """Return the pair that stands for sum limbs_i 2^(30 i) + head 2^shift.

    Parameters
    ----------
    limbs : list of ndarray of float64
        Integers; may be carried, in place.
    head : ndarray of float64 or None
        Integers.
    shift : int
        0 or more.

    Returns
    -------
    high, low : ndarray of float64
        As in `rounding`.
    """
    if len(limbs) > 3:
        # More than 106 bits: make terms that do not overlap, head included.
        if head is not None:
            limbs = _absorb_head(limbs, head, shift)
            head = None
        carry(limbs)
    if len(limbs) == 1:
        high, low = limbs[0], np.zeros_like(limbs[0])
    else:
        high, low = two_sum(limbs[1] * _UNIT, limbs[0])
    for i, limb in enumerate(limbs[2:], start=2):
        high, low = add_term(limb * 2.0 ** (LIMB_BITS * i), high, low)
    if head is not None:
        high, low = add_term(head * 2.0**shift, high, low)
    return high, low


def absorb(limbs: list[Array], value: Array) -> None:
    """Add integers of any size, as float64, to limbs that have room for them.

    Parameters
    ----------
    limbs : list of ndarray of float64
        Integers, changed in place.
    value : ndarray of float64
        Integers; the last limb takes what is beyond it.
    """
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
        absorb(limbs, head * 2.0**shift)
    absorb(limbs, -value)
    # Balanced limbs cannot cancel each other, which rounding to odd could not stand.
    carry(limbs)
    return sum_terms(limbs, None, 0)


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


def unscale(high: Array, low: Array, exponent: Exponents) -> Array:
    """Return (high + low) 2^exponent, rounded once, for any exponents.

    Parameters
    ----------
    high, low : ndarray of float64
        A pair as in `rounding`, below 2^342.
    exponent : ndarray of int64
        Of their shape.

    Returns
    -------
    ndarray of float64
        Rounded to nearest, ties to even, also where it is subnormal.
    """
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


def unscale_to_odd(high: Array, low: Array, exponent: Exponents) -> Array:
    """Return (high + low) 2^exponent as what to round to float32.

    Parameters
    ----------
    high, low : ndarray of float64
        A pair as in `rounding`, below 2^342.
    exponent : ndarray of int64
        Of their shape.

    Returns
    -------
    ndarray of float64
        Rounded to odd at 53 bits: to round that to float32's 24, or fewer where the
        result is subnormal, rounds once.  What is subnormal here, or infinite, is zero
        in float32, or infinite, whatever its last bits are.
    """
    scaled = np.ldexp(add_to_odd(high, low), exponent.astype(np.int32))
    return cast("Array", scaled)


def rest_of(
    limbs: list[Array],
    head: Array | None,
    shift: int,
    result: Array,
    exponents: Exponents,
) -> Array:
    """Return round(C' 2^-exponents - result), 0 where `result` is infinite.

    Parameters
    ----------
    limbs : list of ndarray of float64
        Of C', with `head` and `shift` as for `sum_terms`.
    head : ndarray of float64 or None
    shift : int
    result : ndarray of float64
        C' 2^-exponents, rounded.
    exponents : ndarray of int64
        mu + nu.

    Returns
    -------
    ndarray of float64
        What the rounding left.
    """
    finite = np.isfinite(result)
    # C 2^(mu + nu) is an integer: C' itself, or C' rounded at one of its own bits.
    value = np.ldexp(np.where(finite, result, 0.0), exponents.astype(np.int32))
    pair = _rest(limbs, head, shift, value)
    return np.where(finite, unscale(*pair, -exponents), 0.0)
