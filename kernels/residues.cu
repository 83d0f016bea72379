// Stage residues: scaled integers, and their balanced residues as planes of bytes.
#include "lines.cuh"

const int FIRST_LOOK_BITS = 7;  // of the plane floor(|x| 2^(6 - e)) of a certificate

// MAGIC_BITS + residue of a scaled integer (with its offset) modulo p of index l.
DEVICE int residue(uint64 value, int byte_shift, int l) {
  const int p = modulus(l);
  uint32 low = (uint32)value, high = (uint32)(value >> 32);
#if WIDE
  int row = byte_shift * NUM_MODULI + l;
  int sum = dot4(low, wide_low[row], MAGIC_BITS + wide_offset[row]);
  sum = dot4(high, wide_high[row], sum);
#else
  int sum = dot4(low, powers_low(l), MAGIC_BITS + offset(l));
  sum = dot4(high, powers_high(l), sum);
#endif
  // An int8 is a balanced residue modulo 256 by itself.
  return p == 256 ? sum : balanced(sum, (float)p, 1.0f / (float)p);
}

struct Residues {
  DEVICE void operator()(const uint64* bits, int exponent, int e, Planes planes,
                         int64 batch, int64 line, int64 h) const {
    uint64 value[QUAD];
    int byte_shift[QUAD];
#pragma unroll
    for (int i = 0; i < QUAD; ++i)
      value[i] = scaled_integer<WIDE, TRUNCATE>(bits[i], exponent, &byte_shift[i]);
    uint32* target = planes.quad(0, batch, line, h);
    int64 step = planes.plane_stride / 4;
#pragma unroll
    for (int l = 0; l < NUM_MODULI; ++l)
      target[l * step] = pack(residue(value[0], byte_shift[0], l),
                              residue(value[1], byte_shift[1], l),
                              residue(value[2], byte_shift[2], l),
                              residue(value[3], byte_shift[3], l));
#if CUT_PLANE
    int cut[QUAD];
#pragma unroll
    for (int i = 0; i < QUAD; ++i)
      cut[i] = (int)scaled_floor(bits[i], FIRST_LOOK_BITS - 1 - e);
    target[NUM_MODULI * step] = pack(cut[0], cut[1], cut[2], cut[3]);
#endif
  }
};

KERNEL void residues_along(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 chunk[CHUNK];
  planes_along(Residues(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void residues_across(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Residues(), x, facts.exponents, facts.largest, planes, tile);
}

// Exponents and residues with one read: a whole line stays in shared memory.
KERNEL void exponents_and_residues(Operand x, LineFacts facts, Exponents how,
                                   Planes planes) {
  __shared__ uint64 scratch[ALONG_THREADS];
  DYNAMIC_SHARED(uint64, whole);
  int64 index = blockIdx.x;
  int64 batch = index / planes.lines_padded, line = index % planes.lines_padded;
  bool real = line < x.lines;
  int exponent = 0, e = 0;
  uint64* kept = whole;
  if (real) {
    for (int64 h = threadIdx.x; h < x.k; h += ALONG_THREADS)
      kept[h] = x.at(batch, line, h);
    __syncthreads();
    int64 fact = batch * x.lines + line;
    auto entry = [kept](int64 h) { return kept[h]; };
    exponent = line_facts(entry, x.k, how, facts, fact, scratch);
#if CUT_PLANE
    __syncthreads();
    if (threadIdx.x == 0) scratch[0] = facts.largest[fact];
    __syncthreads();
    e = scratch[0] ? top_exponent(scratch[0]) : 0;
#endif
  }
  auto entry = [kept](int64 h) { return kept[h]; };
  line_planes(Residues(), entry, real ? x.k : 0, 0, planes.k_padded, exponent, e,
              planes, batch, line);
}
