"""Which engines this process can use.  CuPy is imported here at the first question.

``import np_ozaki`` asks none, and without CuPy no question touches CUDA.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from np_ozaki import engines
from np_ozaki.config import Options, config
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.errors import EngineUnavailableError, refusal
from np_ozaki.stats import CallInfo

if TYPE_CHECKING:
    from np_ozaki.engines.cublas import CublasEngine
    from np_ozaki.engines.cuda import CudaEngine
    from np_ozaki.engines.memory import DeviceMemory

__all__ = [
    "as_device_array",
    "cpu_engine",
    "cublas_engine",
    "cublas_unavailable",
    "cuda_engine",
    "cuda_unavailable",
    "device_count",
    "device_memory",
    "empty_like",
    "engine_states",
    "is_device_array",
    "may_share_memory",
    "needed_memory",
    "on_device",
    "on_gpu",
    "resolve",
    "shortcut",
    "takes_shortcuts",
    "to_host",
]

Resolved = Literal["cpu", "cuda", "cublas", "native"]

_forked = False

_cupy: Any = None
"""CuPy, once the module that knows it was imported."""


def _after_fork() -> None:
    global _forked
    # The parent's CUDA context is of no use here, and the driver cannot start anew.
    looked = cuda_unavailable.cache_info().currsize > 0
    _forked = _forked or (looked and cuda_unavailable() is None)
    cuda_unavailable.cache_clear()
    cuda_engine.cache_clear()
    cublas_unavailable.cache_clear()
    cublas_engine.cache_clear()
    device_memory.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def cpu_engine() -> CpuEngine:
    """Return the CPU engine of this process."""
    return CpuEngine(config().threads)


@functools.cache
def cuda_unavailable() -> str | None:
    """Return why the CUDA engine cannot run here, or None if it can."""
    if _forked:
        return "CUDA does not survive a fork: start processes by spawn"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install 'np_ozaki[cuda13]' or [cuda12]"
    device = _import_cuda_device()
    return device if isinstance(device, str) else device.unavailable()


@functools.cache
def cuda_engine() -> CudaEngine:
    """Return the CUDA engine, which runs on the caller's current device.

    Raises
    ------
    EngineUnavailableError
        There is no CuPy or no GPU that it could run on.
    """
    reason = cuda_unavailable()
    if reason is not None:
        raise EngineUnavailableError(
            refusal("engine", "cuda", reason, 'engine="cpu" gives the same bits')
        )
    from np_ozaki.engines.cuda import CudaEngine
    from np_ozaki.engines.cuda_device import CupyDevice

    return CudaEngine(CupyDevice())


@functools.cache
def cublas_unavailable() -> str | None:
    """Return why cuBLAS does not emulate FP64 here, or None if it does."""
    reason = cuda_unavailable()
    if reason is not None:
        return reason
    try:
        from np_ozaki.engines import cuda_cublas
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    found: str | None = cuda_cublas.unavailable()
    return found


@functools.cache
def cublas_engine() -> CublasEngine:
    """Return the engine that is cuBLAS, where `cublas_unavailable` is None."""
    from np_ozaki.engines.cublas import CublasEngine
    from np_ozaki.engines.cuda_cublas import CublasLibrary

    return CublasEngine(cuda_engine().device, CublasLibrary())


@functools.cache
def device_memory() -> DeviceMemory | None:
    """Return the memory of the GPUs that the CUDA engine runs on, or None."""
    if cuda_unavailable() is not None:
        return None
    from np_ozaki.engines.cuda_memory import CupyMemory

    return CupyMemory()


def needed_memory() -> DeviceMemory:
    """Return the memory of the GPUs, where data are or shall be there.

    Returns
    -------
    DeviceMemory

    Raises
    ------
    EngineUnavailableError
        No GPU can be used.
    """
    memory = device_memory()
    if memory is None:
        raise EngineUnavailableError(
            refusal(
                "OzArray",
                "data on a GPU",
                cuda_unavailable() or "hidden from this process",
                "bring data to the host with copy_to_host() while it can be used",
            )
        )
    return memory


def device_count() -> int:
    """Return the number of GPUs that this process sees.

    Returns
    -------
    int
        0 where the CUDA engine cannot run.
    """
    return 0 if cuda_unavailable() is not None else int(_cuda_device().device_count())


def on_device(index: int) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is the current one of the calling thread.

    Parameters
    ----------
    index : int
        Below `device_count`.

    Returns
    -------
    context manager
        Restores the device that was current before.
    """
    context: AbstractContextManager[Any] = _cuda_device().on_device(index)
    return context


def engine_states() -> dict[str, str]:
    """Return each engine and whether it can run here.

    Returns
    -------
    dict of str to str
        "available", or "unavailable: " and why.
    """
    reasons = {
        "cpu": None,
        "cuda": cuda_unavailable(),
        "cublas": cublas_unavailable(),
    }
    return {
        name: f"unavailable: {reason}" if reason else "available"
        for name, reason in reasons.items()
    }


def _import_cuda_device() -> Any:
    """Return the module that knows CuPy, or a text that says why there is none."""
    global _cupy
    # A package has a module as attribute once its import is complete.
    device: Any = getattr(engines, "cuda_device", None)
    if device is None:
        try:
            from np_ozaki.engines import cuda_device
        except Exception as error:  # noqa: BLE001 - a CuPy of another NumPy raises ValueError
            return f"CuPy cannot be imported: {error}"
        device = cuda_device
    _cupy = device.cupy
    return device


def _cuda_device() -> Any:
    """Return the module that knows CuPy, for arrays that are on a GPU already."""
    device = _import_cuda_device()
    if isinstance(device, str):
        raise EngineUnavailableError(
            refusal(
                "operand",
                "array on a GPU",
                device,
                "pip install 'np_ozaki[cuda13]' or [cuda12], or pass it as ndarray",
            )
        )
    return device


def as_device_array(x: Any, *, copy: bool = True) -> Any:
    """Return a CuPy array of what lies on a GPU, without a copy, or of a host array.

    Parameters
    ----------
    x : array
        On a GPU, as `is_device_array` tells, or not.
    copy : bool, optional
        False returns arrays of the host as they are.

    Returns
    -------
    cupy.ndarray
        Or x.
    """
    if not copy and not is_device_array(x):
        return x
    return _cuda_device().as_device_array(x)


def to_host(x: Any) -> NDArray[Any]:
    """Return a CuPy array as an ndarray.

    Parameters
    ----------
    x : cupy.ndarray
        Waited for.

    Returns
    -------
    ndarray
        A copy.
    """
    result: NDArray[Any] = _cuda_device().CupyDevice().fetch(x)
    return result


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """Return an uninitialised array, C-contiguous, where another one lies.

    Parameters
    ----------
    x : array
        Of the host or a GPU.
    shape : tuple of int
        Of the new one.

    Returns
    -------
    array
        Of the kind and dtype of x.
    """
    if isinstance(x, np.ndarray):
        return np.empty(shape, x.dtype)
    if _cupy is not None and type(x) is _cupy.ndarray:
        return _cupy.ndarray(shape, x.dtype)
    # CuPy takes an empty shape for none given, and so may others.
    return np.empty_like(x, shape=shape or (1,), order="C").reshape(shape)


def may_share_memory(x: Any, y: Any) -> bool:
    """Return whether the bounds of two arrays of one class overlap.

    Parameters
    ----------
    x, y : array
        Of the host or a GPU.

    Returns
    -------
    bool
        As `numpy.may_share_memory`.
    """
    # NumPy would find CuPy's own function, in thrice the time that it takes.
    if _cupy is not None and type(x) is _cupy.ndarray:
        return bool(_cupy.may_share_memory(x, y))
    return np.may_share_memory(x, y)


def takes_shortcuts(options: Options) -> bool:
    """Return whether options decide how a product is made, and its entries nothing.

    Parameters
    ----------
    options : Options
        Of the call.

    Returns
    -------
    bool
        True for a number of moduli.
    """
    return type(options.precision) is int and options.engine != "cublas"


def shortcut(a: Any, b: Any, out: Any, options: Options) -> tuple[Any, CallInfo] | None:
    """Multiply and count what goes straight to the kernels of a GPU, or return None.

    Parameters
    ----------
    a, b, out : object
        As `np_ozaki.matmul` was given them.
    options : Options
        Of the call.

    Returns
    -------
    tuple of (result, info) or None
        None leaves everything to be done.
    """
    if _cupy is None or not takes_shortcuts(options):
        return None
    kind = _cupy.ndarray
    if type(a) is not kind or type(b) is not kind:
        return None
    if (out is not None and type(out) is not kind) or cuda_unavailable() is not None:
        return None
    return cuda_engine().shortcuts.matmul(a, b, out, options)


def resolve(options: Options) -> Resolved:
    """Return the engine that a scope's or a call's options mean.

    Parameters
    ----------
    options : Options
        Their engine may be "auto": the GPU, else the CPU engine.

    Returns
    -------
    str
        "cpu", "cuda", "cublas" or "native".

    Raises
    ------
    EngineUnavailableError
        "cuda" is asked for and cannot run.

    Notes
    -----
    Where cuBLAS does not emulate, "cublas" means what "auto" does.
    """
    engine = options.engine
    if engine == "cublas" and cublas_unavailable() is None:
        return engine
    if engine == "auto" or engine == "cublas":
        return "cuda" if cuda_unavailable() is None else "cpu"
    if engine == "cuda":
        cuda_engine()
    return engine


def on_gpu(options: Options) -> bool:
    """Return whether products under these options run on a GPU.

    Parameters
    ----------
    options : Options
        As for `resolve`.

    Returns
    -------
    bool
        Whoever multiplies there.
    """
    return resolve(options) in {"cuda", "cublas"}


def is_device_array(x: Any) -> bool:
    """Return whether an operand lies on a GPU, as it says itself.

    Parameters
    ----------
    x : object
        An operand.

    Returns
    -------
    bool
        True for CuPy arrays, and for what lies there by ``__cuda_array_interface__`` or
        DLPack.
    """
    if _cupy is not None and type(x) is _cupy.ndarray:
        # To ask for its interface would make one.
        return True
    if isinstance(x, (np.ndarray, np.generic, list, tuple, int, float)):
        return False
    try:
        if hasattr(x, "__cuda_array_interface__"):
            return True
        kind, _ = x.__dlpack_device__()
    except Exception:  # noqa: BLE001 - a stranger's property may raise anything
        return False
    return int(kind) in {2, 13}  # kDLCUDA and kDLCUDAManaged of the DLPack header
