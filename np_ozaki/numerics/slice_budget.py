"""How many slices a product needs, and what slices and moduli cost.

As in `np_ozaki.numerics.budget`, everything here is known before any data are seen.
With b bits a slice, S slices, D the largest integer of S digits and
``delta = 1 / (D + 1/2)``:

* The exponent mu of a line x is the largest for which its largest entry, times 2**mu
  and rounded, is within D; D is odd, and its tie with D + 1 goes to D + 1.  Hence
  ``2**-mu <= 2 * delta * max(abs(x))``.
* Rounding moves an entry by at most 2**-mu / 2, so the product moves by at most
  ``((1 + g)**2 - 1) * norm(a_i) * norm(b_j)``, ``g = delta * peak * sqrt(k)``, where
  ``max(abs(x)) <= peak * norm(x)``: at most 1, 1 / sqrt(k) for k equal entries.
* A digit is at most 2**(b - 1), so slice i, times its power of two and 2**-mu, has a
  2-norm of at most ``sqrt(k) * 2**(b S - b i) * delta * peak * norm(x)``.  It is also
  at most rho times that of A', ``rho = (2**b - 1) / (2**(b - 1) - 1)``: the first
  nonzero digit, at place t, is 1 at least and those after it -2**(b - 1) at the
  lowest, so ``abs(A') > 2**(b t) / rho``, and the others count for less than it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from np_ozaki.errors import OptionError, refusal
from np_ozaki.numerics.budget import (
    STATISTICAL_GROWTH,
    check_inner,
    check_kappa,
    check_tolerance,
    moduli_for_bits,
    moduli_for_target,
    required_bits,
)
from np_ozaki.numerics.moduli import COMPLEX_MODULI, Family, check_num_moduli
from np_ozaki.numerics.slice_bounds import pair_weights
from np_ozaki.numerics.slicing import (
    DEFAULT_BITS_PER_SLICE,
    EXACT_SUM,
    MAX_SLICES,
    Slicing,
    chosen_pairs,
)

__all__ = [
    "Cost",
    "Costs",
    "moduli_against_slices",
    "moduli_cost",
    "slice_bits",
    "slice_error_bound",
    "slices_cost",
    "slices_for_bits",
    "slices_for_target",
]

Schedule = Literal["all", "triangular"]


def slice_bits(slicing: Slicing) -> float:
    """Return the bits left to an entry of lines whose entries are all equally large.

    Parameters
    ----------
    slicing : Slicing
        S, b and pairs.

    Returns
    -------
    float
        log2(D), 55.0 for S = 7 and b = 8, less what the pairs that are left out may
        cost: 53.0 of these, "triangular".  Lines of other entries have fewer bits of
        the smaller ones.  `budget.effective_bits` is the same of moduli; with slices k
        does not matter.

    Notes
    -----
    With ``2**-mu = max(abs(x)) / D``, the exponent that fits exactly, the product of k
    equal entries moves by at most ``k / D`` of their product because of rounding, and
    by ``k * 4**(b - 1) / D**2`` times the weights of the pairs left out.
    """
    b, size = slicing.bits_per_slice, slicing.num_slices
    kept = set(chosen_pairs(slicing.pairs, size))
    lost = sum(
        1 << b * (2 * size - 2 - i - j) + 2 * b - 2
        for i in range(size)
        for j in range(size)
        if (i, j) not in kept
    )
    largest = slicing.largest_integer
    # Never -0.
    return math.log2(largest) - math.log2(1.0 + lost / largest) + 0.0


def slice_error_bound(
    slicing: Slicing,
    k: int,
    *,
    kappa: float = 1.0,
    peak: float = 1.0,
    statistical: bool = False,
) -> float:
    """Return a bound of the error before the final rounding, before data are known.

    Parameters
    ----------
    slicing : Slicing
        S, b, pairs, accumulate.
    k : int
        Inner dimension.
    kappa : float, optional
        As for `budget.relative_error_bound`: with 1, the bound is relative to
        ``norm(a_i) * norm(b_j)``.
    peak : float, optional
        At least ``max(abs(x)) / norm(x)`` for all rows of A and columns of B: 1 always
        is, ``1 / sqrt(k)`` for k equal entries, about 3.5 times as much for Gaussian
        data.
    statistical : bool, optional
        Take rounding errors and digits as random: 1.73 in place of sqrt(k), as
        `budget.relative_error_bound` does.  Not a guarantee.

    Returns
    -------
    float
        A bound of ``abs(C - A @ B)`` over ``abs(A) @ abs(B)``, elementwise.  The final
        rounding (with ``accumulate="float64"``, the last addition) adds 2**-53 times
        abs(C).

    Raises
    ------
    OptionError
        If an argument is out of range.

    Notes
    -----
    The rounding of the operands and what `slice_bounds.pair_weights` says of the pairs,
    with the norms of slices by the rules at the top of this module.
    """
    check_inner(k)
    check_kappa(kappa)
    if not 0.0 < peak <= 1.0:
        limit = "an entry is at most as large as its line's norm"
        raise OptionError(refusal("peak", peak, limit, "1 is always right"))
    b, size = slicing.bits_per_slice, slicing.num_slices
    root = math.sqrt(k)
    growth = min(root, STATISTICAL_GROWTH) if statistical else root
    delta = 2.0 / (2 * slicing.largest_integer + 1)
    moved = delta * peak * growth
    rho = (2**b - 1) / (2 ** (b - 1) - 1) * (1.0 + delta * root)
    norms = [
        min(root * math.ldexp(delta, b * (size - i)) * peak, rho) for i in range(size)
    ]
    pairs = math.fsum(
        weight * norms[i] * norms[j]
        for i, row in enumerate(pair_weights(slicing, k).tolist())
        for j, weight in enumerate(row)
    )
    if k:
        pairs *= growth / root
    # The few hundred roundings of this function stay far below one part in 2**40.
    return kappa * (moved * (2.0 + moved) + pairs) * (1.0 + 2.0**-40)


def slices_for_bits(
    bits: float,
    *,
    bits_per_slice: int = DEFAULT_BITS_PER_SLICE,
    pairs: Schedule = "triangular",
) -> int:
    """Return the least number of slices with `slice_bits` of so many.

    Parameters
    ----------
    bits : float
        Bits of an entry; `budget.effective_bits` has those of moduli.
    bits_per_slice : int, optional
        b, 2 to 8.
    pairs : "triangular" or "all", optional
        Schedule of pairs.

    Returns
    -------
    int
        S, 1 to 16.

    Raises
    ------
    OptionError
        If 16 slices are not enough.

    Examples
    --------
    >>> from np_ozaki.numerics.budget import effective_bits
    >>> slices_for_bits(effective_bits(15, 1024))
    8
    """
    if math.isnan(bits):
        limit = "is no number of bits"
        raise OptionError(refusal("bits", bits, limit, "53 are those of a double"))
    for size in range(1, MAX_SLICES + 1):
        most = slice_bits(Slicing(size, bits_per_slice, pairs))
        if most >= bits:
            return size
    limit = f"{MAX_SLICES} slices of {bits_per_slice} bits keep {most:.1f}"
    raise OptionError(refusal("bits", bits, limit, "ask for fewer, or use moduli"))


def slices_for_target(
    relative_tolerance: float,
    k: int,
    *,
    bits_per_slice: int = DEFAULT_BITS_PER_SLICE,
    pairs: Schedule = "triangular",
    kappa: float = 1.0,
    peak: float = 1.0,
    statistical: bool = False,
) -> int:
    """Return the least number of slices that keeps to a tolerance.

    Parameters
    ----------
    relative_tolerance : float
        Largest ``abs(C - A @ B) / (abs(A) @ abs(B))`` allowed, elementwise, apart from
        the final rounding of C.
    k : int
        Inner dimension.
    bits_per_slice : int, optional
        b, 2 to 8.
    pairs : "triangular" or "all", optional
        Schedule of pairs.
    kappa, peak, statistical : optional
        See `slice_error_bound`.

    Returns
    -------
    int
        Least S whose `slice_error_bound` is within the tolerance.

    Raises
    ------
    OptionError
        If an argument is out of range, or 16 slices are not enough.

    Examples
    --------
    Normwise, to the last bit:

    >>> slices_for_target(2.0**-53, 1024), moduli_for_target(2.0**-53, 1024)
    (9, 16)
    """
    check_tolerance(relative_tolerance)
    for size in range(1, MAX_SLICES + 1):
        bound = slice_error_bound(
            Slicing(size, bits_per_slice, pairs),
            k,
            kappa=kappa,
            peak=peak,
            statistical=statistical,
        )
        if bound <= relative_tolerance:
            return size
    limit = f"{MAX_SLICES} slices guarantee {bound:.2g} for k={k}, kappa={kappa:.2g}"
    raise OptionError(
        refusal("relative_tolerance", relative_tolerance, limit, "use moduli")
    )


@dataclass(frozen=True)
class Cost:
    """What one product of (m, k) by (k, n) takes of INT8 units and memory.

    Attributes
    ----------
    scheme : {"moduli", "slices"}
        Which one.
    num_planes : int
        Moduli N, or slices S.
    num_gemms : int
        INT8 products of real matrices of the same size: N, or the pairs of slices;
        of complex matrices twice or four times as many.
    operations : int
        Of these, multiplied and added: 2 m n k each.
    planes_bytes : int
        INT8 planes of both operands.
    sums_bytes : int
        Sums on their way to the result: a residue of a byte a modulus, INT32 a weight
        of slices (and once more as often as they would pass 31 bits).  An engine need
        not hold them all at a time.
    traffic_bytes : int
        Read and written, at least: operands and result once in float64, planes and
        sums twice.  What products read of planes again and again counts as theirs.
    """

    scheme: Literal["moduli", "slices"]
    num_planes: int
    num_gemms: int
    operations: int
    planes_bytes: int
    sums_bytes: int
    traffic_bytes: int

    def seconds(self, int8_tops: float, terabytes_per_second: float) -> float:
        """Predict the time of the products and then of the bytes, not overlapped.

        Parameters
        ----------
        int8_tops : float
            What INT8 products reach, 10^12 operations a second.
        terabytes_per_second : float
            What memory reaches, 10^12 bytes a second.

        Returns
        -------
        float
            Seconds.

        Raises
        ------
        OptionError
            If a rate is not positive.
        """
        for name, rate in (
            ("int8_tops", int8_tops),
            ("terabytes_per_second", terabytes_per_second),
        ):
            if not rate > 0.0:
                remedy = "pass what the machine reaches"
                raise OptionError(refusal(name, rate, "must be positive", remedy))
        by_products = self.operations / (int8_tops * 1e12)
        return by_products + self.traffic_bytes / (terabytes_per_second * 1e12)


class _Matrices(NamedTuple):
    """What stands for the matrices of a product, in entries of theirs.

    Attributes
    ----------
    parts : int
        Real numbers for an entry of B, and of C.
    left : int
        Those for an entry of A.
    inner : int
        Products in the sum for a part of C, over k.
    gemms : int
        Real products for one.
    """

    parts: int
    left: int
    inner: int
    gemms: int


_REAL = _Matrices(1, 1, 1, 1)
_IN_PAIRS = _Matrices(2, 2, 1, 2)
_EMBEDDED = _Matrices(2, 4, 2, 4)


class Costs(NamedTuple):
    """Both schemes for the same target."""

    moduli: Cost
    slices: Cost


def moduli_cost(
    m: int, n: int, k: int, num_moduli: int, family: Family = "real"
) -> Cost:
    """Return what a product by moduli takes.

    Parameters
    ----------
    m, n, k : int
        Rows of A, columns of B, inner dimension.
    num_moduli : int
        N, 2 to 49.
    family : {"real", "complex"}, optional
        What is multiplied.

    Returns
    -------
    Cost
        Of N INT8 products; of complex matrices 2 N of them up to 22 moduli, then 4 N.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range.
    """
    check_num_moduli(num_moduli)
    in_pairs = num_moduli <= len(COMPLEX_MODULI)
    return _cost(
        "moduli",
        (m, n, k),
        num_moduli,
        num_moduli,
        num_moduli * m * n,
        _REAL if family == "real" else _IN_PAIRS if in_pairs else _EMBEDDED,
    )


def slices_cost(
    m: int, n: int, k: int, slicing: Slicing, family: Family = "real"
) -> Cost:
    """Return what a product by slices takes.

    Parameters
    ----------
    m, n, k : int
        Rows of A, columns of B, inner dimension.
    slicing : Slicing
        S, b and pairs.
    family : {"real", "complex"}, optional
        What is multiplied.

    Returns
    -------
    Cost
        Of an INT8 product a pair, or four of complex matrices.
    """
    how = _REAL if family == "real" else _EMBEDDED
    # A sum of 32 bits holds so many products of k digits.
    largest = max(1, how.inner * k << 2 * slicing.bits_per_slice - 2)
    sums = sum(-(-x.num_pairs * largest // EXACT_SUM) for x in slicing.diagonals)
    sizes, gemms = slicing.num_slices, slicing.num_products
    return _cost("slices", (m, n, k), sizes, gemms, 4 * sums * m * n, how)


def moduli_against_slices(
    m: int,
    n: int,
    k: int,
    *,
    target_bits: int | None = None,
    relative_tolerance: float | None = None,
    kappa: float = 1.0,
    peak: float = 1.0,
    bits_per_slice: int = DEFAULT_BITS_PER_SLICE,
    pairs: Schedule = "triangular",
) -> Costs:
    """Return what either scheme takes for one target.

    Parameters
    ----------
    m, n, k : int
        Rows of A, columns of B, inner dimension.
    target_bits : int, optional
        Bits of an entry in two's complement, 53 for doubles of one exponent: moduli
        then need ``2 t + ceil(log2(k))`` bits, see `budget.required_bits`, and slices
        t - 1 by `slice_bits`.
    relative_tolerance : float, optional
        Instead: largest ``abs(C - A @ B) / (abs(A) @ abs(B))``, guaranteed.
    kappa, peak : float, optional
        What is known of the data, for a tolerance; see `slice_error_bound`.
    bits_per_slice : int, optional
        b, 2 to 8.
    pairs : "triangular" or "all", optional
        Schedule of pairs.

    Returns
    -------
    Costs
        Of the least number of moduli and of slices.

    Raises
    ------
    OptionError
        If there is no target or there are two, or one of the schemes cannot reach it.

    Examples
    --------
    >>> both = moduli_against_slices(8192, 8192, 8192, target_bits=53)
    >>> both.moduli.num_gemms, both.slices.num_gemms
    (16, 28)
    >>> [round(1e3 * x.seconds(1300.0, 4.0), 1) for x in both]
    [15.5, 25.5]
    """
    if (target_bits is None) == (relative_tolerance is None):
        given = (target_bits, relative_tolerance)
        limit = "one target is wanted"
        remedy = "pass target_bits=53, say, or a tolerance"
        name = "target_bits, relative_tolerance"
        raise OptionError(refusal(name, given, limit, remedy))
    if target_bits is not None:
        if (kappa, peak) != (1.0, 1.0):
            limit = "is about a tolerance, not about bits"
            name, value = ("kappa", kappa) if kappa != 1.0 else ("peak", peak)
            remedy = "leave it out, or pass relative_tolerance"
            raise OptionError(refusal(name, value, limit, remedy))
        num_moduli = moduli_for_bits(required_bits(target_bits, k))
        num_slices = slices_for_bits(
            target_bits - 1, bits_per_slice=bits_per_slice, pairs=pairs
        )
    elif relative_tolerance is not None:
        num_moduli = moduli_for_target(relative_tolerance, k, kappa=kappa)
        num_slices = slices_for_target(
            relative_tolerance,
            k,
            bits_per_slice=bits_per_slice,
            pairs=pairs,
            kappa=kappa,
            peak=peak,
        )
    return Costs(
        moduli_cost(m, n, k, num_moduli),
        slices_cost(m, n, k, Slicing(num_slices, bits_per_slice, pairs)),
    )


def _cost(
    scheme: Literal["moduli", "slices"],
    size: tuple[int, int, int],
    planes: int,
    gemms: int,
    sums_bytes: int,
    how: _Matrices,
) -> Cost:
    for name, length in zip("mnk", size, strict=True):
        if length < 0:
            limit = "a length is 0 or more"
            raise OptionError(refusal(name, length, limit, "pass a length"))
    m, n, k = size
    gemms, sums_bytes = how.gemms * gemms, how.parts * sums_bytes
    planes_bytes = planes * (how.left * m * k + how.parts * k * n)
    once = 8 * how.parts * (m * k + k * n + m * n)
    traffic = once + 2 * (planes_bytes + sums_bytes)
    operations = gemms * 2 * m * n * k
    return Cost(scheme, planes, gemms, operations, planes_bytes, sums_bytes, traffic)
