"""Kernels that are queued again and again, as the driver takes them.

CuPy makes everything that a launch is told anew at every call, which takes longer than
the driver does to queue it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from cupy.cuda import driver, runtime
from numpy.typing import NDArray

__all__ = ["Launch", "driver_function", "status_of"]

_INVALID_CONTEXT = 201
"""Status code of a thread that has not used the device yet."""

_OVERLAPS = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, the value of which is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("unused", ctypes.c_int),
        ("value", ctypes.c_int),
        ("more", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


@functools.cache
def driver_function(name: str) -> Any:
    """Return a function of the driver that CuPy does not wrap.

    Parameters
    ----------
    name : str
        It returns a status.

    Returns
    -------
    ctypes function
        To be called with objects of ctypes.
    """
    library = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    return getattr(ctypes.CDLL(library), name)


def status_of(call: Callable[[], int]) -> int:
    """Return the status of a call of the driver, which is given a context for it.

    Parameters
    ----------
    call : callable
        Called again where the thread has no context yet.

    Returns
    -------
    int
        0 for success.
    """
    status = call()
    if status == _INVALID_CONTEXT:
        # CuPy's own launches also see to it that the thread has a context.
        runtime.memGetInfo()
        status = call()
    return status


def _three(size: tuple[int, ...]) -> tuple[int, ...]:
    return (*size, 1, 1)[:3]


class Launch:
    """A kernel with all that it is told.

    Parameters
    ----------
    function : cupy.cuda.Function
        Of the device that will be the current one.
    grid, block : tuple of int
        Up to three of each.
    args : sequence of ndarray
        Passed by value, as they are when the kernel is queued.
    shared_bytes : int
        Dynamic shared memory.
    overlaps : bool, optional
        Whether it may start before the kernel queued before it has ended; it waits for
        that itself then (`wait_for_last` of launches.cuh).
    """

    def __init__(
        self,
        function: Any,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[NDArray[Any]],
        shared_bytes: int,
        *,
        overlaps: bool = False,
    ) -> None:
        attribute = _Attribute(_OVERLAPS, 0, int(overlaps))
        # The driver is given their addresses.
        self._held = function, args, attribute
        self._config = _Config(_three(grid), _three(block), shared_bytes)
        self._config.attributes = ctypes.addressof(attribute)
        self._config.num_attributes = int(overlaps)
        self._queue = functools.partial(
            driver_function("cuLaunchKernelEx"),
            ctypes.byref(self._config),
            ctypes.c_void_p(function.ptr),
            (ctypes.c_void_p * len(args))(*(x.ctypes.data for x in args)),
            None,
        )

    def __call__(self, stream: int) -> None:
        """Queue the kernel.

        Parameters
        ----------
        stream : int
            Handle.

        Raises
        ------
        cupy.cuda.driver.CUDADriverError
            As CuPy's own launches do.
        """
        self._config.stream = stream
        status = status_of(self._queue)
        if status:
            raise driver.CUDADriverError(status)
