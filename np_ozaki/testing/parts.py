"""Real and imaginary parts of arrays, apart and together.

NumPy's arithmetic of complex numbers spoils some of what is tested here: a product by
1j makes NaN of an infinity's partner, a sum loses a -0, and `ldexp` is for real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["concatenated", "is_complex", "join", "ldexp", "real_dtype_of"]

Array = NDArray[Any]


def is_complex(x: Array) -> bool:
    """Return whether an array has complex entries.

    Parameters
    ----------
    x : ndarray
        Any.

    Returns
    -------
    bool
    """
    return x.dtype.kind == "c"


def real_dtype_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a part.

    Parameters
    ----------
    dtype : dtype
        float64, float32, complex128 or complex64.

    Returns
    -------
    dtype
        float64 or float32.
    """
    return np.empty(0, dtype).real.dtype


def join(real: Array, imag: Array) -> Array:
    """Return complex entries with these parts, bit for bit.

    Parameters
    ----------
    real, imag : ndarray of float64 or float32
        Of one dtype and shape.

    Returns
    -------
    ndarray of complex128 or complex64
    """
    z = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    z.real, z.imag = real, imag
    return z


def concatenated(x: Array, axis: int) -> Array:
    """Return the parts of an array after each other, as one real array.

    Parameters
    ----------
    x : ndarray
        Real, or complex.
    axis : int
        The one that becomes twice as long if `x` is complex.

    Returns
    -------
    ndarray of float64 or float32
        A real `x` as it is.
    """
    return np.concatenate([x.real, x.imag], axis) if is_complex(x) else x


def ldexp(x: Array, exponents: NDArray[np.integer[Any]]) -> Array:
    """Return numbers times powers of two, both parts of a complex one.

    Parameters
    ----------
    x : ndarray
        Real, or complex.
    exponents : ndarray of int
        In any shape that broadcasts.

    Returns
    -------
    ndarray
        Of the dtype of `x`.
    """
    if is_complex(x):
        return join(np.ldexp(x.real, exponents), np.ldexp(x.imag, exponents))
    return np.asarray(np.ldexp(x, exponents))
