"""CPU engine against native NumPy, in one run: times, ratios, memory, import.

    python tests/bench/bench_cpu.py [--json FILE]

Native and engine alternate, so that clocks and neighbours disturb both alike.  Prints
medians with the spread (smallest to largest) of every figure.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import threadpoolctl
from tqdm import tqdm

import np_ozaki

SIZES = {2: 3000, 64: 400, 256: 100, 512: 41, 1024: 11, 2048: 7}


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def alternate(
    functions: dict[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return times


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "smallest": min(values),
        "largest": max(values),
    }


def measure_size(n: int, repeats: int) -> dict[str, object]:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    out = np.empty((n, n))
    times = alternate(
        {
            "native": lambda: np.matmul(a, b, out=out),
            "engine": lambda: np_ozaki.matmul(a, b, out=out, precision=15),
        },
        repeats,
    )
    row: dict[str, object] = {name: summary(t) for name, t in times.items()}
    row["ratio"] = statistics.median(times["engine"]) / statistics.median(
        times["native"]
    )
    return row


def measure_memory(n: int) -> float:
    """Return the peak of traced memory over the bytes of both operands."""
    a = np.random.default_rng(0).standard_normal((n, n))
    tracemalloc.start()
    np_ozaki.matmul(a, a)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (2 * a.nbytes)


def measure_batch(batch: int) -> dict[str, float]:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((batch, 4, 4)), rng.standard_normal((batch, 4, 4))
    times = alternate({"batch": lambda: np_ozaki.matmul(a, b)}, 5)["batch"]
    return summary([t / batch for t in times])


def measure_import() -> dict[str, dict[str, float]]:
    """Return seconds that importing np_ozaki adds to importing NumPy."""
    program = (
        "import time, numpy; t = time.perf_counter(); import np_ozaki; "
        "print(time.perf_counter() - t)"
    )
    values = [
        float(subprocess.check_output([sys.executable, "-c", program]))
        for _ in range(9)
    ]
    return {"added": summary(values)}


def measure_scope() -> dict[str, object]:
    """Return a 2x2 product outside scopes, and in one that leaves it native."""
    a = np.ones((2, 2))

    def many() -> None:
        for _ in range(5_000):
            a @ a

    outside, inside = [], []
    for _ in range(25):
        outside.append(seconds(many))
        with np_ozaki.enabled(engine="cpu"):
            inside.append(seconds(many))
    return {
        "outside": summary([t / 5_000 for t in outside]),
        "inside": summary([t / 5_000 for t in inside]),
        "ratio": statistics.median(inside) / statistics.median(outside),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    report: dict[str, object] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "processor": platform.machine(),
        "blas": threadpoolctl.threadpool_info(),
        "import": measure_import(),
        "scope": measure_scope(),
    }
    sizes = {}
    for n, repeats in tqdm(SIZES.items(), unit="size"):
        sizes[n] = measure_size(n, repeats)
    report["sizes"] = sizes
    report["batch of 10000 4x4, seconds each"] = measure_batch(10_000)
    report["peak memory over operands at 2048"] = measure_memory(2048)
    for n, row in sizes.items():
        native, engine = row["native"], row["engine"]
        print(
            f"n={n:5}: native {native['median'] * 1e3:9.4f} ms "
            f"({native['smallest'] * 1e3:.4f} to {native['largest'] * 1e3:.4f}), "
            f"engine {engine['median'] * 1e3:9.3f} ms "
            f"({engine['smallest'] * 1e3:.3f} to {engine['largest'] * 1e3:.3f}), "
            f"ratio {row['ratio']:.2f}"
        )
    print(json.dumps({k: v for k, v in report.items() if k != "sizes"}, indent=1))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
