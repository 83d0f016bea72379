// The plane of a certificate of complex lines: the bytes of all real parts, then those of
// imaginary ones, as the real part of a product has them; lines of A are there once more,
// `plane_stride` further and the other way round, for its imaginary part.
#pragma once
#include "lines.cuh"

struct CutPlane {
  uint8* data;
  int64 plane_stride;            // bytes; 0 for B
  int64 lines_padded, k_padded;  // of one part
  int64 rows;                    // of a matrix: lines_padded or twice as many

  DEVICE uint64* group(int64 batch, int64 line, int64 h) const {
    return (uint64*)(data + (batch * rows + line) * 2 * k_padded + h);
  }
};

// The first look's floors of groups of complex entries, to their places in a CutPlane.
struct Cuts {
  int64 k_padded;

  DEVICE void operator()(const uint64* bits, int, int e, uint64* target,
                         int64 step) const {
    uint64 part[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int bytes[GROUP];
#pragma unroll
      for (int j = 0; j < GROUP; ++j)
        bytes[j] = (int)scaled_floor(bits[2 * j + i], FIRST_LOOK_BITS - 1 - e);
      part[i] = pack_group(bytes);
    }
    int64 half = k_padded / 8;
    target[0] = part[0];
    target[half] = part[1];
    if (!step) return;
    target[step] = part[1];
    target[step + half] = part[0];
  }
};
