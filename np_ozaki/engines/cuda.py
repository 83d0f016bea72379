"""The CUDA engine: the contract on INT8 matrix units, in integers only.

The stages have the contract's names.  This module says which kernel runs on what; how
kernels are compiled and launched, and all of CuPy, is `cuda_device`'s.  Rows of A and
columns of B are both "lines", read along k.
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki import hooks
from np_ozaki._kernels.render import Variant, limit_words
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cpu_certificate import FIRST_LOOK_BITS
from np_ozaki.engines.cuda_certificate import second_look
from np_ozaki.engines.parallel import of_batch, ranges
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.numerics.reference import norm_width
from np_ozaki.plan import CudaTiles, choose_cuda_tiles, padded

__all__ = ["CudaEngine", "Device", "Operands"]

_OPERAND = np.dtype(
    [
        (x, "u8" if x == "data" else "i8")
        for x in ("data", "batch_stride", "line_stride", "k_stride", "lines", "k")
    ]
)
_FACTS = np.dtype(
    [(x, "u8") for x in ("largest", "squares", "norms", "special", "exponents")]
)
_PLANES = np.dtype(
    [("data", "u8"), ("plane_stride", "i8"), ("lines_padded", "i8"), ("k_padded", "i8")]
)
_RULE = np.dtype(
    [("rule", "i4"), ("w", "i4"), ("limit_bits", "i4"), ("limit_top", "u8")],
    align=True,
)
_PRODUCTS = np.dtype(
    [
        ("data", "u8"),
        ("plane_stride", "i8"),
        ("batch_stride", "i8"),
        ("row_stride", "i8"),
    ]
)
_RESULT = np.dtype(
    [
        ("data", "u8"),
        ("batch_stride", "i8"),
        ("row_stride", "i8"),
        ("column_stride", "i8"),
        ("batch", "i8"),
        ("rows", "i8"),
        ("columns", "i8"),
    ]
)

_RULES = {"norm": 0, "accurate": 0, "legacy": 1}
_THREADS = 256
_CHUNK = 4096
_TILE_K, _TILE_LINES = 128, 32
_DEPTH = 512
_ROWS_A_THREAD = 4
_MOST_BLOCKS = 65535
_FUSED_BYTES = 9 * 8192 + 64
"""A line of at most this size, 8192 entries, is kept in shared memory between its two
stages: three blocks of a multiprocessor then have room."""

_LEAST_BUDGET = 1 << 22
"""Workspace below which a product that finds no memory gives up."""

_OVERFLOW, _INVALID = 1, 2
"""Flags that kernels set."""

_DOUBLE_BITS = 53


class Device(Protocol):
    """What the engine asks of a GPU: memory, kernels, INT8 products, copies.

    Arrays are of the device's own kind and speak NumPy's language: shape, strides,
    slices, `swapaxes`.  All work is queued on the caller's current stream.
    """

    def default_workspace(self) -> int:
        """Return the bytes of workspace that a product may use unless told."""
        ...

    def shared_bytes(self) -> int:
        """Return the largest dynamic shared memory of a block."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros."""
        ...

    def own(self, x: NDArray[Any]) -> Any:
        """Return a copy of a host array."""
        ...

    def native(self, a: Any, b: Any) -> Any:
        """Return the product in the device's own FP64, not emulated."""
        ...

    def out_of_memory(self) -> tuple[type[BaseException], ...]:
        """Return the errors that say so."""
        ...

    def free(self) -> None:
        """Give unused memory back."""
        ...

    def pointer(self, x: Any) -> int:
        """Return the address of an array's first entry."""
        ...

    def launch(
        self,
        stage: str,
        variant: Variant | None,
        kernel: str,
        grid: tuple[int, ...],
        block: int,
        args: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Queue a kernel; ints are passed as int64, structured arrays by value."""
        ...

    def gemm(self, left: Any, right: Any, out: Any, *, accumulate: bool) -> None:
        """Queue out[h] (+)= left[h] right[h]^T for a stack of int8 matrices."""
        ...

    def fetch(self, x: Any) -> NDArray[Any]:
        """Wait for an array and return it on the host."""
        ...

    def is_host(self, x: Any) -> bool:
        """Return whether an array lies in host memory."""
        ...

    def transfer(self) -> Any:
        """Return a context manager for the copies of one product."""
        ...

    def mark(self, stage: str) -> None:
        """Note that the work queued from here on belongs to a stage."""
        ...


@dataclass
class Facts:
    """What is known of the lines of an operand: exponents and what they come from.

    Attributes
    ----------
    words : (4, batch, lines) device array of uint64
        Largest magnitude, sum of squares, 1-norm; then flags and exponents, int32.
    first, count : int
        The lines that this part is about; all but of one matrix, all lines.
    """

    words: Any
    first: int = 0

    def struct(self, device: Device) -> NDArray[Any]:
        """Return the kernels' view."""
        size = self.words.shape[1] * self.words.shape[2]
        base = device.pointer(self.words)
        rows = [base + 8 * (i * size + self.first) for i in range(3)]
        special = base + 8 * 3 * size
        small = [special + 4 * self.first, special + 4 * (size + self.first)]
        return np.array((*rows, *small), dtype=_FACTS)

    def part(self, lines: slice) -> Facts:
        """Return the facts of some lines of a single matrix."""
        return Facts(self.words, self.first + lines.start)

    def exponents(self, device: Device) -> NDArray[np.int64]:
        """Return mu or nu on the host, (batch, lines)."""
        _, batch, lines = self.words.shape
        small = device.fetch(self.words)[3].view(np.int32).reshape(2, batch, lines)
        exponents: NDArray[np.int64] = small[1].astype(np.int64)
        return exponents


@dataclass
class Operands:
    """Lines of one operand, as an engine reads them: (batch, lines, k), any strides."""

    x: Any
    device: Device = field(repr=False)

    @property
    def along(self) -> bool:
        """Whether k is the axis of the smaller stride."""
        _, lines, k = self.x.shape
        if lines == 1 or k == 1:
            return bool(lines == 1)
        return bool(abs(self.x.strides[2]) <= abs(self.x.strides[1]))

    def struct(self) -> NDArray[Any]:
        """Return the kernels' view."""
        strides = (s // 8 for s in self.x.strides)
        pointer = self.device.pointer(self.x)
        return np.array((pointer, *strides, *self.x.shape[1:]), dtype=_OPERAND)

    def of(self, lines: slice, inner: slice = slice(None)) -> Operands:
        """Return a part of every matrix."""
        return Operands(self.x[:, lines, inner], self.device)


class CudaEngine:
    """Ozaki scheme II on INT8 matrix units, bit for bit the contract.

    Parameters
    ----------
    device : Device
        Where kernels run.
    """

    name = "cuda"

    def __init__(self, device: Device) -> None:
        self.device = device

    # Stages --------------------------------------------------------------------

    def scaling_exponents(
        self, a: Any, b: Any, num_moduli: int, scaling: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the scaling exponents of the rows of A and the columns of B.

        Parameters
        ----------
        a : (batch, m, k) device array of float64
            NaN and Inf count as 0.
        b : (batch, k, n) device array of float64
            Likewise; of the same batch.
        num_moduli : int
            N of the contract.
        scaling : str
            "norm", "accurate" or "legacy".

        Returns
        -------
        mu : (batch, m) ndarray of int64
            On the host.
        nu : (batch, n) ndarray of int64
            On the host.
        """
        *_, rows, columns = self.facts_of(a, b, num_moduli, scaling)
        return rows.exponents(self.device), columns.exponents(self.device)

    def facts_of(
        self, a: Any, b: Any, num_moduli: int, scaling: str
    ) -> tuple[Operands, Operands, Facts, Facts]:
        """Return the lines of device arrays, and what is known of them."""
        left = Operands(a, self.device)
        right = Operands(b.swapaxes(1, 2), self.device)
        rows, columns = (
            self._line_facts(x, num_moduli, scaling) for x in (left, right)
        )
        if scaling == "accurate":
            tiles = choose_cuda_tiles(
                left.x.shape[0],
                left.x.shape[1],
                right.x.shape[1],
                left.x.shape[2],
                num_planes=1,
                budget=self.device.default_workspace(),
            )
            self._accurate(left, right, rows, columns, num_moduli, tiles)
        return left, right, rows, columns

    def _rule(self, num_moduli: int, scaling: str) -> NDArray[Any]:
        bits, top = limit_words(num_moduli)
        w = norm_width(product_bound(num_moduli))
        return np.array((_RULES[scaling], w, bits, top), dtype=_RULE)

    def _new_facts(self, operand: Operands) -> Facts:
        batch, lines, _ = operand.x.shape
        return Facts(self.device.zeros((4, batch, lines), np.uint64))

    def _line_facts(self, operand: Operands, num_moduli: int, scaling: str) -> Facts:
        """Queue the kernels of stage scaling_exponents for one operand."""
        batch, lines, k = operand.x.shape
        facts = self._new_facts(operand)
        self.device.mark("scaling_exponents")
        x, rule = operand.struct(), self._rule(num_moduli, scaling)
        view = facts.struct(self.device)
        depth = _CHUNK if operand.along else _DEPTH
        strips = lines if operand.along else -(-lines // _TILE_LINES)
        grid = (batch * strips * -(-k // depth),)
        how = "along" if operand.along else "across"
        self.launch("scaling_exponents", f"largest_{how}", grid, (x, view, depth))
        self.launch("scaling_exponents", f"sums_{how}", grid, (x, view, depth, rule))
        self._per_line("scaling_exponents", "exponents_from_sums", facts, (), rule)
        return facts

    @staticmethod
    def flat_grid(count: int) -> tuple[int]:
        """Return a grid for one thread an item."""
        return (-(-count // _THREADS),)

    @staticmethod
    def entry_grid(batch: int, m: int, n: int) -> tuple[tuple[int, int, int], int]:
        """Return a grid for the entries of a result, and the columns of a block."""
        width = min(_THREADS, 1 << (n - 1).bit_length())
        height = _ROWS_A_THREAD * (_THREADS // width)
        return (-(-n // width), min(-(-m // height), _MOST_BLOCKS), batch), width

    def launch(
        self,
        stage: str,
        kernel: str,
        grid: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        variant: Variant | None = None,
        block: int = _THREADS,
        shared: int = 0,
    ) -> None:
        """Queue a kernel of a stage."""
        self.device.launch(stage, variant, kernel, grid, block, args, shared)

    def _per_line(
        self,
        stage: str,
        kernel: str,
        facts: Facts,
        args: tuple[Any, ...],
        rule: NDArray[Any],
    ) -> None:
        count = math.prod(facts.words.shape[1:])
        view = facts.struct(self.device)
        grid = self.flat_grid(count)
        self.launch(stage, kernel, grid, (view, count, *args, rule))

    def residues(self, operand: Operands, facts: Facts, variant: Variant) -> Any:
        """Return the residues of one scaled operand.

        Parameters
        ----------
        operand : Operands
            Lines of A or of B.
        facts : Facts
            Their exponents.
        variant : tuple
            Number of moduli, scaling, and whether the plane of a certificate follows.

        Returns
        -------
        (num_planes, batch, lines, k) device array of int8
            Lines and k padded with zeros to what the matrix units want.
        """
        self.device.mark("residues")
        planes = self.new_planes(operand, variant[0] + variant[2])
        self.queue_planes("residues", "residues", operand, facts, planes, variant)
        return planes

    def new_planes(self, operand: Operands, count: int) -> Any:
        """Return uninitialised planes for an operand."""
        batch, lines, k = operand.x.shape
        return self.device.empty((count, batch, padded(lines), padded(k)), np.int8)

    def _planes_struct(self, planes: Any) -> NDArray[Any]:
        _, batch, lines, k = planes.shape
        pointer = self.device.pointer(planes)
        return np.array((pointer, batch * lines * k, lines, k), dtype=_PLANES)

    def queue_planes(
        self,
        stage: str,
        kernel: str,
        operand: Operands,
        facts: Facts,
        planes: Any,
        variant: Variant | None,
    ) -> None:
        """Queue the kernel that turns lines to planes of bytes."""
        _, batch, lines, k = planes.shape
        if operand.along:
            grid = (batch * lines * -(-k // _CHUNK),)
        else:
            grid = (batch * -(-k // _TILE_K) * -(-lines // _TILE_LINES),)
        args = (
            operand.struct(),
            facts.struct(self.device),
            self._planes_struct(planes),
        )
        how = "along" if operand.along else "across"
        self.launch(stage, f"{kernel}_{how}", grid, args, variant=variant)

    def _fused(
        self, operand: Operands, num_moduli: int, scaling: str, variant: Variant
    ) -> tuple[Facts, Any]:
        """Return facts and residues of lines that shared memory holds, read once."""
        facts = self._new_facts(operand)
        self.device.mark("residues")
        planes = self.new_planes(operand, num_moduli + variant[2])
        args = (
            operand.struct(),
            facts.struct(self.device),
            self._rule(num_moduli, scaling),
            self._planes_struct(planes),
        )
        grid = (planes.shape[1] * planes.shape[2],)
        shared = _spread_bytes(operand.x.shape[2])
        self.launch(
            "residues",
            "exponents_and_residues",
            grid,
            args,
            variant=variant,
            shared=shared,
        )
        return facts, planes

    def residue_gemm(
        self, left: Any, right: Any, out: Any = None, *, accumulate: bool = False
    ) -> Any:
        """Multiply plane by plane.

        Parameters
        ----------
        left : (num_planes, batch, m, k) device array of int8
            From `residues`; batch 1 broadcasts.
        right : (num_planes, batch, n, k) device array of int8
            From `residues`; batch 1 broadcasts.
        out : device array of int32, optional
            What an earlier call returned, reduced.
        accumulate : bool, optional
            Add to `out`.

        Returns
        -------
        (num_planes, batch, m, n) device array of int32
            Exact, or for p = 256 exact modulo 2^32; a view with strides where a
            batch was broadcast.
        """
        self.device.mark("residue_gemm")
        planes, batch_a, m, k = left.shape
        batch_b, n = right.shape[1:3]
        # An operand that serves a whole batch is one matrix, and the other's lines of
        # all matrices are the lines of one.
        fold_a, fold_b = batch_b == 1 < batch_a, batch_a == 1 < batch_b
        if fold_a:
            left = left.reshape(planes, 1, batch_a * m, k)
        if fold_b:
            right = right.reshape(planes, 1, batch_b * n, k)
        stack = planes * left.shape[1]
        rows, columns = left.shape[2], right.shape[2]
        if out is None:
            out = self.device.empty((planes, left.shape[1], rows, columns), np.int32)
        self.device.gemm(
            left.reshape(stack, rows, k),
            right.reshape(stack, columns, k),
            out.reshape(stack, rows, columns),
            accumulate=accumulate,
        )
        return out

    @staticmethod
    def _per_matrix(products: Any, left: Any, right: Any) -> Any:
        """Return products as (num_planes, batch, m, n), where a batch was folded."""
        planes, batch_a, m, _ = left.shape
        batch_b, n = right.shape[1:3]
        if batch_b == 1 < batch_a:
            return products.reshape(planes, batch_a, m, n)
        if batch_a == 1 < batch_b:
            return products.reshape(planes, m, batch_b, n).swapaxes(1, 2)
        return products

    def reduce(self, products: Any, variant: Variant) -> None:
        """Reduce residue products modulo p in place, between blocks of k.

        Parameters
        ----------
        products : (num_planes, ...) device array of int32
            From `residue_gemm`; a certificate's plane stays as it is.
        variant : tuple
            Number of moduli, scaling, certificate.
        """
        self.device.mark("reduce")
        count = math.prod(products.shape[1:])
        grid = self.flat_grid(count)
        self.launch("reduce", "reduce", grid, (products, count), variant=variant)

    def reconstruct(
        self,
        products: Any,
        left: Operands,
        right: Operands,
        facts: tuple[Facts, Facts],
        variant: Variant,
        out: Any,
        flags: Any,
    ) -> None:
        """Write C, rounded once, to `out`; NaN and Inf where IEEE products have them.

        Parameters
        ----------
        products : (num_planes, batch, m, n) device array of int32
            One per matrix; padding in m and n is not looked at.
        left, right : Operands
            Lines of A and of B, for NaN and Inf.
        facts : tuple of Facts
            Exponents of both.
        variant : tuple
            Number of moduli, scaling, certificate.
        out : (batch, m, n) device array of float64
            Any strides.
        flags : (1,) device array of int32
            Overflow and invalid are joined to it.
        """
        self.device.mark("reconstruct")
        batch, m, n = out.shape
        grid, width = self.entry_grid(batch, m, n)
        strides = (s // 4 for s in products.strides[:3])
        source = np.array((self.device.pointer(products), *strides), dtype=_PRODUCTS)
        result = np.array(
            (self.device.pointer(out), *(s // 8 for s in out.strides), batch, m, n),
            dtype=_RESULT,
        )
        args = (
            source,
            left.struct(),
            facts[0].struct(self.device),
            left.x.shape[0],
            right.struct(),
            facts[1].struct(self.device),
            right.x.shape[0],
            result,
            width,
            flags,
        )
        self.launch("reconstruct", "reconstruct", grid, args, variant=variant)

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
        budget = workspace_bytes or self.device.default_workspace()
        while True:
            tiles = choose_cuda_tiles(
                *out.shape,
                k,
                num_planes=num_moduli + certify,
                budget=budget,
                host=self.device.is_host(out),
            )
            try:
                return self._tiled(a, b, out, variant, tiles)
            except self.device.out_of_memory() as error:
                # What the failed try holds is free only when its frames are.
                traceback.clear_frames(error.__traceback__)
                if budget <= _LEAST_BUDGET:
                    self.device.free()
                    raise
            self.device.free()
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
        short = self._missing_bits(a, b, missing, variant) if certify else None
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
            facts = [self._line_facts(x.whole(), *variant[:2]) for x in (left, right)]
            left.known, right.known = facts
            self._accurate(
                left.whole(), right.whole(), facts[0], facts[1], variant[0], tiles
            )
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
                    self._certify(lower, left, right, tile.shape, missing)
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
                    wide = self._widen(total[num_moduli:], wide)
                self.reduce(total, variant)
        products = self._per_matrix(total, a, b)
        lower = None
        if certify:
            plane = total[num_moduli:] if wide is None else wide
            lower = self._per_matrix(plane, a[:1], b[:1])[0]
        return products, lower

    def _widen(self, products: Any, wide: Any) -> Any:
        """Add one plane of products to its 64-bit sums."""
        if wide is None:
            wide = self.device.zeros(products.shape, np.int64)
        count = math.prod(products.shape)
        self.launch(
            "certificate", "widen", self.flat_grid(count), (products, wide, count)
        )
        return wide

    # Scaling "accurate" ------------------------------------------------------------

    def _accurate(
        self,
        left: Operands,
        right: Operands,
        rows: Facts,
        columns: Facts,
        num_moduli: int,
        tiles: CudaTiles,
    ) -> None:
        """Replace exponents by those of rule "accurate", over whole operands."""
        batch, m, k = left.x.shape
        n = right.x.shape[1]
        device = self.device
        maxima = [device.zeros((batch, x), np.uint64) for x in (m, n)]
        for j in ranges(n, tiles.n):
            for i in ranges(m, tiles.m):
                total: Any = None
                wide: Any = None
                inner = ranges(k, tiles.k)
                for h in inner:
                    planes = []
                    for one, facts, part in ((left, rows, i), (right, columns, j)):
                        piece = one.of(part, h)
                        planes.append(self.new_planes(piece, 1))
                        known = facts.part(part) if batch == 1 else facts
                        self.queue_planes(
                            "accurate", "ceilings", piece, known, planes[-1], None
                        )
                    total = self.residue_gemm(planes[0], planes[1], total)
                    if len(inner) > 1:
                        wide = self._widen(total, wide)
                products = total if wide is None else wide
                shape = (batch, i.stop - i.start, j.stop - j.start)
                size = products.strides[3]
                args = (
                    products,
                    products.strides[1] // size,
                    products.strides[2] // size,
                    *shape,
                    maxima[0][:, i],
                    maxima[1][:, j],
                    m,
                    n,
                )
                kernel = "maxima" if wide is None else "wide_maxima"
                grid = self.flat_grid(math.prod(shape))
                self.launch("accurate", kernel, grid, args)
        rule = self._rule(num_moduli, "accurate")
        for facts, most in zip((rows, columns), maxima, strict=True):
            self._per_line("accurate", "exponents_from_maxima", facts, (most,), rule)

    # The certificate of precision "auto" ---------------------------------------------

    def _certify(
        self,
        lower: Any,
        left: _Side,
        right: _Side,
        shape: tuple[int, int, int],
        missing: Any,
    ) -> None:
        """Queue the first look at a tile; `missing` takes the maximum."""
        self.device.mark("certificate")
        _, m, n = shape
        k = left.x.shape[2]
        factor = k
        if 2 * (k.bit_length() + FIRST_LOOK_BITS) + 7 > _DOUBLE_BITS:
            factor = 1 << (k.bit_length() - 1)  # as every engine does
        grid, width = self.entry_grid(*shape)
        args = (
            lower,
            *(s // lower.itemsize for s in lower.strides[:2]),
            left.facts.struct(self.device),
            left.x.shape[0],
            right.facts.struct(self.device),
            right.x.shape[0],
            m,
            n,
            127 * factor,
            k.bit_length() + 9,
            width,
            missing,
        )
        kernel = "certificate" if lower.itemsize == 4 else "wide_certificate"
        self.launch("certificate", kernel, grid, args)

    def _missing_bits(
        self, a: Any, b: Any, missing: Any, variant: Variant
    ) -> NDArray[np.int64]:
        """Return the bits that each matrix misses; doubtful ones by a second look."""
        device = self.device
        short = device.fetch(missing).astype(np.int64)
        for index in np.flatnonzero(short):
            pair = []
            for x in (a, b):
                part = x[index : index + 1] if x.shape[0] > 1 else x
                pair.append(device.own(part) if device.is_host(part) else part)
            short[index] = second_look(self, pair[0], pair[1], *variant[:2])
        return short


def _spread_bytes(k: int) -> int:
    """Return the bytes of a line in shared memory, where a word in nine is left out."""
    return 8 * (k + k // 8 + 1)


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
        elif (
            self.operand.along
            and k <= self._k_block
            and _spread_bytes(k) <= min(_FUSED_BYTES, engine.device.shared_bytes())
        ):
            self.facts, planes = engine._fused(
                self.operand, num_moduli, scaling, self.variant
            )
            self._planes = (slice(0, k), planes)
        else:
            self.facts = engine._line_facts(self.operand, num_moduli, scaling)

    def planes(self, inner: slice) -> Any:
        """Return the planes of a block of k of the current tile."""
        if self._planes is None or self._planes[0] != inner:
            self._planes = None
            operand = self.operand.of(slice(None), inner)
            planes = self.engine.residues(operand, self.facts, self.variant)
            self._planes = (inner, planes)
        return self._planes[1]
