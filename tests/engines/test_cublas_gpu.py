"""Engine "cublas" on a GPU: what the library really does."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out

import np_ozaki
from np_ozaki.engines import choice
from np_ozaki.engines.cublas import Settings
from np_ozaki.testing import assert_same_bits

pytestmark = pytest.mark.gpu

MIB = 1 << 20
UNIT = 2.0**-53


@pytest.fixture(scope="module")
def cupy():
    import cupy

    reason = choice.cublas_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return cupy


def by_cublas(cupy, a, b, layout="C", out_layout="C", **options):
    """Return the product of host arrays on the device, and its info; check both."""
    x, y = (
        laid_out(cupy.asarray, z.reshape(-1, *z.shape[-2:]), layout) for z in (a, b)
    )
    shape = (max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2])
    out = laid_out(cupy.asarray, np.full(shape, POISON), out_layout)
    result, call = np_ozaki.matmul(
        x, y, out, engine="cublas", return_info=True, **options
    )
    assert result is out
    assert (call.engine, call.fallback) == ("cublas", None)
    return cupy.asnumpy(out), call


def error(c, a, b):
    """Return the largest error relative to |A||B|, in units of 2^-53."""
    exact = np_ozaki.matmul(a, b, engine="cpu", precision=30, output="dd")
    size = np.abs(a) @ np.abs(b)
    return float((np.abs((c - exact.hi) - exact.lo) / size).max() / UNIT)


def test_it_is_listed(cupy):
    assert np_ozaki.info().engines["cublas"] == "available"
    assert choice.resolve(np_ozaki.config.Options(engine="cublas")) == "cublas"


# ---- Accuracy --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(150, 130, 600), (512, 512, 512), (65, 33, 20000)])
@pytest.mark.parametrize("regime", ["ordinary", "same sign"])
def test_errors_are_below_those_of_native_products(cupy, shape, regime):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = entries(rng, (m, k), regime), entries(rng, (k, n), regime)
    c, call = by_cublas(cupy, a, b)
    native = cupy.asnumpy(choice.cuda_engine().native(cupy.asarray(a), cupy.asarray(b)))
    assert call.mantissa_bits == 55
    # One rounding, and next to nothing before it.
    assert error(c[0], a, b) <= max(2.0, error(native, a, b))


def test_it_is_an_emulation(cupy):
    a, b = (entries(np.random.default_rng(i), (512, 512), "ordinary") for i in (1, 2))
    c, _ = by_cublas(cupy, a, b)
    native = cupy.asnumpy(choice.cuda_engine().native(cupy.asarray(a), cupy.asarray(b)))
    assert (c[0] != native).mean() > 0.1


def test_bits_decide_the_accuracy(cupy):
    a, b = (entries(np.random.default_rng(i), (256, 512), "ordinary") for i in (3, 4))
    b = b.T.copy()
    errors = {}
    for bits in (15, 31, 47, 55):
        c, call = by_cublas(cupy, a, b, mantissa_bits=bits)
        assert call.mantissa_bits == bits
        errors[bits] = error(c[0], a, b)
    assert errors[15] > 2.0**10 * errors[31] > 2.0**20 * errors[47]
    # The mantissa fills whole slices of 8 bits with the sign.
    assert errors[31] < 2.0**26
    fewer, _ = by_cublas(cupy, a, b, num_slices=4)
    assert errors[15] > error(fewer[0], a, b) >= errors[47]


def test_integers_are_exact(cupy):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-1000, 1000, (3, 96, 96)).astype(float) for _ in "ab")
    c, _ = by_cublas(cupy, a, b)
    assert (c == a @ b).all()


# ---- NaN and Inf -----------------------------------------------------------------


@pytest.mark.parametrize("control", ["fixed", "dynamic"])
@pytest.mark.parametrize("shape", [(64, 48, 80), (1, 1, 3), (300, 257, 129)])
def test_nan_and_inf_are_where_ieee_arithmetic_puts_them(cupy, shape, control):
    m, n, k = shape
    rng = np.random.default_rng(6)
    for put in (
        {"a": [np.nan]},
        {"b": [np.inf]},
        {"a": [-np.inf], "b": [0.0, -0.0]},
        {"a": [np.inf, -np.inf, np.nan], "b": [np.inf, -np.inf, 0.0, np.nan]},
        {},
    ):
        a, b = entries(rng, (m, k), "ordinary"), entries(rng, (k, n), "ordinary")
        for x, values in ((a, put.get("a", [])), (b, put.get("b", []))):
            for value in values:
                x[rng.integers(x.shape[0]), rng.integers(x.shape[1])] = value
        with np.errstate(all="ignore"):
            expected = a @ b
        c, _ = by_cublas(cupy, a, b, mantissa_control=control)
        assert (np.isnan(c[0]) == np.isnan(expected)).all(), put
        infinite = np.isinf(expected)
        assert (np.isinf(c[0]) == infinite).all(), put
        assert (c[0][infinite] == expected[infinite]).all(), put
        finite = np.isfinite(expected)
        assert np.allclose(c[0][finite], expected[finite], rtol=1e-9, atol=1e-9)


def test_overflow_and_underflow(cupy):
    a = np.array([[1e300, 1.0], [1e-300, 0.0], [-1e300, 0.0]])
    b = np.array([[1e300, 1e-300], [1.0, 1.0]])
    with np.errstate(all="ignore"):
        expected = a @ b
    c, _ = by_cublas(cupy, a, b)
    assert (np.isinf(c[0]) == np.isinf(expected)).all()
    # Beside 1 nothing is left of 1e-300 in a column of fixed point.
    assert (np.sign(c[0, :, 0]) == np.sign(expected[:, 0])).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        np_ozaki.matmul(a, b, engine="cublas")


# ---- Where operands lie ----------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_layout", LAYOUTS)
def test_strides_change_no_bit(cupy, layout, out_layout):
    a, b = (entries(np.random.default_rng(i), (3, 70, 70), "ordinary") for i in (7, 8))
    plain, _ = by_cublas(cupy, a, b)
    assert np.allclose(plain, a @ b)
    other, _ = by_cublas(cupy, a, b, layout, out_layout)
    # Another order in memory may be another kernel; its sums are exact all the same.
    assert np.abs(other - plain).max() <= 4 * UNIT * (np.abs(a) @ np.abs(b)).max()


@pytest.mark.parametrize(("first", "second"), [(1, 5), (5, 1), (5, 5), (1, 1)])
def test_batches(cupy, first, second):
    rng = np.random.default_rng(9)
    a = entries(rng, (first, 40, 50), "ordinary")
    b = entries(rng, (second, 50, 30), "ordinary")
    c, call = by_cublas(cupy, a, b)
    assert call.batch == max(first, second)
    assert np.allclose(c, a @ b, rtol=1e-12, atol=1e-12)


def test_shapes_of_numpy(cupy):
    rng = np.random.default_rng(10)
    for left, right in (
        ((7,), (7,)),
        ((5, 7), (7,)),
        ((7,), (7, 3)),
        ((4, 1, 7), (7, 2)),
    ):
        a, b = entries(rng, left, "ordinary"), entries(rng, right, "ordinary")
        c = np_ozaki.matmul(cupy.asarray(a), cupy.asarray(b), engine="cublas")
        assert np.allclose(cupy.asnumpy(c), a @ b)
    empty = np_ozaki.matmul(cupy.zeros((3, 0)), cupy.zeros((0, 4)), engine="cublas")
    assert (cupy.asnumpy(empty) == np.zeros((3, 4))).all()


@pytest.mark.parametrize("layout", ["C", "F", "spread"])
@pytest.mark.parametrize("control", ["fixed", "dynamic"])
def test_operands_on_the_host(cupy, layout, control):
    a, b = (
        entries(np.random.default_rng(i), (2, 300, 300), "ordinary") for i in (1, 2)
    )
    x, y = (laid_out(np.array, z, layout) for z in (a, b))
    out = np.full((2, 300, 300), POISON)
    _, call = np_ozaki.matmul(
        x, y, out, engine="cublas", return_info=True, mantissa_control=control,
        mantissa_bits=79 if control == "dynamic" else None,
    )  # fmt: skip
    assert (call.engine, call.fallback, call.tiles) == ("cublas", None, 1)
    if control == "fixed":
        assert call.mantissa_bits == 55
        device, _ = by_cublas(cupy, a, b)
        assert np.abs(out - device).max() <= 4 * UNIT * (np.abs(a) @ np.abs(b)).max()
    else:
        assert 40 <= call.mantissa_bits <= 79
    assert np.allclose(out, a @ b, rtol=1e-12, atol=1e-12)


def test_the_host_in_tiles(cupy):
    rng = np.random.default_rng(11)
    a, b = entries(rng, (2500, 600), "ordinary"), entries(rng, (600, 2100), "ordinary")
    out = np.full((2500, 2100), POISON)
    _, call = np_ozaki.matmul(
        a, b, out, engine="cublas", workspace_bytes=250 * MIB, return_info=True
    )
    assert (call.engine, call.fallback) == ("cublas", None)
    assert call.tiles > 1
    assert call.workspace_bytes <= 250 * MIB
    assert np.allclose(out, a @ b, rtol=1e-12, atol=1e-11)


# ---- Run to run ------------------------------------------------------------------


@pytest.mark.parametrize("control", ["fixed", "dynamic"])
def test_bits_are_the_same_from_run_to_run(cupy, control):
    a, b = (entries(np.random.default_rng(i), (1000, 1000), "ordinary") for i in (3, 4))
    first, _ = by_cublas(cupy, a, b, mantissa_control=control)
    for _ in range(5):
        cupy.get_default_memory_pool().free_all_blocks()
        again, _ = by_cublas(cupy, a, b, mantissa_control=control)
        assert_same_bits(again, first)


def test_the_current_stream_is_followed(cupy):
    rng = np.random.default_rng(12)
    pairs = [
        (rng.standard_normal((400, 400)), rng.standard_normal((400, 400))) for _ in "12"
    ]
    expected = [by_cublas(cupy, a, b)[0][0] for a, b in pairs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in pairs]
    spin = cupy.RawKernel(
        r"""extern "C" __global__ void spin(long long n) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        while (now - start < n); }""",
        "spin",
    )
    late = [
        (cupy.full((400, 400), POISON), cupy.full((400, 400), POISON)) for _ in pairs
    ]
    ready = [(cupy.asarray(a), cupy.asarray(b)) for a, b in pairs]
    outs = [cupy.full((400, 400), POISON) for _ in pairs]
    cupy.cuda.get_current_stream().synchronize()
    for _ in range(3):
        for stream, (x, y), (u, v), out in zip(streams, late, ready, outs, strict=True):
            with stream:
                # Whoever runs ahead of this stream reads poison.
                spin((1,), (1,), (np.int64(5 * 10**7),))
                x[...], y[...] = u, v
                np_ozaki.matmul(x, y, out, engine="cublas")
                x[...] = POISON
    for stream, out, c in zip(streams, outs, expected, strict=True):
        stream.synchronize()
        assert_same_bits(cupy.asnumpy(out), c)


def test_threads(cupy):
    rng = np.random.default_rng(13)
    pairs = [
        (rng.standard_normal((300, 200)), rng.standard_normal((200, 250)))
        for _ in range(8)
    ]
    expected = [by_cublas(cupy, a, b)[0][0] for a, b in pairs]
    barrier = threading.Barrier(4)

    def work(start):
        barrier.wait()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for i in range(start, start + 24):
                bits = None if i % 3 else 55
                a, b = map(cupy.asarray, pairs[i % 8])
                c = np_ozaki.matmul(a, b, engine="cublas", mantissa_bits=bits)
                assert_same_bits(cupy.asnumpy(c), expected[i % 8])
            stream.synchronize()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# ---- Fallbacks -------------------------------------------------------------------


def test_a_tiny_workspace_falls_back_to_our_engine(cupy):
    rng = np.random.default_rng(14)
    a, b = (cupy.asarray(rng.standard_normal((300, 300))) for _ in "ab")
    np_ozaki.reset_stats()
    c, call = np_ozaki.matmul(
        a, b, engine="cublas", precision=15, workspace_bytes=64 * MIB, return_info=True
    )
    assert (call.engine, call.num_moduli, call.mantissa_bits) == ("cuda", 15, None)
    assert "too little for the workspace of cuBLAS" in call.fallback
    assert np_ozaki.stats().routes["matmul"].fallbacks == {call.fallback: 1}
    assert_same_bits(
        cupy.asnumpy(c),
        cupy.asnumpy(np_ozaki.matmul(a, b, engine="cuda", precision=15)),
    )
    again, second = np_ozaki.matmul(
        a, b, engine="cublas", precision=15, workspace_bytes=64 * MIB, return_info=True
    )
    assert second.fallback == call.fallback
    assert_same_bits(cupy.asnumpy(again), cupy.asnumpy(c))


def test_no_memory_falls_back_to_our_engine(cupy, monkeypatch):
    rng = np.random.default_rng(15)
    a, b = (cupy.asarray(rng.standard_normal((200, 200))) for _ in "ab")
    device = choice.cublas_engine().device
    real = device.empty

    def empty(shape, dtype):
        if dtype is np.uint8 and shape[0] > 100 * MIB:
            raise cupy.cuda.memory.OutOfMemoryError(1, 2, 3)
        return real(shape, dtype)

    monkeypatch.setattr(device, "empty", empty, raising=False)
    c, call = np_ozaki.matmul(a, b, engine="cublas", return_info=True)
    assert call.engine == "cuda"
    assert "no memory for the workspace of cuBLAS" in call.fallback
    assert np.allclose(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))


def test_every_status_of_every_setting(cupy):
    from np_ozaki.engines.cuda_cublas import CublasLibrary

    library = CublasLibrary()
    for eager in (True, False):
        for bits, dynamic in (
            (1, False),
            (55, False),
            (79, False),
            (55, True),
            (79, True),
        ):
            for special in (True, False):
                with library._handle(Settings(eager, bits, dynamic, special)):
                    pass  # a refused setting raises


# ---- Options ---------------------------------------------------------------------


def test_performant_may_leave_the_emulation_out(cupy):
    a, b = (entries(np.random.default_rng(i), (1100, 1100), "ordinary") for i in (5, 6))
    with np_ozaki.enabled(engine="cublas", strategy="performant", local=True):
        c, call = np_ozaki.matmul(a, b, return_info=True)
    assert call.engine == "cublas"
    assert np.allclose(c, a @ b, rtol=1e-12, atol=1e-11)


def test_what_it_does_not_promise(cupy):
    with pytest.raises(np_ozaki.OptionError):
        np_ozaki.enabled(engine="cublas", reproducible=True)
    x = cupy.ones((3, 3))
    for options in ({"return_info": "bound"}, {"output": "dd"}, {"check": True}):
        with pytest.raises(np_ozaki.OptionError):
            np_ozaki.matmul(x, x, engine="cublas", **options)


def test_scopes_and_wrapped_arrays(cupy):
    rng = np.random.default_rng(16)
    a, b = rng.standard_normal((200, 300)), rng.standard_normal((300, 100))
    with np_ozaki.enabled(engine="cublas", min_flops=0, local=True) as scope:
        c = a @ b
        d = np_ozaki.OzArray(a) @ np_ozaki.OzArray(b)
        assert np_ozaki.last_call().engine == "cublas"
    assert scope.stats().calls("cublas") == 2
    assert np.allclose(c, np.asarray(d), rtol=1e-12, atol=1e-12)


def test_a_plan_tells_the_truth(cupy):
    a, b = (np.random.default_rng(i).standard_normal((700, 700)) for i in (1, 2))
    plan = np_ozaki.plan(700, 700, 700, engine="cublas")
    _, call = np_ozaki.matmul(a, b, engine="cublas", return_info=True)
    assert (plan.engine, plan.mantissa_bits) == (call.engine, call.mantissa_bits)
    assert (plan.tiles, plan.workspace_bytes) == (call.tiles, call.workspace_bytes)
