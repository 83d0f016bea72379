"""Checksums of the CPU engine: both sides of the identities in `checksum`, on FP64.

Everything is a matrix of integers times a few vectors.  The integers are cut to pieces
of at most 30 bits, the vectors to pieces of at most 11, so that FP64 products of whole
blocks are exact in any order:

    2^29 2^10 2^14 = 2^53    for A' and B', whose vectors have balanced pieces,
    2^27 2^9  2^14 = 2^50    for the terms of C', with pieces of weights.

Only such sums, one a line and pair of pieces, are ever reduced modulo q.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.checksum import PRIME, WEIGHT_BITS, Sums, TileSums, weights
from np_ozaki.engines.cpu_exponents import (
    Exponents,
    Lines,
    largest_exponents,
    power_of_two,
)
from np_ozaki.engines.cpu_residues import scale
from np_ozaki.engines.parallel import (
    BLOCK_ELEMENTS,
    Block,
    of_batch,
    ranges,
    run_blocks,
)
from np_ozaki.engines.residue_system import LIMB_BITS, ResidueSystem

__all__ = ["Checks", "Operand", "Tally", "square_blocks"]

Array = NDArray[np.float64]

_BITS = PRIME.bit_length()
_OPERAND_BITS = 30
_TERM_BITS = 27
_TERM_PIECES = 2
"""Terms of C' are below 2^54 (the head), their upper pieces at most 2^27."""

_WEIGHT_PIECE_BITS = 9
_VECTOR_PIECE_BITS = 11
_LARGEST_SUM = 2.0**53
_ADDITIONS = 1 << 9
"""Sums of a block that fit int64 beside a remainder: 2^9 2^53 + 2^61 < 2^63."""

_SIDE = 128


def square_blocks(shape: tuple[int, int, int]) -> list[Block]:
    """Cut (batch, rows, columns) into blocks that are short in both directions.

    Sums along rows and along columns of a block then cost little beside its entries.

    Parameters
    ----------
    shape : tuple of int
        Batch, rows, columns; none of them 0.

    Returns
    -------
    list of tuple of slice
        Disjoint, covering everything, of at most `BLOCK_ELEMENTS` entries.
    """
    batch, rows, columns = shape
    wide = min(columns, max(_SIDE, BLOCK_ELEMENTS // rows))
    tall = min(rows, max(1, BLOCK_ELEMENTS // wide))
    deep = max(1, BLOCK_ELEMENTS // (rows * columns))
    return [
        (h, i, j)
        for h in ranges(batch, deep)
        for i in ranges(rows, tall)
        for j in ranges(columns, wide)
    ]


# ---- Integers modulo q ----


def _reduced(x: Sums) -> Sums:
    """Return x modulo q, for any uint64."""
    x = (x & np.uint64(PRIME)) + (x >> np.uint64(_BITS))
    return np.where(x >= PRIME, x - np.uint64(PRIME), x)


def _times_power(x: Sums, exponent: int) -> Sums:
    """Return x 2^exponent modulo q, for x < q: its 61 bits rotate."""
    turn = exponent % _BITS
    upper = (x << np.uint64(turn)) & np.uint64(PRIME)
    return upper | (x >> np.uint64(_BITS - turn))


def _vector_pieces(x: Sums) -> Array:
    """Cut x < q to balanced pieces of 11 bits, on a new last axis, lowest first."""
    rest = x.astype(np.int64)
    pieces = []
    half = 1 << (_VECTOR_PIECE_BITS - 1)
    for _ in range(-(-_BITS // _VECTOR_PIECE_BITS)):
        upper = (rest + half) >> _VECTOR_PIECE_BITS
        pieces.append(rest - (upper << _VECTOR_PIECE_BITS))
        rest = upper
    return np.stack(pieces, axis=-1).astype(np.float64)


def _weight_pieces(count: int, *, left: bool) -> Array:
    """Return the weights of `count` lines as (count, 2) pieces of 9 bits."""
    upper, lower = np.divmod(weights(count, left=left), 1 << _WEIGHT_PIECE_BITS)
    return np.stack((lower, upper), axis=-1).astype(np.float64)


_WEIGHT_PIECES = -(-WEIGHT_BITS // _WEIGHT_PIECE_BITS)


def _cut(whole: Array, bits: int, pieces: Array) -> None:
    """Cut integers to pieces, lowest first, multiples of 1, 2^bits, 2^(2 bits), ...

    pieces[0] may be `whole` itself.  All but the highest are balanced.
    """
    rest = pieces[0]
    if rest is not whole:
        np.copyto(rest, whole)
    for i in range(len(pieces) - 1, 0, -1):
        # The last place of the anchor is 2^(bits i), for entries below half of it.
        anchor = 1.5 * 2.0 ** (52 + bits * i)
        upper = pieces[i]
        np.add(rest, anchor, out=upper)
        upper -= anchor
        rest -= upper


class _Accumulator:
    """Exact sums of integers that come as float64, a few of them from each block.

    Parameters
    ----------
    shape : tuple of int
        (pieces, batch, lines, pieces of the vector).
    bits : sequence of int
        For each piece, the exponent that it stands for.
    grid : sequence of int
        For each piece, the exponent that it is a multiple of.
    vector_bits : int
        Bits between two pieces of the vector.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        bits: Sequence[int],
        grid: Sequence[int],
        vector_bits: int,
    ) -> None:
        self._total = np.zeros(shape, dtype=np.int64)
        self._spoiled = np.zeros(shape[1:3], dtype=np.bool_)
        self._exponents = bits
        self._units = np.ldexp(1.0, -np.array(grid)).reshape(-1, 1, 1, 1)
        self._vector_bits = vector_bits
        self._additions = 0
        self._lock = threading.Lock()

    def add(self, batch: slice, lines: slice, sums: Array) -> None:
        """Add sums of one block, (pieces, batch, lines, pieces of the vector)."""
        sums *= self._units
        # Only what was wrong before can be larger; it might vanish modulo q.
        exact = np.abs(sums) <= _LARGEST_SUM
        whole = sums.astype(np.int64)
        with self._lock:
            if self._additions == _ADDITIONS:
                self._total %= PRIME
                self._additions = 0
            self._additions += 1
            self._total[:, batch, lines] += whole
            if not exact.all():
                self._spoiled[batch, lines] |= ~exact.all(axis=(0, 3))

    def modulo(self) -> tuple[Sums, NDArray[np.bool_]]:
        """Return (batch, lines) sums modulo q, and which of them mean nothing."""
        total = (self._total % PRIME).astype(np.uint64)
        result = np.zeros(total.shape[1:3], dtype=np.uint64)
        for exponent, piece in zip(self._exponents, total, strict=True):
            for i in range(piece.shape[-1]):
                turned = _times_power(piece[..., i], exponent + self._vector_bits * i)
                result = _reduced(result + turned)
        return result, self._spoiled


# ---- The sides from A and B ----


@dataclass(frozen=True)
class Operand:
    """A' or B' as its lines and exponents.

    Attributes
    ----------
    lines : Lines
        Rows of A or columns of B; finite.
    exponents : (batch, lines) ndarray of int64
        mu or nu.
    pieces : int
        Pieces of 30 bits that hold every entry.
    """

    lines: Lines
    exponents: Exponents
    pieces: int

    @classmethod
    def of(cls, lines: Lines, largest: Array, exponents: Exponents) -> Operand:
        """Return an operand whose lines have these largest magnitudes."""
        bits = np.where(largest > 0, largest_exponents(largest) + 1 + exponents, 0)
        # |A'| is at most 2^bits, and balanced pieces hold 2^(30 pieces - 1).
        most = int(np.maximum.reduce(bits, axis=None, initial=0))
        return cls(lines, exponents, most // _OPERAND_BITS + 1)

    def part(self, chosen: slice) -> Operand:
        """Return some of the lines."""
        x, along = self.lines.x, self.lines.along
        part = x[:, chosen] if along else x[:, :, chosen]
        lines = Lines(part, along, self.lines.threads)
        return Operand(lines, self.exponents[:, chosen], self.pieces)

    @property
    def grid(self) -> list[int]:
        """Exponents that the pieces are multiples of."""
        return [_OPERAND_BITS * i for i in range(self.pieces)]

    def visit(self, *sums: _Across | _Along) -> None:
        """Cut every block to pieces and give them to all of `sums`."""
        lines = self.lines
        first, second = power_of_two(lines.spread(self.exponents))

        def work(share: Sequence[Block]) -> None:
            buffer = np.empty((self.pieces, min(BLOCK_ELEMENTS, lines.x.size)))
            for block in share:
                source = lines.x[block]
                pieces = buffer[:, : source.size].reshape(-1, *source.shape)
                rest = None if second is None else lines.part(second, block)
                factors = (lines.part(first, block), rest)
                scale(source, factors, False, pieces[0])
                _cut(pieces[0], _OPERAND_BITS, pieces)
                if not lines.along:
                    pieces = pieces.swapaxes(-1, -2)
                batch, some = lines.lines_of(block)
                inner = block[2 if lines.along else 1]
                for target in sums:
                    target.add((batch, some, inner), pieces)

        run_blocks(work, square_blocks(lines.x.shape), lines.threads)


class _Across:
    """Weights times the lines of an operand, (batch, k).

    Parameters
    ----------
    operand : Operand
        All of its lines have weights.
    left : bool
        Whether it is A.
    """

    def __init__(self, operand: Operand, *, left: bool) -> None:
        x, along = operand.lines.x, operand.lines.along
        batch, count = operand.lines.shape
        self._weights = _weight_pieces(count, left=left).T
        shape = (operand.pieces, batch, x.shape[2 if along else 1], _WEIGHT_PIECES)
        grid = operand.grid
        self._sums = _Accumulator(shape, grid, grid, _WEIGHT_PIECE_BITS)

    def add(self, where: Block, pieces: Array) -> None:
        """Add one block, (pieces, batch, lines, k)."""
        batch, lines, inner = where
        part = np.matmul(self._weights[:, lines], pieces)
        self._sums.add(batch, inner, part.swapaxes(-1, -2))

    def modulo(self) -> Sums:
        """Return the sums, once all blocks were added."""
        return self._sums.modulo()[0]


class _Along:
    """The lines of an operand times a vector, (batch, lines).

    Parameters
    ----------
    operand : Operand
        Batch 1 serves all vectors.
    vector : (batch, k) ndarray of uint64
        Below q; batch 1 serves all matrices.
    """

    def __init__(self, operand: Operand, vector: Sums) -> None:
        batch, count = operand.lines.shape
        self._vector = _vector_pieces(vector)
        self._one_matrix = batch == 1
        batch = max(batch, len(vector))
        shape = (operand.pieces, batch, count, self._vector.shape[2])
        grid = operand.grid
        self._sums = _Accumulator(shape, grid, grid, _VECTOR_PIECE_BITS)

    def add(self, where: Block, pieces: Array) -> None:
        """Add one block, (pieces, batch, lines, k)."""
        batch, lines, inner = where
        if self._one_matrix:
            batch = slice(None)
        vector = self._vector[of_batch(batch, self._vector), inner]
        self._sums.add(batch, lines, np.matmul(pieces, vector))

    def modulo(self) -> Sums:
        """Return the sums, once all blocks were added."""
        return self._sums.modulo()[0]


# ---- The sides from C' ----


class Tally:
    """C' v and w C' of one tile, from the exact terms of its blocks.

    Parameters
    ----------
    shape : tuple of int
        (batch, rows, columns) of the tile.
    system : ResidueSystem
        As for the product.
    """

    def __init__(self, shape: tuple[int, int, int], system: ResidueSystem) -> None:
        batch, rows, columns = shape
        powers = [LIMB_BITS * i for i in range(system.num_limbs)]
        if system.has_head and system.moduli:
            powers.append(system.head_shift)
        exponents = [
            power + _TERM_BITS * i for power in powers for i in range(_TERM_PIECES)
        ]
        grid = [_TERM_BITS * i for _ in powers for i in range(_TERM_PIECES)]
        self.blocks = square_blocks(shape)
        self._w = _weight_pieces(rows, left=True)
        self._v = _weight_pieces(columns, left=False)
        count = len(grid)
        self._rows, self._columns = (
            _Accumulator(
                (count, batch, lines, _WEIGHT_PIECES),
                exponents,
                grid,
                _WEIGHT_PIECE_BITS,
            )
            for lines in (rows, columns)
        )

    def add(self, block: Block, limbs: list[Array], head: Array | None) -> None:
        """Add C' = sum limbs_i 2^(30 i) + head 2^s of one block.

        Terms are made integers in place: whatever the caller does with them next, it
        does with the numbers that were added here.
        """
        terms = limbs if head is None else [*limbs, head]
        matrices, rows, columns = block
        w, v = self._w[rows].T, self._v[columns]
        batch, height, width = terms[0].shape
        pieces = np.empty((_TERM_PIECES, batch, height, width))
        parts: tuple[list[Array], list[Array]] = ([], [])
        for term in terms:
            np.rint(term, out=term)
            _cut(term, _TERM_BITS, pieces)
            parts[0].append(np.matmul(pieces, v))
            parts[1].append(np.matmul(w, pieces).swapaxes(-1, -2))
        self._rows.add(matrices, rows, np.concatenate(parts[0]))
        self._columns.add(matrices, columns, np.concatenate(parts[1]))

    def sums(
        self,
    ) -> tuple[tuple[Sums, NDArray[np.bool_]], tuple[Sums, NDArray[np.bool_]]]:
        """Return C' v and w C', each with the lines whose sums mean nothing."""
        return self._rows.modulo(), self._columns.modulo()


def _pair(side: Sums, tally: tuple[Sums, NDArray[np.bool_]]) -> tuple[Sums, Sums]:
    """Return both sides, unequal where the second one means nothing."""
    found, spoiled = tally
    side = np.broadcast_to(side, found.shape)
    return side, np.where(spoiled, (side + np.uint64(1)) % np.uint64(PRIME), found)


class Checks:
    """The checksums of a part of a batch, tile by tile.

    Parameters
    ----------
    a, b : Operand
        Rows of A and columns of B.
    system : ResidueSystem
        As for the product.
    """

    def __init__(self, a: Operand, b: Operand, system: ResidueSystem) -> None:
        self._a, self._b, self._system = a, b, system
        self._columns: slice | None = None
        self._x: Any = None

    def tally(self, batch: int, rows: slice, columns: slice) -> Tally:
        """Return what takes the integers of one tile."""
        shape = (batch, rows.stop - rows.start, columns.stop - columns.start)
        return Tally(shape, self._system)

    def sums(self, tally: Tally, batch: slice, rows: slice, columns: slice) -> TileSums:
        """Return both sides for one tile whose integers are all in `tally`.

        Parameters
        ----------
        tally : Tally
            From `tally`.
        batch : slice
            Where the part of the batch lies in the whole.
        rows, columns : slice
            The tile.
        """
        a, b = self._a.part(rows), self._b.part(columns)
        if columns != self._columns:
            # Tiles of the same columns follow each other.
            x = _Across(b, left=False)
            b.visit(x)
            self._columns, self._x = columns, x.modulo()
        z, of_rows = _Across(a, left=True), _Along(a, self._x)
        a.visit(z, of_rows)
        of_columns = _Along(b, z.modulo())
        b.visit(of_columns)
        found_rows, found_columns = tally.sums()
        return TileSums(
            batch,
            rows,
            columns,
            _pair(of_rows.modulo(), found_rows),
            _pair(of_columns.modulo(), found_columns),
        )
