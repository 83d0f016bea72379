"""OzArray: a NumPy array whose products go to an engine, on whatever device it lives.

The class speaks NumPy's two protocols (NEP 13 and NEP 18), and those by which libraries
pass arrays on.  What it does is in the modules beside this one.
"""

from __future__ import annotations

import copy as copying
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from np_ozaki import context
from np_ozaki.array import exports, functions, indexing, methods, products, ufuncs
from np_ozaki.array.core import Core, unwrap
from np_ozaki.array.operators import Operators, owned
from np_ozaki.array.shapes import Order, copied, ravel, reshape
from np_ozaki.array.storage import Storage
from np_ozaki.array.strict import check_conversion
from np_ozaki.array.temporaries import MOST_REFERENCES
from np_ozaki.engines import choice
from np_ozaki.errors import (
    EngineUnavailableError,
    OperandTypeError,
    OptionError,
    refusal,
)

__all__ = ["OzArray", "wrap"]

_ONLY_OURS = 2
"""References to a storage that one array has, as `sys.getrefcount` counts."""


class OzArray(Operators):
    """An array whose products run on an np_ozaki engine.

    Parameters
    ----------
    x : array_like
        Anything `numpy.array` takes, another OzArray, or an array on a GPU (of CuPy or
        of any library that speaks ``__cuda_array_interface__`` or DLPack).
    copy : bool, optional
        None and True take a snapshot; False shares the memory of `x`, so that writes to
        either are seen by both, and nothing is kept of it elsewhere.

    Raises
    ------
    ValueError
        If ``copy=False`` and `x` is no array that could be shared.
    OperandTypeError
        If `x` is a masked array; a TypeError.

    Notes
    -----
    ``@``, `numpy.matmul`, `numpy.dot`, `numpy.tensordot`, `numpy.einsum` and their kin
    go to the engine where the common dtype of both operands is float64, complex128,
    float32 or complex64, under the options of the active scope (whose `dtypes` may name
    fewer) or the defaults; `min_flops` plays no part.

    Where there is a GPU for the engine, the data go there with the first product and
    come back when something needs them on the host; results of products live there.
    An array and all its views share one storage, so that no copy is ever stale.
    Arithmetic, comparisons, views and integer-array indexing run where the data are;
    all other functions of NumPy run on the host.  Arrays come back wrapped.

    ``isinstance(x, numpy.ndarray)`` is False and ``ndarray.dot(oz)`` is not dispatched
    by NumPy: write ``OzArray(a).dot(b)`` or ``a @ oz``.

    Examples
    --------
    >>> import numpy as np
    >>> from np_ozaki import OzArray
    >>> OzArray(np.eye(2)) @ np.array([[1.0, 2.0], [3.0, 4.0]])
    OzArray([[1., 2.],
             [3., 4.]])
    """

    __slots__ = ()
    __array_priority__ = 120.0  # above CuPy's 100: the wrapper decides
    __hash__ = None  # type: ignore[assignment]  # as for ndarray: entries may change

    def __init__(self, x: ArrayLike | OzArray, copy: bool | None = None) -> None:
        source: Any = x
        if isinstance(source, Core):
            made = source if copy is False else copied(source, "K")
            self._storage, self._view = made._storage, made._view.view()
            return
        if isinstance(source, np.ma.MaskedArray):
            raise OperandTypeError(
                refusal(
                    "x",
                    type(source).__name__,
                    "an OzArray has no mask, and hidden entries would show",
                    "pass x.filled(value) or x.data",
                )
            )
        if choice.is_device_array(source):
            there = choice.as_device_array(source)
            made = self._sharing_device(there)
            made = made if copy is False else copied(made, "K")
            self._storage, self._view = made._storage, made._view
            return
        if not hasattr(source, "__array__") and hasattr(source, "__dlpack__"):
            source = np.from_dlpack(source)
        if copy is False:
            host = np.array(source, copy=False, subok=False)
            self._storage, self._view = Storage(host, shared="host"), host.view()
            return
        if isinstance(source, np.ndarray):
            made = self._snapshot(source)
            self._storage, self._view = made._storage, made._view
            return
        host = np.array(source)
        self._storage, self._view = Storage(host), host

    # What NumPy asks for -------------------------------------------------------

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """Return a read-only ndarray of the data; a copy if that is asked for.

        The memory itself, to be written, where the array is one that nobody holds any
        more: ``numpy.asarray(x @ y)``.

        Raises
        ------
        ValueError
            ``copy=False``, and the data are on a device.
        ConversionError
            In strict mode.
        """
        # First: every name counts.
        alone = (
            sys.getrefcount(self) <= MOST_REFERENCES
            and sys.getrefcount(self._storage) <= _ONLY_OURS
        )
        check_conversion("numpy.asarray", "OzArray")
        for recorder in context.recorders():
            recorder.record_conversion()
        storage = self._storage
        if copy is False and not storage.on_host:
            raise ValueError(
                refusal(
                    "copy",
                    copy,
                    "the data are on a device",
                    "leave it out, or call copy_to_host()",
                )
            )
        other = dtype is not None and np.dtype(dtype) != self.dtype
        if other:
            return np.array(self._read(), dtype=dtype, copy=copy)
        if copy:
            return self._copy_to_host()
        if alone and storage.shared is None and not storage.is_lent:
            data = self._read()
            storage.hand_out("host")
            return data
        return storage.lend_current(self._view)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Answer a ufunc: products by the engine, arithmetic where the data are."""
        return ufuncs.call(OzArray, ufunc, method, inputs, kwargs)

    def __array_function__(
        self,
        func: Callable[..., Any],
        kinds: tuple[type, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Answer a NumPy function: products by the engine, views without data."""
        if not all(map(_is_known, kinds)):
            return NotImplemented
        return functions.call(OzArray, func, args, kwargs)

    # What other libraries ask for ------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Memory on the GPU, for others to read and write; see `exports`."""
        return exports.cuda_array_interface(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the data are: (1, 0) is the CPU, (2, i) a CUDA device."""
        return exports.dlpack_device(self)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory as a DLPack capsule, for others to read and write."""
        return exports.dlpack(
            self,
            dl_device=dl_device,
            copy=copy,
            stream=stream,
            max_version=max_version,
        )

    def __class_getitem__(cls, item: Any) -> Any:
        """Return the alias ``OzArray[shape, dtype]``, as of ndarray."""
        np.ndarray.__class_getitem__(item)  # refuses what is no such pair
        return types.GenericAlias(cls, item)

    def __array_namespace__(self, *, api_version: Any = None) -> Any:
        """Return NumPy, whose functions take OzArrays."""
        return self._view.__array_namespace__(api_version=api_version)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data; the copy shares nothing."""
        # Read-only: buffers that are pickled out of band are the memory itself.
        return _restored, (self._storage.lend(self._read()),)

    def __copy__(self) -> OzArray:
        """Return a copy that shares nothing."""
        return copied(self, "K")

    def __deepcopy__(self, memo: dict[int, Any]) -> OzArray:
        """Return a copy that shares nothing, down to Python objects in it."""
        if self._view.dtype.hasobject:
            return self._own(copying.deepcopy(self._read(), memo))
        return copied(self, "K")

    # Where the data are ----------------------------------------------------------

    @property
    def device(self) -> str:
        """Where current data are: "cuda:0", say, or "cpu"; a GPU if on both."""
        number = self._storage.device
        return "cpu" if number is None else f"cuda:{number}"

    def to_device(self, device: str = "cuda") -> OzArray:
        """Bring the data to a device, or back; all views come along.

        Parameters
        ----------
        device : str, optional
            "cuda" is the current GPU, "cuda:1" must be it, "cpu" is the host.

        Returns
        -------
        OzArray
            This array.

        Raises
        ------
        EngineUnavailableError
            No GPU can be used, or it cannot hold this array.
        OptionError
            `device` is none of these; a ValueError.
        """
        storage = self._storage
        if device == "cpu":
            storage.to_host()
            if storage.shared != "device":
                storage.drop_device()
            return self
        kind, _, number = str(device).partition(":")
        if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
            raise OptionError(
                refusal(
                    "device",
                    device,
                    'must be "cpu", "cuda" or "cuda:" and a number',
                    '"cuda" is the current GPU',
                )
            )
        here = choice.needed_memory().device()
        if not storage.may_move or (number and int(number) != here):
            limit = (
                f"the current device is {here}"
                if storage.may_move
                else "it shares host memory, or has a dtype that GPUs have not"
            )
            remedy = "make another device current, or copy the array"
            raise EngineUnavailableError(refusal("device", device, limit, remedy))
        storage.to_device()
        return self

    def copy_to_host(self) -> NDArray[Any]:
        """Return the data as an ndarray of its own.

        Returns
        -------
        ndarray
            A copy, in the memory order of the array.
        """
        return self._copy_to_host()

    # What a user sees ----------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self._view.shape

    @shape.setter
    def shape(self, value: Any) -> None:
        self._change("shape", value)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from entry to entry along every axis."""
        return self._view.strides

    @strides.setter
    def strides(self, value: Any) -> None:
        self._change("strides", value)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self._view.dtype

    @dtype.setter
    def dtype(self, value: Any) -> None:
        self._change("dtype", value)

    def _change(self, name: str, value: Any) -> None:
        view = self._view.view()
        setattr(view, name, value)
        self._view = view

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._view.ndim

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._view.size

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self._view.itemsize

    @property
    def flags(self) -> Any:
        """Memory layout, as `numpy.ndarray.flags`."""
        return self._view.flags

    @property
    def base(self) -> OzArray | None:
        """The array that owns the memory, or None for that array itself."""
        view, host = self._view, self._storage.host
        own = view is host or (
            view.shape == host.shape and view.strides == host.strides
        )
        return None if own else self._see(host)

    @property
    def T(self) -> OzArray:
        """View with the axes reversed."""
        return self._see(self._view.T)

    @property
    def mT(self) -> OzArray:
        """View with the last two axes swapped."""
        return self._see(self._view.mT)

    @property
    def real(self) -> OzArray:
        """Real part: a view."""
        return self._part("real")

    @real.setter
    def real(self, value: Any) -> None:
        self._set_part("real", value)

    @property
    def imag(self) -> OzArray:
        """Imaginary part: a view where the entries are complex."""
        return self._part("imag")

    @imag.setter
    def imag(self, value: Any) -> None:
        self._set_part("imag", value)

    def _part(self, name: str) -> OzArray:
        part = getattr(self._view, name)
        if part is self._view:
            return self
        if np.may_share_memory(part, self._storage.host):
            return self._see(part)
        return self._own(part)

    def _set_part(self, name: str, value: Any) -> None:
        entries = unwrap(value)
        view = self._read_unasked(f"ndarray.{name}")
        with self._storage.host_write():
            setattr(view, name, entries)

    @property
    def flat(self) -> methods.Flat:
        """Entries in C order, to read and to write."""
        return methods.Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        methods.Flat(self)[...] = value

    @property
    def data(self) -> memoryview:
        """Read-only memory on the host."""
        return np.asarray(self).data

    @property
    def ctypes(self) -> Any:
        """Address on the host, where others may write from now on."""
        self._read()
        if self._storage.shared != "device":
            self._storage.hand_out("host")
        return self._view.ctypes

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self._view)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis."""
        if self._view.ndim == 1:
            # Writes in between are seen.
            return (self._read()[i] for i in range(len(self)))
        iter(self._view)  # NumPy's own error for no axis
        return map(self._see, self._view)

    def __getitem__(self, key: Any) -> Any:
        """Return a view, a copy or an entry, as NumPy's indexing does."""
        return indexing.get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write entries, where the data are."""
        indexing.put(self, key, value)

    def __delitem__(self, key: Any) -> None:
        """Refuse, as NumPy does."""
        raise ValueError("cannot delete array elements")

    def __bytes__(self) -> bytes:
        """Return the entries' bytes in C order."""
        return self._piece().tobytes()

    def __contains__(self, item: Any) -> bool:
        """Return whether an entry equals `item`."""
        return unwrap(item) in self._read()

    def __bool__(self) -> bool:
        """Return the truth of a one-entry array; NumPy's error for others."""
        return bool(self._piece() if self._view.size == 1 else self._view)

    def __int__(self) -> int:
        """Return the only entry as int."""
        return int(self._piece())

    def __float__(self) -> float:
        """Return the only entry as float."""
        return float(self._piece())

    def __complex__(self) -> complex:
        """Return the only entry as complex."""
        return complex(self._piece())

    def __index__(self) -> int:
        """Return the only entry of an integer array."""
        return operator.index(self._piece())

    def __repr__(self) -> str:
        """Return NumPy's repr with this class's name."""
        return np.array_repr(self._piece().view(_Named))

    def __str__(self) -> str:
        """Return NumPy's str."""
        return str(self._piece())

    def __format__(self, spec: str) -> str:
        """Return NumPy's format."""
        return format(self._piece(), spec)

    def dot(self, b: Any, out: Any = None) -> Any:
        """Return `numpy.dot` of this array and another, on the engine.

        Parameters
        ----------
        b : array_like
            Right operand.
        out : ndarray or OzArray, optional
            What `numpy.dot` would make.

        Returns
        -------
        OzArray or scalar
            The product.
        """
        return products.dot(OzArray, self, b, out)

    def copy(self, order: Order = "C") -> OzArray:
        """Return a copy that shares nothing.

        Parameters
        ----------
        order : {"C", "F", "A", "K"}
            Memory order, as for `numpy.ndarray.copy`.

        Returns
        -------
        OzArray
            New memory, where the data are.
        """
        return copied(self, order)

    def astype(
        self,
        dtype: DTypeLike,
        order: Order = "K",
        casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"] = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> OzArray:
        """Return the array with other entries' type.

        Parameters
        ----------
        dtype : dtype
            New type.
        order, casting, subok : str, str, bool
            As for `numpy.ndarray.astype`.
        copy : bool
            False returns this array where nothing changes.

        Returns
        -------
        OzArray
            As `numpy.ndarray.astype`.
        """
        del subok  # an OzArray has no subclasses of ndarray
        if np.dtype(dtype) == self.dtype and order == "K":
            return copied(self, "K") if copy else self
        found = self._read_unasked("ndarray.astype").astype(
            dtype, order, casting, copy=copy
        )
        return self if found is self._view else self._own(found)

    def reshape(
        self, *shape: Any, order: Literal["C", "F", "A"] = "C", **how: Any
    ) -> OzArray:
        """Return the entries under another shape, a view where NumPy can.

        Parameters
        ----------
        *shape : int or tuple of int
            As for `numpy.ndarray.reshape`.
        order : {"C", "F", "A"}
            Order of reading.
        **how
            `copy`, for versions of NumPy that take it.

        Returns
        -------
        OzArray
            View or copy.
        """
        return reshape(self, shape, order, **how)

    def ravel(self, order: Order = "C") -> OzArray:
        """Return the entries in one axis, a view where NumPy can.

        Parameters
        ----------
        order : {"C", "F", "A", "K"}
            Order of reading.

        Returns
        -------
        OzArray
            View or copy.
        """
        return ravel(self, order)

    def transpose(self, *axes: SupportsIndex) -> OzArray:
        """Return a view with permuted axes.

        Parameters
        ----------
        *axes : int
            As for `numpy.ndarray.transpose`.

        Returns
        -------
        OzArray
            View.
        """
        return self._see(self._view.transpose(*axes))

    def __getattr__(self, name: str) -> Any:
        """Give ndarray's other methods (sum, max, fill, ...)."""
        # Interfaces by which other libraries would take the memory without asking, and
        # private names, are not handed on.
        if name.startswith("_") or not callable(getattr(np.ndarray, name, None)):
            raise AttributeError(
                f"OzArray has no attribute {name!r}", name=name, obj=self
            )

        def method(*args: Any, **kwargs: Any) -> Any:
            return methods.call(self, name, args, kwargs)

        method.__name__ = name
        return method

    def __dir__(self) -> list[str]:
        """Return own names and those of ndarray's methods."""
        theirs = {name for name in dir(np.ndarray) if not name.startswith("_")}
        return sorted(theirs.union(object.__dir__(self)))


class _Named(np.ndarray[Any, Any]):
    """For `repr`: an ndarray that NumPy prints under the name OzArray."""


_Named.__name__ = "OzArray"


def wrap(x: Any) -> Any:
    """Return a result that nobody else has with every array in it as an OzArray.

    Parameters
    ----------
    x : object
        Arrays on the host or, contiguous, on a device; tuples are looked into.

    Returns
    -------
    object
    """
    return owned(OzArray, x)


def _restored(data: NDArray[Any]) -> OzArray:
    """Return the OzArray of a pickle."""
    return OzArray._own(data) if data.base is None else OzArray(data)


def _is_known(kind: type) -> bool:
    """Return whether we may answer NumPy's functions for arrays of this type."""
    if issubclass(kind, OzArray):
        return True
    ours = np.ndarray.__array_function__
    return issubclass(kind, np.ndarray) and kind.__array_function__ is ours
