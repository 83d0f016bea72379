"""The certificate's second look on a GPU; the rule is `cpu_certificate`'s.

Entries are cut to 18 bits, as three digits of 6, so that int8 products tell their
product exactly.  The decision is that of the CPU engine for every matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from np_ozaki.engines import cpu_certificate
from np_ozaki.engines.cpu_exponents import Lines, magnitudes
from np_ozaki.engines.parallel import ranges
from np_ozaki.plan import INT8_K_BLOCK

if TYPE_CHECKING:
    from np_ozaki.engines.cuda import CudaEngine, Facts, Operands

__all__ = ["second_look"]

_BITS = cpu_certificate.SECOND_LOOK_BITS
_DIGITS = 3
_SUMS = 2 * _DIGITS - 1
_PLANES = _DIGITS + 1
_TILE = 2048
"""Rows and columns of a tile: whole squares, which the rule counts entries by."""

_SQUARE = 512
_DOUBLE_BITS = 53


def second_look(
    engine: CudaEngine, a: Any, b: Any, num_moduli: int, scaling: str
) -> int:
    """Return the bits that one matrix product misses.

    Parameters
    ----------
    engine : CudaEngine
        Who multiplied.
    a : (1, m, k) device array of float64
        NaN and Inf count as 0.
    b : (1, k, n) device array of float64
        Likewise.
    num_moduli : int
        N of the product.
    scaling : str
        Rule of its exponents.

    Returns
    -------
    int
        0 where every entry is certified; at most `cpu_certificate.HOPELESS`.
    """
    if a.shape[2] > INT8_K_BLOCK:
        # The rule's sums are then float64's own, in the CPU engine's order.
        return _on_host(engine, a, b, num_moduli, scaling)
    device = engine.device
    left, right, rows, columns = engine.facts_of(a, b, num_moduli, scaling)
    moved = [_rounded(engine, *side) for side in ((left, rows), (right, columns))]
    missing = device.zeros((1,), np.int32)
    m, n, k = left.x.shape[1], right.x.shape[1], left.x.shape[2]
    for j in ranges(n, _TILE):
        cut_b = _cuts(engine, right.of(j), columns.part(j))
        for i in ranges(m, _TILE):
            cut_a = _cuts(engine, left.of(i), rows.part(i))
            products = _products(engine, cut_a, cut_b)
            size = (i.stop - i.start, j.stop - j.start)
            unseen = device.zeros((_squares(size[0]), _squares(size[1])), np.int32)
            grid, width = engine.entry_grid(1, *size)
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
                    *_factor(k),
                    k.bit_length() + 9,
                    width,
                    look,
                    unseen,
                    missing,
                )
                engine.launch("second_look", "second_look", grid, args)
    return int(device.fetch(missing)[0])


def _squares(size: int) -> int:
    return -(-size // _SQUARE)


def _factor(k: int) -> tuple[int, int]:
    """Return (f, s): L is counted as 127 f 2^s 4^(7 - 18) times the 18-bit product."""
    down = 2 * (cpu_certificate.FIRST_LOOK_BITS - _BITS)
    if 2 * (k.bit_length() + _BITS) + 7 > _DOUBLE_BITS:
        return 1, k.bit_length() - 1 + down
    return k, down


def _rounded(engine: CudaEngine, operand: Operands, facts: Facts) -> Any:
    """Return which lines have an entry that scaling rounds, as int32."""
    _, lines, k = operand.x.shape
    rounded = engine.device.zeros((lines,), np.int32)
    inner = k if operand.along else lines
    args = (
        operand.struct(),
        facts.struct(engine.device),
        inner,
        operand.along,
        rounded,
    )
    grid = engine.flat_grid(lines * k)
    engine.launch("second_look", "rounded_lines", grid, args)
    return rounded


def _cuts(engine: CudaEngine, operand: Operands, facts: Facts) -> Any:
    planes = engine.new_planes(operand, _PLANES)
    engine.queue_planes("second_look", "cuts", operand, facts, planes, None)
    return planes


def _products(engine: CudaEngine, a: Any, b: Any) -> Any:
    """Return sums of digit products by weight, and the product of the 0/1 planes."""
    shape = (_SUMS + 1, a.shape[2], b.shape[2])
    out = engine.device.empty(shape, np.int32)
    started: set[int] = set()
    pairs = [(i + j, i, j) for i in range(_DIGITS) for j in range(_DIGITS)]
    for target, i, j in [*pairs, (_SUMS, _DIGITS, _DIGITS)]:
        engine.device.gemm(
            a[i], b[j], out[target : target + 1], accumulate=target in started
        )
        started.add(target)
    return out


def _on_host(engine: CudaEngine, a: Any, b: Any, num_moduli: int, scaling: str) -> int:
    """Return the same by the CPU engine's own code."""
    exponents = engine.scaling_exponents(a, b, num_moduli, scaling)
    sides = []
    with np.errstate(all="ignore"):
        for x, axis, scale in ((a, -1, exponents[0]), (b, -2, exponents[1])):
            host = engine.device.fetch(x)
            lines = Lines.of(np.where(np.isfinite(host), host, 0.0), axis, 1)
            sides.append(
                cpu_certificate.side(
                    lines, magnitudes(lines), scale, left=axis == -1, thorough=True
                )
            )
        return int(cpu_certificate.missing_bits(*sides)[0])
