"""The CPU engine: the contract on NumPy and its FP64 BLAS.

The stages have the contract's names.  Large products are cut to tiles, batches of
small ones go through every stage together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki.engines import cpu_rebalance, workspace
from np_ozaki.engines.base import (
    AnyScheme,
    Balanced,
    Cut,
    Outcome,
    Scheme,
    Target,
)
from np_ozaki.engines.checksum import verify
from np_ozaki.engines.cpu_certificate import missing_bits
from np_ozaki.engines.cpu_checksum import Checks, Operand
from np_ozaki.engines.cpu_exponents import Exponents, Lines, norm_exponents
from np_ozaki.engines.cpu_operand import (
    CpuOperand,
    Scaled,
    finite_lines,
    keeper_of,
    operand,
)
from np_ozaki.engines.cpu_residues import residue_planes
from np_ozaki.engines.cpu_slices import cut_slices, multiply_by_slices
from np_ozaki.engines.cpu_stages import CpuStages
from np_ozaki.engines.cpu_units import line_units, sample
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.engines.prepared import UNPREPARED, Pair
from np_ozaki.engines.residue_system import (
    EXACT_K_BLOCK,
    ResidueSystem,
    paired_tables,
    residue_system,
)
from np_ozaki.engines.special_values import set_special_values
from np_ozaki.numerics.formats import format_of
from np_ozaki.numerics.moduli import Family, product_bound
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.tiling import Tiles, choose_tiles, num_tiles

__all__ = ["CpuEngine"]

Array = NDArray[np.float64]

_SMALL = 1 << 12
"""Entries of both matrices up to which a product counts as small (one block)."""


_Ready = tuple[CpuOperand | None, CpuOperand | None]


@dataclass(frozen=True)
class _Job:
    """One part of a batch, and how it is to be multiplied.

    `ready` is what is kept of both operands, or None.
    """

    a: Array
    b: Array
    out: Array
    low: Array | None
    line_shifts: tuple[Exponents, Exponents] | None
    scheme: Scheme
    system: ResidueSystem
    tiles: Tiles
    space: workspace.Workspace
    check: bool
    part: slice
    ready: _Ready

    @property
    def is_plain(self) -> bool:
        """Whether only the contract's own exponents and result are wanted."""
        scheme = self.scheme
        extra = (
            scheme.shift,
            self.low is not None,
            self.line_shifts is not None,
            self.check,
        )
        return scheme.scaling != "accurate" and not any(extra)


def _part(
    line_shifts: tuple[Exponents, Exponents], part: slice
) -> tuple[Exponents, Exponents]:
    rows, columns = (x[of_batch(part, x)] for x in line_shifts)
    return rows, columns


def _ready_part(ready: _Ready, part: slice) -> _Ready:
    left, right = ready
    return left and left.of(part), right and right.of(part)


def _is_small(a: Array, b: Array) -> bool:
    return bool((a.shape[1] + b.shape[2]) * a.shape[2] <= _SMALL)


def _system(scheme: Scheme, k: int) -> ResidueSystem:
    k_class = (k - 1).bit_length()
    return residue_system(
        scheme.num_moduli, scheme.scaling, k_class, scheme.shift, scheme.family
    )


def _tiles(
    size: tuple[int, int, int, int], system: ResidueSystem, budget: int | None = None
) -> Tiles:
    return choose_tiles(
        *size, num_planes=system.num_planes, exact_k=EXACT_K_BLOCK, budget=budget
    )


class CpuEngine(CpuStages):
    """Ozaki scheme II on FP64 units, bit for bit the contract.

    Parameters
    ----------
    threads : int, optional
        Threads for the elementwise stages; all cores by default.  BLAS has its own.
    """

    name = "cpu"
    takes_complex = False

    def matmul(
        self,
        a: Array,
        b: Array,
        out: Array,
        scheme: AnyScheme,
        *,
        workspace_bytes: int | None = None,
        certify: Target | None = None,
        line_shifts: tuple[Exponents, Exponents] | None = None,
        low: Array | None = None,
        check: bool = False,
        prepared: Pair = UNPREPARED,
    ) -> Outcome:
        """Write the product of the contract to `out`.

        Parameters
        ----------
        a : (batch, m, k) ndarray of float64 or float32
            Any strides; batch 1 broadcasts.
        b : (batch, k, n) ndarray of float64 or float32
            Any strides; batch 1 broadcasts.
        out : (batch, m, n) ndarray of float64 or float32
            Any strides; must not overlap an operand.
        scheme : Scheme or Slicing
            Moduli, scaling, shift; or slices, of which only `workspace_bytes`, `low`
            and `prepared` follow.
        workspace_bytes : int, optional
            Limit for all products that run in this process; None is 1 GiB.
        certify : "conventional", "single" or int, optional
            Also tell whether every entry keeps to this bound (see `cpu_certificate`).
        line_shifts : tuple of (batch, lines) ndarray of int64, optional
            What the rows of A and the columns of B were scaled by before.
        low : (batch, m, n) ndarray of float64, optional
            Takes what the rounding to `out` left; for float64 only.
        check : bool, optional
            Hold the integers of every tile to their checksums.
        prepared : tuple of Prepared or None, optional
            Of A and of B: what is made of them is looked for there, and kept.

        Returns
        -------
        Outcome
            Exceptions that IEEE arithmetic would have flagged, and the tiling.

        Raises
        ------
        CheckError
            For the first tile that does not keep its checksums; `out` is spoiled.
        """
        k = a.shape[2]
        certified = certify is not None
        if not k or not out.size:
            for result in (out, low):
                if result is not None:
                    result[...] = 0.0
            sure = np.zeros(out.shape[0], dtype=np.int64) if certified else None
            return Outcome(False, False, 0, 0, sure)
        if isinstance(scheme, Slicing):
            return multiply_by_slices(
                a,
                b,
                out,
                scheme,
                threads=self.threads,
                workspace_bytes=workspace_bytes,
                low=low,
                prepared=prepared,
            )
        system = _system(scheme, k)
        sizes = (*out.shape, k)
        wanted = _tiles(sizes, system).workspace_bytes
        limit = workspace_bytes or workspace.DEFAULT_BYTES
        with (
            np.errstate(all="ignore"),
            hooks.unrouted(),
            workspace.reserve(wanted, limit) as space,
        ):
            tiles = _tiles(sizes, system, space.granted)
            flags = [False, False]
            count = 0
            missing = np.zeros(out.shape[0], dtype=np.int64)
            ready = self._ready(a, b, scheme, prepared, limit, certified=certified)
            for part in ranges(out.shape[0], tiles.batch):
                job = _Job(
                    a[of_batch(part, a)],
                    b[of_batch(part, b)],
                    out[part],
                    None if low is None else low[part],
                    None if line_shifts is None else _part(line_shifts, part),
                    scheme,
                    system,
                    tiles,
                    space,
                    check,
                    part,
                    _ready_part(ready, part),
                )
                done, overflow, invalid = self._batch(
                    job, missing[part] if certified else None, certify
                )
                count += done
                flags = [flags[0] or overflow, flags[1] or invalid]
        return Outcome(
            overflow=flags[0],
            invalid=flags[1],
            workspace_bytes=tiles.workspace_bytes,
            tiles=count,
            missing_bits=missing if certified else None,
        )

    def cut(
        self,
        size: tuple[int, int, int, int],
        scheme: AnyScheme,
        *,
        certified: bool,
        checked: bool,
        workspace_bytes: int | None,
        word: int = 8,
    ) -> Cut:
        """Return how a product would be cut if no other ran beside it.

        Parameters
        ----------
        size : tuple of int
            Batch, m, n, k.
        scheme : Scheme
            Moduli, scaling, shift.
        certified, checked : bool
            Make no difference on this engine.
        workspace_bytes : int, optional
            As for `matmul`.
        word : int, optional
            Makes no difference: planes are of float64.

        Returns
        -------
        Cut
        """
        if isinstance(scheme, Slicing):
            return cut_slices(size, scheme, workspace_bytes)
        if not all(size):
            return Cut(0, 0, 0)
        system = _system(scheme, size[3])
        wanted = _tiles(size, system).workspace_bytes
        limit = workspace_bytes or workspace.DEFAULT_BYTES
        tiles = _tiles(size, system, min(wanted, limit))
        count = num_tiles(size, tiles)
        return Cut(system.num_planes, count, tiles.workspace_bytes)

    def missing_bits(
        self, a: Array, b: Array, scheme: Scheme, target: Target
    ) -> Exponents:
        """Return the second look alone.

        Parameters
        ----------
        a : (batch, m, k) ndarray of float64
        b : (batch, k, n) ndarray of float64
        scheme : Scheme
            Moduli, scaling, shift of the product in question.
        target : "conventional", "single" or int
            What is to be shown.

        Returns
        -------
        (batch,) ndarray of int64
            As `Outcome.missing_bits`.
        """
        with np.errstate(all="ignore"), hooks.unrouted():
            if scheme.scaling == "accurate" and a.shape[0] != b.shape[0]:
                batch = max(a.shape[0], b.shape[0])
                a, b = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (a, b))
            system = _system(scheme, a.shape[2])
            left = operand(self, a, scheme, system, left=True)
            right = operand(self, b, scheme, system, left=False)
            scaled = self._scaled(left, right, scheme)
            return missing_bits(*scaled.sides(thorough=True), target)

    def rebalance(self, a: Array, b: Array, family: Family = "real") -> Balanced:
        """Return operands with smaller ranges in their lines; see `cpu_rebalance`."""
        with np.errstate(all="ignore"):
            return cpu_rebalance.rebalance(a, b, family)

    def line_exponents(
        self, x: Array, num_moduli: int, family: Family = "real", *, left: bool
    ) -> Exponents:
        """Return mu or nu of scaling "norm".

        Parameters
        ----------
        x : (batch, m, k) or (batch, k, n) ndarray of float64
            A or B; NaN and Inf count as 0.
        num_moduli : int
            N of the contract.
        family : {"real", "complex"}, optional
            Whose moduli.
        left : bool
            Whether `x` is A.

        Returns
        -------
        (batch, lines) ndarray of int64
            Scaling exponents.
        """
        with np.errstate(all="ignore"):
            lines, largest, _ = self._finite(x, -1 if left else -2)
            return norm_exponents(lines, largest, product_bound(num_moduli, family))

    def line_units(self, x: Array, *, left: bool) -> tuple[Exponents, Exponents]:
        """Return e and l of each line; see `cpu_units.line_units`."""
        with np.errstate(all="ignore"):
            lines, largest, _ = self._finite(x, -1 if left else -2)
            return line_units(lines, largest)

    def samples(self, *operands: Array) -> list[Array]:
        """Return some entries of each matrix; see `cpu_units.sample`."""
        return [sample(x) for x in operands]

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
        self, job: _Job, missing: Exponents | None, target: Target | None
    ) -> tuple[int, bool, bool]:
        """Multiply one part of a batch; return (tiles, overflow, invalid)."""
        a, b, out = job.a, job.b, job.out
        small = _is_small(a, b) and a.shape[0] == b.shape[0] and job.is_plain
        scaled, count = self._small(job) if small else self._tiled(job)
        if missing is not None and target is not None:
            missing[...] = missing_bits(*scaled.sides(thorough=False), target)
            (doubtful,) = np.nonzero(missing)
            if doubtful.size:
                sides = scaled.of(doubtful).sides(thorough=True)
                missing[doubtful] = missing_bits(*sides, target)
        bits = job.scheme.limit.bit_length()
        lowest = [int(np.minimum.reduce(x, axis=None)) for x in scaled.exponents]
        near = lowest[0] + lowest[-1] < bits - format_of(out.dtype).top + 1
        near = near or job.line_shifts is not None
        overflow = near and bool(np.isinf(out).any())
        invalid = False
        if scaled.special:
            invalid = set_special_values(a, b, out)
            if job.low is not None:
                job.low[~np.isfinite(out)] = 0.0
        return count, overflow, invalid

    def _tiled(self, job: _Job) -> tuple[Scaled, int]:
        """Multiply tile by tile; return the scaled operands and the tiles done."""
        scheme, system = job.scheme, job.system
        left, right = job.ready
        left = left or operand(self, job.a, scheme, system, left=True)
        right = right or operand(self, job.b, scheme, system, left=False)
        if scheme.scaling == "accurate":
            # These exponents depend on the partner: no operand serves a whole batch.
            batch = job.out.shape[0]
            left, right = left.repeated(batch), right.repeated(batch)
        scaled = self._scaled(left, right, scheme)
        left, right = scaled.operands
        mu, nu = exponents = scaled.exponents
        if job.line_shifts is not None:
            mu, nu = mu + job.line_shifts[0], nu + job.line_shifts[1]
        checks = None
        if job.check:
            checks = Checks(
                Operand.of(left.lines, left.largest, exponents[0]),
                Operand.of(right.lines, right.largest, exponents[1]),
                job.system,
                job.tiles.m,
            )
        count = 0
        for i, j, products in self._products(left, right, job):
            low = None if job.low is None else job.low[:, i, j]
            tally = checks.tally(job.out.shape[0], i, j) if checks else None
            self.reconstruct(
                products, mu[:, i], nu[:, j], job.system, job.out[:, i, j], low, tally
            )
            if checks and tally:
                verify([checks.sums(tally, job.part, i, j)])
            count += 1
        return scaled, count

    def _scaled(self, left: CpuOperand, right: CpuOperand, scheme: Scheme) -> Scaled:
        """Return both operands with exponents."""
        if scheme.scaling == "accurate":
            largest = left.largest, right.largest
            mu, nu = self._exponents(left.lines, right.lines, largest, scheme)
            left, right = replace(left, exponents=mu), replace(right, exponents=nu)
        return Scaled((left, right), left.count, scheme.shift)

    def _small(self, job: _Job) -> tuple[Scaled, int]:
        """Multiply small matrices, both operands side by side through each stage.

        NumPy's calls are what small products cost, and this halves them.
        """
        a, b, system = job.a, job.b, job.system
        m = a.shape[1]
        both = np.empty((a.shape[0], m + b.shape[2], a.shape[2]))
        both[:, :m], both[:, m:] = a, b.swapaxes(1, 2)
        lines, largest, special = self._finite(both, -1)
        exponents = self.line_exponents_of(lines, largest, job.scheme, left=True)
        tables = paired_tables(system, m, b.shape[2])
        planes = residue_planes(lines, exponents, system, tables)
        products = np.empty((system.num_planes, *job.out.shape))
        self.residue_gemm(planes[:, :, :m], planes[:, :, m:].swapaxes(-1, -2), products)
        mu, nu = exponents[:, :m], exponents[:, m:]
        self.reconstruct(products, mu, nu, system, job.out)
        stacked = CpuOperand(lines, largest, special, exponents)
        return Scaled((stacked,), m, 0), 1

    def _ready(
        self,
        a: Array,
        b: Array,
        scheme: Scheme,
        prepared: Pair,
        limit: int,
        *,
        certified: bool,
    ) -> _Ready:
        """Return what is kept of both operands, made now where it is not."""
        if prepared == UNPREPARED or _is_small(a, b):
            return None, None
        system = _system(scheme, a.shape[2])
        left, right = (
            None
            if kept is None
            else operand(
                self,
                x,
                scheme,
                system,
                keeper_of(x, kept, limit, left=left),
                left=left,
                certified=certified,
            )
            for x, kept, left in zip((a, b), prepared, (True, False), strict=True)
        )
        return left, right

    def _finite(self, x: Array, axis: int) -> tuple[Lines, Array, bool]:
        """Return the lines of `x` with 0 for NaN and Inf, their magnitudes, if any."""
        finite, largest, special = finite_lines(x, axis, self.threads)
        lines = Lines.of(x if finite is None else finite, axis, self.threads)
        return lines, largest, special

    def _products(
        self, left: CpuOperand, right: CpuOperand, job: _Job
    ) -> Iterator[tuple[slice, slice, Array]]:
        """Yield (rows, columns, residue products) of every tile."""
        system, tiles, space = job.system, job.tiles, job.space
        _, m, k = job.a.shape
        inner = ranges(k, tiles.k)
        batch = max(len(left.largest), len(right.largest))
        total: Array | None = None
        target: Array | None = None
        planes: Array | None = None
        kept: Array | None = None
        # Buffers are given back before new ones are taken: the limit counts one set.
        for j in ranges(job.b.shape[2], tiles.n):
            space.give(kept)
            kept = None
            for i in ranges(m, tiles.m):
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
                        kept = self._planes(right, (h, j), job, left=False)
                    planes = self._planes(left, (i, h), job, left=True)
                    if h is inner[0]:
                        self.residue_gemm(planes, kept, total)
                    elif target is not None:
                        self.residue_gemm(planes, kept, target)
                        total += target
                        self.reduce(total, system)
                yield i, j, total
        for buffer in (total, target, planes, kept):
            space.give(buffer)

    def _planes(
        self, of: CpuOperand, tile: tuple[slice, slice], job: _Job, *, left: bool
    ) -> Array:
        """Return the planes of a tile of A (left) or B."""
        if of.planes is not None:
            return of.planes[:, :, tile[0], tile[1]]
        x = of.lines.matrix(-1 if left else -2)
        assert of.exponents is not None  # noqa: S101 - products begin with exponents
        exponents = of.exponents[:, tile[0 if left else 1]]
        return self.residues(
            x[:, tile[0], tile[1]],
            exponents,
            job.system,
            left=left,
            allocate=job.space.take,
        )
