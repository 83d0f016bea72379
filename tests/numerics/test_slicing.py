"""Slices, pairs, weights, and the contract of slices in Python integers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OperandTypeError, OptionError
from np_ozaki.numerics import reference
from np_ozaki.numerics.slice_reference import (
    matmul_by_slices,
    pair_sums,
    recombine,
    slice_exponents,
    slices,
)
from np_ozaki.numerics.slicing import Slicing, chosen_pairs
from np_ozaki.testing import assert_same_bits

SIZES = list(itertools.product((1, 2, 3, 6, 7, 8, 13, 16), range(2, 9)))
finite = st.floats(allow_nan=False, allow_infinity=False)


def rounded(x, mu):
    return reference.integers([[x]], [mu])[0][0]


@pytest.mark.parametrize(("s", "b"), SIZES)
def test_the_largest_integer_has_the_largest_digits(s, b):
    slicing = Slicing(s, b)
    digits = slices([[slicing.largest_integer]], slicing)
    assert [plane[0][0] for plane in digits] == [2 ** (b - 1) - 1] * s


@pytest.mark.parametrize(("s", "b"), SIZES)
def test_the_largest_mantissa_is_the_largest(s, b):
    slicing = Slicing(s, b)
    f, shift = slicing.largest_mantissa, b * s - 54
    assert 2**52 <= f < 2**53
    assert rounded(float(f), shift) <= slicing.largest_integer
    assert rounded(float(f + 1), shift) > slicing.largest_integer


@given(st.sampled_from(SIZES), finite.filter(bool))
def test_exponents_are_the_largest(size, x):
    slicing = Slicing(*size)
    (mu,) = slice_exponents([[0.0, x]], slicing)
    assert abs(rounded(x, mu)) <= slicing.largest_integer
    assert abs(rounded(x, mu + 1)) > slicing.largest_integer


def test_zeros_have_exponent_zero():
    assert slice_exponents([[0.0, -0.0], []], Slicing()) == [0, 0]


@given(st.sampled_from(SIZES), st.data())
def test_digits_add_up(size, data):
    slicing = Slicing(*size)
    s, b = size
    most = slicing.largest_integer
    x = data.draw(st.integers(-most, most))
    digits = [plane[0][0] for plane in slices([[x]], slicing)]
    assert sum(q << b * (s - 1 - t) for t, q in enumerate(digits)) == x
    assert all(-(2 ** (b - 1)) <= q < 2 ** (b - 1) for q in digits)


@pytest.mark.parametrize("s", range(1, 17))
def test_numbers_of_pairs(s):
    assert Slicing(s).num_products == s * (s + 1) // 2
    assert Slicing(s, pairs="all").num_products == s * s
    assert len(Slicing(s).diagonals) == s
    assert len(Slicing(s, pairs="all").diagonals) == 2 * s - 1


@given(
    st.integers(1, 9).flatmap(
        lambda s: st.tuples(
            st.just(s),
            st.sets(
                st.tuples(st.integers(0, s - 1), st.integers(0, s - 1)), min_size=1
            ),
        )
    )
)
def test_diagonals_have_every_pair_once(case):
    s, pairs = case
    found = [
        (i, 2 * s - 2 - weight - i)
        for weight, runs in Slicing(s, pairs=tuple(pairs)).diagonals
        for first, count in runs
        for i in range(first, first + count)
    ]
    assert sorted(found) == sorted(pairs)
    weights = [d.weight for d in Slicing(s, pairs=tuple(pairs)).diagonals]
    assert weights == sorted(set(weights))
    assert all(
        later[0] > first + count
        for _, runs in Slicing(s, pairs=tuple(pairs)).diagonals
        for (first, count), later in itertools.pairwise(runs)
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_slices": 0}, "num_slices=0: must be 1 to 16"),
        ({"num_slices": 17}, "num_slices=17: must be 1 to 16"),
        ({"bits_per_slice": 1}, "bits_per_slice=1: must be 2 to 8"),
        ({"bits_per_slice": 9}, "bits_per_slice=9: must be 2 to 8"),
        ({"pairs": ((0, 8),)}, "slices are numbered 0 to 7"),
        ({"pairs": ((-1, 0),)}, "slices are numbered 0 to 7"),
        ({"pairs": ((0, 1), (0, 1))}, "each pair counts once"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(OptionError, match=r"pairs|slice") as error:
        Slicing(**options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"accumulate": "int32"}, OptionError),
        ({"pairs": "some"}, OptionError),
        ({"pairs": ()}, OptionError),
        ({"num_slices": 3.0}, OperandTypeError),
        ({"num_slices": "3"}, OperandTypeError),
        ({"bits_per_slice": True}, OperandTypeError),
        ({"pairs": ((0, 1, 2),)}, OperandTypeError),
        ({"pairs": 3}, OperandTypeError),
    ],
)
def test_more_refusals(options, error):
    with pytest.raises(error):
        Slicing(**options)


def test_mirror_images():
    assert Slicing().symmetric
    assert Slicing(pairs=[(0, 1), (1, 0)]).symmetric
    one_sided = Slicing(pairs=[(0, 1), (0, 0)])
    assert not one_sided.symmetric
    assert one_sided.turned() == Slicing(pairs=[(0, 0), (1, 0)])
    assert one_sided.turned().turned() == one_sided


def test_names():
    assert str(Slicing()) == "8 slices"
    assert str(Slicing(7, 7, "all", "float64")) == "7 slices of 7, all, float64"
    assert str(Slicing(pairs=((0, 0), (0, 1)))) == "8 slices, 2 pairs"


def exact(a, b, slicing):
    """Return the contract of slices once more, from fractions and all pairs."""
    s, bits = slicing.num_slices, slicing.bits_per_slice
    rows, columns = reference.row_vectors(a), reference.column_vectors(b)
    mu, nu = slice_exponents(rows, slicing), slice_exponents(columns, slicing)
    x = slices(reference.integers(rows, mu), slicing)
    y = slices(reference.integers(columns, nu), slicing)
    result = np.zeros((len(rows), len(columns)))
    for r, c in np.ndindex(result.shape):
        total = Fraction(0)
        for i, j in chosen_pairs(slicing.pairs, s):
            dot = sum(p * q for p, q in zip(x[i][r], y[j][c], strict=True))
            total += dot * Fraction(2) ** (bits * (2 * s - 2 - i - j))
        result[r, c] = float(total / Fraction(2) ** (mu[r] + nu[c]))
    return result


@pytest.mark.parametrize("pairs", ["all", "triangular", ((0, 0), (1, 2), (2, 1))])
@pytest.mark.parametrize(("s", "b"), [(3, 8), (5, 4), (7, 7), (8, 8), (12, 8)])
def test_the_exact_sum_is_rounded_once(s, b, pairs):
    rng = np.random.default_rng(s * b)
    a = rng.standard_normal((4, 9)) * np.exp(rng.standard_normal((4, 9)))
    c = rng.standard_normal((9, 3))
    slicing = Slicing(s, b, pairs)
    want = exact(a, c, slicing)
    assert_same_bits(np.array(matmul_by_slices(a, c, slicing)), want)


def test_all_pairs_of_many_slices_round_correctly():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((4, 30)), rng.standard_normal((30, 4))
    want = np.array(reference.exact_product(a, b))
    got = matmul_by_slices(a, b, Slicing(12, 8, "all"))
    assert_same_bits(np.array(got), want)


def test_float64_adds_from_the_least_weight_up():
    # 2^8 sums of weights 0, 1 and 2: 1 is lost beside 2^53, but not two of them.
    slicing = Slicing(2, 8, "all", "float64")
    parts = [[[1]], [[2**45]], [[-(2**37)]]]
    assert recombine(parts, slicing, [0], [0]) == [[0.0]]
    parts = [[[2]], [[2**45]], [[-(2**37)]]]
    assert recombine(parts, slicing, [0], [0]) == [[2.0]]


def test_sums_of_pairs():
    x = [[[1, 2]], [[3, 4]]]
    y = [[[5, 6]], [[7, 8]]]
    sums = pair_sums(x, y, Slicing(2, pairs="all").diagonals)
    low, middle, high = 3 * 7 + 4 * 8, 1 * 7 + 2 * 8 + 3 * 5 + 4 * 6, 1 * 5 + 2 * 6
    assert sums == [[[low]], [[middle]], [[high]]]


def test_empty_and_special_operands():
    assert (
        matmul_by_slices(np.zeros((2, 0)), np.zeros((0, 1)), Slicing()) == [[0.0]] * 2
    )
    assert matmul_by_slices(np.zeros((0, 3)), np.zeros((3, 2)), Slicing()) == []
    got = matmul_by_slices([[math.inf, 1.0], [1.0, 2.0]], [[0.0], [1.0]], Slicing())
    assert math.isnan(got[0][0])
    assert got[1][0] == 2.0
