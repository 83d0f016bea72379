"""Hooked builtin functions: what handlers see, and that nothing else changes."""

import inspect
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy import dot as early_dot
from numpy import inner as early_inner
from processes import run_python

from np_ozaki import hooks
from np_ozaki.hooks import extension, installation, table

pytestmark = pytest.mark.skipif(
    extension.extension is None, reason=f"no extension: {extension.extension_reason}"
)

BUILTINS = ("dot", "ndarray.dot", "inner", "einsum")
Handler = Callable[..., Any]


class Counting:
    """A handler that counts its calls and gives one answer."""

    def __init__(self, answer: Any = NotImplemented) -> None:
        self.calls: list[tuple[Any, Any]] = []
        self.answer = answer

    def __call__(self, arguments: Any, keywords: Any) -> Any:
        self.calls.append((arguments, keywords))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def route() -> Iterator[Callable[..., None]]:
    """Install one handler for all of them behind an open gate; undo it afterwards."""
    gate = installation._state.gate

    def install(handler: Handler, min_flops: int = 0) -> None:
        statuses = hooks.install(dict.fromkeys(BUILTINS, handler))
        active = [s.name for s in statuses if s.active]
        assert active == list(BUILTINS), statuses
        hooks.set_gate(1, min_flops)

    yield install
    hooks.set_gate(*gate)
    hooks.install({})


A = np.arange(6.0).reshape(2, 3)
B = np.arange(12.0).reshape(3, 4)
bound_dot = A.dot

CALLS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], Any]] = {
    "np.dot": (lambda: np.dot(A, B), (A, B), None),
    "earlier import": (lambda: early_dot(A, B), (A, B), None),
    "out": (lambda: np.dot(A, B, None), (A, B, None), None),
    "keyword out": (lambda: np.dot(A, B, out=None), (A, B), {"out": None}),
    "all keywords": (lambda: np.dot(a=A, b=B), (), {"a": A, "b": B}),
    "unpacked": (lambda: np.dot(*(A, B)), (A, B), None),
    "method": (lambda: A.dot(B), (A, B), None),
    "bound earlier": (lambda: bound_dot(B), (A, B), None),
    "descriptor": (lambda: np.ndarray.dot(A, B), (A, B), None),
    "method with keyword": (lambda: A.dot(b=B), (A,), {"b": B}),
    "inner": (lambda: np.inner(A, A), (A, A), None),
    "early inner": (lambda: early_inner(A, A), (A, A), None),
    "einsum": (lambda: np.einsum("ij,jk", A, B), ("ij,jk", A, B), None),
    "einsum, order": (
        lambda: np.einsum("ij,jk", A, B, order="F"),
        ("ij,jk", A, B),
        {"order": "F"},
    ),
    "lists of labels": (
        lambda: np.einsum(A, [0, 1], B, [1, 2]),
        (A, [0, 1], B, [1, 2]),
        None,
    ),
    "tensordot": (lambda: np.tensordot(A, B, 1), (A, B), None),
    "multi_dot": (lambda: np.linalg.multi_dot([A, B]), (A, B), {"out": None}),
}


@pytest.mark.parametrize(("call", "arguments", "keywords"), CALLS.values(), ids=CALLS)
def test_arguments_arrive_as_given(
    route: Callable[..., None], call: Handler, arguments: Any, keywords: Any
) -> None:
    answer = np.zeros((2, 4))
    handler = Counting(answer)
    native = call()
    route(handler)
    result = call()
    assert np.shares_memory(result, answer)  # tensordot reshapes it
    ((seen, named),) = handler.calls
    assert len(seen) == len(arguments)
    for x, y in zip(seen, arguments, strict=True):
        assert x is y or np.array_equal(x, y)
    named, keywords = named or {}, keywords or {}
    assert named.keys() == keywords.keys()
    assert all(named[key] is keywords[key] for key in named)
    handler.answer = NotImplemented
    np.testing.assert_array_equal(call(), native)


@pytest.mark.parametrize("answer", [None, 7, "text", np.ma.masked])
def test_any_answer_is_the_result(route: Callable[..., None], answer: object) -> None:
    route(Counting(answer))
    for call in (lambda: np.dot(A, B), lambda: A.dot(B), lambda: np.inner(A, A)):
        assert call() is answer


def test_no_arguments(route: Callable[..., None]) -> None:
    handler = Counting()
    route(handler)
    for call in (np.dot._implementation, A.dot, np.inner._implementation):  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            call()
    with pytest.raises((TypeError, ValueError)):
        table.multiarray().c_einsum()
    assert len(handler.calls) == 4


@pytest.mark.parametrize(
    "exception", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)], ids=repr
)
def test_exception_is_the_calls(
    route: Callable[..., None], exception: BaseException
) -> None:
    handler = Counting(exception)
    route(handler)
    for call, *_ in CALLS.values():
        with pytest.raises(type(exception)) as caught:
            call()
        assert caught.value is exception
    hooks.set_gate(0, 0)
    for call, *_ in CALLS.values():
        call()
    assert len(handler.calls) == len(CALLS)


def test_ctrl_c_in_the_handler(route: Callable[..., None]) -> None:
    def handler(arguments: Any, keywords: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return NotImplemented

    route(handler)
    with pytest.raises(KeyboardInterrupt):
        A.dot(B)
    route(Counting(5))
    assert A.dot(B) == 5


# ---- The gate ----


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (lambda: np.dot(A, B), 48),
        (lambda: A.dot(B), 48),
        (lambda: np.dot(B[:, 0], B), 24),
        (lambda: np.dot(A, B[:, 0]), 12),
        (lambda: np.dot(B[0], B[1]), 8),
        (lambda: np.dot(np.ones((5, 2, 3)), np.ones((7, 3, 4))), 2 * 10 * 3 * 28),
        (lambda: np.inner(A, A), 24),
        (lambda: np.inner(np.ones((5, 2, 3)), np.ones((7, 4, 3))), 2 * 10 * 3 * 28),
        (lambda: np.inner(B[0], B[1]), 8),
        # Without parsing: all entries by all entries.
        (lambda: np.einsum("ij,jk", A, B), 2 * 6 * 12),
        (lambda: np.dot(A * 1j, B * 1j), 4 * 48),
        (lambda: np.inner(A, A.astype(np.complex64)), 4 * 24),
    ],
)
def test_gate_counts_flops(
    route: Callable[..., None], call: Handler, flops: int
) -> None:
    handler = Counting()
    route(handler, min_flops=flops + 1)
    call()
    assert handler.calls == []
    route(handler, min_flops=flops)
    call()
    assert len(handler.calls) == 1
    hooks.set_gate(0, 0)
    call()
    assert len(handler.calls) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: np.dot(A, np.ones(())),
        lambda: np.dot(2.0, A),
        lambda: A.dot(np.float64(2.0)),
        lambda: np.inner(3, A),
        lambda: np.dot(A.astype(np.float16), B.astype(np.float16)),
        lambda: A.astype(np.clongdouble).dot(B.astype(np.clongdouble)),
        lambda: np.inner(A.astype(int), A.astype(int)),
        lambda: np.einsum("ij->ji", A),
        lambda: np.einsum("ij,jk,k", A, B, B[0]),
        lambda: np.einsum("ij,jk", A.astype(int), B.astype(int)),
    ],
)
def test_what_is_native_without_a_question(
    route: Callable[..., None], call: Handler
) -> None:
    handler = Counting(ValueError())
    route(handler)
    call()
    assert handler.calls == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: np.dot([[1.0]], [[1.0]]),
        lambda: np.dot(A.astype(np.float32), B),
        lambda: np.dot(A.view(np.recarray), B),
        lambda: np.einsum(A, [0, 1], B, [1, 2]),
    ],
)
def test_what_python_decides_whatever_its_size(
    route: Callable[..., None], call: Handler
) -> None:
    handler = Counting()
    route(handler, min_flops=0)
    call()
    assert len(handler.calls) == 1


def test_products_in_the_handler_are_native(route: Callable[..., None]) -> None:
    def handler(arguments: Any, keywords: Any) -> Any:
        return np.dot(A, B).sum() + A.dot(B).sum() + np.einsum("ij,jk->", A, B)

    native = float(np.dot(A, B).sum())
    route(handler)
    assert np.dot(A, B) == 3 * native
    with hooks.unrouted():
        np.testing.assert_array_equal(A.dot(B), A @ B)


def test_threads_are_routed_unless_told(route: Callable[..., None]) -> None:
    def native() -> Any:
        with hooks.unrouted():
            return A.dot(B)

    route(Counting(5))
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(A.dot, B).result() == 5
        assert pool.submit(native).result().shape == (2, 4)


# ---- Nothing else changes ----


def look() -> list[object]:
    found: list[object] = []
    for function in (np.dot, np.inner, np.einsum, np.vdot, np.ndarray.dot, A.dot):
        found += [
            type(function),
            function.__name__,
            function.__qualname__,
            function.__doc__,
            getattr(function, "__text_signature__", None),
            getattr(function, "__module__", None),
            inspect.isbuiltin(function),
        ]
    for function in (np.dot, np.inner, np.einsum):
        pickled = pickle.dumps(function)
        found += [pickled, pickle.loads(pickled) is function, id(function)]
        found.append(id(function._implementation))  # type: ignore[attr-defined]
    found += [id(np.ndarray.__dict__["dot"]), list(vars(np.ndarray)), dir(np)]
    return found


def test_functions_look_the_same(route: Callable[..., None]) -> None:
    hooks.install({})
    before = look()
    route(Counting(5))
    assert look() == before
    assert np.dot(A, B) == 5


POINTERS = """
import ctypes
import numpy as np
from numpy._core import _multiarray_umath as numpy_c

class Definition(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
    ]

class Builtin(ctypes.Structure):
    _fields_ = [
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("definition", ctypes.POINTER(Definition)),
    ]

def definition(function):
    return Builtin.from_address(id(function)).definition.contents

bound = np.empty(0).dot
functions = {
    "dot": numpy_c.dot,
    "ndarray.dot": bound,
    "inner": numpy_c.inner,
    "einsum": numpy_c.c_einsum,
}

def pointers():
    return {name: definition(f).function for name, f in functions.items()}
"""


def test_native_pointers_come_back() -> None:
    run_python(
        POINTERS
        + """
from np_ozaki import hooks

before = pointers()
for _ in range(3):
    hooks.install(dict.fromkeys(functions, lambda *call: NotImplemented))
    assert not set(pointers().values()) & set(before.values())
    hooks.install({"inner": lambda *call: NotImplemented})
    assert [k for k in before if pointers()[k] != before[k]] == ["inner"]
    hooks.install({})
    assert pointers() == before
"""
    )


def test_function_of_another_library_is_left_alone() -> None:
    run_python(
        POINTERS
        + """
from np_ozaki import _hooks, hooks

native = pointers()["dot"]
hooks.install({"dot": lambda *call: 5})
hooks.set_gate(1, 0)
ours = pointers()["dot"]
calls = []
prototype = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t,
    ctypes.c_void_p,
)

def theirs(*arguments):
    calls.append(len(arguments))
    return prototype(ours)(*arguments)

foreign = prototype(theirs)
definition(functions["dot"]).function = ctypes.cast(foreign, ctypes.c_void_p).value
x = np.ones((2, 2))
assert np.dot(x, x) == 5 and len(calls) == 1
assert _hooks.uninstall("dot") is False
assert np.dot(x, x)[0, 0] == 2 and len(calls) == 2
_hooks.install("dot", functions["dot"], lambda *call: 6)
assert np.dot(x, x) == 6 and len(calls) == 3
definition(functions["dot"]).function = ours
assert _hooks.uninstall("dot") is True
assert pointers()["dot"] == native
"""
    )


def test_refusals() -> None:
    compiled: Any = extension.extension
    hooks.install({})
    for target, reason in (
        (len, "is len, not dot"),
        (np.inner._implementation, "is inner, not dot"),  # type: ignore[attr-defined]
        (lambda: None, "not a builtin"),
        (np.dot, "not a builtin"),
        (3, "not a builtin"),
    ):
        with pytest.raises(TypeError, match=reason):
            compiled.install("dot", target, Counting())
    for probes in ((1,), (A, 1), (A, np.matrix), (A, "text")):
        with pytest.raises((TypeError, AttributeError)):
            compiled.learn_arrays(probes)
    with pytest.raises(ValueError, match="no probes"):
        compiled.learn_arrays(())


@pytest.mark.parametrize("name", BUILTINS)
def test_arrays_must_be_known_first(name: str) -> None:
    run_python(
        POINTERS
        + f"""
from np_ozaki import _hooks

try:
    _hooks.install({name!r}, functions[{name!r}], print)
except RuntimeError as error:
    assert "learn_arrays" in str(error)
else:
    raise SystemExit("installed without a look at arrays")
"""
    )


class Pretender:
    """Says of itself what an array would, and is none."""

    __basicsize__ = 1000
    ndim = 1
    shape = (1,)
    dtype = np.dtype(np.float64)


def test_unknown_layout_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = extension.extension

    def differ(probes: object) -> None:
        raise TypeError("arrays have an unknown layout")

    hooks.install({})
    monkeypatch.setattr(installation, "_state", installation._State(compiled))
    monkeypatch.setattr(compiled, "learn_arrays", differ)
    status = hooks.install({"dot": Counting()})[4]
    assert (status.name, status.active, status.escapes) == ("dot", False, True)
    assert "unknown layout" in status.reason
    monkeypatch.undo()
    with pytest.raises(TypeError, match="unknown layout"):
        compiled.learn_arrays((Pretender(),))


# ---- Threads, forks, compilers ----


def test_threads_during_installs() -> None:
    run_python(
        """
        import sys
        import threading
        import time

        import numpy as np
        from np_ozaki import hooks

        sys.setswitchinterval(1e-6)
        stop, failures, products = threading.Event(), [], [0] * 4
        a = np.arange(9.0).reshape(3, 3)
        calls = [
            lambda: np.dot(a, a),
            lambda: a.dot(a),
            lambda: np.inner(a, a.T),
            lambda: np.einsum("ij,jk", a, a),
        ]
        expected = a @ a

        def work(number):
            while not stop.is_set():
                products[number] += 1
                if not np.array_equal(calls[number](), expected):
                    failures.append(number)

        names = ["dot", "ndarray.dot", "inner", "einsum"]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        end, rounds = time.monotonic() + 2, 0
        while time.monotonic() < end:
            hooks.install(dict.fromkeys(names, lambda *call: NotImplemented))
            hooks.set_gate(rounds % 3, rounds % 2 * 10)
            hooks.install({})
            rounds += 1
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert min(products) > 10 and rounds > 3, (products, rounds)
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_child() -> None:
    run_python(
        """
        import os
        import numpy as np
        from np_ozaki import hooks

        a = np.ones((2, 2))
        handlers = {"ndarray.dot": lambda *call: 5}
        hooks.install(handlers)
        hooks.set_gate(1, 0)
        pid = os.fork()
        if pid == 0:
            right = a.dot(a) == 5
            hooks.install({})
            right = right and a.dot(a)[0, 0] == 2
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert a.dot(a) == 5
        """
    )


def test_native_while_the_interpreter_ends() -> None:
    out = run_python(
        """
        import os
        import sys

        import numpy as np
        from np_ozaki import hooks

        class Last:
            def __init__(self):
                self.ones = np.ones((2, 2))
                self.write = os.write
            def __del__(self):
                self.write(1, str(self.ones.dot(self.ones)[0, 0]).encode())

        hooks.install({"ndarray.dot": lambda *call: [["routed too late"]]})
        hooks.set_gate(1, 0)
        sys.modules["last"] = Last()
        """
    )
    assert out == "2.0"


def test_specialised_bytecode_is_caught(route: Callable[..., None]) -> None:
    def product(function: Handler, a: Any, b: Any) -> Any:
        return function(a, b)

    def method(a: Any, b: Any) -> Any:
        return a.dot(b)

    native = np.dot._implementation  # type: ignore[attr-defined]
    for _ in range(100):  # until the interpreter specialises both calls
        product(native, A, B)
        method(A, B)
    route(Counting(5))
    assert product(native, A, B) == 5
    assert method(A, B) == 5


def test_compiled_by_numba(route: Callable[..., None]) -> None:
    numba = pytest.importorskip("numba")
    route(Counting(5))

    @numba.njit  # type: ignore[untyped-decorator]
    def product(a: Any, b: Any) -> Any:
        return np.dot(a, b)

    np.testing.assert_array_equal(product(A, B), A @ B)


def test_one_status_a_hook(route: Callable[..., None]) -> None:
    route(Counting())
    assert [s.name for s in hooks.status()] == list(hooks.NAMES)
    assert len(set(hooks.NAMES)) == len(hooks.NAMES)
    for status in hooks.status():
        if status.name in BUILTINS:
            assert status.reason == "installed, self-tested"
        else:
            assert "configuration" in status.reason
