"""Percentiles and quantiles."""

import numpy as np
import pytest
from chunked import SQUARE, UNKNOWN_META, assert_alike, compare, da, oz, plain

from np_ozaki import OzArray

LINE = np.array([0, 0, 5, 5, 5, 5, 20, 20])
METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [np.ones(16), LINE, LINE * 1.5, SQUARE.ravel()])
def test_percentile(method, values):
    compare(lambda x: da.percentile(x, [0, 10, 50, 100], method=method), values, 3)


@pytest.mark.parametrize("q", [5, 5.0, np.int64(5), np.float64(5)])
def test_one_percentile(q):
    result = da.percentile(oz(np.ones(16), 4), q, method="midpoint")
    assert result.shape == ()
    assert result.compute() == 1


def test_percentages_that_are_arrays():
    x = oz(SQUARE.ravel(), 50)
    want = da.percentile(plain(SQUARE.ravel(), 50), [25, 75])
    for q in (np.array([25, 75]), OzArray(np.array([25, 75]))):
        assert_alike(da.percentile(x, q), want)


def test_names_are_of_the_question():
    x = oz(np.ones(16), 4)
    assert da.percentile(x, [0, 50]).name == da.percentile(x, [0, 50]).name
    assert da.percentile(x, [0, 50]).name != da.percentile(x, [0, 51]).name


@pytest.mark.parametrize("q", [[10, 50, 90], []])
def test_empty_chunks_and_questions(q):
    compare(lambda x: da.percentile(x, q, method="midpoint"), np.ones(10), ((5, 0, 5),))


def test_unknown_chunks():
    x = oz(SQUARE.ravel(), 20)
    low, middle = da.percentile(x[x > 0], [10, 60], method="midpoint").compute()
    assert 0 < low < middle


@pytest.mark.parametrize("function", [da.quantile, da.nanquantile])
@pytest.mark.parametrize("axis", [0, 1])
def test_quantile(function, axis):
    values = np.where(SQUARE > 1, np.nan, SQUARE)
    compare(lambda x: function(x, [0.1, 0.5], axis=axis), values, 5, types=UNKNOWN_META)


@pytest.mark.parametrize("function", [da.median, da.nanmedian])
def test_median(function):
    compare(lambda x: function(x, axis=1), SQUARE, 5, types=UNKNOWN_META)
