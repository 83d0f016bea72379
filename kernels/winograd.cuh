// Residues of what Winograd's variant of Strassen's algorithm multiplies: sums of the
// quadrants of a scaled operand, formed as integers before they are reduced.
#pragma once
#include "shared_lines.cuh"

#if WIDE
#error "sums of scaled integers must fit 64 bits"
#endif

const int PRODUCTS = 7;

// One operand and its planes, (moduli, 7, lines, k) of a quadrant; and the plane of a
// certificate, of the whole operand.
struct Quadrants {
  Operand x;
  LineFacts facts;
  Planes planes;
  int64 product_stride;  // bytes between the planes of two products
  Planes cuts;
  int64 copy;     // how lines are read
  int64 is_left;  // A, or B
};

DEVICE_TABLE Tables SUM_TABLES(true);

// Factor i of the seven from the integers of the quadrants: 00, 01, 10, 11, each with
// its offset.  Results have the offset 2^63, eight times theirs.  Integers that are held
// without an offset give results without.  The order is one in which few numbers are
// needed at a time; `place_of_factor` says which product it is for.
template <class Integer>
DEVICE Integer factor(const Integer* x, bool is_left, int i) {
  const Integer ADDED = Held<sizeof(Integer) == 4>::ADDED;
  Integer first = is_left ? x[2] + x[3] + 6 * ADDED : x[2] - x[0] + 8 * ADDED;
  Integer second = (is_left ? x[2] - x[0] : x[0] - x[2]) + x[3] + 7 * ADDED;
  if (i == 0) return x[0] + 7 * ADDED;
  if (i == 1) return x[1] + 7 * ADDED;
  if (i == 2) return x[3] + 7 * ADDED;
  if (i == 3) return (is_left ? x[0] : x[3]) - x[2] + 8 * ADDED;
  if (i == 4) return first;
  if (i == 5) return second;
  return is_left ? x[1] - second + 15 * ADDED : second - x[1] + ADDED;
}

DEVICE int place_of_factor(bool is_left, int i) {
  if (i == 2) return is_left ? 3 : 2;
  if (i == 3) return 6;
  return i < 6 ? i : is_left ? 2 : 3;
}

// A line of each quadrant in shared memory: the other line, and the other half of k, are
// so many entries further.
struct Corner {
  const Word* entries;
  int by_line, by_k;
};

// Entries `start` to `start` + `stop` of a line of each quadrant.
template <bool plain>
DEVICE void sums_to_planes(Corner corner, int stop, const Quadrants& side, int64 line,
                           int64 start, const Scaling* scaling, int lane) {
  const LaneTables tables(SUM_TABLES, lane);
  const Planes& planes = side.planes;
  int first = swizzled(first_entry(lane)), g = lane >> 2, t = lane & 3;
  uint8* target =
      (uint8*)planes.group(0, line, start) + g * planes.plane_stride + 16 * t;
  int64 other = 8 * planes.plane_stride;
  bool is_left = side.is_left;
#pragma unroll 1
  for (int h = 0; h < stop; h += STEP) {
    typename Held<plain && IS_SHORT>::Integer x[2][4];
#if CUT_PLANE
    uint32 cut[4][2];
#endif
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        Word bits = corner.entries[(q >> 1) * corner.by_line + (q & 1) * corner.by_k +
                                     h + (i ? first ^ 8 : first)];
        x[i][q] = integer_of<plain>(bits, scaling[q >> 1]);
#if CUT_PLANE
        cut[q][i] = cut_of<plain>(bits, scaling[q >> 1]);
#endif
      }
    }
#if CUT_PLANE
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32 cuts = gathered_cuts(cut[q][0], cut[q][1], lane);
      int entry = h + cut_entry(lane);
      int64 row = line + (q >> 1) * planes.lines_padded;
      int64 column = (q & 1) * planes.k_padded + start + entry;
      if (!(lane & 1) && entry < stop && row < side.cuts.lines_padded &&
          column < side.cuts.k_padded)
        *(uint32*)(side.cuts.data + row * side.cuts.k_padded + column) = cuts;
    }
#endif
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
      uint64 value[2] = {offset_to(8 * OFFSET, factor(x[0], is_left, product)),
                         offset_to(8 * OFFSET, factor(x[1], is_left, product))};
      uint32 bytes[2][4];
      tables.residues(value, bytes);
      if (h + 16 * t >= stop) continue;
      uint8* place =
          target + place_of_factor(is_left, product) * side.product_stride + h;
      store_16_bytes(HALVES == 2 || g < NUM_MODULI, place, bytes[0]);
      if (HALVES == 2) store_16_bytes(g + 8 < NUM_MODULI, place + other, bytes[1]);
    }
  }
}

DEVICE void sums_to_planes(Corner corner, int stop, const Quadrants& side, int64 line,
                           int64 start, const Scaling* scaling, int lane) {
  if (scaling[0].plain && scaling[1].plain)
    sums_to_planes<true>(corner, stop, side, line, start, scaling, lane);
  else
    sums_to_planes<false>(corner, stop, side, line, start, scaling, lane);
}
