"""What OzArray adds to tiny operations: `oz @ oz` beyond the engine, and others.

    python tests/bench/bench_array.py

Times of two jobs that alternate in one run; the least of many rounds, in microseconds.
An engine that does nothing stands in for the CPU engine: its own time would hide the
few microseconds in question.
"""

from __future__ import annotations

import time

import numpy as np

import np_ozaki
from np_ozaki import OzArray, context
from np_ozaki.engines import choice
from np_ozaki.engines.base import Outcome
from np_ozaki.gemm import matmul_arrays

ROUNDS, CALLS = 200, 50


def microseconds(*jobs):
    """Return the least time of one call of each."""
    least = [float("inf")] * len(jobs)
    for _ in range(ROUNDS):
        for i, job in enumerate(jobs):
            start = time.perf_counter()
            for _ in range(CALLS):
                job()
            least[i] = min(least[i], (time.perf_counter() - start) / CALLS)
    return [1e6 * x for x in least]


def idle(*args, **kwargs):
    """Stand in for an engine's product."""
    return Outcome(False, False, 0, 0, np.zeros(1, np.int64))


@np_ozaki.enabled(engine="cpu", local=True)
def main():
    choice.cpu_engine().matmul = idle
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    x, options = OzArray(a), context.default_options()

    def engine():
        return matmul_arrays(a, a, None, route="bench", options=options)

    pairs = {
        "oz @ oz": (engine, lambda: x @ x),
        "np.matmul(oz, oz)": (engine, lambda: np.matmul(x, x)),
        "np.dot(oz, oz)": (engine, lambda: np.dot(x, x)),
        "oz + oz": (lambda: a + a, lambda: x + x),
        "oz[0]": (lambda: a[0], lambda: x[0]),
        "oz.T": (lambda: a.T, lambda: x.T),
        "OzArray(a)": (lambda: a.copy(), lambda: OzArray(a)),
        "np.asarray(oz)": (lambda: np.asarray(a), lambda: np.asarray(x)),
    }
    for name, jobs in pairs.items():
        without, wrapped = microseconds(*jobs)
        more = wrapped - without
        print(f"{name:18} {wrapped:8.2f} us, {more:6.2f} more than without")


if __name__ == "__main__":
    main()
