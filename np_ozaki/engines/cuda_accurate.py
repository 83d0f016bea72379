"""Scaling "accurate" on a GPU: exponents from an auxiliary product of ceilings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cuda_lines import Facts, Operands
from np_ozaki.engines.parallel import ranges
from np_ozaki.tiling import CudaTiles

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = ["replace_exponents"]


def replace_exponents(
    stages: Stages,
    left: Operands,
    right: Operands,
    rows: Facts,
    columns: Facts,
    scheme: Scheme,
    tiles: CudaTiles,
    *,
    turned: bool = False,
) -> None:
    """Replace exponents by those of rule "accurate".

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    left, right : Operands
        Whole operands of equal batch.
    rows, columns : Facts
        Of them; their exponents are overwritten.
    scheme : Scheme
        Of scaling "accurate".
    tiles : CudaTiles
        How to cut the auxiliary product.
    turned : bool, optional
        Whether the lines are those of C^T = B^T A^T: then the rows of A, which stand in
        pairs where the scheme is complex, are the columns here.
    """
    batch, m, k = left.x.shape
    n = right.x.shape[1]
    device = stages.device
    maxima = [device.zeros((batch, x), np.uint64) for x in (m, n)]
    for j in ranges(n, tiles.n):
        for i in ranges(m, tiles.m):
            total: Any = None
            wide: Any = None
            inner = ranges(k, tiles.k)
            for h in inner:
                planes = []
                for one, facts, part in ((left, rows, i), (right, columns, j)):
                    piece = one.of(part, h)
                    planes.append(stages.new_planes(piece, 1))
                    known = facts.part(part) if batch == 1 else facts
                    stages.queue_planes(
                        "accurate", "ceilings", piece, known, planes[-1], None
                    )
                total = stages.residue_gemm(planes[0], planes[1], total)
                if len(inner) > 1:
                    wide = stages.widen(total, wide)
            products = total if wide is None else wide
            shape = (batch, i.stop - i.start, j.stop - j.start)
            size = products.strides[3]
            args = (
                products,
                products.strides[1] // size,
                products.strides[2] // size,
                *shape,
                maxima[0][:, i],
                maxima[1][:, j],
                m,
                n,
            )
            kernel = "maxima" if wide is None else "wide_maxima"
            grid = stages.flat_grid(math.prod(shape))
            stages.launch("accurate", kernel, grid, args, variant=left.kernels())
    if scheme.family == "complex":
        pairs = maxima[turned]
        half = pairs.shape[1] // 2
        pairs[:, :half] = np.maximum(pairs[:, :half], pairs[:, half:])
        pairs[:, half:] = pairs[:, :half]
    for facts, most, is_left in zip(
        (rows, columns), maxima, (True, False), strict=True
    ):
        rule = stages.rule(scheme, is_left)
        kernels = left.kernels()
        stages.per_line(
            "accurate", "exponents_from_maxima", facts, (most,), rule, kernels
        )
