"""A stand-in for CuPy whose arrays are of the host, and for the cuBLAS it wraps."""

import ctypes
import time
from types import ModuleType, SimpleNamespace

import numpy as np


class CUBLASError(RuntimeError):
    """As CuPy's."""


class DeviceArray(np.ndarray):
    """An ndarray whose ``data.ptr`` is its address, as CuPy has it."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Event:
    def record(self):
        self.seconds = time.perf_counter()

    def synchronize(self):
        pass


class Cublas(ModuleType):
    """cuBLAS as its manual has it: columns are counted, scalars are pointed to."""

    CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
    CUBLAS_GEMM_DEFAULT, CUBLAS_DEFAULT_MATH = -1, 0
    CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_64F_PEDANTIC = 70, 71
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC = 68, 69
    CUBLASError = CUBLASError

    def __init__(self, refused_modes=()):
        super().__init__("cupy_backends.cuda.libs.cublas")
        self.modes, self.refused_modes, self.types = {}, refused_modes, []

    def create(self):
        self.modes[len(self.modes) + 1] = None
        return len(self.modes)

    def destroy(self, handle):
        self.modes[handle] = "destroyed"

    def setMathMode(self, handle, mode):
        if mode in self.refused_modes:
            raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")
        self.modes[handle] = mode

    def getVersion(self, handle):
        return 130100

    def gemmEx(
        self, handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb,
        beta, c, ctype, ldc, compute_type, algo,
    ):  # fmt: skip
        assert (atype, btype, transa, transb) == (ctype, ctype, 0, 0)
        dtype = np.dtype({1: "f8", 5: "c16", 0: "f4", 4: "c8"}[ctype])
        self.types.append((self.modes[handle], compute_type))

        def matrix(pointer, rows, columns, leading):
            assert leading >= rows
            kind = ctypes.c_byte * (dtype.itemsize * leading * columns)
            flat = np.frombuffer(kind.from_address(pointer), dtype)
            return flat.reshape(columns, leading)[:, :rows].T

        scale, keep = (matrix(x, 1, 1, 1)[0, 0] for x in (alpha, beta))
        assert keep == 0.0
        matrix(c, m, n, ldc)[...] = scale * (
            matrix(a, m, k, lda) @ matrix(b, k, n, ldb)
        )


def stand_in(cublas):
    """Return modules that the place imports."""
    cupy = ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.asarray = lambda x: np.ascontiguousarray(x).view(DeviceArray)
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype).view(DeviceArray)
    cupy.asnumpy = np.asarray
    runtime = ModuleType("cupy.cuda.runtime")
    runtime.CUDA_R_64F, runtime.CUDA_C_64F = 1, 5
    runtime.CUDA_R_32F, runtime.CUDA_C_32F = 0, 4
    runtime.CUDARuntimeError = RuntimeError
    runtime.memGetInfo = lambda: (1000, 2000)
    runtime.getDevice = lambda: 0
    runtime.getDeviceProperties = lambda index: {
        "name": b"Imaginary 9000",
        "multiProcessorCount": 132,
        "totalGlobalMem": 2000,
    }
    runtime.deviceGetPCIBusId = lambda index: "0000:01:00.0"
    runtime.runtimeGetVersion = lambda: 13000
    runtime.driverGetVersion = lambda: 13010
    cuda = ModuleType("cupy.cuda")
    cuda.runtime = runtime
    cuda.Event = Event
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=77, synchronize=lambda: None)
    cuda.Device = lambda index=0: SimpleNamespace(compute_capability="90")
    cuda.get_elapsed_time = lambda x, y: 1e3 * (y.seconds - x.seconds)
    cupy.cuda = cuda
    libs = ModuleType("cupy_backends.cuda.libs")
    libs.cublas = cublas
    return {
        "cupy": cupy,
        "cupy.cuda": cuda,
        "cupy.cuda.runtime": runtime,
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.libs": libs,
        "cupy_backends.cuda.libs.cublas": cublas,
    }
