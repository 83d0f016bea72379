"""A look at a few entries of operands on a GPU: one kernel and one wait for both.

Which entries is `cpu_units`'s to say, so that all engines decide alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_units import sample_steps
from np_ozaki.engines.cuda_lines import structure

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = ["samples"]

_WORD = 8


def samples(stages: Stages, *operands: Any) -> list[NDArray[np.float64]]:
    """Return the entries that `cpu_units.sample` takes; waits for them once.

    Parameters
    ----------
    stages : Stages
        Where the kernel is queued.
    *operands : (batch, rows, columns) device array of float64
        One or two.

    Returns
    -------
    list of (batch, entries) ndarray of float64
        One an operand.
    """
    device = stages.device
    views, shapes, ends = [], [], [0]
    for x in operands:
        batch, rows, columns = x.shape
        step, stride = sample_steps(x.shape)
        # Rounded up: the last of a step may have fewer entries behind it.
        height, width = -(-rows // step), -(-columns // stride)
        strides = [s // _WORD for s in x.strides]
        views.append(
            structure(
                device.pointer(x),
                strides[0],
                strides[1] * step,
                strides[2] * stride,
                height,
                width,
            )
        )
        shapes.append((batch, height * width))
        ends.append(ends[-1] + batch * height * width)
    total = ends[-1]

    def queue(pointer: int) -> None:
        args = (views[0], views[-1], ends[1], total, pointer)
        stages.launch("samples", "samples", stages.flat_grid(total), args)

    words = device.written(total, queue).view(np.float64)
    return [
        words[first:last].reshape(shape)
        for first, last, shape in zip(ends, ends[1:], shapes, strict=False)
    ]
