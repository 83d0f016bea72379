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
  int64 items;
};

// Where a work item is.  Clusters take one plane after the other of as many pairs of
// tiles as there are clusters, so that they read the same planes at the same time; pairs
// of a band of rows, column by column, come before those of the next.
struct Item {
  int batch, pair, column, plane;
  int64 tile;  // of the pair's first block

  HD Item(const Work& work, int64 index) {
    int pairs = (work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    int columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int of_matrix = work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns;
    int64 all = (int64)work.batch * of_matrix;
    int64 of_group = (int64)work.groups * work.all_planes;
    int64 first = index / of_group * work.groups;
    int width = (int)(all - first < work.groups ? all - first : work.groups);
    int rest = (int)(index % of_group);
    plane = rest / width;
    int64 at = first + rest % width;
    batch = (int)(at / of_matrix);
    int inside = (int)(at % of_matrix);
    if (work.symmetric) {
      take_triangle(inside, pairs);
      int before = pair * pairs - pair * (pair - 1) / 2;
      tile = 2 * ((int64)batch * of_matrix + before + column - pair);
    } else {
      take_rectangle(inside, pairs, columns);
      int tile_rows = (work.rows + TILE_ROWS - 1) / TILE_ROWS;
      tile = ((int64)batch * tile_rows + 2 * pair) * columns + column;
    }
  }

  HD void take_rectangle(int inside, int pairs, int columns) {
    int band = inside / (BAND * columns);
    int height = pairs - band * BAND < BAND ? pairs - band * BAND : BAND;
    inside -= band * BAND * columns;
    pair = band * BAND + inside % height;
    column = inside / height;
  }

  // On or above the diagonal of square pairs: a band starts with a triangle.
  HD void take_triangle(int inside, int pairs) {
    for (int start = 0;; start += BAND) {
      int height = pairs - start < BAND ? pairs - start : BAND;
      int corner = height * (height + 1) / 2;
      int size = corner + height * (pairs - start - height);
      if (inside >= size) {
        inside -= size;
        continue;
      }
      column = start;
      if (inside < corner) {
        for (int of_column = 1; inside >= of_column; ++of_column, ++column)
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
    return tile + (int64)rank * (work.symmetric ? 1 : columns);
  }
};
