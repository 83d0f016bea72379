// The exact integer C' from its residue products, by the Chinese remainder theorem.
//
//   C' = sum of d_l P / p_l - q P,   d_l = c_l (P / p_l)^-1 modulo p_l.
//
// Any representatives of the digits d_l do, since q is found from the sum itself: they
// come from the bytes of c_l and stay below 2^18.  Two moduli share a weight:
// d_a P / p_a + d_b P / p_b = (d_a p_b + d_b p_a) P / (p_a p_b).
//
// Of complex numbers there are products of x + s y and of x - s y, by turns: a digit of
// a part is the sum of what each of them adds to it, as tables of that part tell, and
// stays below 2^19.
#pragma once
#include "arithmetic.cuh"

const int RESIDUES = PARTS * NUM_MODULI;

HD uint32 digit(const int* products, int l, int part) {
  // The bytes of c + 2^31 count (P / p)^-1 2^(8 i) modulo p, from 0 to p - 1.
  uint32 sum = 0;
#pragma unroll
  for (int i = PARTS * l; i < PARTS * (l + 1); ++i) {
    int at = part * RESIDUES + i;
    sum += unsigned_dot4((uint32)products[i] ^ 0x80000000u, digit_powers(at),
                         digit_offset(at));
  }
  return sum;
}

// From the int32 products c_l of all moduli: |C'| in words, and its sign.
HD bool crt(const int* products, int part, uint32* value) {
  uint64 sums[SUM_WORDS];
#pragma unroll
  for (int i = 0; i < SUM_WORDS; ++i) sums[i] = 0;
#pragma unroll
  for (int l = 0; l < NUM_MODULI; l += 2) {
    uint32 pair = digit(products, l, part);  // with the next one below PARTS 2^27
    if (l + 1 < NUM_MODULI)
      pair = pair * modulus(l + 1) + digit(products, l + 1, part) * modulus(l);
#pragma unroll
    for (int i = 0; i < SUM_WORDS; ++i)
      if (weight_word(l / 2 * SUM_WORDS + i))
        sums[i] += (uint64)pair * weight_word(l / 2 * SUM_WORDS + i);
  }
#pragma unroll
  for (int i = 0; i + 1 < SUM_WORDS; ++i) sums[i + 1] += sums[i] >> 32;
  // q = floor((sum + P / 2) / P) or one less, from the top 32 bits.
  const int word = TOP_SHIFT / 32, shift = TOP_SHIFT % 32;
  uint64 above = word + 1 < SUM_WORDS ? sums[word + 1 < SUM_WORDS ? word + 1 : 0] : 0;
  uint32 top = (uint32)((above << 32 | (uint32)sums[word]) >> shift) + TOP_HALF;
  uint64 scaled = (uint64)top * QUOTIENT_FACTOR;
  uint32 quotient = (uint32)(scaled >> QUOTIENT_SHIFT);
  // C' modulo 2^(32 VALUE_WORDS), in two's complement.
  uint64 carry = 0;
#pragma unroll
  for (int i = 0; i < VALUE_WORDS; ++i) {
    carry += (uint64)quotient * minus_product_word(i) + (uint32)sums[i];
    value[i] = (uint32)carry;
    carry >>= 32;
  }
  // One less is possible only where the quotient is about to become the next integer.
  if ((scaled >> (QUOTIENT_SHIFT - 5) & 31) == 31) {
    uint32 less[VALUE_WORDS];
    carry = 0;
    int64 beyond = 0;
#pragma unroll
    for (int i = 0; i < VALUE_WORDS; ++i) {
      int64 signed_word = i + 1 < VALUE_WORDS ? (int64)value[i] : (int64)(int)value[i];
      beyond = (beyond >> 32) + signed_word - (int64)half_word(i);
      carry += (uint64)value[i] + minus_product_word(i);
      less[i] = (uint32)carry;
      carry >>= 32;
    }
    if (beyond >= 0) {  // C' >= P / 2
#pragma unroll
      for (int i = 0; i < VALUE_WORDS; ++i) value[i] = less[i];
    }
  }
  bool negative = value[VALUE_WORDS - 1] >> 31;
  negate_where<VALUE_WORDS>(value, negative);
  return negative;
}
