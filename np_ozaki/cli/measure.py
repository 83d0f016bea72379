"""Measure one product against exact integers, whoever computed it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import DTYPES, Entries
from np_ozaki.cli.exact import ExactEntry, Vectors, exact_entry
from np_ozaki.numerics.formats import DOUBLE

__all__ = ["Case", "Measurement", "Multiplier", "Sample", "measure"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_LARGEST_SAMPLE = 8_000_000
"""Exact products of integers a case: about a second."""

_WORTH_REPEATING = 0.5
"""Seconds below which a product is timed twice, and the better time shown."""

_SPECIAL_LINES = 48
"""Rows and columns of which entries that are not finite are looked at."""

_SCALES = (297, -297, 83, -83, 11, -11, 1, -1)


@dataclass(frozen=True)
class Case:
    """Two matrices to multiply.

    Attributes
    ----------
    name : str
        For the table.
    a : (m, k) ndarray of float64
        Left operand, as `Entries.real_left` has it.
    b : (k, n) ndarray of float64
        Right operand, likewise.
    symmetric : bool
        Whether A is B.T, of complex matrices B.conj().T.
    entries : Entries
        Of the matrices that are multiplied.
    """

    name: str
    a: Array
    b: Array
    symmetric: bool = False
    entries: Entries = DTYPES["float64"]

    def multiplied(
        self, multiply: Multiplier, a: Array | None = None
    ) -> tuple[Array, str, int | None]:
        """Let somebody multiply.

        Parameters
        ----------
        multiply : Multiplier
            Who computes.
        a : (m, k) ndarray of float64, optional
            In place of A.

        Returns
        -------
        c : (m, n) ndarray of float64
            As `Entries.real_right` has it.
        engine : str
            Name.
        num_moduli : int or None
        """
        left = self.entries.left_of(self.a if a is None else a)
        c, engine, num_moduli = multiply(left, self.entries.right_of(self.b))
        return self.entries.real_right(c), engine, num_moduli

    def entry(self, i: int, j: int) -> str:
        """Return which entry, or which part of one, row i and column j of C are."""
        if not self.entries.is_complex:
            return f"entry ({i}, {j})"
        rows = self.a.shape[0] // 2
        part = "imaginary" if i >= rows else "real"
        return f"the {part} part of entry ({i % rows}, {j})"

    def mirrored(self, c: Array) -> Array:
        """Return what a symmetric product must be equal to: C.T, or C.conj().T."""
        if not self.entries.is_complex:
            return c.T
        rows = len(c) // 2
        return np.concatenate((c[:rows].T, -c[rows:].T))


class Multiplier(Protocol):
    """Who computes, and what it promises."""

    @property
    def binding(self) -> bool:
        """Whether a broken promise is a failure."""
        ...

    def mirrors(self, *, is_complex: bool) -> bool:
        """Return whether the product of a matrix and its transpose is its own."""
        ...

    @property
    def scales(self) -> bool:
        """Whether powers of two that scale an operand scale all bits of a product."""
        ...

    def __call__(
        self, a: NDArray[Any], b: NDArray[Any]
    ) -> tuple[NDArray[Any], str, int | None]:
        """Return the product, the engine's name and the number of moduli."""
        ...

    def bound(self, case: Case, sample: Sample, c: Array) -> Array | None:
        """Return the promised bound of the sampled entries, or None."""
        ...


@dataclass
class Measurement:
    """What one engine did with one case.

    Attributes
    ----------
    engine : str
        Who multiplied.
    num_moduli : int or None
        N of the contract; None for native.
    seconds : float
        Of the product.
    max_error : float or None
        Relative to abs(A) abs(B), in u; None without a finite entry.
    correct : float or None
        Share of correctly rounded entries.
    bound : float or None
        Largest promised bound in the same unit; None if nothing is promised.
    holds : bool or None
        Whether every entry keeps to its own bound.
    scale : int or None
        s of the scaling test; None if no scaling of A by 2^s is exact.
    scaled_bits : bool or None
        Whether (2^s A) B has the bits of 2^s (A B).
    symmetric : bool or None
        Whether C is its own transpose; None where it need not be.
    special_values : bool or None
        Whether NaN and infinities are where IEEE arithmetic puts them; None if the
        operands have none.
    failures : list of str
        Promises that were broken; empty for engines that do not promise.
    """

    engine: str
    num_moduli: int | None
    seconds: float
    max_error: float | None = None
    correct: float | None = None
    bound: float | None = None
    holds: bool | None = None
    scale: int | None = None
    scaled_bits: bool | None = None
    symmetric: bool | None = None
    special_values: bool | None = None
    failures: list[str] = field(default_factory=list)


class Sample:
    """The entries of a case that are compared with exact ones.

    All finite rows and columns if that is affordable, else some, evenly spaced.

    Parameters
    ----------
    case : Case
        What to sample.
    """

    def __init__(self, case: Case) -> None:
        self.finite_rows = np.flatnonzero(np.isfinite(case.a).all(axis=1))
        self.finite_columns = np.flatnonzero(np.isfinite(case.b).all(axis=0))
        self.special_rows = np.flatnonzero(~np.isfinite(case.a).all(axis=1))
        self.special_columns = np.flatnonzero(~np.isfinite(case.b).all(axis=0))
        entries = max(1, _LARGEST_SAMPLE // max(1, case.a.shape[1]))
        m, n = len(self.finite_rows), len(self.finite_columns)
        if m * n > entries:
            side = math.isqrt(entries)
            m, n = min(m, max(side, entries // n)), min(n, max(side, entries // m))
        self.rows = _spread(self.finite_rows, m)
        self.columns = _spread(self.finite_columns, n)
        self._exact: list[list[ExactEntry]] | None = None
        self.case = case

    @property
    def exact(self) -> list[list[ExactEntry]]:
        """The exact entries, by row and column of the sample; computed once."""
        if self._exact is None:
            a = Vectors(self.case.a[self.rows])
            b = Vectors(self.case.b[:, self.columns].T)
            self._exact = [
                [
                    exact_entry(a, i, b, j, self.case.entries.part)
                    for j in range(len(self.columns))
                ]
                for i in range(len(self.rows))
            ]
        return self._exact

    def special_entries(self) -> Iterator[tuple[int, int, float]]:
        """Yield (i, j, IEEE value) for entries that are not finite by their operands.

        Yields
        ------
        tuple of int, int, float
            Of up to 48 rows and columns with and without NaN and infinities.
        """
        a, b = self.case.a, self.case.b
        every_row, every_column = np.arange(a.shape[0]), np.arange(b.shape[1])
        for rows, columns in (
            (self.special_rows, every_column),
            (every_row, self.special_columns),
        ):
            for i in _spread(rows, min(len(rows), _SPECIAL_LINES)):
                for j in _spread(columns, min(len(columns), _SPECIAL_LINES)):
                    yield int(i), int(j), _ieee_entry(a[i], b[:, j])

    def describe(self) -> str:
        """Return which entries these are.

        Returns
        -------
        str
            "all entries", or the number of rows and columns.
        """
        whole = (self.finite_rows, self.finite_columns)
        if (len(self.rows), len(self.columns)) == tuple(map(len, whole)):
            special = len(self.special_rows) + len(self.special_columns)
            return "finite entries" if special else "all entries"
        return f"{len(self.rows)}x{len(self.columns)} entries"


def measure(case: Case, sample: Sample, multiply: Multiplier) -> Measurement:
    """Multiply a case and compare it with what is exact and what is promised.

    Parameters
    ----------
    case : Case
        Operands.
    sample : Sample
        Of that case.
    multiply : Multiplier
        Who computes.

    Returns
    -------
    Measurement
        With failures if promises are broken.
    """
    start = time.perf_counter()
    c, engine, num_moduli = case.multiplied(multiply)
    seconds = time.perf_counter() - start
    if seconds < _WORTH_REPEATING:
        # The first product of a shape also pays for tables and memory.
        start = time.perf_counter()
        case.multiplied(multiply)
        seconds = min(seconds, time.perf_counter() - start)
    found = Measurement(engine, num_moduli, seconds)
    bound = multiply.bound(case, sample, c)
    mirrors = multiply.mirrors(is_complex=case.entries.is_complex)
    problems = [
        _compare_entries(found, sample, c, bound),
        _compare_special(found, sample, c),
        _compare_scaled(found, case, c, multiply) if multiply.scales else None,
        _compare_transposed(found, case, c) if mirrors else None,
    ]
    if multiply.binding:
        found.failures = [f"{case.name}: {problem}" for problem in problems if problem]
    return found


def _spread(indices: Indices, count: int) -> Indices:
    """Return `count` of the indices, evenly spaced, the first and last among them."""
    if count >= len(indices):
        return indices
    return indices[np.linspace(0, len(indices) - 1, count).round().astype(np.intp)]


def _ieee_entry(x: Array, y: Array) -> float:
    """Return a dot product with factors that are not finite, in any order of sums."""
    special = ~(np.isfinite(x) & np.isfinite(y))
    with np.errstate(invalid="ignore"):
        products = x[special] * y[special]
    values = set(products.tolist())
    if np.isnan(products).any() or len(values) > 1:
        return math.nan
    return float(values.pop())


def _compare_entries(
    found: Measurement, sample: Sample, c: Array, bound: Array | None
) -> str | None:
    """Fill in the errors; return what breaks its bound."""
    computed = c[np.ix_(sample.rows, sample.columns)]
    if not computed.size:
        return None
    worst, largest_bound, correct, problem = 0.0, 0.0, 0, None
    for row, exact_row in enumerate(sample.exact):
        for column, exact in enumerate(exact_row):
            value = float(computed[row, column])
            error = exact.error(value)
            correct += value == exact.rounded()
            worst = max(worst, error)
            if bound is None:
                continue
            limit = float(bound[row, column])
            in_units = exact.in_units(limit)
            if exact.size:  # else the entry is 0 for certain
                largest_bound = max(largest_bound, in_units)
            if problem is None and not exact.within(value, limit):
                name = sample.case.entry(sample.rows[row], sample.columns[column])
                problem = (
                    f"{name} = {value!r}: the error of {error:.3g} u exceeds the "
                    f"bound of {in_units:.3g} u"
                )
    found.max_error, found.correct = worst, correct / computed.size
    if bound is not None:
        found.bound, found.holds = largest_bound, problem is None
    return problem


def _compare_special(found: Measurement, sample: Sample, c: Array) -> str | None:
    """Compare NaN and infinities with IEEE arithmetic's."""
    problem = None
    has_special = False
    for i, j, expected in sample.special_entries():
        has_special = True
        value = float(c[i, j])
        if value != expected and not (math.isnan(value) and math.isnan(expected)):
            name = sample.case.entry(i, j)
            problem = f"{name} = {value!r}: IEEE arithmetic gives {expected!r}"
            break
    finite = np.isnan(c[np.ix_(sample.finite_rows, sample.finite_columns)])
    if problem is None and finite.any():
        row, column = np.argwhere(finite)[0]
        i, j = sample.finite_rows[row], sample.finite_columns[column]
        name = sample.case.entry(i, j)
        problem = f"{name} is NaN although its row and column are finite"
    if has_special or problem is not None:
        found.special_values = problem is None
    return problem


def _exact_scale(a: NDArray[Any], c: NDArray[Any]) -> int | None:
    """Return s with 2^s A exact, and 2^s C in range where C is."""
    for s in _SCALES:
        scaled = np.ldexp(a, s)
        if np.array_equal(np.ldexp(scaled, -s), a, equal_nan=True) and np.array_equal(
            np.isfinite(np.ldexp(c, s)), np.isfinite(c)
        ):
            return s
    return None


def _compare_scaled(
    found: Measurement, case: Case, c: Array, multiply: Multiplier
) -> str | None:
    """Compare the bits of a scaled product, away from underflow."""
    part = case.entries.part
    with np.errstate(all="ignore"):
        kind = np.float64 if part is DOUBLE else np.float32
        found.scale = s = _exact_scale(case.a.astype(kind), c.astype(kind))
        if s is None:
            return None
        scaled = case.multiplied(multiply, np.ldexp(case.a, s))[0]
        # Both on the smaller scale, where one of them was rounded as a subnormal.
        low, other = (c, np.ldexp(scaled, -s)) if s > 0 else (scaled, np.ldexp(c, s))
        equal = (low == other) | (np.isnan(low) & np.isnan(other))
        underflown = np.abs(low) < np.ldexp(1.0, part.lowest + part.bits - 1)
        equal |= underflown & (np.abs(low - other) <= part.tiny)
        # An overflow need not happen again on the smaller scale.
        equal |= np.isinf(c) & (s < 0)
    found.scaled_bits = bool(equal.all())
    if found.scaled_bits:
        return None
    i, j = np.argwhere(~equal)[0]
    return f"{case.entry(i, j)}: scaling A by 2^{s} changes the bits"


def _compare_transposed(found: Measurement, case: Case, c: Array) -> str | None:
    if not case.symmetric:
        return None
    mirrored = case.mirrored(c)
    differs = (c != mirrored) & ~(np.isnan(c) & np.isnan(mirrored))
    found.symmetric = not differs.any()
    if found.symmetric:
        return None
    i, j = np.argwhere(differs)[0]
    i %= c.shape[1]
    return f"entries ({i}, {j}) and ({j}, {i}) of a symmetric product differ"
