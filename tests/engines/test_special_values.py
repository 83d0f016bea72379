"""NaN and Inf entry by entry, and the exceptions that go with them."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import np_ozaki
from np_ozaki.numerics import reference
from np_ozaki.testing import assert_same_bits

CANONICAL_NAN = np.array([0x7FF8000000000000], dtype=np.int64).view(np.float64)[0]
entries = st.sampled_from(
    [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e300, 5e-324]
)


@given(st.data(), st.tuples(*[st.integers(1, 4)] * 3))
def test_special_values_equal_the_reference(data, shape):
    m, k, n = shape
    a = data.draw(hnp.arrays(np.float64, (m, k), elements=entries))
    b = data.draw(hnp.arrays(np.float64, (k, n), elements=entries))
    want = np.array(reference.matmul(a, b, 15), dtype=np.float64).reshape(m, n)
    with np.errstate(all="ignore"):
        assert_same_bits(np_ozaki.matmul(a, b, precision=15), want)
        pairs = np.stack([a, a]), np.stack([b, b])
        batch = np_ozaki.matmul(*pairs, precision=15)
    assert_same_bits(batch, np.stack([want, want]))


@given(st.data(), st.tuples(*[st.integers(1, 4)] * 3))
def test_pattern_equals_a_plain_sum_of_products(data, shape):
    m, k, n = shape
    elements = st.sampled_from([0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
    a = data.draw(hnp.arrays(np.float64, (m, k), elements=elements))
    b = data.draw(hnp.arrays(np.float64, (k, n), elements=elements))
    with np.errstate(all="ignore"):
        want = (a[:, :, None] * b[None]).sum(1)
        actual = np_ozaki.matmul(a, b)
    np.testing.assert_array_equal(actual, want)


def test_a_nan_of_any_payload_becomes_the_canonical_one():
    odd = np.array([0xFFF0000000000001], dtype=np.uint64).view(np.float64)
    c = np_ozaki.matmul(odd.reshape(1, 1), np.ones((1, 1)))
    assert_same_bits(c, [[CANONICAL_NAN]])


def test_only_affected_entries_change():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((300, 40)), rng.standard_normal((40, 290))
    clean = np_ozaki.matmul(a, b)
    a[7, 3], b[5, 11] = np.inf, np.nan
    c = np_ozaki.matmul(a, b)
    assert np.isinf(np.delete(c[7], 11)).all()
    assert np.isnan(c[:, 11]).all()
    keep = np.ix_(np.arange(300) != 7, np.arange(290) != 11)
    assert_same_bits(c[keep], clean[keep])


def test_finite_data_near_overflow_is_not_mistaken_for_infinite():
    a = np.full((3, 4), 1.7e308)
    b = np.full((4, 2), 2.0**-10)
    assert_same_bits(np_ozaki.matmul(a, b), np.full((3, 2), 1.7e308 * 2.0**-8))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([[1e300, 1e300]], [[1e300], [1e300]], "overflow"),
        ([[np.inf, 1.0]], [[0.0], [1.0]], "invalid"),
        ([[np.inf, np.inf]], [[1.0], [-1.0]], "invalid"),
    ],
)
def test_exceptions_follow_errstate(a, b, message):
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=message):
        np_ozaki.matmul(a, b)
    with (
        np.errstate(all="warn"),
        pytest.warns(RuntimeWarning, match=f"{message}.*matmul"),
    ):
        np_ozaki.matmul(a, b)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        np_ozaki.matmul(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[np.nan]], [[np.inf]]),
        ([[np.inf]], [[2.0]]),
        ([[1e-300]], [[1e-300]]),
        ([[5e-324, 1e-310]], [[0.5], [0.3]]),
        ([[1e300, -1e300]], [[1.0], [1.0]]),
    ],
)
def test_the_engine_raises_nothing_of_its_own(a, b):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        np_ozaki.matmul(a, b)
