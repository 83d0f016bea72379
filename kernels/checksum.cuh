// Integers modulo the prime q = 2^61 - 1, for checksums.
//
// 2^61 is 1 modulo q, so that a factor of two is a step of a rotation and no division
// is needed.  A remainder is from 0 to q; q itself counts as 0 and stays until `folded`.
#pragma once
#include "arithmetic.cuh"

const int PRIME_BITS = 61;
const uint64 PRIME = (1ull << PRIME_BITS) - 1;

// At most q + 7, from any number; at most q from one up to 2 q.
HD uint64 nearly_folded(uint64 x) { return (x & PRIME) + (x >> PRIME_BITS); }

// From 0 to q - 1.
HD uint64 folded(uint64 x) {
  x = nearly_folded(x);
  return x >= PRIME ? x - PRIME : x;
}

HD uint64 upper_product(uint64 x, uint64 y) {
#ifdef __CUDA_ARCH__
  return __umul64hi(x, y);
#else
  return (uint64)((unsigned __int128)x * y >> 64);
#endif
}

const int WEIGHT_BITS = 18;

// The weight of a line of A (`left`) or B, from 1 to 2^18 - 1; see engines/checksum.py.
HD uint32 weight_of(int64 line, bool left) {
  uint32 x = ((uint32)line * 2 + left) * 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  x ^= x >> 13;
  x >>= 32 - WEIGHT_BITS;
  return x ? x : 1;
}

// A sum of at most 32 products x y, for x < 2^61 + 2^60 and remainders y.
struct LongSum {
  uint64 high, low;

  HD void add(uint64 x, uint64 y) {
    uint64 product = x * y;
    low += product;
    high += upper_product(x, y) + (low < product);
  }
  HD uint64 remainder() const;  // below q
};

// A sum of at most 2^13 products x y, for x < 2^62 and weights y < 2^18.
struct ShortSum {
  uint64 high, low;  // of the upper and of the lower 32 bits of x

  HD void add(uint64 x, uint32 y) {
    low += (uint64)(uint32)x * y;
    high += (uint64)(uint32)(x >> 32) * y;
  }
  HD uint64 remainder() const;
};

// x 2^shift for a remainder x and 0 <= shift < 61.
HD uint64 rotated(uint64 x, int shift) {
  return (x << shift & PRIME) | x >> (PRIME_BITS - shift);
}

HD uint64 LongSum::remainder() const {  // 2^64 is 8
  return folded(rotated(folded(high), 3) + nearly_folded(low));
}

HD uint64 ShortSum::remainder() const {
  return folded(rotated(folded(high), 32) + nearly_folded(low));
}

// A' of an entry modulo q, below 2^61 + 2^60; NaN and Inf count as 0.  See
// `scaled_integer`, and `plain_integer` for entries that are plain.
HD uint64 integer_remainder(uint64 bits, int exponent) {
  int byte_shift;
  // Twice the offset is q + 1.
  uint64 value = scaled_integer<true, false>(bits, exponent, &byte_shift) + (OFFSET - 1);
  if (!byte_shift) return value;
  return rotated(nearly_folded(value), 8 * byte_shift % PRIME_BITS);
}

HD uint64 plain_remainder(uint64 bits, int exponent) {
  return plain_integer<false>(bits, exponent) + (OFFSET - 1);
}

// The remainder, below q, of a number of `words` 32-bit words and a sign.
template <int words>
HD uint64 words_remainder(const uint32* value, bool negative) {
  uint64 total = 0;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    total += rotated(value[i], 32 * i % PRIME_BITS);
    if (i % 6 == 5) total = nearly_folded(total);  // seven and a little fit 64 bits
  }
  total = folded(total);
  return negative && total ? PRIME - total : total;
}
