// Stage scaling_exponents: what is known of every line, and its exponent.
//
// Three launches: maxima, sums, exponents.  Maxima and sums of integers do not depend
// on the order in which blocks add to them.  The facts must be zero at first.
#include "shares.cuh"

template <class Lines>
DEVICE void join_largest(Lines lines, Operand x, Share share, LineFacts facts,
                         uint64* scratch) {
  uint32 upper = 0;
  if (share.real) {
#pragma unroll 8
    for (int64 h = share.start; h < share.stop; h += share.step)
      upper = max(upper, upper_magnitude(x.at(share.batch, share.line, h)));
  }
  uint64 largest = lines.over(upper, scratch, TakeLarger()) << 32, special = 0;
  bool odd = share.real && lines.writes() && !is_ordinary(largest >> 32);
  if (over_block(odd, scratch, TakeUnion())) {
    largest = 0;
    for (int64 h = share.start; share.real && h < share.stop; h += share.step)
      look(x.at(share.batch, share.line, h), &largest, &special);
    largest = lines.over(largest, scratch, TakeLarger());
    special = lines.over(special, scratch, TakeUnion());
  }
  if (!share.real || !lines.writes()) return;
  if (largest) atomicMax(&facts.largest[share.fact], largest);
  if (special) atomicOr(&facts.special[share.fact], (int)special);
}

template <class Lines>
DEVICE void join_sums(Lines lines, Operand x, Share share, LineFacts facts,
                      Exponents how, uint64* scratch) {
  Sums sums = {0, 0};
  uint64 largest = share.real ? facts.largest[share.fact] : 0;
  if (largest) {
    auto entry = [=](int64 h) { return x.at(share.batch, share.line, h); };
    sums = sums_of(entry, share.start, share.stop, share.step, top_exponent(largest),
                   how.w);
  }
  uint64 squares = lines.over(sums.squares, scratch, TakeSum());
  uint64 norms = lines.over(sums.norms, scratch, TakeSum());
  if (!largest || !lines.writes()) return;
  atomicAdd(&facts.squares[share.fact], squares);
  atomicAdd(&facts.norms[share.fact], norms);
}

KERNEL void largest_along(Operand x, LineFacts facts, int64 depth) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_largest(Along(), x, share_along(x, depth), facts, scratch);
}

KERNEL void largest_across(Operand x, LineFacts facts, int64 depth) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_largest(Across(), x, share_across(x, depth), facts, scratch);
}

KERNEL void sums_along(Operand x, LineFacts facts, int64 depth, Exponents how) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_sums(Along(), x, share_along(x, depth), facts, how, scratch);
}

KERNEL void sums_across(Operand x, LineFacts facts, int64 depth, Exponents how) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_sums(Across(), x, share_across(x, depth), facts, how, scratch);
}

const int ZERO_UNIT = 2000;  // of a line of zeros, which are multiples of anything

// Joins ZERO_UNIT - l of the entries, multiples of 2^l, to the maxima of lines, which
// are zero at first.  NaN and Inf count as 0.
template <class Lines>
DEVICE void join_units(Lines lines, Operand x, Share share, int* below,
                       uint64* scratch) {
  int most = 0;
  if (share.real) {
#pragma unroll 8
    for (int64 h = share.start; h < share.stop; h += share.step) {
      int shift;
      uint64 f = mantissa(x.at(share.batch, share.line, h), &shift);
      if (f) most = max(most, ZERO_UNIT - (shift + bit_length(f & (0 - f)) - 1));
    }
  }
  most = (int)lines.over(most, scratch, TakeLarger());
  if (share.real && lines.writes() && most) atomicMax(&below[share.fact], most);
}

KERNEL void units_along(Operand x, int64 depth, int* below) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_units(Along(), x, share_along(x, depth), below, scratch);
}

KERNEL void units_across(Operand x, int64 depth, int* below) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_units(Across(), x, share_across(x, depth), below, scratch);
}

KERNEL void exponents_from_sums(LineFacts facts, int64 count, Exponents how) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= count) return;
  facts.exponents[index] =
      line_exponent(facts.largest[index], facts.squares[index], how.rule, how.w,
                    how.limit_bits, how.limit_top) + how.shift;
}

// Facts for the last stage alone: the exponents of `count` lines plus what these lines
// were scaled by before.
KERNEL void moved_exponents(LineFacts facts, int64 count, const int* shifts,
                            LineFacts moved) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= count) return;
  moved.special[index] = facts.special[index];
  moved.exponents[index] = facts.exponents[index] + shifts[index];
}
