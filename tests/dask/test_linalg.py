"""Decompositions and solutions.

Where dask calls scipy.linalg, which answers in ndarrays, chunks are plain whatever the
meta says: only values are compared there.
"""

import numpy as np
import pytest
import scipy.linalg
from chunked import SQUARE, TALL, assert_alike, assert_values, computed, da, oz, plain

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.testing import assert_same_bits

TIGHT = 1e-12
POSITIVE = SQUARE @ SQUARE.T + 12 * np.eye(12)


def eye(n):
    return np.eye(n)


def check_qr(q, r, x):
    assert type(q._meta) is OzArray
    assert type(r._meta) is OzArray
    q, r = q.compute(), r.compute()
    assert type(q) is type(r) is OzArray
    assert_values(q @ r, x, TIGHT)
    assert_values(q.T @ q, eye(q.shape[1]), TIGHT)
    assert_values(r, np.triu(np.asarray(r)))


@pytest.mark.parametrize(
    "chunks",
    [
        (20, 5),  # one block
        (10, 5),
        (3, 5),
        ((8, 4, 8), 5),
        ((9, 1, 1, 5, 4), 5),  # blocks with fewer rows than columns
    ],
)
@pytest.mark.parametrize("function", [da.linalg.tsqr, da.linalg.qr])
def test_qr_of_tall_matrices(function, chunks):
    check_qr(*function(oz(TALL, chunks)), TALL)


@pytest.mark.parametrize("chunks", [(5, 20), (5, 10), (5, (7, 3, 10))])
def test_qr_of_wide_matrices(chunks):
    check_qr(*da.linalg.sfqr(oz(TALL.T, chunks)), TALL.T)


def test_qr_of_several_levels():
    x = np.random.default_rng(4).standard_normal((131, 2))
    check_qr(*da.linalg.tsqr(oz(x, (16, 2))), x)


def test_qr_of_unknown_chunks():
    keep = TALL[:, 0] > 0
    x = oz(TALL, (5, 5))[oz(keep, 5)]
    q, r = da.linalg.tsqr(x)
    check_qr(q, r, TALL[keep])


@pytest.mark.parametrize("function", [da.linalg.tsqr, da.linalg.sfqr, da.linalg.svd])
def test_blocks_that_do_not_fit(function):
    with pytest.raises((ValueError, NotImplementedError)):
        function(oz(SQUARE, 6))


def test_products_inside_qr_run_on_the_engine():
    q, _ = da.linalg.tsqr(oz(TALL, (5, 5)))
    assert computed(q)[1] == 4


@pytest.mark.parametrize("chunks", [(20, 5), (5, 5)])
@pytest.mark.parametrize("function", [da.linalg.svd, da.linalg.tsqr])
def test_svd(function, chunks):
    options = {"compute_svd": True} if function is da.linalg.tsqr else {}
    parts = function(oz(TALL, chunks), **options)
    assert [type(part._meta) for part in parts] == [OzArray] * 3
    u, s, vh = (part.compute() for part in parts)
    assert type(u) is type(s) is type(vh) is OzArray
    assert_values(s, np.linalg.svd(TALL)[1], TIGHT)
    assert_values((u * s) @ vh, TALL, TIGHT)


def test_svd_of_a_wide_matrix():
    u, s, vh = da.linalg.svd(oz(TALL.T, (5, 5)))
    assert_values(((u * s) @ vh).compute(), TALL.T, TIGHT)


def test_svd_compressed():
    low = TALL[:, :2] @ TALL[:2]
    u, s, vh = da.linalg.svd_compressed(oz(low, (5, 5)), 2, seed=7)
    assert type(u.compute()) is OzArray
    assert_values(((u * s) @ vh).compute(), low, TIGHT)


@pytest.mark.parametrize("chunk", [12, 6, 4])
def test_solve(chunk):
    right = SQUARE[:, :4]
    x = da.linalg.solve(oz(SQUARE, chunk), oz(right, (chunk, 4)))
    assert type(x._meta) is OzArray
    assert_values(x.compute(), np.linalg.solve(SQUARE, right), 1e-10)


@pytest.mark.parametrize("chunk", [12, 6])
def test_solve_positive(chunk):
    x = da.linalg.solve(oz(POSITIVE, chunk), oz(SQUARE[0], chunk), assume_a="pos")
    assert_values(x.compute(), np.linalg.solve(POSITIVE, SQUARE[0]), TIGHT)


@pytest.mark.parametrize("lower", [True, False])
def test_solve_triangular(lower):
    triangle = np.tril(POSITIVE) if lower else np.triu(POSITIVE)
    x = da.linalg.solve_triangular(
        oz(triangle, 5), oz(SQUARE, 5), lower=lower
    ).compute()
    assert_values(x, np.linalg.solve(triangle, SQUARE), TIGHT)


@pytest.mark.parametrize("chunk", [12, 6, 4])
def test_lu_and_inverse(chunk):
    p, lower, upper = da.linalg.lu(oz(SQUARE, chunk))
    assert_values((p @ lower @ upper).compute(), SQUARE, TIGHT)
    assert_values(
        da.linalg.inv(oz(SQUARE, chunk)).compute(), np.linalg.inv(SQUARE), 1e-10
    )


@pytest.mark.parametrize("chunk", [12, 6, 3])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(chunk, lower):
    factor = da.linalg.cholesky(oz(POSITIVE, chunk), lower=lower).compute()
    assert_values(factor, scipy.linalg.cholesky(POSITIVE, lower=lower), TIGHT)


@pytest.mark.parametrize("columns", [None, 3])
def test_lstsq(columns):
    rng = np.random.default_rng(6)
    right = rng.standard_normal(20 if columns is None else (20, columns))
    chunks = 5 if columns is None else (5, columns)
    ours = da.linalg.lstsq(oz(TALL, (5, 5)), oz(right, chunks))
    theirs = np.linalg.lstsq(TALL, right, rcond=None)
    for x, y in zip(ours[:2], theirs[:2], strict=True):
        assert_values(np.ravel(np.asarray(x.compute())), np.ravel(y), TIGHT)
    assert ours[2].compute() == theirs[2]
    assert_values(ours[3].compute(), theirs[3], TIGHT)


@pytest.mark.parametrize("order", [None, "fro", np.inf, -np.inf, 1, -1, 2, -2, "nuc"])
def test_norm_of_a_matrix(order):
    ours = da.linalg.norm(oz(TALL, (5, 5)), ord=order)
    assert_values(ours.compute(), np.linalg.norm(TALL, ord=order), TIGHT)


@pytest.mark.parametrize("order", [None, np.inf, -np.inf, 0, 1, 3, 0.5])
@pytest.mark.parametrize("keepdims", [True, False])
def test_norm_along_an_axis(order, keepdims):
    def norm(x):
        return da.linalg.norm(x, ord=order, axis=1, keepdims=keepdims)

    assert_alike(norm(oz(SQUARE, 5)), norm(plain(SQUARE, 5)), TIGHT)


def test_chunks_of_scipy_can_be_wrapped_again():
    x = da.linalg.inv(oz(SQUARE, 6)).map_blocks(OzArray)
    product, calls = computed(x @ x)
    assert type(product) is OzArray
    assert calls >= 8


def test_gram_matrix_of_one_block_column_is_symmetric():
    x = oz(TALL, (20, 5))
    gram = np.asarray((x.T @ x).compute())
    assert_same_bits(gram, gram.T)
    assert_same_bits(gram, np_ozaki.matmul(TALL.T, TALL))
