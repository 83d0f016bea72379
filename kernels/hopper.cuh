// Instructions of sm_90a that the language has no words for, one a function.
#pragma once
#include "arithmetic.cuh"

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__

// What the host writes by cuTensorMapEncodeTiled; a kernel gets it as __grid_constant__.
struct alignas(64) TensorMap {
  uint8 bytes[128];
};

// ---- Shared memory and its barriers ----

DEVICE uint32 shared_address(const void* pointer) {
  return (uint32)__cvta_generic_to_shared(pointer);
}

DEVICE void barrier_init(uint32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes initialised barriers seen by the whole cluster and by the copy engine.
DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, and `bytes` that the copy engine will write.
DEVICE void barrier_expect(uint32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

// The same address in the shared memory of another block of the cluster.
DEVICE uint32 address_in_block(uint32 address, uint32 rank) {
  uint32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(address), "r"(rank));
  return there;
}

DEVICE void barrier_arrive(uint32 cluster_barrier) {
  // Without a wider scope than the default, which would wait for all of memory: what it
  // orders, reads of the matrix unit, is over by then.
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier)
               : "memory");
}

DEVICE bool barrier_test(uint32 barrier, uint32 parity) {
  uint32 done;
  asm volatile(
      "{ .reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

DEVICE void barrier_wait(uint32 barrier, uint32 parity) {
  while (!barrier_test(barrier, parity)) {
  }
}

// ---- The cluster ----

DEVICE uint32 block_rank() {
  uint32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- The copy engine ----

// A box of a three-dimensional array, at (x, y, z), to this block's shared memory.
DEVICE void copy_box(uint32 target, const TensorMap* map, uint32 barrier, int x, int y,
                     int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same to the blocks of the cluster whose bits are set, at the same address in each.
DEVICE void copy_box_to(uint16 blocks, uint32 target, const TensorMap* map,
                        uint32 barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}

DEVICE void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- The matrix unit ----

// Describes rows of 128 bytes in shared memory, swizzled as the copy engine leaves them:
// eight rows are 1024 bytes.
DEVICE uint64 matrix_descriptor(uint32 address) {
  return (uint64)(address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Between other uses of registers and their use as accumulators.
DEVICE void accumulators_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `pending` groups of products are under way.
template <int pending>
DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// No use of accumulators may move above the wait for them.
DEVICE void accumulators_settle(int* d) {
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#define FOUR(at) "+r"(d[at]), "+r"(d[at + 1]), "+r"(d[at + 2]), "+r"(d[at + 3])
#define SIXTEEN(at) FOUR(at), FOUR(at + 4), FOUR(at + 8), FOUR(at + 12)

// d = a b^T (+ d, unless `keep` is 0): 64 rows of a, 256 rows of b, 32 bytes of each.
DEVICE void multiply_256(int* d, uint64 a, uint64 b, int keep) {
  asm volatile(
      "{ .reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
      "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "
      "%123, %124, %125, %126, %127}, %128, %129, p; }"
      : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80),
        SIXTEEN(96), SIXTEEN(112)
      : "l"(a), "l"(b), "r"(keep));
}

#undef SIXTEEN
#undef FOUR

// ---- Registers ----

// Both are for whole warpgroups, and wait until the registers are there.
template <int count>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// Threads of the warpgroups that name it, `count` in all, meet at a barrier of the block.
DEVICE void meet(int barrier, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void pass_by(int barrier, int count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
#endif
