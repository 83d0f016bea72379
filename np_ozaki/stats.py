"""Counters: which route multiplied on which engine, and what fell back and why."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CallInfo", "Recorder", "RouteStats", "Stats"]


@dataclass(frozen=True)
class CallInfo:
    """What one product did.

    Attributes
    ----------
    route : str
        Which function of NumPy or np_ozaki was called.
    engine : str
        Who multiplied: "cpu", "cuda", "native", or "exact" where Python integers did.
    batch, m, n, k : int
        Size of the product.
    num_moduli : int or None
        N of the contract; None for native.
    scaling : str or None
        Rule of the scaling exponents; None for native.
    fallback : str or None
        Why the product, or some matrices of its batch, were not the engine's.
    shift : int
        Bits that A, whose entries have few, lent to B; below 0, B to A.
    rebalanced : bool
        Whether the inner index was rescaled by powers of two, A D times D^-1 B.
    workspace_bytes : int
        Largest workspace in use at a time.
    tiles : int
        Tiles that the product was cut to.
    structured_flops : int or None
        Conventional operations of a routine that needs fewer than 2 m n k, because
        an operand is triangular or the result symmetric.
    checked : bool
        Whether every entry was held to checksums (``check=True``).
    recomputed : bool
        Whether a product that failed its check was multiplied once more.
    left_out : int
        Matrices of the batch that were not the engine's.
    bound : ndarray of float64 or None
        With ``return_info="bound"``: at least ``abs(C - A @ B)``, entry by entry.
    """

    route: str
    engine: str
    batch: int
    m: int
    n: int
    k: int
    num_moduli: int | None = None
    scaling: str | None = None
    fallback: str | None = None
    shift: int = 0
    rebalanced: bool = False
    workspace_bytes: int = 0
    tiles: int = 0
    structured_flops: int | None = None
    checked: bool = False
    recomputed: bool = False
    left_out: int = 0
    bound: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)

    @property
    def flops(self) -> int:
        """2 m n k times the batch, or the fewer operations of a structured routine."""
        if self.structured_flops is not None:
            return self.structured_flops
        return 2 * self.batch * self.m * self.n * self.k


@dataclass
class RouteStats:
    """Counts of one route.

    Attributes
    ----------
    calls : dict of str to int
        Calls by engine.
    flops : dict of str to int
        Operations (2 m n k) by engine.
    fallbacks : dict of str to int
        Calls that went native, by reason.
    recomputed : int
        Calls whose check failed once (``check="recompute"``).
    """

    calls: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    recomputed: int = 0


@dataclass
class Stats:
    """A snapshot of the counters.

    Attributes
    ----------
    routes : dict of str to RouteStats
        By name of the function that was called.
    """

    routes: dict[str, RouteStats] = field(default_factory=dict)

    def calls(self, engine: str) -> int:
        """Return the calls that one engine served, over all routes.

        Parameters
        ----------
        engine : str
            "cpu" or "native".

        Returns
        -------
        int
            Number of calls.
        """
        return sum(route.calls[engine] for route in self.routes.values())

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts and ints, as for JSON.

        Returns
        -------
        dict
            By routes, and then by the fields of `RouteStats`.
        """
        return {
            name: {
                "calls": dict(route.calls),
                "flops": dict(route.flops),
                "fallbacks": dict(route.fallbacks),
                "recomputed": route.recomputed,
            }
            for name, route in self.routes.items()
        }

    def __str__(self) -> str:
        """Return one line a route and engine."""
        lines = []
        for name, route in sorted(self.routes.items()):
            for engine, calls in sorted(route.calls.items()):
                flops = route.flops[engine]
                lines.append(f"{name}: {engine} {calls} calls, {flops / 1e9:.3f} GFLOP")
            lines += [
                f"{name}: native because {reason}: {calls} calls"
                for reason, calls in sorted(route.fallbacks.items())
            ]
            if route.recomputed:
                lines.append(f"{name}: recomputed after a check: {route.recomputed}")
        return "\n".join(lines) or "no products"


class Recorder:
    """Counters that threads may share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._routes: dict[str, RouteStats] = {}

    def record(self, info: CallInfo) -> None:
        """Count one call.

        Parameters
        ----------
        info : CallInfo
            What the call did.
        """
        with self._lock:
            route = self._routes.get(info.route)
            if route is None:
                route = self._routes[info.route] = RouteStats()
            route.calls[info.engine] += 1
            route.flops[info.engine] += info.flops
            if info.fallback is not None:
                route.fallbacks[info.fallback] += 1
            route.recomputed += info.recomputed

    def snapshot(self) -> Stats:
        """Return a copy of the counters.

        Returns
        -------
        Stats
            Later calls do not change it.
        """
        with self._lock:
            return Stats(
                {
                    name: RouteStats(
                        route.calls.copy(),
                        route.flops.copy(),
                        route.fallbacks.copy(),
                        route.recomputed,
                    )
                    for name, route in self._routes.items()
                }
            )

    def reset(self) -> None:
        """Set every counter to zero."""
        with self._lock:
            self._routes.clear()

    def forget_lock(self) -> None:
        """Make a fresh lock: the one of a forked parent may be held for ever."""
        self._lock = threading.Lock()
