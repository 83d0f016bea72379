// Whether a product is as accurate as a conventional one is guaranteed to be.
//
// The bits that the operands of each matrix are short of |C - AB| <= k u |A||B|; see
// engines/cpu_certificate.py for the rule.  All in integers: an entry is short where
//
//   max(norm_j 2^(57 - spare_i), norm_i 2^(57 - spare_j)) > factor lower,
//
// spare = mu + e, and lower is the product of 7-bit planes.
#include "lines.cuh"

const int HOPELESS = 1 << 20;
const int UNIT_BITS = 57;

// x 2^shift as 128 bits would hold it, compared by leading bit and then by the rest.
// The exponent of x / y, as frexp gives it, and whether x > y: both from integers.
// x and y are not 0.
DEVICE int bits_above(uint64 x, int shift, uint64 y) {
  int zeros_x = leading_zeros(x), zeros_y = leading_zeros(y);
  int excess = shift + zeros_y - zeros_x;  // of the leading bits
  uint64 top_x = x << zeros_x, top_y = y << zeros_y;
  // x / y in [1, 2) 2^excess, or one lower where the mantissa is smaller
  int exponent = (top_x >= top_y ? excess : excess - 1) + 1;
  bool more = excess > 0 || (excess == 0 && top_x > top_y);
  return more ? exponent : 0;
}

DEVICE int spare_bits(LineFacts facts, int64 index) {
  return facts.exponents[index] + top_exponent(facts.largest[index]);
}

template <class Entry>
DEVICE void certify(const Entry* lower, int64 batch_stride, int64 row_stride,
                    LineFacts rows, int64 batch_a, LineFacts columns, int64 batch_b,
                    int64 batches, int64 row_count, int64 column_count, int64 factor,
                    int64 deficit, int* missing) {
  int64 j = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  int64 i = blockIdx.y * (int64)gridDim.z + blockIdx.z;
  if (j >= column_count || i >= batches * row_count) return;
  int64 batch = i / row_count;
  i -= batch * row_count;
  int64 row = (batch_a > 1 ? batch : 0) * row_count + i;
  int64 column = (batch_b > 1 ? batch : 0) * column_count + j;
  uint64 norm_a = rows.norms[row], norm_b = columns.norms[column];
  int need = 0;
  if (norm_a && j == 0) need = max(need, (int)deficit - spare_bits(rows, row));
  if (norm_b && i == 0) need = max(need, (int)deficit - spare_bits(columns, column));
  if (norm_a && norm_b) {
    uint64 least = (uint64)lower[batch * batch_stride + i * row_stride + j] * factor;
    if (least) {
      need = max(need, bits_above(norm_b, UNIT_BITS - spare_bits(rows, row), least));
      need = max(need, bits_above(norm_a, UNIT_BITS - spare_bits(columns, column), least));
    } else {
      need = HOPELESS;
    }
  }
  if (need > 0 && need > *(volatile int*)&missing[batch]) atomicMax(&missing[batch], need);
}

KERNEL void certificate(const int* lower, int64 batch_stride, int64 row_stride,
                        LineFacts rows, int64 batch_a, LineFacts columns,
                        int64 batch_b, int64 batches, int64 row_count,
                        int64 column_count, int64 factor, int64 deficit,
                        int* missing) {
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, batches,
          row_count, column_count, factor, deficit, missing);
}

KERNEL void wide_certificate(const int64* lower, int64 batch_stride, int64 row_stride,
                             LineFacts rows, int64 batch_a, LineFacts columns,
                             int64 batch_b, int64 batches, int64 row_count,
                             int64 column_count, int64 factor, int64 deficit,
                             int* missing) {
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, batches,
          row_count, column_count, factor, deficit, missing);
}

// Products of one block of k join their 64-bit sums.
KERNEL void widen(const int* products, int64* sums, int64 count) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index < count) sums[index] += products[index];
}
