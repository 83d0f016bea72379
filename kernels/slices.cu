// Stage slices: integers of b S bits, and their digits as slices of bytes.
//
// A line's slices follow each other along k, so that a run of pairs of one weight is
// one product: A has the first slice first, B the last one.
#include "lines.cuh"
#include "slices.cuh"

const bool LONG_INTEGERS = SLICE_BITS * NUM_SLICES > 64;

// Where slices go: the most significant one of a line begins `line_stride` bytes after
// that of the line before, `data` is that of the first line.
struct SlicePlanes {
  uint8* data;
  int64 plane_stride;  // bytes, from a slice to the next one, which counts less
  int64 line_stride;
  int64 lines_padded, k_padded;

  DEVICE uint64* group(int64 batch, int64 line, int64 h) const {
    return (uint64*)(data + (batch * lines_padded + line) * line_stride + h);
  }
};

struct Slices {
  DEVICE void operator()(const uint64* bits, int exponent, int, uint64* target,
                         int64 step) const {
    Long value[GROUP];
    bool plain = is_plain_slicing(exponent);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) plain = plain && is_finite(bits[i]);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      if (plain) value[i] = plain_sliced_integer<LONG_INTEGERS>(bits[i], exponent);
      else value[i] = sliced_integer<LONG_INTEGERS>(bits[i], exponent);
      value[i] = with_offsets<SLICE_BITS, NUM_SLICES>(value[i]);
    }
#pragma unroll
    for (int first = 0; first < NUM_SLICES; first += 4) {
      uint32 word[GROUP], byte[GROUP];
#pragma unroll
      for (int i = 0; i < GROUP; ++i) word[i] = four_digits<SLICE_BITS>(value[i], first);
      transpose_bytes(word, byte);
      transpose_bytes(word + 4, byte + 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + i < NUM_SLICES)
          target[(NUM_SLICES - 1 - first - i) * step] =
              (uint64)byte[4 + i] << 32 | byte[i];
      }
    }
  }
};

KERNEL void slices_along(Operand x, LineFacts facts, SlicePlanes planes) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Slices(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void slices_across(Operand x, LineFacts facts, SlicePlanes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Slices(), x, facts.exponents, facts.largest, planes, tile);
}
