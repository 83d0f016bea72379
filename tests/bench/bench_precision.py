"""What precisions cost: auto on operands of several kinds beside N = 15 and native.

    python tests/bench/bench_precision.py [cpu | cuda] [n ...]

All jobs of a size are taken in turn, so that a change of the clock meets all of them.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time

import numpy as np

import np_ozaki

ROUNDS = 7


def operands(n):
    """Return pairs by name, on the host."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, n, n))
    ones = (rng.random((n, n)) < 0.5).astype(float)
    d = np.ldexp(1.0, rng.integers(-80, 81, n))
    wide = (rng.random((2, n, n)) - 0.5) * np.exp(4 * rng.standard_normal((2, n, n)))
    return {
        "ordinary": (a, b),
        "0/1 x FP64": (ones, b),
        "FP32 x FP64": (a.astype(np.float32).astype(float), b),
        "integers": (np.rint(100 * a), np.rint(100 * b)),
        "graded": (a * d, b / d[:, np.newaxis]),
        "phi = 4": (wide[0], wide[1]),
    }


def jobs(n, engine):
    """Return functions by name, operands where the engine wants them."""
    pairs = operands(n)
    if engine == "cuda":
        import cupy

        pairs = {name: tuple(map(cupy.asarray, pair)) for name, pair in pairs.items()}
    ordinary = pairs["ordinary"]
    product = functools.partial(np_ozaki.matmul, engine=engine)
    result = {
        "native": functools.partial(np.matmul, *ordinary),
        "N = 15": functools.partial(product, *ordinary, precision=15),
        "1e-10": functools.partial(product, *ordinary, precision=1e-10),
        "exact": functools.partial(product, *ordinary, precision="exact"),
    }
    for name, pair in pairs.items():
        result[f"auto, {name}"] = functools.partial(product, *pair)
    return result


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


def main(engine="cpu", *sizes):
    for n in map(int, sizes or (512, 1024)):
        todo = jobs(n, engine)
        taken = {name: [] for name in todo}
        for turn in range(ROUNDS + 1):
            for name, job in todo.items():
                duration = seconds(job, engine)
                if turn:
                    taken[name].append(duration)
        base = statistics.median(taken["N = 15"])
        for name, job in todo.items():
            job()
            call = None if name == "native" else np_ozaki.last_call()
            used = "" if call is None else f"N = {call.num_moduli}, t = {call.shift}"
            used += ", rebalanced" if call is not None and call.rebalanced else ""
            middle = statistics.median(taken[name])
            print(
                f"{n:6} {name:18} {1e3 * middle:9.2f} ms "
                f"({1e3 * min(taken[name]):.2f} to {1e3 * max(taken[name]):.2f}), "
                f"{middle / base:5.2f} times N = 15  {used}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
