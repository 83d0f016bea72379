"""Nanoseconds that the hooks add to the smallest products.

Run it as ``python tests/bench/bench_hooks.py``.  Each figure is the least of many
short runs, since other processes can only add.
"""

import platform
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from scipy.linalg import blas

from np_ozaki import hooks

LOOPS = 1_000
ROUNDS = 100

GATES = {
    "no scope": (0, 0),
    "too small": (1, 10**6),
    "declined": (1, 0),
}

A = np.ones((2, 2))
F = np.asfortranarray(A)
V = np.ones(2)

PRODUCTS: dict[str, Callable[[], Any]] = {
    "a @ b": lambda: A @ A,
    "np.vecdot(v, v)": lambda: np.vecdot(V, V),
    "np.dot(a, b)": lambda: np.dot(A, A),
    "a.dot(b)": lambda: A.dot(A),
    "np.inner(a, b)": lambda: np.inner(A, A),
    "np.einsum": lambda: np.einsum("ij,jk", A, A),
    "dgemm(1.0, a, b)": lambda: blas.dgemm(1.0, F, F),
    "dsyrk(1.0, a)": lambda: blas.dsyrk(1.0, F),
}


def decline_builtin(arguments: Any, keywords: Any) -> Any:
    """Leave every call to NumPy."""
    return NotImplemented


def decline(*arguments: Any) -> None:
    """Leave every product to NumPy or SciPy."""
    return


HANDLERS: dict[str, Callable[..., Any]] = {
    name: decline_builtin
    if name in {"dot", "ndarray.dot", "inner", "einsum"}
    else decline
    for name in hooks.NAMES
}


def nanoseconds() -> list[float]:
    """Return the time of each product."""
    return [
        timeit.timeit(product, number=LOOPS) / LOOPS * 1e9
        for product in PRODUCTS.values()
    ]


def one_round() -> list[list[float]]:
    """Return the times without hooks, then behind each gate."""
    hooks.install({})
    times = [nanoseconds()]
    missing = [s for s in hooks.install(HANDLERS) if s.escapes]
    if missing:
        raise SystemExit(f"hooks are missing: {missing}")
    for gate in GATES.values():
        hooks.set_gate(*gate)
        times.append(nanoseconds())
    hooks.set_gate(0, 0)
    return times


def main() -> None:
    """Print one line a product; in rounds, as clocks drift."""
    rounds = np.array([one_round() for _ in range(ROUNDS)])
    native, *gated = rounds.min(axis=0)
    print(
        f"NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"Python {platform.python_version()}, 2x2, ns"
    )
    print(f"{'':<18}{'native':>8}", *(f"{name:>12}" for name in GATES))
    for i, name in enumerate(PRODUCTS):
        added = (f"{times[i] - native[i]:+12.0f}" for times in gated)
        print(f"{name:<18}{native[i]:8.0f}", *added)


if __name__ == "__main__":
    main()
