"""The stages of the CPU engine: the contract on NumPy arrays and FP64 BLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu_accurate import auxiliary_maxima
from np_ozaki.engines.cpu_checksum import Tally
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
from np_ozaki.engines.parallel import Block, available_threads, blocks, run_blocks
from np_ozaki.engines.residue_system import ResidueSystem
from np_ozaki.numerics.moduli import Family

__all__ = ["CpuStages"]

Array = NDArray[np.float64]


class CpuStages:
    """The stages of the contract on a CPU, one method each.

    Parameters
    ----------
    threads : int, optional
        Threads for the elementwise stages; all cores by default.  BLAS has its own.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or available_threads()

    def scaling_exponents(
        self,
        a: Array,
        b: Array,
        num_moduli: int,
        scaling: str,
        family: Family = "real",
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
        family : {"real", "complex"}, optional
            Whose moduli; see `Scheme`.

        Returns
        -------
        mu : (batch, m) ndarray of int64
        nu : (batch, n) ndarray of int64
        """
        left, right = Lines.of(a, -1, self.threads), Lines.of(b, -2, self.threads)
        largest = magnitudes(left), magnitudes(right)
        scheme = Scheme(num_moduli, scaling, family=family)
        return self._exponents(left, right, largest, scheme)

    def _exponents(
        self,
        left: Lines,
        right: Lines,
        largest: tuple[Array, Array],
        scheme: Scheme,
    ) -> tuple[Exponents, Exponents]:
        if scheme.scaling != "accurate":
            mu = self.line_exponents_of(left, largest[0], scheme, left=True)
            return mu, self.line_exponents_of(right, largest[1], scheme, left=False)
        limit, shift = scheme.limit, scheme.shift
        rows, columns = auxiliary_maxima(left.matrix(-1), right.matrix(-2), *largest)
        if scheme.family == "complex":
            m = rows.shape[1] // 2
            rows = np.tile(np.maximum(rows[:, :m], rows[:, m:]), 2)
        mu = accurate_exponents(largest[0], rows, limit)
        nu = accurate_exponents(largest[1], columns, limit)
        return (mu - shift, nu + shift) if shift else (mu, nu)

    @staticmethod
    def line_exponents_of(
        lines: Lines, largest: Array, scheme: Scheme, *, left: bool
    ) -> Exponents:
        """Return mu (left) or nu of a scaling that looks at one operand.

        Parameters
        ----------
        lines : Lines
            Rows of A or columns of B, finite.
        largest : (batch, lines) ndarray of float64
            From `magnitudes`.
        scheme : Scheme
            With scaling "norm" or "legacy".
        left : bool
            Whether they are A's.

        Returns
        -------
        (batch, lines) ndarray of int64
        """
        rule = norm_exponents if scheme.scaling == "norm" else legacy_exponents
        exponents = rule(lines, largest, scheme.limit)
        shift = -scheme.shift if left else scheme.shift
        return exponents + shift if shift else exponents

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
        low: Array | None = None,
        tally: Tally | None = None,
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
        low : (batch, m, n) ndarray of float64, optional
            What that rounding left.
        tally : Tally, optional
            Is given the integers C'.
        """
        reconstruct(products, mu, nu, system, out, self.threads, low, tally)
