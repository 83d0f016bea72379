"""``info``: what np_ozaki can do in this interpreter."""

from __future__ import annotations

import argparse
import json
import sys
import warnings

from np_ozaki.cli.options import Subparsers
from np_ozaki.cli.output import may_go_unread
from np_ozaki.errors import OzakiError, PerformanceWarning, RouteWarning
from np_ozaki.report import info
from np_ozaki.scope import enabled

__all__ = ["add_parser"]


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the command to the command line.

    Parameters
    ----------
    subparsers : Subparsers
        Of the main parser.
    """
    text = "print versions, engines, hooks and settings"
    parser = subparsers.add_parser(
        "info", help=text, description=text, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=may_go_unread(_command), parser=parser)


def _command(arguments: argparse.Namespace) -> int:
    problem = _try_hooks()
    try:
        state = info()
    except OzakiError as error:
        # A variable of the environment that cannot be used.
        print(f"{arguments.parser.prog}: error: {error}", file=sys.stderr)
        return 2
    if problem is not None:
        print(f"no scope can be entered here: {problem}", file=sys.stderr)
    print(json.dumps(state.as_dict(), indent=2) if arguments.json else state)
    return 0


def _try_hooks() -> str | None:
    """Enter a scope once, so that the hooks are installed; return what forbids it."""
    with warnings.catch_warnings():
        # They say what the hooks' status says; a misspelt variable is still warned of.
        for category in (PerformanceWarning, RouteWarning):
            warnings.simplefilter("ignore", category)
        try:
            with enabled(engine="cpu", strategy="always", reproducible=False):
                return None
        except OzakiError as error:
            return str(error)
