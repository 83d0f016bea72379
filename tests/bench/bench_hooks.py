"""Nanoseconds that the hook adds to the smallest products.

Run it as ``python tests/bench/bench_hooks.py``.  Each figure is the least of many
short runs, since other processes can only add.
"""

import platform
import timeit
from typing import Any

import numpy as np

from np_ozaki import hooks

LOOPS = 5_000
ROUNDS = 100

GATES = {
    "installed, no scope (depth 0)": (0, 0),
    "in a scope, too small (min_flops)": (1, 10**6),
    "in a scope, declined by Python": (1, 0),
}


def decline(*loop: Any) -> None:
    """Leave every product to NumPy."""
    return


def nanoseconds() -> float:
    """Return the time of one 2x2 product."""
    a = np.ones((2, 2))
    return timeit.timeit(lambda: a @ a, number=LOOPS) / LOOPS * 1e9


def one_round() -> list[float]:
    """Return the time without the hook, then behind each gate."""
    hooks.install({})
    times = [nanoseconds()]
    status = hooks.install({"matmul": decline})[0]
    if not status.active:
        raise SystemExit(status.reason)
    for gate in GATES.values():
        hooks.set_gate(*gate)
        times.append(nanoseconds())
    hooks.set_gate(0, 0)
    return times


def main() -> None:
    """Print one line a state; in rounds, as clocks drift."""
    native, *gated = map(min, zip(*(one_round() for _ in range(ROUNDS)), strict=True))
    print(f"NumPy {np.__version__}, Python {platform.python_version()}, 2x2 a @ b, ns")
    print(f"{'not installed':<40}{native:8.0f}")
    for name, time in zip(GATES, gated, strict=True):
        print(f"{name:<40}{time:8.0f}{time - native:+8.0f}")


if __name__ == "__main__":
    main()
