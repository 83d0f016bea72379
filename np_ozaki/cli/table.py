"""The table of `verify`, for people and as JSON."""

from __future__ import annotations

import math
from typing import Any

from np_ozaki.cli.dtypes import DTYPES

__all__ = ["as_json", "footer", "header", "rows"]

_COLUMNS = (
    ("case", -26),
    ("m x k x n", -15),
    ("engine", -7),
    ("max err", 8),
    ("correct", 8),
    ("bound", 9),
    ("holds", 6),
    ("2^s", 5),
    ("sym", 4),
    ("time", 9),
)
"""Titles and widths; negative ones are flush left.  97 columns together."""

_LEGEND = """\
engine   with the number of moduli that the product took, if it was by moduli
max err  largest error of an entry{s_part} relative to |A||B|, in u = 2^-{bits};
         against exact integers, over the entries named under the size
correct  share of entries{s_parts} that are the exact result, correctly rounded
bound    largest guaranteed error in the same unit: for np_ozaki from scaling exponents,
         rounding residuals and pairs of slices left out, for native k u |A||B| of any
         conventional product
holds    every entry keeps to its own bound
2^s      (2^s A) B has exactly the bits of 2^s (A B), underflow apart; native sums in
         another order once A is no longer B.T
sym      {transposed} @ X is exactly {symmetric}
Only np_ozaki's rows decide the exit status; - means that nothing is asked or promised.
NaN and infinities must be where IEEE arithmetic puts them."""


def _line(cells: tuple[str, ...]) -> str:
    parts = []
    for cell, (_, width) in zip(cells, _COLUMNS, strict=True):
        if width < 0:
            parts.append(f"{_shortened(cell, -width - 1)} ")
        else:
            parts.append(cell.rjust(width))
    return "".join(parts).rstrip()


def _shortened(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 3]}..."


def header() -> str:
    """Return the titles.

    Returns
    -------
    str
        Two lines.
    """
    titles = _line(tuple(title for title, _ in _COLUMNS))
    return f"{titles}\n{'-' * len(titles)}"


def rows(case: dict[str, Any]) -> str:
    """Return the rows of one case.

    Parameters
    ----------
    case : dict
        As in the report.

    Returns
    -------
    str
        One line an engine.
    """
    size = f"{case['m']}x{case['k']}x{case['n']}"
    leading = [(case["name"], size), ("", case["entries"])]
    return "\n".join(
        _line(
            (
                name,
                second,
                _engine(result),
                _number(result["max_error"]),
                _share(result["correct"]),
                _number(result["bound"]),
                _yes(result["holds"]),
                _yes(result["scaled_bits"]),
                _yes(result["symmetric"]),
                _time(result["seconds"]),
            )
        )
        for (name, second), result in zip(leading, case["results"], strict=True)
    )


def footer(report: dict[str, Any]) -> str:
    """Return what follows the table: legend, notes, failures, summary.

    Parameters
    ----------
    report : dict
        Of all cases.

    Returns
    -------
    str
        The last line is the summary.
    """
    options = report["options"]
    chosen = f"precision={options['precision']}, scaling={options['scaling']}"
    if options["slices"]:
        chosen = options["slices"]
    if options["cublas"]:
        chosen = options["cublas"]
    entries = DTYPES[options["dtype"]]
    legend = _LEGEND.format(
        bits=entries.part.bits,
        s_part="'s part" if entries.is_complex else "",
        s_parts="' parts" if entries.is_complex else "",
        transposed=entries.transposed("X"),
        symmetric="Hermitian" if entries.is_complex else "symmetric",
    )
    if entries.name != "float64":
        chosen += f", {entries.name}"
    lines = ["", legend, "", f"np_ozaki: {chosen}"]
    lines += [f"note: {note}" for note in report["notes"]]
    lines += [f"BROKEN {failure}" for failure in report["failures"]]
    lines.append(summary(report))
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """Return the verdict in one line.

    Parameters
    ----------
    report : dict
        Of all cases.

    Returns
    -------
    str
        Starts with "verify: ".
    """
    count = len(report["cases"])
    cases = f"verify: {count} case{'s' * (count != 1)}"
    if not report["binding"]:
        return f'{cases}, scaling "legacy" promises nothing'
    broken = sum(any(r["failures"] for r in c["results"]) for c in report["cases"])
    if broken:
        return f"{cases}, {broken} BROKEN"
    kept = "NaN and Inf are right" if report["options"]["cublas"] else "all bounds hold"
    return f"{cases}, {kept}"


def as_json(value: Any) -> Any:
    """Return data that strict JSON can hold.

    Parameters
    ----------
    value : object
        Dicts, lists and scalars.

    Returns
    -------
    object
        The same with "inf" for infinity.
    """
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _engine(result: dict[str, Any]) -> str:
    moduli = result["num_moduli"]
    return f"{result['engine']} {moduli}" if moduli else str(result["engine"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    # Never rounded up: 100% are all.
    return "-" if value is None else f"{math.floor(value * 1000) / 10:g}%"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
