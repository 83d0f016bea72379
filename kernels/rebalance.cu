// Rebalancing of the inner index; see engines/cpu_rebalance.py for the rule.
//
// Exponents are kept with an offset that makes them positive, so that 0 stands for a
// line without one and maxima start from zeros.
#include "lines.cuh"

const int EXPONENT_OFFSET = 1 << 20;
const int SMALLEST_NORMAL = -1022;

DEVICE bool has_exponent(uint64 bits) { return magnitude(bits) && is_finite(bits); }

DEVICE void join(int* maximum, int value) {
  // Most entries are no maximum, and a plain look is far cheaper than an atomic.
  if (value > *(volatile int*)maximum) atomicMax(maximum, value);
}

// The largest exponent of every line of x D, D = 2^(sign d).
KERNEL void line_tops(Operand x, int64 along, int64 batch, const int* d, int64 sign,
                      int* tops) {
  LineEntry entry(x, along, batch);
  if (entry.outside) return;
  uint64 bits = x.at(entry.batch, entry.line, entry.h);
  if (!has_exponent(bits)) return;
  int moved = top_exponent(magnitude(bits)) + (int)sign * d[entry.batch * x.k + entry.h];
  join(&tops[entry.batch * x.lines + entry.line], moved + EXPONENT_OFFSET);
}

// The largest exponent of every inner index of x D, relative to that of its line.
KERNEL void inner_excess(Operand x, int64 along, int64 batch, const int* d, int64 sign,
                         const int* tops, int* excess) {
  LineEntry entry(x, along, batch);
  if (entry.outside) return;
  uint64 bits = x.at(entry.batch, entry.line, entry.h);
  if (!has_exponent(bits)) return;
  int64 inner = entry.batch * x.k + entry.h;
  int moved = top_exponent(magnitude(bits)) + (int)sign * d[inner] + EXPONENT_OFFSET;
  join(&excess[inner],
       moved - tops[entry.batch * x.lines + entry.line] + EXPONENT_OFFSET);
}

// Writes x 2^(sign d + shift of the line), entries in the order of their reading; joins
// how far exponents fall below that of the smallest normal number, by matrices.
KERNEL void scaled_copy(Operand x, int64 along, int64 batch, const int* d, int64 sign,
                        const int* shifts, uint64* out, int* short_of) {
  LineEntry entry(x, along, batch);
  if (entry.outside) return;
  uint64 bits = x.at(entry.batch, entry.line, entry.h);
  if (has_exponent(bits)) {
    int e = top_exponent(magnitude(bits)) + (int)sign * d[entry.batch * x.k + entry.h] +
            shifts[entry.batch * x.lines + entry.line];
    if (e < SMALLEST_NORMAL) {
      join(&short_of[entry.batch], SMALLEST_NORMAL - e);
    } else {
      int exponent;
      uint64 f = mantissa(bits, &exponent);
      f <<= leading_zeros(f) - 11;
      uint64 sign_bit = bits & ~MAGNITUDE_MASK;
      bits = sign_bit | (uint64)(e + 1023) << 52 | (f & FRACTION_MASK);
    }
  }
  out[entry.index] = bits;
}
