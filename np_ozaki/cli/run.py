"""``run``: an unmodified program inside a scope, and what was routed at the end."""

from __future__ import annotations

import argparse
import sys

from np_ozaki.cli.options import (
    Subparsers,
    add_scope_options,
    given,
    resolve,
    writable,
)
from np_ozaki.cli.program import (
    ProgramError,
    execute,
    find_module,
    find_script,
    hide_own_frames,
)
from np_ozaki.cli.session import Session

__all__ = ["add_parser"]

_EPILOG = """\
All that follows the script or module belongs to the program.  The program's own exit
status, output and traceback are what they are without np_ozaki; the report comes
after everything else, exit handlers included.

Products of child processes are not counted: forked ones are routed, spawned ones
start without a scope.  NumPy is loaded before the program starts, so variables that
must be set before (OMP_NUM_THREADS and the like) belong into the shell.
"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line.

    Parameters
    ----------
    subparsers : Subparsers
        Of the main parser.
    """
    parser = subparsers.add_parser(
        "run",
        help="run a NumPy program with its products routed",
        usage="%(prog)s [options] (script.py | -m module) [args ...]",
        description="Run an unmodified NumPy program with its matrix products on an "
        "np_ozaki\nengine, and report what was routed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="what follows is the name of a module, as for python -m",
    )
    # One remainder for both: an option's remainder would end at the program's "--".
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        help="script or module, and its arguments",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report to FILE, too")
    parser.add_argument("--quiet", action="store_true", help="print no report")
    add_scope_options(parser)
    parser.set_defaults(command=_command, parser=parser)


def _command(arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.parser
    program: list[str] = arguments.program
    if program[:1] == ["--"]:
        program = program[1:]
    if not program:
        parser.error("nothing to run: give a script, or -m and the name of a module")
    target, *rest = program
    options = resolve(parser, arguments)
    json_path = writable(parser, arguments.json)
    session = Session(given(arguments), options)
    session.report_at_exit(target, quiet=arguments.quiet, json_path=json_path)
    try:
        find = find_module if arguments.is_module else find_script
        found = find(target)
    except ProgramError as error:
        session.cancel()
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.status
    except BaseException as error:
        # A package around the module failed while it was imported.
        hide_own_frames(error)
        raise
    try:
        execute(found, rest)
    except BaseException as error:
        hide_own_frames(error)
        raise
    return 0
