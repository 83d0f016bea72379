"""Bounds of the error: never exceeded, tight where they can be, and cheap."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.numerics import reference
from np_ozaki.testing import assert_same_bits, graded_operands, operands

SLICES = st.fixed_dictionaries(
    {
        "scheme": st.just("slices"),
        "num_slices": st.integers(1, 16),
        "bits_per_slice": st.integers(2, 8),
        "pairs": st.sampled_from(("all", "triangular", ((0, 0),))),
        "accumulate": st.sampled_from(("exact", "float64")),
    }
)
PRECISIONS = ("auto", "exact", 1e-12, 1e-4, 2, 8, 15, 30, 49)


def product(a, b, **options):
    with np.errstate(all="ignore"):
        return np_ozaki.matmul(a, b, engine="cpu", return_info="bound", **options)


def assert_bounded(c, bound, a, b, low=None):
    exact = reference.exact_fractions(a, b)
    for (i, j), value in np.ndenumerate(c):
        if np.isinf(bound[i, j]):
            continue
        got = Fraction(float(value)) + (
            0 if low is None else Fraction(float(low[i, j]))
        )
        assert abs(got - exact[i][j]) <= Fraction(float(bound[i, j])), (i, j)


@given(
    st.one_of(operands(max_side=4, max_k=8), graded_operands(3, 6, 2)),
    st.sampled_from(PRECISIONS),
    st.sampled_from(("norm", "accurate")),
)
def test_no_entry_errs_by_more(pair, precision, scaling):
    a, b = pair
    if precision == "exact":
        scaling = "norm"
    try:
        c, info = product(a, b, precision=precision, scaling=scaling)
    except np_ozaki.PrecisionError:
        return
    assert_bounded(c, info.bound, a, b)
    options = {"precision": precision, "scaling": scaling}
    assert_bounded(c, np_ozaki.error_bound(a, b, **options), a, b)
    assert_bounded(c, np_ozaki.error_bound(a, b, c, **options), a, b)


@given(st.one_of(operands(max_side=4, max_k=8), graded_operands(3, 6, 2)), SLICES)
def test_no_entry_of_slices_errs_by_more(pair, options):
    a, b = pair
    c, info = product(a, b, **options)
    assert_bounded(c, info.bound, a, b)
    assert_bounded(c, np_ozaki.error_bound(a, b, **options), a, b)
    assert_bounded(c, np_ozaki.error_bound(a, b, c, **options), a, b)
    if options["accumulate"] == "float64":
        return
    (hi, lo), info = product(a, b, output="dd", **options)
    assert_bounded(hi, info.bound, a, b, lo)
    before = np_ozaki.error_bound(a, b, output="dd", **options)
    assert_bounded(hi, before, a, b, lo)


def test_bounds_of_slices_are_tight():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 200)), rng.standard_normal((200, 20))
    sizes = np.abs(a) @ np.abs(b)
    u = 2.0**-53
    for pairs, size in (("triangular", 8), ("all", 8), ("all", 7)):
        _, info = product(a, b, scheme="slices", num_slices=size, pairs=pairs)
        assert (info.bound <= 1.1 * u * sizes).all()
    few, info = product(a, b, scheme="slices", num_slices=3)
    assert np.abs(few - a @ b).max() > 1e-6
    assert (info.bound < 2e-4 * sizes).all()


@given(operands(max_side=4, max_k=8), st.sampled_from(("auto", "exact", 1e-6, 9, 30)))
def test_no_double_double_errs_by_more(pair, precision):
    a, b = pair
    try:
        (hi, lo), info = product(a, b, precision=precision, output="dd")
    except np_ozaki.PrecisionError:
        return
    assert_bounded(hi, info.bound, a, b, lo)


@given(operands(max_side=4, max_k=8))
def test_native_products_keep_their_bound(pair):
    a, b = pair
    with np.errstate(all="ignore"):
        c = a @ b
    bound = np_ozaki.error_bound(a, b, engine="native")
    # Partial sums may overflow where the result does not.
    bound[~np.isfinite(c)] = np.inf
    assert_bounded(c, bound, a, b)


def test_bounds_are_tight():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 200)), rng.standard_normal((200, 20))
    sizes = np.abs(a) @ np.abs(b)
    u = 2.0**-53
    c, info = product(a, b, precision=15)
    assert (info.bound <= 1.1 * u * np.abs(c) + 0.5 * u * sizes).all()
    _, info = product(a, b)
    assert (info.bound <= 1.1 * u * np.abs(c) + 0.5 * u * sizes).all()
    for precision, unit in (("auto", 200 * u), (1e-10, 1e-10)):
        assert (
            np_ozaki.error_bound(a, b, precision=precision) < 3 * unit * sizes
        ).all()


def test_exact_entries_have_no_bound_but_zero():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-999, 999, s).astype(float) for s in ((5, 40), (40, 6)))
    c, info = product(a, b, precision=15)
    assert_same_bits(info.bound, np.zeros((5, 6)))
    assert_same_bits(np_ozaki.error_bound(a, b, c, precision=15), np.zeros((5, 6)))


def test_balanced_products_are_bounded_as_they_were_multiplied():
    rng = np.random.default_rng(2)
    d = np.ldexp(1.0, rng.integers(-80, 80, 40))
    a, b = rng.standard_normal((6, 40)) * d, rng.standard_normal((40, 5)) / d[:, None]
    c, info = product(a, b, precision="exact")
    assert info.rebalanced
    assert_bounded(c, info.bound, a, b)
    assert (info.bound <= 1.1 * 2.0**-53 * np.abs(c)).all()
    c, info = product(a, b)
    assert info.rebalanced
    assert_bounded(c, info.bound, a, b)
    assert (info.bound <= 41 * 2.0**-53 * (np.abs(a) @ np.abs(b))).all()


def test_fallbacks_are_bounded():
    a, b = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])
    for options in ({}, {"precision": 2.0**-52}, {"output": "dd"}):
        c, info = product(a, b, **options)
        assert info.fallback == "range too wide to certify"
        hi, lo = c if options.get("output") else (c, None)
        assert_bounded(hi, info.bound, a, b, lo)
        # Norms do not see that large entries meet small ones only.
        assert (info.bound < 3e-16).all()


def test_special_values_have_no_error():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    a[1, 2], b[0, 1] = np.nan, np.inf
    for bound in (product(a, b)[1].bound, np_ozaki.error_bound(a, b)):
        assert np.array_equal(np.isnan(bound), [[0, 1], [1, 1], [0, 1]])
        assert np.isfinite(bound[0, 0])


def test_overflow_is_infinite():
    c, info = product([[1e200]], [[1e200]])
    assert c[0, 0] == np.inf == info.bound[0, 0]
    assert np_ozaki.error_bound([[1e200]], [[1e200]])[0, 0] == np.inf


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 2)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 3, 4), (1, 4, 2)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((0, 2, 3), (3, 4)),
    ],
)
@pytest.mark.parametrize("precision", ["auto", 15])
def test_shapes_are_those_of_the_product(a, b, precision):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    c, info = product(x, y, precision=precision)
    bound = np_ozaki.error_bound(x, y, precision=precision)
    assert np.shape(bound) == np.shape(c) == info.bound.shape
    after = np_ozaki.error_bound(x, y, c, precision=precision)
    assert np.shape(after) == np.shape(c)
    assert type(bound) is type(c)


def test_repeated_batches_have_the_bound_of_each():
    rng = np.random.default_rng(4)
    x = np.broadcast_to(rng.standard_normal((3, 4)), (5, 3, 4))
    _, info = product(x, x[0].T.copy())
    assert info.bound.shape == (5, 3, 3)
    assert_same_bits(info.bound[4], product(x[0], x[0].T)[1].bound)


def test_operands_of_other_kinds():
    x = np.arange(6.0).reshape(2, 3)
    bound = np_ozaki.error_bound(OzArray(x), x.T.tolist())
    assert type(bound) is np.ndarray
    assert np_ozaki.error_bound(x.astype("f4"), x.T).shape == (2, 2)
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.error_bound(x, x)
    with pytest.raises(np_ozaki.ShapeError, match=r"c.shape"):
        np_ozaki.error_bound(x, x.T, x)


@pytest.mark.parametrize("dtype", ["f2", "g", "i4", "i8", "?", "G", "O"])
def test_what_numpy_multiplies_has_no_bound_here(dtype):
    x = np.ones((2, 2), dtype=dtype)
    with pytest.raises(np_ozaki.OperandTypeError, match="left to NumPy"):
        np_ozaki.error_bound(x, x)
    for precision in ("exact", 1e-10):
        for info in (False, "bound"):
            with pytest.raises(np_ozaki.OperandTypeError, match="left to NumPy"):
                np_ozaki.matmul(x, x, precision=precision, return_info=info)


def test_subclasses_of_ndarray_are_not_exact():
    x = np.ones((2, 2))
    with pytest.raises(np_ozaki.OperandTypeError, match="MaskedArray: left to NumPy"):
        np_ozaki.matmul(np.ma.array(x), x, precision="exact")


def test_integers_that_float64_rounds():
    long, one = np.array([[2**53 + 1]]), np.ones((1, 1))
    for options in (
        {"output": "dd"},
        {"return_info": "bound"},
        {"precision": "exact"},
        {"precision": 1e-10},
    ):
        with pytest.raises(np_ozaki.OperandTypeError, match="9007199254740993"):
            np_ozaki.matmul(long, one, **options)
        np_ozaki.matmul(long - 1, one, **options)
        with pytest.raises(np_ozaki.OperandTypeError, match="2\\*\\*53"):
            np_ozaki.matmul(one, -long, **options)
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.error_bound(one, long.astype(np.uint64))
    # Without a promise they are cast, as NumPy casts them.
    assert np_ozaki.matmul(long, one)[0, 0] == 2.0**53


def test_native_products_have_no_more_to_promise():
    x = np.ones((2, 2))
    for precision in ("exact", 1e-10):
        with pytest.raises(np_ozaki.OptionError, match="native"):
            np_ozaki.matmul(x, x, engine="native", precision=precision)


def test_no_exception_of_ieee_leaks():
    with np.errstate(all="raise"):
        for precision in PRECISIONS:
            for x in (1e-200, 1e200, 5e-324):
                np_ozaki.error_bound([[x]], [[1e-200]], precision=precision)
                np_ozaki.error_bound([[x]], [[1e-200]], [[0.0]], precision=precision)


def test_scopes_that_check():
    x = np.ones((2, 2))
    with np_ozaki.enabled(engine="cpu", check=True):
        assert np_ozaki.error_bound(x, x, engine="native").shape == (2, 2)
        assert np_ozaki.plan(3, 3, 3, engine="native").engine == "native"


@given(operands(max_side=4, max_k=8), st.sampled_from(("auto", "exact", 9, 30)))
def test_double_doubles_are_bounded_before_and_after(pair, precision):
    a, b = pair
    try:
        c, _ = product(a, b, precision=precision, output="dd")
    except np_ozaki.PrecisionError:
        return
    before = np_ozaki.error_bound(a, b, precision=precision, output="dd")
    assert_bounded(c.hi, before, a, b, c.lo)
    after = np_ozaki.error_bound(a, b, c, precision=precision)
    after[np.isinf(c.hi)] = np.inf
    assert_bounded(c.hi, after, a, b, c.lo)


def test_bounds_of_double_doubles_are_tight():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    for precision in ("auto", "exact"):
        bound = np_ozaki.error_bound(a, b, precision=precision, output="dd")
        assert (bound < 300 * 2.0**-106 * (np.abs(a) @ np.abs(b))).all()


def test_what_cannot_be_bounded_is_refused():
    x = np.ones((2, 2))
    with pytest.raises(np_ozaki.OptionError, match="legacy"):
        np_ozaki.error_bound(x, x, scaling="legacy")
    with pytest.raises(np_ozaki.OptionError, match="legacy"):
        np_ozaki.matmul(x, x, scaling="legacy", return_info="bound")
    for value in ("bounds", 1, None):
        with pytest.raises(np_ozaki.OperandTypeError, match="return_info"):
            np_ozaki.matmul(x, x, return_info=value)


def test_products_left_to_numpy():
    x = np.ones((2, 2))
    _, info = np_ozaki.matmul(x, x, engine="native", return_info="bound")
    assert (info.bound > 0).all()
    half = x.astype(np.float16)
    _, info = np_ozaki.matmul(half, half, return_info="bound")
    assert info.bound is None
    with np_ozaki.enabled(strategy="performant", engine="cpu"):
        _, info = np_ozaki.matmul(x, x, return_info="bound")
    assert info.engine == "native"
    assert (info.bound > 0).all()


def test_the_counters_hold_no_bound():
    product(np.ones((2, 2)), np.ones((2, 2)))
    assert np_ozaki.last_call().bound is None
