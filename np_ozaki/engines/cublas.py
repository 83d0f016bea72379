"""Products by the FP64 emulation that cuBLAS has itself, with bits of its own.

cuBLAS cuts entries to 8-bit slices of a fixed-point number, as scheme "slices" does.
What it does with them is its own affair: there is no contract, and a version may change
bits.  What CuPy and the library do is in `cuda_cublas`.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cublas_tiles import (
    CublasTiles,
    choose_cublas_tiles,
    emulation_bytes,
)
from np_ozaki.engines.cuda_lines import Device
from np_ozaki.engines.parallel import ranges
from np_ozaki.engines.prepared import drop_prepared

__all__ = [
    "CublasEngine",
    "CublasProduct",
    "CublasRefusal",
    "Library",
    "Matrix",
    "Settings",
]

_ENTRY = 8
_MOST_BITS_OF_SLICES = 55
_NOT_EMULATED = -1


class CublasRefusal(Exception):
    """Cublas cannot multiply, or not as it was asked to; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What a handle is told of the emulation.

    Attributes
    ----------
    eager : bool
        Whether to emulate whenever it is possible, not only where that is faster.
    mantissa_bits : int
        That an entry keeps, or the most that it may keep.
    dynamic : bool
        Whether cuBLAS finds out how many bits entries need.
    special_values : bool
        Whether NaN and Inf are looked for.
    """

    eager: bool
    mantissa_bits: int
    dynamic: bool
    special_values: bool

    def __str__(self) -> str:
        """Return it in a few words."""
        most = "at most " if self.dynamic else ""
        rest = "" if self.special_values else ", no NaN or Inf"
        when = "" if self.eager else ", where that is faster"
        return f"engine cublas, {most}{self.mantissa_bits} bits{rest}{when}"

    @classmethod
    def of(cls, options: Options) -> Settings:
        """Return what options mean.

        Parameters
        ----------
        options : Options
            With engine "cublas".

        Returns
        -------
        Settings
        """
        bits = options.mantissa_bits
        if bits is None:
            bits = min(8 * options.num_slices, _MOST_BITS_OF_SLICES)
        return cls(
            options.strategy == "always",
            bits,
            options.mantissa_control == "dynamic",
            options.special_values,
        )


class Matrix(NamedTuple):
    """A stack of matrices as BLAS sees it, in columns.

    Attributes
    ----------
    pointer : int
        Address of the first entry.
    transposed : bool
        Whether the memory holds the rows one after the other.
    leading : int
        Entries from column to column, or from row to row if transposed.
    stride : int
        Entries from matrix to matrix; 0 repeats one.
    """

    pointer: int
    transposed: bool
    leading: int
    stride: int


class Library(Protocol):
    """What the engine asks of cuBLAS."""

    def gemm(
        self,
        settings: Settings,
        size: tuple[int, int, int, int],
        a: Matrix,
        b: Matrix,
        c: Matrix,
        workspace: tuple[int, int],
        bits: int,
    ) -> None:
        """Queue c = a b for batch, m, n, k on the current stream.

        `c` is not transposed.  The workspace is an address and bytes; `bits`, unless
        0, is the address of an int32 that takes the bits that entries need.

        Raises
        ------
        CublasRefusal
            A function of the library is missing, or returned a status.
        """
        ...


@dataclass(frozen=True)
class CublasProduct:
    """What a product by cuBLAS did besides its result.

    Attributes
    ----------
    outcome : Outcome
        Tiles, workspace; floating-point exceptions for operands on the host.
    mantissa_bits : int
        That entries kept, or may have kept; 0 where cuBLAS says that it multiplied
        some of it in FP64 instead.
    """

    outcome: Outcome
    mantissa_bits: int


class CublasEngine:
    """The emulation of cuBLAS on the caller's current device and stream.

    Parameters
    ----------
    device : Device
        Memory and copies.
    library : Library
        Of that device.
    """

    name = "cublas"

    def __init__(self, device: Device, library: Library) -> None:
        self.device = device
        self._library = library

    def cut(
        self,
        size: tuple[int, int, int, int],
        settings: Settings,
        *,
        workspace_bytes: int | None,
        copied: tuple[bool, bool, bool] = (True, True, True),
        host: bool = True,
    ) -> CublasTiles:
        """Return how a product is cut, by default one of operands on the host.

        Parameters
        ----------
        size : tuple of int
            Batch, m, n, k.
        settings : Settings
            Of the emulation.
        workspace_bytes : int or None
            Limit; None is the device's own.
        copied : tuple of bool, optional
            Whether A, B and the result have copies on the device.
        host : bool, optional
            Whether they lie on the host.

        Returns
        -------
        CublasTiles

        Raises
        ------
        CublasRefusal
            The smallest tiles take more than the limit.
        """
        if not all(size):
            return CublasTiles(*size[:3])
        budget = workspace_bytes or self.device.default_workspace()
        tiles = choose_cublas_tiles(
            *size,
            mantissa_bits=settings.mantissa_bits,
            dynamic=settings.dynamic,
            copied=copied,
            host=host,
            budget=budget,
        )
        if tiles is None:
            # One matrix of the smallest tile, and copies of its lines.
            lines = min(1024, size[1]), min(1024, size[2])
            least = emulation_bytes(
                *(1, *lines, size[3], settings.mantissa_bits), dynamic=settings.dynamic
            )
            raise CublasRefusal(
                f"workspace_bytes={budget} is too little for the workspace of cuBLAS, "
                f"{least} bytes and copies of operands"
            )
        return tiles

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any,
        settings: Settings,
        *,
        workspace_bytes: int | None = None,
    ) -> CublasProduct:
        """Write the product to `out`.

        Parameters
        ----------
        a : (batch, m, k) array of float64
            On the device or the host, any strides; batch 1 broadcasts.
        b : (batch, k, n) array of float64
            On the same side, likewise.
        out : (batch, m, n) array of float64
            On the same side, any strides; must not overlap an operand.
        settings : Settings
            Of the emulation.
        workspace_bytes : int, optional
            Device memory for this product; None is the device's own default.

        Returns
        -------
        CublasProduct

        Raises
        ------
        CublasRefusal
            cuBLAS has not multiplied all of it; `out` may hold anything.
        """
        size = (*out.shape, a.shape[2])
        if not all(size):
            out[...] = 0.0
            nothing = Outcome(False, False, 0, 0)
            return CublasProduct(nothing, settings.mantissa_bits)
        host = self.device.is_host(out)
        turned = not host and _is_columns_first(out)
        if turned:
            # C^T = B^T A^T: what lies in columns is a transpose that lies in rows.
            a, b, out = b.swapaxes(1, 2), a.swapaxes(1, 2), out.swapaxes(1, 2)
            size = (size[0], size[2], size[1], size[3])
        copied = (True, True, True)
        if not host:
            copied = (_rows_of(a) is None, _rows_of(b) is None, not _can_write(out))
        tiles = self.cut(
            size, settings, workspace_bytes=workspace_bytes, copied=copied, host=host
        )
        freed = False
        while True:
            try:
                return self._tiled(a, b, out, settings, tiles)
            except Exception as error:
                if not self.device.is_out_of_memory(error):
                    raise
                # What the failed try holds is free only when its frames are.
                traceback.clear_frames(error.__traceback__)
            if freed:
                # No smaller tiles: what bits are is not to depend on what is free.
                raise CublasRefusal("the GPU has no memory for the workspace of cuBLAS")
            drop_prepared(self.device.place())
            self.device.free()
            freed = True

    def _tiled(
        self, a: Any, b: Any, out: Any, settings: Settings, tiles: CublasTiles
    ) -> CublasProduct:
        device = self.device
        host = device.is_host(out)
        batch, m, n = out.shape
        rows, columns = ranges(m, tiles.m), ranges(n, tiles.n)
        # Shared memory of a pool: it waits there for the next product on this stream.
        workspace = device.empty((tiles.emulation_bytes,), np.uint8)
        place = device.pointer(workspace), tiles.emulation_bytes
        calls = tiles.calls(batch, m, n)
        bits = None
        if host and settings.dynamic:
            # Each call tells one number, also of a batch.
            bits = device.own(np.full(calls, _NOT_EMULATED, np.int32))
        finite, count = [], 0
        with device.transfer() as copies:
            for part in ranges(batch, tiles.batch):
                left = copies.source(_part(a, part))
                right = copies.source(_part(b, part).swapaxes(1, 2))
                for j in columns:
                    y = self._readable(right.load(j).swapaxes(1, 2))
                    for number, i in enumerate(rows):
                        x = self._readable(left.load(i))
                        target = out[part, i, j]
                        tile = copies.result(target)
                        told = 0
                        if bits is not None:
                            told = device.pointer(bits[count : count + 1])
                        self._multiply(x, y, tile, settings, place, told)
                        if number + 1 < len(rows):
                            left.prefetch(rows[number + 1])
                        if host:
                            finite.append(np.isfinite(tile).all())
                        copies.deliver(tile, target)
                        count += 1
        overflow = invalid = False
        if not all(bool(device.fetch(x)) for x in finite):
            overflow, invalid = _exceptions(a, b, out)
        outcome = Outcome(overflow, invalid, tiles.workspace_bytes, calls)
        kept = settings.mantissa_bits
        if bits is not None:
            # A call that needs more than it may keep multiplies in FP64.
            needed = [int(x) for x in device.fetch(bits)]
            in_fp64 = any(x > kept or x == _NOT_EMULATED for x in needed)
            kept = 0 if in_fp64 else max(needed)
        return CublasProduct(outcome, kept)

    def _multiply(
        self,
        x: Any,
        y: Any,
        tile: Any,
        settings: Settings,
        workspace: tuple[int, int],
        bits: int,
    ) -> None:
        """Queue tile = x y, by way of an array in rows where the tile is none."""
        batch, m, n = tile.shape
        target = tile if _can_write(tile) else self.device.empty(tile.shape, tile.dtype)
        left, right, result = self._matrix(x), self._matrix(y), self._matrix(target)
        # cuBLAS counts in columns: its result is ours transposed, so operands swap.
        size = batch, n, m, x.shape[2]
        self._library.gemm(settings, size, right, left, result, workspace, bits)
        if target is not tile:
            tile[...] = target

    def _readable(self, x: Any) -> Any:
        """Return an operand with strides that BLAS knows."""
        if _rows_of(x) is not None:
            return x
        copy = self.device.empty(x.shape, x.dtype)
        copy[...] = x
        return copy

    def _matrix(self, x: Any) -> Matrix:
        """Return the transpose of an array that `_rows_of` knows."""
        rows, leading, stride = _rows_of(x) or (True, 0, 0)
        return Matrix(self.device.pointer(x), not rows, leading, stride)


def _part(x: Any, part: slice) -> Any:
    return x if x.shape[0] == 1 else x[part]


def _rows_of(x: Any) -> tuple[bool, int, int] | None:
    """Return how (batch, rows, columns) lie in memory, or None if BLAS cannot tell.

    Returns
    -------
    rows : bool
        Whether entries of a row are neighbours; else those of a column are.
    leading : int
        Entries from row to row, or from column to column.
    stride : int
        Entries from matrix to matrix.
    """
    batch, rows, columns = x.shape
    if any(s % _ENTRY for s in x.strides):
        return None
    stride, down, along = (s // _ENTRY for s in x.strides)
    if batch == 1:
        stride = 0
    if stride < 0:
        return None
    if columns == 1 or along == 1:
        if rows == 1:
            return True, columns, stride
        if down >= columns:
            return True, down, stride
    if rows == 1 or down == 1:
        if columns == 1:
            return False, rows, stride
        if along >= rows:
            return False, along, stride
    return None


def _can_write(out: Any) -> bool:
    """Return whether cuBLAS can write rows there: no entry twice."""
    found = _rows_of(out)
    if found is None or not found[0]:
        return False
    batch, rows, columns = out.shape
    return bool(batch == 1 or found[2] >= (rows - 1) * found[1] + columns)


def _is_columns_first(out: Any) -> bool:
    return not _can_write(out) and _can_write(out.swapaxes(1, 2))


def _exceptions(
    a: NDArray[np.float64], b: NDArray[np.float64], out: NDArray[np.float64]
) -> tuple[bool, bool]:
    """Return whether finite operands overflowed, and NaN came from none."""
    overflow = invalid = False
    for h in range(out.shape[0]):
        x, y = (z[h if z.shape[0] > 1 else 0] for z in (a, b))
        finite = np.logical_and.outer(
            np.isfinite(x).all(axis=1), np.isfinite(y).all(axis=0)
        )
        nan = np.logical_or.outer(np.isnan(x).any(axis=1), np.isnan(y).any(axis=0))
        overflow |= bool((~np.isfinite(out[h]) & finite).any())
        invalid |= bool((np.isnan(out[h]) & ~nan).any())
    return overflow, invalid
