"""dot, inner and the vector products inside a scope: NumPy's own in all but bits."""

import contextlib
import threading
import warnings

import numpy as np
import pytest
from numpy import dot as early_dot
from numpy import inner as early_inner

import np_ozaki
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.testing import assert_same_bits

RNG = np.random.default_rng(1)
A, B = RNG.standard_normal((5, 6)), RNG.standard_normal((6, 4))
PRODUCT = np_ozaki.matmul(A, B)
HAS_MATVEC = hasattr(np, "matvec")


def scope(**options):
    return np_ozaki.enabled(**{"engine": "cpu", "min_flops": 0, **options})


def calls(function, *arguments, **keywords):
    """Return how often a call reaches the engine."""
    with scope() as inside:
        function(*arguments, **keywords)
    return inside.stats().calls("cpu")


def integers(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-9, 10, shape).astype(float)


def gaussian_integers(*shape, seed=0):
    return integers(*shape, seed=seed) + 1j * integers(*shape, seed=seed + 9)


def outcome(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return type(error), str(error)


def assert_like_native(function, *arguments, routed=True, **keywords):
    """Compare a call inside a scope with the same outside: value, type, layout."""
    native = outcome(function, *arguments, **keywords)
    with scope() as inside:
        result = outcome(function, *arguments, **keywords)
    assert type(result) is type(native)
    if isinstance(native, tuple):
        assert result == native
        assert not routed
        return
    np.testing.assert_array_equal(result, native)
    assert np.shape(result) == np.shape(native)
    if isinstance(native, np.ndarray):
        assert result.dtype == native.dtype
        assert str(result.flags) == str(native.flags)
    assert bool(inside.stats().calls("cpu")) == routed


def by_method(a, b, out=None):
    return a.dot(b) if out is None else a.dot(b, out)


DOTS = {"dot": np.dot, "method": by_method, "early": early_dot}

# ---- Shapes, types, classes ----

SHAPES = [
    ((3, 4), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (6, 4, 5)),
    ((3, 4), (6, 4, 5)),
    ((4,), (6, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((0,), (0,)),
    ((1, 1), (1, 1)),
    ((1, 4), (4, 1)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("function", DOTS.values(), ids=DOTS)
def test_dot_of_every_shape(function, a_shape, b_shape):
    for entries in (integers, gaussian_integers):
        a, b = entries(*a_shape), entries(*b_shape, seed=1)
        assert_like_native(function, a, b)
        assert_like_native(function, np.asfortranarray(a), b[..., ::-1])
        assert_like_native(function, a[::-1], np.asfortranarray(b))


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 4), (5, 4)),
        ((3, 4), (4,)),
        ((4,), (5, 4)),
        ((4,), (4,)),
        ((2, 3, 4), (5, 4)),
        ((2, 3, 4), (6, 5, 4)),
        ((4,), (6, 5, 4)),
        ((3, 0), (5, 0)),
        ((0, 4), (5, 4)),
    ],
)
def test_inner_of_every_shape(a_shape, b_shape):
    for entries in (integers, gaussian_integers):
        a, b = entries(*a_shape), entries(*b_shape, seed=1)
        for function in (np.inner, early_inner):
            assert_like_native(function, a, b)
            assert_like_native(function, np.asfortranarray(a), b[..., ::-1])


@pytest.mark.parametrize("function", [np.dot, np.inner, by_method])
@pytest.mark.parametrize(
    ("types", "routed"),
    [
        (("f8", "f4"), True),
        (("i8", "f8"), True),
        (("?", "f8"), True),
        (("i4", "f4"), True),
        (("i8", "u8"), True),
        ((">f8", "f8"), True),
        ((">f8", ">f8"), True),
        (("f2", "i8"), True),
        (("f4", "f4"), False),
        (("i8", "i8"), False),
        (("c16", "c16"), True),
        (("c16", "f8"), True),
        (("i4", ">c16"), True),
        (("c8", "f8"), True),
        (("c8", "i8"), True),
        (("c8", "c8"), False),
        (("c8", "f4"), False),
        (("c16", "g"), False),
        (("g", "f8"), False),
        (("O", "f8"), False),
    ],
)
def test_what_numpy_casts(function, types, routed):
    a, b = (integers(4, 4, seed=i).astype(t) for i, t in enumerate(types))
    if "u8" in types:
        a, b = abs(a), integers(4, 4).astype(int).clip(0).astype("u8")
    for x in (a, b):
        if x.dtype.kind == "c":
            x *= 2.0 - 1.0j
    assert_like_native(function, a, b, routed=routed)


@pytest.mark.parametrize("function", [np.dot, np.inner])
def test_lists_are_routed_like_arrays(function):
    a, b = integers(4, 4), integers(4, 4, seed=1)
    for x, y in ((a.tolist(), b), (a, b.tolist()), (a.tolist(), tuple(b.tolist()))):
        assert_like_native(function, x, y)
    assert_like_native(function, [[1, 2]], [[3, 4], [5, 6]], routed=False)
    assert_like_native(function, [[1.0], [2.0, 3.0]], a, routed=False)


@pytest.mark.parametrize("function", [np.dot, np.inner, by_method])
def test_scalars_are_numpys(function):
    a = integers(3, 3)
    for x, y in ((2.0, a), (a, 2.0), (np.float64(2), a), (a, np.array(3.0))):
        if function is not by_method or hasattr(x, "dot"):
            assert_like_native(function, x, y, routed=False)


class Subclass(np.ndarray):
    pass


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # np.matrix
@pytest.mark.parametrize("function", [np.dot, np.inner, by_method])
def test_classes_of_results_are_numpys(function, tmp_path):
    a = integers(3, 3)
    mapped = np.memmap(tmp_path / "x", dtype=float, mode="w+", shape=(3, 3))
    mapped[...] = a
    matrix = np.matrix(a)
    for x, y in (
        (mapped, mapped),
        (mapped, a),
        (a, mapped),
        (matrix, matrix),
        (matrix, a),
        (a, matrix),
        (mapped, matrix),
        (matrix, a[0]),
        (mapped[0], mapped[0]),
    ):
        assert_like_native(function, x, y)
    assert_like_native(function, matrix, integers(2, 3, 3), routed=False)
    for x, y in ((a.view(Subclass), a), (a, a.view(Subclass))):
        assert_like_native(function, x, y, routed=False)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrix_operators_and_masked_arrays():
    a, b = np.matrix(integers(3, 4)), np.matrix(integers(4, 5))
    assert calls(lambda: a * b) == 1
    masked = np.ma.array(integers(3, 3), mask=np.eye(3))
    native = np.ma.dot(masked, masked)
    with scope() as inside:
        result = np.ma.dot(masked, masked)
        method = masked.dot(masked)
    assert inside.stats().calls("cpu") >= 2
    for x in (result, method):
        assert type(x) is np.ma.MaskedArray
        np.testing.assert_array_equal(x.filled(-1), native.filled(-1))


class Duck:
    def __array_function__(self, func, types, args, kwargs):
        return func.__name__

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return ufunc.__name__


def test_ducks_decide():
    x = np.ones((2, 2))
    with scope():
        for function in (np.dot, np.inner):
            assert function(x, Duck()) == function(Duck(), x) == function.__name__
        assert np.einsum("ij,jk", x, Duck()) == "einsum"
        assert np.vecdot(x, Duck()) == "vecdot"


# ---- Arguments ----


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: np.dot(),
        lambda a, b: np.dot(a),
        lambda a, b: np.dot(a, b, None, None),
        lambda a, b: np.dot(a, c=b),
        lambda a, b: np.dot(a, b, a=a),
        lambda a, b: np.dot(a, b, out=3),
        lambda a, b: np.dot(a, b[1:]),
        lambda a, b: np.dot(a, "text"),
        lambda a, b: a.dot(),
        lambda a, b: a.dot(a=b),
        lambda a, b: a.dot(b, None, None),
        lambda a, b: a.dot(b[1:]),
        lambda a, b: np.inner(a),
        lambda a, b: np.inner(a, b=b),
        lambda a, b: np.inner(a, b[:, 1:]),
        lambda a, b: np.inner(a, b, b),
        lambda a, b: np.vecdot(a, b[:, 1:]),
    ],
)
def test_errors_are_numpys(call):
    assert_like_native(call, integers(4, 4), integers(4, 4), routed=False)


def test_arguments_by_keyword():
    a, b = integers(3, 3), integers(3, 3, seed=1)
    assert_like_native(lambda: np.dot(a=a, b=b))
    assert_like_native(lambda: np.dot(b=b, a=a))
    assert_like_native(lambda: np.dot(a, b=b, out=None))
    assert_like_native(lambda: a.dot(b=b))


@pytest.mark.parametrize("function", [np.dot, by_method])
def test_out_has_the_same_bits(function):
    out = np.full((5, 4), np.nan)
    with scope() as inside:
        assert function(A, B, out) is out
    assert inside.stats().calls("cpu") == 1
    assert_same_bits(out, PRODUCT)


@pytest.mark.parametrize("function", [np.dot, by_method])
@pytest.mark.parametrize(
    "out",
    [
        np.empty((4, 3)).T,
        np.empty((3, 4), np.float32),
        np.empty((3, 4), ">f8"),
        np.empty((3, 8))[:, ::2],
        np.empty((4, 3)),
        np.empty((1, 3, 4)),
        np.empty((3, 4)).view(Subclass),
    ],
)
def test_out_that_numpy_refuses(function, out):
    assert_like_native(function, integers(3, 5), integers(5, 4), out, routed=False)


def test_out_that_is_read_only_is_refused():
    out = np.empty((3, 3))
    out.flags.writeable = False
    assert_like_native(np.dot, integers(3, 3), integers(3, 3), out, routed=False)


@pytest.mark.parametrize("function", [np.dot, by_method])
def test_out_that_is_an_operand(function):
    x = RNG.standard_normal((5, 5))
    want = np_ozaki.matmul(x, x)
    with scope():
        assert function(x, x, x) is x
    assert_same_bits(x, want)


def test_out_without_dimensions_gives_a_scalar():
    out = np.empty(())
    assert_like_native(np.dot, integers(4), integers(4), out)
    assert out == (integers(4) ** 2).sum()


# ---- Bits ----


def test_every_complex_route_has_the_bits_of_matmul():
    rng = np.random.default_rng(2)
    a = rng.standard_normal((5, 6)) - 1j * rng.standard_normal((5, 6))
    b = rng.standard_normal((6, 4)) + 1j * rng.standard_normal((6, 4))
    v, want = b[:, 0], np_ozaki.matmul(a, b)
    out = np.full((4, 5), np.nan, complex).T
    with scope() as inside:
        for result in (
            a @ b,
            np.matmul(a[::-1, ::-1], b[::-1], out=out)[::-1],
            np.asfortranarray(a) @ b.astype(">c16"),
            np.dot(a, b.copy("F")),
            a.dot(b),
            np.inner(a, b.T),
            np.tensordot(a, b, 1),
            np.linalg.multi_dot([a, b]),
        ):
            assert_same_bits(result, want)
        assert_same_bits(a.real @ b, np_ozaki.matmul(a.real, b))
        assert_same_bits(np.stack([a, 2 * a]) @ b, np.stack([want, 2 * want]))
        assert_same_bits(np.vecdot(a, v)[2], np_ozaki.matmul(a[2].conj(), v))
        assert_same_bits(np.vecdot(v, a)[2], np_ozaki.matmul(v.conj(), a[2]))
        if HAS_MATVEC:
            assert_same_bits(np.matvec(a, v), want[:, 0])
            assert_same_bits(np.vecmat(v, b), np_ozaki.matmul(v.conj(), b))
        for gram in (a @ a.conj().T, np.dot(a, a.conj().T)):
            np.testing.assert_array_equal(gram, gram.conj().T)
            assert (gram.diagonal().imag == 0).all()
    assert inside.stats().calls("native") == 0
    assert inside.stats().routes["dot"].flops["cpu"] == 8 * (3 * 5 * 6 * 4 + 5 * 6 * 5)


@pytest.mark.parametrize("dtype", ["f", "F"])
def test_every_single_route_has_the_bits_of_matmul(dtype):
    a, b = A.astype("f"), B.astype("f")
    if dtype == "F":
        a, b = a + 1j * a[::-1], b - 1j * b[:, ::-1]
    v = b[:, 0]
    want, out = np_ozaki.matmul(a, b), np.empty((5, 4), dtype)
    half = a.real.astype(np.float16)
    stretched = np.full((4, 10), np.nan, dtype).T[::2]
    with scope(dtypes=[dtype]) as inside:
        for result in (
            a @ b,
            np.matmul(a[::-1, ::-1], b[::-1], out=stretched)[::-1],
            a.astype(a.dtype.newbyteorder()) @ b,
            np.dot(np.asfortranarray(a), b, out),
            a.dot(b),
            np.inner(a, b.T),
            np.einsum("ij,jk->ik", a, b),
            np.einsum("ij,jk->ki", a, b, dtype=dtype).T,
            np.tensordot(a, b, 1),
            np.linalg.multi_dot([a, b]),
        ):
            assert_same_bits(result, want)
        assert_same_bits(half @ b, np_ozaki.matmul(half, b))
        assert_same_bits(np.dot(half, b), np_ozaki.matmul(half, b))
        assert_same_bits(np.vecdot(a, v)[2], np_ozaki.matmul(a[2].conj(), v))
        if HAS_MATVEC:
            assert_same_bits(np.matvec(a, v), want[:, 0])
            assert_same_bits(np.vecmat(v, b), np_ozaki.matmul(v.conj(), b))
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            np.matmul(a * np.float32(1e38), b * np.float32(1e3))
    assert inside.stats().calls("native") == 0
    with scope(dtypes=["float64", "complex128"]) as inside:
        np.testing.assert_array_equal(np.matmul(a, b, dtype="D"), a.astype("D") @ b)
    assert inside.stats().calls("cpu") == 2  # of this dtype NumPy makes complex128


@pytest.mark.parametrize(("a", "b"), [((0, 4), (4, 5)), ((3, 0), (0, 5)), ((0,), (0,))])
def test_empty_complex_products(a, b):
    x, y = np.ones(a, complex), np.ones(b, complex)
    for function in (np.matmul, np.dot, *[np.vecdot] * (len(a) == 1)):
        assert_like_native(function, x, y)


def test_every_route_has_the_bits_of_matmul():
    v = B[:, 0]
    with scope() as inside:
        for result in (
            early_dot(A, B),
            A.dot(B),
            np.inner(A, B.T),
            np.tensordot(A, B, 1),
            np.linalg.multi_dot([A, B]),
            np.dot(A.astype(">f8"), B.tolist()),
            np.dot(np.asfortranarray(A), B.copy("F")),
        ):
            assert_same_bits(result, PRODUCT)
        assert_same_bits(np.dot(A, v), PRODUCT[:, 0])
        assert_same_bits(np.dot(A[0], v), np_ozaki.matmul(A[0], v))
        assert_same_bits(np.vecdot(A[0], v), np_ozaki.matmul(A[0], v))
        stacked = np.vecdot(A, A[::-1])
        for i, row in enumerate(stacked):
            assert_same_bits(row, np_ozaki.matmul(A[i], A[::-1][i]))
        if HAS_MATVEC:
            assert_same_bits(np.matvec(A, v), PRODUCT[:, 0])
            assert_same_bits(np.vecmat(A, np.stack([B] * 5)), PRODUCT)
        gram = np.dot(A, A.T)
        assert_same_bits(gram, gram.T)
    assert inside.stats().calls("native") == 0


@pytest.mark.skipif(not HAS_MATVEC, reason="this NumPy has no matvec")
def test_vector_ufuncs_with_out_and_strides():
    a, v = integers(3, 4, 5), integers(3, 5)
    for out in (np.empty((3, 4)), np.empty((4, 3)).T, np.empty((3, 8))[:, ::2]):
        assert_like_native(np.matvec, a, v, out)
        assert_like_native(np.vecmat, v, a.swapaxes(1, 2)[..., ::-1], out)
    assert_like_native(np.vecdot, a[..., ::-2], v[:, np.newaxis, ::2])
    assert_like_native(np.vecdot, a, a, axis=1)


# ---- Floating-point exceptions ----


@pytest.mark.parametrize("state", ["ignore", "warn", "raise"])
@pytest.mark.parametrize(
    "function",
    [
        np.dot,
        by_method,
        np.inner,
        np.vecdot,
        lambda a, b: np.einsum("ij,jk", a, b),
        lambda a, b: np.tensordot(a, b, 1),
    ],
)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1e300, 1e300),
        (np.inf, 0.0),
        (1.0, 1.0),
        (1e-300, 1e-300),
        (complex(np.inf, 0.0), 0.0),
        (complex(0.0, np.nan), 1j),
    ],
)
def test_exceptions_as_in_this_numpy(function, state, x, y):
    outcomes = []
    for context in (contextlib.nullcontext(), scope()):
        with warnings.catch_warnings(record=True) as caught, context:
            warnings.simplefilter("always")
            with np.errstate(over=state, invalid=state):
                result = outcome(function, np.full((2, 2), x), np.full((2, 2), y))
        messages = [(w.category, str(w.message)) for w in caught]
        outcomes.append((messages, result if isinstance(result, tuple) else None))
    assert outcomes[0] == outcomes[1]


# ---- The scope ----


@pytest.mark.parametrize(
    "function",
    [
        lambda: early_dot(A, B),
        lambda: A.dot(B),
        lambda: early_inner(A, B.T),
        lambda: np.einsum("ij,jk", A, B),
        lambda: np.vecdot(A, A),
    ],
)
class TestEveryFunction:
    """What holds for each of them."""

    def test_before_inside_after(self, function):
        native = function()
        before = np_ozaki.stats().calls("cpu")
        assert calls(function) == 1
        assert_same_bits(function(), native)
        assert np_ozaki.stats().calls("cpu") == before + 1

    def test_nested_and_disabled(self, function):
        with scope(precision=8) as outer:
            with scope(precision=9) as inner, np_ozaki.disabled():
                function()
            with scope(precision=9) as inner:
                function()
                assert np_ozaki.last_call().num_moduli == 9
            function()
            assert np_ozaki.last_call().num_moduli == 8
        assert inner.stats().calls("cpu") == outer.stats().calls("cpu") == 1

    def test_threads(self, function):
        seen = []
        for local, expected in ((False, 1), (True, 0)):
            with scope(local=local):
                before = np_ozaki.stats().calls("cpu")
                thread = threading.Thread(target=function)
                thread.start()
                thread.join()
                seen.append(np_ozaki.stats().calls("cpu") - before == expected)
        assert all(seen)

    def test_errors_of_the_engine_surface(self, function, monkeypatch):
        for error in (RuntimeError("planted"), KeyboardInterrupt(), SystemExit()):

            def fail(*args, error=error, **kwargs):
                raise error

            with monkeypatch.context() as patch, scope():
                patch.setattr(CpuEngine, "matmul", fail)
                with pytest.raises(type(error)) as caught:
                    function()
            assert caught.value is error
        assert calls(function) == 1

    def test_native_options(self, function):
        for options in ({"engine": "native"}, {"strategy": "performant"}):
            with scope(**options) as inside:
                function()
            assert inside.stats().calls("cpu") == 0
        with scope(min_flops=10**6) as inside:
            function()
        assert inside.stats().as_dict() == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.dot(a, a),
        lambda a: a.dot(a),
        lambda a: np.inner(a, a),
        lambda a: np.dot(np.stack([a, a]), np.stack([a, a])),
        lambda a: np.dot(a, a[0]),
        lambda a: np.linalg.multi_dot([a, a, a]),
    ],
)
def test_results_own_their_memory(function):
    with scope() as inside:
        result = function(np.eye(3))
    assert inside.stats().calls("cpu") > 0
    assert result.flags.owndata
    assert result.base is None
