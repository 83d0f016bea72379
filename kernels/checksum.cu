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

// Adds the terms x y of a share to the sum of its line; `term(h, &x, &y)` gives two
// remainders.
template <class Lines, class Term>
DEVICE void join_products(Lines lines, Share share, Term term, uint64* sum) {
  __shared__ uint64 scratch[ALONG_THREADS];
  uint64 total = 0;
  if (share.real) {
#pragma unroll 4
    for (int64 h = share.start; h < share.stop; h += share.step) {
      uint64 x, y;
      term(h, &x, &y);
      total = plus_product(total, x, y);
    }
  }
  total = lines.over(folded(total), scratch, TakeSumModulo());
  if (share.real && lines.writes()) add_modulo(sum, total);
}

// ---- Sums over the lines of an operand ----

// z_h = sum of w_i A'_ih.  `inner` is the operand with lines and k exchanged, since here
// an inner index keeps its sum; `sums` is (batch, k).
template <class Lines>
DEVICE void inner_sums(Lines lines, Share share, Operand inner, LineFacts facts,
                       const uint64* weights, uint64* sums) {
  const int* exponents = facts.exponents + share.batch * inner.k;
  auto term = [=](int64 i, uint64* x, uint64* y) {
    *x = integer_remainder(inner.at(share.batch, share.line, i), exponents[i]);
    *y = weights[i];
  };
  join_products(lines, share, term, sums + share.fact);
}

KERNEL void inner_sums_along(Operand inner, int64 depth, LineFacts facts,
                             const uint64* weights, uint64* sums) {
  inner_sums(Along(), share_along(inner, depth), inner, facts, weights, sums);
}

KERNEL void inner_sums_across(Operand inner, int64 depth, LineFacts facts,
                              const uint64* weights, uint64* sums) {
  inner_sums(Across(), share_across(inner, depth), inner, facts, weights, sums);
}

// ---- Sums along the lines of an operand ----

// y_i = sum of A'_ih z_h, for every matrix of the result: a batch of 1 broadcasts.
struct InnerVector {
  const uint64* data;  // (batch, k), what `inner_sums` left
  int64 batch;
};

template <class Lines>
DEVICE void line_sums(Lines lines, Share share, Operand x, int64 batch_x,
                      LineFacts facts, InnerVector inner, uint64* sums,
                      int64 sums_stride) {
  int64 of_x = batch_x > 1 ? share.batch : 0;
  int exponent = share.real ? facts.exponents[of_x * x.lines + share.line] : 0;
  const uint64* vector = inner.data + (inner.batch > 1 ? share.batch : 0) * x.k;
  auto term = [=](int64 h, uint64* one, uint64* other) {
    *one = integer_remainder(x.at(of_x, share.line, h), exponent);
    *other = folded(vector[h]);
  };
  join_products(lines, share, term, sums + share.batch * sums_stride + share.line);
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

// What `reconstruct` left in the products of the first two moduli.
DEVICE uint64 remainder_at(Products products, int64 batch, int64 i, int64 j) {
  const int* low = products.row(batch, i) + j;
  return (uint64)(uint32)low[products.plane_stride] << 32 | (uint32)*low;
}

KERNEL void row_sums(Products products, int64 rows, int64 columns, int64 depth,
                     const uint64* weights, uint64* sums, int64 sums_stride) {
  Operand shape = {0, 0, 0, 0, rows, columns};
  Share share = share_along(shape, depth);
  auto term = [=](int64 j, uint64* x, uint64* y) {
    *x = remainder_at(products, share.batch, share.line, j);
    *y = weights[j];
  };
  join_products(Along(), share, term, sums + share.batch * sums_stride + share.line);
}

KERNEL void column_sums(Products products, int64 rows, int64 columns, int64 depth,
                        const uint64* weights, uint64* sums, int64 sums_stride) {
  Operand shape = {0, 0, 0, 0, columns, rows};
  Share share = share_across(shape, depth);
  auto term = [=](int64 i, uint64* x, uint64* y) {
    *x = remainder_at(products, share.batch, i, share.line);
    *y = weights[i];
  };
  join_products(Across(), share, term, sums + share.batch * sums_stride + share.line);
}
