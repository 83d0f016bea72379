"""Scaling exponents in integers: stage 1 of the contract on NumPy arrays.

Float64 appears only where it is exact: powers of two, ceilings up to 2^16, and sums of
at most 2^14 squares of them, before these are added as uint64.  So the exponents are
those of the integer definition, whatever the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.engines.parallel import Block, blocks, run_blocks

__all__ = [
    "ACCURATE_BITS",
    "Lines",
    "accurate_exponents",
    "ceilings",
    "largest_exponents",
    "legacy_exponents",
    "magnitudes",
    "norm_exponents",
    "power_of_two",
]

Array = NDArray[np.float64]
Exponents = NDArray[np.int64]

ACCURATE_BITS = 5
"""r = 5 - e: the accurate mode's auxiliary entries are at most 2^6."""

_SMALLEST_NORMAL = -1022
_LARGEST_EXPONENT = 1023


def power_of_two(exponents: Exponents) -> tuple[Array, Array | None]:
    """Return factors whose product is 2^exponents.

    Parameters
    ----------
    exponents : ndarray of int64
        -2000 to 2000.

    Returns
    -------
    first : ndarray of float64
        The only factor needed while every exponent is that of a normal double.
    second : ndarray of float64 or None
        The rest.  Multiplying by both in turn is exact, or ends below one half.
    """
    inside = np.minimum(np.maximum(exponents, _SMALLEST_NORMAL), _LARGEST_EXPONENT)
    first = np.ldexp(1.0, inside)
    rest = exponents - inside
    return first, (np.ldexp(1.0, rest) if np.count_nonzero(rest) else None)


def largest_exponents(largest: Array) -> Exponents:
    """Return e with ``2^e <= largest < 2^(e+1)``.

    Parameters
    ----------
    largest : ndarray of float64
        Largest magnitudes, finite; where zero, e is -1 and means nothing.

    Returns
    -------
    ndarray of int64
        -1074 to 1023.
    """
    return np.frexp(largest)[1].astype(np.int64) - 1


def ceilings(
    x: Array, factors: tuple[Array, Array | None], shrinks: bool, out: Array
) -> None:
    """Write ceil(abs(x) * 2^shift) to `out`, exactly.

    Parameters
    ----------
    x : ndarray of float64
        Finite entries.
    factors : tuple of ndarray of float64
        2^shift as `power_of_two` gives it; broadcasts against `x`.  The largest entry
        must end at 2^16 at most.
    shrinks : bool
        Whether some shift is negative.
    out : ndarray of float64
        Same shape as `x`.
    """
    np.abs(x, out=out)
    for factor in factors:
        if factor is not None:
            out *= factor
    np.ceil(out, out=out)
    if shrinks:
        # Only a product that shrinks can underflow to zero; its ceiling is 1.
        np.maximum(out, x != 0, out=out)


def _largest_quarter_exponents(sums: NDArray[np.uint64], bound: int) -> Exponents:
    """Return the largest q with ``sums * 4^q <= bound``, for sums > 0."""
    length = bound.bit_length()
    # Converting a sum above 2^53 may round it up to a power of two, one bit too long.
    # That cannot matter: the 53 leading bits of no M are all ones.
    bits = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    room = length - bits
    # With equal bit lengths the leading 64 bits decide: the sum has no more of them.
    aligned = sums << (64 - bits).astype(np.uint64)
    top = np.uint64(bound >> (length - 64) if length >= 64 else bound << (64 - length))
    q: Exponents = (room >> 1) - ((aligned > top) & (room & 1 == 0))
    return q


@dataclass
class Lines:
    """An operand seen as lines along k: the rows of A, the columns of B.

    Attributes
    ----------
    x : (batch, rows, columns) ndarray of float64
        Operand with its faster axis last, whatever its role.
    along : bool
        Whether a line lies along the last axis.
    threads : int
        Threads for the passes over `x`.
    """

    x: Array
    along: bool
    threads: int

    @classmethod
    def of(cls, x: Array, axis: int, threads: int) -> Lines:
        """Return the lines of `x` whose inner index runs along `axis` (-1 or -2)."""
        along = axis == -1
        if abs(x.strides[-2]) < abs(x.strides[-1]):
            return cls(x.swapaxes(-1, -2), not along, threads)
        return cls(x, along, threads)

    def matrix(self, axis: int) -> Array:
        """Return the operand as it was given to `of` with this `axis`."""
        return self.x if self.along == (axis == -1) else self.x.swapaxes(-1, -2)

    @property
    def shape(self) -> tuple[int, int]:
        """Batch and number of lines of a matrix."""
        return self.x.shape[0], self.x.shape[1 if self.along else 2]

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value a line, (batch, lines), in a shape that broadcasts to x."""
        return values[:, :, np.newaxis] if self.along else values[:, np.newaxis, :]

    def part(self, spread: NDArray[Any], block: Block) -> NDArray[Any]:
        """Return the values of `spread` that belong to a block of x."""
        if self.along:
            return spread[block[0], block[1]]
        return spread[block[0], :, block[2]]

    def lines_of(self, block: Block) -> tuple[slice, slice]:
        """Return where a block's lines stand in a (batch, lines) array."""
        return block[0], block[1 if self.along else 2]

    def collect(
        self, reduce: Callable[[Block], NDArray[Any]], merge: np.ufunc, dtype: type
    ) -> NDArray[Any]:
        """Return ``reduce(block)``, one value a line, merged over the blocks of x."""
        todo = blocks(self.x.shape)
        if len(todo) == 1:
            return np.asarray(reduce(todo[0]), dtype=dtype)
        partial: list[tuple[Block, NDArray[Any]]] = []

        def work(share: Sequence[Block]) -> None:
            partial.extend((block, reduce(block)) for block in share)

        run_blocks(work, todo, self.threads)
        result: NDArray[Any] = np.zeros(self.shape, dtype=dtype)
        for block, values in partial:
            part = result[self.lines_of(block)]
            merge(part, values.astype(dtype, copy=False), out=part)
        return result


def magnitudes(lines: Lines) -> Array:
    """Return the largest magnitude of each line.

    Parameters
    ----------
    lines : Lines
        Operand.

    Returns
    -------
    (batch, lines) ndarray of float64
        NaN or Inf where the line holds one; 0 for an empty line.
    """
    axis = 2 if lines.along else 1
    return lines.collect(
        lambda block: np.maximum.reduce(np.abs(lines.x[block]), axis=axis),
        np.maximum,
        np.float64,
    )


def _square_sums(lines: Lines, shift: Exponents) -> NDArray[np.uint64]:
    """Return S = sum of ceil(abs(x) 2^shift)^2 of each line, exactly."""
    first, second = power_of_two(lines.spread(shift))
    shrinks = bool(np.minimum.reduce(shift, axis=None, initial=0) < 0)
    subscripts = "bij,bij->bi" if lines.along else "bij,bij->bj"

    def reduce(block: Block) -> Array:
        # A block has 2^14 entries of at most 2^32: exact in float64.
        x = lines.x[block]
        t = np.empty(x.shape)
        rest = None if second is None else lines.part(second, block)
        ceilings(x, (lines.part(first, block), rest), shrinks, t)
        with hooks.unrouted():
            sums: Array = np.einsum(subscripts, t, t)
        return sums

    return lines.collect(reduce, np.add, np.uint64)


def _norms(
    lines: Lines, largest: Array, limit: int
) -> tuple[Exponents, Exponents, Exponents]:
    """Return (e, w - 1 - e, q) with q the largest integer with S 4^q <= M."""
    width = min(16, max(2, limit.bit_length() // 2 - 8))
    e = largest_exponents(largest)
    shift = width - 1 - e
    sums = _square_sums(lines, shift)
    return e, shift, _largest_quarter_exponents(np.maximum(sums, 1), limit)


def norm_exponents(lines: Lines, largest: Array, limit: int) -> Exponents:
    """Return the exponents of ``scaling="norm"``.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    largest : (batch, lines) ndarray of float64
        From `magnitudes`.
    limit : int
        M of the contract.

    Returns
    -------
    (batch, lines) ndarray of int64
        mu or nu: the largest with ``S * 4^(mu - (w-1-e)) <= M``, less one where
        mu + e < w - 1 (there rounding to nearest may double an entry); 0 for a zero
        line.
    """
    _, shift, q = _norms(lines, largest, limit)
    mu = q + shift - (q < 0)
    return np.where(largest > 0, mu, 0)


def legacy_exponents(lines: Lines, largest: Array, limit: int) -> Exponents:
    """Return the exponents of ``scaling="legacy"``, which depend on the scale.

    Parameters
    ----------
    lines : Lines
        Rows of A or columns of B, finite.
    largest : (batch, lines) ndarray of float64
        From `magnitudes`.
    limit : int
        M of the contract.

    Returns
    -------
    (batch, lines) ndarray of int64
        g - e with g the largest integer with
        ``4^(g+1) * max(4, S * 4^(e-w+1)) <= M``; 0 for a zero line.
    """
    e, shift, q = _norms(lines, largest, limit)
    g = np.minimum(q + shift - 1, (limit.bit_length() - 1) // 2 - 2)
    return np.where(largest > 0, g - e, 0)


def accurate_exponents(largest: Array, partner_maxima: Array, limit: int) -> Exponents:
    """Return the exponents of ``scaling="accurate"``.

    Parameters
    ----------
    largest : (batch, lines) ndarray of float64
        From `magnitudes`.
    partner_maxima : (batch, lines) ndarray of float64
        Largest entry of each row (column) of Cbar, exact integers.
    limit : int
        M of the contract.

    Returns
    -------
    (batch, lines) ndarray of int64
        r + the largest g with ``maximum * 4^g <= M``, less one where g < 0.  A zero
        line has 0; a line that meets only zeros counts as maximum 1.
    """
    sums = np.maximum(partner_maxima, 1.0).astype(np.uint64)
    g = _largest_quarter_exponents(sums, limit)
    mu = ACCURATE_BITS - largest_exponents(largest) + g - (g < 0)
    return np.where(largest > 0, mu, 0)
