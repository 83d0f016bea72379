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
    `residues`, `residue_gemm` and `reconstruct` pass on is the engine's own business
    (which moduli, which layout); exponents and results are not: they are equal on every
    engine, bit for bit.
    """

    name: str

    def scaling_exponents(
        self, a: Array, b: Array, num_moduli: int, scaling: str
    ) -> tuple[Exponents, Exponents]:
        """Return mu (batch, m) and nu (batch, n)."""
        ...

    def residues(self, *args: Any, **kwargs: Any) -> Any:
        """Return the planes of one scaled operand."""
        ...

    def residue_gemm(self, *args: Any, **kwargs: Any) -> Any:
        """Multiply plane by plane, exactly."""
        ...

    def reconstruct(self, *args: Any, **kwargs: Any) -> None:
        """Write round(C' 2^-(mu + nu))."""
        ...

    def matmul(
        self,
        a: Array,
        b: Array,
        out: Array,
        *,
        num_moduli: int,
        scaling: str,
        workspace_bytes: int | None,
        certify: bool = False,
    ) -> Outcome:
        """Write the product to `out` (batch, m, n), any strides."""
        ...

    def native(self, a: Any, b: Any) -> Any:
        """Return the product in conventional FP64, where the operands are."""
        ...

    def to_host(self, x: Any) -> Array:
        """Return an array in host memory."""
        ...

    def from_host(self, x: Array, like: Any) -> Any:
        """Return an array where `like` is."""
        ...
