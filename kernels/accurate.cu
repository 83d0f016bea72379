// Scaling "accurate": planes ceil(|x| 2^(5 - e)), and exponents from their product.
#include "lines.cuh"

struct Ceilings {
  DEVICE void operator()(const uint64* bits, int exponent, int e, uint64* target,
                         int64 step) const {
    int t[GROUP];
    for (int i = 0; i < GROUP; ++i)
      t[i] = (int)scaled_ceiling(bits[i], AUXILIARY_BITS - e);
    *target = pack_group(t);
  }
};

KERNEL void ceilings_along(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Ceilings(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void ceilings_across(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Ceilings(), x, facts.exponents, facts.largest, planes, tile);
}

// A tile of Cbar, (batch, rows_padded, columns_padded): its maxima join those of whole
// rows and columns.  One thread an entry; entries of a row are neighbours.
template <class Entry>
DEVICE void join_maxima(const Entry* products, int64 batch_stride, int64 row_stride,
                        int64 batch, int64 rows, int64 columns, uint64* row_maxima,
                        uint64* column_maxima, int64 row_count, int64 column_count) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= batch * rows * columns) return;
  int64 j = index % columns, i = index / columns % rows, b = index / columns / rows;
  uint64 value = (uint64)products[b * batch_stride + i * row_stride + j];
  if (!value) return;
  // Most entries are no maximum, and a plain look is far cheaper than an atomic.
  uint64* row = &row_maxima[b * row_count + i];
  uint64* column = &column_maxima[b * column_count + j];
  if (value > *(volatile uint64*)row) atomicMax(row, value);
  if (value > *(volatile uint64*)column) atomicMax(column, value);
}

KERNEL void maxima(const int* products, int64 batch_stride, int64 row_stride,
                   int64 batch, int64 rows, int64 columns, uint64* row_maxima,
                   uint64* column_maxima, int64 row_count, int64 column_count) {
  join_maxima(products, batch_stride, row_stride, batch, rows, columns, row_maxima,
              column_maxima, row_count, column_count);
}

KERNEL void wide_maxima(const int64* products, int64 batch_stride, int64 row_stride,
                        int64 batch, int64 rows, int64 columns, uint64* row_maxima,
                        uint64* column_maxima, int64 row_count, int64 column_count) {
  join_maxima(products, batch_stride, row_stride, batch, rows, columns, row_maxima,
              column_maxima, row_count, column_count);
}

KERNEL void exponents_from_maxima(LineFacts facts, int64 count, const uint64* maxima,
                                  Exponents how) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= count) return;
  facts.exponents[index] = accurate_exponent(facts.largest[index], maxima[index],
                                             how.limit_bits, how.limit_top) +
                           how.shift;
}
