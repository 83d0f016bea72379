// Kernels on a CPU: every thread of a block is a fiber that runs to the next barrier.
//
// Blocks run one after the other, so that `static` serves for shared memory and plain
// additions for atomics.  Only the blocks of a cluster run together: each has dynamic
// shared memory of its own.  Slow, and good enough to compare bits on small operands.
//
// One library of this serves the libraries of all kernels.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

char* dynamic_shared;
size_t shared_stride;

namespace {

const size_t STACK_BYTES = 128 << 10;
const unsigned WARP_SIZE = 32;

// Where a fiber goes on.  GCC's own jumps are those of a library without what matters
// to signals: a few instructions, and there are many.
#if defined(__GNUC__) && !defined(__clang__)
typedef void* Place[5];
#define SAVED(place) __builtin_setjmp(place)
#define JUMP(place) __builtin_longjmp(place, 1)
#else
typedef jmp_buf Place;
#define SAVED(place) _setjmp(place)
#define JUMP(place) _longjmp(place, 1)
#endif

// Where threads meet: the last one to come lets the others go on.
struct Meeting {
  unsigned arrived, generation, size;
};

// What the lanes of a warp show to each other.
struct Shown {
  unsigned long long values[WARP_SIZE];
  signed char rows[16][32];
  unsigned char columns[8][32];
};

// Who has read what is shown may show the next thing while others still read: there are
// two of each, in turns.
struct Warp {
  Meeting meeting;
  Shown shown[2];
};

// A fiber starts as a context of its own and goes on by jumps, which ask the system
// for nothing.  It lives on and runs a thread of every later block.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  Place place;
  bool finished;
  unsigned cluster_generation;
  Warp* warp;
  Meeting* block;
  unsigned thread, block_index, rank;
};

Place scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
std::vector<Meeting> blocks;
Meeting cluster;
std::vector<char> memory;
// The fiber that runs, its number, and how many of how many are not finished.
Fiber* self;
unsigned current, count, unfinished;
void (*body)(void**);
void** arguments;

void entry();

// Starts the fiber that runs, or lets it go on where it was.
__attribute__((noinline)) void enter() {
  if (self->stack) JUMP(self->place);
  self->stack.reset(new char[STACK_BYTES]);
  getcontext(&self->start);
  self->start.uc_stack.ss_sp = self->stack.get();
  self->start.uc_stack.ss_size = STACK_BYTES;
  makecontext(&self->start, entry, 0);
  setcontext(&self->start);
}

// Lets the next fiber run that is not finished; the scheduler, if there is none.
__attribute__((noinline)) void next() {
  if (!unfinished) JUMP(scheduler);
  do {
    current = current + 1 < count ? current + 1 : 0;
    self = fibers[current].get();
  } while (self->finished);
  threadIdx.x = self->thread;
  blockIdx.x = self->block_index;
  enter();
}

__attribute__((noinline)) void pause() {
  if (!SAVED(self->place)) next();
}

// Returns the generation that ends when all have come.
unsigned arrive(Meeting& meeting) {
  unsigned generation = meeting.generation;
  if (++meeting.arrived == meeting.size) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
  return generation;
}

void wait(Meeting& meeting, unsigned generation) {
  while (meeting.generation == generation) pause();
}

void leave(Meeting& meeting) {
  --meeting.size;
  if (meeting.size && meeting.arrived == meeting.size) {
    meeting.arrived = 0;
    ++meeting.generation;
  }
}

void entry() {
  for (;;) {
    body(arguments);
    self->finished = true;
    --unfinished;
    leave(self->warp->meeting);
    leave(*self->block);
    leave(cluster);
    pause();
  }
}

__attribute__((noinline)) void run_fibers() {
  if (SAVED(scheduler)) return;
  current = count - 1;
  next();
}

// Blocks `first` to `first` + `size` of the x axis.
void run_cluster(unsigned first, unsigned size) {
  count = unfinished = size * blockDim.x;
  while (fibers.size() < count) fibers.emplace_back(new Fiber());
  warps.resize(std::max<size_t>(warps.size(), (count + WARP_SIZE - 1) / WARP_SIZE));
  for (Warp& warp : warps) warp.meeting = {0, 0, WARP_SIZE};
  blocks.assign(size, {0, 0, blockDim.x});
  cluster = {0, 0, count};
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = *fibers[i];
    fiber.finished = false;
    fiber.warp = &warps[i / WARP_SIZE];
    fiber.rank = i / blockDim.x;
    fiber.block = &blocks[fiber.rank];
    fiber.thread = i % blockDim.x;
    fiber.block_index = first + fiber.rank;
  }
  run_fibers();
}

// What the warp shows when it meets next.
Shown& shown() { return self->warp->shown[self->warp->meeting.generation % 2]; }

void meet_warp() {
  Meeting& meeting = self->warp->meeting;
  wait(meeting, arrive(meeting));
}

int product(const signed char* row, const unsigned char* column) {
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += row[i] * column[i];
  return sum;
}

}  // namespace

void barrier() { wait(*self->block, arrive(*self->block)); }

unsigned long long exchanged(unsigned long long value, int mask) {
  unsigned lane = current % WARP_SIZE;
  Shown& warp = shown();
  warp.values[lane] = value;
  meet_warp();
  return warp.values[lane ^ mask];
}

// Lane 4 g + t shows words t and 4 + t of rows g and g + 8, and of column g.
void multiply_bytes(int* sum, const unsigned* table, unsigned low, unsigned high) {
  unsigned lane = current % WARP_SIZE, g = lane / 4, t = lane % 4;
  Shown& warp = shown();
  for (unsigned i = 0; i < 4; ++i)
    __builtin_memcpy(&warp.rows[g + i % 2 * 8][4 * t + i / 2 * 16], &table[i], 4);
  __builtin_memcpy(&warp.columns[g][4 * t], &low, 4);
  __builtin_memcpy(&warp.columns[g][4 * t + 16], &high, 4);
  meet_warp();
  for (unsigned i = 0; i < 4; ++i)
    sum[i] += product(warp.rows[g + i / 2 * 8], warp.columns[2 * t + i % 2]);
}

int cluster_rank() { return (int)self->rank; }

void cluster_arrive() { self->cluster_generation = arrive(cluster); }

void cluster_wait() { wait(cluster, self->cluster_generation); }

// Until other blocks have written a number of bytes, as they count themselves.
void wait_for(const volatile unsigned long long* bytes_so_far, int bytes) {
  while (*bytes_so_far != (unsigned long long)bytes) pause();
}

void launch(void (*kernel)(void**), unsigned cluster_size, const unsigned* grid,
            unsigned block, size_t shared, void** args) {
  body = kernel;
  arguments = args;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block, 1, 1};
  shared_stride = (std::max<size_t>(shared, 1) + 31) / 16 * 16;
  memory.assign(shared_stride * cluster_size, 0x5a);
  dynamic_shared = memory.data();
  for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
      for (unsigned x = 0; x < grid[0]; x += cluster_size) run_cluster(x, cluster_size);
}

}  // namespace simt
