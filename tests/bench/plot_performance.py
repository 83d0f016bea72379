"""Draw TFLOP/s over n from a report of `bench --json`, with the limits of the machine.

python -m np_ozaki bench --load 2 --moduli 14,15 --syrk --json report.json
python tests/bench/plot_performance.py report.json docs/performance.png
"""

import argparse
import json

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from np_ozaki.cli.chart import COLOURS, MARKERS

INT8_PEAK = 1979.0
INT8_LIBRARY = 1427.0
"""TOPS of an H200: the vendor's, and the most that cuBLAS was seen at."""

MODULI = 14


def lines_of(report):
    """Return {contestant: [(n, TFLOP/s), ...]} of square products."""
    lines = {}
    for size in report["sizes"]:
        if not size["m"] == size["n"] == size["k"]:
            continue
        for row in size["results"]:
            if row["state"] == "measured":
                point = (size["n"], row["tflop_per_s"])
                lines.setdefault(row["contestant"], []).append(point)
    return {name: sorted(points) for name, points in lines.items()}


def draw(report, path):
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for i, (name, points) in enumerate(lines_of(report).items()):
        axes.plot(
            *zip(*points, strict=True),
            label=name,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
        )
    for tops, name in (
        (INT8_PEAK, "INT8 peak"),
        (INT8_LIBRARY, "cuBLAS INT8, short run"),
    ):
        axes.axhline(tops / MODULI, color="0.6", linestyle=":")
        axes.annotate(
            f"{name} / {MODULI}",
            (1, tops / MODULI),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color="0.4",
        )
    sizes = sorted({n for points in lines_of(report).values() for n, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("n")
    axes.set_ylabel("TFLOP/s of 2 n³")
    axes.set_title(
        f"{report['places']['cuda']['facts']['gpu']}, "
        f"{report['command']['load_s']:g} s of load before each"
    )
    axes.legend()
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report")
    parser.add_argument("picture")
    arguments = parser.parse_args()
    with open(arguments.report, encoding="utf-8") as file:
        draw(json.load(file), arguments.picture)


if __name__ == "__main__":
    main()
