"""What dask looks up by the type of a chunk, answered for OzArray.

Tasks call NumPy's functions and OzArray answers them, so most entries are NumPy's own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dask.array import register_chunk_type
from dask.array.chunk_types import is_valid_chunk_type
from dask.array.dispatch import (
    concatenate_lookup,
    divide_lookup,
    einsum_lookup,
    empty_lookup,
    nannumel_lookup,
    numel_lookup,
    percentile_lookup,
    tensordot_lookup,
    to_numpy_dispatch,
)
from dask.base import normalize_token
from dask.sizeof import sizeof
from numpy.typing import NDArray

from np_ozaki.array import OzArray, strict

__all__ = ["register"]


def register() -> None:
    """Make OzArray a type of chunk; calling it again changes nothing.

    Importing `np_ozaki.dask` calls it.
    """
    if not is_valid_chunk_type(OzArray):
        register_chunk_type(OzArray)
    for lookup, function in {
        concatenate_lookup: np.concatenate,
        divide_lookup: np.divide,
        einsum_lookup: np.einsum,
        empty_lookup: _empty,
        nannumel_lookup: nannumel_lookup.dispatch(np.ndarray),
        normalize_token: _token,
        numel_lookup: _numel,
        percentile_lookup: percentile_lookup.dispatch(np.ndarray),
        sizeof: _sizeof,
        tensordot_lookup: np.tensordot,
        to_numpy_dispatch: _to_numpy,
    }.items():
        lookup.register(OzArray, function)


def _empty(*args: Any, **kwargs: Any) -> OzArray:
    return OzArray(np.empty(*args, **kwargs))


def _numel(x: OzArray, **kwargs: Any) -> Any:
    """Return the number of entries as an OzArray; only the shape of x is read."""
    count = numel_lookup.dispatch(np.ndarray)(x, **kwargs)
    return OzArray(count) if isinstance(count, np.ndarray) else count


def _sizeof(x: OzArray) -> int:
    """Return the bytes that x takes, without asking for them: they may be on a GPU."""
    lengths = zip(x.shape, x.strides, strict=True)
    stored = (n for n, stride in lengths if stride or not n)
    return math.prod(stored, start=x.dtype.itemsize)


def _to_numpy(x: OzArray, **kwargs: Any) -> NDArray[Any]:
    # A copy: a task may write to its input's successor, and the chunk has other users.
    return np.array(x, **kwargs)


def _token(x: OzArray) -> tuple[Any, ...]:
    """Return what two OzArrays share if and only if they are equal bit for bit.

    dask's token of an ndarray is of its memory in whatever order that is: a square
    matrix and its transpose have the same one, and dask takes them for equal.
    """
    with strict(False):  # dask asks for tokens, not the user
        return "OzArray", normalize_token(np.ascontiguousarray(x)), x.shape
