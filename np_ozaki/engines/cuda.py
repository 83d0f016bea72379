"""The CUDA engine: the contract on INT8 matrix units, in integers only.

This module cuts products to tiles and takes each through the stages, which are in
`cuda_stages`; what CuPy does, from launching kernels to copying, is in `cuda_device`
and `cuda_copies`.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki._kernels.render import Variant
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cuda_accurate import replace_exponents
from np_ozaki.engines.cuda_certificate import first_look, look_on_host, second_look
from np_ozaki.engines.cuda_lines import Facts, Operands
from np_ozaki.engines.cuda_stages import Stages
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.errors import WorkspaceError, refusal
from np_ozaki.plan import CudaTiles, choose_cuda_tiles

__all__ = ["CudaEngine"]

_LEAST_BUDGET = 1 << 22
"""Workspace below which a product that finds no memory gives up."""

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

    # The product -----------------------------------------------------------------

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        num_moduli: int,
        scaling: str,
        workspace_bytes: int | None,
        certify: bool = False,
    ) -> Outcome:
        """Write the product of the contract to `out`.

        Parameters
        ----------
        a : (batch, m, k) array of float64
            On the device or the host, any strides; batch 1 broadcasts.
        b : (batch, k, n) array of float64
            On the same side, any strides; batch 1 broadcasts.
        out : (batch, m, n) array of float64
            On the same side, any strides; must not overlap an operand.
        num_moduli : int
            N of the contract, 2 to 49.
        scaling : str
            "norm", "accurate" or "legacy".
        workspace_bytes : int or None
            Device memory for this product; None is the device's own default.
        certify : bool
            Also tell whether every entry is as accurate as a conventional product is
            guaranteed to be (see `cpu_certificate`).

        Returns
        -------
        Outcome
            The tiling; the exceptions that IEEE arithmetic would have flagged only
            for operands on the host: on the device nothing waits for them.
        """
        k = a.shape[2]
        if not k or not out.size:
            out[...] = 0.0
            sure = np.zeros(out.shape[0], dtype=np.int64) if certify else None
            return Outcome(False, False, 0, 0, sure)
        if abs(out.strides[1]) < abs(out.strides[2]):
            # C^T = B^T A^T: results are written along the smaller stride.
            a, b, out = b.swapaxes(1, 2), a.swapaxes(1, 2), out.swapaxes(1, 2)
        variant = (num_moduli, scaling, certify)
        outcome = self._within_memory(a, b, out, variant, workspace_bytes)
        if outcome.missing_bits is None:
            return outcome
        budget = workspace_bytes or self.device.default_workspace()
        short = self._missing_bits(a, b, outcome.missing_bits, variant, budget)
        return replace(outcome, missing_bits=short)

    def _within_memory(
        self, a: Any, b: Any, out: Any, variant: Variant, workspace_bytes: int | None
    ) -> Outcome:
        """Multiply in tiles that the device has memory for, trying smaller ones."""
        device = self.device
        budget = workspace_bytes or device.default_workspace()
        while True:
            tiles = choose_cuda_tiles(
                *out.shape,
                a.shape[2],
                num_planes=variant[0] + variant[2],
                budget=budget,
                host=device.is_host(out),
            )
            try:
                return self._tiled(a, b, out, variant, tiles)
            except Exception as error:
                if not device.is_out_of_memory(error):
                    raise
                # What the failed try holds is free only when its frames are.
                traceback.clear_frames(error.__traceback__)
                message = str(error)
            device.free()
            if budget <= _LEAST_BUDGET:
                raise WorkspaceError(
                    refusal(
                        "workspace_bytes",
                        workspace_bytes,
                        f"the GPU has no memory for the smallest tiles ({message})",
                        "free arrays there; the same product on engine='cpu' has the "
                        "same bits",
                    )
                )
            budget = min(budget, tiles.workspace_bytes) // 4

    def _tiled(
        self, a: Any, b: Any, out: Any, variant: Variant, tiles: CudaTiles
    ) -> Outcome:
        host, certify = self.device.is_host(out), variant[2]
        flags = self.device.zeros((1,), np.int32)
        missing = self.device.zeros((out.shape[0],), np.int32)
        count = 0
        with self.device.transfer() as copies:
            for part in ranges(out.shape[0], tiles.batch):
                count += self._part(
                    a[of_batch(part, a)],
                    b[of_batch(part, b)],
                    out[part],
                    variant,
                    tiles,
                    copies,
                    flags,
                    missing[part] if certify else None,
                )
        happened = int(self.device.fetch(flags)[0]) if host else 0
        short = self.device.fetch(missing).astype(np.int64) if certify else None
        return Outcome(
            overflow=bool(happened & _OVERFLOW),
            invalid=bool(happened & _INVALID),
            workspace_bytes=tiles.workspace_bytes,
            tiles=count,
            missing_bits=short,
        )

    def _part(
        self,
        a: Any,
        b: Any,
        out: Any,
        variant: Variant,
        tiles: CudaTiles,
        copies: Any,
        flags: Any,
        missing: Any,
    ) -> int:
        """Multiply one part of a batch; return the number of tiles."""
        scaling = variant[1]
        if scaling == "accurate" and a.shape[0] != b.shape[0]:
            # These exponents depend on the partner: no operand serves a whole batch.
            a, b = (np.broadcast_to(x, (out.shape[0], *x.shape[1:])) for x in (a, b))
        left = _Side(self, a, variant, tiles.k, copies)
        right = _Side(self, b.swapaxes(1, 2), variant, tiles.k, copies)
        rows, columns = ranges(out.shape[1], tiles.m), ranges(out.shape[2], tiles.n)
        if scaling == "accurate":
            whole = left.whole(), right.whole()
            rows_known, columns_known = (
                self.line_facts(x, *variant[:2]) for x in whole
            )
            replace_exponents(
                self, *whole, rows_known, columns_known, variant[0], tiles
            )
            left.known, right.known = rows_known, columns_known
        for number, j in enumerate(columns):
            right.enter(j)
            for i in rows:
                left.enter(i)
                products, lower = self._products(left, right, variant, tiles)
                tile = copies.result(out[:, i, j])
                facts_of = left.facts, right.facts
                self.reconstruct(
                    products,
                    left.operand,
                    right.operand,
                    facts_of,
                    variant,
                    tile,
                    flags,
                )
                if missing is not None:
                    first_look(
                        self,
                        lower,
                        left.operand,
                        right.operand,
                        facts_of,
                        tile.shape,
                        missing,
                    )
                del products, lower
                copies.deliver(tile, out[:, i, j])
            if number + 1 < len(columns):
                right.prefetch(columns[number + 1])
        return len(rows) * len(columns)

    def _products(
        self, left: _Side, right: _Side, variant: Variant, tiles: CudaTiles
    ) -> tuple[Any, Any]:
        """Return residue products of a tile, and the certificate's, per matrix."""
        num_moduli, _, certify = variant
        total: Any = None
        wide: Any = None
        inner = ranges(left.x.shape[2], tiles.k)
        a: Any = None
        b: Any = None
        for h in inner:
            a, b = left.planes(h), right.planes(h)
            if total is None:
                total = self.residue_gemm(a, b)
            else:
                moduli = slice(num_moduli)
                self.residue_gemm(a[moduli], b[moduli], total[moduli], accumulate=True)
                if certify:
                    rest = slice(num_moduli, None)
                    self.residue_gemm(a[rest], b[rest], total[rest])
            if len(inner) > 1:
                if certify:
                    wide = self.widen(total[num_moduli:], wide)
                self.reduce(total, variant)
        products = self.per_matrix(total, a, b)
        lower = None
        if certify:
            plane = total[num_moduli:] if wide is None else wide
            lower = self.per_matrix(plane, a[:1], b[:1])[0]
        return products, lower

    def _missing_bits(
        self,
        a: Any,
        b: Any,
        first: NDArray[np.int64],
        variant: Variant,
        budget: int,
    ) -> NDArray[np.int64]:
        """Return the bits that each matrix misses; doubtful ones by a second look."""
        device = self.device
        short = first.copy()
        for index in np.flatnonzero(first):
            x, y = (z[index : index + 1] if z.shape[0] > 1 else z for z in (a, b))
            try:
                short[index] = second_look(self, x, y, variant[0], variant[1], budget)
                continue
            except Exception as error:
                if not device.is_out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
            device.free()
            short[index] = look_on_host(self, x, y, variant[0], variant[1])
        return short


class _Side:
    """One operand of a product, from host or device memory to planes, tile by tile.

    What is made for a tile of lines is kept until another tile is entered.
    """

    def __init__(
        self, engine: CudaEngine, x: Any, variant: Variant, k_block: int, copies: Any
    ) -> None:
        self.engine = engine
        self.x = x
        self.variant = variant
        self.known: Facts | None = None
        self._k_block = k_block
        self._source = copies.source(x)
        self._lines: slice | None = None
        self._planes: tuple[slice, Any] | None = None
        self._whole: Any = None
        self.operand: Operands
        self.facts: Facts

    def whole(self) -> Operands:
        """Return all lines on the device."""
        if self._whole is None:
            self._whole = self._source.load(slice(0, self.x.shape[1]))
        return Operands(self._whole, self.engine.device)

    def prefetch(self, lines: slice) -> None:
        """Start to bring a tile of lines to the device."""
        if self._whole is None:
            self._source.prefetch(lines)

    def enter(self, lines: slice) -> None:
        """Go on to a tile of lines."""
        if self._lines == lines:
            return
        self._planes = None
        self._lines = lines
        engine = self.engine
        if self._whole is not None:
            self.operand = self.whole().of(lines)
        else:
            self.operand = Operands(self._source.load(lines), engine.device)
        num_moduli, scaling, _ = self.variant
        k = self.x.shape[2]
        if self.known is not None:
            single = self.known.words.shape[1] == 1
            self.facts = self.known.part(lines) if single else self.known
        elif engine.fits_shared(self.operand) and k <= self._k_block:
            self.facts, planes = engine.fused(self.operand, self.variant)
            self._planes = (slice(0, k), planes)
        else:
            self.facts = engine.line_facts(self.operand, num_moduli, scaling)

    def planes(self, inner: slice) -> Any:
        """Return the planes of a block of k of the current tile."""
        if self._planes is None or self._planes[0] != inner:
            self._planes = None
            operand = self.operand.of(slice(None), inner)
            planes = self.engine.residues(operand, self.facts, self.variant)
            self._planes = (inner, planes)
        return self._planes[1]
