"""The CPU engine: the contract on NumPy and its FP64 BLAS.

The stages have the contract's names.  Large products are cut to tiles, batches of
small ones go through every stage together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.engines import workspace
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cpu_certificate import missing_bits
from np_ozaki.engines.cpu_exponents import (
    ACCURATE_BITS,
    Exponents,
    Lines,
    accurate_exponents,
    ceilings,
    largest_exponents,
    legacy_exponents,
    magnitudes,
    norm_exponents,
    power_of_two,
)
from np_ozaki.engines.cpu_reconstruct import reconstruct
from np_ozaki.engines.cpu_residues import reduce_balanced, residue_planes
from np_ozaki.engines.parallel import (
    Block,
    available_threads,
    blocks,
    run_blocks,
)
from np_ozaki.engines.residue_system import (
    EXACT_K_BLOCK,
    ResidueSystem,
    residue_system,
)
from np_ozaki.engines.special_values import nonfinite_entries
from np_ozaki.errors import WorkspaceError, refusal
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.plan import Tiles, choose_tiles

__all__ = ["CpuEngine"]

Array = NDArray[np.float64]

_LARGEST_EXPONENT = 1023
_AUXILIARY_TILE = 256
_AUXILIARY_K = 1024


def _ranges(size: int, step: int) -> list[slice]:
    """Cut 0..size; one empty range for size 0, so that empty products still run."""
    starts = range(0, size, max(step, 1))
    return [slice(i, min(i + step, size)) for i in starts] or [slice(0)]


def _of_batch(part: slice, x: NDArray[np.generic]) -> slice:
    """Return which matrices of `x` belong to a part of the batch (1 broadcasts)."""
    return part if x.shape[0] > 1 else slice(0, 1)


@contextlib.contextmanager
def _typed_memory_error(workspace_bytes: int) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise WorkspaceError(
            refusal(
                "workspace_bytes",
                workspace_bytes,
                f"not enough memory for the tiles of a product ({error})",
                "lower it: products then run in smaller tiles, with the same bits",
            )
        ) from error


def _auxiliary(x: Array, shift: Exponents) -> Array:
    """Return ceil(abs(x) 2^shift), at most 2^6."""
    result = np.empty(x.shape)
    ceilings(x, power_of_two(shift), bool((shift < 0).any()), result)
    return result


def _auxiliary_maxima(
    a: Array, b: Array, largest_a: Array, largest_b: Array
) -> tuple[Array, Array]:
    """Return the row and column maxima of Cbar, over the whole operands."""
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
    for h in _ranges(batch, deep):
        ha, hb = _of_batch(h, a), _of_batch(h, b)
        for i in _ranges(a.shape[1], tile[0]):
            for j in _ranges(b.shape[2], tile[1]):
                total = np.zeros(())
                for inner in _ranges(a.shape[2], tile[2]):
                    # At most k 2^12: exact in float64 for any k.
                    total = total + np.matmul(
                        _auxiliary(a[ha, i, inner], shift_a[ha, i, np.newaxis]),
                        _auxiliary(b[hb, inner, j], shift_b[hb, np.newaxis, j]),
                    )
                rows[h, i] = np.maximum(rows[h, i], total.max(2, initial=0))
                columns[h, j] = np.maximum(columns[h, j], total.max(1, initial=0))
    return rows, columns


class CpuEngine:
    """Ozaki scheme II on FP64 units, bit for bit the contract.

    Parameters
    ----------
    threads : int, optional
        Threads for the elementwise stages; all cores by default.  BLAS has its own.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or available_threads()

    def scaling_exponents(
        self, a: Array, b: Array, num_moduli: int, scaling: str
    ) -> tuple[Exponents, Exponents]:
        """Return the scaling exponents of the rows of A and the columns of B.

        Parameters
        ----------
        a : (batch, m, k) ndarray of float64
            Finite.
        b : (batch, k, n) ndarray of float64
            Finite.
        num_moduli : int
            N of the contract.
        scaling : str
            "norm", "accurate" or "legacy".

        Returns
        -------
        mu : (batch, m) ndarray of int64
        nu : (batch, n) ndarray of int64
        """
        left, right = Lines.of(a, -1, self.threads), Lines.of(b, -2, self.threads)
        largest = magnitudes(left), magnitudes(right)
        return self._exponents(left, right, largest, num_moduli, scaling)

    def _exponents(
        self,
        left: Lines,
        right: Lines,
        largest: tuple[Array, Array],
        num_moduli: int,
        scaling: str,
    ) -> tuple[Exponents, Exponents]:
        if scaling == "accurate":
            rows, columns = _auxiliary_maxima(
                left.matrix(-1), right.matrix(-2), *largest
            )
            return (
                accurate_exponents(largest[0], rows, num_moduli),
                accurate_exponents(largest[1], columns, num_moduli),
            )
        rule = norm_exponents if scaling == "norm" else legacy_exponents
        return rule(left, largest[0], num_moduli), rule(right, largest[1], num_moduli)

    def residues(
        self, x: Array, exponents: Exponents, system: ResidueSystem, *, left: bool
    ) -> Array:
        """Return A' (or B') and its residues as float64 planes.

        Parameters
        ----------
        x : (batch, m, k) or (batch, k, n) ndarray of float64
            Finite operand, any strides.
        exponents : (batch, m) or (batch, n) ndarray of int64
            From `scaling_exponents`.
        system : ResidueSystem
            The engine's moduli.
        left : bool
            Whether `x` is A.

        Returns
        -------
        (num_planes, batch, ...) ndarray of float64
            Planes in the shape of `x` and in its memory order.
        """
        axis = -1 if left else -2
        lines = Lines.of(x, axis, self.threads)
        planes = residue_planes(lines, exponents, system, left=left)
        return planes if lines.along == (axis == -1) else planes.swapaxes(-1, -2)

    def residue_gemm(self, left: Array, right: Array, out: Array) -> None:
        """Multiply plane by plane.

        Parameters
        ----------
        left : (num_planes, batch, m, k) ndarray of float64
            From `residues`; k is at most `EXACT_K_BLOCK`.
        right : (num_planes, batch, k, n) ndarray of float64
            From `residues`.
        out : (num_planes, batch, m, n) ndarray of float64
            Exact for the moduli; plane 0 within k u M of C'.
        """
        np.matmul(left, right, out=out)

    def reduce(self, products: Array, system: ResidueSystem) -> None:
        """Reduce residue products modulo p in place, between blocks of k.

        Parameters
        ----------
        products : (num_planes, batch, m, n) ndarray of float64
            Plane 0 stays as it is.
        system : ResidueSystem
            The engine's moduli.
        """
        value = products[int(system.has_head) :]

        def work(share: Sequence[Block]) -> None:
            for block in share:
                part = value[(slice(None), *block)]
                reduce_balanced(part, system, np.empty(part.shape))

        run_blocks(work, blocks(products.shape[1:]), self.threads)

    def reconstruct(
        self,
        products: Array,
        mu: Exponents,
        nu: Exponents,
        system: ResidueSystem,
        out: Array,
    ) -> None:
        """Write C, rounded once, to `out`; see `cpu_reconstruct.reconstruct`.

        Parameters
        ----------
        products : (num_planes, batch, m, n) ndarray of float64
            From `residue_gemm`; overwritten.
        mu, nu : ndarray of int64
            From `scaling_exponents`.
        system : ResidueSystem
            The engine's moduli.
        out : (batch, m, n) ndarray of float64
            Result.
        """
        reconstruct(products, mu, nu, system, out, self.threads)

    def matmul(
        self,
        a: Array,
        b: Array,
        out: Array,
        *,
        num_moduli: int,
        scaling: str,
        workspace_bytes: int,
        certify: bool = False,
    ) -> Outcome:
        """Write the product of the contract to `out`.

        Parameters
        ----------
        a : (batch, m, k) ndarray of float64
            Any strides; batch 1 broadcasts.
        b : (batch, k, n) ndarray of float64
            Any strides; batch 1 broadcasts.
        out : (batch, m, n) ndarray of float64
            Any strides; must not overlap an operand.
        num_moduli : int
            N of the contract, 2 to 49.
        scaling : str
            "norm", "accurate" or "legacy".
        workspace_bytes : int
            Limit for all products that run in this process.
        certify : bool
            Also tell whether every entry is as accurate as a conventional product is
            guaranteed to be (see `cpu_certificate`).

        Returns
        -------
        Outcome
            Exceptions that IEEE arithmetic would have flagged, and the tiling.

        Raises
        ------
        WorkspaceError
            The system has no memory left for the tiles; a MemoryError.
        """
        k = a.shape[2]
        if not k or not out.size:
            out[...] = 0.0
            sure = np.zeros(out.shape[0], dtype=np.int64) if certify else None
            return Outcome(False, False, 0, 0, sure)
        system = residue_system(num_moduli, scaling, (k - 1).bit_length())
        sizes = (*out.shape, k)
        choice = {"num_planes": system.num_planes, "exact_k": EXACT_K_BLOCK}
        wanted = choose_tiles(*sizes, **choice).workspace_bytes
        with (
            np.errstate(all="ignore"),
            hooks.unrouted(),
            workspace.reserve(wanted, workspace_bytes) as granted,
            _typed_memory_error(workspace_bytes),
        ):
            tiles = choose_tiles(*sizes, **choice, budget=granted)
            flags = [False, False]
            count = 0
            missing = np.zeros(out.shape[0], dtype=np.int64)
            for part in _ranges(out.shape[0], tiles.batch):
                done, overflow, invalid = self._batch(
                    a[_of_batch(part, a)],
                    b[_of_batch(part, b)],
                    out[part],
                    system,
                    scaling,
                    tiles,
                    missing[part] if certify else None,
                )
                count += done
                flags = [flags[0] or overflow, flags[1] or invalid]
        return Outcome(
            overflow=flags[0],
            invalid=flags[1],
            workspace_bytes=tiles.workspace_bytes,
            tiles=count,
            missing_bits=missing if certify else None,
        )

    def _batch(
        self,
        a: Array,
        b: Array,
        out: Array,
        system: ResidueSystem,
        scaling: str,
        tiles: Tiles,
        missing: Exponents | None,
    ) -> tuple[int, bool, bool]:
        """Multiply one part of a batch; return (tiles, overflow, invalid)."""
        if scaling == "accurate":
            # These exponents depend on the partner: no operand serves a whole batch.
            a = np.broadcast_to(a, (out.shape[0], *a.shape[1:]))
            b = np.broadcast_to(b, (out.shape[0], *b.shape[1:]))
        left, largest_a, special_a = self._finite(a, -1)
        right, largest_b, special_b = self._finite(b, -2)
        mu, nu = self._exponents(
            left, right, (largest_a, largest_b), system.num_moduli, scaling
        )
        count = 0
        for i, j, products in self._products(left, right, mu, nu, system, tiles):
            self.reconstruct(products, mu[:, i], nu[:, j], system, out[:, i, j])
            count += 1
        if missing is not None:
            self._certify((left, right), (largest_a, largest_b), (mu, nu), missing)
        bits = product_bound(system.num_moduli).bit_length()
        overflow = bool(
            mu.min() + nu.min() < bits - _LARGEST_EXPONENT and np.isinf(out).any()
        )
        invalid = False
        if special_a or special_b:
            invalid = self._special_values(a, b, out)
        return count, overflow, invalid

    def _certify(
        self,
        lines: tuple[Lines, Lines],
        largest: tuple[Array, Array],
        exponents: tuple[Exponents, Exponents],
        missing: Exponents,
    ) -> None:
        """Write the bits that each matrix of a batch is short of a certificate."""
        missing[...] = missing_bits(lines, largest, exponents)
        (doubtful,) = np.nonzero(missing)
        if not doubtful.size:
            return

        def chosen(x: NDArray[Any]) -> NDArray[Any]:
            return x[doubtful] if x.shape[0] > 1 else x

        again = tuple(Lines(chosen(side.x), side.along, side.threads) for side in lines)
        missing[doubtful] = missing_bits(
            (again[0], again[1]),
            (chosen(largest[0]), chosen(largest[1])),
            (chosen(exponents[0]), chosen(exponents[1])),
            thorough=True,
        )

    def _finite(self, x: Array, axis: int) -> tuple[Lines, Array, bool]:
        """Return the lines of `x` with 0 for NaN and Inf, their magnitudes, if any."""
        lines = Lines.of(x, axis, self.threads)
        largest = magnitudes(lines)
        if np.isfinite(np.add.reduce(largest, axis=None)):
            return lines, largest, False
        # The sum may also overflow: then all of x is finite and is copied in vain.
        lines = Lines.of(np.where(np.isfinite(x), x, 0.0), axis, self.threads)
        special = not np.isfinite(largest).all()
        return lines, magnitudes(lines), special

    def _special_values(self, a: Array, b: Array, out: Array) -> bool:
        """Set NaN and Inf where they belong; return whether one was invalid."""
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

    def _products(
        self,
        left: Lines,
        right: Lines,
        mu: Exponents,
        nu: Exponents,
        system: ResidueSystem,
        tiles: Tiles,
    ) -> Iterator[tuple[slice, slice, Array]]:
        """Yield (rows, columns, residue products) of every tile."""
        a, b = left.matrix(-1), right.matrix(-2)
        inner = _ranges(a.shape[2], tiles.k)
        batch = max(a.shape[0], b.shape[0])
        total: Array | None = None
        target: Array | None = None
        planes: Array | None = None
        for j in _ranges(b.shape[2], tiles.n):
            kept: Array | None = None
            for i in _ranges(a.shape[1], tiles.m):
                shape = (system.num_planes, batch, i.stop - i.start, j.stop - j.start)
                if total is None or total.shape != shape:
                    # Old buffers go before new ones come: the limit counts one set.
                    total = target = None
                    total = np.empty(shape)
                    target = np.empty(shape) if len(inner) > 1 else None
                for h in inner:
                    planes = None
                    if kept is None or len(inner) > 1:
                        kept = None
                        part = b[:, h, j]
                        kept = self.residues(part, nu[:, j], system, left=False)
                    planes = self.residues(a[:, i, h], mu[:, i], system, left=True)
                    if h is inner[0]:
                        self.residue_gemm(planes, kept, total)
                    elif target is not None:
                        self.residue_gemm(planes, kept, target)
                        total += target
                        self.reduce(total, system)
                yield i, j, total
