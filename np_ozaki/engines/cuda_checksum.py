"""Checksums on a GPU: both sides of the identities of `checksum`, summed as tiles come.

What is checked together is a whole matrix, however it is cut to tiles: sums of single
tiles would take a look at all of A for every tile of columns.  Nothing waits before
the product is queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.checksum import PRIME, TileSums, verify
from np_ozaki.engines.cuda_lines import Facts, Operands, structure

if TYPE_CHECKING:
    from np_ozaki.engines.cuda_stages import Stages

__all__ = ["Checksums", "PartSums"]

_LINE_DEPTH = 256
"""Inner indices of a block of lines side by side: 32 for each of its threads, whose
sums of products then fit 128 bits."""


class Side(Protocol):
    """A tile of lines of one operand, and the exponents that C' was made with."""

    operand: Operands
    facts: Facts


class Checksums:
    """The sums of a product, on the device until `verify`.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    shape : tuple of int
        batch, m, n.
    """

    def __init__(self, stages: Stages, shape: tuple[int, int, int]) -> None:
        self._stages = stages
        self._shape = shape
        batch, m, n = shape
        device = stages.device
        # In one piece, so that one copy brings all to the host.
        self._words = device.zeros((2 * batch * (m + n),), np.uint64)

    def _cut(self, words: Any) -> list[Any]:
        """Return the sums of rows and of columns: (2, batch, lines), C' in the second.

        The first are what operands and exponents tell.
        """
        batch, m, n = self._shape
        size = 2 * batch * m
        return [words[:size].reshape(2, batch, m), words[size:].reshape(2, batch, n)]

    def part(self, part: slice, *, stays: bool) -> PartSums:
        """Return the sums of a part of the batch.

        Parameters
        ----------
        part : slice
            Of the batch.
        stays : bool
            Whether all rows of A are one tile.

        Returns
        -------
        PartSums
            To be told of every tile.
        """
        sums = [x[:, part] for x in self._cut(self._words)]
        return PartSums(self._stages, sums, stays=stays)

    def verify(self, *, turned: bool) -> None:
        """Wait for the sums and compare them.

        Parameters
        ----------
        turned : bool
            Whether the product is C^T: errors name rows and columns of C.

        Raises
        ------
        CheckError
            The sums of a matrix differ.
        """
        batch, *sizes = self._shape
        words = self._stages.device.fetch(self._words)
        pairs = [(x[0] % PRIME, x[1] % PRIME) for x in self._cut(words)]
        if turned:
            sizes.reverse()
            pairs.reverse()
        rows, columns = (slice(0, size) for size in sizes)
        verify([TileSums(slice(0, batch), rows, columns, *pairs)])


class PartSums:
    """The sums of a part of a batch, whose tiles come column by column.

    Parameters
    ----------
    stages : Stages
        Where kernels are queued.
    sums : list of (2, batch, lines) device array of uint64
        Of rows and of columns; see `Checksums`.
    stays : bool
        Whether all rows of A are one tile: B' v is then that of all columns, and A is
        multiplied by it once, at the end.
    """

    def __init__(self, stages: Stages, sums: list[Any], *, stays: bool) -> None:
        self._stages = stages
        self._sums = sums
        self._stays = stays
        self._seen = [0, 0]
        self._inner: list[Any] = [None, None]
        """w A' and B' v, (batch, k)."""

    def tile(self, i: slice, j: slice, products: Any, left: Side, right: Side) -> None:
        """Queue C' v and w C' of a tile, and what operands tell of new lines.

        All of it comes after the product, so that the device has work meanwhile.

        Parameters
        ----------
        i, j : slice
            Rows and columns of the tile.
        products : device array
            What a reconstruction with checks left: (num_planes, batch, m, n) of int32,
            or (batch, m, n) of uint64.
        left, right : Side
            The rows of A and the columns of B.
        """
        if j.start >= self._seen[1]:
            if not self._stays:
                self._inner[1] = None
            self._add_inner(1, j, right)
        if i.start >= self._seen[0]:
            self._add_inner(0, i, left)
        stages = self._stages
        stages.device.mark("checksum")
        lines, source = (i, j), self._remainders(products)
        size = [x.stop - x.start for x in lines]
        for side, kernel in enumerate(("row_sums", "column_sums")):
            sums = self._sums[side][1, :, lines[side]]
            shape = (sums.shape[0], size[side], size[1 - side])
            grid, depth, _ = stages.shares(shape, along=not side)
            first = lines[1 - side].start
            args = (source, *size, depth, first, sums, sums.strides[0] // 8)
            kernels = left.operand.kernels()
            stages.launch("checksum", kernel, grid, args, variant=kernels)
        if not self._stays:
            self._add_lines(0, i, left)

    def _remainders(self, left: Any) -> NDArray[np.void]:
        """Return the kernels' view of remainders, in 32-bit words."""
        pointer = self._stages.device.pointer(left)
        if left.ndim == 3:
            return structure(pointer, 1, *(s // 4 for s in left.strides))
        return structure(pointer, *(s // 4 for s in left.strides))

    def columns_done(self, j: slice, right: Side) -> None:
        """Queue (w A') B' of a tile of columns, when every row has been entered."""
        self._add_lines(1, j, right)

    def rows_done(self, i: slice, left: Side) -> None:
        """Queue A' (B' v) of rows that stayed for all columns."""
        if self._stays:
            self._add_lines(0, i, left)

    def _add_inner(self, side: int, lines: slice, of: Side) -> None:
        self._seen[side] = lines.stop
        stages, (batch, _, k) = self._stages, of.operand.x.shape
        stages.device.mark("checksum")
        if self._inner[side] is None:
            self._inner[side] = stages.device.zeros((batch, k), np.uint64)
        turned = Operands(of.operand.x.swapaxes(1, 2), stages.device)
        grid, depth, how = stages.shares(turned.x.shape, along=turned.along)
        args = (
            turned.struct(),
            depth,
            of.facts.struct(stages.device),
            lines.start,
            int(side == 0),
            self._inner[side],
        )
        kernels = turned.kernels()
        stages.launch("checksum", f"inner_sums_{how}", grid, args, variant=kernels)

    def _add_lines(self, side: int, lines: slice, of: Side) -> None:
        stages, operand = self._stages, of.operand
        stages.device.mark("checksum")
        inner, sums = self._inner[1 - side], self._sums[side][0, :, lines]
        shape = (sums.shape[0], *operand.x.shape[1:])
        grid, depth, how = stages.shares(
            shape, along=operand.along, across_depth=_LINE_DEPTH
        )
        args = (
            operand.struct(),
            depth,
            operand.x.shape[0],
            of.facts.struct(stages.device),
            structure(stages.device.pointer(inner), inner.shape[0]),
            sums,
            sums.strides[0] // 8,
        )
        kernels = operand.kernels()
        stages.launch("checksum", f"line_sums_{how}", grid, args, variant=kernels)
