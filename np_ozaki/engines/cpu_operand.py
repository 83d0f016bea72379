"""Operands of the CPU engine: what the stages take, and what is kept of one operand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu_certificate import Side, first_look_facts, side, split
from np_ozaki.engines.cpu_exponents import Exponents, Lines, magnitudes
from np_ozaki.engines.cpu_stages import CpuStages
from np_ozaki.engines.prepared import HOST, NO_KEEPER, Keeper, Prepared
from np_ozaki.engines.residue_system import ResidueSystem

__all__ = ["CpuOperand", "Scaled", "finite_lines", "keeper_of", "operand"]

Array = NDArray[np.float64]
_T = TypeVar("_T", np.float64, np.int64)


@dataclass(frozen=True)
class CpuOperand:
    """One operand of a product, or both stacked as rows: all that is made of it alone.

    Attributes
    ----------
    lines : Lines
        Rows of A or columns of B; finite, with 0 for NaN and Inf.
    largest : (batch, lines) ndarray of float64
        Magnitudes of the same.
    special : bool
        Whether it held NaN or Inf.
    exponents : (batch, lines) ndarray of int64 or None
        mu or nu; None as long as they are to be found from both operands.
    planes : (num_planes, batch, ...) ndarray of float64 or None
        Residues of all lines, read-only; None where each tile makes its own.
    first_look : tuple or None
        From `cpu_certificate.first_look_facts`, where they are kept.
    """

    lines: Lines
    largest: Array
    special: bool
    exponents: Exponents | None = None
    planes: Array | None = None
    first_look: tuple[Array, Array | None] | None = None

    @property
    def count(self) -> int:
        """Number of lines."""
        return int(self.largest.shape[1])

    def of(self, chosen: slice | NDArray[np.intp]) -> CpuOperand:
        """Return some matrices of the batch; one that serves them all stays."""
        if self.largest.shape[0] == 1:
            return self
        known = self.first_look
        return CpuOperand(
            replace(self.lines, x=self.lines.x[chosen]),
            self.largest[chosen],
            self.special,
            _part(self.exponents, chosen),
            None if self.planes is None else self.planes[:, chosen],
            None if known is None else (known[0][chosen], _part(known[1], chosen)),
        )

    def repeated(self, batch: int) -> CpuOperand:
        """Return it with a matrix for each of the batch, before it has exponents."""
        x = self.lines.x
        lines = replace(self.lines, x=np.broadcast_to(x, (batch, *x.shape[1:])))
        largest = np.broadcast_to(self.largest, (batch, self.largest.shape[1]))
        return CpuOperand(lines, largest, self.special)


def _part(
    x: NDArray[_T] | None, chosen: slice | NDArray[np.intp]
) -> NDArray[_T] | None:
    return None if x is None else x[chosen]


@dataclass(frozen=True)
class Scaled:
    """The operands of a part of a batch as a certificate looks at them.

    Attributes
    ----------
    operands : tuple of CpuOperand
        A and B, or one that stacks them as rows; with exponents.
    m : int
        Rows of A.
    shift : int
        The scheme's.
    """

    operands: tuple[CpuOperand, ...]
    m: int
    shift: int

    @property
    def special(self) -> bool:
        """Whether an operand held NaN or Inf."""
        return any(x.special for x in self.operands)

    @property
    def exponents(self) -> list[Exponents]:
        """Those of the operands."""
        return [x.exponents for x in self.operands if x.exponents is not None]

    def sides(self, thorough: bool) -> tuple[Side, Side]:
        """Return what A and B contribute to a certificate."""
        left, *rest = (
            side(
                x.lines,
                x.largest,
                exponents,
                left=not i,
                thorough=thorough,
                known=x.first_look,
            )
            for i, (x, exponents) in enumerate(
                zip(self.operands, self.exponents, strict=True)
            )
        )
        a, b = (left, rest[0]) if rest else split(left, self.m)
        # Whoever lends bits is not rounded.
        if self.shift > 0:
            a = replace(a, unit=np.zeros_like(a.unit))
        elif self.shift < 0:
            b = replace(b, unit=np.zeros_like(b.unit))
        return a, b

    def of(self, chosen: NDArray[np.intp]) -> Scaled:
        """Return the chosen matrices of the batch."""
        return replace(self, operands=tuple(x.of(chosen) for x in self.operands))


def finite_lines(x: Array, axis: int, threads: int) -> tuple[Array | None, Array, bool]:
    """Return what takes the place of NaN and Inf, the magnitudes, and if any were.

    Parameters
    ----------
    x : (batch, m, k) or (batch, k, n) ndarray of float64
        A or B, any strides.
    axis : int
        Of k, -1 or -2.
    threads : int
        For the passes over it.

    Returns
    -------
    finite : ndarray of float64 or None
        A copy with 0 for NaN and Inf, or None for x itself.
    largest : (batch, lines) ndarray of float64
        Magnitudes of the lines of that.
    special : bool
        Whether x held NaN or Inf.
    """
    largest = magnitudes(Lines.of(x, axis, threads))
    if np.isfinite(np.add.reduce(largest, axis=None)):
        return None, largest, False
    # The sum may also overflow: then all of x is finite and is copied in vain.
    special = not np.isfinite(largest).all()
    finite = np.where(np.isfinite(x), x, 0.0)
    return finite, magnitudes(Lines.of(finite, axis, threads)), special


def keeper_of(x: Array, prepared: Prepared, limit: int, *, left: bool) -> Keeper:
    """Return where to keep what is made of an operand.

    Parameters
    ----------
    x : (batch, m, k) or (batch, k, n) ndarray of float64
        A or B.
    prepared : Prepared
        Of `x` in that role.
    limit : int
        Bytes of all that may be kept on the host.
    left : bool
        Whether `x` is A.

    Returns
    -------
    Keeper
    """
    return Keeper(prepared, HOST, limit, "cpu", left, x.shape, x.strides)


def operand(
    stages: CpuStages,
    x: Array,
    scheme: Scheme,
    system: ResidueSystem,
    keeper: Keeper = NO_KEEPER,
    *,
    left: bool,
    certified: bool = False,
) -> CpuOperand:
    """Return what is made of one operand alone.

    Parameters
    ----------
    stages : CpuStages
        Who makes it.
    x : (batch, m, k) or (batch, k, n) ndarray of float64
        A or B, any strides.
    scheme : Scheme
        Moduli, scaling, shift.
    system : ResidueSystem
        The engine's moduli for it.
    keeper : Keeper, optional
        Of `x`; without one no planes are made here.
    left : bool
        Whether `x` is A.
    certified : bool, optional
        Whether the first look's facts are worth keeping.

    Returns
    -------
    CpuOperand
        Without exponents for scaling "accurate".
    """
    axis, threads = (-1 if left else -2), stages.threads
    finite, largest, special = keeper.value(
        lambda: finite_lines(x, axis, threads), "lines"
    )
    lines = Lines.of(x if finite is None else finite, axis, threads)
    if scheme.scaling == "accurate":
        return CpuOperand(lines, largest, special)
    size = 8 * system.num_planes * x.size
    whole = keeper.has_room(size)

    def scale() -> tuple[Exponents, Array | None]:
        exponents = stages.line_exponents_of(lines, largest, scheme, left=left)
        if not whole:
            return exponents, None
        planes = stages.residues(lines.matrix(axis), exponents, system, left=left)
        planes.flags.writeable = False
        return exponents, planes

    exponents, planes = keeper.value(
        scale,
        "scaled",
        scheme,
        whole,
        nbytes=size if whole else 0,
        is_operand=True,
    )
    first_look = None
    if certified and keeper.has_room(0):
        first_look = keeper.value(
            lambda: first_look_facts(lines, largest, left=left), "first look"
        )
    return CpuOperand(lines, largest, special, exponents, planes, first_look)
