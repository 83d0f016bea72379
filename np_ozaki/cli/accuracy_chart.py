"""The report of `accuracy` as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from np_ozaki.cli.accuracy_checks import MEASURES, of_scaling
from np_ozaki.cli.accuracy_experiments import SCALINGS
from np_ozaki.cli.chart import COLOURS, MARKERS, check

__all__ = ["PICTURES", "draw"]

PICTURES = ("phi-relative.png", "phi-componentwise.png", "scale.png")
"""Names of the files that `draw` writes."""

_STYLES: dict[str, dict[str, Any]] = {
    scaling: {"color": COLOURS[colour], "marker": MARKERS[number], "linestyle": line}
    for number, (scaling, colour, line) in enumerate(
        zip(SCALINGS, (4, 1, 5), ("-", "--", ":"), strict=True)
    )
}
# "norm" and "accurate" often coincide: the marks of one are open and larger.
_STYLES["accurate"] |= {"markerfacecolor": "none", "markersize": 8}
_NATIVE = {"color": COLOURS[0], "linewidth": 1.2, "linestyle": "-."}

_ZERO = 1e-19
"""Where an error of zero is drawn: below all others."""

_FORMULAS = {
    "relative": "largest |C - AB| / |AB|",
    "componentwise": "largest |C - AB| / (|A| |B|)",
}


def draw(report: dict[str, Any], folder: str) -> list[tuple[str, str]]:
    """Draw a report.

    Parameters
    ----------
    report : dict
        As written to JSON.
    folder : str
        Where to; files there are overwritten.

    Returns
    -------
    list of (str, str)
        Description and name of each picture.

    Raises
    ------
    ChartError
        matplotlib is not installed.
    """
    for name in PICTURES:
        check(os.path.join(folder, name), "--output")
    drawn = []
    for name, measure in zip(PICTURES, MEASURES, strict=False):
        _draw_spread(report, measure).savefig(os.path.join(folder, name))
        drawn.append((f"{measure.capitalize()} errors over N, for phi and k", name))
    _draw_scale(report).savefig(os.path.join(folder, PICTURES[-1]))
    drawn.append(("Errors over alpha", PICTURES[-1]))
    return drawn


def _panels(rows: int, columns: int, width: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    size = (width * columns, 2.9 * rows + 0.6)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    return figure, figure.subplots(
        rows, columns, squeeze=False, sharex=True, sharey=True
    )


def _finish(figure: Any, axes: Any, x: str, y: str) -> None:
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), fontsize=10
    )


def _draw_spread(report: dict[str, Any], measure: str) -> Any:
    """Return a figure with a panel for each k and phi."""
    inner, phis = report["command"]["inner"], report["command"]["phis"]
    figure, axes = _panels(len(inner), len(phis), 2.6)
    for case in report["spread"]:
        panel = axes[inner.index(case["k"]), phis.index(case["phi"])]
        for scaling in SCALINGS:
            rows = of_scaling(case, scaling)
            panel.plot(
                [row["num_moduli"] for row in rows],
                _visible([row[measure] for row in rows]),
                label=scaling,
                **_STYLES[scaling],
            )
        panel.axhline(case["native"][measure], label="native (NumPy)", **_NATIVE)
        panel.set_yscale("log")
        panel.set_title(f"phi = {case['phi']:g}, k = {case['k']}", fontsize=10)
        panel.grid(alpha=0.3)
    axes[0, 0].set_xticks(report["command"]["moduli"][::2])
    size = report["command"]["size"]
    _finish(
        figure, axes, "N, number of moduli", f"{_FORMULAS[measure]}, m = n = {size}"
    )
    return figure


def _draw_scale(report: dict[str, Any]) -> Any:
    """Return a figure with a panel for each k and kind of data."""
    inner = report["command"]["inner"]
    kinds = list(dict.fromkeys(case["data"] for case in report["scale"]))
    figure, axes = _panels(len(inner), len(kinds), 5.5)
    for case in report["scale"]:
        panel = axes[inner.index(case["k"]), kinds.index(case["data"])]
        for scaling in SCALINGS:
            rows = of_scaling(case, scaling)
            panel.plot(
                [row["log2_alpha"] for row in rows],
                _visible([row["componentwise"] for row in rows]),
                label=scaling,
                **_STYLES[scaling],
            )
        native = _visible([case["native"]["componentwise"]])
        panel.axhline(native[0], label="native (NumPy)", **_NATIVE)
        panel.set_yscale("log")
        panel.set_xscale("symlog", linthresh=64, linscale=3)
        title = f"{case['data']}, k = {case['k']}, N = {case['num_moduli']}"
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
    ticks = [-480, -64, -32, -16, 0, 16, 32, 64, 480]
    axes[0, 0].set_xticks(ticks, [str(s) for s in ticks])
    axes[0, 0].minorticks_off()
    _finish(
        figure,
        axes,
        "log2 of alpha, which multiplies A and B (linear from -64 to 64)",
        f"{_FORMULAS['componentwise']} (0 drawn at {_ZERO:.0e})",
    )
    return figure


def _visible(errors: Sequence[float]) -> list[float]:
    return [max(error, _ZERO) for error in errors]
