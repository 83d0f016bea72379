// Stage reconstruct_tiles: residues of one byte, tile by tile, to C, rounded once.
//
// A tile is 128 rows by 256 columns, in two groups of 64 rows.  Of a group and a plane
// 8 chunks follow each other, 32 columns each, of 128 parts of 16 bytes; see
// engines/cuda_tiles.py for the entries of a part.  A warp takes a patch at a time, 16
// rows of a chunk, in 4 steps of 8 parts: every thread has a word of each plane, which
// is two entries beside each other in each of two rows.
#include "checksum.cuh"
#include "launches.cuh"
#include "limbs.cuh"
#include "results.cuh"

#if PARTS == 2 && (SYMMETRIC || PRODUCTS != 1)
#error "complex results have neither mirrored tiles nor products of half the size"
#endif

const int TILE_ROWS = 128;
const int TILE_COLUMNS = 256;
const int GROUP_ROWS = 64;
const int PATCH_ROWS = 16;
const int PATCH_COLUMNS = 32;
const int STEPS = 4;           // of a patch
const int STEP_BYTES = 128;    // of a plane
const int PLANE_BYTES = 2 * 8 * 128 * 16;
const int PLANES = RESIDUES * PRODUCTS;
const int STEP_WORDS = PLANES * LANES;
// Steps that come while one is worked on; in shared memory there is room for one more.
const int AHEAD = PRODUCTS == 1 ? PARTS == 1 ? 3 : 1 : 0;
const int HALVES = PRODUCTS == 1 ? 1 : 2;  // of a result's rows, and of its columns
const int MIRROR_PITCH = PATCH_ROWS + 2;
// Few words stay in registers while a thread works on their halves.
const bool WORDS_KEPT = PLANES <= 20;
const int WORD_STEP = WORDS_KEPT ? 1 : LANES;

// Everything that the kernel is told.
struct Tiles {
  const uint8* residues;
  int64 tile_rows, tile_columns;
  int64 half_rows, half_columns;  // first of the lower half, and of the right one
  int64 blocks;                   // of a group of rows
  Operand a;
  LineFacts rows;
  int64 batch_a;
  Operand b;
  LineFacts columns;
  int64 batch_b;
  Result out;
  Beside low, remainders;
  int* flags;
};

// Exponents of lines, by what they add to the exponent field of a result.  A line that
// is not finite gets a number that no field comes back from.
const int FAR_FIELD = 1 << 28;
const int FIELD_BASE = PRODUCT_BITS + Format<Bits>::LARGEST_EXPONENT - 1;
const uint32 LARGEST_FIELD = 2 * Format<Bits>::LARGEST_EXPONENT - 2;

// A group of rows of a tile, by its first entry.
struct Group {
  int64 batch, row, column;
  int index;

  DEVICE Group(const Tiles& x, uint32 block) {
    uint32 tile = block / 2, tile_columns = (uint32)x.tile_columns;
    index = block % 2;
#if SYMMETRIC
    // Squares of two tiles, on the diagonal and above it, row by row.
    uint32 squares = tile_columns * (tile_columns + 1) / 2, i = 0;
    uint32 square = tile / 2 % squares, in_row = tile_columns;
    batch = tile / 2 / squares;
    for (; square >= in_row; ++i) square -= in_row--;
    row = 2 * i + tile % 2;
    column = i + square;
#else
    column = tile % tile_columns;
    tile /= tile_columns;
    row = tile % (uint32)x.tile_rows;
    batch = tile / (uint32)x.tile_rows;
#endif
    row = row * TILE_ROWS + index * GROUP_ROWS;
    column *= TILE_COLUMNS;
  }
};

// What belongs to the group in one quarter of C, or in all of it.
struct Quarter {
  int64 batch, row, column;
  int rows, columns;  // that there are, from the first one on
  int lower, right;   // 1 for the lower half of rows, the right half of columns

  DEVICE Quarter(const Tiles& x, const Group& group, int lower, int right)
      : batch(group.batch), lower(lower), right(right) {
    row = group.row + lower * x.half_rows;
    column = group.column + right * x.half_columns;
    rows = least(x.out.rows - row, x.half_rows - group.row, GROUP_ROWS);
    columns = least(x.out.columns - column, x.half_columns - group.column,
                    TILE_COLUMNS);
  }
  static DEVICE int least(int64 inside, int64 of_half, int most) {
    if (HALVES == 2 && of_half < inside) inside = of_half;
    return inside < most ? (int)inside : most;
  }
};

// ---- Memory ----

// What is copied at once, and must lie so.
struct alignas(16) Sixteen {
  uint32 words[4];
};

// What a thread reads of a step is its own words; how they get to shared memory is the
// warp's business: a thread copies 16 bytes, and a warp four planes at once.  `source`
// and `target` are the thread's own.
#if MATRIX_UNITS
template <int plane>
DEVICE void fetch_from(const uint8* source, uint32 target, int ahead) {
  if constexpr (plane < PLANES) {
    if (plane + 4 <= PLANES || plane + ahead < PLANES)
      asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%3], 16;" ::"r"(target),
                   "l"(source), "n"(plane * STEP_BYTES), "n"(plane * PLANE_BYTES)
                   : "memory");
    fetch_from<plane + 4>(source, target, ahead);
  }
}
#endif

struct Copies {
  int offset, ahead;  // of the thread's 16 bytes; its plane among four
  uint32 target;      // of the warp's first buffer

  DEVICE Copies(uint32* buffers, int lane) {
#if MATRIX_UNITS
    ahead = lane / 8;
    offset = ahead * PLANE_BYTES + lane % 8 * 16;
    target = (uint32)__cvta_generic_to_shared(buffers) + lane * 16;
    target = (uint32)settled((int)target);
#else
    offset = lane * 4;
#endif
  }
  // A step to one of the buffers; `source` is of the thread.
  DEVICE void fetch(const uint8* source, uint32* buffers, int buffer, int lane) const {
#if MATRIX_UNITS
    fetch_from<0>(source, target + buffer * (STEP_WORDS * 4), ahead);
#else
    for (int plane = 0; plane < PLANES; ++plane)
      buffers[buffer * STEP_WORDS + plane * LANES + lane] =
          *(const uint32*)(source + (int64)plane * PLANE_BYTES);
#endif
  }
};

DEVICE void end_of_step() {
#if MATRIX_UNITS
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but those ahead have come.
DEVICE void wait_for_step() {
#if MATRIX_UNITS
  asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
#endif
  __syncwarp();
}

// ---- Entries ----

// Two entries beside each other, counted from the quarter's first one.
struct Pair {
  int row, column;
  int fields[2];     // what lines add to the exponent fields
  Bits* target;
  Bits* mirror;      // in shared memory
};

// An entry that is 0, close to P / 2, subnormal, infinite or of a line that is not finite.
DEVICE Bits unusual(const Tiles& x, const Quarter& quarter, const Pair& at, int entry,
                    int part, uint32* value, bool* negative, int* exponents) {
  int64 row = quarter.row + settled(at.row);
  int64 column = quarter.column + settled(at.column) + entry;
  int64 of_a = x.batch_a > 1 ? quarter.batch : 0;
  int64 of_b = x.batch_b > 1 ? quarter.batch : 0;
  int64 of_row = of_a * x.out.rows + row, of_column = of_b * x.out.columns + column;
  *negative = corrected(value, *negative);
  *exponents = x.rows.exponents[of_row] + x.columns.exponents[of_column];
  Bits bits = rounded<LIMB_WORDS, Bits>(value, *negative, *exponents + LIMB_PAD);
  int special = x.rows.special[of_row] | x.columns.special[of_column];
  return finished(bits, special, x.a, of_a, row, x.b, of_b, column, part, x.flags);
}

DEVICE void put(const Beside& result, int64 batch, int64 row, int64 column, int part,
                uint64 bits) {
  result.at(batch, row, column)[part] = bits;
#if SYMMETRIC
  result.at(batch, column, row)[part] = bits;
#endif
}

// Sums of residues to one part of two results.
DEVICE void finish(const Tiles& x, const Quarter& quarter, const Pair& at, int part,
                   LimbPair* sums, bool negated, const Weights& weights,
                   const bool* inside, Bits* results) {
  take_quotient(sums, negated, weights);
  uint32 value[2][LIMB_WORDS];
  bool negative[2], usual[2];
  int exponents[2];
#pragma unroll
  for (int entry = 0; entry < 2; ++entry) {
    limb_value(sums, entry, value[entry]);
    uint32 sign = value[entry][LIMB_WORDS - 1] & 0x80000000u;
    negative[entry] = sign;
    negate_words(value[entry], sign);
    uint32 top = value[entry][LIMB_WORDS - 1];
    int zeros = leading_zeros(top);
    uint32 field = (uint32)(at.fields[entry] - zeros);
    round_inside<LIMB_WORDS>(value[entry], zeros, field, sign, &results[entry]);
    usual[entry] = top - 1 < LIMB_HALF_TOP - 1 && field <= LARGEST_FIELD;
    exponents[entry] = FIELD_BASE - at.fields[entry];
  }
  if (!(usual[0] && usual[1])) {
#pragma unroll
    for (int entry = 0; entry < 2; ++entry) {
      if (!usual[entry] && inside[entry])
        results[entry] = unusual(x, quarter, at, entry, part, value[entry],
                                 &negative[entry], &exponents[entry]);
    }
  }
#if WITH_LOW || WITH_CHECK
#pragma unroll
  for (int entry = 0; entry < 2; ++entry) {
    if (!inside[entry]) continue;
    int64 row = quarter.row + at.row, column = quarter.column + at.column + entry;
#if WITH_LOW
    uint64 low = 0;
    if (is_finite(results[entry]))
      low = left_over<LIMB_WORDS>(value[entry], negative[entry],
                                  exponents[entry] + LIMB_PAD, results[entry]);
    put(x.low, quarter.batch, row, column, part, low);
#endif
#if WITH_CHECK
    // `value` is shifted to the left.
    uint64 remainder = words_remainder<LIMB_WORDS>(value[entry], negative[entry]);
    put(x.remainders, quarter.batch, row, column, part,
        rotated(remainder, (PRIME_BITS - LIMB_PAD % PRIME_BITS) % PRIME_BITS));
#endif
  }
#endif
}

// Writes two results, all parts of each.
DEVICE void write(const Tiles& x, const Pair& at, const bool* inside,
                  Bits (*results)[2]) {
  const int TWO = 2 * sizeof(Bits);
  if (!inside[0]) return;
#if PARTS == 2
#pragma unroll
  for (int entry = 0; entry < 2; ++entry) {
    if (!inside[entry]) break;
    Bits* target = at.target + entry * x.out.column_stride;
    if ((uint64)target % TWO == 0) {
      store_pair(target, results[0][entry], results[1][entry]);
    } else {
      target[0] = results[0][entry];
      target[1] = results[1][entry];
    }
  }
#else
  if (inside[1] && x.out.column_stride == 1 && (uint64)at.target % TWO == 0) {
    store_pair(at.target, results[0][0], results[0][1]);
  } else {
    at.target[0] = results[0][0];
    if (inside[1]) at.target[x.out.column_stride] = results[0][1];
  }
#endif
#if SYMMETRIC
  at.mirror[0] = results[0][0];
  at.mirror[MIRROR_PITCH] = results[0][1];
#endif
}

// ---- Steps ----

// What a warp and a thread of it have in shared memory.
struct Room {
  const int* row_fields;
  const int* column_fields;
  Bits* mirror;
};

DEVICE Pair pair_at(const Room& room, const Quarter& quarter, int row, int column,
                    Bits* target) {
  Pair at;
  at.row = row;
  at.column = column;
  at.target = target;
  int field = room.row_fields[quarter.lower * GROUP_ROWS + row];
  const int* fields = room.column_fields + quarter.right * TILE_COLUMNS + column;
#pragma unroll
  for (int entry = 0; entry < 2; ++entry) at.fields[entry] = field + fields[entry];
  at.mirror = room.mirror + column % PATCH_COLUMNS * MIRROR_PITCH + row % PATCH_ROWS;
  return at;
}

// The bytes of product `q`; those of residues -1 - r where it is taken away.
DEVICE void product_bytes(const uint32* words, int q, uint32 half, bool negated,
                          uint32* bytes) {
  entry_bytes(words + q * WORD_STEP, PRODUCTS * WORD_STEP, half,
              negated ? 0xffffffffu : 0, bytes);
}

// Adds residues of product `q`, or takes them away.
DEVICE void add_product(const LimbPair* from, const uint32* words, int q, uint32 half,
                        bool negated, const Weights& weights, LimbPair* to) {
  uint32 bytes[2 * BYTE_WORDS];
  product_bytes(words, q, half, negated, bytes);
  add_residues(from, bytes, weights, to);
}

// The two entries of one half of a thread's words, in every quarter of C; `row`,
// `column` and `target` are the first one's in the first quarter.
DEVICE void entries_of_half(const Tiles& x, const Group& group, const Room& room,
                            int row, int column, Bits* target, const uint32* words,
                            uint32 half, const LimbPair* bias,
                            const Weights& weights) {
  auto inside = [&](const Quarter& quarter, bool* found) {
    for (int entry = 0; entry < 2; ++entry)
      found[entry] = row < quarter.rows && column + entry < quarter.columns;
  };
  LimbPair sums[SUM_PAIRS];
#if PRODUCTS == 1
  Quarter quarter(x, group, 0, 0);
  Pair at = pair_at(room, quarter, row, column, target);
  bool there[2];
  inside(quarter, there);
  Bits results[PARTS][2];
  uint32 bytes[2 * BYTE_WORDS];
  product_bytes(words, 0, half, false, bytes);
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    Weights of_part = weights.of(part);
    add_residues(bias, bytes, of_part, sums);
    finish(x, quarter, at, part, sums, false, of_part, there, results[part]);
  }
  write(x, at, there, results);
#else
  auto write = [&](int lower, int right, LimbPair* sums, bool negated) {
    Quarter quarter(x, group, lower, right);
    Bits* place = target + lower * x.half_rows * x.out.row_stride +
                    right * x.half_columns * x.out.column_stride;
    Pair at = pair_at(room, quarter, row, column, place);
    bool there[2];
    inside(quarter, there);
    Bits results[1][2];
    finish(x, quarter, at, 0, sums, negated, weights, there, results[0]);
    ::write(x, at, there, results);
  };
  // Products P1 to P7 of a level of Strassen's algorithm as Winograd has it.
  LimbPair base[SUM_PAIRS];
  add_product(bias, words, 0, half, false, weights, base);
  add_product(base, words, 1, half, false, weights, sums);
  write(0, 0, sums, false);  // P1 + P2
  add_product(base, words, 5, half, false, weights, base);
  add_product(base, words, 4, half, false, weights, sums);
  add_product(sums, words, 2, half, false, weights, sums);
  write(0, 1, sums, false);  // P1 + P6 + P5 + P3
  add_product(base, words, 6, half, false, weights, base);
  add_product(base, words, 4, half, false, weights, sums);
  write(1, 1, sums, false);  // P1 + P6 + P7 + P5
  add_product(base, words, 3, half, true, weights, base);
  write(1, 0, base, true);   // P1 + P6 + P7 - P4
#endif
}

#if SYMMETRIC
// A patch that lies in shared memory by columns, as rows of the lower triangle.
DEVICE void write_mirrored(const Tiles& x, int64 batch, int64 row, int64 column,
                           const Bits* mirror, int lane) {
  int64 i = row + lane % PATCH_ROWS;
  for (int c = lane / PATCH_ROWS; c < PATCH_COLUMNS; c += LANES / PATCH_ROWS) {
    if (i < x.out.rows && column + c < x.out.columns)
      *x.out.at(batch, column + c, i) = mirror[c * MIRROR_PITCH + lane % PATCH_ROWS];
  }
}
#endif

// Fields of all lines that the group meets.
DEVICE void line_fields(const LineFacts& facts, int64 count, int64 batch, int64 first,
                        int64 half, int lines, int base, int* fields) {
  for (int i = threadIdx.x; i < HALVES * lines; i += blockDim.x) {
    int64 line = first + i % lines + i / lines * half, fact = batch * count + line;
    fields[i] = 0;
    if (line >= count) continue;
    // Both are read at once.
    int special = facts.special[fact], exponent = facts.exponents[fact];
    fields[i] = special ? FAR_FIELD : base - exponent;
  }
}

KERNEL void reconstruct_tiles(Tiles x) {
  let_next_start();
  DYNAMIC_SHARED(Sixteen, storage);
  uint32* shared = storage->words;
  __shared__ int row_fields[HALVES * GROUP_ROWS];
  __shared__ int column_fields[HALVES * TILE_COLUMNS];
  uint32 blocks = (uint32)x.blocks;
  Group group(x, blockIdx.x / blocks);
  int lane = settled(threadIdx.x % LANES), warp = settled(threadIdx.x / LANES);
  int warps = blockDim.x / LANES;
  Weights weights(lane);
  LimbPair bias[SUM_PAIRS];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32 same = (uint32)settled((int)LIMB_BIAS);
#pragma unroll
    for (int pair = 0; pair < SUM_PAIRS; ++pair) bias[pair].sums[i] = same;
  }
  // No other quarter has more entries than the first one.
  Quarter most(x, group, 0, 0);
  // The kernel before this one let it start when facts were there.
  line_fields(x.rows, x.out.rows, x.batch_a > 1 ? group.batch : 0, group.row,
              x.half_rows, GROUP_ROWS, FIELD_BASE, row_fields);
  line_fields(x.columns, x.out.columns, x.batch_b > 1 ? group.batch : 0, group.column,
              x.half_columns, TILE_COLUMNS, 0, column_fields);
  wait_for_last();
  if (most.rows <= 0 || most.columns <= 0) return;

  uint32* buffers = shared + warp * (AHEAD + 1) * STEP_WORDS;
  Bits* mirrors = (Bits*)(shared + warps * (AHEAD + 1) * STEP_WORDS);
  Room room = {row_fields, column_fields,
               mirrors + warp * PATCH_COLUMNS * MIRROR_PITCH};
  Copies copies(buffers, lane);

  // The patches that hold entries, in the order of memory.
  int high = (most.rows + PATCH_ROWS - 1) / PATCH_ROWS;
  int patches = high * ((most.columns + PATCH_COLUMNS - 1) / PATCH_COLUMNS);
  int stride = warps * blocks, next = blockIdx.x % blocks * warps + warp;
  const uint8* residues =
      x.residues + (blockIdx.x / blocks / 2 * (int64)PLANES * 2 + group.index) *
                       (PLANE_BYTES / 2) + copies.offset;
  int next_row, next_column;
  const uint8* next_source;
  auto look = [&] {
    int chunk = (uint32)next / (uint32)high, part = next - chunk * high;
    next_row = part * PATCH_ROWS;
    next_column = chunk * PATCH_COLUMNS;
    next_source = residues + (chunk * (GROUP_ROWS / PATCH_ROWS) + part) *
                                 (STEPS * STEP_BYTES);
  };
  look();
  for (int step = 0; step < AHEAD; ++step) {
    if (next < patches)
      copies.fetch(next_source + step * STEP_BYTES, buffers, step, lane);
    end_of_step();
  }
  __syncthreads();
  int lane_row = lane / 16, lane_column = lane % 4 * 8 + lane / 4 % 4 * 2;
  while (next < patches) {
    int first_row = next_row, first_column = next_column;
    int row = settled(first_row + lane_row);
    int column = settled(first_column + lane_column);
    Bits* target = x.out.at(group.batch, group.row + row, group.column + column);
    const uint8* source = next_source + AHEAD * STEP_BYTES;
    next += stride;
    look();
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      bool later = step + AHEAD >= STEPS;
      if (later && step + AHEAD == STEPS) source = next_source;
      if (!later || next < patches)
        copies.fetch(source, buffers, (step + AHEAD) % (AHEAD + 1), lane);
      end_of_step();
      source += STEP_BYTES;
      wait_for_step();
      const uint32* words = buffers + step % (AHEAD + 1) * STEP_WORDS + lane;
      uint32 kept[WORDS_KEPT ? PLANES : 1];
      if (WORDS_KEPT) {
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
          kept[WORDS_KEPT ? plane : 0] = words[plane * LANES];
        words = kept;
      }
#pragma unroll 1
      for (uint32 half = 0; half < 2; ++half)
        entries_of_half(x, group, room, row + 8 * (int)half, column,
                        target + 8 * half * x.out.row_stride, words, half, bias,
                        weights);
      row += 2;
      target += 2 * x.out.row_stride;
      __syncwarp();  // the buffer is free
    }
#if SYMMETRIC
    write_mirrored(x, group.batch, group.row + first_row, group.column + first_column,
                   room.mirror, lane);
    __syncwarp();
#endif
  }
}
