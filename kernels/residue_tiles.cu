// Stage residue_tiles, for sm_90a: residue products as bytes, straight from the
// accumulators.
//
// One persistent launch takes all work items: tiles of 128 by 256 entries, times planes.
// Two blocks of a cluster have tiles one below the other and share what they load of B.
// A producer warp feeds a ring of stages in shared memory by the copy engine; two
// consumer warpgroups take 64 rows each, and begin a stage apart.
#include "hopper.cuh"
#include "launches.cuh"
#include "tile_order.cuh"

const int STEP = 128;  // bytes along k of a stage: what a swizzled row holds
const int STAGES = 4;
const int BOX_BYTES = 128 * STEP;
const int STAGE_BYTES = 3 * BOX_BYTES;
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

struct Stage {
  uint32 memory, full, empty;

  DEVICE Stage(uint32 base, uint32 barriers, int stage)
      : memory(base + stage * STAGE_BYTES),
        full(barriers + 8 * stage),
        empty(barriers + 8 * (STAGES + stage)) {}
};

// What the producer finds out of an item, for the consumers: they have no registers and
// no time for it.
struct Assignment {
  int64 tile;
  int batch, row, column, plane;
};

// The producer is ahead by STAGES items at most, and one that it begins with.  Consumers
// have read an item's assignment when they release its last stage, whoever of them does:
// a warpgroup's products are issued together.
const int ASSIGNMENTS = 2 * STAGES;

DEVICE void produce(const TensorMap* map_a, const TensorMap* map_b, const Work& work,
                    Assignment* assignments, uint32 base, uint32 barriers,
                    uint32 rank) {
  Ring ring = {0, 1};
  uint32 number = 0;
  for (Item item(work, blockIdx.x / 2); item.exists(); item.advance(work)) {
    Assignment* assignment = assignments + number++ % ASSIGNMENTS;
    int row = (2 * item.pair + (int)rank) * TILE_ROWS;
    assignment->tile = item.tile_of(work, (int)rank);
    assignment->batch = item.batch;
    assignment->row = row;
    assignment->column = item.column * TILE_COLUMNS;
    assignment->plane = item.plane;
    int column = item.column * TILE_COLUMNS + (int)rank * (TILE_COLUMNS / 2);
    int matrix_a = item.plane * work.batch_a + (work.batch_a > 1 ? item.batch : 0);
    int matrix_b = item.plane * work.batch_b + (work.batch_b > 1 ? item.batch : 0);
    for (int step = 0; step < work.steps; ++step) {
      Stage stage(base, barriers, ring.stage);
      barrier_wait(stage.empty, ring.parity);
      // With the first stage of an item its assignment is seen, too.
      barrier_expect(stage.full, STAGE_BYTES);
      copy_box(stage.memory, map_a, stage.full, step * STEP, row, matrix_a);
      copy_box_to(3, stage.memory + (1 + rank) * BOX_BYTES, map_b, stage.full,
                  step * STEP, column, matrix_b);
      ring.advance();
    }
  }
}

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
    int64 index = item.tile * work.num_planes + item.plane;
    index = (index * 2 + warpgroup) * CHUNKS * WARPGROUP + thread;
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

const int FIRST_AHEAD = 1;  // barrier of the block on which the warpgroups part

DEVICE void consume(const Work& work, const Tables& tables,
                    const Assignment* assignments, uint32 base, uint32 barriers,
                    int warpgroup, int thread) {
  Ring ring = {0, 0};
  bool elected = thread == 0, together = true;
  uint32 count = item_count(work, blockIdx.x / 2);
  int d[ACCUMULATORS];
  for (uint32 number = 0; number < count; ++number) {
    if (together && warpgroup == 1) {
      meet(FIRST_AHEAD, 2 * WARPGROUP);
      together = false;
    }
    uint32 done = 0;
    for (int step = 0; step < work.steps; ++step) {
      Stage stage(base, barriers, ring.stage);
      barrier_wait(stage.full, ring.parity);
      uint64 a = matrix_descriptor(stage.memory + warpgroup * (BOX_BYTES / 2));
      uint64 b = matrix_descriptor(stage.memory + BOX_BYTES);
      accumulators_fence();
#pragma unroll
      for (int part = 0; part < STEP / 32; ++part)
        multiply_256(d, a + 2 * part, b + 2 * part, step | part);
      products_commit();
      products_wait<1>();
      if (done) release(done, elected);
      done = stage.empty;
      ring.advance();
      if (together && warpgroup == 0) {
        pass_by(FIRST_AHEAD, 2 * WARPGROUP);
        together = false;
      }
    }
    const Assignment& item = assignments[number % ASSIGNMENTS];
    Bytes bytes(work, tables, item, warpgroup, thread);
    int plane = item.plane, row = item.row;
    products_wait<0>();
    accumulators_settle(d);
    if (plane >= work.num_planes) store_lower(d, work, item, warpgroup, thread);
    release(done, elected);
    if (plane < work.num_planes && row < work.rows) bytes.store(d);
  }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
    __launch_bounds__(3 * WARPGROUP, 1)
        residue_tiles(const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ Work work);

KERNEL void residue_tiles(const __grid_constant__ TensorMap map_a,
                          const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ Work work) {
  extern __shared__ uint8 dynamic[];
  __shared__ alignas(8) uint64 barrier_words[2 * STAGES];
  __shared__ Tables tables;
  __shared__ Assignment assignments[ASSIGNMENTS];
  uint32 base = (shared_address(dynamic) + 1023) & ~1023u;  // as the swizzle wants
  uint32 barriers = shared_address(barrier_words);
  uint32 rank = block_rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(Stage(base, barriers, stage).full, 1);
      barrier_init(Stage(base, barriers, stage).empty, 4);
    }
    barrier_init_fence();
    prefetch_map(&map_a);
    prefetch_map(&map_b);
  }
  tables.fill(work.steps);
  let_next_start();
  wait_for_last();
  cluster_arrive();
  cluster_wait();
  int warpgroup = threadIdx.x / WARPGROUP;
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0)
      produce(&map_a, &map_b, work, assignments, base, barriers, rank);
  } else {
    take_registers<232>();
    consume(work, tables, assignments, base, barriers, warpgroup - 1,
            threadIdx.x % WARPGROUP);
  }
  // A block may leave only when none will write into its shared memory any more.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}
