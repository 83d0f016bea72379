// Stage cut_planes: the plane of a certificate of complex lines.
#include "cut_planes.cuh"

KERNEL void cut_planes_along(Operand x, LineFacts facts, CutPlane plane) {
  __shared__ uint64 chunk[CHUNK_SIZE];
  planes_along(Cuts{plane.k_padded}, x, facts.exponents, facts.largest, plane, chunk);
}

KERNEL void cut_planes_across(Operand x, LineFacts facts, CutPlane plane) {
  __shared__ uint64 tile[TILE_LINES * TILE_PITCH];
  planes_across(Cuts{plane.k_padded}, x, facts.exponents, facts.largest, plane, tile);
}
