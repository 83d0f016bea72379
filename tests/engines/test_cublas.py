"""Engine "cublas" over a stand-in for the library: layouts, tiles, fallbacks."""

import ctypes
import itertools
import json

import numpy as np
import pytest
from devices import LAYOUTS, POISON, laid_out
from host_device import HostDevice

import np_ozaki
from np_ozaki import context, hooks
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.cublas import CublasEngine, CublasRefusal, Settings
from np_ozaki.engines.cublas_tiles import (
    choose_cublas_tiles,
    emulation_bytes,
    num_slices,
)

FIXED = Settings(True, 55, False, True)
DYNAMIC = Settings(True, 79, True, True)
MIB = 1 << 20


class Device(HostDevice):
    """Memory of the host; the workspace, which nobody writes, is one for all."""

    def __init__(self, workspace=1 << 33):
        super().__init__(workspace)
        self.workspace = self.own(np.empty(8, np.uint8))

    def empty(self, shape, dtype):
        if dtype is not np.uint8:
            return super().empty(shape, dtype)
        self._check(shape, dtype)
        self.asked = shape[0]
        return self.workspace


class Cublas:
    """What `cublas.Library` says, by NumPy; it remembers what it was asked."""

    def __init__(self, device, refuse_at=None, bits=None):
        self.device, self.refuse_at, self.bits = device, refuse_at, bits
        self.calls = []

    def gemm(self, settings, size, a, b, c, workspace, bits):
        self.calls.append((settings, size, workspace))
        assert workspace == (self.device.pointer(self.device.workspace), workspace[1])
        assert workspace[1] == self.device.asked
        if self.refuse_at == len(self.calls):
            raise CublasRefusal("cublasGemmEx_64 returns CUBLAS_STATUS_NOT_SUPPORTED")
        batch, m, n, k = size
        assert not c.transposed
        assert batch == 1 or c.stride >= (n - 1) * c.leading + m
        left = self._read(a, batch, m, k)
        right = self._read(b, batch, k, n)
        with hooks.unrouted(), np.errstate(all="ignore"):
            self._view(c, batch, m, n)[...] = left @ right
        assert bool(bits) == (self.bits is not None)
        if bits:
            told = ctypes.c_int32.from_address(bits)
            assert told.value == -1
            told.value = self.bits

    def _read(self, x, batch, rows, columns):
        if x.transposed:
            return self._view(x, batch, columns, rows).swapaxes(1, 2)
        return self._view(x, batch, rows, columns)

    def _view(self, x, batch, rows, columns):
        """Return (batch, rows, columns) whose columns lie one after the other."""
        assert x.leading >= max(1, rows)
        last = (batch - 1) * x.stride + (columns - 1) * x.leading + rows
        flat = np.frombuffer((ctypes.c_double * last).from_address(x.pointer))
        strides = 8 * x.stride, 8, 8 * x.leading
        shape = batch, rows, columns
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def engine(device):
    return CublasEngine(device, Cublas(device))


def integers(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.integers(-99, 99, shape).astype(float) for shape in shapes]


def poisoned(device, shape, layout="C"):
    return laid_out(device.own, np.full(shape, POISON), layout)


# ---- Layouts --------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (1, 1, 5, 6), (2, 4, 1, 1), 4 * (1,)])
def test_any_strides(device, engine, layout, which, shape):
    batch, m, n, k = shape
    a, b = integers(0, (batch, m, k), (batch, k, n))
    names = ["C", "C", "C"]
    names[which] = layout
    x, y = (laid_out(device.own, z, w) for z, w in zip((a, b), names, strict=False))
    out = poisoned(device, (batch, m, n), names[2])
    made = engine.matmul(x, y, out, FIXED)
    assert (out == a @ b).all()
    assert made.mantissa_bits == 55
    assert made.outcome.tiles == 1
    assert made.outcome.workspace_bytes >= 128 * MIB


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 1)])
def test_one_matrix_serves_a_batch(device, engine, first, second):
    a, b = integers(1, (first, 3, 5), (second, 5, 2))
    out = poisoned(device, (4, 3, 2))
    engine.matmul(device.own(a), device.own(b), out, FIXED)
    assert (out == a @ b).all()
    assert len(engine._library.calls) == 1


def test_repeated_and_odd_strides_are_copied(device, engine):
    (a,) = integers(2, (1, 1, 5))
    (b,) = integers(3, (1, 5, 4))
    rows = np.broadcast_to(device.own(a), (1, 3, 5))
    out = poisoned(device, (1, 3, 4))
    engine.matmul(rows, device.own(b), out, FIXED)
    assert (out == np.broadcast_to(a, (1, 3, 5)) @ b).all()


def test_products_of_nothing(device, engine):
    for shape in ((2, 3, 4, 0), (0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)):
        batch, m, n, k = shape
        out = poisoned(device, (batch, m, n))
        made = engine.matmul(
            device.own(np.ones((batch, m, k))),
            device.own(np.ones((batch, k, n))),
            out,
            FIXED,
        )
        assert (out == 0).all()
        assert made.outcome.tiles == 0
    assert not engine._library.calls


# ---- Operands on the host ---------------------------------------------------------


@pytest.mark.parametrize("layout", ["C", "F", "reversed", "spread F"])
def test_the_host_in_tiles(device, engine, layout):
    a, b = integers(4, (3, 1500, 3), (3, 3, 2100))
    x, y = (laid_out(np.array, z, layout) for z in (a, b))
    out = laid_out(np.array, np.full((3, 1500, 2100), POISON), layout)
    limit = emulation_bytes(1, 1024, 1024, 3, 55, dynamic=False) + 40 * MIB
    made = engine.matmul(x, y, out, FIXED, workspace_bytes=limit)
    assert (out == a @ b).all()
    assert made.outcome.tiles == 3 * 2 * 3
    assert made.outcome.workspace_bytes <= limit
    assert not made.outcome.overflow
    assert not made.outcome.invalid


def test_floating_point_exceptions_of_the_host(engine):
    ones = np.ones((2, 2, 2))
    cases = {
        (1e300, 1e300): (True, False),
        (np.inf, 1.0): (False, False),
        (np.inf, 0.0): (False, True),
        (np.nan, 1.0): (False, False),
        (2.0, 3.0): (False, False),
    }
    for (p, q), (overflow, invalid) in cases.items():
        a, b = ones.copy(), ones.copy()
        a[1, 0] = p, 0.0
        b[1] = q
        out = np.full((2, 2, 2), POISON)
        made = engine.matmul(a, b, out, FIXED)
        assert (made.outcome.overflow, made.outcome.invalid) == (overflow, invalid)


@pytest.mark.parametrize(("told", "expected"), [(63, 63), (-1, 0), (80, 0)])
def test_bits_in_use_where_the_host_waits(device, told, expected):
    engine = CublasEngine(device, Cublas(device, bits=told))
    a, b = integers(5, (2, 3, 4), (2, 4, 5))
    out = np.empty((2, 3, 5))
    assert engine.matmul(a, b, out, DYNAMIC).mantissa_bits == expected
    engine._library.bits = None  # of arrays on the device nobody asks
    out = poisoned(device, (2, 3, 5))
    made = engine.matmul(device.own(a), device.own(b), out, DYNAMIC)
    assert made.mantissa_bits == 79


# ---- Memory -----------------------------------------------------------------------


def test_the_workspace_of_the_manual():
    # Worked by hand: 7 slices; rows and columns padded to 1024, k to 128.
    expected = (2 * 1024 * 128 * 7 + 4 * 2048 + 4 * 1024**2 * 7) * 5 // 4 + 128 * MIB
    assert emulation_bytes(1, 5, 6, 7, 55, dynamic=False) == expected
    assert emulation_bytes(1, 5, 6, 7, 55, dynamic=True) == expected
    large = emulation_bytes(1, 16384, 16384, 16384, 55, dynamic=False)
    products = 2 * (1 << 32)  # each half of k has sums of its own, 4 GiB at most
    operands = 2 * 16384**2 * 7 + 4 * 2 * 16384
    assert large == (operands + products) * 5 // 4 + 128 * MIB
    assert [num_slices(bits) for bits in (1, 7, 8, 55, 56, 79)] == [1, 1, 2, 7, 8, 10]
    flat = emulation_bytes(1, 1, 1, 2**24, 1, dynamic=True)
    assert flat > 8 * 2**24 // 64


def test_tiles_keep_to_the_budget():
    sizes = itertools.product((1, 7), (1, 1025, 5000), (1, 3000), (1, 9000))
    for size in sizes:
        for budget in (1, 200 * MIB, 500 * MIB, 10**10):
            for dynamic in (False, True):
                tiles = choose_cublas_tiles(
                    *size,
                    mantissa_bits=55,
                    dynamic=dynamic,
                    copied=(True, True, True),
                    host=True,
                    budget=budget,
                )
                if tiles is None:
                    least = emulation_bytes(1, 1, 1, size[3], 55, dynamic=dynamic)
                    assert budget < least + 8 * size[3] * 2048 * 2 + 8 * 1024**2 * 2
                    continue
                assert tiles.emulation_bytes <= tiles.workspace_bytes <= budget
                assert tiles.emulation_bytes == emulation_bytes(
                    tiles.batch, tiles.m, tiles.n, size[3], 55, dynamic=dynamic
                )
                calls = tiles.calls(*size[:3])
                assert calls * tiles.batch * tiles.m * tiles.n >= np.prod(size[:3])


def test_too_small_a_limit_is_refused(engine, device):
    a, b = (device.own(np.ones((1, 2, 2))) for _ in "ab")
    with pytest.raises(CublasRefusal, match=r"workspace_bytes=104857600 is too little"):
        engine.matmul(a, b, a.copy(), FIXED, workspace_bytes=100 * MIB)


def test_no_memory_is_refused_after_a_second_try(engine, device):
    a, b = (device.own(np.ones((1, 2, 2))) for _ in "ab")
    device.largest_array = MIB
    out = poisoned(device, (1, 2, 2))
    with pytest.raises(CublasRefusal, match="no memory for the workspace"):
        engine.matmul(a, b, out, FIXED)
    assert device.freed == 1


# ---- Through np_ozaki ---------------------------------------------------------------


@pytest.fixture
def available(monkeypatch, engine):
    """Let cuBLAS multiply arrays of the host, and the CPU engine what it does not."""
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: None)
    monkeypatch.setattr(choice, "cublas_engine", lambda: engine)
    monkeypatch.setattr(choice, "on_gpu", lambda options: False)
    return engine


@pytest.fixture
def unavailable(monkeypatch):
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "no GPU here")
    choice.cublas_unavailable.cache_clear()
    yield
    choice.cublas_unavailable.cache_clear()


A, B = integers(6, (2, 5, 4), (4, 3))
A = A / 7


def test_matmul_by_cublas(available):
    c, call = np_ozaki.matmul(A, B, engine="cublas", return_info=True)
    assert c.shape == (2, 5, 3)
    assert np.allclose(c, A @ B)
    assert (call.engine, call.mantissa_bits, call.fallback) == ("cublas", 55, None)
    assert (call.num_moduli, call.scaling, call.num_slices) == (None, None, None)
    assert call.tiles == 1
    assert call == np_ozaki.last_call()
    (settings, size, _) = available._library.calls[-1]
    assert settings == FIXED
    assert size == (2, 3, 5, 4)
    out = np.full((2, 5, 3), POISON)
    assert np_ozaki.matmul(A, B, out, engine="cublas") is out
    assert (out == c).all()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, FIXED),
        ({"num_slices": 5}, Settings(True, 40, False, True)),
        ({"mantissa_bits": 79}, Settings(True, 79, False, True)),
        ({"mantissa_bits": 20, "num_slices": 5}, Settings(True, 20, False, True)),
        ({"special_values": False}, Settings(True, 55, False, False)),
        ({"mantissa_control": "dynamic"}, Settings(True, 55, True, True)),
        ({"strategy": "performant"}, Settings(False, 55, False, True)),
    ],
)
def test_options_become_settings(options, settings):
    changed = Options().with_changes(engine="cublas", **options)
    assert Settings.of(changed) == settings


def test_a_refusal_falls_back(available):
    available._library.refuse_at = 1
    np_ozaki.reset_stats()
    c, call = np_ozaki.matmul(A, B, engine="cublas", precision=14, return_info=True)
    assert (c == np_ozaki.matmul(A, B, engine="cpu", precision=14)).all()
    assert (call.engine, call.num_moduli, call.mantissa_bits) == ("cpu", 14, None)
    reason = 'engine="cublas": cublasGemmEx_64 returns CUBLAS_STATUS_NOT_SUPPORTED'
    assert call.fallback == reason
    counted = np_ozaki.stats()
    assert counted.routes["matmul"].fallbacks == {reason: 1}
    assert f"matmul: own engine because {reason}: 1 calls" in str(counted)


def test_a_fallback_of_the_fallback(available):
    available._library.refuse_at = 1
    np_ozaki.reset_stats()
    a = np.ldexp(np.ones((1, 3)), [1000, -1000, 0])
    b = np.ldexp(np.ones((3, 1)), [[-1000], [-1], [900]])
    _, call = np_ozaki.matmul(a, b, engine="cublas", return_info=True)
    first, _, then = call.fallback.partition("; ")
    assert first.startswith('engine="cublas": ')
    assert (then, call.engine) == ("", "cpu") or call.engine == "native"


def test_a_tiny_workspace_falls_back(available):
    _, call = np_ozaki.matmul(
        A, B, engine="cublas", workspace_bytes=4 * MIB, return_info=True
    )
    assert call.engine == "cpu"
    assert "workspace_bytes=4194304 is too little" in call.fallback
    assert not available._library.calls


@pytest.mark.usefixtures("unavailable")
def test_without_a_gpu():
    options = Options(engine="cublas")
    assert choice.resolve(options) == "cpu"
    assert not choice.on_gpu(options)
    assert choice.engine_states()["cublas"] == "unavailable: no GPU here"
    c, call = np_ozaki.matmul(A, B, engine="cublas", return_info=True)
    assert (c == np_ozaki.matmul(A, B, engine="cpu")).all()
    assert (call.engine, call.fallback) == ("cpu", 'engine="cublas": no GPU here')
    plan = np_ozaki.plan(10, 10, 10, engine="cublas")
    assert (plan.engine, plan.fallback) == ("cpu", 'engine="cublas": no GPU here')
    assert plan.num_moduli == 15
    assert 'because    engine="cublas": no GPU here' in str(plan)
    scope = np_ozaki.enabled(engine="cublas", min_flops=0, local=True)
    with pytest.warns(np_ozaki.PerformanceWarning, match="no GPU"), scope:
        assert (A[0] @ B == c[0]).all()
    assert list(scope.stats().routes["matmul"].fallbacks) == [call.fallback]


def test_scopes_wrapped_arrays_and_scipy(available):
    from scipy.linalg.blas import dgemm

    options = {"min_flops": 0, "local": True, "mantissa_bits": 40}
    with np_ozaki.enabled(engine="cublas", **options) as scope:
        c = A[0] @ B
        assert context.last_call().engine == "cublas"
        assert context.last_call().mantissa_bits == 40
        d = np_ozaki.OzArray(A[0]) @ B
        assert context.last_call().engine == "cublas"
        e = dgemm(1.0, A[0], B)
    for other in (d, e):
        assert (np.asarray(other) == c).all()
    assert scope.stats().calls("cublas") == 3
    assert {x[0].mantissa_bits for x in available._library.calls} == {40}


def test_a_plan_of_cublas(available):
    plan = np_ozaki.plan(3000, 2000, 1000, engine="cublas", mantissa_bits=48)
    assert (plan.engine, plan.mantissa_bits, plan.tiles) == ("cublas", 48, 1)
    copies = 8 * (3000 * 1000 + 1000 * 2000 + 3000 * 2000)
    least = emulation_bytes(1, 3000, 2000, 1000, 48, dynamic=False)
    assert plan.workspace_bytes == least + copies
    assert (plan.num_moduli, plan.scaling, plan.fallback) == (None, None, None)
    assert "engine     cublas" in str(plan)
    assert "mantissa   48 bits" in str(plan)
    assert "workspace" in str(plan)
    short = np_ozaki.plan(3000, 2000, 1000, engine="cublas", workspace_bytes=4 * MIB)
    assert short.engine == "cpu"
    assert "too little" in short.fallback


def test_nothing_is_prepared(available):
    x = np_ozaki.prepare(A[0], engine="cublas")
    assert isinstance(x, np_ozaki.OzArray)
    assert np_ozaki.matmul(x, B, engine="cublas").shape == (5, 3)
    assert len(available._library.calls) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: np_ozaki.matmul(A, B, engine="cublas", return_info="bound"),
        lambda: np_ozaki.error_bound(A, B, engine="cublas"),
        lambda: np_ozaki.matmul(A, B, engine="cublas", output="dd"),
        lambda: np_ozaki.plan(2, 2, 2, engine="cublas", output="dd"),
    ],
)
def test_what_cublas_does_not_promise(call):
    with pytest.raises(np_ozaki.OptionError, match=r"engine='cublas'.*choose engine="):
        call()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reproducible": True}, "reproducible"),
        ({"check": True}, "check"),
        ({"precision": 1e-10}, "precision"),
        ({"precision": "exact"}, "precision"),
        ({"mantissa_bits": 80}, "mantissa_bits"),
        ({"mantissa_control": "any"}, "mantissa_control"),
    ],
)
def test_options_that_contradict(options, match):
    with pytest.raises(np_ozaki.OptionError, match=match):
        np_ozaki.enabled(engine="cublas", **options)


def test_reports_are_plain(available):
    np_ozaki.matmul(A, B, engine="cublas")
    json.dumps(np_ozaki.stats().as_dict())


def test_what_goes_native_after_all_says_so(monkeypatch):
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: "no GPU here")
    wide = [[1.0, 1e-300], [1e-300, 1.0]], [[1e-300], [1.0]]
    np_ozaki.reset_stats()
    _, call = np_ozaki.matmul(*wide, engine="cublas", return_info=True)
    assert call.engine == "native"
    text = str(np_ozaki.stats())
    assert "native because range too wide to certify; engine=" in text
    assert "own engine because" not in text
