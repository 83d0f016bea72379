// Whether a product is as accurate as a conventional one is guaranteed to be.
//
// The bits that the operands of each matrix are short of |C - AB| <= theta |A||B|; see
// engines/cpu_certificate.py for the rule.  All in integers: an entry is short where
//
//   max(norm_j 2^(57 - spare_i), norm_i 2^(57 - spare_j)) > factor 2^power lower,
//
// spare = mu + e, and lower is the product of 7-bit planes.  An operand that lends bits
// is not rounded: `moved_a` or `moved_b` is 0, and it has no part in the maximum.
#include "certificate.cuh"

DEVICE int entry_bits(int x) { return bit_length((uint32)x); }
DEVICE int entry_bits(int64 x) { return bit_length((uint64)x); }

const int AT_A_TIME = 8;

template <class Entry>
DEVICE void certify(const Entry* lower, int64 batch_stride, int64 row_stride,
                    LineFacts rows, int64 batch_a, LineFacts columns, int64 batch_b,
                    int64 row_count, int64 column_count, int64 factor, int64 power,
                    int64 deficit, int64 moved_a, int64 moved_b, int64 width,
                    int* missing) {
  Entries entries(row_count, column_count, (int)width);
  if (entries.outside) return;
  int64 batch = blockIdx.z, j = entries.column;
  int64 column = (batch_b > 1 ? batch : 0) * column_count + j;
  uint64 norm_b = columns.norms[column];
  int spare_b = norm_b ? spare_bits(columns, column) : 0;
  int bits_b = norm_b ? bit_length(norm_b) : 0;
  int factor_bits = bit_length((uint64)factor) - 1 + (int)power;
  int need = 0;
  if (moved_b && norm_b && entries.row == 0)
    need = max(need, line_deficit(deficit, norm_b, spare_b));
  const Entry* source = lower + batch * batch_stride + j;
  for (int64 first = entries.row; first < row_count; first += AT_A_TIME * entries.step) {
    // Read before any is judged, so that the reads overlap.
    Entry entry[AT_A_TIME];
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
      int64 i = first + n * entries.step;
      entry[n] = i < row_count ? source[i * row_stride] : 0;
    }
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
      int64 i = first + n * entries.step;
      if (i >= row_count) break;
      int64 row = (batch_a > 1 ? batch : 0) * row_count + i;
      uint64 norm_a = rows.norms[row];
      if (!norm_a) continue;
      int spare_a = spare_bits(rows, row);
      if (moved_a && j == 0) need = max(need, line_deficit(deficit, norm_a, spare_a));
      if (!norm_b) continue;
      // Most entries are far from short, and leading bits tell.
      int most = UNIT_BITS + max(bits_b - spare_a, bit_length(norm_a) - spare_b);
      if (entry[n] && most < entry_bits(entry[n]) + factor_bits) continue;
      uint64 least = (uint64)entry[n] * factor;
      if (!least) {
        need = HOPELESS;
      } else {
        if (moved_a) need = max(need, bits_short(norm_b, spare_a, (int)power, least));
        if (moved_b) need = max(need, bits_short(norm_a, spare_b, (int)power, least));
      }
    }
  }
  if (need > 0 && need > *(volatile int*)&missing[batch])
    atomicMax(&missing[batch], need);
}

KERNEL void certificate(const int* lower, int64 batch_stride, int64 row_stride,
                        LineFacts rows, int64 batch_a, LineFacts columns,
                        int64 batch_b, int64 row_count, int64 column_count,
                        int64 factor, int64 power, int64 deficit, int64 moved_a,
                        int64 moved_b, int64 width, int* missing) {
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, row_count,
          column_count, factor, power, deficit, moved_a, moved_b, width, missing);
}

KERNEL void wide_certificate(const int64* lower, int64 batch_stride, int64 row_stride,
                             LineFacts rows, int64 batch_a, LineFacts columns,
                             int64 batch_b, int64 row_count, int64 column_count,
                             int64 factor, int64 power, int64 deficit, int64 moved_a,
                             int64 moved_b, int64 width, int* missing) {
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, row_count,
          column_count, factor, power, deficit, moved_a, moved_b, width, missing);
}

// Products of one block of k join their 64-bit sums.
KERNEL void widen(const int* products, int64* sums, int64 count) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index < count) sums[index] += products[index];
}
