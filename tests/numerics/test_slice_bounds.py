"""Error bounds of products by slices against errors known exactly, as Fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError, ShapeError
from np_ozaki.numerics import reference, slice_reference
from np_ozaki.numerics.slice_bounds import (
    error_bound,
    pair_weights,
    pairs_bound,
    product_bound,
)
from np_ozaki.numerics.slicing import Slicing, chosen_pairs

U = 2.0**-53
LARGEST = np.finfo(np.float64).max
ENTRIES = [
    st.floats(-1.0, 1.0),
    st.builds(
        math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-90, 60)
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-(2.0**-1020), 2.0**-1020),
    st.floats(-(2.0**-505), 2.0**-505),
    st.integers(-200, 200).map(float),
]


@st.composite
def slicings(draw):
    num_slices = draw(st.integers(1, 16))
    number = st.integers(0, num_slices - 1)
    pairs = draw(
        st.one_of(
            st.sampled_from(["all", "triangular", "triangular"]),
            st.sets(st.tuples(number, number), min_size=1).map(sorted).map(tuple),
        )
    )
    return Slicing(
        num_slices,
        draw(st.integers(2, 8)),
        pairs,
        draw(st.sampled_from(["exact", "float64"])),
    )


@st.composite
def operands(draw):
    """Arrays of up to 3 x 6 x 3; A and B draw from one kind of entries each."""
    m, k, n = (draw(st.integers(1, top)) for top in (3, 6, 3))
    arrays = []
    for shape in ((m, k), (k, n)):
        entry = st.one_of(draw(st.sampled_from(ENTRIES)), st.just(0.0))
        size = shape[0] * shape[1]
        flat = draw(st.lists(entry, min_size=size, max_size=size))
        arrays.append(np.array(flat).reshape(shape))
    return arrays


def exponents(a, b, slicing):
    return (
        slice_reference.slice_exponents(a.tolist(), slicing),
        slice_reference.slice_exponents(b.T.tolist(), slicing),
    )


def integer_parts(a, b, mu, nu, slicing):
    """Return ``A' B' - sum of the pairs`` times 2^-(mu + nu), exactly."""
    left = reference.integers(a.tolist(), mu)
    right = reference.integers(b.T.tolist(), nu)
    digits = [slice_reference.slices(x, slicing) for x in (left, right)]
    sums = slice_reference.pair_sums(*digits, slicing.diagonals)
    result = []
    for i, row in enumerate(left):
        for j, column in enumerate(right):
            kept = sum(
                table[i][j] << slicing.bits_per_slice * diagonal.weight
                for table, diagonal in zip(sums, slicing.diagonals, strict=True)
            )
            whole = reference.dot(row, column)
            result.append(abs(whole - kept) / Fraction(2) ** (mu[i] + nu[j]))
    return result


def assert_bounds(bounds, errors) -> None:
    for bound, error in zip(bounds.ravel().tolist(), errors, strict=True):
        assert bound >= 0.0
        assert bound == math.inf or error <= Fraction(bound), (bound, float(error))


def total_errors(c, a, b):
    """Errors of finite entries; an infinite entry is infinitely wrong."""
    exact = itertools.chain(*reference.exact_fractions(a, b))
    return [
        abs(Fraction(x) - y) if math.isfinite(x) else Fraction(10) ** 700
        for x, y in zip(itertools.chain(*c), exact, strict=True)
    ]


def check(a, b, slicing):
    mu, nu = exponents(a, b, slicing)
    c = slice_reference.matmul_by_slices(a, b, slicing)
    errors = total_errors(c, a, b)
    bound = error_bound(a, b, c, mu, nu, slicing)
    assert_bounds(bound, errors)
    assert_bounds(product_bound(a, b, mu, nu, slicing), errors)
    assert_bounds(
        pairs_bound(a, b, mu, nu, slicing), integer_parts(a, b, mu, nu, slicing)
    )
    return bound, errors


@given(operands(), slicings())
# Rounded to a subnormal after the last addition in float64 was rounded.
@example(
    [np.array([[2.0**-511, 2.0**-562]]), np.array([[2.0**-511], [-(2.0**-512)]])],
    Slicing(16, 8, "all", "float64"),
)
def test_every_bound_holds(ab, slicing) -> None:
    check(*ab, slicing)


@given(st.integers(2**52, 2**53 - 1), st.integers(2**52, 2**53 - 1), st.data())
def test_bounds_hold_where_results_become_subnormal(x, y, data) -> None:
    # The product is near the least normal number; float64 then rounds twice.
    scale = data.draw(st.integers(-1130, -1120))
    a = np.array([[math.ldexp(x, -500), math.ldexp(1.0, -460)]])
    b = np.array([[math.ldexp(y, scale + 500)], [math.ldexp(1.0, scale + 460)]])
    for accumulate in ("exact", "float64"):
        check(a, b, Slicing(16, 8, "all", accumulate))


@pytest.mark.parametrize("accumulate", ["exact", "float64"])
@pytest.mark.parametrize("pairs", ["all", "triangular"])
@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("num_slices", [1, 2, 3, 6, 8, 11])
def test_bounds_are_not_loose(num_slices, bits, pairs, accumulate) -> None:
    rng = np.random.default_rng(num_slices)
    a, b = rng.uniform(-1, 1, (6, 60)), rng.uniform(-1, 1, (60, 6))
    bound, errors = check(a, b, Slicing(num_slices, bits, pairs, accumulate))
    worst = float(max(errors))
    assert bound.max() < 60 * max(worst, 2.0**-53)


@pytest.mark.parametrize("spread", [0.0, 2.0, 4.0])
def test_bounds_follow_the_spread_of_entries(spread) -> None:
    rng = np.random.default_rng(2)
    a, b = (
        rng.uniform(-1, 1, shape) * np.exp(spread * rng.standard_normal(shape))
        for shape in ((5, 100), (100, 5))
    )
    for pairs in ("triangular", ((0, 0), (0, 1), (1, 0))):
        bound, errors = check(a, b, Slicing(5, 8, pairs))
        assert np.median(bound.ravel() / np.array(errors, float)) < 200


def test_same_signs_attain_the_bound_of_pairs_left_out() -> None:
    # All digits are 127: every inequality is an equality.
    slicing = Slicing(3, 8)
    x = np.full((1, 50), float(slicing.largest_integer))
    mu, nu = exponents(x, x.T, slicing)
    assert mu == nu == [0]
    ((left_out,),) = pairs_bound(x, x.T, mu, nu, slicing)
    want = 50 * 127**2 * (2 * 2**8 + 1)
    assert want <= left_out < want * (1 + 1e-11)


def test_float64_additions_are_bounded_without_the_last() -> None:
    exact, float64 = (Slicing(4, 8, "all", x) for x in ("exact", "float64"))
    assert not pair_weights(exact, 100).any()
    # Of seven partial sums five count; the two least weights are in all of these.
    count = pair_weights(float64, 100) / U
    weights = 6 - np.add.outer(np.arange(4), np.arange(4))
    want = np.array([5, 5, 4, 3, 2, 1, 0])[weights]
    np.testing.assert_allclose(count, want, rtol=2.0**-39)
    # Sums of 2^53 and more are rounded on their own.
    more = pair_weights(float64, 2**40) / U
    np.testing.assert_allclose(more, want + 1, rtol=2.0**-39)
    few = pair_weights(float64, 2**39) / U
    assert (few[0, 0], few[3, 3]) == (0.0, 5.0 * (1.0 + 2.0**-40))


def test_weights_of_pairs_left_out() -> None:
    weights = pair_weights(Slicing(3, 8, ((0, 0), (1, 0))), 10)
    assert weights.tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 1]]
    for size in (1, 5, 16):
        kept = chosen_pairs("triangular", size)
        assert pair_weights(Slicing(size), 10).sum() == size**2 - len(kept)
    assert not pair_weights(Slicing(1, accumulate="float64"), 10).any()


@pytest.mark.parametrize("accumulate", ["exact", "float64"])
def test_small_integers_have_bound_zero(accumulate) -> None:
    # Their digits are in the first slices, and no pair of these is left out.
    rng = np.random.default_rng(3)
    a = rng.integers(-60, 60, (4, 20)) * 0.125
    b = rng.integers(-60, 60, (20, 4)) * 1e10
    a[2] = 0.0
    slicing = Slicing(15, 8, "triangular", accumulate)
    bound, errors = check(a, b, slicing)
    assert not any(errors)
    assert accumulate == "float64" or not bound.any()
    assert not bound[2].any()


def test_a_wrong_product_is_noticed() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 50)), rng.standard_normal((50, 3))
    slicing = Slicing(5)
    mu, nu = exponents(a, b, slicing)
    c = np.array(slice_reference.matmul_by_slices(a, b, slicing))
    bound = error_bound(a, b, c, mu, nu, slicing)
    wrong = total_errors((c + 3 * bound).tolist(), a, b)
    with pytest.raises(AssertionError):
        assert_bounds(bound, wrong)


def test_bounds_out_of_range_are_infinite_and_silent() -> None:
    a = np.full((1, 3), LARGEST)
    for accumulate in ("exact", "float64"):
        slicing = Slicing(2, 8, "triangular", accumulate)
        mu, nu = exponents(a, a.T, slicing)
        with np.errstate(all="raise"):
            assert error_bound(a, a.T, [[math.inf]], mu, nu, slicing) == math.inf
            assert product_bound(a, a.T, mu, nu, slicing) == math.inf


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_empty_dimensions(shape) -> None:
    m, k, n = shape
    a, b, c = np.ones((m, k)), np.ones((k, n)), np.zeros((m, n))
    slicing = Slicing(accumulate="float64")
    mu, nu = exponents(a, b, slicing)
    mu, nu = mu or [0] * m, nu or [0] * n
    bound = error_bound(a, b, c, mu, nu, slicing)
    assert bound.shape == (m, n)
    assert not bound.any()


def test_operands_that_do_not_fit() -> None:
    a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))
    mu, nu = [0, 0], [0, 0, 0, 0]
    slicing = Slicing()
    for wrong in (
        lambda: pairs_bound(a, a, mu, nu, slicing),
        lambda: pairs_bound(a[0], b, mu, nu, slicing),
        lambda: pairs_bound(a, b, nu, mu, slicing),
        lambda: error_bound(a, b, c.T, mu, nu, slicing),
    ):
        with pytest.raises(ShapeError):
            wrong()
    with pytest.raises(OptionError, match="a='non-finite"):
        product_bound(a * math.inf, b, mu, nu, slicing)
