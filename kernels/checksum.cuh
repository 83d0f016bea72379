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

// total + x y, at most q + 3, for remainders x, y and total <= q + 7.
HD uint64 plus_product(uint64 total, uint64 x, uint64 y) {
  uint64 high = upper_product(x, y), low = x * y;  // high < 2^58
  return nearly_folded((high << 3 | low >> PRIME_BITS) + (low & PRIME) + total);
}

// x 2^shift for a remainder x and 0 <= shift < 61.
HD uint64 rotated(uint64 x, int shift) {
  return (x << shift & PRIME) | x >> (PRIME_BITS - shift);
}

// A' of an entry, see `scaled_integer`; NaN and Inf count as 0.
HD uint64 integer_remainder(uint64 bits, int exponent) {
  int byte_shift;
  uint64 value = scaled_integer<true, false>(bits, exponent, &byte_shift);
  // Twice the offset is q + 1.
  uint64 remainder = nearly_folded(value + (OFFSET - 1));
  return byte_shift ? rotated(remainder, 8 * byte_shift % PRIME_BITS) : remainder;
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
