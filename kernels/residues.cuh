// Scaled integers and their balanced residues, eight entries a thread.
#pragma once
#include "lines.cuh"

// Unrolled, constants are part of the code; with many moduli NVRTC takes too long.
const int UNROLLED = WIDE ? 1 : NUM_MODULI;

// What the bytes of a scaled integer (with its offset) sum up to modulo p of index l.
DEVICE int residue_sum(uint64 value, int byte_shift, int l) {
  uint32 low = (uint32)value, high = (uint32)(value >> 32);
#if WIDE
  int row = byte_shift * NUM_MODULI + l;
  int sum = dot4(low, wide_low[row], wide_start[row]);
  return dot4(high, wide_high[row], sum);
#else
  int sum = dot4(low, powers_low(l), bias(l) + offset(l));
  return dot4(high, powers_high(l), sum);
#endif
}

#if PARTS == 2
// The same of s times an integer, s s = -1, and without what sums start at.
DEVICE int rotated_sum(uint64 value, int byte_shift, int l) {
  uint32 low = (uint32)value, high = (uint32)(value >> 32);
#if WIDE
  int row = byte_shift * NUM_MODULI + l;
  int sum = dot4(low, wide_rotated_low[row], wide_rotated_start[row]);
  return dot4(high, wide_rotated_high[row], sum);
#else
  int sum = dot4(low, rotated_low(l), rotated_offset(l));
  return dot4(high, rotated_high(l), sum);
#endif
}
#endif

// The residue modulo p of index l that a sum stands for: its low byte.
DEVICE int residue_of(int sum, int l) {
  // An int8 is a balanced residue modulo 256, the first real modulus, by itself.
  if (FIRST_IS_256 && l == 0) return sum;
#if WIDE
  return balanced(sum, wide_modulus[l], wide_inverse[l], wide_quotients[l]);
#else
  const float p = (float)modulus(l);
  return balanced(sum, p, 1.0f / p, quotients(l));
#endif
}

// Groups of entries, their words one after the other, to planes `step` apart: for every
// modulus one, or for complex entries those of x + s y and x - s y.
struct Residues {
  DEVICE void operator()(const uint64* bits, int exponent, int e, uint64* target,
                         int64 step) const {
    uint64 value[GROUP_WORDS];
    int byte_shift[GROUP_WORDS], bytes[GROUP];
    bool plain = true;
#pragma unroll
    for (int i = 0; i < GROUP_WORDS; ++i) plain = plain && is_plain(bits[i], exponent);
    if (plain) {
#pragma unroll
      for (int i = 0; i < GROUP_WORDS; ++i) {
        value[i] = plain_integer<TRUNCATE>(bits[i], exponent);
        byte_shift[i] = 0;
      }
    } else {
#pragma unroll
      for (int i = 0; i < GROUP_WORDS; ++i)
        value[i] = scaled_integer<WIDE, TRUNCATE>(bits[i], exponent, &byte_shift[i]);
    }
#pragma unroll UNROLLED
    for (int l = 0; l < NUM_MODULI; ++l) {
#if PARTS == 2
      int others[GROUP];
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        int x = residue_sum(value[2 * i], byte_shift[2 * i], l);
        int sy = rotated_sum(value[2 * i + 1], byte_shift[2 * i + 1], l);
        bytes[i] = residue_of(x + sy, l);
        others[i] = residue_of(x - sy, l);
      }
      target[step] = pack_group(others);
#else
#pragma unroll
      for (int i = 0; i < GROUP; ++i)
        bytes[i] = residue_of(residue_sum(value[i], byte_shift[i], l), l);
#endif
      *target = pack_group(bytes);
      target += PARTS * step;
    }
#if CUT_PLANE && PARTS == 1
#pragma unroll
    for (int i = 0; i < GROUP; ++i)
      bytes[i] = (int)scaled_floor(bits[i], FIRST_LOOK_BITS - 1 - e);
    *target = pack_group(bytes);
#endif
  }
};
