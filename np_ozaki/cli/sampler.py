"""Clock and power of a GPU while it works: one nvidia-smi and one thread that reads it.

Nothing here touches CUDA, so that no measurement waits for it.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from np_ozaki.cli.machine import number

__all__ = ["GpuUse", "Sampler"]

_FIELDS = "clocks.sm,power.draw"
_PERIOD_MS = 50
_START_SECONDS = 10.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class GpuUse:
    """How a GPU ran for some time.

    Attributes
    ----------
    sm_clock_mhz : float or None
        Median; None if there is no sample of it.
    power_w : float or None
        Median; None if there is no sample of it.
    samples : int
        How many there are.
    """

    sm_clock_mhz: float | None
    power_w: float | None
    samples: int


class Sampler:
    """Samples of one GPU between ``with`` and its end.

    Parameters
    ----------
    bus_id : str or None
        PCI address; None if unknown, when nothing is sampled.
    """

    def __init__(self, bus_id: str | None) -> None:
        self._bus_id = bus_id
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._samples: list[tuple[float, float | None, float | None]] = []

    @property
    def answers(self) -> bool:
        """Whether nvidia-smi has told anything."""
        return bool(self._samples)

    def __enter__(self) -> Self:
        """Start, and wait for the first sample.

        Returns
        -------
        Sampler
            Without nvidia-smi one that has no samples.
        """
        if self._bus_id is not None:
            try:
                self._start(self._bus_id)
            except BaseException:
                self._stop()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; the samples stay."""
        self._stop()

    def use(self, begin: float, end: float) -> GpuUse:
        """Return the medians over some time.

        Parameters
        ----------
        begin, end : float
            By `time.perf_counter`.

        Returns
        -------
        GpuUse
            Of the samples that lie there.
        """
        found = [sample for sample in list(self._samples) if begin <= sample[0] <= end]
        return GpuUse(
            _median(clock for _, clock, _ in found),
            _median(power for _, _, power in found),
            len(found),
        )

    def _start(self, bus_id: str) -> None:
        try:
            self._process = subprocess.Popen(
                [
                    "nvidia-smi",
                    f"--query-gpu={_FIELDS}",
                    "--format=csv,noheader,nounits",
                    f"--id={bus_id}",
                    f"--loop-ms={_PERIOD_MS}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError:
            return
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self._begun.wait(_START_SECONDS)

    def _read(self) -> None:
        """Keep what comes, with the time when it came."""
        if self._process is None or self._process.stdout is None:
            return
        for line in self._process.stdout:
            now = time.perf_counter()
            values = [number(value) for value in line.split(",")]
            if len(values) == 2 and values != [None, None]:
                self._samples.append((now, values[0], values[1]))
                self._begun.set()
        self._begun.set()  # it has ended, maybe without a sample

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
