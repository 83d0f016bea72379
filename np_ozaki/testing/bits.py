"""Equality of arrays in every bit, and what a failure of it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["assert_same_bits", "compare_bits", "shown"]


def assert_same_bits(actual: ArrayLike, expected: ArrayLike) -> None:
    """Raise unless two arrays agree in shape and in every bit.

    Parameters
    ----------
    actual, expected : array_like
        Both float64, float32, complex128 or complex64; -0.0 and 0.0 differ, and so do
        NaNs of different payload.

    Raises
    ------
    AssertionError
        Names the first differing index with both values in hexadecimal, and how many
        entries differ.

    Examples
    --------
    >>> import numpy as np
    >>> from np_ozaki.testing import assert_same_bits
    >>> assert_same_bits([1.0, 2.0], np.array([1.0, 2.0]))
    >>> assert_same_bits([0.0], [-0.0])
    Traceback (most recent call last):
    AssertionError: 1 of 1 entries differ, first at (0,): 0x0.0p+0 is not -0x0.0p+0
    """
    compare_bits(actual, expected)


def compare_bits(
    actual: ArrayLike,
    expected: ArrayLike,
    *,
    what: str = "",
    where: NDArray[np.bool_] | bool = True,
) -> None:
    """Raise unless two arrays agree in shape and in some entries' bits.

    Parameters
    ----------
    actual, expected : array_like
        As for `assert_same_bits`.
    what : str, optional
        What was done to get `actual`; the message begins with it.
    where : ndarray of bool, optional
        The entries that count, in the shape of the arrays.

    Raises
    ------
    AssertionError
        As from `assert_same_bits`.
    """
    x, y = np.asarray(actual), np.asarray(expected)
    start = f"{what}: " if what else ""
    if x.dtype == y.dtype and x.dtype in _COMPLEX:
        # An axis more: 0 for the real part, 1 for the imaginary one.
        x, y = (np.stack([z.real, z.imag], axis=-1) for z in (x, y))
        where = np.expand_dims(where, -1)
    if x.dtype != y.dtype or x.dtype not in _INTEGERS:
        raise AssertionError(
            f"{start}dtypes {x.dtype} and {y.dtype}: both must be float64, float32, "
            "complex128 or complex64"
        )
    if x.shape != y.shape:
        raise AssertionError(f"{start}shape {x.shape} is not {y.shape}")
    differ = (_bits(x) != _bits(y)) & where
    if not differ.any():
        return
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    raise AssertionError(
        f"{start}{np.count_nonzero(differ)} of {x.size} entries differ, "
        f"first at {index}: {shown(x[index])} is not {shown(y[index])}"
    )


def shown(value: float | np.floating[Any]) -> str:
    """Return a number in hexadecimal, so that no bit is lost.

    Parameters
    ----------
    value : float or numpy.float32
        A NaN is shown by its bits: NaNs differ in them only.

    Returns
    -------
    str
        As `float.hex` writes it.
    """
    if math.isnan(value):
        bits = _bits(np.asarray(value))
        return f"nan ({int(bits) & (1 << 8 * bits.itemsize) - 1:#x})"
    return float(value).hex()


_INTEGERS = {np.dtype(np.float64): np.int64, np.dtype(np.float32): np.int32}
_COMPLEX = {np.dtype(np.complex128), np.dtype(np.complex64)}


def _bits(x: NDArray[Any]) -> NDArray[Any]:
    kind = np.dtype(x.dtype.type)
    plain = np.array(x, dtype=kind, order="C", ndmin=1)
    return plain.view(_INTEGERS[kind]).reshape(x.shape)
