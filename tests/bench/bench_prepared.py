"""Products A @ x with what was made of A, or of both, kept, and without.

    python tests/bench/bench_prepared.py [cpu | cuda] [n ...]

Ratios of medians that alternate in one run; `made` is the first product, which keeps
both.  Operands of a GPU lie there.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from np_ozaki.config import Options
from np_ozaki.engines.prepared import Prepared, prepared_bytes
from np_ozaki.gemm import matmul_arrays

ROUNDS = 7
WIDTHS = (1, 16, 256)
LARGEST_ON_CPU = 2048
"""n up to which square products are timed there."""


def seconds(job, engine):
    """Return how long a job takes, the device's work included."""
    if engine == "cuda":
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        job()
        cupy.cuda.runtime.deviceSynchronize()
    else:
        start = time.perf_counter()
        job()
    return time.perf_counter() - start


def jobs(a, x, options):
    """Return functions by name."""
    # One A for all: two would not fit together where one does.
    of_a, of_x = Prepared(), Prepared()

    def product(prepared):
        matmul_arrays(a, x, None, route="bench", options=options, prepared=prepared)

    def made():
        of_a.close()
        of_x.close()
        product((of_a, of_x))

    return {
        "not kept": lambda: product((None, None)),
        "made": made,
        "A": lambda: product((of_a, None)),
        "both": lambda: product((of_a, of_x)),
    }


def main(engine="cpu", *sizes):
    for precision in ("auto", 15):
        options = Options(engine=engine, precision=precision)
        for n in map(int, sizes or (512, 1024, 2048, 4096, 8192)):
            rng = np.random.default_rng(n)
            a = rng.standard_normal((n, n))
            square = (n,) if engine == "cuda" or n <= LARGEST_ON_CPU else ()
            for width in (*WIDTHS, *square):
                pair = a, rng.standard_normal((n, width))
                if engine == "cuda":
                    import cupy

                    pair = tuple(map(cupy.asarray, pair))
                todo = jobs(*pair, options)
                taken = {name: [] for name in todo}
                for turn in range(ROUNDS + 1):
                    for name, job in todo.items():
                        duration = seconds(job, engine)
                        if turn:
                            taken[name].append(duration)
                middle = {name: statistics.median(x) for name, x in taken.items()}
                base = middle["not kept"]
                ratios = ", ".join(
                    f"{name} {base / middle[name]:.2f}"
                    for name in ("made", "A", "both")
                )
                held = sum(prepared_bytes().values()) / 2**20
                print(
                    f"{precision!s:>4} n = {n:5} x {width:3}: "
                    f"not kept {1e3 * base:9.3f} ms "
                    f"({1e3 * min(taken['not kept']):.3f} to "
                    f"{1e3 * max(taken['not kept']):.3f}); "
                    f"times as fast: {ratios}; {held:.0f} MiB held",
                    flush=True,
                )
                del todo, job


if __name__ == "__main__":
    main(*sys.argv[1:])
