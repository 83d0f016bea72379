"""Operands of the CUDA engine as its kernels see them, and what it asks of a GPU.

Rows of A and columns of B are both "lines", read along k.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki._kernels.render import AnyVariant, Entries

__all__ = [
    "Address",
    "Device",
    "Facts",
    "Operands",
    "PlaneStack",
    "is_single",
    "result_fields",
    "structure",
    "word_bytes",
]


def structure(*fields: int) -> NDArray[np.void]:
    """Return a C structure of 64-bit fields: kernels get host arrays by value.

    Parameters
    ----------
    *fields : int
        In the order of the kernels' header; addresses and strides alike.

    Returns
    -------
    (1,) ndarray of void
        Without names of fields, which CuPy would take long to describe.
    """
    array = np.array(fields, dtype=np.int64).view(f"V{8 * len(fields)}")
    told = tuple(i for i, x in enumerate(fields) if type(x) is Address)
    if not told:
        return array
    marked = array.view(Told)
    marked.addresses = told
    return marked


class Address(int):
    """An address that a recording may have to replace; sums with it are addresses."""

    def __add__(self, other: int) -> Address:
        return Address(int(self) + other)

    __radd__ = __add__


class Told(np.ndarray[Any, Any]):
    """A structure that knows which of its words are addresses.

    Attributes
    ----------
    addresses : tuple of int
        Indices of 64-bit words.
    """

    addresses: tuple[int, ...] = ()


def result_fields(device: Device, out: Any) -> tuple[int, ...]:
    """Return the fields of the kernels' view of a result.

    Parameters
    ----------
    device : Device
        Where it lies.
    out : (batch, m, n) device array
        Any strides.

    Returns
    -------
    tuple of int
        Address, strides in words, shape.
    """
    word = word_bytes(out)
    return (device.pointer(out), *(s // word for s in out.strides), *out.shape)


def word_bytes(x: Any) -> int:
    """Return the bytes of a part of an entry.

    Parameters
    ----------
    x : array
        Of the device or the host.

    Returns
    -------
    int
        Half of an entry's where that is complex.
    """
    return int(x.dtype.itemsize) // (2 if x.dtype.kind == "c" else 1)


def is_single(x: Any) -> bool:
    """Return whether an array holds float32 or complex64.

    Parameters
    ----------
    x : array
        Of the device or the host.

    Returns
    -------
    bool
        Not for any other type.
    """
    return bool(x.dtype.kind in "fc" and word_bytes(x) == 4)


class PlaneStack(NamedTuple):
    """Where planes of a product lie, one after the other.

    Attributes
    ----------
    pointer : int
        Address.
    stack : int
        Matrices of all planes.
    lines, k : int
        Of each, padded.
    """

    pointer: int
    stack: int
    lines: int
    k: int


class Device(Protocol):
    """What the engine asks of a GPU: memory, kernels, INT8 products, copies.

    Arrays are of the device's own kind and speak NumPy's language: shape, strides,
    slices, `swapaxes`.  All work is queued on the caller's current stream.
    """

    def place(self) -> str:
        """Return the current device's name among places of `prepared`."""
        ...

    def stream(self) -> Hashable | None:
        """Return the current stream, or None where its work cannot be built upon.

        What has been queued there is done before what will be queued; as long as it is
        held, no other stream equals it.
        """
        ...

    def default_workspace(self) -> int:
        """Return the bytes of workspace that a product may use unless told."""
        ...

    def shared_bytes(self) -> int:
        """Return the largest dynamic shared memory of a block."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros."""
        ...

    def own(self, x: NDArray[Any]) -> Any:
        """Return a copy of a host array."""
        ...

    def native(self, a: Any, b: Any) -> Any:
        """Return the product in the device's own FP64, not emulated."""
        ...

    def is_out_of_memory(self, error: Exception) -> bool:
        """Return whether an error says that memory ran out."""
        ...

    def free(self) -> None:
        """Give unused memory back."""
        ...

    def pointer(self, x: Any) -> int:
        """Return the address of an array's first entry."""
        ...

    def addresses(self, arrays: tuple[Any, ...]) -> tuple[int, ...] | None:
        """Return a number of the current device, and where arrays begin.

        None where one lies elsewhere, and while this thread collects `mark`s.
        """
        ...

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
        """Queue a kernel; ints go as int64, host arrays (`structure`) by value."""
        ...

    def launch_again(
        self,
        stage: str,
        variant: AnyVariant | None,
        kernel: str,
        grid: tuple[int, ...],
        block: int,
        args: Sequence[NDArray[np.void]],
        shared: int,
    ) -> Any:
        """Return a launch for `queue_again`, told what `args` then hold."""
        ...

    def clear_again(self, address: NDArray[np.int64], nbytes: int) -> Any:
        """Return for `queue_again` the writing of zeros to where a word then tells."""
        ...

    def residue_tiles_again(
        self,
        left: PlaneStack,
        right: PlaneStack,
        addresses: NDArray[np.int64],
        work: NDArray[np.void],
        blocks: int,
    ) -> tuple[Any, Callable[[], None]]:
        """Return `residue_tiles` for `queue_again`, and what to call before it.

        That is where the two `addresses` of the planes have changed.
        """
        ...

    def queue_again(self, launches: Sequence[Any]) -> None:
        """Queue launches on the current stream, one after the other."""
        ...

    def gemm(self, left: Any, right: Any, out: Any, *, accumulate: bool) -> None:
        """Queue out[h] (+)= left[h] right[h]^T for a stack of int8 matrices.

        Entries of a row follow each other; rows and matrices may lie apart.
        """
        ...

    def tile_clusters(self) -> int:
        """Return how many clusters of two blocks run at a time; 0 on other GPUs.

        Those have neither `residue_tiles` nor the kernels of `cuda_hopper_lines`.
        """
        ...

    def residue_tiles(
        self, left: PlaneStack, right: PlaneStack, work: NDArray[np.void], blocks: int
    ) -> None:
        """Queue products of planes that leave residue tiles; see `cuda_tiles`."""
        ...

    def clear(self, pointer: int, nbytes: int) -> None:
        """Queue the writing of zeros."""
        ...

    def is_timed(self) -> bool:
        """Return whether this thread collects `mark`s."""
        ...

    def fetch(self, x: Any) -> NDArray[Any]:
        """Wait for an array and return it on the host."""
        ...

    def written(self, count: int, queue: Callable[[int], None]) -> NDArray[np.uint64]:
        """Wait for 8-byte words and return them on the host.

        `queue(pointer)` queues the kernel that writes them to an address.
        """
        ...

    def read(self, pointer: int, nbytes: int) -> NDArray[np.uint8]:
        """Wait for the bytes at an address of the device; return them on the host."""
        ...

    def is_host(self, x: Any) -> bool:
        """Return whether an array lies in host memory."""
        ...

    def transfer(self) -> Any:
        """Return a context manager for the copies of one product."""
        ...

    def mark(self, stage: str) -> None:
        """Note that the work queued from here on belongs to a stage."""
        ...


@dataclass
class Facts:
    """What is known of the lines of an operand: exponents and what they come from.

    Attributes
    ----------
    words : (4, batch, lines) device array of uint64
        Largest magnitude, sum of squares, 1-norm; then flags and exponents, int32.
    first : int
        The first line that this part is about, where there is one matrix.
    """

    words: Any
    first: int = 0

    def fields(self, device: Device) -> tuple[int, ...]:
        """Return the fields of the kernels' view."""
        size = self.words.shape[1] * self.words.shape[2]
        base = device.pointer(self.words)
        rows = [base + 8 * (i * size + self.first) for i in range(3)]
        special = base + 8 * 3 * size
        return (*rows, special + 4 * self.first, special + 4 * (size + self.first))

    def struct(self, device: Device) -> NDArray[Any]:
        """Return the kernels' view."""
        return structure(*self.fields(device))

    def part(self, lines: slice) -> Facts:
        """Return the facts of some lines of a single matrix."""
        return Facts(self.words, self.first + lines.start)

    def exponents(self, device: Device) -> NDArray[np.int64]:
        """Return mu or nu on the host, (batch, lines)."""
        _, batch, lines = self.words.shape
        small = device.fetch(self.words)[3].view(np.int32).reshape(2, batch, lines)
        exponents: NDArray[np.int64] = small[1].astype(np.int64)
        return exponents


@dataclass
class Operands:
    """Lines of one operand.

    Attributes
    ----------
    x : (batch, lines, k) device array
        Rows of A or columns of B, any strides: float64, complex128, float32, complex64,
        or what came of them.
    device : Device
        Where it lies.
    conjugated : bool
        Whether the conjugates of complex entries are meant.
    """

    x: Any
    device: Device = field(repr=False)
    conjugated: bool = False

    @property
    def is_complex(self) -> bool:
        """Whether entries have two parts."""
        return bool(self.x.dtype.kind == "c")

    @property
    def is_single(self) -> bool:
        """Whether parts are float32."""
        return is_single(self.x)

    def kernels(self) -> Entries | None:
        """Return the variant of a stage that knows operands and no moduli."""
        if not (self.is_complex or self.is_single):
            return None
        return Entries(1 + self.is_complex, self.is_single)

    @property
    def words(self) -> tuple[int, int, int]:
        """Batch, lines, and words of a line: parts of its entries."""
        batch, lines, k = self.x.shape
        return batch, lines, k << self.is_complex

    @property
    def along(self) -> bool:
        """Whether k is the axis of the smaller stride."""
        _, lines, k = self.x.shape
        if lines == 1 or k == 1:
            return bool(lines == 1)
        return bool(abs(self.x.strides[2]) <= abs(self.x.strides[1]))

    def fields(self) -> tuple[int, ...]:
        """Return the fields of the kernels' view."""
        more = (int(self.conjugated),) if self.is_complex else ()
        word = word_bytes(self.x)
        strides = (s // word for s in self.x.strides)
        return (self.device.pointer(self.x), *strides, *self.x.shape[1:], *more)

    def struct(self) -> NDArray[Any]:
        """Return the kernels' view."""
        return structure(*self.fields())

    def of(self, lines: slice, inner: slice = slice(None)) -> Operands:
        """Return a part of every matrix."""
        return replace(self, x=self.x[:, lines, inner])
