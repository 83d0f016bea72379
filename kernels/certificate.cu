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

// Rows that a thread reads before it judges any, so that the reads overlap.
const int AT_A_TIME = 16;
const int MOST_ROWS = AT_A_TIME * ALONG_THREADS;

// What an entry of a row must exceed, in bits: `of_spare` plus those of the column's
// norm, and `of_norm` minus the column's spare bits.
struct alignas(8) Glance {
  int of_spare, of_norm;
};

// Whether an entry, which is never negative, has more than `most` bits, and any.
DEVICE bool has_more_bits(int entry, int most) {
  most = max(most, 0);
  return (uint32)entry >> (most > 31 ? 31 : most) != 0;
}
DEVICE bool has_more_bits(int64 entry, int most) {
  most = max(most, 0);
  return (uint64)entry >> (most > 63 ? 63 : most) != 0;
}

template <class Entry>
DEVICE void certify(const Entry* lower, int64 batch_stride, int64 row_stride,
                    LineFacts rows, int64 batch_a, LineFacts columns, int64 batch_b,
                    int64 row_count, int64 column_count, int64 factor, int64 power,
                    int64 deficit, int64 moved_a, int64 moved_b, int64 width,
                    int* missing, Glance* glances) {
  // As `Entries`; all threads of a block take as many rows, so that they can meet.
  const int width_bits = bit_length((uint32)width) - 1;
  const int height_bits = bit_length((uint32)ALONG_THREADS) - 1 - width_bits;
  const int in_step = threadIdx.x >> width_bits, height = 1 << height_bits;
  const int64 batch = blockIdx.z, step = (int64)gridDim.y << height_bits;
  const int64 block_row = (int64)blockIdx.y << height_bits;
  const int64 j = ((int64)blockIdx.x << width_bits) + (threadIdx.x & ((int)width - 1));
  const bool inside = j < column_count;
  const int64 first_row = (batch_a > 1 ? batch : 0) * row_count;
  int need = 0, spare_b = 0, bits_b = 0;
  uint64 norm_b = 0;
  if (inside) {
    int64 column = (batch_b > 1 ? batch : 0) * column_count + j;
    norm_b = columns.norms[column];
    if (norm_b) {
      spare_b = spare_bits(columns, column);
      bits_b = bit_length(norm_b);
      if (moved_b && block_row + in_step == 0)
        need = max(need, line_deficit(deficit, norm_b, spare_b));
    }
  }
  const int least_bits = UNIT_BITS - (bit_length((uint64)factor) - 1 + (int)power);
  const Entry* source = lower + batch * batch_stride + j;
  for (int64 first = block_row; first < row_count; first += AT_A_TIME * step) {
    Entry entry[AT_A_TIME] = {};
    if (inside) {
      const Entry* next = source + (first + in_step) * row_stride;
      if (first + (AT_A_TIME - 1) * step + height <= row_count) {
#pragma unroll
        for (int n = 0; n < AT_A_TIME; ++n) entry[n] = next[n * step * row_stride];
      } else {
#pragma unroll
        for (int n = 0; n < AT_A_TIME; ++n)
          if (first + in_step + n * step < row_count)
            entry[n] = next[n * step * row_stride];
      }
    }
    __syncthreads();  // the last use of the glances is over
    for (int slot = threadIdx.x; slot < AT_A_TIME * height; slot += ALONG_THREADS) {
      int64 i = first + (slot >> height_bits) * step + (slot & (height - 1));
      if (i >= row_count) break;
      uint64 norm_a = rows.norms[first_row + i];
      int spare_a = norm_a ? spare_bits(rows, first_row + i) : 0;
      glances[slot].of_spare = least_bits - spare_a;
      glances[slot].of_norm = least_bits + bit_length(norm_a);
      if (moved_a && norm_a && blockIdx.x == 0)
        need = max(need, line_deficit(deficit, norm_a, spare_a));
    }
    __syncthreads();
    if (!norm_b) continue;
    // Most entries are far from short, and leading bits tell.
    uint32 doubtful = 0;
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
      Glance glance = glances[(n << height_bits) + in_step];
      int most = max(bits_b + glance.of_spare, glance.of_norm - spare_b);
      if (!has_more_bits(entry[n], most)) doubtful |= 1u << n;
    }
    for (int n = 0; doubtful >> n; ++n) {
      if (!(doubtful >> n & 1)) continue;
      int64 i = first + in_step + n * step;
      if (i >= row_count) break;
      uint64 norm_a = rows.norms[first_row + i];
      if (!norm_a) continue;
      int spare_a = spare_bits(rows, first_row + i);
      uint64 least = (uint64)source[i * row_stride] * factor;
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
  __shared__ Glance glances[MOST_ROWS];
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, row_count,
          column_count, factor, power, deficit, moved_a, moved_b, width, missing,
          glances);
}

KERNEL void wide_certificate(const int64* lower, int64 batch_stride, int64 row_stride,
                             LineFacts rows, int64 batch_a, LineFacts columns,
                             int64 batch_b, int64 row_count, int64 column_count,
                             int64 factor, int64 power, int64 deficit, int64 moved_a,
                             int64 moved_b, int64 width, int* missing) {
  __shared__ Glance glances[MOST_ROWS];
  certify(lower, batch_stride, row_stride, rows, batch_a, columns, batch_b, row_count,
          column_count, factor, power, deficit, moved_a, moved_b, width, missing,
          glances);
}

// Products of one block of k join their 64-bit sums.
KERNEL void widen(const int* products, int64* sums, int64 count) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index < count) sums[index] += products[index];
}
