"""One storage for an array and all its views: host bytes, device bytes, who is current.

Others may come to write one side without being seen: the caller whose ndarray was
wrapped, or whoever took a writable export.  That side is then the only one that counts,
for ever: nothing is kept of it elsewhere, neither copies nor prepared operands.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Hashable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.engines import choice
from np_ozaki.engines.memory import DeviceMemory
from np_ozaki.engines.prepared import Prepared
from np_ozaki.errors import EngineUnavailableError, refusal
from np_ozaki.stats import Direction

__all__ = [
    "COMPUTED",
    "ON_DEVICE",
    "NotOnDevice",
    "Side",
    "Storage",
    "address",
    "count_transfer",
]

Side = Literal["host", "device"]

_LEAST_PREPARED = 1 << 12
"""Entries below which an operand is made faster than it is found."""

_MOST_VIEWS = 64
"""Views of which an array keeps what was made; the oldest go first."""

_generation = 0
"""Number of forks that led to this process."""

ON_DEVICE = frozenset("?bBhHiIlLqQefdFD")
"""Characters of the dtypes that a device may hold."""

COMPUTED = frozenset("dD")
"""Characters of the dtypes of entries that are computed and written on a device."""


class NotOnDevice(Exception):
    """The data cannot be written on the device now; the host does it."""


class Storage:
    """Bytes that an array and its views share.

    Parameters
    ----------
    host : ndarray
        The memory on the host: contiguous in some order of its axes, and uninitialised
        where the data are on a device; or with `shared` the caller's array.
    buffer : device buffer, optional
        Where the data are, if they are on a device.
    shared : {"host", "device"}, optional
        A side that others may write without being seen.

    Attributes
    ----------
    host : ndarray
        As given.
    shared : {"host", "device"} or None
        As given, or what was exported since.
    """

    __slots__ = (
        "_buffer",
        "_device_current",
        "_held",
        "_host_current",
        "_lent",
        "_made",
        "_prepared",
        "_strays",
        "_writing",
        "host",
        "shared",
    )

    def __init__(
        self, host: NDArray[Any], buffer: Any = None, shared: Side | None = None
    ) -> None:
        self.host = host
        self.shared = shared
        self._buffer = buffer
        self._host_current = buffer is None
        self._device_current = buffer is not None
        self._held = threading.RLock(), _generation
        self._writing = 0
        self._lent: weakref.ref[NDArray[Any]] | None = None
        # Which work on the device the buffer waits for; whether others used it, too.
        self._made: Any = None
        self._strays = False
        # None for what was an operand once.
        self._prepared: dict[Hashable, Prepared | None] = {}
        if buffer is not None:
            self._made = choice.needed_memory().mark()

    @property
    def may_move(self) -> bool:
        """Whether the bytes are of a kind that a device may hold a copy of."""
        dtype = self.host.dtype
        return dtype.char in ON_DEVICE and dtype.isnative and self.shared != "host"

    # Where the data are ----------------------------------------------------------

    @property
    def on_host(self) -> bool:
        """Whether the host's bytes are current."""
        return self._host_current

    @property
    def on_device(self) -> bool:
        """Whether a device's bytes are current, and can be used (not after a fork)."""
        return self._device_current and choice.device_memory() is not None

    @property
    def _lock(self) -> Any:
        """The lock of this storage; a fresh one in a child of the process."""
        if self._held[1] != _generation:
            self._held = threading.RLock(), _generation
        return self._held[0]

    @property
    def device(self) -> int | None:
        """Number of the device that holds current bytes, or None."""
        if not self.on_device:
            return None
        return choice.needed_memory().device_of(self._buffer)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The host's memory as 1-D bytes."""
        flat: NDArray[np.uint8] = self.host.ravel(order="K").view(np.uint8)
        return flat

    def offset(self, view: NDArray[Any]) -> int:
        """Return how many bytes after the first entry of `host` a view begins.

        Parameters
        ----------
        view : ndarray
            Of `host`.

        Returns
        -------
        int
            Below 0 where `host` has negative strides.
        """
        host = self.host
        if view is host or (
            0 < view.nbytes == host.nbytes and view.flags.forc and host.flags.forc
        ):
            # All of it, without gaps; NumPy makes a dict to tell an address.
            return 0
        return address(view) - address(host)

    # Reading -----------------------------------------------------------------------

    def to_host(self) -> None:
        """Make the host's bytes current."""
        if self._host_current or self._writing:
            return
        with self._lock:
            if self._host_current:
                return
            self.download(self.bytes)
            # What strangers write to the device is not seen: copies are of the moment.
            self._host_current = self.shared is None

    def download(self, target: NDArray[np.uint8]) -> None:
        """Copy the device's current bytes to the host.

        Parameters
        ----------
        target : (nbytes,) ndarray of uint8
            Of any memory; the storage's own does not become current by this.
        """
        with self._lock:
            memory, start = choice.needed_memory(), time.perf_counter()
            memory.download(self._buffer, target, self._made)
            count_transfer("to host", target.nbytes, start)

    def to_device(self) -> Any:
        """Make the device's bytes current and return their buffer.

        Not for host memory that others share.

        Raises
        ------
        MemoryError
            The device has no room.
        """
        with self._lock:
            memory = choice.needed_memory()
            if self._device_current:
                if memory.device_of(self._buffer) == memory.device():
                    self._wait(memory)
                    return self._buffer
                if self.shared == "device":
                    raise EngineUnavailableError(
                        refusal(
                            "operand",
                            f"OzArray on device {memory.device_of(self._buffer)}",
                            f"it shares that memory; the current device is "
                            f"{memory.device()}",
                            "make that device the current one, or copy the array",
                        )
                    )
                self.to_host()
            start = time.perf_counter()
            self.drop_device()
            buffer = memory.allocate(self.host.nbytes)
            memory.upload(self.bytes, buffer)
            if self._writing:
                # Half written: of this moment only.
                count_transfer("to device", self.host.nbytes, start)
                return buffer
            self._buffer, self._made = buffer, memory.mark()
            self._device_current = True
            count_transfer("to device", self.host.nbytes, start)
            return self._buffer

    def _wait(self, memory: DeviceMemory) -> None:
        """Let the current stream wait for what made the bytes."""
        if memory.wait(self._made):
            self._strays = True

    def settle(self) -> None:
        """Wait for other streams, before the device's bytes change or are given up.

        Streams that only read the bytes are not known one by one.
        """
        memory = choice.device_memory() if self._strays else None
        if memory is not None:
            memory.synchronize(memory.device_of(self._buffer))
            self._strays = False

    def prepared(
        self, view: NDArray[Any], *, left: bool, at_once: bool = False
    ) -> Prepared | None:
        """Return what is kept of a view as an operand, or None where nothing is.

        Parameters
        ----------
        view : ndarray
            Of `host`, as it takes part in a product.
        left : bool
            In which role.
        at_once : bool, optional
            Whether it is kept from now on; else from its second time in that role on,
            as most results are operands once.

        Returns
        -------
        Prepared or None
            For the data as they are; always None where nothing may be kept.
        """
        small = view.size < _LEAST_PREPARED
        if (
            small
            or self.shared
            or self._writing
            or view.dtype.char not in "fdFD"
            or not self.may_move
        ):
            return None
        key = left, self.offset(view), view.shape, view.strides
        # Without the lock: it would be let go before anybody could use what is found.
        found = self._prepared.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._prepared.get(key)
            if found is not None:
                return found
            first = key not in self._prepared
            if first and len(self._prepared) == _MOST_VIEWS:
                self._close(self._prepared.pop(next(iter(self._prepared))))
            if not first or at_once:
                found = Prepared()
            self._prepared[key] = found
            return found

    @staticmethod
    def _close(kept: Prepared | None) -> None:
        if kept is not None:
            kept.close()

    def _forget(self) -> None:
        """Let nothing be kept of data that are no more."""
        for each in self._prepared.values():
            self._close(each)
        self._prepared.clear()

    # Writing -----------------------------------------------------------------------

    @property
    def is_lent(self) -> bool:
        """Whether an ndarray of the host's memory is out."""
        return self._lent is not None and self._lent() is not None

    def may_write_device(self) -> bool:
        """Return whether writes may go to the device.

        While an ndarray of the host's memory is out, writes go where it sees them.
        """
        return self.shared != "host" and not self.is_lent and not self._writing

    @contextlib.contextmanager
    def host_write(self) -> Iterator[None]:
        """Let the host's bytes change: no others are current from the first one on.

        No lock is held in between, as what is written may be made by user code.
        """
        with self._lock:
            self.to_host()
            self._forget()
            if self.shared != "device":
                self.drop_device()
            self._writing += 1
        try:
            yield
        finally:
            with self._lock:
                self._writing -= 1
                self._forget()
                if self.shared == "device":
                    memory, start = choice.needed_memory(), time.perf_counter()
                    memory.upload(self.bytes, self._buffer)
                    self._made = memory.mark()
                    count_transfer("to device", self.host.nbytes, start)

    @contextlib.contextmanager
    def device_write(self) -> Iterator[Any]:
        """Hold the device's bytes, current, while work that changes them is queued.

        Yields their buffer.

        Raises
        ------
        NotOnDevice
            Somebody else began to write on the host.
        """
        with self._lock:
            if self._writing or self.shared == "host":
                raise NotOnDevice
            buffer = self.to_device()
            self.settle()
            self._forget()
            try:
                yield buffer
            finally:
                self._forget()
                # Unless a signal's handler has written on the host in the meantime.
                if self._buffer is buffer:
                    self._host_current = False
                    self._made = choice.needed_memory().mark()
                    if self.is_lent:
                        self.to_host()

    def drop_device(self) -> None:
        """Give the device's copy up; the host's bytes are current."""
        with self._lock:
            self.settle()
            self._device_current = False
            self._buffer = None

    # Handing out -------------------------------------------------------------------

    def lend_current(self, view: NDArray[Any]) -> NDArray[Any]:
        """Return `lend` of current bytes, with no write in between.

        Parameters
        ----------
        view : ndarray
            Of `host`.

        Returns
        -------
        ndarray
        """
        with self._lock:
            self.to_host()
            return self.lend(view)

    def lend(self, view: NDArray[Any]) -> NDArray[Any]:
        """Return the host's memory, seen through a view, read-only; it stays so.

        Parameters
        ----------
        view : ndarray
            Of `host`, whose bytes are current.

        Returns
        -------
        ndarray
            Sees later writes.
        """
        if self.shared == "device":
            # The host has a copy of the moment, which the next one would change.
            copy = view.copy(order="K")
            copy.flags.writeable = False
            return copy
        if not self.may_move or not view.size or view.dtype.char not in ON_DEVICE:
            lent = view.view()
            lent.flags.writeable = False
            return lent
        with self._lock:
            root = None if self._lent is None else self._lent()
            if root is None:
                # Views of it have it as base, as its own base is no array.
                root = np.frombuffer(self.bytes.data.toreadonly(), np.uint8)
                self._lent = weakref.ref(root)
            offset = address(view) - address(self.bytes)
            return np.ndarray(view.shape, view.dtype, root, offset, view.strides)

    def hand_out(self, side: Side) -> None:
        """Note that others may write one side from now on; it is the only one then.

        Parameters
        ----------
        side : {"host", "device"}
            Whose bytes are current.
        """
        with self._lock:
            self._forget()
            self.shared = side
            if side == "host":
                self.drop_device()
            else:
                self._host_current = False

    def __del__(self) -> None:
        # Memory goes back to the stream that it came from; others may not be done.
        self.settle()


def _after_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def address(x: NDArray[Any]) -> int:
    """Return the address of an array's first entry.

    Parameters
    ----------
    x : ndarray
        Of any strides.

    Returns
    -------
    int
        In bytes.
    """
    pointer: int = x.__array_interface__["data"][0]
    return pointer


def count_transfer(way: Direction, size: int, start: float) -> None:
    """Count a copy between host and device.

    Parameters
    ----------
    way : str
        "to device" or "to host".
    size : int
        Bytes.
    start : float
        By `time.perf_counter`.
    """
    seconds = time.perf_counter() - start
    for recorder in context.recorders():
        recorder.record_transfer(way, size, seconds)
