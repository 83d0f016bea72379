"""Exact sums of float64 terms with one rounding at the end, vectorised.

A pair (high, low) stands for a real number: high + low, where low was rounded to odd
(its last bit says "something nonzero was cut off here").  Such a pair is enough for one
correct rounding, because a value rounded to odd with two spare bits never lies on a
tie that the true value does not lie on.  Method: S. Boldo and G. Melquiond, "Emulation
of a FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008.

All terms here are integers times one power of two, far from overflow and underflow,
which is what the proofs ask for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_term", "add_to_odd", "two_sum"]

Array = NDArray[np.float64]


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (s, e) with s = fl(a + b) and s + e = a + b exactly.

    Parameters
    ----------
    a, b : ndarray of float64
        Finite terms of equal shape, in any order of magnitude.

    Returns
    -------
    s, e : ndarray of float64
        New arrays.
    """
    s = a + b
    shadow = s - a
    error = s - shadow
    np.subtract(a, error, out=error)
    np.subtract(b, shadow, out=shadow)
    error += shadow
    return s, error


def _fast_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`two_sum` for ``abs(a) >= abs(b)`` or a = 0."""
    s = a + b
    error = s - a
    np.subtract(b, error, out=error)
    return s, error


def add_to_odd(a: Array, b: Array) -> Array:
    """Return a + b rounded to odd: exact, or the neighbour with an odd last bit.

    Parameters
    ----------
    a, b : ndarray of float64
        Finite terms of equal shape, or a pair as described above.

    Returns
    -------
    ndarray of float64
        A new array.  To round it to fewer bits, two at least, rounds the sum once.
    """
    s, error = two_sum(a, b)
    bits = s.view(np.int64)
    inexact = error != 0
    # Toward zero first (one step back if the error points inward), then force the bit.
    inward = np.signbit(error) != np.signbit(s)
    inward &= inexact
    bits -= inward
    bits |= inexact
    return s


def add_term(term: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Return the pair that stands for ``term + (high + low)``.

    Parameters
    ----------
    term : ndarray of float64
        Exact new term.
    high, low : ndarray of float64
        A pair as described above, or two exact terms with ``abs(high) >= abs(low)``.

    Returns
    -------
    high, low : ndarray of float64
        ``high + low`` in float64 is then the correctly rounded sum so far.
    """
    high, low = _fast_two_sum(high, low)
    total, error = two_sum(term, high)
    return total, add_to_odd(error, low)
