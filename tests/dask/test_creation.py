"""Arrays made like others, diagonals, padding."""

import numpy as np
import pytest
from chunked import (
    BROADCAST,
    CUBE,
    NOT_DISPATCHED,
    SQUARE,
    TYPES,
    assert_alike,
    compare,
    da,
    oz,
    plain,
)

from np_ozaki import OzArray

LINE = np.arange(11.0)
LIKE = OzArray(np.array(()))


@pytest.mark.parametrize("name", ["ones_like", "zeros_like", "empty_like"])
@pytest.mark.parametrize(
    "options",
    [{}, {"shape": (7, 3), "chunks": 2}, {"dtype": "f4"}, {"dtype": int, "chunks": 3}],
)
def test_like_of_dask(name, options):
    compare(lambda x: getattr(da, name)(x, **options) * 0, SQUARE, 5)


@pytest.mark.parametrize("name", ["ones_like", "zeros_like", "full_like"])
def test_like_of_numpy(name):
    more = (2.5,) if name == "full_like" else ()
    compare(lambda x: getattr(np, name)(x, *more), SQUARE, 5)


def test_meta_decides():
    ones = da.ones((4, 6), chunks=3, meta=LIKE)
    assert_alike(ones, da.ones((4, 6), chunks=3))
    assert type((ones @ ones.T).compute()) is OzArray


@pytest.mark.parametrize("module", [np, da])
@pytest.mark.parametrize("bounds", [(5,), (2, 9), (1, 12, 3), (0.5, 4.0, 0.25)])
def test_arange(module, bounds):
    made = module.arange(*bounds, like=da.from_array(LIKE))
    assert_alike(made, da.from_array(np.arange(*bounds)))


@pytest.mark.parametrize("module", [np, da])
@pytest.mark.parametrize(
    ("args", "chunks"),
    [
        ((3, None, 0, float), "auto"),
        ((3, 4, 0, bool), "auto"),
        ((3, None, -1, int), "auto"),
        ((6, 8, -2, int), (3, 4)),
        ((6, 8, 2, float), (3, "auto")),
    ],
)
def test_tri(module, args, chunks):
    options = {"chunks": chunks} if module is da else {}
    made = module.tri(*args, like=da.from_array(LIKE), **options)
    want = da.from_array(np.tri(*args), chunks=chunks if module is da else "auto")
    assert_alike(made, want)


def test_diag():
    compare(da.diag, LINE, 4)
    compare(lambda x: da.diag(x + x + 3, k=2), LINE, 4, types=BROADCAST)
    compare(da.diag, SQUARE, (4, 4))
    compare(lambda x: da.diag(x, k=-3), SQUARE, (4, 4))


@pytest.mark.parametrize("args", [(), (1,), (-1,), (0, 1, 2), (1, 2, 1), (0, 0, -1)])
def test_diagonal(args):
    compare(lambda x: da.diagonal(x, *args), CUBE)
    compare(lambda x: np.diagonal(x, *args), CUBE, (1, (1, 4), (2, 1, 3)))


@pytest.mark.parametrize("offset", [10, -10])
def test_diagonal_of_no_entries(offset):
    compare(lambda x: da.diagonal(x, offset), CUBE, types=NOT_DISPATCHED)


@pytest.mark.parametrize("axes", [(0, 0), (-4, 1), (0, 5)])
def test_diagonal_errors(axes):
    with pytest.raises(
        (ValueError, IndexError), match=r"same|axis|out of (bounds|range)"
    ):
        da.diagonal(oz(CUBE), 0, *axes)


@pytest.mark.parametrize(
    ("width", "mode", "options"),
    [
        (1, "constant", {}),
        (((2, 3), (0, 1)), "constant", {"constant_values": ((-1, -2), (2, 1))}),
        (3, "edge", {}),
        (((1, 4), (2, 3)), "linear_ramp", {"end_values": 0}),
        (((1, 4), (2, 3)), "reflect", {}),
        (((1, 4), (2, 3)), "symmetric", {}),
        (((1, 4), (2, 3)), "wrap", {}),
        (2, "maximum", {"stat_length": (1, 2)}),
        (2, "mean", {"stat_length": ((3, 4), (2, 1))}),
        (2, "minimum", {"stat_length": (2, 3)}),
    ],
)
def test_pad(width, mode, options):
    types = BROADCAST if mode == "constant" else TYPES
    compare(lambda x: da.pad(x, width, mode, **options), SQUARE, (4, 5), 1e-15, types)


def test_pad_empty():
    padded = da.pad(oz(LINE, 3), 1, "empty")
    assert type(padded.compute()) is OzArray
    assert_alike(padded[1:-1], plain(LINE, 3).rechunk(padded[1:-1].chunks))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stacks(axis):
    compare(lambda x: da.stack([x, 2 * x], axis=axis), SQUARE, 5)
    compare(lambda x: da.concatenate([x, 2 * x[:, ::-1]], axis=axis), SQUARE, 5)


def test_stacks_of_mixed_chunks():
    mixed = da.concatenate([plain(SQUARE, 5), oz(SQUARE, 5)])
    assert type(mixed._meta) is OzArray
    assert type(mixed.compute()) is OzArray
    assert type(da.block([[plain(SQUARE, 5)], [oz(SQUARE, 5)]]).compute()) is OzArray


def test_meshgrid_indices_tile_eye():
    compare(lambda x: da.meshgrid(x, x[:4]), LINE, 4)
    compare(lambda x: da.tile(x, (2, 3)), LINE, 4)
    compare(lambda x: da.repeat(x, 3), LINE, 4)
    compare(lambda x: x @ da.eye(12, chunks=4), SQUARE, 4, rtol=1e-15)


def test_fromfunction_of_wrapped_blocks():
    grid = da.fromfunction(lambda i, j: i - j, shape=(6, 4), chunks=3, dtype=float)
    assert type(grid.map_blocks(OzArray).compute()) is OzArray
