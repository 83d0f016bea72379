"""Copies between host and device that overlap with kernels.

Operands come in panels over one stream, results leave over another, and kernels wait
for events only.  Pinned host memory is copied as it is.  Pageable memory goes through
pinned pieces that several threads fill and empty.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from np_ozaki.engines.parallel import Block, available_threads, run_blocks

__all__ = ["Copies", "download", "upload"]

Array = NDArray[Any]

_PIECE_BYTES = 8 << 20
_SMALLEST_PIECE = 4 << 20
"""Below twice this a copy is not worth a second thread."""

_MOST_THREADS = 16
_LARGEST_PITCH = 2**31 - 1
_MOST_COPIES = 64
"""Copies of pinned memory that are queued one by one; more go through pieces."""

_streams: dict[tuple[int, str], cupy.cuda.Stream] = {}
_lock = threading.Lock()


def _stream(direction: str) -> cupy.cuda.Stream:
    """Return the current device's stream for copies in a direction."""
    key = (int(runtime.getDevice()), direction)
    with _lock:
        if key not in _streams:
            _streams[key] = cupy.cuda.Stream(non_blocking=True)
        return _streams[key]


def _event(stream: cupy.cuda.Stream) -> cupy.cuda.Event:
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    return event


def _pieces(shape: tuple[int, ...], itemsize: int) -> Iterator[Block]:
    """Cut (batch, rows, columns) of entries into pieces for the threads.

    Each is contiguous in a C-contiguous array: whole matrices, else whole rows of one,
    else a part of one row.
    """
    batch, rows, columns = shape
    share = itemsize * batch * rows * columns // _threads()
    limit = min(_PIECE_BYTES, max(_SMALLEST_PIECE, share))
    wide = min(columns, limit // itemsize)
    tall = min(rows, max(1, limit // (itemsize * wide))) if wide == columns else 1
    deep = max(1, limit // (itemsize * rows * columns)) if tall == rows else 1
    for h in range(0, batch, deep):
        for i in range(0, rows, tall):
            for j in range(0, columns, wide):
                yield slice(h, h + deep), slice(i, i + tall), slice(j, j + wide)


def _queue_rows(
    target: tuple[int, int],
    source: tuple[int, int],
    rows: int,
    width: int,
    kind: int,
    stream: cupy.cuda.Stream,
) -> None:
    """Queue a copy of rows of bytes between (address, bytes from row to row)."""
    if rows == 1 or target[1] == source[1] == width:
        # A pitch has a limit, a length has none.
        runtime.memcpyAsync(target[0], source[0], rows * width, kind, stream.ptr)
    else:
        runtime.memcpy2DAsync(*target, *source, width, rows, kind, stream.ptr)


def _rows(x: Any) -> Any:
    """Return (batch, rows, columns) as (1, batch rows, columns) where strides allow."""
    if x.shape[0] == 1 or x.strides[0] != x.shape[1] * x.strides[1]:
        return x
    return x.reshape(1, x.shape[0] * x.shape[1], x.shape[2])


def _as_pinned_rows(x: Array) -> Array | None:
    """Return pinned memory as a few stacks of rows, or None for what must be staged."""
    x = _rows(x)
    along = x.strides[2] == x.itemsize or x.shape[2] == 1
    if not along or x.strides[1] < x.itemsize * x.shape[2] or x.shape[0] > _MOST_COPIES:
        return None
    if x.strides[1] > _LARGEST_PITCH and x.shape[1] > 1:
        return None
    attributes = runtime.pointerGetAttributes(x.ctypes.data)
    return x if attributes.type == runtime.memoryTypeHost else None


class _Pair:
    """Two pinned pieces that one thread uses in turn: one is filled, one under way."""

    def __init__(self, largest: int, dtype: np.dtype[Any]) -> None:
        self._turns: deque[tuple[Array, cupy.cuda.Event | None]] = deque()
        for _ in range(2):
            # CuPy keeps the memory for later, by size.
            memory = cupy.cuda.alloc_pinned_memory(dtype.itemsize * largest)
            self._turns.append((np.frombuffer(memory, dtype, largest), None))

    def take(self) -> Array:
        """Return the piece that was used longest ago, when its copy is over."""
        piece, event = self._turns.popleft()
        if event is not None:
            event.synchronize()
        return piece

    def give(self, piece: Array, event: cupy.cuda.Event) -> None:
        """Take a piece back that is free after an event."""
        self._turns.append((piece, event))

    def wait(self) -> None:
        """Wait for both: CuPy would give the memory to others at once."""
        for _, event in self._turns:
            if event is not None:
                event.synchronize()


def _upload_pieces(source: Array, tile: Any, stream: cupy.cuda.Stream) -> None:
    """Copy pageable memory to the device by several threads, piece by piece."""
    device = runtime.getDevice()

    def work(share: Sequence[Block]) -> None:
        runtime.setDevice(device)
        pair = _Pair(max(source[part].size for part in share), source.dtype)
        try:
            for part in share:
                given = source[part]
                piece = pair.take()
                np.copyto(piece[: given.size].reshape(given.shape), given)
                runtime.memcpyAsync(
                    tile[part].data.ptr,
                    piece.ctypes.data,
                    given.nbytes,
                    runtime.memcpyHostToDevice,
                    stream.ptr,
                )
                pair.give(piece, _event(stream))
        finally:
            pair.wait()

    run_blocks(work, list(_pieces(source.shape, source.itemsize)), _threads())


def _download_pieces(tile: Any, target: Array, stream: cupy.cuda.Stream) -> None:
    """Copy device memory to pageable memory, likewise."""
    device = runtime.getDevice()

    def work(share: Sequence[Block]) -> None:
        runtime.setDevice(device)
        pair = _Pair(max(target[part].size for part in share), target.dtype)
        arriving: deque[tuple[Array, Block, cupy.cuda.Event]] = deque()

        def receive() -> None:
            piece, part, event = arriving.popleft()
            event.synchronize()
            wanted = target[part]
            np.copyto(wanted, piece[: wanted.size].reshape(wanted.shape))
            pair.give(piece, event)

        try:
            for part in share:
                if len(arriving) > 1:
                    receive()
                piece = pair.take()
                given = tile[part]
                runtime.memcpyAsync(
                    piece.ctypes.data,
                    given.data.ptr,
                    given.nbytes,
                    runtime.memcpyDeviceToHost,
                    stream.ptr,
                )
                arriving.append((piece, part, _event(stream)))
            while arriving:
                receive()
        finally:
            for _, _, event in arriving:
                event.synchronize()

    run_blocks(work, list(_pieces(tile.shape, tile.itemsize)), _threads())


def _threads() -> int:
    return min(_MOST_THREADS, available_threads())


class _Source:
    """An operand, (batch, lines, k), that comes to the device in tiles of lines."""

    def __init__(self, copies: Copies, x: Any) -> None:
        self._copies = copies
        self._x = x
        self._host = not isinstance(x, cupy.ndarray)
        self._ahead: tuple[slice, Any, cupy.cuda.Event] | None = None
        self._buffers: deque[Any] = deque()
        # After this, nothing uses the buffer that comes next.
        self._over: cupy.cuda.Event | None = None

    def prefetch(self, lines: slice) -> None:
        """Start to copy a tile that is wanted next."""
        if self._host and self._ahead is None:
            self._ahead = self._start(lines)

    def load(self, lines: slice) -> Any:
        """Return a tile on the device; kernels queued from now on find it there.

        Kernels queued from now on must not use the tile before it.
        """
        if not self._host:
            return self._x[:, lines]
        if self._ahead is None or self._ahead[0] != lines:
            self._ahead = self._start(lines)
        _, tile, arrived = self._ahead
        self._ahead = None
        current = cupy.cuda.get_current_stream()
        self._over = _event(current)
        current.wait_event(arrived)
        return tile

    def _start(self, lines: slice) -> tuple[slice, Any, cupy.cuda.Event]:
        part = self._x[:, lines]
        # As it lies in memory, so that rows are copied as rows.
        turned = abs(part.strides[1]) < abs(part.strides[2])
        source = part.swapaxes(1, 2) if turned else part
        if not self._buffers or self._buffers[0].size < source.size:
            count = 1 if part.shape[1] == self._x.shape[1] else 2
            self._buffers = deque(
                cupy.empty(source.size, source.dtype) for _ in range(count)
            )
            self._over = _event(cupy.cuda.get_current_stream())
        buffer = self._buffers[0]
        self._buffers.rotate(-1)
        stream = _stream("in")
        stream.wait_event(self._over)
        tile = buffer[: source.size].reshape(source.shape)
        self._copies.upload(source, tile, stream)
        return lines, (tile.swapaxes(1, 2) if turned else tile), _event(stream)


class Copies:
    """The copies of one product; see `cuda.Device.transfer`."""

    def __init__(self) -> None:
        self._results: deque[tuple[Any, cupy.cuda.Event]] = deque()
        self._pending: tuple[Any, Array, cupy.cuda.Event] | None = None
        self.used: set[str] = set()

    def source(self, x: Any) -> _Source:
        """Return the way of an operand to the device."""
        return _Source(self, x)

    def upload(self, source: Array, tile: Any, stream: cupy.cuda.Stream) -> None:
        """Queue the copy of (batch, rows, columns) to the same shape, C-contiguous."""
        self.used.add("in")
        kind = runtime.memcpyHostToDevice
        pinned = _as_pinned_rows(source)
        if pinned is not None:
            targets = tile.reshape(pinned.shape)
            for matrix, target in zip(pinned, targets, strict=True):
                _queue_rows(
                    (target.data.ptr, target.strides[0]),
                    (matrix.ctypes.data, matrix.strides[0]),
                    len(matrix),
                    matrix.shape[1] * matrix.itemsize,
                    kind,
                    stream,
                )
            return
        _upload_pieces(source, tile, stream)

    def result(self, out: Any) -> Any:
        """Return where a tile of the result is to be written on the device."""
        if isinstance(out, cupy.ndarray):
            return out
        if len(self._results) > 1:
            # The tile before the last has left, or is about to.
            buffer, left = self._results.popleft()
            cupy.cuda.get_current_stream().wait_event(left)
            if buffer.size >= out.size:
                return buffer[: out.size].reshape(out.shape)
        return cupy.empty(out.shape, out.dtype)

    def deliver(self, tile: Any, out: Any) -> None:
        """Take a tile that has been queued to `out`, at the latest in `finish`.

        A tile leaves when the next one has been queued, so that waiting for it keeps
        no kernel waiting.
        """
        if isinstance(out, cupy.ndarray):
            return
        self._send()
        self._pending = tile, out, _event(cupy.cuda.get_current_stream())

    def _send(self) -> None:
        if self._pending is None:
            return
        tile, out, written = self._pending
        self._pending = None
        stream = _stream("out")
        self.used.add("out")
        stream.wait_event(written)
        self._download(tile, out, stream)
        self._results.append((tile.reshape(-1), _event(stream)))

    def _download(self, tile: Any, out: Array, stream: cupy.cuda.Stream) -> None:
        kind = runtime.memcpyDeviceToHost
        pinned = _as_pinned_rows(out)
        if pinned is not None:
            sources = tile.reshape(pinned.shape)
            for matrix, target in zip(sources, pinned, strict=True):
                _queue_rows(
                    (target.ctypes.data, target.strides[0]),
                    (matrix.data.ptr, matrix.strides[0]),
                    len(target),
                    target.shape[1] * target.itemsize,
                    kind,
                    stream,
                )
            return
        _download_pieces(tile, out, stream)

    def finish(self) -> None:
        """Bring every result to the host."""
        self._send()
        if self._results:
            _stream("out").synchronize()

    def close(self) -> None:
        """Let the device's memory be used again only after the copies."""
        current = cupy.cuda.get_current_stream()
        for direction in self.used:
            current.wait_event(_event(_stream(direction)))

    def abandon(self) -> None:
        """Wait for copies of a product that failed: they use the caller's arrays."""
        for direction in self.used:
            _stream(direction).synchronize()


def upload(source: NDArray[np.uint8], buffer: cupy.ndarray) -> None:
    """Queue a copy of host bytes for the current stream; the source may change then.

    Parameters
    ----------
    source : (nbytes,) ndarray of uint8
        Contiguous, of any memory.
    buffer : (nbytes,) cupy.ndarray of uint8
        On the current device.
    """
    current = cupy.cuda.get_current_stream()
    words = source.size // 8 * 8
    if words:
        stream = _stream("in")
        stream.wait_event(_event(current))
        _upload_pieces(_words(source[:words]), _words(buffer[:words]), stream)
        current.wait_event(_event(stream))
    if words < source.size:
        buffer[words:].set(source[words:])


def download(buffer: cupy.ndarray, target: NDArray[np.uint8]) -> None:
    """Copy device bytes to the host, when all that is queued has been done.

    Parameters
    ----------
    buffer : (nbytes,) cupy.ndarray of uint8
        On the current device.
    target : (nbytes,) ndarray of uint8
        Contiguous, of any memory.
    """
    words = target.size // 8 * 8
    if words:
        stream = _stream("out")
        stream.wait_event(_event(cupy.cuda.get_current_stream()))
        _download_pieces(_words(buffer[:words]), _words(target[:words]), stream)
    if words < target.size:
        target[words:] = buffer[words:].get()


def _words(x: Any) -> Any:
    """Return bytes as (1, 1, n) doubles."""
    return x.view(np.float64).reshape(1, 1, -1)
