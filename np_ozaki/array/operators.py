"""Python's operators of OzArrays.

ndarray's own operators know strings and structures, which ufuncs do not, and defer to
others; they answer on the host.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from np_ozaki.array import functions, products, ufuncs
from np_ozaki.array.core import Core, adopted, mapped
from np_ozaki.array.elementwise import elementwise
from np_ozaki.engines import choice

__all__ = ["Operators", "owned"]


class Operators(Core):
    """An array with Python's operators."""

    __slots__ = ()

    # Annotated as arrays, as NumPy annotates its own: two vectors give a scalar.

    def __matmul__(self, other: Any, /) -> Self:
        """Return the product, on the engine unless `other` wants to answer."""
        result: Self
        kind = type(other)
        if kind is np.ndarray or kind is type(self):
            result = products.matmul(type(self), self, other)
        elif _has_priority(other):
            result = _answer(type(self), operator.matmul, self, other)
        elif getattr(other, "__array_ufunc__", 0) is None:
            return NotImplemented
        else:
            this: Any = self  # OzArray speaks the protocols, this class does not
            result = np.matmul(this, other)
        return result

    def __rmatmul__(self, other: Any, /) -> Self:
        """Return the reflected product on the engine."""
        this: Any = self
        result: Self = np.matmul(other, this)
        return result

    def __imatmul__(self, other: Any) -> Self:
        """Replace the entries by those of the product, on the engine."""
        if (
            ufuncs.is_stranger(other)
            or _has_priority(other)
            or np.ndim(other) < 2
            or not self._view.ndim
        ):
            # NumPy's own error, or the stranger's answer.
            result: Self = _in_place_on_host(operator.imatmul, self, other, "matmul")
            return result
        products.matmul(type(self), self, other, self)
        return self

    if TYPE_CHECKING:
        # Set below, in one loop: where NumPy returns an array, these return one of
        # this class.
        def __add__(self, other: Any, /) -> Self: ...
        def __radd__(self, other: Any, /) -> Self: ...
        def __iadd__(self, other: Any, /) -> Self: ...
        def __sub__(self, other: Any, /) -> Self: ...
        def __rsub__(self, other: Any, /) -> Self: ...
        def __isub__(self, other: Any, /) -> Self: ...
        def __mul__(self, other: Any, /) -> Self: ...
        def __rmul__(self, other: Any, /) -> Self: ...
        def __imul__(self, other: Any, /) -> Self: ...
        def __truediv__(self, other: Any, /) -> Self: ...
        def __rtruediv__(self, other: Any, /) -> Self: ...
        def __itruediv__(self, other: Any, /) -> Self: ...
        def __floordiv__(self, other: Any, /) -> Self: ...
        def __rfloordiv__(self, other: Any, /) -> Self: ...
        def __ifloordiv__(self, other: Any, /) -> Self: ...
        def __mod__(self, other: Any, /) -> Self: ...
        def __rmod__(self, other: Any, /) -> Self: ...
        def __imod__(self, other: Any, /) -> Self: ...
        def __divmod__(self, other: Any, /) -> tuple[Self, Self]: ...
        def __rdivmod__(self, other: Any, /) -> tuple[Self, Self]: ...
        def __pow__(self, other: Any, /) -> Self: ...
        def __rpow__(self, other: Any, /) -> Self: ...
        def __ipow__(self, other: Any, /) -> Self: ...
        def __lshift__(self, other: Any, /) -> Self: ...
        def __rlshift__(self, other: Any, /) -> Self: ...
        def __ilshift__(self, other: Any, /) -> Self: ...
        def __rshift__(self, other: Any, /) -> Self: ...
        def __rrshift__(self, other: Any, /) -> Self: ...
        def __irshift__(self, other: Any, /) -> Self: ...
        def __and__(self, other: Any, /) -> Self: ...
        def __rand__(self, other: Any, /) -> Self: ...
        def __iand__(self, other: Any, /) -> Self: ...
        def __or__(self, other: Any, /) -> Self: ...
        def __ror__(self, other: Any, /) -> Self: ...
        def __ior__(self, other: Any, /) -> Self: ...
        def __xor__(self, other: Any, /) -> Self: ...
        def __rxor__(self, other: Any, /) -> Self: ...
        def __ixor__(self, other: Any, /) -> Self: ...
        def __lt__(self, other: Any, /) -> Self: ...
        def __le__(self, other: Any, /) -> Self: ...
        def __gt__(self, other: Any, /) -> Self: ...
        def __ge__(self, other: Any, /) -> Self: ...
        def __eq__(self, other: Any, /) -> Self: ...  # type: ignore[override]
        def __ne__(self, other: Any, /) -> Self: ...  # type: ignore[override]
        def __neg__(self) -> Self: ...
        def __pos__(self) -> Self: ...
        def __abs__(self) -> Self: ...
        def __invert__(self) -> Self: ...


def owned(cls: type[Core], x: Any) -> Any:
    """Return a result that nobody else has with every array in it as an OzArray.

    Parameters
    ----------
    cls : type
        Of OzArrays.
    x : object
        Arrays on the host or, contiguous, on a device; tuples are looked into.

    Returns
    -------
    object
    """

    def change(leaf: Any) -> Any:
        if type(leaf) is np.ndarray:
            return cls._own(leaf)
        return cls._on_device(leaf) if choice.is_device_array(leaf) else leaf

    return mapped(x, change)


def _has_priority(x: Any) -> bool:
    """Return whether an ndarray would leave operators to x (a sparse matrix, say)."""
    if isinstance(x, (Core, np.ndarray, np.generic)):
        return False
    if hasattr(type(x), "__array_ufunc__"):
        return False
    return getattr(x, "__array_priority__", 0.0) > 0.0


def _binary(name: str, ufunc: np.ufunc, *, reflected: bool) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__", divmod)

    def method(self: Operators, other: Any) -> Any:
        if ufuncs.is_stranger(other):
            if other.__array_ufunc__ is None:
                return NotImplemented
            return ufunc(other, self) if reflected else ufunc(self, other)
        other = adopted(type(self), other)
        operands = (other, self) if reflected else (self, other)
        result = elementwise(type(self), ufunc, operands, ())
        if result is not NotImplemented:
            return result
        functions.count_on_host(name)
        if _has_priority(other) or products.is_foreign(other):
            return _answer(type(self), function, *operands)
        left, right = (products.on_host(x, name) for x in operands)
        result = function(left, right)
        if any(isinstance(x, np.ndarray) and x.dtype.hasobject for x in (left, right)):
            return _of_objects(type(self), result)
        return owned(type(self), result)

    return method


def _answer(cls: type[Core], function: Callable[..., Any], *operands: Any) -> Any:
    """Return what an object with priorities of its own makes of lent ndarrays."""
    ours = [x for x in operands if isinstance(x, Core)]
    name = function.__name__
    for x in ours:
        x._read_unasked(name)
    result = function(*(x._lent() if isinstance(x, Core) else x for x in operands))
    if type(result) is np.ndarray and any(
        np.may_share_memory(result, x._storage.host) for x in ours
    ):
        return cls._own(result.copy())
    return owned(cls, result)


def _of_objects(cls: type[Core], result: Any) -> Any:
    """Return a result that may be an entry, which others have, too."""
    return mapped(result, lambda x: cls._sharing(x) if type(x) is np.ndarray else x)


def _in_place_on_host(
    function: Callable[..., Any], x: Core, other: Any, name: str
) -> Any:
    right, left = products.on_host(other, name), x._read_unasked(name)
    with x._storage.host_write():
        result = function(left, right)
    if (_has_priority(other) or products.is_foreign(other)) and not x._storage.shared:
        # They had the memory to write to, and may have kept it.
        x._storage.hand_out("host")
    return x if result is left else owned(type(x), result)


def _in_place(name: str, ufunc: np.ufunc) -> Callable[[Operators, Any], Any]:
    function = getattr(operator, f"__i{name}__")

    def method(self: Operators, other: Any) -> Any:
        if ufuncs.is_stranger(other):
            return ufunc(self, other, out=(self,))
        other = adopted(type(self), other)
        result = elementwise(type(self), ufunc, (self, other), (self,))
        if result is not NotImplemented:
            return result
        functions.count_on_host(name)
        return _in_place_on_host(function, self, other, name)

    return method


def _unary(name: str, ufunc: np.ufunc) -> Callable[[Operators], Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Operators) -> Any:
        result = elementwise(type(self), ufunc, (self,), ())
        if result is not NotImplemented:
            return result
        functions.count_on_host(name)
        return owned(type(self), function(self._read_unasked(name)))

    return method


_ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "divmod": np.divmod,
    "pow": np.power,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNARY = {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}
for _name, _ufunc in (_ARITHMETIC | _COMPARISONS).items():
    setattr(Operators, f"__{_name}__", _binary(_name, _ufunc, reflected=False))
for _name, _ufunc in _ARITHMETIC.items():
    setattr(Operators, f"__r{_name}__", _binary(_name, _ufunc, reflected=True))
    if _name != "divmod":
        setattr(Operators, f"__i{_name}__", _in_place(_name, _ufunc))
for _name, _ufunc in _UNARY.items():
    setattr(Operators, f"__{_name}__", _unary(_name, _ufunc))
