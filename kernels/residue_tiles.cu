// Stage residue_tiles, for sm_90a: residue products as bytes, straight from the
// accumulators.
//
// One persistent launch takes all work items: tiles of 128 by 256 entries, times planes.
// Two blocks of a cluster have tiles one below the other and share what they load of B.
// A producer warp feeds a ring of stages in shared memory by the copy engine; two
// consumer warpgroups take 64 rows each.  They run apart by some stages, so that one
// reduces its accumulators while the other keeps the matrix unit busy.
#include "hopper.cuh"

const int TILE_ROWS = 128;
const int TILE_COLUMNS = 256;
const int STEP = 128;  // bytes along k of a stage: what a swizzled row holds
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SKEW
#define SKEW 2
#endif
#ifndef BAND
#define BAND 8
#endif
const int BOX_BYTES = 128 * STEP;
const int STAGE_BYTES = 3 * BOX_BYTES;
const int WARPGROUP = 128;
const int ACCUMULATORS = 128;
const int BYTES_A_STORE = 16;

// What is to be done, the same for every block.
struct Work {
  uint8* tiles;  // residue tiles: see reconstruct_tiles.cu
  int* lower;    // int32 products of the planes from `num_planes` on
  int64 lower_batch_stride, lower_row_stride;
  int num_planes, all_planes;  // a plane of all_planes - num_planes stays int32
  int products;                // planes of a modulus
  int batch, batch_a, batch_b;
  int rows, columns;
  int steps;   // along k
  int groups;  // clusters that share the work
  int64 items;
};

// Where a work item is.  Clusters take one plane after the other of as many tiles as
// there are clusters, so that they read the same planes at the same time; within a
// plane, tiles of a band of rows come before those of the next.
struct Item {
  int batch, pair, column, plane;

  DEVICE Item(const Work& work, int64 index) {
    int pairs = (work.rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    int columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int64 tiles = (int64)work.batch * pairs * columns;
    int64 of_group = (int64)work.groups * work.all_planes;
    int64 first = index / of_group * work.groups;
    int width = (int)(tiles - first < work.groups ? tiles - first : work.groups);
    int rest = (int)(index % of_group);
    plane = rest / width;
    int64 tile = first + rest % width;
    batch = (int)(tile / ((int64)pairs * columns));
    int inside = (int)(tile % ((int64)pairs * columns));
    int band = inside / (BAND * columns);
    int height = pairs - band * BAND < BAND ? pairs - band * BAND : BAND;
    inside -= band * BAND * columns;
    pair = band * BAND + inside % height;
    column = inside / height;
  }
};

// Tables of all moduli, to reduce int32 products: see `reduced` in reduce.cu.
struct Reduction {
  uint32 powers;
  int start;
  float p, inverse, quotients;

  DEVICE Reduction(int l)
      : powers(reduce_powers[l]),
        start(reduce_start[l]),
        p(reduce_modulus[l]),
        inverse(1.0f / reduce_modulus[l]),
        quotients(reduce_quotients[l]) {}

  // c modulo p in the low byte, as an int8.
  DEVICE int operator()(int c) const {
    return balanced(dot4((uint32)c ^ 0x80000000u, powers, start), p, inverse, quotients);
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

DEVICE void produce(const TensorMap* map_a, const TensorMap* map_b, const Work& work,
                    uint32 base, uint32 barriers, uint32 rank) {
  Ring ring = {0, 1};
  for (int64 i = blockIdx.x / 2; i < work.items; i += work.groups) {
    Item item(work, i);
    int row = (2 * item.pair + (int)rank) * TILE_ROWS;
    int column = item.column * TILE_COLUMNS + (int)rank * (TILE_COLUMNS / 2);
    int matrix_a = item.plane * work.batch_a + (work.batch_a > 1 ? item.batch : 0);
    int matrix_b = item.plane * work.batch_b + (work.batch_b > 1 ? item.batch : 0);
    for (int step = 0; step < work.steps; ++step) {
      Stage stage(base, barriers, ring.stage);
      barrier_wait(stage.empty, ring.parity);
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

DEVICE void store_bytes(const int* d, const Work& work, const Item& item, uint32 rank,
                        int warpgroup, int thread) {
  int tile_rows = (work.rows + TILE_ROWS - 1) / TILE_ROWS;
  int columns = (work.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
  int tile_row = 2 * item.pair + (int)rank;
  if (tile_row >= tile_rows) return;
  int64 tile = ((int64)item.batch * tile_rows + tile_row) * columns + item.column;
  int64 index = (tile * work.num_planes + item.plane) * 2 + warpgroup;
  const int chunks = ACCUMULATORS / BYTES_A_STORE;
  uint4* target = (uint4*)work.tiles + (index * chunks * WARPGROUP + thread);
  Reduction reduce(item.plane / work.products);
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
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

DEVICE void store_lower(const int* d, const Work& work, const Item& item, uint32 rank,
                        int warpgroup, int thread) {
  int row = (2 * item.pair + (int)rank) * TILE_ROWS + warpgroup * 64 + thread / 32 * 16 +
            thread % 32 / 4;
  int column = item.column * TILE_COLUMNS + thread % 4 * 2;
  int* target = work.lower + item.batch * work.lower_batch_stride + column;
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) {
    int at = row + (i >> 1 & 1) * 8, by = i / 4 * 8 + (i & 1);
    if (at < work.rows && column + by < work.columns)
      target[at * work.lower_row_stride + by] = d[i];
  }
}

const int FIRST_AHEAD = 1;  // barrier of the block on which the warpgroups part

DEVICE void consume(const Work& work, uint32 base, uint32 barriers, uint32 rank,
                    int warpgroup, int thread) {
  Ring ring = {0, 0};
  bool elected = thread == 0;
  bool together = SKEW > 0;
  int d[ACCUMULATORS];
  for (int64 i = blockIdx.x / 2; i < work.items; i += work.groups) {
    Item item(work, i);
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
      if (together && warpgroup == 0 && (step + 1 == SKEW || step + 1 == work.steps)) {
        pass_by(FIRST_AHEAD, 2 * WARPGROUP);
        together = false;
      }
    }
    products_wait<0>();
    release(done, elected);
    if (item.plane < work.num_planes)
      store_bytes(d, work, item, rank, warpgroup, thread);
    else
      store_lower(d, work, item, rank, warpgroup, thread);
  }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    residue_tiles(const __grid_constant__ TensorMap map_a,
                  const __grid_constant__ TensorMap map_b,
                  const __grid_constant__ Work work) {
  extern __shared__ uint8 dynamic[];
  __shared__ alignas(8) uint64 barrier_words[2 * STAGES];
  uint32 base = (shared_address(dynamic) + 1023) & ~1023u;  // as the swizzle wants
  uint32 barriers = shared_address(barrier_words);
  uint32 rank = block_rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(Stage(base, barriers, stage).full, 1);
      barrier_init(Stage(base, barriers, stage).empty, 4);
    }
    barrier_init_fence();
  }
  cluster_arrive();
  cluster_wait();
  int warpgroup = threadIdx.x / WARPGROUP;
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) produce(&map_a, &map_b, work, base, barriers, rank);
  } else {
    take_registers<232>();
    consume(work, base, barriers, rank, warpgroup - 1, threadIdx.x % WARPGROUP);
  }
  // A block may leave only when none will write into its shared memory any more.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}
