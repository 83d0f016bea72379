"""The grading tests of a BLAS, after Demmel et al. (arXiv 2609.12307).

They must take `precision="auto"` for a conventional product.  Three detectors, of
products like Strassen's and of fixed-point ones, and the growth of the error with n
that grade A allows.  All of it for complex products, too, and a detector of those that
make four real products of three.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

import np_ozaki
from np_ozaki.numerics.reference import exact_product
from np_ozaki.testing import assert_error_bound
from np_ozaki.testing.parts import join, ldexp

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


# ---- Complex products ----


def of_first_quadrant(rng, shape):
    """Return entries with parts in [1, 2): imaginary parts of products add up."""
    return join(rng.uniform(1.0, 2.0, shape), rng.uniform(1.0, 2.0, shape))


def test_complex_products_without_a_common_term_are_zero(multiply):
    rng = np.random.default_rng(11)
    a, b = (join(*rng.standard_normal((2, N, N))) for _ in range(2))
    rows, columns = rng.permutation(N)[: N // 2], rng.permutation(N)[: N // 2]
    for i, j in zip(rows, columns, strict=True):
        order, split = rng.permutation(N), rng.integers(1, N)
        a[i, order[:split]] = 0.0
        b[order[split:], j] = 0.0
    c = multiply(a, b)
    assert (c[rows, columns] == 0.0).all()
    # Of these one part has no terms: real times imaginary ones.
    a.imag[rows], b.real[:, columns] = 0.0, 0.0
    assert (multiply(a, b)[rows, columns].real == 0.0).all()


@pytest.mark.parametrize("most", [0, 4, 16, 64, full_range(N)])
def test_complex_circulants_whose_terms_span_the_range(multiply, most):
    rng = np.random.default_rng(200 + most)
    x, d = of_first_quadrant(rng, N), np.frexp(scales(N, most))[1] - 1
    y, z = ldexp(x, d), ldexp(x, -d)
    index = np.add.outer(np.arange(N), np.arange(N)) % N
    c = multiply(y[index], z[index])
    # Scaled by d and back, the diagonal is that of x.
    ((real,),) = exact_product(
        np.concatenate([x.real, -x.imag])[np.newaxis],
        np.concatenate([x.real, x.imag])[:, np.newaxis],
    )
    imag = 2.0 * float(
        sum(Fraction(p) * Fraction(q) for p, q in zip(x.real, x.imag, strict=True))
    )
    assert relative(np.diag(c), complex(real, imag)).max() <= N * TOLERANCE
    assert relative(np.diag(c).imag, imag).max() <= N * TOLERANCE


def test_sixteen_complex_moduli_alone_are_found_out():
    rng = np.random.default_rng(264)
    x, d = of_first_quadrant(rng, N), np.frexp(scales(N, 64))[1] - 1
    index = np.add.outer(np.arange(N), np.arange(N)) % N
    a, b = ldexp(x, d)[index], ldexp(x, -d)[index]
    c = np_ozaki.matmul(a, b, engine="cpu", precision=16)
    assert relative(np.diag(c), x @ x).max() > N * TOLERANCE


@pytest.mark.parametrize("most", [1, 16, 64, full_range(N)])
def test_complex_inner_scales_with_one_row_and_column_that_hide_them(multiply, most):
    rng = np.random.default_rng(300 + most)
    small = 16
    d = np.frexp(rng.permutation(np.repeat(scales(small, most), N // small)))[1] - 1
    a = ldexp(of_first_quadrant(rng, (N, N)), d)
    b = ldexp(of_first_quadrant(rng, (N, N)), -d[:, np.newaxis])
    a[-1], b[:, -1] = ldexp(of_first_quadrant(rng, (2, N)), d.max())
    c = multiply(a, b)[:small, :small]
    assert_error_bound(a[:small], b[:, :small], c)
    with np.errstate(all="ignore"):
        conventional = (a @ b)[:small, :small]
    assert relative(c, conventional).max() <= N * TOLERANCE


def in_three_products(a, b):
    """Return a complex product of three real ones, which mixes the parts' errors."""
    real, imag = a.real @ b.real, a.imag @ b.imag
    return join(real - imag, (a.real + a.imag) @ (b.real + b.imag) - real - imag)


@pytest.mark.parametrize("most", [0, 8, 32, 64, full_range(N)])
def test_a_small_part_is_as_accurate_as_a_large_one(multiply, most):
    rng = np.random.default_rng(400 + most)
    a, b = of_first_quadrant(rng, (N, N)), of_first_quadrant(rng, (N, N))
    for x in (a, b):
        x.imag = np.ldexp(x.imag, -most)
    c = multiply(a, b)
    imag = exact_product(
        np.concatenate([a.real, a.imag], 1), np.concatenate([b.imag, b.real])
    )
    assert relative(c.imag, np.array(imag)).max() <= N * TOLERANCE
    if most >= 32:
        three = in_three_products(a, b).imag
        assert relative(three, np.array(imag)).max() > N * TOLERANCE


def test_error_of_complex_products_grows_no_faster_than_grade_a_allows(multiply):
    rng = np.random.default_rng(13)
    sizes, errors = (16, 32, 64, 128, 256), []
    for n in sizes:
        a, b = (join(*rng.random((2, n, n))) for _ in range(2))
        c = multiply(a, b)
        worst = 0.0
        for i, j in rng.integers(0, n, (12, 2)):
            column = np.concatenate([b[:, j].real, b[:, j].imag])[:, np.newaxis]
            ((real,),) = exact_product(
                np.concatenate([a[i].real, -a[i].imag])[np.newaxis], column
            )
            ((imag,),) = exact_product(
                np.concatenate([a[i].imag, a[i].real])[np.newaxis], column
            )
            exact = complex(real, imag)
            worst = max(worst, abs(c[i, j] - exact) / abs(exact))
        errors.append(worst / 2.0**-52)
        assert errors[-1] <= n
    slope = np.polyfit(np.log(sizes), np.log(np.maximum(errors, 0.25)), 1)[0]
    assert slope <= 1.0
