"""Residue products on the matrix unit of Hopper GPUs, as bytes: see residue_tiles.cu.

The kernel is for compute capability 9.0 alone, by instructions that CuPy does not
compile for, and its operands are described to the copy engine by the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy.cuda import driver, runtime
from cupy_backends.cuda.libs import nvrtc
from numpy.typing import NDArray

from np_ozaki._kernels.render import TILE_STEP, source
from np_ozaki.engines.cuda_launch import Launch, driver_function, status_of
from np_ozaki.engines.cuda_lines import PlaneStack
from np_ozaki.engines.cuda_tiles import WORK
from np_ozaki.tiling import GROUP_ROWS, TILE_COLUMNS

__all__ = ["CAPABILITY", "OLDEST_NVRTC", "ResidueTiles"]

CAPABILITY = 90
"""Compute capability of the only GPUs that run it."""

OLDEST_NVRTC = (12, 1)
"""The first compiler that knows all that these kernels ask for."""

_OPTIONS = ("--std=c++17", "--gpu-architecture=sm_90a", "-ftz=true")
_STAGE = "residue_tiles"
_THREADS = 384
_STAGES = 4

_KERNELS = {2: "residue_tiles", 3: "tall_residue_tiles"}
"""By the groups of rows that a block takes."""

_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""

_WORK_BYTES = np.dtype(f"V{WORK.itemsize}")
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_BYTES, _SWIZZLE_128, _PROMOTE_128 = 0, 3, 2
"""Of CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion."""


def _cubin() -> bytes:
    """Return machine code, from CuPy's folder of compiled kernels or the compiler."""
    text = source(_STAGE)
    key = "\n".join((text, *_OPTIONS, str(nvrtc.getVersion())))
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return _compiled(text)
    name = f"np_ozaki_{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    path = os.path.join(_cache_folder(), name)
    try:
        with open(path, "rb") as file:
            kept = file.read()
    except OSError:
        kept = b""
    digest, cubin = kept[:32], kept[32:]
    if cubin and hashlib.sha256(cubin).digest() == digest:
        return cubin
    cubin = _compiled(text)
    _keep(path, hashlib.sha256(cubin).digest() + cubin)
    return cubin


def _cache_folder() -> str:
    """Return where CuPy keeps compiled kernels."""
    default = os.path.join(os.path.expanduser("~"), ".cupy", "kernel_cache")
    return os.environ.get("CUPY_CACHE_DIR", default)


def _keep(path: str, content: bytes) -> None:
    """Write a file whole or not at all; without it the next process compiles again."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            name = file.name
            file.write(content)
    except OSError:
        return
    try:
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _compiled(text: str) -> bytes:
    program = nvrtc.createProgram(text, f"{_STAGE}.cu", (), ())
    try:
        nvrtc.compileProgram(program, _OPTIONS)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


@functools.lru_cache(maxsize=1024)
def _tensor_map(
    rows: int, pointer: int, stack: int, lines: int, k: int
) -> NDArray[np.void]:
    """Return how the copy engine finds boxes of `rows` lines by 128 bytes in planes.

    It holds the address and the shape, nothing of what lies there.
    """
    buffer = np.zeros(_MAP_BYTES + _MAP_ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _MAP_ALIGNMENT
    encode = functools.partial(
        driver_function("cuTensorMapEncodeTiled"),
        ctypes.c_void_p(buffer.ctypes.data + start),
        _BYTES,
        3,
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 3)(k, lines, stack),
        (ctypes.c_uint64 * 2)(k, lines * k),
        (ctypes.c_uint32 * 3)(TILE_STEP, rows, 1),
        (ctypes.c_uint32 * 3)(1, 1, 1),
        0,
        _SWIZZLE_128,
        _PROMOTE_128,
        0,
    )
    status = status_of(encode)
    if status:
        raise RuntimeError(
            f"cuTensorMapEncodeTiled: status {status} for {stack} planes of {lines} "
            f"lines by {k} bytes at {pointer:#x}"
        )
    return buffer[start : start + _MAP_BYTES].copy().view(f"V{_MAP_BYTES}")


def _shared_bytes(groups: int) -> int:
    """Return the size of stages of A's box and B's two, and room to align them."""
    return int(_STAGES * (groups * GROUP_ROWS + TILE_COLUMNS) * TILE_STEP + 1024)


class ResidueTiles:
    """The kernels, loaded on each device where one is called."""

    def __init__(self) -> None:
        self._functions: dict[int, dict[int, Any]] = {}

    def _function(self, groups: int) -> Any:
        index = int(runtime.getDevice())
        if index not in self._functions:
            module = cupy.cuda.function.Module()
            module.load(_cubin())
            found = {count: module.get_function(x) for count, x in _KERNELS.items()}
            for count, kernel in found.items():
                size = _shared_bytes(count)
                driver.funcSetAttribute(kernel.ptr, _MAX_DYNAMIC_SHARED, size)
            self._functions[index] = found
        return self._functions[index][groups]

    def launch(
        self, left: PlaneStack, right: PlaneStack, work: NDArray[np.void], blocks: int
    ) -> None:
        """Queue the kernel; see `cuda_tiles.queue_residue_tiles`."""
        groups = int(work["block_groups"][0])
        boxes = _boxes(groups)
        maps = (_tensor_map(x, *y) for x, y in zip(boxes, (left, right), strict=True))
        args = (*maps, work.view(_WORK_BYTES))
        self._function(groups)((blocks,), (_THREADS,), args, _shared_bytes(groups))

    def again(
        self,
        left: PlaneStack,
        right: PlaneStack,
        addresses: NDArray[np.int64],
        work: NDArray[np.void],
        blocks: int,
    ) -> tuple[Launch, Callable[[], None]]:
        """Return a launch, and what to call where `addresses` have changed."""
        groups = int(work.view(WORK)["block_groups"][0])
        boxes, shapes = _boxes(groups), (tuple(left)[1:], tuple(right)[1:])
        maps = [np.zeros(1, f"V{_MAP_BYTES}") for _ in shapes]

        def move() -> None:
            for target, rows, address, shape in zip(
                maps, boxes, addresses.tolist(), shapes, strict=True
            ):
                target[:] = _tensor_map(rows, address, *shape)

        args = (*maps, work)
        launch = Launch(
            self._function(groups),
            (blocks,),
            (_THREADS,),
            args,
            _shared_bytes(groups),
            overlaps=True,
        )
        return launch, move


def _boxes(groups: int) -> tuple[int, int]:
    """Return the rows of A's box and of B's."""
    return groups * GROUP_ROWS, TILE_COLUMNS // 2
