"""SciPy's BLAS: gemm, gemv, symm, syrk, syr2k, trmm, trsm, and hemm, herk, her2k.

Handlers get the name of a routine, whose first letter tells the dtype, and the
arguments of the Fortran routine in their order, after f2py checked them.  With a
product c of the engine, alpha and beta come after, and each operation is rounded:
t = fl(alpha c), fl(t + fl(beta C)), complex ones as `arithmetic` says; beta = 0 does
not read C.  Where nothing is multiplied (alpha = 0, empty sizes) the native routine
does what is left.

The symmetric routines write the triangle that BLAS writes, and each of its entries has
the bits that its mirror image would have, but for the signs of zeros.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.routes import arithmetic
from np_ozaki.routes.arithmetic import Scalar
from np_ozaki.routes.blas_call import RoutedCall, routed_call
from np_ozaki.routes.triangles import (
    accumulate,
    accumulate_triangle,
    full_symmetric,
    lower_left_form,
    plus_mirrored,
    solve_lower,
    symmetric_blocks,
    times_lower,
)
from np_ozaki.stats import CallInfo

__all__ = [
    "handle_gemm",
    "handle_gemv",
    "handle_rank_2k",
    "handle_rank_k",
    "handle_symmetric",
    "handle_triangular",
]

Array: TypeAlias = NDArray[Any]


def _apart(x: Array, out: Array) -> Array:
    """Return `x`, or a copy if writing to `out` could change it."""
    return x.copy() if np.may_share_memory(x, out) else x


def _multiply_into(
    routine: RoutedCall,
    a: Array,
    b: Array,
    alpha: Scalar,
    beta: Scalar,
    out: Array,
    conjugated: Conjugated = UNCONJUGATED,
) -> None:
    """Write alpha * a @ b + beta * out to `out`."""
    target = out if beta == 0.0 else np.empty_like(out)
    routine.multiply(_apart(a, out), _apart(b, out), target, conjugated)
    accumulate(target, alpha, beta, out)


def handle_gemm(
    route: str,
    trans_a: str,
    trans_b: str,
    m: int,
    n: int,
    k: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: Scalar,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer gemm: C = alpha * op(A) @ op(B) + beta * C.

    Parameters
    ----------
    route : {"dgemm", "zgemm"}
        Which.
    trans_a, trans_b : {"N", "T", "C"}
        op is the identity, the transpose or its conjugate.
    m, n, k : int
        Sizes of op(A), (m, k), and op(B), (k, n).
    alpha, beta : float or complex
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
    routine = routed_call(route, m, n, k, alpha)
    if routine is None:
        return None
    a = routine.operand(a_pointer, m, k, lda, trans_a)
    b = routine.operand(b_pointer, k, n, ldb, trans_b)
    c = routine.output(c_pointer, m, n, ldc)
    conjugated = routine.conjugates(trans_a), routine.conjugates(trans_b)
    _multiply_into(routine, a, b, alpha, beta, c, conjugated)
    return routine.count(m, n, k)


def handle_gemv(
    route: str,
    trans: str,
    m: int,
    n: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    x_pointer: int,
    x_step: int,
    beta: Scalar,
    y_pointer: int,
    y_step: int,
) -> bool | None:
    """Answer gemv: y = alpha * op(A) @ x + beta * y.

    Parameters
    ----------
    route : {"dgemv", "zgemv"}
        Which.
    trans : {"N", "T", "C"}
        op is the identity, the transpose or its conjugate.
    m, n : int
        Shape of A.
    alpha, beta : float or complex
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
    routine = routed_call(route, rows, 1, inner, alpha)
    if routine is None:
        return None
    a = routine.operand(a_pointer, rows, inner, lda, trans)
    x = routine.vector(x_pointer, inner, x_step, writeable=False)
    y = routine.vector(y_pointer, rows, y_step, writeable=True)
    conjugated = routine.conjugates(trans), False
    _multiply_into(routine, a, x, alpha, beta, y, conjugated)
    return routine.count(rows, 1, inner)


def handle_symmetric(
    route: str,
    side: str,
    uplo: str,
    m: int,
    n: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: Scalar,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer symm and hemm: C = alpha * A @ B + beta * C, or with B @ A.

    Parameters
    ----------
    route : {"dsymm", "zsymm", "zhemm"}
        Whether A is symmetric or Hermitian.
    side : {"L", "R"}
        Side of A.
    uplo : {"L", "U"}
        Triangle of A that counts.
    m, n : int
        Shape of B and C.
    alpha, beta : float or complex
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
    routine = routed_call(route, m, n, order, alpha)
    if routine is None:
        return None
    given = routine.operand(a_pointer, order, order, lda)
    a = full_symmetric(given, uplo == "L", route[1:] == "hemm")
    b = routine.operand(b_pointer, m, n, ldb)
    c = routine.output(c_pointer, m, n, ldc)
    operands = (a, b) if side == "L" else (b, a)
    _multiply_into(routine, *operands, alpha, beta, c)
    return routine.count(m, n, order)


def _mirrors(route: str, trans: str) -> tuple[bool, Conjugated] | None:
    """Return whether a routine is of a Hermitian matrix, and which operand is conj.

    Of op(A) without conjugation, times the transpose of a matrix like it.  None where
    BLAS has no such `trans`: it is to complain.
    """
    if route[1:3] == "he":
        if trans == "T":
            return None
        return True, (trans == "C", trans == "N")
    return None if route[0] in "cz" and trans == "C" else (False, UNCONJUGATED)


def handle_rank_k(
    route: str,
    uplo: str,
    trans: str,
    n: int,
    k: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    beta: Scalar,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer syrk and herk: C = alpha * op(A) @ op(A).T + beta * C, one triangle of it.

    Parameters
    ----------
    route : {"dsyrk", "zsyrk", "zherk"}
        Whether op(A).T is the transpose or its conjugate.
    uplo : {"L", "U"}
        Triangle of C.
    trans : {"N", "T", "C"}
        op is the identity, the transpose or its conjugate.
    n, k : int
        Shape of op(A).
    alpha, beta : float or complex
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
    mirrors = _mirrors(route, trans)
    if mirrors is None:
        return None
    routine = routed_call(route, n, n, k, alpha)
    if routine is None:
        return None
    hermitian, conjugated = mirrors
    c, lower = routine.output(c_pointer, n, n, ldc), uplo == "L"
    a = _apart(routine.operand(a_pointer, n, k, lda, trans), c)
    for rows, columns in symmetric_blocks(n, lower, whole=routine.looks_at_all):
        block, left, right = c[rows, columns], a[rows], a[columns].T
        if rows != columns:
            _multiply_into(routine, left, right, alpha, beta, block, conjugated)
        else:
            square = np.empty_like(block)
            routine.multiply(left, right, square, conjugated)
            accumulate_triangle(square, alpha, beta, block, lower, hermitian)
    return routine.count(n, n, k, n * (n + 1) * k)


def handle_rank_2k(
    route: str,
    uplo: str,
    trans: str,
    n: int,
    k: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
    beta: Scalar,
    c_pointer: int,
    ldc: int,
) -> bool | None:
    """Answer syr2k: C = alpha * (P + P.T) + beta * C with P = op(A) @ op(B).T.

    And her2k: C = Q + Q^H + beta * C with Q = alpha * op(A) @ op(B)^H.

    Parameters
    ----------
    route : {"dsyr2k", "zsyr2k", "zher2k"}
        Which.
    uplo : {"L", "U"}
        Triangle of C.
    trans : {"N", "T", "C"}
        op is the identity, the transpose or its conjugate.
    n, k : int
        Shape of op(A) and op(B).
    alpha, beta : float or complex
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
    unless slices are left out that the other one needs.
    """
    mirrors = _mirrors(route, trans)
    # f2py does not compare b with a; a shorter b is for BLAS to refuse.
    if mirrors is None or min(lda, ldb) < (n if trans == "N" else k):
        return None
    routine = routed_call(route, n, n, k, alpha)
    if routine is None:
        return None
    hermitian, conjugated = mirrors
    c = routine.output(c_pointer, n, n, ldc)
    a = routine.operand(a_pointer, n, k, lda, trans)
    b = routine.operand(b_pointer, n, k, ldb, trans)
    total = np.empty((n, n), routine.dtype)
    routine.multiply(a, b.T, total, conjugated)
    if hermitian:
        with np.errstate(all="ignore"):
            arithmetic.scale(total, alpha)
    if routine.mirrors:
        plus_mirrored(total, hermitian)
    else:
        other = np.empty_like(total)
        routine.multiply(b, a.T, other, conjugated)
        with np.errstate(all="ignore"):
            if hermitian:
                arithmetic.scale(other, alpha.conjugate())
            total += other
    left = 1.0 if hermitian else alpha
    accumulate_triangle(total, left, beta, c, uplo == "L", hermitian)
    return routine.count(n, n, k, 2 * n * (n + 1) * k)


def handle_triangular(
    route: str,
    side: str,
    uplo: str,
    trans: str,
    diag: str,
    m: int,
    n: int,
    alpha: Scalar,
    a_pointer: int,
    lda: int,
    b_pointer: int,
    ldb: int,
) -> bool | None:
    """Answer trmm, B = alpha * op(A) @ B, or trsm, which solves for B.

    Parameters
    ----------
    route : {"dtrmm", "dtrsm", "ztrmm", "ztrsm"}
        Which.
    side : {"L", "R"}
        Side of A.
    uplo : {"L", "U"}
        Triangle of A that counts.
    trans : {"N", "T", "C"}
        op is the identity, the transpose or its conjugate.
    diag : {"N", "U"}
        "U": ones on the diagonal, whatever is stored.
    m, n : int
        Shape of B.
    alpha : float or complex
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
    solves = route[1:] == "trsm"
    if routine is None or (solves and order == 1):
        return None  # one division a column
    b = routine.output(b_pointer, m, n, ldb)
    triangle, x = lower_left_form(
        _apart(routine.operand(a_pointer, order, order, lda), b),
        b,
        left=side == "L",
        lower=uplo == "L",
        transposed=trans != "N",
    )
    unit, work = diag == "U", m * n * order
    conjugated = routine.conjugates(trans)
    # B A is (A^T B^T)^T.
    multiply = functools.partial(
        routine.multiply if side == "L" else routine.multiply_turned,
        conjugated=(conjugated, False),
    )
    if solves:
        with np.errstate(all="ignore"):
            arithmetic.scale(b, alpha)
        solve_lower(triangle, x, unit, conjugated, multiply)
        return routine.count(m, n, order, work)
    if not np.isfinite(b).all():
        reason = "NaN or Inf beside the zeros of a triangle"
        dtype = routine.dtype.name
        info = CallInfo(route, "native", 1, m, n, order, fallback=reason, dtype=dtype)
        context.record(info)
        return None
    times_lower(triangle, x, alpha, unit, multiply)
    return routine.count(m, n, order, work)
