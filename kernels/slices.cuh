// Integers of b S bits and their digits, the slices; see numerics/slicing.py.
#pragma once
#include "arithmetic.cuh"

// mu of a line from its largest entry: for f 2^e of 53 bits f 2^(bits - 54) is what has
// to stay within D, and does for f up to `most`.
HD int slice_exponent(uint64 largest, int bits, uint64 most) {
  int e;
  uint64 f = mantissa(largest, &e);
  if (!f) return 0;
  int zeros = leading_zeros(f) - 11;
  return bits - 54 - (e - zeros) - ((f << zeros) > most);
}

// A' of up to 127 bits and a sign, in two's complement; `high` matters where it may
// have more than 63.
struct Long {
  uint64 low, high;
};

// m 2^-right, rounded half to even, and negated where that is wanted; m has bit 63 set
// or is 0.  The largest entry of a line has right = 65 - b S or one more, any other has
// more: it is never negative where b S is 64 or less.
template <bool wide>
HD Long long_integer(uint64 m, int right, bool negative) {
  uint64 value = shifted_right(m, (uint32)right), above = 0;
  // From 2^63, one half, on; beyond 64 bits nothing is left of it.
  uint64 lost = shifted_left(m, (uint32)(64 - right));
  bool tie_up = (uint32)lost | ((uint32)value & 1);
  value += (uint32)(lost >> 32) >= (tie_up ? 0x80000000u : 0x80000001u);
  if (wide && right <= 0) {
    value = shifted_left(m, (uint32)-right);
    above = shifted_right(m, (uint32)(64 + right));
  }
  uint64 flip = negative ? ~0ull : 0;
  Long result;
  result.low = (value ^ flip) + negative;
  result.high = (above ^ flip) + (negative && !value);
  return result;
}

// A' of any entry; NaN and Inf count as 0.
template <bool wide>
HD Long sliced_integer(uint64 bits, int exponent) {
  int shift;
  uint64 f = mantissa(bits, &shift);
  int zeros = f ? leading_zeros(f) : 0;
  // f 2^shift is (f << zeros) 2^(shift - zeros).
  return long_integer<wide>(f << zeros, zeros - shift - exponent, bits >> 63);
}

// In lines whose largest entry is so large, zeros and subnormal numbers round to 0 by
// themselves: their field of 0 is taken for that of a normal number.
HD bool is_plain_slicing(int exponent) { return exponent <= 1086 - 66; }

// The same for finite entries of these lines.
template <bool wide>
HD Long plain_sliced_integer(uint64 bits, int exponent) {
  uint32 word = (uint32)(bits >> 32);
  int right = 1086 - exponent - (int)(word >> 20 & 0x7ff);
  return long_integer<wide>(bits << 11 | 1ull << 63, right, word >> 31);
}

// ---- Digits ----

// With 2^(b - 1) in every digit's place added, digits are those of a number without a
// sign.  Here they follow each other from the lowest on.
template <int b, int count>
HD Long with_offsets(Long x) {
  const int all = b * count;
  uint64 low = 0, high = 0;
#pragma unroll
  for (int at = b - 1; at < all; at += b) {
    if (at < 64) low |= 1ull << (at & 63);
    else high |= 1ull << (at & 63);
  }
  Long result;
  result.low = x.low + low;
  result.high = x.high + high + (result.low < low);
  return result;
}

// Digits `first` to `first` + 3 as bytes of two's complement; x has offsets.
template <int b>
HD uint32 four_digits(Long x, int first) {
  int at = b * first;
  if (b == 8)
    return (uint32)((at < 64 ? x.low : x.high) >> (at & 63)) ^ 0x80808080u;
  uint64 low = at < 64 ? x.low >> (at & 63) : x.high >> (at & 63);
  uint64 high = at < 64 && at & 63 ? x.high << (64 - at & 63) : 0;
  uint32 both = (uint32)(low | high), mask = (1u << b) - 1, digits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) digits |= (both >> b * i & mask) << 8 * i;
  // No byte borrows from the next one.
  return ((digits | 0x80808080u) - (0x01010101u << b >> 1)) ^ 0x80808080u;
}

// Four words of four bytes to those of the first bytes, the second ones and so on.
HD void transpose_bytes(const uint32* word, uint32* byte) {
  uint32 first = permuted(word[0], word[1], 0x5140);
  uint32 second = permuted(word[2], word[3], 0x5140);
  byte[0] = permuted(first, second, 0x5410);
  byte[1] = permuted(first, second, 0x7632);
  first = permuted(word[0], word[1], 0x7362);
  second = permuted(word[2], word[3], 0x7362);
  byte[2] = permuted(first, second, 0x5410);
  byte[3] = permuted(first, second, 0x7632);
}
