// Facts of lines that a cluster of blocks keeps in shared memory: each block has a
// chunk of k of all of them, and each warp of it a part of one line.
#pragma once
#include "shared_lines.cuh"

// What warps tell all blocks of the cluster of their lines, twice: two words a warp.
struct Slots {
  uint64 words[2][8 * WARPS][2];
  uint64 mail[2];
};

// Early in a kernel, for what takes a while: blocks may write to each other as soon as
// all of them have come here.
template <int blocks>
DEVICE void open_slots(Slots& slots) {
  if (blocks == 1) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i)
      open_mail(&slots.mail[i], blocks * (int)sizeof(slots.words[i]) / 8);
    show_mail();
  }
  __syncwarp();
  cluster_arrive_relaxed();
}

// Tells two words of this warp and waits for those of all others.
template <int blocks>
DEVICE void tell(Slots& slots, int turn, uint64 first, uint64 second) {
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (blocks == 1) {
    if (lane == 0) {
      slots.words[turn][warp][0] = first;
      slots.words[turn][warp][1] = second;
    }
    __syncthreads();
    return;
  }
  if (lane < blocks)
    send_to_block(slots.words[turn][cluster_rank() * WARPS + warp], &slots.mail[turn],
                  first, second, lane);
  wait_for_mail(&slots.mail[turn], blocks * (int)sizeof(slots.words[turn]) / 8);
}

// What the warps told that have a part of a line, one of them a lane; else 0.  Warps of
// eight blocks that have a line to themselves are twice as many as lanes.
template <int blocks, class Join>
DEVICE uint64 told(const Slots& slots, int turn, int word, int line, int line_bits,
                   Join join) {
  int lane = threadIdx.x % WARP, parts_bits = 3 - line_bits;
  int rank = lane >> parts_bits, part = lane & ((1 << parts_bits) - 1);
  if (rank >= blocks) return 0;
  int slot = rank * WARPS + line + (part << line_bits);
  uint64 found = slots.words[turn][slot][word];
  if (blocks == 8 && PARTS == 2 && line_bits == 0)
    found = join(found, slots.words[turn][slot + WARP][word]);
  return found;
}

// What `upper_magnitude` is to doubles: all of an FP32 number's magnitude.
#ifdef SINGLE
DEVICE uint32 upper_magnitude(uint32 bits) { return bits & 0x7fffffff; }
DEVICE bool is_ordinary(uint32 size) { return size - 0x00800000u < 0x7f000000u; }
DEVICE uint64 of_upper(uint32 upper) { return widened(upper); }
#else
DEVICE uint64 of_upper(uint32 upper) { return (uint64)upper << 32; }
#endif

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
// those of a lane.  Once entries are there, with slots that were opened.
//
// A block may end after this: it has got all that others write to it.
template <int blocks, class Entry>
DEVICE FactsOfLine facts_in_cluster(Entry entry, int share, int of_block, int line_bits,
                                    const Exponents& rule, Slots& slots) {
  int lane = threadIdx.x % WARP;
  uint32 upper = 0, lowest = ~0u;
#pragma unroll 8
  for (int h = lane; h < share; h += WARP) {
    uint32 of_entry = upper_magnitude(entry(h));
    upper = max(upper, of_entry);
    lowest = min(lowest, of_entry);
  }
  upper = largest_of_warp(upper);
  uint64 largest = of_upper(upper), special = 0;
  if (!is_ordinary((Word)upper)) {
    largest = 0;
    for (int h = lane; h < share; h += WARP)
      look(widened(entry(h)), &largest, &special);
    largest = largest_of_warp(largest);
    special = union_of_warp((uint32)special);
  }
  // Of FP32 numbers nobody asks for it.
  if (sizeof(Word) == 8) lowest = smallest_of_warp(lowest);
  if (blocks > 1) cluster_wait();
  tell<blocks>(slots, 0, largest, special);
  auto largest_told = told<blocks>(slots, 0, 0, of_block, line_bits, TakeLarger());
  largest = largest_of_warp(largest_told);
  auto special_told = told<blocks>(slots, 0, 1, of_block, line_bits, TakeUnion());
  special = union_of_warp((uint32)special_told);

  Sums sums = sums_of_warp(entry, share, lane, largest, (int)special, lowest, rule.w);
  uint64 squares = sum_of_warp(sums.squares);
  uint64 norms = sum_of_warp(sums.norms);  // of a line, up to 2^32
  tell<blocks>(slots, 1, squares, norms);
  squares = sum_of_warp(told<blocks>(slots, 1, 0, of_block, line_bits, TakeSum()));
  norms = sum_of_warp(told<blocks>(slots, 1, 1, of_block, line_bits, TakeSum()));
  int exponent = line_exponent(largest, squares, rule.rule, rule.w, rule.limit_bits,
                               rule.limit_top) + rule.shift;
  return {largest, squares, norms, (int)special, exponent};
}
