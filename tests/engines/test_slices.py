"""Scheme "slices" on the CPU engine: its contract, and what must not change a bit."""

import functools
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki.engines import cpu_slices
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics.slice_reference import matmul_by_slices
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import (
    assert_permutation_invariant,
    assert_same_bits,
    assert_scale_invariant,
    assert_symmetric,
    assert_transposes,
    layouts,
    operands,
    random_matrices,
    with_special_values,
)
from np_ozaki.tiling import Tiles

accumulations = st.sampled_from(("exact", "float64"))
schedules = st.sampled_from(("triangular", "all"))
slicings = st.builds(
    Slicing, st.integers(1, 16), st.integers(2, 8), schedules, accumulations
)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def any_slicings(draw):
    """Draw slicings with any set of pairs."""
    s = draw(st.integers(1, 9))
    index = st.integers(0, s - 1)
    pairs = draw(st.sets(st.tuples(index, index), min_size=1, max_size=12))
    return Slicing(s, draw(st.integers(2, 8)), tuple(pairs), draw(accumulations))


def by_slices(slicing, **options):
    options = {"scheme": "slices", "precision": "auto"} | vars(slicing) | options
    return functools.partial(np_ozaki.matmul, **options)


def expected(a, b, slicing):
    product = np.array(matmul_by_slices(a, b, slicing), dtype=np.float64)
    return product.reshape(a.shape[0], b.shape[1])


def run(engine, a, b, slicing, limit=1 << 30):
    out = np.full((1, a.shape[0], b.shape[1]), np.nan)
    engine.matmul(a[np.newaxis], b[np.newaxis], out, slicing, workspace_bytes=limit)
    return out[0]


def wide_normals(seed, shape):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape))


# The contract -----------------------------------------------------------------------


@given(with_special_values(operands()), slicings | any_slicings())
def test_engine_equals_the_reference(pair, slicing):
    with np.errstate(over="ignore", invalid="ignore"):
        assert_same_bits(by_slices(slicing)(*pair), expected(*pair, slicing))


@given(operands(3, 6), st.integers(-1000, 1000), st.integers(-1000, 1000), slicings)
def test_engine_equals_the_reference_at_every_scale(pair, s, t, slicing):
    with np.errstate(over="ignore", under="ignore"):
        a, b = np.ldexp(pair[0], s), np.ldexp(pair[1], t)
        a, b = np.where(np.isfinite(a), a, 1.5), np.where(np.isfinite(b), b, -0.75)
        assert_same_bits(by_slices(slicing)(a, b), expected(a, b, slicing))


@pytest.mark.parametrize("accumulate", ["exact", "float64"])
@pytest.mark.parametrize("pairs", ["triangular", "all"])
@pytest.mark.parametrize(
    ("s", "b"), list(itertools.product(range(1, 17), (2, 5, 7, 8)))
)
def test_every_number_of_slices(s, b, pairs, accumulate):
    slicing = Slicing(s, b, pairs, accumulate)
    rng = np.random.default_rng(s)
    x = rng.standard_normal((4, 33)) * np.exp(rng.standard_normal((4, 33)))
    y = rng.standard_normal((33, 3))
    assert_same_bits(by_slices(slicing)(x, y), expected(x, y, slicing))


@pytest.mark.parametrize("b", range(2, 9))
@pytest.mark.parametrize("s", [1, 2, 7, 8, 16])
def test_entries_of_the_largest_digits(s, b):
    # The largest mantissa that keeps its exponent, and its neighbours.
    slicing = Slicing(s, b, "all")
    f = slicing.largest_mantissa
    x = np.ldexp(np.array([[f - 1.0, f], [f + 1.0, -f], [-f - 1.0, 1.0]]), -60)
    assert_same_bits(by_slices(slicing)(x, x.T), expected(x, x.T, slicing))


@pytest.mark.parametrize("s", [6, 7, 8, 12])
def test_subnormal_results_round_once(s):
    half = 2.0**-537
    a = (half * (1.0 + np.arange(-4.0, 5.0) * 2.0**-52)).reshape(-1, 1)
    b = np.array([[half, half * (1 + 2.0**-52), half / 2, half * 1.5, -half / 2]])
    for accumulate in ("exact", "float64"):
        slicing = Slicing(s, 8, "all", accumulate)
        assert_same_bits(by_slices(slicing)(a, b), expected(a, b, slicing))


def test_sums_beyond_int32_are_exact():
    # The digits 127 and -128: k 128^2 passes 2^31.
    k = 200_000
    slicing = Slicing(2, 8, "all")
    a = np.full((1, k), 127.0 * 256 - 128)
    want = expected(a, a.T, slicing)
    assert want[0, 0] == k * a[0, 0] ** 2
    assert_same_bits(by_slices(slicing)(a, a.T), want)


def test_rows_near_overflow():
    largest = np.finfo(np.float64).max
    a = np.array([[largest, -largest, 1.0], [largest, largest, 1.0]])
    b = np.array([[1.0], [1.0], [3.0]])
    slicing = Slicing(10)
    with np.errstate(over="ignore"):
        assert_same_bits(by_slices(slicing)(a, b), expected(a, b, slicing))
    with pytest.warns(RuntimeWarning, match="overflow"):
        by_slices(slicing)(a, b)


@given(operands(), st.integers(8, 16), schedules)
def test_the_lower_half(pair, s, pairs):
    a, b = pair
    slicing = Slicing(s, 8, pairs)
    with np.errstate(over="ignore"):
        hi, lo = by_slices(slicing, output="dd")(a, b)
        assert_same_bits(hi, expected(a, b, slicing))
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.where(np.isfinite(hi), np.spacing(np.abs(hi)), 0)
    # What was left is at most half a unit in the last place.
    assert (2 * np.abs(lo) <= unit).all()


def test_both_halves_are_the_exact_product():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((5, 20)), rng.standard_normal((20, 4))
    want = np_ozaki.matmul(a, b, output="dd", precision=30)
    got = by_slices(Slicing(16, 8, "all"), output="dd")(a, b)
    assert_same_bits(got.hi, want.hi)
    assert_same_bits(got.lo, want.lo)


# What must not change a bit ---------------------------------------------------------


@given(operands(), slicings | any_slicings(), seeds)
def test_power_of_two_scaling(pair, slicing, seed):
    assert_scale_invariant(by_slices(slicing), *pair, max_shift=150, seed=seed)


@given(operands(), slicings)
def test_transpose(pair, slicing):
    assert_transposes(by_slices(slicing), *pair)


@given(operands(), slicings | any_slicings(), seeds)
def test_permutation_of_the_inner_index(pair, slicing, seed):
    assert_permutation_invariant(by_slices(slicing), *pair, seed=seed)


@given(operands(max_side=8), slicings)
def test_gram_matrices_are_symmetric(pair, slicing):
    for x in pair:
        assert_symmetric(by_slices(slicing), x)


@pytest.mark.parametrize("pairs", ["triangular", "all", ((0, 0), (0, 2), (3, 1))])
@pytest.mark.parametrize("tile", [(4, 5, 37), (64, 2, 100), (7, 90, 41), (1, 1, 1)])
def test_tiles(monkeypatch, pairs, tile):
    m, k, n = (3, 7, 2) if tile == (1, 1, 1) else (23, 120, 19)
    a, b = wide_normals(1, (m, k)), wide_normals(2, (k, n))
    slicing = Slicing(6, 8, pairs)
    whole = run(CpuEngine(), a, b, slicing)

    def small_tiles(batch, m, n, k, *, num_planes, exact_k, budget=None):
        return Tiles(1, tile[0], tile[1], tile[2], num_planes, tile[2] < k)

    monkeypatch.setattr(cpu_slices, "choose_tiles", small_tiles)
    assert_same_bits(run(CpuEngine(), a, b, slicing), whole)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(threads):
    a, b = wide_normals(3, (150, 170)), wide_normals(4, (170, 160))
    one = run(CpuEngine(1), a, b, Slicing())
    assert_same_bits(run(CpuEngine(threads), a, b, Slicing()), one)


@given(
    st.sampled_from(((20, 31), (3, 20, 31))).flatmap(
        lambda shape: layouts(random_matrices(shape, phi=2.0))
    ),
    layouts(random_matrices((31, 24), phi=2.0)),
)
def test_layouts(a, b):
    product = by_slices(Slicing(7))
    want = product(a.copy(), b.copy())
    assert_same_bits(product(a, b), want)
    assert_same_bits(product(b.mT, a.mT).mT, want)


def test_batches_equal_their_matrices():
    a, b = wide_normals(11, (3, 1, 4, 5)), wide_normals(12, (2, 5, 6))
    product = by_slices(Slicing())
    c = product(a, b)
    for i, j in np.ndindex(3, 2):
        assert_same_bits(c[i, j], product(a[i, 0], b[j]))


def test_large_batches_of_small_matrices():
    a, b = wide_normals(13, (5000, 2, 3)), wide_normals(14, (5000, 3, 2))
    product = by_slices(Slicing())
    c = product(a, b)
    for i in (0, 1, 777, 4999):
        assert_same_bits(c[i], product(a[i], b[i]))


@pytest.mark.parametrize("limit", [4 << 20, 16 << 20, 1 << 30])
def test_memory_limits(limit):
    a, b = wide_normals(5, (300, 700)), wide_normals(6, (700, 400))
    product = by_slices(Slicing(), workspace_bytes=limit, engine="cpu")
    c, info = product(a, b, return_info=True)
    assert info.workspace_bytes <= limit
    assert info.tiles > (1 if limit == 4 << 20 else 0)
    assert_same_bits(c, by_slices(Slicing())(a, b))


def test_memory_stays_under_the_limit():
    a, b = wide_normals(17, (400, 800)), wide_normals(18, (800, 400))
    limit, threads = 8 << 20, 2
    run(CpuEngine(threads), a[:9], b, Slicing())
    tracemalloc.start()
    try:
        run(CpuEngine(threads), a, b, Slicing(pairs="all"), limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < a.shape[0] * b.shape[1] * 8 + limit + threads * 12_000_000


@pytest.mark.parametrize("engine", ["cpu"])
def test_what_a_prepared_operand_keeps(engine):
    rng = np.random.default_rng(19)
    a, b = rng.standard_normal((2, 90, 80)), rng.standard_normal((80, 70))
    product = by_slices(Slicing(), engine=engine)
    want = product(a, b)
    with np_ozaki.enabled(engine=engine, scheme="slices") as scope:
        x, y = np_ozaki.OzArray(a), np_ozaki.OzArray(b)
        for _ in range(3):
            assert_same_bits(np.asarray(x @ y), want)
        prepared = scope.stats().arrays.prepared
        assert prepared.made == 2
        assert prepared.reused > 0
        # Other slices of the same entries.
        other = np_ozaki.matmul(x, y, num_slices=5)
        assert_same_bits(np.asarray(other), by_slices(Slicing(5))(a, b))
        x[0, 0, 0] += 1.0
        a[0, 0, 0] += 1.0
        assert_same_bits(np.asarray(x @ y), product(a, b))
