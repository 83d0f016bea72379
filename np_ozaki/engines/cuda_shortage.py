"""What products on a GPU do when its memory runs out: they try smaller tiles."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cuda_lines import Device
from np_ozaki.engines.prepared import drop_prepared
from np_ozaki.errors import WorkspaceError, refusal
from np_ozaki.tiling import CudaTiles

__all__ = ["within_memory"]

_LEAST_BUDGET = 1 << 22
"""Workspace below which a product that finds no memory gives up."""


def within_memory(
    device: Device,
    workspace_bytes: int | None,
    tiles_of: Callable[[int], CudaTiles],
    multiply: Callable[[CudaTiles, bool], Outcome],
) -> Outcome:
    """Multiply in tiles that the device has memory for, trying smaller ones.

    Parameters
    ----------
    device : Device
        Whose memory it is.
    workspace_bytes : int, optional
        As for `CudaEngine.matmul`.
    tiles_of : callable
        Returns the tiles for a budget.
    multiply : callable
        Told tiles, and whether prepared operands may be used and kept.

    Returns
    -------
    Outcome
        Of the first try that found memory.

    Raises
    ------
    WorkspaceError
        There is none for the smallest tiles.
    """
    budget = workspace_bytes or device.default_workspace()
    keeps = True
    while True:
        tiles = tiles_of(budget)
        try:
            return multiply(tiles, keeps)
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            # What the failed try holds is free only when its frames are.
            traceback.clear_frames(error.__traceback__)
            message = str(error)
        dropped = drop_prepared(device.place())
        device.free()
        if dropped:
            keeps = False
            continue
        if budget <= _LEAST_BUDGET:
            raise WorkspaceError(
                refusal(
                    "workspace_bytes",
                    workspace_bytes,
                    f"the GPU has no memory for the smallest tiles ({message})",
                    "free arrays there; the same product on engine='cpu' has the "
                    "same bits",
                )
            )
        budget = min(budget, tiles.workspace_bytes) // 4
