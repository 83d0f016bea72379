"""Rebalancing and facts about bits on a GPU, by the rules of the CPU engine.

Everything is queued at once: vectors of the length of k and of lines stay on the device
until all is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from np_ozaki.engines.base import Balanced, Exponents, Scheme
from np_ozaki.engines.cpu_exponents import largest_exponents
from np_ozaki.engines.cpu_rebalance import LINE_TOP, ROUNDS
from np_ozaki.engines.cpu_units import ZERO_UNIT
from np_ozaki.engines.cuda_lines import Device, Operands

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
    a : (batch, m, k) device array of float64 or float32
        Batch 1 broadcasts; NaN and Inf stay what they are.
    b : (batch, k, n) device array of the same type
        Batch 1 broadcasts.

    Returns
    -------
    Balanced
        Operands of float64 on the device, with spread 0, and then of no use, where D
        would not be finite.
    """
    device = stages.device
    batch = max(a.shape[0], b.shape[0])
    x, y = Operands(a, device), Operands(b.swapaxes(1, 2), device)
    d = device.zeros((batch, a.shape[2]), np.int32)
    # Exponents go before the copies come.
    tops_a, tops_b = _balance(stages, x, y, d)
    scaled_a, short_a = _scaled(stages, x, d, 1, tops_a)
    scaled_b, short_b = _scaled(stages, y, d, -1, tops_b)
    steps = device.fetch(d).astype(np.int64)
    spread = steps.max(axis=1, initial=0) - steps.min(axis=1, initial=0)
    fits = (device.fetch(short_a) == 0) & (device.fetch(short_b) == 0)
    return Balanced(
        scaled_a,
        scaled_b.swapaxes(1, 2),
        _shifts(device, tops_a),
        _shifts(device, tops_b),
        np.where(fits, spread, 0),
    )


def _balance(stages: Stages, x: Operands, y: Operands, d: Any) -> tuple[Any, Any]:
    """Queue the rounds that find d; return the tops of lines after them."""
    batch, k = d.shape
    left, right = _levels(stages, x, batch), _levels(stages, y, batch)
    for _ in range(ROUNDS):
        alpha, beta = _excess(stages, left, d, 1), _excess(stages, right, d, -1)
        args = (alpha, beta, batch * k, d)
        stages.launch("rebalance", "balance", stages.flat_grid(batch * k), args)
    return _line_tops(stages, left, d, 1), _line_tops(stages, right, d, -1)


def _like(operand: Operands, batch: int, dtype: Any) -> Any:
    """Return a new array of the same lines, whose order in memory is the operand's."""
    _, lines, k = operand.x.shape
    if operand.along:
        return operand.device.empty((batch, lines, k), dtype)
    return operand.device.empty((batch, k, lines), dtype).swapaxes(1, 2)


def _of_batch(operand: Operands, batch: int) -> Operands:
    """Return an operand with as many matrices as the product has."""
    x = operand.x
    if x.shape[0] < batch:
        x = np.broadcast_to(x, (batch, *x.shape[1:]))
    return Operands(x, operand.device)


def _levels(stages: Stages, operand: Operands, batch: int) -> Operands:
    """Return the exponents of an operand's entries, once for a whole batch."""
    levels = Operands(_like(operand, operand.x.shape[0], np.int16), stages.device)
    stages.by_shares("rebalance", "levels", operand, (levels.struct(),))
    return _of_batch(levels, batch)


def _maxima(
    stages: Stages, levels: Operands, weights: Any, sign: int, base: int
) -> Any:
    """Return the largest of exponent + sign weight + base of each line."""
    maxima = stages.device.zeros(levels.x.shape[:2], np.int32)
    args = (weights, sign, base, maxima)
    stages.by_shares("rebalance", "maxima", levels, args)
    return maxima


def _line_tops(stages: Stages, levels: Operands, d: Any, sign: int) -> Any:
    """Return the largest exponent of each line of x D, with the kernels' offset."""
    return _maxima(stages, levels, d, sign, _OFFSET)


def _excess(stages: Stages, levels: Operands, d: Any, sign: int) -> Any:
    """Return the largest exponent of each inner index relative to its line's in x D.

    With the kernels' offset, and without the index's own d.
    """
    tops = _line_tops(stages, levels, d, sign)
    inner = Operands(levels.x.swapaxes(1, 2), stages.device)
    return _maxima(stages, inner, tops, -1, 2 * _OFFSET)


def _scaled(
    stages: Stages, operand: Operands, d: Any, sign: int, tops: Any
) -> tuple[Any, Any]:
    """Return scaled lines, and what is above 0 for matrices where entries underflow."""
    batch = d.shape[0]
    out = _like(operand, batch, np.float64)
    short = stages.device.zeros((batch,), np.int32)
    args = (d, sign, tops, Operands(out, stages.device).struct(), short)
    stages.by_shares("rebalance", "scaled", _of_batch(operand, batch), args)
    return out, short


def _shifts(device: Device, tops: Any) -> Exponents:
    """Return what brings lines to `LINE_TOP`, on the host."""
    exponents = device.fetch(tops).astype(np.int64)
    return np.where(exponents > 0, LINE_TOP + _OFFSET - exponents, 0)
