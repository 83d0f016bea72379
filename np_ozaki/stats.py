"""Counters: which route multiplied on which engine, and what fell back and why."""

from __future__ import annotations

import threading
from collections import Counter
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from np_ozaki.numerics.slicing import Slicing

__all__ = [
    "CUBLAS_FALLBACK",
    "ArrayStats",
    "CallInfo",
    "Direction",
    "PreparedStats",
    "Recorder",
    "RouteStats",
    "Stats",
    "TransferStats",
    "because",
]

Direction = Literal["to device", "to host"]

CUBLAS_FALLBACK = 'engine="cublas": '
"""How a reason begins for which cuBLAS left a product to np_ozaki's own engine."""


def because(reason: str) -> str:
    """Return the reason of a fallback with what it led to.

    Parameters
    ----------
    reason : str
        As `CallInfo.fallback`.

    Returns
    -------
    str
        For a report.
    """
    who = "own engine" if reason.startswith(CUBLAS_FALLBACK) else "native"
    return f"{who} because {reason}"


@dataclass(frozen=True, init=False)
class CallInfo:
    """What one product did.

    Attributes
    ----------
    route : str
        Which function of NumPy or np_ozaki was called.
    engine : str
        Who multiplied: "cpu", "cuda", "cublas", "native", or "exact" where Python
        integers did.
    batch, m, n, k : int
        Size of the product.
    num_moduli : int or None
        N of the contract; None for slices, native and cuBLAS.
    scaling : str or None
        Rule of the scaling exponents; None for slices, native and cuBLAS.
    fallback : str or None
        Why the product, or some matrices of its batch, were not the engine's that was
        asked for.
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
    bound : ndarray of float64 or complex128, or None
        With ``return_info="bound"``: at least ``abs(C - A @ B)``, entry by entry; of a
        complex product the parts bound those of the error.
    slicing : Slicing or None
        Slices, their bits and pairs, of scheme "slices"; None for others.
    mantissa_bits : int or None
        For engine "cublas": bits that entries kept, or with
        ``mantissa_control="dynamic"`` the most that they may have kept.  For operands
        on the host, which are waited for, it is then what cuBLAS says that it used;
        0 where it multiplied some of it in FP64 instead.
    dtype : str
        Of the result; m, n, k of a complex product are those of its matrices.
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
    bound: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    slicing: Slicing | None = None
    mantissa_bits: int | None = None
    dtype: str = "float64"

    def __init__(
        self,
        route: str,
        engine: str,
        batch: int,
        m: int,
        n: int,
        k: int,
        num_moduli: int | None = None,
        scaling: str | None = None,
        fallback: str | None = None,
        shift: int = 0,
        rebalanced: bool = False,
        workspace_bytes: int = 0,
        tiles: int = 0,
        structured_flops: int | None = None,
        checked: bool = False,
        recomputed: bool = False,
        left_out: int = 0,
        bound: NDArray[Any] | None = None,
        slicing: Slicing | None = None,
        mantissa_bits: int | None = None,
        dtype: str = "float64",
    ) -> None:
        # By hand: each product makes one, and what a frozen dataclass would do, a call
        # for each field, takes five times as long.
        self.__dict__.update(
            route=route,
            engine=engine,
            batch=batch,
            m=m,
            n=n,
            k=k,
            num_moduli=num_moduli,
            scaling=scaling,
            fallback=fallback,
            shift=shift,
            rebalanced=rebalanced,
            workspace_bytes=workspace_bytes,
            tiles=tiles,
            structured_flops=structured_flops,
            checked=checked,
            recomputed=recomputed,
            left_out=left_out,
            bound=bound,
            slicing=slicing,
            mantissa_bits=mantissa_bits,
            dtype=dtype,
        )

    @property
    def num_slices(self) -> int | None:
        """S of scheme "slices"; None for others."""
        return None if self.slicing is None else self.slicing.num_slices

    @property
    def flops(self) -> int:
        """Real operations: 2 m n k times the batch, complex 8 m n k.

        A structured routine has fewer.
        """
        if self.structured_flops is not None:
            return self.structured_flops
        each = 8 if self.dtype.startswith("complex") else 2
        return each * self.batch * self.m * self.n * self.k


@dataclass
class RouteStats:
    """Counts of one route.

    Attributes
    ----------
    calls : dict of str to int
        Calls by engine.
    flops : dict of str to int
        Operations (2 m n k, complex 8 m n k) by engine.
    fallbacks : dict of str to int
        Calls that went native, or from cuBLAS to np_ozaki's own engine, by reason.
    recomputed : int
        Calls whose check failed once (``check="recompute"``).
    """

    calls: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    recomputed: int = 0


@dataclass
class TransferStats:
    """Copies of OzArrays between host and device, one way.

    Attributes
    ----------
    calls : int
        Copies.
    bytes : int
        What they moved.
    seconds : float
        Until the host could go on: a copy to the device may end later.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class PreparedStats:
    """Operands whose exponents and residues were kept for later products.

    Attributes
    ----------
    made : int
        Kept for the first time.
    reused : int
        Operands of products that were found prepared.
    evicted : int
        Given up because the limit of memory was reached.
    """

    made: int = 0
    reused: int = 0
    evicted: int = 0


@dataclass
class ArrayStats:
    """What OzArrays did besides products.

    Attributes
    ----------
    transfers : dict of str to TransferStats
        By direction, "to device" and "to host".
    prepared : PreparedStats
        Operands that were kept.
    conversions : int
        OzArrays that were handed out as ndarrays without being asked by name
        (``numpy.asarray`` and all that calls it).
    on_host : dict of str to int
        Functions of NumPy that ran on the host, by name.
    """

    transfers: dict[Direction, TransferStats] = field(default_factory=dict)
    prepared: PreparedStats = field(default_factory=PreparedStats)
    conversions: int = 0
    on_host: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts and numbers, as for JSON.

        Returns
        -------
        dict
            The fields by name.
        """
        return {**asdict(self), "on_host": dict(self.on_host)}

    def __str__(self) -> str:
        """Return one line a fact."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return one line a fact.

        Returns
        -------
        list of str
            None where nothing happened.
        """
        found = [
            f"OzArray: {x.calls} copies {way}, {x.bytes / 1e6:.3f} MB, "
            f"{x.seconds:.4f} s"
            for way, x in sorted(self.transfers.items())
        ]
        if self.prepared != PreparedStats():
            found.append(
                f"OzArray: prepared operands: {self.prepared.made} made, "
                f"{self.prepared.reused} reused, {self.prepared.evicted} evicted"
            )
        if self.conversions:
            found.append(f"OzArray: {self.conversions} conversions to ndarray")
        found += [
            f"OzArray: {name} on the host: {calls} calls"
            for name, calls in sorted(self.on_host.items())
        ]
        return found


@dataclass
class Stats:
    """A snapshot of the counters.

    Attributes
    ----------
    routes : dict of str to RouteStats
        By name of the function that was called.
    arrays : ArrayStats
        What OzArrays did.
    """

    routes: dict[str, RouteStats] = field(default_factory=dict)
    arrays: ArrayStats = field(default_factory=ArrayStats)

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
            By routes, and then by the fields of `RouteStats`; `arrays` has its own.
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
                f"{name}: {because(reason)}: {calls} calls"
                for reason, calls in sorted(route.fallbacks.items())
            ]
            if route.recomputed:
                lines.append(f"{name}: recomputed after a check: {route.recomputed}")
        return "\n".join(lines + self.arrays.lines()) or "no products"


class Recorder:
    """Counters that threads may share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._routes: dict[str, RouteStats] = {}
        self._arrays = ArrayStats()

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

    def record_transfer(self, way: Direction, size: int, seconds: float) -> None:
        """Count a copy of an OzArray between host and device.

        Parameters
        ----------
        way : str
            "to device" or "to host".
        size : int
            Bytes.
        seconds : float
            Until the host could go on.
        """
        with self._lock:
            seen = self._arrays.transfers.setdefault(way, TransferStats())
            seen.calls += 1
            seen.bytes += size
            seen.seconds += seconds

    def record_prepared(
        self, *, made: int = 0, reused: int = 0, evicted: int = 0
    ) -> None:
        """Count what happened to prepared operands.

        Parameters
        ----------
        made, reused, evicted : int
            As in `PreparedStats`.
        """
        with self._lock:
            seen = self._arrays.prepared
            seen.made += made
            seen.reused += reused
            seen.evicted += evicted

    def record_conversion(self) -> None:
        """Count an OzArray that was handed out as ndarray."""
        with self._lock:
            self._arrays.conversions += 1

    def record_on_host(self, name: str) -> None:
        """Count a function that ran on the host.

        Parameters
        ----------
        name : str
            Of the function.
        """
        with self._lock:
            self._arrays.on_host[name] += 1

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
                },
                deepcopy(self._arrays),
            )

    def reset(self) -> None:
        """Set every counter to zero."""
        with self._lock:
            self._routes.clear()
            self._arrays = ArrayStats()

    def forget_lock(self) -> None:
        """Make a fresh lock: the one of a forked parent may be held for ever."""
        self._lock = threading.Lock()
