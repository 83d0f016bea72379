"""Stage 2: an operand as integers A' and as residues, in float64 planes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_exponents import Exponents, Lines, power_of_two
from np_ozaki.engines.parallel import BLOCK_ELEMENTS, Block, blocks, run_blocks
from np_ozaki.engines.residue_system import OPERAND_PLANE_BITS, ResidueSystem

__all__ = ["reduce_balanced", "residue_planes", "scale"]

Array = NDArray[np.float64]


def reduce_balanced(value: Array, system: ResidueSystem, scratch: Array) -> Array:
    """Reduce integers modulo every p_l in place; return `value`.

    Parameters
    ----------
    value : (T, batch, rows, columns) ndarray of float64
        Integers below 2^53.
    system : ResidueSystem
        Moduli.
    scratch : ndarray of float64
        Same shape as `value`, overwritten.

    Returns
    -------
    ndarray of float64
        Residues r with ``abs(r) <= p / 2 + 4``: the rounded reciprocal may miss the
        balanced interval by that much, which every later bound allows for.
    """
    np.multiply(value, system.reciprocal, out=scratch)
    np.rint(scratch, out=scratch)
    scratch *= system.modulus
    value -= scratch
    return value


def scale(
    x: Array, factors: tuple[Array, Array | None], truncate: bool, out: Array
) -> None:
    """Write A' = round(x 2^mu), one rounding: the products before it are exact.

    Parameters
    ----------
    x : ndarray of float64
        Finite entries.
    factors : tuple of ndarray of float64
        2^mu as `power_of_two` gives it; broadcasts against `x`.
    truncate : bool
        Whether to round toward zero instead of to nearest.
    out : ndarray of float64
        Same shape as `x`.
    """
    np.multiply(x, factors[0], out=out)
    if factors[1] is not None:
        out *= factors[1]
    if truncate:
        np.trunc(out, out=out)
    else:
        np.rint(out, out=out)


def residue_planes(
    lines: Lines,
    exponents: Exponents,
    system: ResidueSystem,
    tables: tuple[Array, ...],
    allocate: Callable[[tuple[int, ...]], Array] = np.empty,
) -> Array:
    """Return the planes that the residue GEMMs multiply.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    exponents : (batch, lines) ndarray of int64
        mu or nu.
    system : ResidueSystem
        Moduli and tables.
    tables : tuple of ndarray of float64
        ``system.left`` for A, ``system.right`` for B, or those of both operands side
        by side in one block (`paired_tables`).
    allocate : callable, optional
        Makes an uninitialised float64 array of a shape.

    Returns
    -------
    (num_planes, batch, rows, columns) ndarray of float64
        Plane 0 is A' where the system has a head, the others are residues with
        ``abs(r) <= p / 2 + 4``.  In memory order of ``lines.x``.
    """
    x = lines.x
    spread = lines.spread(exponents)
    first, second = power_of_two(spread)
    planes = allocate((system.num_planes, *x.shape))
    head = int(system.has_head)
    count = len(tables)

    def work(share: Sequence[Block]) -> None:
        size = min(BLOCK_ELEMENTS, x.size)
        buffers = np.empty((3, size))
        wide = np.empty((len(system.moduli), size))
        for block in share:
            source = x[block]
            shape = source.shape
            whole, high, step = (b[: source.size].reshape(shape) for b in buffers)
            factors = (
                lines.part(first, block),
                None if second is None else lines.part(second, block),
            )
            scaled = planes[(0, *block)] if head else whole
            scale(source, factors, system.wraps, scaled)
            if not system.moduli:
                continue
            if head:
                np.copyto(whole, scaled)
            value = planes[(slice(head, None), *block)]
            scratch = wide[:, : source.size].reshape(-1, *shape)
            for i in range(count - 1, 0, -1):
                unit = 2.0 ** (OPERAND_PLANE_BITS * i)
                np.multiply(whole, 1 / unit, out=high)
                np.rint(high, out=high)
                np.multiply(high, unit, out=step)
                whole -= step
                table = tables[i]
                if i == count - 1:
                    np.multiply(table, high, out=value)
                else:
                    np.multiply(table, high, out=scratch)
                    value += scratch
            np.multiply(tables[0], whole, out=scratch)
            if count > 1:
                value += scratch
            else:
                np.copyto(value, scratch)
            reduce_balanced(value, system, scratch)

    run_blocks(work, blocks(x.shape), lines.threads)
    return planes
