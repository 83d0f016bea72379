"""Sums and other reductions, whole, along axes, in trees."""

import warnings

import numpy as np
import pytest
from chunked import CUBE, SQUARE, TYPES, UNKNOWN_META, compare, da, dask, oz

from np_ozaki import OzArray

HOLES = np.where(CUBE > 1, np.nan, CUBE)
REDUCTIONS = ["sum", "prod", "mean", "std", "var", "min", "max", "any", "all"]
WITH_NAN = [
    "nansum",
    "nanprod",
    "nanmean",
    "nanstd",
    "nanvar",
    "nanmin",
    "nanmax",
]
AXES = [None, 0, 1, -1, (0, 2)]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axis, keepdims):
    compare(lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), CUBE)


@pytest.mark.parametrize("name", ["sum", "mean", "var", "max", "nanmean", "ptp"])
def test_functions_of_numpy(name):
    compare(lambda x: getattr(np, name)(x, axis=0), CUBE)
    compare(lambda x: getattr(np, name)(x), CUBE)


@pytest.mark.parametrize("name", WITH_NAN)
@pytest.mark.parametrize("axis", AXES)
def test_reductions_without_nan(name, axis):
    compare(lambda x: getattr(da, name)(x, axis=axis), HOLES)


@pytest.mark.parametrize("split_every", [2, {0: 2, 1: 4}])
def test_trees(split_every):
    compare(lambda x: x.sum(axis=(0, 1), split_every=split_every), CUBE, 1)
    compare(lambda x: x.mean(axis=(0, 1), split_every=split_every), CUBE, 1)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_moments(order, axis):
    compare(lambda x: x.moment(order, axis=axis), SQUARE, 5)


@pytest.mark.parametrize("options", [{"dtype": "f4"}, {"ddof": 1}])
def test_options(options):
    compare(lambda x: x.var(axis=0, **options), SQUARE, 5)


@pytest.mark.parametrize("name", ["argmin", "argmax", "nanargmin", "nanargmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("split_every", [2, 4])
def test_positions(name, axis, split_every):
    values = CUBE.copy()
    if "nan" in name:
        values[1, 2, 3] = np.nan
    with dask.config.set(split_every=split_every):
        compare(lambda x: getattr(da, name)(x, axis=axis), values, types=UNKNOWN_META)


def test_positions_errors():
    x = oz(CUBE)
    with pytest.raises(ValueError, match="out of bounds"):
        da.argmin(x, 3)
    with pytest.raises(TypeError):
        da.argmin(x, (0, 1))
    nothing = oz(np.full((4, 4), np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # All-NaN slice encountered
        with pytest.raises(ValueError, match=r"All NaN|All-NaN"):
            da.nanargmin(nothing, axis=0).compute()


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("method", ["sequential", "blelloch"])
def test_cumulative(name, axis, method):
    values = np.where(SQUARE > 1, np.nan, SQUARE) if "nan" in name else SQUARE
    types = TYPES if method == "sequential" else UNKNOWN_META
    compare(
        lambda x: getattr(da, name)(x, axis=axis, method=method),
        values,
        5,
        rtol=1e-13,
        types=types,
    )


def test_a_cumulative_operation_of_ones_own():
    compare(
        lambda x: da.reductions.cumreduction(
            np.maximum.accumulate, np.maximum, -np.inf, x, axis=0
        ),
        SQUARE,
        5,
    )


def test_a_reduction_of_ones_own():
    def chunk(x, axis, keepdims):
        assert type(x) in (np.ndarray, OzArray)
        return np.sum(x * x, axis=axis, keepdims=keepdims)

    def aggregate(x, axis, keepdims):
        return np.sqrt(np.sum(x, axis=axis, keepdims=keepdims))

    compare(lambda x: da.reduction(x, chunk, aggregate, axis=1, dtype=float), SQUARE, 5)


def test_counts():
    compare(lambda x: da.count_nonzero(x > 0, axis=0), SQUARE, 5)


def numel(x, **options):
    return da.reductions.numel(x, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keepdims": True},
        {"axis": 0},
        {"axis": (0, 1)},
        {"axis": 1, "keepdims": True, "dtype": "i8"},
    ],
)
def test_number_of_entries(options):
    ours, theirs = numel(OzArray(CUBE), **options), numel(CUBE, **options)
    assert type(ours) is (OzArray if isinstance(theirs, np.ndarray) else type(theirs))
    np.testing.assert_array_equal(np.asarray(ours), theirs)
    count = da.reductions.nannumel(OzArray(HOLES), **options)
    np.testing.assert_array_equal(
        np.asarray(count), da.reductions.nannumel(HOLES, **options)
    )
