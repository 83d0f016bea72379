"""Draw errors over the number of INT8 products, of moduli and of slices.

python tests/bench/plot_slices.py docs/slices.png
"""

import argparse

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import np_ozaki
from np_ozaki.cli.chart import COLOURS, MARKERS

LENGTHS = (256, 2048, 16384)
LINES = 64
MOST_PRODUCTS = 66

MODULI = [{"precision": n} for n in range(2, 21)]
TRIANGULAR, EVERY = (
    [{"scheme": "slices", "num_slices": s, "pairs": pairs} for s in range(1, 12)]
    for pairs in ("triangular", "all")
)
SERIES = (
    ("moduli", MODULI),
    ("slices, triangular", TRIANGULAR),
    ("slices, all pairs", EVERY),
)


def error_of(c, exact, size):
    """Return the largest error of an entry of C, of |A||B|."""
    return float((np.abs((c - exact.hi) - exact.lo) / size).max())


def series_of(a, b):
    """Yield a label and [(products, error, planes), ...]."""
    exact = np_ozaki.matmul(a, b, precision="exact", output="dd", engine="cpu")
    size = np.abs(a) @ np.abs(b)
    for label, variants in SERIES:
        points = []
        for options in variants:
            plan = np_ozaki.plan(*(LINES, LINES, len(b)), engine="cpu", **options)
            if plan.num_products <= MOST_PRODUCTS:
                c = np_ozaki.matmul(a, b, engine="cpu", **options)
                planes = plan.num_moduli or plan.num_slices
                error = error_of(c, exact, size)
                points.append((plan.num_products, error, planes))
        yield label, points
    yield "NumPy, FP64", [(None, error_of(a @ b, exact, size), None)]


def draw(path):
    figure, axes = plt.subplots(
        1, len(LENGTHS), figsize=(11, 4.6), sharey=True, layout="constrained"
    )
    for ax, k in zip(axes, LENGTHS, strict=True):
        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((LINES, k)), rng.standard_normal((k, LINES))
        for i, (label, points) in enumerate(series_of(a, b)):
            products, errors, _ = zip(*points, strict=True)
            if products[0] is None:
                ax.axhline(errors[0], color="0.5", linestyle=":", label=label)
                continue
            ax.plot(
                products,
                errors,
                label=label,
                color=COLOURS[i],
                marker=MARKERS[i],
                markersize=4,
            )
            for x, y, number in points if label != "moduli" else points[::4]:
                ax.annotate(
                    number,
                    (x, y),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize=7,
                    color=COLOURS[i],
                )
        ax.set_yscale("log")
        ax.set_xlim(0, MOST_PRODUCTS + 6)
        ax.set_title(f"k = {k}")
        ax.set_xlabel("INT8 products")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("largest |C - AB| / |A||B|")
    axes[0].legend()
    figure.suptitle("Gaussian entries; numbers are moduli N and slices S of 8 bits")
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture")
    draw(parser.parse_args().picture)


if __name__ == "__main__":
    main()
