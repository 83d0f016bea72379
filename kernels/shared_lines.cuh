// Lines in shared memory, and residues of their entries by the matrix units.
//
// A scaled integer is eight bytes, and its sums modulo 16 moduli are a product of the
// bytes by a table.  A warp takes 64 entries of a line at a time, two a lane; the table
// has the moduli in its rows, and four copies of it, each for one lane in four, leave
// neighbouring entries of one modulus in one lane.
//
// A line of complex entries has two rows in shared memory, of real and of imaginary
// parts.
#pragma once
#include "warps.cuh"

const int STEP = 64;  // entries that a warp takes at a time
const int WARPS = ALONG_THREADS / WARP;

// ---- Lines in shared memory ----

const int BANKS = 128 / (int)sizeof(Word);  // one word wide

// Where entry h of a row lies: groups of eight trade places so that what the lanes of
// a warp read at a time, half of each group of 16, lies in different banks.  Words of
// four bytes stay: they are read in two turns as others are.
HD int swizzled(int h) { return sizeof(Word) == 8 ? h ^ (h >> 1 & 8) : h; }

// The first of the two entries of a lane, the other one being 8 further: lane 4 g + t
// takes half a group of 16 where the 16 bytes go to lane 4 (g / 2).
DEVICE int first_entry(int lane) { return 16 * (lane >> 3) + (lane & 7); }

// How lines go to shared memory.
const int COPY_ALONG = 0;   // word by word, the lanes of a warp along k
const int COPY_WIDE = 1;    // the same, 16 bytes at a time
const int COPY_ACROSS = 2;  // the lanes of a warp along the lines, then along k

const int PART_BITS = PARTS - 1;

// Runs `one(h)` for h = 0, step and so on below `count`.  A group of copies leaves the
// loop at its end only: what the first copy after a branch waits for takes as long as
// three more copies.
template <class One>
DEVICE void in_groups(int count, int step, One one) {
  const int TOGETHER = 8;
  int h = 0;
#pragma unroll 1
  for (; h + (TOGETHER - 1) * step < count; h += TOGETHER * step) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) one(h + i * step);
  }
#pragma unroll 1
  for (; h < count; h += step) one(h);
}

// Starts to copy `count` entries from `start` on of 2^line_bits lines from `line` on;
// entries outside the operand become 0.  `count` is a multiple of 512 >> line_bits.  A
// row of one part of a line is `pitch` from the next one.
template <bool inside>
DEVICE void copy_lines(const Operand& x, int how, int64 batch, int64 line, int64 start,
                       int count, int line_bits, Word* target, int pitch) {
  const int SIZE = sizeof(Word), AT_ONCE = 16 / SIZE;
  int tid = threadIdx.x, lines = 1 << line_bits;
  const Word* origin = x.data + batch * x.batch_stride;
  if (how == COPY_ACROSS) {
    int row_bits = line_bits + PART_BITS;
    int row = tid & ((1 << row_bits) - 1), first = tid >> row_bits;
    int of_block = row >> PART_BITS;
    const int step = ALONG_THREADS >> row_bits;  // a multiple of 32: same place in 32
    const Word* source = origin + (line + of_block) * x.line_stride +
                           (start + first) * x.k_stride + (row & PART_BITS);
    int64 source_step = step * x.k_stride;
    Word* place = target + row * pitch + swizzled(first);
    int64 left = line + of_block < x.lines ? x.k - start - first : 0;
    in_groups(count, step, [&](int h) {
      bool real = inside || h < left;
      copy_later<SIZE>(place + h, real ? source : x.data, real ? SIZE : 0);
      source += source_step;
    });
    return;
  }
  int warp = tid / WARP, lane = tid % WARP;
  int of_block = warp & (lines - 1), share = count >> 3 << line_bits;
#if PARTS == 2
  // Lanes of both parts by turns; entries that are 16 further have another place in 32.
  int first = (warp >> line_bits) * share + (lane >> 1);
  const Word* source = origin + (line + of_block) * x.line_stride +
                       (start + first) * x.k_stride + (lane & 1);
  Word* row = target + (2 * of_block + (lane & 1)) * pitch;
  Word *place = row + swizzled(first), *second = row + swizzled(first + 16);
  int64 left = line + of_block < x.lines ? x.k - start - first : 0;
  int64 half = WARP / 2 * x.k_stride;
  in_groups(share, WARP, [&](int h) {
    bool real = inside || h < left, other = inside || h + WARP / 2 < left;
    copy_later<SIZE>(place + h, real ? source : x.data, real ? SIZE : 0);
    copy_later<SIZE>(second + h, other ? source + half : x.data, other ? SIZE : 0);
    source += 2 * half;
  });
#else
  int first = (warp >> line_bits) * share + (how == COPY_WIDE ? AT_ONCE * lane : lane);
  const Word* source =
      origin + (line + of_block) * x.line_stride + (start + first) * x.k_stride;
  Word* place = target + of_block * pitch + swizzled(first);
  int64 left = line + of_block < x.lines ? x.k - start - first : 0;
  if (how == COPY_WIDE) {
    // A share is a multiple of 64 entries: of words of four bytes, half a step.
    int mine = AT_ONCE > 2 ? share - AT_ONCE * lane : share;
    in_groups(mine, AT_ONCE * WARP, [&](int h) {
      int real = inside || h + AT_ONCE <= left ? 16
                 : h < left                    ? SIZE * (int)(left - h)
                                               : 0;
      copy_later<16>(place + h, real ? source + h : x.data, real);
    });
    return;
  }
  int64 source_step = WARP * x.k_stride;
  in_groups(share, WARP, [&](int h) {
    bool real = inside || h < left;
    copy_later<SIZE>(place + h, real ? source : x.data, real ? SIZE : 0);
    source += source_step;
  });
#endif
}

DEVICE void copy_lines(const Operand& x, int how, int64 batch, int64 line, int64 start,
                       int count, int line_bits, Word* target, int pitch) {
  bool inside = start + count <= x.k && line + (1 << line_bits) <= x.lines;
  if (inside)
    copy_lines<true>(x, how, batch, line, start, count, line_bits, target, pitch);
  else
    copy_lines<false>(x, how, batch, line, start, count, line_bits, target, pitch);
}

// ---- Entries ----

// How a line is scaled.
struct Scaling {
  int exponent, e;
  bool plain;
};

// Whether plain lines have integers of 32 bits.
#ifdef SHORT_INTEGERS
const bool IS_SHORT = true;
#else
const bool IS_SHORT = false;
#endif

DEVICE Scaling scaling_of(uint64 largest, int special, int exponent) {
  int e = largest ? top_exponent(largest) : 0;
  bool plain = !special;
  if (sizeof(Word) == 8) plain = plain && is_plain_line(largest, exponent);
  else if (!IS_SHORT) plain = plain && largest && is_plain_single_line(e, exponent);
  else plain = plain && largest && is_short_line(e, exponent);
  return {exponent, e, plain};
}

// Where the lines' bits in FP32 come from: for doubles see `ceiling_in_close`.
#ifdef SINGLE
struct Close {
  float scale;

  DEVICE Close(int e) : scale(as_float((127 + NORM_BITS - 1 - e) << 23)) {}
  DEVICE int ceiling(Word bits) const { return raised_product(bits, scale); }
  // Whether there is such a scale.
  static DEVICE bool has(uint32, uint64 largest) {
    return top_exponent(largest) >= NORM_BITS - 127;
  }
};
#else
struct Close {
  uint32 rebase;

  DEVICE Close(int e) : rebase(close_rebase(e)) {}
  DEVICE int ceiling(Word bits) const { return ceiling_in_close(bits, rebase); }
  static DEVICE bool has(uint32 lowest, uint64 largest) {
    return is_close(lowest, largest);
  }
};
#endif

// The sums of a warp's part of a line, as `sums_of` makes them; `lowest` is the
// smallest upper word of a magnitude in it.
template <class Entry>
DEVICE Sums sums_of_warp(Entry entry, int share, int lane, uint64 largest, int special,
                         uint32 lowest, int w) {
  Sums sums = {0, 0};
  if (!largest) return sums;
  int e = top_exponent(largest);
  if (w != NORM_BITS || special || !is_plain_size(largest)) {
    auto wide = [entry](int64 h) { return widened(entry(h)); };
    return sums_of(wide, lane, share, WARP, e, w);
  }
  if (Close::has(lowest, largest)) {
    const Close close(e);
    uint32 norms = 0;
#pragma unroll 8
    for (int h = lane; h < share; h += WARP) {
      uint32 t = (uint32)close.ceiling(entry(h));
      sums.squares += (uint64)t * t;
      norms += t;
    }
    // Less what comes with every one of them; modulo 2^64 and 2^32.
    uint64 count = (uint32)share / WARP, more = CEILING_BITS;
    sums.norms = norms - (uint32)(count * more);
    sums.squares -= 2 * more * sums.norms + count * more * more;
    return sums;
  }
#pragma unroll 8
  for (int h = lane; h < share; h += WARP) {
    uint32 t = ceiling_in_plain(widened(entry(h)), e, NORM_BITS);
    sums.squares += (uint64)t * t;
    sums.norms += t;
  }
  return sums;
}

#if !WIDE
// How scaled integers are held: with their offset, or those of 32 bits without.
template <bool is_short>
struct Held {
  typedef uint64 Integer;
  static const uint64 ADDED = OFFSET;
};

template <>
struct Held<true> {
  typedef int Integer;
  static const int ADDED = 0;
};

// With an offset, whatever it is held in.
HD uint64 offset_to(uint64, uint64 value) { return value; }
HD uint64 offset_to(uint64 offset, int value) { return offset + (uint64)(int64)value; }

template <bool plain>
DEVICE typename Held<plain && IS_SHORT>::Integer integer_of(Word bits, Scaling line) {
  if constexpr (plain && IS_SHORT) {
    return short_integer<TRUNCATE>(bits, line.exponent);
  } else {
    int none;
    return plain ? integer_in_plain<TRUNCATE>(bits, line.exponent)
                 : scaled_integer<false, TRUNCATE>(widened(bits), line.exponent, &none);
  }
}

// floor(|x| 2^(6 - e))
template <bool plain>
DEVICE uint32 cut_of(Word bits, Scaling line) {
  return plain ? floor_in_plain(bits, line.e, FIRST_LOOK_BITS)
               : (uint32)scaled_floor(widened(bits), FIRST_LOOK_BITS - 1 - line.e);
}

// ---- Residues ----

const int ROWS = 16;  // moduli that a table has room for

// By modulus: bytes of 2^(8 i) and where sums start.  Starts are there twice, for
// compilers that would copy one to its place before every product.
struct SumTables {
  uint32 low[ROWS], high[ROWS];
  int start[ROWS][2];
};

// By modulus: sums of the bytes of an integer x, or of s x with s s = -1; -p and 1 / p.
struct Tables {
  SumTables sums, rotated;
  int minus[ROWS];
  float inverse[ROWS];

  HD constexpr Tables(bool of_sums) : sums(), rotated(), minus(), inverse() {
    for (int l = 0; l < NUM_MODULI; ++l) {
      sums.low[l] = powers_low(l);
      sums.high[l] = powers_high(l);
      int first = bias(l) + (of_sums ? sum_offset(l) : offset(l));
      sums.start[l][0] = sums.start[l][1] = first;
#if PARTS == 2
      rotated.low[l] = rotated_low(l);
      rotated.high[l] = rotated_high(l);
      rotated.start[l][0] = rotated.start[l][1] = rotated_offset(l);
#endif
      minus[l] = -modulus(l);
      inverse[l] = 1.0f / (float)modulus(l);
    }
  }
};

static_assert(NUM_MODULI <= ROWS, "a narrow system has at most 16 moduli");
const int HALVES = NUM_MODULI > ROWS / 2 ? 2 : 1;  // rows g + 8, or none

// What lane 4 g + t needs of the rows g and g + 8 to sum up the bytes of integers.
struct LaneSums {
  uint32 table[4][4];
  int start[4];

  DEVICE LaneSums(const SumTables& sums, int lane) {
    int g = lane >> 2;
    uint32 row[4] = {sums.low[g], sums.low[g + 8], sums.high[g], sums.high[g + 8]};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int word = 0; word < 4; ++word)
        table[i][word] = (lane & 3) == i ? row[word] : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) start[i] = sums.start[g + 8 * (i / 2)][i % 2];
  }

  DEVICE void of(uint64 value, int (*sum)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      multiply_bytes(sum[j], table[j], (uint32)value, (uint32)(value >> 32), start);
  }
};

struct LaneTables {
  LaneSums sums, rotated;
  int minus[2];
  float inverse[2];

  DEVICE LaneTables(const Tables& tables, int lane)
      : sums(tables.sums, lane), rotated(tables.rotated, lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      minus[half] = tables.minus[(lane >> 2) + 8 * half];
      inverse[half] = tables.inverse[(lane >> 2) + 8 * half];
    }
  }

  // Residues of the sums of entry `i` of two.
  DEVICE void reduce(int (*sum)[4], int i, uint32 (*bytes)[4]) const {
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int byte[4];
#pragma unroll
        for (int t = 0; t < 4; ++t)
          byte[t] = balanced_byte(sum[t][2 * half + j], minus[half], inverse[half]);
        bytes[half][2 * i + j] = pack(byte[0], byte[1], byte[2], byte[3]);
      }
  }

  // From two integers a lane, 8 entries apart, to 16 residues modulo each of the lane's
  // moduli: those of the entries from 16 t on.
  DEVICE void residues(const uint64* value, uint32 (*bytes)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int sum[4][4];
      sums.of(value[i], sum);
      reduce(sum, i, bytes);
    }
  }

#if PARTS == 2
  // The same of x + s y, then of x - s y.
  DEVICE void residues(const uint64* x, const uint64* y,
                       uint32 (*bytes)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int of_x[4][4], of_y[4][4], sum[4][4];
      sums.of(x[i], of_x);
      rotated.of(y[i], of_y);
#pragma unroll
      for (int sign = 0; sign < 2; ++sign) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          int more = of_y[j / 4][j % 4];
          sum[j / 4][j % 4] = of_x[j / 4][j % 4] + (sign ? -more : more);
        }
        reduce(sum, i, bytes[sign]);
      }
    }
  }
#endif
};

// From the cuts of a lane's two entries to four bytes: lanes of even t get those of the
// entries from `cut_entry` on.
DEVICE uint32 gathered_cuts(uint32 first, uint32 second, int lane) {
  uint32 pairs = (first | second << 16) << (lane & 1) * 8;
  pairs |= exchanged_word(pairs, 1);
  uint32 others = exchanged_word(pairs, 2);
  return lane & 2 ? others >> 16 | (pairs & 0xffff0000u)
                  : (pairs & 0xffff) | others << 16;
}

DEVICE int cut_entry(int lane) { return first_entry(lane & ~3) + (lane & 2) * 4; }
#endif
