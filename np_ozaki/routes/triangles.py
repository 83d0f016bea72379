"""Symmetric and triangular products by blocks, so that structure saves work.

Every function multiplies through one callable, ``multiply(a, b, out)``, which writes
the product of two matrices to memory that overlaps neither.  Blocks depend on sizes
alone, so the results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from np_ozaki.routes import arithmetic
from np_ozaki.routes.arithmetic import Scalar

__all__ = [
    "accumulate",
    "accumulate_triangle",
    "full_symmetric",
    "lower_left_form",
    "plus_mirrored",
    "solve_lower",
    "symmetric_blocks",
    "times_lower",
]

Array: TypeAlias = NDArray[Any]
"""Of float64 or complex128."""

Multiply: TypeAlias = Callable[[Array, Array, Array], None]

# Smaller blocks save more multiplications and convert operands to residues more often;
# measured on the CPU engine at 1024 and 2048.
_SYMMETRIC_BLOCK = 1024
_STRIP = 512
_SOLVED_DIRECTLY = 256
_PANEL = 256


def accumulate(product: Array, alpha: Scalar, beta: Scalar, out: Array) -> None:
    """Write alpha * product + beta * out to `out`, each operation rounded.

    Parameters
    ----------
    product : ndarray
        May be `out` itself if `beta` is 0; overwritten.
    alpha, beta : float or complex
        BLAS scalars; with beta = 0, `out` is not read.
    out : ndarray
        Overwritten.
    """
    with np.errstate(all="ignore"):
        arithmetic.scale(product, alpha)
        if beta == 0.0:
            if product is not out:
                out[...] = product
            return
        arithmetic.scale(out, beta)
        out += product


def accumulate_triangle(
    product: Array,
    alpha: Scalar,
    beta: Scalar,
    out: Array,
    lower: bool,
    hermitian: bool = False,
) -> None:
    """Do as `accumulate`, in one triangle and on the diagonal only.

    Parameters
    ----------
    product : (n, n) ndarray
        Overwritten.
    alpha, beta : float or complex
        BLAS scalars.
    out : (n, n) ndarray
        The other triangle keeps its entries, whatever they are.
    lower : bool
        Which triangle.
    hermitian : bool, optional
        The diagonal is real: its imaginary parts are not read, and become 0.
    """
    inside = np.tri(len(out), dtype=bool)
    if not lower:
        inside = inside.T
    with np.errstate(all="ignore"):
        arithmetic.scale(product, alpha)
        if beta != 0.0:
            before = out.copy()
            arithmetic.scale(before, beta)
            product += before
    if hermitian:
        np.fill_diagonal(product.imag, 0.0)
    np.copyto(out, product, where=inside)


def plus_mirrored(x: Array, hermitian: bool) -> None:
    """Replace x by x + x.T, or by x + conj(x.T).

    Parameters
    ----------
    x : (n, n) ndarray
        Overwritten.
    hermitian : bool
        Which.
    """
    with np.errstate(all="ignore"):
        if not hermitian:
            x += x.T
            return
        x.real += x.real.T
        x.imag -= x.imag.T


def full_symmetric(a: Array, lower: bool, hermitian: bool = False) -> Array:
    """Return a symmetric or Hermitian matrix of which one triangle is given.

    Parameters
    ----------
    a : (n, n) ndarray
        The other triangle may hold anything.
    lower : bool
        Which triangle counts.
    hermitian : bool, optional
        Whether the other one has the conjugates; imaginary parts of the diagonal may
        hold anything then.

    Returns
    -------
    (n, n) ndarray
        A copy.
    """
    below = np.tri(len(a), dtype=bool)
    mirrored = a.T.conj() if hermitian else a.T
    full = np.where(below, a, mirrored) if lower else np.where(below, mirrored, a)
    if hermitian:
        np.fill_diagonal(full.imag, 0.0)
    return full


def symmetric_blocks(
    size: int, lower: bool, *, whole: bool
) -> Iterator[tuple[slice, slice]]:
    """Cut a triangle to blocks: squares on the diagonal, rectangles beside them.

    Parameters
    ----------
    size : int
        Of the matrix.
    lower : bool
        Which triangle.
    whole : bool
        One square, as where scaling looks at the whole operands.

    Yields
    ------
    rows, columns : slice
        Equal for a square on the diagonal, of which one triangle counts.
    """
    todo = [(0, size)]
    while todo:
        start, stop = todo.pop()
        if whole or stop - start <= _SYMMETRIC_BLOCK:
            yield slice(start, stop), slice(start, stop)
            continue
        middle = (start + stop) // 2
        first, second = slice(start, middle), slice(middle, stop)
        yield (second, first) if lower else (first, second)
        todo += [(start, middle), (middle, stop)]


def lower_left_form(
    a: Array, b: Array, *, left: bool, lower: bool, transposed: bool
) -> tuple[Array, Array]:
    """Return views L and X such that a triangular routine works on L X, L lower.

    Parameters
    ----------
    a : (k, k) ndarray
        Triangular.
    b : (m, n) ndarray
        The other operand, and the result.
    left, lower, transposed : bool
        Whether op(A) stands left of B, which triangle of A counts, and whether
        op(A) is the transpose of A.

    Returns
    -------
    L : (k, k) ndarray
        View of `a`.
    X : ndarray
        View of `b` with k rows.
    """
    if transposed:
        a, lower = a.T, not lower
    if not left:  # B A = (A.T B.T).T
        a, b, lower = a.T, b.T, not lower
    if not lower:  # from the last index to the first, an upper triangle is a lower one
        a, b = a[::-1, ::-1], b[::-1]
    return a, b


def times_lower(
    triangle: Array, x: Array, alpha: Scalar, unit: bool, multiply: Multiply
) -> None:
    """Replace X by alpha * L X, from its last rows to its first.

    Parameters
    ----------
    triangle : (k, k) ndarray
        L; what lies above the diagonal may hold anything.
    x : (k, n) ndarray
        Finite; overwritten.  (Zeros above the diagonal would turn Inf into NaN.)
    alpha : float or complex
        BLAS scalar.
    unit : bool
        Ones on the diagonal, whatever is stored there.
    multiply : callable
        As the module says.

    Notes
    -----
    Each entry is one product of the engine, rounded once, and of the half of L above
    the diagonal only a strip's width takes part.
    """
    size = len(triangle)
    for start in reversed(range(0, size, _STRIP)):
        stop = min(start + _STRIP, size)
        strip = np.tril(triangle[start:stop, :stop], start)
        if unit:
            np.fill_diagonal(strip[:, start:], 1.0)
        rows = np.empty((stop - start, x.shape[1]), x.dtype)
        multiply(strip, x[:stop], rows)
        accumulate(rows, alpha, 0.0, x[start:stop])


def solve_lower(
    triangle: Array, x: Array, unit: bool, conjugated: bool, multiply: Multiply
) -> None:
    """Replace X by the solution Y of L Y = X, or of conj(L) Y = X.

    Parameters
    ----------
    triangle : (k, k) ndarray
        L, k at least 2; what lies above the diagonal may hold anything.
    x : (k, n) ndarray
        Right-hand sides; overwritten.
    unit : bool
        Ones on the diagonal, whatever is stored there.
    conjugated : bool
        Whether conj(L) takes the place of L.
    multiply : callable
        As the module says; it conjugates its left operand itself.

    Notes
    -----
    Halves: the upper half is solved, its product with the block below is subtracted,
    the lower half is solved.  Halves are halved in turn until they are small; these
    are solved row by row, in elementwise operations whose rounding IEEE 754 fixes.
    """

    def solve_half(triangle: Array, x: Array) -> None:
        if len(triangle) > _SOLVED_DIRECTLY:
            solve_lower(triangle, x, unit, conjugated, multiply)
        else:
            _substitute(triangle.conj() if conjugated else triangle, x, unit)

    middle = len(triangle) // 2
    solve_half(triangle[:middle, :middle], x[:middle])
    update = np.empty((len(triangle) - middle, x.shape[1]), x.dtype)
    multiply(triangle[middle:, :middle], x[:middle], update)
    with np.errstate(all="ignore"):
        x[middle:] -= update
    solve_half(triangle[middle:, middle:], x[middle:])


def _substitute(triangle: Array, x: Array, unit: bool) -> None:
    """Solve row by row, in panels of columns that stay in cache."""
    size = len(triangle)
    scratch = np.empty((size, min(_PANEL, x.shape[1])), x.dtype)
    for start in range(0, x.shape[1], _PANEL):
        columns = x[:, start : start + _PANEL]
        rows = np.array(columns, order="C")
        with np.errstate(all="ignore"):
            for i in range(size):
                if not unit:
                    arithmetic.divide(rows[i], triangle[i, i])
                below, part = rows[i + 1 :], scratch[i + 1 :, : rows.shape[1]]
                arithmetic.multiply(triangle[i + 1 :, i, np.newaxis], rows[i], part)
                below -= part
        columns[...] = rows
