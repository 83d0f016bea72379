"""The auxiliary product of ``scaling="accurate"``: row and column maxima of Cbar."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cpu_exponents import (
    ACCURATE_BITS,
    Exponents,
    ceilings,
    largest_exponents,
    power_of_two,
)
from np_ozaki.engines.parallel import of_batch, ranges

__all__ = ["auxiliary_maxima"]

Array = NDArray[np.float64]

_AUXILIARY_TILE = 256
_AUXILIARY_K = 1024


def _auxiliary(x: Array, shift: Exponents) -> Array:
    """Return ceil(abs(x) 2^shift), at most 2^6."""
    result = np.empty(x.shape)
    ceilings(x, power_of_two(shift), bool((shift < 0).any()), result)
    return result


def auxiliary_maxima(
    a: Array, b: Array, largest_a: Array, largest_b: Array
) -> tuple[Array, Array]:
    """Return the row and column maxima of Cbar, over the whole operands.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Finite.
    b : (batch, k, n) ndarray of float64
        Finite, of the same batch.
    largest_a, largest_b : (batch, lines) ndarray of float64
        From `cpu_exponents.magnitudes`.

    Returns
    -------
    rows : (batch, m) ndarray of float64
        Exact integers.
    columns : (batch, n) ndarray of float64
        Exact integers.
    """
    shift_a = ACCURATE_BITS - largest_exponents(largest_a)
    shift_b = ACCURATE_BITS - largest_exponents(largest_b)
    batch = max(a.shape[0], b.shape[0])
    rows = np.zeros((batch, a.shape[1]))
    columns = np.zeros((batch, b.shape[2]))
    tile = (
        min(a.shape[1], _AUXILIARY_TILE),
        min(b.shape[2], _AUXILIARY_TILE),
        min(a.shape[2], _AUXILIARY_K),
    )
    deep = max(1, _AUXILIARY_TILE**2 // max(1, sum(tile) * max(tile)))
    for h in ranges(batch, deep):
        ha, hb = of_batch(h, a), of_batch(h, b)
        for i in ranges(a.shape[1], tile[0]):
            for j in ranges(b.shape[2], tile[1]):
                total = np.zeros(())
                for inner in ranges(a.shape[2], tile[2]):
                    # At most k 2^12: exact in float64 for any k.
                    total = total + np.matmul(
                        _auxiliary(a[ha, i, inner], shift_a[ha, i, np.newaxis]),
                        _auxiliary(b[hb, inner, j], shift_b[hb, np.newaxis, j]),
                    )
                rows[h, i] = np.maximum(rows[h, i], total.max(2, initial=0))
                columns[h, j] = np.maximum(columns[h, j], total.max(1, initial=0))
    return rows, columns
