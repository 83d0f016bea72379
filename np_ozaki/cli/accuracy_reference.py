"""What the products of `accuracy` are compared with: exact ones, and proved so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import Entries
from np_ozaki.cli.measure import Case, Sample
from np_ozaki.cli.multipliers import Native
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.functions import matmul
from np_ozaki.numerics.bounds import residual_bound
from np_ozaki.numerics.moduli import MAX_MODULI

__all__ = ["Errors", "Reference"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Largest errors of one computed product; infinite for NaN.

    Attributes
    ----------
    relative : float
        Of abs(C - AB) / abs(AB), what the papers show.  One entry that cancels
        decides it.
    componentwise : float
        Of abs(C - AB) / (abs(A) abs(B)), what FP64 products have bounds for.
    """

    relative: float
    componentwise: float


class Reference:
    """The product of two finite matrices to about 106 bits.

    Parameters
    ----------
    a : (m, k) ndarray of float64
        Left operand, as `Entries.real_left` has it.
    b : (k, n) ndarray of float64
        Right operand, likewise.
    entries : Entries
        Of the products that are compared.

    Notes
    -----
    With 49 moduli the CPU engine rounds no entry of ordinary operands to an integer,
    and its result R is the exact product, rounded once.  AB - R, the product of
    [A, R] and [B; -I], is found in the same way.  `exact` says whether both hold, by
    bounds that are zero then and by Python integers.
    """

    def __init__(self, a: Array, b: Array, entries: Entries) -> None:
        self._parts = entries.parts
        self._rounded, first = _product(a, b)
        # The identity times a power of two that keeps R at the magnitude of A.
        unit = np.ldexp(np.eye(b.shape[1]), np.frexp(np.abs(b).max())[1])
        self._rest, second = _product(
            np.hstack([a, self._rounded / unit.max()]), np.vstack([b, -unit])
        )
        self._size, *_ = Native()(np.abs(a), np.abs(b))
        sample = Sample(Case("reference", a, b))
        self._entries = len(sample.rows) * len(sample.columns)
        computed = self._rounded[np.ix_(sample.rows, sample.columns)]
        expected = [[entry.rounded() for entry in row] for row in sample.exact]
        self._exact = first and second and np.array_equal(computed, expected)

    @property
    def exact(self) -> bool:
        """Whether no operand was rounded, and Python integers give the same."""
        return self._exact

    @property
    def entries(self) -> int:
        """Number of entries that were compared with Python integers."""
        return self._entries // self._parts

    def errors(self, c: Array) -> Errors:
        """Return the largest errors of a computed product.

        Parameters
        ----------
        c : (m, n) ndarray of float64
            As computed.

        Returns
        -------
        Errors
            Correct to a few units in their own last places.
        """
        with np.errstate(all="ignore"):
            error = np.abs((c - self._rounded) - self._rest)
            error[~np.isfinite(c)] = np.inf
        return Errors(
            _largest_ratio(error, np.abs(self._rounded)),
            _largest_ratio(error, self._size),
        )


def _product(a: Array, b: Array) -> tuple[Array, bool]:
    """Return a product by 49 moduli, and whether it is exact but for one rounding."""
    mu, nu = CpuEngine().scaling_exponents(
        a[np.newaxis], b[np.newaxis], MAX_MODULI, "norm"
    )
    exact = not residual_bound(a, b, mu[0], nu[0]).any()
    c = matmul(a, b, precision=MAX_MODULI, scaling="norm", engine="cpu")
    return np.asarray(c), exact


def _largest_ratio(error: Array, size: Array) -> float:
    with np.errstate(all="ignore"):
        ratios = np.divide(error, size, out=np.zeros_like(error), where=error != 0.0)
    return float(ratios.max())
