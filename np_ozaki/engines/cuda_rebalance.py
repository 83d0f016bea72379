"""Rebalancing and facts about bits on a GPU, by the rules of the CPU engine.

Kernels pass over the entries; vectors of the length of k and of lines go to the host
between the passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.base import Balanced, Exponents, Scheme
from np_ozaki.engines.cpu_exponents import largest_exponents
from np_ozaki.engines.cpu_rebalance import LINE_TOP, ROUNDS
from np_ozaki.engines.cpu_units import ZERO_UNIT
from np_ozaki.engines.cuda_lines import Operands

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = ["line_units", "rebalance"]

_OFFSET = 1 << 20
"""What the kernels add to exponents; 0 is then a line without one."""


def line_units(stages: Stages, operand: Operands) -> tuple[Exponents, Exponents]:
    """Return e and l of each line, on the host; see `cpu_units.line_units`.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    operand : Operands
        Rows of A or columns of B; NaN and Inf count as 0.

    Returns
    -------
    e, unit : (batch, lines) ndarray of int64
        0 and `ZERO_UNIT` for a line of zeros.
    """
    device = stages.device
    below = device.zeros(operand.x.shape[:2], np.int32)
    stages.lowest_units(operand, below)
    # Which rule makes the exponents does not matter: the largest entries are wanted.
    facts = stages.line_facts(operand, Scheme(2), left=True)
    largest = device.fetch(facts.words)[0].view(np.float64)
    e = np.where(largest > 0, largest_exponents(largest), 0)
    return e, ZERO_UNIT - device.fetch(below).astype(np.int64)


def rebalance(stages: Stages, a: Any, b: Any) -> Balanced:
    """Return A D and D^-1 B for each matrix of a batch; see `cpu_rebalance`.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    a : (batch, m, k) device array of float64
        Batch 1 broadcasts; NaN and Inf stay what they are.
    b : (batch, k, n) device array of float64
        Batch 1 broadcasts.

    Returns
    -------
    Balanced
        Operands on the device, with spread 0, and then of no use, where D would not
        be finite.
    """
    device = stages.device
    batch = max(a.shape[0], b.shape[0])
    a, b = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (a, b))
    left, right = Operands(a, device), Operands(b.swapaxes(1, 2), device)
    d = np.zeros((batch, a.shape[2]), dtype=np.int64)
    for _ in range(ROUNDS):
        given = device.own(d.astype(np.int32))
        alpha, beta = _excess(stages, left, given, 1), _excess(stages, right, given, -1)
        step = beta - alpha
        known = (alpha > 0) & (beta > 0)
        d += np.where(known, np.sign(step) * (np.abs(step) >> 1), 0)
    given = device.own(d.astype(np.int32))
    rows, fits_a, scaled_a = _scaled(stages, left, given, 1)
    columns, fits_b, scaled_b = _scaled(stages, right, given, -1)
    spread = d.max(axis=1, initial=0) - d.min(axis=1, initial=0)
    spread = np.where(fits_a & fits_b, spread, 0)
    return Balanced(scaled_a, scaled_b.swapaxes(1, 2), rows, columns, spread)


def _line_maxima(stages: Stages, operand: Operands, d: Any, sign: int) -> Any:
    """Return the largest exponent of each line of x D, with the kernels' offset."""
    tops = stages.device.zeros(operand.x.shape[:2], np.int32)
    stages.each_entry("rebalance", "line_tops", operand, (d, sign, tops))
    return tops


def _excess(stages: Stages, operand: Operands, d: Any, sign: int) -> Exponents:
    """Return the largest exponent of each inner index of x D relative to its line's."""
    tops = _line_maxima(stages, operand, d, sign)
    excess = stages.device.zeros(d.shape, np.int32)
    args = (d, sign, tops, excess)
    stages.each_entry("rebalance", "inner_excess", operand, args)
    return np.asarray(stages.device.fetch(excess), dtype=np.int64)


def _scaled(
    stages: Stages, operand: Operands, d: Any, sign: int
) -> tuple[Exponents, NDArray[np.bool_], Any]:
    """Return what lines are scaled by, if no entry underflows, and scaled lines."""
    device = stages.device
    batch, lines, k = operand.x.shape
    tops = device.fetch(_line_maxima(stages, operand, d, sign)).astype(np.int64)
    shifts = np.where(tops > 0, LINE_TOP + _OFFSET - tops, 0)
    short = device.zeros((batch,), np.int32)
    shape = (batch, lines, k) if operand.along else (batch, k, lines)
    out = device.empty(shape, np.float64)
    args = (d, sign, device.own(shifts.astype(np.int32)), out, short)
    stages.each_entry("rebalance", "scaled_copy", operand, args)
    if not operand.along:
        out = out.swapaxes(1, 2)
    return shifts, device.fetch(short) == 0, out
