// What the threads of a warp and the blocks of a cluster do together, and copies that
// go on while a thread works: one instruction a function.  Compute capability 9.0.
#pragma once
#include "lines.cuh"

const int WARP = 32;

#ifdef __CUDACC__
// Says how many blocks make a cluster of a kernel of one argument, and how many blocks
// a multiprocessor shall hold.
#define CLUSTERS(size, blocks, name, type)                      \
  extern "C" __global__ void __cluster_dims__(size, 1, 1)       \
      __launch_bounds__(ALONG_THREADS, blocks)                  \
      name(const __grid_constant__ type)
#endif

// ---- Warps ----

DEVICE uint64 exchanged(uint64 value, int mask) {
#ifdef __CUDA_ARCH__
  return __shfl_xor_sync(0xffffffffu, value, mask);
#else
  return simt::exchanged(value, mask);
#endif
}

DEVICE uint32 exchanged_word(uint32 value, int mask) {
#ifdef __CUDA_ARCH__
  return __shfl_xor_sync(0xffffffffu, value, mask);
#else
  return (uint32)simt::exchanged(value, mask);
#endif
}

// Reductions of one value a thread over a warp; all get the result.
template <class Combine>
DEVICE uint64 over_warp(uint64 value, Combine combine) {
#pragma unroll
  for (int step = WARP / 2; step; step >>= 1)
    value = combine(value, exchanged(value, step));
  return value;
}

DEVICE uint32 largest_of_warp(uint32 value) {
#ifdef __CUDA_ARCH__
  return __reduce_max_sync(0xffffffffu, value);
#else
  return (uint32)over_warp(value, TakeLarger());
#endif
}

// sum = start + table bytes: 16 rows of 32 signed bytes by 32 rows of 8 unsigned ones.
// Lane 4 g + t gives bytes 4 t and 16 + 4 t on of rows g and g + 8, and of column g; it
// gets columns 2 t and 2 t + 1 of row g, then those of row g + 8.
DEVICE void multiply_bytes(int* sum, const uint32* table, uint32 low, uint32 high,
                           const int* start) {
#ifdef __CUDA_ARCH__
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
      : "r"(table[0]), "r"(table[1]), "r"(table[2]), "r"(table[3]), "r"(low),
        "r"(high), "r"(start[0]), "r"(start[1]), "r"(start[2]), "r"(start[3]));
#else
  for (int i = 0; i < 4; ++i) sum[i] = start[i];
  simt::multiply_bytes(sum, table, low, high);
#endif
}

// ---- Copies ----

// `size` bytes to shared memory, of which `real` are read and the others are 0.
template <int size>
DEVICE void copy_later(uint64* target, const uint64* source, int real) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(
                   (uint32)__cvta_generic_to_shared(target)),
               "l"(source), "n"(size), "r"(real)
               : "memory");
#else
  std::memset(target, 0, size);
  std::memcpy(target, source, real);
#endif
}

DEVICE void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

DEVICE void store_16_bytes(uint8* target, const uint32* words) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#else
  std::memcpy(target, words, 16);
#endif
}

// ---- Clusters ----

DEVICE int cluster_rank() {
#ifdef __CUDA_ARCH__
  uint32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
#else
  return simt::cluster_rank();
#endif
}

// What was written to shared memory before an arrival is seen after the wait for it.
DEVICE void cluster_arrive() {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  simt::cluster_arrive();
#endif
}

DEVICE void cluster_wait() {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  simt::cluster_wait();
#endif
}

// A word at the same place in the shared memory of another block of the cluster.
DEVICE uint64 read_of_block(const uint64* place, int rank) {
#ifdef __CUDA_ARCH__
  uint32 there;
  uint64 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"((uint32)__cvta_generic_to_shared(place)), "r"(rank));
  asm volatile("ld.shared::cluster.u64 %0, [%1];"
               : "=l"(value)
               : "r"(there)
               : "memory");
  return value;
#else
  return *simt::of_block(place, rank);
#endif
}
