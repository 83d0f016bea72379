// Stage slice_exponents: the largest entry of every line in full, and what follows.
//
// Two launches: maxima, which do not depend on the order in which blocks join theirs,
// and exponents.  The facts must be zero at first.
#include "shares.cuh"
#include "slices.cuh"

template <class Lines>
DEVICE void join_whole_largest(Lines lines, Operand x, Share share, LineFacts facts,
                               uint64* scratch) {
  uint64 largest = 0, special = 0;
  if (share.real) {
#pragma unroll 8
    for (int64 h = share.start; h < share.stop; h += share.step)
      look(x.at(share.batch, share.line, h), &largest, &special);
  }
  largest = lines.over(largest, scratch, TakeLarger());
  special = lines.over(special, scratch, TakeUnion());
  if (!share.real || !lines.writes()) return;
  if (largest) atomicMax(&facts.largest[share.fact], largest);
  if (special) atomicOr(&facts.special[share.fact], (int)special);
}

KERNEL void whole_largest_along(Operand x, int64 depth, LineFacts facts) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_whole_largest(Along(), x, share_along(x, depth), facts, scratch);
}

KERNEL void whole_largest_across(Operand x, int64 depth, LineFacts facts) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_whole_largest(Across(), x, share_across(x, depth), facts, scratch);
}

// For integers of `bits` = b S bits; `most` is F.
KERNEL void exponents_of_slices(LineFacts facts, int64 count, int64 bits,
                                uint64 most) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= count) return;
  facts.exponents[index] = slice_exponent(facts.largest[index], (int)bits, most);
}
