"""The report of `bench` as a picture: speed over n, and the shares of the stages."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from np_ozaki.errors import OzakiError, refusal

__all__ = ["COLOURS", "FORMATS", "MARKERS", "ChartError", "check", "draw"]

FORMATS = (".png", ".pdf", ".svg")
"""Suffixes that `draw` writes."""

COLOURS = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
    "#999999",
)  # fmt: skip
"""Okabe and Ito's, which the colour-blind can tell apart; grey for their yellow."""

MARKERS = "os^Dv<>P"
"""One for each colour."""

_Points = list[tuple[float, float, float, float]]

_HATCHES = ("", "//", "..", "\\\\", "xx", "--")


class ChartError(OzakiError, RuntimeError):
    """No picture can be drawn."""


def check(path: str, option: str = "--plot") -> None:
    """Raise what `draw` would raise for this file, before anything long runs.

    Parameters
    ----------
    path : str
        Of the picture.
    option : str, optional
        That asks for it, for the message.

    Raises
    ------
    ChartError
        Its suffix is unknown, or matplotlib is not installed.
    """
    if os.path.splitext(path)[1].lower() not in FORMATS:
        raise ChartError(
            refusal(
                option,
                path,
                f"known formats are {', '.join(FORMATS)}",
                "give the file one of these suffixes",
            )
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ChartError(
            refusal(
                option,
                path,
                "matplotlib is not installed",
                "pip install 'np_ozaki[plot]'",
            )
        )


def draw(report: dict[str, Any], path: str) -> bool:
    """Draw a report.

    Parameters
    ----------
    report : dict
        As written to JSON.
    path : str
        Where to; overwritten.

    Returns
    -------
    bool
        Whether there was anything to draw.

    Raises
    ------
    ChartError
        matplotlib is not installed, or the suffix is unknown.
    """
    check(path)
    from matplotlib.figure import Figure

    lines = _lines(report)
    if not lines:
        return False
    bars = _bars(report)
    figure = Figure(figsize=(10, 9 if bars else 5), dpi=150, layout="constrained")
    axes = figure.subplots(2 if bars else 1, 1, squeeze=False)[:, 0]
    _draw_speed(axes[0], lines, _title(report))
    if bars:
        _draw_stages(axes[1], bars)
    figure.savefig(path)
    return True


def _title(report: dict[str, Any]) -> str:
    names = [place["facts"].get("gpu") for place in report["places"].values()]
    known = [name for name in names if name]
    title = ", ".join(known) if known else str(report["machine"]["processor"])
    load = report["command"]["load_s"]
    return f"{title}, each after {load:g} s of load" if load else title


def _side(size: dict[str, Any]) -> float:
    """Return n of the cube with as many operations."""
    return float(round((size["m"] * size["n"] * size["k"]) ** (1 / 3), 3))


def _lines(
    report: dict[str, Any],
) -> dict[str, _Points]:
    """Return (n, TFLOP/s, least, most) by contestant, in the order of n."""
    found: dict[str, _Points] = {}
    for size in sorted(report["sizes"], key=_side):
        for row in size["results"]:
            if row["times_s"]:
                work = size["flop"] / 1e12
                found.setdefault(row["contestant"], []).append(
                    (
                        _side(size),
                        row["tflop_per_s"],
                        work / row["max_s"],
                        work / row["min_s"],
                    )
                )
    return found


def _draw_speed(axes: Any, lines: dict[str, _Points], title: str) -> None:
    for number, (name, points) in enumerate(lines.items()):
        n, speed, least, most = zip(*points, strict=True)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            n,
            speed,
            label=name,
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            linestyle="-" if number < len(COLOURS) else "--",
        )
        axes.vlines(n, least, most, color=colour, linewidth=1)
    ticks = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("n of n x n x n (cube root of m n k)")
    axes.set_ylabel("TFLOP/s of 2 m n k, median; bars: least to most")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)


def _bars(report: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return (label, milliseconds by stage) of every product whose stages are known."""
    return [
        (f"{size['size']}\n{row['contestant']}", row["stages_ms"])
        for size in sorted(report["sizes"], key=_side)
        for row in size["results"]
        if row["stages_ms"] and sum(row["stages_ms"].values()) > 0
    ]


def _draw_stages(axes: Any, bars: list[tuple[str, dict[str, float]]]) -> None:
    totals = [sum(stages.values()) for _, stages in bars]
    below = [0.0] * len(bars)
    places = list(range(len(bars)))
    for number, stage in enumerate(dict.fromkeys(s for _, x in bars for s in x)):
        shares = [
            100 * stages.get(stage, 0.0) / total
            for (_, stages), total in zip(bars, totals, strict=True)
        ]
        axes.bar(
            places,
            shares,
            bottom=below,
            label=stage,
            color=COLOURS[1 + number % (len(COLOURS) - 1)],
            hatch=_HATCHES[number % len(_HATCHES)],
            edgecolor="white",
        )
        below = [x + y for x, y in zip(below, shares, strict=True)]
    for place, total in zip(places, totals, strict=True):
        axes.text(place, 101, f"{total:.3g}", ha="center", fontsize=7)
    axes.set_xticks(places, [label for label, _ in bars], rotation=60, fontsize=7)
    axes.set_ylim(0, 110)
    axes.set_ylabel("share of the stages, %; above: all, ms")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
