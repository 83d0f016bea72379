"""Every tile of every plane is multiplied once, and has its place among the tiles."""

import ctypes
import itertools

import numpy as np
import pytest
import simt
from np_ozaki._kernels.render import text_of

pytestmark = pytest.mark.skipif(
    simt.COMPILER is None, reason="no C++ compiler (c++ or g++) on the path"
)

GROUP, ROWS, COLUMNS = 64, 128, 256

TEXT = """
extern "C" int64 items(int batch, int rows, int columns, int planes, int groups,
                       int symmetric, int block_groups, int64 count, int64* out,
                       int64* ends) {
  Work work = {};
  int64 taken = 0;
  work.batch = batch;
  work.rows = rows;
  work.columns = columns;
  work.all_planes = planes;
  work.groups = groups;
  work.symmetric = symmetric;
  work.block_groups = block_groups;
  for (int cluster = 0; cluster < groups; ++cluster) {
    uint32 found = 0;
    for (Item item(work, cluster); item.exists(); item.advance(work)) {
      if (taken++ >= count || found++ >= item_count(work, cluster)) return 1;
      int64 fields[] = {item.batch, item.pair, item.column,
                        item.plane, item.tile, item.groups(work)};
      for (int j = 0; j < 6; ++j) *out++ = fields[j];
    }
    if (found != item_count(work, cluster)) return 2;
    ends[cluster] = taken;
  }
  if (taken != count) return 3;
  return 0;
}
"""


@pytest.fixture(scope="module")
def library():
    return simt.build("tile_order", text_of("arithmetic.cuh", "tile_order.cuh") + TEXT)


def items(
    library, batch, rows, columns, planes, groups, *, symmetric=False, block_groups=2
):
    """Return of every cluster's items: batch, pair, column, plane, tile and groups."""
    pairs, wide = -(-rows // (2 * GROUP * block_groups)), -(-columns // COLUMNS)
    of_matrix = pairs * (pairs + 1) // 2 if symmetric else pairs * wide
    count = batch * of_matrix * planes
    out = np.full((count, 6), -1, np.int64)
    sizes = (batch, rows, columns, planes, groups, int(symmetric), block_groups)
    ends = np.zeros(groups, np.int64)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (out, ends)]
    assert library.items(*sizes, ctypes.c_int64(count), *pointers) == 0
    return np.split(out, ends[:-1])


def groups_of(rows, pair, block_groups):
    whole = 2 * block_groups
    return np.minimum(-(-rows // GROUP) - whole * pair, whole)


@pytest.mark.parametrize("block_groups", [2, 3])
@pytest.mark.parametrize("rows", [1, 128, 129, 256, 2049, 5000])
@pytest.mark.parametrize("columns", [1, 256, 257, 3000])
@pytest.mark.parametrize(
    ("batch", "planes", "groups"), [(1, 3, 66), (5, 2, 4), (2, 7, 1)]
)
def test_rectangles(library, batch, rows, columns, planes, groups, block_groups):
    shape = (batch, rows, columns, planes, groups)
    found = np.concatenate(items(library, *shape, block_groups=block_groups))
    pairs, wide = -(-rows // (2 * GROUP * block_groups)), -(-columns // COLUMNS)
    every = itertools.product(range(batch), range(pairs), range(wide), range(planes))
    assert sorted(map(tuple, found[:, :4].tolist())) == list(every)
    b, pair, column, _, tile, of_pair = found.T
    assert (tile == (b * -(-rows // ROWS) + block_groups * pair) * wide + column).all()
    assert (of_pair == groups_of(rows, pair, block_groups)).all()
    assert of_pair.sum() == batch * wide * planes * -(-rows // GROUP)


@pytest.mark.parametrize("size", [1, 256, 257, 2048, 2049, 5000])
@pytest.mark.parametrize(("batch", "planes", "groups"), [(1, 3, 66), (3, 2, 5)])
def test_triangles(library, batch, size, planes, groups):
    found = items(library, batch, size, size, planes, groups, symmetric=True)
    found = np.concatenate(found)
    pairs = -(-size // (2 * ROWS))
    upper = [(i, j) for i in range(pairs) for j in range(i, pairs)]
    every = [(b, *at, p) for b in range(batch) for at in upper for p in range(planes)]
    assert sorted(map(tuple, found[:, :4].tolist())) == every
    index = {at: number for number, at in enumerate(upper)}
    for b, pair, column, _, tile, of_pair in found.tolist():
        assert tile == 2 * (b * len(upper) + index[pair, column])
        assert of_pair == groups_of(size, pair, 2)


def in_turns(lists):
    """Return the items that clusters are at, one after the other of each."""
    return np.concatenate(
        [
            np.stack([x[turn] for x in lists if turn < len(x)])
            for turn in range(max(map(len, lists)))
        ]
    )


def test_clusters_share_a_plane(library):
    """Plane after plane, and at a time as few of them as can be."""
    in_order = in_turns(items(library, 1, 4096, 4096, 5, 66))
    assert (np.diff(in_order[:, 3]) >= 0).all()
    for first in range(0, len(in_order), 256):
        assert (
            len({tuple(x) for x in in_order[first : first + 256, 1:3].tolist()}) == 256
        )


@pytest.mark.parametrize(
    ("size", "planes", "block_groups"),
    [(8192, 98, 3), (4096, 98, 3), (4096, 14, 3), (4096 + 128, 98, 2), (2100, 14, 2)],
)
def test_no_cluster_runs_away(library, size, planes, block_groups):
    """With a third of the work in some items, all clusters end and go on together."""
    lists = items(library, 1, size, size, planes, 66, block_groups=block_groups)
    work = [np.cumsum(-(-x[:, 5] // 2)) for x in lists]
    ends = [x[-1] for x in work]
    assert max(ends) - min(ends) <= 2 * block_groups
    for plane in range(1, planes):
        begun = [
            before[:-1][of_cluster[1:, 3] == plane][:1]
            for of_cluster, before in zip(lists, work, strict=True)
        ]
        begun = np.concatenate(begun)
        assert begun.max() - begun.min() <= 3 * block_groups


@pytest.mark.parametrize(
    ("size", "planes", "groups"), [(4096, 14, 66), (1024, 14, 66), (2048, 14, 66)]
)
def test_no_cluster_has_more_to_do_than_must_be(library, size, planes, groups):
    lists = items(library, 1, size, size, planes, groups)
    pairs = (size // 256) ** 2
    assert max(map(len, lists)) == -(-pairs * planes // groups)
