"""One call of a BLAS routine: its arguments as arrays, its products, its counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context, hooks
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.config import Options
from np_ozaki.gemm import product
from np_ozaki.routes.arithmetic import Scalar
from np_ozaki.routes.decision import options_for
from np_ozaki.stats import CallInfo

__all__ = ["RoutedCall", "routed_call"]

Array: TypeAlias = NDArray[Any]


class RoutedCall:
    """Multiplies for one call of a routine, and counts it as one.

    Parameters
    ----------
    route : str
        Name of the routine, for the counters.
    options : Options
        Of the scope that decides.
    """

    def __init__(self, route: str, options: Options) -> None:
        self._route = route
        self._options = options
        self._parts: list[CallInfo] = []
        self.dtype = hooks.DTYPES[route[0]]

    @property
    def looks_at_all(self) -> bool:
        """Whether scaling looks at whole operands: blocks would have other bits."""
        return self._options.scaling == "accurate"

    @property
    def mirrors(self) -> bool:
        """Whether A B^T is the transpose of B A^T, A B^H that of conj(B A^H)."""
        return self._options.mirrors(is_complex=self.dtype.kind == "c")

    def conjugates(self, trans: str) -> bool:
        """Return whether op(X) is of conj(X), which `operand` leaves to `multiply`."""
        return trans == "C" and self.dtype.kind == "c"

    def operand(
        self, pointer: int, rows: int, columns: int, leading_dim: int, trans: str = "N"
    ) -> Array:
        """Return a view of op(X), but for conjugation.

        Parameters
        ----------
        pointer : int
            Address of X.
        rows, columns : int
            Shape of op(X).
        leading_dim : int
            Of X.
        trans : {"N", "T", "C"}
            op is the identity, or transposes.

        Returns
        -------
        (rows, columns) ndarray
            Not writeable.
        """
        if trans != "N":
            return self.operand(pointer, columns, rows, leading_dim).T
        return hooks.array_from_fortran(
            pointer, rows, columns, leading_dim, False, self.dtype
        )

    def output(self, pointer: int, rows: int, columns: int, leading_dim: int) -> Array:
        """Return a writeable view of a result.

        Parameters
        ----------
        pointer : int
            Address.
        rows, columns, leading_dim : int
            Shape and elements from one column to the next.

        Returns
        -------
        (rows, columns) ndarray
            Writeable.
        """
        return hooks.array_from_fortran(
            pointer, rows, columns, leading_dim, True, self.dtype
        )

    def vector(self, pointer: int, size: int, step: int, writeable: bool) -> Array:
        """Return a vector as a column.

        Parameters
        ----------
        pointer : int
            Address that BLAS was called with.
        size : int
            Entries.
        step : int
            Elements from one entry to the next; if negative, BLAS starts at the far
            end.
        writeable : bool
            Whether it is a result.

        Returns
        -------
        (size, 1) ndarray
            First entry first.
        """
        item = self.dtype.itemsize
        if step < 0:
            pointer -= item * (size - 1) * step
        return hooks.array_from_loop(
            pointer, (size, 1), (item * step, item), writeable, self.dtype
        )

    def multiply(
        self, a: Array, b: Array, out: Array, conjugated: Conjugated = UNCONJUGATED
    ) -> None:
        """Write the product of two matrices.

        Parameters
        ----------
        a, b : ndarray
            Any strides.
        out : ndarray
            Overwritten; overlaps neither.
        conjugated : tuple of bool, optional
            Whether conj(a) takes the place of a, conj(b) that of b.
        """
        info, _ = product(
            a[np.newaxis],
            b[np.newaxis],
            out[np.newaxis],
            route=self._route,
            options=self._options,
            counted=False,
            conjugated=conjugated,
        )
        self._parts.append(info)

    def multiply_turned(
        self, a: Array, b: Array, out: Array, conjugated: Conjugated = UNCONJUGATED
    ) -> None:
        """Write the product of two matrices as the transpose of that of transposes.

        Parameters
        ----------
        a, b, out, conjugated
            As for `multiply`.
        """
        self.multiply(b.T, a.T, out.T, (conjugated[1], conjugated[0]))

    def count(self, m: int, n: int, k: int, flops: int | None = None) -> bool:
        """Count the call with its own sizes, once for each engine that took part.

        Parameters
        ----------
        m, n, k : int
            Sizes of the routine's result and its inner length.
        flops : int, optional
            Operations of the real routine, where they are fewer than 2 m n k.

        Returns
        -------
        bool
            True, what a handler answers.
        """
        times = 4 if self.dtype.kind == "c" else 1
        all_of_it = times * (2 * m * n * k if flops is None else flops)
        whole = None if flops is None else all_of_it
        done = sum(part.flops for part in self._parts)
        for engine in dict.fromkeys(part.engine for part in self._parts):
            parts = [part for part in self._parts if part.engine == engine]
            if len(parts) < len(self._parts):
                share = sum(part.flops for part in parts)
                whole = all_of_it * share // done
            context.record(
                replace(
                    max(parts, key=lambda part: part.num_moduli or 0),
                    m=m,
                    n=n,
                    k=k,
                    workspace_bytes=max(part.workspace_bytes for part in parts),
                    tiles=sum(part.tiles for part in parts),
                    structured_flops=whole,
                )
            )
        return True


def routed_call(route: str, m: int, n: int, k: int, alpha: Scalar) -> RoutedCall | None:
    """Return the call, or None where it is native.

    Parameters
    ----------
    route : str
        Name of the routine; its first letter tells the dtype.
    m, n, k : int
        Sizes.
    alpha : float or complex
        With 0 nothing is multiplied, and BLAS does not read the operands.

    Returns
    -------
    RoutedCall or None
        None if the scope does not route it or there is nothing to multiply.
    """
    if alpha == 0.0 or not (m and n and k):
        return None
    options = options_for(route, 1, m, n, k, hooks.DTYPES[route[0]])
    return None if options is None else RoutedCall(route, options)
