// Arithmetic of the stages, the same on a GPU and in a C++ compiler.
//
// Integers throughout, and FP32 where it is exact; no FP64 anywhere.  A double is
// handled as its 64 bits.  The tables come from render.py, which puts them in front
// of this file.
#pragma once

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#define DEVICE_TABLE static __device__ const
#else
#include <cstring>
#define HD inline
#define DEVICE_TABLE static const
#endif

typedef unsigned char uint8;
typedef signed char int8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef int int32;
typedef unsigned long long uint64;
typedef long long int64;

// ---- What compilers shall not see through ----

// The number itself, of which the compiler knows nothing: what is made of it is made
// where the text says so, neither again and again nor ahead.
HD int settled(int x) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// ---- Bits of a double ----

const uint64 MAGNITUDE_MASK = 0x7fffffffffffffffull;
const uint64 FRACTION_MASK = 0x000fffffffffffffull;
const uint64 INFINITY_BITS = 0x7ff0000000000000ull;
const uint64 NAN_BITS = 0x7ff8000000000000ull;
const int MANTISSA_BIAS = 1075;  // a double is f 2^(field - 1075), f < 2^53

HD int leading_zeros(uint64 x) {  // x != 0
#ifdef __CUDA_ARCH__
  return __clzll((int64)x);
#else
  return __builtin_clzll(x);
#endif
}

HD int leading_zeros(uint32 x) {  // 32 for 0
#ifdef __CUDA_ARCH__
  return __clz((int)x);
#else
  return x ? __builtin_clz(x) : 32;
#endif
}

HD int bit_length(uint64 x) { return 64 - leading_zeros(x); }  // x != 0

HD int bit_length(uint32 x) {  // x != 0
#ifdef __CUDA_ARCH__
  return 32 - __clz((int)x);
#else
  return 32 - __builtin_clz(x);
#endif
}

HD uint64 magnitude(uint64 bits) { return bits & MAGNITUDE_MASK; }

HD bool is_finite(uint64 bits) { return magnitude(bits) < INFINITY_BITS; }

HD bool is_nan(uint64 bits) { return magnitude(bits) > INFINITY_BITS; }

// The bits of an entry as those of a double, which every FP32 number is.
HD uint64 widened(uint64 bits) { return bits; }

HD uint64 widened(uint32 bits) {
  uint32 size = bits & 0x7fffffff, sign = bits ^ size;
  uint32 upper = (size >> 3) + ((1023 - 127) << 20), lower = bits << 29;
  if (size - 0x00800000u >= 0x7f000000u) {
    if (size >= 0x7f800000u) {
      upper |= 0x7ff00000;
    } else if (!size) {
      upper = 0;
    } else {  // subnormal, where the leading bit tells the exponent
      int zeros = leading_zeros(size);
      uint64 f = (uint64)size << (21 + zeros) & FRACTION_MASK;
      upper = (uint32)(f >> 32) | (uint32)(1023 - 118 - zeros) << 20;
      lower = (uint32)f;
    }
  }
  return (uint64)(sign | upper) << 32 | lower;
}

// f and the power of two of a double; NaN and Inf count as 0.
HD uint64 mantissa(uint64 bits, int* exponent) {
  int field = (int)(bits >> 52) & 0x7ff;
  uint64 f = bits & FRACTION_MASK;
  if (field == 0x7ff) f = 0;
  else if (field) f |= FRACTION_MASK + 1;
  *exponent = (field ? field : 1) - MANTISSA_BIAS;
  return f;
}

// e with 2^e <= |x| < 2^(e + 1), from the bits of |x|, which is finite and not 0.
HD int top_exponent(uint64 bits) {
  int field = (int)(bits >> 52);
  return field ? field - 1023 : 63 - leading_zeros(bits) - 1074;
}

// ceil(|x| 2^shift); the result has at most 17 bits where it is used.
HD uint64 scaled_ceiling(uint64 bits, int shift) {
  int exponent;
  uint64 f = mantissa(bits, &exponent);
  shift += exponent;
  if (shift >= 0) return f << (shift & 63);
  if (shift <= -54) return f != 0;
  return (f + (1ull << -shift) - 1) >> -shift;
}

// The same for e = top_exponent of a number not below |x|, w <= 16 and shift = w - 1 - e,
// where e is that of a normal number; NaN and Inf give 0.  Every shift is to the right
// and by at least 5 bits of the upper word, so that the lower one matters as not 0 only.
HD uint32 normal_ceiling(uint64 bits, int e, int w) {
  uint32 word = (uint32)(bits >> 32);
  int field = (int)(word >> 20 & 0x7ff);
  uint32 f = (word & 0xfffff) | (field ? 0x100000 : 0);
  f += (uint32)bits != 0;
  int shift = 1044 - w + e - (field ? field : 1);
  shift = shift < 31 ? shift : 31;
  uint32 t = (f + (1u << shift) - 1) >> shift;
  return field == 0x7ff ? 0 : t;
}

// floor(|x| 2^shift), likewise.
HD uint64 scaled_floor(uint64 bits, int shift) {
  int exponent;
  uint64 f = mantissa(bits, &exponent);
  shift += exponent;
  if (shift >= 0) return f << (shift & 63);
  return shift <= -54 ? 0 : f >> -shift;
}

// ---- Scaling exponents ----

// The largest g with value 4^g <= M, for M of `limit_bits` bits whose top 64 bits are
// `limit_top` (M shifted to the left where it has fewer).  Only two g are possible, by
// bit lengths; where those differ by an even number the leading bits decide.
HD int largest_power_of_four(uint64 value, int limit_bits, uint64 limit_top) {
  int zeros = leading_zeros(value);
  int excess = limit_bits - (64 - zeros);
  int g = excess >> 1;  // toward minus infinity
  bool fits = (excess & 1) || (value << zeros) <= limit_top;
  return fits ? g : g - 1;
}

const int RULE_NORM = 0;  // else "legacy"

// mu of a line from S, the sum of squares of its w-bit ceilings.
HD int line_exponent(uint64 largest, uint64 squares, int rule, int w, int limit_bits,
                     uint64 limit_top) {
  if (!largest) return 0;
  int e = top_exponent(largest);
  int g = largest_power_of_four(squares, limit_bits, limit_top);
  if (rule == RULE_NORM) return g + (w - 1 - e) - (g < 0);
  int by_norm = g + w - 2 - e;
  int by_size = (limit_bits - 1) / 2 - 2;
  return (by_norm < by_size ? by_norm : by_size) - e;
}

const int FIRST_LOOK_BITS = 7;  // of the plane floor(|x| 2^(6 - e)) of a certificate
const int AUXILIARY_BITS = 5;  // Abar = ceil(|a| 2^(5 - e)) in scaling "accurate"

// mu of a line from the maximum of its row, or column, of Cbar.
HD int accurate_exponent(uint64 largest, uint64 maximum, int limit_bits,
                         uint64 limit_top) {
  if (!largest) return 0;
  int g = largest_power_of_four(maximum ? maximum : 1, limit_bits, limit_top);
  return AUXILIARY_BITS - top_exponent(largest) + g - (g < 0);
}

// ---- Scaled integers ----

// |A'| < 2^60 2^(8 byte_shift); the offset makes both signs non-negative.
const uint64 OFFSET = 1ull << 60;

// A' + 2^60, where A' is x 2^exponent rounded (`truncate`: toward 0, else half to even).
// In a wide system a large A' is A' / 2^(8 byte_shift) instead, exactly.
template <bool wide, bool truncate>
HD uint64 scaled_integer(uint64 bits, int exponent, int* byte_shift) {
  int shift;
  uint64 f = mantissa(bits, &shift);
  shift += exponent;
  *byte_shift = 0;
  uint64 value;
  if (shift > 7) {  // in a narrow system only subnormal numbers are so short
    if (wide && f) {
      *byte_shift = shift >> 3;
      shift &= 7;
    }
    value = f << (shift & 63);
  } else {
    // From 60 bits to the right; below 2^-3 nothing is left to round.
    uint64 aligned = f << 7;
    int right = 7 - shift < 63 ? 7 - shift : 63;
    value = aligned >> right;
    uint64 lost = aligned << 1 << (63 - right);  // 2^63 is one half
    if (!truncate) value += lost + (value & 1) > 1ull << 63;
  }
  uint64 sign = (uint64)((int64)bits >> 63);
  return OFFSET + (value ^ sign) - sign;
}

// The same in fewer steps for most numbers: normal ones with |A'| < 2^59, which from bit
// 60 are shifted to the right by at least one.
HD bool is_plain(uint64 bits, int exponent) {
  int field = (int)(bits >> 52) & 0x7ff;
  return field - 1u < 0x7feu && 1082 - exponent - field > 0;
}

template <bool truncate>
HD uint64 plain_integer(uint64 bits, int exponent) {
  uint32 word = (uint32)(bits >> 32);
  int right = 1082 - exponent - (int)(word >> 20 & 0x7ff);
  right = right < 63 ? right : 63;
  uint64 f = (uint64)((word & 0xfffff) | 0x100000) << 32 | (uint32)bits;
  uint64 aligned = f << 7;
  uint64 value = aligned >> right;
  if (!truncate) {
    uint64 lost = aligned << (64 - right);
    bool tie_up = (uint32)lost | ((uint32)value & 1);
    value += (uint32)(lost >> 32) >= (tie_up ? 0x80000000u : 0x80000001u);
  }
  return word >> 31 ? OFFSET - value : OFFSET + value;
}

// Shifts by any number of bits: 64 and more leave 0.
HD uint64 shifted_right(uint64 x, uint32 bits) {
#ifdef __CUDA_ARCH__
  uint64 y;
  asm("shr.u64 %0, %1, %2;" : "=l"(y) : "l"(x), "r"(bits));
  return y;
#else
  return bits < 64 ? x >> bits : 0;
#endif
}

HD uint64 shifted_left(uint64 x, uint32 bits) {
#ifdef __CUDA_ARCH__
  uint64 y;
  asm("shl.b64 %0, %1, %2;" : "=l"(y) : "l"(x), "r"(bits));
  return y;
#else
  return bits < 64 ? x << bits : 0;
#endif
}

// ---- Bits of an FP32 number ----

HD float as_float(int bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

HD int as_int(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_int(x);
#else
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

// 2^23 + ceil(x) for 0 <= x <= 2^16.
HD float raised(float x) {
#ifdef __CUDA_ARCH__
  return __fadd_ru(x, 8388608.0f);
#else
  return 8388608.0f + __builtin_ceilf(x);
#endif
}

// ---- Plain lines ----

// Where no entry of a line is NaN or Inf, and the largest one is 64 binades above the
// subnormal numbers and below infinity, both count as 0 beside it.  That is decided
// once, and entries need fewer steps.
HD bool is_plain_size(uint64 largest) {
  return (uint32)(largest >> 52) - 64 < 2048 - 2 * 64;
}

// Then also A' is below 2^59, and that of a subnormal number rounds to 0.
HD bool is_plain_line(uint64 largest, int exponent) {
  int field = (int)(largest >> 52);
  return is_plain_size(largest) && exponent <= 1019 && field < 1082 - exponent;
}

// A' + 2^60 of an entry.
template <bool truncate>
HD uint64 integer_in_plain(uint64 bits, int exponent) {
  uint32 word = (uint32)(bits >> 32);
  uint32 right = (uint32)(1086 - exponent) - (word >> 20 & 0x7ff);
  uint64 aligned = bits << 11 | 1ull << 63;
  uint64 value = shifted_right(aligned, right);
  bool negative = word >> 31, up = false;
  if (!truncate) {
    // From 2^63, one half, on; beyond 64 bits nothing is left of it.
    uint64 lost = shifted_left(aligned, 64 - right);
    bool tie_up = (uint32)lost | ((uint32)value & 1);
    up = (uint32)(lost >> 32) >= (tie_up ? 0x80000000u : 0x80000001u);
  }
  uint32 flip = (uint32)((int)word >> 31);
  return (value ^ ((uint64)flip << 32 | flip)) + OFFSET + (negative != up);
}

// ceil(|x| 2^(w - 1 - e)), e that of the line, w <= 16: one more than the floor of the
// number just below |x|.  That of 0 would be a NaN: its floor is 0, nothing is added.
HD uint32 ceiling_in_plain(uint64 bits, int e, int w) {
  uint64 below = bits - 1;
  uint32 word = (uint32)(below >> 32);
  uint32 field = word >> 20 & 0x7ff;
  uint32 shift = (uint32)(1044 - w + e) - field;
  shift = shift < 31 ? shift : 31;
  return (((word & 0xfffff) | 0x100000) >> shift) + (field != 0x7ff);
}

// Where no entry is 140 binades below the largest one, and none is subnormal or 0, all
// of them are normal FP32 numbers after one shift of the exponents.
HD bool is_close(uint32 lowest_upper, uint64 largest) {
  uint32 field = lowest_upper >> 20;
  return field > 0 && field + 140 > (uint32)(largest >> 52);
}

// Then the upper word, shifted by three bits and more by `close_rebase`, has the bits
// of |x| 2^(15 - e) in FP32: the sign and more leave 32 bits.  The lower word, where it
// is not 0, lifts the upper one: 21 bits are enough not to pass an integer.
HD uint32 close_rebase(int e) { return (uint32)(127 - 1023 + 15 - e) << 23; }

const uint32 CEILING_BITS = 0x4b000000;  // those of 2^23

// CEILING_BITS + ceil(|x| 2^(15 - e)).
HD int ceiling_in_close(uint64 bits, uint32 rebase) {
  uint32 upper = (uint32)settled((int)((bits + 0xffffffffu) >> 32));
  return as_int(raised(as_float((int)(8 * upper + rebase))));
}

// floor(|x| 2^(w - 1 - e)) likewise.
HD uint32 floor_in_plain(uint64 bits, int e, int w) {
  uint32 word = (uint32)(bits >> 32);
  uint32 shift = (uint32)(1044 - w + e) - (word >> 20 & 0x7ff);
  return ((word & 0xfffff) | 0x100000) >> (shift < 31 ? shift : 31);
}

// ---- Plain lines of FP32 numbers ----

// Likewise, with the exponent field of FP32: e is that of the largest entry.  What is
// below the normal numbers counts as if it had their leading bit, which is too little
// to be seen.
HD bool is_plain_single_line(int e, int exponent) {
  return e >= 16 - 127 && exponent <= 120 && e + exponent <= 57;
}

// A' + 2^60 of an entry.
template <bool truncate>
HD uint64 integer_in_plain(uint32 bits, int exponent) {
  uint32 right = (uint32)(190 - exponent) - (bits >> 23 & 0xff);
  uint64 aligned = (uint64)(bits << 8 | 0x80000000u) << 32;
  uint64 value = shifted_right(aligned, right);
  bool negative = bits >> 31, up = false;
  if (!truncate) {
    uint64 lost = shifted_left(aligned, 64 - right);
    bool tie_up = (uint32)lost | ((uint32)value & 1);
    up = (uint32)(lost >> 32) >= (tie_up ? 0x80000000u : 0x80000001u);
  }
  uint32 flip = (uint32)((int)bits >> 31);
  return (value ^ ((uint64)flip << 32 | flip)) + OFFSET + (negative != up);
}

// In lines of few bits A' is at most 2^28, so that sums of four of them are integers of
// 32 bits, and FP32 has x 2^exponent exactly where that is not far below 1.
const int SHORT_BITS = 28;

HD bool is_short_line(int e, int exponent) {
  return is_plain_single_line(e, exponent) && exponent >= -126 &&
         e + exponent < SHORT_BITS;
}

template <bool truncate>
HD int short_integer(uint32 bits, int exponent) {
  float number = as_float((int)bits) * as_float((exponent + 127) << 23);
#ifdef __CUDA_ARCH__
  return truncate ? __float2int_rz(number) : __float2int_rn(number);
#else
  return (int)(truncate ? __builtin_truncf(number) : __builtin_nearbyintf(number));
#endif
}

// floor(|x| 2^(w - 1 - e)) in plain lines, w <= 7.
HD uint32 floor_in_plain(uint32 bits, int e, int w) {
  uint32 shift = (uint32)(151 - w + e) - (bits >> 23 & 0xff);
  return ((bits & 0x7fffff) | 0x800000) >> (shift < 31 ? shift : 31);
}

// 2^23 + ceil(|x| scale), for a product up to 2^16 and any x, by its bits.
HD int raised_product(uint32 bits, float scale) {
  float x = as_float((int)(bits & 0x7fffffff));
#ifdef __CUDA_ARCH__
  float sum;  // subnormal numbers count
  asm("fma.rp.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(x), "f"(scale), "f"(8388608.0f));
  return as_int(sum);
#else
  float ceiling = __builtin_ceilf(x * scale);  // of what has underflowed 0
  return as_int(8388608.0f + (x != 0 && ceiling == 0 ? 1.0f : ceiling));
#endif
}

// ---- Small residues in FP32 ----

// An FP32 number from 2^23 to 2^24 is an integer and holds it in its low bits, so that
// integer sums become floats without conversion: a sum s modulo p starts at `bias`, the
// bits of a multiple of p and 256.
const float MAGIC = 12582912.0f;  // 1.5 2^23

HD float fused(float x, float y, float z) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(x, y, z);
#else
  return __builtin_fmaf(x, y, z);
#endif
}

// sum of four products of an unsigned byte and a signed one, plus c
HD int dot4(uint32 bytes, uint32 table, int c) {
#ifdef __CUDA_ARCH__
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(bytes), "r"(table), "r"(c));
  return d;
#else
  for (int i = 0; i < 4; ++i)
    c += (int)(uint8)(bytes >> (8 * i)) * (int8)(uint8)(table >> (8 * i));
  return c;
#endif
}

// sum of four products of unsigned bytes, plus c
HD uint32 unsigned_dot4(uint32 bytes, uint32 table, uint32 c) {
#ifdef __CUDA_ARCH__
  return __dp4a(bytes, table, c);
#else
  for (int i = 0; i < 4; ++i)
    c += (uint32)(uint8)(bytes >> (8 * i)) * (uint8)(table >> (8 * i));
  return c;
#endif
}

// From bias + s, the bits of a float F, to bias + r with r = s modulo p, balanced; as an
// int8 its low byte is r.  `quotients` is MAGIC + bias / p.  The quotient is the integer
// nearest to F / p: the rounding error of 1 / p moves F / p by about 1 / (2 p), as much
// as F / p keeps away from the halves.  render.py puts the bias where it is enough less,
// and every s of every modulus is tried by a test.
HD int balanced(int biased, float p, float inverse, float quotients) {
  float number = as_float(biased);
  float quotient = fused(number, inverse, MAGIC) - quotients;
  return as_int(fused(-quotient, p, number));
}

// c modulo p for any int32 c, as an int8: |r| is at most 127, and for p = 256 the low
// byte counts.  `inverse` is 2^(32 + shift) / p rounded, from 2^30 to 2^31: c / p is off
// by less than 1 / p before it is rounded, so that r leaves the balanced interval by one
// at most, and not at all for p = 255.
HD int residue_byte(int c, int minus_p, int inverse, int shift) {
  int half = 1 << shift >> 1;
#ifdef __CUDA_ARCH__
  int high;
  asm("mad.hi.s32 %0, %1, %2, %3;" : "=r"(high) : "r"(c), "r"(inverse), "r"(half));
#else
  int high = (int)((int64)c * inverse >> 32) + half;
#endif
  return (high >> shift) * minus_p + c;
}

// The same for a sum of few products, whose quotient can be taken from a float: half the
// time.  Only the low byte counts.  render.py tells for how many products it is right.
HD int quick_residue_byte(int c, int minus_p, float inverse) {
  int quotient = as_int(fused((float)c, inverse, MAGIC));
  return (int)((uint32)quotient * (uint32)minus_p + (uint32)c);
}

// The low byte of balanced() in two steps, for p from 5 on: the quotient is taken from
// the bits of the float that holds it, where all that comes with it is a multiple of 256.
HD int balanced_byte(int biased, int minus_p, float inverse) {
  int quotient = as_int(fused(as_float(biased), inverse, MAGIC));
  return (int)((uint32)quotient * (uint32)minus_p + (uint32)biased);
}

HD uint32 pack(int b0, int b1, int b2, int b3) {
#ifdef __CUDA_ARCH__
  uint32 low = __byte_perm((uint32)b0, (uint32)b1, 0x0040);
  uint32 high = __byte_perm((uint32)b2, (uint32)b3, 0x0040);
  return __byte_perm(low, high, 0x5410);
#else
  return (b0 & 0xffu) | (b1 & 0xffu) << 8 | (b2 & 0xffu) << 16 | (b3 & 0xffu) << 24;
#endif
}

// Four bytes of two words, those of y numbered from 4 on, as a selector's digits say.
HD uint32 permuted(uint32 x, uint32 y, uint32 selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(x, y, selector);
#else
  uint64 both = (uint64)y << 32 | x;
  uint32 result = 0;
  for (int i = 0; i < 4; ++i)
    result |= (uint32)(uint8)(both >> 8 * (selector >> 4 * i & 7)) << 8 * i;
  return result;
#endif
}

// The upper word of the two, shifted to the left by `by` modulo 32.
HD uint32 shifted(uint32 upper, uint32 lower, int by) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(lower, upper, by);
#else
  return (uint32)((((uint64)upper << 32 | lower) << (by & 31)) >> 32);
#endif
}

// ---- One rounding ----

// Words to those of the opposite number, where that is wanted.
template <int words>
HD void negate_where(uint32* value, bool wanted) {
  uint32 flip = wanted ? 0xffffffffu : 0;
  uint64 carry = wanted;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    carry += value[i] ^ flip;
    value[i] = (uint32)carry;
    carry >>= 32;
  }
}

// The top 128 bits of `words` 32-bit words from the highest word on that is not zero,
// where there are more than four; `below` is not 0 if bits were left out.
template <int words>
HD void leading_words(const uint32* value, uint64* high, uint64* low, uint32* below,
                      int* position) {
  uint32 top[4] = {0, 0, 0, 0};
  *below = 0;
  *position = 0;
#pragma unroll
  for (int i = words - 1; i >= 0; --i) {
    if (words <= 4) {
      top[i] = value[i];
    } else if (top[3]) {
      *below |= value[i];
    } else {
      // What has been zero so far moves out; the last four words stay where they are.
      top[3] = top[2];
      top[2] = top[1];
      top[1] = top[0];
      top[0] = value[i];
      *position = 32 * i;
    }
  }
  *high = (uint64)top[3] << 32 | top[2];
  *low = (uint64)top[1] << 32 | top[0];
}

// What C is rounded to, by the type of its bits.
template <class Bits>
struct Format {  // doubles
  typedef uint32 Rest;  // has room for the bits below, of 64
  static const int PRECISION = 53, LARGEST_EXPONENT = 1023;
  static const uint64 INFINITE = INFINITY_BITS, NOT_A_NUMBER = NAN_BITS;
};

template <>
struct Format<uint32> {  // FP32 numbers
  typedef uint64 Rest;
  static const int PRECISION = 24, LARGEST_EXPONENT = 127;
  static const uint32 INFINITE = 0x7f800000, NOT_A_NUMBER = 0x7fc00000;
};

template <class Bits>
HD Bits sign_bit(bool negative) {
  return (Bits)negative << (8 * sizeof(Bits) - 1);
}

// The bits of a number: 2^exponent times mantissa / 2^63, whose top bit is set, rounded
// half to even; `exponent` is not that of a normal number, or rounding may leave it.
template <class Bits>
HD Bits rounded_outside(uint64 mantissa, int exponent) {
  const int LEAST = 1 - Format<Bits>::LARGEST_EXPONENT;
  if (exponent > Format<Bits>::LARGEST_EXPONENT) return Format<Bits>::INFINITE;
  // What gradual underflow takes, too.
  int drop = 64 - Format<Bits>::PRECISION + LEAST - exponent;
  if (drop > 64) return 0;              // below half of the smallest subnormal
  uint64 kept = drop == 64 ? 0 : mantissa >> drop;
  uint64 half = 1ull << (drop - 1);
  uint64 lost = drop == 64 ? mantissa : mantissa & ((half << 1) - 1);
  // A carry into the exponent field makes the smallest normal number.
  return (Bits)kept + (lost > half || (lost == half && (kept & 1)));
}

// The bits of a number of `words` 32-bit words times 2^-exponents, rounded once, half
// to even, with IEEE overflow and gradual underflow.  The sign goes in unchanged.
template <int words, class Bits = uint64>
HD Bits rounded(const uint32* value, bool negative, int exponents) {
  uint64 high, low;
  uint32 below;
  int position;
  leading_words<words>(value, &high, &low, &below, &position);
  position += 127;
  if (!high) {
    high = low;
    low = 0;
    position -= 64;
  }
  if (!high) return 0;  // an exact zero is +0
  int zeros = leading_zeros(high);
  high = high << zeros | low >> 1 >> (63 - zeros);
  low <<= zeros;
  high |= (low != 0) | (below != 0);  // far below the rounding bit
  int exponent = position - zeros - exponents;
  Bits sign = sign_bit<Bits>(negative);
  const int LARGEST = Format<Bits>::LARGEST_EXPONENT;
  if (exponent < 1 - LARGEST || exponent > LARGEST)
    return sign | rounded_outside<Bits>(high, exponent);
  const int DROP = 64 - Format<Bits>::PRECISION;
  typedef typename Format<Bits>::Rest Rest;
  const Rest HALF = (Rest)1 << (DROP - 1);
  uint64 kept = high >> DROP;
  Rest rest = (Rest)high & (2 * HALF - 1);
  kept += (rest + (HALF - 1) + ((Rest)kept & 1)) >> DROP;
  // The mantissa brings its leading bit, which adds one to the exponent field; a carry
  // out of it goes the same way, up to infinity.
  Bits field = (Bits)(exponent + LARGEST - 1) << (Format<Bits>::PRECISION - 1);
  return sign | (field + (Bits)kept);
}

// The same in fewer steps where the highest word is not zero and has `zeros` leading
// zeros, and where the result is a normal number: its exponent field is `field` + 1,
// from 1 to 2045.  `sign` is the result's highest word but for the sign all zero.
template <int words>
HD uint64 rounded_inside(const uint32* value, int zeros, uint32 field, uint32 sign) {
  uint32 part[3] = {0, 0, 0}, below = 0;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    if (words - i <= 3) part[words - i - 1] = value[i];
    else below |= value[i];
  }
  uint32 high = shifted(part[0], part[1], zeros), low = shifted(part[1], part[2], zeros);
  below |= shifted(part[2], 0, zeros);
  uint32 kept = shifted(high, low, 21);
  // Rounds up where this sum carries: above a half, or at it and the last bit is set.
  uint64 up = (uint64)(low << 21 | (kept & 1)) + 0x7fffffffu + (below != 0);
  // The mantissa brings its leading bit, which adds one to the exponent field; so does
  // a carry out of it.
  uint64 upper = (uint64)((field << 20) + (high >> 11) + sign) << 32;
  return (upper | kept) + (up >> 32);
}

// The same for FP32 numbers, whose exponent field is `field` + 1 from 1 to 253.
template <int words>
HD uint32 rounded_inside_single(const uint32* value, int zeros, uint32 field,
                                uint32 sign) {
  uint32 part[2] = {0, 0}, below = 0;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    if (words - i <= 2) part[words - i - 1] = value[i];
    else below |= value[i];
  }
  uint32 high = shifted(part[0], part[1], zeros);
  below |= shifted(part[1], 0, zeros);
  uint32 kept = high >> 8, rest = high & 0xff;
  uint32 up = (rest + 0x7f + ((kept & 1) | (below != 0))) >> 8;
  return (field << 23) + kept + up + sign;
}

// By the type of a result.
template <int words>
HD void round_inside(const uint32* value, int zeros, uint32 field, uint32 sign,
                     uint64* bits) {
  *bits = rounded_inside<words>(value, zeros, field, sign);
}
template <int words>
HD void round_inside(const uint32* value, int zeros, uint32 field, uint32 sign,
                     uint32* bits) {
  *bits = rounded_inside_single<words>(value, zeros, field, sign);
}

// The bits of (value - |C| 2^exponents) 2^-exponents, rounded once, where `bits` are
// those of C, the finite result of `rounded`; signs are alike.  C 2^exponents is an
// integer: the value itself, or the value rounded at one of its own bits.
template <int words>
HD uint64 left_over(const uint32* value, bool negative, int exponents, uint64 bits) {
  int shift;
  uint64 f = mantissa(bits, &shift);
  shift += exponents;
  if (shift < 0) {
    f = shift > -64 ? f >> -shift : 0;
    shift = 0;
  }
  int word = shift / 32, by = shift % 32;
  uint64 low = f << by;
  uint32 part[3] = {(uint32)low, (uint32)(low >> 32), (uint32)(f >> 32 >> (32 - by))};
  uint32 rest[words];
  uint64 carry = 1;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    int at = i - word;
    uint32 taken = at == 0 ? part[0] : at == 1 ? part[1] : at == 2 ? part[2] : 0;
    carry += (uint64)value[i] + (uint32)~taken;
    rest[i] = (uint32)carry;
    carry >>= 32;
  }
  bool below = rest[words - 1] >> 31;
  negate_where<words>(rest, below);
  return rounded<words>(rest, negative != below, exponents);
}
