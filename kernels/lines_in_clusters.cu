// Stages scaling_exponents and residues in one launch that reads every entry once.
//
// A cluster of blocks keeps some lines in shared memory: each block a chunk of k of all
// of them.  Maxima and sums of a line are joined through the cluster; then every block
// turns its chunk to planes.  Both operands of a product share the launch.
#include "cut_planes.cuh"
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
#if PARTS == 2
  CutPlane cuts;
#endif
};

struct Work {
  Lines sides[2];
  int64 first_blocks;  // of the first operand; the second one has the others
  int64 chunk;         // entries of a line in one block: a multiple of 512 >> line_bits
  int64 line_bits;     // 1 to 3, or 0 to 2 of complex entries
};

// Where a warp's entries of a line are in memory, and which these are.
struct Segment {
  const Word* entries;  // in shared memory; of imaginary parts `pitch` further
  int pitch, share;
  int64 batch, line, start;
};

#if WIDE
// Wide systems have tables of their own, which no lane keeps.
struct NoTables {};

DEVICE NoTables tables_of(int) { return {}; }

DEVICE void planes_of(NoTables, const Lines& side, const Segment& at, Scaling scaling,
                      int lane) {
  const Planes& planes = side.planes;
  for (int h = GROUP * lane; h < at.share && at.start + h < planes.k_padded;
       h += GROUP * WARP) {
    uint64 bits[GROUP_WORDS];
#pragma unroll
    for (int i = 0; i < GROUP_WORDS; ++i) {
      bits[i] = widened(at.entries[i % PARTS * at.pitch + swizzled(h) + i / PARTS]);
#if PARTS == 2
      bits[i] ^= (uint64)(i & side.x.conjugated) << 63;
#endif
    }
    Residues()(bits, scaling.exponent, scaling.e,
               planes.group(at.batch, at.line, at.start + h), planes.plane_stride / 8);
#if PARTS == 2 && CUT_PLANE
    Cuts{side.cuts.k_padded}(bits, 0, scaling.e,
                             side.cuts.group(at.batch, at.line, at.start + h),
                             side.cuts.plane_stride / 8);
#endif
  }
}
#else
DEVICE_TABLE Tables TABLES(false);

DEVICE LaneTables tables_of(int lane) { return LaneTables(TABLES, lane); }

#if PARTS == 2
// Entries 0 to `stop` of the segment.
template <bool plain>
DEVICE void planes_of(const LaneTables& tables, const Lines& side, const Segment& at,
                      int stop, Scaling scaling, int lane) {
  int first = swizzled(first_entry(lane)), g = lane >> 2, t = lane & 3;
  bool has_first = HALVES == 2 || g < NUM_MODULI;
  bool has_second = HALVES == 2 && g + 8 < NUM_MODULI;
  int64 stride = side.planes.plane_stride;
  uint8* target = (uint8*)side.planes.group(at.batch, at.line, at.start);
  target += 2 * g * stride + 16 * t;
  // The conjugate's residues are the same, the other way round.
  int64 of_sign[2] = {side.x.conjugated ? stride : 0, side.x.conjugated ? 0 : stride};
  const Word* place = at.entries + first;
  const int other = (first ^ 8) - first, imaginary = at.pitch;
#if CUT_PLANE
  uint8* cut = (uint8*)side.cuts.group(at.batch, at.line, at.start) + cut_entry(lane);
  int64 half = side.cuts.k_padded, again = side.cuts.plane_stride;
#endif
#pragma unroll 1
  for (int h = 0; h < stop; h += STEP) {
    Word bits[2][2] = {{place[0], place[other]},
                       {place[imaginary], place[imaginary + other]}};
    uint64 value[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      value[i / 2][i % 2] =
          offset_to(OFFSET, integer_of<plain>(bits[i / 2][i % 2], scaling));
    uint32 bytes[2][2][4];
    tables.residues(value[0], value[1], bytes);
    bool inside = h + 16 * t < stop;
#pragma unroll
    for (int sign = 0; sign < 2; ++sign) {
      uint8* plane = target + of_sign[sign];
      store_16_bytes(inside && has_first, plane, bytes[sign][0]);
      if (HALVES == 2)
        store_16_bytes(inside && has_second, plane + 16 * stride, bytes[sign][1]);
    }
#if CUT_PLANE
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32 of_part = gathered_cuts(cut_of<plain>(bits[part][0], scaling),
                                     cut_of<plain>(bits[part][1], scaling), lane);
      if (lane & 1 || h + cut_entry(lane) >= stop) continue;
      *(uint32*)(cut + h + part * half) = of_part;
      if (again) *(uint32*)(cut + h + again + !part * half) = of_part;
    }
#endif
    place += STEP;
    target += STEP;
  }
}
#else
// Entries 0 to `stop` of the segment.
template <bool plain>
DEVICE void planes_of(const LaneTables& tables, const Lines& side, const Segment& at,
                      int stop, Scaling scaling, int lane) {
  int first = swizzled(first_entry(lane)), g = lane >> 2, t = lane & 3;
  bool has_first = HALVES == 2 || g < NUM_MODULI;
  bool has_second = HALVES == 2 && g + 8 < NUM_MODULI;
  int64 plane_stride = side.planes.plane_stride;
  uint8* target = (uint8*)side.planes.group(at.batch, at.line, at.start);
  target += g * plane_stride + 16 * t;
  uint8* second = target + 8 * plane_stride;
  const Word* place = at.entries + first;
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
#endif

DEVICE void planes_of(const LaneTables& tables, const Lines& side, const Segment& at,
                      Scaling scaling, int lane) {
  int64 room = side.planes.k_padded - at.start;
  int stop = room < at.share ? (int)room : at.share;
  if (scaling.plain) planes_of<true>(tables, side, at, stop, scaling, lane);
  else planes_of<false>(tables, side, at, stop, scaling, lane);
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
  int row_bits = line_bits + PART_BITS, pitch = chunk + (BANKS >> row_bits);
  Slots& slots = *(Slots*)(tile + ((int64)pitch << row_bits));
  open_slots<blocks>(slots);
  wait_for_last();
  copy_lines(side.x, (int)side.copy, batch, first_line, start, chunk, line_bits, tile,
             pitch);

  // From here on a warp has a part of one line.
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int of_block = warp & ((1 << line_bits) - 1);
  int share = chunk >> 3 << line_bits, shift = (warp >> line_bits) * share;
  const Word* part = tile + PARTS * of_block * pitch + shift;
  const Word* spread_out = part + swizzled(lane) - lane;
#if PARTS == 2
  // The words of a part, then those of the other one.
  int jump = pitch - share;
  auto entry = [=](int64 h) { return spread_out[(int)h + (h < share ? 0 : jump)]; };
#else
  auto entry = [spread_out](int64 h) { return spread_out[(int)h]; };
#endif
  const auto tables = tables_of(lane);  // while entries are on their way
  wait_for_copies();
  // Along the lines a warp has copied the part that it works on.
  if (side.copy == COPY_ACROSS) __syncthreads();
  else __syncwarp();

  FactsOfLine facts = facts_in_cluster<blocks>(entry, PARTS * share, of_block,
                                               line_bits, side.rule, slots);
  int64 line = first_line + of_block;
  if (start == 0 && shift == 0 && lane == 0 && line < side.x.lines)
    facts.store(side.facts, batch * side.x.lines + line);
  Segment segment = {part, pitch, share, batch, line, start + shift};
  if (side.planes.data)
    planes_of(tables, side, segment,
              scaling_of(facts.largest, facts.special, facts.exponent), lane);
}

// Tables of complex entries take twice the registers.
const int BLOCKS_AT_A_TIME = PARTS == 2 ? 2 : 3;

CLUSTERS(1, BLOCKS_AT_A_TIME, lines_in_cluster_of_1, Work);
CLUSTERS(2, BLOCKS_AT_A_TIME, lines_in_cluster_of_2, Work);
CLUSTERS(4, BLOCKS_AT_A_TIME, lines_in_cluster_of_4, Work);
CLUSTERS(8, BLOCKS_AT_A_TIME, lines_in_cluster_of_8, Work);

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
