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
#ifndef __CUDA_ARCH__
template <class Combine>
DEVICE uint64 over_warp(uint64 value, Combine combine) {
  for (int step = WARP / 2; step; step >>= 1)
    value = combine(value, exchanged(value, step));
  return value;
}
#endif

DEVICE uint32 largest_of_warp(uint32 value) {
#ifdef __CUDA_ARCH__
  return __reduce_max_sync(0xffffffffu, value);
#else
  return (uint32)over_warp(value, TakeLarger());
#endif
}

DEVICE uint32 smallest_of_warp(uint32 value) { return ~largest_of_warp(~value); }

DEVICE uint32 union_of_warp(uint32 value) {
#ifdef __CUDA_ARCH__
  return __reduce_or_sync(0xffffffffu, value);
#else
  return (uint32)over_warp(value, TakeUnion());
#endif
}

// Of 32 bits.
DEVICE uint32 sum_of_warp(uint32 value) {
#ifdef __CUDA_ARCH__
  return __reduce_add_sync(0xffffffffu, value);
#else
  return (uint32)over_warp(value, TakeSum());
#endif
}

// The same of 64 bits, in two steps: the lower words count where the upper ones tie.
DEVICE uint64 largest_of_warp(uint64 value) {
  uint32 upper = (uint32)(value >> 32), most = largest_of_warp(upper);
  uint32 lower = largest_of_warp(upper == most ? (uint32)value : 0u);
  return (uint64)most << 32 | lower;
}

// Of values below 2^54, halves of which are added up in 32 bits.
DEVICE uint64 sum_of_warp(uint64 value) {
  const int HALF = 27;
  uint32 lower = sum_of_warp((uint32)value & ((1u << HALF) - 1));
  return ((uint64)sum_of_warp((uint32)(value >> HALF)) << HALF) + lower;
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
DEVICE void copy_later(void* target, const void* source, int real) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(
                   (uint32)__cvta_generic_to_shared(target)),
               "l"(source), "n"(size), "r"(real)
               : "memory");
#else
  // Where a GPU would stop, entries are wrong here.
  bool aligned = ((uint64)target | (uint64)source) % size == 0;
  std::memset(target, aligned ? 0 : 0x5a, size);
  if (aligned) std::memcpy(target, source, real);
#endif
}

DEVICE void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Where `wanted`, by a predicate: a branch would have every lane wait for the others.
DEVICE void store_16_bytes(bool wanted, uint8* target, const uint32* words) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "{ .reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(target),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"((uint32)wanted)
      : "memory");
#else
  if (wanted) std::memcpy(target, words, 16);
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

// Without `release`, which would wait for all of memory: what has to be seen after the
// wait is made so by `show_mail`.
DEVICE void cluster_arrive_relaxed() {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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

// ---- Mail in a cluster ----

// A block counts the bytes that others write to its shared memory.  The write of a word
// and its being counted are one operation, ordered by release: no fence of a thread, and
// none of all memory, takes part.

// By one thread, and once: `bytes` will come.  They are added before this arrives, the
// only arrival, so that mail may come first as well.
DEVICE void open_mail(uint64* mail, int bytes) {
#ifdef __CUDA_ARCH__
  uint32 address = (uint32)__cvta_generic_to_shared(mail);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address),
               "r"(bytes)
               : "memory");
#else
  *mail = 0;
#endif
}

// By the same thread, before `cluster_arrive_relaxed`: others may send after `cluster_wait`.
DEVICE void show_mail() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Two words to the same place, at 16 bytes, in the shared memory of a block.
DEVICE void send_to_block(uint64* place, uint64* mail, uint64 first, uint64 second,
                          int rank) {
#ifdef __CUDA_ARCH__
  uint32 there, mail_there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"((uint32)__cvta_generic_to_shared(place)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(mail_there)
               : "r"((uint32)__cvta_generic_to_shared(mail)), "r"(rank));
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u64 [%0], "
      "{%1, %2}, [%3];" ::"r"(there),
      "l"(first), "l"(second), "r"(mail_there)
      : "memory");
#else
  uint64* there = (uint64*)simt::of_block(place, rank);
  there[0] = first;
  there[1] = second;
  *(uint64*)simt::of_block(mail, rank) += 16;
#endif
}

// Until all bytes have come, which are seen then.  By the memory model that asks for the
// scope of those who sent them.
DEVICE void wait_for_mail(uint64* mail, int bytes) {
#ifdef __CUDA_ARCH__
  uint32 done;
  do {
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"((uint32)__cvta_generic_to_shared(mail))
        : "memory");
  } while (!done);
#else
  simt::wait_for(mail, bytes);
#endif
}
