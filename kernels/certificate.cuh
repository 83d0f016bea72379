// What both looks of a certificate share.
#pragma once
#include "lines.cuh"

const int HOPELESS = 1 << 20;
const int UNIT_BITS = 57;
const int DOUBLE_RANGE = 1024;  // finite doubles are below 2^1024

// The exponent of x 2^shift / y as frexp gives it, or 0 where that is not above 1: from
// leading bits, and mantissas where those agree.  x and y are not 0.
DEVICE int bits_above(uint64 x, int shift, uint64 y) {
  int zeros_x = leading_zeros(x), zeros_y = leading_zeros(y);
  int excess = shift + zeros_y - zeros_x;  // of the leading bits
  uint64 top_x = x << zeros_x, top_y = y << zeros_y;
  int exponent = (top_x >= top_y ? excess : excess - 1) + 1;
  bool more = excess > 0 || (excess == 0 && top_x > top_y);
  return more ? exponent : 0;
}

// What an entry needs for norm 2^(57 - spare) not to exceed 2^power y: HOPELESS where the
// rule's float64 numbers end, which only scaling "legacy" gets to.
DEVICE int bits_short(uint64 norm, int spare, int power, uint64 y) {
  int shift = UNIT_BITS - spare;
  if (bit_length(norm) + shift > DOUBLE_RANGE) return HOPELESS;
  int bits = bits_above(norm, shift - power, y);
  return bits > DOUBLE_RANGE ? HOPELESS : bits;
}

// What a line is short of making k 2^-(mu+nu+2) negligible; `deficit` is that of a line
// with one entry and no spare bits.
DEVICE int line_deficit(int64 deficit, uint64 norm, int spare) {
  return (int)deficit - (bit_length(norm) - NORM_BITS) - spare;
}

DEVICE int spare_bits(LineFacts facts, int64 index) {
  return facts.exponents[index] + top_exponent(facts.largest[index]);
}
