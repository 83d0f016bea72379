// Where a stage writes C, and what entries of lines that are not finite are.
#pragma once
#include "lines.cuh"

#if defined(SINGLE_RESULT) && WITH_LOW
#error "what the rounding leaves is told of doubles only"
#endif
#if PARTS == 2 && WITH_CHECK
#error "complex operands are embedded in real ones to be checked"
#endif

// A part of an entry of C by its bits: of a double or of an FP32 number.
#ifdef SINGLE_RESULT
typedef uint32 Bits;
#else
typedef uint64 Bits;
#endif

// (batch, rows, columns) entries; strides in words.
template <class Part>
struct Matrices {
  Part* data;
  int64 batch_stride, row_stride, column_stride;
  int64 batch, rows, columns;

  DEVICE Part* at(int64 h, int64 i, int64 j) const {
    return data + h * batch_stride + i * row_stride + j * column_stride;
  }
};

typedef Matrices<Bits> Result;
typedef Matrices<uint64> Beside;  // what else is told of entries

// Two neighbours in memory at once, from a multiple of their size on.
DEVICE void store_pair(uint64* target, uint64 first, uint64 second) {
#ifdef __CUDA_ARCH__
  *(ulonglong2*)target = make_ulonglong2(first, second);
#else
  target[0] = first;
  target[1] = second;
#endif
}

DEVICE void store_pair(uint32* target, uint32 first, uint32 second) {
#ifdef __CUDA_ARCH__
  *(uint2*)target = make_uint2(first, second);
#else
  target[0] = first;
  target[1] = second;
#endif
}

const int OVERFLOW_FLAG = 1;
const int INVALID_FLAG = 2;

// An entry, or a part of it, whose row of A or column of B is not finite: what IEEE
// arithmetic gives for the products of its words in any order; `finite` where none of
// them is NaN or infinite.
DEVICE Bits special_value(Operand a, Operand b, int64 batch_a, int64 row,
                          int64 batch_b, int64 column, int part, Bits finite,
                          int* flags) {
  bool plus = false, minus = false;
  for (int64 h = 0; h < a.words() && !(plus && minus); ++h) {
    uint64 x = a.at(batch_a, row, h ^ part), y = b.at(batch_b, column, h);
    // The real part is that of xr yr - xi yi.
    if (PARTS == 2 && !part) x ^= (uint64)h << 63;
    if (is_finite(x) && is_finite(y)) continue;
    if (!magnitude(x) || !magnitude(y)) plus = minus = true;  // Inf 0
    else if ((x ^ y) >> 63) minus = true;
    else plus = true;
  }
  if (plus && minus) {
    atomicOr(flags, INVALID_FLAG);
    return Format<Bits>::NOT_A_NUMBER;
  }
  if (plus) return Format<Bits>::INFINITE;
  return minus ? sign_bit<Bits>(true) | Format<Bits>::INFINITE : finite;
}

// What an entry becomes of the bits of its finite product, and flags for it; `special`
// is what its lines hold.
DEVICE Bits finished(Bits bits, int special, Operand a, int64 batch_a, int64 row,
                     Operand b, int64 batch_b, int64 column, int part, int* flags) {
  Bits size = bits & ~sign_bit<Bits>(true);
  if (size == Format<Bits>::INFINITE) atomicOr(flags, OVERFLOW_FLAG);
  if (special & HOLDS_NAN) return Format<Bits>::NOT_A_NUMBER;
  if (!special) return bits;
  return special_value(a, b, batch_a, row, batch_b, column, part, bits, flags);
}
