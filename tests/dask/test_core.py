"""Chunks that are OzArrays: made, looked at, sliced, stored, written, named."""

import numpy as np
import pytest
from chunked import (
    CUBE,
    SQUARE,
    assert_alike,
    assert_values,
    compare,
    computed,
    da,
    dask,
    oz,
    plain,
)
from dask.array.utils import asanyarray_safe, assert_eq
from dask.base import tokenize
from dask.sizeof import sizeof

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.testing import assert_same_bits

FUNCTIONS = {
    "itself": lambda x: x,
    "twice": lambda x: 2 * x,
    "half": lambda x: x / 2,
    "power": lambda x: x**2,
    "sum of two": lambda x: x + x,
    "product of two": lambda x: x * x,
    "absolute": abs,
    "comparison": lambda x: x > 0.5,
    "plane": lambda x: x[0],
    "column": lambda x: x[:, 1],
    "new axis": lambda x: x[:1, None, 1:3],
    "transpose": lambda x: x.T,
    "permuted": lambda x: da.transpose(x, (1, 2, 0)),
    "swapped": lambda x: x.swapaxes(0, 2),
    "empty_like": lambda x: da.empty_like(x) * 0,
    "ones_like": da.ones_like,
    "zeros_like": da.zeros_like,
    "full_like": lambda x: da.full_like(x, 5),
    "astype": lambda x: x.astype(np.complex128),
    "map_blocks": lambda x: x.map_blocks(lambda block: block * 2),
    "round": lambda x: x.round(1),
    "reshape": lambda x: x.reshape((20, 6)),
    "rechunk and reshape": lambda x: x.rechunk(x.shape).reshape((5, 4, 6)),
    "ravel": lambda x: x.ravel(),
    "split axis": lambda x: x.reshape((4, 5, 3, 2)),
    "bigger chunks": lambda x: x.rechunk((4, 4, 4)),
    "smaller chunks": lambda x: x.rechunk((2, 2, 1)),
    "squeeze": lambda x: x[:1].squeeze(),
    "repeat": lambda x: x.repeat(2, axis=1),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "choose": lambda x: (x > 0).astype(int).choose([x, -x]),
    "real and imaginary": lambda x: (x.real, x.imag, x.conj()),
    "blocks": lambda x: x.blocks[0, 1],
    "partitions": lambda x: x.partitions[1],
    "persist": lambda x: x.persist(),
    "copy": lambda x: x.copy(),
    "topk": lambda x: (x.topk(2, axis=0), x.argtopk(-2, axis=1)),
    "to_delayed": lambda x: x.to_delayed()[0, 0, 0].compute(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    compare(FUNCTIONS[name], CUBE)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: da.tensordot(x, y, 1),
        lambda x, y: da.einsum("ij,jk", x, y),
        lambda x, y: x.real @ y + 1j * (x.imag @ y),
    ],
)
def test_complex_chunks_multiply_on_the_engine(product):
    x, y = (oz(z) for z in (SQUARE + 1j * SQUARE.T, SQUARE - 2j))
    with np_ozaki.enabled(engine="cpu") as scope:
        result = product(x, y).compute()
    assert type(result) is OzArray
    assert scope.stats().calls("cpu")
    assert not scope.stats().calls("native")
    want = (SQUARE + 1j * SQUARE.T) @ (SQUARE - 2j)
    np.testing.assert_allclose(np.asarray(result), want)


def test_chunks_are_oz_arrays():
    x = oz(CUBE)
    assert type(x._meta) is OzArray
    assert "OzArray" in repr(x)
    assert type(x.compute()) is OzArray
    assert x[0, 0, 0].compute() == CUBE[0, 0, 0]
    assert_eq(x, x)


def test_wrapping_chunks_of_a_plain_array():
    wrapped = plain(SQUARE).map_blocks(OzArray)
    assert type(wrapped._meta) is OzArray
    assert_alike(wrapped, plain(SQUARE))
    unwrapped = wrapped.map_blocks(np.asarray)
    assert type(unwrapped.compute()) is np.ndarray


def test_to_backend():
    x = oz(SQUARE)
    back = x.to_backend("numpy")
    assert type(back._meta) is np.ndarray
    result = back.compute()
    assert type(result) is np.ndarray
    assert_same_bits(result, SQUARE)
    (block,) = dask.compute(back.blocks[0, 0])
    block[:] = 0.0
    assert_values(x.compute(), SQUARE)


def test_asarray():
    assert type(np.asarray(oz(SQUARE))) is np.ndarray
    assert_same_bits(np.asarray(oz(SQUARE)), SQUARE)
    assert type(da.asanyarray(OzArray(SQUARE)).compute()) is OzArray
    assert type(da.asarray(OzArray(SQUARE)).compute()) is OzArray


@pytest.mark.parametrize("make", [OzArray, lambda x: da.from_array(OzArray(x))])
@pytest.mark.parametrize("given", [np.array, OzArray, da.array])
def test_asanyarray_like(make, given):
    like = make(np.arange(5))
    result = asanyarray_safe(given(np.arange(5)), like=like)
    assert type(result) is type(like)


@pytest.mark.parametrize("module", [np, da])
@pytest.mark.parametrize("name", ["array", "asarray", "asanyarray"])
@pytest.mark.parametrize("given", [np.array, da.array, list])
def test_array_like(module, name, given):
    result = getattr(module, name)(
        given([1, 2, 3]), like=da.from_array(OzArray(np.array(())))
    )
    assert isinstance(result, da.Array)
    assert type(result._meta) is OzArray
    assert_values(result.compute(), [1, 2, 3])


def test_vindex():
    compare(lambda x: x.vindex[[0, 1, 6, 0], [0, 1, 0, 7]], SQUARE, (3, 4))


@pytest.mark.parametrize("dtype", [None, "i4", "i2"])
def test_view(dtype):
    x = np.arange(56).reshape((7, 8))
    compare(lambda x: x.view(dtype), x, (2, 2))


def test_view_in_columns():
    x = np.asfortranarray(np.arange(64).reshape((8, 8)))
    compare(lambda x: x.view("i4", order="F"), x, (2, 2))


def test_view_that_does_not_fit():
    with pytest.raises(ValueError, match=r"integer|multiple"):
        oz(np.arange(9, dtype="i1"), 3).view("i4")


def test_getter():
    result = da.core.getter(OzArray(np.arange(5)), (None, slice(None)))
    assert type(result) is OzArray
    assert_values(result, np.arange(5)[None, :])


@pytest.mark.parametrize("target", [np.zeros, lambda s: OzArray(np.zeros(s))])
def test_store(target):
    place = target(SQUARE.shape)
    da.store(oz(SQUARE) + 1, place)
    assert_values(place, SQUARE + 1)
    place = target(SQUARE.shape)
    stored = da.store(oz(SQUARE), place, return_stored=True)
    assert_values(stored.compute(), SQUARE)


def test_npy_stack(tmp_path):
    da.to_npy_stack(tmp_path / "stack", oz(SQUARE, (4, 12)))
    assert_same_bits(da.from_npy_stack(tmp_path / "stack").compute(), SQUARE)


# ---- Writing ----

WRITES = {
    "all": lambda x: x.__setitem__(Ellipsis, -1.0),
    "steps": lambda x: x.__setitem__((slice(None, None, 2), slice(1, None, -1)), -1.0),
    "rows": lambda x: x.__setitem__([4, 3, 1], -1.0),
    "a column of a list": lambda x: x.__setitem__((slice(None), 2), range(12)),
    "a mask": lambda x: x.__setitem__(x > 0.3, -2.0),
    "a mask of one axis": lambda x: x.__setitem__((x[:, 0] > 0, 3), 0.5),
    "a block of an OzArray": lambda x: x.__setitem__(
        (slice(1, 3), slice(2, 5)), OzArray(np.ones((2, 3)))
    ),
    "from itself": lambda x: x.__setitem__((0, slice(None)), x[-2, :]),
    "reversed": lambda x: x.__setitem__((slice(3, 5), slice(5, 1, -2)), -x[:2, 4:1:-2]),
    "dask index": lambda x: x.__setitem__(
        (slice(None), da.from_array([0, 2], chunks=2)), x[:, :2]
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_setitem(name):
    ours, theirs = oz(SQUARE, (5, 4)), plain(SQUARE, (5, 4))
    WRITES[name](ours)
    WRITES[name](theirs)
    assert_alike(ours, theirs)


def test_setitem_leaves_the_source_alone():
    source = OzArray(SQUARE)
    x = da.from_array(source, chunks=5)
    x[:3] = 7.0
    assert (np.asarray(x.compute())[:3] == 7.0).all()
    assert_values(source, SQUARE)


def test_setitem_on_blocks_that_are_one_entry_broadcast():
    x = da.zeros_like(oz(np.array(())), shape=(4, 6), chunks=(2, 2))
    x[0] = 99.0
    x[2:, ::2] = 88.0
    assert type(x.compute()) is OzArray
    assert np.asarray(x.compute())[0].tolist() == [99.0] * 6


@pytest.mark.parametrize(
    ("index", "value", "error"),
    [
        ((slice(None), 0), [2, 3, 4], ValueError),
        (([True, True, True, False], 0), [2, 3], ValueError),
        ((slice(None),) * 3, 2, IndexError),
        ([True, True, False], 5, IndexError),
        (([1, 2], [2, 3]), 6, NotImplementedError),
    ],
)
def test_setitem_errors(index, value, error):
    x = da.ones_like(oz(np.array(())), shape=(4, 4), chunks=(2, 2))
    with pytest.raises(error):
        x[index] = value


# ---- Products ----


@pytest.mark.parametrize(
    "multiply",
    [
        lambda a, b: a @ b,
        np.matmul,
        da.matmul,
        da.dot,
        np.dot,
        lambda a, b: a.dot(b),
        lambda a, b: da.tensordot(a, b, axes=1),
        lambda a, b: np.tensordot(a, b, axes=((1,), (0,))),
        lambda a, b: da.einsum("ij,jk->ik", a, b),
        lambda a, b: np.einsum("ij,jk", a, b),
    ],
)
@pytest.mark.parametrize("both", [True, False])
def test_one_product_has_its_bits(multiply, both):
    # The inner axis is one chunk: every block of the result is one product.
    a, b = SQUARE[:6], SQUARE[:, 3:]
    left = oz(a, (3, 12))
    right = oz(b, (12, 3)) if both else plain(b, (12, 3))
    result = multiply(left, right)
    assert type(result._meta) is OzArray
    product, calls = computed(result)
    assert type(product) is OzArray
    assert_same_bits(np.asarray(product), np_ozaki.matmul(a, b))
    assert calls == 2 * 3


def test_blocks_of_the_inner_axis_are_added_in_order():
    a, b = SQUARE, SQUARE[::-1].copy()
    result = oz(a, (12, 4)) @ oz(b, (4, 12))
    parts = [np_ozaki.matmul(a[:, i : i + 4], b[i : i + 4]) for i in (0, 4, 8)]
    assert_same_bits(np.asarray(result.compute()), parts[0] + parts[1] + parts[2])


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x: x @ np.eye(6),
        lambda x: x @ OzArray(np.eye(6)),
        lambda x: np.ones((4, 3, 5)) @ x,
        lambda x: OzArray(np.ones((3, 5))) @ x,
        lambda x: x @ np.arange(6.0),
        lambda x: x.dot(np.arange(6.0)),
        lambda x: da.tensordot(x, np.ones((4, 5, 2)), axes=((0, 1), (0, 1))),
        lambda x: da.tensordot(x, x, axes=((0, 2), (0, 2))),
        lambda x: da.einsum("ijk,ijk", x, x),
        lambda x: da.einsum("ijk,ilk->jl", x, x),
        lambda x: da.einsum("ijk->ji", x),
        lambda x: da.vdot(x, x),
        lambda x: da.outer(x[0, 0], x[1, 1]),
    ],
)
def test_products_of_a_cube(multiply):
    compare(multiply, CUBE, rtol=1e-13)


def test_products_in_threads():
    a = np.random.default_rng(5).standard_normal((40, 30))
    result = oz(a, (10, 30)) @ oz(a.T, (30, 10))
    product, calls = computed(result, scheduler="threads", num_workers=4)
    assert calls == 16
    assert_same_bits(np.asarray(product), np_ozaki.matmul(a, a.T))


def test_options_of_a_scope_reach_threads():
    x = oz(SQUARE, (6, 12)) @ SQUARE
    with np_ozaki.enabled(engine="cpu", precision=9) as scope:
        x.compute(scheduler="threads", num_workers=2)
    assert scope.stats().calls("cpu") == 2
    assert scope.stats().as_dict()


def test_plain_chunks_are_caught_by_a_scope_only():
    x = plain(SQUARE, (6, 12)) @ SQUARE
    assert computed(x)[1] == 0
    with np_ozaki.enabled(engine="cpu", min_flops=0):
        assert computed(x, scheduler="threads", num_workers=2)[1] == 2


# ---- Names and sizes ----


def test_token_is_of_the_contents():
    x = OzArray(SQUARE)
    same = [
        OzArray(SQUARE.copy()),
        OzArray(np.asfortranarray(SQUARE)),
        OzArray(np.repeat(SQUARE, 2, axis=0))[::2],
    ]
    assert {tokenize(twin) for twin in same} == {tokenize(x)}
    others = [
        SQUARE,
        x.T,
        x.reshape(2, 72),
        x.astype("f4"),
        x[:6],
        OzArray(SQUARE.view("i8")),
        -x,
    ]
    tokens = {tokenize(x), *map(tokenize, others)}
    assert len(tokens) == 1 + len(others)
    assert tokenize(x, ensure_deterministic=True) == tokenize(x)


@pytest.mark.parametrize(
    "values", [2.5, [], [[]], ["a", "bc"], [1 + 2j], [None, "x"], [True]]
)
def test_token_of_every_kind(values):
    x, y = (OzArray(np.array(values)) for _ in range(2))
    assert tokenize(x) == tokenize(y) != tokenize(OzArray(np.array([3])))


def test_a_matrix_and_its_transpose_are_told_apart():
    x = OzArray(SQUARE)
    a, b = da.from_array(x, chunks=12), da.from_array(x.T, chunks=12)
    assert_same_bits(np.asarray((a @ b).compute()), np_ozaki.matmul(SQUARE, SQUARE.T))


def test_sizeof():
    x = OzArray(SQUARE)
    assert sizeof(x) == sizeof(SQUARE) == SQUARE.nbytes
    assert sizeof(x[::2, 3]) == 6 * 8
    assert sizeof(OzArray(np.float32(1))) == 4
    assert sizeof(OzArray(np.empty((0, 3)))) == 0
    broadcast = np.broadcast_to(OzArray(np.ones((3, 1))), (3, 1000))
    assert sizeof(broadcast) == 3 * 8


def test_register_again_changes_nothing():
    before = list(da.chunk_types._HANDLED_CHUNK_TYPES)
    np_ozaki.dask.register()
    assert before == da.chunk_types._HANDLED_CHUNK_TYPES
    assert before.count(OzArray) == 1
