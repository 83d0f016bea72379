"""The contract of complex products in plain Python integers.

As `reference`, whose stages serve here: an operand is a pair of real tables, and every
vector has one exponent for both of its parts.  Written with four real products, not
with the two that a root of -1 allows for each modulus: engines may do either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from np_ozaki.numerics.formats import DOUBLE, Format
from np_ozaki.numerics.moduli import (
    balanced_residue,
    check_num_moduli,
    moduli_of,
    product_bound,
)
from np_ozaki.numerics.reference import (
    IntegerVectors,
    Matrix,
    Vectors,
    auxiliary,
    check_scaling,
    dot,
    finite,
    insert_special_values,
    integers,
    line_exponents,
    operands,
    peak_exponents,
    reconstruct,
    residue_gemm,
    residues,
)

__all__ = ["complex_exponents", "complex_matmul"]


class _ComplexArray(Protocol):
    """What is used of an ndarray."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def real(self) -> Matrix: ...

    @property
    def imag(self) -> Matrix: ...


ComplexMatrix: TypeAlias = Sequence[Sequence[complex]] | _ComplexArray
Parts: TypeAlias = tuple[Vectors, Vectors]
"""Vectors of real and of imaginary parts."""


def _parts(matrix: ComplexMatrix) -> tuple[Matrix, Matrix]:
    if isinstance(matrix, Sequence):
        return (
            [[complex(x).real for x in row] for row in matrix],
            [[complex(x).imag for x in row] for row in matrix],
        )
    return matrix.real, matrix.imag


def _operands(a: ComplexMatrix, b: ComplexMatrix) -> tuple[Parts, Parts]:
    """Return the rows of A and the columns of B, checked to fit each other."""
    (a_re, a_im), (b_re, b_im) = _parts(a), _parts(b)
    rows_re, columns_re = operands(a_re, b_re)
    rows_im, columns_im = operands(a_im, b_im)
    return (rows_re, rows_im), (columns_re, columns_im)


def _joined(parts: Parts) -> Vectors:
    """Return vectors of 2k numbers: real parts, then imaginary ones."""
    return [re + im for re, im in zip(*parts, strict=True)]


def _finite(parts: Parts) -> Parts:
    return finite(parts[0]), finite(parts[1])


def complex_exponents(
    a: ComplexMatrix, b: ComplexMatrix, num_moduli: int, scaling: str = "norm"
) -> tuple[list[int], list[int]]:
    """Return the exponents that turn complex operands into integers.

    Parameters
    ----------
    a : matrix of complex, shape (m, k)
        Left operand; a NaN or infinite part counts as 0.
    b : matrix of complex, shape (k, n)
        Right operand.
    num_moduli : int
        N, 2 to 49; from 23 on with the moduli of real products.
    scaling : {"norm", "accurate", "legacy"}, optional
        As for real products, over both parts of a row or column.

    Returns
    -------
    mu : list of int, length m
        Exponents of the rows of A.
    nu : list of int, length n
        Exponents of the columns of B.

    Raises
    ------
    OptionError
        If `num_moduli` or `scaling` is out of range.
    ShapeError
        If the operands do not fit each other.
    """
    check_num_moduli(num_moduli)
    check_scaling(scaling)
    a_parts, b_parts = _operands(a, b)
    return _exponents(_finite(a_parts), _finite(b_parts), num_moduli, scaling)


def _exponents(
    a_parts: Parts, b_parts: Parts, num_moduli: int, scaling: str
) -> tuple[list[int], list[int]]:
    limit = product_bound(num_moduli, "complex")
    rows, columns = _joined(a_parts), _joined(b_parts)
    if scaling != "accurate":
        return (
            line_exponents(rows, limit, scaling),
            line_exponents(columns, limit, scaling),
        )
    a_bar, a_shifts = auxiliary(rows)
    b_bar, b_shifts = auxiliary(columns)
    half = len(rows[0]) // 2 if rows else 0
    turned = [x[half:] + x[:half] for x in a_bar]
    # Of both parts: |Ar||Br| + |Ai||Bi| and |Ai||Br| + |Ar||Bi|.
    c_bar = [
        [max(dot(x, y), dot(z, y)) for y in b_bar]
        for x, z in zip(a_bar, turned, strict=True)
    ]
    row_peaks = [max(row, default=0) for row in c_bar]
    column_peaks = [
        max((row[j] for row in c_bar), default=0) for j in range(len(b_bar))
    ]
    return (
        peak_exponents(a_shifts, row_peaks, limit),
        peak_exponents(b_shifts, column_peaks, limit),
    )


_Planes: TypeAlias = list[IntegerVectors]


def _product(a: _Planes, b: _Planes) -> _Planes:
    return residue_gemm(a, b, "complex")


def _sum(left: _Planes, right: _Planes, sign: int) -> _Planes:
    """Return ``left + sign * right`` modulo each modulus."""
    return [
        [
            [balanced_residue(x + sign * y, p) for x, y in zip(*rows, strict=True)]
            for rows in zip(*planes, strict=True)
        ]
        for p, *planes in zip(moduli_of(len(left), "complex"), left, right, strict=True)
    ]


def complex_matmul(
    a: ComplexMatrix,
    b: ComplexMatrix,
    num_moduli: int,
    scaling: str = "norm",
    to: Format = DOUBLE,
) -> list[list[complex]]:
    """Return the product of two complex matrices exactly as the contract defines it.

    Parameters
    ----------
    a : matrix of complex, shape (m, k)
        Left operand; k has no limit.
    b : matrix of complex, shape (k, n)
        Right operand.
    num_moduli : int
        N, 2 to 49; from 23 on with the moduli of real products.
    scaling : {"norm", "accurate", "legacy"}, optional
        See `complex_exponents`.
    to : Format, optional
        What parts of entries are rounded to.

    Returns
    -------
    list of list of complex
        (m, n); zeros if k = 0.

    Raises
    ------
    OptionError
        If `num_moduli` or `scaling` is out of range.
    ShapeError
        If the operands do not fit each other.

    Notes
    -----
    A part of an entry is a sum of 2k real products, and NaN or infinite by the rule of
    real ones: see `reference.matmul`.
    """
    check_num_moduli(num_moduli)
    check_scaling(scaling)
    a_parts, b_parts = _operands(a, b)
    a_finite, b_finite = _finite(a_parts), _finite(b_parts)
    mu, nu = _exponents(a_finite, b_finite, num_moduli, scaling)

    def planes(vectors: Vectors, exponents: list[int]) -> _Planes:
        whole = integers(vectors, exponents, truncate=scaling == "legacy")
        return residues(whole, num_moduli, "complex")

    a_re, a_im = (planes(part, mu) for part in a_finite)
    b_re, b_im = (planes(part, nu) for part in b_finite)
    c_re = _sum(_product(a_re, b_re), _product(a_im, b_im), -1)
    c_im = _sum(_product(a_re, b_im), _product(a_im, b_re), 1)
    re = reconstruct(c_re, mu, nu, "complex", to)
    im = reconstruct(c_im, mu, nu, "complex", to)
    rows_re, rows_im = a_parts
    negated = [[-x for x in row] for row in rows_im]
    columns = _joined(b_parts)
    insert_special_values(re, _joined((rows_re, negated)), columns)
    insert_special_values(im, _joined((rows_im, rows_re)), columns)
    return [
        [complex(x, y) for x, y in zip(*rows, strict=True)]
        for rows in zip(re, im, strict=True)
    ]
