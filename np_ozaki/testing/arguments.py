"""Checks of the arguments that assertions and strategies share."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from np_ozaki.errors import OperandTypeError, OptionError, ShapeError, refusal

__all__ = ["integer", "one_of", "operand", "operand_pair", "require_hypothesis"]

Array = NDArray[np.float64]


def operand(name: str, x: ArrayLike) -> Array:
    """Return an operand as a stack of float64 matrices.

    Parameters
    ----------
    name : str
        Of the argument.
    x : (..., rows, columns) array_like
        Real.

    Returns
    -------
    (..., rows, columns) ndarray of float64
        The array itself where it is one.

    Raises
    ------
    OperandTypeError
        It is not real.
    ShapeError
        It has fewer than two dimensions.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        limit = "assertions are about real products"
        raise OperandTypeError(
            refusal(f"{name}.dtype", array.dtype.name, limit, "pass real parts")
        )
    if array.ndim < 2:
        limit = "a matrix has two dimensions"
        raise ShapeError(refusal(f"{name}.shape", array.shape, limit, "reshape it"))
    return array.astype(np.float64, copy=False)


def operand_pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return two operands that can be multiplied.

    Parameters
    ----------
    a : (..., m, k) array_like
        Real.
    b : (..., k, n) array_like
        Real.

    Returns
    -------
    a, b : ndarray of float64
        As given otherwise.

    Raises
    ------
    OperandTypeError
        One is not real.
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
    return left, right


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
