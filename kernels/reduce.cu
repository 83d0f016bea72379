// Stage reduce: residue products to balanced residues in place, between blocks of k.
#include "lines.cuh"

// c mod p, balanced, for any int32 c.
HD int reduced(int c, int l) {
  const int p = modulus(l);
  // The bytes of c + 2^31 count 2^(8 i) modulo p.
  int sum = dot4((uint32)c ^ 0x80000000u, powers_low(l), bias(l) + reduce_offset(l));
  if (p == 256) return (int8)(uint8)sum;
  return balanced(sum, (float)p, 1.0f / (float)p, quotients(l)) - bias(l);
}

// `count` products of a plane follow those of the plane before; PARTS planes belong to a
// modulus.
KERNEL void reduce(int* products, int64 count) {
  int64 index = blockIdx.x * (int64)blockDim.x + threadIdx.x;
  if (index >= count) return;
#pragma unroll
  for (int i = 0; i < PARTS * NUM_MODULI; ++i)
    products[i * count + index] = reduced(products[i * count + index], i / PARTS);
}
