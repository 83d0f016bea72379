"""Blocks of an array, and a few threads to walk over them.

NumPy lets go of the GIL inside its loops, so elementwise stages run on several cores
from plain threads.  Every block is written by one thread only and no result depends on
who did it, so the bits do not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

# Not later: a process forked while another thread imports would wait for ever.
from concurrent.futures.thread import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks

__all__ = [
    "BLOCK_ELEMENTS",
    "Block",
    "available_threads",
    "blocks",
    "of_batch",
    "ranges",
    "run_blocks",
]

Block = tuple[slice, slice, slice]

BLOCK_ELEMENTS = 1 << 14
"""Elements of a block: its scratch (about 12 arrays) then lives in a core's cache."""

_WHOLE = (slice(None), slice(None), slice(None))

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _forget_pool() -> None:
    # Threads do not survive a fork; the child makes its own pool, and its own lock
    # because the parent's may have been held.
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def available_threads() -> int:
    """Return the number of cores that this process may use.

    Returns
    -------
    int
        At least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blocks(shape: tuple[int, int, int]) -> list[Block]:
    """Cut (batch, rows, columns) into blocks of about `BLOCK_ELEMENTS`.

    Parameters
    ----------
    shape : tuple of int
        Batch, rows, columns.

    Returns
    -------
    list of tuple of slice
        Disjoint, covering everything; whole matrices where they are small, else whole
        rows, else pieces of one row.
    """
    batch, rows, columns = shape
    size = batch * rows * columns
    if size <= BLOCK_ELEMENTS:
        return [_WHOLE] if size else []
    wide = min(columns, BLOCK_ELEMENTS)
    tall = max(1, min(rows, BLOCK_ELEMENTS // wide))
    deep = max(1, BLOCK_ELEMENTS // (rows * columns)) if tall == rows else 1
    return [
        (slice(i, i + deep), slice(j, j + tall), slice(h, h + wide))
        for i in range(0, batch, deep)
        for j in range(0, rows, tall)
        for h in range(0, columns, wide)
    ]


def ranges(size: int, step: int) -> list[slice]:
    """Cut 0..size to ranges; one empty range for size 0.

    Parameters
    ----------
    size, step : int
        Length of the whole and of a range.

    Returns
    -------
    list of slice
        At least one.
    """
    starts = range(0, size, max(step, 1))
    return [slice(i, min(i + step, size)) for i in starts] or [slice(0)]


def of_batch(part: slice, x: NDArray[Any]) -> slice:
    """Return which matrices of `x` belong to a part of the batch.

    Parameters
    ----------
    part : slice
        Of the batch.
    x : (batch, ...) ndarray
        Batch 1 broadcasts.

    Returns
    -------
    slice
        `part`, or the only matrix.
    """
    return part if x.shape[0] > 1 else slice(0, 1)


def _executor(threads: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    # Its threads inherit how the caller rounds: see `hooks.arithmetic`.
    with _lock:
        if _pool is None or _pool_size < threads:
            _pool = ThreadPoolExecutor(threads, "np_ozaki")
            _pool_size = threads
        return _pool


def _quiet(work: Callable[[Sequence[Block]], None], share: Sequence[Block]) -> None:
    # Floating-point error handling and the unrouted mark belong to a thread.
    with np.errstate(all="ignore"), hooks.unrouted():
        work(share)


def run_blocks(
    work: Callable[[Sequence[Block]], None], todo: list[Block], threads: int
) -> None:
    """Call `work` on shares of `todo`, one share a thread.

    Parameters
    ----------
    work : callable
        Takes a sequence of blocks; must write disjoint memory for disjoint blocks.
    todo : list of Block
        From `blocks`.
    threads : int
        At most this many shares run at a time, the caller's thread among them.

    Raises
    ------
    BaseException
        What `work` raised first; only after every share has stopped.
    """
    count = min(threads, len(todo))
    if count < 2:
        work(todo)
        return
    first, *others = (todo[i::count] for i in range(count))
    mine, pending = [first], []
    for share in others:
        try:
            pending.append(_executor(count - 1).submit(_quiet, work, share))
        except RuntimeError:
            # The interpreter is shutting down and starts no more threads.
            mine.append(share)
    try:
        for share in mine:
            work(share)
    finally:
        # Wait even when interrupted: the shares write into arrays of this call.
        errors = [future.exception() for future in pending]
    for error in errors:
        if error is not None:
            raise error
