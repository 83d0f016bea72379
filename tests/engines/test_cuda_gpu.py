"""What only a GPU can show: memory, streams, devices, copies, foreign arrays."""

import contextlib
import functools
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import devices
import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out

import np_ozaki
from np_ozaki.engines import choice
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu_certificate import HOPELESS
from np_ozaki.testing import assert_same_bits

pytestmark = pytest.mark.gpu

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


def ordinary(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [entries(rng, shape, "ordinary") for shape in shapes]


def on_cpu(a, b, **options):
    return np_ozaki.matmul(a, b, engine="cpu", **options)


# ---- Arrays on the GPU -----------------------------------------------------------


def test_result_lies_where_the_operands_are(cupy):
    a, b = ordinary(1, (70, 90), (90, 50))
    c, info = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), return_info=True)
    assert isinstance(c, cupy.ndarray)
    assert (info.engine, info.num_moduli) == ("cuda", 15)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))


@pytest.mark.parametrize(
    "shapes",
    [
        ((7,), (7,)),
        ((7,), (7, 3)),
        ((3, 7), (7,)),
        ((2, 1, 3, 7), (4, 7, 5)),
        ((0, 3), (3, 2)),
    ],
)
def test_shapes_follow_numpy(cupy, shapes):
    a, b = ordinary(2, *shapes)
    c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b))
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))


@pytest.mark.parametrize("device_first", [True, False])
def test_one_operand_on_the_host(cupy, device_first):
    a, b = ordinary(3, (20, 30), (30, 10))
    pair = (cupy.asarray(a), b) if device_first else (a, cupy.asarray(b))
    c = np_ozaki.matmul(*pair)
    assert isinstance(c, cupy.ndarray)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))


class ByInterface:
    """Nothing but ``__cuda_array_interface__``."""

    def __init__(self, x):
        self._x = x

    @property
    def __cuda_array_interface__(self):
        return self._x.__cuda_array_interface__


class ByDlpack:
    """Nothing but DLPack."""

    def __init__(self, x):
        self._x = x

    def __dlpack__(self, **options):
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._x.__dlpack_device__()


@pytest.mark.parametrize("wrap", [ByInterface, ByDlpack])
def test_arrays_of_other_libraries(cupy, wrap):
    a, b = ordinary(4, (33, 44), (44, 22))
    x, y = cupy.asarray(a), cupy.asarray(b).T.copy().T
    c = np_ozaki.matmul(wrap(x), wrap(y))
    assert isinstance(c, cupy.ndarray)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))
    out = cupy.full((33, 22), np.nan)
    target = wrap(out)
    assert np_ozaki.matmul(wrap(x), y, out=target) is target
    assert_same_bits(cupy.asnumpy(out), on_cpu(a, b))


def test_tensors_of_torch(cupy):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    a, b = ordinary(5, (21, 34), (34, 13))
    x, y = (torch.from_numpy(v).cuda() for v in (a, b))
    c = np_ozaki.matmul(x, y)
    assert isinstance(c, cupy.ndarray)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))
    c = np_ozaki.matmul(y.T, x.T)
    assert_same_bits(cupy.asnumpy(c), on_cpu(b.T, a.T))


# ---- out -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_out_of_any_layout(cupy, place, layout):
    a, b = ordinary(6, (2, 40, 30), (2, 30, 20))
    out = laid_out(place.own, np.full((2, 40, 20), POISON), layout)
    assert np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), out=out) is out
    assert_same_bits(cupy.asnumpy(out), on_cpu(a, b))


def test_out_that_overlaps_an_operand(cupy):
    a, b = ordinary(7, (25, 25), (25, 25))
    x, y = cupy.asarray(a), cupy.asarray(b)
    assert np_ozaki.matmul(x, y, out=x) is x
    assert_same_bits(cupy.asnumpy(x), on_cpu(a, b))
    whole = cupy.asarray(np.concatenate([b, b]))
    np_ozaki.matmul(cupy.asarray(a), whole[:25], out=whole[5:30])
    assert_same_bits(cupy.asnumpy(whole[5:30]), on_cpu(a, b))


def test_out_of_another_dtype_is_cast(cupy):
    a, b = ordinary(8, (5, 6), (6, 4))
    out = cupy.full((5, 4), np.nan, np.float32)
    np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), out=out)
    assert np.array_equal(cupy.asnumpy(out), on_cpu(a, b).astype(np.float32))
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.matmul(cupy.asarray(a), b, out=cupy.zeros((5, 4), int))


def test_out_that_does_not_fit_is_refused(cupy):
    a, b = (cupy.asarray(x) for x in ordinary(9, (5, 6), (6, 4)))
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.matmul(a, b, out=cupy.zeros((4, 5)))
    with pytest.raises(np_ozaki.OperandTypeError, match=r"cupy\.ndarray"):
        np_ozaki.matmul(a, b, out=np.zeros((5, 4)))


# ---- What is not the engine's ----------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_other_dtypes_go_native(cupy, dtype):
    a, b = (np.rint(9 * x).astype(dtype) for x in ordinary(10, (6, 7), (7, 5)))
    c, info = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), return_info=True)
    assert info.engine == "native"
    assert info.fallback.startswith("dtypes")
    assert c.dtype == dtype
    assert np.array_equal(cupy.asnumpy(c), a @ b)


def test_integers_by_doubles_are_the_engines(cupy):
    a, b = np.arange(12).reshape(3, 4), ordinary(11, (4, 5))[0]
    c, info = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), return_info=True)
    assert info.engine == "cuda"
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))


def test_engines_by_name_with_arrays_on_the_gpu(cupy):
    a, b = ordinary(12, (30, 40), (40, 20))
    x, y = cupy.asarray(a), cupy.asarray(b)
    c, info = np_ozaki.matmul(x, y, engine="cpu", return_info=True)
    assert isinstance(c, cupy.ndarray)
    assert info.engine == "cpu"
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b))
    out = cupy.full((30, 20), np.nan)
    assert np_ozaki.matmul(x, y, engine="cpu", out=out) is out
    assert_same_bits(cupy.asnumpy(out), on_cpu(a, b))
    c, info = np_ozaki.matmul(x, y, engine="native", return_info=True)
    assert info.engine == "native"
    np.testing.assert_allclose(cupy.asnumpy(c), a @ b, rtol=1e-10, atol=1e-12)


def test_ranges_too_wide_to_certify_go_native_on_the_gpu(cupy):
    a, b = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])
    c, info = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), return_info=True)
    assert info.engine == "native"
    assert_same_bits(cupy.asnumpy(c), a @ b)


# ---- Sizes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (70_000, 2, 3),  # more rows than a grid has
        (3, 2, 70_000),
        (2, 6144, 3),  # beside and beyond the shared memory of a line
        (2, 6145, 3),
        (2, 8192, 3),
        (2, 8193, 3),
        (2, 131_072, 2),  # one block of k, and more
        (2, 131_073, 2),
        (3, 300_001, 2),
        (513, 517, 509),
    ],
)
@pytest.mark.parametrize("layout", ["C", "F"])
def test_sizes_beside_every_limit(cupy, m, k, n, layout):
    a, b = ordinary(13, (m, k), (k, n))
    x = cupy.asarray(a, order=layout)
    c = np_ozaki.matmul(x, cupy.asarray(b), precision=15)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b, precision=15))


def test_equal_entries_over_several_blocks_of_k(cupy):
    a, b = np.full((2, 400_003), 0.1), np.full((400_003, 2), 0.3)
    c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), precision=15)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b, precision=15))


def test_large_batches(cupy):
    a, b = ordinary(14, (70_000, 2, 3), (70_000, 3, 2))
    c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), precision=15)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b, precision=15))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
@pytest.mark.parametrize("n", range(2, 50))
def test_every_number_of_moduli(cupy, n, scaling):
    rng = np.random.default_rng(n)
    a, b = entries(rng, (60, 90), "wide"), entries(rng, (90, 70), "ordinary")
    options = {"precision": n, "scaling": scaling}
    c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), **options)
    assert_same_bits(cupy.asnumpy(c), on_cpu(a, b, **options))


# ---- Operands on the host --------------------------------------------------------


def pageable(x):
    return np.array(x)


def pinned(x):
    import cupyx

    copy = cupyx.empty_pinned(x.shape)
    copy[...] = x
    return copy


# More than one piece of 16 MiB each way; a row longer than a piece; many matrices.
LARGE = {
    "operands": ((1, 300, 8000), (1, 8000, 300)),
    "result": ((1, 1600, 20), (1, 20, 1500)),
    "one row": ((1, 1, 2_200_000), (1, 2_200_000, 1)),
    "batch": ((3000, 30, 30), (3000, 30, 30)),
    "broadcast": ((1, 30, 30), (3000, 30, 30)),
}


@functools.cache
def large(name):
    a, b = ordinary(15, *LARGE[name])
    return a, b, on_cpu(a, b, precision=15)


@pytest.mark.parametrize("own", [pageable, pinned])
@pytest.mark.parametrize("name", list(LARGE))
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_large_operands_on_the_host(own, name, layout):
    a, b, want = large(name)
    x, y = laid_out(own, a, layout), laid_out(own, b, layout)
    assert_same_bits(np_ozaki.matmul(x, y, precision=15, engine="cuda"), want)
    out = laid_out(own, np.full(want.shape, POISON), layout)
    np_ozaki.matmul(x, y, precision=15, engine="cuda", out=out)
    assert_same_bits(out, want)
    if layout == "spread":
        base = out if out.base is None else out.base
        whole = np.array(base).reshape(want.shape[0], 2 * want.shape[1], -1)
        whole[:, ::2, 1::3] = POISON
        assert_same_bits(whole, np.full(whole.shape, POISON))


@pytest.mark.parametrize("own", [pageable, pinned])
@pytest.mark.parametrize("scaling", ["norm", "accurate"])
@pytest.mark.parametrize("limit", [4 << 20, 64 << 20])
def test_operands_on_the_host_in_panels(own, scaling, limit):
    a, b = ordinary(16, (900, 1100), (1100, 1000))
    options = {"precision": 15, "scaling": scaling}
    c, info = np_ozaki.matmul(
        own(a),
        own(b),
        engine="cuda",
        workspace_bytes=limit,
        return_info=True,
        **options,
    )
    assert info.tiles > 1
    assert_same_bits(c, on_cpu(a, b, **options))


def test_scope_on_the_gpu_has_the_cpu_engines_bits():
    blas = pytest.importorskip("scipy.linalg.blas")
    a, b = ordinary(17, (220, 310), (310, 180))

    def products():
        yield a @ b
        yield np.dot(a, b)
        yield np.einsum("ij,jk->ki", a, b)
        yield blas.dgemm(2.0, a, b, beta=0.0)
        yield blas.dsyrk(1.0, a)
        yield np.linalg.multi_dot([a, b, b.T])

    with np_ozaki.enabled(engine="cpu", min_flops=0):
        want = list(products())
    with np_ozaki.enabled(engine="cuda", min_flops=0):
        found = list(products())
    for x, y in zip(found, want, strict=True):
        assert_same_bits(x, y)


# ---- Streams ---------------------------------------------------------------------


def test_work_on_a_stream_follows_what_the_stream_has_before(cupy, spin):
    a, b = ordinary(18, (200, 300), (300, 250))
    want = on_cpu(a, b, precision=15)
    source, y = cupy.asarray(a), cupy.asarray(b)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        x = cupy.zeros_like(source)
        out = cupy.empty((200, 250))
        # Kernels are compiled and memory is taken before it counts.
        np_ozaki.matmul(x, y, precision=15, out=out)
        stream.synchronize()
        spin()
        x[...] = source
        np_ozaki.matmul(x, y, precision=15, out=out)
        # Nothing has waited: the first kernel still runs.
        assert not stream.done
    stream.synchronize()
    assert_same_bits(cupy.asnumpy(out), want)


def test_products_in_a_row_that_need_each_other(cupy):
    """Kernels overlap; the result of one is an operand of the next."""
    (a,) = ordinary(64, (300, 300))
    x, y = cupy.asarray(a), cupy.asarray(a / 16)
    rooms = [cupy.empty_like(x) for _ in range(2)]

    def chain(wait):
        last = x
        for turn in range(40):
            last = np_ozaki.matmul(last, y, precision=15, out=rooms[turn % 2])
            last *= 0.9
            if wait:
                cupy.cuda.Device().synchronize()
        return cupy.asnumpy(last)

    want = chain(wait=True)
    for _ in range(10):
        assert_same_bits(chain(wait=False), want)


def test_a_replay_follows_what_another_stream_writes(cupy, spin):
    a, b = ordinary(65, (200, 300), (300, 250))
    want = on_cpu(a, b, precision=15)
    source, x, y = cupy.asarray(a), cupy.asarray(a), cupy.asarray(b)
    out = cupy.empty((200, 250))
    main, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        with main:
            np_ozaki.matmul(x, y, precision=15, out=out)
            before = main.record()
        with other:
            other.wait_event(before)
            x.fill(0)
            spin()
            x[...] = source
            after = other.record()
        with main:
            main.wait_event(after)
            np_ozaki.matmul(x, y, precision=15, out=out)
        main.synchronize()
        assert_same_bits(cupy.asnumpy(out), want)


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
def test_nothing_waits_for_the_default_stream(cupy, spin, scaling):
    a, b = ordinary(19, (200, 300), (300, 250))
    x, y = cupy.asarray(a), cupy.asarray(b)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    options = {"precision": 15, "scaling": scaling}
    with stream:
        out = cupy.full((200, 250), np.nan)
        np_ozaki.matmul(x, y, out=out, **options)
        out.fill(np.nan)
        stream.synchronize()
    spin()
    with stream:
        np_ozaki.matmul(x, y, out=out, **options)
        stream.synchronize()
        # What the product needs cannot lie behind this.
        assert not cupy.cuda.Stream.null.done
        c = cupy.asnumpy(out, stream=stream)
    assert_same_bits(c, on_cpu(a, b, **options))
    cupy.cuda.Device().synchronize()


def test_operands_on_the_host_on_a_stream(cupy, spin):
    a, b = ordinary(20, (200, 300), (300, 250))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        spin()
        c = np_ozaki.matmul(a, b, precision=15, engine="cuda")
    assert_same_bits(c, on_cpu(a, b, precision=15))


def test_memory_of_a_product_is_not_reused_before_it_ends(cupy, spin):
    # The workspace is freed when matmul returns, long before the kernels run.
    a, b = ordinary(21, (150, 200), (200, 100))
    x, y = cupy.asarray(a), cupy.asarray(b)
    want = on_cpu(a, b, precision=15)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        spin()
        results = [np_ozaki.matmul(x, y, precision=15) for _ in range(20)]
        other = cupy.full(1 << 20, POISON)
    stream.synchronize()
    for c in results:
        assert_same_bits(cupy.asnumpy(c), want)
    assert other.size == 1 << 20


def test_threads_with_streams_of_their_own(cupy):
    pairs = [ordinary(30 + i, (90, 120), (120, 80)) for i in range(6)]
    want = [on_cpu(a, b) for a, b in pairs]
    wrong = []

    def work(i):
        a, b = pairs[i]
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(10):
                c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b))
                d = np_ozaki.matmul(a, b, engine="cuda")
                stream.synchronize()
                same = np.array_equal(cupy.asnumpy(c), want[i])
                if not same or not np.array_equal(d, want[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_second_device(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device")
    a, b = ordinary(22, (60, 70), (70, 50))
    want = on_cpu(a, b)
    with cupy.cuda.Device(1):
        c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b))
        assert c.device.id == 1
        assert_same_bits(cupy.asnumpy(c), want)
        assert_same_bits(np_ozaki.matmul(a, b, engine="cuda"), want)
    with cupy.cuda.Device(0):
        assert_same_bits(np_ozaki.matmul(a, b, engine="cuda"), want)


def test_timeline_names_the_stages(cupy):
    engine = choice.cuda_engine()
    x, y = (cupy.asarray(v) for v in ordinary(23, (64, 64), (64, 64)))
    with engine.device.timeline() as times:
        np_ozaki.matmul(x, y, precision=15)
    assert {"residues", "residue_gemm", "reconstruct"} <= set(times)
    with engine.device.timeline() as times:
        np_ozaki.matmul(x, y)
    assert "certificate" in times


def test_native_product_leaves_the_math_mode_alone(cupy):
    from cupy_backends.cuda.libs import cublas

    handle = cupy.cuda.device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    x = cupy.ones((2, 3, 3))
    choice.cuda_engine().native(x, x)
    assert cublas.getMathMode(handle) == before


# ---- Memory ----------------------------------------------------------------------


def test_a_thousand_calls_take_no_memory(cupy):
    rng = np.random.default_rng(24)
    pool = cupy.get_default_memory_pool()
    shapes = [tuple(int(s) for s in rng.integers(1, 300, 3)) for _ in range(25)]
    pairs = [ordinary(i, (m, k), (k, n)) for i, (m, k, n) in enumerate(shapes)]
    on_gpu = [tuple(map(cupy.asarray, pair)) for pair in pairs]
    variants = [{}, {"precision": 15}, {"precision": 15, "scaling": "accurate"}]

    def call(i, host, options):
        pair = pairs[i] if host else on_gpu[i]
        np_ozaki.matmul(*pair, engine="cuda", **options)

    def state():
        gc.collect()
        cupy.cuda.Device().synchronize()
        used = pool.used_bytes()
        pool.free_all_blocks()
        return used, cupy.cuda.runtime.memGetInfo()[0]

    for i in range(len(pairs)):
        for options in variants:
            call(i, False, options)
            call(i, True, options)
    used, free = state()
    for _ in range(1000):
        call(rng.integers(len(pairs)), rng.random() < 0.3, rng.choice(variants))
    used_after, free_after = state()
    assert used_after == used
    # The driver may take a little for itself.
    assert free_after >= free - (32 << 20)


def empty_the_pool(cupy):
    """Give back what CuPy keeps, so that new arrays share no block with it."""
    gc.collect()
    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


@contextlib.contextmanager
def room_for(cupy, size):
    """Let CuPy's pool grow by so many bytes only."""
    empty_the_pool(cupy)
    pool = cupy.get_default_memory_pool()
    pool.set_limit(size=pool.total_bytes() + size)
    try:
        yield
    finally:
        pool.set_limit(size=0)


@pytest.mark.parametrize("host", [False, True])
def test_no_memory_for_the_smallest_tile(cupy, host):
    a, b = ordinary(25, (1000, 1000), (1000, 1000))
    own = np.array if host else cupy.asarray
    empty_the_pool(cupy)
    x, y, out = own(a), own(b), own(np.zeros((1000, 1000)))
    pool = cupy.get_default_memory_pool()
    with room_for(cupy, 64 << 10):
        used = pool.used_bytes()
        with pytest.raises(np_ozaki.WorkspaceError) as raised:
            np_ozaki.matmul(x, y, out=out, precision=15, engine="cuda")
        assert isinstance(raised.value, MemoryError)
        del raised
        gc.collect()
        assert pool.used_bytes() == used
    c = np_ozaki.matmul(x, y, out=out, precision=15, engine="cuda")
    c = c if host else cupy.asnumpy(c)
    assert_same_bits(c, on_cpu(a, b, precision=15))


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("room", [12 << 20, 24 << 20, 40 << 20])
def test_smaller_tiles_where_memory_is_short(cupy, room, host):
    a, b = ordinary(26, (1000, 1100), (1100, 1000))
    own = np.array if host else cupy.asarray
    empty_the_pool(cupy)
    x, y, out = own(a), own(b), own(np.full((1000, 1000), POISON))
    with room_for(cupy, room):
        c, info = np_ozaki.matmul(
            x, y, out=out, precision=15, engine="cuda", return_info=True
        )
    assert info.tiles > 1
    c = c if host else cupy.asnumpy(c)
    assert_same_bits(c, on_cpu(a, b, precision=15))


def test_a_limit_of_workspace_is_kept(cupy):
    a, b = (cupy.asarray(x) for x in ordinary(27, (1500, 1400), (1400, 1600)))
    want = cupy.asnumpy(np_ozaki.matmul(a, b, precision=15))
    out = cupy.empty_like(want)
    pool = cupy.get_default_memory_pool()
    limit = 16 << 20
    with room_for(cupy, 2 * limit):
        before = pool.total_bytes()
        _, info = np_ozaki.matmul(
            a, b, out=out, precision=15, workspace_bytes=limit, return_info=True
        )
        assert info.workspace_bytes <= limit
        assert pool.total_bytes() - before <= 2 * limit
    assert_same_bits(cupy.asnumpy(out), want)


# ---- Again and again --------------------------------------------------------------


def test_repeated_products_have_the_same_bits(cupy):
    a, b = (cupy.asarray(x) for x in ordinary(28, (1024, 2048), (2048, 1024)))
    first = np_ozaki.matmul(a, b, precision=15)
    for _ in range(20):
        again = np_ozaki.matmul(a, b, precision=15)
        assert bool((again.view(np.int64) == first.view(np.int64)).all())


def test_gram_matrices_are_symmetric(cupy):
    a = cupy.asarray(ordinary(29, (700, 900))[0])
    c = cupy.asnumpy(np_ozaki.matmul(a, a.T, precision=15))
    assert_same_bits(c, c.T.copy())


def test_entries_that_cannot_be_seen_are_counted_by_squares(cupy):
    # 2048 of them in each square of 512 rows: with this k just not too many.
    k, n = 1 << 17, 4
    rng = np.random.default_rng(31)
    a = np.ldexp(rng.standard_normal((1, 1024, k)), -40)
    b = rng.standard_normal((1, k, n))
    a[:, :, 0], b[:, 0, :] = 1.0, 0.0
    found = []
    engines = (choice.cpu_engine(), np.asarray), (choice.cuda_engine(), cupy.asarray)
    for engine, give in engines:
        out = give(np.empty((1, 1024, n)))
        outcome = engine.matmul(
            give(a),
            give(b),
            out,
            Scheme(15),
            certify="conventional",
        )
        found.append(int(outcome.missing_bits[0]))
    assert found[0] == found[1]
    assert 0 < found[0] < HOPELESS


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_out_is_checked_whoever_multiplies(cupy, engine):
    x = cupy.ones((1, 2)), cupy.ones((2, 2))
    good = cupy.empty((1, 2))
    assert np_ozaki.matmul(*x, good, engine=engine) is good
    assert (good == 2).all()
    for out, error in (
        (cupy.empty((1, 2), dtype=int), np_ozaki.OperandTypeError),
        (cupy.empty((2, 2)), np_ozaki.ShapeError),
        (np.empty((1, 2)), np_ozaki.OperandTypeError),
    ):
        with pytest.raises(error, match="out"):
            np_ozaki.matmul(*x, out, engine=engine)


def test_operands_of_another_device_are_refused(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device")
    x = cupy.ones((64, 64))
    with cupy.cuda.Device(1):
        with pytest.raises(np_ozaki.OperandTypeError, match="device 0"):
            np_ozaki.matmul(x, x)
        y = cupy.ones((64, 64))
        assert (np_ozaki.matmul(y, y) == 64).all()


def test_strides_that_are_no_doubles(cupy):
    packed = np.dtype([("skip", "i4"), ("value", "f8")])
    host = np.zeros((4, 4), packed)
    host["value"] = np.arange(16.0).reshape(4, 4)
    raw = cupy.asarray(host.view(np.uint8).reshape(4, 4 * 12))

    interface = {
        "shape": (4, 4),
        "strides": (48, 12),
        "typestr": "<f8",
        "data": (raw.data.ptr + 4, False),
        "version": 3,
    }
    field = type("Field", (), {"__cuda_array_interface__": interface})()
    c = np_ozaki.matmul(field, cupy.eye(4))
    assert (cupy.asnumpy(c) == host["value"]).all()


# ---- Schemes at the size of a GPU's blocks and copies ----------------------------


@pytest.mark.parametrize("workspace", [None, 1 << 24])
def test_result_and_rest_share_the_copies_of_a_host_product(workspace):
    a, b = ordinary(50, (1, 900, 700), (1, 700, 1100))
    rows, columns = np.full((1, 900), 3), np.arange(1100)[np.newaxis] % 7
    results = []
    for engine in (choice.cpu_engine(), choice.cuda_engine()):
        out, low = np.full((2, 1, 900, 1100), POISON)
        engine.matmul(
            a,
            b,
            out,
            Scheme(15),
            workspace_bytes=workspace,
            line_shifts=(rows, columns),
            low=low,
        )
        results.append((out, low))
    for found, want in zip(results[1], results[0], strict=True):
        assert_same_bits(found, want)


@pytest.mark.parametrize("num_moduli", [9, 49])
def test_lent_bits_over_many_blocks(cupy, num_moduli):
    (b,) = ordinary(51, (2, 600, 500))
    rng = np.random.default_rng(51)
    a = rng.integers(0, 2, (2, 300, 600)).astype(np.float64)
    cpu, cuda = choice.cpu_engine(), choice.cuda_engine()
    spare = int(cpu.line_exponents(a, num_moduli, left=True).min())
    for shift, x, y in ((spare, a, b), (-spare, b.swapaxes(1, 2), a.swapaxes(1, 2))):
        scheme = Scheme(num_moduli, shift=shift)
        want = np.empty((2, x.shape[1], y.shape[2]))
        outcome = cpu.matmul(x, y, want, scheme, certify=-40)
        out = cupy.empty(want.shape)
        found = cuda.matmul(*map(cupy.asarray, (x, y)), out, scheme, certify=-40)
        assert_same_bits(cupy.asnumpy(out), want)
        assert found.missing_bits.tolist() == outcome.missing_bits.tolist()


@pytest.mark.parametrize("layout", ["C", "F", "spread"])
def test_maxima_of_many_blocks_in_any_order(cupy, layout):
    rng = np.random.default_rng(52)
    a, b = ordinary(52, (2, 700, 900), (2, 900, 650))
    steps = rng.integers(-200, 200, 900)
    a, b = np.ldexp(a, steps), np.ldexp(b, -steps[:, np.newaxis])
    x, y = (laid_out(cupy.asarray, v, layout) for v in (a, b))
    cpu, cuda = choice.cpu_engine(), choice.cuda_engine()
    want, found = cpu.rebalance(a, b), cuda.rebalance(x, y)
    assert want.spread.all()
    for name in ("rows", "columns", "spread"):
        assert np.array_equal(getattr(found, name), getattr(want, name))
    assert_same_bits(cupy.asnumpy(found.a), want.a)
    assert_same_bits(cupy.asnumpy(found.b), want.b)
    for left, given, host in ((True, x, a), (False, y, b)):
        pairs = zip(
            cuda.line_units(given, left=left),
            cpu.line_units(host, left=left),
            strict=True,
        )
        assert all(np.array_equal(u, v) for u, v in pairs)
    for given, host in zip(cuda.samples(x, y), cpu.samples(a, b), strict=True):
        assert_same_bits(given, host)


# ---- Checks at the size of a GPU's blocks ----------------------------------------


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize(
    ("shape", "workspace"),
    [
        ((1, 1100, 4200, 900), None),
        ((1, 1100, 4200, 900), 1 << 24),
        ((3, 300, 700, 500), None),
        ((1, 9000, 50, 33), None),
        ((1, 33, 50, 9000), None),
    ],
)
@pytest.mark.parametrize("host", [True, False])
def test_checks_change_no_bits(cupy, layout, shape, workspace, host):
    batch, m, k, n = shape
    rng = np.random.default_rng(60)
    a, b = entries(rng, (batch, m, k), "wide"), entries(rng, (batch, k, n), "wide")
    a[0, m // 2, 3], b[-1, 5, n // 2] = np.nan, np.inf
    own = np.array if host else cupy.asarray
    x, y = laid_out(own, a, layout), laid_out(own, b, "C")
    cpu, cuda = choice.cpu_engine(), choice.cuda_engine()
    for scheme in (Scheme(15), Scheme(20, "accurate")):
        want = np.empty((batch, m, n))
        cpu.matmul(a, b, want, scheme)
        out = laid_out(own, np.zeros_like(want), layout)
        cuda.matmul(x, y, out, scheme, workspace_bytes=workspace, check=True)
        assert_same_bits(cupy.asnumpy(out), want)


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("workspace", [None, 1 << 24])
def test_one_wrong_product_of_many_is_found(cupy, monkeypatch, layout, workspace):
    a, b = ordinary(61, (2, 1030, 700), (2, 700, 900))
    x, y = (laid_out(cupy.asarray, v, layout) for v in (a, b))
    engine = choice.cuda_engine()
    right = laid_out(cupy.asarray, np.zeros((2, 1030, 900)), layout)
    out = laid_out(cupy.asarray, np.zeros((2, 1030, 900)), layout)
    scheme, options = Scheme(15), {"workspace_bytes": workspace}
    engine.matmul(x, y, right, scheme, **options)
    rng = np.random.default_rng(62)
    # Residue tiles have a test of their own: int32 products here.
    monkeypatch.setattr(engine.device, "tile_clusters", lambda: 0)
    gemm = type(engine).residue_gemm
    spoiled = []

    def spoiling(left, other, *rest, **keywords):
        products = gemm(engine, left, other, *rest, **keywords)
        if not spoiled:
            at = int(rng.integers(15)), 0, int(rng.integers(200)), int(rng.integers(90))
            products[at] ^= 1 << int(rng.integers(8))
            spoiled.append(at)
        return products

    monkeypatch.setattr(engine, "residue_gemm", spoiling, raising=False)
    for _ in range(20):
        with pytest.raises(np_ozaki.errors.CheckError) as caught:
            engine.matmul(x, y, out, scheme, check=True, **options)
        ((h, i, j),) = cupy.asnumpy(cupy.argwhere(out != right)).tolist()
        error = caught.value
        assert (error.matrix, error.rows, error.columns) == (h, (i,), (j,))
        spoiled.clear()


def test_a_checked_product_waits_once(cupy, monkeypatch):
    x, y = (cupy.asarray(v) for v in ordinary(63, (3, 300, 200), (3, 200, 300)))
    out = cupy.zeros((3, 300, 300))
    engine = choice.cuda_engine()
    fetched = []
    fetch = engine.device.fetch

    def counted(array):
        fetched.append(array.size)
        return fetch(array)

    monkeypatch.setattr(engine.device, "fetch", counted, raising=False)
    engine.matmul(x, y, out, Scheme(15), workspace_bytes=1 << 20, check=True)
    assert fetched == [2 * 3 * (300 + 300)]


def test_a_launch_that_the_driver_refuses_raises_what_cupys_own_do(cupy):
    from np_ozaki.engines.cuda_launch import Launch

    kernel = cupy.RawKernel(SPIN, "spin").kernel
    told = np.ones(1, np.int64)
    launch = Launch(kernel, (1,), (1,), [told], 0)
    launch(cupy.cuda.get_current_stream().ptr)
    refused = Launch(kernel, (1,), (2048,), [told], 0)
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        refused(cupy.cuda.get_current_stream().ptr)


@pytest.mark.parametrize("moved", [False, True])
def test_the_first_that_a_thread_does_may_be_a_replay(cupy, moved):
    from np_ozaki.engines import cuda_hopper

    a = cupy.ones((64, 64))
    for _ in range(3):
        want = np_ozaki.matmul(a, a, precision=15).get()

    def work():
        if moved:  # as by other addresses
            cuda_hopper._tensor_map.cache_clear()
            for recording in choice.cuda_engine()._recordings.values():
                if recording is not None:
                    recording._bases = ()
        return np_ozaki.matmul(a, a, precision=15)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work).result()
    assert_same_bits(found.get(), want)


def test_a_shortcut_queues_on_the_current_stream(cupy, spin):
    a, b = cupy.ones((2, 64, 64))
    out = cupy.zeros((64, 64))
    for _ in range(3):
        np_ozaki.matmul(a, b, out, precision=15)
    out.fill(0.0)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        spin()
        np_ozaki.matmul(a, b, out, precision=15)
        assert not stream.done
    assert not out.get().any()
    stream.synchronize()
    assert (out.get() == 64.0).all()
