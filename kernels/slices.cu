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
    if (plain) {
#pragma unroll
      for (int i = 0; i < GROUP; ++i)
        value[i] = plain_sliced_integer<LONG_INTEGERS>(bits[i], exponent);
    } else {
#pragma unroll
      for (int i = 0; i < GROUP; ++i)
        value[i] = sliced_integer<LONG_INTEGERS>(bits[i], exponent);
    }
#pragma unroll
    for (int i = 0; i < GROUP; ++i)
      value[i] = with_offsets<SLICE_BITS, NUM_SLICES>(value[i]);
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

// Exponents and slices with one read: a whole line stays in shared memory, spread.
KERNEL void exponents_and_slices(Operand x, LineFacts facts, int64 bits, uint64 most,
                                 SlicePlanes planes) {
  __shared__ uint64 scratch[ALONG_THREADS];
  DYNAMIC_SHARED(uint64, whole);
  int64 index = blockIdx.x;
  int64 batch = index / planes.lines_padded, line = index % planes.lines_padded;
  bool real = line < x.lines;
  int exponent = 0;
  if (real) {
    uint64 largest = 0, special = 0;
    for (int64 h = threadIdx.x; h < x.k; h += ALONG_THREADS) {
      uint64 entry = x.at(batch, line, h);
      whole[spread(h)] = entry;
      look(entry, &largest, &special);
    }
    largest = over_block(largest, scratch, TakeLarger());
    special = over_block(special, scratch, TakeUnion());
    exponent = slice_exponent(largest, (int)bits, most);
    if (threadIdx.x == 0) {
      int64 fact = batch * x.lines + line;
      facts.largest[fact] = largest;
      facts.special[fact] = (int)special;
      facts.exponents[fact] = exponent;
    }
  }
  __syncthreads();
  line_planes(Slices(), whole, 0, real ? x.k : 0, planes.k_padded, exponent, 0, planes,
              batch, line);
}
