"""The complex reference against its definition and a product in two rings."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from complex_pairs import complex_operands
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError, ShapeError
from np_ozaki.numerics import reference
from np_ozaki.numerics.complex_reference import complex_exponents, complex_matmul
from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    MODULI,
    balanced_residue,
    crt_weights,
    log2_modulus_product,
    moduli_of,
    modulus_product,
    product_bound,
    root_of_minus_one,
    scaling_bits,
)
from np_ozaki.testing import assert_same_bits

TABLE = """
    241 233 229 221 205 197 193 181 173 157 149 137 113 109 101 97 89 73 61 53 37 29
"""
SCALINGS = ("norm", "accurate", "legacy")
num_moduli = st.one_of(st.integers(2, 22), st.integers(23, 49))


def as_array(rows, a, b):
    return np.array(rows, dtype=complex).reshape(a.shape[0], b.shape[1])


def embedded(a, b):
    """The real operands that a complex product stands for."""
    return np.block([[a.real, -a.imag], [a.imag, a.real]]), np.vstack([b.real, b.imag])


def test_table_is_the_published_one():
    assert COMPLEX_MODULI == tuple(map(int, TABLE.split()))
    assert [moduli_of(n, "complex") for n in (2, 22)] == [
        COMPLEX_MODULI[:2],
        COMPLEX_MODULI,
    ]
    assert len(COMPLEX_MODULI) == 22


@pytest.mark.parametrize("n", range(23, 50))
def test_beyond_the_table_moduli_are_those_of_real_products(n):
    assert moduli_of(n, "complex") == MODULI[:n] == moduli_of(n)
    assert scaling_bits(n, "complex") > scaling_bits(n - 1, "complex")


def test_table_leaves_out_only_what_it_must():
    for p, q in itertools.combinations(COMPLEX_MODULI, 2):
        assert math.gcd(p, q) == 1
    for candidate in range(3, 257, 2):
        larger = math.prod(p for p in COMPLEX_MODULI if p > candidate)
        primes = [q for q in range(3, candidate + 1, 2) if candidate % q == 0]
        has_root = all(q % 4 == 1 for q in primes)
        fits = has_root and math.gcd(candidate, larger) == 1
        assert (candidate in COMPLEX_MODULI) == fits


@pytest.mark.parametrize("p", range(2, 257))
def test_roots_of_minus_one(p):
    squares = {s * s % p for s in range(p)}
    s = root_of_minus_one(p)
    assert (s > 0) == (p - 1 in squares)
    assert not s or s * s % p == p - 1


@pytest.mark.parametrize("n", range(2, 23))
def test_product_and_its_bound(n):
    product = modulus_product(n, "complex")
    assert product == math.prod(COMPLEX_MODULI[:n])
    assert product == 2 * product_bound(n, "complex") + 1
    assert abs(log2_modulus_product(n, "complex") - math.log2(product)) < 1e-12
    assert scaling_bits(n, "complex") == (math.log2(product) - 1) / 2


def test_bits_of_the_usual_numbers():
    bits = [round(log2_modulus_product(n, "complex"), 1) for n in (15, 16, 20, 22)]
    assert bits == [111.1, 117.7, 142.0, 152.1]


@pytest.mark.parametrize("n", [-1, 0, 1, 50])
def test_number_of_moduli_out_of_range(n):
    for function in (moduli_of, modulus_product, product_bound, scaling_bits):
        with pytest.raises(OptionError, match=rf"num_moduli={n}: .*2 to 49"):
            function(n, "complex")
    with pytest.raises(OptionError, match="2 to 49"):
        complex_matmul([[1j]], [[1j]], n)


def test_operands_that_do_not_fit():
    with pytest.raises(ShapeError):
        complex_matmul([[1j, 2.0]], [[1j]], 5)
    with pytest.raises(OptionError, match="scaling"):
        complex_matmul([[1j]], [[1j]], 5, "other")
    assert complex_matmul(np.empty((2, 0), complex), np.empty((0, 1), complex), 5) == [
        [0j],
        [0j],
    ]


@given(complex_operands(), num_moduli, st.sampled_from(["norm", "legacy"]))
def test_exponents_are_those_of_the_embedded_operands(pair, n, scaling):
    a, b = pair
    mu, nu = complex_exponents(a, b, n, scaling)
    limit = product_bound(n, "complex")
    left, right = embedded(a, b)
    of_rows = reference.line_exponents(reference.row_vectors(left), limit, scaling)
    assert of_rows == mu + mu
    columns = reference.column_vectors(right)
    assert nu == reference.line_exponents(columns, limit, scaling)


@given(complex_operands(), num_moduli, st.sampled_from(["norm", "accurate"]))
def test_no_part_can_wrap(pair, n, scaling):
    a, b = pair
    mu, nu = complex_exponents(a, b, n, scaling)
    left, right = embedded(a, b)
    rows = reference.integers(reference.row_vectors(left), mu + mu)
    columns = reference.integers(reference.column_vectors(right), nu)
    for x, y in itertools.product(rows, columns):
        total = sum(abs(p * q) for p, q in zip(x, y, strict=True))
        assert total <= product_bound(n, "complex")


@given(complex_operands(), st.integers(2, 22), st.sampled_from(SCALINGS))
def test_product_in_two_rings(pair, n, scaling):
    """(Ar + s Ai)(Br + s Bi) and (Ar - s Ai)(Br - s Bi) give the same bits."""
    a, b = pair
    mu, nu = complex_exponents(a, b, n, scaling)
    truncate = scaling == "legacy"

    def whole(vectors, exponents):
        return np.array(
            reference.integers(vectors, exponents, truncate=truncate), dtype=object
        )

    a_re, a_im = (whole(x.tolist(), mu) for x in (a.real, a.imag))
    b_re, b_im = (whole(x.T.tolist(), nu) for x in (b.real, b.imag))
    moduli = COMPLEX_MODULI[:n]
    parts = []
    for p in moduli:
        s = root_of_minus_one(p)
        plus = (a_re + s * a_im) % p @ ((b_re + s * b_im) % p).T
        minus = (a_re - s * a_im) % p @ ((b_re - s * b_im) % p).T
        half = pow(2, -1, p)
        parts.append(
            ((plus + minus) * half % p, (plus - minus) * half * pow(s, -1, p) % p)
        )
    weights, product = crt_weights(moduli), modulus_product(n, "complex")
    c = np.empty((a.shape[0], b.shape[1]), dtype=complex)
    for i, j in np.ndindex(c.shape):
        re, im = (
            reference.round_to_double(
                balanced_residue(
                    sum(
                        w * int(x[part][i, j])
                        for w, x in zip(weights, parts, strict=True)
                    ),
                    product,
                ),
                -(mu[i] + nu[j]),
            )
            for part in (0, 1)
        )
        c[i, j] = complex(re, im)
    assert_same_bits(as_array(complex_matmul(a, b, n, scaling), a, b), c)


@given(complex_operands(2, 3))
def test_integers_of_few_bits_are_exact(pair):
    a, b = (np.trunc(np.clip(x.view(float), -100, 100)).view(complex) for x in pair)
    assert np.array_equal(as_array(complex_matmul(a, b, 8), a, b), a @ b)


def test_a_part_is_rounded_once():
    a, b = np.array([[1 / 3 + 1j]]), np.array([[3.0 - 1e-9j]])
    re = Fraction(1 / 3) * 3 + Fraction(1e-9)
    im = Fraction(3) - Fraction(1 / 3) * Fraction(1e-9)
    want = complex(float(re), float(im))
    assert complex_matmul(a, b, 22) == [[want]]
    assert complex_matmul(a.tolist(), b.tolist(), 22) == [[want]]
