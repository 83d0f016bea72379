// The exact integer C' from its residues of one byte, two entries at a time.
//
//   C' = sum of r_l W_l - q P,   see limb_tables.py,
//
// where W_l and P come in limbs of 8 bits: sums of limbs are small, and made by matrix
// units where there are some.  A unit multiplies bytes of eight rows and sixteen by four
// neighbouring threads a row; here a row is not one entry but four, one of each thread,
// since a thread's two columns have no weights but for its own bytes.  So nothing has
// to be exchanged.
#pragma once
#include "arithmetic.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MATRIX_UNITS 1
#else
#define MATRIX_UNITS 0
#endif

const int RESIDUES = PARTS * NUM_MODULI;    // of an entry in a product
const int BYTE_WORDS = (RESIDUES + 3) / 4;  // four a word
const int LIMB_PAIRS = (LIMBS + 1) / 2;
const int SUM_PAIRS = LIMB_PAIRS + 1;  // the last one's sums are 2^16 S / P
const int LANES = 32;

// Two limbs of one entry, then those of the other.
struct LimbPair {
  uint32 sums[4];
};

// What a thread gives to the matrix units besides residues.
struct Weights {
  static const int MOST_KEPT = 72;  // registers
  static const bool KEPT = PARTS == 1 && WEIGHT_COUNT <= MOST_KEPT;
  static const int WEIGHT_ROWS = 3;

#if MATRIX_UNITS
  uint32 kept[KEPT ? WEIGHT_COUNT : 1];
  const uint32* row;

  DEVICE Weights(int lane) {
    int column = lane / 4;
    row = limb_weights + (column / 2 == lane % 4 ? column % 2 : 2) * WEIGHT_COUNT;
    if (KEPT) {
#pragma unroll
      for (int i = 0; i < WEIGHT_COUNT; ++i) kept[i] = row[i];
    }
  }
  DEVICE uint32 at(int i) const { return KEPT ? kept[KEPT ? i : 0] : row[i]; }
#else
  const uint32* row;

  DEVICE Weights(int) : row(limb_weights) {}
#endif
  // Those of a part of the result; there are others where it has two.
  DEVICE Weights of(int part) const {
    Weights other = *this;
    if (PARTS > 1) other.row += part * WEIGHT_ROWS * WEIGHT_COUNT;
    return other;
  }
};

// Sums from `from` on, of 4 or 8 bytes each of two entries times weights from `index` on.
// `bytes` holds the words of both entries by turns.
template <int words, bool is_signed>
DEVICE LimbPair multiplied(const LimbPair& from, const uint32* bytes,
                           const Weights& weights, int index) {
  LimbPair to;
#if MATRIX_UNITS
  const uint32* c = from.sums;
  uint32* d = to.sums;
  uint32 b = weights.at(index);
  if (words == 2) {
    const int second = words == 2 ? 2 : 0;
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(bytes[0]), "r"(bytes[1]), "r"(bytes[second]), "r"(bytes[second + 1]),
          "r"(b), "r"(weights.at(index + second / 2)), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  } else if (is_signed) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(bytes[0]), "r"(bytes[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(bytes[0]), "r"(bytes[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  }
#else
  for (int i = 0; i < 4; ++i) {
    int sum = (int)from.sums[i];
    for (int w = 0; w < words; ++w) {
      uint32 weight = weights.row[i % 2 * WEIGHT_COUNT + index + w];
      uint32 word = bytes[2 * w + i / 2];
      sum = is_signed ? dot4(weight, word, sum) : (int)unsigned_dot4(weight, word, sum);
    }
    to.sums[i] = (uint32)sum;
  }
#endif
  return to;
}

// Residues of both entries of one half (0 or 1) of a thread's words: word l holds those
// modulo p_l of four entries.  `flip` is 0, or -1 for -1 - r instead of r.
DEVICE void entry_bytes(const uint32* residues, int stride, uint32 half, uint32 flip,
                        uint32* bytes) {
  uint32 by_turns = half ? 0x7362 : 0x5140;
#pragma unroll
  for (int w = 0; w < BYTE_WORDS; ++w) {
    int last = RESIDUES - 4 * w - 1;
    const uint32* four = residues + 4 * w * stride;
    uint32 low = permuted(four[0], four[last < 1 ? 0 : stride], by_turns);
    if (last < 2) {  // weights of other bytes are 0
      bytes[2 * w] = low ^ flip;
      bytes[2 * w + 1] = low >> 16 ^ flip;
    } else {
      uint32 high = permuted(four[2 * stride], four[(last < 3 ? 2 : 3) * stride], by_turns);
      bytes[2 * w] = permuted(low, high, 0x5410) ^ flip;
      bytes[2 * w + 1] = permuted(low, high, 0x7632) ^ flip;
    }
  }
}

// Sums of limbs of W_l and W_l / P, from `from` on, of residues of one kind of product.
DEVICE void add_residues(const LimbPair* from, const uint32* bytes,
                         const Weights& weights, LimbPair* to) {
#pragma unroll
  for (int pair = 0; pair < SUM_PAIRS; ++pair) {
    LimbPair sums = from[pair];
#pragma unroll
    for (int w = 0; w + 1 < BYTE_WORDS; w += 2)
      sums = multiplied<2, true>(sums, bytes + 2 * w, weights, pair * BYTE_WORDS + w);
    if (BYTE_WORDS % 2) {
      const int w = BYTE_WORDS - 1;
      sums = multiplied<1, true>(sums, bytes + 2 * w, weights, pair * BYTE_WORDS + w);
    }
    to[pair] = sums;
  }
}

// From sums of residues to those of C', whose limbs are below 2^25.  `negated` tells
// whether residues of one product came as -1 - r.
DEVICE void take_quotient(LimbPair* sums, bool negated, const Weights& weights) {
  uint32 quotients[2];
#pragma unroll
  for (int entry = 0; entry < 2; ++entry) {
    const uint32* fraction = sums[LIMB_PAIRS].sums + 2 * entry;
    uint32 scaled = fraction[0] + (fraction[1] << 8);
    if (negated) scaled += NEGATED_FRACTION;
    // The integer above 2^16, and 1 for the weights that everybody adds.
    quotients[entry] = permuted(scaled, negated ? 0x101 : 1, 0x5432);
  }
#pragma unroll
  for (int pair = 0; pair < LIMB_PAIRS; ++pair)
    sums[pair] = multiplied<1, false>(sums[pair], quotients, weights,
                                      SUM_PAIRS * BYTE_WORDS + pair);
}

// C' of one entry, shifted to the top of LIMB_WORDS words, in two's complement.
DEVICE void limb_value(const LimbPair* sums, int entry, uint32* value) {
  uint32 limbs[4 * LIMB_WORDS];
#pragma unroll
  for (int i = 0; i < 4 * LIMB_WORDS; ++i) {
    const int empty = 4 * LIMB_WORDS - LIMBS;
    int index = i < empty ? 0 : i - empty;
    limbs[i] = i < empty ? 0 : sums[index / 2].sums[2 * entry + index % 2];
  }
  uint32 carry = 0;
#pragma unroll
  for (int i = 0; i < LIMB_WORDS; ++i) {
    uint32 low = limbs[4 * i] + (limbs[4 * i + 1] << 8) + carry;
    uint32 high = limbs[4 * i + 2] + (limbs[4 * i + 3] << 8);
    uint64 word = ((uint64)high << 16) + low;
    value[i] = (uint32)word;
    carry = (uint32)(word >> 32);
  }
}

// Words to those of the opposite number, where that is wanted.
DEVICE void negate_words(uint32* value, bool wanted) {
#ifdef __CUDA_ARCH__
  // The compiler does not find the chain of borrows.
  if (LIMB_WORDS == 4) {
    const int last = LIMB_WORDS == 4 ? 3 : 0;
    asm("{ .reg .pred p;\n"
        "setp.ne.u32 p, %4, 0;\n"
        "@p sub.cc.u32 %0, 0, %0;\n"
        "@p subc.cc.u32 %1, 0, %1;\n"
        "@p subc.cc.u32 %2, 0, %2;\n"
        "@p subc.u32 %3, 0, %3; }"
        : "+r"(value[0]), "+r"(value[last / 3]), "+r"(value[last * 2 / 3]),
          "+r"(value[last])
        : "r"((uint32)wanted));
    return;
  }
#endif
  if (!wanted) return;
  uint64 carry = 1;
#pragma unroll
  for (int i = 0; i < LIMB_WORDS; ++i) {
    carry += (uint32)~value[i];
    value[i] = (uint32)carry;
    carry >>= 32;
  }
}

// |C'| and its sign where they may be those of C' plus or minus P: the quotient was one
// off.
DEVICE bool corrected(uint32* value, bool negative) {
  // What lies in [-P / 2, P / 2) stays; an odd P has no half.
  bool beyond = FIRST_IS_256 && !negative;
  for (int i = 0; i < LIMB_WORDS; ++i) {
    if (value[i] != limb_half_word(i)) beyond = value[i] > limb_half_word(i);
  }
  if (!beyond) return negative;
  uint64 carry = 1;
  for (int i = 0; i < LIMB_WORDS; ++i) {
    carry += (uint64)limb_product_word(i) + (uint32)~value[i];
    value[i] = (uint32)carry;
    carry >>= 32;
  }
  return !negative;
}
