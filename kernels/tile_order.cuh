// Which tiles of which planes a product is made of, and in which order.
#pragma once
#include "arithmetic.cuh"

const int TILE_ROWS = 128;
const int TILE_COLUMNS = 256;
const int GROUP_ROWS = 64;  // of a tile's two groups
const int BAND = 8;  // pairs of blocks one below the other that are taken together

// What is to be done, the same for every block.
struct Work {
  uint8* tiles;  // residue tiles: see reconstruct_tiles.cu
  int* lower;    // int32 products of the planes from `num_planes` on
  int64 lower_batch_stride, lower_row_stride;
  int num_planes, all_planes;  // a plane of all_planes - num_planes stays int32
  int products;                // planes of a modulus, by turns
  int batch, batch_a, batch_b;
  int rows, columns;
  int steps;      // along k
  int groups;     // clusters that share the work
  int symmetric;  // pairs of tiles below the diagonal are left out
  int first_modulus;  // in the tables of all
  int block_groups;   // groups of rows that a block takes: 2, a tile, or 3
  int unused;
};

// Pairs of blocks, one below the other, that have all their groups of rows; of symmetric
// results all pairs count as such.
HD uint32 pairs_down(const Work& work) {
  uint32 rows = 2 * GROUP_ROWS * work.block_groups;
  return (work.rows + (work.symmetric ? rows - 1 : 0)) / rows;
}

HD uint32 tiles_across(const Work& work) {
  return (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
}

// Items of a plane that take a whole pair of blocks.
HD uint32 whole_items(const Work& work) {
  uint32 pairs = pairs_down(work);
  uint32 of_matrix = work.symmetric ? pairs * (pairs + 1) / 2
                                    : pairs * tiles_across(work);
  return work.batch * of_matrix;
}

// And those that have less to do: of the rows that are left.
HD uint32 short_items(const Work& work) {
  uint32 pairs = pairs_down(work), rows = 2 * GROUP_ROWS * work.block_groups;
  return work.rows > (int)(pairs * rows) ? work.batch * tiles_across(work) : 0;
}

// How many items a cluster has.
HD uint32 item_count(const Work& work, uint32 cluster) {
  uint32 count = 0;
  for (uint32 kind = 0; kind < 2; ++kind) {
    uint64 items = kind ? short_items(work) : whole_items(work);
    items *= work.all_planes;
    if (cluster < items) count += (uint32)((items - cluster - 1) / work.groups + 1);
  }
  return count;
}

// Where a work item is.  Clusters take the pairs of blocks of one plane by turns, then
// those of the next one, so that they read the same plane at the same time and no plane
// is read again; pairs of a band of rows, column by column, come before those of the
// next.  Short items of a plane come last, by turns of their own: as every cluster gets
// its share of them, none runs away from the others.
struct Item {
  int batch, pair, column, plane;
  uint32 tile;  // the pair's first one

  HD Item(const Work& work, uint32 cluster)
      : plane(0),
        pairs(pairs_down(work)),
        columns(tiles_across(work)),
        at(cluster),
        all(whole_items(work)),
        other_at(cluster),
        other_all(short_items(work)),
        planes(all || other_all ? work.all_planes : 0),
        is_short(0) {
    enter(work);
  }

  HD bool exists() const { return plane < planes; }

  // The same cluster's next item.
  HD void advance(const Work& work) {
    at += work.groups;
    enter(work);
  }

  // Groups of rows that there are of the pair; its blocks share them evenly.
  HD int groups(const Work& work) const {
    int above = pair * 2 * work.block_groups;
    int left = (work.rows + GROUP_ROWS - 1) / GROUP_ROWS - above;
    return left < 2 * work.block_groups ? left : 2 * work.block_groups;
  }

 private:
  uint32 pairs, columns;
  uint32 at, all;  // which item of its kind, and how many there are of a plane
  uint32 other_at, other_all;  // those of the other kind
  int planes, is_short;

  // To the plane and the kind that the next item is of.
  HD void enter(const Work& work) {
    while (exists() && at >= all) {
      uint32 later = at - all, of_kind = all;
      at = other_at;
      all = other_all;
      other_at = later;
      other_all = of_kind;
      plane += is_short;
      is_short = 1 - is_short;
    }
    if (exists()) locate(work);
  }

  HD void locate(const Work& work) {
    uint32 of_matrix = all / work.batch;
    batch = work.batch > 1 ? at / of_matrix : 0;
    uint32 inside = at - batch * of_matrix;
    if (work.symmetric) {
      take_triangle(inside);
      uint32 before = pair * pairs - pair * (pair - 1) / 2;
      tile = 2 * (batch * of_matrix + before + column - pair);
      return;
    }
    if (is_short) {
      pair = pairs;
      column = inside;
    } else {
      take_rectangle(inside);
    }
    uint32 tile_rows = (work.rows + TILE_ROWS - 1) / TILE_ROWS;
    tile = (batch * tile_rows + work.block_groups * pair) * columns + column;
  }

  HD void take_rectangle(uint32 at) {
    uint32 start = at / (BAND * columns) * BAND;
    uint32 height = pairs - start < BAND ? pairs - start : BAND;
    at -= start * columns;
    column = at / height;
    pair = start + at - column * height;
  }

  // On or above the diagonal of square pairs: a band starts with a triangle.
  HD void take_triangle(uint32 at) {
    for (uint32 start = 0;; start += BAND) {
      uint32 height = pairs - start < BAND ? pairs - start : BAND;
      uint32 corner = height * (height + 1) / 2;
      uint32 size = corner + height * (pairs - start - height);
      if (at >= size) {
        at -= size;
        continue;
      }
      column = start;
      if (at < corner) {
        for (uint32 of_column = 1; at >= of_column; ++of_column, ++column)
          at -= of_column;
        pair = start + at;
      } else {
        pair = start + (at - corner) % height;
        column = start + height + (at - corner) / height;
      }
      return;
    }
  }
};
