"""How many moduli a product needs, and what a number of moduli guarantees.

Everything here is known before any data are seen, or from a number or two about
them; `np_ozaki.numerics.bounds` bounds the error of one given product instead.

The equations, with P the product of the N moduli, M = (P - 1) // 2 and the scaling
rule "norm":

* ``2 * sum(abs(A') * abs(B')) <= P - 1`` makes the CRT unique (arXiv 2504.08009);
  rows of A' and columns of B' of 2-norm at most sqrt(M) satisfy it by Cauchy-Schwarz
  (arXiv 2606.29129).
* The exponent mu of a row a is the largest for which the contract's norm fits, hence
  ``2**-mu <= 2 * phi * norm(a) / sqrt(M)``.  The contract rounds every entry of a row
  up to w bits before it takes the norm, so phi = 1 + sqrt(k) * 2**(1 - w), at most
  1.001 for N >= 7 and k <= 1024; where even w bits can exceed M it gives one bit more
  away, and phi doubles.
* A part of a complex product is a sum of 2k real ones, of rows and columns that hold
  both parts: everything holds for it with the complex moduli and 2k in place of k, and
  the functions here mean these real terms by k.
* Rounding to nearest moves an entry by at most 2**-mu / 2.  Summed over k, as in the
  error analysis of arXiv 2602.02549, the product moves by at most
  ``((1 + delta)**2 - 1) * norm(a_i) * norm(b_j)`` with delta = phi * sqrt(k / M).
"""

from __future__ import annotations

import functools
import math

from np_ozaki.errors import OptionError, refusal
from np_ozaki.numerics.moduli import (
    MAX_MODULI,
    MIN_MODULI,
    Family,
    check_num_moduli,
    log2_modulus_product,
    product_bound,
    scaling_bits,
)
from np_ozaki.numerics.reference import norm_width

__all__ = [
    "LONG",
    "STATISTICAL_GROWTH",
    "check_inner",
    "check_kappa",
    "check_tolerance",
    "effective_bits",
    "least_exponent",
    "lent_bits",
    "long_bits",
    "moduli_for_bits",
    "moduli_for_target",
    "relative_error_bound",
    "required_bits",
    "required_moduli_exact",
]

STATISTICAL_GROWTH = 1.73
"""What takes the place of sqrt(k) for rounding errors of random sign.

Each is uniform in +-2**-mu / 2, so the sum over k has a standard deviation of at most
sqrt(2 / 3) * norm * norm / sqrt(M).  Putting 1.73 for sqrt(k) allows 2 * 1.73 times
norm * norm / sqrt(M), 4.2 times as much.
"""


def required_bits(target_bits: int, k: int) -> int:
    """Return the bits of P that hold products of `target_bits`-bit integers.

    Parameters
    ----------
    target_bits : int
        t, bits of an entry of A' or B' in two's complement: 53 for doubles of one
        exponent, within a bit.
    k : int
        Inner dimension.

    Returns
    -------
    int
        ``2 * t + ceil(log2(k))``: 116 bits for t = 53 and k = 1024.

    Raises
    ------
    OptionError
        If `target_bits` is below 1 or `k` is negative.

    Notes
    -----
    Entries lie in ``-2**(t-1) .. 2**(t-1)``, so ``2 * abs(C') <= k * 2**(2 t - 1)``,
    which is below any P of that many bits (uniqueness condition of arXiv
    2504.08009).  The rule serves data of uniform size; `moduli_for_target` counts the
    spread.

    Examples
    --------
    >>> moduli_for_bits(required_bits(53, 1024))
    15
    """
    check_inner(k)
    if target_bits < 1:
        raise OptionError(
            refusal("target_bits", target_bits, "at least 1", "53 for doubles")
        )
    return 2 * target_bits + max(k - 1, 0).bit_length()


def moduli_for_bits(bits: float, family: Family = "real") -> int:
    """Return the least number of moduli with ``log2(P) >= bits``.

    Parameters
    ----------
    bits : float
        Bits of P, at most 341.9 (49 moduli).
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        N, 2 to 49.

    Raises
    ------
    OptionError
        If 49 moduli are not enough.
    """
    for num_moduli in range(MIN_MODULI, MAX_MODULI + 1):
        if log2_modulus_product(num_moduli, family) >= bits:
            return num_moduli
    limit = f"{MAX_MODULI} moduli hold {log2_modulus_product(MAX_MODULI):.1f} bits"
    raise OptionError(refusal("bits", bits, limit, "ask for fewer bits"))


def effective_bits(num_moduli: int, k: int, family: Family = "real") -> float:
    """Return the bits left to an entry of a row whose k entries are equally large.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    float
        ``(log2(P) - 1) / 2 - log2(k) / 2``: 53.39 for N = 15 and k = 1024.  Larger
        entries of a less uniform row get more bits, smaller ones fewer.

    Raises
    ------
    OptionError
        If `num_moduli` is out of range or `k` is negative.

    Notes
    -----
    A scaled row has a 2-norm of at most 2**((log2(P) - 1) / 2) (arXiv 2606.29129),
    so k equal entries are at most that divided by sqrt(k).  The floor of the
    exponent takes up to one bit of it.
    """
    check_inner(k)
    return scaling_bits(num_moduli, family) - math.log2(max(k, 1)) / 2.0


def relative_error_bound(
    num_moduli: int,
    k: int,
    family: Family = "real",
    *,
    kappa: float = 1.0,
    statistical: bool = False,
) -> float:
    """Return a bound of the error of the integers, before the data are known.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.
    kappa : float, optional
        At least ``norm(a_i) * norm(b_j) / (abs(a_i) @ abs(b_j))`` for all entries
        asked about; 1.4 for Gaussian data, unbounded in general.  With 1, the bound
        is relative to ``norm(a_i) * norm(b_j)``.
    statistical : bool, optional
        Take rounding errors as random: 1.73 in place of sqrt(k), 4.2 standard
        deviations.  Not a guarantee.

    Returns
    -------
    float
        ``kappa * ((1 + delta)**2 - 1)``, about ``2 * sqrt(k / M) * kappa``: a bound
        of ``abs(C - A @ B)`` over ``abs(A) @ abs(B)``, elementwise.  The final
        rounding, which no N avoids, adds 2**-53 times abs(C).

    Raises
    ------
    OptionError
        If an argument is out of range.

    Notes
    -----
    With both operands moved by at most half a unit, the product moves by at most
    ``2**-mu * norm1(b) / 2 + 2**-nu * norm1(a) / 2 + k * 2**-(mu + nu) / 4``.  Putting
    norm1 <= sqrt(k) * norm and ``2**-mu <= 2 * phi * norm(a) / sqrt(M)`` gives the
    value.  It holds for scaling "norm" (arXiv 2606.29129; error analysis as in arXiv
    2602.02549).
    """
    check_num_moduli(num_moduli)
    check_inner(k)
    check_kappa(kappa)
    growth = math.sqrt(k)
    if statistical:
        growth = min(growth, STATISTICAL_GROWTH)
    limit = product_bound(num_moduli, family)
    delta = _norm_excess(limit, k) * growth / math.sqrt(limit)
    # The dozen roundings of this function stay far below one part in 2**40.
    return kappa * delta * (2.0 + delta) * (1.0 + 2.0**-40)


def moduli_for_target(
    relative_tolerance: float,
    k: int,
    family: Family = "real",
    *,
    kappa: float = 1.0,
    statistical: bool = False,
) -> int:
    """Return the least number of moduli that keeps to a tolerance.

    Parameters
    ----------
    relative_tolerance : float
        Largest ``abs(C - A @ B) / (abs(A) @ abs(B))`` allowed, elementwise, apart
        from the final rounding of C.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.
    kappa : float, optional
        See `relative_error_bound`.  With 1, the tolerance is relative to
        ``norm(a_i) * norm(b_j)``.
    statistical : bool, optional
        Take rounding errors as random, which saves about one modulus.  Not a
        guarantee.

    Returns
    -------
    int
        Least N whose `relative_error_bound` is within the tolerance.

    Raises
    ------
    OptionError
        If an argument is out of range, or 49 moduli are not enough.

    Examples
    --------
    As accurate as a conventional product of Gaussian data is guaranteed to be:

    >>> moduli_for_target(1024 * 2.0**-53, 1024, kappa=1.4)
    13
    """
    check_tolerance(relative_tolerance)
    for num_moduli in range(MIN_MODULI, MAX_MODULI + 1):
        bound = relative_error_bound(
            num_moduli, k, family, kappa=kappa, statistical=statistical
        )
        if bound <= relative_tolerance:
            return num_moduli
    limit = f"{MAX_MODULI} moduli guarantee {bound:.2g} for k={k}, kappa={kappa:.2g}"
    raise OptionError(
        refusal("relative_tolerance", relative_tolerance, limit, "ask for less")
    )


def required_moduli_exact(
    a_bits: float,
    b_bits: float,
    k: int,
    family: Family = "real",
    *,
    asymmetric: bool = True,
) -> int:
    """Return a number of moduli with which no entry of A and B is rounded.

    Then C is the correctly rounded product.

    Parameters
    ----------
    a_bits, b_bits : float
        Largest ``log2(norm(x)) - lsb(x)`` over the rows of A, and over the columns of
        B, where every entry of x is a multiple of 2**lsb(x): at most the bits of an
        entry plus log2(k) / 2.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.
    asymmetric : bool, optional
        Allow exponents ``mu - t`` and ``nu + t`` with one integer t, which lends
        bits that A does not use to B, or the reverse.

    Returns
    -------
    int
        Least N for which exactness is guaranteed.

    Raises
    ------
    OptionError
        If `k` is negative, or 49 moduli are not enough.

    Notes
    -----
    With L = log2(sqrt(M) / phi), rule "norm" (arXiv 2606.29129) gives
    ``mu >= floor(L - log2(norm))``, hence ``mu + lsb >= floor(L - a_bits)`` for every
    row, and a row is exact if ``mu - t + lsb >= 0``.  So t may be anything in
    ``-floor(L - b_bits) .. floor(L - a_bits)``; without asymmetry it must be 0.

    Examples
    --------
    Zeros and ones times 53-bit integers, k = 1024:

    >>> required_moduli_exact(5.0, 58.0, 1024)
    9
    >>> required_moduli_exact(5.0, 58.0, 1024, asymmetric=False)
    15
    """
    check_inner(k)
    for num_moduli in range(MIN_MODULI, MAX_MODULI + 1):
        bound = product_bound(num_moduli, family)
        excess = math.log2(_norm_excess(bound, k))
        # 2**-30 stands above the rounding errors of the logarithms.
        spare = math.log2(bound) / 2.0 - excess - 2.0**-30
        a_spare, b_spare = math.floor(spare - a_bits), math.floor(spare - b_bits)
        if (a_spare + b_spare if asymmetric else min(a_spare, b_spare)) >= 0:
            return num_moduli
    limit = f"{MAX_MODULI} moduli hold {2.0 * spare:.1f} bits of both together"
    raise OptionError(
        refusal("a_bits, b_bits", (a_bits, b_bits), limit, "accept a tolerance")
    )


LONG = 49
"""Bits of an entry from which on it has none worth lending: 48 still save a modulus."""


@functools.lru_cache(maxsize=1024)
def least_exponent(num_moduli: int, k: int, family: Family = "real") -> int:
    """Return a lower bound of mu + e over all rows, scaling "norm".

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        Of a row with k entries as large as its largest, 2^e <= max|a| < 2^(e + 1):
        then S = k 4^w, and mu only falls as S grows.
    """
    limit = product_bound(num_moduli, family)
    width = norm_width(limit)
    k = max(k, 1)
    # The largest q with k 4^(w + q) <= M.
    if k <= limit:
        q = ((limit // k).bit_length() - 1) // 2 - width
    else:
        q = -(((-(-k // limit) - 1).bit_length() + 1) // 2) - width
    return q + width - 1 - (q < 0)


@functools.lru_cache(maxsize=1024)
def lent_bits(
    num_moduli: int, k: int, a_bits: int, b_bits: int, family: Family = "real"
) -> tuple[int, int, bool] | None:
    """Return fewer moduli that do as well, where entries have few bits.

    Parameters
    ----------
    num_moduli : int
        N that the product would take otherwise.
    k : int
        Inner dimension; twice that of a complex product.
    a_bits, b_bits : int
        Most bits of an entry over the rows of A (columns of B), from the first bit of
        the row's largest entry to the last bit of any; `LONG` stands for more.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    num_moduli : int
        The new N, smaller.
    shift : int
        t, for exponents mu - t and nu + t.
    exact : bool
        Whether neither operand is rounded.  Otherwise A is not for t > 0, B is not for
        t < 0, and the other one has exponents no smaller than before, by
        `least_exponent`.
    None
        Where nothing is to be gained.

    Notes
    -----
    A row is a multiple of 2^l with e - l = bits - 1, so its integers are exact while
    mu - t + l >= 0, for which ``least_exponent - t >= bits - 1`` suffices.  The rule is
    odd: operands that change roles change the sign of t.
    """
    wanted = least_exponent(num_moduli, k, family)
    for fewer in range(MIN_MODULI, num_moduli):
        least = least_exponent(fewer, k, family)
        most_a, most_b = least - a_bits + 1, least - b_bits + 1
        if a_bits < LONG and b_bits < LONG and most_a + most_b >= 0:
            return fewer, min(max(0, -most_b), most_a), True
        if a_bits < min(b_bits, LONG) and least + most_a >= wanted:
            return fewer, most_a, False
        if b_bits < min(a_bits, LONG) and least + most_b >= wanted:
            return fewer, -most_b, False
    return None


def long_bits(num_moduli: int, k: int, family: Family = "real") -> int:
    """Return the bits from which on entries of both operands leave nothing to gain.

    Parameters
    ----------
    num_moduli : int
        N that the product would take otherwise.
    k : int
        Inner dimension; twice that of a complex product.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        At most `LONG`; where both `a_bits` and `b_bits` have as many, `lent_bits` is
        None.

    Notes
    -----
    With l = least_exponent(N - 1) both operands are exact, at best, if ``a_bits +
    b_bits <= 2 l + 2``, and one lends enough if its bits are at most ``2 l + 1 -
    least_exponent(N) <= l + 1``.  Fewer moduli have a smaller l.
    """
    if num_moduli == MIN_MODULI:
        return 1
    return min(LONG, max(1, least_exponent(num_moduli - 1, k, family) + 2))


def _norm_excess(limit: int, k: int) -> float:
    """Return phi: how far the contract's norm of a row can exceed its 2-norm, for M.

    The w-bit entries ``t = ceil(abs(x) * 2**(w - 1 - e))`` have a norm of at most
    ``norm(x) * 2**(w - 1 - e) + sqrt(k)``, and the first term is at least 2**(w - 1).
    Where k * 4**w exceeds M, the norm can, and then mu is one lower.
    """
    width = norm_width(limit)
    excess = 1.0 + math.ldexp(math.sqrt(k), 1 - width)
    return 2.0 * excess if k << 2 * width > limit else excess


def check_inner(k: int) -> None:
    """Raise `OptionError` if an inner dimension is negative.

    Parameters
    ----------
    k : int
        Inner dimension.

    Raises
    ------
    OptionError
        Below 0.
    """
    if k < 0:
        raise OptionError(
            refusal("k", k, "an inner dimension is not negative", "pass A.shape[1]")
        )


def check_kappa(kappa: float) -> None:
    """Raise `OptionError` unless a ratio of norms is possible.

    Parameters
    ----------
    kappa : float
        See `relative_error_bound`.

    Raises
    ------
    OptionError
        Below 1, infinite or NaN.
    """
    if not 1.0 <= kappa < math.inf:
        raise OptionError(
            refusal("kappa", kappa, "at least 1 and finite", "1 for a normwise bound")
        )


def check_tolerance(relative_tolerance: float) -> None:
    """Raise `OptionError` unless a tolerance can be asked for.

    Parameters
    ----------
    relative_tolerance : float
        See `moduli_for_target`.

    Raises
    ------
    OptionError
        Not positive, infinite or NaN.
    """
    if not 0.0 < relative_tolerance < math.inf:
        raise OptionError(
            refusal(
                "relative_tolerance",
                relative_tolerance,
                "positive and finite",
                "2**-53 asks for FP64 accuracy",
            )
        )
