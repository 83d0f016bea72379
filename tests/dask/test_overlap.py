"""Chunks that share borders."""

import numpy as np
import pytest
from chunked import SQUARE, compare, computed, da, oz

from np_ozaki import OzArray

LINE = np.arange(10.0)


def blur(x):
    return (x + np.roll(x, 1, axis=0) + np.roll(x, -1, axis=1)) / 3


def test_overlap_and_trim():
    compare(lambda x: da.overlap.overlap_internal(x, {0: 2, 1: 1}), SQUARE, 4)
    compare(
        lambda x: da.overlap.trim_internal(x, axes={0: 1, 1: 1}, boundary="reflect"),
        SQUARE,
        4,
    )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "border",
    [da.overlap.periodic, da.overlap.reflect, da.overlap.nearest],
)
def test_borders(border, depth):
    compare(lambda x: border(x, axis=0, depth=depth), LINE, 5)
    compare(lambda x: border(x, axis=1, depth=depth), SQUARE, 4)


def test_constant_border():
    compare(lambda x: da.overlap.constant(x, axis=0, depth=2, value=10), SQUARE, 4)


def test_borders_of_each_axis():
    compare(
        lambda x: da.overlap.boundaries(x, {0: 2, 1: 1}, {0: 0, 1: "periodic"}),
        SQUARE,
        4,
    )


@pytest.mark.parametrize("boundary", ["reflect", "periodic", "nearest", "none", 0])
def test_map_overlap(boundary):
    compare(lambda x: x.map_overlap(blur, depth=1, boundary=boundary), SQUARE, 4)


def test_map_overlap_of_two_arrays():
    def function(x, y):
        assert type(x) is type(y)
        return x - np.roll(y, 1, axis=0)

    compare(
        lambda x: da.map_overlap(function, x, 2 * x, depth=1, boundary="reflect"),
        SQUARE,
        4,
    )


def test_products_inside_map_overlap():
    weights = np.random.default_rng(8).standard_normal((6, 6))
    x = oz(SQUARE, 4).map_overlap(
        lambda x: weights @ x, depth=1, boundary="reflect", dtype=float
    )
    product, calls = computed(x)
    assert type(product) is OzArray
    assert calls == 9


def test_sliding_windows():
    compare(
        lambda x: da.lib.stride_tricks.sliding_window_view(x, 3, axis=0).mean(axis=-1),
        SQUARE,
        4,
        rtol=1e-14,
    )


def test_push():
    pytest.importorskip("bottleneck")
    values = np.where(SQUARE > 0, SQUARE, np.nan)
    compare(lambda x: da.push(x, None, axis=0), values, 4)
