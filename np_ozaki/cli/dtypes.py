"""What commands know of the dtypes of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Precision
from np_ozaki.engines.complex_operand import embedded

__all__ = ["DTYPES", "Entries"]


@dataclass(frozen=True)
class Entries:
    """The entries of a product.

    Attributes
    ----------
    name : str
        Of the dtype.
    roundoff_bits : int
        Errors are counted in u = 2^-bits.
    moduli : tuple of "auto" or int
        Precisions that are shown unless others are asked for.
    """

    name: str
    roundoff_bits: int
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
    def unit(self) -> float:
        """U of these entries in that of float64."""
        return 2.0 ** (53 - self.roundoff_bits)

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


DTYPES = {
    entries.name: entries
    for entries in (
        Entries("float64", 53, (14, 15, "auto")),
        Entries("complex128", 53, (15, 16, "auto")),
        Entries("float32", 24, (7, 8, "auto")),
        Entries("complex64", 24, (7, 8, "auto")),
    )
}
"""By name."""
