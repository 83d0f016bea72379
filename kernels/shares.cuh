// How blocks share the entries of an operand, to join what they find out about lines.
#pragma once
#include "lines.cuh"

// A block's part of the operand: `depth` words of one line, or of 32 lines that lie
// side by side; this thread's share of it is every `step`-th word of one line.
struct Share {
  int64 batch, line, start, stop, step;
  bool real;
  int64 fact;
};

DEVICE Share share_along(Operand x, int64 depth) {
  int64 depths = (x.words() + depth - 1) / depth;
  int64 start = blockIdx.x % depths * depth, index = blockIdx.x / depths;
  int64 stop = start + depth < x.words() ? start + depth : x.words();
  return {index / x.lines, index % x.lines, start + threadIdx.x, stop, ALONG_THREADS,
          true, index};
}

const int ACROSS_LINES = 32;
const int ACROSS_GROUPS = ALONG_THREADS / ACROSS_LINES;

DEVICE Share share_across(Operand x, int64 depth) {
  int64 strips = (x.lines + ACROSS_LINES - 1) / ACROSS_LINES;
  int64 depths = (x.words() + depth - 1) / depth;
  int64 index = blockIdx.x;
  int64 line = index % strips * ACROSS_LINES + threadIdx.x % ACROSS_LINES;
  index /= strips;
  int64 start = index % depths * depth, batch = index / depths;
  int64 stop = start + depth < x.words() ? start + depth : x.words();
  return {batch, line, start + threadIdx.x / ACROSS_LINES, stop, ACROSS_GROUPS,
          line < x.lines, batch * x.lines + line};
}

// A value of the whole line: where the block has one line thread 0 gets it, where it
// has 32 the first 32 threads do.
struct Along {
  template <class Combine>
  DEVICE uint64 over(uint64 value, uint64* scratch, Combine combine) const {
    return over_block(value, scratch, combine);
  }
  DEVICE bool writes() const { return threadIdx.x == 0; }
};

struct Across {
  template <class Combine>
  DEVICE uint64 over(uint64 value, uint64* scratch, Combine combine) const {
    __syncthreads();  // the last use of scratch is over
    scratch[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < ACROSS_LINES)
      for (int i = 1; i < ACROSS_GROUPS; ++i)
        value = combine(value, scratch[threadIdx.x + i * ACROSS_LINES]);
    return value;
  }
  DEVICE bool writes() const { return threadIdx.x < ACROSS_LINES; }
};
