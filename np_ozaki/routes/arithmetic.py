"""Elementwise arithmetic with BLAS scalars, whose rounding IEEE 754 fixes.

NumPy multiplies complex entries with fused operations where the machine has them, so
here each operation on parts is one of its own: a b is (fl(fl(ar br) - fl(ai bi)),
fl(fl(ar bi) + fl(ai br))).  A scalar without an imaginary part multiplies both parts
by its real one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scalar", "divide", "multiply", "scale"]

Array: TypeAlias = NDArray[Any]
Scalar: TypeAlias = float | complex


def scale(x: Array, factor: Scalar) -> None:
    """Replace x by factor * x.

    Parameters
    ----------
    x : ndarray of float64 or complex128
        Overwritten.
    factor : float or complex
        Real for a real array.
    """
    if factor == 1.0:
        return
    if x.dtype.kind != "c":
        x *= factor
    elif factor.imag == 0.0:
        # As a complex factor it would make NaN of the partner of an infinite part.
        x.real *= factor.real
        x.imag *= factor.real
    else:
        multiply(x.copy(), np.asarray(factor, x.dtype), x)


def multiply(a: Array, b: Array, out: Array) -> None:
    """Write a * b, entry by entry.

    Parameters
    ----------
    a, b : ndarray
        Of the dtype of `out`; broadcast to its shape.
    out : ndarray of float64 or complex128
        Overwritten; must not overlap the others.
    """
    if out.dtype.kind != "c":
        np.multiply(a, b, out=out)
        return
    np.multiply(a.real, b.real, out=out.real)
    out.real -= a.imag * b.imag
    np.multiply(a.real, b.imag, out=out.imag)
    out.imag += a.imag * b.real


def divide(x: Array, divisor: Any) -> None:
    """Replace x by x / divisor.

    Parameters
    ----------
    x : ndarray of float64 or complex128
        Overwritten.
    divisor : numpy.float64 or numpy.complex128
        Real for a real array.

    Notes
    -----
    Complex numbers are divided by Smith's method, as NumPy does it.
    """
    if x.dtype.kind != "c":
        x /= divisor
        return
    real, imag = divisor.real, divisor.imag
    if real == imag == 0.0:
        x.real /= abs(real)
        x.imag /= abs(real)
        return
    # i x / (i d) is x / d: the larger part of the divisor is in the real one's place.
    turned = abs(real) < abs(imag)
    if turned:
        real, imag = imag, -real
    ratio = imag / real
    whole = real + imag * ratio
    first, second = (x.imag, -x.real) if turned else (x.real, x.imag)
    new_real = (first + second * ratio) / whole
    x.imag[...] = (second - first * ratio) / whole
    x.real[...] = new_real
