"""The CPU engine: the contract on NumPy and its FP64 BLAS.

The stages have the contract's names.  Large products are cut to tiles, batches of
small ones go through every stage together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.engines import workspace
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cpu_accurate import auxiliary_maxima
from np_ozaki.engines.cpu_certificate import Side, missing_bits, side, split
from np_ozaki.engines.cpu_exponents import (
    Exponents,
    Lines,
    accurate_exponents,
    legacy_exponents,
    magnitudes,
    norm_exponents,
)
from np_ozaki.engines.cpu_reconstruct import reconstruct
from np_ozaki.engines.cpu_residues import reduce_balanced, residue_planes
from np_ozaki.engines.parallel import (
    Block,
    available_threads,
    blocks,
    of_batch,
    ranges,
    run_blocks,
)
from np_ozaki.engines.residue_system import (
    EXACT_K_BLOCK,
    ResidueSystem,
    paired_tables,
    residue_system,
)
from np_ozaki.engines.special_values import nonfinite_entries
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.plan import Tiles, choose_tiles

__all__ = ["CpuEngine"]

Array = NDArray[np.float64]

_LARGEST_EXPONENT = 1023
_DEFAULT_BYTES = 1 << 30
_SMALL = 1 << 12
"""Entries of both matrices up to which a product counts as small (one block)."""


@dataclass
class _Scaled:
    """The operands of a part of a batch, scaled.

    Attributes
    ----------
    lines : tuple of Lines
        Rows of A and columns of B, or one that stacks them as rows; finite, with 0
        for NaN and Inf.
    largest : tuple of (batch, lines) ndarray of float64
        Magnitudes of the same.
    exponents : tuple of (batch, lines) ndarray of int64
        mu and nu of the same.
    m : int
        Rows of A.
    special : bool
        Whether an operand held NaN or Inf.
    """

    lines: tuple[Lines, ...]
    largest: tuple[Array, ...]
    exponents: tuple[Exponents, ...]
    m: int
    special: bool

    def sides(self, thorough: bool) -> tuple[Side, Side]:
        """Return what A and B contribute to a certificate."""
        left, *rest = (
            side(*parts, left=not i, thorough=thorough)
            for i, parts in enumerate(
                zip(self.lines, self.largest, self.exponents, strict=True)
            )
        )
        return (left, rest[0]) if rest else split(left, self.m)

    def of(self, chosen: NDArray[np.intp]) -> _Scaled:
        """Return the chosen matrices of the batch."""

        def pick(x: NDArray[Any]) -> NDArray[Any]:
            return x[chosen] if x.shape[0] > 1 else x

        return _Scaled(
            tuple(Lines(pick(x.x), x.along, x.threads) for x in self.lines),
            tuple(map(pick, self.largest)),
            tuple(map(pick, self.exponents)),
            self.m,
            self.special,
        )


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
            rows, columns = auxiliary_maxima(
                left.matrix(-1), right.matrix(-2), *largest
            )
            return (
                accurate_exponents(largest[0], rows, num_moduli),
                accurate_exponents(largest[1], columns, num_moduli),
            )
        rule = norm_exponents if scaling == "norm" else legacy_exponents
        return rule(left, largest[0], num_moduli), rule(right, largest[1], num_moduli)

    def residues(
        self,
        x: Array,
        exponents: Exponents,
        system: ResidueSystem,
        *,
        left: bool,
        allocate: Callable[[tuple[int, ...]], Array] = np.empty,
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
        allocate : callable, optional
            Makes an uninitialised float64 array of a shape.

        Returns
        -------
        (num_planes, batch, ...) ndarray of float64
            Planes in the shape of `x` and in its memory order.
        """
        axis = -1 if left else -2
        lines = Lines.of(x, axis, self.threads)
        tables = system.left if left else system.right
        planes = residue_planes(lines, exponents, system, tables, allocate)
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
        workspace_bytes: int | None,
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
        workspace_bytes : int or None
            Limit for all products that run in this process; None is 1 GiB.
        certify : bool
            Also tell whether every entry is as accurate as a conventional product is
            guaranteed to be (see `cpu_certificate`).

        Returns
        -------
        Outcome
            Exceptions that IEEE arithmetic would have flagged, and the tiling.
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
            workspace.reserve(wanted, workspace_bytes or _DEFAULT_BYTES) as space,
        ):
            tiles = choose_tiles(*sizes, **choice, budget=space.granted)
            flags = [False, False]
            count = 0
            missing = np.zeros(out.shape[0], dtype=np.int64)
            for part in ranges(out.shape[0], tiles.batch):
                done, overflow, invalid = self._batch(
                    a[of_batch(part, a)],
                    b[of_batch(part, b)],
                    out[part],
                    system,
                    scaling,
                    tiles,
                    space,
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

    def native(self, a: Array, b: Array) -> Array:
        """Return the product as NumPy computes it.

        Parameters
        ----------
        a : (batch, m, k) ndarray of float64
        b : (batch, k, n) ndarray of float64

        Returns
        -------
        (batch, m, n) ndarray of float64
        """
        with hooks.unrouted(), np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))

    def to_host(self, x: Array) -> Array:
        """Return x itself: all of this engine's arrays are in host memory."""
        return x

    def from_host(self, x: Array, like: Array) -> Array:
        """Return x itself."""
        return x

    def _batch(
        self,
        a: Array,
        b: Array,
        out: Array,
        system: ResidueSystem,
        scaling: str,
        tiles: Tiles,
        space: workspace.Workspace,
        missing: Exponents | None,
    ) -> tuple[int, bool, bool]:
        """Multiply one part of a batch; return (tiles, overflow, invalid)."""
        size = (a.shape[1] + b.shape[2]) * a.shape[2]
        small = size <= _SMALL and a.shape[0] == b.shape[0] and scaling != "accurate"
        multiply = self._small if small else self._tiled
        scaled, count = multiply(a, b, out, system, scaling, tiles, space)
        if missing is not None:
            missing[...] = missing_bits(*scaled.sides(thorough=False))
            (doubtful,) = np.nonzero(missing)
            if doubtful.size:
                sides = scaled.of(doubtful).sides(thorough=True)
                missing[doubtful] = missing_bits(*sides)
        bits = product_bound(system.num_moduli).bit_length()
        lowest = [int(np.minimum.reduce(x, axis=None)) for x in scaled.exponents]
        near = lowest[0] + lowest[-1] < bits - _LARGEST_EXPONENT
        overflow = near and bool(np.isinf(out).any())
        invalid = self._special_values(a, b, out) if scaled.special else False
        return count, overflow, invalid

    def _tiled(
        self,
        a: Array,
        b: Array,
        out: Array,
        system: ResidueSystem,
        scaling: str,
        tiles: Tiles,
        space: workspace.Workspace,
    ) -> tuple[_Scaled, int]:
        """Multiply tile by tile; return the scaled operands and the tiles done."""
        if scaling == "accurate":
            # These exponents depend on the partner: no operand serves a whole batch.
            a = np.broadcast_to(a, (out.shape[0], *a.shape[1:]))
            b = np.broadcast_to(b, (out.shape[0], *b.shape[1:]))
        left, largest_a, special_a = self._finite(a, -1)
        right, largest_b, special_b = self._finite(b, -2)
        largest = largest_a, largest_b
        mu, nu = self._exponents(left, right, largest, system.num_moduli, scaling)
        count = 0
        todo = self._products(left, right, mu, nu, system, tiles, space)
        for i, j, products in todo:
            self.reconstruct(products, mu[:, i], nu[:, j], system, out[:, i, j])
            count += 1
        special = special_a or special_b
        return _Scaled((left, right), largest, (mu, nu), a.shape[1], special), count

    def _small(
        self,
        a: Array,
        b: Array,
        out: Array,
        system: ResidueSystem,
        scaling: str,
        tiles: Tiles,
        space: workspace.Workspace,
    ) -> tuple[_Scaled, int]:
        """Multiply small matrices, both operands side by side through each stage.

        NumPy's calls are what small products cost, and this halves them.
        """
        m = a.shape[1]
        both = np.empty((a.shape[0], m + b.shape[2], a.shape[2]))
        both[:, :m], both[:, m:] = a, b.swapaxes(1, 2)
        lines, largest, special = self._finite(both, -1)
        rule = norm_exponents if scaling == "norm" else legacy_exponents
        exponents = rule(lines, largest, system.num_moduli)
        tables = paired_tables(system, m, b.shape[2])
        planes = residue_planes(lines, exponents, system, tables)
        products = np.empty((system.num_planes, *out.shape))
        self.residue_gemm(planes[:, :, :m], planes[:, :, m:].swapaxes(-1, -2), products)
        mu, nu = exponents[:, :m], exponents[:, m:]
        self.reconstruct(products, mu, nu, system, out)
        return _Scaled((lines,), (largest,), (exponents,), m, special), 1

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
        space: workspace.Workspace,
    ) -> Iterator[tuple[slice, slice, Array]]:
        """Yield (rows, columns, residue products) of every tile."""
        a, b = left.matrix(-1), right.matrix(-2)
        inner = ranges(a.shape[2], tiles.k)
        batch = max(a.shape[0], b.shape[0])
        total: Array | None = None
        target: Array | None = None
        planes: Array | None = None
        kept: Array | None = None
        # Buffers are given back before new ones are taken: the limit counts one set.
        for j in ranges(b.shape[2], tiles.n):
            space.give(kept)
            kept = None
            for i in ranges(a.shape[1], tiles.m):
                shape = (system.num_planes, batch, i.stop - i.start, j.stop - j.start)
                if total is None or total.shape != shape:
                    space.give(total)
                    space.give(target)
                    total = target = None
                    total = space.take(shape)
                    target = space.take(shape) if len(inner) > 1 else None
                for h in inner:
                    space.give(planes)
                    planes = None
                    if kept is None or len(inner) > 1:
                        space.give(kept)
                        kept = None
                        kept = self.residues(
                            b[:, h, j],
                            nu[:, j],
                            system,
                            left=False,
                            allocate=space.take,
                        )
                    planes = self.residues(
                        a[:, i, h], mu[:, i], system, left=True, allocate=space.take
                    )
                    if h is inner[0]:
                        self.residue_gemm(planes, kept, total)
                    elif target is not None:
                        self.residue_gemm(planes, kept, target)
                        total += target
                        self.reduce(total, system)
                yield i, j, total
        for buffer in (total, target, planes, kept):
            space.give(buffer)
