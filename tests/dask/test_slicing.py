"""Indexing, by slices, lists, masks and by other dask arrays."""

import numpy as np
import pytest
from chunked import CUBE, SQUARE, assert_alike, assert_values, compare, da, oz, plain

from np_ozaki import OzArray

TABLE = np.arange(10, 160, 10).reshape(3, 5)
KEYS = {
    "integer": 3,
    "negative": -2,
    "row and column": (2, slice(1, 9)),
    "steps": (slice(None, None, 3), slice(None, None, -2)),
    "empty": slice(4, 4),
    "ellipsis": (Ellipsis, 1),
    "new axis": (None, slice(2, 7), None),
    "list": [7, 0, 3, 3],
    "list of columns": (slice(None), [5, 5, 1]),
    "sorted list": (slice(None), [1, 2, 10]),
    "mask": np.arange(12) % 2 == 0,
    "mask of columns": (slice(1, 8), np.arange(12) > 7),
    "array": np.array([1, 4, -1]),
    "list and slice": ([1, 9], slice(2, 5)),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("chunks", [12, 5, (3, 7)])
def test_keys(name, chunks):
    compare(lambda x: x[KEYS[name]], SQUARE, chunks)


@pytest.mark.parametrize("key", [[7, 0, 3], (slice(None), [5, 1])])
def test_keys_that_are_oz_arrays(key):
    def wrapped(part):
        return part if isinstance(part, slice) else OzArray(np.array(part))

    ours = tuple(map(wrapped, key)) if isinstance(key, tuple) else wrapped(key)
    assert_alike(oz(SQUARE, 5)[ours], plain(SQUARE, 5)[key])


@pytest.mark.parametrize("index_chunks", [None, 3, 2, 1])
@pytest.mark.parametrize("chunks", [(3, 5), (2, 3), (1, 1)])
@pytest.mark.parametrize("make", [oz, plain])
def test_dask_index(chunks, index_chunks, make):
    positions = np.array([3, 0, 1])
    index = positions if index_chunks is None else make(positions, index_chunks)
    x = oz(TABLE, chunks)
    for ours, want in (
        (x[:, index], TABLE[:, [3, 0, 1]]),
        (x.T[index], TABLE.T[[3, 0, 1]]),
    ):
        assert type(ours._meta) is OzArray
        result = ours.compute()
        assert type(result) is OzArray
        assert_values(result, want)


@pytest.mark.parametrize("make", [np.array, OzArray])
def test_dask_index_without_axes(make):
    index = da.from_array(make(np.array(1)), chunks=1)
    assert_values(oz(TABLE)[index].compute(), TABLE[1])
    assert_values(oz(TABLE)[:, index].compute(), TABLE[:, 1])


@pytest.mark.parametrize("chunks", [2, 4])
def test_negative_and_wrong_dask_index(chunks):
    x = oz(np.arange(4), chunks)
    assert_values(x[oz(np.array([-1, -4]), 1)].compute(), np.array([3, 0]))
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            x[oz(np.array([wrong]), 1)].compute()


@pytest.mark.parametrize("kind", ["i1", "u2", "i4", "u8"])
def test_types_of_index(kind):
    index = oz(np.array([1, 2], dtype=kind), 1)
    assert_values(oz(TABLE[0], 2)[index].compute(), TABLE[0, 1:3])


def test_dask_mask():
    x = oz(SQUARE, 5)
    kept = x[x > 0]
    assert np.isnan(kept.shape[0])
    assert type(kept.compute()) is OzArray
    # dask's order: block by block.
    assert_values(np.sort(np.asarray(kept.compute())), np.sort(SQUARE[SQUARE > 0]))
    assert_values(x[x[:, 0] > 0].compute(), SQUARE[SQUARE[:, 0] > 0])
    kept.compute_chunk_sizes()
    assert kept.shape == ((SQUARE > 0).sum(),)


def test_indexing_computes_nothing():
    def crash():
        raise NotImplementedError

    index = da.Array({("x", 0): (crash,)}, name="x", chunks=((2,),), dtype=np.int64)
    chosen = oz(np.arange(5), 5)[index]
    with pytest.raises(NotImplementedError):
        chosen.compute()


def test_points():
    compare(lambda x: x.vindex[[0, 1, 6, 0], [0, 1, 0, 7]], SQUARE, (3, 4))
    compare(lambda x: x.vindex[[[0, 1], [2, 3]], :], SQUARE, (3, 4))
    compare(lambda x: x.blocks[1:, 0], SQUARE, (3, 4))


def test_shuffle():
    compare(lambda x: da.shuffle(x, [[0, 3, 5], [1, 2], [4]], axis=2), CUBE)


def test_products_of_slices():
    x = oz(SQUARE, 12)
    compare(lambda x: x[2:7, ::-1] @ x[:, [1, 4]], SQUARE, 12, rtol=1e-13)
    assert type((x[2:7] @ x[:, 3]).compute()) is OzArray


def test_too_many_indices():
    with pytest.raises(IndexError):
        oz(SQUARE)[0, 0, 0]
