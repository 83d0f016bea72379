"""NaN and Inf, entry by entry as IEEE products give them.

Which entries of a product are NaN or infinite does not depend on the order of
summation, so it can be told from counts: how many products of an entry are +Inf, -Inf
or NaN.  The counts come from products of 0/1 matrices, which no BLAS can get wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["nonfinite_entries", "set_special_values"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PIECE = 256
_K_PIECE = 1024


def _signs(x: Array) -> dict[str, Mask]:
    infinite = np.isinf(x)
    positive, negative = x > 0, x < 0
    return {
        "nan": np.isnan(x),
        "infinite": infinite,
        "zero": x == 0,
        "+inf": infinite & positive,
        "-inf": infinite & negative,
        "+": positive,
        "-": negative,
    }


def _any_product(
    a: dict[str, Mask], b: dict[str, Mask], pairs: list[tuple[str, str]]
) -> Mask:
    left = np.concatenate([a[x] for x, _ in pairs], axis=-1).astype(np.float32)
    right = np.concatenate([b[y] for _, y in pairs], axis=-2).astype(np.float32)
    return np.asarray(np.matmul(left, right) > 0)


_PLUS = [("+inf", "+"), ("-inf", "-"), ("+", "+inf"), ("-", "-inf")]
_MINUS = [("+inf", "-"), ("-inf", "+"), ("+", "-inf"), ("-", "+inf")]
_INVALID = [("infinite", "zero"), ("zero", "infinite")]


def _classify(a: Array, b: Array) -> tuple[Mask, Mask, Mask, Mask]:
    """Return (from NaN, invalid, +Inf, -Inf) for one piece, over all of k."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*shape, a.shape[-2], b.shape[-1])
    nan = np.zeros(shape, dtype=bool)
    invalid, plus, minus = nan.copy(), nan.copy(), nan.copy()
    for start in range(0, a.shape[-1], _K_PIECE):
        inner = slice(start, start + _K_PIECE)
        x, y = _signs(a[..., inner]), _signs(b[..., inner, :])
        nan |= x["nan"].any(-1, keepdims=True)
        nan |= y["nan"].any(-2, keepdims=True)
        invalid |= _any_product(x, y, _INVALID)
        plus |= _any_product(x, y, _PLUS)
        minus |= _any_product(x, y, _MINUS)
    invalid |= plus & minus
    return nan, invalid, plus, minus


def _pieces(batch: int, rows: int, columns: int) -> Iterator[tuple[slice, ...]]:
    deep = max(1, _PIECE * _PIECE // max(1, rows * columns))
    for h in range(0, batch, deep):
        for i in range(0, rows, _PIECE):
            for j in range(0, columns, _PIECE):
                yield slice(h, h + deep), slice(i, i + _PIECE), slice(j, j + _PIECE)


def _batch(part: slice, x: Array) -> slice:
    return part if x.shape[0] > 1 else slice(0, 1)


def nonfinite_entries(a: Array, b: Array, out: Array) -> bool:
    """Overwrite the entries of a product that are not finite by IEEE rules.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Left operand as given, NaN and Inf included; batch 1 broadcasts.
    b : (batch, k, n) ndarray of float64
        Right operand.
    out : (batch, m, n) ndarray of float64
        Product of the finite entries; changed only where NaN or Inf belongs.  A NaN
        is 0x7ff8000000000000.

    Returns
    -------
    bool
        Whether a NaN came from operands without one.
    """
    raised = False
    for h, i, j in _pieces(*out.shape):
        nan, invalid, plus, minus = _classify(a[_batch(h, a), i], b[_batch(h, b), :, j])
        part = out[h, i, j]
        part[plus] = np.inf
        part[minus] = -np.inf
        part[nan | invalid] = np.nan
        raised = raised or bool((invalid & ~nan).any())
    return raised


def set_special_values(a: Array, b: Array, out: Array) -> bool:
    """Set NaN and Inf where they belong, as `nonfinite_entries`, by a short way.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Left operand as given.
    b : (batch, k, n) ndarray of float64
        Right operand.
    out : (batch, m, n) ndarray of float64
        Product of the finite entries.

    Returns
    -------
    bool
        Whether a NaN came from operands without one.
    """
    if out.shape[0] > 1:
        return nonfinite_entries(a, b, out)
    # Only rows and columns that hold NaN or Inf can have entries of that kind.
    rows = np.flatnonzero(~np.isfinite(a[0]).all(1))
    columns = np.flatnonzero(~np.isfinite(b[0]).all(0))
    invalid = False
    if rows.size:
        part = out[:, rows]
        invalid |= nonfinite_entries(a[:, rows], b, part)
        out[:, rows] = part
    if columns.size:
        part = out[:, :, columns]
        invalid |= nonfinite_entries(a, b[:, :, columns], part)
        out[:, :, columns] = part
    return invalid
