"""Indexing: views take no data, integer arrays pick where the data are."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.array.core import Core, borrow, to_store, unwrap
from np_ozaki.array.elementwise import new_on_device
from np_ozaki.array.storage import COMPUTED, NotOnDevice

__all__ = ["get", "put"]

_BASIC = (int, np.integer, slice, types.EllipsisType, type(None))


def _is_basic(key: Any) -> bool:
    """Return whether NumPy answers an index by a view or by one entry."""
    items = key if type(key) is tuple else (key,)
    return all(isinstance(x, _BASIC) and not isinstance(x, bool) for x in items)


def get(x: Core, key: Any) -> Any:
    """Return x[key]: a view, a copy or an entry, as NumPy's indexing does.

    Parameters
    ----------
    x : Core
        Array.
    key : object
        Any index that NumPy takes; arrays in it may be Cores.

    Returns
    -------
    Core or scalar
    """
    view = x._view
    if _is_basic(key) or view.dtype.names is not None:
        key = unwrap(key)
        found = view[key]
        # An entry may be an array, of Python objects.
        if type(found) is np.ndarray and (
            not view.dtype.hasobject or np.may_share_memory(found, view)
        ):
            return x._see(found)
        if x._storage.on_host or not x._fits_device:
            x._read_unasked("ndarray.__getitem__")
            found = view[key]
            # An array that is an entry belongs to others, too.
            return x._sharing(found) if type(found) is np.ndarray else found
        return x._see(_entry(view, key))._piece()[()]
    if x._lives_on_device:
        taken = _take(x, key)
        if taken is not NotImplemented:
            return taken
    found = x._read_unasked("ndarray.__getitem__")[unwrap(key)]
    # Never a view: memory of its own, with its axes in some order.
    return x._own(found) if type(found) is np.ndarray else found


def _entry(view: NDArray[Any], key: Any) -> NDArray[Any]:
    """Return a view of no axes of the entry that a basic index names."""
    items = key if type(key) is tuple else (key,)
    entry: NDArray[Any] = view[(*(i for i in items if i is not Ellipsis), ...)]
    return entry


def _take(x: Core, key: Any) -> Any:
    """Return entries by one integer array, other axes in full, or NotImplemented."""
    items = key if type(key) is tuple else (key,)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) == 1:
        whole = (slice(None),) * max(0, x._view.ndim - len(items) + 1)
        items = (*items[: dots[0]], *whole, *items[dots[0] + 1 :])
    where = [i for i, item in enumerate(items) if not _is_whole(item)]
    if len(where) != 1 or len(items) > x._view.ndim:
        return NotImplemented
    axis = where[0]
    index = unwrap(items[axis])
    index = np.asarray(index) if isinstance(index, list) else index
    if type(index) is not np.ndarray or index.dtype.kind not in "iu" or not index.ndim:
        return NotImplemented
    length = x._view.shape[axis]
    if index.size and not -length <= index.min() <= index.max() < length:
        return NotImplemented  # NumPy's own error
    # As NumPy lays it out: the axes of the index first in memory, then the others in
    # the order of x.
    first = np.moveaxis(x._view, axis, 0)
    rest = sorted(range(1, first.ndim), key=lambda i: -abs(first.strides[i]))
    lengths = [first.shape[i] for i in rest]
    host = np.empty((*index.shape, *lengths), first.dtype)
    places = [rest.index(i) + index.ndim for i in range(1, first.ndim)]
    host = host.transpose(*range(index.ndim), *places)
    axes = range(axis, axis + index.ndim)
    try:
        taken = new_on_device(type(x), host)
        index = index.astype(np.int64)
        chosen = borrow(np.where(index < 0, index + length, index))
        with taken._written_on_device() as target:
            target[...] = x._see(first)._device_view()[chosen]
    except MemoryError:
        return NotImplemented
    return taken._see(np.moveaxis(host, range(index.ndim), axes))


def _is_whole(item: Any) -> bool:
    return isinstance(item, slice) and item == slice(None)


def put(x: Core, key: Any, value: Any) -> None:
    """Write x[key] = value, where the data are.

    Parameters
    ----------
    x : Core
        Array.
    key : object
        Any index that NumPy takes; arrays in it may be Cores.
    value : object
        What to write.
    """
    if _is_basic(key) and x._may_write_device() and _put_on_device(x, key, value):
        return
    index, entries = unwrap(key), to_store(x, value)
    view = x._read_unasked("ndarray.__setitem__")
    with x._storage.host_write():
        view[index] = entries


def _put_on_device(x: Core, key: Any, value: Any) -> bool:
    """Write on the device where NumPy would only copy; return whether it was done."""
    if x._view.dtype.char not in COMPUTED:
        return False
    target = x._view[key]
    if not isinstance(target, np.ndarray):
        target = _entry(x._view, key)
    source: Any = None
    if isinstance(value, (Core, np.ndarray)):
        given = value._view if isinstance(value, Core) else value
        if type(given) is not np.ndarray or not _fits(given, target):
            return False
        if np.may_share_memory(given, target):
            return False
    elif type(value) in {int, float, np.float64} and abs(value) <= 1 << 53:
        source = float(value)
    elif type(value) in {complex, np.complex128} and target.dtype.kind == "c":
        source = complex(value)
    else:
        return False
    try:
        if isinstance(value, Core):
            source = value._device_view()
        elif isinstance(value, np.ndarray):
            source = borrow(value)
        with x._see(target)._written_on_device() as there:
            there[...] = source
    except (MemoryError, NotOnDevice):
        return False
    return True


def _fits(given: NDArray[Any], target: NDArray[Any]) -> bool:
    """Return whether an array can be cast and broadcast to a target."""
    dtypes = {np.dtype(np.float64), target.dtype}
    if given.dtype not in dtypes or not given.dtype.isnative or not given.ndim:
        return False
    shape = target.shape[target.ndim - given.ndim :]
    return given.ndim <= target.ndim and all(
        n in {1, m} for n, m in zip(given.shape, shape, strict=True)
    )
