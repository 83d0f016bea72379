// The exact integer C' from its residue products, by the Chinese remainder theorem.
//
//   C' = sum of d_l P / p_l - t P,   d_l = c_l (P / p_l)^-1 mod p_l.
//
// Any representatives of the digits d_l do: t is found from the sum itself.
#pragma once
#include "arithmetic.cuh"

// From the int32 products c_l of all moduli: |C'| in words, and its sign.
HD bool crt(const int* products, uint32* value) {
  // C' + P / 2 lies in 0 .. P - 1 and is what the words hold until the end.
  uint64 sums[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) sums[i] = half_word(i);
#pragma unroll
  for (int l = 0; l < NUM_MODULI; ++l) {
    const int p = modulus(l);
    int sum = dot4((uint32)products[l] ^ 0x80000000u, digit_powers(l),
                   MAGIC_BITS + digit_offset(l));
    int digit = balanced(sum, (float)p, 1.0f / (float)p) - (MAGIC_BITS - p);  // >= 0
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      if (weight_word(l * WORDS + i))
        sums[i] += (uint64)(uint32)digit * weight_word(l * WORDS + i);
  }
#pragma unroll
  for (int i = 0; i + 1 < WORDS; ++i) sums[i + 1] += sums[i] >> 32;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) value[i] = (uint32)sums[i];
  // t or t - 1 of the P's in it
#if PRODUCT
  uint32 quotient = value[0] / PRODUCT;
#else
  const int word = QUOTIENT_SHIFT / 32, shift = QUOTIENT_SHIFT % 32;
  uint32 above = word + 1 < WORDS ? value[word + 1 < WORDS ? word + 1 : 0] : 0;
  uint32 top = (uint32)(((uint64)above << 32 | value[word]) >> shift);
  uint32 quotient = multiply_high(top, QUOTIENT_FACTOR) >> 23;
#endif
  // A borrow is 0 or -1.
  int64 carry = 0;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    uint64 taken = (uint64)quotient * product_word(i);
    carry += (int64)value[i] - (int64)(uint32)taken;
    value[i] = (uint32)carry;
    carry = (carry >> 32) - (int64)(taken >> 32);
  }
  uint32 less[WORDS];
  carry = 0;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    carry += (int64)value[i] - (int64)product_word(i);
    less[i] = (uint32)carry;
    carry >>= 32;
  }
  bool again = carry == 0;
  carry = 0;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    carry += (int64)(again ? less[i] : value[i]) - (int64)half_word(i);
    value[i] = (uint32)carry;
    carry >>= 32;
  }
  bool negative = carry < 0;
  carry = negative;
  uint32 flip = negative ? 0xffffffffu : 0;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    carry += value[i] ^ flip;
    value[i] = (uint32)carry;
    carry >>= 32;
  }
  return negative;
}

// The bits of C' 2^-(mu + nu), rounded once.
HD uint64 reconstructed(const int* products, int64 exponents) {
  uint32 value[WORDS];
  bool negative = crt(products, value);
  return rounded<WORDS>(value, negative, exponents);
}
