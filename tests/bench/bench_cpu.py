"""What surrounds products of the CPU engine: import, scopes, batches, memory.

    python tests/bench/bench_cpu.py [--json FILE]

Prints medians with the spread (smallest to largest) of every figure.  The products
themselves, beside native ones, are for ``python -m np_ozaki bench``.
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

import np_ozaki


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "smallest": min(values),
        "largest": max(values),
    }


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
    np_ozaki.matmul(a, b)
    times = [seconds(lambda: np_ozaki.matmul(a, b)) for _ in range(5)]
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
    report["batch of 10000 4x4, seconds each"] = measure_batch(10_000)
    report["peak memory over operands at 2048"] = measure_memory(2048)
    print(json.dumps(report, indent=1))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
