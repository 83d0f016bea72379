"""OzArray: products on the engine, everything else as NumPy does it."""

import copy
import operator
import pickle

import numpy as np
import pytest

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.array.temporaries import MOST_REFERENCES
from np_ozaki.testing import assert_same_bits

A = np.random.default_rng(1).standard_normal((5, 6))
B = np.random.default_rng(2).standard_normal((6, 4))
PRODUCT = np_ozaki.matmul(A, B)


def engine_calls():
    return np_ozaki.stats().calls("cpu")


@pytest.mark.parametrize(
    "multiply",
    [
        lambda: OzArray(A) @ OzArray(B),
        lambda: OzArray(A) @ B,
        lambda: A @ OzArray(B),
        lambda: OzArray(A) @ B.tolist(),
        lambda: np.matmul(OzArray(A), B),
        lambda: np.matmul(A, OzArray(B)),
        lambda: np.matmul(OzArray(A), B, dtype=np.float64),
        lambda: np.linalg.matmul(OzArray(A), B),
        lambda: np.dot(OzArray(A), B),
        lambda: np.dot(A, OzArray(B)),
        lambda: OzArray(A).dot(B),
        lambda: np_ozaki.matmul(OzArray(A), B),
        lambda: (OzArray(B).T @ OzArray(A).T).T,
    ],
)
def test_every_way_to_multiply(multiply):
    result = multiply()
    assert type(result) is OzArray
    assert_same_bits(np.asarray(result), PRODUCT)
    assert engine_calls() == 1


@pytest.mark.parametrize(
    "shapes",
    [
        ((6,), (6,)),
        ((5, 6), (6,)),
        ((6,), (6, 4)),
        ((2, 5, 6), (3, 6, 4)),
        ((2, 3, 6), (6,)),
        ((0, 6), (6, 4)),
        ((5, 0), (0, 4)),
    ],
)
def test_dot_shapes(shapes):
    a, b = (
        np.random.default_rng(i).integers(-9, 9, s) * 1.0 for i, s in enumerate(shapes)
    )
    want = np.dot(a, b)
    result = np.dot(OzArray(a), OzArray(b))
    assert np.shape(result) == np.shape(want)
    np.testing.assert_array_equal(np.asarray(result), want)


def test_dot_with_scalars_and_errors():
    np.testing.assert_array_equal(np.asarray(np.dot(OzArray(A), 2.0)), 2 * A)
    np.testing.assert_array_equal(np.asarray(OzArray(A).dot(np.float64(3))), 3 * A)
    with pytest.raises(ValueError, match="equal length"):
        np.dot(OzArray(A), A)
    with pytest.raises(ValueError, match="C-contiguous"):
        np.dot(OzArray(A), B, out=np.empty((5, 4), order="F"))
    out = np.empty((5, 4))
    assert np.dot(OzArray(A), B, out=out) is out
    assert_same_bits(out, PRODUCT)


def test_in_place_and_out():
    x = OzArray(np.eye(3) * 2)
    same = x
    x @= np.full((3, 3), 1.5)
    assert x is same
    np.testing.assert_array_equal(np.asarray(x), np.full((3, 3), 3.0))
    x += 1
    x[0] = 0
    assert np.asarray(x).tolist() == [[0.0] * 3, [4.0] * 3, [4.0] * 3]
    out = OzArray(np.empty((5, 4)))
    assert np.matmul(OzArray(A), B, out=out) is out
    assert_same_bits(np.asarray(out), PRODUCT)
    plain = np.empty((5, 4))
    assert np.matmul(OzArray(A), B, out=plain) is plain
    total = np.empty(A.shape)
    assert np.add(OzArray(A), 1.0, out=total) is total


def test_snapshot_and_sharing():
    source = A.copy()
    snapshot, shared = OzArray(source), OzArray(source, copy=False)
    source[0, 0] = 99.0
    assert snapshot[0, 0] == A[0, 0]
    assert shared[0, 0] == 99.0
    shared[1, 1] = -1.0
    assert source[1, 1] == -1.0
    with pytest.raises(ValueError, match="copy"):
        OzArray([[1.0]], copy=False)


def test_views_share_memory_and_products_see_writes():
    x = OzArray(np.ones((4, 4)))
    view = x[1:3]
    assert type(view) is OzArray
    view[:] = 2.0
    np.fill_diagonal(x, 5.0)
    np.copyto(x[3], np.arange(4.0))
    want = np.asarray(x).copy()
    assert want[1, 0] == 2.0
    assert want[0, 0] == 5.0
    assert_same_bits(np.asarray(x @ np.eye(4)), want)
    x.T[0] = 7.0
    assert (np.asarray(x)[:, 0] == 7.0).all()


@pytest.mark.parametrize(
    "function",
    [
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.pow,
        operator.lt,
        operator.eq,
        operator.mod,
    ],
)
def test_arithmetic_is_numpys(function):
    x, y = np.abs(A) + 1, np.abs(A[::-1]) + 0.5
    want = function(x, y)
    for result in (
        function(OzArray(x), OzArray(y)),
        function(OzArray(x), y),
        function(x, OzArray(y)),
    ):
        assert type(result) is OzArray
        np.testing.assert_array_equal(np.asarray(result), want)
    assert type(-OzArray(x)) is OzArray


def test_functions_and_reductions():
    x = OzArray(A)
    assert x.sum() == A.sum()
    assert np.sum(x) == A.sum()
    assert type(np.concatenate([x, A])) is OzArray
    assert type(np.add.reduce(x)) is OzArray
    assert type(np.linalg.svd(x)[0]) is OzArray
    np.testing.assert_array_equal(
        np.asarray(np.where(x > 0, x, 0)), np.where(A > 0, A, 0)
    )
    np.testing.assert_array_equal(np.asarray(x.max(axis=0)), A.max(axis=0))
    assert x.flags.c_contiguous


def test_looks_like_an_array():
    x = OzArray(A)
    assert (x.shape, x.ndim, x.size, x.nbytes, x.dtype) == (
        A.shape,
        2,
        30,
        240,
        np.float64,
    )
    assert len(x) == 5
    assert [type(row) for row in x] == [OzArray] * 5
    assert type(x[0, 0]) is np.float64
    assert A[0, 0] in x
    assert repr(OzArray([[1.0, 2.0], [3.0, 4.0]])) == (
        "OzArray([[1., 2.],\n         [3., 4.]])"
    )
    assert str(x) == str(A)
    assert x.mT.shape == (6, 5)
    assert x.reshape(6, 5).shape == x.reshape((6, 5)).shape == (6, 5)
    assert x.astype("f4").dtype == np.float32
    assert x.transpose(1, 0).shape == (6, 5)
    assert float(OzArray(2.5)) == 2.5
    assert int(OzArray(2)) == operator.index(OzArray(2)) == 2
    assert complex(OzArray(2.5)) == 2.5
    assert bool(OzArray([1]))
    assert f"{OzArray(2.5):.2f}" == f"{np.array(2.5):.2f}"
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(AttributeError):
        x.no_such_attribute  # noqa: B018 - the access is the test
    assert not hasattr(x, "__array_interface__")


def test_others_answer_where_ndarray_would_let_them():
    sparse = pytest.importorskip("scipy.sparse").csr_array(np.eye(6))
    for ours, theirs in ((OzArray(A) @ sparse, A @ sparse), (sparse @ OzArray(B), B)):
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    assert (OzArray(np.eye(6)) * sparse).sum() == 6


def test_comparisons_with_strangers():
    x = OzArray(A)
    assert not np.any(x == "text")
    assert np.all(x != "text")
    assert not np.any(x == None)  # noqa: E711 - elementwise, as for ndarray
    record = OzArray(np.array([(1, 2.0)], dtype="i4,f8"))
    assert np.all(record == np.asarray(record))
    assert (1.0 - x).shape == (2 ** (x > 0)).shape == A.shape
    assert divmod(OzArray([7]), 2)[1][0] == 1


def test_out_is_handed_back():
    out = np.empty((5, 4))
    assert np.einsum("ij,jk->ik", OzArray(A), B, out=out) is out
    total = OzArray(np.empty(6))
    assert np.sum(OzArray(A), axis=0, out=total) is total
    assert OzArray(A).sum(0, out=total) is total
    assert np.sum(OzArray(A), 0, None, total) is total


def test_masks_are_not_lost():
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    with pytest.raises(TypeError, match="filled"):
        OzArray(masked)


def test_copies_share_nothing():
    x = OzArray(A)
    for twin in (
        copy.copy(x),
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        x.copy(),
        OzArray(x),
    ):
        assert type(twin) is OzArray
        twin[0, 0] = 123.0
    assert x[0, 0] == A[0, 0]


def test_array_protocol():
    x = OzArray(A)
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(x), np.asarray(x))
    assert np.shares_memory(np.asarray(x, copy=False), np.asarray(x))
    assert not np.asarray(x).flags.writeable


def test_complex_products_are_the_engines():
    z, w = A + 1j * A, B - 2j * B
    result = OzArray(z) @ w
    assert np_ozaki.last_call().engine == "cpu"
    assert_same_bits(np.asarray(result), np_ozaki.matmul(z, w))
    assert_same_bits(np.asarray(A @ OzArray(w)), np_ozaki.matmul(A, w))


def test_other_dtypes_stay_numpys():
    z = (A + 1j * A).astype(np.clongdouble)
    np.testing.assert_array_equal(np.asarray(OzArray(z) @ z.T), z @ z.T)
    assert np_ozaki.last_call().engine == "native"


def test_dtype_asks_for_float64_or_numpy_decides():
    x = OzArray(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    result = np.matmul(x, x.T, dtype=np.float64)
    assert result.dtype == np.float64
    assert np_ozaki.last_call().engine == "cpu"
    with pytest.raises(TypeError, match="cast"):
        np.matmul(x.astype(complex), x.T, dtype=np.float64)
    assert np.matmul(x, x.T, dtype=np.float32).dtype == np.float32


def test_strangers_decide():
    class Duck:
        __array_ufunc__ = None

        def __rmatmul__(self, other):
            return "duck"

    assert OzArray(A) @ Duck() == "duck"


def test_options_come_from_the_scope():
    with np_ozaki.enabled(precision=7, engine="cpu"):
        OzArray(A) @ B
    assert np_ozaki.last_call().num_moduli == 7
    OzArray(A) @ B
    assert np_ozaki.last_call().num_moduli == 15


@pytest.mark.skipif(not MOST_REFERENCES, reason="this interpreter cannot tell")
def test_what_has_no_name_is_handed_over():
    x, y = OzArray(A), OzArray(B)
    product = np.asarray(x @ y)
    assert product.flags.writeable
    assert_same_bits(product, PRODUCT)
    named = x @ y
    held = [x @ y]
    for kept in (np.asarray(named), np.asarray(held[0]), np.asarray(named[1:])):
        assert not kept.flags.writeable
    view_without_name = np.asarray(named.T)
    assert not view_without_name.flags.writeable
    rest_without_owner = np.asarray(OzArray(A)[1:])
    assert rest_without_owner.flags.writeable
    assert not np.asarray(OzArray(A, copy=False)).flags.writeable

    def inside(array):
        return np.asarray(array)

    assert not inside(x).flags.writeable
    seen = np.asarray(named)
    named += 1
    assert_same_bits(seen, PRODUCT + 1)
