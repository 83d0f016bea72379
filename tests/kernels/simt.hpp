// Kernels on a CPU: every thread of a block is a fiber that runs to the next barrier.
//
// Blocks run one after the other, so that `static` serves for shared memory and plain
// additions for atomics.  Only the blocks of a cluster run together: each has dynamic
// shared memory of its own.  Slow, and good enough to compare bits on small operands.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

struct Index {
  unsigned x, y, z;
};

static Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

const size_t STACK_BYTES = 128 << 10;
const unsigned WARP_SIZE = 32;

// Where threads meet: the last one to come lets the others go on.
struct Meeting {
  unsigned arrived, generation, size;
};

// A fiber starts as a context of its own and goes on by jumps, which ask the system
// for nothing.  It lives on and runs a thread of every later block.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  jmp_buf place;
  bool finished;
  unsigned cluster_generation;
};

// What a lane shows to its warp.
struct Shown {
  unsigned long long value;
  unsigned table[4], low, high;
};

static jmp_buf scheduler;
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<Meeting> warps, blocks;
static Meeting cluster;
static std::vector<Shown> shown;
static std::vector<char> dynamic_shared;
static size_t shared_stride;
static unsigned current;
static void (*body)(void**);
static void** arguments;

static void pause() {
  if (!_setjmp(fibers[current]->place)) _longjmp(scheduler, 1);
}

// Returns the generation that ends when all have come.
static unsigned arrive(Meeting& meeting) {
  unsigned generation = meeting.generation;
  if (++meeting.arrived == meeting.size) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
  return generation;
}

static void wait(Meeting& meeting, unsigned generation) {
  while (meeting.generation == generation) pause();
}

static void leave(Meeting& meeting) {
  --meeting.size;
  if (meeting.size && meeting.arrived == meeting.size) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
}

static Meeting& my_block() { return blocks[current / blockDim.x]; }
static Meeting& my_warp() { return warps[current / WARP_SIZE]; }
static void barrier() { wait(my_block(), arrive(my_block())); }
static void meet_warp() { wait(my_warp(), arrive(my_warp())); }

static void entry() {
  for (;;) {
    body(arguments);
    fibers[current]->finished = true;
    leave(my_warp());
    leave(my_block());
    leave(cluster);
    pause();
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

// Blocks `first` to `first` + `size` of the x axis.
static void run_cluster(unsigned first, unsigned size) {
  unsigned count = size * blockDim.x;
  while (fibers.size() < count) fibers.emplace_back(new Fiber());
  shown.resize(count);
  warps.assign((count + WARP_SIZE - 1) / WARP_SIZE, {0, 0, WARP_SIZE});
  blocks.assign(size, {0, 0, blockDim.x});
  cluster = {0, 0, count};
  for (unsigned i = 0; i < count; ++i) fibers[i]->finished = false;
  for (bool any = true; any;) {
    any = false;
    for (current = 0; current < count; ++current) {
      if (fibers[current]->finished) continue;
      threadIdx = {current % blockDim.x, 0, 0};
      blockIdx.x = first + current / blockDim.x;
      resume();
      any = any || !fibers[current]->finished;
    }
  }
}

// ---- What warps and clusters do together ----

static unsigned long long exchanged(unsigned long long value, int mask) {
  shown[current].value = value;
  meet_warp();
  unsigned long long result = shown[current ^ mask].value;
  meet_warp();
  return result;
}

// Lane 4 g + t shows words t and 4 + t of rows g and g + 8, and of column g.
static void multiply_bytes(int* sum, const unsigned* table, unsigned low,
                           unsigned high) {
  Shown& mine = shown[current];
  std::copy(table, table + 4, mine.table);
  mine.low = low;
  mine.high = high;
  meet_warp();
  const Shown* warp = &shown[current / WARP_SIZE * WARP_SIZE];
  unsigned lane = current % WARP_SIZE, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    unsigned column = 2 * t + i % 2;
    for (unsigned lane_of_row = 4 * g; lane_of_row < 4 * g + 4; ++lane_of_row) {
      const Shown& row = warp[lane_of_row];
      const Shown& bytes = warp[4 * column + lane_of_row % 4];
      for (int byte = 0; byte < 32; byte += 8)
        sum[i] += (signed char)(row.table[i / 2] >> byte) *
                      (int)(unsigned char)(bytes.low >> byte) +
                  (signed char)(row.table[2 + i / 2] >> byte) *
                      (int)(unsigned char)(bytes.high >> byte);
    }
  }
  meet_warp();
}

static int cluster_rank() { return (int)(current / blockDim.x); }

static void cluster_arrive() {
  fibers[current]->cluster_generation = arrive(cluster);
}

static void cluster_wait() { wait(cluster, fibers[current]->cluster_generation); }

// Until other blocks have written a number of bytes, as they count themselves.
static void wait_for(const volatile unsigned long long* count, int bytes) {
  while (*count != (unsigned long long)bytes) pause();
}

template <class T>
const T* of_block(const T* place, int rank) {
  return (const T*)((const char*)place + shared_stride * (rank - cluster_rank()));
}

static void* my_shared() {
  return dynamic_shared.data() + shared_stride * cluster_rank();
}

// ---- Launches ----

template <class... Types, size_t... I>
void call(void (*kernel)(Types...), void** args, std::index_sequence<I...>) {
  kernel(*(Types*)args[I]...);
}

template <class... Types>
void call(void (*kernel)(Types...), void** args) {
  call(kernel, args, std::index_sequence_for<Types...>());
}

static void launch(void (*kernel)(void**), unsigned cluster_size, const unsigned* grid,
                   unsigned block, size_t shared, void** args) {
  body = kernel;
  arguments = args;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block, 1, 1};
  shared_stride = (std::max<size_t>(shared, 1) + 31) / 16 * 16;
  dynamic_shared.assign(shared_stride * cluster_size, 0x5a);
  for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
      for (unsigned x = 0; x < grid[0]; x += cluster_size) run_cluster(x, cluster_size);
}

}  // namespace simt

#define DEVICE inline
#define KERNEL static
#define __shared__ static
#define __grid_constant__
#define DYNAMIC_SHARED(type, name) type* name = (type*)simt::my_shared()
// What simt.py reads from the text is the size.
#define CLUSTERS(size, blocks, name, type)

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
using std::min;
