"""Every assertion holds for np_ozaki's product and fails for a wrong one."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.numerics import reference
from np_ozaki.testing import (
    assert_error_bound,
    assert_hermitian,
    assert_permutation_invariant,
    assert_same_bits,
    assert_scale_invariant,
    assert_symmetric,
    assert_transposes,
    graded_operands,
    operands,
    random_matrices,
    with_special_values,
)

U = 2.0**-53


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def legacy(a, b):
    return np_ozaki.matmul(a, b, precision=12, scaling="legacy")


def one_bit_off(index):
    """Return a product with one wrong entry, by its last bit."""

    def product(a, b):
        c = np_ozaki.matmul(a, b)
        c[index] = np.nextafter(c[index], np.inf)
        return c

    return product


def in_order(a, b):
    """Return a product whose sums are rounded in the order of the inner index."""
    c = np.zeros((a.shape[0], b.shape[1]))
    for column, row in zip(a.T, b, strict=True):
        c += np.multiply.outer(column, row)
    return c


# ---- Bits ----


def test_same_bits_of_equal_arrays():
    a = normal(0, 3, 4)
    a[1, 1] = np.nan
    assert_same_bits(a, a.copy(order="F"))
    assert_same_bits(OzArray(a), a)
    assert_same_bits(np.empty((0, 3)), np.empty((0, 3)))
    assert_same_bits(1.5, np.float64(1.5))


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([1.0, 2.0], [1.0, np.nextafter(2.0, 3.0)], "1 of 2 entries differ, first at"),
        ([[1.0, 2.0]], [[1.0, 3.0]], "(0, 1): 0x1.0000000000000p+1 is not 0x1.8"),
        ([0.0], [-0.0], "0x0.0p+0 is not -0x0.0p+0"),
        ([np.nan], [-np.nan], "nan (0x7ff8000000000000) is not nan (0xfff80000"),
        ([np.inf], [np.nan], "inf is not nan (0x7ff8000000000000)"),
        ([1.0], [[1.0]], "shape (1,) is not (1, 1)"),
        ([1], [1.0], "dtypes int64 and float64: both must be float64"),
        (np.float32([1.0]), [1.0], "dtypes float32 and float64"),
    ],
)
def test_different_bits_are_named(actual, expected, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_same_bits(actual, expected)


# ---- The error ----


@given(with_special_values(operands(max_batch_dims=2)))
def test_auto_keeps_to_the_default_bound(pair):
    with np.errstate(all="ignore"):
        assert_error_bound(*pair, np_ozaki.matmul(*pair))


@given(graded_operands(4, 9, 3))
def test_auto_keeps_to_the_default_bound_on_graded_data(pair):
    assert_error_bound(*pair, np_ozaki.matmul(*pair))


@given(
    st.tuples(
        random_matrices((3, 4, 20), scale=None), random_matrices((20, 5), scale=None)
    )
)
def test_auto_keeps_to_the_default_bound_at_every_scale(pair):
    with np.errstate(over="ignore"):
        assert_error_bound(*pair, np_ozaki.matmul(*pair))


@pytest.mark.parametrize("shape", [(3, 40, 2), (50, 40, 60)])
def test_native_products_keep_to_it_too(shape):
    m, k, n = shape
    a, b = normal(1, m, k), normal(2, k, n)
    assert_error_bound(a, b, a @ b)


def test_an_error_just_above_the_bound_is_noticed():
    a, b = normal(1, 1, 7), normal(2, 7, 1)
    exact = reference.exact_fractions(a, b)[0][0]
    size = reference.exact_fractions(np.abs(a), np.abs(b))[0][0]
    limit = 8 * Fraction(U) * size + 7 * Fraction(1, 2**1075)
    edge = float(exact + limit)
    inside = edge if Fraction(edge) <= exact + limit else np.nextafter(edge, -np.inf)
    outside = np.nextafter(inside, np.inf)
    assert_error_bound(a, b, [[inside]])
    message = (
        "1 of 1 entries err by more than the bound, first at (0, 0): "
        f"{float(outside).hex()} is not {float(exact).hex()}, "
        f"error {float(Fraction(outside) - exact):.2g}, bound {float(limit):.2g}, "
        "ratio 1"
    )
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_error_bound(a, b, [[outside]])


def test_a_bound_of_ones_own_is_compared_exactly():
    a, b = np.array([[1.0, 2.0**-60]]), np.ones((2, 1))
    assert_error_bound(a, b, [[1.0]], 2.0**-60)
    with pytest.raises(AssertionError, match=r"bound 8.7e-19, ratio 1"):
        assert_error_bound(a, b, [[1.0]], np.nextafter(2.0**-60, 0.0))
    with pytest.raises(AssertionError, match=r"bound 0, ratio inf"):
        assert_error_bound(a, b, [[1.0]], [[0.0]])
    assert_error_bound(a, b, [[-7.0]], np.inf)


def test_fifteen_moduli_alone_are_found_out_on_graded_data():
    d = np.ldexp(1.0, np.arange(-40, 40))
    a, b = normal(3, 5, 80) * d, normal(4, 80, 5) / d[:, np.newaxis]
    with pytest.raises(AssertionError, match="25 of 25 entries"):
        assert_error_bound(a, b, np_ozaki.matmul(a, b, precision=15))
    assert_error_bound(a, b, np_ozaki.matmul(a, b))


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 17, 33), (2, 49, 39)])
def test_the_one_wrong_entry_of_many_is_looked_at(place):
    a, b = normal(5, 3, 50, 30), normal(6, 30, 40)
    c = np_ozaki.matmul(a, b)
    assert_error_bound(a, b, c)
    c[place] += 40 * U * (np.abs(a[place[0], place[1]]) @ np.abs(b[:, place[2]]))
    with pytest.raises(
        AssertionError, match=r"1 of 256 \(sampled from 6000\)"
    ) as found:
        assert_error_bound(a, b, c)
    assert f"first at {place}:" in str(found.value)


def test_sampling_looks_at_as_many_entries_as_it_is_told():
    a, b = normal(5, 9, 5), normal(6, 5, 9)
    for entries in (1, 2, 7, 80):
        with pytest.raises(AssertionError, match=rf"{entries} of {entries} \(sampled"):
            assert_error_bound(a, b, np.full((9, 9), 99.0), entries=entries)


@pytest.mark.parametrize(
    ("a", "c"),
    [
        ([[np.inf, 1.0]], [[1.0]]),
        ([[np.inf, 1.0]], [[-np.inf]]),
        ([[np.inf, np.nan]], [[np.inf]]),
        ([[1.0, 2.0]], [[np.nan]]),
        ([[1.0, 2.0]], [[np.inf]]),
        ([[1e308, 1e308]], [[-np.inf]]),
    ],
)
def test_wrong_special_values_are_noticed(a, c):
    with pytest.raises(AssertionError, match=r"first at \(0, 0\)"):
        assert_error_bound(a, np.ones((2, 1)), c)


def test_infinity_where_the_bound_reaches_overflow():
    largest = np.finfo(np.float64).max
    ones = np.ones((2, 1))
    assert_error_bound([[1e308, 1e308]], ones, [[np.inf]])
    assert_error_bound([[-1e308, -1e308]], ones, [[-np.inf]])
    # Below overflow by half a unit: the rounding of a conventional product reaches it.
    assert_error_bound([[largest, 0.0]], ones, [[np.inf]])
    with pytest.raises(AssertionError, match="error inf"):
        assert_error_bound([[largest, 0.0]], ones, [[np.inf]], 1e291)


def test_empty_products():
    assert_error_bound(np.ones((2, 0)), np.ones((0, 3)), np.zeros((2, 3)))
    assert_error_bound(np.ones((0, 4)), np.ones((4, 3)), np.zeros((0, 3)))
    with pytest.raises(AssertionError, match="bound 0, ratio inf"):
        assert_error_bound(np.ones((2, 0)), np.ones((0, 3)), np.full((2, 3), 5e-324))


def test_a_product_of_another_kind_is_no_product():
    a = np.ones((2, 2))
    with pytest.raises(AssertionError, match="dtype float32"):
        assert_error_bound(a, a, np.float32(a @ a))
    with pytest.raises(AssertionError, match=r"shape \(2,\)"):
        assert_error_bound(a, a, np.ones(2))


# ---- Scale ----


@given(operands(max_batch_dims=1), st.sampled_from(("norm", "accurate")), st.data())
def test_scale_invariance(pair, scaling, data):
    n, seed = data.draw(st.integers(2, 49)), data.draw(st.integers(0, 99))

    def product(a, b):
        return np_ozaki.matmul(a, b, precision=n, scaling=scaling)

    assert_scale_invariant(product, *pair, seed=seed)


@given(with_special_values(operands()), st.integers(0, 99))
def test_scale_invariance_with_special_values(pair, seed):
    def product(a, b):
        return np_ozaki.matmul(a, b, precision=15)

    assert_scale_invariant(product, *pair, seed=seed)


@given(graded_operands(5, 9, 6, bits=40), st.integers(0, 99))
def test_conventional_products_are_scale_invariant_along_the_inner_index(pair, seed):
    assert_scale_invariant(in_order, *pair, inner=True, seed=seed)


def test_shifts_are_applied_to_every_line():
    shifts = []

    def product(a, b):
        shifts.append((np.frexp(a)[1], np.frexp(b)[1]))
        return a @ b

    a, b = np.ones((4, 1)), np.ones((1, 5))
    assert_scale_invariant(product, a, b, max_shift=2000, inner=True)
    _, (rows, columns), (left, right) = shifts
    assert len(set(rows.ravel())) == 4
    assert len(set(columns.ravel())) == 5
    # As far as the range of float64 goes.
    assert np.abs(np.concatenate([rows.ravel(), columns.ravel()])).max() > 500
    assert left[0] + right[0, 0] == 2
    assert left[0] != 1


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (
            legacy,
            r"rows times 2\*\*s, columns times 2\*\*t: .* first at \(\d, \d\): 0x",
        ),
        (lambda a, b: a @ b + U, "rows times"),
        (lambda a, b: a.astype(np.float32) @ b.astype(np.float32), "dtypes float32"),
        (lambda a, b: (a @ b)[:2], "shape|broadcast"),
    ],
)
def test_scale_dependence_is_noticed(product, message):
    a = normal(7, 6, 30)
    with pytest.raises((AssertionError, ValueError), match=message):
        assert_scale_invariant(product, a, a.T)


def test_inner_scale_dependence_is_noticed():
    a, b = normal(8, 4, 30), normal(9, 30, 4)

    def product(a, b):
        return np_ozaki.matmul(a, b, precision=12)

    assert_scale_invariant(product, a, b)
    with pytest.raises(AssertionError, match="inner index times"):
        assert_scale_invariant(product, a, b, inner=True)


def test_one_bit_of_one_entry_depends_on_the_scale():
    def product(a, b):
        c = np_ozaki.matmul(a, b)
        if np.abs(a[2]).max() > 4:
            c[2, 1] = np.nextafter(c[2, 1], np.inf)
        return c

    a, b = np.clip(normal(10, 5, 8), -2, 2), normal(11, 8, 3)
    messages = []
    for seed in range(8):
        try:
            assert_scale_invariant(product, a, b, seed=seed)
        except AssertionError as error:
            messages.append(str(error))
    assert 1 <= len(messages) <= 7
    assert all("1 of 15 entries differ, first at (2, 1)" in x for x in messages)


def test_entries_that_leave_the_range_are_not_compared():
    a = np.array([[1e300, 1.0], [1.0, 1e-300], [5e-324, 0.0]])
    b = np.array([[1e300, 1.0, 1e-300], [1.0, 2.0, 3.0]])
    for seed in range(20):
        assert_scale_invariant(
            lambda a, b: np_ozaki.matmul(a, b, precision=49), a, b, seed=seed
        )


# ---- Single precision ----

SINGLE = np.float32


@given(
    st.one_of(
        with_special_values(operands(max_batch_dims=1, dtype=SINGLE)),
        graded_operands(4, 7, 3, dtype=SINGLE),
        st.tuples(
            random_matrices((3, 20), scale=None, dtype=SINGLE),
            random_matrices((20, 2), scale=None, dtype=SINGLE),
        ),
    ),
    st.integers(0, 99),
)
def test_products_of_float32_keep_every_promise(pair, seed):
    def product(a, b):
        return np_ozaki.matmul(a, b, precision=9)

    with np.errstate(all="ignore"):
        assert_error_bound(*pair, np_ozaki.matmul(*pair))
        assert_error_bound(*pair, np_ozaki.matmul(*(x.astype(float) for x in pair)))
        assert_scale_invariant(product, *pair, seed=seed)
        assert_symmetric(product, pair[0])
        assert_transposes(product, *pair)
        assert_permutation_invariant(product, *pair, seed=seed)


def test_faults_of_float32_products_are_noticed():
    a, b = np.full((1, 4), 0.1, SINGLE), np.full((4, 1), 0.7, SINGLE)
    c, u = np_ozaki.matmul(a, b), SINGLE(2.0**-24)
    assert_error_bound(a, b, c * (1 + 4 * u))
    with pytest.raises(AssertionError, match="is not 0x1"):
        assert_error_bound(a, b, c * (1 + 12 * u))
    with pytest.raises(AssertionError, match="err by more"):
        assert_error_bound(a, b, c.astype(float))  # rounded to less than it says
    tiny = np.full((1, 1), 2.0**-75, SINGLE)
    assert_error_bound(tiny, tiny, SINGLE([[2.0**-149]]))
    assert_error_bound(SINGLE([[3e38]]), SINGLE([[2.0]]), SINGLE([[np.inf]]))
    with pytest.raises(AssertionError, match="error inf"):
        assert_error_bound(SINGLE([[3e38]]), SINGLE([[1.0]]), SINGLE([[np.inf]]))
    with pytest.raises(AssertionError, match="entries differ"):
        assert_scale_invariant(lambda x, y: x @ y + SINGLE(1.0), a, b)
    with pytest.raises(AssertionError, match="dtypes float64 and float32"):
        assert_symmetric(lambda x, y: x.astype(float) @ y, a)


# ---- Complex products ----


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
@given(st.data())
def test_complex_products_keep_every_promise(dtype, data):
    pair = data.draw(
        st.one_of(
            with_special_values(operands(4, 6, max_batch_dims=1, dtype=dtype)),
            graded_operands(4, 7, 3, dtype=dtype),
            st.tuples(
                random_matrices((3, 20), scale=None, dtype=dtype),
                random_matrices((20, 2), scale=None, dtype=dtype),
            ),
        )
    )
    seed = data.draw(st.integers(0, 99))

    def product(a, b):
        return np_ozaki.matmul(a, b, precision=16)

    with np.errstate(all="ignore"):
        assert_error_bound(*pair, np_ozaki.matmul(*pair))
        assert_scale_invariant(product, *pair, seed=seed)
        assert_hermitian(product, pair[0])
        assert_symmetric(product, pair[0])
        assert_transposes(product, *pair)
        assert_permutation_invariant(product, *pair, seed=seed)


def complex_normal(seed, *shape):
    return normal(seed, *shape) + 1j * normal(seed + 100, *shape)


def test_a_complex_bound_is_of_the_parts():
    a, b = np.array([[1.0 + 2.0j, 1j]]), np.array([[1.0], [2.0**-60]])
    assert_error_bound(a, b, [[1.0 + 2.0j]], 2.0**-60 * 1j)
    assert_error_bound(a, b, [[1.0 + 2.0j]], 2.0**-60)
    with pytest.raises(AssertionError, match=r"first at \(0, 0, 1\): .* bound 0,"):
        assert_error_bound(a, b, [[1.0 + 2.0j]], 2.0**-60 + 0j)
    with pytest.raises(AssertionError, match="2 of 2 entries err"):
        assert_error_bound(a, b, [[5.0 + 5.0j]], 0.5)
    c, info = np_ozaki.matmul(a, b, precision=16, return_info="bound")
    assert_error_bound(a, b, c, info.bound)


@pytest.mark.parametrize("part", [0, 1])
def test_the_one_wrong_part_of_many_is_looked_at(part):
    a, b = complex_normal(5, 2, 20, 30), complex_normal(6, 30, 40)
    c = a @ b
    assert_error_bound(a, b, c)
    c[1, 17, 33] += 1e-11 * (1, 1j)[part]
    message = rf"1 of 256 \(sampled from 3200\) .* first at \(1, 17, 33, {part}\):"
    with pytest.raises(AssertionError, match=message):
        assert_error_bound(a, b, c)


def test_special_values_of_complex_products_are_those_of_four_real_ones():
    a, ones = [[complex(np.inf, 1.0)]], [[1.0 + 0j]]
    with np.errstate(invalid="ignore"):
        right = np_ozaki.matmul(np.array(a), np.array(ones))
    assert_error_bound(a, ones, right)
    assert np.isnan(right[0, 0].imag)
    with pytest.raises(
        AssertionError, match=r"first at \(0, 0, 1\): 0x1.0.* is not nan"
    ):
        assert_error_bound(a, ones, [[complex(np.inf, 1.0)]])
    with pytest.raises(AssertionError, match=r"dtype float64 .* is not complex128"):
        assert_error_bound(ones, ones, [[1.0]])
    single = np.complex64(ones)
    assert_error_bound(single, ones, ones)  # promoted
    with pytest.raises(AssertionError, match=r"dtype complex64 .* is not complex128"):
        assert_error_bound(single, ones, single)


def test_faults_of_one_part_are_noticed():
    a, b = complex_normal(7, 3, 8), complex_normal(8, 8, 3)

    def spoilt(x, y):
        c = np_ozaki.matmul(x, y)
        c.imag[0, 2] = np.nextafter(c.imag[0, 2], np.inf)
        return c

    for check in (assert_symmetric, assert_hermitian):
        with pytest.raises(AssertionError, match=r"2 of 18 .* first at \(0, 2, 1\)"):
            check(spoilt, a)
    with pytest.raises(AssertionError, match=r"first at \(0, 2, 1\)"):
        assert_transposes(spoilt, a, b)
    with pytest.raises(AssertionError, match=r"first at \(0, 0, 1\)"):
        assert_scale_invariant(lambda x, y: np_ozaki.matmul(x, y) + 1e-9j, a, b)


def test_a_diagonal_that_is_not_real_is_noticed():
    a = complex_normal(9, 2, 3)

    def spoilt(x, y):
        return np_ozaki.matmul(x, y) + np.diag([0.0, 5e-324j])

    with pytest.raises(AssertionError, match=r"first at \(1, 1, 1\): 0x0.0"):
        assert_hermitian(spoilt, a)
    # Signs of zeros do not count, and of a real matrix it is symmetry.
    assert_hermitian(np_ozaki.matmul, np.array([[1.0 + 1j], [-1.0 - 1j], [0.0]]))
    assert_hermitian(lambda x, y: -np_ozaki.matmul(x, y), np.eye(2) * 1j)
    assert_hermitian(np_ozaki.matmul, a.real)
    with pytest.raises(AssertionError, match=r"2 of 9 .* first at \(0, 2\)"):
        assert_hermitian(one_bit_off((0, 2)), normal(12, 3, 5))


# ---- Symmetry, transposition, order ----


@given(with_special_values(operands(max_batch_dims=1)))
def test_symmetry_transposition_and_order(pair):
    def product(a, b):
        return np_ozaki.matmul(a, b, precision=15)

    a, b = pair
    assert_symmetric(product, a)
    assert_transposes(product, a, b)
    assert_permutation_invariant(product, a, b, seed=3)


def test_an_unsymmetric_product_is_noticed():
    with pytest.raises(AssertionError, match=r"transpose: 2 of 9 .* first at \(0, 2\)"):
        assert_symmetric(one_bit_off((0, 2)), normal(12, 3, 5))


def test_a_product_that_does_not_transpose_is_noticed():
    a, b = normal(13, 3, 5), normal(14, 5, 4)
    with pytest.raises(AssertionError, match=r"\(B\^T A\^T\)\^T.*first at \(1, 2\)"):
        assert_transposes(one_bit_off((1, 2)), a, b)


def test_a_product_that_depends_on_the_order_is_noticed():
    a, b = normal(15, 5, 40), normal(16, 40, 5)
    with pytest.raises(
        AssertionError, match=r"inner index reversed: \d+ of 25 entries"
    ):
        assert_permutation_invariant(in_order, a, b)
    # Every sum below is the same backwards, but not in a random order.
    palindrome = np.concatenate([a, a[:, ::-1]], 1), np.concatenate([b, b[::-1]])
    with pytest.raises(AssertionError, match="inner index permuted"):
        assert_permutation_invariant(in_order, *palindrome)


# ---- Arguments ----


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda a: assert_symmetric(None, a),
            np_ozaki.OperandTypeError,
            "product=None",
        ),
        (lambda a: assert_transposes(3, a, a), np_ozaki.OperandTypeError, "product=3"),
        (lambda a: assert_symmetric(np.dot, a[0]), np_ozaki.ShapeError, "a.shape=(2,)"),
        (
            lambda a: assert_transposes(np.dot, a, a.astype(object)),
            np_ozaki.OperandTypeError,
            "b.dtype='object'",
        ),
        (
            lambda a: assert_permutation_invariant(np.dot, a, np.ones((3, 3))),
            np_ozaki.ShapeError,
            "b.shape=(3, 3): does not fit a.shape=(2, 2)",
        ),
        (
            lambda a: assert_permutation_invariant(np.dot, a, a, seed=-1),
            np_ozaki.OptionError,
            "seed=-1",
        ),
        (
            lambda a: assert_scale_invariant(np.dot, a, a, seed=0.5),
            np_ozaki.OperandTypeError,
            "seed=0.5",
        ),
        (
            lambda a: assert_scale_invariant(np.dot, a, a, max_shift=0),
            np_ozaki.OptionError,
            "max_shift=0",
        ),
        (
            lambda a: assert_error_bound(np.ones((2, 2, 2)), np.ones((3, 2, 2)), a),
            np_ozaki.ShapeError,
            "b.shape=(3, 2, 2)",
        ),
        (
            lambda a: assert_error_bound(a, a, a, entries=0),
            np_ozaki.OptionError,
            "entries=0",
        ),
        (
            lambda a: assert_error_bound(a, a, a, [[0.0, np.nan]]),
            np_ozaki.OptionError,
            "bound=nan",
        ),
        (
            lambda a: assert_error_bound(a, a, a, -1.0),
            np_ozaki.OptionError,
            "bound=-1.",
        ),
        (
            lambda a: assert_error_bound(a, a, a, 1j),
            np_ozaki.OperandTypeError,
            "bound.dtype='complex128': the product is real",
        ),
        (
            lambda a: assert_error_bound(1j * a, a, 1j * a, complex(1, -1)),
            np_ozaki.OptionError,
            "bound=-1.0",
        ),
        (
            lambda a: assert_error_bound(a, a, a, np.ones(3)),
            np_ozaki.ShapeError,
            "bound.shape=(3,)",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(np.eye(2))
