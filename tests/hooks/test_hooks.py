"""The hooked matmul loop: what the handler sees, and what users see of it."""

import ctypes
import inspect
import os
import pickle
import signal
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from processes import run_python

from np_ozaki import hooks
from np_ozaki.errors import HookUnavailableError, OptionError, OzakiError
from np_ozaki.hooks import extension, installation, table

Loop = tuple[Any, ...]
Route = Callable[..., None]
Handler = Callable[..., Any]
Array = npt.NDArray[Any]

needs_extension = pytest.mark.skipif(
    extension.extension is None, reason=f"no extension: {extension.extension_reason}"
)
OFFSET = 4096.0


@pytest.fixture
def route() -> Iterator[Route]:
    """Install a handler behind an open gate; undo it afterwards."""
    gate = installation._state.gate

    def install(handler: Handler, min_flops: int = 0) -> None:
        status = install_matmul(handler)
        assert status.active, status.reason
        hooks.set_gate(1, min_flops)

    yield install
    hooks.set_gate(*gate)
    hooks.install({})


def install_matmul(handler: Handler) -> hooks.HookStatus:
    return hooks.install({"matmul": handler})[0]


def _decline(*loop: Any) -> None:
    return None


class Counting:
    """A handler that counts its calls and gives one answer."""

    def __init__(self, answer: Any = None) -> None:
        self.calls: list[Loop] = []
        self.answer = answer

    def __call__(self, *loop: Any) -> Any:
        self.calls.append(loop)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def views(loop: Loop) -> tuple[Array, Array, Array]:
    outer, m, k, n, dtype = loop[6:]
    of = np.dtype(dtype)
    shapes = (outer, m, k), (outer, k, n), (outer, m, n)
    a, b, out = (
        hooks.array_from_loop(loop[2 * i], shape, loop[2 * i + 1], i == 2, of)
        for i, shape in enumerate(shapes)
    )
    return a, b, out


def add_offset(*loop: Any) -> int:
    """Write the product plus OFFSET: exact for small integers, never native."""
    a, b, out = views(loop)
    assert not a.flags.writeable
    assert not b.flags.writeable
    out[...] = a @ b + OFFSET
    return 0


def batch_of_two_calls() -> Array:
    """Multiply a batch whose outer axes do not collapse into one."""
    result: Array = np.matmul(np.ones((4, 6, 3, 3))[::2, ::-2], np.ones((3, 3, 3)))
    return result


def integers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(float)


# ---- What the handler sees ----

OPERANDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "plain": lambda: (integers(3, 4), integers(4, 5)),
    "transposed": lambda: (integers(4, 3).T, integers(5, 4).T),
    "fortran": lambda: (np.asfortranarray(integers(3, 4)), integers(4, 5)),
    "negative": lambda: (integers(3, 4)[::-1, ::-1], integers(4, 5)[:, ::-1]),
    "strided": lambda: (integers(6, 12)[::2, 1::3], integers(4, 10)[:, ::2]),
    "zero stride": lambda: (
        np.broadcast_to(integers(1, 4), (3, 4)),
        np.broadcast_to(integers(4, 1), (4, 5)),
    ),
    "vector matrix": lambda: (integers(4), integers(4, 5)),
    "matrix vector": lambda: (integers(3, 4), integers(4)),
    "vector vector": lambda: (integers(4), integers(4)[::-1]),
    "batch": lambda: (integers(6, 3, 4), integers(6, 4, 5)),
    "broadcast a": lambda: (integers(3, 4), integers(6, 4, 5)),
    "broadcast b": lambda: (integers(6, 3, 4), integers(4, 5)),
    "several loop calls": lambda: (integers(4, 6, 3, 4)[::2, ::-2], integers(3, 4, 5)),
    "outer broadcast": lambda: (integers(2, 1, 3, 4), integers(1, 3, 4, 5)),
    "integers": lambda: (integers(3, 4).astype(np.int16), integers(4, 5)),
    "list": lambda: (integers(3, 4).tolist(), integers(4, 5)),
    "byte-swapped": lambda: (integers(3, 4).astype(">f8"), integers(4, 5)),
    "unaligned": lambda: (
        np.frombuffer(b"\0" + integers(3, 4).tobytes(), np.float64, 12, 1).reshape(
            3, 4
        ),
        integers(4, 5),
    ),
    "one by one": lambda: (integers(1, 1), integers(1, 1)),
    "complex": lambda: (
        (integers(6, 12) + 1j)[::2, 1::3],
        1j * integers(7, 5, 4).swapaxes(1, 2)[::-1],
    ),
    "complex by real": lambda: (
        integers(3, 4) * (1 - 2j),
        np.asfortranarray(integers(4, 5)),
    ),
}


@needs_extension
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS.keys())
def test_operands_are_seen_as_they_are(
    route: Route, operands: Callable[[], tuple[Any, Any]]
) -> None:
    a, b = operands()
    expected = np.matmul(a, b)
    route(add_offset)
    np.testing.assert_array_equal(np.matmul(a, b), expected + OFFSET)
    if not isinstance(a, list):
        np.testing.assert_array_equal(a @ b, expected + OFFSET)


@needs_extension
@pytest.mark.parametrize(
    "out",
    [
        np.empty((3, 5)),
        np.empty((5, 3)).T,
        np.empty((6, 10))[::-2, ::2],
        np.empty((3, 5), np.complex128),
        np.empty((3, 5), ">f8"),
    ],
    ids=["plain", "transposed", "strided", "complex", "byte-swapped"],
)
def test_out_of_any_layout(route: Route, out: Array) -> None:
    a, b = integers(3, 4), integers(4, 5)
    expected = a @ b + OFFSET
    route(add_offset)
    assert np.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, expected)


@needs_extension
def test_out_that_is_an_operand(route: Route) -> None:
    a, b = integers(4, 4), integers(4, 4)
    expected = a @ b + OFFSET
    route(add_offset)
    np.matmul(a, b, out=a)
    np.testing.assert_array_equal(a, expected)
    a = integers(4, 4)
    a @= b
    np.testing.assert_array_equal(a, expected)


@needs_extension
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((0, 4), (4, 5)), ((3, 0), (0, 5)), ((3, 4), (4, 0)), ((2, 3, 0), (2, 0, 5))],
)
def test_empty_matrices_reach_the_handler(
    route: Route, a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> None:
    expected = np.ones(a_shape) @ np.ones(b_shape)
    route(add_offset)
    result = np.ones(a_shape) @ np.ones(b_shape)
    np.testing.assert_array_equal(result, expected + OFFSET)


@needs_extension
def test_empty_batch_makes_no_call(route: Route) -> None:
    handler = Counting()
    route(handler)
    assert (np.ones((0, 3, 4)) @ np.ones((0, 4, 5))).shape == (0, 3, 5)
    assert handler.calls == []


@needs_extension
@pytest.mark.parametrize("dtype", "dD")
def test_loop_arguments(route: Route, dtype: str) -> None:
    handler = Counting()
    a, b = integers(7, 3, 4).astype(dtype), integers(4, 5).astype(dtype)
    out = np.empty((7, 3, 5), dtype)
    route(handler)
    np.matmul(a, b, out=out)
    pointers = a.ctypes.data, b.ctypes.data, out.ctypes.data
    size = out.itemsize
    strides = (
        (12 * size, 4 * size, size),
        (0, 5 * size, size),
        (15 * size, 5 * size, size),
    )
    (loop,) = handler.calls
    assert loop[:6:2] == pointers
    assert loop[1:6:2] == strides
    assert loop[6:] == (7, 3, 4, 5, dtype)


@needs_extension
@pytest.mark.parametrize("dtype", [np.float16, np.clongdouble, np.int64, np.longdouble])
def test_other_types_stay_native(route: Route, dtype: type[Any]) -> None:
    handler = Counting()
    route(handler)
    a = integers(3, 3).astype(dtype)
    assert (a @ a).dtype == dtype
    assert handler.calls == []


@needs_extension
def test_declined_product_has_native_bits(route: Route) -> None:
    a = np.random.default_rng(1).standard_normal((70, 70))
    expected = a @ a
    handler = Counting()
    route(handler)
    assert (a @ a).tobytes() == expected.tobytes()
    assert len(handler.calls) == 1


# ---- Floating-point flags ----

FLAGS = [
    (hooks.RAISE_OVERFLOW, "overflow"),
    (hooks.RAISE_INVALID, "invalid"),
    (hooks.RAISE_UNDERFLOW, "underflow"),
]


@needs_extension
@pytest.mark.parametrize(("bit", "name"), FLAGS)
def test_flags_follow_errstate(route: Route, bit: int, name: str) -> None:
    a = np.ones((2, 2))
    route(Counting(bit))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=name):
        a @ a
    with np.errstate(all="warn"), pytest.warns(RuntimeWarning, match=name):
        a @ a
    with np.errstate(all="ignore"):
        a @ a


@needs_extension
def test_flags_of_the_engine_are_forgotten(route: Route) -> None:
    def engine(*loop: Any) -> int:
        with np.errstate(all="ignore"):
            np.exp(np.array([1000.0, np.nan, -1000.0])) * np.inf
        return add_offset(*loop)

    route(engine)
    with np.errstate(all="raise"):
        np.ones((2, 2)) @ np.ones((2, 2))


@needs_extension
@pytest.mark.parametrize("answers", [(1, 0), (1, None), (0, 1), (None, 1)])
def test_flags_of_a_batch_add_up(
    route: Route, answers: tuple[int | None, int | None]
) -> None:
    left = iter(answers)
    route(lambda *loop: next(left))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        batch_of_two_calls()
    assert list(left) == []


@needs_extension
def test_declined_product_reports_its_own_flags(route: Route) -> None:
    route(_decline)
    a = np.full((2, 2), 1e200)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        a @ a


# ---- Exceptions ----


PRODUCTS: dict[str, Callable[[], Any]] = {
    "operator": lambda: np.ones((2, 2)) @ np.ones((2, 2)),
    "function": lambda: np.matmul(np.ones((2, 2)), np.ones((2, 2))),
    "without the GIL": lambda: np.ones((60, 60)) @ np.ones((60, 60)),
    "out": lambda: np.matmul(np.ones((2, 2)), np.ones((2, 2)), out=np.empty((2, 2))),
    "out cast": lambda: np.matmul(
        np.ones((2, 2)), np.ones((2, 2)), out=np.empty((2, 2), np.complex64)
    ),
    "batch": batch_of_two_calls,
    "matrix_power": lambda: np.linalg.matrix_power(np.ones((3, 3)), 5),
}
EXCEPTIONS = [ValueError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError()]


@needs_extension
@pytest.mark.parametrize("errors", ["ignore", "warn", "raise"])
@pytest.mark.parametrize("exception", EXCEPTIONS, ids=repr)
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_exception_is_the_products(
    route: Route, product: Callable[[], Any], exception: BaseException, errors: Any
) -> None:
    handler = Counting(exception)
    route(handler)
    with np.errstate(all=errors), pytest.raises(type(exception)) as caught:
        product()
    assert caught.value is exception
    assert len(handler.calls) == 1
    hooks.set_gate(0, 0)
    product()


@needs_extension
def test_exception_late_in_a_batch_stops_it(route: Route) -> None:
    calls = 0

    def handler(*loop: Any) -> int | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            return hooks.RAISE_OVERFLOW
        raise ZeroDivisionError

    route(handler)
    with np.errstate(all="raise"), pytest.raises(ZeroDivisionError):
        batch_of_two_calls()
    assert calls == 2


@needs_extension
@pytest.mark.parametrize("answer", ["done", 1.0, True, (), np.float64(0)])
def test_answer_of_a_wrong_type(route: Route, answer: object) -> None:
    route(Counting(answer))
    with pytest.raises(TypeError, match="must return None"):
        np.ones((2, 2)) @ np.ones((2, 2))


@needs_extension
@pytest.mark.parametrize("answer", [-1, 8, 2**100, -(2**100)])
def test_answer_out_of_range(route: Route, answer: int) -> None:
    route(Counting(answer))
    with pytest.raises(ValueError, match="flags lie"):
        np.ones((2, 2)) @ np.ones((2, 2))


@needs_extension
def test_ctrl_c_in_the_handler(route: Route) -> None:
    def handler(*loop: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        return add_offset(*loop)

    route(handler)
    with pytest.raises(KeyboardInterrupt):
        np.ones((2, 2)) @ np.ones((2, 2))
    route(add_offset)
    assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2 + OFFSET


@needs_extension
def test_exceptions_stay_in_their_threads(route: Route) -> None:
    barrier = threading.Barrier(4)

    def handler(*loop: Any) -> int:
        barrier.wait(30)
        raise LookupError(threading.get_ident())

    def work(size: int) -> None:
        for _ in range(20):
            with pytest.raises(LookupError) as caught:
                np.ones((size, size)) @ np.ones((size, size))
            assert caught.value.args == (threading.get_ident(),)

    route(handler)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (2, 50, 3, 60)))


# ---- Gate, re-entrancy, threads that stay native ----


@needs_extension
def test_gate_counts_flops_of_one_matrix(route: Route) -> None:
    handler = Counting()
    a, b = np.ones((9, 3, 4)), np.ones((9, 4, 5))
    route(handler, min_flops=121)
    a @ b
    assert handler.calls == []
    hooks.set_gate(1, 120)
    a @ b
    assert len(handler.calls) == 1
    hooks.set_gate(0, 0)
    a @ b
    assert len(handler.calls) == 1
    hooks.set_gate(2**40, 2**70)
    a @ b
    assert len(handler.calls) == 1


@needs_extension
def test_gate_with_a_long_empty_operand(route: Route) -> None:
    handler = Counting()
    route(handler)
    np.ones((2**21, 0)) @ np.ones((0, 1))
    assert len(handler.calls) == 1
    hooks.set_gate(1, 1)
    np.ones((2**21, 0)) @ np.ones((0, 1))
    assert len(handler.calls) == 1


@needs_extension
def test_gate_saturates() -> None:
    # 2*m*k*n = 2**65: a product modulo 2**64 would run natively, for years.
    out = run_python(
        """
        import numpy as np
        from np_ozaki import hooks

        hooks.install({"matmul": lambda *loop: print(loop[-5:]) or 0})
        hooks.set_gate(1, 2**62)
        np.broadcast_to(1.0, (2**7, 2**50)) @ np.broadcast_to(1.0, (2**50, 2**7))
        """
    )
    assert out.split("\n")[0] == str((1, 2**7, 2**50, 2**7, "d"))


@needs_extension
@pytest.mark.parametrize(
    ("arguments", "error"),
    [((-1, 0), ValueError), ((1, -(2**80)), ValueError), ((1, 0.5), TypeError)],
)
def test_gate_refuses(arguments: tuple[Any, Any], error: type[Exception]) -> None:
    before = installation._state.gate
    with pytest.raises(error):
        hooks.set_gate(*arguments)
    assert installation._state.gate == before


@needs_extension
def test_products_in_the_handler_are_native(route: Route) -> None:
    depth = 0

    def handler(*loop: Any) -> int:
        nonlocal depth
        depth += 1
        assert depth == 1
        np.ones((50, 50)) @ np.ones((50, 50))
        add_offset(*loop)
        depth -= 1
        return 0

    route(handler)
    for _ in range(3):
        assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2 + OFFSET


@needs_extension
def test_handler_that_raised_leaves_the_thread_routed(route: Route) -> None:
    handler = Counting(ValueError())
    route(handler)
    for _ in range(3):
        with pytest.raises(ValueError):  # noqa: PT011 - the handler's own, bare
            np.ones((2, 2)) @ np.ones((2, 2))
    assert len(handler.calls) == 3


@needs_extension
def test_unrouted_nests_and_survives_exceptions(route: Route) -> None:
    handler = Counting()
    a = np.ones((2, 2))
    route(handler)
    with hooks.unrouted() as target:
        assert target is None
        with pytest.raises(KeyError), hooks.unrouted():
            raise KeyError
        a @ a
        assert handler.calls == []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: a @ a).result()
        assert len(handler.calls) == 1
    a @ a
    assert len(handler.calls) == 2


@needs_extension
def test_unrouted_in_a_worker_of_the_handler(route: Route) -> None:
    def work() -> float:
        with hooks.unrouted():
            return float((np.ones((3, 3)) @ np.ones((3, 3)))[0, 0])

    def handler(*loop: Any) -> int:
        with ThreadPoolExecutor(2) as pool:
            assert [pool.submit(work).result(30) for _ in range(4)] == [3.0] * 4
        return add_offset(*loop)

    route(handler)
    assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2 + OFFSET


@needs_extension
def test_leaving_more_often_than_entering() -> None:
    compiled: Any = extension.extension
    with pytest.raises(RuntimeError, match="without enter_unrouted"):
        compiled.leave_unrouted()
    compiled.enter_unrouted()
    compiled.leave_unrouted()
    assert compiled.swap_unrouted(2) == 0
    assert compiled.swap_unrouted(0) == 2
    with pytest.raises(ValueError, match="negative"):
        compiled.swap_unrouted(-1)


# ---- Installing ----


@needs_extension
def test_second_install_replaces_the_handler(route: Route) -> None:
    first, second = Counting(), Counting()
    a = np.ones((2, 2))
    route(first)
    assert install_matmul(first) == hooks.status()[0]
    a @ a
    install_matmul(second)
    a @ a
    assert (len(first.calls), len(second.calls)) == (1, 1)
    status = hooks.status()[0]
    assert status == hooks.HookStatus("matmul", True, "installed, self-tested")


@needs_extension
def test_handler_may_replace_itself(route: Route) -> None:
    second = Counting(0)

    def first(*loop: Any) -> int:
        install_matmul(second)
        return add_offset(*loop)

    route(first)
    del first
    assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2 + OFFSET
    np.ones((2, 2)) @ np.ones((2, 2))
    assert len(second.calls) == 1


@needs_extension
def test_disabled_hook_is_taken_out(route: Route) -> None:
    handler = Counting()
    route(handler)
    status = hooks.install({})[0]
    assert not status.active
    assert status.escapes
    assert "configuration" in status.reason
    np.ones((2, 2)) @ np.ones((2, 2))
    assert handler.calls == []
    assert install_matmul(handler).active
    np.ones((2, 2)) @ np.ones((2, 2))
    assert len(handler.calls) == 1


def test_hooks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(OptionError, match="elsewhere"):
        hooks.install({"elsewhere": _decline})


@needs_extension
def test_install_refuses_what_is_no_handler() -> None:
    compiled: Any = extension.extension
    with pytest.raises(TypeError, match="not callable"):
        compiled.install("matmul", np.matmul, 1)
    with pytest.raises(LookupError, match="named nothing"):
        compiled.install("nothing", np.matmul, print)
    with pytest.raises(TypeError, match="not in 3"):
        compiled.install("vecdot", 3, print)
    assert compiled.uninstall("vecdot") is True


@needs_extension
def test_install_inside_unrouted() -> None:
    run_python(
        """
        from np_ozaki import _hooks, hooks

        with hooks.unrouted():
            status = hooks.install({"matmul": print})[0]
            assert status.active, status
            assert _hooks.swap_unrouted(1) == 1
        """
    )


LOOP_POINTER = """
import ctypes

import numpy as np

class Ufunc(ctypes.Structure):
    _fields_ = [
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
    ]

def loops():
    return Ufunc.from_address(id(np.matmul)).functions[: np.matmul.ntypes]

def loop():
    return loops()[np.matmul.types.index("dd->d")]
"""


@needs_extension
def test_native_pointer_comes_back() -> None:
    run_python(
        LOOP_POINTER
        + textwrap.dedent(
            """
            from np_ozaki import _hooks

            before = loops()
            assert _hooks.uninstall("matmul") is True
            for _ in range(3):
                _hooks.install("matmul", np.matmul, print)
                hooked = loop()
                assert hooked not in before
                _hooks.install("matmul", np.matmul, len)
                assert loop() == hooked
                changed = [x != y for x, y in zip(loops(), before)]
                types = [np.matmul.types[i] for i, x in enumerate(changed) if x]
                assert types == ["ff->f", "dd->d", "FF->F", "DD->D"]
                assert _hooks.uninstall("matmul") is True
                assert loops() == before
            """
        )
    )


@needs_extension
def test_loop_of_another_library_is_left_alone() -> None:
    run_python(
        LOOP_POINTER
        + textwrap.dedent(
            """
            from np_ozaki import _hooks

            functions = Ufunc.from_address(id(np.matmul)).functions
            native, foreign = loops(), loops()[np.matmul.types.index("ff->f")]
            _hooks.install("matmul", np.matmul, lambda *loop: print("routed"))
            _hooks.set_gate(1, 0)
            ours = loops()
            for name in ("dd->d", "DD->D"):
                place = np.matmul.types.index(name)
                with_foreign = ours.copy()
                functions[place] = with_foreign[place] = foreign
                # Neither loop goes, or the other would escape.
                assert _hooks.uninstall("matmul") is False
                assert loops() == with_foreign
                # The one below a foreign one must not be published a second time.
                _hooks.install("matmul", np.matmul, lambda *loop: print("routed"))
                assert loops() == with_foreign
                functions[place] = ours[place]
            assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2
            assert (np.ones((2, 2)) @ np.full((2, 2), 1j))[0, 0] == 2j
            assert _hooks.uninstall("matmul") is True
            assert loops() == native
            """
        )
    )


@needs_extension
def test_matmul_looks_the_same(route: Route) -> None:
    def look() -> tuple[object, ...]:
        return (
            id(np.matmul),
            type(np.matmul),
            repr(np.matmul),
            np.matmul.signature,
            np.matmul.types,
            np.matmul.__doc__,
            pickle.dumps(np.matmul),
            id(pickle.loads(pickle.dumps(np.matmul))),
            inspect.isbuiltin(np.matmul),
        )

    hooks.install({})
    before = look()
    route(add_offset)
    assert look() == before


@needs_extension
def test_threads_during_installs() -> None:
    run_python(
        """
        import sys
        import threading
        import time

        import numpy as np
        from np_ozaki import _hooks

        sys.setswitchinterval(1e-6)
        stop, failures, products = threading.Event(), [], [0] * 4

        def work(number, size):
            a = np.random.default_rng(number).integers(-9, 9, (size, size)) * 1.0
            expected = np.einsum("ik,kj->ij", a, a)
            while not stop.is_set():
                products[number] += 1
                if not np.array_equal(a @ a, expected):
                    failures.append(number)

        threads = [
            threading.Thread(target=work, args=pair)
            for pair in enumerate((2, 3, 40, 90))
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 3
        rounds = 0
        while time.monotonic() < end:
            _hooks.install("matmul", np.matmul, lambda *loop: None)
            _hooks.set_gate(rounds % 3, rounds % 2 * 100)
            _hooks.install("matmul", np.matmul, lambda *loop: None)
            assert _hooks.uninstall("matmul") is True
            rounds += 1
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert min(products) > 10 and rounds > 10, (products, rounds)
        """
    )


@needs_extension
def test_first_installs_from_many_threads() -> None:
    run_python(
        """
        import sys
        import threading

        import numpy as np
        from np_ozaki import hooks

        sys.setswitchinterval(1e-6)
        barrier, wrong = threading.Barrier(8), []

        def handler(*loop):
            return None

        def work(number):
            a = np.ones((number + 2, number + 2))
            barrier.wait()
            for _ in range(50):
                if number % 2:
                    status = hooks.install({"matmul": handler})[0]
                    wrong.extend([status] * (not status.active))
                wrong.extend([number] * bool((a @ a != number + 2).any()))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        """
    )


# ---- Where hooks cannot be ----


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ("sys.implementation.name = 'pypy'", "pypy"),
        ("sys.version += ' free-threading build'", "free-threaded"),
        (
            "sys.modules['_interpreters'] = types.SimpleNamespace("
            "get_current=lambda: 1, get_main=lambda: 0)",
            "subinterpreter",
        ),
    ],
)
def test_interpreters_without_hooks(prepare: str, reason: str) -> None:
    out = run_python(
        f"""
        import sys, types
        import numpy as np
        {prepare}
        from np_ozaki import hooks
        from np_ozaki.errors import HookUnavailableError

        assert not any(status.active for status in hooks.status())
        hooks.set_gate(1, 0)
        with hooks.unrouted():
            np.ones((2, 2)) @ np.ones((2, 2))
        try:
            hooks.install({{"matmul": print}})
        except HookUnavailableError as error:
            print(error)
        """
    )
    assert reason in out
    assert "OzArray" in out


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ("sys.modules['np_ozaki._hooks'] = None", "C compiler"),
        (
            "sys.modules['np_ozaki._hooks'] = types.SimpleNamespace(INTERFACE=99)",
            "interface 99",
        ),
    ],
)
def test_extension_that_cannot_be_used(prepare: str, reason: str) -> None:
    out = run_python(
        f"""
        import sys, types
        import numpy as np
        {prepare}
        from np_ozaki import hooks

        assert not hooks.status()[0].active
        handlers = dict.fromkeys(hooks.NAMES, print)
        assert hooks.install(handlers) == hooks.status()
        hooks.set_gate(1, 0)
        with hooks.unrouted():
            np.ones((2, 2)) @ np.ones((2, 2))
        status = hooks.status()[0]
        assert status.escapes and not status.active
        print(status.reason)
        """
    )
    assert reason in out


class FakeExtension(types.ModuleType):
    """An extension that hooks nothing, or whose install fails."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("fake")
        self.error = error
        self.uninstalled = 0

    def install(self, name: str, target: object, handler: object) -> None:
        if self.error is not None:
            raise self.error

    def uninstall(self, name: str) -> bool:
        self.uninstalled += name == "matmul"
        return True

    def is_owner(self, owner: object) -> bool:
        return True

    def set_gate(self, depth: int, min_flops: int) -> None:
        pass

    def swap_unrouted(self, count: int) -> int:
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeExtension:
    fake = FakeExtension()
    monkeypatch.setattr(installation, "_state", installation._State(fake))
    return fake


def test_failed_self_test_uninstalls(fake: FakeExtension) -> None:
    assert "no scope" in hooks.status()[0].reason
    status = install_matmul(_decline)
    assert status.escapes
    assert "did not reach the handler" in status.reason
    assert fake.uninstalled == 1
    assert install_matmul(_decline) == status
    assert fake.uninstalled == 1


def test_failed_install_is_a_reason(fake: FakeExtension) -> None:
    fake.error = TypeError("no float64 loop")
    status = install_matmul(_decline)
    assert status.escapes
    assert "no float64 loop" in status.reason


def test_interrupted_self_test_can_be_repeated(fake: FakeExtension) -> None:
    fake.error = KeyboardInterrupt()  # type: ignore[assignment]
    handlers = {"matmul": _decline}
    with pytest.raises(KeyboardInterrupt):
        hooks.install(handlers)
    assert fake.uninstalled == 1
    fake.error = None
    hooks.install(handlers)
    assert fake.uninstalled == 2


def test_numpy_without_the_capsule(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "multiarray", lambda: types.SimpleNamespace(matmul=1))
    assert "_UFUNC_API" in install_matmul(_decline).reason


def test_numpy_of_another_abi(
    fake: FakeExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "__version__", "3.0.1")
    assert "C ABI of NumPy 2" in install_matmul(_decline).reason


def test_error_is_ours() -> None:
    assert issubclass(HookUnavailableError, OzakiError)


# ---- Processes ----


@needs_extension
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_child() -> None:
    out = run_python(
        """
        import os
        import threading
        import time

        import numpy as np
        from np_ozaki import hooks

        inside = threading.Event()
        calls = []

        def handler(*loop):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                time.sleep(0.5)
            calls.append(loop[-4:])
            return None

        def child(expected):
            pid = os.fork()
            if pid:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                return
            try:
                calls.clear()
                a = np.ones((2, 2))
                assert (a @ a == 2).all()
                assert len(calls) == expected, calls
                hooks.install({"matmul": handler})
                hooks.set_gate(1, 0)
                assert hooks.status()[0].active
                os._exit(0)
            finally:
                os._exit(1)

        child(0)
        hooks.install({"matmul": handler})
        hooks.set_gate(1, 0)
        child(1)
        with hooks.unrouted():
            child(0)
        thread = threading.Thread(target=lambda: np.ones((2, 2)) @ np.ones((2, 2)))
        thread.start()
        inside.wait()
        child(1)
        thread.join()
        print("done")
        """,
        "-W",
        "ignore::DeprecationWarning",
    )
    assert out == "done\n"


@needs_extension
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_fork_inside_the_handler() -> None:
    # The child returns through the handler like the parent, and is routed after it.
    run_python(
        """
        import os
        import numpy as np
        from np_ozaki import hooks

        pids, calls = [], []

        def handler(*loop):
            calls.append(loop)
            if not pids:
                pids.append(os.fork())
            return None

        hooks.install({"matmul": handler})
        hooks.set_gate(1, 0)
        a = np.ones((2, 2))
        assert (a @ a == 2).all()
        a @ a
        if pids[0] == 0:
            os._exit(0 if len(calls) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
        assert len(calls) == 2
        """,
        "-W",
        "ignore::DeprecationWarning",
    )


@needs_extension
def test_native_while_the_interpreter_ends() -> None:
    out = run_python(
        """
        import os
        import sys
        import threading
        import time

        import numpy as np
        from np_ozaki import hooks

        class Last:
            def __init__(self):
                self.ones = np.ones((2, 2))
                self.is_finalizing = sys.is_finalizing
                self.write = os.write
            def __del__(self):
                product = self.ones @ self.ones
                self.write(1, f"{self.is_finalizing()} {product[0, 0]}".encode())

        def handler(*loop):
            if sys.is_finalizing():
                last_write(1, b"routed too late")
            return None

        last_write = os.write

        def work():
            while True:
                np.ones((90, 90)) @ np.ones((90, 90))

        hooks.install({"matmul": handler})
        hooks.set_gate(1, 0)
        # Freed with the modules; the handler keeps this module's names alive.
        sys.modules["last"] = Last()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        """
    )
    assert out == "True 2.0"


# ---- The helper for handlers ----


@pytest.mark.parametrize(
    "array",
    [
        integers(3, 4),
        integers(3, 4)[::-1, ::-2],
        np.broadcast_to(integers(4), (3, 4)),
        integers(2, 3, 4).transpose(2, 0, 1),
        np.empty((0, 3)),
    ],
    ids=["plain", "negative", "zero stride", "transposed", "empty"],
)
@pytest.mark.parametrize("writeable", [False, True])
def test_array_from_loop(array: Array, writeable: bool) -> None:
    view = hooks.array_from_loop(
        array.ctypes.data, array.shape, array.strides, writeable
    )
    assert view.dtype == np.float64
    assert view.flags.writeable is writeable
    assert view.__array_interface__["data"][0] == array.ctypes.data
    assert view.shape == array.shape
    np.testing.assert_array_equal(view, array)
    if array.size:
        assert view.strides == array.strides


def test_array_from_loop_writes_through() -> None:
    memory = (ctypes.c_double * 6)()
    view = hooks.array_from_loop(ctypes.addressof(memory) + 40, (3,), (-16,), True)
    view[...] = [1.0, 2.0, 3.0]
    assert list(memory) == [0.0, 3.0, 0.0, 2.0, 0.0, 1.0]


def test_two_imports_of_the_package_take_turns() -> None:
    """As pytest and reloaders import it again, and put the first one back."""
    run_python(
        """
        import sys, warnings
        import numpy as np
        import np_ozaki as first

        x = np.ones((3, 3))

        def caught(module):
            with warnings.catch_warnings():
                # The second import does not get at the method.
                warnings.simplefilter("ignore", module.RouteWarning)
                with module.enabled(engine="cpu", min_flops=0) as scope:
                    x @ x
                    np.dot(x, x)
            return scope.stats().calls("cpu")

        assert caught(first) == 2
        mine = {k: m for k, m in sys.modules.items() if k.split(".")[0] == "np_ozaki"}
        for name in mine:
            del sys.modules[name]
        import np_ozaki as second

        assert second is not first
        for module in (first, second, first, second, second, first):
            assert caught(module) == 2
        sys.modules.update(mine)
        assert caught(first) == 2
        """
    )
