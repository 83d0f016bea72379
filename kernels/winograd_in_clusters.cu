// Stages scaling_exponents and residues of Winograd's factors in one launch that reads
// every entry once.
//
// A cluster of blocks keeps as many lines of the first half as of the second one, and
// each block a chunk of both halves of k: so it has all that its sums are made of.
#include "facts_in_clusters.cuh"
#include "launches.cuh"
#include "winograd.cuh"

struct Lines {
  Quadrants to;
  Exponents rule;
};

struct Work {
  Lines sides[2];
  int64 first_blocks;  // of the first operand; the second one has the others
  int64 chunk;         // entries of a quadrant's line: a multiple of 512 >> line_bits
  int64 line_bits;     // lines of a quadrant in a cluster: 0 to 2
};

// What a warp tells the others of its block.
struct Scalings {
  Scaling of_line[WARPS];
};

template <int blocks>
DEVICE void winograd_in_cluster(const Work& work) {
  let_next_start();
  DYNAMIC_SHARED(uint64, storage);
  Word* tile = (Word*)storage;
  bool second = blockIdx.x >= work.first_blocks;
  const Lines& side = work.sides[second];
  const Quadrants& to = side.to;
  uint32 block = blockIdx.x - (second ? (uint32)work.first_blocks : 0u);
  int line_bits = (int)work.line_bits, chunk = (int)work.chunk, lines = 1 << line_bits;
  int64 half_lines = to.planes.lines_padded, half_k = to.planes.k_padded;
  int64 first_line = (int64)(block / blocks) << line_bits;
  int64 start = blocks == 1 ? 0 : (int64)chunk * cluster_rank();
  // What lanes along the lines write at a time lies in different banks.
  int pitch = 2 * chunk + (BANKS >> line_bits);
  Slots& slots = *(Slots*)(tile + ((int64)pitch << (line_bits + 1)));
  open_slots<blocks>(slots);
#pragma unroll 1
  for (int q = 0; q < 4; ++q) {
    int lower = q >> 1, later = q & 1;
    Operand half = to.x;
    // The first half ends where the second one begins, also in the last block.
    if (!later && half.k > half_k) half.k = half_k;
    copy_lines(half, (int)to.copy, 0, first_line + lower * half_lines,
               start + later * half_k, chunk, line_bits,
               tile + lower * lines * pitch + later * chunk, pitch);
  }
  Scalings& scalings = *(Scalings*)(&slots + 1);

  // First a warp has a part of one line.
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int of_block = warp & (2 * lines - 1), part = warp >> (line_bits + 1);
  int share = chunk >> 2 << (line_bits + 1);
  const Word* spread_out =
      tile + of_block * pitch + part * share + swizzled(lane) - lane;
  auto entry = [spread_out](int64 h) { return spread_out[(int)h]; };
  wait_for_copies();
  __syncthreads();
  FactsOfLine facts = facts_in_cluster<blocks>(entry, share, of_block, line_bits + 1,
                                               side.rule, slots);
  if (part == 0 && lane == 0) {
    int64 line = first_line + (of_block & (lines - 1));
    if (of_block & lines) line += half_lines;
    if (start == 0 && line < to.x.lines) facts.store(to.facts, line);
    scalings.of_line[of_block] =
        scaling_of(facts.largest, facts.special, facts.exponent);
  }
  __syncthreads();

  // From here on it has a part of one line of each quadrant.
  of_block = warp & (lines - 1);
  share = chunk >> 3 << line_bits;
  int shift = (warp >> line_bits) * share;
  Scaling scaling[2] = {scalings.of_line[of_block], scalings.of_line[of_block + lines]};
  Corner corner = {tile + of_block * pitch + shift, lines * pitch, chunk};
  int64 room = half_k - start - shift;
  sums_to_planes(corner, room < share ? (int)room : share, to, first_line + of_block,
                 start + shift, scaling, lane);
}

CLUSTERS(1, 2, winograd_in_cluster_of_1, Work);
CLUSTERS(2, 2, winograd_in_cluster_of_2, Work);
CLUSTERS(4, 2, winograd_in_cluster_of_4, Work);
CLUSTERS(8, 2, winograd_in_cluster_of_8, Work);

KERNEL void winograd_in_cluster_of_1(const __grid_constant__ Work work) {
  winograd_in_cluster<1>(work);
}

KERNEL void winograd_in_cluster_of_2(const __grid_constant__ Work work) {
  winograd_in_cluster<2>(work);
}

KERNEL void winograd_in_cluster_of_4(const __grid_constant__ Work work) {
  winograd_in_cluster<4>(work);
}

KERNEL void winograd_in_cluster_of_8(const __grid_constant__ Work work) {
  winograd_in_cluster<8>(work);
}
