"""``bench``: np_ozaki and native products side by side, on the same data."""

from __future__ import annotations

import argparse
import json
import math
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from np_ozaki.cli import chart
from np_ozaki.cli.contest import LEAST_SECONDS, LOADED_SECONDS, Contest
from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.cli.machine import gpu_state, machine
from np_ozaki.cli.operands import PHI, SEED, Size
from np_ozaki.cli.options import Subparsers, writable
from np_ozaki.cli.output import may_go_unread
from np_ozaki.cli.places import Place, default_engine, open_place
from np_ozaki.cli.sampler import Sampler
from np_ozaki.cli.scoreboard import footer, header, problems, table
from np_ozaki.cli.table import as_json
from np_ozaki.config import (
    Accumulate,
    EngineName,
    MultiplicationScheme,
    Precision,
    config,
)
from np_ozaki.engines import choice
from np_ozaki.errors import EngineUnavailableError, OptionError, OzakiError, refusal
from np_ozaki.numerics.moduli import COMPLEX_MODULI, MAX_MODULI, MIN_MODULI
from np_ozaki.numerics.slicing import MAX_SLICES, Slicing

__all__ = ["INTERRUPTED", "add_parser"]

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell would report it."""

_LONGEST = 1 << 20
_ENGINES: tuple[EngineName, ...] = ("cpu", "cuda", "cublas")
_CPU_SIZES = (256, 512, 1024, 2048)
_GPU_SIZES = (1024, 2048, 4096, 8192, 16384)
_REPEATS = 7
_NO_SAMPLES = "clock and power under load are unknown: nvidia-smi does not answer"

_DESCRIPTION = """\
Time products of random matrices, np_ozaki and native side by side: on the GPU if
there is one, with all data there (against cuBLAS, and cuBLAS's own FP64 emulation if
it has one), else on the CPU (against NumPy with its BLAS).

All take turns on the same data, or with --load each is measured right after it has
multiplied for so long.  np_ozaki is timed only after its bits have been compared with
the contract's.  Ctrl-C reports what has been measured so far.

Exit status: 0; 1 if somebody multiplied wrongly or failed; 2 if the command line cannot
be used; 130 after Ctrl-C.
"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line.

    Parameters
    ----------
    subparsers : Subparsers
        Of the main parser.
    """
    parser = subparsers.add_parser(
        "bench",
        help="time np_ozaki and native products side by side",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="SIZES",
        help="n or MxNxK, with commas between; (M, K) times (K, N); 256 to 2048 on a "
        "CPU, 1024 to 16384 on a GPU",
    )
    parser.add_argument(
        "--moduli",
        type=_moduli,
        metavar="MODULI",
        help="precisions of np_ozaki, with commas between (14,15,auto; of complex128 "
        "15,16,auto; of float32 and complex64 7,8,auto)",
    )
    parser.add_argument(
        "--scheme",
        type=_schemes,
        default=("moduli",),
        metavar="SCHEMES",
        help="moduli, slices or both, with a comma between (moduli)",
    )
    parser.add_argument(
        "--slices",
        type=_slices,
        metavar="SLICES",
        help="with scheme slices: S, or S:all for all pairs instead of those with "
        "i + j < S, with commas between (8)",
    )
    parser.add_argument(
        "--bits-per-slice", type=int, metavar="BITS", help="of a slice, 2 to 8 (8)"
    )
    parser.add_argument(
        "--accumulate",
        choices=get_args(Accumulate),
        help="how products of slices are added (exact)",
    )
    parser.add_argument(
        "--dtype",
        type=_dtype,
        default="float64",
        metavar="DTYPE",
        help=f"of the matrices: {', '.join(DTYPES)} (float64)",
    )
    parser.add_argument(
        "--engines",
        type=_engines,
        metavar="ENGINES",
        help="cpu, cuda and cublas, that is cuBLAS's emulation as engine cublas asks "
        "for it, with commas between; the GPU's own if there is one",
    )
    parser.add_argument(
        "--repeats",
        type=_repeats,
        default=_REPEATS,
        metavar="R",
        help=f"measurements of each ({_REPEATS})",
    )
    parser.add_argument(
        "--load",
        type=_load,
        default=0.0,
        metavar="SECONDS",
        help="let each multiply for so long without a pause, then take all its repeats "
        "at once, with clock and power of a GPU (0: all take turns)",
    )
    parser.add_argument(
        "--syrk",
        action="store_true",
        help="time np_ozaki's A @ A.T, too, where M = N",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE, too")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help=f"draw them, to a file with suffix {', '.join(chart.FORMATS)}",
    )
    parser.add_argument(
        "--no-progress", action="store_true", help="show no progress bar"
    )
    parser.set_defaults(command=may_go_unread(_command), parser=parser)


# The command line -----------------------------------------------------------------


def _refuse(value: str, limit: str, remedy: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{value!r}: {limit}; {remedy}")


def _items(text: str) -> list[str]:
    return list(dict.fromkeys(item.strip() for item in text.split(",")))


def _sizes(text: str) -> tuple[Size, ...]:
    sizes = []
    for item in _items(text):
        try:
            sides = [int(side) for side in item.lower().split("x")]
        except ValueError:
            sides = []
        if len(sides) == 1:
            sides *= 3
        if len(sides) != 3 or not all(1 <= side <= _LONGEST for side in sides):
            raise _refuse(
                item,
                f"a size is n or MxNxK with numbers from 1 to {_LONGEST}",
                "give some, as in 512,1024 or 4096x64x1024",
            )
        sizes.append(Size(*sides))
    return tuple(dict.fromkeys(sizes))


def _moduli(text: str) -> tuple[Precision, ...]:
    found: list[Precision] = []
    for item in _items(text):
        if item == "auto":
            found.append("auto")
        elif item.isdecimal() and MIN_MODULI <= int(item) <= MAX_MODULI:
            found.append(int(item))
        else:
            raise _refuse(
                item,
                f"must be auto or a number of moduli, {MIN_MODULI} to {MAX_MODULI}",
                "15 gives FP64 accuracy on ordinary data",
            )
    return tuple(dict.fromkeys(found))


def _schemes(text: str) -> tuple[str, ...]:
    allowed = get_args(MultiplicationScheme)
    items = _items(text)
    for item in items:
        if item not in allowed:
            raise _refuse(item, f"must be one of {', '.join(allowed)}", "choose some")
    return tuple(scheme for scheme in allowed if scheme in items)


def _slices(text: str) -> tuple[Slicing, ...]:
    found = []
    for item in _items(text):
        number, _, pairs = item.partition(":")
        try:
            if pairs not in {"", "all", "triangular"}:
                raise ValueError
            schedule: Any = pairs or "triangular"
            found.append(Slicing(int(number), pairs=schedule))
        except ValueError:
            limit = f"must be 1 to {MAX_SLICES}, with :all or without"
            raise _refuse(item, limit, "give some, as in 7,8,8:all") from None
    return tuple(dict.fromkeys(found))


def _as_given(slicing: Slicing) -> str:
    """Return what `_slices` makes this of."""
    all_pairs = ":all" if slicing.pairs == "all" else ""
    return f"{slicing.num_slices}{all_pairs}"


def _engines(text: str) -> tuple[EngineName, ...]:
    items = _items(text)
    for item in items:
        if item not in _ENGINES:
            raise _refuse(item, f"must be one of {', '.join(_ENGINES)}", "choose some")
    return tuple(engine for engine in _ENGINES if engine in items)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise _refuse(text, f"must be one of {', '.join(DTYPES)}", "choose one")
    return text


def _repeats(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise _refuse(text, "must be a whole number, at least 1", f"try {_REPEATS}")
    return int(text)


def _load(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise _refuse(text, "must be a number of seconds, at least 0", "try 10")
    return seconds


# The command ----------------------------------------------------------------------


def _command(arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.parser
    places: list[Place] = []
    try:
        if config().options.strategy != "always":
            # Only the environment can say so.
            parser.error("nothing would be routed; unset NP_OZAKI_STRATEGY")
        if arguments.plot is not None:
            chart.check(arguments.plot)
        plot_path = writable(parser, arguments.plot, "--plot")
        json_path = writable(parser, arguments.json)
        moduli, slicings = _moduli_given(arguments), _slicings(arguments)
        engines = arguments.engines or (default_engine(),)
        _refuse_of_float64(arguments, engines)
        # Data of engine cublas lie where those of engine cuda do.
        of_places = dict.fromkeys("cuda" if x == "cublas" else x for x in engines)
        for engine in of_places:
            try:
                places.append(open_place(engine, DTYPES[arguments.dtype]))
            except EngineUnavailableError:
                if engine in engines:
                    raise
                reason = choice.cuda_unavailable() or "no GPU for it"
                raise EngineUnavailableError(
                    refusal("--engines", "cublas", reason, "leave it out")
                ) from None
    except OzakiError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    default = _CPU_SIZES if "cpu" in engines else _GPU_SIZES
    sizes = arguments.sizes or tuple(Size(n, n, n) for n in default)
    contests = [
        Contest(
            size,
            DTYPES[arguments.dtype],
            places,
            moduli,
            slicings=slicings,
            engines=engines,
            load=arguments.load,
            syrk=arguments.syrk,
        )
        for size in sizes
    ]
    report = _new_report(arguments, engines, places, sizes)
    print(header(report), flush=True)
    try:
        _bench(report, contests, arguments)
    except KeyboardInterrupt:
        report["interrupted"] = True
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - what was measured so far must not be lost
        traceback.print_exc()
        report["notes"].append(f"stopped: {traceback.format_exc().strip()}")
        report["ok"] = False
    finally:
        for place in places:
            place.close()
    report["ok"] &= not any(
        row["state"] in {"wrong", "failed"}
        for size in report["sizes"]
        for row in size["results"]
    )
    if json_path is not None:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(as_json(report), file, indent=2, allow_nan=False)
            file.write("\n")
    if plot_path is not None and not chart.draw(report, plot_path):
        report["notes"].append(f"nothing was measured: {plot_path} is empty")
    print(footer(report))
    if report["interrupted"]:
        return INTERRUPTED
    return 0 if report["ok"] else 1


def _moduli_given(arguments: argparse.Namespace) -> tuple[Precision, ...]:
    """Return the precisions of moduli that take part.

    Raises
    ------
    OptionError
        An option has nobody to be of.
    """
    if "moduli" in arguments.scheme:
        found = tuple(arguments.moduli or DTYPES[arguments.dtype].moduli)
        most = len(COMPLEX_MODULI)
        for number in found if DTYPES[arguments.dtype].is_complex else ():
            if number != "auto" and int(number) > most:
                limit = f"a complex product takes {MIN_MODULI} to {most} moduli"
                raise OptionError(refusal("--moduli", number, limit, "ask for fewer"))
        return found
    _refuse_unused(arguments, ("moduli", "syrk"), "moduli")
    return ()


def _refuse_of_float64(
    arguments: argparse.Namespace, engines: Sequence[EngineName]
) -> None:
    """Refuse what takes part with float64 only."""
    given = (
        ("--scheme", "slices", "slices" in arguments.scheme, "is timed by slices"),
        ("--engines", "cublas", "cublas" in engines, "is emulated by cuBLAS"),
    )
    for option, value, wanted, what in given:
        if wanted and arguments.dtype != "float64":
            limit = f"only float64 {what}, and --dtype is {arguments.dtype}"
            raise OptionError(refusal(option, value, limit, "leave one of them out"))


def _slicings(arguments: argparse.Namespace) -> list[Slicing]:
    """Return the slices that take part.

    Raises
    ------
    OptionError
        Bits are out of range, or an option has nobody to be of.
    """
    changes = {
        "bits_per_slice": arguments.bits_per_slice,
        "accumulate": arguments.accumulate,
    }
    if "slices" not in arguments.scheme:
        _refuse_unused(arguments, ("slices", *changes), "slices")
        return []
    given = {name: value for name, value in changes.items() if value is not None}
    slicings = arguments.slices or (Slicing(),)
    return [replace(slicing, **given) for slicing in slicings]


def _refuse_unused(
    arguments: argparse.Namespace, names: Sequence[str], scheme: str
) -> None:
    for name in names:
        value = getattr(arguments, name)
        if name == "slices" and value:
            value = ",".join(_as_given(slicing) for slicing in value)
        if value:
            option = f"--{name.replace('_', '-')}"
            limit = f"is of scheme {scheme}"
            raise OptionError(
                refusal(option, value, limit, f"add --scheme {scheme} to it")
            )


def _new_report(
    arguments: argparse.Namespace,
    engines: Sequence[EngineName],
    places: Sequence[Place],
    sizes: Sequence[Size],
) -> dict[str, Any]:
    """Return a report of what is going to be measured."""
    report: dict[str, Any] = {
        "command": {
            "sizes": [str(size) for size in sizes],
            "moduli": list(_moduli_given(arguments)),
            "scheme": list(arguments.scheme),
            "slices": [str(slicing) for slicing in _slicings(arguments)],
            "engines": list(engines),
            "dtype": arguments.dtype,
            "repeats": arguments.repeats,
            "load_s": arguments.load,
            "syrk": arguments.syrk,
            "phi": PHI,
            "seed": SEED,
            "least_seconds_a_repeat": (
                LOADED_SECONDS if arguments.load else LEAST_SECONDS
            ),
        },
        "machine": machine(),
        "places": {},
        "sizes": [],
        "skipped": [],
        "notes": [],
        "interrupted": False,
        "ok": True,
    }
    for place in places:
        facts = place.facts()
        report["places"][place.engine] = {
            "native": place.native,
            "missing": dict(place.missing),
            "facts": facts,
            "state": gpu_state(facts.get("pci_bus_id")),
        }
    return report


def _bench(
    report: dict[str, Any], contests: Sequence[Contest], arguments: argparse.Namespace
) -> None:
    """Measure all sizes, printing each as it is done."""
    from tqdm import tqdm

    rounds = arguments.repeats + 1  # the first is to qualify
    with tqdm(
        total=rounds * sum(len(contest.runners) for contest in contests),
        desc="bench",
        file=sys.stderr,
        leave=False,
        disable=arguments.no_progress,
    ) as bar:
        for contest in contests:
            bar.set_postfix_str(str(contest.size))
            problem = contest.lacking() or _prepared(contest)
            if problem is not None:
                report["skipped"].append({"size": str(contest.size), "reason": problem})
                report["notes"].append(f"{contest.size} is skipped: it {problem}")
                bar.update(rounds * len(contest.runners))
                continue
            try:
                _race(report, contest, arguments.repeats, bar)
            finally:
                contest.finish()
                _add(report, contest, bar)


def _prepared(contest: Contest) -> str | None:
    """Make the data; return why they do not fit, or None."""
    try:
        contest.prepare()
    except MemoryError as error:
        contest.finish()
        return f"does not fit the memory: {error}"
    return None


def _race(report: dict[str, Any], contest: Contest, repeats: int, bar: Any) -> None:
    for runner in contest.runners:
        contest.qualify(runner)
        bar.update()
    if contest.load:
        _race_under_load(report, contest, repeats, bar)
    else:
        _race_in_turns(contest, repeats, bar)
    for runner in contest.runners:
        contest.time_calls(runner)


def _race_in_turns(contest: Contest, repeats: int, bar: Any) -> None:
    for _ in range(repeats):
        for runner in contest.runners:
            contest.measure(runner)
            bar.update()
    for runner in contest.runners:
        contest.look_at_stages(runner)


def _race_under_load(
    report: dict[str, Any], contest: Contest, repeats: int, bar: Any
) -> None:
    facts = {name: place["facts"] for name, place in report["places"].items()}
    with Sampler(_bus_id(report)) as sampler:
        unknown = any(facts.values()) and not sampler.answers
        if unknown and _NO_SAMPLES not in report["notes"]:
            report["notes"].append(_NO_SAMPLES)
        for runner in contest.runners:
            on_gpu = facts[runner.place.engine].get("pci_bus_id") is not None
            contest.measure_under_load(runner, repeats, sampler if on_gpu else None)
            contest.look_at_stages(runner)  # while it is as warm
            bar.update(repeats)


def _add(report: dict[str, Any], contest: Contest, bar: Any) -> None:
    """Add to the report, and print, what one size has brought."""
    result = contest.report()
    result["gpu_after"] = gpu_state(_bus_id(report))
    report["sizes"].append(result)
    report["notes"] += problems(result)
    bar.write(table(result), file=sys.stdout)
    sys.stdout.flush()  # the next size may take minutes


def _bus_id(report: dict[str, Any]) -> str | None:
    """Return the PCI address of the GPU that takes part, if one does."""
    found = [place["facts"].get("pci_bus_id") for place in report["places"].values()]
    return next((x for x in found if x), None)
