"""What a user writes; type checkers read it, nothing runs it."""

from __future__ import annotations

import math
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import np_ozaki
from np_ozaki import OzArray


def power_iteration(a: NDArray[np.float64], steps: int) -> float:
    """Return the largest eigenvalue of a symmetric matrix."""
    matrix = OzArray(a)
    vector = OzArray(np.ones(a.shape[0]))
    for _ in range(steps):
        vector = vector / np.sqrt(float(vector.dot(vector)))
        vector = matrix @ vector
    return math.sqrt(float(vector.dot(vector)))


def arithmetic(x: OzArray, y: NDArray[np.float64]) -> OzArray:
    """Use the operators, indexing and views."""
    assert_type(x + y, OzArray)
    assert_type(2 * x, OzArray)
    assert_type(x < 1.0, OzArray)
    assert_type(-x, OzArray)
    assert_type(x.T, OzArray)
    assert_type(x.reshape(2, -1), OzArray)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.device, str)
    assert_type(x.copy(), OzArray)
    x += 1
    x[0] = y[0]
    x @= y
    first: OzArray = x[:2]
    total: float = x.sum()
    del first, total
    return (x - y) @ x.T


def host_and_device(x: OzArray) -> NDArray[np.float64]:
    """Move data, convert, ask."""
    x.to_device("cpu")
    prepared = np_ozaki.prepare(x, "left")
    assert_type(prepared, OzArray)
    with np_ozaki.strict(), np_ozaki.enabled(precision=15, engine="cpu"):
        product = prepared @ x
    seen: NDArray[np.float64] = np.asarray(product)
    copied = np_ozaki.stats().arrays.transfers["to host"].bytes
    assert_type(copied, int)
    print(seen, copied, product.copy_to_host())
    return product.copy_to_host()


def multiply(a: NDArray[np.float64]) -> OzArray:
    """Use the function, with a wrapped operand."""
    result: OzArray = np_ozaki.matmul(OzArray(a), a, precision="auto")
    return result
