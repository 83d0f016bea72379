"""Checks of the arguments that assertions and strategies share."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from np_ozaki.errors import OperandTypeError, OptionError, ShapeError, refusal

__all__ = [
    "entry_dtype",
    "integer",
    "one_of",
    "operand",
    "operand_pair",
    "require_hypothesis",
]

Array = NDArray[Any]
"""Of float64, float32, complex128 or complex64."""

_DTYPES = {np.dtype(char) for char in "dfDF"}


def operand(name: str, x: ArrayLike) -> Array:
    """Return an operand as a stack of matrices of a dtype that is multiplied.

    Parameters
    ----------
    name : str
        Of the argument.
    x : (..., rows, columns) array_like
        Real or complex.

    Returns
    -------
    (..., rows, columns) ndarray
        The array itself where it is of float64, float32, complex128 or complex64;
        all else becomes float64, or complex128.

    Raises
    ------
    OperandTypeError
        Its entries are no numbers.
    ShapeError
        It has fewer than two dimensions.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "biufc":
        limit = "assertions are about products of numbers"
        raise OperandTypeError(
            refusal(f"{name}.dtype", array.dtype.name, limit, "convert it")
        )
    if array.ndim < 2:
        limit = "a matrix has two dimensions"
        raise ShapeError(refusal(f"{name}.shape", array.shape, limit, "reshape it"))
    kept = array.dtype.newbyteorder("=")
    if kept not in _DTYPES:
        kept = np.dtype(np.complex128 if kept.kind == "c" else np.float64)
    return array.astype(kept, copy=False)


def operand_pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return two operands that can be multiplied.

    Parameters
    ----------
    a : (..., m, k) array_like
        Real or complex.
    b : (..., k, n) array_like
        Real or complex.

    Returns
    -------
    a, b : ndarray
        Both of the dtype that NumPy promotes them to.

    Raises
    ------
    OperandTypeError
        The entries of one are no numbers.
    ShapeError
        They do not fit each other.
    """
    left, right = operand("a", a), operand("b", b)
    fits = left.shape[-1] == right.shape[-2]
    try:
        np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        fits = False
    if not fits:
        limit = f"does not fit a.shape={left.shape}"
        raise ShapeError(
            refusal("b.shape", right.shape, limit, "pass (..., m, k) and (..., k, n)")
        )
    common = np.result_type(left, right)
    return left.astype(common, copy=False), right.astype(common, copy=False)


def entry_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of the entries that a strategy draws.

    Parameters
    ----------
    dtype : dtype_like
        float64, float32, complex128 or complex64.

    Returns
    -------
    dtype
        Of native byte order.

    Raises
    ------
    OperandTypeError
        It is another one.
    """
    try:
        found = None if dtype is None else np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in _DTYPES:
        limit = "entries are float64, float32, complex128 or complex64"
        raise OperandTypeError(refusal("dtype", dtype, limit, "pass one of these"))
    return found


def integer(name: str, value: int, low: int, high: float = math.inf) -> int:
    """Return an integer argument that lies in its range.

    Parameters
    ----------
    name : str
        Of the argument.
    value : int
        What was passed.
    low, high : int
        The range, ends included.

    Returns
    -------
    int
        The value.

    Raises
    ------
    OperandTypeError
        It is no integer.
    OptionError
        It is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        limit = "must be an integer"
        raise OperandTypeError(refusal(name, value, limit, "pass an int")) from None
    if not low <= number <= high:
        limit = f"must be at least {low}"
        limit += "" if math.isinf(high) else f" and at most {high}"
        raise OptionError(refusal(name, value, limit, "choose another"))
    return number


def one_of(name: str, value: str | None, names: Sequence[str]) -> None:
    """Refuse a name that is not in a list; None stands for any.

    Parameters
    ----------
    name : str
        Of the argument.
    value : str or None
        What was passed.
    names : sequence of str
        The list.

    Raises
    ------
    OptionError
        It is none of them.
    """
    if value is not None and value not in names:
        limit = f"must be one of {', '.join(map(repr, names))}"
        raise OptionError(refusal(name, value, limit, "or leave it out for any"))


def require_hypothesis() -> None:
    """Refuse to make a strategy where Hypothesis is not installed.

    Raises
    ------
    ImportError
        It is not.
    """
    try:
        importlib.import_module("hypothesis")
    except ImportError as error:
        raise ImportError(
            "np_ozaki.testing: strategies are made of Hypothesis, which is not "
            "installed; pip install hypothesis"
        ) from error
