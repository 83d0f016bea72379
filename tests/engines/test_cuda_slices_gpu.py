"""Scheme "slices" where only a GPU can show it: sizes, streams, memory, panels."""

import devices
import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out

import np_ozaki
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import assert_same_bits

pytestmark = pytest.mark.gpu

CPU = CpuEngine()

SLICINGS = (
    Slicing(),
    Slicing(accumulate="float64"),
    Slicing(8, 8, "all"),
    Slicing(16, 8, "all"),
    Slicing(9, 7),
    Slicing(4, 8, ((0, 0), (0, 2), (2, 0), (3, 3))),
)

SPIN = """
extern "C" __global__ void spin(long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}
"""
A_WHILE = np.int64(10**9)


@pytest.fixture(scope="module")
def cupy():
    import cupy

    return cupy


@pytest.fixture(scope="module")
def spin(cupy):
    """Return a function that keeps the current stream busy for a while."""
    kernel = cupy.RawKernel(SPIN, "spin")
    kernel((1,), (1,), (np.int64(1),))
    return lambda: kernel((1,), (1,), (A_WHILE,))


@pytest.fixture(scope="module")
def place():
    return devices.on_gpu()


def pair_of(seed, m, k, n, regime="ordinary", batch=1):
    rng = np.random.default_rng(seed)
    shapes = (batch, m, k), (batch, k, n)
    return [entries(rng, shape, regime) for shape in shapes]


def expected(a, b, slicing):
    out = np.empty((a.shape[0], a.shape[1], b.shape[2]))
    CPU.matmul(a, b, out, slicing)
    return out


@pytest.mark.parametrize("slicing", SLICINGS, ids=str)
@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(513, 700, 257), (33, 9000, 65), (1000, 31, 1100)]
)
def test_bits_of_fresh_data(place, slicing, layout, m, k, n):
    # Other data each time: what a run before left in memory does not help.
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    for regime in ("ordinary", "wide", "any"):
        a, b = pair_of(seed, m, k, n, regime)
        x, y = (laid_out(place.own, v, layout) for v in (a, b))
        for engine in (place.engine, place.unfused):
            out = laid_out(place.own, np.full((1, m, n), POISON), layout)
            engine.matmul(x, y, out, slicing)
            assert_same_bits(place.host(out), expected(a, b, slicing))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
def test_batches_of_every_layout(place, layout, batches):
    rng = np.random.default_rng(1)
    a = entries(rng, (batches[0], 70, 90), "wide")
    b = entries(rng, (batches[1], 90, 50), "wide")
    out = laid_out(place.own, np.full((3, 70, 50), POISON), layout)
    x, y = (laid_out(place.own, v, layout) for v in (a, b))
    place.unfused.matmul(x, y, out, SLICINGS[0])
    want = np.empty((3, 70, 50))
    CPU.matmul(a, b, want, SLICINGS[0])
    assert_same_bits(place.host(out), want)


@pytest.mark.parametrize("k", [(1 << 14), (1 << 16) + 5, (1 << 17) + 3])
def test_sums_of_long_lines(place, k):
    # One sum in several planes, and sums of 64 bits; all digits as large as they get.
    a, b = pair_of(2, 40, k, 30, "same sign")
    a[:, 0], b[:, :, 0] = 1 - 2.0**-8, 1 - 2.0**-8
    out = place.own(np.full((1, 40, 30), POISON))
    place.unfused.matmul(place.own(a), place.own(b), out, SLICINGS[0])
    assert_same_bits(place.host(out), expected(a, b, SLICINGS[0]))


@pytest.mark.parametrize("limit", [4 << 20, 64 << 20])
@pytest.mark.parametrize("host", [False, True])
def test_tiles_within_a_limit(place, limit, host):
    a, b = pair_of(3, 900, 1500, 800)
    own = np.array if host else place.own
    out = own(np.full((1, 900, 800), POISON))
    outcome = place.unfused.matmul(
        own(a), own(b), out, SLICINGS[0], workspace_bytes=limit
    )
    assert outcome.tiles > 1 or limit > 4 << 20
    assert outcome.workspace_bytes <= limit
    assert_same_bits(out if host else place.host(out), expected(a, b, SLICINGS[0]))


@pytest.mark.parametrize("k", [1400, 200_000])
def test_a_limit_of_workspace_is_kept(cupy, place, k):
    # Tiles, and blocks of k.
    x, y = (cupy.ones(shape) for shape in ((1, 300, k), (1, k, 400)))
    out = cupy.full((1, 300, 400), cupy.nan)
    limit = 8 << 20
    pool = cupy.get_default_memory_pool()
    for _ in range(2):  # the first one compiles
        pool.free_all_blocks()
        before = pool.total_bytes()
        outcome = place.engine.matmul(x, y, out, SLICINGS[0], workspace_bytes=limit)
    assert outcome.tiles > 1 or k > 1400
    assert outcome.workspace_bytes <= limit
    # Pieces of memory of one size do not serve for another.
    assert pool.total_bytes() - before <= 2 * limit
    assert (out == k).all()


def test_workspace_is_what_was_planned(cupy, place):
    n = 4096
    x, y = cupy.ones((1, n, n)), cupy.ones((1, n, n))
    out = cupy.empty((1, n, n))
    engine = place.engine
    engine.matmul(x, y, out, SLICINGS[0])
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    outcome = engine.matmul(x, y, out, SLICINGS[0])
    cupy.cuda.Device().synchronize()
    taken = pool.total_bytes() - before
    assert outcome.workspace_bytes <= taken <= outcome.workspace_bytes + (16 << 20)
    # All sums and slices at once, which a product of 8192 does not have room for.
    assert outcome.workspace_bytes < (2 * 8 + 4 * 8) * n * n + 1


@pytest.mark.slow
def test_memory_of_8192(cupy, place):
    n = 8192
    rng = cupy.random.default_rng(1)
    x, y = (rng.standard_normal((1, n, n)) for _ in range(2))
    out = cupy.full((1, n, n), cupy.nan)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    place.engine.matmul(x, y, out, SLICINGS[0])
    cupy.cuda.Device().synchronize()
    assert pool.total_bytes() - before < 3 * 10**9
    a, b = cupy.asnumpy(x[:, 100:104]), cupy.asnumpy(y[:, :, 8000:8008])
    # Entries depend on their row and column alone.
    found = cupy.asnumpy(out[:, 100:104, 8000:8008])
    assert_same_bits(found, expected(a, b, SLICINGS[0]))


def test_work_on_a_stream_follows_what_the_stream_has_before(cupy, spin):
    a, b = pair_of(4, 200, 300, 250)
    want = expected(a, b, Slicing())[0]
    source, y = cupy.asarray(a[0]), cupy.asarray(b[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    options = {"scheme": "slices", "engine": "cuda"}
    with stream:
        x = cupy.zeros_like(source)
        out = cupy.empty((200, 250))
        # Kernels are compiled and memory is taken before it counts.
        np_ozaki.matmul(x, y, out=out, **options)
        stream.synchronize()
        spin()
        x[...] = source
        np_ozaki.matmul(x, y, out=out, **options)
        # Nothing has waited: the first kernel still runs.
        assert not stream.done
    stream.synchronize()
    assert_same_bits(cupy.asnumpy(out), want)


def test_nothing_waits_for_the_default_stream(cupy, spin):
    a, b = (cupy.asarray(x) for x in pair_of(5, 100, 200, 60))
    out = cupy.empty((1, 100, 60))
    engine = devices.on_gpu().engine
    engine.matmul(a, b, out, Slicing())
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    spin()
    with stream:
        engine.matmul(a, b, out, Slicing())
        stream.synchronize()
    assert not cupy.cuda.Stream.null.done


def test_rows_of_nan_and_inf_of_a_large_product(place):
    a, b = pair_of(6, 300, 400, 350)
    a[0, 17, 3], a[0, 40, 5], b[0, 5, 200] = np.nan, np.inf, -np.inf
    b[0, 5, 3] = 0.0
    out = place.own(np.full((1, 300, 350), POISON))
    place.engine.matmul(place.own(a), place.own(b), out, SLICINGS[0])
    assert_same_bits(place.host(out), expected(a, b, SLICINGS[0]))


@pytest.mark.parametrize("layout", ["C", "F"])
def test_maxima_of_many_blocks_in_any_order(place, layout):
    # Largest entries that differ in their last bit, far apart in a line.
    most = float(SLICINGS[0].largest_mantissa)
    rng = np.random.default_rng(7)
    a = rng.uniform(-1, 1, (1, 64, 9000)) * most
    a[0, np.arange(64), rng.integers(0, 9000, 64)] = most
    a[0, ::3, 8888] = most + 1
    b = entries(rng, (1, 9000, 5), "wide")
    out = place.own(np.full((1, 64, 5), POISON))
    x = laid_out(place.own, a, layout)
    place.engine.matmul(x, place.own(b), out, SLICINGS[0])
    assert_same_bits(place.host(out), expected(a, b, SLICINGS[0]))
