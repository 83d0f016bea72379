"""One size of `bench`: who multiplies right may race on the same data.

In turns; or one after the other, each right after it has multiplied for long.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from np_ozaki.cli.dtypes import Entries
from np_ozaki.cli.operands import Operands, Size, product_options
from np_ozaki.cli.places import Place, host_free_bytes
from np_ozaki.cli.sampler import GpuUse, Sampler
from np_ozaki.config import EngineName, Precision
from np_ozaki.functions import matmul
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.stats import CallInfo
from np_ozaki.tiling import flops

__all__ = ["LEAST_SECONDS", "LOADED_SECONDS", "Contest", "Runner"]

LEAST_SECONDS = 0.01
"""A repeat calls a short product as often as this takes."""

LOADED_SECONDS = 0.1
"""The same under load: clock and power are sampled meanwhile."""

_MOST_CALLS = 1000
_MOST_LOADED_CALLS = 10_000
_LONGEST_CALL_FLOPS = 2 * 2048**3
"""The largest product whose single calls are timed on the host's clock."""

_STAGE_RUNS = 3
_SCRATCH_BYTES = 1 << 30

_GARBAGE_BITS = 0.5
"""Of the digits; errors of more no way to multiply may have."""


@dataclass
class Runner:
    """One who multiplies, and what is known of that.

    Attributes
    ----------
    name : str
        For the report.
    place : Place
        Where.
    way : str or None
        One of the place's; None for np_ozaki.
    precision : "auto", int or None
        Of np_ozaki.
    slicing : Slicing or None
        Of np_ozaki, instead of moduli.
    by_cublas : bool
        Whether np_ozaki lets cuBLAS multiply.
    symmetric : bool
        Whether it multiplies A by its transpose instead of B.
    state : str
        "waiting", "measured", "unavailable", "wrong" or "failed".
    reason : str or None
        Why it was not measured.
    info : CallInfo or None
        Of np_ozaki's product.
    max_error : float or None
        Largest error of a sampled entry relative to abs(A) abs(B), in u.
    calls : int
        Products a repeat.
    seconds : list of float
        Of one product, for each repeat.
    stages_ms : dict of str to float, or None
        Of np_ozaki's stages.
    gpu : GpuUse or None
        Clock and power during the repeats, under load.
    call_us : tuple of float, or None
        Microseconds until a call returns, and until its result is there.
    """

    name: str
    place: Place
    way: str | None = None
    precision: Precision | None = None
    slicing: Slicing | None = None
    by_cublas: bool = False
    symmetric: bool = False
    state: str = "waiting"
    reason: str | None = None
    info: CallInfo | None = None
    max_error: float | None = None
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    stages_ms: dict[str, float] | None = None
    gpu: GpuUse | None = None
    call_us: tuple[float, float] | None = None

    @property
    def races(self) -> bool:
        """Whether it has not left."""
        return self.state in {"waiting", "measured"}

    @property
    def engine(self) -> EngineName:
        """Of np_ozaki: who is to multiply."""
        return "cublas" if self.by_cublas else self.place.engine

    @property
    def emulated(self) -> bool:
        """Whether cuBLAS is to emulate, whoever asks it."""
        return self.by_cublas or self.way in self.place.emulated

    def leave(self, state: str, reason: str) -> None:
        """Take no further part.

        Parameters
        ----------
        state : str
            "unavailable", "wrong" or "failed".
        reason : str
            For the report.
        """
        self.state, self.reason = state, reason

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Let a failure be noted and cost nobody else's figures.

        Yields
        ------
        None
            For what may fail.
        """
        try:
            yield
        except MemoryError as error:
            self.leave("unavailable", f"does not fit the memory: {error}")
        except Exception as error:  # noqa: BLE001 - drivers and libraries raise all kinds
            if self.emulated:
                self.leave("unavailable", f"{type(error).__name__}: {error}")
            else:
                text = "".join(traceback.format_exception(error)).strip()
                self.leave("failed", text)


class Contest:
    """All who multiply matrices of one size.

    Parameters
    ----------
    size : Size
        Shapes.
    entries_of : Entries
        Their dtype.
    places : sequence of Place
        Where.
    moduli : sequence of "auto" or int
        Precisions of np_ozaki.
    slicings : sequence of Slicing, optional
        Slices that it multiplies, too.
    engines : sequence of str, optional
        Of np_ozaki on a GPU: "cuda", or "cublas", or both.
    load : float, optional
        Seconds that each multiplies right before its repeats; 0 to take turns.
    syrk : bool, optional
        Whether np_ozaki takes part with A times its transpose, too.
    """

    def __init__(
        self,
        size: Size,
        entries_of: Entries,
        places: Sequence[Place],
        moduli: Sequence[Precision],
        *,
        slicings: Sequence[Slicing] = (),
        engines: Sequence[EngineName] = ("cpu", "cuda"),
        load: float = 0.0,
        syrk: bool = False,
    ) -> None:
        self.size = size
        self._of = entries_of
        self.places = places
        self.load = load
        self.runners = []
        for place in places:
            ours = place.engine != "cuda" or "cuda" in engines
            self.runners += _runners(
                place, moduli if ours else (), slicings if ours else ()
            )
            if place.engine == "cuda" and "cublas" in engines:
                self.runners.append(Runner("cublas engine", place, by_cublas=True))
            if syrk and ours:
                self.runners += _symmetric_runners(place, moduli, size)
        self._operands: Operands | None = None
        self._entries = 0
        self._arrays: dict[str, tuple[Any, Any, Any]] = {}

    def lacking(self) -> str | None:
        """Return why the size does not fit the memory, or None.

        Returns
        -------
        str or None
            Bytes that it takes and that there are.
        """
        operands = self.size.operands
        if any(runner.symmetric and runner.races for runner in self.runners):
            operands += self.size.left  # A transposed, to compare with
        arrays = operands + 2 * self.size.result
        operands, arrays = (
            count * self._of.dtype.itemsize for count in (operands, arrays)
        )
        room = min(_SCRATCH_BYTES, arrays)
        needs = [("the host", operands + room, host_free_bytes())]
        for place in self.places:
            needs.append((f"engine {place.engine}", arrays + room, place.free_bytes()))
        for who, need, free in needs:
            if free is not None and need > free:
                return (
                    f"takes about {need / 1e9:.3g} GB of memory for {who}, "
                    f"{free / 1e9:.3g} GB are free"
                )
        return None

    # Before the race -----------------------------------------------------------

    def prepare(self) -> None:
        """Make data and put them in place."""
        self._operands = operands = Operands(self.size, self._of)
        self._entries = operands.entries
        for place in self.places:
            self._arrays[place.engine] = (
                place.put(operands.a),
                place.put(operands.b),
                place.empty((self.size.m, self.size.n)),
            )

    def qualify(self, runner: Runner) -> None:
        """Multiply once, look at the result, find out how long it takes.

        Parameters
        ----------
        runner : Runner
            Leaves, with the reason, if it does not multiply, or wrongly.
        """
        if runner.state != "waiting" or self._operands is None:
            return
        with runner.attempt():
            function = self._product(runner)
            # What another one left there must not pass for this one's work.
            self._arrays[runner.place.engine][2].fill(np.nan)
            if runner.way is None:
                _, runner.info = function(return_info=True)
            else:
                function()
            problem = self._inspect(runner, self._operands)
            if problem is not None:
                runner.leave(*problem)
                return
            once = min(runner.place.seconds(function, 1) for _ in range(2))
            least = LOADED_SECONDS if self.load else LEAST_SECONDS
            most = _MOST_LOADED_CALLS if self.load else _MOST_CALLS
            wanted = math.ceil(least / max(once, 1e-9))
            runner.calls = max(1, min(most, wanted))

    def _product(self, runner: Runner) -> Callable[..., Any]:
        """Return what multiplies, into the same array for all of a place."""
        a, b, out = self._arrays[runner.place.engine]
        if runner.way is not None:
            return functools.partial(runner.place.multiply, runner.way, a, b, out)
        return _ours(runner, a, a.T if runner.symmetric else b, out)

    def _inspect(self, runner: Runner, operands: Operands) -> tuple[str, str] | None:
        """Note the error of a result; return (state, reason) if it must not race."""
        if runner.symmetric:
            return self._inspect_symmetric(runner, operands)
        place = runner.place
        out = self._arrays[place.engine][2]
        sampled = operands.sampled(place.rows(out, operands.rows))
        runner.max_error = operands.error(sampled)
        info = runner.info
        if runner.by_cublas and (info is None or info.engine != "cublas"):
            return _not_ours(runner)
        if runner.way is not None or runner.by_cublas:
            return self._inspect_other(runner, out)
        scheme = runner.slicing or (info.num_moduli if info else None)
        if info is None or scheme is None or info.engine != place.engine:
            return _not_ours(runner)
        try:
            operands.check_sampled(sampled, scheme)
            if operands.small and place.engine != "cpu":
                whole = place.rows(out, range(self.size.m))
                operands.check_whole(whole, scheme)
        except AssertionError as error:
            return "wrong", f"not the contract's bits: {error}"
        return None

    def _inspect_symmetric(
        self, runner: Runner, operands: Operands
    ) -> tuple[str, str] | None:
        """Compare A times its transpose with the engine's plain product of a copy."""
        place, info = runner.place, runner.info
        if info is None or info.num_moduli is None or info.engine != place.engine:
            return _not_ours(runner)
        plain = next(
            other
            for other in self.runners
            if other.place is place
            and other.way is None
            and other.precision == runner.precision
        )
        if not plain.races:
            return "unavailable", f"{plain.name}, to compare with, is {plain.state}"
        a, _, out = self._arrays[place.engine]
        other = place.empty(out.shape)
        _ours(runner, a, place.put(operands.a.T.copy()), other)()
        if not place.same_bits(out, other):
            return "wrong", "not the bits of the product of A and a copy of A.T"
        return None

    def _inspect_other(self, runner: Runner, out: Any) -> tuple[str, str] | None:
        place, error = runner.place, runner.max_error or 0.0
        emulated = runner.emulated
        limit = self._of.parts * self.size.k + 1.0
        if emulated:
            limit = 2.0 ** (_GARBAGE_BITS * (self._of.part.bits + 1))
        if not error <= limit:
            state = "unavailable" if emulated else "wrong"
            return state, f"an error of {error:.3g} u, where {limit:.3g} u are allowed"
        if emulated:
            a, b, _ = self._arrays[place.engine]
            other = place.empty(out.shape)
            place.multiply(place.native, a, b, other)
            if place.same_bits(out, other):
                reason = f"the result has the bits of {place.native}"
                return "unavailable", f"{reason}: nothing was emulated"
        return None

    # The race ------------------------------------------------------------------

    def measure(self, runner: Runner) -> None:
        """Add one repeat.

        Parameters
        ----------
        runner : Runner
            Does nothing if it has left.
        """
        if not runner.races:
            return
        with runner.attempt():
            seconds = runner.place.seconds(self._product(runner), runner.calls)
            runner.seconds.append(seconds)
            runner.state = "measured"

    def measure_under_load(
        self, runner: Runner, repeats: int, sampler: Sampler | None = None
    ) -> None:
        """Let it multiply for the time of the load, and take all repeats at once.

        Parameters
        ----------
        runner : Runner
            Does nothing if it has left.
        repeats : int
            At least 1.
        sampler : Sampler, optional
            Of the runner's GPU.
        """
        if not runner.races:
            return
        with runner.attempt():
            laps = runner.place.laps(
                self._product(runner), runner.calls, repeats, self.load
            )
            end = time.perf_counter()
            runner.seconds += laps
            runner.state = "measured"
            if sampler is not None and sampler.answers:
                runner.gpu = sampler.use(end - runner.calls * sum(laps), end)

    def time_calls(self, runner: Runner) -> None:
        """Find out what a single call takes on the host's clock.

        Parameters
        ----------
        runner : Runner
            Does nothing for others than np_ozaki and native, and for large products.
        """
        size = self.size
        if runner.state != "measured" or runner.way not in {None, runner.place.native}:
            return
        if flops(size.m, size.n, size.k) > _LONGEST_CALL_FLOPS:
            return
        with runner.attempt():
            runner.call_us = runner.place.call_us(self._product(runner))

    def look_at_stages(self, runner: Runner) -> None:
        """Find out what np_ozaki's stages take; medians of a few products.

        Parameters
        ----------
        runner : Runner
            Does nothing for others than np_ozaki.
        """
        if runner.state != "measured" or runner.way is not None:
            return
        with runner.attempt():
            function = self._product(runner)
            runs = [runner.place.stages_ms(function) for _ in range(_STAGE_RUNS)]
            found = [run for run in runs if run is not None]
            stages = list(dict.fromkeys(stage for run in found for stage in run))
            if stages:
                runner.stages_ms = {
                    stage: statistics.median(run.get(stage, 0.0) for run in found)
                    for stage in stages
                }

    def finish(self) -> None:
        """Let go of all arrays."""
        self._arrays.clear()
        self._operands = None

    # The result ----------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return what was measured so far.

        Returns
        -------
        dict
            Units are in the names.
        """
        size = self.size
        return {
            "size": str(size),
            "m": size.m,
            "n": size.n,
            "k": size.k,
            "flop": self._of.flop(flops(size.m, size.n, size.k)),
            "operand_bytes": size.operands * self._of.dtype.itemsize,
            "sampled_entries": self._entries,
            "results": [self._row(runner) for runner in self.runners],
        }

    def _row(self, runner: Runner) -> dict[str, Any]:
        info, gpu = runner.info, runner.gpu
        host_us, wall_us = runner.call_us or (None, None)
        row: dict[str, Any] = {
            "contestant": runner.name,
            "place": runner.place.engine,
            "native": runner.way == runner.place.native,
            "ours": runner.way is None and not runner.by_cublas,
            "precision": runner.precision,
            "symmetric": runner.symmetric,
            "num_moduli": info.num_moduli if info else None,
            "mantissa_bits": info.mantissa_bits if info else None,
            "slicing": asdict(runner.slicing) if runner.slicing else None,
            "state": runner.state,
            "reason": runner.reason,
            "known_before": runner.way in runner.place.missing,
            "max_error_u": runner.max_error,
            "workspace_bytes": info.workspace_bytes if info else None,
            "calls_per_repeat": runner.calls,
            "times_s": runner.seconds,
            "stages_ms": runner.stages_ms,
            "sm_clock_mhz": gpu.sm_clock_mhz if gpu else None,
            "power_w": gpu.power_w if gpu else None,
            "gpu_samples": gpu.samples if gpu else 0,
            "host_us": host_us,
            "wall_us": wall_us,
        }
        if runner.seconds:
            median = statistics.median(runner.seconds)
            count = self._of.flop(flops(self.size.m, self.size.n, self.size.k))
            native = self._native_median(runner.place)
            row |= {
                "median_s": median,
                "min_s": min(runner.seconds),
                "max_s": max(runner.seconds),
                "tflop_per_s": count / (median * 1e12),
                "speed_over_native": native / median if native else None,
            }
        return row

    def _native_median(self, place: Place) -> float | None:
        for other in self.runners:
            if other.place is place and other.way == place.native and other.seconds:
                return statistics.median(other.seconds)
        return None


def _runners(
    place: Place, moduli: Sequence[Precision], slicings: Sequence[Slicing]
) -> list[Runner]:
    """Return who multiplies in a place, and who cannot."""
    found = [Runner(way, place, way) for way in place.ways]
    for way, reason in place.missing.items():
        found.append(Runner(way, place, way))
        found[-1].leave("unavailable", reason)
    return (
        found
        + [
            Runner(f"{place.engine} {precision}", place, precision=precision)
            for precision in moduli
        ]
        + [
            Runner(f"{place.engine} {slicing}", place, slicing=slicing)
            for slicing in slicings
        ]
    )


def _symmetric_runners(
    place: Place, moduli: Sequence[Precision], size: Size
) -> list[Runner]:
    """Return np_ozaki with A times its transpose; it needs a square result."""
    found = []
    for precision in moduli:
        name = f"{place.engine} {precision} syrk"
        found.append(Runner(name, place, precision=precision, symmetric=True))
        if size.m != size.n:
            found[-1].leave("unavailable", "A @ A.T needs m = n")
    return found


def _ours(runner: Runner, a: Any, b: Any, out: Any) -> Callable[..., Any]:
    """Return np_ozaki's product, as a runner wants it."""
    return functools.partial(
        matmul,
        a,
        b,
        out,
        engine=runner.engine,
        **product_options(runner.slicing or runner.precision),
    )


def _not_ours(runner: Runner) -> tuple[str, str]:
    """Return why a product that another engine has made must not race."""
    reason = "unknown" if runner.info is None else runner.info.fallback
    return "unavailable", f"the product was not {runner.engine}'s: {reason}"
