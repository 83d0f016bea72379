"""Complex products as real ones: operands embedded, results taken apart.

That is the contract of complex products with their moduli
(`numerics.complex_reference`): certificates, checks and bounds of real products then
hold for each part of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines.base import AnyScheme, Cut, Engine, Outcome, Scheme
from np_ozaki.engines.complex_operand import ComplexOperand, embedded, put_parts
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.errors import CheckError
from np_ozaki.precision import Served, Way, bound_of_ways, multiply, promised_bound

__all__ = [
    "UNCONJUGATED",
    "Conjugated",
    "as_operands",
    "complex_bound_of_ways",
    "complex_promised_bound",
    "cut_complex",
    "is_complex",
    "multiply_complex",
]

Complex = NDArray[np.complex128]

Conjugated = tuple[bool, bool]
"""Whether conj(A) takes the place of A, conj(B) that of B.  No bound depends on it."""

UNCONJUGATED: Conjugated = (False, False)

_CHUNK_BYTES = 1 << 26
"""Embedded matrices of a batch that are there at a time, unless one has more."""


def is_complex(x: Any) -> bool:
    """Return whether an array has complex entries.

    Parameters
    ----------
    x : array
        Of the host or a GPU.

    Returns
    -------
    bool
    """
    return bool(x.dtype.kind == "c")


def as_operands(
    engine: Engine, a: Complex, b: Complex, out: Complex
) -> tuple[Any, Any, Any]:
    """Return operands and room for a result as an engine takes them.

    Parameters
    ----------
    engine : Engine
        Who multiplies.
    a : (batch, m, k) array of complex128 or complex64
    b : (batch, k, n) array of the same dtype
    out : (batch, m, n) array of the same dtype

    Returns
    -------
    a, b : ComplexOperand, or array of float64 or float32
    out : complex array, or one of their parts with twice the rows
    """
    if engine.takes_complex:
        return ComplexOperand(a, left=True), ComplexOperand(b, left=False), out
    batch, m, n = out.shape
    room = np.empty_like(out.real, shape=(batch, 2 * m, n))
    return embedded(a, left=True), embedded(b, left=False), room


def multiply_complex(
    engine: Engine,
    a: Complex,
    b: Complex,
    out: Complex,
    options: Options,
    low: Complex | None = None,
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
) -> Served:
    """Multiply complex matrices with the precision that the options ask for.

    Parameters
    ----------
    engine : Engine
        Who multiplies.
    a : (batch, m, k) array of complex128 or complex64
        Batch 1 broadcasts.  Of the host, or of a GPU like the others.
    b : (batch, k, n) array of the same dtype
        Batch 1 broadcasts.
    out : (batch, m, n) array of the same dtype
        Overwritten; must not overlap an operand.
    options : Options
        As for `precision.multiply`.
    low : (batch, m, n) ndarray of complex128, optional
        Takes what the rounding to `out` left.
    prepared : tuple of Prepared or None, optional
        Of A and of B, as they are here.
    conjugated : tuple of bool, optional
        Whether conj(A) takes the place of A, conj(B) that of B.

    Returns
    -------
    Served
        What it took.

    Raises
    ------
    OptionError
        More moduli are asked for than complex products can take, or a tolerance below
        what complex64 can keep.
    PrecisionError, CheckError, WorkspaceError
        As `precision.multiply`; rows of an error are those of `out`.
    """
    if engine.takes_complex:
        left = ComplexOperand(a, left=True, conjugated=conjugated[0])
        right = ComplexOperand(b, left=False, conjugated=conjugated[1])
        result: Any = out
        rest: Any = low
        try:
            return multiply(
                engine, left, right, result, options, rest, prepared, "complex"
            )
        except CheckError as error:
            raise _of_complex(error, 0, out.shape[1]) from None
    batch, m, n = out.shape
    k = a.shape[2]
    step = _step(m, n, k, double=low is not None, itemsize=out.real.itemsize)
    parts = ranges(batch, step)

    def operand(x: Complex, part: slice, *, left: bool) -> NDArray[np.float64]:
        conj = conjugated[0 if left else 1]
        return embedded(x[of_batch(part, x)], left=left, conjugated=conj)

    whole = slice(0, 1)
    first = operand(a, whole, left=True) if a.shape[0] == 1 else None
    second = operand(b, whole, left=False) if b.shape[0] == 1 else None
    # What is kept is about whole operands, and not about their conjugates.
    kept_a, kept_b = (
        None if conj or (len(parts) > 1 and x is None) else kept
        for x, kept, conj in zip((first, second), prepared, conjugated, strict=True)
    )
    done: list[Served] = []
    for part in parts:
        x = operand(a, part, left=True) if first is None else first
        y = operand(b, part, left=False) if second is None else second
        target = out[part]
        here = np.empty_like(out.real, shape=(target.shape[0], 2 * m, n), order="C")
        rest = None if low is None else np.empty_like(here)
        pair = kept_a, kept_b
        try:
            done.append(multiply(engine, x, y, here, options, rest, pair, "complex"))
        except CheckError as error:
            raise _of_complex(error, part.start, m) from None
        put_parts(here, target)
        if low is not None and rest is not None:
            put_parts(rest, low[part])
    return _together(done)


def cut_complex(
    engine: Engine,
    size: tuple[int, int, int, int],
    scheme: AnyScheme,
    *,
    certified: bool,
    checked: bool,
    double: bool,
    workspace_bytes: int | None,
    word: int = 8,
) -> Cut:
    """Return how a product of complex matrices on the host would be cut.

    Parameters
    ----------
    engine : Engine
        Who multiplies.
    size : tuple of int
        Batch, m, n, k of the complex matrices.
    scheme : Scheme or Slicing
        Moduli of the family "complex", or slices.
    certified, checked : bool
        As for `Engine.cut`.
    double : bool
        Whether the result is a double-double.
    workspace_bytes : int, optional
        As for `Engine.matmul`.
    word : int, optional
        Bytes of a part of an entry.

    Returns
    -------
    Cut
        `num_gemms` counts products of real matrices of the size m, n, k.
    """
    batch, m, n, k = size
    how: dict[str, Any] = {
        "certified": certified,
        "checked": checked,
        "workspace_bytes": workspace_bytes,
        "word": word,
    }
    if engine.takes_complex and isinstance(scheme, Scheme):
        return engine.cut(size, scheme, **how)
    step = 1 if engine.takes_complex else _step(m, n, k, double=double, itemsize=word)
    whole = engine.cut((min(step, batch), 2 * m, n, 2 * k), scheme, **how)
    rest = engine.cut((batch % step, 2 * m, n, 2 * k), scheme, **how)
    return Cut(
        4 * whole.num_gemms,
        batch // step * whole.tiles + rest.tiles,
        max(whole.workspace_bytes, rest.workspace_bytes),
    )


def _step(m: int, n: int, k: int, *, double: bool, itemsize: int) -> int:
    """Return how many matrices of a batch are embedded at a time."""
    size = itemsize * (4 * m * k + 2 * k * n + 2 * m * n * (1 + double))
    return max(1, _CHUNK_BYTES // max(1, size))


def _together(done: list[Served]) -> Served:
    """Return how all parts of a batch were served."""
    return Served(
        Outcome.of_parts([served.outcome for served in done]),
        [way for served in done for way in served.ways],
        next((served.fallback for served in done if served.fallback), None),
        any(served.recomputed for served in done),
    )


def _of_complex(error: CheckError, start: int, m: int) -> CheckError:
    """Return an error about embedded rows as one about complex rows."""
    rows, columns = error.tile
    if rows.start >= m:
        rows = slice(rows.start - m, rows.stop - m)
    elif rows.stop > m:
        rows = slice(0, m)
    wrong = tuple(sorted({i % m for i in error.rows}))
    return CheckError(error.matrix + start, (rows, columns), wrong, error.columns)


def complex_bound_of_ways(
    engine: Engine, a: Complex, b: Complex, c: Complex, ways: Sequence[Way]
) -> Complex:
    """Bound the error of each part of a product that was multiplied in known ways.

    Parameters
    ----------
    engine : Engine
        Who tells scaling exponents, of operands on the host.
    a : (batch, m, k) ndarray of complex128
        Batch 1 broadcasts.
    b : (batch, k, n) ndarray of complex128
        Batch 1 broadcasts.
    c : (batch, m, n) ndarray of complex128
        The product, or its lower half if it is a double-double.
    ways : sequence of Way
        One a matrix.

    Returns
    -------
    (batch, m, n) ndarray of complex128
        Real and imaginary parts bound those of ``C - A @ B``.
    """
    result = np.empty(c.shape, dtype=np.complex128)
    for i, way in enumerate(ways):
        x = embedded(_matrix(a, i), left=True)
        y = embedded(_matrix(b, i), left=False)
        z = embedded(c[i : i + 1], left=False)
        put_parts(bound_of_ways(engine, x, y, z, [way]), result[i : i + 1])
    return result


def complex_promised_bound(
    engine: Engine,
    a: Complex,
    b: Complex,
    c: Complex | None,
    options: Options,
    *,
    double: bool = False,
) -> Complex:
    """Bound the error that each part of a product may have at most.

    Parameters
    ----------
    engine : Engine
        Who tells scaling exponents, of operands on the host.
    a : (batch, m, k) ndarray of complex128
    b : (batch, k, n) ndarray of complex128
        Batch 1 broadcasts.
    c : (batch, m, n) ndarray of complex128, or None
        The product, if it is known.
    options : Options
        As for `precision.promised_bound`.
    double : bool, optional
        Whether the product is a double-double.

    Returns
    -------
    (batch, m, n) ndarray of complex128
        Real and imaginary parts bound those of ``C - A @ B``.
    """
    result = np.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=np.complex128)
    for i in range(a.shape[0]):
        bound = promised_bound(
            engine,
            embedded(_matrix(a, i), left=True),
            embedded(_matrix(b, i), left=False),
            None if c is None else embedded(c[i : i + 1], left=False),
            options,
            double=double,
            family="complex",
        )
        put_parts(bound, result[i : i + 1])
    return result


def _matrix(x: Complex, i: int) -> Complex:
    return x[i : i + 1] if x.shape[0] > 1 else x
