// Kernels on a CPU: every thread of a block is a fiber that runs to the next barrier.
//
// Blocks run one after the other, so that `static` serves for shared memory and plain
// additions for atomics.  Slow, and good enough to compare bits on small operands.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

struct Index {
  unsigned x, y, z;
};

static Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

const size_t STACK_BYTES = 128 << 10;

// A fiber starts as a context of its own and goes on by jumps, which ask the system
// for nothing.  It lives on and runs a thread of every later block.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  jmp_buf place;
  bool finished;
};

static jmp_buf scheduler;
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<char> dynamic_shared;
static unsigned current;
static void (*body)(void**);
static void** arguments;

static void barrier() {
  if (!_setjmp(fibers[current]->place)) _longjmp(scheduler, 1);
}

static void entry() {
  for (;;) {
    body(arguments);
    fibers[current]->finished = true;
    barrier();
  }
}

// Runs the current fiber up to its next barrier.
__attribute__((noinline)) static void resume() {
  Fiber& fiber = *fibers[current];
  if (_setjmp(scheduler)) return;
  if (fiber.stack) _longjmp(fiber.place, 1);
  fiber.stack.reset(new char[STACK_BYTES]);
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = STACK_BYTES;
  makecontext(&fiber.start, entry, 0);
  setcontext(&fiber.start);
}

static void run_block() {
  unsigned count = blockDim.x;
  while (fibers.size() < count) fibers.emplace_back(new Fiber());
  for (unsigned i = 0; i < count; ++i) fibers[i]->finished = false;
  for (bool any = true; any;) {
    any = false;
    for (current = 0; current < count; ++current) {
      if (fibers[current]->finished) continue;
      threadIdx = {current, 0, 0};
      resume();
      any = any || !fibers[current]->finished;
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

// The threads of a warp run to as many barriers each, so that one of all serves.
inline void __syncwarp() { simt::barrier(); }

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
