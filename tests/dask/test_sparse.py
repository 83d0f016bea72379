"""Chunks that are sparse matrices, beside and made from OzArrays."""

import numpy as np
import pytest
from chunked import SQUARE, assert_values, da, oz, plain

from np_ozaki import OzArray

sparse = pytest.importorskip("scipy.sparse")

THIN = np.where(np.abs(SQUARE) > 1, SQUARE, 0.0)
KINDS = [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, sparse.csc_array]


def sparsify(x, kind):
    """Return the dask array with sparse chunks; scipy takes ndarrays only."""
    return x.map_blocks(lambda block: kind(np.asarray(block)), dtype=x.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_chunks_of_oz_arrays(kind):
    result = sparsify(oz(THIN, 5), kind).compute()
    assert sparse.issparse(result)
    assert_values(result.toarray(), THIN)


@pytest.mark.parametrize("kind", KINDS)
def test_back_to_oz_arrays(kind):
    x = sparsify(oz(THIN, 5), kind)
    dense = x.map_blocks(lambda block: OzArray(block.toarray()), dtype=x.dtype)
    assert type(dense.compute()) is OzArray
    assert_values(dense.compute(), THIN)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("axis", [0, 1])
def test_concatenate(kind, axis):
    parts = [sparsify(oz(x, 6), kind) for x in (THIN, 2 * THIN)]
    result = da.concatenate(parts, axis=axis).compute()
    assert_values(result.toarray(), np.concatenate([THIN, 2 * THIN], axis=axis))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_dot_of_sparse_chunks(kind):
    x = sparsify(oz(THIN, (6, 12)), kind)
    y = sparsify(oz(THIN, (12, 6)), kind)
    assert_values(da.dot(x, y).compute().toarray(), THIN @ THIN, 1e-13)


@pytest.mark.parametrize("make", [oz, plain])
@pytest.mark.parametrize("swap", [False, True])
def test_blocks_times_sparse_blocks(make, swap):
    # scipy.sparse answers the product itself, whoever stands beside it.
    dense, thin = make(SQUARE, 12), sparsify(plain(THIN, 12), sparse.csr_matrix)
    pair = (thin, dense) if swap else (dense, thin)
    result = da.map_blocks(lambda x, y: x @ y, *pair, dtype=float).compute()
    want = THIN @ SQUARE if swap else SQUARE @ THIN
    assert_values(result, want, 1e-13)
