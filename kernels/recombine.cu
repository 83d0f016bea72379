// Stage recombine: sums of all weights to C, rounded once, and NaN and Inf by IEEE rules.
#include "lines.cuh"
#include "recombine.cuh"
#include "results.cuh"

#if WIDE_SUMS
typedef int64 Sum;
#else
typedef int Sum;
#endif

// Plane l, batch, row, column; strides in entries.  Planes of one weight follow each
// other.
struct PairSums {
  const Sum* data;
  int64 plane_stride, batch_stride, row_stride;
};

// One thread an entry; a batch of 1 broadcasts.  `low`, where it is wanted, takes what
// the one rounding left.
KERNEL void recombine(PairSums sums, Operand a, LineFacts rows, int64 batch_a, Operand b,
                      LineFacts columns, int64 batch_b, Result out, int64 width,
                      int* flags, Beside low) {
  Entries entries(out.rows, out.columns, (int)width);
  if (entries.outside) return;
  int64 batch = blockIdx.z, j = entries.column;
  int64 of_a = batch_a > 1 ? batch : 0, of_b = batch_b > 1 ? batch : 0;
  int64 column = of_b * out.columns + j;
  int nu = columns.exponents[column], special_column = columns.special[column];
  for (int64 i = entries.row; i < out.rows; i += entries.step) {
    const Sum* source =
        sums.data + batch * sums.batch_stride + i * sums.row_stride + j;
    Sum values[NUM_SUMS];
#pragma unroll
    for (int l = 0; l < NUM_SUMS; ++l) values[l] = source[l * sums.plane_stride];
    int64 row = of_a * out.rows + i;
    int exponents = rows.exponents[row] + nu - LEAST_SHIFT;
#if FLOAT64
    uint64 total = 0;
    int64 sum = 0;
#pragma unroll
    for (int l = 0; l < NUM_SUMS; ++l) {
      sum += values[l];
      if (l + 1 < NUM_SUMS && sum_shift(l + 1) == sum_shift(l)) continue;
      total = added_sum(total, sum, sum_shift(l));
      sum = 0;
    }
    int shift;
    uint64 f = mantissa(total, &shift);
    bool negative = total >> 63;
    uint32 value[VALUE_WORDS] = {(uint32)f, (uint32)(f >> 32)};
    exponents -= shift;
#else
    Columns<VALUE_WORDS> number;
#pragma unroll
    for (int l = 0; l < NUM_SUMS; ++l) number.add(values[l], sum_shift(l));
    uint32 value[VALUE_WORDS];
    bool negative = number.to_words(value);
#endif
    Bits bits = rounded<VALUE_WORDS, Bits>(value, negative, exponents);
    int special = rows.special[row] | special_column;
    bits = finished(bits, special, a, of_a, i, b, of_b, j, 0, flags);
    *out.at(batch, i, j) = bits;
#if WITH_LOW
    *low.at(batch, i, j) =
        is_finite(bits) ? left_over<VALUE_WORDS>(value, negative, exponents, bits) : 0;
#endif
  }
}
