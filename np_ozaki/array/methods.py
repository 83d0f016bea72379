"""ndarray's methods that OzArray has no own version of, and its flat iterator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from np_ozaki.array.adopt import Passed, adopt
from np_ozaki.array.core import Core, mapped, to_store, unwrap, written_on_host
from np_ozaki.array.elementwise import elementwise
from np_ozaki.array.functions import count_on_host

__all__ = ["Flat", "call"]

_VIEWS: Final = frozenset("diagonal getfield squeeze swapaxes view".split())
_WRITES: Final = frozenset("byteswap fill partition put resize setfield sort".split())
_ASKED: Final = frozenset("dump dumps item tobytes tofile tolist".split())
"""Methods that ask for the data on the host by name."""

_NO_DATA: Final = frozenset(["setflags"])
_CONJUGATES: Final = frozenset(["conj", "conjugate"])

_OUT: Final[Mapping[str, int]] = {
    **dict.fromkeys("all any argmax argmin choose dot max min round".split(), 1),
    **dict.fromkeys(
        "clip compress cumprod cumsum mean prod std sum take var".split(), 2
    ),
    "trace": 4,
}
"""Methods with an argument `out`, and its position."""


def call(x: Core, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method of ndarray makes of an array.

    Parameters
    ----------
    x : Core
        The array.
    name : str
        Of the method.
    args, kwargs
        As passed.

    Returns
    -------
    object
        As ndarray's, with OzArrays for ndarrays.
    """
    cls = type(x)
    if name in _NO_DATA:
        return getattr(x._view, name)(*args, **kwargs)
    if name in _ASKED:
        data = x._piece()
        return getattr(data, name)(*unwrap(args), **unwrap(kwargs))
    if name in _CONJUGATES and not args and not kwargs:
        if x._view.dtype.kind in "biuf":
            return x
        result = elementwise(cls, np.conjugate, (x,), ())
        if result is not NotImplemented:
            return result
    if name in _VIEWS:
        found = getattr(x._view, name)(*unwrap(args), **unwrap(kwargs))
        if type(found) is np.ndarray:
            return x._see(found)
        if isinstance(found, np.ndarray):
            # Another class: it gets what `numpy.asarray` gives.
            return getattr(np.asarray(x), name)(*unwrap(args), **unwrap(kwargs))
    count_on_host(f"ndarray.{name}")
    position = _OUT.get(name)
    out = kwargs.get("out")
    if out is None and position is not None and len(args) > position:
        out = args[position]
    written = [y for y in (x if name in _WRITES else None, out) if y is not None]
    passed = Passed(f"ndarray.{name}", written)
    data = passed.ndarray(x)
    plain = mapped(args, passed.ndarray), mapped(kwargs, passed.ndarray)
    with written_on_host(written):
        result = getattr(data, name)(*plain[0], **plain[1])
    return adopt(cls, passed, result)


class Flat:
    """`ndarray.flat` of an OzArray: its entries in C order, to read and to write.

    Parameters
    ----------
    x : OzArray
        The array.
    """

    def __init__(self, x: Core) -> None:
        self._x = x
        # Of the memory, whether or not it is current.
        self._flat = x._view.flat

    @property
    def index(self) -> int:
        """Number of the next entry."""
        return self._flat.index

    @property
    def coords(self) -> tuple[int, ...]:
        """Index of the next entry."""
        return self._flat.coords

    @property
    def base(self) -> Core:
        """The array."""
        return self._x

    def copy(self) -> Core:
        """Return the entries in one axis, as a copy.

        Returns
        -------
        OzArray
        """
        return self._x._own(self._data().flat.copy())

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._x._view.size

    def __iter__(self) -> Iterator[Any]:
        """Return this iterator."""
        return self

    def __next__(self) -> Any:
        """Return the next entry."""
        self._data()
        return next(self._flat)

    def __getitem__(self, key: Any) -> Any:
        """Return an entry, or a copy of several."""
        found = self._data().flat[unwrap(key)]
        if type(found) is not np.ndarray:
            return found
        objects = self._x._view.dtype.hasobject
        return self._x._sharing(found) if objects else self._x._own(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write entries."""
        index, entries = unwrap(key), to_store(self._x, value)
        flat = self._data().flat
        with self._x._storage.host_write():
            flat[index] = entries

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return a copy of the entries."""
        del copy
        return np.array(self._data().flat, dtype=dtype)

    def _data(self) -> NDArray[Any]:
        return self._x._read_unasked("ndarray.flat")
