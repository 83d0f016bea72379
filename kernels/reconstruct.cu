// Stage reconstruct: residue products to C, rounded once, and NaN and Inf by IEEE rules.
#include "entries.cuh"

KERNEL void reconstruct(Products products, Operand a, LineFacts rows, int64 batch_a,
                        Operand b, LineFacts columns, int64 batch_b, Result out,
                        int64 width, int* flags) {
  write_entries<false>(products, a, rows, batch_a, b, columns, batch_b, out, out, width,
                       flags);
}
