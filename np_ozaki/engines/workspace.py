"""How much memory the products of this process may use at a time.

The limit is one for the process: products that run side by side in threads share it.
Nobody waits.  A product takes what is free, down to a floor that lets it go on in
small tiles; tiling never changes a bit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["FLOOR_BYTES", "reserve", "reserved_bytes"]

FLOOR_BYTES = 4 << 20
"""A product gets at least this much, however busy the process is."""

_lock = threading.Lock()
_reserved = 0


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


@contextlib.contextmanager
def reserve(wanted: int, limit: int) -> Iterator[int]:
    """Hold workspace for one product.

    Parameters
    ----------
    wanted : int
        Bytes that the product would use without a limit.
    limit : int
        Bytes that all products of the process may hold together.

    Yields
    ------
    int
        Bytes granted: `wanted`, or what is free of `limit`, but not below
        `FLOOR_BYTES`.
    """
    global _reserved
    with _lock:
        granted = min(wanted, max(limit - _reserved, FLOOR_BYTES))
        _reserved += granted
    try:
        yield granted
    finally:
        with _lock:
            _reserved -= granted
