// Stages scaling_exponents and residues in one launch that reads every entry once.
//
// A cluster of blocks keeps some lines in shared memory: each block a chunk of k of all
// of them.  Maxima and sums of a line are joined through the cluster; then every block
// turns its chunk to planes.  Both operands of a product share the launch.
#include "facts_in_clusters.cuh"
#include "launches.cuh"

// One operand; without planes (data = 0) only facts are made.
struct Lines {
  Operand x;
  LineFacts facts;
  Exponents rule;
  Planes planes;
  int64 copy;    // how lines are read
  int64 groups;  // of 2^line_bits lines in a matrix
};

struct Work {
  Lines sides[2];
  int64 first_blocks;  // of the first operand; the second one has the others
  int64 chunk;         // entries of a line in one block: a multiple of 512 >> line_bits
  int64 line_bits;     // 1 to 3
};

#if WIDE
// Wide systems have tables of their own, which no lane keeps.
struct NoTables {};

DEVICE NoTables tables_of(int) { return {}; }

DEVICE void planes_of(NoTables, const Word* entries, int share, const Planes& planes,
                      int64 batch, int64 line, int64 start, Scaling scaling, int lane) {
  for (int h = GROUP * lane; h < share && start + h < planes.k_padded;
       h += GROUP * WARP) {
    uint64 bits[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; ++i) bits[i] = widened(entries[swizzled(h) + i]);
    Residues()(bits, scaling.exponent, scaling.e, planes.group(batch, line, start + h),
               planes.plane_stride / 8);
  }
}
#else
DEVICE_TABLE Tables TABLES(false);

DEVICE LaneTables tables_of(int lane) { return LaneTables(TABLES, lane); }

// Entries 0 to `stop` of a line in shared memory, to `row` of the first plane.
template <bool plain>
DEVICE void planes_of(const LaneTables& tables, const Word* entries, int stop,
                      uint8* row, int64 plane_stride, Scaling scaling, int lane) {
  int first = swizzled(first_entry(lane)), g = lane >> 2, t = lane & 3;
  bool has_first = HALVES == 2 || g < NUM_MODULI;
  bool has_second = HALVES == 2 && g + 8 < NUM_MODULI;
  uint8* target = row + g * plane_stride + 16 * t;
  uint8* second = target + 8 * plane_stride;
  const Word* place = entries + first;
  const int64 other = (first ^ 8) - first;
  Word next[2] = {place[0], place[other]};
#pragma unroll 1
  for (int left = stop; left > 0; left -= STEP) {
    // Those of the next step are under way while this one's are worked on; after the
    // last step they are not used, whatever follows the line in shared memory.
    Word bits[2] = {next[0], next[1]};
    place += STEP;
    next[0] = place[0];
    next[1] = place[other];
    uint64 value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      value[i] = offset_to(OFFSET, integer_of<plain>(bits[i], scaling));
    uint32 bytes[2][4];
    tables.residues(value, bytes);
    bool inside = left > 16 * t;
    store_16_bytes(inside && has_first, target, bytes[0]);
    if (HALVES == 2) store_16_bytes(inside && has_second, second, bytes[1]);
#if CUT_PLANE
    uint32 cuts = gathered_cuts(cut_of<plain>(bits[0], scaling),
                                cut_of<plain>(bits[1], scaling), lane);
    int entry = cut_entry(lane);
    if (!(lane & 1) && entry < left)
      *(uint32*)(target + (NUM_MODULI - g) * plane_stride + entry - 16 * t) = cuts;
#endif
    target += STEP;
    second += STEP;
  }
}

DEVICE void planes_of(const LaneTables& tables, const Word* entries, int share,
                      const Planes& planes, int64 batch, int64 line, int64 start,
                      Scaling scaling, int lane) {
  int64 room = planes.k_padded - start;
  int stop = room < share ? (int)room : share;
  uint8* row = (uint8*)planes.group(batch, line, start);
  if (scaling.plain)
    planes_of<true>(tables, entries, stop, row, planes.plane_stride, scaling, lane);
  else
    planes_of<false>(tables, entries, stop, row, planes.plane_stride, scaling, lane);
}
#endif

template <int blocks>
DEVICE void lines_in_cluster(const Work& work) {
  let_next_start();
  DYNAMIC_SHARED(uint64, storage);
  Word* tile = (Word*)storage;
  bool second = blockIdx.x >= work.first_blocks;
  const Lines& side = work.sides[second];
  uint32 block = blockIdx.x - (second ? (uint32)work.first_blocks : 0u);
  uint32 group = block / blocks, groups = (uint32)side.groups;
  int line_bits = (int)work.line_bits, chunk = (int)work.chunk;
  int64 batch = group / groups, first_line = (int64)(group % groups) << line_bits;
  int64 start = blocks == 1 ? 0 : (int64)chunk * cluster_rank();
  // What lanes along the lines write at a time lies in different banks.
  int pitch = chunk + (BANKS >> line_bits);
  Slots& slots = *(Slots*)(tile + ((int64)pitch << line_bits));
  open_slots<blocks>(slots);
  wait_for_last();
  copy_lines(side.x, (int)side.copy, batch, first_line, start, chunk, line_bits, tile,
             pitch);

  // From here on a warp has a part of one line.
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int of_block = warp & ((1 << line_bits) - 1);
  int share = chunk >> 3 << line_bits, shift = (warp >> line_bits) * share;
  const Word* part = tile + of_block * pitch + shift;
  const Word* spread_out = part + swizzled(lane) - lane;
  auto entry = [spread_out](int64 h) { return spread_out[(int)h]; };
  const auto tables = tables_of(lane);  // while entries are on their way
  wait_for_copies();
  // Along the lines a warp has copied the part that it works on.
  if (side.copy == COPY_ACROSS) __syncthreads();
  else __syncwarp();

  FactsOfLine facts = facts_in_cluster<blocks>(entry, share, of_block, line_bits,
                                               side.rule, slots);
  int64 line = first_line + of_block;
  if (start == 0 && shift == 0 && lane == 0 && line < side.x.lines)
    facts.store(side.facts, batch * side.x.lines + line);
  if (side.planes.data)
    planes_of(tables, part, share, side.planes, batch, line, start + shift,
              scaling_of(facts.largest, facts.special, facts.exponent), lane);
}

CLUSTERS(1, 3, lines_in_cluster_of_1, Work);
CLUSTERS(2, 3, lines_in_cluster_of_2, Work);
CLUSTERS(4, 3, lines_in_cluster_of_4, Work);
CLUSTERS(8, 3, lines_in_cluster_of_8, Work);

KERNEL void lines_in_cluster_of_1(const __grid_constant__ Work work) {
  lines_in_cluster<1>(work);
}

KERNEL void lines_in_cluster_of_2(const __grid_constant__ Work work) {
  lines_in_cluster<2>(work);
}

KERNEL void lines_in_cluster_of_4(const __grid_constant__ Work work) {
  lines_in_cluster<4>(work);
}

KERNEL void lines_in_cluster_of_8(const __grid_constant__ Work work) {
  lines_in_cluster<8>(work);
}
