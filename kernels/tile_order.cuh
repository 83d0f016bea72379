// Which tiles of which planes a product is made of, and in which order.
#pragma once
#include "arithmetic.cuh"

const int TILE_ROWS = 128;
const int TILE_COLUMNS = 256;
const int BAND = 8;  // pairs of tiles one below the other that are taken together

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
};

HD uint32 pairs_of(const Work& work) {
  uint32 pairs = (work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
  uint32 columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
  return work.batch * (work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns);
}

// How many items a cluster has.
HD uint32 item_count(const Work& work, uint32 cluster) {
  uint64 items = (uint64)pairs_of(work) * work.all_planes;
  return cluster < items ? (uint32)((items - cluster - 1) / work.groups + 1) : 0;
}

// Where a work item is.  Clusters take the pairs of tiles of one plane by turns, then
// those of the next one, so that they read the same plane at the same time and no plane
// is read again; pairs of a band of rows, column by column, come before those of the
// next.
struct Item {
  int batch, pair, column, plane;
  uint32 tile;  // of the pair's first block

  HD Item(const Work& work, uint32 cluster)
      : plane(0),
        pairs((work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS)),
        columns((work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS),
        of_matrix(work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns),
        all(pairs_of(work)),
        at(cluster),
        planes(all ? work.all_planes : 0) {
    enter(work);
  }

  HD bool exists() const { return plane < planes; }

  // The same cluster's next item.
  HD void advance(const Work& work) {
    at += work.groups;
    enter(work);
  }

  // From the pair's first block to its second.
  HD int64 tile_of(const Work& work, int rank) const {
    return (int64)tile + rank * (work.symmetric ? 1 : columns);
  }

 private:
  uint32 pairs, columns, of_matrix, all;
  uint32 at;  // which pair of all
  int planes;

  // To the plane that `at` is in.
  HD void enter(const Work& work) {
    for (; exists() && at >= all; at -= all) ++plane;
    if (exists()) locate(work);
  }

  HD void locate(const Work& work) {
    batch = work.batch > 1 ? at / of_matrix : 0;
    uint32 inside = at - batch * of_matrix;
    if (work.symmetric) {
      take_triangle(inside);
      uint32 before = pair * pairs - pair * (pair - 1) / 2;
      tile = 2 * (batch * of_matrix + before + column - pair);
    } else {
      take_rectangle(inside);
      uint32 tile_rows = (work.rows + TILE_ROWS - 1) / TILE_ROWS;
      tile = (batch * tile_rows + 2 * pair) * columns + column;
    }
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
