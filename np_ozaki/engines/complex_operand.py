"""Complex operands as real ones: embedded in real matrices, and results taken apart.

[ Ar  -Ai ]   [ Br ]   [ Re C ]
[ Ai   Ar ] * [ Bi ] = [ Im C ]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ComplexOperand", "embedded", "put_parts", "real_of"]

Real = NDArray[np.float64]
"""Or of float32, where complex entries are of complex64."""

Complex = NDArray[np.complex128]


def embedded(x: Complex, *, left: bool, conjugated: bool = False) -> Real:
    """Return the real matrices that stand for complex ones.

    Parameters
    ----------
    x : (batch, m, k) or (batch, k, n) array of complex128 or complex64
        A or B; of the host or a GPU.
    left : bool
        Whether it is A.
    conjugated : bool, optional
        Whether the operand is conj(x).

    Returns
    -------
    (batch, 2m, 2k) or (batch, 2k, n) array of float64 or float32
        C-contiguous, where `x` lies.
    """
    batch, rows, columns = x.shape
    shape = (batch, 2 * rows, 2 * columns if left else columns)
    result: Real = np.empty_like(x.real, shape=shape, order="C")
    result[:, :rows, :columns] = x.real
    plus = result[:, rows:, :columns]
    if not left:
        if conjugated:
            _put_negative(x.imag, plus)
        else:
            plus[...] = x.imag
        return result
    result[:, rows:, columns:] = x.real
    minus = result[:, :rows, columns:]
    if conjugated:
        plus, minus = minus, plus
    plus[...] = x.imag
    _put_negative(x.imag, minus)
    return result


def _put_negative(x: Real, out: Real) -> None:
    """Write -x by flipping signs.

    `np.negative` takes the first entry for all of them where they are 64 bytes apart
    (16 of float32) and `out` has gaps, too (NumPy 2.4.6).
    """
    out[...] = x
    bits = out.view(np.dtype(f"u{out.itemsize}"))
    sign = bits.dtype.type(1 << 8 * out.itemsize - 1)
    np.bitwise_xor(bits, sign, out=bits)


def put_parts(parts: Real, out: Complex) -> None:
    """Write real and imaginary parts to complex entries.

    Parameters
    ----------
    parts : (batch, 2m, n) array of float64
        Real parts above imaginary ones.
    out : (batch, m, n) array of complex128
        Overwritten; where `parts` is.
    """
    m = out.shape[1]
    out.real[...] = parts[:, :m]
    out.imag[...] = parts[:, m:]


@dataclass(frozen=True)
class ComplexOperand:
    """Matrices that an engine may take as complex ones or embedded in real ones.

    Attributes
    ----------
    x : (batch, m, k) or (batch, k, n) array of complex128 or complex64
        A or B; of the host or a GPU.
    left : bool
        Whether it is A.
    conjugated : bool
        Whether the operand is conj(x).
    """

    x: Any
    left: bool
    conjugated: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the embedded operand."""
        batch, rows, columns = self.x.shape
        return batch, 2 * rows, 2 * columns if self.left else columns

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the complex entries, in bytes."""
        return tuple(self.x.strides)

    def __getitem__(self, index: slice | list[int]) -> ComplexOperand:
        """Return some matrices of the batch."""
        return ComplexOperand(self.x[index], self.left, self.conjugated)

    def embedded(self) -> Real:
        """Return the real matrices."""
        return embedded(self.x, left=self.left, conjugated=self.conjugated)


def real_of(x: Any) -> Any:
    """Return the real matrices of an operand.

    Parameters
    ----------
    x : array of float64 or ComplexOperand

    Returns
    -------
    array of float64
        `x` itself, or embedded.
    """
    return x.embedded() if isinstance(x, ComplexOperand) else x
