// Facts of lines that a cluster of blocks keeps in shared memory: each block has a
// chunk of k of all of them, and each warp of it a part of one line.
#pragma once
#include "shared_lines.cuh"

// What warps tell each other of their lines, a word a warp.
struct Slots {
  uint64 largest[WARPS], special[WARPS], squares[WARPS], norms[WARPS];
};

// A value of a whole line from those of the warps that have a part of it.
template <int blocks, class Combine>
DEVICE uint64 of_line(const uint64* slots, int line, int line_bits, int lane,
                      Combine combine) {
  int parts_bits = 3 - line_bits;
  int rank = lane >> parts_bits, part = lane & ((1 << parts_bits) - 1);
  const uint64* slot = slots + line + (part << line_bits);
  uint64 value = 0;
  if (rank < blocks) value = blocks == 1 ? *slot : read_of_block(slot, rank);
  return over_warp(value, combine);
}

template <int blocks>
DEVICE void meet() {
  if (blocks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

struct FactsOfLine {
  uint64 largest, squares, norms;
  int special, exponent;

  DEVICE void store(const LineFacts& facts, int64 index) const {
    facts.largest[index] = largest;
    facts.squares[index] = squares;
    facts.norms[index] = norms;
    facts.special[index] = special;
    facts.exponents[index] = exponent;
  }
};

// The facts of line `of_block`, of which this warp has `share` entries; `entry(h)` gives
// those of a lane.  Once the copies of this thread are done; a `leave` has to follow.
template <int blocks, class Entry>
DEVICE FactsOfLine facts_in_cluster(Entry entry, int share, int of_block, int line_bits,
                                    const Exponents& rule, Slots& slots) {
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  uint32 upper = 0;
#pragma unroll 8
  for (int h = lane; h < share; h += WARP) upper = max(upper, upper_magnitude(entry(h)));
  upper = largest_of_warp(upper);
  uint64 largest = (uint64)upper << 32, special = 0;
  if (!is_ordinary(upper)) {
    largest = 0;
    for (int h = lane; h < share; h += WARP) look(entry(h), &largest, &special);
    largest = over_warp(largest, TakeLarger());
    special = over_warp(special, TakeUnion());
  }
  if (lane == 0) {
    slots.largest[warp] = largest;
    slots.special[warp] = special;
  }
  meet<blocks>();
  largest = of_line<blocks>(slots.largest, of_block, line_bits, lane, TakeLarger());
  special = of_line<blocks>(slots.special, of_block, line_bits, lane, TakeUnion());

  Sums sums = sums_of_warp(entry, share, lane, largest, (int)special, rule.w);
  uint64 squares = over_warp(sums.squares, TakeSum());
  uint64 norms = over_warp(sums.norms, TakeSum());
  if (lane == 0) {
    slots.squares[warp] = squares;
    slots.norms[warp] = norms;
  }
  meet<blocks>();
  squares = of_line<blocks>(slots.squares, of_block, line_bits, lane, TakeSum());
  norms = of_line<blocks>(slots.norms, of_block, line_bits, lane, TakeSum());
  if (blocks > 1) cluster_arrive();  // this block reads no other one any more

  int exponent = line_exponent(largest, squares, rule.rule, rule.w, rule.limit_bits,
                               rule.limit_top) + rule.shift;
  return {largest, squares, norms, (int)special, exponent};
}

// Before a block ends: no other one reads it any more.
template <int blocks>
DEVICE void leave() {
  if (blocks > 1) cluster_wait();
}
