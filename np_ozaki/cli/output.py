"""Output that somebody may stop reading."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable

__all__ = ["UNREAD", "may_go_unread"]

_Command = Callable[[argparse.Namespace], int]

UNREAD = 141
"""Exit status when the reader of the output went away, as a shell would report it."""


def may_go_unread(command: _Command) -> _Command:
    """Let a command end quietly when the reader of its output (`head`) goes away.

    Parameters
    ----------
    command : callable
        Takes the arguments, prints, returns an exit status.

    Returns
    -------
    callable
        Same, returning `UNREAD` instead of raising BrokenPipeError.
    """

    @functools.wraps(command)
    def run(arguments: argparse.Namespace) -> int:
        try:
            status = command(arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at exit; that must not fail, either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return UNREAD
        return status

    return run
