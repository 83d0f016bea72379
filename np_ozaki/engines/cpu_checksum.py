"""Checksums of the CPU engine: both sides of the identities in `checksum`, on FP64.

Everything is a matrix of integers times a few vectors.  The integers are cut to pieces
of at most 2^28.  A block with sums of `length` terms leaves

    r = 53 - 28 - ceil(log2(length))

bits to the pieces of the vectors: 18 where a block has 128 entries a side, so that a
weight is one piece, and 11 in the longest.  So FP64 products of blocks are exact in any
order, and only such sums, one a line and pair of pieces, are ever reduced modulo q.
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
_PIECE = 28
"""Pieces are at most 2^28."""

_OPERAND_BITS = 29
_TERM_BITS = 27
_TERM_PIECES = 2
"""Terms of C' are below 2^54 (the head), their upper pieces at most 2^27."""

_LARGEST_SUM = 2.0**53
_ADDITIONS = 1 << 9
"""Sums of a block that fit int64 beside a remainder: 2^9 2^53 + 2^61 < 2^63."""

_TILES_AT_A_TIME = 8
_SIDE = 128
_SERIAL = 1 << 13
"""Entries of a matrix that OpenBLAS multiplies by one vector without its threads, which
would wait for each other beside those of the pass."""


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


# ---- Integers modulo q ----


def _reduced(x: Sums) -> Sums:
    """Return x modulo q, for any uint64."""
    x = (x & np.uint64(PRIME)) + (x >> np.uint64(_BITS))
    return np.where(x >= PRIME, x - np.uint64(PRIME), x)


def _times_power(x: Sums, exponent: int | NDArray[np.int64]) -> Sums:
    """Return x 2^exponent modulo q, for x < q: its 61 bits rotate."""
    turn = np.asarray(exponent % _BITS, dtype=np.uint64)
    rotated: Sums = (x << turn) & np.uint64(PRIME)
    rotated |= x >> (np.uint64(_BITS) - turn)
    return rotated


def _sum(x: Sums) -> Sums:
    """Return sums of x < q over the first and the last axis modulo q, a few terms."""
    half = 31
    lower = np.add.reduce(x & np.uint64((1 << half) - 1), axis=(0, -1))
    upper = np.add.reduce(x >> np.uint64(half), axis=(0, -1))
    return _reduced(lower + _times_power(upper, half))


def _room(length: int) -> int:
    """Return the bits r of pieces of a vector in sums of `length` terms."""
    return 53 - _PIECE - (length - 1).bit_length()


def _vector_pieces(x: NDArray[Any], size: int, bits: int) -> Array:
    """Cut integers from 0 to 2^size - 1 to pieces, on a new last axis, lowest first.

    The highest piece takes what is left, at most 2^bits; the others are balanced.
    """
    rest = x.astype(np.int64)
    pieces = []
    for _ in range(-(-size // bits) - 1):
        upper = (rest + (1 << (bits - 1))) >> bits
        pieces.append(rest - (upper << bits))
        rest = upper
    return np.stack([*pieces, rest], axis=-1).astype(np.float64)


def _weight_pieces(count: int, bits: int, *, left: bool) -> Array:
    """Return the weights of `count` lines, (count, pieces)."""
    return _vector_pieces(weights(count, left=left), WEIGHT_BITS, bits)


def _serial_rows(pieces: Array, vectors: int) -> list[slice]:
    """Return ranges of rows to be multiplied by `vectors` vectors, one at a time."""
    rows, columns = pieces.shape[-2:]
    return ranges(rows, max(1, _SERIAL // columns) if vectors == 1 else rows)


def _times_vector(pieces: Array, vector: Array, out: Array) -> None:
    """Write pieces (..., rows, columns) times vector (..., columns, vectors)."""
    for some in _serial_rows(pieces, vector.shape[-1]):
        np.matmul(pieces[..., some, :], vector, out=out[..., some, :])


def _weighted_rows(weight: Array, pieces: Array) -> Array:
    """Return (..., columns, vectors) sums of rows times weight (rows, vectors)."""
    sums: Array
    sums, *others = (
        np.matmul(weight[some].T, pieces[..., some, :])
        for some in _serial_rows(pieces, weight.shape[1])
    )
    for part in others:
        sums += part
    return sums.swapaxes(-1, -2)


def _cut(whole: Array, bits: int, pieces: Array) -> None:
    """Cut integers to pieces, lowest first, multiples of 1, 2^bits, 2^(2 bits), ...

    pieces[0] may be `whole` itself.  All but the highest are balanced.
    """
    lowest = pieces[0]
    if len(pieces) == 1 and lowest is not whole:
        np.copyto(lowest, whole)
    for i in range(len(pieces) - 1, 0, -1):
        # The last place of the anchor is 2^(bits i), for entries below half of it.
        anchor = 1.5 * 2.0 ** (52 + bits * i)
        upper = pieces[i]
        np.add(whole, anchor, out=upper)
        upper -= anchor
        np.subtract(whole, upper, out=lowest)
        whole = lowest


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
        self._exponents = np.array(bits, dtype=np.int64).reshape(-1, 1, 1, 1)
        self._exponents = self._exponents + vector_bits * np.arange(shape[3])
        self._units = np.ldexp(1.0, -np.array(grid)).reshape(-1, 1, 1, 1)
        self._additions = 0
        self._lock = threading.Lock()

    def add(self, batch: slice, lines: slice, sums: Array) -> None:
        """Add sums of one block, (pieces, batch, lines, pieces of the vector)."""
        sums *= self._units
        whole = sums.astype(np.int64)
        with self._lock:
            if self._additions == _ADDITIONS:
                self._total %= PRIME
                self._additions = 0
            self._additions += 1
            self._total[:, batch, lines] += whole

    def add_doubtful(self, batch: slice, lines: slice, sums: Array) -> None:
        """Add sums that are exact unless something went wrong before."""
        self.add(batch, lines, sums)
        # Sums that are not might vanish modulo q.  The largest is NaN if any is.
        if not np.abs(sums).max() <= _LARGEST_SUM:
            exact = (np.abs(sums) <= _LARGEST_SUM).all(axis=(0, 3))
            with self._lock:
                self._spoiled[batch, lines] |= ~exact

    def modulo(self) -> tuple[Sums, NDArray[np.bool_]]:
        """Return (batch, lines) sums modulo q, and which of them mean nothing."""
        total = (self._total % PRIME).astype(np.uint64)
        return _sum(_times_power(total, self._exponents)), self._spoiled


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
        batch, count, k = operand.shape
        bits = _room(operand.sides[0])
        self._weights = _weight_pieces(count, bits, left=left)
        shape = (operand.pieces, batch, k, self._weights.shape[1])
        self._sums = _Accumulator(shape, operand.grid, operand.grid, bits)

    def add(self, where: Block, pieces: Array) -> None:
        """Add one block, (pieces, batch, lines, k)."""
        batch, lines, inner = where
        self._sums.add(batch, inner, _weighted_rows(self._weights[lines], pieces))

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
        bits = _room(operand.sides[1])
        self._vector = _vector_pieces(vector, _BITS, bits)
        self._one_matrix = batch == 1
        batch = max(batch, len(vector))
        shape = (operand.pieces, batch, count, self._vector.shape[2])
        self._sums = _Accumulator(shape, operand.grid, operand.grid, bits)

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
        self._w = _weight_pieces(rows, _room(tall), left=True)
        self._v = _weight_pieces(columns, _room(wide), left=False)
        count = len(grid)
        self._rows = _Accumulator(
            (count, batch, rows, self._v.shape[1]), exponents, grid, _room(wide)
        )
        self._columns = _Accumulator(
            (count, batch, columns, self._w.shape[1]), exponents, grid, _room(tall)
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
            _cut(term, _TERM_BITS, pieces)
            place = slice(_TERM_PIECES * i, _TERM_PIECES * (i + 1))
            _times_vector(pieces, v, along[place])
            across[place] = _weighted_rows(w, pieces)
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
