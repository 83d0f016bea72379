// Scaled integers and their balanced residues, eight entries a thread.
#pragma once
#include "lines.cuh"

// Unrolled, constants are part of the code; with many moduli NVRTC takes too long.
const int UNROLLED = WIDE ? 1 : NUM_MODULI;

// The residue of a scaled integer (with its offset) modulo p of index l: its low byte.
DEVICE int residue(uint64 value, int byte_shift, int l) {
  // An int8 is a balanced residue modulo 256, the first real modulus, by itself.
  const bool is_byte = FIRST_IS_256 && l == 0;
  uint32 low = (uint32)value, high = (uint32)(value >> 32);
#if WIDE
  int row = byte_shift * NUM_MODULI + l;
  int sum = dot4(low, wide_low[row], wide_start[row]);
  sum = dot4(high, wide_high[row], sum);
  return is_byte ? sum
                 : balanced(sum, wide_modulus[l], wide_inverse[l], wide_quotients[l]);
#else
  const float p = (float)modulus(l);
  int sum = dot4(low, powers_low(l), bias(l) + offset(l));
  sum = dot4(high, powers_high(l), sum);
  return is_byte ? sum : balanced(sum, p, 1.0f / p, quotients(l));
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
