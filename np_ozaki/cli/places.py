"""Where `bench` multiplies: the host, or the GPU of `engines.cuda_bench`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import Entries
from np_ozaki.config import EngineName
from np_ozaki.engines import choice

__all__ = ["CpuPlace", "Place", "default_engine", "host_free_bytes", "open_place"]

Array = NDArray[Any]


class Place(Protocol):
    """Memory for operands, those who multiply there beside np_ozaki, and a clock."""

    engine: EngineName
    native: str
    emulated: frozenset[str]
    missing: dict[str, str]
    ways: tuple[str, ...]

    def close(self) -> None:
        """Give back what the place holds."""
        ...

    def free_bytes(self) -> int | None:
        """Return the memory for more arrays; None if unknown."""
        ...

    def put(self, x: Array) -> Any:
        """Return a host array as one of this place."""
        ...

    def empty(self, shape: tuple[int, int]) -> Any:
        """Return an uninitialised matrix."""
        ...

    def rows(self, x: Any, indices: Sequence[int]) -> Array:
        """Return some rows of a matrix, on the host."""
        ...

    def same_bits(self, x: Any, y: Any) -> bool:
        """Return whether two matrices agree in every bit."""
        ...

    def multiply(self, way: str, a: Any, b: Any, out: Any) -> None:
        """Multiply, or queue it, in one of the ways."""
        ...

    def seconds(self, function: Callable[[], object], calls: int) -> float:
        """Return the time of one of several calls in a row."""
        ...

    def laps(
        self, function: Callable[[], object], calls: int, repeats: int, load: float
    ) -> list[float]:
        """Return the time of a call for each repeat, all right after so long a load.

        The load are the same calls; nothing pauses from its begin to the last repeat's
        end, which is when this returns.
        """
        ...

    def call_us(self, function: Callable[[], object]) -> tuple[float, float] | None:
        """Return microseconds until a call returns, and until its result is there.

        Medians of many calls; None where a call returns with its result.
        """
        ...

    def stages_ms(self, function: Callable[[], object]) -> dict[str, float] | None:
        """Return the milliseconds of each stage of a product; None if unknown."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what is known of the device and its libraries."""
        ...


class CpuPlace:
    """The host: NumPy with its BLAS, and the CPU engine.

    Attributes are those of `Place`.

    Parameters
    ----------
    entries_of : Entries
        Of the matrices.
    """

    engine: EngineName = "cpu"
    native = "NumPy"
    emulated: frozenset[str] = frozenset()
    ways: tuple[str, ...] = ("NumPy",)

    def __init__(self, entries_of: Entries) -> None:
        self._of = entries_of
        self.missing: dict[str, str] = {}

    def close(self) -> None:
        """Do nothing."""

    def free_bytes(self) -> int | None:
        """Return the memory that the system can still give."""
        return host_free_bytes()

    def put(self, x: Array) -> Array:
        """Return the array itself."""
        return x

    def empty(self, shape: tuple[int, int]) -> Array:
        """Return an uninitialised matrix."""
        return np.empty(shape, self._of.dtype)

    def rows(self, x: Array, indices: Sequence[int]) -> Array:
        """Return some rows of a matrix."""
        return x[list(indices)]

    def same_bits(self, x: Array, y: Array) -> bool:
        """Return whether two matrices agree in every bit."""
        return bool((x.view(np.int32) == y.view(np.int32)).all())

    def multiply(self, way: str, a: Array, b: Array, out: Array) -> None:
        """Multiply with NumPy."""
        np.matmul(a, b, out=out)

    def seconds(self, function: Callable[[], object], calls: int) -> float:
        """Return the time of one of several calls in a row."""
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    def laps(
        self, function: Callable[[], object], calls: int, repeats: int, load: float
    ) -> list[float]:
        """Return the time of a call for each repeat, right after so long a load."""
        end = time.perf_counter() + load
        while time.perf_counter() < end:
            function()
        return [self.seconds(function, calls) for _ in range(repeats)]

    def call_us(self, function: Callable[[], object]) -> tuple[float, float] | None:
        """Return None: a call returns with its result."""
        return None

    def stages_ms(self, function: Callable[[], object]) -> dict[str, float] | None:
        """Return None: the CPU engine does not tell."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return nothing: the host is in every report."""
        return {}


def default_engine() -> EngineName:
    """Return the engine of this machine: "cuda" with a GPU for it, else "cpu".

    Returns
    -------
    str
        For `open_place`.
    """
    return "cuda" if choice.cuda_unavailable() is None else "cpu"


def open_place(engine: EngineName, entries_of: Entries) -> Place:
    """Return the place where an engine runs.

    Parameters
    ----------
    engine : str
        "cpu" or "cuda".
    entries_of : Entries
        Of the matrices.

    Returns
    -------
    Place
        To be closed.

    Raises
    ------
    EngineUnavailableError
        "cuda" without CuPy or a GPU.
    """
    if engine == "cpu":
        return CpuPlace(entries_of)
    choice.cuda_engine()  # says what is missing before CuPy is imported
    from np_ozaki.engines.cuda_bench import CudaPlace

    return CudaPlace(entries_of.name)


def host_free_bytes() -> int | None:
    """Return what Linux calls available, within the limit of a container.

    Returns
    -------
    int or None
        Other systems tell all memory, or nothing.
    """
    limits = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        limits.append(int(facts["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        if pages > 0:
            limits.append(pages * os.sysconf("SC_PAGE_SIZE"))
    try:
        numbers = []
        for name in ("memory.max", "memory.current"):
            with open(f"/sys/fs/cgroup/{name}", encoding="ascii") as file:
                numbers.append(int(file.read()))
        limits.append(numbers[0] - numbers[1])
    except (OSError, ValueError):
        pass  # no container, or one without a limit
    return min(limits) if limits else None
