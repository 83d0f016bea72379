// Residues of Winograd's sums of quadrants, where facts are known already.
#include "launches.cuh"
#include "winograd.cuh"

const int DEPTH = 128;     // entries of a line of a quadrant in a block
const int LINE_BITS = 3;   // lines of a quadrant in a block
const uint32 BAND = 16;    // parts of k whose blocks follow each other
const int QUADRANT_PITCH = 4 * DEPTH + (BANKS >> LINE_BITS);

struct Work {
  Quadrants sides[2];
  int64 first_blocks;  // of the first operand; the second one has the others
};

// Which lines a block has, and which part of k.  Blocks that run at a time have
// neighbours along k, where planes are written, and across, where lines are read: so
// whole pages of memory are touched together.
struct Place {
  uint32 group, part;

  DEVICE Place(uint32 block, uint32 groups, uint32 parts) {
    uint32 first = block / (groups * BAND) * BAND;
    uint32 width = parts - first < BAND ? parts - first : BAND;
    block -= groups * first;
    group = block / width;
    part = first + block - group * width;
  }
};

DEVICE Scaling scaling_in(const Quadrants& side, int64 line) {
  if (line >= side.x.lines) return scaling_of(0, 0, 0);
  return scaling_of(side.facts.largest[line], side.facts.special[line],
                    side.facts.exponents[line]);
}

CLUSTERS(1, 2, winograd_planes, Work);

KERNEL void winograd_planes(const __grid_constant__ Work work) {
  let_next_start();
  DYNAMIC_SHARED(uint64, storage);
  Word* tile = (Word*)storage;
  bool second = blockIdx.x >= work.first_blocks;
  const Quadrants& side = work.sides[second];
  uint32 block = blockIdx.x - (second ? (uint32)work.first_blocks : 0u);
  int64 lines = side.planes.lines_padded, k = side.planes.k_padded;
  Place place(block, (uint32)(lines >> LINE_BITS), (uint32)((k + DEPTH - 1) / DEPTH));
  int64 first_line = (int64)place.group << LINE_BITS, start = (int64)place.part * DEPTH;
#pragma unroll 1
  for (int q = 0; q < 4; ++q)
    copy_lines(side.x, (int)side.copy, 0, first_line + (q >> 1) * lines,
               start + (q & 1) * k, DEPTH, LINE_BITS, tile + q * DEPTH, QUADRANT_PITCH);
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int64 line = first_line + warp;
  Scaling scaling[2] = {scaling_in(side, line), scaling_in(side, line + lines)};
  Corner corner = {tile + warp * QUADRANT_PITCH, 2 * DEPTH, DEPTH};
  int stop = k - start < DEPTH ? (int)(k - start) : DEPTH;
  wait_for_copies();
  __syncthreads();
  sums_to_planes(corner, stop, side, line, start, scaling, lane);
}
