// How many bits the entries of lines have.
#include "lines.cuh"

const int ZERO_UNIT = 2000;  // of a line of zeros, which are multiples of anything

// Joins ZERO_UNIT - l of every entry, a multiple of 2^l, to the maxima of lines, which
// are zero at first.  NaN and Inf count as 0.
KERNEL void lowest_units(Operand x, int64 along, int64 batch, int* below) {
  LineEntry entry(x, along, batch);
  if (entry.outside) return;
  int shift;
  uint64 f = mantissa(x.at(entry.batch, entry.line, entry.h), &shift);
  if (!f) return;
  int value = ZERO_UNIT - (shift + bit_length(f & (0 - f)) - 1);
  int* line = &below[entry.batch * x.lines + entry.line];
  // Most entries are no maximum, and a plain look is far cheaper than an atomic.
  if (value > *(volatile int*)line) atomicMax(line, value);
}
