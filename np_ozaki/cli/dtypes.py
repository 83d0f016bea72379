"""What commands know of the dtypes of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Precision
from np_ozaki.engines.complex_operand import embedded
from np_ozaki.numerics.formats import Format, format_of

__all__ = ["DTYPES", "Entries"]


@dataclass(frozen=True)
class Entries:
    """The entries of a product.

    Attributes
    ----------
    name : str
        Of the dtype.
    usual : int
        Number of moduli for the accuracy of native products of ordinary data.
    moduli : tuple of "auto" or int
        Precisions that are timed unless others are asked for.
    """

    name: str
    usual: int
    moduli: tuple[Precision, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the arrays."""
        return np.dtype(self.name)

    @property
    def is_complex(self) -> bool:
        """Whether an entry has two parts."""
        return self.dtype.kind == "c"

    @property
    def parts(self) -> int:
        """Parts of an entry."""
        return 1 + self.is_complex

    @property
    def operations(self) -> str:
        """What m n k count, for legends."""
        return "8 m n k" if self.is_complex else "2 m n k"

    @property
    def part(self) -> Format:
        """What parts are rounded to; errors are counted in its u."""
        return format_of(self.dtype)

    def transposed(self, name: str) -> str:
        """Return how the matrix is written that makes a Gram matrix of X."""
        return f"{name}.conj().T" if self.is_complex else f"{name}.T"

    def flop(self, count: int) -> int:
        """Return the operations of a product, from 2 m n k."""
        return count * self.parts**2

    def real_left(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return rows of A as real rows: those of real parts, then of imaginary ones.

        Parameters
        ----------
        x : (rows, k) ndarray
            Of this dtype.

        Returns
        -------
        (rows, k) or (2 rows, 2k) ndarray of float64
        """
        if self.is_complex:
            x = embedded(x[np.newaxis], left=True)[0]
        return np.asarray(x, np.float64)

    def real_right(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return columns of B, or a result, likewise.

        Parameters
        ----------
        x : (k, columns) ndarray
            Of this dtype.

        Returns
        -------
        (k, columns) or (2k, columns) ndarray of float64
        """
        if self.is_complex:
            x = embedded(x[np.newaxis], left=False)[0]
        return np.asarray(x, np.float64)

    def left_of(self, real: NDArray[np.float64]) -> NDArray[Any]:
        """Return the rows of A that `real_left` makes these of.

        Parameters
        ----------
        real : (rows, k) or (2 rows, 2k) ndarray of float64

        Returns
        -------
        (rows, k) ndarray
            Of this dtype.
        """
        columns = real.shape[1] // self.parts
        return self.right_of(real[:, :columns])

    def right_of(self, real: NDArray[np.float64]) -> NDArray[Any]:
        """Return the columns of B, or the result, that `real_right` makes these of.

        Parameters
        ----------
        real : (k, columns) or (2k, columns) ndarray of float64

        Returns
        -------
        (k, columns) ndarray
            Of this dtype.
        """
        if not self.is_complex:
            return real.astype(self.dtype, copy=False)
        rows = len(real) // 2
        x = np.empty((rows, real.shape[1]), self.dtype)
        x.real, x.imag = real[:rows], real[rows:]
        return x


DTYPES = {
    entries.name: entries
    for entries in (
        Entries("float64", 15, (14, 15, "auto")),
        Entries("complex128", 16, (15, 16, "auto")),
        Entries("float32", 7, (7, 8, "auto")),
        Entries("complex64", 8, (7, 8, "auto")),
    )
}
"""By name."""
