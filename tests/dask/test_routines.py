"""Counting, sorting into bins, sets, differences, triangles."""

import numpy as np
import pytest
from chunked import (
    BROADCAST,
    CUBE,
    PLAIN,
    SQUARE,
    UNKNOWN_META,
    assert_alike,
    compare,
    da,
    oz,
    plain,
)

from np_ozaki import OzArray

SMALL = np.random.default_rng(9).integers(0, 9, (10, 10))
FLAT = SMALL.ravel()


@pytest.mark.parametrize("options", [{}, {"minlength": 6}, {"minlength": 20}])
def test_bincount(options):
    compare(lambda x: da.bincount(x, **options), FLAT, 30)


def test_bincount_weights():
    weights = np.linspace(0, 1, 100)
    assert_alike(
        da.bincount(oz(FLAT, 30), weights=oz(weights, 30), minlength=9),
        da.bincount(plain(FLAT, 30), weights=plain(weights, 30), minlength=9),
    )


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_diff(n, axis):
    compare(lambda x: da.diff(x, n, axis), CUBE)
    compare(lambda x: np.diff(x, n, axis), CUBE)


@pytest.mark.parametrize("where", ["prepend", "append"])
@pytest.mark.parametrize("value", [0, [0], [-1, 0]])
def test_diff_with_borders(where, value):
    compare(lambda x: da.diff(x, **{where: value}), FLAT, 30)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("make", [np.array, OzArray])
def test_digitize(right, make):
    bins = make(np.array([1, 2, 5, 7]))
    ours = da.digitize(oz(SMALL, 4), bins, right=right)
    assert_alike(ours, da.digitize(plain(SMALL, 4), np.asarray(bins), right=right))


@pytest.mark.parametrize("k", [-25, -3, 0, 1, 9])
@pytest.mark.parametrize("shape", [(10, 10), (6, 9)])
def test_triangles(k, shape):
    values = SMALL[: shape[0], : shape[1]]
    compare(lambda x: (da.triu(x, k), da.tril(x, k)), values, 4)


@pytest.mark.parametrize(
    "options", [{}, {"return_index": True}, {"return_counts": True}]
)
def test_unique(options):
    ours = da.unique(oz(FLAT, 30), **options)
    theirs = np.unique(FLAT, **options)
    if not options:
        ours, theirs = [ours], [theirs]
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(x.compute()), y)


def test_membership():
    compare(lambda x: da.isin(x, [2, 3]), SMALL, 4)
    compare(lambda x: da.union1d(x, x + 3), FLAT, 30, types=PLAIN)


@pytest.mark.parametrize("axis", [0, 1])
def test_compress_extract_take(axis):
    keep = np.arange(10) % 3 == 0
    compare(lambda x: da.compress(keep, x, axis=axis), SMALL, 4)
    compare(lambda x: da.compress(oz(keep, 4), x, axis=axis).compute(), SMALL, 4)
    compare(lambda x: da.take(x, [3, 1, 8], axis=axis), SMALL, 4)
    compare(lambda x: np.take(x, [3, 1, 8], axis=axis), SMALL, 4)
    compare(lambda x: da.extract(x > 4, x), SMALL, 4, types=UNKNOWN_META)


def test_nonzero_and_where():
    compare(lambda x: da.argwhere(x > 0), SQUARE, 5, types=PLAIN)
    for ours, theirs in zip(
        da.nonzero(oz(SQUARE > 0, 5)), np.nonzero(SQUARE > 0), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(ours.compute()), theirs)
    compare(lambda x: da.where(x > 0, x, -x), SQUARE, 5)
    compare(lambda x: da.flatnonzero(x > 0), SQUARE, 5, types=PLAIN)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_histogram(density, weighted):
    values = SQUARE.ravel()

    def histogram(x):
        weights = x * x if weighted else None
        return da.histogram(x, bins=7, range=(-3, 3), density=density, weights=weights)

    ours, theirs = histogram(oz(values, 50)), histogram(plain(values, 50))
    np.testing.assert_allclose(np.asarray(ours[0].compute()), theirs[0].compute())


def test_cov_and_corrcoef():
    for function in (da.cov, da.corrcoef):
        compare(function, SQUARE, (12, 12), rtol=1e-12)
        compare(function, SQUARE, (4, 6), rtol=1e-12)


def test_average_and_ptp():
    weights = np.arange(1.0, 13.0)
    compare(lambda x: da.average(x, axis=0, weights=weights), SQUARE, 5, rtol=1e-14)
    compare(lambda x: da.ptp(x, axis=1), SQUARE, 5)
    compare(lambda x: da.round(x, 2), SQUARE, 5)


@pytest.mark.parametrize("shift", [1, -3, 20])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_moving(shift, axis):
    compare(lambda x: da.roll(x, shift, axis), SQUARE, 5)


def test_turning():
    compare(lambda x: (da.flip(x, 0), da.fliplr(x), da.rot90(x)), SQUARE, 5)
    compare(lambda x: da.moveaxis(x, 0, 2), CUBE)
    compare(lambda x: da.rollaxis(x, 2), CUBE)
    compare(lambda x: da.expand_dims(x, (0, 3)), CUBE)
    compare(lambda x: da.atleast_3d(x), SQUARE, 5)
    compare(
        lambda x: (da.vstack([x, x]), da.hstack([x, x]), da.dstack([x, x])), SQUARE, 5
    )


def test_changing_rows():
    compare(lambda x: da.delete(x, [1, 5], axis=0), SQUARE, 5)
    compare(lambda x: da.insert(x, 3, -1.0, axis=1), SQUARE, 5, types=BROADCAST)
    compare(lambda x: da.append(x, x, axis=0), SQUARE, 5)


def test_gradient_and_piecewise():
    compare(lambda x: da.gradient(x), SQUARE, 5, types=UNKNOWN_META)
    compare(lambda x: da.piecewise(x, [x < 0], [-1.0, 1.0]), SQUARE, 5)
    compare(lambda x: da.select([x < 0, x > 1], [x, 2 * x], 0.0), SQUARE, 5)


def test_searchsorted():
    values = np.sort(SQUARE.ravel())
    assert_alike(
        da.searchsorted(oz(values, 50), oz(SQUARE, 5)),
        da.searchsorted(plain(values, 50), plain(SQUARE, 5)),
    )


def test_apply_along_axis():
    compare(
        lambda x: da.apply_along_axis(np.cumsum, 0, x), SQUARE, 5, types=UNKNOWN_META
    )
    compare(
        lambda x: da.apply_over_axes(
            lambda y, axis: y.sum(axis, keepdims=True), x, [0]
        ),
        SQUARE,
        5,
        types=UNKNOWN_META,
    )


def test_closeness():
    assert bool(da.allclose(oz(SQUARE, 5), plain(SQUARE, 5)).compute())
    compare(lambda x: da.isclose(x, SQUARE), SQUARE, 5)
