// From the sums of all weights to C', as words, or by additions in float64.
#pragma once
#include "arithmetic.cuh"

// The sums of one entry are counted from the least weight on: sum l counts 2^shift.
// Only here FP64 numbers are computed with, since the contract of accumulate="float64"
// says so: s = fl(s + 2^shift x), one rounding.
#if FLOAT64
HD uint64 added_sum(uint64 total, int64 x, int shift) {
  uint64 power = (uint64)(1023 + shift) << 52;
#ifdef __CUDA_ARCH__
  double s = __fma_rn(__ll2double_rn(x), __longlong_as_double((int64)power),
                      __longlong_as_double((int64)total));
  return (uint64)__double_as_longlong(s);
#else
  double s, scale;
  std::memcpy(&s, &total, sizeof s);
  std::memcpy(&scale, &power, sizeof s);
  s += (double)x * scale;  // the product is exact
  std::memcpy(&total, &s, sizeof s);
  return total;
#endif
}
#endif

// Words that take sums at any bit, with room for carries of many.
template <int words>
struct Columns {
  int64 column[words];

  HD Columns() {
#pragma unroll
    for (int i = 0; i < words; ++i) column[i] = 0;
  }

  // Adds x 2^shift.
  HD void add(int64 x, int shift) {
    const int by = shift % 32;
    uint64 low = (uint64)x << by;
    int64 high = by ? x >> (64 - by) : x >> 63;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      int at = i - shift / 32;
      if (at == 0) column[i] += (uint32)low;
      // The last one has the sign.
      if (at == 1) column[i] += WIDE_SUMS ? (int64)(uint32)(low >> 32) : (int)(low >> 32);
      if (WIDE_SUMS && at == 2) column[i] += high;
    }
  }

  // The number's magnitude in words; whether it is negative.
  HD bool to_words(uint32* value) const {
    int64 carry = 0;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      carry += column[i];
      value[i] = (uint32)carry;
      carry >>= 32;
    }
    bool negative = value[words - 1] >> 31;
    negate_where<words>(value, negative);
    return negative;
  }
};
