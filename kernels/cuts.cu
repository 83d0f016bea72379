// Stage cuts: the plane of a certificate of complex lines.
#include "cuts.cuh"

KERNEL void cuts_along(Operand x, LineFacts facts, CutPlane plane) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Cuts{plane.k_padded}, x, facts.exponents, facts.largest, plane, chunk);
}

KERNEL void cuts_across(Operand x, LineFacts facts, CutPlane plane) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Cuts{plane.k_padded}, x, facts.exponents, facts.largest, plane, tile);
}
