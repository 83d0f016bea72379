"""The CUDA engine: the contract on INT8 matrix units, in integers only.

This module cuts products to tiles and takes each through the stages, which are in
`cuda_stages`; what CuPy does, from launching kernels to copying, is in `cuda_device`
and `cuda_copies`.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki._kernels.render import Variant
from np_ozaki.engines import cpu_rebalance, cuda_rebalance, cuda_samples
from np_ozaki.engines.base import (
    AnyScheme,
    Balanced,
    Cut,
    Exponents,
    Outcome,
    Scheme,
    Target,
)
from np_ozaki.engines.complex_operand import ComplexOperand, put_parts, real_of
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda_accurate import replace_exponents
from np_ozaki.engines.cuda_certificate import first_look, look_on_host, second_look
from np_ozaki.engines.cuda_checksum import Checksums, PartSums
from np_ozaki.engines.cuda_hopper_lines import has_winograd
from np_ozaki.engines.cuda_lines import Device, Operands, word_bytes
from np_ozaki.engines.cuda_replay import Recorder, Recording
from np_ozaki.engines.cuda_shortage import within_memory
from np_ozaki.engines.cuda_shortcuts import Shortcuts
from np_ozaki.engines.cuda_sides import Job, Side, enter_both
from np_ozaki.engines.cuda_slices import cut_slices, multiply_by_slices
from np_ozaki.engines.cuda_stages import Stages
from np_ozaki.engines.cuda_tiles import (
    first_modulus,
    queue_residue_tiles,
    reconstruct_tiles,
    residue_tiles_bytes,
    tile_shape,
)
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.engines.prepared import (
    NO_KEEPER,
    UNPREPARED,
    Keeper,
    Pair,
    Prepared,
    drop_prepared,
    find_all,
)
from np_ozaki.errors import CheckError
from np_ozaki.numerics.moduli import COMPLEX_MODULI, Family
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.tiling import (
    CudaTiles,
    choose_cuda_tiles,
    choose_residue_tiles,
    num_tiles,
)

__all__ = ["CudaEngine"]

_MOST_RECORDINGS = 256
_PAIR_BYTES = 16
"""Operands that begin at a multiple of it are read in pairs of entries."""

_OVERFLOW, _INVALID = 1, 2
"""Flags that kernels set."""


class CudaEngine(Stages):
    """Ozaki scheme II on INT8 matrix units, bit for bit the contract.

    Parameters
    ----------
    device : Device
        Where kernels run.
    """

    name = "cuda"
    takes_complex = True

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._recordings: dict[Hashable, Recording | None] = {}
        self._recordings_lock = threading.Lock()
        self.shortcuts = Shortcuts(device)

    # What is not this engine's ----------------------------------------------------

    def native(self, a: Any, b: Any) -> Any:
        """Return the product in conventional FP64, where the operands are.

        Parameters
        ----------
        a : (batch, m, k) array of float64
        b : (batch, k, n) array of float64

        Returns
        -------
        (batch, m, n) array of float64
        """
        if self.device.is_host(a):
            with hooks.unrouted(), np.errstate(all="ignore"):
                return np.matmul(a, b)
        return self.device.native(a, b)

    def to_host(self, x: Any) -> NDArray[Any]:
        """Return an array in host memory."""
        return self.device.fetch(x)

    def from_host(self, x: NDArray[Any], like: Any) -> Any:
        """Return an array where `like` is."""
        return x if self.device.is_host(like) else self.device.own(x)

    # What is known of operands ---------------------------------------------------

    def samples(self, *operands: Any) -> list[NDArray[np.float64]]:
        """Return some entries of each matrix, on the host; see `cpu_units.sample`."""
        # Which entries is of no matter: real parts will do.
        some = [x.x.real if isinstance(x, ComplexOperand) else x for x in operands]
        if self.device.is_host(some[0]):
            return CpuEngine().samples(*some)
        return cuda_samples.samples(self, *some)

    def line_exponents(
        self, x: Any, num_moduli: int, family: Family = "real", *, left: bool
    ) -> Exponents:
        """Return mu or nu of scaling "norm".

        Parameters
        ----------
        x : (batch, m, k) or (batch, k, n) array of float64
            A or B, on the device or the host; NaN and Inf count as 0.
        num_moduli : int
            N of the contract.
        family : {"real", "complex"}, optional
            Whose moduli.
        left : bool
            Whether `x` is A.

        Returns
        -------
        (batch, lines) ndarray of int64
            On the host.
        """
        x = real_of(x)
        if self.device.is_host(x):
            return CpuEngine().line_exponents(x, num_moduli, family, left=left)
        scheme = Scheme(num_moduli, family=family)
        facts = self.line_facts(self._lines(x, left), scheme, left=left)
        return facts.exponents(self.device)

    def line_units(self, x: Any, *, left: bool) -> tuple[Exponents, Exponents]:
        """Return e and l of each line, on the host; see `cpu_units.line_units`."""
        x = real_of(x)
        if self.device.is_host(x):
            return CpuEngine().line_units(x, left=left)
        return cuda_rebalance.line_units(self, self._lines(x, left))

    def _lines(self, x: Any, left: bool) -> Operands:
        return Operands(x if left else x.swapaxes(1, 2), self.device)

    def rebalance(self, a: Any, b: Any, family: Family = "real") -> Balanced:
        """Return operands with smaller ranges in their lines; see `cpu_rebalance`."""
        if self.device.is_host(a):
            with np.errstate(all="ignore"):
                return cpu_rebalance.rebalance(a, b, family)
        if family == "complex":
            moved = self.rebalance(self.to_host(a), self.to_host(b), family)
            return replace(
                moved, a=self.from_host(moved.a, a), b=self.from_host(moved.b, b)
            )
        return cuda_rebalance.rebalance(self, a, b)

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
        """Return how a product of operands on the host would be cut.

        Parameters
        ----------
        size : tuple of int
            Batch, m, n, k; of complex matrices for a scheme of the family "complex".
        scheme : Scheme or Slicing
            Moduli, scaling, shift; or slices.
        certified : bool
            Whether a certificate takes one more product.
        checked : bool
            Makes no difference: C' modulo 2^61 - 1 takes the place of products.
        workspace_bytes : int, optional
            As for `matmul`.
        word : int, optional
            Bytes of an entry: 4 for float32.

        Returns
        -------
        Cut
        """
        if not all(size):
            return Cut(0, 0, 0)
        budget = workspace_bytes or self.device.default_workspace()
        if isinstance(scheme, Slicing):
            return cut_slices(size, scheme, budget, word)
        num_planes = scheme.num_moduli + certified
        if scheme.family == "complex" and (checked or not _in_pairs(scheme)):
            batch, m, n, k = size
            whole = 1, 2 * m, n, 2 * k
            tiles = self._tiles(whole, num_planes, budget, scheme, host=True, word=word)
            count = batch * num_tiles(whole, tiles)
            return Cut(4 * num_planes, count, tiles.workspace_bytes)
        parts = 1
        if scheme.family == "complex":
            parts = 2
            # A certificate has four planes, or as good as that.
            num_planes = 2 * scheme.num_moduli + 4 * certified
        tiles = self._tiles(
            size, num_planes, budget, scheme, host=True, parts=parts, word=word
        )
        return Cut(num_planes, num_tiles(size, tiles), tiles.workspace_bytes)

    def _tiles(
        self,
        size: tuple[int, int, int, int],
        num_planes: int,
        budget: int,
        scheme: Scheme,
        *,
        host: bool,
        symmetric: bool = False,
        parts: int = 1,
        word: int = 8,
    ) -> CudaTiles:
        """Return how a product of batch, m, n, k is cut on the current device."""
        if self.device.tile_clusters():
            tiles = choose_residue_tiles(
                *size,
                num_planes=num_planes,
                budget=budget,
                host=host,
                winograd=has_winograd(scheme) and parts == 1,
                symmetric=symmetric,
                parts=parts,
                word=word,
            )
            if tiles is not None:
                return tiles
        return choose_cuda_tiles(
            *size,
            num_planes=num_planes,
            budget=budget,
            host=host,
            parts=parts,
            word=word,
        )

    def missing_bits(self, a: Any, b: Any, scheme: Scheme, target: Target) -> Exponents:
        """Return the second look alone.

        Parameters
        ----------
        a : (batch, m, k) array of float64
            On the device or the host; batch 1 broadcasts.
        b : (batch, k, n) array of float64
            On the same side; likewise.
        scheme : Scheme
            Moduli, scaling, shift of the product in question.
        target : "conventional", "single" or int
            What is to be shown.

        Returns
        -------
        (batch,) ndarray of int64
            As `Outcome.missing_bits`.
        """
        batch = max(a.shape[0], b.shape[0])
        doubtful = np.ones(batch, dtype=np.int64)
        return self._missing_bits(
            a, b, doubtful, scheme, target, self.device.default_workspace()
        )

    # The product -----------------------------------------------------------------

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any,
        scheme: AnyScheme,
        *,
        workspace_bytes: int | None = None,
        certify: Target | None = None,
        line_shifts: tuple[Exponents, Exponents] | None = None,
        low: Any = None,
        check: bool = False,
        prepared: Pair = UNPREPARED,
    ) -> Outcome:
        """Write the product of the contract to `out`.

        Parameters
        ----------
        a : (batch, m, k) array of float64 or float32, or ComplexOperand
            On the device or the host, any strides; batch 1 broadcasts.
        b : (batch, k, n) array of the same dtype, or ComplexOperand
            On the same side, any strides; batch 1 broadcasts.
        out : (batch, m, n) array of float64 or float32, or complex for a ComplexOperand
            On the same side, any strides; must not overlap an operand.
        scheme : Scheme or Slicing
            Moduli, scaling, shift; or slices, of which only `workspace_bytes`, `low`
            and `prepared` follow.
        workspace_bytes : int, optional
            Device memory for this product; None is the device's own default.
        certify : "conventional", "single" or int, optional
            Also tell whether every entry keeps to this bound (see `cpu_certificate`).
        line_shifts : tuple of (batch, lines) ndarray of int64, optional
            What the rows of A and the columns of B were scaled by before, on the host.
        low : (batch, m, n) array of float64, optional
            Takes what the rounding to `out` left; on the same side; for float64 only.
        check : bool, optional
            Hold C' to checksums, each matrix as a whole; waits for the product.  Not
            for scaling "legacy".
        prepared : tuple of Prepared or None, optional
            Of A and of B: what is made of lines on the device is looked for there, and
            kept for products on the same stream.

        Returns
        -------
        Outcome
            The tiling; the exceptions that IEEE arithmetic would have flagged only
            for operands on the host: on the device nothing waits for them.

        Raises
        ------
        CheckError
            The checksums of a matrix differ.
        """
        certified = certify is not None
        if not a.shape[2] or not out.size:
            for result in (out, low):
                if result is not None:
                    result[...] = 0.0
            sure = np.zeros(out.shape[0], dtype=np.int64) if certified else None
            return Outcome(False, False, 0, 0, sure)
        conjugated = False, False
        if isinstance(a, ComplexOperand) and isinstance(b, ComplexOperand):
            if isinstance(scheme, Slicing) or check or not _in_pairs(scheme):
                return self._embedded(
                    a, b, out, scheme, workspace_bytes, certify, low, check
                )
            conjugated = a.conjugated, b.conjugated
            whole = a, b
            a, b = a.x, b.x
        else:
            whole = a, b
        limit = workspace_bytes or self.device.default_workspace()
        if isinstance(scheme, Slicing):
            keepers = self._keepers(a, b, prepared, limit)
            return multiply_by_slices(
                self, a, b, out, scheme, workspace_bytes, low, keepers
            )
        keepers = self._keepers(a, b, prepared, limit)
        key = None
        if low is None and line_shifts is None and not check:
            kept = tuple(keeper is not NO_KEEPER for keeper in keepers)
            key = self._replay_key(a, b, out, scheme, certify, limit, conjugated, kept)
            found = None if key is None else self._replayed(key, a, b, out, keepers)
            if found is not None:
                return self._looked_at(found, *whole, scheme, certify, limit)
        job = Job(
            a, b, out, low, line_shifts, scheme, certify, check, keepers, conjugated
        )
        if abs(out.strides[1]) < abs(out.strides[2]):
            # C^T = B^T A^T: results are written along the smaller stride.
            job = job.turned()
        if line_shifts is not None:
            # Facts that a whole batch shares could not take shifts of its matrices.
            job = job.with_whole_batches()
        if key is None:
            outcome = self._within_memory(job, workspace_bytes)
        else:
            outcome = self._recorded(key, job, workspace_bytes, (a, b, out), keepers)
        return self._looked_at(outcome, *whole, scheme, certify, limit)

    def _embedded(
        self,
        a: ComplexOperand,
        b: ComplexOperand,
        out: Any,
        scheme: AnyScheme,
        workspace_bytes: int | None,
        certify: Target | None,
        low: Any,
        check: bool,
    ) -> Outcome:
        """Multiply complex matrices as real ones: four products for a modulus."""
        batch, m, n = out.shape
        done = []
        # One of them at a time, as they are copied.
        for part in ranges(batch, 1):
            x, y = (z[of_batch(part, z.x)].embedded() for z in (a, b))
            here = np.empty_like(x, shape=(1, 2 * m, n))
            rest = None if low is None else np.empty_like(here)
            try:
                outcome = self.matmul(
                    x,
                    y,
                    here,
                    scheme,
                    workspace_bytes=workspace_bytes,
                    certify=certify,
                    low=rest,
                    check=check,
                )
            except CheckError as error:
                raise error.of(part.start) from None
            put_parts(here, out[part])
            if rest is not None:
                put_parts(rest, low[part])
            done.append(outcome)
        return Outcome.of_parts(done)

    def _looked_at(
        self,
        outcome: Outcome,
        a: Any,
        b: Any,
        scheme: Scheme,
        certify: Target | None,
        limit: int,
    ) -> Outcome:
        """Return the outcome after a second look at matrices that are in doubt."""
        first = outcome.missing_bits
        if first is None or certify is None or not np.count_nonzero(first):
            return outcome
        short = self._missing_bits(a, b, first, scheme, certify, limit)
        return replace(outcome, missing_bits=short)

    # Products that are queued again -------------------------------------------------

    def _replay_key(
        self,
        a: Any,
        b: Any,
        out: Any,
        scheme: Scheme,
        certify: Target | None,
        limit: int,
        conjugated: tuple[bool, bool],
        kept: tuple[bool, ...],
    ) -> Hashable | None:
        """Return all that queued kernels depend on but addresses, or None.

        None is for products that are not recorded: of the host, of several tiles, and
        those that someone looks at.
        """
        device = self.device
        if not device.tile_clusters() or device.is_host(out) or device.is_timed():
            return None
        pointers = device.pointer(a), device.pointer(b), device.pointer(out)
        return (
            device.place(),
            a.shape,
            a.strides,
            b.shape,
            b.strides,
            out.shape,
            out.strides,
            scheme,
            certify,
            limit,
            a.dtype.char,
            out.dtype.char,
            conjugated,
            kept,
            *(pointer % _PAIR_BYTES for pointer in pointers),
            pointers[0] == pointers[1],
        )

    def _replayed(
        self, key: Hashable, a: Any, b: Any, out: Any, keepers: tuple[Keeper, Keeper]
    ) -> Outcome | None:
        """Queue a product as it was queued before, or return None."""
        recording = self._recordings.get(key)
        if recording is None:
            return None
        kept = find_all([(keepers[i], name) for i, name in recording.wanted])
        if kept is None:
            return None
        try:
            left, right, target = map(self.device.pointer, (a, b, out))
            missing = recording.replay(self.device, left, right, target, kept)
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
            return None
        outcome: Outcome = recording.outcome
        certified = None if missing is None else missing.astype(np.int64)
        # Not by `replace`, which takes longer.
        return Outcome(
            outcome.overflow,
            outcome.invalid,
            outcome.workspace_bytes,
            outcome.tiles,
            certified,
            recording if certified is None and not kept else None,
        )

    def _recorded(
        self,
        key: Hashable,
        job: Job,
        workspace_bytes: int | None,
        operands: tuple[Any, Any, Any],
        keepers: tuple[Keeper, Keeper],
    ) -> Outcome:
        """Multiply, and keep what was queued where it is one tile."""
        if key in self._recordings:
            return self._within_memory(job, workspace_bytes)
        recording = None
        if self._is_one_tile(job, workspace_bytes):
            recorder = Recorder(self.device, *operands)
            first, second = (recorder.watched(keepers.index(x), x) for x in job.keepers)
            job = replace(job, keepers=(first, second))
            outcome = CudaEngine(recorder)._within_memory(job, workspace_bytes)
            recording = recorder.recording(outcome)
            if recorder.has_made:
                return outcome
            if (
                recording is not None
                and not recording.wanted
                and outcome.missing_bits is None
            ):
                outcome = replace(outcome, recording=recording)
        else:
            outcome = self._within_memory(job, workspace_bytes)
        with self._recordings_lock:
            while len(self._recordings) >= _MOST_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[key] = recording
        return outcome

    def _is_one_tile(self, job: Job, workspace_bytes: int | None) -> bool:
        tiles = self._tiles_of(job, workspace_bytes or self.device.default_workspace())
        batch, m, n = job.out.shape
        return tiles.fused and (batch, m, n) == (tiles.batch, tiles.m, tiles.n)

    def _tiles_of(self, job: Job, budget: int) -> CudaTiles:
        """Return how a job is cut."""
        variant = job.variant
        # Of complex operands a certificate has four planes, or as good as that.
        cut = variant.cut_plane * variant.parts**2
        return self._tiles(
            (*job.out.shape, job.a.shape[2]),
            variant.planes + cut,
            budget,
            job.scheme,
            host=self.device.is_host(job.out),
            symmetric=self._is_symmetric(job),
            parts=variant.parts,
            word=max(word_bytes(job.a), word_bytes(job.out)),
        )

    def _keepers(
        self, a: Any, b: Any, prepared: Pair, limit: int
    ) -> tuple[Keeper, Keeper]:
        """Return where to keep what is made of A and of B."""
        return (
            self._keeper(a, prepared[0], limit, left=True),
            self._keeper(b, prepared[1], limit, left=False),
        )

    def _keeper(
        self, x: Any, prepared: Prepared | None, limit: int, *, left: bool
    ) -> Keeper:
        """Return where to keep what is made of A (left) or B."""
        if prepared is None or self.device.is_host(x):
            return NO_KEEPER
        stream = self.device.stream()
        if stream is None:
            return NO_KEEPER
        place = self.device.place()
        layout = x.shape, x.strides, x.dtype.char
        return Keeper(prepared, place, limit, "cuda", place, stream, left, *layout)

    def _within_memory(self, job: Job, workspace_bytes: int | None) -> Outcome:
        """Multiply in tiles that the device has memory for."""

        def multiply(tiles: CudaTiles, keeps: bool) -> Outcome:
            unkept = NO_KEEPER, NO_KEEPER
            return self._tiled(job if keeps else replace(job, keepers=unkept), tiles)

        return within_memory(
            self.device,
            workspace_bytes,
            lambda budget: self._tiles_of(job, budget),
            multiply,
        )

    def _is_symmetric(self, job: Job) -> bool:
        """Return whether B is A^T, the same memory on the device, scaled alike."""
        a, b = job.a, job.b.swapaxes(1, 2)
        return bool(
            a.shape == b.shape
            # Of one matrix the first stride does not matter.
            and a.strides[a.shape[0] == 1 :] == b.strides[b.shape[0] == 1 :]
            and job.scheme.shift == 0
            and job.line_shifts is None
            and not job.is_complex
            and not self.device.is_host(a)
            and self.device.pointer(a) == self.device.pointer(b)
        )

    def _tiled(self, job: Job, tiles: CudaTiles) -> Outcome:
        batch, certify = job.out.shape[0], job.target is not None
        host = self.device.is_host(job.out)
        # On the device nobody reads what kernels join to the flags.
        make = self.device.zeros if host else self.device.empty
        flags = make((1,), np.int32)
        missing = self.device.zeros((batch,), np.int32) if certify else None
        sums = Checksums(self, job.out.shape) if job.check else None
        count = 0
        with self.device.transfer() as copies:
            for part in ranges(batch, tiles.batch):
                stays = tiles.m >= job.out.shape[1]
                checked = None if sums is None else sums.part(part, stays=stays)
                found = None if missing is None else missing[part]
                count += self._part(
                    job.part(part), tiles, copies, flags, found, checked
                )
        if sums is not None:
            sums.verify(turned=job.is_turned)
        happened = int(self.device.fetch(flags)[0]) if host else 0
        short = None
        if missing is not None:
            short = self.device.fetch(missing).astype(np.int64)
        return Outcome(
            overflow=bool(happened & _OVERFLOW),
            invalid=bool(happened & _INVALID),
            workspace_bytes=tiles.workspace_bytes,
            tiles=count,
            missing_bits=short,
        )

    def _part(
        self,
        job: Job,
        tiles: CudaTiles,
        copies: Any,
        flags: Any,
        missing: Any,
        sums: PartSums | None,
    ) -> int:
        """Multiply one part of a batch; return the number of tiles."""
        scheme, out = job.scheme, job.out
        # Without a certificate there are no planes for it.
        target: Target = "conventional" if job.target is None else job.target
        accurate = scheme.scaling == "accurate"
        if accurate:
            # These exponents depend on the partner: no operand serves a whole batch.
            job = job.with_whole_batches()
        left = Side(self, job, tiles, copies, left=True)
        right = left
        if not tiles.symmetric:
            right = Side(self, job, tiles, copies, left=False)
        rows, columns = ranges(out.shape[1], tiles.m), ranges(out.shape[2], tiles.n)
        if accurate:
            whole = left.whole(), right.whole()
            left.known = self.line_facts(whole[0], scheme, left=True)
            right.known = self.line_facts(whole[1], scheme, left=False)
            replace_exponents(
                self,
                *whole,
                left.known,
                right.known,
                scheme,
                tiles,
                turned=job.is_turned,
            )
        enter_both(left, right, rows[0], columns[0])
        for number, j in enumerate(columns):
            right.enter(j)
            # Back and forth: the last rows of a panel of columns are the next one's
            # first, and made once for both.
            for i in rows if number % 2 == 0 else rows[::-1]:
                left.enter(i)
                tile = copies.result(out[:, i, j])
                rest = None if job.low is None else copies.result(job.low[:, i, j])
                multiply = self._residue_tile if tiles.fused else self._int32_tile
                lower, checked = multiply(job, tiles, left, right, tile, rest, flags)
                if sums is not None:
                    sums.tile(i, j, checked, left, right)
                for plane in lower:
                    first_look(
                        self,
                        plane,
                        left.operand,
                        right.operand,
                        (left.facts, right.facts),
                        scheme,
                        target,
                        tile.shape,
                        missing,
                    )
                del lower, checked
                copies.deliver(tile, out[:, i, j])
                if rest is not None:
                    copies.deliver(rest, job.low[:, i, j])
            if sums is not None:
                sums.columns_done(j, right)
            if number + 1 < len(columns):
                right.prefetch(columns[number + 1])
        if sums is not None:
            sums.rows_done(rows[-1], left)
        return len(rows) * len(columns)

    def _int32_tile(
        self,
        job: Job,
        tiles: CudaTiles,
        left: Side,
        right: Side,
        out: Any,
        low: Any,
        flags: Any,
    ) -> tuple[Any, Any]:
        """Multiply a tile by way of int32 products in memory.

        Returns
        -------
        lower : sequence of array of int32 or int64
            The certificate's products, per matrix: one for each part of C, or none.
        checked : array
            C' modulo the prime of checksums, where that was asked for.
        """
        check = job.check
        products, lower = self._products(left, right, job.variant, tiles)
        self.reconstruct(
            products,
            left.operand,
            right.operand,
            (left.moved, right.moved),
            job.variant,
            out,
            flags,
            low,
            check=check,
        )
        return lower, products if check else None

    def _residue_tile(
        self,
        job: Job,
        tiles: CudaTiles,
        left: Side,
        right: Side,
        out: Any,
        low: Any,
        flags: Any,
    ) -> tuple[Any, Any]:
        """Multiply a tile by way of residue tiles; returns as `_int32_tile` does."""
        device, variant, products = self.device, job.variant, tiles.products
        count = variant.planes * products
        inner = slice(0, left.x.shape[2])
        a, b = left.operand_planes(inner), right.operand_planes(inner)
        batch, m, n = out.shape
        symmetric = tiles.symmetric
        shape = tile_shape(m, n, products, symmetric=symmetric)
        size = residue_tiles_bytes(
            batch, m, n, variant.planes, products, symmetric=symmetric
        )
        residues = device.empty((size,), np.uint8)
        # Where planes of moduli are of another kind, the certificate's is by itself.
        joins = products == variant.parts == 1
        lower, rows = None, m
        if variant.cut_plane:
            if variant.parts == 2:
                rows = a[1].shape[2]
            lower = device.empty((batch, rows, n), np.int32)
        left_planes, right_planes = (
            x[0] if products == 1 else _flat(x[0]) for x in (a, b)
        )
        queue_residue_tiles(
            self,
            left_planes,
            right_planes,
            residues,
            lower if joins else None,
            (batch, shape.rows, shape.columns),
            count,
            products * variant.parts,
            first_modulus=first_modulus(variant.num_moduli, variant.family),
            symmetric=symmetric,
        )
        if variant.cut_plane and not joins:
            size_of_cuts = batch, rows, n
            queue_residue_tiles(self, a[1], b[1], residues, lower, size_of_cuts, 0)
        remainders = device.empty(out.shape, np.uint64) if job.check else None
        reconstruct_tiles(
            self,
            residues,
            left.operand,
            right.operand,
            (left.moved, right.moved),
            variant,
            out,
            flags,
            low,
            remainders,
            products,
            symmetric=symmetric,
        )
        planes = () if lower is None else _of_parts(lower, variant.parts)
        return planes, remainders

    def _products(
        self, left: Side, right: Side, variant: Variant, tiles: CudaTiles
    ) -> tuple[Any, Sequence[Any]]:
        """Return residue products of a tile, and the certificate's, per matrix."""
        count, certify = variant.planes, variant.cut_plane
        total: Any = None
        cuts: Any = None
        wide: Any = None
        inner = ranges(left.x.shape[2], tiles.k)
        a: Any = None
        b: Any = None
        of_cuts: tuple[Any, Any] = None, None
        for h in inner:
            (a, *more_a), (b, *more_b) = left.operand_planes(h), right.operand_planes(h)
            if total is None:
                total = self.residue_gemm(a, b)
            else:
                moduli = slice(count)
                self.residue_gemm(a[moduli], b[moduli], total[moduli], accumulate=True)
            if certify:
                if variant.parts == 2:
                    of_cuts = more_a[0], more_b[0]
                    cuts = self.residue_gemm(*of_cuts, cuts)
                else:
                    of_cuts = a[count:], b[count:]
                    if cuts is not None:
                        self.residue_gemm(*of_cuts, total[count:])
                    cuts = total[count:]
            if len(inner) > 1:
                if certify:
                    wide = self.widen(cuts, wide)
                self.reduce(total, variant)
        products = self.per_matrix(total, a, b)
        if not certify:
            return products, ()
        (plane,) = self.per_matrix(cuts if wide is None else wide, *of_cuts)
        return products, _of_parts(plane, variant.parts)

    def _missing_bits(
        self,
        a: Any,
        b: Any,
        first: NDArray[np.int64],
        scheme: Scheme,
        target: Target,
        budget: int,
    ) -> NDArray[np.int64]:
        """Return the bits that each matrix misses; doubtful ones by a second look."""
        short = first.copy()
        for index in np.flatnonzero(first):
            x, y = (
                real_of(z[index : index + 1] if z.shape[0] > 1 else z) for z in (a, b)
            )
            short[index] = self._second_look(x, y, scheme, target, budget)
        return short

    def _second_look(
        self, a: Any, b: Any, scheme: Scheme, target: Target, budget: int
    ) -> int:
        """Return the bits that one matrix misses, on the host for want of memory."""
        device = self.device
        while True:
            try:
                return second_look(self, a, b, scheme, target, budget)
            except Exception as error:
                if not device.is_out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
            dropped = drop_prepared(device.place())
            device.free()
            if not dropped:
                return look_on_host(self, a, b, scheme, target)


def _in_pairs(scheme: Scheme) -> bool:
    """Return whether complex products have kernels with two products for a modulus."""
    return scheme.scaling != "accurate" and scheme.num_moduli <= len(COMPLEX_MODULI)


def _of_parts(plane: Any, parts: int) -> list[Any]:
    """Return the rows of a certificate's products for each part of C."""
    rows = plane.shape[1] // parts
    return [plane[:, i * rows : (i + 1) * rows] for i in range(parts)]


def _flat(planes: Any) -> Any:
    """Return (num_moduli, products, lines, k) planes as planes of one matrix each."""
    return planes.reshape(-1, 1, *planes.shape[2:])
