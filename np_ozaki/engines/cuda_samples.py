"""A look at a few entries of operands on a GPU: one kernel and one wait for both.

Which entries is `cpu_units`'s to say, so that all engines decide alike.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_units import sample_steps
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.engines.cuda_stages import Stages

__all__ = ["samples"]

_WORD = 8
_FIELDS = 6
"""Of the kernels' view of an operand: address, three strides, lines, k."""

_VIEW = np.dtype(f"V{_WORD * _FIELDS}")


class _Plan(NamedTuple):
    """What follows from shapes and strides.

    Attributes
    ----------
    fields : (12,) ndarray of int64
        Views of both operands, without their addresses.
    first, total : int
        Entries that are taken of the first, and of all.
    shapes : tuple of (int, int)
        Of what is returned.
    grid : tuple of int
        Of the kernel.
    """

    fields: NDArray[np.int64]
    first: int
    total: int
    shapes: tuple[tuple[int, int], ...]
    grid: tuple[int]


@functools.lru_cache(maxsize=256)
def _plan(itemsize: int, *layouts: tuple[tuple[int, ...], tuple[int, ...]]) -> _Plan:
    """Return it for the (shape, strides) of one or two operands."""
    fields: list[int] = []
    shapes = []
    for shape, strides in layouts:
        steps = (1, *sample_steps(shape))
        # Rounded up: a last step that is not whole has its first entry, too.
        batch, rows, columns = (
            -(-size // step) for size, step in zip(shape, steps, strict=True)
        )
        passed = (s // itemsize * step for s, step in zip(strides, steps, strict=True))
        fields += (0, *passed, rows, columns)
        shapes.append((batch, rows * columns))
    if len(layouts) == 1:
        # The kernel is told of two.
        fields *= 2
    total = sum(batch * entries for batch, entries in shapes)
    first = shapes[0][0] * shapes[0][1]
    words = np.array(fields, np.int64)
    return _Plan(words, first, total, tuple(shapes), Stages.flat_grid(total))


def samples(stages: Stages, *operands: Any) -> list[NDArray[np.float64]]:
    """Return the entries that `cpu_units.sample` takes; waits for them once.

    Parameters
    ----------
    stages : Stages
        Where the kernel is queued.
    *operands : (batch, rows, columns) device array of float64 or float32
        One or two of one type.

    Returns
    -------
    list of (batch, entries) ndarray of float64
        One an operand.
    """
    device = stages.device
    plan = _plan(operands[0].itemsize, *((x.shape, x.strides) for x in operands))
    kernels = Operands(operands[0], device).kernels()
    fields = plan.fields.copy()
    fields[0] = device.pointer(operands[0])
    fields[_FIELDS] = device.pointer(operands[-1])
    views = fields[:_FIELDS].view(_VIEW), fields[_FIELDS:].view(_VIEW)

    def queue(pointer: int) -> None:
        args = (*views, plan.first, plan.total, pointer)
        stages.launch("samples", "samples", plan.grid, args, variant=kernels)

    words = device.written(plan.total, queue).view(np.float64)
    parts = words[: plan.first], words[plan.first :]
    return [
        part.reshape(shape) for part, shape in zip(parts, plan.shapes, strict=False)
    ]
