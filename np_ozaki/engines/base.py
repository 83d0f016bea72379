"""What every engine offers: the stages of the contract, one method each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Engine", "Outcome"]

Array = NDArray[np.float64]
Exponents = NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """What a product did besides its result.

    Attributes
    ----------
    overflow : bool
        Finite operands gave an infinite entry.
    invalid : bool
        A NaN came from operands without one (Inf - Inf or Inf * 0).
    workspace_bytes : int
        Largest workspace in use at a time.
    tiles : int
        Tiles that the product was cut to.
    missing_bits : (batch,) ndarray of int64, or None
        Where a certificate was asked for: bits that the operands of each matrix
        product are short of it; 0 where it is certified.
    """

    overflow: bool
    invalid: bool
    workspace_bytes: int
    tiles: int
    missing_bits: Exponents | None = None


class Engine(Protocol):
    """An engine of the contract.

    Operands are (batch, m, k) and (batch, k, n) float64, batch 1 broadcasts.  What
    `residues` and `residue_gemm` pass on is the engine's own business (which moduli,
    which layout); exponents and results are not: they are equal on every engine, bit
    for bit.
    """

    name: str

    def scaling_exponents(
        self, a: Array, b: Array, num_moduli: int, scaling: str
    ) -> tuple[Exponents, Exponents]:
        """Return mu (batch, m) and nu (batch, n)."""
        ...

    def residues(
        self, x: Array, exponents: Exponents, system: Any, *, left: bool
    ) -> Array:
        """Return the planes of one scaled operand."""
        ...

    def residue_gemm(self, left: Array, right: Array, out: Array) -> None:
        """Multiply plane by plane, exactly."""
        ...

    def reconstruct(
        self,
        products: Array,
        mu: Exponents,
        nu: Exponents,
        system: Any,
        out: Array,
    ) -> None:
        """Write round(C' 2^-(mu + nu)) to `out`."""
        ...

    def matmul(
        self,
        a: Array,
        b: Array,
        out: Array,
        *,
        num_moduli: int,
        scaling: str,
        workspace_bytes: int,
        certify: bool = False,
    ) -> Outcome:
        """Write the product to `out` (batch, m, n), any strides."""
        ...
