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
  int products;                // planes of a modulus
  int batch, batch_a, batch_b;
  int rows, columns;
  int steps;      // along k
  int groups;     // clusters that share the work
  int symmetric;  // pairs of tiles below the diagonal are left out
  int unused;
  int64 items;    // below 2^31
};

// Where a work item is.  Clusters take one plane after the other of as many pairs of
// tiles as there are clusters, so that they read the same planes at the same time; pairs
// of a band of rows, column by column, come before those of the next.
struct Item {
  int batch, pair, column, plane;
  uint32 tile;  // of the pair's first block

  HD Item(const Work& work, uint32 index) {
    uint32 pairs = (work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    uint32 columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    uint32 of_matrix = work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns;
    uint32 all = work.batch * of_matrix, groups = work.groups;
    uint32 group = index / (groups * work.all_planes), first = group * groups;
    uint32 rest = index - first * work.all_planes;
    uint32 width = all - first < groups ? all - first : groups;
    plane = rest / width;
    uint32 at = first + rest - plane * width;
    batch = at / of_matrix;
    uint32 inside = at - batch * of_matrix;
    if (work.symmetric) {
      take_triangle(inside, pairs);
      uint32 before = pair * pairs - pair * (pair - 1) / 2;
      tile = 2 * ((uint32)batch * of_matrix + before + column - pair);
    } else {
      take_rectangle(inside, pairs, columns);
      uint32 tile_rows = (work.rows + TILE_ROWS - 1) / TILE_ROWS;
      tile = (batch * tile_rows + 2 * pair) * columns + column;
    }
  }

  HD void take_rectangle(uint32 inside, uint32 pairs, uint32 columns) {
    uint32 start = inside / (BAND * columns) * BAND;
    uint32 height = pairs - start < BAND ? pairs - start : BAND;
    inside -= start * columns;
    column = inside / height;
    pair = start + inside - column * height;
  }

  // On or above the diagonal of square pairs: a band starts with a triangle.
  HD void take_triangle(uint32 inside, uint32 pairs) {
    for (uint32 start = 0;; start += BAND) {
      uint32 height = pairs - start < BAND ? pairs - start : BAND;
      uint32 corner = height * (height + 1) / 2;
      uint32 size = corner + height * (pairs - start - height);
      if (inside >= size) {
        inside -= size;
        continue;
      }
      column = start;
      if (inside < corner) {
        for (uint32 of_column = 1; inside >= of_column; ++of_column, ++column)
          inside -= of_column;
        pair = start + inside;
      } else {
        pair = start + (inside - corner) % height;
        column = start + height + (inside - corner) / height;
      }
      return;
    }
  }

  // From the pair's first block to its second.
  HD int64 tile_of(const Work& work, int rank) const {
    int columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    return (int64)tile + rank * (work.symmetric ? 1 : columns);
  }
};
