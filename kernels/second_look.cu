// The second look of a certificate: 18 bits an entry, lines that scaling did not round,
// and entries whose terms are all too small to be seen; see engines/cpu_certificate.py.
#include "certificate.cuh"
#include "shares.cuh"

const int SECOND_LOOK_BITS = 18;
const int DIGIT_BITS = 6;
const int DIGITS = 3;
const int SUMS = 2 * DIGITS - 1;  // products of digits by their weight 2^(6 i)
const int DOUBLE_BITS = 53;
const int LOOK_TILE = 512;        // entries of such a square are counted together
const int64 MOST_EXPONENTS = 1 << 28;

// Planes floor(|x| 2^(17 - e)) in three digits of 6 bits, the lowest first, and 1 for
// every entry that is not 0.
struct Cuts {
  DEVICE void operator()(const uint64* bits, int exponent, int e, uint64* target,
                         int64 step) const {
    int bytes[GROUP];
    uint32 cut[GROUP];
    for (int i = 0; i < GROUP; ++i)
      cut[i] = (uint32)scaled_floor(bits[i], SECOND_LOOK_BITS - 1 - e);
    for (int d = 0; d < DIGITS; ++d) {
      for (int i = 0; i < GROUP; ++i) bytes[i] = cut[i] >> (DIGIT_BITS * d) & 63;
      target[d * step] = pack_group(bytes);
    }
    for (int i = 0; i < GROUP; ++i)
      bytes[i] = magnitude(bits[i]) != 0 && is_finite(bits[i]);
    target[DIGITS * step] = pack_group(bytes);
  }
};

KERNEL void cuts_along(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Cuts(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void cuts_across(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Cuts(), x, facts.exponents, facts.largest, planes, tile);
}

// Whether scaling to integers rounds x: a bit of f lies below 2^0.
DEVICE bool is_rounded(uint64 bits, int exponent) {
  int shift;
  uint64 f = mantissa(bits, &shift);
  shift += exponent;
  if (shift >= 0 || !f) return false;
  return shift <= -64 || (f & ((1ull << -shift) - 1)) != 0;
}

// Marks the lines with an entry that scaling rounds.
template <class Lines>
DEVICE void mark_rounded(Lines lines, Operand x, Share share, LineFacts facts,
                         int* rounded, uint64* scratch) {
  bool any = false;
  if (share.real) {
    int exponent = facts.exponents[share.fact];
#pragma unroll 8
    for (int64 h = share.start; h < share.stop; h += share.step)
      any |= is_rounded(x.at(share.batch, share.line, h), exponent);
  }
  any = lines.over(any, scratch, TakeUnion());
  if (share.real && lines.writes() && any) rounded[share.fact] = 1;
}

KERNEL void rounded_along(Operand x, int64 depth, LineFacts facts, int* rounded) {
  __shared__ uint64 scratch[ALONG_THREADS];
  mark_rounded(Along(), x, share_along(x, depth), facts, rounded, scratch);
}

KERNEL void rounded_across(Operand x, int64 depth, LineFacts facts, int* rounded) {
  __shared__ uint64 scratch[ALONG_THREADS];
  mark_rounded(Across(), x, share_across(x, depth), facts, rounded, scratch);
}

// 127 times the product of the 18-bit planes, as float64 holds it.
DEVICE uint64 least(const int* products, int64 plane_stride, int64 offset) {
  uint64 sum = 0;
  for (int i = SUMS - 1; i >= 0; --i)
    sum = (sum << DIGIT_BITS) + (uint64)products[i * plane_stride + offset];
  sum *= 127;
  if (!sum) return 0;
  int excess = bit_length(sum) - DOUBLE_BITS;
  if (excess <= 0) return sum;
  uint64 half = 1ull << (excess - 1);
  return (sum + half - 1 + (sum >> excess & 1)) >> excess << excess;
}

// The exponent of a part of E, as frexp gives it.
DEVICE int bits_of_error(uint64 norm, int spare) {
  return bit_length(norm) + UNIT_BITS - spare;
}

// A tile of the product of one matrix.  `look` 0 takes the maximum of what entries need
// that can be seen, and counts the others by squares; `look` 1 goes over squares that
// have some.  `factor` times
// 2^`factor_shift` goes with the product of planes, 2^`allowed` with an entry's largest
// term.
KERNEL void second_look(const int* products, int64 plane_stride, int64 row_stride,
                        Operand a, LineFacts rows, const int* rounded_rows, Operand b,
                        LineFacts columns, const int* rounded_columns, int64 factor,
                        int64 factor_shift, int64 allowed, int64 deficit, int64 width,
                        int64 look, int* unseen, int* missing) {
  Entries entries(a.lines, b.lines, (int)width);
  if (entries.outside) return;
  int64 j = entries.column;
  uint64 norm_b = columns.norms[j];
  bool moved_b = norm_b && rounded_columns[j];
  int spare_b = norm_b ? spare_bits(columns, j) : 0;
  int64 squares = (b.lines + LOOK_TILE - 1) / LOOK_TILE;
  int need = 0;
  if (moved_b && entries.row == 0)
    need = max(need, line_deficit(deficit, norm_b, spare_b));
  for (int64 i = entries.row; i < a.lines; i += entries.step) {
    uint64 norm_a = rows.norms[i];
    if (!norm_a) continue;
    int spare_a = spare_bits(rows, i);
    bool moved_a = rounded_rows[i];
    if (moved_a && j == 0) need = max(need, line_deficit(deficit, norm_a, spare_a));
    if (!norm_b || (!moved_a && !moved_b)) continue;
    int* square = &unseen[i / LOOK_TILE * squares + j / LOOK_TILE];
    if (look && !*square) continue;
    int64 offset = i * row_stride + j;
    if (products[SUMS * plane_stride + offset] == 0) continue;  // an exact zero
    uint64 lower = least(products, plane_stride, offset) * (uint64)factor;
    if (lower) {
      if (moved_a)
        need = max(need, bits_short(norm_b, spare_a, (int)factor_shift, lower));
      if (moved_b)
        need = max(need, bits_short(norm_a, spare_b, (int)factor_shift, lower));
    } else if (!look) {
      atomicAdd(square, 1);
    } else if (*square * a.k > MOST_EXPONENTS) {
      need = HOPELESS;
    } else {
      // L by its largest term, which lies in [2^most, 2^(most + 2)).
      int most = -2 * HOPELESS;
      for (int64 h = 0; h < a.k; ++h) {
        uint64 x = magnitude(a.at(0, i, h)), y = magnitude(b.at(0, j, h));
        if (x && y && is_finite(x) && is_finite(y))
          most = max(most, top_exponent(x) + top_exponent(y));
      }
      int error = -2 * HOPELESS;
      if (moved_a) error = max(error, bits_of_error(norm_b, spare_a));
      if (moved_b) error = max(error, bits_of_error(norm_a, spare_b));
      int e = top_exponent(rows.largest[i]), f = top_exponent(columns.largest[j]);
      int lower = most - e - f + 2 * (FIRST_LOOK_BITS - 1);
      need = max(need, error > DOUBLE_RANGE ? HOPELESS : error - (int)allowed - lower);
    }
  }
  need = need < HOPELESS ? need : HOPELESS;
  if (need > 0 && need > *(volatile int*)missing) atomicMax(missing, need);
}
