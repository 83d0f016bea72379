"""``verify``: products of real matrices against exact integers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import np_ozaki
from np_ozaki.cli.cases import (
    MISSING_EXAMPLES,
    gram,
    product,
    real_cases,
    synthetic_cases,
)
from np_ozaki.cli.dtypes import DTYPES, Entries
from np_ozaki.cli.files import DENSE_LIMIT_BYTES, FORMATS, read_matrix
from np_ozaki.cli.measure import Case, Measurement, Sample, measure
from np_ozaki.cli.multipliers import Native, Ours
from np_ozaki.cli.options import (
    Subparsers,
    add_product_options,
    given,
    resolve,
    writable,
)
from np_ozaki.cli.output import may_go_unread
from np_ozaki.cli.table import as_json, footer, header, rows
from np_ozaki.engines import choice
from np_ozaki.engines.cublas import Settings
from np_ozaki.errors import OptionError, OzakiError, ShapeError, refusal
from np_ozaki.gemm import native_reason

__all__ = ["add_parser"]

_DESCRIPTION = f"""\
Multiply real matrices with np_ozaki and with native NumPy, and compare both with
exact products.  Two files: A @ B.  One file X: X.T @ X, of complex matrices
X.conj().T @ X.  No file: built-in cases.

Formats: {FORMATS}.
file.npz:NAME picks one of several arrays; sparse matrices are made dense, up to
{DENSE_LIMIT_BYTES >> 20} MiB.

Exit status: 0 if everything np_ozaki promises holds, 1 if not, 2 if the command line
or a file cannot be used.
"""

_CUBLAS_NOTE = (
    "engine cublas promises neither bits nor bounds: errors are shown, and only what "
    "becomes of NaN and Inf is held to IEEE arithmetic"
)


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line.

    Parameters
    ----------
    subparsers : Subparsers
        Of the main parser.
    """
    parser = subparsers.add_parser(
        "verify",
        help="check products of real matrices against exact ones",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="A and B, or X")
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        default="float64",
        help="of the matrices, which a file's entries must fit (float64)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the table to FILE, too")
    parser.add_argument(
        "--no-progress", action="store_true", help="show no progress bar"
    )
    add_product_options(parser, engines=("auto", "cpu", "cuda", "cublas"))
    parser.set_defaults(command=may_go_unread(_command), parser=parser)


def _command(arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.parser
    options = resolve(parser, arguments)
    reason = native_reason(options)
    if reason is not None:
        # Only the environment can say so; native is compared in any case.
        parser.error(
            f"nothing to verify, all products are native: {reason}; unset "
            "NP_OZAKI_ENGINE and NP_OZAKI_STRATEGY"
        )
    json_path = writable(parser, arguments.json)
    notes: list[str] = []
    if options.engine == "cublas":
        notes.append(_CUBLAS_NOTE)
        missing = choice.cublas_unavailable()
        if missing is not None:
            notes.append(f"engine cublas cannot run here: {missing}")
    try:
        entries = DTYPES[arguments.dtype]
        if options.engine == "cublas" and entries.name != "float64":
            limit = f"multiplies float64 only, and --dtype is {entries.name}"
            raise OptionError(refusal("--engine", "cublas", limit, "leave one out"))
        cases = _cases(arguments.files, entries, notes)
        ours = Ours(given(arguments), options)
        report = _verify(cases, ours, notes, show_progress=not arguments.no_progress)
    except OzakiError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    report = {
        "version": np_ozaki.__version__,
        "options": {
            "dtype": entries.name,
            "precision": options.precision,
            "scaling": options.scaling,
            "engine": options.engine,
            "slices": str(options.slicing) if options.scheme == "slices" else None,
            "cublas": str(Settings.of(options)) if options.engine == "cublas" else None,
        },
        **report,
    }
    print(footer(report))
    if json_path is not None:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(as_json(report), file, indent=2, allow_nan=False)
            file.write("\n")
    return 0 if report["ok"] else 1


def _cases(paths: Sequence[str], entries: Entries, notes: list[str]) -> list[Case]:
    """Return the cases that the command line asks for; add to what has to be said."""
    if not paths:
        real = real_cases(entries)
        if not real:
            notes.append(MISSING_EXAMPLES)
        return [*real, *synthetic_cases(entries)]
    if len(paths) > 2:
        raise ShapeError(
            f"{len(paths)} files: a product has two operands; give A and B, or one X"
        )
    a = read_matrix(paths[0], entries)
    if len(paths) == 1:
        name = f"{entries.transposed('X')} @ X"
        notes.append(f"one file: the product is {name}, X = {paths[0]} {a.shape}")
        return [gram(name, a, entries)]
    b = read_matrix(paths[1], entries)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"A = {paths[0]} has shape {a.shape}, B = {paths[1]} has shape {b.shape}: "
            "the columns of A must be as many as the rows of B; transpose one of them"
        )
    notes.append(f"A = {paths[0]} {a.shape}, B = {paths[1]} {b.shape}")
    return [product("A @ B", a, b, entries)]


def _verify(
    cases: Sequence[Case], ours: Ours, notes: list[str], *, show_progress: bool
) -> dict[str, Any]:
    """Measure all cases, printing rows as they come."""
    from tqdm import tqdm

    multipliers = (ours, Native())
    done: list[dict[str, Any]] = []
    failures: list[str] = []
    with tqdm(
        total=len(cases) * len(multipliers),
        desc="verify",
        file=sys.stderr,
        leave=False,
        disable=not show_progress,
    ) as bar:
        bar.write(header(), file=sys.stdout)
        for case in cases:
            sample = Sample(case)
            results: list[Measurement] = []
            for multiply in multipliers:
                bar.set_postfix_str(case.name)
                results.append(measure(case, sample, multiply))
                failures += results[-1].failures
                bar.update()
            row = {
                "name": case.name,
                "m": case.a.shape[0] // case.entries.parts,
                "k": case.a.shape[1] // case.entries.parts,
                "n": case.b.shape[1],
                "entries": sample.describe(),
                "results": [asdict(result) for result in results],
            }
            done.append(row)
            bar.write(rows(row), file=sys.stdout)
    return {
        "cases": done,
        "notes": notes,
        "failures": failures,
        "binding": ours.binding,
        "ok": not failures,
    }
