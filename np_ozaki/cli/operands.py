"""Random operands of `bench`, and what a right product of them looks like."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import Entries
from np_ozaki.cli.exact import Vectors, exact_entry
from np_ozaki.config import Precision
from np_ozaki.engines.parallel import available_threads
from np_ozaki.functions import matmul
from np_ozaki.numerics import reference
from np_ozaki.numerics.complex_reference import complex_matmul
from np_ozaki.numerics.slice_reference import matmul_by_slices
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import assert_same_bits

__all__ = ["PHI", "SEED", "Operands", "Size", "product_options"]

Array = NDArray[Any]

PHI = 0.5
"""Spread of the data, (rand - 0.5) exp(PHI randn), as in the papers."""

SEED = 20260101

_LINES = 6
_LINES_OF_LONG = 4
_LONG = 4096
"""Rows and columns whose products are compared with exact ones; fewer of long ones."""

_WHOLE = 1024**3
"""m n k up to which every entry is compared with the CPU engine's."""

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Size:
    """Shapes of a product: (m, k) by (k, n).

    Attributes
    ----------
    m, n, k : int
        At least 1.
    """

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        """Return n where all are equal, else all three."""
        square = self.m == self.n == self.k
        return f"{self.n}" if square else f"{self.m}x{self.n}x{self.k}"

    @property
    def operands(self) -> int:
        """Entries of A and B."""
        return self.k * (self.m + self.n)

    @property
    def left(self) -> int:
        """Entries of A."""
        return self.m * self.k

    @property
    def result(self) -> int:
        """Entries of A B."""
        return self.m * self.n


class Operands:
    """Two random matrices, the same at every run, and their exact product in part.

    Parameters
    ----------
    size : Size
        Shapes.
    entries_of : Entries
        Of both.
    """

    def __init__(self, size: Size, entries_of: Entries) -> None:
        m, n, k = size.m, size.n, size.k
        seed = (SEED, m, n, k)
        self._of = entries_of
        self.a = _matrix((m, k), (*seed, 0), entries_of)
        self.b = _matrix((k, n), (*seed, 1), entries_of)
        rng = np.random.default_rng((*seed, 2))
        lines = _LINES_OF_LONG if k > _LONG else _LINES
        self.rows: list[int] = rng.choice(m, min(lines, m), replace=False).tolist()
        self.columns: list[int] = rng.choice(n, min(lines, n), replace=False).tolist()
        self.small = m * n * k <= _WHOLE
        self._sampled = self.a[self.rows], self.b[:, self.columns].copy()
        left = entries_of.real_left(self._sampled[0])
        right = entries_of.real_right(self._sampled[1])
        rows, columns = Vectors(left), Vectors(right.T)
        self._exact = [
            exact_entry(rows, i, columns, j, entries_of.part)
            for i in range(len(left))
            for j in range(right.shape[1])
        ]
        self._by_contract: dict[int | Slicing, Array] = {}
        self._by_cpu: dict[int | Slicing, Array] = {}

    @property
    def entries(self) -> int:
        """Number of entries that are compared with exact ones, each in all parts."""
        return len(self._exact) // self._of.parts

    def sampled(self, rows: Array) -> Array:
        """Return those entries.

        Parameters
        ----------
        rows : ndarray
            The sampled rows of a computed product.

        Returns
        -------
        ndarray
            By row and column of the sample.
        """
        return rows[:, self.columns]

    def error(self, sampled: Array) -> float:
        """Return the largest error of a part, relative to abs(A) abs(B), in u.

        Parameters
        ----------
        sampled : ndarray
            From `sampled`.

        Returns
        -------
        float
            Infinite for entries that are not finite.
        """
        pairs = zip(self._exact, self._of.real_right(sampled).flat, strict=True)
        return max(exact.error(float(value)) for exact, value in pairs)

    def check_sampled(self, sampled: Array, scheme: int | Slicing) -> None:
        """Compare sampled entries with the contract in Python integers.

        Parameters
        ----------
        sampled : ndarray
            From `sampled`.
        scheme : int or Slicing
            N of the contract, the scaling is "norm"; or slices, of float64 only.

        Raises
        ------
        AssertionError
            They differ in a bit.
        """
        if scheme not in self._by_contract:
            dtype = self._of.dtype
            multiply: Any = complex_matmul if self._of.is_complex else reference.matmul
            if isinstance(scheme, Slicing):
                multiply = matmul_by_slices
            made = multiply(*self._sampled, scheme, to=self._of.part)
            self._by_contract[scheme] = np.array(made, dtype)
        assert_same_bits(sampled, self._by_contract[scheme])

    def check_whole(self, product: Array, scheme: int | Slicing) -> None:
        """Compare a whole product, of `small` operands, with the CPU engine's.

        Parameters
        ----------
        product : (m, n) ndarray
            As computed.
        scheme : int or Slicing
            As for `check_sampled`.

        Raises
        ------
        AssertionError
            They differ in a bit.
        """
        if scheme not in self._by_cpu:
            options = product_options(scheme)
            self._by_cpu[scheme] = matmul(self.a, self.b, engine="cpu", **options)
        assert_same_bits(product, self._by_cpu[scheme])


def product_options(scheme: Precision | Slicing | None) -> dict[str, Any]:
    """Return options of `np_ozaki.matmul`, whatever the environment asks for.

    Parameters
    ----------
    scheme : "auto", int, Slicing or None
        A precision of moduli, or slices.

    Returns
    -------
    dict of str to object
    """
    if isinstance(scheme, Slicing):
        options = {"scheme": "slices", "precision": "auto", **vars(scheme)}
    else:
        options = {"scheme": "moduli", "precision": scheme}
    return options | {"scaling": "norm"}


def _matrix(shape: tuple[int, int], seed: tuple[int, ...], of: Entries) -> Array:
    """Return a matrix of a dtype; the real parts are the same for all."""
    x = np.empty(shape, of.dtype)
    x.real = _random(shape, seed)
    if of.is_complex:
        x.imag = _random(shape, (*seed, 1))
    return x


def _random(shape: tuple[int, int], seed: tuple[int, ...]) -> Array:
    """Return a matrix by several threads; their number changes nothing."""
    x = np.empty(shape)
    rows = max(1, _BLOCK // shape[1])

    def fill(first: int) -> None:
        part = x[first : first + rows]
        rng = np.random.default_rng((*seed, first))
        spread = np.exp(PHI * rng.standard_normal(part.shape))
        np.multiply(rng.random(part.shape) - 0.5, spread, out=part)

    with ThreadPoolExecutor(available_threads()) as pool:
        list(pool.map(fill, range(0, shape[0], rows)))
    return x
