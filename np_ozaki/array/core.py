"""An array as a view of a storage: what OzArray is before it speaks any protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.array.storage import COMPUTED, ON_DEVICE, Storage, count_transfer
from np_ozaki.array.strict import check_conversion
from np_ozaki.engines import choice
from np_ozaki.engines.prepared import Prepared

__all__ = [
    "Core",
    "adopted",
    "borrow",
    "mapped",
    "to_store",
    "unwrap",
    "written_on_host",
]

_LEAST_UPLOADED = 1 << 20
"""Bytes from which a snapshot is taken on the device."""


class Core:
    """A view of a storage.

    `_view` is an ndarray of the storage's host memory.  It is made by NumPy from other
    views, and tells shape, strides, dtype and flags, whether or not the host's bytes
    are current: indexing and transposing ask for no data.
    """

    __slots__ = ("__weakref__", "_storage", "_view")

    _storage: Storage
    _view: NDArray[Any]

    # Making -----------------------------------------------------------------------

    @classmethod
    def _of(cls, storage: Storage, view: NDArray[Any]) -> Self:
        self = object.__new__(cls)
        self._storage, self._view = storage, view
        return self

    @classmethod
    def _own(cls, host: NDArray[Any]) -> Self:
        """Return an array of memory that nobody else has, if its owner can be seen."""
        root = host if host.base is None else host.base
        if type(root) is not np.ndarray or root.base is not None:
            return cls._sharing(host)
        return cls._of(Storage(root), host)

    @classmethod
    def _sharing(cls, host: NDArray[Any]) -> Self:
        """Return an array of host memory that others may write."""
        return cls._of(Storage(host, shared="host"), host)

    @classmethod
    def _on_device(cls, x: Any) -> Self:
        """Return an array of a device array that nobody else has.

        Contiguous in some order of its axes.
        """
        buffer, _ = choice.needed_memory().extent(x)
        shape, strides = x.shape, x.strides
        order = sorted(range(x.ndim), key=strides.__getitem__, reverse=True)
        if order == list(range(x.ndim)):
            view = host = np.empty(shape, x.dtype)
        else:
            host = np.empty([shape[i] for i in order], x.dtype)
            view = host.transpose(np.argsort(order))
        return cls._of(Storage(host, buffer), view)

    @classmethod
    def _sharing_device(cls, x: Any) -> Self:
        """Return an array of device memory that others may write."""
        buffer, offset = choice.needed_memory().extent(x)
        host = np.empty(buffer.size, np.uint8)
        view: NDArray[Any] = np.ndarray(x.shape, x.dtype, host, offset, x.strides)
        return cls._of(Storage(host, buffer, shared="device"), view)

    @classmethod
    def _snapshot(cls, x: NDArray[Any]) -> Self:
        """Return an array of a copy, made at once where products will run.

        A large copy on the host would take longer than one to the device.
        """
        x = x.view(np.ndarray)
        wanted = (
            x.nbytes >= _LEAST_UPLOADED
            and x.dtype.char in COMPUTED
            and x.dtype.isnative
            and x.flags.aligned
            and choice.device_memory() is not None
            and choice.on_gpu(context.default_options())
        )
        flat = x.ravel(order="K") if wanted else x
        if wanted and np.may_share_memory(flat, x):
            try:
                return cls._uploaded(x, flat)
            except MemoryError:
                pass
        return cls._own(np.array(x))

    @classmethod
    def _uploaded(cls, x: NDArray[Any], flat: NDArray[Any]) -> Self:
        memory, start = choice.needed_memory(), time.perf_counter()
        buffer = memory.allocate(x.nbytes)
        memory.upload(flat.view(np.uint8), buffer)
        count_transfer("to device", x.nbytes, start)
        host = np.empty_like(x, subok=False)
        return cls._of(Storage(host, buffer), host)

    def _see(self, view: NDArray[Any]) -> Self:
        """Return another view of the storage."""
        return self._of(self._storage, view)

    # Reading ----------------------------------------------------------------------

    def _read(self) -> NDArray[Any]:
        """Return the ndarray with current data; nobody may write it unseen."""
        storage = self._storage
        if not storage.on_host:
            storage.to_host()
        return self._view

    def _read_unasked(self, name: str) -> NDArray[Any]:
        """Return the same for a function that runs on the host; strict mode refuses."""
        if not self._storage.on_host:
            check_conversion(f"numpy.{name}", "OzArray on a device")
        return self._read()

    def _lent(self) -> NDArray[Any]:
        """Return current data for others to keep: read-only, sees later writes."""
        return self._storage.lend_current(self._view)

    def _copy_to_host(self) -> NDArray[Any]:
        """Return the data as an ndarray of its own."""
        storage, view = self._storage, self._view
        whole = view.nbytes == storage.host.nbytes and view.flags.forc
        if storage.on_host or not (whole and self._fits_device):
            return self._read().copy(order="K")
        # Straight to the copy: the storage's own memory need not be touched.
        copy = np.empty_like(view)
        storage.download(copy.ravel(order="K").view(np.uint8))
        return copy

    def _piece(self) -> NDArray[Any]:
        """Return current data for a look at few entries: no more than these are copied.

        Not a view of the storage.
        """
        storage = self._storage
        if (
            storage.on_host
            or not self._fits_device
            or 2 * self.nbytes >= (storage.host.nbytes)
        ):
            return self._read()
        start = time.perf_counter()
        piece = choice.to_host(self._device_view())
        count_transfer("to host", piece.nbytes, start)
        return piece

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._view.nbytes

    def _place(self) -> int | None:
        """Return where in a device's buffer this view begins, in bytes.

        None where a device cannot hold it: for its dtype, or entries out of line.
        """
        view, storage = self._view, self._storage
        dtype = view.dtype
        if not (storage.may_move and dtype.char in ON_DEVICE and dtype.isnative):
            return None
        size, offset = dtype.itemsize, storage.offset(view)
        if offset % size:
            return None
        for stride in view.strides:
            if stride % size:
                return None
        return offset

    @property
    def _fits_device(self) -> bool:
        """Whether a device could hold this view."""
        return self._place() is not None

    @property
    def _lives_on_device(self) -> bool:
        """Whether work should go to the device: current data are there."""
        return self._storage.on_device and self._fits_device

    def _device_view(self) -> Any:
        """Return the device array with current data.

        Raises
        ------
        MemoryError
            The device has no room.
        """
        offset = self._place()
        if offset is None:
            return borrow(self._read())
        return self._in(self._storage.to_device(), offset)

    def _in(self, buffer: Any, offset: int) -> Any:
        """Return the device array that begins so many bytes into a buffer."""
        view = self._view
        offset = offset if view.size else 0
        return choice.needed_memory().view(
            buffer, offset, view.shape, view.strides, view.dtype
        )

    def _prepared(self, *, left: bool, at_once: bool = False) -> Prepared | None:
        """Return what is kept of this array as an operand: see `Storage.prepared`."""
        return self._storage.prepared(self._view, left=left, at_once=at_once)

    # Writing ----------------------------------------------------------------------

    def _may_write_device(self) -> bool:
        """Return whether a result may be written to current data on the device."""
        return (
            self._lives_on_device
            and self._view.flags.writeable
            and self._storage.may_write_device()
        )

    @contextlib.contextmanager
    def _written_on_device(self) -> Iterator[Any]:
        """Yield the device array with current data, to be written."""
        with self._storage.device_write() as buffer:
            yield self._in(buffer, self._storage.offset(self._view))


@contextlib.contextmanager
def written_on_host(targets: Iterable[Any]) -> Iterator[None]:
    """Hold the host's bytes of every Core among the targets while they change.

    Parameters
    ----------
    targets : iterable
        Arrays that a function on the host writes to.

    Yields
    ------
    None
    """
    found = {id(x._storage): x._storage for x in targets if isinstance(x, Core)}
    with contextlib.ExitStack() as stack:
        # In one order, so that two threads cannot wait for each other.
        for key in sorted(found):
            stack.enter_context(found[key].host_write())
        yield


def borrow(x: NDArray[Any]) -> Any:
    """Return a copy of an ndarray on the current device, for one use.

    Parameters
    ----------
    x : ndarray
        Of a dtype that devices have.

    Returns
    -------
    device array
    """
    start = time.perf_counter()
    copy = choice.as_device_array(x)
    count_transfer("to device", x.nbytes, start)
    return copy


def adopted(cls: type[Core], x: Any) -> Any:
    """Return an operand, as an OzArray that shares its memory if it is on a GPU.

    Parameters
    ----------
    cls : type
        Of OzArrays.
    x : object
        Any operand.

    Returns
    -------
    object
        x itself if it is on the host.
    """
    if isinstance(x, Core) or not choice.is_device_array(x):
        return x
    return cls._sharing_device(choice.as_device_array(x))


def mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """Return x with every leaf changed; lists, tuples and dicts are looked into.

    Parameters
    ----------
    x : object
        Kept as it is where nothing changes.
    change : callable
        What to do with whatever is no list, tuple or dict.

    Returns
    -------
    object
        Of the same structure; named tuples stay what they are.
    """
    if isinstance(x, (tuple, list)):
        items = [mapped(item, change) for item in x]
        if all(old is new for old, new in zip(x, items, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if type(x) is dict:
        return {key: mapped(value, change) for key, value in x.items()}
    return change(x)


def to_store(x: Core, value: Any) -> Any:
    """Return what NumPy gets to write into an array.

    Parameters
    ----------
    x : Core
        Target.
    value : object
        Lists, tuples and dicts are looked into.

    Returns
    -------
    object
        Object arrays would keep what they get: an OzArray itself, or ndarrays that
        are lent.
    """
    if not x._view.dtype.hasobject:
        return unwrap(value)
    if isinstance(value, Core):
        return value
    return mapped(value, lambda y: y._lent() if isinstance(y, Core) else y)


def unwrap(x: Any) -> Any:
    """Return x with every OzArray in it as its ndarray, on the host and current.

    Parameters
    ----------
    x : object
        Lists, tuples and dicts are looked into.

    Returns
    -------
    object
        x itself where there is none.
    """
    return mapped(x, lambda leaf: leaf._read() if isinstance(leaf, Core) else leaf)
