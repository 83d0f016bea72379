"""What of cuBLAS CuPy does not hand on: settings of handles, workspaces, the emulation.

CuPy tells a handle its stream before each call, whereupon cuBLAS forgets the workspace
that it was given; so products with one call the library themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas

from np_ozaki.engines.cublas import CublasRefusal, Matrix, Settings
from np_ozaki.errors import EngineUnavailableError, refusal

__all__ = [
    "COMPUTE_EMULATED",
    "EAGER",
    "EMULATED_MATH",
    "FIXED_MANTISSA",
    "CublasLibrary",
    "cublas_version",
    "destroy_handle",
    "new_handle",
    "unavailable",
]

# Names of cublas_api.h and library_types.h that CuPy does not hand on.
EMULATED_MATH = 8
COMPUTE_EMULATED = 79
PERFORMANT, EAGER = 1, 2
DYNAMIC_MANTISSA, FIXED_MANTISSA = 0, 1
NO_SPECIAL_VALUES, INFINITY_AND_NAN = 0, 3

OLDEST_CUBLAS = 130_100
"""cuBLAS 13.1.0 of CUDA 13.0 Update 2, the first with the emulation."""

OLDEST_CAPABILITY = 80
"""sm_80, the first that cuBLAS emulates FP64 on."""

_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}

_HANDLE = ctypes.c_void_p
_ADDRESS = ctypes.c_void_p
_NUMBER = ctypes.c_int64
_ENUM = ctypes.c_int
_MATRIX = (_ADDRESS, _ENUM, _NUMBER)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cublasSetStream_v2": (_HANDLE, _ADDRESS),
    "cublasSetWorkspace_v2": (_HANDLE, _ADDRESS, ctypes.c_size_t),
    "cublasSetFixedPointEmulationMantissaBitCountPointer": (_HANDLE, _ADDRESS),
    "cublasGemmEx_64": (
        *(_HANDLE, _ENUM, _ENUM, _NUMBER, _NUMBER, _NUMBER),
        *(_ADDRESS, *_MATRIX, *_MATRIX, _ADDRESS, *_MATRIX, _ENUM, _ENUM),
    ),
    "cublasGemmStridedBatchedEx_64": (
        *(_HANDLE, _ENUM, _ENUM, _NUMBER, _NUMBER, _NUMBER),
        *(_ADDRESS, *_MATRIX, _NUMBER, *_MATRIX, _NUMBER),
        *(_ADDRESS, *_MATRIX, _NUMBER, _NUMBER, _ENUM, _ENUM),
    ),
}
"""Of functions that are no setters of one int."""

_ONE, _ZERO = np.array(1.0), np.array(0.0)


def cublas_version() -> str:
    """Return the version of the cuBLAS that CuPy uses."""
    try:
        version = int(cublas.getVersion(0))
    except cublas.CUBLASError as error:
        return f"of unknown version ({error})"
    return _dotted(version)


def _dotted(version: int) -> str:
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def unavailable() -> str | None:
    """Return why cuBLAS does not emulate FP64 here, or None if it does."""
    try:
        version = int(cublas.getVersion(0))
        capability = int(cupy.cuda.Device().compute_capability)
    except (ImportError, OSError, RuntimeError) as error:
        return f"cuBLAS does not start: {error}"
    if version < OLDEST_CUBLAS:
        return (
            f"cuBLAS {_dotted(version)} does not emulate FP64: "
            f"{_dotted(OLDEST_CUBLAS)} of CUDA 13.0 Update 2 does"
        )
    if capability < OLDEST_CAPABILITY:
        return (
            f"the device has compute capability {capability / 10}: cuBLAS emulates "
            f"FP64 from {OLDEST_CAPABILITY / 10} on"
        )
    try:
        for name in ("cublasSetEmulationStrategy", "cublasGemmEx_64"):
            _function(name)
    except (OSError, AttributeError) as error:
        return f"cuBLAS {_dotted(version)} cannot be called: {error}"
    return None


# Calls ---------------------------------------------------------------------------


def _library() -> ctypes.CDLL:
    """Return the very cuBLAS that CuPy has loaded.

    Raises
    ------
    OSError
        It is not found among the files of this process.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libcublas.so"):
                return ctypes.CDLL(path)
    raise OSError("libcublas.so is not among the files of this process")


@functools.cache
def _function(name: str) -> Callable[..., int]:
    """Return a function of cuBLAS that returns a status.

    Raises
    ------
    OSError, AttributeError
        The library, or the function in it, is not found.
    """
    function = getattr(_library(), name)
    function.restype = ctypes.c_int
    function.argtypes = _ARGUMENTS.get(name, (_HANDLE, _ENUM))
    found: Callable[..., int] = function
    return found


def _name_of(status: int) -> str:
    return _STATUS.get(status, f"cublasStatus_t {status}")


def new_handle(math_mode: int, settings: Iterable[tuple[str, int]]) -> int:
    """Return a handle of the current device.

    Parameters
    ----------
    math_mode : int
        cublasMath_t.
    settings : iterable of (str, int)
        Functions ``cublasSet...`` without their first nine letters, and what they set.

    Returns
    -------
    int
        To be given back by `destroy_handle`.

    Raises
    ------
    CUBLASError
        The library does not have the math mode.
    EngineUnavailableError
        It does not have a setting.
    """
    handle = int(cublas.create())
    with _destroyed_after_failure(handle):
        cublas.setMathMode(handle, math_mode)
        for name, value in settings:
            _set(handle, f"cublasSet{name}", value)
    return handle


def destroy_handle(handle: int) -> None:
    """Give a handle back."""
    # After a failed kernel everything fails; what was done still counts.
    with contextlib.suppress(cublas.CUBLASError, runtime.CUDARuntimeError):
        cublas.destroy(handle)


def _set(handle: int, name: str, value: int) -> None:
    """Call a setter of cuBLAS that CuPy does not wrap.

    Raises
    ------
    EngineUnavailableError
        The library does not have it, or refuses.
    """
    try:
        setter = _function(name)
    except (OSError, AttributeError) as error:
        raise EngineUnavailableError(
            refusal(name, value, f"cannot be called ({error})", "cuBLAS 13.1 has it")
        ) from error
    status = setter(handle, value)
    if status:
        raise EngineUnavailableError(
            refusal(name, value, _name_of(status), "leave emulation out")
        )


def _call(name: str, *arguments: int) -> None:
    """Call a function of cuBLAS.

    Raises
    ------
    CublasRefusal
        The library does not have it, or it returns a status.
    """
    try:
        function = _function(name)
    except (OSError, AttributeError) as error:
        raise CublasRefusal(f"{name} cannot be called ({error})") from error
    status = function(*arguments)
    if status:
        raise CublasRefusal(f"{name} returns {_name_of(status)}")


# Products ------------------------------------------------------------------------


class CublasLibrary:
    """Products by the emulation, on the current device and stream.

    Each device has handles of its own, as many as threads multiply there at a time.
    """

    def __init__(self) -> None:
        self._idle: dict[int, list[tuple[int, Settings]]] = {}

    @contextlib.contextmanager
    def _handle(self, settings: Settings) -> Iterator[int]:
        """Lend a handle of the current device that was told the settings."""
        # Lists of Python are safe to take from, and to give to, in threads.
        idle = self._idle.setdefault(int(runtime.getDevice()), [])
        try:
            try:
                handle, known = idle.pop()
            except IndexError:
                handle = new_handle(EMULATED_MATH, _setters(settings))
            else:
                if known != settings:
                    with _destroyed_after_failure(handle):
                        for name, value in _setters(settings):
                            _set(handle, f"cublasSet{name}", value)
        except (cublas.CUBLASError, EngineUnavailableError) as error:
            raise CublasRefusal(f"no handle for the emulation: {error}") from error
        # What has failed may have left anything behind.
        with _destroyed_after_failure(handle):
            yield handle
        idle.append((handle, settings))

    def gemm(
        self,
        settings: Settings,
        size: tuple[int, int, int, int],
        a: Matrix,
        b: Matrix,
        c: Matrix,
        workspace: tuple[int, int],
        bits: int,
    ) -> None:
        """Queue c = a b; see `cublas.Library`."""
        batch, m, n, k = size
        alone = batch == 1
        left, right, result = (
            (x.pointer, runtime.CUDA_R_64F, x.leading, x.stride)[: 3 if alone else 4]
            for x in (a, b, c)
        )
        with self._handle(settings) as handle:
            # In this order: a new stream makes a handle forget its workspace.
            _call("cublasSetStream_v2", handle, cupy.cuda.get_current_stream().ptr)
            _call("cublasSetWorkspace_v2", handle, *workspace)
            with _told(handle, bits):
                _call(
                    "cublasGemmEx_64" if alone else "cublasGemmStridedBatchedEx_64",
                    handle,
                    cublas.CUBLAS_OP_T if a.transposed else cublas.CUBLAS_OP_N,
                    cublas.CUBLAS_OP_T if b.transposed else cublas.CUBLAS_OP_N,
                    *(m, n, k),
                    _ONE.ctypes.data,
                    *left,
                    *right,
                    _ZERO.ctypes.data,
                    *result,
                    *(() if alone else (batch,)),
                    COMPUTE_EMULATED,
                    cublas.CUBLAS_GEMM_DEFAULT,
                )


@contextlib.contextmanager
def _destroyed_after_failure(handle: int) -> Iterator[None]:
    """Give a handle back if what is done with it fails."""
    try:
        yield
    except BaseException:
        destroy_handle(handle)
        raise


def _setters(settings: Settings) -> list[tuple[str, int]]:
    """Return all that a handle is told, so that no variable of cuBLAS's has a say."""
    control = DYNAMIC_MANTISSA if settings.dynamic else FIXED_MANTISSA
    special = INFINITY_AND_NAN if settings.special_values else NO_SPECIAL_VALUES
    return [
        ("EmulationStrategy", EAGER if settings.eager else PERFORMANT),
        ("FixedPointEmulationMantissaControl", control),
        ("FixedPointEmulationMaxMantissaBitCount", settings.mantissa_bits),
        ("EmulationSpecialValuesSupport", special),
    ]


@contextlib.contextmanager
def _told(handle: int, bits: int) -> Iterator[None]:
    """Let the number of bits in use be written to an address, unless it is 0."""
    if not bits:
        yield
        return
    name = "cublasSetFixedPointEmulationMantissaBitCountPointer"
    _call(name, handle, bits)
    yield
    # The handle outlives the address; after a failure it does not.
    _call(name, handle, 0)
