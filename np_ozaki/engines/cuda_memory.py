"""Memory of a GPU through CuPy, as OzArrays ask for it."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from np_ozaki.engines.cuda_copies import download, upload
from np_ozaki.engines.cuda_device import STREAM_PER_THREAD

__all__ = ["CupyMemory"]

_Mark = tuple[int, cupy.cuda.Stream, cupy.cuda.Event | None]
"""Device, stream, and what was queued there; None for the null stream."""

_NULL = int(cupy.cuda.Stream.null.ptr)


class CupyMemory:
    """The memory of the current GPU; see `memory.DeviceMemory`."""

    def device(self) -> int:
        """Return the number of the current device."""
        return int(runtime.getDevice())

    def allocate(self, nbytes: int) -> cupy.ndarray:
        """Return an uninitialised buffer from CuPy's pool."""
        return cupy.empty(nbytes, np.uint8)

    def upload(self, source: NDArray[np.uint8], buffer: cupy.ndarray) -> None:
        """Queue a copy of host bytes; the source may change afterwards."""
        upload(source, buffer)

    def download(
        self, buffer: cupy.ndarray, target: NDArray[np.uint8], mark: _Mark
    ) -> None:
        """Wait for a buffer and its mark; copy it to host bytes."""
        with cupy.cuda.Device(buffer.device.id):
            self.wait(mark)
            download(buffer, target)

    def view(
        self,
        buffer: cupy.ndarray,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> cupy.ndarray:
        """Return the array that begins `offset` bytes into a buffer."""
        return cupy.ndarray(shape, dtype, buffer.data + offset, strides)

    def extent(self, x: cupy.ndarray) -> tuple[cupy.ndarray, int]:
        """Return the buffer that an array lies in, and where its first entry is."""
        if not x.size:
            return cupy.empty(0, np.uint8), 0
        spans = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
        below = -sum(min(0, span) for span in spans)
        size = below + sum(max(0, span) for span in spans) + x.itemsize
        start = cupy.cuda.MemoryPointer(x.data.mem, x.data.ptr - x.data.mem.ptr - below)
        return cupy.ndarray((size,), np.uint8, start), below

    def device_of(self, buffer: cupy.ndarray) -> int:
        """Return the number of the device that holds a buffer."""
        return int(buffer.device.id)

    def mark(self) -> _Mark:
        """Return a mark of all work that is queued on the current stream."""
        stream = cupy.cuda.get_current_stream()
        # The null stream lives as long as the process and can be asked later.
        event = None if stream.ptr == _NULL else stream.record()
        return int(runtime.getDevice()), stream, event

    def wait(self, mark: _Mark) -> bool:
        """Let the current stream wait for a mark, if it is another stream's."""
        device, stream, event = mark
        current = cupy.cuda.get_current_stream()
        # A stream in a mark is alive, so that no other has its handle; but the default
        # streams of all threads have one.
        same = stream.ptr == current.ptr != STREAM_PER_THREAD
        if same and device == int(runtime.getDevice()):
            return False
        if event is None:
            with cupy.cuda.Device(device):
                event = cupy.cuda.Stream.null.record()
        current.wait_event(event)
        return True

    def synchronize(self, device: int) -> None:
        """Wait for all work on a device."""
        with cupy.cuda.Device(device):
            runtime.deviceSynchronize()
