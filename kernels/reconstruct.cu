// Stage reconstruct: residue products to C, rounded once, and NaN and Inf by IEEE rules.
#include "checksum.cuh"
#include "lines.cuh"
#include "reconstruct.cuh"

struct Result {
  uint64* data;
  int64 batch_stride, row_stride, column_stride;
  int64 batch, rows, columns;

  DEVICE uint64* at(int64 h, int64 i, int64 j) const {
    return data + h * batch_stride + i * row_stride + j * column_stride;
  }
};

const int OVERFLOW_FLAG = 1;
const int INVALID_FLAG = 2;

// An entry whose row of A or column of B is not finite: what IEEE arithmetic gives for
// its k products in any order; `finite` where no product is NaN or infinite.
DEVICE uint64 special_value(Operand a, Operand b, int64 batch_a, int64 row,
                            int64 batch_b, int64 column, uint64 finite, int* flags) {
  bool plus = false, minus = false;
  for (int64 h = 0; h < a.k && !(plus && minus); ++h) {
    uint64 x = a.at(batch_a, row, h), y = b.at(batch_b, column, h);
    if (is_finite(x) && is_finite(y)) continue;
    if (!magnitude(x) || !magnitude(y)) plus = minus = true;  // Inf 0
    else if ((x ^ y) >> 63) minus = true;
    else plus = true;
  }
  if (plus && minus) {
    atomicOr(flags, INVALID_FLAG);
    return NAN_BITS;
  }
  if (plus) return INFINITY_BITS;
  return minus ? 1ull << 63 | INFINITY_BITS : finite;
}

// One thread an entry; a batch of 1 broadcasts.  `low`, where it is wanted, takes what
// the one rounding left.
KERNEL void reconstruct(Products products, Operand a, LineFacts rows, int64 batch_a,
                        Operand b, LineFacts columns, int64 batch_b, Result out,
                        int64 width, int* flags, Result low) {
  Entries entries(out.rows, out.columns, (int)width);
  if (entries.outside) return;
  int64 batch = blockIdx.z, j = entries.column;
  int64 of_a = batch_a > 1 ? batch : 0, of_b = batch_b > 1 ? batch : 0;
  int64 column = of_b * out.columns + j;
  int nu = columns.exponents[column], special_column = columns.special[column];
  for (int64 i = entries.row; i < out.rows; i += entries.step) {
    int* source = products.row(batch, i);
    int values[NUM_MODULI];
#pragma unroll
    for (int l = 0; l < NUM_MODULI; ++l)
      values[l] = source[l * products.plane_stride + j];
    int64 row = of_a * out.rows + i;
    int exponents = rows.exponents[row] + nu;
    uint32 value[VALUE_WORDS];
    bool negative = crt(values, value);
    uint64 bits = rounded<VALUE_WORDS>(value, negative, exponents);
    if (magnitude(bits) == INFINITY_BITS) atomicOr(flags, OVERFLOW_FLAG);
    int special = rows.special[row] | special_column;
    if (special & HOLDS_NAN) bits = NAN_BITS;
    else if (special) bits = special_value(a, b, of_a, i, of_b, j, bits, flags);
    *out.at(batch, i, j) = bits;
#if WITH_LOW
    *low.at(batch, i, j) =
        is_finite(bits) ? left_over<VALUE_WORDS>(value, negative, exponents, bits) : 0;
#endif
#if WITH_CHECK
    // The products of the first two moduli have served; there are always two.
    uint64 remainder = words_remainder<VALUE_WORDS>(value, negative);
    source[j] = (int)(uint32)remainder;
    source[products.plane_stride + j] = (int)(remainder >> 32);
#endif
  }
}
