"""np_ozaki.matmul of complex operands: dtypes, shapes, options, errors, counters."""

import warnings

import numpy as np
import pytest
import twin_device
from complex_pairs import join, normals

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.gemm import matmul_arrays
from np_ozaki.testing import assert_same_bits

A, B = normals(1, (5, 7)), normals(2, (7, 4))


def test_call_info():
    c, info = np_ozaki.matmul(A, B, return_info=True)
    assert c.dtype == np.complex128
    assert info.engine == "cpu"
    assert info.dtype == "complex128"
    assert (info.batch, info.m, info.n, info.k) == (1, 5, 4, 7)
    assert info.flops == 8 * 5 * 4 * 7
    assert info.num_moduli == 16
    assert np_ozaki.last_call() == info
    before = np_ozaki.stats().routes["matmul"].flops["cpu"]
    np_ozaki.matmul(A, B)
    assert np_ozaki.stats().routes["matmul"].flops["cpu"] == before + info.flops
    assert np_ozaki.matmul(A.real, B.real, return_info=True)[1].dtype == "float64"


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int32, np.float32, np.bool_, np.complex64, ">c16"]
)
def test_other_dtypes_are_promoted_as_numpy_does(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        a = (4 * A).astype(dtype)
    c, info = np_ozaki.matmul(a, B, return_info=True)
    assert info.dtype == "complex128"
    assert_same_bits(c, np_ozaki.matmul(a.astype(np.complex128), B))
    assert_same_bits(np_ozaki.matmul(B.T, a.T).T, c)


def test_what_stays_numpys():
    a = A.astype(np.clongdouble)
    c, info = np_ozaki.matmul(a, a.T, return_info=True)
    assert info.engine == "native"
    assert c.dtype == a.dtype
    assert info.dtype == a.dtype.name
    c, info = np_ozaki.matmul(A, B, engine="native", return_info=True)
    np.testing.assert_array_equal(c, A @ B)
    assert (info.engine, info.dtype) == ("native", "complex128")
    assert info.flops == 8 * 5 * 4 * 7


@pytest.mark.parametrize("n", [23, 30, 49])
def test_more_moduli_than_there_are(n):
    with pytest.raises(np_ozaki.OptionError) as error:
        np_ozaki.matmul(A, B, precision=n)
    assert str(error.value).startswith(f"precision={n}: ")
    assert "2 to 22 moduli" in str(error.value)
    assert "16 give" in str(error.value)
    with pytest.raises(np_ozaki.OptionError, match="2 to 22 moduli"):
        np_ozaki.error_bound(A, B, precision=n)
    np_ozaki.matmul(A.real, B.real, precision=n)


def test_a_bound_takes_both_parts_of_a_product():
    c = np_ozaki.matmul(A, B)
    assert (np_ozaki.error_bound(A, B, c).real > 0).all()
    with pytest.raises(np_ozaki.OperandTypeError, match=r"c\.dtype='float64'"):
        np_ozaki.error_bound(A, B, c.real)


def test_what_cannot_be_prepared_keeps_its_imaginary_part():
    with pytest.raises(np_ozaki.OperandTypeError, match=r"astype\(complex\)"):
        np_ozaki.prepare(A.astype(np.clongdouble))
    with pytest.raises(np_ozaki.OperandTypeError, match=r"astype\(float\)"):
        np_ozaki.prepare(A.real.astype(np.longdouble))


def test_a_scope_with_more_moduli_than_there_are():
    want = A @ B
    with np_ozaki.enabled(engine="cpu", min_flops=0, precision=23) as scope:
        assert_same_bits(A @ B, want)
        A.real @ B.real
    assert scope.stats().routes["matmul"].calls == {"cpu": 1, "native": 1}
    assert scope.stats().routes["matmul"].fallbacks == {
        "precision=23: complex products take 2 to 22 moduli": 1
    }
    with np_ozaki.enabled(engine="cpu", precision=23, reproducible=True):
        with pytest.raises(np_ozaki.OptionError, match="2 to 22"):
            A @ B
        assert np_ozaki.matmul(A.real, B.real).shape == (5, 4)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 0), (0, 4)),
        ((0, 5), (5, 4)),
        ((3, 5), (5, 0)),
        ((0,), (0,)),
        ((0, 2, 3), (3, 4)),
        ((2, 3, 0), (2, 0, 4)),
    ],
)
@pytest.mark.parametrize("precision", ["auto", 9, "exact"])
def test_empty(a, b, precision):
    x, y = np.empty(a, dtype=complex), np.empty(b, dtype=complex)
    c = np_ozaki.matmul(x, y, precision=precision)
    want = np.matmul(x, y)
    assert type(c) is type(want)
    assert_same_bits(c, np.zeros(want.shape, dtype=complex))
    bound = np_ozaki.error_bound(x, y, precision=precision)
    assert bound.shape == want.shape


def test_scalars_and_vectors():
    c = np_ozaki.matmul(A[0], B[:, 0])
    assert type(c) is np.complex128
    assert c == np_ozaki.matmul(A, B)[0, 0]
    assert_same_bits(np_ozaki.matmul(A[0], B), np_ozaki.matmul(A, B)[0])
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.matmul(A, A)
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.matmul(1j, A)


def test_out():
    want = np_ozaki.matmul(A, B)
    for out in (
        np.empty((5, 4), dtype=complex),
        np.empty((5, 4), dtype=complex, order="F"),
        np.empty((10, 8), dtype=complex)[::-2, 1::2],
        np.empty((5, 4), dtype=">c16"),
    ):
        assert np_ozaki.matmul(A, B, out=out) is out
        assert_same_bits(out.astype(np.complex128), want)
    out = np.empty((5, 4), dtype=np.complex64)
    np_ozaki.matmul(A, B, out=out)
    np.testing.assert_array_equal(out, want.astype(np.complex64))
    wide = np.empty((5, 4), dtype=complex)
    np_ozaki.matmul(A.real, B.real, out=wide)
    assert_same_bits(wide, join(np_ozaki.matmul(A.real, B.real), np.zeros((5, 4))))
    with pytest.raises(np_ozaki.OperandTypeError, match="complex128 results"):
        np_ozaki.matmul(A, B, out=np.empty((5, 4)))


def test_out_aliases_an_operand():
    a = normals(3, (9, 9))
    want = np_ozaki.matmul(a, a)
    assert np_ozaki.matmul(a, a, out=a) is a
    assert_same_bits(a, want)


def test_double_doubles_take_what_complex128_holds():
    pair = np_ozaki.matmul(A.astype(np.complex64), B.real, output="dd")
    assert pair.hi.dtype == np.complex128
    assert_same_bits(pair.hi, np_ozaki.matmul(A.astype(np.complex64), B.real))
    one = np_ozaki.matmul(A[0], B[:, 0], output="dd")
    assert type(one.lo) is np.complex128


def test_exceptions_follow_errstate():
    big, inf = np.array([[1e300 + 1e300j]]), np.array([[np.inf + 0j]])
    for a, b, message in ((big, big, "overflow"), (inf, 0 * big, "invalid")):
        with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=message):
            np_ozaki.matmul(a, b)
        with np.errstate(all="ignore"):
            np_ozaki.matmul(a, b)


def test_an_oz_array_multiplies_complex_matrices():
    c = OzArray(A) @ B
    assert isinstance(c, OzArray)
    assert_same_bits(np.asarray(c), np_ozaki.matmul(A, B))
    gram = OzArray(A) @ OzArray(A).conj().T
    assert_same_bits(np.asarray(gram), np_ozaki.matmul(A, A.conj().T))


V = normals(6, (7,))


def products_of(a, b, v):
    """Every function whose product an OzArray sends to the engine, by its name."""
    matvec = {
        "matvec": lambda: np.matvec(a, v),
        "vecmat": lambda: np.vecmat(v, b),
    }
    return {
        "dot": lambda: np.dot(a, b),
        "method": lambda: a.dot(b),
        "inner": lambda: np.inner(a, b.T),
        "vdot": lambda: np.vdot(a[0], v),
        "vdot of matrices": lambda: np.vdot(a[:4], b),
        "vecdot": lambda: np.vecdot(a, v),
        "linalg.vecdot": lambda: np.linalg.vecdot(a.T, np.stack([v] * 5).T, axis=0),
        "tensordot": lambda: np.tensordot(a, b, 1),
        "tensordot of all": lambda: np.tensordot(a, a, 2),
        "einsum": lambda: np.einsum("ij,jk->ki", a, b),
        "einsum of real": lambda: np.einsum("ij,jk", a.real, b),
        "multi_dot": lambda: np.linalg.multi_dot([v, b, b.T, a.T, a[:, 0]]),
        "matrix_power": lambda: np.linalg.matrix_power(a[:, :5], 3),
        "real by complex": lambda: a.real @ b,
        "imaginary by real": lambda: a.imag @ b.real,
        "asked for": lambda: np.matmul(a.real, b.real, dtype=complex),
        **(matvec if hasattr(np, "matvec") else {}),
    }


@pytest.mark.parametrize("function", products_of(A, B, V))
def test_products_of_oz_arrays(function):
    native = products_of(A, B, V)[function]()
    with np_ozaki.enabled(engine="cpu", precision=16) as scope:
        result = products_of(OzArray(A), OzArray(B), OzArray(V))[function]()
    assert scope.stats().calls("cpu")
    assert not scope.stats().calls("native")
    assert type(result) is (OzArray if type(native) is np.ndarray else np.complex128)
    assert result.dtype == native.dtype
    np.testing.assert_allclose(np.asarray(result), native, rtol=0, atol=1e-11)


def test_conjugated_products_of_oz_arrays_have_the_bits_of_matmul():
    a, b, v = (OzArray(x) for x in (A, B, V))
    assert np.vdot(a[0], v) == np_ozaki.matmul(A[0].conj(), V)
    want = np.array([np_ozaki.matmul(row.conj(), V) for row in A])
    assert_same_bits(np.asarray(np.vecdot(a, v)), want)
    if hasattr(np, "vecmat"):
        want = np_ozaki.matmul(V.conj(), B)
        assert_same_bits(np.asarray(np.vecmat(v, b)), want)
    out = np.empty((5, 5), dtype=complex)
    assert np.linalg.multi_dot([a, OzArray(A.conj().T)], out=out) is out
    np.testing.assert_array_equal(out, out.conj().T)
    assert (out.diagonal().imag == 0).all()


def test_parts_and_conjugates_of_oz_arrays():
    a = OzArray(A)
    for part in (a.real, a.imag):
        assert np.shares_memory(part, a)
    assert_same_bits(np.asarray(a.conj()), A.conj())
    assert_same_bits(np.asarray(np.conj(a.T)), A.conj().T)
    real = OzArray(A.real)
    assert real.conj() is real
    a.imag = 0.0
    assert_same_bits(np.asarray(a), A.real.astype(complex))


def test_bound_of_an_overflow():
    big = np.array([[1e300 + 1e300j]])
    with np.errstate(over="ignore"):
        for output in ("float64", "dd"):
            _, info = np_ozaki.matmul(
                big, big.conj(), output=output, return_info="bound"
            )
            assert info.bound.real == np.inf
            assert info.bound.imag < np.inf or output == "float64"


# ---- Kept operands, arrays on a device ----


@pytest.fixture(params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Return the memory of a device that products run on."""
    if request.param == "twin":
        return twin_device.install(monkeypatch)
    return choice.needed_memory()


LARGE, WIDE = normals(4, (90, 80)), normals(5, (80, 70))


@pytest.mark.parametrize("precision", ["auto", 9, 1e-12])
def test_an_oz_array_keeps_what_is_made_of_it(precision):
    a, b = OzArray(LARGE), OzArray(WIDE)
    with np_ozaki.enabled(engine="cpu", precision=precision):
        first = np.asarray(a @ b)
        a @ b
        before = np_ozaki.stats().arrays.prepared.reused
        again = np.asarray(a @ b)
        assert np_ozaki.stats().arrays.prepared.reused >= before + 2
        a[0, 0] = 3.0 - 1.0j
        changed = np.asarray(a @ b)
    want = np_ozaki.matmul(LARGE, WIDE, precision=precision)
    assert_same_bits(first, want)
    assert_same_bits(again, want)
    left = LARGE.copy()
    left[0, 0] = 3.0 - 1.0j
    assert_same_bits(changed, np_ozaki.matmul(left, WIDE, precision=precision))


@pytest.mark.parametrize("role", ["left", "right"])
@pytest.mark.parametrize("more", [{}, {"precision": 9, "scaling": "legacy"}])
def test_prepare(role, more):
    x = np_ozaki.prepare(LARGE if role == "left" else WIDE, role, engine="cpu", **more)
    before = np_ozaki.stats().arrays.prepared.reused
    pair = (x, WIDE) if role == "left" else (LARGE, x)
    c = np_ozaki.matmul(*pair, engine="cpu", **more)
    assert np_ozaki.stats().arrays.prepared.reused == before + 1
    assert_same_bits(np.asarray(c), np_ozaki.matmul(LARGE, WIDE, engine="cpu", **more))
    with pytest.raises(np_ozaki.OperandTypeError, match="prepared operands have"):
        np_ozaki.prepare(LARGE.astype(np.clongdouble))


def test_products_on_a_device(device):
    a, b = (OzArray(x).to_device() for x in (LARGE, WIDE))
    want = np_ozaki.matmul(LARGE, WIDE, engine="cpu")
    c = a @ b
    info = np_ozaki.last_call()
    assert (info.engine, info.dtype) == ("cuda", "complex128")
    assert c.device == "cuda:0"
    assert_same_bits(c.copy_to_host(), want)
    for precision in (9, 1e-12, "exact"):
        x, y = (LARGE, WIDE) if precision != "exact" else (LARGE.round(), WIDE.round())
        d = np_ozaki.matmul(OzArray(x).to_device(), y, precision=precision)
        e = np_ozaki.matmul(x, y, precision=precision, engine="cpu")
        assert_same_bits(d.copy_to_host(), e)
    mixed = OzArray(LARGE.real.copy()).to_device() @ b
    assert_same_bits(
        mixed.copy_to_host(), np_ozaki.matmul(LARGE.real, WIDE, engine="cpu")
    )
    out = OzArray(np.zeros((90, 70), dtype=complex)).to_device()
    assert np_ozaki.matmul(a, b, out=out) is out
    assert_same_bits(out.copy_to_host(), want)


def crossings():
    return {way: x.calls for way, x in np_ozaki.stats().arrays.transfers.items()}


def test_what_complex_arrays_do_on_a_device(device):
    a, b = (OzArray(x).to_device() for x in (LARGE, WIDE))
    real = OzArray(LARGE.real.copy()).to_device()
    before = crossings()
    made = {
        "conj": (a.conj(), LARGE.conj()),
        "function": (np.conj(a), LARGE.conj()),
        "sum": (a + a.conj(), LARGE + LARGE.conj()),
        "with real": (a - real, LARGE - LARGE.real),
        "with a number": (a + 2j, LARGE + 2j),
        "negative": (-a, -LARGE),
        "equal": (a == real, LARGE == LARGE.real),
        "real": (a.real + 1.0, LARGE.real + 1.0),
        "imag": (-a.imag, -LARGE.imag),
    }
    gram = a @ a.conj().T
    contracted = np.einsum("ij,jk", a, b)
    dotted = np.tensordot(a, b, 1)
    assert crossings() == before
    for result, want in made.values():
        assert result.device == "cuda:0"
        np.testing.assert_array_equal(result.copy_to_host(), want)
        assert result.dtype == want.dtype
    gram, want = gram.copy_to_host(), np_ozaki.matmul(LARGE, WIDE, engine="cpu")
    np.testing.assert_array_equal(gram, gram.conj().T)
    assert (gram.diagonal().imag == 0).all()
    assert_same_bits(contracted.copy_to_host(), want)
    assert_same_bits(dotted.copy_to_host(), want)
    assert_same_bits(
        np.asarray(np.vdot(a[0], b[:, 0])), np_ozaki.matmul(LARGE[0].conj(), WIDE[:, 0])
    )
    # Fused operations of a machine would have other bits: the host multiplies.
    np.testing.assert_array_equal((a * b[0, 0]).copy_to_host(), LARGE * WIDE[0, 0])
    a[0], a[1, 0], a[2] = 5.0 - 1.0j, 2j, OzArray(WIDE[:, 0]).to_device()
    changed = LARGE.copy()
    changed[0], changed[1, 0], changed[2] = 5.0 - 1.0j, 2j, WIDE[:, 0]
    assert a.device == "cuda:0"
    assert_same_bits(a.copy_to_host(), changed)


def test_arrays_on_a_device(device):
    a, b = (choice.as_device_array(x) for x in (LARGE, WIDE))
    c, info = np_ozaki.matmul(a, b, return_info="bound")
    want, other = np_ozaki.matmul(LARGE, WIDE, engine="cpu", return_info="bound")
    assert choice.is_device_array(c)
    assert_same_bits(choice.to_host(c), want)
    assert_same_bits(info.bound, other.bound)
    hi, lo = np_ozaki.matmul(a, b, precision=16, output="dd")
    want = np_ozaki.matmul(LARGE, WIDE, precision=16, output="dd", engine="cpu")
    assert_same_bits(choice.to_host(hi), want.hi)
    assert_same_bits(choice.to_host(lo), want.lo)
    e = np_ozaki.matmul(choice.as_device_array(LARGE.real.copy()), b)
    assert_same_bits(choice.to_host(e), np_ozaki.matmul(LARGE.real, WIDE, engine="cpu"))


def test_the_cpu_engine_takes_copies_of_what_is_on_a_device(device):
    a, b = (choice.as_device_array(x) for x in (LARGE, WIDE))
    c, info = np_ozaki.matmul(a, b, engine="cpu", return_info=True)
    assert info.engine == "cpu"
    assert_same_bits(choice.to_host(c), np_ozaki.matmul(LARGE, WIDE, engine="cpu"))


def test_what_cublas_leaves(device, monkeypatch):
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: None)
    c, info = np_ozaki.matmul(LARGE, WIDE, engine="cublas", return_info=True)
    assert info.fallback == 'engine="cublas": complex products'
    assert_same_bits(c, np_ozaki.matmul(LARGE, WIDE, engine="cpu"))


@pytest.mark.parametrize("precision", [16, "auto"])
@pytest.mark.parametrize("conjugated", [(True, False), (False, True), (True, True)])
def test_conjugates_have_the_bits_of_copies(conjugated, precision):
    options = Options(precision=precision, engine="cpu")
    x, y = (z.conj() if conj else z for z, conj in zip((A, B), conjugated, strict=True))
    call = {"route": "matmul", "options": options}
    expected, _ = matmul_arrays(x, y, None, **call)
    found, info = matmul_arrays(A, B, None, **call, conjugated=conjugated)
    assert_same_bits(found, expected)
    assert info.fallback is None
