"""Special values and the whole range of float64, whichever way a product comes in."""

import functools
import operator
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.numerics import reference
from np_ozaki.testing import (
    assert_error_bound,
    assert_same_bits,
    graded_operands,
    layouts,
    operands,
    random_matrices,
    with_special_values,
)

INF, NAN = np.inf, np.nan
LARGEST = np.finfo(np.float64).max
LEAST = 5e-324


def in_scope(multiply, a, b, **options):
    options = {"engine": "cpu", "reproducible": True, "local": True, **options}
    with np_ozaki.enabled(**options) as scope:
        c = multiply(a, b)
        assert scope.stats().calls("native") == 0
    return c


def by_array(a, b, **options):
    """Multiply an OzArray: options that it has no argument for come from a scope."""
    return np.asarray(in_scope(operator.matmul, OzArray(a), b, **options))


WAYS = {
    "matmul": functools.partial(np_ozaki.matmul, engine="cpu"),
    "OzArray": by_array,
    "a @ b": functools.partial(in_scope, operator.matmul),
    "np.matmul": functools.partial(in_scope, np.matmul),
    "np.dot": functools.partial(in_scope, np.dot),
    "np.einsum": functools.partial(in_scope, functools.partial(np.einsum, "ij,jk->ik")),
}
every_way = pytest.mark.parametrize("product", WAYS.values(), ids=WAYS)


def contract(a, b, num_moduli=15):
    c = np.array(reference.matmul(a, b, num_moduli), dtype=np.float64)
    return c.reshape(a.shape[0], b.shape[1])


def finite(x):
    return np.where(np.isfinite(x), x, 0.0)


def exceptions(product, a, b):
    """Return a product and the names of the floating-point exceptions it raises."""
    names = set()
    with (
        np.errstate(all="call"),
        np.errstate(call=lambda name, _: names.add(name)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        return product(a, b), names


# ---- Bits ----


@every_way
@given(pair=layouts(with_special_values(operands(4, 6))))
def test_special_values_have_the_bits_of_the_contract(product, pair):
    with np.errstate(all="ignore"):
        assert_same_bits(product(*pair, precision=15), contract(*pair))


@every_way
@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ([NAN, 1.0], [1.0, 1.0], NAN),
        ([NAN, INF], [0.0, 1.0], NAN),
        ([INF, 1.0], [0.0, 1.0], NAN),
        ([INF, 1.0], [-0.0, 1.0], NAN),
        ([INF, INF], [1.0, -1.0], NAN),
        ([INF, -INF], [1.0, -1.0], INF),
        ([-INF, -1e300], [LEAST, -1e300], -INF),
        ([INF, 1.0], [-INF, 1.0], -INF),
        ([INF, 1e300], [LEAST, -1e300], INF),
        ([-LARGEST, -LARGEST], [1.0, 1.0], -INF),
        # The sum is finite, whatever its terms do.
        ([LARGEST, LARGEST], [2.0, -2.0], 0.0),
        # Half a unit above the largest double, and just below that.
        ([LARGEST, 2.0**970], [1.0, 1.0], INF),
        ([LARGEST, 2.0**969], [1.0, 1.0], LARGEST),
        ([LEAST, 0.0], [1.0, 1.0], LEAST),
        ([LEAST, LEAST], [0.5, 0.5], LEAST),
        # Ties of half the least double go to zero, with the sign of the sum.
        ([-LEAST, 0.0], [0.5, 1.0], -0.0),
        ([3 * LEAST, 0.0], [0.5, 1.0], 2 * LEAST),
        ([1e-200, 1e-200], [-1e-200, -1e-200], -0.0),
        # A sum that is zero is +0, and so are zeros of either sign.
        ([1.0, -1.0], [1.0, 1.0], 0.0),
        ([-0.0, -0.0], [1.0, 1.0], 0.0),
        ([0.0, -0.0], [-1.0, 1.0], 0.0),
    ],
)
def test_entry(product, row, column, expected):
    # A second row and column of ones: what one entry is must not touch the others.
    a, b = np.array([row, [1.0, 1.0]]), np.array([column, [1.0, 1.0]]).T
    with np.errstate(all="ignore"):
        c = product(a, b, precision=30)
    assert_same_bits(c[0, 0], expected)
    assert_same_bits(c[1, 1], 2.0)
    assert_same_bits(c, contract(a, b, 30))


@given(
    with_special_values(random_matrices((3, 2, 5, 6), phi=1.0, scale=None)),
    random_matrices((2, 6, 4), phi=1.0, scale=None),
)
def test_special_values_of_a_batch(a, b):
    with np.errstate(all="ignore"):
        c = np_ozaki.matmul(a, b, precision=15)
        assert_same_bits(in_scope(np.matmul, a, b, precision=15), c)
        assert_same_bits(by_array(a, b, precision=15), c)
    for i, j in np.ndindex(3, 2):
        assert_same_bits(c[i, j], contract(a[i, j], b[j]))


# ---- The range ----


@every_way
@given(
    pair=st.tuples(
        random_matrices((3, 9), phi=1.0, scale=None),
        random_matrices((9, 4), phi=1.0, scale=None),
    )
)
def test_every_scale_down_to_gradual_underflow(product, pair):
    with np.errstate(over="ignore"):
        assert_error_bound(*pair, product(*pair))


@every_way
def test_rows_from_1e150_to_1e_minus_150(product):
    # Terms of one size, and each line spans 300 decimal orders.
    rng = np.random.default_rng(0)
    d = 10.0 ** np.linspace(150, -150, 40)
    a, b = rng.uniform(1, 2, (5, 40)) * d, rng.uniform(1, 2, (40, 6)) / d[:, np.newaxis]
    c, names = exceptions(product, a, b)
    assert_error_bound(a, b, c)
    assert names == set()
    # Terms of all sizes: of each entry only the largest count.
    assert_error_bound(a, a.T, product(a, a.T))


@given(graded_operands(6, 30, 5))
def test_graded_data(pair):
    assert_error_bound(*pair, np_ozaki.matmul(*pair))
    in_reproducible_scope = in_scope(operator.matmul, *pair)
    assert_error_bound(*pair, in_reproducible_scope)


@given(graded_operands(4, 12, 3, grading="rows"), st.integers(2, 49))
def test_graded_rows_cost_no_accuracy(pair, n):
    a, b = pair
    scales = np.frexp(np.abs(a).max(axis=1, keepdims=True))[1]
    plain = np_ozaki.matmul(np.ldexp(a, -scales), b, precision=n)
    assert_same_bits(np_ozaki.matmul(a, b, precision=n), np.ldexp(plain, scales))


# ---- Floating-point exceptions ----


@given(with_special_values(operands(4, 6)))
def test_exceptions_are_those_of_the_result(pair):
    c, names = exceptions(
        functools.partial(np_ozaki.matmul, precision=15, engine="cpu"), *pair
    )
    a, b = pair
    assert names <= {"overflow", "invalid value"}
    new_nan = np.isnan(c) & ~(
        np.isnan(a).any(axis=1)[:, np.newaxis] | np.isnan(b).any(axis=0)
    )
    assert ("invalid value" in names) == new_nan.any()
    infinite = np.isinf(contract(finite(a), finite(b)))
    of_finite_lines = np.isfinite(a).all(axis=1)[:, np.newaxis] & (
        np.isfinite(b).all(axis=0)
    )
    if (infinite & of_finite_lines).any():
        assert "overflow" in names
    if "overflow" in names:
        assert infinite.any()


@pytest.mark.parametrize("way", [x for x in WAYS if x != "np.einsum"])
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([[1e300]], [[1e300]], {"overflow"}),
        ([[INF]], [[0.0]], {"invalid value"}),
        ([[INF, 1e300], [1.0, 1e300]], [[0.0], [1e300]], {"overflow", "invalid value"}),
        ([[NAN, INF]], [[1.0], [0.0]], set()),
        ([[INF, -INF]], [[1.0], [-1.0]], set()),
        ([[1e-200, LEAST]], [[1e-200], [0.3]], set()),
        ([[LARGEST, LARGEST]], [[2.0], [-2.0]], set()),
    ],
)
def test_exceptions_in_every_way(way, a, b, expected):
    _, names = exceptions(WAYS[way], np.array(a), np.array(b))
    if way == "np.dot" and not exceptions(np.dot, np.array(1e300), np.array(1e300))[1]:
        expected = set()  # older versions of NumPy report nothing here, nor do we
    assert names == expected


def test_einsum_reports_what_numpy_reports():
    for a, b in (([[1e300]], [[1e300]]), ([[INF]], [[0.0]])):
        a, b = np.array(a), np.array(b)
        _, native = exceptions(functools.partial(np.einsum, "ij,jk->ik"), a, b)
        _, routed = exceptions(WAYS["np.einsum"], a, b)
        assert routed == native


# ---- precision="auto" where 15 moduli, or 49, do not do ----

HOPELESS = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])
"""A pair that no number of moduli can certify: its rows ask for different D."""


def beside_hopeless(a, b):
    """Return block diagonal operands whose last block is a hopeless pair."""
    return tuple(
        np.block(
            [
                [x, np.zeros((x.shape[0], y.shape[1]))],
                [np.zeros((y.shape[0], x.shape[1])), y],
            ]
        )
        for x, y in zip((np.array(a), np.array(b)), HOPELESS, strict=True)
    )


def test_every_nan_is_the_canonical_one_after_a_fallback():
    odd = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)
    a, b = beside_hopeless([odd], [[1.0]])
    c, call = np_ozaki.matmul(a, b, return_info=True)
    assert call.engine == "native"
    assert_same_bits(c[0, 0], NAN)


def test_sums_that_overflow_on_the_way_after_a_fallback():
    a, b = beside_hopeless([[1e200, 1e200]], [[1e200], [-1e200]])
    c, names = exceptions(np_ozaki.matmul, a, b)
    assert np.isfinite(c).all() or "overflow" in names


def test_overflow_of_too_few_moduli_is_not_reported():
    # Of a row of 2^14 large entries 15 moduli keep less than 53 bits, so that the
    # largest double rounds to 2^1024; the second row asks for more moduli.
    k = 1 << 14
    a, b = np.zeros((2, k)), np.zeros((k, 2))
    a[0], a[0, 0], a[0, 1:4], b[0, 0] = LARGEST / 2, LARGEST, 0.0, 1.0
    a[1, 1:3], b[1, 1], b[3, 1] = (1e-12, 1.0), 1.0, 1e9
    c, names = exceptions(np_ozaki.matmul, a, b)
    assert_same_bits(c, [[LARGEST, 0.0], [0.0, 1e-12]])
    assert names == set()


# ---- Fallbacks that overflow -----------------------------------------------------


WIDE = (
    ([[1e86, 1e191], [1e-300, 1e-300]], [[-1e231, 1e-320], [1e-98, 1e-310]]),
    # The first entry is finite; native sums overflow on the way to it.
    (
        [
            [2.09590052e140, 2.09590052e140, -2.09590052e140, 8.4527125e270, 1e-271],
            [4.6e-29, 3.5e173, 3.3e-227, 2.5e-119, 7.4e-227],
        ],
        [
            [5.18919833e167, 3.3e-125],
            [5.18919833e167, 4.7e255],
            [8.96316076e167, 7.4e135],
            [1.18305219e-271, 2.7e-107],
            [8.4527125e270, 4.7e-48],
        ],
    ),
)


@pytest.mark.parametrize("pair", WIDE)
@pytest.mark.parametrize("precision", ["auto", 1e-3, 1e-15, 2.0**-52])
def test_fallbacks_overflow_only_where_results_do(pair, precision):
    a, b = (np.array(x) for x in pair)
    want = np.array(reference.exact_product(a, b))
    with np.errstate(all="ignore"):
        c, info = np_ozaki.matmul(
            a, b, precision=precision, engine="cpu", return_info=True
        )
    assert info.fallback == "range too wide to certify"
    assert np.array_equal(np.isinf(c), np.isinf(want))
    finite = np.isfinite(want)
    assert np.allclose(c[finite], want[finite], rtol=1e-13, atol=0)
    assert np.array_equal(np.sign(c), np.sign(want))
    with np.errstate(all="ignore", over="raise"), pytest.raises(FloatingPointError):
        np_ozaki.matmul(a, b, precision=precision, engine="cpu")
    # Special values beside them stay IEEE's, and do not hide what overflows.
    a[1, 1] = np.nan
    with np.errstate(all="ignore"):
        d = np_ozaki.matmul(a, b, precision=precision, engine="cpu")
    assert np.isnan(d[1]).all()
    assert np.array_equal(d[0], c[0])


def test_random_wide_products_overflow_as_they_should():
    rng = np.random.default_rng(0)
    for _ in range(40):
        a, b = (
            rng.standard_normal((3, 3)) * np.exp2(rng.integers(-1000, 1000, (3, 3)))
            for _ in range(2)
        )
        want = np.array(reference.exact_product(a, b))
        with np.errstate(all="ignore"):
            c = np_ozaki.matmul(a, b, engine="cpu")
        assert np.array_equal(np.isinf(c), np.isinf(want))
        finite = np.isfinite(want)
        sizes = reference.exact_product(np.abs(a), np.abs(b))
        error = np.abs(c[finite] - want[finite])
        assert (error <= 4 * 2.0**-53 * np.array(sizes)[finite] + 1e-323).all()


def test_warnings_are_of_the_line_that_called():
    a = np.array([[1e300]])
    products = [
        lambda: np_ozaki.matmul(a, a),
        lambda: OzArray(a) @ a,
        lambda: a @ a,
    ]
    with warnings.catch_warnings(record=True) as native:
        warnings.simplefilter("always")
        np.dot(a, a)
    if native:  # not in every version of NumPy
        products.append(lambda: np.dot(a, a))
    with np_ozaki.enabled(engine="cpu", min_flops=0):
        for multiply in products:
            with pytest.warns(RuntimeWarning, match="overflow") as caught:
                multiply()
            assert [w.filename for w in caught] == [__file__]
