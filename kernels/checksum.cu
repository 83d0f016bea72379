// Stage checksum: weighted sums modulo q of scaled operands and of C'.
//
// Every kernel adds to sums that are zero at first.  Their blocks come in any order:
// what they leave is the same modulo q only, and any 64-bit number.
#include "checksum.cuh"
#include "shares.cuh"

struct TakeSumModulo {
  DEVICE uint64 operator()(uint64 x, uint64 y) const { return folded(x + y); }
};

// 2^64 is 8 modulo q, so a sum that wraps is made good by 8.
DEVICE void add_modulo(uint64* sum, uint64 x) {
  while (x) x = atomicAdd(sum, x) + x < x ? 8 : 0;
}

// Adds what a thread has of a line's sum to that sum.
template <class Lines>
DEVICE void join(Lines lines, Share share, uint64 remainder, uint64* sum) {
  __shared__ uint64 scratch[ALONG_THREADS];
  remainder = lines.over(remainder, scratch, TakeSumModulo());
  if (share.real && lines.writes()) add_modulo(sum, remainder);
}

const int UNROLLED_TERMS = 4;

// Sums A' times a factor over the share of a thread; `look(h, &bits, &exponent, &factor)`
// tells an entry.  Most entries are plain, and taken together so.
template <class Sum, class Factor, class Look>
DEVICE uint64 sum_of_integers(Share share, Look look) {
  Sum sum = {0, 0};
  int64 stop = share.real ? share.stop : share.start;
  for (int64 h = share.start; h < stop; h += UNROLLED_TERMS * share.step) {
    uint64 bits[UNROLLED_TERMS];
    Factor factor[UNROLLED_TERMS];
    int exponent[UNROLLED_TERMS];
    bool plain = true;
#pragma unroll
    for (int i = 0; i < UNROLLED_TERMS; ++i) {
      int64 at = h + i * share.step;
      bits[i] = factor[i] = exponent[i] = 0;
      if (at < stop) look(at, &bits[i], &exponent[i], &factor[i]);
    }
#pragma unroll
    for (int i = 0; i < UNROLLED_TERMS; ++i)
      plain = plain && is_plain(bits[i], exponent[i]);
    if (plain) {
#pragma unroll
      for (int i = 0; i < UNROLLED_TERMS; ++i)
        sum.add(plain_remainder(bits[i], exponent[i]), factor[i]);
    } else {
#pragma unroll
      for (int i = 0; i < UNROLLED_TERMS; ++i)
        sum.add(integer_remainder(bits[i], exponent[i]), factor[i]);
    }
  }
  return sum.remainder();
}

// ---- Sums over the lines of an operand ----

// z_h = sum of w_i A'_ih.  `inner` is the operand with lines and k exchanged, since here
// an inner index keeps its sum; `sums` is (batch, k).  The first of its lines is line
// `first` of A (`left`) or B.
template <class Lines>
DEVICE void inner_sums(Lines lines, Share share, Operand inner, LineFacts facts,
                       int64 first, int64 left, uint64* sums) {
  const int* exponents = facts.exponents + share.batch * inner.k;
  auto look = [=](int64 i, uint64* bits, int* exponent, uint32* weight) {
    *bits = inner.at(share.batch, share.line, i);
    *exponent = exponents[i];
    *weight = weight_of(first + i, left);
  };
  uint64 sum = sum_of_integers<ShortSum, uint32>(share, look);
  join(lines, share, sum, sums + share.fact);
}

KERNEL void inner_sums_along(Operand inner, int64 depth, LineFacts facts,
                             int64 first, int64 left, uint64* sums) {
  inner_sums(Along(), share_along(inner, depth), inner, facts, first, left, sums);
}

KERNEL void inner_sums_across(Operand inner, int64 depth, LineFacts facts,
                              int64 first, int64 left, uint64* sums) {
  inner_sums(Across(), share_across(inner, depth), inner, facts, first, left, sums);
}

// ---- Sums along the lines of an operand ----

// y_i = sum of A'_ih z_h, for every matrix of the result: a batch of 1 broadcasts.  A
// thread has at most 32 entries.
struct InnerVector {
  const uint64* data;  // (batch, k), what `inner_sums` left
  int64 batch;
};

template <class Lines>
DEVICE void line_sums(Lines lines, Share share, Operand x, int64 batch_x,
                      LineFacts facts, InnerVector inner, uint64* sums,
                      int64 sums_stride) {
  int64 of_x = batch_x > 1 ? share.batch : 0;
  int of_line = share.real ? facts.exponents[of_x * x.lines + share.line] : 0;
  const uint64* vector = inner.data + (inner.batch > 1 ? share.batch : 0) * x.k;
  auto look = [=](int64 h, uint64* bits, int* exponent, uint64* factor) {
    *bits = x.at(of_x, share.line, h);
    *exponent = of_line;
    *factor = folded(vector[h]);
  };
  uint64 sum = sum_of_integers<LongSum, uint64>(share, look);
  join(lines, share, sum, sums + share.batch * sums_stride + share.line);
}

KERNEL void line_sums_along(Operand x, int64 depth, int64 batch_x, LineFacts facts,
                            InnerVector inner, uint64* sums, int64 sums_stride) {
  line_sums(Along(), share_along(x, depth), x, batch_x, facts, inner, sums,
            sums_stride);
}

KERNEL void line_sums_across(Operand x, int64 depth, int64 batch_x, LineFacts facts,
                             InnerVector inner, uint64* sums, int64 sums_stride) {
  line_sums(Across(), share_across(x, depth), x, batch_x, facts, inner, sums,
            sums_stride);
}

// ---- Sums of C' ----

// What a reconstruction left of C' modulo q: words, `upper` words apart.
struct Remainders {
  const uint32* data;
  int64 upper, batch_stride, row_stride, column_stride;  // in words

  DEVICE uint64 at(int64 batch, int64 i, int64 j) const {
    const uint32* low =
        data + batch * batch_stride + i * row_stride + j * column_stride;
    return (uint64)low[upper] << 32 | *low;
  }
};

// `first` is the place of the tile's first column, or row, in C.
KERNEL void row_sums(Remainders remainders, int64 rows, int64 columns, int64 depth,
                     int64 first, uint64* sums, int64 sums_stride) {
  Operand shape = {0, 0, 0, 0, rows, columns};
  Share share = share_along(shape, depth);
  ShortSum sum = {0, 0};
#pragma unroll 8
  for (int64 j = share.start; j < share.stop; j += share.step)
    sum.add(remainders.at(share.batch, share.line, j),
            weight_of(first + j, false));
  join(Along(), share, sum.remainder(),
       sums + share.batch * sums_stride + share.line);
}

KERNEL void column_sums(Remainders remainders, int64 rows, int64 columns, int64 depth,
                        int64 first, uint64* sums, int64 sums_stride) {
  Operand shape = {0, 0, 0, 0, columns, rows};
  Share share = share_across(shape, depth);
  ShortSum sum = {0, 0};
  if (share.real) {
#pragma unroll 8
    for (int64 i = share.start; i < share.stop; i += share.step)
      sum.add(remainders.at(share.batch, i, share.line),
              weight_of(first + i, true));
  }
  join(Across(), share, sum.remainder(),
       sums + share.batch * sums_stride + share.line);
}
