// Entries from all over the matrices of one or two operands, one after the other, so
// that the host sees with one wait whether they have few bits.
#include "lines.cuh"

// The entry `index` of (batch, lines, k), where strides pass over what is left out.
DEVICE uint64 sampled(Operand x, int64 index) {
  int64 h = index % x.k, line = index / x.k % x.lines;
  return x.at(index / x.k / x.lines, line, h);
}

// The first `count` of `total` entries are A's, the others B's.
KERNEL void samples(Operand a, Operand b, int64 count, int64 total, uint64* target) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= total) return;
  target[index] = index < count ? sampled(a, index) : sampled(b, index - count);
}
