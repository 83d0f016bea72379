// Stage reconstruct where the rest of its rounding is wanted, too.
#include "entries.cuh"

KERNEL void reconstruct_low(Products products, Operand a, LineFacts rows, int64 batch_a,
                            Operand b, LineFacts columns, int64 batch_b, Result out,
                            int64 width, int* flags, Result low) {
  write_entries<true>(products, a, rows, batch_a, b, columns, batch_b, out, low, width,
                      flags);
}
