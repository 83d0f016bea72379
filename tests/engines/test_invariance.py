"""What must not change a bit: scale, order, layout, padding, tiles, threads."""

import functools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki.engines import cpu
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.testing import (
    assert_permutation_invariant,
    assert_same_bits,
    assert_scale_invariant,
    assert_symmetric,
    assert_transposes,
    layouts,
    operands,
    random_matrices,
)
from np_ozaki.tiling import Tiles

moduli = st.integers(2, 49)
scalings = st.sampled_from(("norm", "accurate"))
seeds = st.integers(0, 2**32 - 1)


def matmul(**options):
    return functools.partial(np_ozaki.matmul, **options)


def run(engine, a, b, n=15, scaling="norm", limit=1 << 30):
    out = np.full((1, a.shape[0], b.shape[1]), np.nan)
    engine.matmul(
        a[np.newaxis],
        b[np.newaxis],
        out,
        Scheme(n, scaling),
        workspace_bytes=limit,
    )
    return out[0]


def wide_normals(seed, shape):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape))


@given(operands(), moduli, scalings, seeds)
def test_power_of_two_scaling(pair, n, scaling, seed):
    product = matmul(precision=n, scaling=scaling)
    assert_scale_invariant(product, *pair, max_shift=150, seed=seed)


@given(operands(), moduli, scalings)
def test_transpose(pair, n, scaling):
    assert_transposes(matmul(precision=n, scaling=scaling), *pair)


@given(operands(), moduli, scalings, seeds)
def test_permutation_of_the_inner_index(pair, n, scaling, seed):
    product = matmul(precision=n, scaling=scaling)
    assert_permutation_invariant(product, *pair, seed=seed)


@given(operands(), moduli, scalings, st.integers(1, 9))
def test_padding_with_zeros(pair, n, scaling, extra):
    a, b = pair
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
        d = np_ozaki.matmul(
            np.pad(a, ((0, extra), (extra, 2))),
            np.pad(b, ((extra, 2), (0, extra))),
            precision=n,
            scaling=scaling,
        )
    assert_same_bits(d[: c.shape[0], : c.shape[1]], c)
    assert_same_bits(d[c.shape[0] :], np.zeros((extra, d.shape[1])))


@given(operands(max_side=8), moduli)
def test_gram_matrices_are_symmetric(pair, n):
    for x in pair:
        assert_symmetric(matmul(precision=n), x)


@given(operands(), moduli)
def test_rows_and_columns_are_independent(pair, n):
    a, b = pair
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n)
        for i in range(a.shape[0]):
            assert_same_bits(np_ozaki.matmul(a[i], b, precision=n), c[i])
        for j in range(b.shape[1]):
            assert_same_bits(np_ozaki.matmul(a, b[:, j], precision=n), c[:, j])


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
@pytest.mark.parametrize("n", [2, 6, 15, 20, 49])
@pytest.mark.parametrize("tile", [(4, 5, 37), (64, 2, 100), (7, 90, 41)])
def test_tiles(monkeypatch, n, scaling, tile):
    a, b = wide_normals(1, (23, 120)), wide_normals(2, (120, 19))
    engine = CpuEngine()
    whole = run(engine, a, b, n, scaling)

    def small_tiles(batch, m, n, k, *, num_planes, exact_k, budget=None):
        return Tiles(1, tile[0], tile[1], tile[2], num_planes, tile[2] < k)

    monkeypatch.setattr(cpu, "choose_tiles", small_tiles)
    assert_same_bits(run(engine, a, b, n, scaling), whole)


def test_tiles_of_one(monkeypatch):
    a, b = wide_normals(1, (3, 7)), wide_normals(2, (7, 2))
    whole = run(CpuEngine(), a, b)
    monkeypatch.setattr(
        cpu,
        "choose_tiles",
        lambda *_, num_planes, **__: Tiles(1, 1, 1, 1, num_planes, True),
    )
    assert_same_bits(run(CpuEngine(), a, b), whole)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(threads):
    a, b = wide_normals(3, (150, 170)), wide_normals(4, (170, 160))
    assert_same_bits(run(CpuEngine(threads), a, b), run(CpuEngine(1), a, b))


@pytest.mark.parametrize("limit", [4 << 20, 16 << 20, 1 << 30])
def test_memory_limits(limit):
    a, b = wide_normals(5, (300, 700)), wide_normals(6, (700, 400))
    c, info = np_ozaki.matmul(a, b, workspace_bytes=limit, return_info=True)
    assert info.workspace_bytes <= limit
    assert info.tiles > (1 if limit == 4 << 20 else 0)
    assert_same_bits(c, np_ozaki.matmul(a, b))


@given(
    st.sampled_from(((20, 31), (3, 20, 31))).flatmap(
        lambda shape: layouts(random_matrices(shape, phi=2.0))
    ),
    layouts(random_matrices((31, 24), phi=2.0)),
    scalings,
)
def test_layouts(a, b, scaling):
    product = matmul(precision=15, scaling=scaling)
    want = product(a.copy(), b.copy())
    assert_same_bits(product(a, b), want)
    assert_same_bits(product(b.mT, a.mT).mT, want)


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
def test_batches_equal_their_matrices(scaling):
    a, b = wide_normals(11, (3, 1, 4, 5)), wide_normals(12, (2, 5, 6))
    c = np_ozaki.matmul(a, b, scaling=scaling)
    assert c.shape == (3, 2, 4, 6)
    for i in range(3):
        for j in range(2):
            one = np_ozaki.matmul(a[i, 0], b[j], scaling=scaling)
            assert_same_bits(c[i, j], one)


def test_large_batches_of_small_matrices():
    a, b = wide_normals(13, (5000, 2, 3)), wide_normals(14, (5000, 3, 2))
    c = np_ozaki.matmul(a, b)
    for i in (0, 1, 777, 4999):
        assert_same_bits(c[i], np_ozaki.matmul(a[i], b[i]))


def test_repeated_calls():
    a, b = wide_normals(15, (61, 130)), wide_normals(16, (130, 47))
    first = np_ozaki.matmul(a, b)
    for _ in range(5):
        assert_same_bits(np_ozaki.matmul(a, b), first)


@pytest.mark.parametrize("scaling", ["norm", "accurate"])
def test_memory_stays_under_the_limit(scaling):
    a, b = wide_normals(17, (700, 1500)), wide_normals(18, (1500, 700))
    limit, threads = 16 << 20, 2
    run(CpuEngine(threads), a[:9], b)
    tracemalloc.start()
    try:
        run(CpuEngine(threads), a, b, scaling=scaling, limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    auxiliary = 16_000_000 if scaling == "accurate" else 0
    assert peak < a.shape[0] * b.shape[1] * 8 + limit + threads * 12_000_000 + auxiliary
