"""``accuracy``: the experiments of the paper on scaling rules, and their verdict."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.cli.machine import machine
from np_ozaki.cli.operands import SEED
from np_ozaki.cli.options import Subparsers, resolve, writable
from np_ozaki.cli.output import may_go_unread
from np_ozaki.cli.table import as_json
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.errors import OzakiError
from np_ozaki.gemm import native_reason

if TYPE_CHECKING:
    from np_ozaki.cli.accuracy_experiments import Plan

__all__ = ["PAGE", "add_parser"]

PAGE = "tables.md"
"""Name of the file with the tables."""

_SIZE, _QUICK_SIZE = 128, 32
_SMALLEST, _LARGEST = 16, 1024

_DESCRIPTION = f"""\
Repeat the experiments of the paper on the scaling of Ozaki scheme II (arXiv
2606.29129): errors of the rules norm, accurate and legacy beside native products, on
random matrices (rand - 0.5) exp(phi randn) for numbers of moduli N = 8 to 20, and on
matrices of ones and random ones times powers of two.  All multiply the same data and
are compared with products known to 106 bits.  Some minutes; --quick: some seconds.

--output DIR writes the tables as {PAGE} and, where matplotlib is installed, pictures.

Exit status: 0 if everything turns out as claimed, 1 if not, 2 if the command line
cannot be used.
"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line.

    Parameters
    ----------
    subparsers : Subparsers
        Of the main parser.
    """
    parser = subparsers.add_parser(
        "accuracy",
        help="repeat the paper's experiments on accuracy",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller products"
    )
    parser.add_argument(
        "--size",
        type=_size,
        metavar="M",
        help=f"m and n of the products, {_SMALLEST} to {_LARGEST} ({_SIZE}; "
        f"{_QUICK_SIZE} with --quick)",
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        default="float64",
        help="of the matrices; the paper's are float64",
    )
    parser.add_argument(
        "--seed", type=_seed, default=SEED, help=f"of the random matrices ({SEED})"
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "cpu", "cuda"),
        help="who multiplies; exact products are the CPU engine's",
    )
    parser.add_argument("--output", metavar="DIR", help="write tables and pictures")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--no-progress", action="store_true", help="show no progress bar"
    )
    parser.set_defaults(command=may_go_unread(_command), parser=parser)


def _size(text: str) -> int:
    if not text.isdecimal() or not _SMALLEST <= int(text) <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a whole number from {_SMALLEST} to {_LARGEST}; "
            f"try {_SIZE}"
        )
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a whole number, at least 0; try {SEED}"
        )
    return int(text)


def _command(arguments: argparse.Namespace) -> int:
    from np_ozaki.cli.accuracy_tables import conditions, verdict

    parser: argparse.ArgumentParser = arguments.parser
    options = resolve(parser, arguments)
    if native_reason(options) is not None or options.strategy != "always":
        # Only the environment can say so; native is measured in any case.
        parser.error(
            "products would stay native; unset NP_OZAKI_ENGINE and NP_OZAKI_STRATEGY"
        )
    if options.engine == "cublas":
        # The environment alone can say that, too.
        parser.error("all is about moduli, which cuBLAS has none of; give --engine")
    if options.scheme != "moduli":
        parser.error(
            "all is about moduli, and NP_OZAKI_SCHEME asks for slices; unset it"
        )
    notes: list[str] = []
    folder = _folder(parser, arguments.output, notes)
    json_path = writable(parser, arguments.json)
    try:
        options = options.with_changes(engine=choice.resolve(options))
        plan = _plan(arguments)
        report = _new_report(arguments, plan, options, notes)
        print(conditions(report), flush=True)
        _measure(report, plan, options, show_progress=not arguments.no_progress)
    except OzakiError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    if folder is not None:
        _write(report, folder)
    if json_path is not None:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(as_json(report), file, indent=2, allow_nan=False)
            file.write("\n")
    print(verdict(report))
    return 0 if report["ok"] else 1


def _folder(
    parser: argparse.ArgumentParser, path: str | None, notes: list[str]
) -> str | None:
    """Return the folder of the results, made and tried; note if it gets no pictures."""
    from np_ozaki.cli.accuracy_chart import PICTURES
    from np_ozaki.cli.chart import ChartError, check

    if path is None:
        return None
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        parser.error(f"--output={path!r}: {error.strerror}; give a folder to write to")
    writable(parser, os.path.join(path, PAGE), "--output")
    try:
        check(os.path.join(path, PICTURES[0]), "--output")
    except ChartError as error:
        notes.append(f"no pictures: {error}")
    return os.path.abspath(path)


def _plan(arguments: argparse.Namespace) -> Plan:
    from np_ozaki.cli.accuracy_experiments import full_plan, quick_plan

    entries = DTYPES[arguments.dtype]
    if arguments.quick:
        return quick_plan(arguments.size or _QUICK_SIZE, arguments.seed, entries)
    return full_plan(arguments.size or _SIZE, arguments.seed, entries)


def _new_report(
    arguments: argparse.Namespace, plan: Plan, options: Options, notes: list[str]
) -> dict[str, Any]:
    """Return a report of what is going to be measured."""
    return {
        "command": {
            "quick": arguments.quick,
            "size": plan.size,
            "dtype": plan.entries.name,
            "seed": plan.seed,
            "engine": options.engine,
            "inner": list(plan.inner),
            "phis": list(plan.phis),
            "moduli": list(plan.moduli),
        },
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "spread": [],
        "scale": [],
        "checks": [],
        "notes": notes,
        "ok": False,
    }


def _measure(
    report: dict[str, Any], plan: Plan, options: Options, *, show_progress: bool
) -> None:
    """Fill in the report, printing tables as they come."""
    from tqdm import tqdm

    from np_ozaki.cli.accuracy_checks import checks
    from np_ozaki.cli.accuracy_experiments import scale, spread
    from np_ozaki.cli.accuracy_tables import scale_table, spread_table

    with tqdm(
        total=plan.num_products,
        desc="accuracy",
        file=sys.stderr,
        leave=False,
        disable=not show_progress,
    ) as bar:
        for case in spread(plan, options, bar.update):
            report["spread"].append(case)
            bar.write(spread_table(case), file=sys.stdout)
        for case in scale(plan, options, bar.update):
            report["scale"].append(case)
            bar.write(scale_table(case), file=sys.stdout)
    report["checks"] = checks(report["spread"], report["scale"], plan.entries.part)
    report["ok"] = all(check["holds"] for check in report["checks"])


def _write(report: dict[str, Any], folder: str) -> None:
    """Write tables and, if that is possible, pictures."""
    from np_ozaki.cli.accuracy_chart import draw
    from np_ozaki.cli.accuracy_tables import page
    from np_ozaki.cli.chart import ChartError

    try:
        pictures = draw(report, folder)
    except ChartError:
        pictures = []  # the notes have said it
    with open(os.path.join(folder, PAGE), "w", encoding="utf-8") as file:
        file.write(page(report, pictures))
