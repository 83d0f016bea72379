"""Views of the memory that C functions were called with."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "array_from_fortran", "array_from_loop"]

Matrix: TypeAlias = NDArray[Any]

_FLOAT64: Final = np.dtype(np.float64)


class _Memory:
    """Memory of a running C function, described to NumPy."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


def array_from_loop(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
    dtype: np.dtype[Any] = _FLOAT64,
) -> Matrix:
    """Return a view of the memory that a loop was called with.

    Parameters
    ----------
    pointer : int
        Address of the first element.
    shape : tuple of int
        Sizes; 0 is allowed.
    strides : tuple of int
        Bytes, as many as sizes; negative and 0 are allowed.
    writeable : bool
        False for operands.
    dtype : dtype, optional
        Of its elements.

    Returns
    -------
    ndarray
        Shares the memory, copies nothing.  Valid until the handler returns: NumPy
        may free the memory after that.
    """
    interface: dict[str, object] = {
        "version": 3,
        "typestr": dtype.str,
        "data": (pointer, not writeable),
        "shape": shape,
        "strides": strides,
    }
    return np.asarray(_Memory(interface))


def array_from_fortran(
    pointer: int,
    rows: int,
    columns: int,
    leading_dim: int,
    writeable: bool,
    dtype: np.dtype[Any] = _FLOAT64,
) -> Matrix:
    """Return a view of a matrix argument of a Fortran routine.

    Parameters
    ----------
    pointer : int
        Address of the first element.
    rows, columns : int
        Shape; 0 is allowed.
    leading_dim : int
        Elements from one column to the next.
    writeable : bool
        False for operands.
    dtype : dtype, optional
        Of its elements.

    Returns
    -------
    (rows, columns) ndarray
        As for `array_from_loop`.
    """
    size = dtype.itemsize
    return array_from_loop(
        pointer, (rows, columns), (size, size * leading_dim), writeable, dtype
    )
