// How a block of threads walks over the lines of an operand: rows of A, columns of B.
//
// A line is read along k.  Where k is the axis of the smaller stride, one block takes
// one line ("along"); where it is not, a block takes a tile of lines and transposes it
// in shared memory ("across").  Both write K-major planes of bytes.
#pragma once
#include "arithmetic.cuh"

#ifndef PARTS
#define PARTS 1  // of an entry: 2 of a complex one
#endif

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// A part of an entry by its bits: of a double or of an FP32 number.
#ifdef SINGLE
typedef uint32 Word;
#else
typedef uint64 Word;
#endif

// An operand: (batch, lines, k) entries; strides in words.  An entry has a word for each
// of its PARTS, the words of a line, and of the conjugate if that is what multiplies.
struct Operand {
  const Word* data;
  int64 batch_stride, line_stride, k_stride;
  int64 lines, k;
#if PARTS == 2
  int64 conjugated;
#endif

  DEVICE int64 words() const { return PARTS * k; }

  // As a double, whatever it is.
  DEVICE uint64 at(int64 batch, int64 line, int64 word) const {
    const Word* start = data + batch * batch_stride + line * line_stride;
#if PARTS == 2
    return widened(start[(word >> 1) * k_stride + (word & 1)]) ^
           (uint64)(word & conjugated) << 63;
#else
    return widened(start[word * k_stride]);
#endif
  }
};

// What is known of each line: arrays of batch times lines.
struct LineFacts {
  uint64* largest;   // bits of the largest finite magnitude
  uint64* squares;   // S
  uint64* norms;     // sum of ceil(|x| 2^(15 - e)), the 1-norm from above
  int* special;      // 1: holds Inf; 2: holds NaN
  int* exponents;    // mu
};

const int HOLDS_INF = 1;
const int HOLDS_NAN = 2;
const int NORM_BITS = 16;

// Byte planes: plane l, batch, line (padded), k (padded).
struct Planes {
  uint8* data;
  int64 plane_stride;  // bytes
  int64 lines_padded, k_padded;

  DEVICE uint64* group(int64 batch, int64 line, int64 h) const {
    int64 row = batch * lines_padded + line;
    return (uint64*)(data + row * k_padded + h);
  }
};

DEVICE int special_of(uint64 bits) {
  if (is_finite(bits)) return 0;
  return is_nan(bits) ? HOLDS_NAN : HOLDS_INF;
}

DEVICE uint64 larger(uint64 x, uint64 y) { return x > y ? x : y; }

const int ALONG_THREADS = 256;

struct Sums {
  uint64 squares;
  uint32 norms;  // a thread adds up less than 2^15 entries at a time
};

// The sums of entries `start`, `start` + `step` and so on below `stop`, e = top_exponent
// of the line.  What does not change within a line is decided before its loop.
template <class Entry>
DEVICE Sums sums_of(Entry entry, int64 start, int64 stop, int64 step, int e, int w) {
  Sums sums = {0, 0};
  if (e < -1022) {  // all entries are subnormal
    for (int64 h = start; h < stop; h += step) {
      uint64 t = scaled_ceiling(entry(h), w - 1 - e);
      sums.squares += t * t;
      sums.norms += (uint32)scaled_ceiling(entry(h), NORM_BITS - 1 - e);
    }
  } else if (w == NORM_BITS) {
#pragma unroll 8
    for (int64 h = start; h < stop; h += step) {
      uint32 t = normal_ceiling(entry(h), e, NORM_BITS);
      sums.squares += (uint64)t * t;
      sums.norms += t;
    }
  } else {
#pragma unroll 8
    for (int64 h = start; h < stop; h += step) {
      uint64 bits = entry(h);
      uint32 t = normal_ceiling(bits, e, w);
      sums.squares += (uint64)t * t;
      sums.norms += normal_ceiling(bits, e, NORM_BITS);
    }
  }
  return sums;
}

// Reductions of one value a thread over a block of ALONG_THREADS; all get the result.
template <class Combine>
DEVICE uint64 over_block(uint64 value, uint64* scratch, Combine combine) {
#ifdef __CUDA_ARCH__
  for (int step = 16; step; step >>= 1)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  int warp = threadIdx.x / 32;
  __syncthreads();  // the last use of scratch is over
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[0];
  for (int i = 1; i < ALONG_THREADS / 32; ++i) value = combine(value, scratch[i]);
  return value;
#else
  __syncthreads();
  scratch[threadIdx.x] = value;
  __syncthreads();
  value = scratch[0];
  for (int i = 1; i < ALONG_THREADS; ++i) value = combine(value, scratch[i]);
  return value;
#endif
}

struct TakeLarger {
  DEVICE uint64 operator()(uint64 x, uint64 y) const { return larger(x, y); }
};
struct TakeSum {
  DEVICE uint64 operator()(uint64 x, uint64 y) const { return x + y; }
};
struct TakeUnion {
  DEVICE uint64 operator()(uint64 x, uint64 y) const { return x | y; }
};

struct Exponents {
  int rule, w, limit_bits;
  int shift;  // joins every exponent, also those of lines of zeros, where it is no matter
  uint64 limit_top;
};

// The upper word of a magnitude tells the exponent of a normal number, which is all that
// is wanted of a line's largest entry.  Only where the largest upper word is that of a
// subnormal number, of zero or of something not finite every entry is looked at in full.
DEVICE uint32 upper_magnitude(uint64 bits) { return (uint32)(bits >> 32) & 0x7fffffff; }

DEVICE bool is_ordinary(uint64 upper) {
  return upper >= 0x00100000 && upper < 0x7ff00000;
}

DEVICE void look(uint64 bits, uint64* largest, uint64* special) {
  if (is_finite(bits)) *largest = larger(*largest, magnitude(bits));
  else *special |= special_of(bits);
}

// Everything about one line, by a whole block; `entry(h)` gives bits.  Thread 0 stores,
// also e of the line to `top`.
template <class Entry>
DEVICE int line_facts(Entry entry, int64 k, Exponents how, LineFacts facts, int64 index,
                      uint64* scratch, int* top) {
  uint32 upper = 0;
  for (int64 h = threadIdx.x; h < k; h += ALONG_THREADS)
    upper = max(upper, upper_magnitude(entry(h)));
  uint64 largest = over_block(upper, scratch, TakeLarger()) << 32, special = 0;
  if (!is_ordinary(largest >> 32)) {
    largest = 0;
    for (int64 h = threadIdx.x; h < k; h += ALONG_THREADS)
      look(entry(h), &largest, &special);
    largest = over_block(largest, scratch, TakeLarger());
    special = over_block(special, scratch, TakeUnion());
  }
  Sums sums = {0, 0};
  if (largest)
    sums = sums_of(entry, threadIdx.x, k, ALONG_THREADS, top_exponent(largest), how.w);
  uint64 squares = over_block(sums.squares, scratch, TakeSum());
  uint64 norms = over_block(sums.norms, scratch, TakeSum());
  int exponent = line_exponent(largest, squares, how.rule, how.w, how.limit_bits,
                               how.limit_top) + how.shift;
  if (threadIdx.x == 0) {
    facts.largest[index] = largest;
    facts.squares[index] = squares;
    facts.norms[index] = norms;
    facts.special[index] = (int)special;
    facts.exponents[index] = exponent;
    *top = largest ? top_exponent(largest) : 0;
  }
  return exponent;
}

// ---- Entries of a result ----

// Blocks of ALONG_THREADS take `width` columns, a power of two, by as many rows as fit;
// rows that the grid does not reach follow in steps.
struct Entries {
  int64 row, step, column;
  bool outside;

  DEVICE Entries(int64 rows, int64 columns, int width) {
    int height = ALONG_THREADS / width;
    column = blockIdx.x * (int64)width + threadIdx.x % width;
    row = blockIdx.y * (int64)height + threadIdx.x / width;
    step = gridDim.y * (int64)height;
    outside = column >= columns || row >= rows;
  }
};

// ---- Products ----

// Products of modulus l, batch b: row i, column j, all in int32 entries.
struct Products {
  int* data;
  int64 plane_stride, batch_stride, row_stride;

  DEVICE int* row(int64 batch, int64 i) const {
    return data + batch * batch_stride + i * row_stride;
  }
};

// ---- Planes ----

const int GROUP = 8;  // entries along k that a thread turns to eight bytes a plane
const int GROUP_WORDS = PARTS * GROUP;
const int CHUNK_WORDS = 4096;  // words of a line in shared memory at a time
const int CHUNK = CHUNK_WORDS / PARTS;
const int TILE_WORDS = 128;
const int TILE_K = TILE_WORDS / PARTS;
const int TILE_LINES = 32;

DEVICE uint64 pack_group(const int* bytes) {
  return (uint64)pack(bytes[4], bytes[5], bytes[6], bytes[7]) << 32 |
         pack(bytes[0], bytes[1], bytes[2], bytes[3]);
}

// Where word h of a line lies in shared memory: one place in nine is left out, so that
// neither single words nor groups of neighbouring threads share a bank.
HD int64 spread(int64 h) { return h + h / GROUP; }

const int TILE_PITCH = TILE_WORDS / GROUP * (GROUP + 1) + 1;
const int CHUNK_SIZE = CHUNK_WORDS / GROUP * (GROUP + 1);

// Entries `first` to `last` of a line, spread in shared memory from `first` on, to
// planes; those from `end` on are 0.  `emit(bits, exponent, e, target, step)` writes a
// group to every plane, `step` apart.  `planes` are Planes, or lie in another way.
template <class Emit, class Target>
DEVICE void line_planes(Emit emit, const uint64* spread_line, int64 first, int64 end,
                        int64 last, int exponent, int e, Target planes, int64 batch,
                        int64 line) {
  for (int64 h = first + GROUP * threadIdx.x; h < last; h += GROUP * ALONG_THREADS) {
    uint64 bits[GROUP_WORDS];
    const uint64* group = spread_line + spread(PARTS * (h - first));
    if (h + GROUP <= end) {
#pragma unroll
      for (int i = 0; i < GROUP_WORDS; ++i) bits[i] = group[spread(i)];
    } else {
#pragma unroll
      for (int i = 0; i < GROUP_WORDS; ++i)
        bits[i] = h + i / PARTS < end ? group[spread(i)] : 0;
    }
    emit(bits, exponent, e, planes.group(batch, line, h), planes.plane_stride / 8);
  }
}

// A chunk of a line through shared memory, so that the operand is read coalesced.
template <class Emit, class Target>
DEVICE void planes_along(Emit emit, Operand x, const int* exponents,
                         const uint64* largest, Target planes, uint64* chunk) {
  int64 chunks = (planes.k_padded + CHUNK - 1) / CHUNK;
  int64 start = blockIdx.x % chunks * CHUNK, index = blockIdx.x / chunks;
  int64 batch = index / planes.lines_padded, line = index % planes.lines_padded;
  bool real = line < x.lines;
  int64 fact = batch * x.lines + line;
  int exponent = real ? exponents[fact] : 0;
  int e = real && largest[fact] ? top_exponent(largest[fact]) : 0;
  int64 stop = start + CHUNK < planes.k_padded ? start + CHUNK : planes.k_padded;
  int64 end = real ? (stop < x.k ? stop : x.k) : start;
  for (int64 h = PARTS * start + threadIdx.x; h < PARTS * end; h += ALONG_THREADS)
    chunk[spread(h - PARTS * start)] = x.at(batch, line, h);
  __syncthreads();
  line_planes(emit, chunk, start, end, stop, exponent, e, planes, batch, line);
}

// A tile of TILE_WORDS by TILE_LINES, read along the lines and written along k.
template <class Emit, class Target>
DEVICE void planes_across(Emit emit, Operand x, const int* exponents,
                          const uint64* largest, Target planes, uint64* tile) {
  int64 tiles_k = (planes.k_padded + TILE_K - 1) / TILE_K;
  int64 tiles_lines = (planes.lines_padded + TILE_LINES - 1) / TILE_LINES;
  int64 index = blockIdx.x;
  int64 start_line = index % tiles_lines * TILE_LINES;
  index /= tiles_lines;
  int64 start_k = index % tiles_k * TILE_K;
  int64 batch = index / tiles_k;
  int lane = threadIdx.x % TILE_LINES, group = threadIdx.x / TILE_LINES;
  const int groups = ALONG_THREADS / TILE_LINES;
  int64 line_read = start_line + lane;
  bool inside = line_read < x.lines;
  for (int i = group; i < TILE_WORDS; i += groups) {
    int64 h = PARTS * start_k + i;
    uint64 bits = inside && h < x.words() ? x.at(batch, line_read, h) : 0;
    tile[lane * TILE_PITCH + spread(i)] = bits;
  }
  __syncthreads();
  const int groups_k = TILE_K / GROUP;
  for (int i = threadIdx.x / groups_k; i < TILE_LINES; i += ALONG_THREADS / groups_k) {
    int first = GROUP * (threadIdx.x % groups_k);
    int64 line = start_line + i, h = start_k + first;
    if (line >= planes.lines_padded || h >= planes.k_padded) continue;
    bool real = line < x.lines;
    int64 fact = batch * x.lines + line;
    int exponent = real ? exponents[fact] : 0;
    int e = real && largest[fact] ? top_exponent(largest[fact]) : 0;
    uint64 bits[GROUP_WORDS];
    const uint64* group = tile + i * TILE_PITCH + spread(PARTS * first);
#pragma unroll
    for (int j = 0; j < GROUP_WORDS; ++j) bits[j] = group[spread(j)];
    emit(bits, exponent, e, planes.group(batch, line, h), planes.plane_stride / 8);
  }
}
