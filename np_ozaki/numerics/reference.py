"""The contract in plain Python integers: what every engine must reproduce bit for bit.

One function per stage: `scaling_exponents`, `integers`, `residues`, `residue_gemm`,
`reconstruct`; `matmul` runs them in that order.  Nothing here rounds except where
the contract says so, and nothing is tuned: the text is meant to be compared with
the contract line by line.

Both operands are held K-major, as the INT8 products want them: A as its rows, B as
its columns, each a list of k numbers (`row_vectors`, `column_vectors`).  A stage
never needs to know which of the two it has been given.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, TypeAlias

from np_ozaki.errors import OptionError, ShapeError, refusal
from np_ozaki.numerics.formats import DOUBLE, Format
from np_ozaki.numerics.moduli import (
    Family,
    balanced_residue,
    check_num_moduli,
    crt_weights,
    moduli_of,
    modulus_product,
    product_bound,
)

__all__ = [
    "SCALINGS",
    "column_vectors",
    "exact_fractions",
    "exact_pair",
    "exact_product",
    "integers",
    "matmul",
    "norm_width",
    "reconstruct",
    "residue_gemm",
    "residues",
    "round_to",
    "round_to_double",
    "row_vectors",
    "scaling_exponents",
]

SCALINGS: tuple[str, ...] = ("norm", "accurate", "legacy")
"""Names of the scaling rules; only "legacy" truncates and can wrap."""


class _ArrayLike(Protocol):
    """What is used of an ndarray: its shape (for k = 0) and its values."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def tolist(self) -> list[list[float]]: ...


Matrix: TypeAlias = Sequence[Sequence[float]] | _ArrayLike
Vectors: TypeAlias = list[list[float]]
IntegerVectors: TypeAlias = list[list[int]]


def row_vectors(matrix: Matrix) -> Vectors:
    """Return the rows of a matrix as lists of Python floats.

    Parameters
    ----------
    matrix : sequence of sequences of float, or 2-D ndarray
        Anything whose entries `float` takes.

    Returns
    -------
    list of list of float
        One list per row, all equally long.

    Raises
    ------
    ShapeError
        If the matrix is not two-dimensional or its rows differ in length.
    """
    return _table(matrix)[0]


def column_vectors(matrix: Matrix) -> Vectors:
    """Return the columns of a matrix as lists of Python floats.

    Parameters
    ----------
    matrix : sequence of sequences of float, or 2-D ndarray
        An ndarray of shape (0, n) has n empty columns; an empty list has none.

    Returns
    -------
    list of list of float
        One list per column.

    Raises
    ------
    ShapeError
        If the matrix is not two-dimensional or its rows differ in length.
    """
    rows, num_columns = _table(matrix)
    return [[row[j] for row in rows] for j in range(num_columns)]


def _table(matrix: Matrix) -> tuple[Vectors, int]:
    """Return the rows as floats, and the number of columns."""
    shape = getattr(matrix, "shape", None)
    if shape is not None and len(shape) != 2:
        raise ShapeError(
            refusal("shape", shape, "an operand has two dimensions", "reshape it")
        )
    nested = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    rows = [[float(x) for x in row] for row in nested]
    if shape is not None:
        return rows, int(shape[1])
    num_columns = len(rows[0]) if rows else 0
    for row in rows:
        if len(row) != num_columns:
            raise ShapeError(
                refusal(
                    "row length",
                    len(row),
                    f"the first row has {num_columns} entries",
                    "pass rows of equal length",
                )
            )
    return rows, num_columns


def operands(a: Matrix, b: Matrix) -> tuple[Vectors, Vectors]:
    """Return the rows of A and the columns of B, checked to fit each other."""
    a_table, inner = _table(a)
    b_table, num_columns = _table(b)
    # A plain empty list has no rows to tell its number of columns: (0, k) for any k.
    if len(b_table) != inner and (a_table or hasattr(a, "shape")):
        raise ShapeError(
            refusal(
                "b",
                f"{len(b_table)} rows",
                f"A has {inner} columns",
                "pass operands of shapes (m, k) and (k, n)",
            )
        )
    return a_table, [[row[j] for row in b_table] for j in range(num_columns)]


def finite(vectors: Vectors) -> Vectors:
    """Return the vectors with 0 in place of NaN and infinities.

    Results that meet a non-finite entry are overwritten at the end; all others must
    not notice it, and the zero sees to that.
    """
    return [[x if math.isfinite(x) else 0.0 for x in vector] for vector in vectors]


def mantissa(x: float) -> tuple[int, int]:
    """Return integers (f, e) with ``x == f * 2**e`` and ``abs(f) < 2**53``."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, 53)), exponent - 53


def _ceil_scaled(x: float, exponent: int) -> int:
    """Return ceil(abs(x) * 2**exponent)."""
    f, e = mantissa(abs(x))
    shift = e + exponent
    return f << shift if shift >= 0 else -(-f >> -shift)


def _truncate(f: int, exponent: int) -> int:
    """Return f * 2**exponent rounded toward zero."""
    size = abs(f) << exponent if exponent >= 0 else abs(f) >> -exponent
    return size if f >= 0 else -size


def _round_half_even(f: int, exponent: int) -> int:
    """Return f * 2**exponent rounded to nearest, ties to the even integer."""
    if exponent >= 0:
        return f << exponent
    size = abs(f)
    if size.bit_length() < -exponent:  # below one half; spares a needless shift
        return 0
    quotient = size >> -exponent
    twice_rest = 2 * (size - (quotient << -exponent))
    unit = 1 << -exponent
    if twice_rest > unit or (twice_rest == unit and quotient & 1):
        quotient += 1
    return quotient if f >= 0 else -quotient


def _largest_power_of_four(value: int, limit: int) -> int:
    """Return the largest integer g with ``value * 4**g <= limit``.

    Both are positive.  The bit lengths leave only two candidates: with
    d = bits(limit) - bits(value), g = d // 2 can fail only if d is even, and
    d // 2 + 1 never fits.
    """
    g = (limit.bit_length() - value.bit_length()) // 2
    fits = value << 2 * g <= limit if g >= 0 else value <= limit << -2 * g
    return g if fits else g - 1


def _top_exponent(vector: Sequence[float]) -> int | None:
    """Return e with ``2**e <= max(abs(x)) < 2**(e + 1)``; None if all are zero."""
    largest = max(map(abs, vector), default=0.0)
    return math.frexp(largest)[1] - 1 if largest else None


def _integer_norm(vector: Sequence[float], e: int, w: int) -> int:
    """Return S, the sum of squares of ``t = ceil(abs(x) * 2**(w - 1 - e))``."""
    return sum(_ceil_scaled(x, w - 1 - e) ** 2 for x in vector)


def _norm_exponent(vector: Sequence[float], limit: int) -> int:
    """Return mu of rule "norm": the rounded vector has norm**2 <= limit.

    With g = mu - (w - 1 - e) and ``S * 4**g <= M``: if g >= 0, t * 2**g is an
    integer not below abs(x) * 2**mu, so rounding cannot pass it.  If g < 0, mu is
    lowered by one, and rounding at most doubles: RN(y) <= 2 y for every y >= 0.
    """
    e = _top_exponent(vector)
    if e is None:
        return 0
    w = norm_width(limit)
    g = _largest_power_of_four(_integer_norm(vector, e, w), limit)
    mu = g + (w - 1 - e)
    return mu if g >= 0 else mu - 1


def _legacy_exponent(vector: Sequence[float], limit: int) -> int:
    """Return mu of rule "legacy", the original scale-dependent fast mode.

    The published rule is ``mu = floor(log2(sqrt(M)) - 1 - max(1, log2(norm))) - e``
    with the norm of the vector as it stands.  In integers: mu = g - e for the
    largest g with ``4**(g + 1) * max(4, S * 4**(e - w + 1)) <= M``.  The two terms
    of the maximum bound g separately.  ``S * 4**(g + e - w + 2) <= M`` says
    g + e - w + 2 <= q, the largest q with ``S * 4**q <= M``.  ``4**(g + 2) <= M``
    says 2 (g + 2) <= bits(M) - 1, so g + 2 <= (bits(M) - 1) // 2.  The smaller
    bound is g.
    """
    e = _top_exponent(vector)
    if e is None:
        return 0
    w = norm_width(limit)
    q = _largest_power_of_four(_integer_norm(vector, e, w), limit)
    g = min(q + w - 2 - e, (limit.bit_length() - 1) // 2 - 2)
    return g - e


def auxiliary(vectors: Vectors) -> tuple[IntegerVectors, list[int | None]]:
    """Return the 6-bit magnitudes of rule "accurate", and r = 5 - e of each vector.

    r is None for a vector of zeros.
    """
    tops = [_top_exponent(vector) for vector in vectors]
    shifts = [None if e is None else 5 - e for e in tops]
    table = [
        [0 if r is None else _ceil_scaled(x, r) for x in vector]
        for vector, r in zip(vectors, shifts, strict=True)
    ]
    return table, shifts


def peak_exponents(
    shifts: Sequence[int | None], peaks: Sequence[int], limit: int
) -> list[int]:
    """Return mu of rule "accurate" from the largest entries that vectors take part in.

    Safe because ``Cbar_ij**2 <= rowmax_i * colmax_j``, hence
    ``2**(g_i + h_j) * Cbar_ij <= M``; a negative g or h is lowered once more for
    the same reason as in rule "norm".
    """

    def exponent(shift: int | None, peak: int) -> int:
        if shift is None:
            return 0
        # No partner meets a nonzero vector of peak 0: any exponent is safe.
        g = _largest_power_of_four(max(peak, 1), limit)
        return shift + (g if g >= 0 else g - 1)

    return [exponent(r, peak) for r, peak in zip(shifts, peaks, strict=True)]


def _accurate_exponents(
    a_rows: Vectors, b_columns: Vectors, limit: int
) -> tuple[list[int], list[int]]:
    """Return (mu, nu) of rule "accurate", from one product of 6-bit magnitudes."""
    a_bar, a_shifts = auxiliary(a_rows)
    b_bar, b_shifts = auxiliary(b_columns)
    c_bar = [[dot(x, y) for y in b_bar] for x in a_bar]
    row_peaks = [max(row, default=0) for row in c_bar]
    column_peaks = [
        max((row[j] for row in c_bar), default=0) for j in range(len(b_bar))
    ]
    return (
        peak_exponents(a_shifts, row_peaks, limit),
        peak_exponents(b_shifts, column_peaks, limit),
    )


def dot(x: Sequence[int], y: Sequence[int]) -> int:
    return sum(map(operator.mul, x, y))


def check_scaling(scaling: str) -> None:
    if scaling not in SCALINGS:
        raise OptionError(
            refusal("scaling", scaling, f"one of {SCALINGS}", 'use "norm", the default')
        )


def norm_width(limit: int) -> int:
    """Return w, the bits of an entry that the norm of its vector is taken from.

    Parameters
    ----------
    limit : int
        M, from `product_bound`.

    Returns
    -------
    int
        ``bit_length(M) // 2 - 8``, but at least 2 and at most 16: with 16, the sum of
        squares of fewer than 2**32 entries fits 64 bits.
    """
    return min(16, max(2, limit.bit_length() // 2 - 8))


def scaling_exponents(
    a: Matrix, b: Matrix, num_moduli: int, scaling: str = "norm"
) -> tuple[list[int], list[int]]:
    """Return the exponents that turn the operands into integers.

    Non-finite entries count as 0.  A vector without a nonzero entry has exponent 0.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand.
    b : matrix of float, shape (k, n)
        Right operand.
    num_moduli : int
        N, 2 to 49; M below is ``(P - 1) // 2``.
    scaling : {"norm", "accurate", "legacy"}, optional
        "norm": every row and column is scaled to a 2-norm of at most sqrt(M),
        independently of the other operand.  "accurate": one product of 6-bit
        magnitudes replaces the norms, which gains up to a bit a side.  "legacy":
        the original fast mode, whose exponents depend on the scale of the data.

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

    Notes
    -----
    "norm" and "accurate" guarantee ``sum(abs(A') * abs(B')) <= M`` for the rounded
    integers, so the CRT never wraps.  "legacy" guarantees nothing.
    """
    check_num_moduli(num_moduli)
    check_scaling(scaling)
    a_rows, b_columns = operands(a, b)
    return _exponents(finite(a_rows), finite(b_columns), num_moduli, scaling)


def _exponents(
    a_rows: Vectors, b_columns: Vectors, num_moduli: int, scaling: str
) -> tuple[list[int], list[int]]:
    limit = product_bound(num_moduli)
    if scaling == "accurate":
        return _accurate_exponents(a_rows, b_columns, limit)
    return (
        line_exponents(a_rows, limit, scaling),
        line_exponents(b_columns, limit, scaling),
    )


def line_exponents(vectors: Vectors, limit: int, scaling: str) -> list[int]:
    """Return the exponents of a rule that looks at one operand, "norm" or "legacy"."""
    rule = _norm_exponent if scaling == "norm" else _legacy_exponent
    return [rule(vector, limit) for vector in vectors]


def integers(
    vectors: Sequence[Sequence[float]],
    exponents: Sequence[int],
    *,
    truncate: bool = False,
) -> IntegerVectors:
    """Return the vectors times their powers of two, rounded to integers.

    Parameters
    ----------
    vectors : sequence of sequences of float
        Rows of A (`row_vectors`) or columns of B (`column_vectors`), finite.
    exponents : sequence of int
        One per vector.
    truncate : bool, optional
        Round toward zero ("legacy") instead of to nearest, ties to even.

    Returns
    -------
    list of list of int
        ``A'`` or ``B'``, K-major.
    """
    rounding = _truncate if truncate else _round_half_even
    table = []
    for vector, exponent in zip(vectors, exponents, strict=True):
        parts = map(mantissa, map(float, vector))
        table.append([rounding(f, e + exponent) for f, e in parts])
    return table


def residues(
    vectors: IntegerVectors, num_moduli: int, family: Family = "real"
) -> list[IntegerVectors]:
    """Return the balanced residues of integers modulo the first N moduli.

    Parameters
    ----------
    vectors : list of list of int
        ``A'`` or ``B'``, K-major.
    num_moduli : int
        N, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    list of list of list of int
        Indexed by modulus, vector, inner index; values in
        ``-(p // 2) .. (p - 1) // 2``, which always fit int8.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range.
    """
    return [
        [[balanced_residue(x, p) for x in vector] for vector in vectors]
        for p in moduli_of(num_moduli, family)
    ]


def residue_gemm(
    a_residues: Sequence[IntegerVectors],
    b_residues: Sequence[IntegerVectors],
    family: Family = "real",
) -> list[IntegerVectors]:
    """Return the products of the residues, reduced modulo each modulus.

    Parameters
    ----------
    a_residues, b_residues : sequence of list of list of int
        From `residues`: rows of A and columns of B for the same N moduli.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    list of list of list of int
        (N, m, n) balanced residues of ``C'``.
    """
    return [
        [[balanced_residue(dot(x, y), p) for y in b_plane] for x in a_plane]
        for p, a_plane, b_plane in zip(
            moduli_of(len(a_residues), family), a_residues, b_residues, strict=True
        )
    ]


def reconstruct(
    c_residues: Sequence[IntegerVectors],
    mu: Sequence[int],
    nu: Sequence[int],
    family: Family = "real",
    to: Format = DOUBLE,
) -> list[list[float]]:
    """Return C from the residues of ``C'``, with one rounding.

    Parameters
    ----------
    c_residues : sequence of list of list of int
        (N, m, n) residues of ``C'`` modulo the first N moduli, in any
        representation.
    mu : sequence of int, length m
        Exponents of the rows of A.
    nu : sequence of int, length n
        Exponents of the columns of B.
    family : {"real", "complex"}, optional
        Whose moduli.
    to : Format, optional
        What entries are rounded to.

    Returns
    -------
    list of list of float
        ``C' * 2**-(mu_i + nu_j)`` as `round_to` gives it, with ``C'`` the
        balanced residue modulo P in ``-(P // 2) .. (P - 1) // 2``.

    Raises
    ------
    OptionError
        If the number of residue planes is not a valid N.
    """
    num_moduli = len(c_residues)
    product = modulus_product(num_moduli, family)
    weights = crt_weights(moduli_of(num_moduli, family))
    result = []
    for i, row_exponent in enumerate(mu):
        row = []
        for j, column_exponent in enumerate(nu):
            parts = [plane[i][j] for plane in c_residues]
            value = balanced_residue(dot(weights, parts), product)
            row.append(round_to(value, -(row_exponent + column_exponent), to))
        result.append(row)
    return result


def round_to_double(numerator: int, exponent: int) -> float:
    """Return the double nearest to ``numerator * 2**exponent``, ties to even.

    Parameters
    ----------
    numerator : int
        Any integer.
    exponent : int
        Any integer, of either sign.

    Returns
    -------
    float
        As `round_to` gives it.
    """
    return round_to(numerator, exponent, DOUBLE)


def round_to(numerator: int, exponent: int, to: Format) -> float:
    """Return the number of a format nearest to ``numerator * 2**exponent``.

    Parameters
    ----------
    numerator : int
        Any integer.
    exponent : int
        Any integer, of either sign.
    to : Format
        Of the result.

    Returns
    -------
    float
        Rounded once, ties to even, whatever the range: subnormal results are rounded
        at 2**-1074 (of float32 at 2**-149) directly, results from 2**1024 - 2**970 on
        (2**128 - 2**103) are infinite.  Zero is +0; a nonzero value that rounds to
        zero keeps its sign.
    """
    if numerator == 0:
        return 0.0
    sign = 1.0 if numerator > 0 else -1.0
    size = abs(numerator)
    top = size.bit_length() - 1 + exponent
    if top >= to.top:
        return math.copysign(math.inf, sign)
    # Values below half of the smallest number round to zero; the half is a tie, too.
    if top < to.lowest - 1:
        return math.copysign(0.0, sign)
    last_place = max(top - to.bits + 1, to.lowest)
    mantissa = _round_half_even(size, exponent - last_place)
    if mantissa == 1 << to.bits and last_place == to.top - to.bits:
        return math.copysign(math.inf, sign)
    return math.copysign(math.ldexp(mantissa, last_place), sign)


def matmul(
    a: Matrix,
    b: Matrix,
    num_moduli: int,
    scaling: str = "norm",
    to: Format = DOUBLE,
) -> list[list[float]]:
    """Return the product of two matrices exactly as the contract defines it.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand; k has no limit.
    b : matrix of float, shape (k, n)
        Right operand.
    num_moduli : int
        N, 2 to 49.
    scaling : {"norm", "accurate", "legacy"}, optional
        See `scaling_exponents`.
    to : Format, optional
        What entries are rounded to.

    Returns
    -------
    list of list of float
        (m, n); zeros if k = 0.

    Raises
    ------
    OptionError
        If `num_moduli` or `scaling` is out of range.
    ShapeError
        If the operands do not fit each other.

    Notes
    -----
    An entry whose row or column holds a NaN or an infinity is what IEEE products
    give in any order of summation: NaN if a factor is NaN, an infinity meets a zero
    or products of both signs are infinite, else that infinity.  Products of finite
    factors count as finite, however large.  A NaN result is 0x7ff8000000000000, of
    float32 0x7fc00000.
    """
    check_num_moduli(num_moduli)
    check_scaling(scaling)
    a_rows, b_columns = operands(a, b)
    a_finite, b_finite = finite(a_rows), finite(b_columns)
    mu, nu = _exponents(a_finite, b_finite, num_moduli, scaling)
    truncate = scaling == "legacy"
    a_residues = residues(integers(a_finite, mu, truncate=truncate), num_moduli)
    b_residues = residues(integers(b_finite, nu, truncate=truncate), num_moduli)
    c = reconstruct(residue_gemm(a_residues, b_residues), mu, nu, to=to)
    insert_special_values(c, a_rows, b_columns)
    return c


def insert_special_values(
    c: list[list[float]], a_rows: Vectors, b_columns: Vectors
) -> None:
    """Overwrite the entries of C whose row or column is not finite."""
    a_special = [not all(map(math.isfinite, row)) for row in a_rows]
    b_special = [not all(map(math.isfinite, column)) for column in b_columns]
    for i, row in enumerate(a_rows):
        for j, column in enumerate(b_columns):
            if a_special[i] or b_special[j]:
                c[i][j] = _special_dot(row, column)


def _special_dot(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the sum of products when at least one factor is not finite."""
    seen = set()
    for left, right in zip(x, y, strict=True):
        if math.isfinite(left) and math.isfinite(right):
            continue
        product = left * right  # infinity * 0 and every NaN factor give NaN
        if math.isnan(product):
            return math.nan
        seen.add(product)
    return seen.pop() if len(seen) == 1 else math.nan


def _common_exponent(vectors: Vectors) -> tuple[IntegerVectors, int]:
    """Return integers F and one e with ``vectors == F * 2**e`` exactly."""
    parts = [[mantissa(x) for x in vector] for vector in vectors]
    e = min((p[1] for vector in parts for p in vector if p[0]), default=0)
    # A zero has exponent -53, which may lie below e: it must not be shifted.
    return [[f << (x - e) if f else 0 for f, x in vector] for vector in parts], e


def _exact_integers(a_rows: Vectors, b_columns: Vectors) -> tuple[IntegerVectors, int]:
    """Return integers C and one e with ``A @ B == C * 2**e`` exactly."""
    a_integers, a_exponent = _common_exponent(a_rows)
    b_integers, b_exponent = _common_exponent(b_columns)
    c = [[dot(x, y) for y in b_integers] for x in a_integers]
    return c, a_exponent + b_exponent


def exact_product(a: Matrix, b: Matrix, to: Format = DOUBLE) -> list[list[float]]:
    """Return the correctly rounded product of two matrices.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand.
    b : matrix of float, shape (k, n)
        Right operand.
    to : Format, optional
        What entries are rounded to.

    Returns
    -------
    list of list of float
        (m, n); every entry is the number nearest to the exact sum.  Special values
        as in `matmul`; an exact zero is +0.

    Raises
    ------
    ShapeError
        If the operands do not fit each other.
    """
    a_rows, b_columns = operands(a, b)
    c, e = _exact_integers(finite(a_rows), finite(b_columns))
    return _rounded(c, e, a_rows, b_columns, to)


def exact_pair(a: Matrix, b: Matrix) -> tuple[list[list[float]], list[list[float]]]:
    """Return the correctly rounded product and what that rounding left.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand.
    b : matrix of float, shape (k, n)
        Right operand.

    Returns
    -------
    high : list of list of float
        As `exact_product`.
    low : list of list of float
        The exact sum minus `high`, rounded once; 0 where `high` is not finite.
    """
    a_rows, b_columns = operands(a, b)
    c, e = _exact_integers(finite(a_rows), finite(b_columns))
    high = _rounded(c, e, a_rows, b_columns)
    low = [
        [_rest(value, e, h) for value, h in zip(*rows, strict=True)]
        for rows in zip(c, high, strict=True)
    ]
    return high, low


def _rounded(
    c: IntegerVectors,
    exponent: int,
    a_rows: Vectors,
    b_columns: Vectors,
    to: Format = DOUBLE,
) -> list[list[float]]:
    """Return ``c * 2**exponent`` rounded, with the special values of A B."""
    result = [[round_to(value, exponent, to) for value in row] for row in c]
    insert_special_values(result, a_rows, b_columns)
    return result


def _rest(value: int, exponent: int, rounded: float) -> float:
    """Return ``value * 2**exponent - rounded`` as a double, 0 for an infinity."""
    if not math.isfinite(rounded):
        return 0.0
    f, x = mantissa(rounded)
    unit = min(exponent, x)
    return round_to_double((value << exponent - unit) - (f << x - unit), unit)


def exact_fractions(a: Matrix, b: Matrix) -> list[list[Fraction]]:
    """Return the exact product of two finite matrices.

    Parameters
    ----------
    a : matrix of float, shape (m, k)
        Left operand.
    b : matrix of float, shape (k, n)
        Right operand.

    Returns
    -------
    list of list of Fraction
        (m, n), without any rounding.

    Raises
    ------
    OptionError
        If an entry is NaN or infinite.
    ShapeError
        If the operands do not fit each other.
    """
    a_rows, b_columns = operands(a, b)
    for name, vectors in (("a", a_rows), ("b", b_columns)):
        special = [x for vector in vectors for x in vector if not math.isfinite(x)]
        if special:
            limit = "a fraction is finite"
            raise OptionError(
                refusal(name, special[0], limit, "use exact_product instead")
            )
    c, e = _exact_integers(a_rows, b_columns)
    unit = Fraction(2) ** e
    return [[value * unit for value in row] for row in c]
