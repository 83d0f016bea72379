"""Options that several commands share: those of `np_ozaki.enabled`."""

from __future__ import annotations

import argparse
import os
from typing import Any, get_args

from np_ozaki.config import (
    Accumulate,
    EngineName,
    MantissaControl,
    MultiplicationScheme,
    Options,
    PairSchedule,
    Scaling,
    Strategy,
    config,
    pairs_from_text,
)
from np_ozaki.errors import OperandTypeError, OptionError

__all__ = [
    "Subparsers",
    "add_product_options",
    "add_scope_options",
    "given",
    "resolve",
    "writable",
]

Subparsers = argparse._SubParsersAction  # argparse has no public name for it
"""What ``add_subparsers`` returns."""

_NAMES = (
    "precision",
    "scaling",
    "engine",
    "strategy",
    "min_flops",
    "reproducible",
    "check",
    "workspace_bytes",
    "dtypes",
    "scheme",
    "num_slices",
    "bits_per_slice",
    "pairs",
    "accumulate",
    "mantissa_bits",
    "mantissa_control",
    "special_values",
)


def _precision(text: str) -> int | float | str:
    """Return the number that a text is, else the text; `Options` decides."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _pairs(text: str) -> PairSchedule:
    """Return a schedule of pairs of slices, or leave a wrong one to argparse."""
    try:
        return pairs_from_text("--pairs", text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_product_options(
    parser: argparse.ArgumentParser, engines: tuple[str, ...] = get_args(EngineName)
) -> None:
    """Add the options of one product.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Of a command.
    engines : tuple of str
        Allowed values of ``--engine``.
    """
    group = parser.add_argument_group(
        "options of the products",
        "Each one's default is that of np_ozaki.enabled, or its NP_OZAKI_* variable.",
    )
    group.add_argument(
        "--precision",
        type=_precision,
        metavar="P",
        help="auto, exact, a tolerance such as 1e-10, or the number of moduli (15 "
        "gives FP64 accuracy on ordinary data)",
    )
    group.add_argument(
        "--scaling", choices=get_args(Scaling), help="rule of the scaling exponents"
    )
    group.add_argument("--engine", choices=engines, help="who multiplies")
    group.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="hold the integers behind the products to checksums",
    )
    group.add_argument(
        "--recompute",
        dest="check",
        action="store_const",
        const="recompute",
        help="check, and multiply once more before a product fails",
    )
    group.add_argument(
        "--workspace-bytes",
        type=int,
        metavar="BYTES",
        help="memory for the workspaces of all running products",
    )
    group.add_argument(
        "--scheme",
        choices=get_args(MultiplicationScheme),
        help="moduli, or slices of the entries",
    )
    group.add_argument(
        "--num-slices", type=int, metavar="S", help="slices of an entry, 1 to 16 (8)"
    )
    group.add_argument(
        "--bits-per-slice", type=int, metavar="BITS", help="of a slice, 2 to 8 (8)"
    )
    group.add_argument(
        "--pairs",
        type=_pairs,
        metavar="PAIRS",
        help="slices that are multiplied: triangular, all, or pairs such as "
        "0-0,0-1,1-0 (triangular)",
    )
    group.add_argument(
        "--accumulate",
        choices=get_args(Accumulate),
        help="how products of slices are added (exact)",
    )
    group.add_argument(
        "--mantissa-bits",
        type=int,
        metavar="BITS",
        help="of an entry, with engine cublas, 1 to 79 (55)",
    )
    group.add_argument(
        "--mantissa-control",
        choices=get_args(MantissaControl),
        help="whether engine cublas takes so many, or at most so many (fixed)",
    )
    group.add_argument(
        "--special-values",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether engine cublas looks for NaN and Inf",
    )


def add_scope_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a scope.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Of a command.
    """
    add_product_options(parser)
    group = parser.add_argument_group("options of the scope")
    group.add_argument(
        "--strategy",
        choices=get_args(Strategy),
        help="performant routes only what is predicted to be faster than native",
    )
    group.add_argument(
        "--min-flops",
        type=int,
        metavar="FLOPS",
        help="products of fewer operations (2 m n k) stay native; 0 routes all",
    )
    group.add_argument(
        "--reproducible",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="same bits everywhere: routes all products, forbids native arithmetic",
    )
    group.add_argument(
        "--dtypes",
        type=lambda text: tuple(text.split(",")),
        metavar="NAMES",
        help="of the products that are routed, with commas between: float64, "
        "complex128, float32, complex64 (float64,complex128)",
    )


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, for `np_ozaki.enabled` or `matmul`.

    Parameters
    ----------
    arguments : argparse.Namespace
        Of a parser with the options of this module.

    Returns
    -------
    dict of str to object
        Without those left out.
    """
    values = {name: getattr(arguments, name, None) for name in _NAMES}
    return {name: value for name, value in values.items() if value is not None}


def resolve(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Options:
    """Return all options, those of the environment included.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Exits with status 2 and the message if an option cannot be used.
    arguments : argparse.Namespace
        What it parsed.

    Returns
    -------
    Options
        Checked.
    """
    try:
        return config().options.with_changes(**given(arguments), local=False)
    except (OptionError, OperandTypeError) as error:
        parser.error(str(error))


def writable(
    parser: argparse.ArgumentParser, path: str | None, option: str = "--json"
) -> str | None:
    """Return the absolute path of an option, tried before anything long runs.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Exits with status 2 and a message if the file cannot be written.
    path : str or None
        As given.
    option : str, optional
        For the message.

    Returns
    -------
    str or None
        None if there was none.
    """
    if path is None:
        return None
    try:
        with open(path, "a", encoding="utf-8"):
            return os.path.abspath(path)
    except OSError as error:
        parser.error(f"{option}={path!r}: {error.strerror}; give a file to write to")
