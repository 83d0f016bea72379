"""Random operands of `bench`, and what a right product of them looks like."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.exact import Vectors, exact_entry
from np_ozaki.config import Precision
from np_ozaki.engines.parallel import available_threads
from np_ozaki.functions import matmul
from np_ozaki.numerics import reference
from np_ozaki.numerics.slice_reference import matmul_by_slices
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import assert_same_bits

__all__ = ["PHI", "SEED", "Operands", "Size", "product_options"]

Array = NDArray[np.float64]

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
    def operand_bytes(self) -> int:
        """Bytes of A and B."""
        return 8 * self.k * (self.m + self.n)

    @property
    def left_bytes(self) -> int:
        """Bytes of A."""
        return 8 * self.m * self.k

    @property
    def result_bytes(self) -> int:
        """Bytes of A B."""
        return 8 * self.m * self.n


class Operands:
    """Two random matrices, the same at every run, and their exact product in part.

    Parameters
    ----------
    size : Size
        Shapes.
    """

    def __init__(self, size: Size) -> None:
        m, n, k = size.m, size.n, size.k
        seed = (SEED, m, n, k)
        self.a = _random((m, k), (*seed, 0))
        self.b = _random((k, n), (*seed, 1))
        rng = np.random.default_rng((*seed, 2))
        lines = _LINES_OF_LONG if k > _LONG else _LINES
        self.rows: list[int] = rng.choice(m, min(lines, m), replace=False).tolist()
        self.columns: list[int] = rng.choice(n, min(lines, n), replace=False).tolist()
        self.small = m * n * k <= _WHOLE
        self._sampled = self.a[self.rows], self.b[:, self.columns].copy()
        left, right = Vectors(self._sampled[0]), Vectors(self._sampled[1].T)
        self._exact = [
            exact_entry(left, i, right, j)
            for i in range(len(self.rows))
            for j in range(len(self.columns))
        ]
        self._by_contract: dict[int | Slicing, Array] = {}
        self._by_cpu: dict[int | Slicing, Array] = {}

    @property
    def entries(self) -> int:
        """Number of entries that are compared with exact ones."""
        return len(self._exact)

    def sampled(self, rows: Array) -> Array:
        """Return those entries.

        Parameters
        ----------
        rows : ndarray of float64
            The sampled rows of a computed product.

        Returns
        -------
        ndarray of float64
            By row and column of the sample.
        """
        return rows[:, self.columns]

    def error(self, sampled: Array) -> float:
        """Return the largest error, relative to abs(A) abs(B), in u = 2^-53.

        Parameters
        ----------
        sampled : ndarray of float64
            From `sampled`.

        Returns
        -------
        float
            Infinite for entries that are not finite.
        """
        pairs = zip(self._exact, sampled.flat, strict=True)
        return max(exact.error(float(value)) for exact, value in pairs)

    def check_sampled(self, sampled: Array, scheme: int | Slicing) -> None:
        """Compare sampled entries with the contract in Python integers.

        Parameters
        ----------
        sampled : ndarray of float64
            From `sampled`.
        scheme : int or Slicing
            N of the contract, the scaling is "norm"; or slices.

        Raises
        ------
        AssertionError
            They differ in a bit.
        """
        if scheme not in self._by_contract:
            of_slices = isinstance(scheme, Slicing)
            multiply: Any = matmul_by_slices if of_slices else reference.matmul
            self._by_contract[scheme] = np.array(multiply(*self._sampled, scheme))
        assert_same_bits(sampled, self._by_contract[scheme])

    def check_whole(self, product: Array, scheme: int | Slicing) -> None:
        """Compare a whole product, of `small` operands, with the CPU engine's.

        Parameters
        ----------
        product : (m, n) ndarray of float64
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
