"""np_ozaki.matmul as a function: shapes, out=, dtypes, options, errors."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

import np_ozaki
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.testing import assert_same_bits


def integers(seed, shape, bits=18):
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**bits), 2**bits, shape).astype(np.float64)


@given(
    hnp.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2)
)
def test_shapes_follow_numpy(shapes):
    a, b = (integers(i, s, 10) for i, s in enumerate(shapes.input_shapes))
    want = np.matmul(a, b)
    actual = np_ozaki.matmul(a, b)
    assert type(actual) is type(want)
    assert_same_bits(actual, want + 0.0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 0), (0, 4)),
        ((0, 5), (5, 4)),
        ((3, 5), (5, 0)),
        ((0,), (0,)),
        ((0, 2, 3), (3, 4)),
        ((0, 2, 3), (1, 3, 4)),
        ((2, 3, 0), (2, 0, 4)),
    ],
)
def test_empty(a, b):
    c = np_ozaki.matmul(np.empty(a), np.empty(b))
    assert_same_bits(c, np.zeros(np.matmul(np.empty(a), np.empty(b)).shape))


@pytest.mark.parametrize(
    ("a", "b"), [((), (2, 2)), ((2, 2), ()), ((2, 3), (2, 3)), ((2, 2, 3), (3, 3, 2))]
)
def test_shapes_that_do_not_fit(a, b):
    with pytest.raises(np_ozaki.ShapeError) as error:
        np_ozaki.matmul(np.ones(a), np.ones(b))
    assert isinstance(error.value, ValueError)


def test_out_of_any_layout():
    a, b = integers(1, (7, 8)), integers(2, (8, 6))
    want = np_ozaki.matmul(a, b)
    base = np.full((40, 40), 7.0)
    for out in (
        np.empty((7, 6)),
        np.empty((7, 6), order="F"),
        base[2:16:2, 3:21:3],
        base[6::-1, 5::-1],
        np.empty((6, 7)).T,
    ):
        assert np_ozaki.matmul(a, b, out=out) is out
        assert_same_bits(out, want)
    assert (base[30:] == 7.0).all()
    assert (base[:, 30:] == 7.0).all()


def test_out_of_batches_strided_and_broadcast():
    a, b = integers(3, (4, 3, 5)), integers(4, (5, 2))
    want = np_ozaki.matmul(a, b)
    out = np.empty((4, 2, 3)).swapaxes(1, 2)[::-1]
    np_ozaki.matmul(a, b, out=out)
    assert_same_bits(out, want)
    wider = np.empty((2, 4, 3, 2))
    np_ozaki.matmul(a, b, out=wider)
    assert_same_bits(wider, np.stack([want, want]))


def test_out_whose_axes_do_not_merge():
    a, b = integers(3, (2, 3, 4, 5)), integers(4, (5, 6))
    want = np_ozaki.matmul(a, b)
    for out in (
        np.zeros((3, 2, 4, 6)).swapaxes(0, 1),
        np.zeros((2, 6, 4, 9))[:, ::2, :, 1:7],
        np.zeros((6, 4, 3, 2)).T,
    ):
        assert np_ozaki.matmul(a, b, out=out) is out
        assert_same_bits(out, want)
    column = np.zeros((2, 3, 4, 2))[..., 1]
    assert np_ozaki.matmul(a, b[:, 0], out=column) is column
    assert_same_bits(column, want[..., 0])
    # Without the axis of a matrix two axes of a batch are all there is to merge.
    gaps = np.full((2, 5, 4), -1.0)[:, :3]
    np_ozaki.matmul(a, b[:, 0], out=gaps)
    assert_same_bits(gaps, want[..., 0])
    gaps = np.full((2, 5, 4), -1.0)[:, :3]
    turned = np.ascontiguousarray(a.swapaxes(2, 3))
    np_ozaki.matmul(b[:, 0], turned, out=gaps)
    assert_same_bits(gaps, want[..., 0])


@pytest.mark.parametrize("shape", [(24, 24), (3, 17, 17)])
def test_out_aliases_an_operand(shape):
    a = integers(5, shape, 10)
    want = np_ozaki.matmul(a, a)
    np_ozaki.matmul(a, a, out=a)
    assert_same_bits(a, want)


def test_out_aliases_an_operand_of_several_tiles():
    # Tiles in every direction: operands are read again after results were written.
    a = integers(16, (300, 300), 8)
    want = np_ozaki.matmul(a, a)
    for out in (a.copy(), np.asfortranarray(a)):
        np_ozaki.matmul(out, out, out=out, workspace_bytes=4 << 20)
        assert_same_bits(out, want)


def test_out_overlaps_partly():
    big = integers(6, (30, 20), 10)
    want = np_ozaki.matmul(big[:20], big[:20])
    np_ozaki.matmul(big[:20], big[:20].copy(), out=big[10:])
    assert_same_bits(big[10:], want)


def test_out_of_other_dtypes_casts_as_numpy():
    a, b = integers(7, (3, 4), 5), integers(8, (4, 2), 5)
    out = np.empty((3, 2), dtype=np.float32)
    assert np_ozaki.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    swapped = np.empty((3, 2), dtype=np.dtype(np.float64).newbyteorder())
    np.testing.assert_array_equal(np_ozaki.matmul(a, b, out=swapped), a @ b)
    with pytest.raises(np_ozaki.OperandTypeError, match="float64 array"):
        np_ozaki.matmul(a, b, out=np.empty((3, 2), dtype=int))


def test_bad_out():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    with pytest.raises(np_ozaki.ShapeError, match=r"\(3, 2\)"):
        np_ozaki.matmul(a, b, out=np.empty((2, 3)))
    frozen = np.empty((3, 2))
    frozen.flags.writeable = False
    with pytest.raises(np_ozaki.ShapeError, match="writeable"):
        np_ozaki.matmul(a, b, out=frozen)
    with pytest.raises(np_ozaki.OperandTypeError, match="ndarray"):
        np_ozaki.matmul(a, b, out=[[0.0] * 2] * 3)


def test_operands_stay_as_they_are():
    a, b = integers(9, (6, 7)), integers(10, (7, 3))
    a[2, 2] = np.nan
    a.flags.writeable = b.flags.writeable = False
    keep = a.copy(), b.copy()
    c = np_ozaki.matmul(a, b)
    assert_same_bits(a, keep[0])
    assert_same_bits(b, keep[1])
    assert c.flags.writeable


@pytest.mark.parametrize(
    "dtypes",
    [
        (np.int64, np.float64),
        (np.float32, np.float64),
        (np.float64, np.uint8),
        (np.bool_, np.float64),
        (np.float16, np.float64),
        (np.int32, np.float32),
        (">f8", "<f8"),
    ],
)
def test_dtypes_whose_product_is_float64(dtypes):
    a = np.abs(integers(11, (3, 4), 1)).astype(dtypes[0])
    b = np.abs(integers(12, (4, 2), 1)).astype(dtypes[1])
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert c.dtype == np.float64
    assert info.engine == "cpu"
    np.testing.assert_array_equal(c, np.matmul(a.astype(float), b.astype(float)))


@pytest.mark.parametrize("dtype", ["i4", "u8", "f2", "G", "O", "g", "?"])
def test_other_dtypes_go_to_numpy(dtype):
    a = np.abs(integers(13, (3, 3), 3)).astype(dtype)
    c, info = np_ozaki.matmul(a, a, return_info=True)
    want = np.matmul(a, a)
    assert c.dtype == want.dtype
    np.testing.assert_array_equal(c, want)
    assert info.engine == "native"
    assert info.fallback.startswith("dtypes")


def test_large_integers_are_not_squeezed_through_floating_point():
    a = np.array([[2**53 + 1, 3], [-7, 2**40]])
    np.testing.assert_array_equal(np_ozaki.matmul(a, a), np.matmul(a, a))


def test_lists_and_subclasses():
    assert_same_bits(np_ozaki.matmul([[1.0, 2.0]], [[3.0], [4.0]]), [[11.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.asmatrix(np.eye(2))
        result, info = np_ozaki.matmul(matrix, np.ones((2, 2)), return_info=True)
    assert isinstance(result, np.matrix)
    assert info.fallback == "operand of type matrix"


def test_info_tells_what_happened():
    a = np.ones((2, 3, 4))
    _, info = np_ozaki.matmul(
        a, np.ones((4, 5)), precision=9, scaling="accurate", return_info=True
    )
    assert info == np_ozaki.last_call()
    assert (info.route, info.engine, info.num_moduli) == ("matmul", "cpu", 9)
    assert (info.batch, info.m, info.k, info.n) == (2, 3, 4, 5)
    assert info.scaling == "accurate"
    assert info.flops == 2 * 2 * 3 * 4 * 5
    assert np_ozaki.stats().as_dict() == {
        "matmul": {
            "calls": {"cpu": 1},
            "flops": {"cpu": 240},
            "fallbacks": {},
            "recomputed": 0,
        }
    }
    np_ozaki.reset_stats()
    assert str(np_ozaki.stats()) == "no products"


def test_numpy_integers_are_integers():
    _, info = np_ozaki.matmul(
        np.eye(2), np.eye(2), precision=np.int64(9), return_info=True
    )
    assert info.num_moduli == 9


def test_native_engine():
    a = np.random.default_rng(0).standard_normal((9, 9))
    c, info = np_ozaki.matmul(a, a, engine="native", return_info=True)
    assert_same_bits(c, np.matmul(a, a))
    assert info.fallback == 'engine="native"'


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("precision", 1, ValueError),
        ("precision", 50, ValueError),
        ("precision", 14.5, ValueError),
        ("precision", True, TypeError),
        ("precision", "high", ValueError),
        ("precision", b"auto", TypeError),
        ("scaling", "fast", ValueError),
        ("engine", "gpu", ValueError),
        ("workspace_bytes", 1000, ValueError),
        ("workspace_bytes", 1e9, TypeError),
    ],
)
def test_bad_options(option, value, kind):
    with pytest.raises(kind, match=option) as error:
        np_ozaki.matmul(np.eye(2), np.eye(2), **{option: value})
    assert isinstance(error.value, np_ozaki.OzakiError)
    assert repr(value) in str(error.value)


def test_foreign_arrays_answer_for_themselves():
    class Duck:
        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            return f"{ufunc.__name__} of a duck"

    assert np_ozaki.matmul(np.eye(2), Duck()) == "matmul of a duck"


def test_missing_memory_is_a_typed_error_and_the_next_call_works(monkeypatch):
    a = np.eye(3)

    def no_memory(*args, **kwargs):
        raise MemoryError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(CpuEngine, "residue_gemm", no_memory)
        with pytest.raises(np_ozaki.WorkspaceError, match="planted"):
            np_ozaki.matmul(a, a)
    assert np_ozaki.info().reserved_bytes == 0
    assert_same_bits(np_ozaki.matmul(a, a), a)
