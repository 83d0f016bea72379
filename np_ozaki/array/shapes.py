"""Other shapes and copies of arrays, without moving data between host and device."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import numpy as np

from np_ozaki.array.core import Core
from np_ozaki.array.elementwise import new_on_device

__all__ = ["Order", "copied", "ravel", "reshape"]

_T = TypeVar("_T", bound=Core)

Order = Literal["C", "F", "A", "K"]

_TELLS_COPIES = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy can be asked to reshape without a copy or not at all."""


def copied(x: _T, order: Order) -> _T:
    """Return a copy that shares nothing, where the data are.

    Parameters
    ----------
    x : Core
        Array.
    order : {"C", "F", "A", "K"}
        Memory order, as for `numpy.ndarray.copy`.

    Returns
    -------
    Core
    """
    if x._lives_on_device:
        try:
            host = np.empty_like(x._view, order=order, subok=False)
            copy, target = new_on_device(type(x), host)
            target[...] = x._device_view()
        except MemoryError:
            return x._own(x._read().copy(order))
        copy._storage.device_written()
        return copy
    return x._own(x._read().copy(order))


def reshape(
    x: _T, shape: tuple[Any, ...], order: Literal["C", "F", "A"], **how: Any
) -> _T:
    """Return the entries under another shape: a view where NumPy gives one.

    Parameters
    ----------
    x : Core
        Array.
    shape : tuple
        Arguments of `numpy.ndarray.reshape`.
    order : {"C", "F", "A"}
        Order of reading.
    **how
        `copy`, for versions of NumPy that take it.

    Returns
    -------
    Core
    """
    if x._lives_on_device and not how:
        view = x._view
        if (order == "C" and view.flags.c_contiguous) or not view.size:
            return x._see(view.reshape(*shape, order=order))
        if _TELLS_COPIES and order == "C":
            try:
                return x._see(view.reshape(*shape, order=order, copy=False))
            except ValueError:
                copy = copied(x, "C")
                return copy._see(copy._view.reshape(*shape, order=order))
    found = x._read().reshape(*shape, order=order, **how)
    if np.may_share_memory(found, x._storage.host):
        return x._see(found)
    return x._own(found)


def ravel(x: _T, order: Order) -> _T:
    """Return the entries in one axis: a view where NumPy gives one.

    Parameters
    ----------
    x : Core
        Array.
    order : {"C", "F", "A", "K"}
        Order of reading.

    Returns
    -------
    Core
    """
    if order == "C":
        return reshape(x, (-1,), "C")
    found = x._read().ravel(order)
    if np.may_share_memory(found, x._storage.host):
        return x._see(found)
    return x._own(found)
