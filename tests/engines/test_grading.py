"""The grading tests of a BLAS, after Demmel et al. (arXiv 2609.12307).

They must take `precision="auto"` for a conventional product.  Three detectors, of
products like Strassen's and of fixed-point ones, and the growth of the error with n
that grade A allows.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

import np_ozaki

N = 64
TOLERANCE = 10 * 2.0**-53


@pytest.fixture
def multiply():
    with np.errstate(all="ignore"):
        yield lambda a, b: np_ozaki.matmul(a, b, engine="cpu")


def full_range(n):
    """Return the largest power of two of the detectors' scales."""
    return 513 - int(math.log2(n)) - 2


def scales(n, most):
    """Return n powers of two from 2^most down to 2^-most."""
    step = 2.0 * most / max(1, n - 1)
    return np.ldexp(1.0, [most - int(i * step) for i in range(n)])


def relative(c, exact):
    return np.abs(c - exact) / np.maximum(np.abs(exact), 2.0**-1022)


def test_products_without_a_common_term_are_zero(multiply):
    # A Strassen-like product would leave rounding errors there.
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((N, N)), rng.standard_normal((N, N))
    rows, columns = rng.permutation(N)[: N // 2], rng.permutation(N)[: N // 2]
    for i, j in zip(rows, columns, strict=True):
        order, split = rng.permutation(N), rng.integers(1, N)
        a[i, order[:split]] = 0.0
        b[order[split:], j] = 0.0
    c = multiply(a, b)
    for i, j in zip(rows, columns, strict=True):
        assert c[i, j] == 0.0


@pytest.mark.parametrize("most", [0, 1, 2, 4, 8, 16, 32, 64, 128, full_range(N)])
def test_circulants_whose_terms_span_the_range(multiply, most):
    # A product with one fixed-point scale a row loses the small terms of the diagonal.
    rng = np.random.default_rng(most)
    x, d = rng.uniform(1.0, 2.0, N), scales(N, most)
    y, z = x * d, x / d
    index = np.add.outer(np.arange(N), np.arange(N)) % N
    a, b = y[index], z[index]
    c = multiply(a, b)
    terms = [Fraction(p) * Fraction(q) for p, q in zip(y, z, strict=True)]
    diagonal = float(sum(terms))
    assert relative(np.diag(c), diagonal).max() <= N * TOLERANCE
    with np.errstate(all="ignore"):
        conventional = a @ b
    finite = np.isfinite(conventional)
    assert relative(c, conventional)[finite].max() <= N * TOLERANCE


def test_fifteen_moduli_alone_are_found_out():
    rng = np.random.default_rng(64)
    x, d = rng.uniform(1.0, 2.0, N), scales(N, 64)
    index = np.add.outer(np.arange(N), np.arange(N)) % N
    a, b = (x * d)[index], (x / d)[index]
    c = np_ozaki.matmul(a, b, engine="cpu", precision=15)
    assert relative(np.diag(c), float(x @ x)).max() > N * TOLERANCE


@pytest.mark.parametrize("most", [1, 4, 16, 64, full_range(N)])
def test_inner_scales_with_one_row_and_column_that_hide_them(multiply, most):
    rng = np.random.default_rng(100 + most)
    small = 16
    d = rng.permutation(np.repeat(scales(small, most), N // small))
    a = rng.uniform(1.0, 2.0, (N, N)) * d
    b = rng.uniform(1.0, 2.0, (N, N)) / d[:, np.newaxis]
    a[-1], b[:, -1] = d.max() * rng.uniform(1.0, 2.0, (2, N))
    c = multiply(a, b)[:small, :small]
    with np.errstate(all="ignore"):
        conventional = (a @ b)[:small, :small]
    assert relative(c, conventional).max() <= N * TOLERANCE


def test_error_grows_no_faster_than_grade_a_allows(multiply):
    rng = np.random.default_rng(3)
    sizes, errors = (16, 32, 64, 128, 256), []
    for n in sizes:
        a, b = rng.random((n, n)), rng.random((n, n))
        c = multiply(a, b)
        rows, columns = rng.integers(0, n, 40), rng.integers(0, n, 40)
        worst = 0.0
        for i, j in zip(rows, columns, strict=True):
            exact = sum(
                map(Fraction.__mul__, map(Fraction, a[i]), map(Fraction, b[:, j]))
            )
            worst = max(worst, float(abs(Fraction(c[i, j]) - exact) / exact))
        errors.append(worst / 2.0**-52)
        assert errors[-1] <= n
    slope = np.polyfit(np.log(sizes), np.log(np.maximum(errors, 0.25)), 1)[0]
    assert slope <= 1.0
