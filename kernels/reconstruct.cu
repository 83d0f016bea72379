// Stage reconstruct: residue products to C, rounded once, and NaN and Inf by IEEE rules.
#include "checksum.cuh"
#include "lines.cuh"
#include "reconstruct.cuh"
#include "results.cuh"

// One thread an entry; a batch of 1 broadcasts.  `low`, where it is wanted, takes what
// the one rounding left.
KERNEL void reconstruct(Products products, Operand a, LineFacts rows, int64 batch_a,
                        Operand b, LineFacts columns, int64 batch_b, Result out,
                        int64 width, int* flags, Beside low) {
  Entries entries(out.rows, out.columns, (int)width);
  if (entries.outside) return;
  int64 batch = blockIdx.z, j = entries.column;
  int64 of_a = batch_a > 1 ? batch : 0, of_b = batch_b > 1 ? batch : 0;
  int64 column = of_b * out.columns + j;
  int nu = columns.exponents[column], special_column = columns.special[column];
  for (int64 i = entries.row; i < out.rows; i += entries.step) {
    int* source = products.row(batch, i);
    int values[RESIDUES];
#pragma unroll
    for (int l = 0; l < RESIDUES; ++l)
      values[l] = source[l * products.plane_stride + j];
    int64 row = of_a * out.rows + i;
    int exponents = rows.exponents[row] + nu;
    int special = rows.special[row] | special_column;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      uint32 value[VALUE_WORDS];
      bool negative = crt(values, part, value);
      Bits bits = rounded<VALUE_WORDS, Bits>(value, negative, exponents);
      bits = finished(bits, special, a, of_a, i, b, of_b, j, part, flags);
      out.at(batch, i, j)[part] = bits;
#if WITH_LOW
      low.at(batch, i, j)[part] =
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
}
