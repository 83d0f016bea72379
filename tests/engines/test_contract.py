"""The CPU engine against the contract in Python integers, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki.numerics import reference
from np_ozaki.testing import assert_same_bits, operands

SCALINGS = ("norm", "accurate", "legacy")
num_moduli = st.integers(2, 49)


def expected(a, b, n, scaling="norm"):
    return np.array(reference.matmul(a, b, n, scaling), dtype=np.float64).reshape(
        a.shape[0], b.shape[1]
    )


@given(operands(), num_moduli, st.sampled_from(SCALINGS))
def test_engine_equals_the_reference(pair, n, scaling):
    a, b = pair
    with np.errstate(over="ignore"):
        actual = np_ozaki.matmul(a, b, precision=n, scaling=scaling, engine="cpu")
    assert_same_bits(actual, expected(a, b, n, scaling))


@given(operands(3, 6), st.integers(-1000, 1000), st.integers(-1000, 1000), num_moduli)
def test_engine_equals_the_reference_at_every_scale(pair, s, t, n):
    with np.errstate(over="ignore", under="ignore"):
        a, b = np.ldexp(pair[0], s), np.ldexp(pair[1], t)
        a, b = np.where(np.isfinite(a), a, 1.5), np.where(np.isfinite(b), b, -0.75)
        assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("n", range(2, 50))
def test_every_number_of_moduli(n, scaling):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((4, 33)) * np.exp(rng.standard_normal((4, 33)))
    b = rng.standard_normal((33, 3))
    actual = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
    assert_same_bits(actual, expected(a, b, n, scaling))


@pytest.mark.parametrize("n", [2, 3, 7, 14, 15, 16, 20, 30, 49])
@pytest.mark.parametrize(
    "v", [1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 255.0, 2.0**52 + 1.0]
)
@pytest.mark.parametrize("k", [1, 2, 3, 64, 1000])
def test_constants_at_the_crt_bound(v, n, k):
    # All-equal rows make sum |A'||B'| as large as the scaling lets it be.
    a, b = np.full((2, k), v), np.full((k, 2), -v)
    b[:, 1] = v
    assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


@pytest.mark.parametrize("n", [6, 7, 15, 18, 25])
def test_subnormal_results_round_once(n):
    # 2^-537 (1 + 2^-52) (1 + j 2^-52) 2^-537 lies at a tie of 2^-1074 plus a little.
    half = 2.0**-537
    steps = 1.0 + np.arange(-4.0, 5.0) * 2.0**-52
    a = (half * steps).reshape(-1, 1)
    b = np.array([[half, half * (1 + 2.0**-52), half / 2, half * 1.5, -half / 2]])
    assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


@pytest.mark.parametrize("tail", [-1, 0, 1])
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("n", [15, 20, 30])
def test_tie_of_a_subnormal_result_plus_one_unit(tail, odd, n):
    # (2 j + 1) / 2 units of 2^-1074, plus or minus one unit 55 bits below: too far for
    # float64, so rounding to 53 bits first would make it a tie.
    a = np.array([[2.0**-540, 2.0**-540 * 2.0**-40]])
    b = np.array([[(2 * odd + 1) * 2.0**-535], [tail * 2.0**-535 * 2.0**-15]])
    result = np_ozaki.matmul(a, b, precision=n)
    assert_same_bits(result, expected(a, b, n))
    if n >= 15:
        want = odd + (tail > 0 or (tail == 0 and odd == 1))
        assert result[0, 0] == want * 2.0**-1074


def test_underflow_keeps_the_sign_and_zero_is_positive():
    a, b = np.array([[2.0**-600], [0.0], [-0.0]]), np.array([[-(2.0**-600), 3.0]])
    want = np.array([[-0.0, 3 * 2.0**-600], [0.0, 0.0], [0.0, 0.0]])
    assert_same_bits(np_ozaki.matmul(a, b), want)


def test_rows_near_overflow():
    largest = np.finfo(np.float64).max
    a = np.array([[largest, -largest, 1.0], [largest, largest, 1.0]])
    b = np.array([[1.0], [1.0], [3.0]])
    # Native arithmetic may overflow on the way; the exact sum does not.
    with np.errstate(over="ignore"):
        assert_same_bits(np_ozaki.matmul(a, b, precision=49), expected(a, b, 49))
        result = np_ozaki.matmul(a, np.array([[1.0], [1.0], [0.0]]))
    assert_same_bits(result, [[0.0], [np.inf]])


def test_long_inner_dimension_is_exact():
    # v v k = 46341^2 2^20 < 2^53; residue sums pass 2^31 many times over.
    k, v = 1 << 20, 46341.0
    a, b = np.full((2, k), v), np.full((k, 2), v)
    b[:, 1] = -v
    want = v * v * k
    assert_same_bits(np_ozaki.matmul(a, b), [[want, -want]] * 2)


def test_long_rows_of_one_constant_need_reduction_between_blocks():
    # Equal residue products of one sign add up past 2^53, and k has no power of two
    # that would keep such a sum representable.
    k = 100_003
    a, b = np.full((1, k), 0.1), np.full((k, 1), 0.3)
    assert_same_bits(np_ozaki.matmul(a, b), expected(a, b, 15))


@pytest.mark.parametrize("k", [16383, 16384, 16385, 40000])
def test_inner_dimension_around_the_exact_block(k):
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((2, k)), rng.standard_normal((k, 2))
    assert_same_bits(np_ozaki.matmul(a, b), expected(a, b, 15))


@given(st.integers(2, 49), st.data())
def test_products_of_one_term(n, data):
    floats = st.floats(allow_nan=False, allow_infinity=False)
    a = np.array([[data.draw(floats)]])
    b = np.array([[data.draw(floats)]])
    with np.errstate(over="ignore"):
        assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


def test_one_term_is_correctly_rounded_with_enough_moduli():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((50, 1)), rng.standard_normal((1, 40))
    assert_same_bits(np_ozaki.matmul(a, b, precision=15), a * b)


def test_integers_are_exact():
    rng = np.random.default_rng(2)
    a = rng.integers(-(2**20), 2**20, (60, 70))
    b = rng.integers(-(2**20), 2**20, (70, 50))
    want = (a @ b).astype(np.float64)
    assert_same_bits(np_ozaki.matmul(a.astype(float), b.astype(float)), want)


def test_more_moduli_reach_the_correctly_rounded_product():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((6, 40)), rng.standard_normal((40, 5))
    exact = np.array(reference.exact_product(a, b), dtype=np.float64)
    assert_same_bits(np_ozaki.matmul(a, b, precision=30), exact)


@pytest.mark.parametrize("scaling", ["norm", "accurate"])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (2, 1500),
        (2, 2500),
        (2, 14500),
        pytest.param(3, 150_000, marks=pytest.mark.slow),
    ],
)
def test_long_rows_and_few_moduli(n, k, scaling):
    # So few bits are left that exponents fall below w - 1 (below r), where rounding to
    # nearest may double an entry.
    for v in (1.5, 1.0, 1.0 - 2.0**-53):
        a, b = np.full((1, k), v), np.full((k, 1), v)
        actual = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
        assert_same_bits(actual, expected(a, b, n, scaling))


def test_tiny_entries_of_a_large_row_count_in_the_exponents():
    # abs(a) 2^(w-1-e) underflows to 0 in float64; its ceiling is 1 all the same, and
    # 40,000 of them are enough to move the exponent.
    k = 40_000
    a = np.full((1, k), 5e-324)
    a[0, :200] = np.ldexp(np.linspace(1.0, 1.9, 200), 1000)
    b = np.ldexp(np.ones((k, 1)), -1000)
    for n in (2, 3, 4, 5, 6, 15):
        with np.errstate(over="ignore"):
            assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


def test_legacy_wraps_where_its_scaling_fails():
    # Small entries overflow the CRT range under the first fast mode's rule: the
    # failure is part of the contract, so it is the same everywhere.
    a = np.full((3, 1024), 2.0**-6)
    c = np_ozaki.matmul(a, a.T, precision=15, scaling="legacy")
    assert_same_bits(c, expected(a, a.T, 15, "legacy"))
    assert np.abs(c - 0.25).max() > 0.01
    assert_same_bits(np_ozaki.matmul(a, a.T), np.full((3, 3), 0.25))
