"""The GPU's side of `bench`: cuBLAS's own products, events, facts of the device.

Each way to multiply has a cuBLAS handle of its own, so that no setting of one reaches
another or the engine.  All ways make the same call, cublasGemmEx.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas
from numpy.typing import NDArray

from np_ozaki.config import EngineName
from np_ozaki.engines import choice
from np_ozaki.engines.cuda_cublas import (
    COMPUTE_EMULATED,
    EAGER,
    EMULATED_MATH,
    FIXED_MANTISSA,
    cublas_version,
    destroy_handle,
    new_handle,
)
from np_ozaki.errors import EngineUnavailableError, refusal

__all__ = ["CudaPlace"]

_PEDANTIC_MATH = 2
"""cublasMath_t that CuPy has no name for."""

_WARM_UP_CALLS = 20
_TIMED_CALLS = 200

_TYPES = {
    "float64": runtime.CUDA_R_64F,
    "complex128": runtime.CUDA_C_64F,
    "float32": runtime.CUDA_R_32F,
    "complex64": runtime.CUDA_C_32F,
}
"""cudaDataType by dtype."""


@dataclass(frozen=True)
class _Way:
    """A way of cuBLAS to multiply.

    Attributes
    ----------
    name : str
        For the report.
    math_mode : int
        cublasMath_t.
    compute_type : int
        cublasComputeType_t.
    mantissa_bits : int or None
        Fixed number of bits of an emulation; None lets cuBLAS look at the data.
    """

    name: str
    math_mode: int
    compute_type: int
    mantissa_bits: int | None = None

    @property
    def emulated(self) -> bool:
        return self.math_mode == EMULATED_MATH

    def handle(self) -> int:
        """Return a handle that multiplies in this way."""
        settings = []
        if self.emulated:
            settings.append(("EmulationStrategy", EAGER))
        if self.mantissa_bits is not None:
            settings += [
                ("FixedPointEmulationMantissaControl", FIXED_MANTISSA),
                ("FixedPointEmulationMaxMantissaBitCount", self.mantissa_bits),
            ]
        return new_handle(self.math_mode, settings)


_EMULATED = (
    _Way("cuBLAS emulated", EMULATED_MATH, COMPUTE_EMULATED),
    _Way("cuBLAS emulated 55", EMULATED_MATH, COMPUTE_EMULATED, 55),
)


def _ways(dtype: str) -> tuple[_Way, ...]:
    """Return the ways to multiply in a dtype, by the hardware first."""
    compute, pedantic = cublas.CUBLAS_COMPUTE_64F, cublas.CUBLAS_COMPUTE_64F_PEDANTIC
    if dtype in {"float32", "complex64"}:
        compute = cublas.CUBLAS_COMPUTE_32F
        pedantic = cublas.CUBLAS_COMPUTE_32F_PEDANTIC
    plain = (
        _Way("cuBLAS", cublas.CUBLAS_DEFAULT_MATH, compute),
        _Way("cuBLAS pedantic", _PEDANTIC_MATH, pedantic),
    )
    return plain + (_EMULATED if dtype == "float64" else ())


class CudaPlace:
    """The current GPU: where data lie and who multiplies there.

    Attributes
    ----------
    engine : str
        np_ozaki's engine for this place.
    native : str
        Of the ways, the one that all are compared with: that of the hardware.
    ways : tuple of str
        What else than np_ozaki can multiply here, `native` first.
    emulated : frozenset of str
        Those that are meant to be emulations; their bits must tell.
    missing : dict of str to str
        Ways that this library does not have, and why.

    Parameters
    ----------
    dtype : str
        Of the matrices.

    Raises
    ------
    EngineUnavailableError
        There is no GPU that the engine could run on, or cuBLAS is told to emulate.
    """

    engine: EngineName = "cuda"
    native = "cuBLAS"
    emulated = frozenset(way.name for way in _EMULATED)

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._one, self._zero = np.ones((), dtype), np.zeros((), dtype)
        self._device: Any = choice.cuda_engine().device
        if os.environ.get("CUBLAS_EMULATE_DOUBLE_PRECISION", "0") not in {"", "0"}:
            raise EngineUnavailableError(
                refusal(
                    "CUBLAS_EMULATE_DOUBLE_PRECISION",
                    os.environ["CUBLAS_EMULATE_DOUBLE_PRECISION"],
                    "cuBLAS would emulate what the others are compared with",
                    "unset it: bench switches the emulation on where it measures it",
                )
            )
        self._open: dict[str, tuple[_Way, int]] = {}
        native, *others = _ways(dtype)
        self._open[native.name] = native, native.handle()
        self.missing: dict[str, str] = {}
        for way in others:
            try:
                self._open[way.name] = way, way.handle()
            except (cublas.CUBLASError, EngineUnavailableError) as error:
                self.missing[way.name] = f"cuBLAS {cublas_version()}: {error}"
        self.ways = tuple(self._open)

    def close(self) -> None:
        """Give the handles back."""
        for _, handle in self._open.values():
            destroy_handle(handle)
        self._open.clear()

    # Data ----------------------------------------------------------------------

    def free_bytes(self) -> int | None:
        """Return the device memory that is free."""
        self._device.free()
        return int(runtime.memGetInfo()[0])

    def put(self, x: NDArray[Any]) -> Any:
        """Return a copy of a host array on the device."""
        return cupy.asarray(x)

    def empty(self, shape: tuple[int, int]) -> Any:
        """Return an uninitialised matrix on the device."""
        return cupy.empty(shape, self._dtype)

    def rows(self, x: Any, indices: Sequence[int]) -> NDArray[Any]:
        """Return some rows of a matrix, on the host."""
        return np.stack([cupy.asnumpy(x[int(i)]) for i in indices])

    def same_bits(self, x: Any, y: Any) -> bool:
        """Return whether two matrices agree in every bit."""
        return bool((x.view(np.int32) == y.view(np.int32)).all())

    # Products ------------------------------------------------------------------

    def multiply(self, way: str, a: Any, b: Any, out: Any) -> None:
        """Queue out = a b by cuBLAS; all three are C-contiguous.

        cuBLAS counts in columns: its C is our out transposed, so the operands swap.
        """
        (m, k), n = a.shape, b.shape[1]
        chosen, handle = self._open[way]
        kind = _TYPES[self._dtype.name]
        cublas.gemmEx(
            handle,
            cublas.CUBLAS_OP_N,
            cublas.CUBLAS_OP_N,
            n,
            m,
            k,
            self._one.ctypes.data,
            b.data.ptr,
            kind,
            n,
            a.data.ptr,
            kind,
            k,
            self._zero.ctypes.data,
            out.data.ptr,
            kind,
            n,
            chosen.compute_type,
            cublas.CUBLAS_GEMM_DEFAULT,
        )

    def seconds(self, function: Callable[[], object], calls: int) -> float:
        """Return the time of a call, as two events on the stream see it."""
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(calls):
            function()
        stop.record()
        stop.synchronize()
        return _elapsed(start, stop) / calls

    def laps(
        self, function: Callable[[], object], calls: int, repeats: int, load: float
    ) -> list[float]:
        """Return the time of a call for each repeat, right after so long a load.

        A lap is always queued behind the one that runs, so the device never waits; two
        at most, so that load and interruption end in time.
        """
        marks = [cupy.cuda.Event()]
        marks[0].record()
        end = time.perf_counter() + load
        while time.perf_counter() < end:
            marks = [_lap(function, calls, behind=marks[-1])]
        for _ in range(repeats):
            marks.append(_lap(function, calls, behind=marks[-1]))
        marks[-1].synchronize()
        return [_elapsed(x, y) / calls for x, y in itertools.pairwise(marks)]

    def call_us(self, function: Callable[[], object]) -> tuple[float, float] | None:
        """Return microseconds until a call returns, and until its result is there.

        Every call finds the device idle and the queue empty.
        """
        stream = cupy.cuda.get_current_stream()
        for _ in range(_WARM_UP_CALLS):
            function()
        stream.synchronize()
        returned, there = [], []
        for _ in range(_TIMED_CALLS):
            start = time.perf_counter()
            function()
            returned.append(time.perf_counter() - start)
            stream.synchronize()
            there.append(time.perf_counter() - start)
        return 1e6 * statistics.median(returned), 1e6 * statistics.median(there)

    def stages_ms(self, function: Callable[[], object]) -> dict[str, float] | None:
        """Return the milliseconds of each stage of one product of the engine."""
        with self._device.timeline() as times:
            function()
        return dict(times)

    # Facts ---------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what is known of the device and its libraries."""
        index = int(runtime.getDevice())
        properties = runtime.getDeviceProperties(index)
        name = properties["name"]
        return {
            "gpu": name.decode() if isinstance(name, bytes) else str(name),
            "compute_capability": cupy.cuda.Device(index).compute_capability,
            "multiprocessors": int(properties["multiProcessorCount"]),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "pci_bus_id": _pci_bus_id(index),
            "cuda_runtime": _dotted(runtime.runtimeGetVersion(), 1000, 10),
            "cuda_of_driver": _dotted(runtime.driverGetVersion(), 1000, 10),
            "cublas": cublas_version(),
            "cupy": cupy.__version__,
            "environment": {
                key: value
                for key, value in sorted(os.environ.items())
                if key.startswith(("CUBLAS_", "CUDA_", "CUPY_", "NVIDIA_TF32"))
            },
        }


def _lap(function: Callable[[], object], calls: int, *, behind: Any) -> Any:
    """Queue some calls, wait for the event before them; return the one after them."""
    for _ in range(calls):
        function()
    mark = cupy.cuda.Event()
    mark.record()
    behind.synchronize()
    return mark


def _elapsed(start: Any, stop: Any) -> float:
    """Return the seconds between two events."""
    return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3


def _dotted(version: int, *units: int) -> str:
    """Return a version number that a library packs into one integer."""
    parts = []
    for unit in units:
        part, version = divmod(int(version), unit)
        parts.append(str(part))
    return ".".join(parts)


def _pci_bus_id(index: int) -> str | None:
    try:
        return str(runtime.deviceGetPCIBusId(index))
    except runtime.CUDARuntimeError:
        return None
