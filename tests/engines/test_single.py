"""Products of float32 and complex64 on the CPU engine: the contract, rounded once."""

from fractions import Fraction

import numpy as np
import pytest
from complex_pairs import join
from hypothesis import given
from hypothesis import strategies as st
from single_pairs import normals, single_operands, special_operands, tie_operands

import np_ozaki
from np_ozaki import context
from np_ozaki.complex_products import multiply_complex
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics import budget, reference
from np_ozaki.numerics.complex_reference import complex_matmul
from np_ozaki.numerics.formats import SINGLE
from np_ozaki.numerics.slice_reference import matmul_by_slices
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.precision import schemes
from np_ozaki.testing import assert_same_bits

SCALINGS = ("norm", "accurate", "legacy")
U = Fraction(1, 2**24)
HALF_SUBNORMAL = Fraction(1, 2**150)
TINY = 2.0**-149
num_moduli = st.integers(2, 49)


def as_single(table, a, b):
    with np.errstate(over="ignore"):
        table = np.array(table, dtype=np.float64).astype(np.float32)
    return table.reshape(a.shape[0], b.shape[1])


def expected(a, b, n, scaling="norm"):
    return as_single(reference.matmul(a, b, n, scaling, SINGLE), a, b)


def product(a, b, **options):
    with np.errstate(all="ignore"):
        return np_ozaki.matmul(a, b, engine="cpu", return_info=True, **options)


# ---- The contract ----


@given(single_operands(), num_moduli, st.sampled_from(SCALINGS))
def test_engine_equals_the_reference(pair, n, scaling):
    a, b = pair
    c, info = product(a, b, precision=n, scaling=scaling)
    assert_same_bits(c, expected(a, b, n, scaling))
    assert (info.engine, info.dtype) == ("cpu", "float32")


@given(single_operands(), single_operands(), st.integers(2, 22))
def test_complex_engine_equals_the_reference(pair, other, n):
    m, k, n_columns = (
        min(x.shape[axis] for x in both)
        for both, axis in (
            ((pair[0], other[0]), 0),
            ((pair[0], other[0]), 1),
            ((pair[1], other[1]), 1),
        )
    )
    a = join(pair[0][:m, :k], other[0][:m, :k]).astype(np.complex64)
    b = join(pair[1][:k, :n_columns], other[1][:k, :n_columns]).astype(np.complex64)
    c, info = product(a, b, precision=n)
    want = np.array(complex_matmul(a, b, n, "norm", SINGLE), dtype=complex)
    want = want.reshape(c.shape)
    assert c.dtype == np.complex64
    assert info.dtype == "complex64"
    with np.errstate(over="ignore"):
        assert_same_bits(c.real, want.real.astype(np.float32))
        assert_same_bits(c.imag, want.imag.astype(np.float32))


@pytest.mark.parametrize(
    ("odd", "place"),
    [(5, -149), (1, -149), *((2**23 + 1, x) for x in (-149, -148, -100, -24, 0, 103))],
)
@pytest.mark.parametrize("tail", [-1, 0, 1])
def test_ties_are_not_rounded_twice(odd, place, tail):
    whole = np.array([odd, odd - 1])
    a, b = tie_operands(whole, place, tail)
    c, _ = product(a, b, precision=20)
    assert_same_bits(c, expected(a, b, 20))
    rounded = whole + np.array([tail >= 0, tail > 0])
    assert_same_bits(c, np.ldexp(np.float32(rounded), place)[:, np.newaxis])
    if tail:
        through_float64 = (a.astype(float) @ b.astype(float)).astype(np.float32)
        assert (through_float64 != c).any()


@pytest.mark.parametrize("n", [7, 20])
def test_the_largest_number_and_beyond(n):
    largest = np.finfo(np.float32).max
    rows = [[1.0, 0.0], [1.0, 2.0**-24], [1.0, 2.0**-23], [1.0, 2.0**-24 - 2.0**-48]]
    a = np.float32(rows) * np.float32(2.0**64)
    b = np.float32([[largest], [2.0**127]]) * np.float32(2.0**-64)
    c, _ = product(a, b, precision=n)
    assert_same_bits(c, expected(a, b, n))
    if n == 20:
        # 2^128 - 2^103 is the tie.
        assert_same_bits(c, np.float32([[largest], [np.inf], [np.inf], [largest]]))
    with pytest.warns(RuntimeWarning, match="overflow"):
        np_ozaki.matmul(a, b, precision=20, engine="cpu")


def test_signs_of_zeros_and_the_nan():
    a = np.float32([[2.0**-100], [-0.0], [np.nan]])
    b = np.float32([[-(2.0**-100), 3.0]])
    c, _ = product(a, b)
    assert_same_bits(c[:2], np.float32([[-0.0, 3 * 2.0**-100], [0.0, 0.0]]))
    assert c[2].view(np.int32).tolist() == [0x7FC00000] * 2


@given(special_operands(), st.sampled_from(SCALINGS))
def test_special_values(pair, scaling):
    a, b = pair
    c, _ = product(a, b, precision=7, scaling=scaling)
    assert_same_bits(c, expected(a, b, 7, scaling))


@given(
    single_operands(),
    st.sampled_from([(4, 8, "exact"), (8, 8, "float64"), (3, 7, "exact")]),
)
def test_slices(pair, kind):
    a, b = pair
    slicing = Slicing(kind[0], kind[1], "triangular", kind[2])
    options = dict(
        zip(("num_slices", "bits_per_slice", "accumulate"), kind, strict=True)
    )
    c, _ = product(a, b, scheme="slices", **options)
    assert_same_bits(c, as_single(matmul_by_slices(a, b, slicing, SINGLE), a, b))


@pytest.mark.parametrize("workspace_bytes", [None, 4 << 20])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tiles_layouts_and_checks(workspace_bytes, order):
    a = normals(1, (2, 300, 700), 1.0).copy(order)
    b = normals(2, (700, 260), 1.0).copy(order)[::-1]
    out = np.full((2, 300, 520), np.float32(np.nan))[:, :, ::2]
    c, info = product(
        a, b, out=out, precision=7, check=True, workspace_bytes=workspace_bytes
    )
    assert c is out
    assert info.checked
    # float32 holds no more than 7 moduli give: the same integers from float64.
    wide, _ = product(a.astype(float), b.astype(float), precision=7)
    assert np.abs(c - wide).max() <= 2.0**-24 * np.abs(wide).max()
    rows = slice(0, 3)
    assert_same_bits(c[0, rows, rows], expected(a[0, rows], b[:, rows], 7))


# ---- Precision ----


def assert_within(c, a, b, tolerance):
    exact = reference.exact_fractions(a, b)
    absolute = reference.exact_fractions(np.abs(a), np.abs(b))
    for (i, j), value in np.ndenumerate(c):
        if not np.isfinite(value):
            assert abs(exact[i][j]) > 2**127
            continue
        error = abs(Fraction(float(value)) - exact[i][j])
        assert error <= Fraction(tolerance) * absolute[i][j] + HALF_SUBNORMAL, (i, j)


@given(single_operands(max_side=4, max_k=10), st.sampled_from(["norm", "accurate"]))
def test_auto_keeps_to_the_bound_of_a_conventional_product(pair, scaling):
    a, b = pair
    c, info = product(a, b, scaling=scaling)
    if info.fallback is None:
        assert_within(c, a, b, (a.shape[1] + 1) * U)


@pytest.mark.parametrize("k", [16, 300, 3000])
def test_auto_begins_with_seven_moduli_and_goes_on(k):
    a, b = normals(3, (20, k)), normals(4, (k, 30))
    c, info = product(a, b)
    assert (info.num_moduli, info.fallback) == (7, None)
    exact = a.astype(float) @ b.astype(float)
    assert (np.abs(c - exact) <= k * 2.0**-24 * (np.abs(a) @ np.abs(b))).all()
    _, info = product(a.astype(np.complex64), b.astype(np.complex64))
    assert info.num_moduli == 8
    _, info = product(normals(5, (20, k), 4.0), normals(6, (k, 30), 4.0))
    assert 7 < info.num_moduli < 15


@given(
    single_operands(max_side=4, max_k=8),
    st.sampled_from([2.0**-23, 1e-6, 1e-3, 0.5]),
)
def test_a_tolerance_is_kept(pair, tolerance):
    a, b = pair
    c, info = product(a, b, precision=tolerance)
    if info.engine != "native":
        assert_within(c, a, b, tolerance)


def test_a_tolerance_below_the_spacing_is_refused():
    x = np.eye(80, dtype=np.float32)
    for y in (x, x.astype(np.complex64), x[:0]):
        with pytest.raises(np_ozaki.OptionError, match=r"precision=1e-07: .*float32"):
            np_ozaki.matmul(y, x, precision=1e-7)
    with pytest.raises(np_ozaki.OptionError, match="float32"):
        np_ozaki.error_bound(x, x, precision=1e-7)
    with pytest.raises(np_ozaki.OptionError, match="float32"):
        np_ozaki.prepare(x, precision=1e-7)
    assert np_ozaki.matmul(x, np.eye(80), precision=1e-7).dtype == np.float64


@given(single_operands(max_side=4, max_k=8))
def test_exact_is_correctly_rounded(pair):
    a, b = pair
    try:
        c, info = product(a, b, precision="exact")
    except np_ozaki.PrecisionError:
        return
    assert info.fallback is None
    assert_same_bits(c, as_single(reference.exact_product(a, b, SINGLE), a, b))


TOO_WIDE = np.float32([[1.0, 2.0**-149], [2.0**-149, 1.0]])
COLUMN = np.float32([[2.0**-149], [1.0]])


def test_what_is_too_wide_is_native_or_exact(monkeypatch):
    monkeypatch.setattr(schemes, "MAX_MODULI", 9)
    top = 2.0**127
    rows = np.vstack([TOO_WIDE, [[top, top]]]).astype(np.float32)
    columns = np.hstack([COLUMN, [[top], [-top]]]).astype(np.float32)
    c, info = product(rows, columns)
    assert (info.engine, info.fallback) == ("native", "range too wide to certify")
    with np.errstate(all="ignore"):
        exact = as_single(reference.exact_product(rows, columns, SINGLE), rows, columns)
    # A sum whose terms overflow, with both signs, is what it is without that.
    assert c[2, 1] == 0
    np.testing.assert_array_equal(np.isinf(c), np.isinf(exact))
    c, info = product(rows, columns, precision=2.0**-23)
    assert info.engine == "exact"
    assert_same_bits(c, exact)
    with np_ozaki.enabled(engine="cpu", reproducible=True, local=True):
        assert_same_bits(product(rows, columns)[0], exact)


def test_rebalanced_operands_leave_the_range_of_float32():
    d = 2.0 ** np.linspace(-60, 60, 24).round()
    a = (normals(7, (6, 24)) * d).astype(np.float32)
    b = (normals(8, (24, 7)) / d[:, np.newaxis]).astype(np.float32)
    # Scaled by rows, as far as float32 goes.
    a[0], b[:, 0] = np.ldexp(a[0], -60), np.ldexp(b[:, 0], 50)
    c, info = product(a, b)
    assert info.rebalanced
    assert_within(c, a, b, 25 * U)
    _, bounded = np_ozaki.matmul(a, b, return_info="bound")
    exact = reference.exact_fractions(a, b)
    for (i, j), value in np.ndenumerate(c):
        error = abs(Fraction(float(value)) - exact[i][j])
        assert error <= Fraction(bounded.bound[i, j])


def test_bits_that_leave_nothing_to_gain():
    for n in (2, 3, 7, 8, 12, 15, 20):
        for k in (1, 5, 64, 1024, 1 << 17):
            long = budget.long_bits(n, k)
            for more in (0, 1, 9):
                assert budget.lent_bits(n, k, long, long + more) is None
                assert budget.lent_bits(n, k, long + more, long) is None


def test_float32_operands_are_not_read_for_their_bits(monkeypatch):
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)
    monkeypatch.setattr(CpuEngine, "line_units", None)
    _, info = product(normals(1, (9, 64)), normals(2, (64, 8)))
    assert info.num_moduli == 7


# ---- Promotion ----


def test_beside_float64_the_short_side_lends_its_bits(monkeypatch):
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)
    a = np.random.default_rng(1).uniform(1, 2, (20, 300)).astype(np.float32)
    b = np.random.default_rng(2).standard_normal((300, 30))
    for x, y, sign in ((a, b, 1), (b.T, a.T, -1)):
        c, info = product(x, y)
        assert (c.dtype, info.dtype) == (np.float64, "float64")
        assert info.num_moduli < 14
        assert info.shift * sign > 0
        assert_same_bits(c, product(x.astype(float), y.astype(float))[0])
    _, info = product(a.astype(np.complex64), b.astype(complex))
    assert info.num_moduli < 15


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ("f4", "f8", "f8"),
        ("f4", "c16", "c16"),
        ("c8", "f8", "c16"),
        ("c8", "c16", "c16"),
        ("f4", "c8", "c8"),
        ("f2", "f4", "f4"),
        ("i2", "f4", "f4"),
        ("?", "f4", "f4"),
        ("u1", "c8", "c8"),
        ("i4", "f4", "f8"),
        ("i8", "c8", "c16"),
        (">f4", "f4", "f4"),
    ],
)
def test_promotion_is_numpys(left, right, common):
    rng = np.random.default_rng(3)
    a = rng.integers(0, 2, (5, 6)).astype(left)
    b = rng.integers(0, 2, (6, 4)).astype(right)
    for x, y in ((a, b), (b.T, a.T)):
        c, info = product(x, y)
        assert c.dtype == np.matmul(x, y).dtype == np.dtype(common)
        assert (info.engine, info.dtype) == ("cpu", np.dtype(common).name)
        np.testing.assert_array_equal(c, np.matmul(x, y))


# ---- Bounds ----


@given(single_operands(max_side=3, max_k=6), st.sampled_from([2, 5, 7, 9, 30, "auto"]))
def test_bounds_hold(pair, precision):
    a, b = pair
    with np.errstate(all="ignore"):
        c, info = np_ozaki.matmul(
            a, b, precision=precision, engine="cpu", return_info="bound"
        )
        before = np_ozaki.error_bound(a, b, precision=precision)
        after = np_ozaki.error_bound(a, b, c, precision=precision)
    exact = reference.exact_fractions(a, b)
    for bound in (info.bound, before, after):
        assert bound.dtype == np.float64
        for (i, j), value in np.ndenumerate(c):
            if not np.isfinite(value):
                assert np.isinf(bound[i, j])
            elif np.isfinite(bound[i, j]):
                error = abs(Fraction(float(value)) - exact[i][j])
                assert error <= Fraction(bound[i, j])


@given(
    single_operands(max_side=3, max_k=6),
    st.sampled_from([(4, "exact"), (6, "float64")]),
)
def test_bounds_of_slices_hold(pair, kind):
    a, b = pair
    options = {"scheme": "slices", "num_slices": kind[0], "accumulate": kind[1]}
    with np.errstate(all="ignore"):
        c, info = np_ozaki.matmul(a, b, return_info="bound", **options)
        before = np_ozaki.error_bound(a, b, **options)
    exact = reference.exact_fractions(a, b)
    for bound in (info.bound, before):
        for (i, j), value in np.ndenumerate(c):
            if np.isfinite(value) and np.isfinite(bound[i, j]):
                error = abs(Fraction(float(value)) - exact[i][j])
                assert error <= Fraction(bound[i, j])
            else:
                assert np.isinf(bound[i, j])


def test_bounds_are_tight():
    a, b = normals(9, (30, 200)), normals(10, (200, 20))
    c, info = np_ozaki.matmul(a, b, precision=12, return_info="bound")
    # Almost all of it is the rounding to float32.
    assert (info.bound <= 1.01 * 2.0**-24 * np.abs(c) + 1e-6 * 2.0**-24).all()
    x = np.round(8 * a).astype(np.float32)
    assert not np_ozaki.matmul(x, x.T, precision=9, return_info="bound")[1].bound.any()
    _, info = np_ozaki.matmul(
        a.astype(np.complex64), b.astype(np.complex64), return_info="bound"
    )
    assert info.bound.dtype == np.complex128
    assert 0 < info.bound.real.max() < 1e-3


# ---- Double-doubles, kept operands, cuBLAS ----


def test_double_doubles_are_of_float64():
    a, b = normals(11, (5, 9)), normals(12, (9, 4))
    pair, info = product(a, b, output="dd")
    want, _ = product(a.astype(float), b.astype(float), output="dd")
    assert info.dtype == "float64"
    for x, y in zip(pair, want, strict=True):
        assert_same_bits(x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_prepared_operands(dtype):
    a, b = normals(13, (60, 120), dtype=dtype), normals(14, (120, 50), dtype=dtype)
    want, _ = product(a, b)
    x = np_ozaki.prepare(a, "left", engine="cpu")
    made = np_ozaki.stats().arrays.prepared.made
    for _ in range(2):
        c, info = product(x, b)
        assert_same_bits(np.asarray(c), want)
        assert info.engine == "cpu"
    assert made == np_ozaki.stats().arrays.prepared.made == 1
    wide, _ = product(x, b.astype(np.result_type(dtype, np.float64)))
    assert_same_bits(np.asarray(wide), product(a, b.astype(wide.dtype))[0])


def test_cublas_leaves_float32_to_the_own_engine(monkeypatch):
    monkeypatch.setattr("np_ozaki.engines.choice.cublas_unavailable", lambda: None)
    monkeypatch.setattr("np_ozaki.engines.choice.on_gpu", lambda options: False)
    x = np.eye(3, dtype=np.float32)
    _, info = np_ozaki.matmul(x, x, engine="cublas", return_info=True)
    assert (info.engine, info.fallback) == ("cpu", 'engine="cublas": float32 products')


# ---- Other engines ----


# Each takes a compiler; the others are for the whole suite.
@pytest.mark.parametrize(
    ("scheme", "target"),
    [
        (Scheme(7), "single"),
        pytest.param(Scheme(20, "accurate"), None, marks=pytest.mark.slow),
        pytest.param(
            Slicing(4, 8, "triangular", "exact"), None, marks=pytest.mark.slow
        ),
    ],
)
def test_engines_equal_the_cpu_engine(place, scheme, target):
    a, b = normals(15, (2, 6, 20), 2.0), normals(16, (1, 20, 5), 2.0)
    a[1] *= np.float32(2.0**-120)
    a[0, 3], b[0, 4, 2] = np.float32(3e38), np.float32(np.inf)
    want = np.empty((2, 6, 5), np.float32)
    outcome = CpuEngine(1).matmul(a, b, want, scheme, certify=target)
    for engine in place.engines():
        out = place.own(np.full(want.shape, 7, np.float32))
        operands = place.own(a), place.own(b)
        found = engine.matmul(*operands, out, scheme, certify=target)
        assert_same_bits(place.host(out), want)
        if target:
            assert found.missing_bits.tolist() == outcome.missing_bits.tolist()
    out = np.empty_like(want)
    found = place.engine.matmul(a, b, out, scheme)
    assert_same_bits(out, want)
    assert (found.overflow, found.invalid) == (outcome.overflow, outcome.invalid)


@pytest.mark.parametrize("spread", [0.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_complex_products_of_engines(place, spread):
    a = normals(17, (2, 6, 9), spread, np.complex64)
    b = normals(18, (1, 9, 5), spread, np.complex64)
    options = context.default_options()
    results = []
    for engine in (CpuEngine(1), place.engine, place.other):
        for own in (np.array,) if engine.name == "cpu" else (place.own, np.array):
            out = own(np.zeros((2, 6, 5), np.complex64))
            served = multiply_complex(
                engine, own(a), own(b), out, options, conjugated=(True, False)
            )
            c = out if own is np.array else place.host(out)
            results.append((c, served.ways))
    for c, ways in results[1:]:
        assert_same_bits(c, results[0][0])
        assert ways == results[0][1]
