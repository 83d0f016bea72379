"""How much memory the products of this process may use at a time.

The limit is one for the process: products that run side by side in threads share it.
Nobody waits.  A product takes what is free, down to a floor that lets it go on in
small tiles; tiling never changes a bit.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DEFAULT_BYTES",
    "FLOOR_BYTES",
    "KEPT_BYTES",
    "Workspace",
    "reserve",
    "reserved_bytes",
]

Array = NDArray[np.float64]

DEFAULT_BYTES = 1 << 30
"""Limit unless a product says otherwise."""

FLOOR_BYTES = 4 << 20
"""A product gets at least this much, however busy the process is."""

KEPT_BYTES = 64 << 20
"""Buffers kept for the next product: fresh memory costs a page fault every 4 KiB."""

_lock = threading.Lock()
_reserved = 0
_kept: list[Array] = []


def _after_fork() -> None:
    # The forking thread's products are the only ones that go on in the child.
    global _lock, _reserved
    _lock = threading.Lock()
    _reserved = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def reserved_bytes() -> int:
    """Return the workspace bytes that running products hold.

    Returns
    -------
    int
        Sum over all threads of the process.
    """
    return _reserved


class Workspace:
    """Buffers of one product.

    A buffer belongs to who took it until it is given back, so products that run side
    by side, or one inside another, never share.

    Parameters
    ----------
    granted : int
        Bytes that the product may hold.
    limit : int
        Bytes that the process may hold; no more is kept for later.
    """

    def __init__(self, granted: int, limit: int) -> None:
        self.granted = granted
        self._kept_bytes = min(limit, KEPT_BYTES)
        self._taken: set[int] = set()

    def take(self, shape: tuple[int, ...]) -> Array:
        """Return an uninitialised float64 array.

        Parameters
        ----------
        shape : tuple of int
            Its shape.

        Returns
        -------
        ndarray of float64
            C-contiguous; to be handed to `give` when it is no longer needed.
        """
        size = math.prod(shape)
        with _lock:
            # A buffer of many times the size would be missed elsewhere.
            fits = (i for i, x in enumerate(_kept) if size <= x.size <= 2 * size)
            index = next(fits, None)
            buffer = None if index is None else _kept.pop(index)
        if buffer is None:
            buffer = np.empty(size)
        self._taken.add(id(buffer))
        return buffer[:size].reshape(shape)

    def give(self, array: Array | None) -> None:
        """Take back an array that `take` returned; None is ignored.

        Parameters
        ----------
        array : ndarray or None
            What `take` returned, or a view of it; not to be used any more.
        """
        # NumPy's views know the array that owns the memory.
        buffer = None if array is None else array.base
        if not isinstance(buffer, np.ndarray) or id(buffer) not in self._taken:
            return
        self._taken.remove(id(buffer))
        with _lock:
            if sum(x.nbytes for x in _kept) + buffer.nbytes <= self._kept_bytes:
                _kept.append(buffer)


@contextlib.contextmanager
def reserve(wanted: int, limit: int) -> Iterator[Workspace]:
    """Hold workspace for one product.

    Parameters
    ----------
    wanted : int
        Bytes that the product would use without a limit.
    limit : int
        Bytes that all products of the process may hold together.

    Yields
    ------
    Workspace
        Of `wanted` bytes, or what is free of `limit`, but not below `FLOOR_BYTES`.
    """
    global _reserved
    with _lock:
        granted = min(wanted, max(limit - _reserved, FLOOR_BYTES))
        _reserved += granted
    try:
        yield Workspace(granted, limit)
    finally:
        with _lock:
            _reserved -= granted
