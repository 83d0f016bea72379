"""The floating-point formats that results are rounded to."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["DOUBLE", "SINGLE", "Format", "format_of"]


class Format(NamedTuple):
    """A binary format of IEEE 754.

    Attributes
    ----------
    bits : int
        Of the significand: u = 2^-bits.
    lowest : int
        Exponent of the smallest subnormal number.
    top : int
        2^top is the least power of two that is too large.
    """

    bits: int
    lowest: int
    top: int

    @property
    def unit(self) -> float:
        """u, the largest relative error of a rounding to nearest."""
        return 2.0**-self.bits

    @property
    def tiny(self) -> float:
        """The smallest subnormal number."""
        return 2.0**self.lowest

    @property
    def overflow(self) -> float:
        """The least float64 that is rounded to infinity."""
        if self is DOUBLE:
            return math.inf
        return math.ldexp(1.0 - self.unit / 2.0, self.top)


DOUBLE = Format(53, -1074, 1024)
"""float64, and the parts of complex128."""

SINGLE = Format(24, -149, 128)
"""float32, and the parts of complex64."""


def format_of(dtype: Any) -> Format:
    """Return the format of entries, or of their parts.

    Parameters
    ----------
    dtype : numpy.dtype
        float32, float64, complex64 or complex128.

    Returns
    -------
    Format
    """
    return SINGLE if dtype.char in "fF" else DOUBLE
