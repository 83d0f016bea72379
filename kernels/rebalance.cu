// Rebalancing of the inner index; see engines/cpu_rebalance.py for the rule.
//
// Rounds look at exponents alone, which are taken once to int16: a quarter of the bytes.
// A round takes maxima of lines, then of inner indices, which are the lines of the
// transposed operand.  Blocks join their maxima, with an offset that makes exponents
// positive, so that 0 stands for a line without one and maxima start from zeros.
#include "shares.cuh"

typedef short int16;

const int EXPONENT_OFFSET = 1 << 20;
const int SMALLEST_NORMAL = -1022;
const int LINE_TOP = 512;
const int AHEAD = 8;              // entries that a thread reads before it writes
const int NO_EXPONENT = -0x8000;  // of 0, NaN and Inf

DEVICE bool has_exponent(uint64 bits) { return magnitude(bits) && is_finite(bits); }

// Where an entry lies in an array of T that an operand describes, strides in T.
template <class T>
DEVICE T* place(Operand x, int64 batch, int64 line, int64 h) {
  return (T*)x.data + batch * x.batch_stride + line * x.line_stride + h * x.k_stride;
}

// Writes make(h, bits) of the entries of a share, several of them at a time: every write
// could change what is read later, for all the compiler knows.
template <class T, class Make>
DEVICE void rewrite(Operand x, Share share, Operand out, Make make) {
  if (!share.real) return;
  int64 h = share.start, step = share.step;
  auto read = [&](int64 at) { return x.at(share.batch, share.line, at); };
  auto write = [&](int64 at, T made) {
    *place<T>(out, share.batch, share.line, at) = made;
  };
  for (; h + (AHEAD - 1) * step < share.stop; h += AHEAD * step) {
    uint64 bits[AHEAD];
    T made[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) bits[i] = read(h + i * step);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) made[i] = (T)make(h + i * step, bits[i]);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) write(h + i * step, made[i]);
  }
  for (; h < share.stop; h += step) write(h, (T)make(h, read(h)));
}

DEVICE void take_levels(Operand x, Share share, Operand levels) {
  rewrite<int16>(x, share, levels, [](int64, uint64 bits) {
    return has_exponent(bits) ? top_exponent(magnitude(bits)) : NO_EXPONENT;
  });
}

// Joins to the maxima of lines their largest exponents, each plus `sign` times the
// weight of its inner index, plus `base`.  The weight of an index without exponents
// does not matter.
template <class Lines>
DEVICE void join_maxima(Lines lines, Operand levels, Share share, const int* weights,
                        int sign, int base, int* maxima, uint64* scratch) {
  int most = 0;
  if (share.real) {
    weights += share.batch * levels.k;
#pragma unroll 8
    for (int64 h = share.start; h < share.stop; h += share.step) {
      int level = *place<int16>(levels, share.batch, share.line, h);
      int moved = level + sign * weights[h] + base;
      most = max(most, level == NO_EXPONENT ? 0 : moved);
    }
  }
  most = (int)lines.over(most, scratch, TakeLarger());
  if (share.real && lines.writes() && most) atomicMax(&maxima[share.fact], most);
}

// x 2^move; `*e`, the result's exponent, may fall below that of the smallest normal
// number, and then the result is of no use.
DEVICE uint64 moved_number(uint64 bits, int move, int* e) {
  int exponent;
  uint64 f = mantissa(bits, &exponent);
  f <<= leading_zeros(f) - 11;
  *e = top_exponent(magnitude(bits)) + move;
  return (bits & ~MAGNITUDE_MASK) | (uint64)(*e + 1023) << 52 | (f & FRACTION_MASK);
}

// Writes x 2^(sign d + shift of the line), which brings lines to LINE_TOP; joins how far
// exponents fall below that of the smallest normal number, by matrices.
DEVICE void copy_scaled(Operand x, Share share, const int* d, int sign, const int* tops,
                        Operand out, int* short_of, uint64* scratch) {
  int most = 0;
  // A line without a maximum has nothing to scale.
  int shift = share.real ? LINE_TOP + EXPONENT_OFFSET - tops[share.fact] : 0;
  d += share.batch * x.k;
  rewrite<uint64>(x, share, out, [&](int64 h, uint64 bits) {
    if (!has_exponent(bits)) return bits;
    int e;
    bits = moved_number(bits, sign * d[h] + shift, &e);
    most = max(most, SMALLEST_NORMAL - e);
    return bits;
  });
  most = (int)over_block(most, scratch, TakeLarger());
  if (threadIdx.x == 0 && most) atomicMax(&short_of[share.batch], most);
}

KERNEL void levels_along(Operand x, int64 depth, Operand levels) {
  take_levels(x, share_along(x, depth), levels);
}

KERNEL void levels_across(Operand x, int64 depth, Operand levels) {
  take_levels(x, share_across(x, depth), levels);
}

KERNEL void maxima_along(Operand levels, int64 depth, const int* weights, int64 sign,
                         int64 base, int* maxima) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_maxima(Along(), levels, share_along(levels, depth), weights, (int)sign,
              (int)base, maxima, scratch);
}

KERNEL void maxima_across(Operand levels, int64 depth, const int* weights, int64 sign,
                          int64 base, int* maxima) {
  __shared__ uint64 scratch[ALONG_THREADS];
  join_maxima(Across(), levels, share_across(levels, depth), weights, (int)sign,
              (int)base, maxima, scratch);
}

// The step of a round.  Exponents of inner indices relative to their lines', alpha of A
// and beta of B, come without what d adds to them: d to alpha, -d to beta.
KERNEL void balance(const int* alpha, const int* beta, int64 count, int* d) {
  int64 h = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (h >= count || !alpha[h] || !beta[h]) return;
  d[h] += (beta[h] - alpha[h] - 2 * d[h]) / 2;  // C rounds toward zero
}

KERNEL void scaled_along(Operand x, int64 depth, const int* d, int64 sign,
                         const int* tops, Operand out, int* short_of) {
  __shared__ uint64 scratch[ALONG_THREADS];
  copy_scaled(x, share_along(x, depth), d, (int)sign, tops, out, short_of, scratch);
}

KERNEL void scaled_across(Operand x, int64 depth, const int* d, int64 sign,
                          const int* tops, Operand out, int* short_of) {
  __shared__ uint64 scratch[ALONG_THREADS];
  copy_scaled(x, share_across(x, depth), d, (int)sign, tops, out, short_of, scratch);
}
