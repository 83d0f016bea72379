// Stage residues: scaled integers, and their balanced residues as planes of bytes.
#include "lines.cuh"

// Unrolled, constants are part of the code; with many moduli NVRTC takes too long.
const int UNROLLED = WIDE ? 1 : NUM_MODULI;

// The residue of a scaled integer (with its offset) modulo p of index l: its low byte.
DEVICE int residue(uint64 value, int byte_shift, int l) {
  // An int8 is a balanced residue modulo 256, the first modulus, by itself.
  uint32 low = (uint32)value, high = (uint32)(value >> 32);
#if WIDE
  int row = byte_shift * NUM_MODULI + l;
  int sum = dot4(low, wide_low[row], wide_start[row]);
  sum = dot4(high, wide_high[row], sum);
  return l ? balanced(sum, wide_modulus[l], wide_inverse[l], wide_quotients[l]) : sum;
#else
  const float p = (float)modulus(l);
  int sum = dot4(low, powers_low(l), bias(l) + offset(l));
  sum = dot4(high, powers_high(l), sum);
  return l ? balanced(sum, p, 1.0f / p, quotients(l)) : sum;
#endif
}

struct Residues {
  DEVICE void operator()(const uint64* bits, int exponent, int e, uint64* target,
                         int64 step) const {
    uint64 value[GROUP];
    int byte_shift[GROUP], bytes[GROUP];
    bool plain = true;
#pragma unroll
    for (int i = 0; i < GROUP; ++i) plain = plain && is_plain(bits[i], exponent);
    if (plain) {
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        value[i] = plain_integer<TRUNCATE>(bits[i], exponent);
        byte_shift[i] = 0;
      }
    } else {
#pragma unroll
      for (int i = 0; i < GROUP; ++i)
        value[i] = scaled_integer<WIDE, TRUNCATE>(bits[i], exponent, &byte_shift[i]);
    }
#pragma unroll UNROLLED
    for (int l = 0; l < NUM_MODULI; ++l) {
#pragma unroll
      for (int i = 0; i < GROUP; ++i) bytes[i] = residue(value[i], byte_shift[i], l);
      *target = pack_group(bytes);
      target += step;
    }
#if CUT_PLANE
#pragma unroll
    for (int i = 0; i < GROUP; ++i)
      bytes[i] = (int)scaled_floor(bits[i], FIRST_LOOK_BITS - 1 - e);
    *target = pack_group(bytes);
#endif
  }
};

KERNEL void residues_along(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Residues(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void residues_across(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Residues(), x, facts.exponents, facts.largest, planes, tile);
}

// Exponents and residues with one read: a whole line stays in shared memory, spread.
KERNEL void exponents_and_residues(Operand x, LineFacts facts, Exponents how,
                                   Planes planes) {
  __shared__ uint64 scratch[ALONG_THREADS];
  __shared__ int top;
  DYNAMIC_SHARED(uint64, whole);
  int64 index = blockIdx.x;
  int64 batch = index / planes.lines_padded, line = index % planes.lines_padded;
  bool real = line < x.lines;
  int exponent = 0;
  if (threadIdx.x == 0) top = 0;
  if (real) {
    uint64* kept = whole;
    for (int64 h = threadIdx.x; h < x.k; h += ALONG_THREADS)
      kept[spread(h)] = x.at(batch, line, h);
    __syncthreads();
    int64 fact = batch * x.lines + line;
    auto entry = [kept](int64 h) { return kept[spread(h)]; };
    exponent = line_facts(entry, x.k, how, facts, fact, scratch, &top);
  }
  __syncthreads();
  line_planes(Residues(), whole, 0, real ? x.k : 0, planes.k_padded, exponent, top,
              planes, batch, line);
}
