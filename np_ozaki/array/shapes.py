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
            copy = new_on_device(type(x), host)
            source = x._device_view()
            with copy._written_on_device() as target:
                target[...] = source
            return copy
        except MemoryError:
            pass
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
        if order == "C":
            return _reshaped(x, shape)
    found = x._read_unasked("ndarray.reshape").reshape(*shape, order=order, **how)
    if np.may_share_memory(found, x._storage.host):
        return x._see(found)
    return x._own(found)


def _reshaped(x: _T, shape: tuple[Any, ...]) -> _T:
    """Return a view of another shape, or a copy on the device."""
    how: dict[str, Any] = {"copy": False} if _TELLS_COPIES else {}
    try:
        # Without that keyword memory is copied in vain, to see that there is no view.
        found = x._view.reshape(*shape, **how)
        if np.may_share_memory(found, x._storage.host):
            return x._see(found)
    except ValueError:
        pass
    copy = copied(x, "C")
    return copy._see(copy._view.reshape(*shape))


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
    found = x._read_unasked("ndarray.ravel").ravel(order)
    if np.may_share_memory(found, x._storage.host):
        return x._see(found)
    return x._own(found)
