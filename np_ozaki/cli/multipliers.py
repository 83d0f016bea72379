"""The two that `verify` compares: np_ozaki and native NumPy."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.measure import Case, Sample
from np_ozaki.config import Options
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.functions import error_bound as promised_bound
from np_ozaki.functions import matmul
from np_ozaki.numerics.bounds import conventional_bound, error_bound
from np_ozaki.numerics.formats import DOUBLE
from np_ozaki.scope import disabled
from np_ozaki.stats import CallInfo

__all__ = ["Native", "Ours"]

Array = NDArray[np.float64]


def _zeroed(x: Array) -> Array:
    """Return `x` with zeros for NaN and infinities, as the exponents see it."""
    return np.where(np.isfinite(x), x, 0.0)


class Ours:
    """The engines of np_ozaki, by the public function.

    Parameters
    ----------
    given : dict of str to object
        Options for `np_ozaki.matmul`.
    options : Options
        All of them.
    """

    def __init__(self, given: dict[str, Any], options: Options) -> None:
        self._given = given
        self._options = options
        self._call: CallInfo | None = None

    @property
    def binding(self) -> bool:
        """The contract is a promise; "legacy" is kept to show what fails."""
        return self._options.scaling != "legacy"

    def mirrors(self, *, is_complex: bool) -> bool:
        """Return what options say; about bits of cuBLAS nobody says anything."""
        return self.scales and self._options.mirrors(is_complex=is_complex)

    @property
    def scales(self) -> bool:
        """The contract says so; about bits of cuBLAS nobody does."""
        return self._options.engine != "cublas"

    def __call__(
        self, a: NDArray[Any], b: NDArray[Any]
    ) -> tuple[NDArray[Any], str, int | None]:
        """Return the product, the engine's name and the number of moduli."""
        with np.errstate(all="ignore"):
            c, info = cast(
                "tuple[Array, CallInfo]",
                matmul(a, b, return_info=True, **self._given),
            )
        self._call = info
        return c, info.engine, info.num_moduli

    def bound(self, case: Case, sample: Sample, c: Array) -> Array | None:
        """Return the bound that belongs to the last product, of `case`."""
        if self._call is None or self._call.engine == "cublas" or not self.binding:
            return None
        computed = c[np.ix_(sample.rows, sample.columns)]
        if not computed.size:
            return np.zeros(computed.shape)
        a, b = _zeroed(case.a), _zeroed(case.b)
        if case.entries.name != "float64":
            return self._promised(case, a, b)[np.ix_(sample.rows, sample.columns)]
        if self._options.scheme == "slices":
            # A row's exponent is its own business.
            computed = np.where(np.isnan(computed), np.inf, computed)
            given = {x: y for x, y in self._given.items() if x != "workspace_bytes"}
            bound: Array = promised_bound(
                a[sample.rows], b[:, sample.columns], computed, **given
            )
            return bound
        if self._call.num_moduli is None:
            return None
        # Those of the whole operands: with scaling "accurate" they depend on both.
        mu, nu = CpuEngine().scaling_exponents(
            a[np.newaxis],
            b[np.newaxis],
            self._call.num_moduli,
            self._options.scaling,
        )
        if self._call.fallback is not None:
            return conventional_bound(a[sample.rows], b[:, sample.columns])
        # A NaN where none belongs keeps to no bound; that is found out later.
        computed = np.where(np.isnan(computed), np.inf, computed)
        if self._call.rebalanced:
            # Certified with exponents that are not those of A and B.
            certified = conventional_bound(a[sample.rows], b[:, sample.columns])
            if isinstance(self._options.precision, float):
                certified *= self._options.precision / (a.shape[1] * 2.0**-53)
            return certified + np.abs(computed) * 2.0**-52
        return error_bound(
            a[sample.rows],
            b[:, sample.columns],
            computed,
            mu[0, sample.rows] - self._call.shift,
            nu[0, sample.columns] + self._call.shift,
        )

    def _promised(self, case: Case, a: Array, b: Array) -> Array:
        """Return what the public function says of every entry of its product."""
        left, right = case.entries.left_of(a), case.entries.right_of(b)
        with np.errstate(all="ignore"):
            _, info = matmul(left, right, return_info="bound", **self._given)
        bound = info.bound
        if case.entries.is_complex:
            bound = np.concatenate((bound.real, bound.imag))
        return np.asarray(bound, np.float64)


class Native:
    """NumPy's own product."""

    @property
    def binding(self) -> bool:
        """It is here for comparison."""
        return False

    def mirrors(self, *, is_complex: bool) -> bool:
        """Return True: BLAS has routines for it."""
        return True

    @property
    def scales(self) -> bool:
        """Floating point does, away from its limits."""
        return True

    def __call__(
        self, a: NDArray[Any], b: NDArray[Any]
    ) -> tuple[NDArray[Any], str, int | None]:
        """Return the product, the engine's name and None."""
        with np.errstate(all="ignore"), disabled():
            return np.matmul(a, b), "native", None

    def bound(self, case: Case, sample: Sample, c: Array) -> Array:
        """Return what any conventional product keeps to without overflow."""
        bound = conventional_bound(case.a[sample.rows], case.b[:, sample.columns])
        part = case.entries.part
        # Of products in another format u, and what is lost to underflow.
        lost = case.a.shape[1] * part.tiny
        return np.asarray(bound * (part.unit / DOUBLE.unit) + lost)
