"""Functions with a signature."""

import numpy as np
import pytest
from chunked import CUBE, SQUARE, assert_alike, compare, computed, da, oz, plain

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.testing import assert_same_bits


def test_one_axis():
    compare(
        lambda x: da.apply_gufunc(
            np.diff, "(i)->(i)", x, axis=1, output_sizes={"i": 4}, allow_rechunk=True
        ),
        CUBE,
    )


def test_two_results():
    def moments(x):
        return np.mean(x, axis=-1), np.std(x, axis=-1)

    compare(lambda x: da.apply_gufunc(moments, "(i)->(),()", x), CUBE, (2, 2, 6))


def test_products_of_stacks():
    a, b = CUBE, np.ascontiguousarray(CUBE.transpose(0, 2, 1))
    ours = da.apply_gufunc(
        np.matmul, "(i,j),(j,k)->(i,k)", oz(a, (2, 5, 6)), oz(b, (2, 6, 5))
    )
    product, calls = computed(ours)
    assert type(product) is OzArray
    assert calls == 2
    assert_same_bits(np.asarray(product), np_ozaki.matmul(a, b))


def test_vectorized_function_runs_on_plain_rows():
    def total(x):
        return x.sum()

    ours = da.apply_gufunc(
        total, "(i)->()", oz(SQUARE, (4, 12)), vectorize=True, output_dtypes=float
    )
    np.testing.assert_allclose(np.asarray(ours.compute()), SQUARE.sum(axis=1))


def test_as_gufunc():
    @da.as_gufunc(signature="(i),(i)->()", output_dtypes=float)
    def inner(x, y):
        return np.sum(x * y, axis=-1)

    assert_alike(
        inner(oz(SQUARE, (4, 12)), oz(SQUARE, (4, 12))),
        inner(plain(SQUARE, (4, 12)), plain(SQUARE, (4, 12))),
    )


def test_ufuncs_with_a_signature():
    compare(lambda x: np.vecdot(x, x), SQUARE, (4, 12), rtol=1e-13)


def test_split_core_axis_is_refused():
    with pytest.raises(ValueError, match="multiple chunks"):
        da.apply_gufunc(np.diff, "(i)->(i)", oz(SQUARE, 4))
