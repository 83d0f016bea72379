"""Slices and their pairs: what scheme "slices" multiplies, and with what weights.

An operand's entries become integers A' of b S bits by powers of two that differ from
line to line, and each integer S digits of b bits, the slices: int8, the first one the
most significant.  A product is the sum of the products of chosen pairs of slices.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from operator import index
from typing import Any, Literal, NamedTuple, cast, get_args

from np_ozaki.errors import OperandTypeError, OptionError, refusal

__all__ = [
    "DEFAULT_BITS_PER_SLICE",
    "DEFAULT_SLICES",
    "EXACT_SUM",
    "MAX_BITS_PER_SLICE",
    "MAX_SLICES",
    "MIN_BITS_PER_SLICE",
    "Accumulate",
    "Diagonal",
    "PairSchedule",
    "Pairs",
    "Slicing",
    "as_schedule",
    "chosen_pairs",
]

Pairs = tuple[tuple[int, int], ...]
PairSchedule = Literal["all", "triangular"] | Pairs
Accumulate = Literal["exact", "float64"]

MAX_SLICES = 16
"""Of 8 bits, 127 bits and a sign: more than twice what an entry of float64 has."""

DEFAULT_SLICES = 8
MIN_BITS_PER_SLICE = 2
"""With one bit, a digit would be 0 or -1."""

MAX_BITS_PER_SLICE = 8
DEFAULT_BITS_PER_SLICE = 8

EXACT_SUM = 2**31 - 1
"""What 32-bit sums of products hold."""


class Diagonal(NamedTuple):
    """The pairs of one weight.

    Attributes
    ----------
    weight : int
        The products count 2^(b weight) times: ``2 S - 2 - i - j``.
    runs : tuple of (first, count)
        Slices i of A, so many one after the other from the first one on; their
        partners j = 2 S - 2 - weight - i then follow each other in B's reversed order.
    """

    weight: int
    runs: tuple[tuple[int, int], ...]

    @property
    def num_pairs(self) -> int:
        """Products of slices that make the sum."""
        return sum(count for _, count in self.runs)


def chosen_pairs(pairs: PairSchedule, num_slices: int) -> Pairs:
    """Return the pairs that a schedule names, in order.

    Parameters
    ----------
    pairs : "all", "triangular" or tuple of (i, j)
        "triangular" has those with i + j < S.
    num_slices : int
        S.

    Returns
    -------
    tuple of (i, j)
        Slice i of A by slice j of B, sorted.
    """
    if not isinstance(pairs, str):
        return pairs
    everything = range(num_slices)
    return tuple(
        (i, j)
        for i in everything
        for j in everything
        if pairs == "all" or i + j < num_slices
    )


@dataclass(frozen=True)
class Slicing:
    """All that the bits of a product by slices depend on, besides its operands.

    Attributes
    ----------
    num_slices : int
        S, 1 to 16.
    bits_per_slice : int
        b, 2 to 8.
    pairs : "all", "triangular" or tuple of (i, j)
        Which slices are multiplied.
    accumulate : {"exact", "float64"}
        Whether the sums of all weights are added as integers and rounded once, or in
        float64, from the least weight up.
    """

    num_slices: int = DEFAULT_SLICES
    bits_per_slice: int = DEFAULT_BITS_PER_SLICE
    pairs: PairSchedule = "triangular"
    accumulate: Accumulate = "exact"

    def __post_init__(self) -> None:
        """Check every field; pairs become a sorted tuple.

        Raises
        ------
        OptionError
            A value is out of range, or a pair names no slice, or is named twice.
        OperandTypeError
            A value is of the wrong type.
        """
        _check_range("num_slices", self.num_slices, 1, MAX_SLICES)
        _check_range(
            "bits_per_slice",
            self.bits_per_slice,
            MIN_BITS_PER_SLICE,
            MAX_BITS_PER_SLICE,
        )
        if self.accumulate not in get_args(Accumulate):
            limit = "must be one of exact, float64"
            raise OptionError(
                refusal("accumulate", self.accumulate, limit, "choose one")
            )
        pairs = as_schedule(self.pairs)
        object.__setattr__(self, "pairs", pairs)
        for pair in () if isinstance(pairs, str) else pairs:
            if not all(0 <= i < self.num_slices for i in pair):
                limit = f"slices are numbered 0 to {self.num_slices - 1}"
                remedy = "drop the pair or raise num_slices"
                raise OptionError(refusal("pairs", pair, limit, remedy))

    def __str__(self) -> str:
        """Return a short name, such as "8 slices" or "7 slices of 7, all, float64"."""
        parts = [f"{self.num_slices} slices"]
        if self.bits_per_slice != DEFAULT_BITS_PER_SLICE:
            parts[0] += f" of {self.bits_per_slice}"
        if self.pairs != "triangular":
            parts.append("all" if self.pairs == "all" else f"{len(self.pairs)} pairs")
        if self.accumulate != "exact":
            parts.append(self.accumulate)
        return ", ".join(parts)

    @property
    def diagonals(self) -> tuple[Diagonal, ...]:
        """Pairs of equal weight, the least weight first."""
        return _diagonals(self.pairs, self.num_slices)

    @property
    def symmetric(self) -> bool:
        """Whether each pair (i, j) has its mirror image (j, i): C^T is B^T A^T then."""
        return self.turned().pairs == self.pairs

    @property
    def is_exact(self) -> bool:
        """Whether the product of A' and B' is rounded once, and no more."""
        everything = self.num_products == self.num_slices**2
        return everything and self.accumulate == "exact"

    def turned(self) -> Slicing:
        """Return the slicing of C^T = B^T A^T, whose left operand is B."""
        if isinstance(self.pairs, str):
            return self
        return replace(self, pairs=tuple((j, i) for i, j in self.pairs))

    @property
    def num_products(self) -> int:
        """Products of slices, each as large as the product itself."""
        return sum(diagonal.num_pairs for diagonal in self.diagonals)

    @property
    def largest_integer(self) -> int:
        """D, the largest integer whose S digits are at most ``2^(b-1) - 1``."""
        b, s = self.bits_per_slice, self.num_slices
        digit, ones = (1 << b - 1) - 1, ((1 << b * s) - 1) // ((1 << b) - 1)
        return digit * ones

    @property
    def largest_mantissa(self) -> int:
        """Largest 53-bit integer f that ``f 2^(b S - 54)``, rounded, keeps within D.

        An entry of a larger one takes one bit more, so its line is scaled one bit less.
        """
        spare = self.bits_per_slice * self.num_slices - 54
        if spare >= 0:
            return self.largest_integer >> spare
        # D is odd: what lies halfway above it is rounded up.
        return ((2 * self.largest_integer + 1) << (-spare - 1)) - 1


def _check_range(name: str, value: object, least: int, most: int) -> None:
    remedy = "the default is 8"
    if isinstance(value, bool) or not isinstance(value, Integral):
        limit = f"must be an int, not {type(value).__name__}"
        raise OperandTypeError(refusal(name, value, limit, remedy))
    if not least <= int(value) <= most:
        limit = f"must be {least} to {most}"
        raise OptionError(refusal(name, value, limit, remedy))


def as_schedule(pairs: object) -> PairSchedule:
    """Return pairs of slices as a schedule that can be hashed, or refuse them.

    Parameters
    ----------
    pairs : "all", "triangular" or iterable of (i, j)
        Of ints.

    Returns
    -------
    "all", "triangular" or tuple of (i, j)
        Sorted.

    Raises
    ------
    OptionError
        It is the name of no schedule, there are no pairs, or one twice.
    OperandTypeError
        They are no pairs of ints.
    """
    remedy = 'pass "triangular", "all" or pairs of slices such as [(0, 0), (0, 1)]'
    if isinstance(pairs, str):
        if pairs not in {"all", "triangular"}:
            limit = "is the name of no schedule"
            raise OptionError(refusal("pairs", pairs, limit, remedy))
        return cast(PairSchedule, pairs)
    try:
        found = sorted((index(i), index(j)) for i, j in cast(Any, pairs))
    except (TypeError, ValueError):
        limit = "must be pairs of ints"
        raise OperandTypeError(refusal("pairs", pairs, limit, remedy)) from None
    if not found:
        raise OptionError(refusal("pairs", pairs, "must name a pair", remedy))
    for pair, following in itertools.pairwise(found):
        if pair == following:
            limit = "each pair counts once"
            raise OptionError(refusal("pairs", pair, limit, "name it once"))
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _diagonals(pairs: PairSchedule, num_slices: int) -> tuple[Diagonal, ...]:
    firsts: dict[int, list[int]] = {}
    for i, j in chosen_pairs(pairs, num_slices):
        firsts.setdefault(2 * num_slices - 2 - i - j, []).append(i)
    return tuple(
        Diagonal(weight, tuple(_runs(firsts[weight]))) for weight in sorted(firsts)
    )


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Return first and length of what follows one another in a sorted list."""
    first = numbers[0]
    for last, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != last + 1:
            yield first, last - first + 1
            if following is not None:
                first = following
