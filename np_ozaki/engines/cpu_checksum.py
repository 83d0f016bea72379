"""Checksums of the CPU engine: both sides of the identities in `checksum`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.checksum import PRIME, Sums, TileSums
from np_ozaki.engines.cpu_exponents import (
    Exponents,
    Lines,
    largest_exponents,
    power_of_two,
)
from np_ozaki.engines.cpu_residues import scale
from np_ozaki.engines.cpu_sums import (
    Accumulator,
    cut,
    room,
    times_vector,
    vector_pieces,
    weight_pieces,
    weighted_rows,
)
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

_OPERAND_BITS = 29
_TERM_BITS = 27
_TERM_PIECES = 2
"""Terms of C' are below 2^54 (the head), their upper pieces at most 2^27."""

_TILES_AT_A_TIME = 8
_SIDE = 128


def _sides(shape: tuple[int, int, int]) -> tuple[int, int]:
    """Return the most rows and columns of a block of `square_blocks`."""
    _, rows, columns = shape
    wide = min(columns, max(_SIDE, BLOCK_ELEMENTS // rows))
    return min(rows, max(1, BLOCK_ELEMENTS // wide)), wide


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
    tall, wide = _sides(shape)
    deep = max(1, BLOCK_ELEMENTS // (rows * columns))
    return [
        (h, i, j)
        for h in ranges(batch, deep)
        for i in ranges(rows, tall)
        for j in ranges(columns, wide)
    ]


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
        Pieces of 29 bits that hold every entry.
    """

    lines: Lines
    exponents: Exponents
    pieces: int

    @classmethod
    def of(cls, lines: Lines, largest: Array, exponents: Exponents) -> Operand:
        """Return an operand whose lines have these largest magnitudes."""
        bits = np.where(largest > 0, largest_exponents(largest) + 1 + exponents, 0)
        # |A'| is at most 2^bits, and balanced pieces hold 2^(29 pieces - 1).
        most = int(np.maximum.reduce(bits, axis=None, initial=0))
        return cls(lines, exponents, most // _OPERAND_BITS + 1)

    def part(self, chosen: slice) -> Operand:
        """Return some of the lines."""
        x, along = self.lines.x, self.lines.along
        part = x[:, chosen] if along else x[:, :, chosen]
        lines = Lines(part, along, self.lines.threads)
        return Operand(lines, self.exponents[:, chosen], self.pieces)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batch, lines, k."""
        batch, rows, columns = self.lines.x.shape
        return (batch, rows, columns) if self.lines.along else (batch, columns, rows)

    @property
    def sides(self) -> tuple[int, int]:
        """The most lines and inner indices of a block."""
        tall, wide = _sides(self.lines.x.shape)
        return (tall, wide) if self.lines.along else (wide, tall)

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
                cut(pieces[0], _OPERAND_BITS, pieces)
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
        batch, count, k = operand.shape
        bits = room(operand.sides[0])
        self._weights = weight_pieces(count, bits, left=left)
        shape = (operand.pieces, batch, k, self._weights.shape[1])
        self._sums = Accumulator(shape, operand.grid, operand.grid, bits)

    def add(self, where: Block, pieces: Array) -> None:
        """Add one block, (pieces, batch, lines, k)."""
        batch, lines, inner = where
        self._sums.add(batch, inner, weighted_rows(self._weights[lines], pieces))

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
        batch, count, _ = operand.shape
        bits = room(operand.sides[1])
        self._vector = vector_pieces(vector, PRIME.bit_length(), bits)
        self._one_matrix = batch == 1
        batch = max(batch, len(vector))
        shape = (operand.pieces, batch, count, self._vector.shape[2])
        self._sums = Accumulator(shape, operand.grid, operand.grid, bits)

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
        # Blocks of `parallel.blocks`, as long as rows are.
        wide = min(columns, BLOCK_ELEMENTS)
        tall = min(rows, max(1, BLOCK_ELEMENTS // wide))
        self._w = weight_pieces(rows, room(tall), left=True)
        self._v = weight_pieces(columns, room(wide), left=False)
        count = len(grid)
        self._rows = Accumulator(
            (count, batch, rows, self._v.shape[1]), exponents, grid, room(wide)
        )
        self._columns = Accumulator(
            (count, batch, columns, self._w.shape[1]), exponents, grid, room(tall)
        )

    def scratch(self) -> Array:
        """Return a buffer for `add`, one for each thread."""
        return np.empty((_TERM_PIECES, BLOCK_ELEMENTS))

    def add(
        self, block: Block, limbs: list[Array], head: Array | None, scratch: Array
    ) -> None:
        """Add C' = sum limbs_i 2^(30 i) + head 2^s of one block.

        Terms are made integers in place: whatever the caller does with them next, it
        does with the numbers that were added here.
        """
        terms = limbs if head is None else [*limbs, head]
        matrices, rows, columns = block
        w, v = self._w[rows], self._v[columns]
        shape = terms[0].shape
        pieces = scratch[:, : terms[0].size].reshape(_TERM_PIECES, *shape)
        count = _TERM_PIECES * len(terms)
        along = np.empty((count, *shape[:2], v.shape[1]))
        across = np.empty((count, shape[0], shape[2], w.shape[1]))
        for i, term in enumerate(terms):
            np.rint(term, out=term)
            cut(term, _TERM_BITS, pieces)
            place = slice(_TERM_PIECES * i, _TERM_PIECES * (i + 1))
            times_vector(pieces, v, along[place])
            across[place] = weighted_rows(w, pieces)
        self._rows.add_doubtful(matrices, rows, along)
        self._columns.add_doubtful(matrices, columns, across)

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

    Sums of A' and B' that tiles share are kept: x = B' v while tiles of the same
    columns follow each other, z = w A' and z B' for a few tiles of rows.

    Parameters
    ----------
    a, b : Operand
        Rows of A and columns of B.
    system : ResidueSystem
        As for the product.
    tall : int
        Rows of a tile.
    """

    def __init__(
        self, a: Operand, b: Operand, system: ResidueSystem, tall: int
    ) -> None:
        self._a, self._b, self._system, self._tall = a, b, system, tall
        self._columns = slice(0)
        self._x: Sums = np.zeros((1, 0), dtype=np.uint64)
        self._z: dict[int, Sums] = {}
        self._of_columns: dict[int, Sums] = {}

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
        self._prepare(rows.start, columns)
        a = self._a.part(rows)
        of_rows = _Along(a, self._x)
        a.visit(of_rows)
        found_rows, found_columns = tally.sums()
        return TileSums(
            batch,
            rows,
            columns,
            _pair(of_rows.modulo(), found_rows),
            _pair(self._of_columns[rows.start], found_columns),
        )

    def _prepare(self, start: int, columns: slice) -> None:
        """Make x, z and z B' of a tile, with those of the tiles below it."""
        if start not in self._z:
            self._z = {}
            starts = range(start, self._a.shape[1], self._tall)
            for i in starts[:_TILES_AT_A_TIME]:
                a = self._a.part(slice(i, i + self._tall))
                z = _Across(a, left=True)
                a.visit(z)
                self._z[i] = z.modulo()
            self._of_columns = {}
        moved = columns != self._columns
        if moved or start not in self._of_columns:
            b = self._b.part(columns)
            x = _Across(b, left=False) if moved else None
            of_columns = {i: _Along(b, z) for i, z in self._z.items()}
            b.visit(*(() if x is None else (x,)), *of_columns.values())
            self._of_columns = {i: y.modulo() for i, y in of_columns.items()}
            if x is not None:
                self._columns, self._x = columns, x.modulo()
