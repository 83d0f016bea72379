"""A CUDA GPU through CuPy: memory, kernels, INT8 products.  Copies are in cuda_copies.

Every call works on the current device and stream of the calling thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import cupy
import numpy as np
from cupy.cuda import driver, runtime
from cupy_backends.cuda.libs import cublas, nvrtc
from numpy.typing import NDArray

from np_ozaki._kernels.render import OVERLAPPING_STAGES, AnyVariant, source
from np_ozaki.engines.choice import is_device_array
from np_ozaki.engines.cuda_copies import Copies
from np_ozaki.engines.cuda_hopper import CAPABILITY, OLDEST_NVRTC, ResidueTiles
from np_ozaki.engines.cuda_launch import Launch
from np_ozaki.engines.cuda_lines import PlaneStack
from np_ozaki.errors import OperandTypeError, refusal

__all__ = [
    "CupyDevice",
    "as_device_array",
    "device_count",
    "on_device",
    "unavailable",
]

OPTIONS: tuple[str, ...] = ("--std=c++17",)
"""Flags of NVRTC; CuPy adds the architecture of the current device.  CuPy keeps the
compiled kernels on disk, by text, flags, architecture and compiler."""

OLDEST_CAPABILITY = 75
"""sm_75, the first with INT8 matrix units."""

_LARGE_PRODUCT = 1 << 34
_LARGE_RESULT = 1 << 22
"""m n k and m n from which one INT8 product fills the GPU: a batch runs slower."""

_PEDANTIC_MATH = 2
"""cublasMath_t without emulation and without lower precision inside."""

_CUDA_MEMORY = 2
_CUBLAS_MEMORY = frozenset({1, 3})
"""Status codes of a lack of memory; cuBLAS has one for its own start, too."""

_WORKSPACE_SHARE = 4
_RESERVED_SHARED = 4096
"""Shared memory that kernels declare besides the dynamic one, and the system's own."""

_WORD = 8
_MAIL_WORDS = 1 << 12
"""More of them than this take longer to write over the bus than to copy."""

_CUDA_R_32I = 10
"""cudaDataType of int32, which CuPy has no name for."""

_LEGACY_STREAMS, STREAM_PER_THREAD = frozenset({0, 1}), 2
"""Handles of CUDA's default streams."""

_ONE, _ZERO = np.array(1, dtype=np.int32), np.array(0, dtype=np.int32)

_Kernel = tuple[int, str, AnyVariant | None, str]


def unavailable() -> str | None:
    """Return why there is no GPU for the engine, or None if there is one."""
    try:
        if not runtime.getDeviceCount():
            return "there is no CUDA device"
        capability = int(cupy.cuda.Device().compute_capability)
    except runtime.CUDARuntimeError as error:
        return f"CUDA does not start: {error}"
    try:
        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        return f"CuPy finds no NVRTC, which compiles kernels: {error}"
    if capability < OLDEST_CAPABILITY:
        return (
            f"the device has compute capability {capability / 10}: INT8 matrix units "
            f"come with {OLDEST_CAPABILITY / 10}"
        )
    return None


def device_count() -> int:
    """Return the number of devices that this process sees.

    Returns
    -------
    int
        At least 1 where `unavailable` says None.
    """
    return int(runtime.getDeviceCount())


def on_device(index: int) -> cupy.cuda.Device:
    """Return a context in which a device is the current one of the calling thread.

    Parameters
    ----------
    index : int
        Below `device_count`.

    Returns
    -------
    cupy.cuda.Device
        Restores the device that was current before.
    """
    return cupy.cuda.Device(index)


def as_device_array(x: Any) -> cupy.ndarray:
    """Return a CuPy array: without a copy for what lies on a GPU, else a copy there.

    Parameters
    ----------
    x : array
        CuPy's, or of another library through ``__cuda_array_interface__`` or DLPack;
        or anything that `cupy.asarray` takes.

    Returns
    -------
    cupy.ndarray
        On the current device.

    Raises
    ------
    OperandTypeError
        The data are on another device.
    """
    array = x if isinstance(x, cupy.ndarray) else _imported(x)
    current = int(runtime.getDevice())
    if array.size and array.device.id != current:
        raise OperandTypeError(
            refusal(
                "operand",
                f"array on device {array.device.id}",
                f"the current device is {current}, and so must be the operands'",
                f"call inside `with cupy.cuda.Device({array.device.id}):`",
            )
        )
    return array


def _imported(x: Any) -> cupy.ndarray:
    if is_device_array(x) and not hasattr(x, "__cuda_array_interface__"):
        return cupy.from_dlpack(x)
    array = cupy.asarray(x)
    size = array.itemsize
    if array.data.ptr % size or any(s % size for s in array.strides):
        # Fields of packed structures, say, which a GPU reads byte by byte only.
        shape, strides = (*array.shape, size), (*array.strides, 1)
        scattered = cupy.ndarray(shape, np.uint8, array.data, strides)
        return cupy.ascontiguousarray(scattered).view(array.dtype)[..., 0]
    return array


class CupyDevice:
    """The current GPU, as `cuda.Device` asks for it."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[int, int, int]] = {}
        self._residue_tiles = ResidueTiles()
        self._modules: dict[tuple[str, AnyVariant | None], cupy.RawModule] = {}
        self._kernels: dict[_Kernel, cupy.cuda.Function] = {}
        self._mail: list[tuple[int, NDArray[np.uint64]]] = []
        self._lock = threading.Lock()
        self._listeners = threading.local()

    # Facts -------------------------------------------------------------------------

    def _of_device(self) -> tuple[int, int, int]:
        """Return bytes of memory and of a block's shared memory, and clusters."""
        index = runtime.getDevice()
        if index not in self._facts:
            memory = runtime.memGetInfo()[1]
            shared = runtime.deviceGetAttribute(
                runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index
            )
            clusters = 0
            capability = int(cupy.cuda.Device(index).compute_capability)
            if capability == CAPABILITY and nvrtc.getVersion() >= OLDEST_NVRTC:
                # Of two blocks, one on each multiprocessor.
                clusters = runtime.deviceGetAttribute(
                    runtime.cudaDevAttrMultiProcessorCount, index
                )
                clusters = int(clusters) // 2
            self._facts[index] = int(memory), int(shared), clusters
        return self._facts[index]

    def place(self) -> str:
        """Return the current device's name among places of `prepared`."""
        return f"cuda:{int(runtime.getDevice())}"

    def stream(self) -> cupy.cuda.Stream | None:
        """Return the current stream, which equals itself for ever while it is held.

        None while a graph is captured, when nothing that is queued is done, and for
        the default streams of threads, which cannot be told from each other.
        """
        stream = cupy.cuda.get_current_stream()
        if stream.ptr in _LEGACY_STREAMS:
            return stream
        if stream.ptr == STREAM_PER_THREAD or stream.is_capturing():
            return None
        return stream

    def default_workspace(self) -> int:
        """Return a quarter of the device's memory, in bytes."""
        return self._of_device()[0] // _WORKSPACE_SHARE

    def shared_bytes(self) -> int:
        """Return the dynamic shared memory that a block may have, in bytes."""
        return self._of_device()[1] - _RESERVED_SHARED

    # Memory ------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
        """Return an uninitialised array from CuPy's pool."""
        return cupy.ndarray(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> cupy.ndarray:
        """Return an array of zeros from CuPy's pool."""
        return cupy.zeros(shape, dtype)

    def pointer(self, x: cupy.ndarray) -> int:
        """Return the address of the first entry."""
        return int(x.data.ptr)

    def addresses(self, arrays: tuple[cupy.ndarray, ...]) -> tuple[int, ...] | None:
        """Return the current device's number, and where arrays begin there."""
        if self.is_timed():
            return None
        index = runtime.getDevice()
        found = [index]
        for x in arrays:
            data = x.data
            if data.device_id != index:
                return None
            found.append(data.ptr)
        return tuple(found)

    def fetch(self, x: Any) -> NDArray[Any]:
        """Wait for an array and return it on the host."""
        return cupy.asnumpy(x) if isinstance(x, cupy.ndarray) else np.asarray(x)

    def written(self, count: int, queue: Callable[[int], None]) -> NDArray[np.uint64]:
        """Wait for 8-byte words that a kernel writes, and return them on the host.

        Few of them go where the host reads: a copy would be queued, and waited for,
        longer than it takes.
        """
        if count > _MAIL_WORDS:
            words = self.empty((count,), np.uint64)
            queue(self.pointer(words))
            return self.fetch(words)
        try:
            mail = self._mail.pop()
        except IndexError:
            # Every device sees pinned memory, at the address that the host does.
            memory = cupy.cuda.alloc_pinned_memory(_WORD * _MAIL_WORDS)
            mail = int(memory.ptr), np.frombuffer(memory, np.uint64, _MAIL_WORDS)
        try:
            queue(mail[0])
        finally:
            # Whatever happened: nobody else gets memory that is still written to.
            runtime.streamSynchronize(cupy.cuda.get_current_stream().ptr)
        found = mail[1][:count].copy()
        self._mail.append(mail)
        return found

    def read(self, pointer: int, nbytes: int) -> NDArray[np.uint8]:
        """Wait for the bytes at an address of the device; return them on the host."""

        def queue(target: int) -> None:
            stream = cupy.cuda.get_current_stream().ptr
            kind = runtime.memcpyDefault
            runtime.memcpyAsync(target, pointer, nbytes, kind, stream)

        words = self.written(-(-nbytes // _WORD), queue)
        return words.view(np.uint8)[:nbytes]

    def is_host(self, x: Any) -> bool:
        """Return whether an array lies in host memory."""
        return not isinstance(x, cupy.ndarray)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[Copies]:
        """Hold the copies of one product; on leaving, results are on the host."""
        copies = Copies()
        try:
            yield copies
            copies.finish()
        except BaseException:
            copies.abandon()
            raise
        finally:
            copies.close()

    def own(self, x: NDArray[Any]) -> cupy.ndarray:
        """Return a copy of a host array."""
        return cupy.asarray(x)

    def native(self, a: cupy.ndarray, b: cupy.ndarray) -> cupy.ndarray:
        """Return the product in the device's own FP64, not emulated."""
        handle = cupy.cuda.device.get_cublas_handle()
        mode = cublas.getMathMode(handle)
        cublas.setMathMode(handle, _PEDANTIC_MATH)
        try:
            return cupy.matmul(a, b)
        finally:
            cublas.setMathMode(handle, mode)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Return whether an error of CuPy says that memory ran out."""
        if isinstance(error, cublas.CUBLASError):
            return int(error.status) in _CUBLAS_MEMORY
        if isinstance(error, (runtime.CUDARuntimeError, driver.CUDADriverError)):
            return int(error.status) == _CUDA_MEMORY
        return isinstance(error, cupy.cuda.memory.OutOfMemoryError)

    def free(self) -> None:
        """Give CuPy's unused memory back to the device."""
        cupy.get_default_memory_pool().free_all_blocks()

    # Kernels -----------------------------------------------------------------------

    def _module(self, stage: str, variant: AnyVariant | None) -> cupy.RawModule:
        key = (stage, variant)
        with self._lock:
            if key not in self._modules:
                self._modules[key] = cupy.RawModule(
                    code=source(stage, variant), options=OPTIONS, backend="nvrtc"
                )
            return self._modules[key]

    def launch(
        self,
        stage: str,
        variant: AnyVariant | None,
        kernel: str,
        grid: tuple[int, ...],
        block: int,
        args: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Queue a kernel; ints go as int64, host arrays by value."""
        function = self._function(stage, variant, kernel, dynamic=shared > 0)
        function(grid, (block,), args, shared)

    def _function(
        self, stage: str, variant: AnyVariant | None, kernel: str, *, dynamic: bool
    ) -> cupy.cuda.Function:
        """Return a kernel of the current device."""
        key = (int(runtime.getDevice()), stage, variant, kernel)
        function = self._kernels.get(key)
        if function is None:
            function = self._prepared(key, dynamic=dynamic)
        return function

    def _prepared(self, key: _Kernel, *, dynamic: bool) -> cupy.cuda.Function:
        """Return a kernel of the current device that may use all of shared memory."""
        _, stage, variant, kernel = key
        module = self._module(stage, variant)
        room = self._of_device()[1] - _RESERVED_SHARED
        with self._lock:
            function = module.get_function(kernel)
            if dynamic:
                function.max_dynamic_shared_size_bytes = room
            return self._kernels.setdefault(key, function.kernel)

    def gemm(
        self,
        left: cupy.ndarray,
        right: cupy.ndarray,
        out: cupy.ndarray,
        *,
        accumulate: bool,
    ) -> None:
        """Queue out[h] (+)= left[h] right[h]^T for a stack of int8 matrices.

        Entries of a row follow each other; rows and matrices may lie apart.  cuBLAS
        counts in columns: its C is our out transposed, so the operands swap.
        """
        stack, rows, k = left.shape
        columns = right.shape[1]
        entries = rows * columns
        large = entries >= _LARGE_RESULT and entries * k >= _LARGE_PRODUCT
        batch = 1 if large else stack
        handle = cupy.cuda.device.get_cublas_handle()
        for h in range(0, stack, batch):
            cublas.gemmStridedBatchedEx(
                handle,
                cublas.CUBLAS_OP_T,
                cublas.CUBLAS_OP_N,
                columns,
                rows,
                k,
                _ONE.ctypes.data,
                right.data.ptr + h * right.strides[0],
                runtime.CUDA_R_8I,
                right.strides[1],
                right.strides[0],
                left.data.ptr + h * left.strides[0],
                runtime.CUDA_R_8I,
                left.strides[1],
                left.strides[0],
                (_ONE if accumulate else _ZERO).ctypes.data,
                out.data.ptr + h * out.strides[0],
                _CUDA_R_32I,
                out.strides[1] // 4,
                out.strides[0] // 4,
                batch,
                cublas.CUBLAS_COMPUTE_32I,
                cublas.CUBLAS_GEMM_DEFAULT,
            )

    def tile_clusters(self) -> int:
        """Return how many clusters of `residue_tiles` run at a time; 0 without it."""
        return self._of_device()[2]

    def residue_tiles(
        self, left: PlaneStack, right: PlaneStack, work: NDArray[np.void], blocks: int
    ) -> None:
        """Queue products of planes that leave residue tiles; see `cuda_tiles`."""
        self._residue_tiles.launch(left, right, work, blocks)

    def clear(self, pointer: int, nbytes: int) -> None:
        """Queue the writing of zeros."""
        runtime.memsetAsync(pointer, 0, nbytes, cupy.cuda.get_current_stream().ptr)

    # What is queued again ------------------------------------------------------------

    def launch_again(
        self,
        stage: str,
        variant: AnyVariant | None,
        kernel: str,
        grid: tuple[int, ...],
        block: int,
        args: Sequence[NDArray[np.void]],
        shared: int,
    ) -> Launch:
        """Return a launch for `queue_again`, told what `args` then hold."""
        function = self._function(stage, variant, kernel, dynamic=shared > 0)
        overlaps = stage in OVERLAPPING_STAGES
        return Launch(function, grid, (block,), args, shared, overlaps=overlaps)

    def clear_again(
        self, address: NDArray[np.int64], nbytes: int
    ) -> Callable[[int], None]:
        """Return for `queue_again` the writing of zeros to where a word then tells."""
        return lambda stream: runtime.memsetAsync(int(address[0]), 0, nbytes, stream)

    def residue_tiles_again(
        self,
        left: PlaneStack,
        right: PlaneStack,
        addresses: NDArray[np.int64],
        work: NDArray[np.void],
        blocks: int,
    ) -> tuple[Launch, Callable[[], None]]:
        """Return `residue_tiles` for `queue_again`, and what to call before it."""
        return self._residue_tiles.again(left, right, addresses, work, blocks)

    def queue_again(self, launches: Sequence[Callable[[int], None]]) -> None:
        """Queue launches on the current stream, one after the other."""
        stream = cupy.cuda.get_current_stream().ptr
        for launch in launches:
            launch(stream)

    # Timing ------------------------------------------------------------------------

    def is_timed(self) -> bool:
        """Return whether this thread collects `mark`s."""
        return getattr(self._listeners, "marks", None) is not None

    def mark(self, stage: str) -> None:
        """Note that the work queued from here on belongs to a stage."""
        marks = getattr(self._listeners, "marks", None)
        if marks is not None:
            event = cupy.cuda.Event()
            event.record()
            marks.append((stage, event))

    @contextlib.contextmanager
    def timeline(self) -> Iterator[dict[str, float]]:
        """Collect the milliseconds of each stage that this thread queues inside."""
        times: dict[str, float] = {}
        marks: list[tuple[str, cupy.cuda.Event]] = []
        self._listeners.marks = marks
        try:
            yield times
            self.mark("")
            marks[-1][1].synchronize()
        finally:
            self._listeners.marks = None
        for (stage, start), (_, stop) in pairwise(marks):
            elapsed = cupy.cuda.get_elapsed_time(start, stop)
            times[stage] = times.get(stage, 0.0) + elapsed
