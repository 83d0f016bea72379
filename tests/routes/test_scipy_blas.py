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

LETTERS = "dz"
ROUTINES = [x for x in hooks.NAMES if x[0] in LETTERS and hasattr(blas, x)]
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


def integers(*shape, seed=0, letter="d"):
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-5, 6, shape).astype(hooks.DTYPES[letter])
    if letter in "zc":
        x.imag = rng.integers(-5, 6, shape)
    return x


def layouts(x):
    """The same matrix in memory that f2py takes as it is, copies, and copies too."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
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
            with scope(dtypes=[hooks.DTYPES[name[0]]]) as current:
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


REAL_SCALARS = [(1.0, 0.0), (2.0, 0.0), (-3.0, 1.0), (1.0, -2.0), (0.5, 4.0)]
COMPLEX_SCALARS = [(2j, 0.0), (-3.0 + 1j, 0.5 - 2j)]
SCALARS = [
    *(("d", *x) for x in REAL_SCALARS),
    *(("z", *x) for x in COMPLEX_SCALARS),
]
"""The first letter of a routine, alpha, beta."""


def several(letter, *matrices):
    """Return layouts of the matrices: every combination for real ones, three else."""
    together = itertools.product if letter == "d" else zip
    return together(*map(layouts, matrices))


@pytest.mark.parametrize(("letter", "alpha", "beta"), SCALARS)
@pytest.mark.parametrize("trans_b", [0, 1, 2])
@pytest.mark.parametrize("trans_a", [0, 1, 2])
def test_gemm(trans_a, trans_b, letter, alpha, beta):
    name, x = f"{letter}gemm", integers(3, 4, letter=letter)
    y = integers(4, 5, letter=letter)
    for a, b, c in several(
        letter,
        x.T if trans_a else x,
        y.T if trans_b else y,
        integers(3, 5, seed=1, letter=letter),
    ):
        for overwrite_c in (0, 1):
            keywords = {"trans_a": trans_a, "trans_b": trans_b}
            assert compare(
                name,
                alpha,
                a,
                b,
                beta=beta,
                c=c,
                overwrite_c=overwrite_c,
                **keywords,
            )
        assert compare(name, alpha, a, b, **keywords)
        assert compare(name, alpha, a, b, beta, c, trans_a, trans_b, 1)


@pytest.mark.parametrize(("letter", "alpha", "beta"), SCALARS)
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize(("incx", "incy"), [(1, 1), (2, 1), (-1, 3), (-2, -2)])
def test_gemv(trans, incx, incy, letter, alpha, beta):
    name, a = f"{letter}gemv", integers(4, 3, letter=letter)
    rows, inner = (3, 4) if trans else (4, 3)
    for matrix in layouts(a):
        x = integers(2 + inner * abs(incx), letter=letter)
        y = integers(3 + rows * abs(incy), seed=1, letter=letter)
        keywords = {"trans": trans, "incx": incx, "incy": incy, "offx": 1, "offy": 2}
        for overwrite_y in (0, 1):
            assert compare(
                name,
                alpha,
                matrix,
                x,
                beta=beta,
                y=y,
                overwrite_y=overwrite_y,
                **keywords,
            )
        assert compare(name, alpha, matrix, x[:inner], trans=trans)


def poisoned(x, lower, unit=False):
    """Return a copy with NaN in the triangle that does not count."""
    counted = np.tri(len(x), dtype=bool)
    x = np.where(counted if lower else counted.T, x, np.nan)
    if unit:
        np.fill_diagonal(x, np.nan)
    return x


KINDS = [(f"{x[0]}sy", *x[1:]) for x in SCALARS] + [
    ("zhe", *x) for x in COMPLEX_SCALARS
]


@pytest.mark.parametrize(("kind", "alpha", "beta"), KINDS)
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_symm_and_hemm(side, lower, kind, alpha, beta):
    name, letter, order = f"{kind}mm", kind[0], 5 if side else 3
    for a, b, c in several(
        letter,
        poisoned(integers(order, order, letter=letter), lower),
        integers(3, 5, letter=letter),
        integers(3, 5, seed=1, letter=letter),
    ):
        keywords = {"side": side, "lower": lower}
        for overwrite_c in (0, 1):
            assert compare(
                name,
                alpha,
                a,
                b,
                beta=beta,
                c=c,
                overwrite_c=overwrite_c,
                **keywords,
            )
        assert compare(name, alpha, a, b, **keywords)


TRANS = {"dsy": (0, 1, 2), "zsy": (0, 1), "zhe": (0, 2)}
"""What BLAS takes for `trans`."""


@pytest.mark.parametrize(
    ("kind", "alpha", "beta", "trans"),
    [(*x, trans) for x in KINDS for trans in TRANS[x[0]]],
)
@pytest.mark.parametrize("lower", [0, 1])
def test_rank_k_updates(small_blocks, kind, trans, lower, alpha, beta):
    once, twice, letter = f"{kind}rk", f"{kind}r2k", kind[0]
    n, k = (13, 3) if small_blocks else (4, 3)
    a, b = integers(n, k, letter=letter), integers(n, k, seed=2, letter=letter)
    if trans:
        a, b = a.T, b.T
    # The other triangle keeps whatever it holds, NaN included.
    c = poisoned(integers(n, n, seed=1, letter=letter), lower)
    if kind == "zhe":
        beta = abs(beta.real)
    keywords = {"trans": trans, "lower": lower}
    for layout in range(3):
        x, y, z = layouts(a)[layout], layouts(b)[layout], layouts(c)[layout]
        for overwrite_c in (0, 1):
            more = {"beta": beta, "c": z, "overwrite_c": overwrite_c, **keywords}
            # Of a Hermitian update alpha is real, so it must not be 0 here.
            real = alpha if kind != "zhe" else alpha.real or 3.0
            assert compare(once, real, x, **more)
            assert compare(twice, alpha, x, y, **more)
        assert compare(once, real, x, **keywords)
        assert compare(twice, alpha, x, y, **keywords)


@pytest.mark.parametrize("trans", [1, 2])
@pytest.mark.parametrize("routine", ["zsyrk", "zsyr2k", "zherk", "zher2k"])
def test_what_complex_updates_have_not_is_for_blas_to_refuse(routine, trans):
    a, function = integers(3, 3, letter="z"), early[routine]
    operands = (a, a) if routine.endswith("2k") else (a,)
    with scope() as inside:
        function(1.0, *operands, trans=trans)
    caught = (routine[1:3] == "he") == (trans == 2)
    assert inside.stats().calls("cpu") == caught


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("diag", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1, 2])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_triangular(small_blocks, side, lower, trans_a, diag, letter):
    order = 23 if small_blocks else 5
    # SciPy passes as many rows as columns with side=1.
    shape = (order, order) if side else (order, 3)
    a = np.sign(integers(order, order)).astype(hooks.DTYPES[letter])
    np.fill_diagonal(a, 1.0 if small_blocks else 2.0)
    if letter == "z":
        a[::2] *= 1j
    if small_blocks:  # the solution of an integer system stays an integer, and small
        a = np.triu(np.tril(a, 2), -2)
    a, b = poisoned(a, lower, bool(diag)), integers(*shape, seed=1, letter=letter)
    keywords = {"side": side, "lower": lower, "trans_a": trans_a, "diag": diag}
    alphas = (1.0, -2.0) if letter == "d" else (2j,)
    for layout in range(3 if letter == "d" else 1):
        x, y = layouts(a)[layout], layouts(b)[layout]
        for alpha, overwrite_b in itertools.product(alphas, (0, 1)):
            for name in (f"{letter}trmm", f"{letter}trsm"):
                assert (
                    compare(name, alpha, x, y, overwrite_b=overwrite_b, **keywords) == 1
                )


SHAPES = {
    "gemm": [(3, 4), (4, 5)],
    "gemv": [(3, 4), (4,)],
    "symm": [(4, 4), (4, 5)],
    "syrk": [(3, 4)],
    "syr2k": [(3, 4), (3, 4)],
    "hemm": [(4, 4), (4, 5)],
    "herk": [(3, 4)],
    "her2k": [(3, 4), (3, 4)],
    "trmm": [(4, 4), (4, 5)],
    "trsm": [(4, 4), (4, 5)],
}


@pytest.mark.parametrize("name", ROUTINES)
class TestEveryRoutine:
    """What holds for each of them."""

    def operands(self, name):
        letter = name[0]
        return [
            integers(*s, letter=letter) + (10 * np.eye(*s) if len(s) > 1 else 0)
            for s in SHAPES[name[1:]]
        ]

    def calls(self, function, *arguments, **keywords):
        with scope() as inside:
            function(*arguments, **keywords)
        return inside.stats().calls("cpu")

    def test_before_inside_after(self, name):
        operands, function = self.operands(name), early[name]
        before = np_ozaki.stats().calls("cpu")
        native = function(1.0, *operands)
        assert np_ozaki.stats().calls("cpu") == before
        assert self.calls(function, 1.0, *operands) == 1
        assert_same_bits(function(1.0, *operands), native)
        assert np_ozaki.stats().calls("cpu") == before + 1

    def test_by_every_way_of_getting_it(self, name):
        operands = self.operands(name)
        assert self.calls(getattr(blas, name), 1.0, *operands) == 1
        got = get_blas_funcs(name[1:], operands)
        assert self.calls(got, 1.0, *operands) == 1
        dtype = hooks.DTYPES[name[0]]
        assert (got.typecode, got.dtype) == (name[0], dtype)
        got = get_blas_funcs(name[1:], dtype=dtype)
        assert self.calls(got, 1.0, *operands) == 1

    def test_identity_and_attributes(self, name):
        function = getattr(blas, name)
        look = (id(function), function.__doc__, sorted(function.__dict__))
        with scope():
            assert look == (id(function), function.__doc__, sorted(function.__dict__))
            assert getattr(blas, name) is early[name]

    def test_errors_are_f2pys(self, name):
        function, operands = early[name], self.operands(name)
        calls = [((), {}), ((1.0,), {}), ((1.0, *["text"] * len(operands)), {})]
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

    def test_nothing_to_multiply_is_native(self, name):
        operands = self.operands(name)
        assert compare(name, 0.0, *operands) == 0

    def test_other_types_are_native(self, name):
        dtype, letter = ("f", "s") if name[0] == "d" else ("F", "c")
        operands = [x.astype(dtype) for x in self.operands(name)]
        assert self.calls(getattr(blas, letter + name[1:]), 1.0, *operands) == 0

    def test_integers_are_converted_by_f2py(self, name):
        operands = [x.real.astype(int) for x in self.operands(name)]
        assert self.calls(early[name], 1.0, *operands) == 1

    def test_errors_of_the_engine_surface(self, name, monkeypatch):
        from np_ozaki.engines.cpu import CpuEngine

        for error in (RuntimeError("planted"), KeyboardInterrupt()):

            def fail(*args, error=error, **kwargs):
                raise error

            with monkeypatch.context() as patch, scope():
                patch.setattr(CpuEngine, "matmul", fail)
                with pytest.raises(type(error)) as caught:
                    early[name](1.0, *self.operands(name))
            assert caught.value is error
        assert self.calls(early[name], 1.0, *self.operands(name)) == 1

    def test_small_calls_and_closed_scopes_are_native(self, name):
        operands = self.operands(name)
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


def normals(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def times(factor, x):
    """Multiply as BLAS is told to: a complex product is four real ones and two sums."""
    result = np.empty_like(x)
    result.real = factor.real * x.real - factor.imag * x.imag
    result.imag = factor.real * x.imag + factor.imag * x.real
    return result


@pytest.mark.parametrize("name", [x for x in hooks.NAMES if x[:1] in "sc"])
def test_routines_of_single_precision(name):
    letter, routine = name[0], name[1:]
    operands = [integers(*shape, letter=letter) for shape in SHAPES[routine]]
    alpha, beta = (2.0 - 1j, -3.0 + 2j) if letter == "c" else (2.5, -3.0)
    if routine in {"herk", "her2k"}:
        alpha, beta = (2.5 if routine == "herk" else alpha), -3.0
    keywords = {"diag": 1} if routine == "trsm" else {}
    assert compare(name, alpha, *operands, **keywords) == 1
    if routine[:2] != "tr":
        shape = getattr(blas, name)(alpha, *operands).shape
        c = integers(*shape, seed=1, letter=letter)
        result = {"y" if routine == "gemv" else "c": c}
        assert compare(name, alpha, *operands, beta=beta, **result) == 1
    with scope() as inside:
        getattr(blas, name)(alpha, *operands)
    (reason,) = inside.stats().routes[name].fallbacks
    assert reason == f"{hooks.DTYPES[letter].name} is not among dtypes"


def test_bits_of_single_routines_are_those_of_matmul():
    a, b, d = (
        normals(i, *s).astype("F") for i, s in enumerate([(9, 8), (8, 7), (9, 7)])
    )
    square = normals(5, 8, 8).astype("F")
    real, factor, other = a.real.copy(), np.float32(-0.3), np.float32(0.7)
    alpha, beta = np.complex64(-0.3 + 0.7j), np.complex64(1.1 - 0.2j)
    c, want = np_ozaki.matmul(a, b), np_ozaki.matmul(real, b.real)
    with scope(precision="auto", dtypes=("float32", "complex64")) as inside:
        result = blas.sgemm(-0.3, real, b.real, 0.7, d.real)
        assert_same_bits(result, factor * want + other * d.real)
        result = blas.cgemm(alpha, a.conj().T, b, beta, d, trans_a=2)
        assert_same_bits(result, times(alpha, c) + times(beta, d))
        result, once = blas.cherk(-0.3, a), np_ozaki.matmul(a, a.conj().T)
        assert_same_bits(np.triu(result, 1), np.triu(times(factor, once), 1))
        assert (result.diagonal().imag == 0).all()
        t = np.tril(square)
        result = blas.ctrmm(1.0, square, b, lower=1, trans_a=2)
        assert_same_bits(result, np_ozaki.matmul(t.conj().T, b))
        # One rounding to float32, where going through float64 would be two.
        x = np.array([[1.0, 2.0**-24, 2.0**-54]], np.float32)
        with scope(precision=20, dtypes=["float32"]):
            assert blas.sgemm(1.0, x, np.ones((3, 1)))[0, 0] == 1.0 + 2.0**-23
        large = blas.sgemm(1.0, np.full((2, 2), 1e38), np.full((2, 2), 4.0))
        assert np.isposinf(large).all()
    assert inside.stats().calls("native") == 0


def test_bits_of_complex_routines_are_those_of_matmul():
    a, b, alpha, beta = normals(3, 20, 30), normals(4, 30, 10), -0.3 + 0.7j, 1.1 - 0.2j
    c, d, square = np_ozaki.matmul(a, b), normals(5, 20, 10), normals(6, 30, 30)
    hermitian = square + square.conj().T
    junk = np.tril(hermitian)
    np.fill_diagonal(junk.imag, np.nan)
    with scope(precision="auto"):
        assert_same_bits(blas.zgemm(1.0, a, b), c)
        assert_same_bits(blas.zgemm(-0.3, a, b), -0.3 * c)
        for trans, x, y in ((1, a.T, b.T), (2, a.conj().T, b.conj().T)):
            both = {"trans_a": trans, "trans_b": trans}
            assert_same_bits(blas.zgemm(alpha, x, y, **both), times(alpha, c))
        want = times(alpha, c) + times(beta, d)
        assert_same_bits(blas.zgemm(alpha, a, b, beta, d), want)
        assert_same_bits(blas.zgemv(1.0, a.conj().T, b[:, 0], trans=2), c[:, 0])
        assert_same_bits(
            blas.zhemm(1.0, junk, b, lower=1), np_ozaki.matmul(hermitian, b)
        )
        t = np.tril(square)
        assert_same_bits(
            blas.ztrmm(1.0, square, b, lower=1, trans_a=2),
            np_ozaki.matmul(t.conj().T, b),
        )


def test_hermitian_updates_are_hermitian(small_blocks):
    a, b, c = normals(1, 23, 9), normals(2, 23, 9), normals(3, 23, 23)
    alpha, real = 0.4 - 1.3j, np.diag_indices(23)
    whole, once = np_ozaki.matmul(a, a.conj().T), np_ozaki.matmul(a, b.conj().T)
    twice = times(alpha, once)
    twice = twice + twice.conj().T
    with scope(precision="auto"):
        for name, operands, factor, want in (
            ("zherk", (a,), -0.7, -0.7 * whole),
            ("zher2k", (a, b), alpha, twice),
        ):
            function = getattr(blas, name)
            lower = function(factor, *operands, lower=1, beta=0.3, c=c.conj().T)
            upper = function(factor, *operands, beta=0.3, c=c)
            want = want + 0.3 * c
            assert (upper[real].imag == 0).all()
            assert_same_bits(np.triu(upper, 1), np.triu(want, 1))
            assert_same_bits(upper[real].real, want[real].real)
            np.testing.assert_array_equal(np.tril(lower), np.triu(upper).conj().T)
            turned = [x.conj().T for x in operands]
            other = function(factor, *turned, trans=2, beta=0.3, c=c)
            assert_same_bits(np.triu(other), np.triu(upper))


def test_hermitian_diagonals_are_real_whatever_they_meet():
    a = np.full((3, 3), np.inf + 1j)
    c = np.full((3, 3), np.nan + 1j * np.nan)
    with scope():
        for function, operands in ((blas.zherk, (a,)), (blas.zher2k, (a, a))):
            assert (function(2.0, *operands).diagonal().imag == 0).all()
            assert (function(1.0, *operands, beta=1.0, c=c).diagonal().imag == 0).all()


@pytest.mark.parametrize("scheme", [{"num_slices": 3}, {"pairs": [(0, 0), (1, 0)]}])
def test_hermitian_updates_by_slices(scheme):
    a, b = normals(1, 23, 9), normals(2, 23, 9)
    with scope(precision=None, scheme="slices", **scheme):
        once, other = np_ozaki.matmul(a, b.conj().T), np_ozaki.matmul(b, a.conj().T)
        upper, lower = (blas.zher2k(1.0, a, b, lower=x) for x in (0, 1))
    np.testing.assert_array_equal(np.triu(upper, 1), np.triu(once + other, 1))
    np.testing.assert_array_equal(np.tril(lower, -1), np.tril(once + other, -1))


@pytest.mark.parametrize("scheme", [{"num_slices": 3}, {"pairs": [(0, 0), (1, 0)]}])
def test_triangles_on_the_right_by_slices(scheme):
    a, b = np.triu(normals(3, 8, 8)), normals(4, 6, 8)
    with scope(precision=None, scheme="slices", **scheme):
        for x, y in ((a, b), (a.real, b.real)):
            multiply = blas.ztrmm if np.iscomplexobj(x) else blas.dtrmm
            for trans in (0, 1, 2):
                other = (x, x.T, x.T.conj())[trans]
                found = multiply(1.0, x, y, side=1, trans_a=trans)
                assert_same_bits(found, np_ozaki.matmul(y, other))


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
        (lambda: blas.zherk(1.0, a), 8 * n * n * 2, 0.63),
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
        blas.zherk(1.0, a)
        blas.ztrmm(1.0, t, a)
        blas.zhemm(1.0, t, a)
    routes = inside.stats().routes
    assert {name: route.flops["cpu"] for name, route in routes.items()} == {
        "dsyrk": 40 * 41 * 7,
        "dsyr2k": 2 * 40 * 41 * 7,
        "dtrmm": 40 * 40 * 7,
        "dtrsm": 40 * 40 * 7,
        "dsymm": 2 * 40 * 40 * 7,
        "zherk": 4 * 40 * 41 * 7,
        "ztrmm": 4 * 40 * 40 * 7,
        "zhemm": 8 * 40 * 40 * 7,
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
        t, b = t * np.exp(1j * t), b + 1j * b[::-1]
        x = blas.ztrsm(1.5j, t, b, lower=1, trans_a=2)
        y = blas.ztrmm(1.0, t, x, lower=1, trans_a=2)
    np.testing.assert_allclose(y, 1.5j * b, rtol=0, atol=1e-12)


def test_dsyr2k_with_a_shorter_b_is_left_to_blas():
    a = np.array([[-2.0], [2.0], [4.0]])
    for b in (5.0, [[5.0], [6.0]]):
        native = blas.dsyr2k(1.0, a, b)
        with scope() as inside:
            result = blas.dsyr2k(1.0, a, b)
        assert inside.stats().calls("cpu") == 0
        np.testing.assert_array_equal(result, native)
