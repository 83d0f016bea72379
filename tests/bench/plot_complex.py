"""Draw TFLOP/s over n of complex and single precision products from their record.

python tests/bench/plot_complex.py docs/benchmarks/2026-12-01-complex-single.md \
docs/complex.png

Tables of the record begin with a dtype; a column is n, the others are contestants.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from np_ozaki.cli.chart import COLOURS, MARKERS

FLOPS = {"complex128": "8 n³", "complex64": "8 n³", "float32": "2 n³"}


def tables_of(text):
    """Return {dtype: {contestant: [(n, TFLOP/s), ...]}} of a record's tables."""
    tables, names, points = {}, [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] in FLOPS:
            names = cells[1:]
            points = [[] for _ in names]
            tables[cells[0]] = dict(zip(names, points, strict=True))
        elif names and line.startswith("| ") and cells[0].isdecimal():
            for series, cell in zip(points, cells[1:], strict=True):
                # What follows in parentheses is the ratio to native.
                series.append((int(cells[0]), float(cell.split()[0])))
        elif not line.startswith("|"):
            names = []
    return tables


def draw(tables, path):
    figure, axes = plt.subplots(1, len(tables), figsize=(11, 4.2), layout="constrained")
    for ax, (dtype, series) in zip(axes, tables.items(), strict=True):
        for i, (name, points) in enumerate(series.items()):
            ax.plot(
                *zip(*points, strict=True),
                label=name,
                color=COLOURS[i],
                marker=MARKERS[i],
            )
        sizes = sorted({n for points in series.values() for n, _ in points})
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("n")
        ax.set_ylabel(f"TFLOP/s of {FLOPS[dtype]}")
        ax.set_title(dtype)
        ax.grid(alpha=0.3)
        ax.legend()
    figure.suptitle("One NVIDIA H200, data on the device, native: cuBLAS's gemm")
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record")
    parser.add_argument("picture")
    arguments = parser.parse_args()
    draw(tables_of(Path(arguments.record).read_text("utf-8")), arguments.picture)


if __name__ == "__main__":
    main()
