"""output="dd": the same integers in twice the precision."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import DoubleDouble, OzArray
from np_ozaki.numerics import reference
from np_ozaki.testing import assert_same_bits, operands

U2 = Fraction(1, 2**106)


def double(a, b, **options):
    with np.errstate(all="ignore"):
        return np_ozaki.matmul(a, b, output="dd", engine="cpu", **options)


def assert_within(pair, a, b, relative, tiny=Fraction(1, 2**1075)):
    exact = reference.exact_fractions(a, b)
    sizes = reference.exact_fractions(np.abs(a), np.abs(b))
    for (i, j), hi in np.ndenumerate(pair.hi):
        if np.isfinite(hi):
            value = Fraction(float(hi)) + Fraction(float(pair.lo[i, j]))
            error = abs(value - exact[i][j])
            # A half is rounded once, by at most 2^-106 of the value.
            allowed = relative * sizes[i][j] + U2 * abs(exact[i][j]) * 2 + tiny
            assert error <= allowed, (i, j)
        else:
            assert pair.lo[i, j] == 0


@given(operands(max_side=4, max_k=8))
def test_auto_keeps_to_twice_the_precision(pair):
    a, b = pair
    assert_within(double(a, b), a, b, a.shape[1] * U2)


@given(operands(max_side=4, max_k=8), st.integers(2, 49))
def test_the_upper_half_is_the_product(pair, num_moduli):
    a, b = pair
    hi, lo = double(a, b, precision=num_moduli)
    with np.errstate(all="ignore"):
        want = np_ozaki.matmul(a, b, precision=num_moduli, engine="cpu")
    assert_same_bits(hi, want)
    finite = np.isfinite(hi)
    assert (np.abs(lo[finite]) <= np.spacing(np.abs(hi[finite])) / 2).all()


@given(operands(max_side=4, max_k=8))
def test_exact(pair):
    a, b = pair
    try:
        hi, lo = double(a, b, precision="exact")
    except np_ozaki.PrecisionError:
        return
    want = reference.exact_pair(a, b)
    assert_same_bits(hi, np.reshape(want[0], hi.shape))
    assert_same_bits(lo, np.reshape(want[1], lo.shape))


def test_auto_takes_no_more_moduli_than_an_exact_product():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (3, 5)).astype(float), rng.integers(-9, 9, (5, 2)) * 1.0
    pair, info = double(a, b, return_info=True)
    assert info.num_moduli <= 3
    assert_same_bits(pair.lo, np.zeros((3, 2)))
    a, b = rng.standard_normal((30, 40)), rng.standard_normal((40, 20))
    _, info = double(a, b, return_info=True)
    assert info.num_moduli < 20


def test_beyond_49_moduli_integers_multiply():
    a, b = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])
    pair, info = double(a, b, return_info=True)
    assert (info.engine, info.fallback) == ("exact", "range too wide to certify")
    assert_within(pair, a, b, 0)


def test_shapes_and_kinds():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 2))
    pair = double(a, b)
    assert isinstance(pair, DoubleDouble)
    assert pair.hi.shape == pair.lo.shape == (3, 2)
    hi, lo = double(a[0], b[:, 0])
    assert type(hi) is type(lo) is np.float64
    assert double(a, b[:, 0]).lo.shape == (3,)
    assert double(np.stack([a, a]), b).lo.shape == (2, 3, 2)
    repeated = double(np.broadcast_to(a, (3, 3, 4)), b)
    assert_same_bits(repeated.lo[2], pair.lo)
    wrapped = double(OzArray(a), b)
    assert isinstance(wrapped, DoubleDouble)
    assert isinstance(wrapped.hi, OzArray)
    assert isinstance(wrapped.lo, OzArray)
    for empty in (double(np.ones((2, 0)), np.ones((0, 3))), double(a[:0], b)):
        assert_same_bits(empty.lo, np.zeros(empty.hi.shape))


def test_other_real_dtypes_are_multiplied_as_float64():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    pair = double(x, x.T.astype(np.float32))
    assert pair.hi.dtype == pair.lo.dtype == np.float64
    assert_same_bits(pair.hi, (x @ x.T).astype(float))


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (np.ones((2, 2), dtype=np.clongdouble), "complex128 holds"),
        (np.ones((2, 2), dtype=np.longdouble), "float64 holds"),
        (np.ones((2, 2), dtype=object), "object"),
        (np.ma.ones((2, 2)), "plain arrays"),
    ],
)
def test_what_has_no_double_double(operand, message):
    with pytest.raises(np_ozaki.OperandTypeError, match=message):
        np_ozaki.matmul(operand, np.ones((2, 2)), output="dd")


def test_options_that_do_not_go_with_it():
    x = np.ones((2, 2))
    with pytest.raises(np_ozaki.OptionError, match="out="):
        np_ozaki.matmul(x, x, output="dd", out=x)
    with pytest.raises(np_ozaki.OptionError, match="native"):
        np_ozaki.matmul(x, x, output="dd", engine="native")
    with pytest.raises(np_ozaki.OptionError, match="output"):
        np_ozaki.matmul(x, x, output="double")


def test_a_scope_that_prefers_native_products_does_not_matter():
    x = np.full((2, 2), 1 / 3)
    with np_ozaki.enabled(strategy="performant", engine="cpu"):
        pair, info = np_ozaki.matmul(x, x, output="dd", return_info=True)
    assert info.engine == "cpu"
    assert (pair.lo != 0).all()


def test_special_values_and_overflow():
    a = np.array([[np.nan, 1.0], [np.inf, 1.0], [1e200, 1e200], [1 / 3, 1.0]])
    b = np.array([[1e200], [1.0]])
    hi, lo = double(a, b)
    assert_same_bits(hi[:3, 0], np.array([np.nan, np.inf, np.inf]))
    assert_same_bits(lo[:3, 0], np.zeros(3))
    assert np.isfinite(lo[3, 0])


def test_the_lower_half_may_be_half_a_unit():
    # Rounded up, to a tie that would round the sum of both away from `hi`.
    a = [[1 + 2.0**-52, 2.0**-53, -(2.0**-110)]]
    for precision in ("auto", "exact"):
        hi, lo = double(a, np.ones((3, 1)), precision=precision)
        assert (hi[0, 0], lo[0, 0]) == (1 + 2.0**-52, 2.0**-53)
