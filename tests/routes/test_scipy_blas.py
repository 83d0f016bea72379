"""SciPy's BLAS inside a scope: the whole contract of f2py, and exact structure."""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
from scipy.linalg import blas, get_blas_funcs

import np_ozaki
from np_ozaki import hooks
from np_ozaki.routes import triangles
from np_ozaki.testing import assert_same_bits

ROUTINES = ("dgemm", "dgemv", "dsymm", "dsyrk", "dsyr2k", "dtrmm", "dtrsm")
early = {name: getattr(blas, name) for name in ROUTINES}


def scope(**options):
    # A given precision: certificates are not what is tested here, and take time.
    given = {"engine": "cpu", "min_flops": 0, "precision": 15}
    return np_ozaki.enabled(**{**given, **options})


@pytest.fixture(autouse=True, scope="module")
def _needs_the_hooks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with scope():
            inactive = [s for s in hooks.status() if s.escapes]
    if inactive:
        pytest.skip(f"nothing to catch here: {inactive}")


@pytest.fixture(params=[False, True], ids=["one block", "small blocks"])
def small_blocks(request, monkeypatch):
    """Run once as it is, and once with blocks that small matrices are cut to."""
    if request.param:
        monkeypatch.setattr(triangles, "_SYMMETRIC_BLOCK", 3)
        monkeypatch.setattr(triangles, "_STRIP", 3)
        monkeypatch.setattr(triangles, "_SOLVED_DIRECTLY", 2)
        monkeypatch.setattr(triangles, "_PANEL", 2)
    return request.param


def integers(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-5, 6, shape).astype(float)


def layouts(x):
    """The same matrix in memory that f2py takes as it is, copies, and copies too."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]))
    wide[::2, ::3] = x
    return np.asfortranarray(x), np.ascontiguousarray(x), wide[::2, ::3]


def compare(name, *arguments, **keywords):
    """Call natively and in a scope, on copies of everything; compare all they touch."""
    function, results = getattr(blas, name), []
    for inside in (False, True):
        given = [x.copy("K") if isinstance(x, np.ndarray) else x for x in arguments]
        named = {
            key: x.copy("K") if isinstance(x, np.ndarray) else x
            for key, x in keywords.items()
        }
        if inside:
            with scope() as current:
                result = function(*given, **named)
            routed = current.stats().calls("cpu")
        else:
            result = function(*given, **named)
        touched = [x for x in (*given, *named.values()) if isinstance(x, np.ndarray)]
        shared = [bool(np.shares_memory(result, x)) for x in touched]
        results.append((result, touched, shared))
    (native, native_touched, native_shared), (result, touched, shared) = results
    np.testing.assert_array_equal(result, native)
    assert type(result) is type(native)
    assert (result.dtype, result.strides) == (native.dtype, native.strides)
    assert shared == native_shared
    for x, y in zip(touched, native_touched, strict=True):
        np.testing.assert_array_equal(x, y)
    return routed


SCALARS = [(1.0, 0.0), (2.0, 0.0), (-3.0, 1.0), (1.0, -2.0), (0.5, 4.0)]


@pytest.mark.parametrize(("alpha", "beta"), SCALARS)
@pytest.mark.parametrize("trans_b", [0, 1, 2])
@pytest.mark.parametrize("trans_a", [0, 1, 2])
def test_dgemm(trans_a, trans_b, alpha, beta):
    for a, b, c in itertools.product(
        layouts(integers(3, 4).T if trans_a else integers(3, 4)),
        layouts(integers(4, 5).T if trans_b else integers(4, 5)),
        layouts(integers(3, 5, seed=1)),
    ):
        for overwrite_c in (0, 1):
            keywords = {"trans_a": trans_a, "trans_b": trans_b}
            assert compare(
                "dgemm",
                alpha,
                a,
                b,
                beta=beta,
                c=c,
                overwrite_c=overwrite_c,
                **keywords,
            )
        assert compare("dgemm", alpha, a, b, **keywords)
        assert compare("dgemm", alpha, a, b, beta, c, trans_a, trans_b, 1)


@pytest.mark.parametrize(("alpha", "beta"), SCALARS)
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize(("incx", "incy"), [(1, 1), (2, 1), (-1, 3), (-2, -2)])
def test_dgemv(trans, incx, incy, alpha, beta):
    a = integers(4, 3)
    rows, inner = (3, 4) if trans else (4, 3)
    for matrix in layouts(a):
        x = integers(2 + inner * abs(incx))
        y = integers(3 + rows * abs(incy), seed=1)
        keywords = {"trans": trans, "incx": incx, "incy": incy, "offx": 1, "offy": 2}
        for overwrite_y in (0, 1):
            assert compare(
                "dgemv",
                alpha,
                matrix,
                x,
                beta=beta,
                y=y,
                overwrite_y=overwrite_y,
                **keywords,
            )
        assert compare("dgemv", alpha, matrix, x[:inner], trans=trans)


def poisoned(x, lower, unit=False):
    """Return a copy with NaN in the triangle that does not count."""
    counted = np.tri(len(x), dtype=bool)
    x = np.where(counted if lower else counted.T, x, np.nan)
    if unit:
        np.fill_diagonal(x, np.nan)
    return x


@pytest.mark.parametrize(("alpha", "beta"), SCALARS)
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_dsymm(side, lower, alpha, beta):
    order = 5 if side else 3
    for a, b, c in itertools.product(
        layouts(poisoned(integers(order, order), lower)),
        layouts(integers(3, 5)),
        layouts(integers(3, 5, seed=1)),
    ):
        keywords = {"side": side, "lower": lower}
        for overwrite_c in (0, 1):
            assert compare(
                "dsymm",
                alpha,
                a,
                b,
                beta=beta,
                c=c,
                overwrite_c=overwrite_c,
                **keywords,
            )
        assert compare("dsymm", alpha, a, b, **keywords)


@pytest.mark.parametrize(("alpha", "beta"), SCALARS)
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_rank_k_updates(small_blocks, trans, lower, alpha, beta):
    n, k = (13, 3) if small_blocks else (4, 3)
    a, b = integers(n, k), integers(n, k, seed=2)
    if trans:
        a, b = a.T, b.T
    # The other triangle keeps whatever it holds, NaN included.
    c = poisoned(integers(n, n, seed=1), lower)
    keywords = {"trans": trans, "lower": lower}
    for layout in range(3):
        x, y, z = layouts(a)[layout], layouts(b)[layout], layouts(c)[layout]
        for overwrite_c in (0, 1):
            more = {"beta": beta, "c": z, "overwrite_c": overwrite_c, **keywords}
            assert compare("dsyrk", alpha, x, **more)
            assert compare("dsyr2k", alpha, x, y, **more)
        assert compare("dsyrk", alpha, x, **keywords)
        assert compare("dsyr2k", alpha, x, y, **keywords)


@pytest.mark.parametrize("diag", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1, 2])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_triangular(small_blocks, side, lower, trans_a, diag):
    order = 23 if small_blocks else 5
    # SciPy passes as many rows as columns with side=1.
    shape = (order, order) if side else (order, 3)
    a = np.sign(integers(order, order))
    np.fill_diagonal(a, 1.0 if small_blocks else 2.0)
    if small_blocks:  # the solution of an integer system stays an integer, and small
        a = np.triu(np.tril(a, 2), -2)
    a, b = poisoned(a, lower, bool(diag)), integers(*shape, seed=1)
    keywords = {"side": side, "lower": lower, "trans_a": trans_a, "diag": diag}
    for layout in range(3):
        x, y = layouts(a)[layout], layouts(b)[layout]
        for alpha, overwrite_b in itertools.product((1.0, -2.0), (0, 1)):
            for name in ("dtrmm", "dtrsm"):
                assert (
                    compare(name, alpha, x, y, overwrite_b=overwrite_b, **keywords) == 1
                )


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("dgemm", [(3, 4), (4, 5)]),
        ("dgemv", [(3, 4), (4,)]),
        ("dsymm", [(4, 4), (4, 5)]),
        ("dsyrk", [(3, 4)]),
        ("dsyr2k", [(3, 4), (3, 4)]),
        ("dtrmm", [(4, 4), (4, 5)]),
        ("dtrsm", [(4, 4), (4, 5)]),
    ],
)
class TestEveryRoutine:
    """What holds for each of them."""

    def operands(self, shapes):
        return [
            integers(*s) + 10 * np.eye(*s) if len(s) > 1 else integers(*s)
            for s in shapes
        ]

    def calls(self, function, *arguments, **keywords):
        with scope() as inside:
            function(*arguments, **keywords)
        return inside.stats().calls("cpu")

    def test_before_inside_after(self, name, shapes):
        operands, function = self.operands(shapes), early[name]
        before = np_ozaki.stats().calls("cpu")
        native = function(1.0, *operands)
        assert np_ozaki.stats().calls("cpu") == before
        assert self.calls(function, 1.0, *operands) == 1
        assert_same_bits(function(1.0, *operands), native)
        assert np_ozaki.stats().calls("cpu") == before + 1

    def test_by_every_way_of_getting_it(self, name, shapes):
        operands = self.operands(shapes)
        assert self.calls(getattr(blas, name), 1.0, *operands) == 1
        got = get_blas_funcs(name[1:], operands)
        assert self.calls(got, 1.0, *operands) == 1
        assert (got.typecode, got.dtype) == ("d", np.float64)
        assert self.calls(get_blas_funcs(name[1:], dtype="d"), 1.0, *operands) == 1

    def test_identity_and_attributes(self, name, shapes):
        function = getattr(blas, name)
        look = (id(function), function.__doc__, sorted(function.__dict__))
        with scope():
            assert look == (id(function), function.__doc__, sorted(function.__dict__))
            assert getattr(blas, name) is early[name]

    def test_errors_are_f2pys(self, name, shapes):
        function, operands = early[name], self.operands(shapes)
        calls = [((), {}), ((1.0,), {}), ((1.0, *["text"] * len(shapes)), {})]
        calls += [((1.0, *operands), {key: 7}) for key in ("lower", "trans_a", "c")]
        for arguments, keywords in calls:
            outcomes = []
            for context in (contextlib.nullcontext(), scope()):
                with context:
                    try:
                        function(*arguments, **keywords)
                    except Exception as error:  # noqa: BLE001 - compared below
                        outcomes.append((type(error), str(error)))
                    else:
                        outcomes.append(None)
            assert outcomes[0] == outcomes[1]
            assert outcomes[0] is not None or keywords == {"c": 7}

    def test_nothing_to_multiply_is_native(self, name, shapes):
        operands = self.operands(shapes)
        assert compare(name, 0.0, *operands) == 0

    def test_other_types_are_native(self, name, shapes):
        operands = [x.astype(np.float32) for x in self.operands(shapes)]
        assert self.calls(getattr(blas, "s" + name[1:]), 1.0, *operands) == 0

    def test_integers_are_converted_by_f2py(self, name, shapes):
        operands = [x.astype(int) for x in self.operands(shapes)]
        assert self.calls(early[name], 1.0, *operands) == 1

    def test_errors_of_the_engine_surface(self, name, shapes, monkeypatch):
        from np_ozaki.engines.cpu import CpuEngine

        for error in (RuntimeError("planted"), KeyboardInterrupt()):

            def fail(*args, error=error, **kwargs):
                raise error

            with monkeypatch.context() as patch, scope():
                patch.setattr(CpuEngine, "matmul", fail)
                with pytest.raises(type(error)) as caught:
                    early[name](1.0, *self.operands(shapes))
            assert caught.value is error
        assert self.calls(early[name], 1.0, *self.operands(shapes)) == 1

    def test_small_calls_and_closed_scopes_are_native(self, name, shapes):
        operands = self.operands(shapes)
        with scope(min_flops=10**6) as inside, np_ozaki.disabled():
            early[name](1.0, *operands)
        assert inside.stats().as_dict() == {}
        with scope(min_flops=10**6) as inside:
            early[name](1.0, *operands)
        assert inside.stats().as_dict() == {}
        with scope(engine="native") as inside:
            early[name](1.0, *operands)
        assert inside.stats().calls("cpu") == 0


def test_bits_are_those_of_matmul():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    c = np_ozaki.matmul(a, b)
    with scope():
        assert_same_bits(blas.dgemm(1.0, a, b), c)
        assert_same_bits(blas.dgemm(-0.3, a, b), -0.3 * c)
        assert_same_bits(blas.dgemm(-0.3, a.T, b.T, trans_a=1, trans_b=1), -0.3 * c)
        d = rng.standard_normal(c.shape)
        assert_same_bits(blas.dgemm(-0.3, a, b, 0.7, d), -0.3 * c + 0.7 * d)
        assert_same_bits(blas.dgemv(1.0, a, b[:, 0]), c[:, 0])
        s = rng.standard_normal((30, 30))
        assert_same_bits(blas.dsymm(1.0, s + s.T, b), np_ozaki.matmul(s + s.T, b))
        t = np.tril(s[:30, :30])
        assert_same_bits(blas.dtrmm(1.0, t, b, lower=1), np_ozaki.matmul(t, b))


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
def test_symmetric_results_are_exactly_symmetric(scaling, small_blocks):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 70, 9)) * np.exp(rng.standard_normal((70, 1)))
    with scope(scaling=scaling):
        want = np_ozaki.matmul(a, a.T)
        assert_same_bits(np.triu(blas.dsyrk(1.0, a)), np.triu(want))
        assert_same_bits(np.tril(blas.dsyrk(1.0, a, lower=1)), np.tril(want))
        once = np_ozaki.matmul(a, b.T)
        upper, lower = blas.dsyr2k(3.0, a, b), blas.dsyr2k(3.0, a, b, lower=1)
        assert_same_bits(np.triu(upper), np.triu(3.0 * (once + once.T)))
        assert_same_bits(np.tril(lower), np.triu(upper).T)


def test_structure_saves_work(monkeypatch):
    from np_ozaki.engines.cpu import CpuEngine

    done, real = [], CpuEngine.matmul

    def counting(self, a, b, out, scheme, **options):
        done.append(2 * a.shape[1] * a.shape[2] * b.shape[2])
        return real(self, a, b, out, scheme, **options)

    monkeypatch.setattr(CpuEngine, "matmul", counting)
    # As many blocks as 4096 rows would have.
    for name in ("_SYMMETRIC_BLOCK", "_STRIP", "_SOLVED_DIRECTLY"):
        monkeypatch.setattr(triangles, name, getattr(triangles, name) // 32)
    n = 4096 // 32
    a, b, t = np.ones((n, 2)), np.ones((n, 1)), np.eye(n, order="F")
    for function, whole, share in (
        (lambda: blas.dsyrk(1.0, a), 2 * n * n * 2, 0.63),
        (lambda: blas.dsyr2k(1.0, a, a), 4 * n * n * 2, 0.5),
        (lambda: blas.dtrmm(1.0, t, b), 2 * n * n, 0.57),
        (lambda: blas.dtrsm(1.0, t, b), 2 * n * n, 0.5),
    ):
        done.clear()
        with scope():
            function()
        assert 0 < sum(done) <= share * whole


def test_beta_zero_does_not_read_c():
    a, c = integers(3, 3), np.full((3, 3), np.nan, order="F")
    with scope():
        for overwrite_c in (0, 1):
            r = blas.dgemm(1.0, a, a, 0.0, c.copy("F"), overwrite_c=overwrite_c)
            np.testing.assert_array_equal(r, a @ a)
            r = blas.dsyrk(1.0, a, 0.0, c.copy("F"), overwrite_c=overwrite_c)
            np.testing.assert_array_equal(np.triu(r), np.triu(a @ a.T))
            assert np.isnan(r[np.tril_indices(3, -1)]).all()


def test_output_that_is_an_operand():
    a = np.asfortranarray(np.random.default_rng(5).standard_normal((6, 6)))
    with scope():
        for call in (
            lambda x, y: blas.dgemm(2.0, x, x, 1.0, y, overwrite_c=1),
            lambda x, y: blas.dgemm(1.0, x, x, 0.0, y, overwrite_c=1),
            lambda x, y: blas.dsymm(1.0, x, x, 0.0, y, overwrite_c=1),
            lambda x, y: blas.dsyrk(1.0, x, 1.0, y, overwrite_c=1),
            lambda x, y: blas.dsyr2k(1.0, x, x, 1.0, y, overwrite_c=1),
            lambda x, y: blas.dtrmm(1.0, x, y, overwrite_b=1),
            lambda x, y: blas.dtrsm(1.0, x, y, overwrite_b=1),
        ):
            apart, one = call(a.copy("F"), a.copy("F")), a.copy("F")
            assert_same_bits(call(one, one), apart)


def test_special_values():
    a = integers(3, 3)
    a[1, 1] = np.inf
    with scope() as inside, warnings.catch_warnings():
        warnings.simplefilter("error")  # BLAS reports no floating-point exceptions
        b = blas.dgemm(1.0, a, np.ones((3, 2)))
        large = blas.dgemm(1e300, np.full((2, 2), 1e300), np.ones((2, 2)))
        t = blas.dtrmm(1.0, np.eye(3), a)
    np.testing.assert_array_equal(np.isfinite(b), [[True] * 2, [False] * 2, [True] * 2])
    assert np.isposinf(large).all()
    np.testing.assert_array_equal(t, blas.dtrmm(1.0, np.eye(3), a))
    (reason,) = inside.stats().routes["dtrmm"].fallbacks
    assert "NaN" in reason


def test_counters_know_the_structure():
    a, t = integers(40, 7), np.eye(40)
    with scope() as inside:
        blas.dsyrk(1.0, a)
        blas.dsyr2k(1.0, a, a)
        blas.dtrmm(1.0, t, a)
        blas.dtrsm(1.0, t, a)
        blas.dsymm(1.0, t, a)
    routes = inside.stats().routes
    assert {name: route.flops["cpu"] for name, route in routes.items()} == {
        "dsyrk": 40 * 41 * 7,
        "dsyr2k": 2 * 40 * 41 * 7,
        "dtrmm": 40 * 40 * 7,
        "dtrsm": 40 * 40 * 7,
        "dsymm": 2 * 40 * 40 * 7,
    }


def test_counters_tell_parts_that_stay_native():
    n = 600  # two strips; the entries of the second range over 400 bits
    t = np.tril(np.ones((n, n)))
    t[550:, 0] = 2.0**400
    x = np.ones((n, 3))
    x[0] = 0.0
    native = blas.dtrmm(1.0, t, x, lower=1)
    with scope(precision="auto") as inside:
        result = blas.dtrmm(1.0, t, x, lower=1)
    np.testing.assert_array_equal(result, native)
    route = inside.stats().routes["dtrmm"]
    assert route.calls == {"cpu": 1, "native": 1}
    assert sum(route.flops.values()) == pytest.approx(n * n * 3, abs=1)
    assert route.flops["cpu"] > 0
    assert route.flops["native"] > 0
    assert route.fallbacks == {"range too wide to certify": 1}


@pytest.mark.parametrize("order", [30, 200])
def test_solutions_are_accurate(order, small_blocks):
    rng = np.random.default_rng(6)
    t = np.tril(rng.standard_normal((order, order))) / order + 2 * np.eye(order)
    b = rng.standard_normal((order, 20))
    with scope():
        x = blas.dtrsm(1.5, t, b, lower=1)
        y = blas.dtrmm(1.0, t, x, lower=1)
    np.testing.assert_allclose(y, 1.5 * b, rtol=0, atol=1e-12)


def test_dsyr2k_with_a_shorter_b_is_left_to_blas():
    a = np.array([[-2.0], [2.0], [4.0]])
    for b in (5.0, [[5.0], [6.0]]):
        native = blas.dsyr2k(1.0, a, b)
        with scope() as inside:
            result = blas.dsyr2k(1.0, a, b)
        assert inside.stats().calls("cpu") == 0
        np.testing.assert_array_equal(result, native)
