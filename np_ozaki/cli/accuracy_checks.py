"""What `accuracy` claims, held against what was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from np_ozaki.numerics.formats import DOUBLE, SINGLE, Format

__all__ = ["MEASURES", "checks", "moduli_for_native", "of_scaling"]

_Case = dict[str, Any]
_Claim = tuple[str, bool, str]

MEASURES = ("relative", "componentwise")
"""The errors that are measured, see `accuracy_reference.Errors`."""

_MEAN, _SINGLE = 4.0, 64.0
"""How much larger errors of "norm" than of "accurate" may be, in the geometric mean
over N and for a single N.  The auxiliary product of "accurate" gains up to a bit for
each operand.  A single ratio is also a matter of chance, which decides what entry is
the worst: with a wide range of entries and few of them, ratios of 30 have been seen."""

_WORTHLESS = 0.5
"""A relative error from which on a result says nothing."""

_LARGE, _GROWTH = 40, {DOUBLE: 2.0**30, SINGLE: 2.0**12}
"""At s = 40 "legacy" has lost some 40 bits, a few of which it had to spare; in single
precision all that there are."""

_NARROW, _WIDE = 1.0, 4.0
"""Below the first phi "legacy" does its work, from the second on it does not."""


def of_scaling(case: _Case, scaling: str) -> list[dict[str, Any]]:
    """Return the results of one mode, in the order of measurement.

    Parameters
    ----------
    case : dict
        Of `accuracy_experiments.spread` or `scale`.
    scaling : str
        The mode.

    Returns
    -------
    list of dict
        By number of moduli or by scale.
    """
    return [row for row in case["results"] if row["scaling"] == scaling]


def moduli_for_native(case: _Case, scaling: str, measure: str) -> int | None:
    """Return the number of moduli from which on a mode is as accurate as NumPy.

    Parameters
    ----------
    case : dict
        Of `accuracy_experiments.spread`.
    scaling : str
        The mode.
    measure : str
        One of `MEASURES`.

    Returns
    -------
    int or None
        Among those measured; None if the largest does not suffice.
    """
    found = None
    for row in reversed(of_scaling(case, scaling)):
        if not row[measure] <= case["native"][measure]:
            break
        found = row["num_moduli"]
    return found


def checks(
    spreads: Sequence[_Case], scales: Sequence[_Case], to: Format
) -> list[dict[str, Any]]:
    """Return the claims, and whether the measurements bear them out.

    Parameters
    ----------
    spreads : sequence of dict
        From `accuracy_experiments.spread`.
    scales : sequence of dict
        From `accuracy_experiments.scale`.
    to : Format
        What the products were rounded to.

    Returns
    -------
    list of dict
        With "claim", "holds" and "seen", the figures behind it.
    """
    claims = [
        _references([*spreads, *scales]),
        _norm_equals_accurate(spreads),
        _norm_reaches_native(spreads),
        *(_scale_invariance(scales, scaling) for scaling in ("norm", "accurate")),
        _legacy_wraps(scales),
        _legacy_loses(scales, _GROWTH[to]),
        _legacy_on_narrow_data(spreads),
        _legacy_on_wide_data(spreads),
    ]
    return [
        {"claim": claim, "holds": bool(holds), "seen": seen}
        for claim, holds, seen in claims
    ]


def _references(cases: Sequence[_Case]) -> _Claim:
    wrong = [_name(case) for case in cases if not case["reference_exact"]]
    entries = sum(case["reference_entries"] for case in cases)
    return (
        "the products compared with are exact, rounded once",
        not wrong,
        f"not so: {'; '.join(wrong)}"
        if wrong
        else f"no operand was rounded in any of {len(cases)}, and {entries} entries "
        "are those of Python integers",
    )


def _norm_equals_accurate(spreads: Sequence[_Case]) -> _Claim:
    ratios = [
        [
            _ratio(ours["componentwise"], theirs["componentwise"])
            for ours, theirs in zip(
                of_scaling(case, "norm"), of_scaling(case, "accurate"), strict=True
            )
        ]
        for case in spreads
    ]
    means = [math.exp(sum(map(math.log, row)) / len(row)) for row in ratios]
    single = [ratio for row in ratios for ratio in row]
    return (
        f"componentwise errors of norm are at most {_MEAN:g} times those of accurate "
        f"for every phi and k, in the mean over N; {_SINGLE:g} times for every N",
        max(means) <= _MEAN and max(single) <= _SINGLE,
        f"means from {min(means):.2g} to {max(means):.2g}, single ratios from "
        f"{min(single):.2g} to {max(single):.2g}",
    )


def _norm_reaches_native(spreads: Sequence[_Case]) -> _Claim:
    found = {
        _name(case): [moduli_for_native(case, "norm", name) for name in MEASURES]
        for case in spreads
    }
    return (
        "norm is as accurate as native for every phi and k, with enough moduli",
        all(None not in moduli for moduli in found.values()),
        f"N by {' and '.join(MEASURES)} error: "
        + "; ".join(
            f"{name}: {' and '.join(str(n or 'none') for n in moduli)}"
            for name, moduli in found.items()
        ),
    )


def _scale_invariance(scales: Sequence[_Case], scaling: str) -> _Claim:
    rows = [row for case in scales for row in of_scaling(case, scaling)]
    same = sum(row["same_bits"] for row in rows)
    exponents = [row["log2_alpha"] for row in rows]
    return (
        f"{scaling}: (2^s A)(2^s B) has the bits of 2^2s (A B)",
        same == len(rows),
        f"in {same} of {len(rows)} products, s={min(exponents)} to {max(exponents)}",
    )


def _legacy_wraps(scales: Sequence[_Case]) -> _Claim:
    seen, holds = [], True
    for case in scales:
        if case["data"] != "ones":
            continue
        errors = _by_scale(case, "relative")
        wrong = [s for s, error in errors.items() if error >= _WORTHLESS]
        ends = {min(errors), max(errors)}
        holds &= ends <= set(wrong) and errors[0] == 0.0
        seen.append(
            f"k={case['k']}: wrong for s={_runs(errors, wrong)}, error "
            f"{errors[0]:.2g} for s=0"
        )
    return (
        "legacy fails on matrices of ones times 2^s: it wraps for small s and keeps no "
        "bit for large",
        holds,
        "; ".join(seen),
    )


def _legacy_loses(scales: Sequence[_Case], least: float) -> _Claim:
    seen, holds = [], True
    for case in scales:
        if case["data"] == "ones":
            continue
        errors = _by_scale(case, "componentwise")
        large = max(errors)
        growth = _ratio(errors[_LARGE], errors[0])
        final = _by_scale(case, "relative")[large]
        holds &= growth >= least and final >= _WORTHLESS
        seen.append(
            f"k={case['k']}: componentwise {errors[0]:.2g} for s=0, "
            f"{errors[_LARGE]:.2g} for s={_LARGE}; relative {final:.2g} for s="
            f"{large}"
        )
    return (
        "legacy loses accuracy on random matrices times 2^s as s grows",
        holds,
        "; ".join(seen),
    )


def _legacy_on_narrow_data(spreads: Sequence[_Case]) -> _Claim:
    found = _legacy_moduli([case for case in spreads if case["phi"] < _NARROW])
    return (
        "legacy is as accurate as native where phi is small, with enough moduli",
        None not in found.values(),
        _named(found),
    )


def _legacy_on_wide_data(spreads: Sequence[_Case]) -> _Claim:
    found = _legacy_moduli([case for case in spreads if case["phi"] >= _WIDE])
    return (
        "legacy is never as accurate as native where phi is large",
        all(num_moduli is None for num_moduli in found.values()),
        _named(found),
    )


def _legacy_moduli(spreads: Sequence[_Case]) -> dict[str, int | None]:
    return {
        _name(case): moduli_for_native(case, "legacy", "componentwise")
        for case in spreads
    }


def _named(found: dict[str, int | None]) -> str:
    return "; ".join(f"{name}: N={n or 'none'}" for name, n in found.items())


def _by_scale(case: _Case, measure: str) -> dict[int, float]:
    """Return the errors of "legacy"."""
    rows = of_scaling(case, "legacy")
    return {row["log2_alpha"]: row[measure] for row in rows}


def _runs(errors: dict[int, float], wrong: Sequence[int]) -> str:
    """Return first and last of each run of measured scales that are wrong."""
    runs = []
    for is_wrong, group in itertools.groupby(errors, key=lambda s: s in wrong):
        if is_wrong:
            scales = list(group)
            ends = dict.fromkeys((scales[0], scales[-1]))
            runs.append(" to ".join(map(str, ends)))
    return " and ".join(runs)


def _ratio(numerator: float, denominator: float) -> float:
    """Return a ratio of errors, 1 where both are the same."""
    if numerator == denominator:
        return 1.0
    return numerator / denominator if denominator else math.inf


def _name(case: _Case) -> str:
    what = f"phi={case['phi']:g}" if "phi" in case else case["data"]
    return f"{what}, k={case['k']}"
