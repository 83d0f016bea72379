"""Complex products as real ones: operands embedded, results taken apart.

    [ Ar  -Ai ]   [ Br ]   [ Re C ]
    [ Ai   Ar ] * [ Bi ] = [ Im C ]

is the contract of complex products with their moduli (`numerics.complex_reference`):
certificates, checks and bounds of real products then hold for each part of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.base import Engine, Outcome
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.errors import CheckError
from np_ozaki.precision import Served, Way, bound_of_ways, multiply, promised_bound

__all__ = [
    "UNCONJUGATED",
    "Conjugated",
    "complex_bound_of_ways",
    "complex_promised_bound",
    "embedded",
    "is_complex",
    "multiply_complex",
]

Real = NDArray[np.float64]
"""Or of float32, where complex entries are of complex64."""

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


def embedded(x: Complex, *, left: bool, conjugated: bool = False) -> Real:
    """Return the real matrices that stand for complex ones.

    Parameters
    ----------
    x : (batch, m, k) or (batch, k, n) array of complex128 or complex64
        A or B; of the host or a GPU.
    left : bool
        Whether it is A.
    conjugated : bool, optional
        Whether the operand is conj(x).

    Returns
    -------
    (batch, 2m, 2k) or (batch, 2k, n) array of float64 or float32
        C-contiguous, where `x` lies.
    """
    return _left(x, conjugated) if left else _right(x, conjugated)


def _left(a: Complex, conjugated: bool = False) -> Real:
    """Return [[Ar, -Ai], [Ai, Ar]] for each matrix."""
    batch, m, k = a.shape
    result: Real = choice.empty_like(a.real, (batch, 2 * m, 2 * k))
    result[:, :m, :k] = a.real
    result[:, m:, k:] = a.real
    plus, minus = result[:, m:, :k], result[:, :m, k:]
    if conjugated:
        plus, minus = minus, plus
    plus[...] = a.imag
    np.negative(a.imag, out=minus)
    return result


def _right(b: Complex, conjugated: bool = False) -> Real:
    """Return [Br; Bi] for each matrix; real and imaginary parts of a result as well."""
    batch, k, n = b.shape
    result: Real = choice.empty_like(b.real, (batch, 2 * k, n))
    result[:, :k] = b.real
    if conjugated:
        np.negative(b.imag, out=result[:, k:])
    else:
        result[:, k:] = b.imag
    return result


def _put(parts: Real, out: Complex) -> None:
    """Write (batch, 2m, n) real and imaginary parts to complex entries."""
    m = out.shape[1]
    out.real[...] = parts[:, :m]
    out.imag[...] = parts[:, m:]


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
    batch, m, n = out.shape
    k = a.shape[2]
    results = 1 + (low is not None)
    size = out.real.itemsize * (4 * m * k + 2 * k * n + 2 * m * n * results)
    parts = ranges(batch, max(1, _CHUNK_BYTES // max(1, size)))
    # What is kept of an operand is not kept of its conjugate.
    prepared = (
        None if conjugated[0] else prepared[0],
        None if conjugated[1] else prepared[1],
    )
    left = _left(a, conjugated[0]) if a.shape[0] == 1 else None
    right = _right(b, conjugated[1]) if b.shape[0] == 1 else None
    if len(parts) > 1:
        # What is kept is about whole operands.
        prepared = (
            prepared[0] if left is not None else None,
            prepared[1] if right is not None else None,
        )
    done: list[Served] = []
    for part in parts:
        x = _left(a[of_batch(part, a)], conjugated[0]) if left is None else left
        y = _right(b[of_batch(part, b)], conjugated[1]) if right is None else right
        target = out[part]
        here = choice.empty_like(target.real, (target.shape[0], 2 * m, n))
        rest = None if low is None else choice.empty_like(here, here.shape)
        try:
            done.append(
                multiply(engine, x, y, here, options, rest, prepared, "complex")
            )
        except CheckError as error:
            raise _of_complex(error, part.start, m) from None
        _put(here, target)
        if low is not None and rest is not None:
            _put(rest, low[part])
    return _together(done)


def _together(done: list[Served]) -> Served:
    """Return how all parts of a batch were served."""
    outcomes = [served.outcome for served in done]
    return Served(
        Outcome(
            overflow=any(x.overflow for x in outcomes),
            invalid=any(x.invalid for x in outcomes),
            workspace_bytes=max(x.workspace_bytes for x in outcomes),
            tiles=sum(x.tiles for x in outcomes),
        ),
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
        x, y = _left(_matrix(a, i)), _right(_matrix(b, i))
        bound = bound_of_ways(engine, x, y, _right(c[i : i + 1]), [way])
        _put(bound, result[i : i + 1])
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
            _left(_matrix(a, i)),
            _right(_matrix(b, i)),
            None if c is None else _right(c[i : i + 1]),
            options,
            double=double,
            family="complex",
        )
        _put(bound, result[i : i + 1])
    return result


def _matrix(x: Complex, i: int) -> Complex:
    return x[i : i + 1] if x.shape[0] > 1 else x
