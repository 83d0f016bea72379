"""Arithmetic and comparisons on a device: what rounds there as on the host.

Each is one IEEE operation, rounded once, so the bits are NumPy's, but for the payload
of NaN; of complex numbers one for each part, which leaves out products and quotients.
A device tells of no overflow or division by zero: where `numpy.errstate` asks for more
than a warning, the host computes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from np_ozaki.array.core import Core, borrow
from np_ozaki.array.storage import COMPUTED, NotOnDevice, Storage
from np_ozaki.engines import choice

__all__ = ["elementwise", "new_on_device"]

_COMPARISONS = frozenset(
    {np.less, np.less_equal, np.equal, np.not_equal, np.greater, np.greater_equal}
)
_UFUNCS = _COMPARISONS | {
    np.add,
    np.subtract,
    np.multiply,
    np.divide,
    np.negative,
    np.positive,
    np.absolute,
    np.conjugate,
    np.sqrt,
}
_COMPLEX_UFUNCS = frozenset(
    {
        np.equal,
        np.not_equal,
        np.add,
        np.subtract,
        np.negative,
        np.positive,
        np.conjugate,
    }
)
_T = TypeVar("_T", bound=Core)
_QUIET = frozenset({"ignore", "warn"})
_LARGEST_INTEGER = 1 << 53


def elementwise(
    cls: type[Core], ufunc: np.ufunc, inputs: tuple[Any, ...], out: tuple[Any, ...]
) -> Any:
    """Return what a ufunc makes of operands on a device, or NotImplemented.

    Parameters
    ----------
    cls : type
        Of the result.
    ufunc : numpy.ufunc
        Called with no other keyword than `out`.
    inputs : tuple
        At least one is a Core.
    out : tuple
        Empty, or one target or None.

    Returns
    -------
    Core
        On the device; the target itself if there is one.  NotImplemented leaves the
        call to the host.
    """
    if ufunc not in _UFUNCS or not _should_run(inputs):
        return NotImplemented
    operands = [_operand(x) for x in inputs]
    if any(x is None for x in operands):
        return NotImplemented
    twins = [x._view if isinstance(x, Core) else x for x in operands]
    is_complex = any(np.iscomplexobj(x) for x in twins)
    if is_complex and ufunc not in _COMPLEX_UFUNCS:
        return NotImplemented
    entries = np.complex128 if is_complex else np.float64
    dtype = np.dtype(bool if ufunc in _COMPARISONS else entries)
    target = out[0] if out else None
    if target is not None and not _accepts(target, twins, dtype):
        return NotImplemented
    try:
        places = list(map(_placed, operands))
        if target is None:
            target = new_on_device(cls, _layout(twins, dtype))
        with target._written_on_device() as result:
            ufunc(*places, out=result)
    except (MemoryError, NotOnDevice):
        return NotImplemented
    return target


def _should_run(inputs: tuple[Any, ...]) -> bool:
    on_device = any(isinstance(x, Core) and x._lives_on_device for x in inputs)
    return on_device and _QUIET.issuperset(np.geterr().values())


def _operand(x: Any) -> Any:
    """Return an operand as number, ndarray or Core that fits, or None for others."""
    if isinstance(x, (Core, np.ndarray)):
        view = x._view if isinstance(x, Core) else x
        plain = type(view) is np.ndarray and view.dtype.char in COMPUTED
        return x if plain and view.dtype.isnative and view.ndim else None
    if type(x) in {float, np.float64}:
        return float(x)
    if type(x) in {complex, np.complex128}:
        return complex(x)
    if type(x) in {int, bool} and abs(x) <= _LARGEST_INTEGER:
        return float(x)
    return None


def _placed(x: Any) -> Any:
    if isinstance(x, Core):
        return x._device_view()
    return borrow(x) if isinstance(x, np.ndarray) else x


def _accepts(target: Any, twins: list[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether the device may write the result to `target` entry by entry."""
    if not isinstance(target, Core) or not target._may_write_device():
        return False
    view, arrays = target._view, [x for x in twins if isinstance(x, np.ndarray)]
    try:
        fits = view.shape == np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        return False
    repeats = any(
        s == 0 and n > 1 for s, n in zip(view.strides, view.shape, strict=True)
    )
    return (
        fits
        and view.dtype == dtype
        and not repeats
        and not any(np.may_share_memory(view, x) and not _same(view, x) for x in arrays)
    )


def _same(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Return whether two arrays have each entry at the same place."""
    here, there = x.__array_interface__, y.__array_interface__
    return (
        here["data"] == there["data"]
        and x.shape == y.shape
        and (x.strides == y.strides)
    )


def _layout(twins: list[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return uninitialised memory in the layout that NumPy would choose."""
    arrays = [x for x in twins if isinstance(x, np.ndarray)]
    shape = arrays[0].shape
    if all(x.shape == shape and x.flags.c_contiguous for x in arrays):
        return np.empty(shape, dtype)
    operands: Any = (*arrays, None)
    roles: Any = [["readonly"]] * len(arrays) + [["writeonly", "allocate"]]
    iterator = np.nditer(
        operands,
        flags=["zerosize_ok", "buffered", "delay_bufalloc"],
        op_flags=roles,
        op_dtypes=[*(x.dtype for x in arrays), dtype],
        casting="unsafe",
        order="K",
    )
    with iterator:
        return np.asarray(iterator.operands[-1])


def new_on_device(cls: type[_T], host: NDArray[Any]) -> _T:
    """Return an array whose data are to be written on the device.

    Parameters
    ----------
    cls : type
        Of the result.
    host : ndarray
        Its host memory, uninitialised, contiguous in some order of its axes.

    Returns
    -------
    Core
        Of that memory.
    """
    buffer = choice.needed_memory().allocate(host.nbytes)
    return cls._of(Storage(host, buffer), host)
