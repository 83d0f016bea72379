"""NumPy's universal functions of OzArrays (NEP 13)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from np_ozaki import context
from np_ozaki.array.adopt import Passed
from np_ozaki.array.contractions import UFUNCS
from np_ozaki.array.core import Core, adopted, mapped, written_on_host
from np_ozaki.array.elementwise import elementwise
from np_ozaki.array.functions import count_on_host
from np_ozaki.array.products import multiply
from np_ozaki.engines import choice
from np_ozaki.routes.decision import is_multiplied

__all__ = ["call", "is_stranger"]


def is_stranger(x: Any) -> bool:
    """Return whether x has its own idea of ufuncs that we must not override.

    Parameters
    ----------
    x : object
        An operand.

    Returns
    -------
    bool
        False for arrays on a GPU, which OzArrays take as operands.
    """
    if isinstance(x, Core):
        return False
    ours = np.ndarray.__array_ufunc__
    theirs = getattr(type(x), "__array_ufunc__", ours)
    if theirs is ours:
        return False
    return theirs is None or not choice.is_device_array(x)


def call(
    cls: type[Core],
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Answer a call of a ufunc or of one of its methods.

    Parameters
    ----------
    cls : type
        Of the results.
    ufunc : numpy.ufunc
        What was called.
    method : str
        "__call__", "reduce", "accumulate", "outer", "reduceat" or "at".
    inputs : tuple
        Operands.
    kwargs : dict
        Others; `out` is a tuple.

    Returns
    -------
    object
        As NumPy's, with OzArrays for ndarrays; NotImplemented where an operand has its
        own idea.
    """
    out = kwargs.get("out", ())
    # A mask is no operand, but it may be a stranger or ours, too.
    masks = (kwargs["where"],) if "where" in kwargs else ()
    if any(map(is_stranger, (*inputs, *out, *masks))):
        return NotImplemented
    inputs = tuple(adopted(cls, x) for x in inputs)
    if method == "__call__":
        result = _on_engine_or_device(cls, ufunc, inputs, kwargs)
        if result is not NotImplemented:
            return result
    return _on_host(cls, ufunc, method, inputs, kwargs)


def _on_engine_or_device(
    cls: type[Core], ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    out = kwargs.get("out", ())
    others = kwargs.keys() - {"out"}
    if ufunc is np.matmul and others <= {"dtype"}:
        dtype = kwargs.get("dtype")
        wanted = None if dtype is None else np.dtype(dtype)
        if wanted is None or is_multiplied(wanted):

            def native(a: Any, b: Any, out: Any = None) -> Any:
                return np.matmul(a, b, out=out, dtype=dtype)

            a, b = inputs
            result, _ = multiply(
                cls,
                "matmul",
                a,
                b,
                out[0] if out else None,
                context.default_options(),
                dtype=wanted,
                native=native if dtype is not None else np.matmul,
            )
            return result
    if others:
        return NotImplemented
    if ufunc in UFUNCS and not any(x is not None for x in out):
        return UFUNCS[ufunc](cls, *inputs)
    return elementwise(cls, ufunc, inputs, out)


def _on_host(
    cls: type[Core],
    ufunc: np.ufunc,
    method: str,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    count_on_host(name)
    out = kwargs.get("out", ())
    written = inputs[:1] if method == "at" else out
    passed = Passed(name, written)
    plain = tuple(map(passed.ndarray, inputs))
    keywords = {key: passed.ndarray(x) for key, x in kwargs.items() if key != "out"}
    if out:
        keywords["out"] = tuple(map(passed.ndarray, out))
    with written_on_host(written) if written else contextlib.nullcontext():
        result = getattr(ufunc, method)(*plain, **keywords)
    # What user functions and entries are made of belongs to others, too.
    objects = any("O" in loop for loop in ufunc.types) and (
        all("O" in loop for loop in ufunc.types)
        or any(x.dtype.hasobject for x in plain if isinstance(x, np.ndarray))
    )
    if objects:
        return mapped(result, lambda x: passed.result(cls, x, shared=True))
    if type(result) is tuple:
        given = (*out, *(None,) * (len(result) - len(out)))
        return tuple(
            _wrapped(cls, x, target) for x, target in zip(result, given, strict=True)
        )
    return _wrapped(cls, result, out[0] if out else None)


def _wrapped(cls: type[Core], result: Any, given: Any) -> Any:
    """Return one result: what it was written to, else an OzArray of an ndarray."""
    if given is not None:
        return given
    return cls._own(result) if type(result) is np.ndarray else result
