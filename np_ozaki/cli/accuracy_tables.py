"""The report of `accuracy` as text, and as a page of Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from np_ozaki.cli.accuracy_checks import MEASURES, moduli_for_native, of_scaling
from np_ozaki.cli.accuracy_experiments import SCALINGS
from np_ozaki.cli.scoreboard import header

__all__ = ["conditions", "page", "scale_table", "spread_table", "verdict"]

_WIDTH = 88

_LEGEND = """\
relative       largest abs(C - AB) / abs(AB), of complex entries part by part
componentwise  largest abs(C - AB) / (abs(A) abs(B)), likewise
native         NumPy with its BLAS
norm, accurate, legacy: scaling rules of np_ozaki, with N moduli"""


def conditions(report: dict[str, Any]) -> str:
    """Return what the experiments belong to.

    Parameters
    ----------
    report : dict
        As written to JSON.

    Returns
    -------
    str
        One fact a line.
    """
    command = report["command"]
    return (
        f"{header({'machine': report['machine'], 'places': {}})}\n"
        f"engine {command['engine']}, {command['dtype']}, m = n = {command['size']}, "
        f"seed {command['seed']}"
    )


def spread_table(case: dict[str, Any]) -> str:
    """Return the errors for one phi and k.

    Parameters
    ----------
    case : dict
        From `accuracy_experiments.spread`.

    Returns
    -------
    str
        A title, the numbers of moduli, a line for each mode and kind of error.
    """
    moduli = [row["num_moduli"] for row in of_scaling(case, SCALINGS[0])]
    lines = [
        "",
        f"phi = {case['phi']:g}, {_shape(case)}",
        f"{'N':>20}" + "".join(f"{n:6}" for n in moduli),
    ]
    for measure in MEASURES:
        lines.append(f"{measure}, native {case['native'][measure]:.1e}")
        for scaling in SCALINGS:
            errors = [row[measure] for row in of_scaling(case, scaling)]
            lines.append(f"{scaling:>20}" + "".join(f"{x:6.0e}" for x in errors))
    return "\n".join(lines)


def scale_table(case: dict[str, Any]) -> str:
    """Return the errors for one kind of data and k, by scale.

    Parameters
    ----------
    case : dict
        From `accuracy_experiments.scale`.

    Returns
    -------
    str
        A title and a line for each scale.
    """
    lines = [
        "",
        f"{case['data']}, {_shape(case)}, both times alpha = 2^s, N = "
        f"{case['num_moduli']}: componentwise errors,",
        f"native {case['native']['componentwise']:.1e}; = has the bits of s = 0",
        f"{'s':>6}" + "".join(f"{scaling:>12}" for scaling in SCALINGS),
    ]
    for row in _by_scale(case):
        cells = [
            f"{found['componentwise']:.1e} {'=' if found['same_bits'] else ' '}"
            for found in row
        ]
        lines.append(
            f"{row[0]['log2_alpha']:6}" + "".join(f"{cell:>12}" for cell in cells)
        )
    return "\n".join(line.rstrip() for line in lines)


def verdict(report: dict[str, Any]) -> str:
    """Return what follows the tables: legend, notes, checks, summary.

    Parameters
    ----------
    report : dict
        As written to JSON.

    Returns
    -------
    str
        The last line is the summary.
    """
    lines = ["", _LEGEND, ""]
    lines += [f"note: {note}" for note in report["notes"]]
    for check in report["checks"]:
        word = "true" if check["holds"] else "FALSE"
        lines.append(_paragraph(check["claim"], f"{word:6}"))
        lines.append(_paragraph(check["seen"], "        "))
    count = len(report["checks"])
    failed = sum(not check["holds"] for check in report["checks"])
    lines.append(
        f"accuracy: {count} checks, {f'{failed} FALSE' if failed else 'all true'}"
    )
    return "\n".join(lines)


def page(report: dict[str, Any], pictures: Sequence[tuple[str, str]]) -> str:
    """Return all tables as Markdown.

    Parameters
    ----------
    report : dict
        As written to JSON.
    pictures : sequence of (str, str)
        Descriptions and names of files beside the page.

    Returns
    -------
    str
        The whole page.
    """
    command = report["command"]
    flags = " --quick" if command["quick"] else ""
    if command["dtype"] != "float64":
        flags += f" --dtype {command['dtype']}"
    parts = [
        f"# Accuracy, {report['date']}",
        f"Written by `python -m np_ozaki accuracy{flags}`; do not edit.",
        "\n".join(f"- {line}" for line in conditions(report).splitlines()),
        "Relative errors are the largest abs(C - AB) / abs(AB), componentwise ones the "
        "largest abs(C - AB) / (abs(A) abs(B)). AB is known to 106 bits.",
        "## Checks",
        _markdown(
            ("claim", "holds", "seen"),
            [
                (check["claim"], "yes" if check["holds"] else "**NO**", check["seen"])
                for check in report["checks"]
            ],
        ),
        *(f"![{text}]({name})" for text, name in pictures),
        "## Moduli for the accuracy of native",
        "By relative / componentwise error: the least N such that it and all larger "
        "ones are at least as accurate as NumPy on the same data.",
        _moduli_table(report["spread"]),
    ]
    for k in command["inner"]:
        cases = [case for case in report["spread"] if case["k"] == k]
        for measure in MEASURES:
            title = f"## {measure.capitalize()} errors, k = {k}"
            parts += [title, _errors_table(cases, measure)]
    for k in command["inner"]:
        cases = [case for case in report["scale"] if case["k"] == k]
        parts += [
            f"## Scaled matrices, k = {k}, N = {cases[0]['num_moduli']}",
            "Both operands times 2^s, the result times 2^-2s: componentwise errors.",
            _scaled_table(cases),
        ]
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str, start: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
    )


def _moduli_table(cases: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        cells = [
            " / ".join(
                str(moduli_for_native(case, scaling, measure) or "none")
                for measure in MEASURES
            )
            for scaling in SCALINGS
        ]
        rows.append((f"{case['k']}", f"{case['phi']:g}", *cells))
    return _markdown(("k", "phi", *SCALINGS), rows)


def _errors_table(cases: Sequence[dict[str, Any]], measure: str) -> str:
    moduli = [row["num_moduli"] for row in of_scaling(cases[0], SCALINGS[0])]
    rows = []
    for case in cases:
        for scaling in SCALINGS:
            errors = [f"{row[measure]:.1e}" for row in of_scaling(case, scaling)]
            native = f"{case['native'][measure]:.1e}"
            rows.append((f"{case['phi']:g}", native, scaling, *errors))
    return _markdown(("phi", "native", "mode", *(f"N={n}" for n in moduli)), rows)


def _scaled_table(cases: Sequence[dict[str, Any]]) -> str:
    titles = [f"{case['data']}, {scaling}" for case in cases for scaling in SCALINGS]
    rows = []
    for of_one_scale in zip(*map(_by_scale, cases), strict=True):
        found = [row for case in of_one_scale for row in case]
        errors = (f"{row['componentwise']:.1e}" for row in found)
        rows.append((f"{found[0]['log2_alpha']}", *errors))
    return _markdown(("s", *titles), rows)


def _by_scale(case: dict[str, Any]) -> list[tuple[dict[str, Any], ...]]:
    """Return the results of all modes for each scale."""
    modes = [of_scaling(case, scaling) for scaling in SCALINGS]
    return list(zip(*modes, strict=True))


def _shape(case: dict[str, Any]) -> str:
    return "{m} x {k} times {k} x {n}".format(**case)


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["--"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
