// Stage residue_tiles, for sm_90a: residue products as bytes, straight from the
// accumulators.
//
// One persistent launch takes all work items: 128 or 192 rows by 256 columns a block,
// times planes.  Two blocks of a cluster have rows one below the other and share what
// they load of B.  The copy engine feeds a ring of stages in shared memory; consumer
// warpgroups take a group of 64 rows each.
//
// Two consumers leave registers for a warpgroup of which one warp feeds the ring.  Three
// do not: one of theirs does it between its products.
#include "hopper.cuh"
#include "launches.cuh"
#include "tile_order.cuh"

const int STEP = 128;  // bytes along k of a stage: what a swizzled row holds
const int STAGES = 4;
const int GROUP_BYTES = GROUP_ROWS * STEP;
const int B_BYTES = TILE_COLUMNS * STEP;
const int WARPGROUP = 128;
const int ACCUMULATORS = 128;
const int BYTES_A_STORE = 16;
const int CHUNKS = ACCUMULATORS / BYTES_A_STORE;

const int TABLE_LENGTH = sizeof(reduce_modulus) / sizeof(int);

// The tables of all moduli in shared memory, from where they come at once.
struct Tables {
  int minus_p[TABLE_LENGTH], inverse[TABLE_LENGTH], shift[TABLE_LENGTH];
  float quick[TABLE_LENGTH];  // the inverse of quick_residue_byte, or 0

  DEVICE void fill(int steps) {
    for (int l = threadIdx.x; l < TABLE_LENGTH; l += blockDim.x) {
      minus_p[l] = -reduce_modulus[l];
      inverse[l] = reduce_inverse[l];
      shift[l] = reduce_shift[l];
      quick[l] = steps <= quick_steps[l] ? quick_inverse[l] : 0;
    }
  }
};

// What reduces int32 products modulo one p.
struct Reduction {
  int minus_p, inverse, shift;

  DEVICE int operator()(int c) const {
    return residue_byte(c, minus_p, inverse, shift);
  }
};

struct QuickReduction {
  int minus_p;
  float inverse;

  DEVICE int operator()(int c) const {
    return quick_residue_byte(c, minus_p, inverse);
  }
};

struct Ring {
  int stage;
  uint32 parity;

  DEVICE void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A's groups of rows, then B's rows.
template <int groups>
struct Stage {
  uint32 a, b, full, empty;

  DEVICE Stage(uint32 base, uint32 barriers, int stage)
      : a(base + stage * (groups * GROUP_BYTES + B_BYTES)),
        b(a + groups * GROUP_BYTES),
        full(barriers + 8 * stage),
        empty(barriers + 8 * (STAGES + stage)) {}
};

// What is found out of an item once, for the consumers: they have no registers and no
// time for it.
struct Assignment {
  int64 tile;  // the pair's first one
  int batch, row, column, plane;
  int first, groups;  // of the pair's groups of rows, those of the block
};

// The ring is fed by STAGES ahead at most, and an item is begun before its first stage
// is.  Consumers have read an item's assignment when they release its last stage, whoever
// of them does: a warpgroup's products are issued together.
const int ASSIGNMENTS = 2 * STAGES;

// Where the thread is that feeds the ring.
struct Feed {
  Item item;
  Ring ring;
  uint32 number;
  int step, row, column, matrix_a, matrix_b;

  DEVICE explicit Feed(const Work& work)
      : item(work, blockIdx.x / 2), ring({0, 1}), number(0), step(0) {}

  DEVICE void begin(const Work& work, Assignment* assignments, int rank) {
    int groups = item.groups(work), above = (groups + 1) / 2;
    Assignment* assignment = assignments + number++ % ASSIGNMENTS;
    assignment->tile = item.tile;
    assignment->batch = item.batch;
    assignment->first = rank ? above : 0;
    assignment->groups = rank ? groups - above : above;
    row = (2 * work.block_groups * item.pair + assignment->first) * GROUP_ROWS;
    column = item.column * TILE_COLUMNS;
    assignment->row = row;
    assignment->column = column;
    assignment->plane = item.plane;
    column += rank * (TILE_COLUMNS / 2);
    matrix_a = item.plane * work.batch_a + (work.batch_a > 1 ? item.batch : 0);
    matrix_b = item.plane * work.batch_b + (work.batch_b > 1 ? item.batch : 0);
  }

  // Fills the next stage, once it is empty, if there is more to do.
  template <int groups>
  DEVICE bool next(const TensorMap* map_a, const TensorMap* map_b, const Work& work,
                   Assignment* assignments, uint32 base, uint32 barriers, int rank) {
    if (!item.exists()) return false;
    if (step == 0) begin(work, assignments, rank);
    Stage<groups> stage(base, barriers, ring.stage);
    barrier_wait(stage.empty, ring.parity);
    // With the first stage of an item its assignment is seen, too.
    barrier_expect(stage.full, groups * GROUP_BYTES + B_BYTES);
    copy_box(stage.a, map_a, stage.full, step * STEP, row, matrix_a);
    copy_box_to(3, stage.b + rank * (B_BYTES / 2), map_b, stage.full, step * STEP,
                column, matrix_b);
    ring.advance();
    if (++step == work.steps) {
      step = 0;
      item.advance(work);
    }
    return true;
  }
};

// Both blocks write into each other's stages: a stage is empty when both are done.
DEVICE void release(uint32 barrier, bool elected) {
  if (elected) {
    barrier_arrive(address_in_block(barrier, 0));
    barrier_arrive(address_in_block(barrier, 1));
  }
}

DEVICE int modulus_of(const Work& work, int plane) {
  if (plane >= work.num_planes) return 0;  // a plane without one
  return work.first_modulus + (work.products == 1 ? plane : plane / work.products);
}

// From a tile to the one below it.
DEVICE int tile_pitch(const Work& work) {
  return work.symmetric ? 1 : (int)tiles_across(work);
}

// Where a thread's residues go, and how they are made: found out while products are
// still under way.
struct Bytes {
  uint4* target;
  Reduction any;
  QuickReduction quick;

  DEVICE Bytes(const Work& work, const Tables& tables, const Assignment& item,
               int warpgroup, int thread) {
    int l = modulus_of(work, item.plane);
    any = {tables.minus_p[l], tables.inverse[l], tables.shift[l]};
    quick = {any.minus_p, tables.quick[l]};
    int group = item.first + warpgroup;
    int64 tile = item.tile + (int64)(group / 2) * tile_pitch(work);
    int64 index = (tile * work.num_planes + item.plane) * 2 + group % 2;
    index = index * CHUNKS * WARPGROUP + thread;
    target = (uint4*)work.tiles + index;
  }

  DEVICE void store(const int* d) const {
    if (quick.inverse != 0) store_by(quick, d);
    else store_by(any, d);
  }

  template <class By>
  DEVICE void store_by(const By& reduce, const int* d) const {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      uint32 words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int* four = d + chunk * BYTES_A_STORE + 4 * word;
        words[word] = pack(reduce(four[0]), reduce(four[1]), reduce(four[2]),
                           reduce(four[3]));
      }
      target[chunk * WARPGROUP] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

DEVICE void store_lower(const int* d, const Work& work, const Assignment& item,
                        int warpgroup, int thread) {
  int row = item.row + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
  int column = item.column + thread % 4 * 2;
  int* target = work.lower + item.batch * work.lower_batch_stride + column;
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) {
    int at = row + (i >> 1 & 1) * 8, by = i / 4 * 8 + (i & 1);
    if (at < work.rows && column + by < work.columns)
      target[at * work.lower_row_stride + by] = d[i];
    // What lies below the diagonal is the same: column and row change places.
    if (work.symmetric && at < work.columns && column + by < work.rows)
      target[(column + by) * work.lower_row_stride + at - column] = d[i];
  }
}

const int FIRST_AHEAD = 1;  // barrier of the block on which two warpgroups part

struct NoFeed {
  DEVICE void operator()() const {}
};

// `between` is called after each step.
template <int groups, class Between>
DEVICE void consume(const Work& work, const Tables& tables,
                    const Assignment* assignments, uint32 base, uint32 barriers,
                    int warpgroup, int thread, Between between) {
  Ring ring = {0, 0};
  bool elected = thread == 0, together = groups == 2;
  uint32 count = item_count(work, blockIdx.x / 2);
  int d[ACCUMULATORS];
  auto step_is_over = [&] {
    ring.advance();
    if (together && warpgroup == 0) {
      pass_by(FIRST_AHEAD, 2 * WARPGROUP);
      together = false;
    }
    between();
  };
  for (uint32 number = 0; number < count; ++number) {
    if (together && warpgroup == 1) {
      meet(FIRST_AHEAD, 2 * WARPGROUP);
      together = false;
    }
    const Assignment& item = assignments[number % ASSIGNMENTS];
    barrier_wait(Stage<groups>(base, barriers, ring.stage).full, ring.parity);
    if (warpgroup >= item.groups) {
      // Nothing of the item is its own, but others wait for every stage's release.
      for (int step = 0; step < work.steps; ++step) {
        Stage<groups> stage(base, barriers, ring.stage);
        barrier_wait(stage.full, ring.parity);
        release(stage.empty, elected);
        step_is_over();
      }
      continue;
    }
    uint32 done = 0;
    for (int step = 0; step < work.steps; ++step) {
      Stage<groups> stage(base, barriers, ring.stage);
      barrier_wait(stage.full, ring.parity);
      uint64 a = matrix_descriptor(stage.a + warpgroup * GROUP_BYTES);
      uint64 b = matrix_descriptor(stage.b);
      accumulators_fence();
#pragma unroll
      for (int part = 0; part < STEP / 32; ++part)
        multiply_256(d, a + 2 * part, b + 2 * part, step | part);
      products_commit();
      products_wait<1>();
      if (done) release(done, elected);
      done = stage.empty;
      step_is_over();
    }
    Bytes bytes(work, tables, item, warpgroup, thread);
    int plane = item.plane;
    products_wait<0>();
    accumulators_settle(d);
    if (plane >= work.num_planes) store_lower(d, work, item, warpgroup, thread);
    release(done, elected);
    if (plane < work.num_planes) bytes.store(d);
  }
}

// What a block of either kernel has in shared memory.
template <int groups>
struct Block {
  alignas(8) uint64 barrier_words[2 * STAGES];
  Tables tables;
  Assignment assignments[ASSIGNMENTS];

  DEVICE uint32 barriers() const { return shared_address(barrier_words); }

  DEVICE void open(const TensorMap* map_a, const TensorMap* map_b, const Work& work) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(Stage<groups>(0, barriers(), stage).full, 1);
        barrier_init(Stage<groups>(0, barriers(), stage).empty, 2 * groups);
      }
      barrier_init_fence();
      prefetch_map(map_a);
      prefetch_map(map_b);
    }
    tables.fill(work.steps);
    cluster_arrive();
    cluster_wait();
  }

  // A block may leave only when none will write into its shared memory any more.
  DEVICE void close() const {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
};

// Before a thread feeds the ring.  Others touch no memory before stages are full.
DEVICE void wait_for_operands() {
  wait_for_last();
  let_next_start();
}

DEVICE uint32 first_stage(const uint8* dynamic) {
  return (shared_address(dynamic) + 1023) & ~1023u;  // as the swizzle wants
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
    __launch_bounds__(3 * WARPGROUP, 1)
        residue_tiles(const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ Work work);

extern "C" __global__ void __cluster_dims__(2, 1, 1)
    __launch_bounds__(3 * WARPGROUP, 1)
        tall_residue_tiles(const __grid_constant__ TensorMap map_a,
                           const __grid_constant__ TensorMap map_b,
                           const __grid_constant__ Work work);

// Two groups of rows a block.
KERNEL void residue_tiles(const __grid_constant__ TensorMap map_a,
                          const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ Work work) {
  extern __shared__ uint8 dynamic[];
  __shared__ Block<2> block;
  uint32 base = first_stage(dynamic), barriers = block.barriers();
  block.open(&map_a, &map_b, work);
  int warpgroup = threadIdx.x / WARPGROUP;
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      Feed feed(work);
      int rank = (int)block_rank();
      wait_for_operands();
      while (feed.next<2>(&map_a, &map_b, work, block.assignments, base, barriers,
                          rank)) {
      }
    }
  } else {
    take_registers<232>();
    consume<2>(work, block.tables, block.assignments, base, barriers, warpgroup - 1,
               threadIdx.x % WARPGROUP, NoFeed());
  }
  block.close();
}

const int LEAD = 2;  // stages that are fed before they are needed

// Three groups of rows a block.
KERNEL void tall_residue_tiles(const __grid_constant__ TensorMap map_a,
                               const __grid_constant__ TensorMap map_b,
                               const __grid_constant__ Work work) {
  extern __shared__ uint8 dynamic[];
  __shared__ Block<3> block;
  __shared__ alignas(16) uint8 feed_memory[sizeof(Feed)];  // for want of registers
  uint32 base = first_stage(dynamic), barriers = block.barriers();
  block.open(&map_a, &map_b, work);
  Feed& feed = *(Feed*)feed_memory;
  int rank = (int)block_rank();
  bool feeds = threadIdx.x == 0;
  auto fill = [&] {
    feed.next<3>(&map_a, &map_b, work, block.assignments, base, barriers, rank);
  };
  if (feeds) {
    feed = Feed(work);
    wait_for_operands();
    for (int stage = 0; stage < LEAD; ++stage) fill();
  }
  consume<3>(work, block.tables, block.assignments, base, barriers,
             threadIdx.x / WARPGROUP, threadIdx.x % WARPGROUP, [&] {
               if (feeds) fill();
               __syncwarp();
             });
  block.close();
}
