"""What every engine offers: the stages of the contract, one method each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.numerics.moduli import Family, product_bound
from np_ozaki.numerics.slicing import Slicing

__all__ = ["AnyScheme", "Balanced", "Cut", "Engine", "Outcome", "Scheme", "Target"]

Array = NDArray[np.float64]
Exponents = NDArray[np.int64]

Target = Literal["conventional", "single"] | int
"""What a certificate shall show: |C - AB| <= theta |A||B| before the one rounding.

"conventional" is theta = k u, "single" the same with float32's u = 2^-24, an int t is
theta = 2^t.
"""


@dataclass(frozen=True)
class Scheme:
    """All that the bits of a product depend on, besides its operands.

    Attributes
    ----------
    num_moduli : int
        N of the contract, 2 to 49.
    scaling : str
        "norm", "accurate" or "legacy".
    shift : int
        t: the exponents are mu - t and nu + t, which lends bits that one operand does
        not use to the other.  C' 2^-(mu + nu) cannot wrap for any t.  Whoever asks for
        t > 0 knows that no entry of A is rounded nevertheless, for t < 0 none of B.
    family : {"real", "complex"}
        Whose moduli.  The operands of "complex" are complex ones embedded in real ones,
        [[Ar, -Ai], [Ai, Ar]] and [Br; Bi]: rows i and m + i are the two parts of one
        row, with one exponent.
    """

    num_moduli: int
    scaling: str = "norm"
    shift: int = 0
    family: Family = "real"

    @property
    def limit(self) -> int:
        """M, the largest |C'| that the scaling allows."""
        return product_bound(self.num_moduli, self.family)


AnyScheme = Scheme | Slicing
"""By moduli or by slices; these lend no bits, and have no certificates and checks."""


@dataclass(frozen=True)
class Balanced:
    """Operands whose inner indices were rescaled by powers of two: A D and D^-1 B.

    Attributes
    ----------
    a : (batch, m, k) array of float64
        A D, rows also scaled by 2^rows; exact.
    b : (batch, k, n) array of float64
        D^-1 B, columns also scaled by 2^columns; exact.
    rows, columns : (batch, m) and (batch, n) ndarray of int64
        To be taken away from the result again, as `line_shifts` of `Engine.matmul`.
    spread : (batch,) ndarray of int64
        Largest minus smallest exponent in D; 0 where nothing was changed.
    """

    a: Any
    b: Any
    rows: Exponents
    columns: Exponents
    spread: Exponents


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
    recording : object or None
        What was queued, where another product of the same shapes, strides and scheme
        would queue the same.
    """

    overflow: bool
    invalid: bool
    workspace_bytes: int
    tiles: int
    missing_bits: Exponents | None = None
    recording: Any = field(default=None, compare=False, repr=False)

    @staticmethod
    def of_parts(outcomes: Sequence[Outcome]) -> Outcome:
        """Return the outcome of a batch from those of its parts, in order."""
        missing = [x.missing_bits for x in outcomes if x.missing_bits is not None]
        return Outcome(
            overflow=any(x.overflow for x in outcomes),
            invalid=any(x.invalid for x in outcomes),
            workspace_bytes=max(x.workspace_bytes for x in outcomes),
            tiles=sum(x.tiles for x in outcomes),
            missing_bits=np.concatenate(missing) if missing else None,
        )


@dataclass(frozen=True)
class Cut:
    """How a product is cut, before anything runs.

    Attributes
    ----------
    num_gemms : int
        Matrix products of the operands' size.
    tiles : int
        Tiles of all matrices of the batch.
    workspace_bytes : int
        Largest workspace in use at a time.
    """

    num_gemms: int
    tiles: int
    workspace_bytes: int


class Engine(Protocol):
    """An engine of the contract.

    Operands are (batch, m, k) and (batch, k, n) float64, batch 1 broadcasts; or both
    are float32, and mean their exact values as float64.  What `residues`,
    `residue_gemm` and `reconstruct` pass on is the engine's own business (which moduli,
    which layout); exponents and results are not: they are equal on every engine, bit
    for bit.

    Complex operands come embedded in real ones, and so do their results.  To an engine
    with `takes_complex` they come as `ComplexOperand`, results and their lower halves
    as complex arrays; whatever else it returns is about embedded ones.
    """

    name: str
    takes_complex: bool

    def scaling_exponents(
        self,
        a: Array,
        b: Array,
        num_moduli: int,
        scaling: str,
        family: Family = "real",
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
        a: Any,
        b: Any,
        out: Array,
        scheme: AnyScheme,
        *,
        workspace_bytes: int | None = None,
        certify: Target | None = None,
        line_shifts: tuple[Exponents, Exponents] | None = None,
        low: Array | None = None,
        check: bool = False,
        prepared: Pair = UNPREPARED,
    ) -> Outcome:
        """Write the product to `out` (batch, m, n), any strides.

        `out` is of the operands' dtype, or float32 beside float64 ones (rebalanced);
        entries are rounded to it once, and an overflow is one of it.  With an `out` of
        float32 there is no `low`.
        By slices it takes no other option than `low`, for accumulate "exact".
        `line_shifts`, (batch, m) and (batch, n) integers on the host, join mu and nu
        in the last stage only: C' 2^-(mu + rows + nu + columns).  `low`, of the shape
        and kind of `out`, takes what the one rounding left: the exact value minus
        `out`, rounded once to float64; 0 where `out` is not finite.  With `check` the
        integers C' of every tile are held to checksums (see `checksum`), and a
        CheckError names the first tile that does not keep them; not for scaling
        "legacy", whose C' is defined modulo P only.  What is made of A or B alone is
        looked for in its `prepared`, and kept there.
        """
        ...

    def cut(
        self,
        size: tuple[int, int, int, int],
        scheme: AnyScheme,
        *,
        certified: bool,
        checked: bool,
        workspace_bytes: int | None,
        word: int = 8,
    ) -> Cut:
        """Return how a product of (batch, m, n, k) would be cut.

        `word` is the bytes of a part of an entry, 4 in single precision.  With
        `takes_complex` and moduli of the family "complex" these are of complex
        matrices, and products are of real ones of their size.
        """
        ...

    def missing_bits(self, a: Any, b: Any, scheme: Scheme, target: Target) -> Exponents:
        """Return the second look alone: bits that each matrix is short of `target`."""
        ...

    def rebalance(self, a: Any, b: Any, family: Family = "real") -> Balanced:
        """Return operands with smaller ranges of exponents in their lines.

        See `cpu_rebalance` for the rule; `family` tells what operands stand for, as in
        a `Scheme`.
        """
        ...

    def line_exponents(
        self, x: Any, num_moduli: int, family: Family = "real", *, left: bool
    ) -> Exponents:
        """Return mu (batch, m) or nu (batch, n) of scaling "norm", on the host."""
        ...

    def line_units(self, x: Any, *, left: bool) -> tuple[Exponents, Exponents]:
        """Return what is known of the bits of each line, on the host.

        First e, of the largest entry, 2^e <= |x| < 2^(e + 1); then l, such that all
        entries are multiples of 2^l.  A line of zeros has 0 and `ZERO_UNIT`.  NaN and
        Inf count as 0.
        """
        ...

    def samples(self, *operands: Any) -> list[Array]:
        """Return a few entries of each matrix, (batch, entries), on the host.

        One wait serves all operands.
        """
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
