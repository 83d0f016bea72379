"""SciPy's BLAS: dgemm, dgemv, dsymm, dsyrk, dsyr2k, dtrmm and dtrsm.

Handlers get the arguments of the Fortran routines, in their order, after f2py checked
them.  With a product c of the engine, alpha and beta come after, and each operation is
rounded: t = fl(alpha c), fl(t + fl(beta C)); beta = 0 does not read C.  Where nothing
is multiplied (alpha = 0, empty sizes) the native routine does what is left.

The symmetric routines write the triangle that BLAS writes, and each of its entries has
the bits that its mirror image would have.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.routes.blas_call import RoutedCall, operand, output, routed_call, vector
from np_ozaki.routes.triangles import (
    accumulate,
    accumulate_triangle,
    full_symmetric,
    lower_left_form,
    solve_lower,
    symmetric_blocks,
    times_lower,
)
from np_ozaki.stats import CallInfo

__all__ = [
    "handle_dgemm",
    "handle_dgemv",
    "handle_dsymm",
    "handle_dsyr2k",
    "handle_dsyrk",
    "handle_triangular",
]

Array: TypeAlias = NDArray[np.float64]


def _apart(x: Array, out: Array) -> Array:
    """Return `x`, or a copy if writing to `out` could change it."""
    return x.copy() if np.may_share_memory(x, out) else x


def _multiply_into(
    routine: RoutedCall, a: Array, b: Array, alpha: float, beta: float, out: Array
) -> None:
    """Write alpha * a @ b + beta * out to `out`."""
    target = out if beta == 0.0 else np.empty_like(out)
    routine.multiply(_apart(a, out), _apart(b, out), target)
    accumulate(target, alpha, beta, out)


def handle_dgemm(
    trans_a: str,
    trans_b: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: float,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer dgemm: C = alpha * op(A) @ op(B) + beta * C.

    Parameters
    ----------
    trans_a, trans_b : {"N", "T", "C"}
        op is the identity or the transpose.
    m, n, k : int
        Sizes of op(A), (m, k), and op(B), (k, n).
    alpha, beta : float
        Scalars.
    a_pointer, b_pointer, c_pointer : int
        Addresses.
    lda, ldb, ldc : int
        Leading dimensions.

    Returns
    -------
    bool or None
        True: C is written.  None leaves the call to the native routine.
    """
    routine = routed_call("dgemm", m, n, k, alpha)
    if routine is None:
        return None
    a = operand(a_pointer, m, k, lda, trans_a)
    b = operand(b_pointer, k, n, ldb, trans_b)
    _multiply_into(routine, a, b, alpha, beta, output(c_pointer, m, n, ldc))
    return routine.count(m, n, k)


def handle_dgemv(
    trans: str,
    m: int,
    n: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    x_pointer: int,
    x_step: int,
    beta: float,
    y_pointer: int,
    y_step: int,
) -> bool | None:
    """Answer dgemv: y = alpha * op(A) @ x + beta * y.

    Parameters
    ----------
    trans : {"N", "T", "C"}
        op is the identity or the transpose.
    m, n : int
        Shape of A.
    alpha, beta : float
        Scalars.
    a_pointer, x_pointer, y_pointer : int
        Addresses.
    lda : int
        Leading dimension.
    x_step, y_step : int
        Elements from one entry to the next, perhaps negative.

    Returns
    -------
    bool or None
        True: y is written.  None leaves the call to the native routine.
    """
    rows, inner = (m, n) if trans == "N" else (n, m)
    routine = routed_call("dgemv", rows, 1, inner, alpha)
    if routine is None:
        return None
    a = operand(a_pointer, rows, inner, lda, trans)
    x = vector(x_pointer, inner, x_step, writeable=False)
    y = vector(y_pointer, rows, y_step, writeable=True)
    _multiply_into(routine, a, x, alpha, beta, y)
    return routine.count(rows, 1, inner)


def handle_dsymm(
    side: str,
    uplo: str,
    m: int,
    n: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: float,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer dsymm: C = alpha * A @ B + beta * C, or with B @ A, A symmetric.

    Parameters
    ----------
    side : {"L", "R"}
        Side of A.
    uplo : {"L", "U"}
        Triangle of A that counts.
    m, n : int
        Shape of B and C.
    alpha, beta : float
        Scalars.
    a_pointer, b_pointer, c_pointer : int
        Addresses.
    lda, ldb, ldc : int
        Leading dimensions.

    Returns
    -------
    bool or None
        True: C is written.  None leaves the call to the native routine.
    """
    order = m if side == "L" else n
    routine = routed_call("dsymm", m, n, order, alpha)
    if routine is None:
        return None
    a = full_symmetric(operand(a_pointer, order, order, lda), uplo == "L")
    b = operand(b_pointer, m, n, ldb)
    operands = (a, b) if side == "L" else (b, a)
    _multiply_into(routine, *operands, alpha, beta, output(c_pointer, m, n, ldc))
    return routine.count(m, n, order)


def handle_dsyrk(
    uplo: str,
    trans: str,
    n: int,
    k: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    beta: float,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer dsyrk: C = alpha * op(A) @ op(A).T + beta * C, one triangle of it.

    Parameters
    ----------
    uplo : {"L", "U"}
        Triangle of C.
    trans : {"N", "T", "C"}
        op is the identity or the transpose.
    n, k : int
        Shape of op(A).
    alpha, beta : float
        Scalars.
    a_pointer, c_pointer : int
        Addresses.
    lda, ldc : int
        Leading dimensions.

    Returns
    -------
    bool or None
        True: C is written.  None leaves the call to the native routine.
    """
    routine = routed_call("dsyrk", n, n, k, alpha)
    if routine is None:
        return None
    c, lower = output(c_pointer, n, n, ldc), uplo == "L"
    a = _apart(operand(a_pointer, n, k, lda, trans), c)
    for rows, columns in symmetric_blocks(n, lower, whole=routine.looks_at_all):
        block = c[rows, columns]
        if rows != columns:
            _multiply_into(routine, a[rows], a[columns].T, alpha, beta, block)
        else:
            square = np.empty_like(block)
            routine.multiply(a[rows], a[rows].T, square)
            accumulate_triangle(square, alpha, beta, block, lower)
    return routine.count(n, n, k, n * (n + 1) * k)


def handle_dsyr2k(
    uplo: str,
    trans: str,
    n: int,
    k: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: float,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer dsyr2k: C = alpha * (P + P.T) + beta * C with P = op(A) @ op(B).T.

    Parameters
    ----------
    uplo : {"L", "U"}
        Triangle of C.
    trans : {"N", "T", "C"}
        op is the identity or the transpose.
    n, k : int
        Shape of op(A) and op(B).
    alpha, beta : float
        Scalars.
    a_pointer, b_pointer, c_pointer : int
        Addresses.
    lda, ldb, ldc : int
        Leading dimensions.

    Returns
    -------
    bool or None
        True: C is written.  None leaves the call to the native routine.

    Notes
    -----
    One product of the engine gives both terms: the other is its transpose, bit for bit,
    unless pairs of slices lack their mirror images.
    """
    routine = routed_call("dsyr2k", n, n, k, alpha)
    # f2py does not compare b with a; a shorter b is for BLAS to refuse.
    if routine is None or min(lda, ldb) < (n if trans == "N" else k):
        return None
    c = output(c_pointer, n, n, ldc)
    a = operand(a_pointer, n, k, lda, trans)
    b = operand(b_pointer, n, k, ldb, trans)
    once = np.empty((n, n))
    routine.multiply(a, b.T, once)
    other = once.T
    if not routine.symmetric:
        other = np.empty((n, n))
        routine.multiply(b, a.T, other)
    with np.errstate(all="ignore"):
        accumulate_triangle(once + other, alpha, beta, c, uplo == "L")
    return routine.count(n, n, k, 2 * n * (n + 1) * k)


def handle_triangular(
    route: str,
    side: str,
    uplo: str,
    trans: str,
    diag: str,
    m: int,
    n: int,
    alpha: float,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
) -> bool | None:
    """Answer dtrmm, B = alpha * op(A) @ B, or dtrsm, which solves for B.

    Parameters
    ----------
    route : {"dtrmm", "dtrsm"}
        Which.
    side : {"L", "R"}
        Side of A.
    uplo : {"L", "U"}
        Triangle of A that counts.
    trans : {"N", "T", "C"}
        op is the identity or the transpose.
    diag : {"N", "U"}
        "U": ones on the diagonal, whatever is stored.
    m, n : int
        Shape of B.
    alpha : float
        Scalar.
    a_pointer, b_pointer : int
        Addresses.
    lda, ldb : int
        Leading dimensions.

    Returns
    -------
    bool or None
        True: B is written.  None leaves the call to the native routine.
    """
    order = m if side == "L" else n
    routine = routed_call(route, m, n, order, alpha)
    if routine is None or (route == "dtrsm" and order == 1):
        return None  # one division a column
    b = output(b_pointer, m, n, ldb)
    triangle, x = lower_left_form(
        _apart(operand(a_pointer, order, order, lda), b),
        b,
        left=side == "L",
        lower=uplo == "L",
        transposed=trans != "N",
    )
    unit, work = diag == "U", m * n * order
    # B A is (A^T B^T)^T.
    multiply = (routine if side == "L" else routine.turned()).multiply
    if route == "dtrmm":
        if not np.isfinite(b).all():
            reason = "NaN or Inf beside the zeros of a triangle"
            context.record(CallInfo(route, "native", 1, m, n, order, fallback=reason))
            return None
        times_lower(triangle, x, alpha, unit, multiply)
    else:
        with np.errstate(all="ignore"):
            b *= alpha
        solve_lower(triangle, x, unit, multiply)
    return routine.count(m, n, order, work)
