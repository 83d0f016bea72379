"""The stages of the CUDA engine: which kernel runs on what.

Structures here mirror those of the kernels' headers, field by field.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki._kernels.render import AnyVariant, Variant, lent_bits, limit_words
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cuda_accurate import replace_exponents
from np_ozaki.engines.cuda_lines import (
    Device,
    Facts,
    Operands,
    is_single,
    result_fields,
    structure,
)
from np_ozaki.numerics.moduli import Family
from np_ozaki.numerics.reference import norm_width
from np_ozaki.tiling import choose_cuda_tiles, padded

__all__ = ["Stages", "gained", "plane_count", "spread_bytes"]

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


class Stages:
    """The stages of the contract on a GPU, one method each.

    Parameters
    ----------
    device : Device
        Where kernels run.
    """

    def __init__(self, device: Device) -> None:
        self.device = device

    # Stages --------------------------------------------------------------------

    def scaling_exponents(
        self,
        a: Any,
        b: Any,
        num_moduli: int,
        scaling: str,
        family: Family = "real",
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
        family : {"real", "complex"}, optional
            Whose moduli; see `Scheme`.

        Returns
        -------
        mu : (batch, m) ndarray of int64
            On the host.
        nu : (batch, n) ndarray of int64
            On the host.
        """
        scheme = Scheme(num_moduli, scaling, family=family)
        *_, rows, columns = self.facts_of(a, b, scheme)
        return rows.exponents(self.device), columns.exponents(self.device)

    def facts_of(
        self, a: Any, b: Any, scheme: Scheme
    ) -> tuple[Operands, Operands, Facts, Facts]:
        """Return the lines of device arrays, and what is known of them."""
        left = Operands(a, self.device)
        right = Operands(b.swapaxes(1, 2), self.device)
        rows = self.line_facts(left, scheme, left=True)
        columns = self.line_facts(right, scheme, left=False)
        if scheme.scaling == "accurate":
            tiles = choose_cuda_tiles(
                left.x.shape[0],
                left.x.shape[1],
                right.x.shape[1],
                left.x.shape[2],
                num_planes=1,
                budget=self.device.default_workspace(),
            )
            replace_exponents(self, left, right, rows, columns, scheme, tiles)
        return left, right, rows, columns

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def rule(scheme: Scheme, left: bool) -> NDArray[np.void]:
        """Return what kernels must know to make exponents of A (left) or B."""
        bits, top = limit_words(scheme.num_moduli, scheme.family)
        w = norm_width(scheme.limit)
        # Four 32-bit fields, the last one with a sign, then one of 64 bits without.
        signed = top - (1 << 64) if top >> 63 else top
        shift = gained(scheme, left)
        return structure(_RULES[scheme.scaling] | w << 32, bits | shift << 32, signed)

    def new_facts(self, operand: Operands) -> Facts:
        """Return zeros for the facts of an operand's lines."""
        batch, lines, _ = operand.x.shape
        return Facts(self.device.zeros((4, batch, lines), np.uint64))

    def line_facts(self, operand: Operands, scheme: Scheme, *, left: bool) -> Facts:
        """Queue the kernels of stage scaling_exponents for A (left) or B."""
        facts = self.new_facts(operand)
        self.device.mark("scaling_exponents")
        x, rule = operand.struct(), self.rule(scheme, left)
        view = facts.struct(self.device)
        grid, depth, how = self.shares(operand.words, along=operand.along)
        variant = operand.kernels()
        for kernel, args in (("largest", ()), ("sums", (rule,))):
            self.launch(
                "scaling_exponents",
                f"{kernel}_{how}",
                grid,
                (x, view, depth, *args),
                variant=variant,
            )
        self.per_line(
            "scaling_exponents", "exponents_from_sums", facts, (), rule, variant
        )
        return facts

    def lowest_units(self, operand: Operands, below: Any) -> None:
        """Queue the kernel that finds 2000 - l of each line, multiples of 2^l.

        Parameters
        ----------
        operand : Operands
            Lines; NaN and Inf count as 0.
        below : (batch, lines) device array of int32
            Zeros; takes the maxima.
        """
        self.by_shares("scaling_exponents", "units", operand, (below,))

    def by_shares(
        self, stage: str, kernel: str, operand: Operands, args: tuple[Any, ...]
    ) -> None:
        """Queue a kernel whose blocks take a share of an operand each."""
        grid, depth, how = self.shares(operand.x.shape, along=operand.along)
        args = (operand.struct(), depth, *args)
        self.launch(stage, f"{kernel}_{how}", grid, args, variant=operand.kernels())

    def moved_facts(
        self, operand: Operands, facts: Facts, shifts: NDArray[np.int64]
    ) -> Facts:
        """Return facts for `reconstruct` with (batch, lines) shifts in the exponents.

        The operand has as many matrices as there are shifts.
        """
        # The kernel reads one a line: fewer would be read past their end.
        shifts = np.broadcast_to(shifts, operand.x.shape[:2])
        moved = self.new_facts(operand)
        args = (
            facts.struct(self.device),
            shifts.size,
            self.device.own(np.ascontiguousarray(shifts, dtype=np.int32)),
            moved.struct(self.device),
        )
        grid, variant = self.flat_grid(shifts.size), operand.kernels()
        self.launch("scaling_exponents", "moved_exponents", grid, args, variant=variant)
        return moved

    @staticmethod
    def operand_variant(
        variant: Variant, scheme: Scheme, operand: Operands, *, left: bool
    ) -> Variant:
        """Return the variant of stage residues for A (left) or B."""
        gain = gained(scheme, left)
        lent = lent_bits(scheme.num_moduli, scheme.scaling, gain, scheme.family)
        return variant._replace(lent_bits=lent, single=operand.is_single)

    @staticmethod
    def shares(
        shape: tuple[int, int, int], *, along: bool, across_depth: int = _DEPTH
    ) -> tuple[tuple[int], int, str]:
        """Return grid, depth and direction for (batch, lines, words) of any kind."""
        batch, lines, k = shape
        depth = _CHUNK if along else across_depth
        strips = lines if along else -(-lines // _TILE_LINES)
        how = "along" if along else "across"
        return (batch * strips * -(-k // depth),), depth, how

    @staticmethod
    def flat_grid(count: int) -> tuple[int]:
        """Return a grid for one thread an item."""
        return (-(-count // _THREADS),)

    @staticmethod
    def entry_grid(
        batch: int, m: int, n: int, rows_a_thread: int | None = None
    ) -> tuple[tuple[int, int, int], int]:
        """Return a grid for the entries of a result, and the columns of a block."""
        width = min(_THREADS, 1 << (n - 1).bit_length())
        height = (rows_a_thread or _ROWS_A_THREAD) * (_THREADS // width)
        return (-(-n // width), min(-(-m // height), _MOST_BLOCKS), batch), width

    def launch(
        self,
        stage: str,
        kernel: str,
        grid: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        variant: AnyVariant | None = None,
        shared: int = 0,
    ) -> None:
        """Queue a kernel of a stage."""
        self.device.launch(stage, variant, kernel, grid, _THREADS, args, shared)

    def per_line(
        self,
        stage: str,
        kernel: str,
        facts: Facts,
        args: tuple[Any, ...],
        rule: NDArray[Any],
        variant: AnyVariant | None = None,
    ) -> None:
        """Queue a kernel of one thread a line."""
        count = math.prod(facts.words.shape[1:])
        view = facts.struct(self.device)
        grid = self.flat_grid(count)
        args = (view, count, *args, rule)
        self.launch(stage, kernel, grid, args, variant=variant)

    def residues(self, operand: Operands, facts: Facts, variant: Variant) -> Any:
        """Return the residues of one scaled operand.

        Parameters
        ----------
        operand : Operands
            Lines of A or of B.
        facts : Facts
            Their exponents.
        variant : Variant
            From `operand_variant`.

        Returns
        -------
        (num_planes, batch, lines, k) device array of int8
            Lines and k padded with zeros to what the matrix units want.
        """
        self.device.mark("residues")
        planes = self.new_planes(operand, plane_count(variant))
        self.queue_planes("residues", "residues", operand, facts, planes, variant)
        return planes

    def cuts(self, operand: Operands, facts: Facts, *, left: bool) -> Any:
        """Return the plane of a certificate of complex lines.

        Parameters
        ----------
        operand : Operands
            Lines of A or of B.
        facts : Facts
            Of them.
        left : bool
            Whether they are A's.

        Returns
        -------
        (1, batch, rows, 2 k) device array of int8
            Lines and k padded; A's lines are there twice, as `CutPlane` of
            cut_planes.cuh tells.
        """
        plane = self.new_cuts(operand, left=left)
        args = (
            operand.struct(),
            facts.struct(self.device),
            structure(*self.cut_fields(plane, left=left)),
        )
        batch, lines, k = operand.x.shape
        grid, how = self._by_lines(batch, padded(lines), padded(k), operand)
        kernel = f"cut_planes_{how}"
        self.launch("cut_planes", kernel, grid, args, variant=operand.kernels())
        return plane

    def new_cuts(self, operand: Operands, *, left: bool) -> Any:
        """Return room for what `cuts` returns."""
        batch, lines, k = operand.x.shape
        shape = (1, batch, padded(lines) << left, 2 * padded(k))
        return self.device.empty(shape, np.int8)

    def cut_fields(self, plane: Any, *, left: bool) -> tuple[int, ...]:
        """Return the fields of the kernels' view of the plane of a certificate."""
        rows, words = plane.shape[2:]
        lines = rows >> left
        again = lines * words if left else 0
        return (self.device.pointer(plane), again, lines, words // 2, rows)

    def new_planes(self, operand: Operands, count: int) -> Any:
        """Return uninitialised planes for an operand."""
        batch, lines, k = operand.x.shape
        return self.device.empty((count, batch, padded(lines), padded(k)), np.int8)

    def _planes_struct(self, planes: Any) -> NDArray[Any]:
        _, batch, lines, k = planes.shape
        pointer = self.device.pointer(planes)
        return structure(pointer, batch * lines * k, lines, k)

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
        view = self._planes_struct(planes)
        shape = planes.shape[1:]
        self.by_lines(stage, kernel, operand, facts, view, shape, variant)

    def by_lines(
        self,
        stage: str,
        kernel: str,
        operand: Operands,
        facts: Facts,
        view: NDArray[Any],
        shape: tuple[int, int, int],
        variant: AnyVariant | None,
    ) -> None:
        """Queue a kernel that writes bytes of lines, padded to a shape, to a view."""
        args = (operand.struct(), facts.struct(self.device), view)
        grid, how = self._by_lines(*shape, operand)
        if variant is None:
            variant = operand.kernels()
        self.launch(stage, f"{kernel}_{how}", grid, args, variant=variant)

    @staticmethod
    def _by_lines(
        batch: int, lines: int, k: int, operand: Operands
    ) -> tuple[tuple[int], str]:
        """Return grid and direction for planes of lines of so many entries."""
        words = k << operand.is_complex
        if operand.along:
            return (batch * lines * -(-words // _CHUNK),), "along"
        return (batch * -(-words // _TILE_K) * -(-lines // _TILE_LINES),), "across"

    def fits_shared(self, operand: Operands) -> bool:
        """Return whether `fused` can take lines: along k, and short enough."""
        room = min(_FUSED_BYTES, self.device.shared_bytes())
        return operand.along and spread_bytes(operand.words[2]) <= room

    def fused(
        self, operand: Operands, variant: Variant, scheme: Scheme, *, left: bool
    ) -> tuple[Facts, Any]:
        """Return facts and residues of lines that shared memory holds, read once."""
        facts = self.new_facts(operand)
        self.device.mark("residues")
        planes = self.new_planes(operand, plane_count(variant))
        args = (
            operand.struct(),
            facts.struct(self.device),
            self.rule(scheme, left),
            self._planes_struct(planes),
        )
        grid = (planes.shape[1] * planes.shape[2],)
        shared = spread_bytes(operand.words[2])
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
    def per_matrix(products: Any, left: Any, right: Any) -> Any:
        """Return products as (num_planes, batch, m, n), where a batch was folded."""
        planes, (batch_a, m), (batch_b, n) = (
            products.shape[0],
            left.shape[1:3],
            right.shape[1:3],
        )
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
        variant : Variant
            Of the product.
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
        low: Any = None,
        *,
        check: bool = False,
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
        variant : Variant
            Of the product.
        out : (batch, m, n) device array
            Any strides; entries are rounded to its type.
        flags : (1,) device array of int32
            Overflow and invalid are joined to it.
        low : (batch, m, n) device array of float64, optional
            Takes what the one rounding left; 0 where `out` is not finite.  Not beside
            float32.
        check : bool, optional
            Leave C' modulo the prime of `checksum` in the first two planes of
            `products`: lower and upper 32 bits.
        """
        self.device.mark("reconstruct")
        batch, m, n = out.shape
        grid, width = self.entry_grid(batch, m, n)
        args = (
            self.products_struct(products),
            left.struct(),
            facts[0].struct(self.device),
            left.x.shape[0],
            right.struct(),
            facts[1].struct(self.device),
            right.x.shape[0],
            self.result_struct(out),
            width,
            flags,
            self.result_struct(out if low is None else low),
        )
        variant = variant._replace(
            with_low=low is not None,
            with_check=check,
            single=left.is_single,
            single_result=is_single(out),
        )
        self.launch("reconstruct", "reconstruct", grid, args, variant=variant)

    def products_struct(self, products: Any) -> NDArray[Any]:
        """Return the kernels' view of (num_planes, batch, m, n) products."""
        strides = (s // 4 for s in products.strides[:3])
        return structure(self.device.pointer(products), *strides)

    def result_struct(self, out: Any) -> NDArray[Any]:
        """Return the kernels' view of a result."""
        return structure(*result_fields(self.device, out))

    def widen(self, products: Any, wide: Any) -> Any:
        """Add one plane of products to its 64-bit sums."""
        if wide is None:
            wide = self.device.zeros(products.shape, np.int64)
        count = math.prod(products.shape)
        self.launch(
            "certificate", "widen", self.flat_grid(count), (products, wide, count)
        )
        return wide


def plane_count(variant: Variant) -> int:
    """Return the planes that stage residues makes of an operand.

    Parameters
    ----------
    variant : Variant
        Of the product.

    Returns
    -------
    int
        With that of a certificate, but of complex operands, where it is another array.
    """
    return int(variant.planes + (variant.cut_plane and variant.parts == 1))


def gained(scheme: Scheme, left: bool) -> int:
    """Return what joins the exponents of A (left) or B.

    Parameters
    ----------
    scheme : Scheme
        Of the product.
    left : bool
        Whether it is A.

    Returns
    -------
    int
        Bits; more than 0 for an operand that the other one lends to.
    """
    return -scheme.shift if left else scheme.shift


def spread_bytes(k: int) -> int:
    """Return the bytes of a line in shared memory, where a word in nine is left out.

    Parameters
    ----------
    k : int
        Entries of the line.

    Returns
    -------
    int
        For a kernel that keeps whole lines.
    """
    return 8 * (k + k // 8 + 1)
