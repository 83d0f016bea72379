"""OzArray: a wrapped array whose matrix products go to an engine, without patching.

The wrapper speaks NumPy's two protocols (NEP 13 and NEP 18): products go to `gemm`,
everything else to NumPy on the wrapped ndarray, with arrays wrapped again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from np_ozaki import context
from np_ozaki.errors import OperandTypeError, refusal
from np_ozaki.routes import explicit
from np_ozaki.routes.numpy_api import dot

__all__ = ["OzArray", "unwrap", "wrap"]


def unwrap(x: Any) -> Any:
    """Return x with every OzArray in it as its ndarray.

    Parameters
    ----------
    x : object
        Lists, tuples and dicts are looked into.

    Returns
    -------
    object
        x itself where there is none.
    """
    if isinstance(x, OzArray):
        return x._array
    if isinstance(x, (tuple, list)):
        return _rebuild(x, unwrap)
    if type(x) is dict:
        return {key: unwrap(value) for key, value in x.items()}
    return x


def wrap(x: Any) -> Any:
    """Return x with every plain ndarray in it wrapped, without a copy.

    Parameters
    ----------
    x : object
        Lists and tuples are looked into.

    Returns
    -------
    object
        x itself where there is none.
    """
    if type(x) is np.ndarray:
        return OzArray(x, copy=False)
    if isinstance(x, (tuple, list)):
        return _rebuild(x, wrap)
    return x


def _hand_back(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a result wrapped, or the very argument that it was written to."""
    for given in (*args, *kwargs.values()):
        if unwrap(given) is result:
            return given
    return wrap(result)


def _rebuild(x: Any, change: Callable[[Any], Any]) -> Any:
    """Return a list, a tuple or a named tuple with `change` done to its items."""
    items = [change(item) for item in x]
    if all(old is new for old, new in zip(x, items, strict=True)):
        return x
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


class OzArray(NDArrayOperatorsMixin):
    """An array whose float64 matrix products run on an np_ozaki engine.

    Parameters
    ----------
    x : array_like
        Anything `numpy.array` takes, or another OzArray.
    copy : bool, optional
        None and True take a snapshot; False shares memory with the ndarray `x`, so
        that writes to either are seen by both.

    Raises
    ------
    ValueError
        If ``copy=False`` and `x` is no ndarray that could be shared.
    OperandTypeError
        If `x` is a masked array; a TypeError.

    Notes
    -----
    ``@``, `numpy.matmul`, `numpy.dot` and ``.dot`` go to the engine where both
    operands are real with common dtype float64, under the options of the active scope
    or the defaults; `min_flops` plays no part.  All other functions of NumPy run as
    NumPy runs them, and arrays come back wrapped.  Basic indexing gives views that
    share memory.  ``isinstance(x, numpy.ndarray)`` is False and ``ndarray.dot(oz)``
    is not dispatched by NumPy: write ``OzArray(a).dot(b)`` or ``a @ oz``.

    Examples
    --------
    >>> import numpy as np
    >>> from np_ozaki import OzArray
    >>> OzArray(np.eye(2)) @ np.array([[1.0, 2.0], [3.0, 4.0]])
    OzArray([[1., 2.],
             [3., 4.]])
    """

    __slots__ = ("_array",)
    __array_priority__ = 120.0  # above CuPy's 100: the wrapper decides

    _array: NDArray[Any]

    def __init__(self, x: ArrayLike | OzArray, copy: bool | None = None) -> None:
        source = x._array if isinstance(x, OzArray) else x
        if isinstance(source, np.ma.MaskedArray):
            raise OperandTypeError(
                refusal(
                    "x",
                    type(source).__name__,
                    "an OzArray has no mask, and hidden entries would show",
                    "pass x.filled(value) or x.data",
                )
            )
        self._array = np.array(source, copy=copy is not False, subok=False)

    # What NumPy asks for -------------------------------------------------------

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """Return the ndarray: itself unless a copy or another dtype is asked for."""
        if copy is None and (dtype is None or np.dtype(dtype) == self.dtype):
            return self._array
        return np.array(self._array, dtype=dtype, copy=copy)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Answer a ufunc: matmul by the engine, the rest by NumPy."""
        if any(_is_stranger(x) for x in (*inputs, *kwargs.get("out", ()))):
            return NotImplemented
        plain = tuple(map(unwrap, inputs))
        outputs = kwargs.get("out", ())
        kwargs = {key: unwrap(value) for key, value in kwargs.items()}
        if ufunc is np.matmul and method == "__call__" and _is_plain(kwargs):
            target = kwargs.pop("out")[0] if outputs else None
            result, _ = explicit.run(
                "matmul",
                functools.partial(np.matmul, **kwargs),
                explicit.matmul_product,
                (plain[0], plain[1]),
                target,
                context.default_options(),
                to_float64=kwargs.get("dtype") is not None,
            )
        else:
            result = getattr(ufunc, method)(*plain, **kwargs)
        if not outputs:
            return wrap(result)
        return outputs[0] if len(outputs) == 1 else outputs

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Answer a NumPy function: dot by the engine, the rest by NumPy."""
        known = (OzArray, np.ndarray)
        if not all(issubclass(t, known) for t in types):
            return NotImplemented
        if func is np.dot:
            return _dot(*args, **kwargs)
        if func is np.linalg.matmul:
            return np.matmul(*args, **kwargs)
        return _hand_back(func(*map(unwrap, args), **unwrap(kwargs)), args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data; the copy shares nothing."""
        return OzArray, (self._array,)

    def __copy__(self) -> OzArray:
        """Return a copy that shares nothing."""
        return OzArray(self._array)

    def __deepcopy__(self, memo: dict[int, Any]) -> OzArray:
        """Return a copy that shares nothing."""
        return OzArray(self._array)

    # What a user sees ----------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._array.size

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._array.nbytes

    @property
    def T(self) -> OzArray:
        """View with the axes reversed."""
        return OzArray(self._array.T, copy=False)

    @property
    def mT(self) -> OzArray:
        """View with the last two axes swapped."""
        return OzArray(self._array.swapaxes(-1, -2), copy=False)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis."""
        return map(wrap, self._array)

    def __getitem__(self, key: Any) -> Any:
        """Return a view, a copy or a scalar, as NumPy's indexing does."""
        return wrap(self._array[unwrap(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write through to the wrapped memory."""
        self._array[unwrap(key)] = unwrap(value)

    def __contains__(self, item: Any) -> bool:
        """Return whether an entry equals `item`."""
        return unwrap(item) in self._array

    def __bool__(self) -> bool:
        """Return the truth of a one-entry array; NumPy's error for others."""
        return bool(self._array)

    def __int__(self) -> int:
        """Return the only entry as int."""
        return int(self._array)

    def __float__(self) -> float:
        """Return the only entry as float."""
        return float(self._array)

    def __complex__(self) -> complex:
        """Return the only entry as complex."""
        return complex(self._array)

    def __index__(self) -> int:
        """Return the only entry of an integer array."""
        return operator.index(self._array)

    def __repr__(self) -> str:
        """Return NumPy's repr with this class's name."""
        text = repr(self._array)
        return "OzArray" + text.removeprefix("array").replace("\n ", "\n   ")

    def __str__(self) -> str:
        """Return NumPy's str."""
        return str(self._array)

    def __format__(self, spec: str) -> str:
        """Return NumPy's format."""
        return format(self._array, spec)

    def __matmul__(self, other: Any) -> Any:
        """Return the product, on the engine unless `other` wants to answer."""
        if _answers_itself(other):
            return wrap(self._array @ other)
        return np.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        """Return the reflected product on the engine."""
        return np.matmul(other, self)

    def __imatmul__(self, other: Any) -> Any:
        """Replace the entries by those of the product, on the engine."""
        operands = (self._array, unwrap(other))
        explicit.run(
            "matmul",
            np.matmul,
            explicit.matmul_product,
            operands,
            self._array,
            context.default_options(),
        )
        return self

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
        return _dot(self, b, out)

    def copy(self, order: Literal["C", "F", "A", "K"] = "C") -> OzArray:
        """Return a copy that shares nothing.

        Parameters
        ----------
        order : {"C", "F", "A", "K"}
            Memory order, as for `numpy.ndarray.copy`.

        Returns
        -------
        OzArray
            New memory.
        """
        return OzArray(self._array.copy(order=order), copy=False)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> OzArray:
        """Return the array with other entries' type.

        Parameters
        ----------
        dtype : dtype
            New type.
        copy : bool
            False shares memory where the type is the same.

        Returns
        -------
        OzArray
            As `numpy.ndarray.astype`.
        """
        return OzArray(self._array.astype(dtype, copy=copy), copy=False)

    def reshape(self, *shape: Any, order: Literal["C", "F", "A"] = "C") -> OzArray:
        """Return the entries under another shape, a view where NumPy can.

        Parameters
        ----------
        *shape : int or tuple of int
            As for `numpy.ndarray.reshape`.
        order : {"C", "F", "A"}
            Order of reading.

        Returns
        -------
        OzArray
            View or copy.
        """
        return OzArray(self._array.reshape(*shape, order=order), copy=False)

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
        return OzArray(self._array.transpose(*axes), copy=False)

    def __getattr__(self, name: str) -> Any:
        """Give ndarray's other methods and attributes (sum, max, flags, ...)."""
        # Interfaces by which other libraries would take the memory without asking, and
        # private names, are not handed on.
        if name.startswith("_"):
            raise AttributeError(f"OzArray has no attribute {name!r}")
        value = getattr(self._array, name)
        if not callable(value):
            return wrap(value)

        def method(*args: Any, **kwargs: Any) -> Any:
            result = value(*map(unwrap, args), **unwrap(kwargs))
            return _hand_back(result, args, kwargs)

        method.__name__ = name
        return method


def _is_stranger(x: Any) -> bool:
    """Return whether x has its own idea of ufuncs that we must not override."""
    if isinstance(x, OzArray):
        return False
    ours = np.ndarray.__array_ufunc__
    return getattr(type(x), "__array_ufunc__", ours) is not ours


def _is_plain(kwargs: dict[str, Any]) -> bool:
    """Return whether keywords of a ufunc ask for no more than a float64 product."""
    rest = {key: value for key, value in kwargs.items() if key != "out"}
    dtype = rest.pop("dtype", None)
    return not rest and (dtype is None or np.dtype(dtype) == np.float64)


def _answers_itself(x: Any) -> bool:
    """Return whether an ndarray would leave operators to x (a sparse matrix, say)."""
    if isinstance(x, (OzArray, np.ndarray, np.generic)):
        return False
    if hasattr(type(x), "__array_ufunc__"):
        return type(x).__array_ufunc__ is None
    return getattr(x, "__array_priority__", 0.0) > 0.0


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    operands = (unwrap(a), unwrap(b))
    result, _ = explicit.run(
        "dot", np.dot, dot, operands, unwrap(out), context.default_options()
    )
    return out if out is not None else wrap(result)


# The mixin declares the operators, for type checkers too; it calls ufuncs, which leaves
# no way to defer to others.  ndarray's own operators defer, and know strings.


def _binary(name: str) -> Callable[[OzArray, Any], Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: OzArray, other: Any) -> Any:
        return wrap(function(self._array, unwrap(other)))

    return method


def _reflected(name: str) -> Callable[[OzArray, Any], Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: OzArray, other: Any) -> Any:
        return wrap(function(unwrap(other), self._array))

    return method


def _in_place(name: str) -> Callable[[OzArray, Any], Any]:
    function = getattr(operator, f"__i{name}__")

    def method(self: OzArray, other: Any) -> Any:
        function(self._array, unwrap(other))
        return self

    return method


def _unary(name: str) -> Callable[[OzArray], Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: OzArray) -> Any:
        return wrap(function(self._array))

    return method


_ARITHMETIC = "add sub mul truediv floordiv mod pow lshift rshift and or xor".split()
for _name in _ARITHMETIC:
    setattr(OzArray, f"__{_name}__", _binary(_name))
    setattr(OzArray, f"__r{_name}__", _reflected(_name))
    setattr(OzArray, f"__i{_name}__", _in_place(_name))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(OzArray, f"__{_name}__", _binary(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(OzArray, f"__{_name}__", _unary(_name))
