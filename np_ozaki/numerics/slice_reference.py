"""Scheme "slices" in plain Python integers: what every engine must reproduce.

As in `reference`, operands are held K-major, nothing is tuned, and each function is one
stage: `slice_exponents`, `slices`, `pair_sums`, `recombine`; `matmul_by_slices` runs
them in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from np_ozaki.numerics.formats import DOUBLE, Format
from np_ozaki.numerics.reference import (
    IntegerVectors,
    Matrix,
    dot,
    finite,
    insert_special_values,
    integers,
    mantissa,
    operands,
    round_to,
    round_to_double,
)
from np_ozaki.numerics.slicing import Diagonal, Slicing

__all__ = [
    "matmul_by_slices",
    "pair_sums",
    "recombine",
    "slice_exponents",
    "slices",
]


def slice_exponents(vectors: Sequence[Sequence[float]], slicing: Slicing) -> list[int]:
    """Return the exponent that turns each vector into integers of S digits.

    Parameters
    ----------
    vectors : sequence of sequences of float
        Rows of A or columns of B, finite.
    slicing : Slicing
        S and b.

    Returns
    -------
    list of int
        The largest mu for which the largest entry, times 2^mu and rounded, does not
        pass D; 0 for a vector of zeros.
    """
    return [_exponent(vector, slicing) for vector in vectors]


def _exponent(vector: Sequence[float], slicing: Slicing) -> int:
    largest = max(map(abs, vector), default=0.0)
    if not largest:
        return 0
    f, e = mantissa(largest)
    # f has 53 bits: f 2^e 2^mu is f 2^(b S - 54).
    mu = slicing.bits_per_slice * slicing.num_slices - 54 - e
    return mu if f <= slicing.largest_mantissa else mu - 1


def slices(vectors: IntegerVectors, slicing: Slicing) -> list[IntegerVectors]:
    """Return the digits of integers, the most significant ones first.

    Parameters
    ----------
    vectors : list of list of int
        ``A'`` or ``B'``, K-major; at most D in magnitude.
    slicing : Slicing
        S and b.

    Returns
    -------
    list of list of list of int
        Indexed by slice, vector, inner index; from ``-2^(b-1)`` to ``2^(b-1) - 1``.
        ``A' = sum over t of 2^(b (S - 1 - t)) slice_t``.
    """
    base = 1 << slicing.bits_per_slice
    rest = [list(vector) for vector in vectors]
    result = []
    for _ in range(slicing.num_slices):
        digits = [[(x + base // 2) % base - base // 2 for x in line] for line in rest]
        rest = [
            [(x - digit) // base for x, digit in zip(line, found, strict=True)]
            for line, found in zip(rest, digits, strict=True)
        ]
        result.append(digits)
    return result[::-1]


def pair_sums(
    a_slices: Sequence[IntegerVectors],
    b_slices: Sequence[IntegerVectors],
    diagonals: Sequence[Diagonal],
) -> list[IntegerVectors]:
    """Return the sums of the products of all pairs of equal weight.

    Parameters
    ----------
    a_slices, b_slices : sequence of list of list of int
        From `slices`.
    diagonals : sequence of Diagonal
        Of the slicing.

    Returns
    -------
    list of list of list of int
        (diagonals, m, n).
    """
    last = 2 * len(a_slices) - 2
    result = []
    for weight, runs in diagonals:
        firsts = [i for first, count in runs for i in range(first, first + count)]
        partners = [(i, last - weight - i) for i in firsts]
        result.append(
            [
                [
                    sum(dot(a_slices[i][r], b_slices[j][c]) for i, j in partners)
                    for c in range(len(b_slices[0]))
                ]
                for r in range(len(a_slices[0]))
            ]
        )
    return result


def recombine(
    sums: Sequence[IntegerVectors],
    slicing: Slicing,
    mu: Sequence[int],
    nu: Sequence[int],
    to: Format = DOUBLE,
) -> list[list[float]]:
    """Return C from the sums of all weights.

    Parameters
    ----------
    sums : sequence of list of list of int
        From `pair_sums`.
    slicing : Slicing
        With `accumulate`.
    mu, nu : sequence of int
        Exponents of the rows of A and of the columns of B.
    to : Format, optional
        What entries are rounded to.

    Returns
    -------
    list of list of float
        ``C' 2^-(mu + nu)``, rounded once, with ``C' = sum over w of 2^(b w) sum_w``;
        for "float64" C' itself is rounded after each of its additions, from the least
        weight up, starting from +0.
    """
    result = []
    for i, row_exponent in enumerate(mu):
        row = []
        for j, column_exponent in enumerate(nu):
            parts = [table[i][j] for table in sums]
            exponent = -(row_exponent + column_exponent)
            row.append(_recombined(parts, slicing, exponent, to))
        result.append(row)
    return result


def _recombined(
    parts: Sequence[int], slicing: Slicing, exponent: int, to: Format
) -> float:
    b = slicing.bits_per_slice
    weights = [b * diagonal.weight for diagonal in slicing.diagonals]
    if slicing.accumulate == "exact":
        shifted = (x << w for x, w in zip(parts, weights, strict=True))
        return round_to(sum(shifted), exponent, to)
    total = 0.0
    for x, w in zip(parts, weights, strict=True):
        total += round_to_double(x, w)
    # To float64 exact, but for a result that overflows or is subnormal.
    f, e = mantissa(total)
    return round_to(f, e + exponent, to)


def matmul_by_slices(
    a: Matrix, b: Matrix, slicing: Slicing, to: Format = DOUBLE
) -> list[list[float]]:
    """Return the product of two matrices exactly as scheme "slices" defines it.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand; k has no limit.
    b : matrix of float, shape (k, n)
        Right operand.
    slicing : Slicing
        S, b, pairs, accumulate.
    to : Format, optional
        What entries are rounded to.

    Returns
    -------
    list of list of float
        (m, n); zeros if k = 0.  NaN and infinities as `reference.matmul` has them.

    Raises
    ------
    ShapeError
        If the operands do not fit each other.
    """
    a_rows, b_columns = operands(a, b)
    a_finite, b_finite = finite(a_rows), finite(b_columns)
    mu = slice_exponents(a_finite, slicing)
    nu = slice_exponents(b_finite, slicing)
    if not mu or not nu:
        return [[] for _ in mu]
    sums = pair_sums(
        slices(integers(a_finite, mu), slicing),
        slices(integers(b_finite, nu), slicing),
        slicing.diagonals,
    )
    c = recombine(sums, slicing, mu, nu, to)
    insert_special_values(c, a_rows, b_columns)
    return c
