"""Arithmetic on complex parts: each operation is rounded by itself."""

import itertools

import numpy as np
import pytest

from np_ozaki.routes import arithmetic
from np_ozaki.testing import assert_same_bits

PARTS = (1.0 / 3.0, -7e10, 1e-200, 1e200, 0.0)
NUMBERS = [complex(*x) for x in itertools.product(PARTS, PARTS)]
X = np.array(NUMBERS)


def by_parts(formula, y):
    with np.errstate(all="ignore"):
        parts = [
            formula(*map(np.float64, (x.real, x.imag, y.real, y.imag))) for x in NUMBERS
        ]
    return np.array([complex(*map(float, x)) for x in parts])


def product(a, b, c, d):
    return a * c - b * d, a * d + b * c


def quotient(a, b, c, d):
    """Smith's method."""
    if abs(c) >= abs(d):
        if c == 0:
            return a / abs(c), b / abs(c)
        r = d / c
        return (a + b * r) / (c + d * r), (b - a * r) / (c + d * r)
    r = c / d
    return (a * r + b) / (c * r + d), (b * r - a) / (c * r + d)


@pytest.mark.parametrize("y", NUMBERS)
def test_products_and_quotients(y):
    with np.errstate(all="ignore"):
        out = np.empty_like(X)
        arithmetic.multiply(X, np.asarray(y), out)
        assert_same_bits(out, by_parts(product, y))
        divided = X.copy()
        arithmetic.divide(divided, np.complex128(y))
        np.testing.assert_array_equal(divided, by_parts(quotient, y))


def test_scalars():
    for factor in (0.3 - 0.7j, 1j):
        x = X.copy()[::-1]
        with np.errstate(all="ignore"):
            arithmetic.scale(x, factor)
            assert_same_bits(x, by_parts(product, factor)[::-1])
    one = np.array([complex(np.inf, 2.0)])
    arithmetic.scale(one, 3.0 + 0.0j)
    assert one[0] == complex(np.inf, 6.0)
    real = np.arange(3.0)
    arithmetic.scale(real, 2.0)
    arithmetic.divide(real, np.float64(4.0))
    np.testing.assert_array_equal(real, [0.0, 0.5, 1.0])
