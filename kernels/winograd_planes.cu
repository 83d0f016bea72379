// Residues of Winograd's sums of quadrants, where facts are known already.
#include "launches.cuh"
#include "winograd.cuh"

const int DEPTH = 128;    // entries of a line of a quadrant at a time
const int TURNS = 8;      // of a block, one after the other
const int LINE_BITS = 3;  // lines of a quadrant in a block
const int PITCH = 4 * DEPTH + (16 >> LINE_BITS);
const int BUFFER = PITCH << LINE_BITS;  // while one is worked on, another one is filled

struct Work {
  Quadrants sides[2];
  int64 first_blocks;  // of the first operand; the second one has the others
};

DEVICE Scaling scaling_in(const Quadrants& side, int64 line) {
  if (line >= side.x.lines) return scaling_of(0, 0, 0);
  return scaling_of(side.facts.largest[line], side.facts.special[line],
                    side.facts.exponents[line]);
}

CLUSTERS(1, 2, winograd_planes, Work);

KERNEL void winograd_planes(const __grid_constant__ Work work) {
  let_next_start();
  DYNAMIC_SHARED(uint64, tile);
  bool second = blockIdx.x >= work.first_blocks;
  const Quadrants& side = work.sides[second];
  uint32 block = blockIdx.x - (second ? (uint32)work.first_blocks : 0u);
  int64 lines = side.planes.lines_padded, k = side.planes.k_padded;
  uint32 groups = (uint32)(lines >> LINE_BITS);
  int64 first_line = (int64)(block % groups) << LINE_BITS;
  int64 first = (int64)(block / groups) * (DEPTH * TURNS);
  int turns = (int)((k - first + DEPTH - 1) / DEPTH);
  if (turns > TURNS) turns = TURNS;
  auto fetch = [&](int turn) {
    int64 start = first + turn * DEPTH;
    uint64* target = tile + turn % 2 * BUFFER;
#pragma unroll 1
    for (int q = 0; q < 4 && turn < turns; ++q)
      copy_lines(side.x, (int)side.copy, 0, first_line + (q >> 1) * lines,
                 start + (q & 1) * k, DEPTH, LINE_BITS, target + q * DEPTH, PITCH);
    end_of_copies();
  };

  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int64 line = first_line + warp;
  Scaling scaling[2] = {scaling_in(side, line), scaling_in(side, line + lines)};
  const LaneTables tables(SUM_TABLES, lane);
#pragma unroll 1
  for (int turn = -1; turn < turns; ++turn) {
    fetch(turn + 1);
    if (turn < 0) continue;
    wait_for_earlier_copies();
    __syncthreads();
    int64 start = first + turn * DEPTH;
    Corner corner = {tile + turn % 2 * BUFFER + warp * PITCH, 2 * DEPTH, DEPTH};
    int stop = k - start < DEPTH ? (int)(k - start) : DEPTH;
    sums_to_planes(tables, corner, stop, side, line, start, scaling, lane);
    __syncthreads();  // the buffer is free
  }
}
