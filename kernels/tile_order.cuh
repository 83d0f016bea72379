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
};

HD uint32 turns(uint32 items, uint32 groups) { return (items + groups - 1) / groups; }

// Whether fewer pairs than clusters are shared by all of them: where that saves a turn.
HD bool is_shared(const Work& work, uint32 width) {
  return turns(width * work.all_planes, work.groups) < (uint32)work.all_planes;
}

HD uint32 pairs_of(const Work& work) {
  uint32 pairs = (work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
  uint32 columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
  return work.batch * (work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns);
}

// How many items a cluster has.
HD uint32 item_count(const Work& work, uint32 cluster) {
  uint32 all = pairs_of(work), groups = work.groups, planes = work.all_planes;
  uint32 full = all / groups, width = all - full * groups;
  uint32 count = full * planes;
  if (width && !is_shared(work, width)) return count + (cluster < width ? planes : 0);
  uint32 items = width * planes;
  return count + (cluster < items ? turns(items - cluster, groups) : 0);
}

// Where a work item is.  Clusters take one plane after the other of as many pairs of
// tiles as there are clusters, so that they read the same planes at the same time; pairs
// of a band of rows, column by column, come before those of the next.
//
// A cluster's next item is told from its last one: only where another pair begins there
// are divisions, which take as long as a stage of products.
struct Item {
  int batch, pair, column, plane;
  uint32 tile;  // of the pair's first block

  HD Item(const Work& work, uint32 cluster)
      : pairs((work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS)),
        columns((work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS),
        of_matrix(work.symmetric ? pairs * (pairs + 1) / 2 : pairs * columns),
        all(pairs_of(work)),
        first(0),
        inside(cluster) {
    enter_group(work);
  }

  HD bool exists() const { return first < all; }

  // The same cluster's next item.
  HD void advance(const Work& work) {
    plane += planes_a_turn;
    inside += rest_a_turn;
    if (inside >= width) {
      inside -= width;
      ++plane;
    }
    if (plane >= work.all_planes) {
      first += width;
      if (exists()) enter_group(work);
    } else if (rest_a_turn) {
      locate(work);
    }
  }

  // From the pair's first block to its second.
  HD int64 tile_of(const Work& work, int rank) const {
    return (int64)tile + rank * (work.symmetric ? 1 : columns);
  }

 private:
  uint32 pairs, columns, of_matrix, all;
  uint32 first, width;  // pairs of the group
  uint32 inside;        // which of them
  uint32 planes_a_turn, rest_a_turn;

  HD void enter_group(const Work& work) {
    width = all - first < (uint32)work.groups ? all - first : work.groups;
    plane = 0;
    planes_a_turn = 1;
    rest_a_turn = 0;
    if (is_shared(work, width)) {
      planes_a_turn = work.groups / width;
      rest_a_turn = work.groups - planes_a_turn * width;
      plane = inside / width;
      inside -= plane * width;
    }
    if (inside < width && plane < work.all_planes) locate(work);
    else first = all;
  }

  HD void locate(const Work& work) {
    uint32 at = first + inside;
    batch = at / of_matrix;
    at -= batch * of_matrix;
    if (work.symmetric) {
      take_triangle(at);
      uint32 before = pair * pairs - pair * (pair - 1) / 2;
      tile = 2 * (batch * of_matrix + before + column - pair);
    } else {
      take_rectangle(at);
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
