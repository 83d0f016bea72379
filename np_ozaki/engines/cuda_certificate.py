"""The certificate on a GPU: both looks, with the CPU engine's decisions.

The rule is `cpu_certificate`'s.  The first look's 7-bit planes ride with the residues.
For the second, entries are cut to 18 bits, as three digits of 6, so that int8 products
tell their product exactly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from np_ozaki.engines import cpu_certificate
from np_ozaki.engines.base import Scheme, Target
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.parallel import ranges
from np_ozaki.tiling import INT8_K_BLOCK

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_lines import Facts, Operands
    from np_ozaki.engines.cuda_stages import Stages

__all__ = ["first_look", "look_on_host", "second_look"]

_FIRST_BITS = cpu_certificate.FIRST_LOOK_BITS
_BITS = cpu_certificate.SECOND_LOOK_BITS
_DIGITS = 3
_SUMS = 2 * _DIGITS - 1
_PLANES = _DIGITS + 1
_SQUARE = 512
"""Rows and columns that the rule counts entries by: tiles are whole squares."""

_SIZES = ((8192, 8192), (4096, 8192), (2048, 8192), (1024, 4096), (512, 1024))
"""Tiles and blocks of k, the largest that fits the workspace, or the last."""

_ROWS_A_THREAD, _MOST_ROWS_A_THREAD = 16, 64
"""What is known of a column serves so many entries, and as many read at a time."""

_LARGE_RESULT = 1 << 25
"""Entries from which blocks of the most rows are many for every multiprocessor."""


def first_look(
    stages: Stages,
    lower: Any,
    left: Operands,
    right: Operands,
    facts: tuple[Facts, Facts],
    scheme: Scheme,
    target: Target,
    shape: tuple[int, int, int],
    missing: Any,
) -> None:
    """Queue the first look at a tile.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    lower : (batch, m, n) device array of int32 or int64
        Product of the 7-bit planes; padding in m and n is not looked at.
    left, right : Operands
        Lines of A and of B.
    facts : tuple of Facts
        Of both.
    scheme : Scheme
        Of the product.
    target : "conventional", "single" or int
        What is to be shown.
    shape : tuple of int
        batch, m, n.
    missing : (batch,) device array of int32
        Takes the maximum of the bits that each matrix misses.
    """
    stages.device.mark("certificate")
    # Of complex operands: a part of an entry is a sum of twice as many products.
    k = left.words[2]
    factor, power = cpu_certificate.threshold(target, k, _FIRST_BITS)
    large = math.prod(shape) >= _LARGE_RESULT
    rows_a_thread = _MOST_ROWS_A_THREAD if large else _ROWS_A_THREAD
    grid, width = stages.entry_grid(*shape, rows_a_thread)
    args = (
        lower,
        *(s // lower.itemsize for s in lower.strides[:2]),
        facts[0].struct(stages.device),
        left.x.shape[0],
        facts[1].struct(stages.device),
        right.x.shape[0],
        *shape[1:],
        127 * factor,
        power,
        k.bit_length() + 9,
        *map(int, _moved(scheme)),
        width,
        missing,
    )
    kernel = "certificate" if lower.itemsize == 4 else "wide_certificate"
    stages.launch("certificate", kernel, grid, args)


def _moved(scheme: Scheme) -> tuple[bool, bool]:
    """Return whether A and B are rounded: whoever lends bits is not."""
    return scheme.shift <= 0, scheme.shift >= 0


def second_look(
    stages: Stages, a: Any, b: Any, scheme: Scheme, target: Target, budget: int
) -> int:
    """Return the bits that one matrix product misses.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    a : (1, m, k) array of float64
        On the device or the host; NaN and Inf count as 0.
    b : (1, k, n) array of float64
        On the same side; likewise.
    scheme : Scheme
        Of the product.
    target : "conventional", "single" or int
        What is to be shown.
    budget : int
        Bytes of workspace; at least some 11 MB are taken, and the operands from the
        host.

    Returns
    -------
    int
        0 where every entry is certified; at most `cpu_certificate.HOPELESS`.
    """
    if a.shape[2] > INT8_K_BLOCK:
        # The rule's sums are then float64's own, in the CPU engine's order.
        return look_on_host(stages, a, b, scheme, target)
    device = stages.device
    a, b = (device.own(x) if device.is_host(x) else x for x in (a, b))
    left, right, rows, columns = stages.facts_of(a, b, scheme)
    moved = [
        _rounded(stages, *side)
        for side in zip((left, right), (rows, columns), _moved(scheme), strict=True)
    ]
    missing = device.zeros((1,), np.int32)
    m, n, k = left.x.shape[1], right.x.shape[1], left.x.shape[2]
    factor, power = cpu_certificate.threshold(target, k, _BITS)
    # By the largest term alone k is not cut to a power of two.
    of_term = cpu_certificate.whole_threshold(target, k)
    allowed = (127 * of_term[0]).bit_length() - 1 + of_term[1]
    tile, deep = next((s for s in _SIZES if _bytes(*s) <= budget), _SIZES[-1])
    for j in ranges(n, tile):
        for i in ranges(m, tile):
            products: Any = None
            for h in ranges(k, deep):
                cut_a = _cuts(stages, left.of(i, h), rows.part(i))
                cut_b = _cuts(stages, right.of(j, h), columns.part(j))
                products = _products(stages, cut_a, cut_b, products)
            size = (i.stop - i.start, j.stop - j.start)
            unseen = device.zeros((_squares(size[0]), _squares(size[1])), np.int32)
            grid, width = stages.entry_grid(1, *size)
            for look in range(2):
                args = (
                    products,
                    products.strides[0] // 4,
                    products.strides[1] // 4,
                    left.of(i).struct(),
                    rows.part(i).struct(device),
                    moved[0][i],
                    right.of(j).struct(),
                    columns.part(j).struct(device),
                    moved[1][j],
                    factor,
                    power + 2 * (_FIRST_BITS - _BITS),
                    allowed,
                    k.bit_length() + 9,
                    width,
                    look,
                    unseen,
                    missing,
                )
                stages.launch(
                    "second_look", "second_look", grid, args, variant=left.kernels()
                )
    return int(device.fetch(missing)[0])


def _bytes(tile: int, deep: int) -> int:
    """Return the workspace of a tile: planes of both operands, and products."""
    return _PLANES * 2 * tile * deep + 4 * (_SUMS + 1) * tile * tile


def _squares(size: int) -> int:
    return -(-size // _SQUARE)


def _rounded(stages: Stages, operand: Operands, facts: Facts, moved: bool) -> Any:
    """Return which lines have an entry that scaling rounds, as int32."""
    rounded = stages.device.zeros((operand.x.shape[1],), np.int32)
    if moved:
        args = (facts.struct(stages.device), rounded)
        stages.by_shares("second_look", "rounded", operand, args)
    return rounded


def _cuts(stages: Stages, operand: Operands, facts: Facts) -> Any:
    planes = stages.new_planes(operand, _PLANES)
    stages.queue_planes("second_look", "cuts", operand, facts, planes, None)
    return planes


def _products(stages: Stages, a: Any, b: Any, out: Any) -> Any:
    """Return sums of digit products by weight, and the product of the 0/1 planes.

    Those of an earlier block of k, `out`, are added to: int32 holds all of k.
    """
    started: set[int] = set(range(_SUMS + 1)) if out is not None else set()
    if out is None:
        shape = (_SUMS + 1, a.shape[2], b.shape[2])
        out = stages.device.empty(shape, np.int32)
    pairs = [(i + j, i, j) for i in range(_DIGITS) for j in range(_DIGITS)]
    for target, i, j in [*pairs, (_SUMS, _DIGITS, _DIGITS)]:
        stages.device.gemm(
            a[i], b[j], out[target : target + 1], accumulate=target in started
        )
        started.add(target)
    return out


def look_on_host(stages: Stages, a: Any, b: Any, scheme: Scheme, target: Target) -> int:
    """Return what `second_look` does, by the CPU engine's own code.

    Parameters
    ----------
    stages : Stages
        Of the device that holds the operands.
    a, b : array of float64
        As for `second_look`.
    scheme : Scheme
        Of the product.
    target : "conventional", "single" or int
        What is to be shown.

    Returns
    -------
    int
        0 where every entry is certified; at most `cpu_certificate.HOPELESS`.
    """
    a, b = (stages.device.fetch(x) for x in (a, b))
    return int(CpuEngine(1).missing_bits(a, b, scheme, target)[0])
