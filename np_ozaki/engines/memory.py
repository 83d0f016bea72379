"""What an OzArray asks of a device's memory: buffers of bytes, copies, views."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DeviceMemory"]


class DeviceMemory(Protocol):
    """Memory of the current device.

    A buffer is a 1-D device array of uint8.  Arrays of a device are of its own kind and
    speak NumPy's language: shape, strides, slices, `__array_ufunc__`.  Work is queued
    on the caller's current stream, and what is queued later sees it done.
    """

    def device(self) -> int:
        """Return the number of the current device."""
        ...

    def allocate(self, nbytes: int) -> Any:
        """Return an uninitialised buffer on the current device."""
        ...

    def upload(self, source: NDArray[np.uint8], buffer: Any) -> None:
        """Queue a copy of host bytes, 1-D; the source may change afterwards."""
        ...

    def download(self, buffer: Any, target: NDArray[np.uint8], mark: Any) -> None:
        """Wait for a buffer, on whatever device, and its mark; copy it to the host."""
        ...

    def view(
        self,
        buffer: Any,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Any:
        """Return the device array that begins `offset` bytes into a buffer."""
        ...

    def extent(self, x: Any) -> tuple[Any, int]:
        """Return the buffer from the lowest to the highest byte of a device array.

        Also where in it the array's first entry is, in bytes.
        """
        ...

    def device_of(self, buffer: Any) -> int:
        """Return the number of the device that holds a buffer."""
        ...

    def mark(self) -> Any:
        """Return a mark of all work that is queued now."""
        ...

    def wait(self, mark: Any) -> bool:
        """Let later work on the current stream come after a mark's.

        Returns whether that was another stream's.
        """
        ...

    def synchronize(self, device: int) -> None:
        """Wait for all work on a device."""
        ...
