// Stage residues: scaled integers, and their balanced residues as planes of bytes.
#include "residues.cuh"

KERNEL void residues_along(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Residues(), x, facts.exponents, facts.largest, planes, chunk);
}

KERNEL void residues_across(Operand x, LineFacts facts, Planes planes) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Residues(), x, facts.exponents, facts.largest, planes, tile);
}

// Exponents and residues with one read: a whole line stays in shared memory, spread.
KERNEL void exponents_and_residues(Operand x, LineFacts facts, Exponents how,
                                   Planes planes) {
  __shared__ uint64 scratch[ALONG_THREADS];
  __shared__ int top;
  DYNAMIC_SHARED(uint64, whole);
  int64 index = blockIdx.x;
  int64 batch = index / planes.lines_padded, line = index % planes.lines_padded;
  bool real = line < x.lines;
  int exponent = 0;
  if (threadIdx.x == 0) top = 0;
  if (real) {
    uint64* kept = whole;
    for (int64 h = threadIdx.x; h < x.words(); h += ALONG_THREADS)
      kept[spread(h)] = x.at(batch, line, h);
    __syncthreads();
    int64 fact = batch * x.lines + line;
    auto entry = [kept](int64 h) { return kept[spread(h)]; };
    exponent = line_facts(entry, x.words(), how, facts, fact, scratch, &top);
  }
  __syncthreads();
  line_planes(Residues(), whole, 0, real ? x.k : 0, planes.k_padded, exponent, top,
              planes, batch, line);
}
