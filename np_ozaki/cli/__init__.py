"""The command line: one module a subcommand, all listed in `COMMANDS`.

A command module has ``add_parser(subparsers)``, which sets ``command`` to a function
of the parsed arguments that returns the exit status.  Parsers are built at every
start, so these modules import nothing heavy at the top.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import np_ozaki
from np_ozaki.cli.accuracy import add_parser as add_accuracy
from np_ozaki.cli.bench import add_parser as add_bench
from np_ozaki.cli.info import add_parser as add_info
from np_ozaki.cli.run import add_parser as add_run
from np_ozaki.cli.verify import add_parser as add_verify

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = (add_run, add_verify, add_accuracy, add_bench, add_info)
"""What adds each subcommand's parser, in the order of the help text."""


def _program() -> str:
    """Return what the user typed, for usage lines and messages."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "np-ozaki" if name.startswith("np-ozaki") else "python -m np_ozaki"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Returns
    -------
    argparse.ArgumentParser
        With one subparser a command.
    """
    parser = argparse.ArgumentParser(
        prog=_program(),
        description="FP64 matrix products on INT8 arithmetic, with the same bits "
        "everywhere.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"np_ozaki {np_ozaki.__version__}"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for add_parser in COMMANDS:
        add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status; 2 for a command line that cannot be used.

    Raises
    ------
    SystemExit
        From argparse, and from what ``run`` runs.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if "command" not in arguments:
        parser.print_help(sys.stderr)
        return 2
    status: int = arguments.command(arguments)
    return status
