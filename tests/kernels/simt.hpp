// Kernels on a CPU: every thread of a block is a fiber that runs to the next barrier.
//
// Blocks run one after the other, so that `static` serves for shared memory and plain
// additions for atomics.  Slow, and good enough to compare bits on small operands.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

struct Index {
  unsigned x, y, z;
};

static Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

const size_t STACK_BYTES = 128 << 10;

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<char> stacks;
static std::vector<bool> finished;
static std::vector<char> dynamic_shared;
static unsigned current;
static void (*body)(void**);
static void** arguments;

static void entry() {
  body(arguments);
  finished[current] = true;
}

static void barrier() { swapcontext(&fibers[current], &scheduler); }

static void run_block() {
  unsigned count = blockDim.x;
  fibers.resize(count);
  finished.assign(count, false);
  stacks.resize(count * STACK_BYTES);
  for (unsigned i = 0; i < count; ++i) {
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[i * STACK_BYTES];
    fibers[i].uc_stack.ss_size = STACK_BYTES;
    fibers[i].uc_link = &scheduler;
    makecontext(&fibers[i], entry, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (current = 0; current < count; ++current) {
      if (finished[current]) continue;
      threadIdx = {current, 0, 0};
      swapcontext(&scheduler, &fibers[current]);
      any = any || !finished[current];
    }
  }
}

template <class... Types, size_t... I>
void call(void (*kernel)(Types...), void** args, std::index_sequence<I...>) {
  kernel(*(Types*)args[I]...);
}

template <class... Types>
void call(void (*kernel)(Types...), void** args) {
  call(kernel, args, std::index_sequence_for<Types...>());
}

static void launch(void (*kernel)(void**), const unsigned* grid, unsigned block,
                   size_t shared, void** args) {
  body = kernel;
  arguments = args;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block, 1, 1};
  dynamic_shared.assign(std::max<size_t>(shared, 1) + 16, 0x5a);
  for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) run_block();
}

}  // namespace simt

#define DEVICE inline
#define KERNEL static
#define __shared__ static
#define DYNAMIC_SHARED(type, name) type* name = (type*)simt::dynamic_shared.data()

inline void __syncthreads() { simt::barrier(); }

template <class T>
T atomicMax(T* address, T value) {
  T old = *address;
  *address = std::max(old, value);
  return old;
}

template <class T>
T atomicAdd(T* address, T value) {
  T old = *address;
  *address += value;
  return old;
}

template <class T>
T atomicOr(T* address, T value) {
  T old = *address;
  *address |= value;
  return old;
}

using std::max;
