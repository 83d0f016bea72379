"""The scope around a whole program, and the report of what it routed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

import np_ozaki
from np_ozaki import hooks
from np_ozaki.config import SLICE_OPTIONS, Options
from np_ozaki.errors import OzakiError, RouteWarning
from np_ozaki.gemm import min_flops, native_reason
from np_ozaki.report import stats
from np_ozaki.scope import enabled
from np_ozaki.stats import Stats, because

__all__ = ["Session", "text"]

_CATCHES = {"matmul": "a @ b and numpy.matmul", "dot": "numpy.dot and its callers"}
"""What hooks catch whose name does not say it all, for the report of inactive ones."""


class Session:
    """A scope from now until the process ends.

    Parameters
    ----------
    given : dict of str to object
        Options for `np_ozaki.enabled`.
    options : Options
        All of them, for the report.

    Raises
    ------
    SystemExit
        With status 2 if no scope can be entered in this interpreter.
    """

    def __init__(self, given: dict[str, Any], options: Options) -> None:
        self._options = options
        self._process = os.getpid()
        self._stream = sys.stderr
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                # Not local: the program's threads and exit handlers belong to it.
                self._scope = enabled(**given, local=False)
                self._scope.__enter__()
            except OzakiError as error:
                print(f"{error}", file=sys.stderr)
                sys.exit(2)
        # A hook that is missing gets a line of its own, with what it misses.
        self._notes = [
            str(warning.message)
            for warning in caught
            if not issubclass(warning.category, RouteWarning)
        ]
        self._children = _child_seconds()
        self._start = time.perf_counter()

    def cancel(self) -> None:
        """End the scope; report nothing."""
        atexit.unregister(self._finish)
        self._scope.__exit__(None, None, None)

    def report_at_exit(
        self, target: str, *, quiet: bool, json_path: str | None
    ) -> None:
        """Report when the process ends.

        Registered before the program starts, so that its own exit handlers run, and
        are counted, before.

        Parameters
        ----------
        target : str
            The program.
        quiet : bool
            Print nothing.
        json_path : str or None
            File for the report as JSON.
        """
        atexit.register(self._finish, target, quiet, json_path)

    def _finish(self, target: str, quiet: bool, json_path: str | None) -> None:
        # Nothing here may import a module or evaluate a string: that would clear the
        # mark by which the interpreter ends with the signal of a KeyboardInterrupt.
        if os.getpid() != self._process:
            return  # a forked child that ends as a program of its own
        report = self._report(target)
        self._scope.__exit__(None, None, None)
        if json_path is not None:
            try:
                with open(json_path, "w", encoding="utf-8") as file:
                    json.dump(report, file, indent=2)
                    file.write("\n")
            except OSError as error:
                _print_safely(f"np_ozaki: --json={json_path!r}: {error}", self._stream)
        if not quiet:
            _print_safely(text(report), self._stream)

    def _report(self, target: str) -> dict[str, Any]:
        """Return what happened, as plain data."""
        seconds = time.perf_counter() - self._start
        counters = stats()
        return {
            "version": np_ozaki.__version__,
            "program": target,
            "seconds": seconds,
            **{field: _sum(counters, field) for field in _COUNTED},
            "routes": counters.as_dict(),
            "options": {
                **asdict(self._options),
                "min_flops": min_flops(self._options),
            },
            "hooks": [asdict(hook) for hook in hooks.status()],
            "notes": [*self._notes, *self._late_notes(counters)],
        }

    def _late_notes(self, counters: Stats) -> Iterator[str]:
        """Yield what a reader of the numbers should know."""
        for hook in hooks.status():
            if hook.escapes:
                caught = _CATCHES.get(hook.name, hook.name)
                yield (
                    f"hook {hook.name} is inactive ({hook.reason}): {caught} on plain "
                    "arrays were not caught, np_ozaki.OzArray and np_ozaki.matmul were"
                )
        if not any(hook.active for hook in hooks.status()):
            return
        smallest = min_flops(self._options)
        routed = any(e != "native" for e in _sum(counters, "calls"))
        reason = native_reason(self._options)
        if reason is not None:
            yield f"the scope routed nothing: {reason}"
        elif smallest and not routed:
            yield (
                f"nothing was routed: products below min_flops={smallest} ({_FLOPS}) "
                "stay native; --min-flops 0 routes every product"
            )
        elif smallest:
            yield (
                f"products below min_flops={smallest} ({_FLOPS}) stayed native and are "
                "not counted"
            )
        elif not routed:
            yield "nothing was routed: no product of the scope's dtypes came to a hook"
        seconds = _child_seconds() - self._children
        if seconds > 0:
            yield (
                f"child processes ran for {seconds:.3f} s; their products are not "
                "counted here"
            )


_FLOPS = "2 m n k, of complex ones 8 m n k"
_COUNTED = ("calls", "flops", "fallbacks")

_SHOWN = (
    "precision",
    "scaling",
    "engine",
    "strategy",
    "min_flops",
    "dtypes",
    "reproducible",
    "scheme",
)


def _sum(counters: Stats, field: str) -> dict[str, int]:
    """Return one kind of counter, summed over the routes."""
    total: dict[str, int] = {}
    for route in counters.routes.values():
        for key, value in getattr(route, field).items():
            total[key] = total.get(key, 0) + value
    return total


def text(report: dict[str, Any]) -> str:
    """Return the report as lines for people.

    Parameters
    ----------
    report : dict
        As written to JSON.

    Returns
    -------
    str
        One fact a line.
    """
    calls = report["calls"]
    total = sum(calls.values())
    routed = total - calls.get("native", 0)
    lines = [
        f"np_ozaki: {routed} of {total} counted products routed, "
        f"{report['seconds']:.3f} s in all"
    ]
    if total:
        lines.append(f"  {'route':<12}{'engine':<10}{'calls':>10}{'GFLOP':>14}")
    for route, counters in sorted(report["routes"].items()):
        lines += [
            f"  {route:<12}{engine:<10}{count:>10}"
            f"{counters['flops'][engine] / 1e9:>14.3f}"
            for engine, count in sorted(counters["calls"].items())
        ]
    lines += [
        f"  {because(reason)}: {count} calls"
        for reason, count in sorted(report["fallbacks"].items())
    ]
    options = report["options"]
    names = _SHOWN + (SLICE_OPTIONS if options["scheme"] == "slices" else ())
    shown = " ".join(f"{name}={_as_text(options[name])}" for name in names)
    lines.append(f"  options: {shown}")
    lines += [
        f"  hook {hook['name']}: active, {hook['reason']}"
        for hook in report["hooks"]
        if hook["active"]
    ]
    lines += [f"  note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def _as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def _child_seconds() -> float:
    """Return the CPU time of child processes that have ended; 0 where unknown."""
    if resource is None:
        return 0.0
    # Microseconds; os.times() counts in ticks, of which a short child has none.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print_safely(message: str, stream: Any) -> None:
    """Print after all of the program's output, whatever it did to its streams."""
    if stream is None:  # under pythonw; print() would take that for stdout
        return
    for attempt in (_flush_stdout, functools.partial(print, message, file=stream)):
        # Closed, or replaced by something else.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            attempt()


def _flush_stdout() -> None:
    sys.stdout.flush()
