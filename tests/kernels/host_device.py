"""A device whose memory is the host's and whose kernels run on the CPU.

The CUDA engine's own code and the kernels' text run as they are, without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import simt
from tile_layout import tiles_of

from np_ozaki.engines.cuda_tiles import WORK
from np_ozaki.numerics.moduli import COMPLEX_MODULI, MODULI


def at(pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return the array at an address."""
    shape = tuple(map(int, shape))
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = (ctypes.c_byte * nbytes).from_address(int(pointer))
    return np.frombuffer(buffer, dtype).reshape(shape)


class HostDevice:
    """`np_ozaki.engines.cuda.Device` on NumPy."""

    def __init__(
        self, workspace: int = 1 << 30, shared: int = 1 << 16, *, hopper: bool = False
    ) -> None:
        self._workspace = workspace
        self._shared = shared
        self._hopper = hopper
        self._roots: dict[int, np.ndarray] = {}
        self.launched: list[str] = []
        self.largest_array: int | None = None
        """Bytes beyond which an array finds no memory."""
        self.freed = 0
        self.current_stream: Hashable | None = "stream"
        self.accumulator_bits = 32
        """Bits at which products wrap; fewer stand for a longer k."""

    def place(self) -> str:
        return "simulated:0"

    def stream(self) -> Hashable | None:
        return self.current_stream

    def default_workspace(self) -> int:
        return self._workspace

    def shared_bytes(self) -> int:
        return self._shared

    def own(self, x: np.ndarray) -> np.ndarray:
        """Return a copy in the device's memory, with the strides of x."""
        copy = np.empty_like(x)
        copy[...] = x
        self._roots[id(copy)] = copy
        return copy

    def _check(self, shape: tuple[int, ...], dtype: Any) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if self.largest_array is not None and size > self.largest_array:
            raise MemoryError(f"{size} bytes on the device")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self._check(shape, dtype)
        # Poison: what no kernel writes must not matter.
        return self.own(np.full(shape, np.frombuffer(b"\xa5" * 16, dtype)[0]))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self._check(shape, dtype)
        return self.own(np.zeros(shape, dtype))

    def native(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.own(np.matmul(a, b))

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError)

    def free(self) -> None:
        self.freed += 1

    def pointer(self, x: np.ndarray) -> int:
        return x.ctypes.data

    def addresses(self, arrays):
        if self.is_timed() or any(map(self.is_host, arrays)):
            return None
        return (0, *map(self.pointer, arrays))

    def launch(self, stage, variant, kernel, grid, block, args, shared=0) -> None:
        self.launched.append(kernel)
        given = []
        for x in args:
            if isinstance(x, np.ndarray) and self.is_host(x):
                # Structures go by value; no other host memory has business there.
                assert x.dtype.kind == "V", kernel
                assert x.size == 1, kernel
                x = x.tobytes()
            given.append(x)
        simt.launch(stage, variant, kernel, grid, block, tuple(given), shared)

    def launch_again(self, *job):
        return functools.partial(self.launch, *job)

    def gemm(self, left, right, out, *, accumulate: bool) -> None:
        assert all(x.strides[2] == x.itemsize for x in (left, right, out))
        product = np.matmul(
            left.astype(np.float64), right.astype(np.float64).swapaxes(1, 2)
        ).astype(np.int64)
        total = product + out if accumulate else product
        half = 1 << (self.accumulator_bits - 1)
        out[...] = (total + half) % (2 * half) - half  # wraps, as the matrix units do

    def tile_clusters(self) -> int:
        return 3 if self._hopper else 0

    def residue_tiles(self, left, right, work, blocks) -> None:
        """Do what the kernel does, by NumPy."""
        self.launched.append("residue_tiles")
        (work,) = work.view(WORK)
        batch, m, n = (int(work[name]) for name in ("batch", "rows", "columns"))
        planes, products = int(work["num_planes"]), int(work["products"])
        symmetric = bool(work["symmetric"])
        assert 2 <= blocks <= 2 * work["groups"]
        a, b = (
            at(x.pointer, (x.stack // of_batch, of_batch, x.lines, x.k), np.int8)
            for x, of_batch in ((left, work["batch_a"]), (right, work["batch_b"]))
        )
        sums = np.matmul(
            a.astype(np.float64), b.astype(np.float64).swapaxes(2, 3)
        ).astype(np.int64)
        sums = np.broadcast_to(sums, (sums.shape[0], batch, *sums.shape[2:]))
        sums = sums[:, :, :m, :n]
        if planes:
            first = int(work["first_modulus"])
            moduli = np.array(MODULI + COMPLEX_MODULI)[
                first + np.arange(planes) // products
            ]
            p = moduli.reshape(-1, 1, 1, 1)
            residues = ((sums[:planes] + p // 2) % p - p // 2).astype(np.int8)
            made = tiles_of(residues, symmetric)
            at(work["tiles"], made.shape, np.uint8)[...] = made
        if work["lower"]:
            assert (work["lower_batch_stride"], work["lower_row_stride"]) == (m * n, n)
            at(work["lower"], (batch, m, n), np.int32)[...] = sums[-1]

    def residue_tiles_again(self, left, right, addresses, work, blocks):
        stacks = [left._replace(pointer=0), right._replace(pointer=0)]

        def move():
            stacks[:] = [
                stack._replace(pointer=pointer)
                for stack, pointer in zip(stacks, addresses.tolist(), strict=True)
            ]

        return lambda: self.residue_tiles(*stacks, work, blocks), move

    def clear(self, pointer: int, nbytes: int) -> None:
        at(pointer, (nbytes,), np.uint8)[...] = 0

    def clear_again(self, address, nbytes):
        return lambda: self.clear(address[0], nbytes)

    def queue_again(self, launches) -> None:
        for launch in launches:
            launch()

    def is_timed(self) -> bool:
        return False

    def fetch(self, x: np.ndarray) -> np.ndarray:
        return np.array(x)

    def written(self, count, queue) -> np.ndarray:
        words = np.full(count, 0xA5A5A5A5A5A5A5A5, np.uint64)
        queue(words.ctypes.data)
        return words

    def read(self, pointer: int, nbytes: int) -> np.ndarray:
        def copy(target):
            at(target, (nbytes,), np.uint8)[...] = at(pointer, (nbytes,), np.uint8)

        return self.written(-(-nbytes // 8), copy).view(np.uint8)[:nbytes]

    def is_host(self, x: np.ndarray) -> bool:
        while isinstance(x.base, np.ndarray):
            x = x.base
        return id(x) not in self._roots

    @contextlib.contextmanager
    def transfer(self) -> Iterator[_Copies]:
        yield _Copies(self)

    def mark(self, stage: str) -> None:
        pass


class _Copies:
    def __init__(self, device: HostDevice) -> None:
        self.device = device

    def source(self, x: np.ndarray) -> _Source:
        return _Source(self.device, x)

    def result(self, out: np.ndarray) -> np.ndarray:
        return (
            self.device.empty(out.shape, out.dtype) if self.device.is_host(out) else out
        )

    def deliver(self, tile: np.ndarray, out: np.ndarray) -> None:
        if tile is not out:
            out[...] = tile


class _Source:
    def __init__(self, device: HostDevice, x: np.ndarray) -> None:
        self.device = device
        self.x = x

    def prefetch(self, lines: slice) -> None:
        pass

    def load(self, lines: slice) -> np.ndarray:
        part = self.x[:, lines]
        return self.device.own(part) if self.device.is_host(part) else part
