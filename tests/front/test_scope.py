"""The scope: what it catches, and that leaving it restores everything."""

import asyncio
import contextvars
import functools
import gc
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import np_ozaki
from np_ozaki import OzArray, hooks
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.testing import assert_same_bits

A = np.random.default_rng(1).standard_normal((5, 6))
B = np.random.default_rng(2).standard_normal((6, 4))
PRODUCT = np_ozaki.matmul(A, B)


def scope(**options):
    return np_ozaki.enabled(**{"engine": "cpu", "min_flops": 0, **options})


@pytest.fixture(autouse=True, scope="module")
def _needs_the_hook():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with scope():
            pass
    if not hooks.status()[0].active:
        pytest.skip(f"nothing to catch here: {hooks.status()[0].reason}")


def routed(function=lambda: A @ B):
    """Whether a product reaches the engine here and now."""
    before = np_ozaki.stats().calls("cpu")
    function()
    return np_ozaki.stats().calls("cpu") == before + 1


def test_before_inside_after():
    assert not routed()
    with scope():
        assert routed()
        assert_same_bits(A @ B, PRODUCT)
    assert not routed()


def test_nothing_happens_before_entering():
    made = scope()
    assert not routed()
    with made:
        assert routed()


def in_place():
    x = np.eye(6)
    x @= np.ones((6, 6))


@pytest.mark.parametrize(
    "multiply",
    [
        lambda: A @ B,
        lambda: np.matmul(A, B),
        lambda: A.__matmul__(B),
        in_place,
        lambda: np.matmul(A, B, out=np.empty((5, 4), order="F")),
        lambda: A @ B[:, 0],
        lambda: A[0] @ B,
        lambda: A[0] @ B[:, 0],
        lambda: A.tolist() @ B,
        lambda: np.matmul(A.tolist(), B.tolist()),
        lambda: A[::-1, ::-2] @ B[::2],
        lambda: A.astype(np.float32) @ B,
        lambda: A.astype(">f8") @ B,
        lambda: np.stack([A, A]) @ B,
        lambda: np.matmul(A, B, dtype=np.float64),
        lambda: np.matmul(A, B, dtype=np.complex128),
        lambda: A @ (1j * B),
        lambda: np.matmul(A + 1j, B, out=np.empty((4, 5), np.complex128).T),
        lambda: np.linalg.matrix_power(A[:, :5], 2),
        lambda: np.matmul(A, B.T, axes=[(0, 1), (1, 0), (0, 1)]),
    ],
)
def test_what_is_caught(multiply):
    with scope():
        assert routed(multiply)


def test_what_is_not_ours():
    f = A.astype(np.float32)
    with scope():
        for x in (f, f + 1j, A.astype(int), A.astype(object)):
            assert not routed(lambda x=x: x @ x.T)


def test_dtypes_say_what_is_caught():
    f, operands = A.astype(np.float32), {}
    for dtype in ("float64", "complex128", "float32", "complex64"):
        operands[dtype] = x = (A + 1j * A[::-1] if dtype[0] == "c" else A).astype(dtype)
        with scope(dtypes=[dtype]) as inside:
            assert_same_bits(x @ x.T, np_ozaki.matmul(x, x.T))
        assert inside.stats().calls("native") == 0
    for dtype, x in operands.items():
        with scope(dtypes=operands.keys() - {dtype}) as inside:
            native, wrapped = np_ozaki.matmul(x, x.T), np.asarray(OzArray(x) @ x.T)
            np.vdot(OzArray(x), x)  # conjugates on the way
            np.testing.assert_allclose(x @ x.T, native, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(native, wrapped, rtol=1e-5, atol=1e-5)
            with pytest.raises(np_ozaki.OperandTypeError, match="not among dtypes"):
                np_ozaki.matmul(x, x.T, precision="exact")
            with pytest.raises(np_ozaki.OperandTypeError, match="not among dtypes"):
                np_ozaki.error_bound(x, x.T)
            before = inside.stats()
            np_ozaki.matmul(x, x.T, output="dd")  # has no native counterpart
        assert set(before.routes) == {"matmul", "vdot"}
        for route in before.routes.values():
            assert route.fallbacks.keys() == {f"{dtype} is not among dtypes"}
        assert before.calls("cpu") == 0
        assert inside.stats().calls("cpu") == 1
    with scope(dtypes=["float32"], precision=1e-9) as inside:
        f @ f.T
    (reason,) = inside.stats().routes["matmul"].fallbacks
    assert "2**-23" in reason
    with (
        scope(dtypes=["float32"], precision=1e-9, min_flops=None, reproducible=True),
        pytest.raises(np_ozaki.OptionError, match="2\\*\\*-23"),
    ):
        f @ f.T


def test_what_the_package_adds_up_itself_is_native():
    bound = np_ozaki.error_bound(A, B, precision=15)
    hi, lo = np_ozaki.matmul(A, B, output="dd")
    with scope(precision=2) as inside:
        assert_same_bits(np_ozaki.error_bound(A, B, precision=15), bound)
        pair = np_ozaki.matmul(A, B, precision="auto", output="dd")
    assert_same_bits(pair.hi, hi)
    assert_same_bits(pair.lo, lo)
    assert inside.stats().routes.keys() == {"matmul"}


@pytest.mark.parametrize(
    ("dtypes", "error"),
    [
        ("float32", np_ozaki.OperandTypeError),
        (np.float32, np_ozaki.OperandTypeError),
        (4, np_ozaki.OperandTypeError),
        ([], np_ozaki.OptionError),
        ([None], np_ozaki.OptionError),
        (["float16"], np_ozaki.OptionError),
        (["no such"], np_ozaki.OptionError),
        ([np.longdouble], np_ozaki.OptionError),
    ],
)
def test_dtypes_that_cannot_be(dtypes, error):
    with pytest.raises(error, match="dtypes="):
        np_ozaki.enabled(dtypes=dtypes)


def test_out_gives_the_same_bits_and_aliases_are_safe():
    x = A[:, :5].copy()
    want = np_ozaki.matmul(x, x)
    with scope():
        np.matmul(x, x, out=x)
        assert_same_bits(x, want)
        base = np.full((12, 12), 7.0)
        np.matmul(A, B, out=base[1:11:2, 10:2:-2])
    assert_same_bits(base[1:11:2, 10:2:-2], PRODUCT)
    assert (base[::2] == 7.0).all()


@pytest.mark.parametrize("b_shape", [(6, 4), (1, 6, 4), (3, 6, 4)])
def test_batches_repeated_by_stride_zero(b_shape):
    b = np.random.default_rng(4).standard_normal(b_shape)
    repeated = np.broadcast_to(A, (3, 5, 6))
    with scope():
        c = repeated @ b
    assert_same_bits(c, np_ozaki.matmul(np.stack([A, A, A]), b))


def test_the_innermost_scope_decides():
    def moduli():
        A @ B
        return np_ozaki.last_call().num_moduli

    with scope(precision=8):
        with scope(precision=9):
            assert moduli() == 9
            with np_ozaki.disabled():
                assert not routed()
            assert moduli() == 9
        assert moduli() == 8


def test_left_in_any_order():
    first, second = scope(precision=8), scope(precision=9)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    A @ B
    assert np_ozaki.last_call().num_moduli == 9
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert not routed()


def test_left_by_exceptions_and_closed_generators():
    with pytest.raises(ZeroDivisionError), scope():
        1 / 0  # noqa: B018 - raises
    with pytest.raises(ValueError, match="matmul"), scope():
        A @ A
    assert not routed()

    def generator():
        with scope():
            yield 1

    g = generator()
    next(g)
    assert routed()
    g.close()
    assert not routed()

    g = generator()
    next(g)
    thread = threading.Thread(target=g.close)
    thread.start()
    thread.join()
    assert not routed()
    g = generator()
    next(g)
    del g
    gc.collect()
    assert not routed()


def test_errors_of_the_engine_surface(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("planted")

    with scope():
        monkeypatch.setattr(CpuEngine, "matmul", fail)
        with pytest.raises(RuntimeError, match="planted"):
            A @ B
        monkeypatch.undo()
        assert_same_bits(A @ B, PRODUCT)


def test_interrupts_surface(monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(CpuEngine, "matmul", interrupt)
    with scope(), pytest.raises(KeyboardInterrupt):
        A @ B


def test_exceptions_follow_errstate():
    big = np.full((2, 2), 1e300)
    with scope(), np.errstate(all="raise"):
        with pytest.raises(FloatingPointError, match="overflow encountered in matmul"):
            big @ big
        infinite = np.full((2, 2), np.inf)
        with pytest.raises(FloatingPointError, match="invalid value"):
            infinite @ np.zeros((2, 2))
        # Native arithmetic raises nothing here, and neither do engine internals.
        np.full((2, 2), 1e-300) @ np.full((2, 2), 1.0)


def test_small_products_stay_native_by_default():
    with np_ozaki.enabled(engine="cpu"):
        assert not routed()
        assert routed(lambda: np.ones((256, 256)) @ np.ones((256, 256)))
    with scope(min_flops=2 * 5 * 6 * 4):
        assert routed()
    with scope(min_flops=2 * 5 * 6 * 4 + 1):
        assert not routed()
    with np_ozaki.enabled(engine="cpu", reproducible=True):
        assert routed()


def test_native_and_performant_leave_products_alone():
    with scope(engine="native"):
        assert not routed()
    with scope(strategy="performant"):
        assert not routed()


def test_counters_of_a_scope():
    with scope() as outer:
        A @ B
        with scope() as inner:
            A @ B
            A @ B
    assert outer.stats().calls("cpu") == 1
    assert inner.stats().routes["matmul"].flops["cpu"] == 2 * 240
    assert np_ozaki.stats().calls("cpu") == 3


@pytest.mark.parametrize("local", [False, True])
def test_threads_see_process_wide_scopes_only(local):
    seen = []
    with scope(local=local):
        thread = threading.Thread(target=lambda: seen.append(routed()))
        thread.start()
        thread.join()
        assert routed()
    assert seen == [not local]


def test_a_scope_of_one_thread_does_not_change_anothers_own():
    inside, done = threading.Event(), threading.Event()

    def other():
        with scope(precision=20):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    with scope(precision=8):
        thread.start()
        inside.wait(10)
        A @ B
        moduli = np_ozaki.last_call().num_moduli
        done.set()
        thread.join()
    assert moduli == 8


def test_concurrent_products_do_not_mix():
    wrong = []

    def work(value):
        with scope():
            for _ in range(20):
                c = np.full((300, 6), float(value)) @ np.eye(6)
                if not (c == value).all():
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_decorated_functions_generators_and_coroutines():
    decorate = scope()

    @decorate
    def function():
        """Docstring."""
        return routed()

    @decorate
    def generator():
        yield routed()
        yield routed()

    @decorate
    async def coroutine():
        await asyncio.sleep(0)
        return routed()

    @decorate
    async def async_generator():
        yield routed()
        await asyncio.sleep(0)
        yield routed()

    async def collect():
        return [item async for item in async_generator()]

    assert function()
    assert function.__doc__ == "Docstring."
    assert list(generator()) == [True, True]
    assert asyncio.run(coroutine())
    assert asyncio.run(collect()) == [True, True]
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert not routed()


@pytest.mark.parametrize("partial", [False, True])
def test_decorated_objects_that_are_called(partial):
    class Function:
        def __call__(self, times=1):
            return [routed()] * times

    class Generator:
        def __call__(self, times=1):
            for _ in range(times):
                yield routed()

    class Coroutine:
        async def __call__(self, times=1):
            await asyncio.sleep(0)
            return [routed()] * times

    class AsyncGenerator:
        async def __call__(self, times=1):
            for _ in range(times):
                await asyncio.sleep(0)
                yield routed()

    def decorated(cls):
        called = functools.partial(cls(), times=2) if partial else cls()
        return scope()(called)

    async def collect():
        return [item async for item in decorated(AsyncGenerator)()]

    want = [True] * (2 if partial else 1)
    assert decorated(Function)() == want
    assert list(decorated(Generator)()) == want
    assert asyncio.run(decorated(Coroutine)()) == want
    assert asyncio.run(collect()) == want
    assert scope()(max)(1, 2) == 2
    assert not routed()


def test_a_suspended_generator_does_not_leak():
    seen = []

    @scope()
    def generator():
        try:
            got = yield routed()
            seen.append((got, routed()))
            yield 2
        except KeyError:
            seen.append(routed())
            yield 3
        finally:
            seen.append(routed())
        return 4

    g = generator()
    assert next(g)
    assert not routed()
    assert g.send("sent") == 2
    assert not routed()
    assert g.throw(KeyError) == 3
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == 4
    assert seen == [("sent", True), True, True]
    g = generator()
    next(g)
    g.close()
    assert seen[-1] is True


def test_a_context_copied_inside_is_native_after_leaving():
    with scope():
        context = contextvars.copy_context()
        assert context.run(routed)
    assert not context.run(routed)


def test_one_local_object_in_two_threads():
    one, inside, leave = scope(local=True), threading.Event(), threading.Event()
    seen = []

    def other():
        with one:
            inside.set()
            leave.wait(10)
            seen.append(routed())

    thread = threading.Thread(target=other)
    with one:
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert seen == [True]


def test_tasks_keep_their_own_options():
    async def task(precision):
        with scope(precision=precision, local=True):
            await asyncio.sleep(0.01)
            A @ B
            return np_ozaki.last_call().num_moduli

    async def main():
        return await asyncio.gather(*(task(n) for n in (8, 9, 10)))

    assert asyncio.run(main()) == [8, 9, 10]


def test_bad_decorations():
    with pytest.raises(TypeError, match="parentheses"):

        @np_ozaki.enabled
        def function():
            pass

    for wrong in (int, 5):
        with pytest.raises(TypeError, match="decorate"):
            scope()(wrong)


def test_one_object_entered_twice():
    one = scope()
    with one:
        with one:
            assert routed()
        assert routed()
    assert not routed()


def test_enable_and_disable():
    np_ozaki.enable(engine="cpu", min_flops=0, precision=9)
    np_ozaki.enable(engine="cpu", min_flops=0, precision=10)
    A @ B
    assert np_ozaki.last_call().num_moduli == 10
    np_ozaki.disable()
    assert not routed()
    np_ozaki.disable()


def test_numpy_stays_as_it_is():
    before = (np.matmul, pickle.dumps(np.matmul), np.matmul.types, repr(np.matmul))
    with scope():
        inside = (np.matmul, pickle.dumps(np.matmul), np.matmul.types, repr(np.matmul))
        assert inside == before
        assert isinstance(np.matmul, np.ufunc)


def test_warning_on_entering_without_a_gpu():
    with pytest.warns(np_ozaki.PerformanceWarning, match='engine="cpu"') as record:
        with np_ozaki.enabled():
            pass
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np_ozaki.enabled(strategy="performant"):
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 99},
        {"strategy": "fast"},
        {"min_flops": -1},
        {"reproducible": True, "engine": "native"},
        {"reproducible": True, "strategy": "performant"},
        {"reproducible": True, "min_flops": 10},
        {"local": 1},
    ],
)
def test_bad_options(options):
    with pytest.raises(np_ozaki.OzakiError):
        np_ozaki.enabled(**options)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a threaded process
def test_fork():
    big = np.random.default_rng(3).standard_normal((200, 200))
    with scope():
        want = big @ big
        pid = os.fork()
        if not pid:
            try:
                same = np.array_equal(big @ big, want)
                with scope():
                    same = same and np.array_equal(big @ big, want)
            except BaseException:  # noqa: BLE001 - the child reports by its status
                os._exit(3)
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_spawned_workers_start_without_a_scope():
    context = multiprocessing.get_context("spawn")
    with scope(), context.Pool(1) as pool:
        assert pool.apply(np_ozaki.info).live_scopes == 0


def test_switched_off_by_the_environment():
    program = (
        "import numpy as np, np_ozaki\n"
        "try:\n"
        "    np_ozaki.enabled(engine='cpu', reproducible=True).__enter__()\n"
        "except np_ozaki.HookUnavailableError as e: assert 'OzArray' in str(e)\n"
        "else: raise SystemExit('native products would be called reproducible')\n"
        "with np_ozaki.enabled(engine='cpu', min_flops=0): np.eye(2) @ np.eye(2)\n"
        "print(np_ozaki.stats(), np_ozaki.info().hooks[0].active)"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "NP_OZAKI_HOOKS": "none"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "no products False\n"
