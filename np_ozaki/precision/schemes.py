"""Which scheme each matrix of a batch takes: from bits of its entries alone.

All decisions are functions of exact integers, so every engine and machine decides
alike, and each matrix of a batch decides by itself.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import (
    AUTO_MODULI,
    COMPLEX_AUTO_MODULI,
    COMPLEX_SINGLE_AUTO_MODULI,
    SINGLE_AUTO_MODULI,
    Options,
)
from np_ozaki.engines.base import AnyScheme, Engine, Scheme, Target
from np_ozaki.engines.cpu_units import ZERO_UNIT, entry_units
from np_ozaki.engines.prepared import NO_KEEPER, Keeper
from np_ozaki.errors import OptionError, PrecisionError, refusal
from np_ozaki.numerics.budget import (
    LONG,
    least_exponent,
    lent_bits,
    long_bits,
    moduli_for_target,
)
from np_ozaki.numerics.formats import DOUBLE, SINGLE, Format
from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    MAX_MODULI,
    MIN_MODULI,
    Family,
    log2_modulus_product,
    product_bound,
    scaling_bits,
)

__all__ = [
    "auto_moduli",
    "check_keeps_tolerance",
    "exact_schemes",
    "first_scheme",
    "first_schemes",
    "goal",
    "more_moduli",
    "plain_scheme",
    "tolerance_exponent",
    "too_long",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

SHORT_MIN_FLOPS = 2 * 256**3
"""Below this a product is done before a look at its bits would pay."""

_ALL_LONG = np.full(1, LONG)
"""Bits of a batch whose matrices all have long entries."""

_FIRST = 4
"""Entries of a sample that are looked at one by one: one of 32 is short by chance."""

_LAST_BITS = (1 << 54 - LONG) - 1
"""Of 53, those that an entry of fewer bits than `LONG` has not."""

_TYPICAL_KAPPA = 2.0
"""norm norm / |A||B| of ordinary data, with room for what a certificate loses."""

_DOUBLE_DOUBLE_BITS = 106


@functools.lru_cache(maxsize=256)
def tolerance_exponent(tolerance: float, to: Format = DOUBLE) -> int:
    """Return the largest t for which a certified theta = 2^t keeps a tolerance.

    Parameters
    ----------
    tolerance : float
        2 u to below 1.
    to : Format, optional
        Of the result.

    Returns
    -------
    int
        With |C - AB| <= 2^t |A||B| before the one rounding to that format, which errs
        by u |C|, the whole error is at most tolerance |A||B| (and half of the smallest
        subnormal number).
    """
    unit, t = Fraction(1, 2**to.bits), -1
    while Fraction(2) ** t * (1 + unit) + unit > Fraction(tolerance):
        t -= 1
    return t


def keeps_tolerance(options: Options, to: Format) -> bool:
    """Return whether results of a format can keep the precision of options.

    Parameters
    ----------
    options : Options
        Of a product by moduli.
    to : Format
        Of its result.

    Returns
    -------
    bool
        False for tolerances below the spacing of float32.
    """
    precision = options.precision
    if to is DOUBLE or isinstance(precision, (str, Integral)):
        return True
    return precision >= 2.0 * to.unit


def check_keeps_tolerance(options: Options, to: Format) -> None:
    """Refuse a tolerance that results of a format cannot keep.

    Parameters
    ----------
    options : Options
        Of a product by moduli.
    to : Format
        Of its result.

    Raises
    ------
    OptionError
        It is below the spacing of float32.
    """
    if not keeps_tolerance(options, to):
        precision = options.precision
        limit = "a tolerance of float32 products is at least 2**-23, their spacing"
        remedy = "pass float64 operands, or a larger tolerance"
        raise OptionError(refusal("precision", precision, limit, remedy))


def auto_moduli(family: Family, to: Format = DOUBLE) -> int:
    """Return the moduli that "auto" begins with.

    Parameters
    ----------
    family : {"real", "complex"}
        Of products.
    to : Format, optional
        Of their results.

    Returns
    -------
    int
        Enough for ordinary data.
    """
    if to is SINGLE:
        return COMPLEX_SINGLE_AUTO_MODULI if family == "complex" else SINGLE_AUTO_MODULI
    return COMPLEX_AUTO_MODULI if family == "complex" else AUTO_MODULI


def goal(
    options: Options,
    k: int,
    double: bool,
    family: Family = "real",
    to: Format = DOUBLE,
) -> tuple[Target, int]:
    """Return what a product is to be certified for, and the moduli to begin with.

    Parameters
    ----------
    options : Options
        With precision "auto" or a tolerance.
    k : int
        Inner dimension.
    double : bool
        Whether the result is a double-double: "auto" then means k 2^-106.
    family : {"real", "complex"}, optional
        Whose moduli; k of "complex" is that of the embedded operands.
    to : Format, optional
        Of the result.

    Returns
    -------
    target : "conventional", "single" or int
        For `Engine.matmul`.
    num_moduli : int
        Enough for ordinary data.
    """
    if options.precision == "auto" and not double:
        target: Target = "single" if to is SINGLE else "conventional"
        return target, auto_moduli(family, to)
    if options.precision == "auto":
        target = k.bit_length() - 1 - _DOUBLE_DOUBLE_BITS
    else:
        target = tolerance_exponent(float(options.precision), to)
    return target, _enough(target, k, family)


@functools.lru_cache(maxsize=256)
def _enough(target: int, k: int, family: Family) -> int:
    """Return the moduli that ordinary data take for theta = 2^target."""
    return moduli_for_target(2.0**target, k, family, kappa=_TYPICAL_KAPPA)


def plain_scheme(
    options: Options, family: Family = "real", to: Format = DOUBLE
) -> AnyScheme | None:
    """Return the scheme of products without certificates, or None for others.

    Parameters
    ----------
    options : Options
        Any.
    family : {"real", "complex"}, optional
        Whose moduli.
    to : Format, optional
        Of the result.

    Returns
    -------
    Scheme, Slicing or None
        The number of moduli, or the slices, that were asked for; or that of scaling
        "legacy", which exists to fail.

    Raises
    ------
    OptionError
        A complex product is asked for with more moduli than there are.
    """
    if options.scheme == "slices":
        return options.slicing
    precision = options.precision
    # An abstract class takes longer to ask than all the rest.
    if type(precision) is int or (
        type(precision) is not str and isinstance(precision, Integral)
    ):
        if family == "complex":
            _check_complex(int(precision))
        return _scheme(int(precision), options.scaling, 0, family)
    if options.scaling == "legacy":
        return _scheme(auto_moduli(family, to), options.scaling, 0, family)
    return None


def _check_complex(num_moduli: int) -> None:
    """Refuse a number of moduli that is not of the complex table."""
    most = len(COMPLEX_MODULI)
    if num_moduli > most:
        limit = f"a complex product takes {MIN_MODULI} to {most} moduli"
        remedy = f"{COMPLEX_AUTO_MODULI} give FP64 accuracy on ordinary data"
        raise OptionError(refusal("precision", num_moduli, limit, remedy))


_scheme = functools.lru_cache(maxsize=256)(Scheme)
"""The very object for a number of moduli, a scaling, no lent bits and a family."""


def first_scheme(
    options: Options, k: int, family: Family = "real", to: Format = DOUBLE
) -> tuple[AnyScheme, Target | None]:
    """Return what a product of ordinary data begins with.

    Parameters
    ----------
    options : Options
        With another precision than "exact".
    k : int
        Inner dimension.
    family : {"real", "complex"}, optional
        Whose moduli; k of "complex" is that of the embedded operands.
    to : Format, optional
        Of the result.

    Returns
    -------
    scheme : Scheme or Slicing
        Lends no bits.
    target : "conventional", "single", int or None
        What is to be certified, if anything.
    """
    scheme = plain_scheme(options, family, to)
    if scheme is not None:
        return scheme, None
    check_keeps_tolerance(options, to)
    target, num_moduli = goal(options, k, double=False, family=family, to=to)
    return Scheme(num_moduli, options.scaling, family=family), target


def first_schemes(
    engine: Engine,
    a: Array,
    b: Array,
    scaling: str,
    num_moduli: int,
    batch: int,
    keepers: tuple[Keeper, Keeper],
    family: Family = "real",
) -> list[tuple[Scheme, bool]]:
    """Return the scheme of each matrix, fewer moduli where entries have few bits.

    Parameters
    ----------
    engine : Engine
        Who looks at the entries.
    a : (batch, m, k) array of float64
        Batch 1 broadcasts.
    b : (batch, k, n) array of float64
        Batch 1 broadcasts.
    scaling : str
        "norm" or "accurate"; only the former lends bits.
    num_moduli : int
        N for operands of full length.
    batch : int
        Matrices of the result.
    keepers : tuple of Keeper
        Of A and of B: what was seen of their entries before.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    list of (Scheme, bool)
        One a matrix; True where neither operand is rounded, so that nothing is left to
        certify.
    """
    usual = [(_scheme(num_moduli, scaling, 0, family), False)] * batch
    (_, m, k), n = a.shape, b.shape[2]
    if scaling != "norm" or 2 * m * n * k < SHORT_MIN_FLOPS:
        return usual
    longest, are_long = _longest(engine, (a, b), keepers)
    if are_long:
        return usual
    # Entries of float32 are not, but with its few moduli they are long enough.
    enough = long_bits(num_moduli, k, family)
    if all(found.min() >= enough for found in longest):
        return usual
    bits = np.broadcast_arrays(
        *(
            _short_bits(engine, x, found, keeper, left=left)
            for x, found, keeper, left in zip(
                (a, b), longest, keepers, (True, False), strict=True
            )
        )
    )
    found = [
        lent_bits(num_moduli, k, int(x), int(y), family)
        for x, y in zip(*bits, strict=True)
    ]
    if len(found) < batch:
        found *= batch
    return [
        (Scheme(f[0], scaling, f[1], family), f[2]) if f else other
        for f, other in zip(found, usual, strict=True)
    ]


def _longest(
    engine: Engine, operands: tuple[Array, Array], keepers: tuple[Keeper, Keeper]
) -> tuple[list[Integers], bool]:
    """Return the bits of the longest entry of a sample of each matrix.

    `LONG` stands for more, and the flag says whether all have as many.
    """
    known = [keeper.find("longest") or () for keeper in keepers]
    unknown = [i for i, found in enumerate(known) if not found]
    if unknown:
        # At once: a GPU is waited for.
        samples = engine.samples(*(operands[i] for i in unknown))
        for i, sample in zip(unknown, samples, strict=True):
            known[i] = _longest_entries(sample)
            keepers[i].keep(known[i], "longest")
    return [found[0] for found in known], all(found[1] for found in known)


def _longest_entries(sample: Array) -> tuple[Integers, bool]:
    """Return the bits of the longest entry of each row, and whether all are `LONG`."""
    if all(any(map(_is_long, row)) for row in sample[:, :_FIRST].tolist()):
        # Most operands: a look at few entries is faster than one pass over all.
        return _ALL_LONG, True
    sample = np.where(np.isfinite(sample), sample, 0.0)
    lengths = np.frexp(sample)[1] - entry_units(sample)
    longest = np.minimum(np.where(sample == 0, 0, lengths).max(axis=1), LONG)
    return longest, bool(longest.min() >= LONG)


def _is_long(x: float) -> bool:
    """Return whether a number has `LONG` bits or more."""
    return math.isfinite(x) and int(math.frexp(x)[0] * 2.0**53) & _LAST_BITS != 0


def _short_bits(
    engine: Engine, x: Array, found: Integers, keeper: Keeper, *, left: bool
) -> Integers:
    """Return the most bits of an entry of each matrix, `LONG` for that many or more."""
    if found.min() >= LONG:
        return found
    return np.minimum(_most_bits(*_line_units(engine, x, keeper, left=left)), LONG)


def _line_units(
    engine: Engine, x: Array, keeper: Keeper, *, left: bool
) -> tuple[Integers, Integers]:
    """Return what the engine knows of the bits of each line."""
    e, units = keeper.value(lambda: engine.line_units(x, left=left), "units")
    return e, units


def _most_bits(e: Integers, units: Integers) -> Integers:
    """Return e + 1 - l at its largest over the lines of each matrix, at least 1."""
    bits = np.where(units == ZERO_UNIT, 1, e + 1 - units)
    return np.asarray(bits.max(axis=1, initial=1))


def more_moduli(scheme: Scheme, missing: int, k: int) -> Scheme | None:
    """Return a scheme with so many bits more, or None beyond 49 moduli.

    Parameters
    ----------
    scheme : Scheme
        What was tried.
    missing : int
        Bits that the operands, or the one that was rounded, are short of.
    k : int
        Inner dimension.

    Returns
    -------
    Scheme or None
        The least number of moduli.  The operand that lends bits stays exact.
    """
    used, family = scheme.num_moduli, scheme.family
    for more in range(used + 1, MAX_MODULI + 1):
        gained = scaling_bits(more, family) - scaling_bits(used, family)
        lent = 0
        if scheme.shift:
            sign = 1 if scheme.shift > 0 else -1
            least = least_exponent(used, k, family)
            lent = sign * (least_exponent(more, k, family) - least)
        if gained + abs(lent) >= missing:
            return Scheme(more, scheme.scaling, scheme.shift + lent, family)
    return None


def exact_schemes(
    engine: Engine,
    a: Array,
    b: Array,
    batch: int,
    keepers: tuple[Keeper, Keeper],
    most: int = MAX_MODULI,
    family: Family = "real",
) -> list[Scheme | None]:
    """Return the least scheme that rounds no entry, for each matrix.

    Parameters
    ----------
    engine : Engine
        Who looks at the entries.
    a : (batch, m, k) array of float64
        Batch 1 broadcasts.
    b : (batch, k, n) array of float64
        Batch 1 broadcasts.
    batch : int
        Matrices of the result.
    keepers : tuple of Keeper
        Of A and of B: what was seen of their entries before.
    most : int, optional
        Moduli to try at most.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    list of Scheme or None
        One a matrix; None where `most` moduli are not enough.
    """
    bits, units = _bits(engine, a, b, batch, keepers)
    result: list[Scheme | None] = [None] * batch
    open_ = set(range(batch))
    for n in range(MIN_MODULI, most + 1):
        # mu + e is at most half the bits of M: with less no row can be exact.
        widest = (product_bound(n, family).bit_length() + 1) // 2
        likely = [i for i in open_ if 2 * widest >= bits[i] - 2]
        if not likely:
            continue
        spare_a, spare_b = (
            np.broadcast_to(_spare(exponents, unit), batch)
            for exponents, unit in zip(
                _line_exponents(engine, a, b, (n, family), keepers), units, strict=True
            )
        )
        for i in likely:
            if spare_a[i] + spare_b[i] >= 0:
                shift = min(max(0, -int(spare_b[i])), int(spare_a[i]))
                result[i] = Scheme(n, "norm", shift, family)
                open_.discard(i)
        if not open_:
            break
    return result


def _bits(
    engine: Engine, a: Array, b: Array, batch: int, keepers: tuple[Keeper, Keeper]
) -> tuple[Integers, tuple[Integers, Integers]]:
    """Return the bits of an entry of A plus those of B, and the units of lines."""
    units_a = _line_units(engine, a, keepers[0], left=True)
    units_b = _line_units(engine, b, keepers[1], left=False)
    bits = np.broadcast_to(_most_bits(*units_a), batch) + np.broadcast_to(
        _most_bits(*units_b), batch
    )
    return bits, (units_a[1], units_b[1])


def _line_exponents(
    engine: Engine,
    a: Array,
    b: Array,
    kind: tuple[int, Family],
    keepers: tuple[Keeper, Keeper],
) -> tuple[Integers, Integers]:
    """Return mu and nu for so many moduli of a family."""
    (mu,) = keepers[0].value(
        lambda: (engine.line_exponents(a, *kind, left=True),), "exponents", kind
    )
    (nu,) = keepers[1].value(
        lambda: (engine.line_exponents(b, *kind, left=False),), "exponents", kind
    )
    return mu, nu


def _spare(exponents: Integers, units: Integers) -> Integers:
    """Return the bits by which mu could fall before an entry is rounded."""
    spare = np.where(units == ZERO_UNIT, ZERO_UNIT, exponents + units)
    return np.asarray(spare.min(axis=1, initial=ZERO_UNIT))


def too_long(engine: Engine, a: Array, b: Array, batch: int) -> PrecisionError:
    """Return the error for a product that 49 moduli cannot hold exactly.

    Parameters
    ----------
    engine : Engine
        Who looks at the entries.
    a : (batch, m, k) array of float64
        Batch 1 broadcasts.
    b : (batch, k, n) array of float64
        Batch 1 broadcasts.
    batch : int
        Matrices of the result.

    Returns
    -------
    PrecisionError
        Says how many bits it would take.
    """
    bits = (
        int(_bits(engine, a, b, batch, (NO_KEEPER, NO_KEEPER))[0].max())
        + a.shape[2].bit_length()
        + 2
    )
    limit = (
        f"an exact product of these operands takes about {bits} bits, and "
        f"{MAX_MODULI} moduli hold {log2_modulus_product(MAX_MODULI):.0f}"
    )
    remedy = 'precision="auto" is as accurate as FP64, a float is a tolerance'
    return PrecisionError(refusal("precision", "exact", limit, remedy))
