"""From the precision that a user asks for to moduli, certificates and fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import AUTO_MODULI, Options
from np_ozaki.engines.base import Engine, Outcome
from np_ozaki.errors import WorkspaceError, refusal
from np_ozaki.numerics.moduli import MAX_MODULI, scaling_bits
from np_ozaki.numerics.reference import exact_product

__all__ = ["Served", "multiply"]

Array = NDArray[np.float64]

TOO_WIDE = "range too wide to certify"
"""Reason of a product that 49 moduli cannot certify."""


@dataclass(frozen=True)
class Served:
    """How a product was served.

    Attributes
    ----------
    outcome : Outcome
        Floating-point exceptions, tiles.
    num_moduli : int
        Largest number of moduli that some matrix of the batch took.
    left_out : int
        Matrices of the batch that were left to other arithmetic.
    elsewhere : str
        Who served those: "native" or "exact".
    fallback : str or None
        Why.
    """

    outcome: Outcome
    num_moduli: int
    left_out: int = 0
    elsewhere: str = "native"
    fallback: str | None = None


def multiply(
    engine: Engine, a: Array, b: Array, out: Array, options: Options
) -> Served:
    """Multiply with the precision that the options ask for.

    Parameters
    ----------
    engine : Engine
        Who multiplies.
    a : (batch, m, k) ndarray of float64
        Batch 1 broadcasts.
    b : (batch, k, n) ndarray of float64
        Batch 1 broadcasts.
    out : (batch, m, n) ndarray of float64
        Overwritten; must not overlap an operand.
    options : Options
        Precision, scaling, reproducible, workspace.

    Returns
    -------
    Served
        What it took.

    Raises
    ------
    WorkspaceError
        The system has no memory left for the tiles; a MemoryError.

    Notes
    -----
    "auto" decides for each matrix of a batch by itself: 15 moduli and a certificate;
    where that fails as many as the certificate asks for; where 49 are not enough,
    native arithmetic, or with ``reproducible=True`` the correctly rounded product by
    Python integers.
    """
    auto = options.precision == "auto" and options.scaling != "legacy"
    outcome = _run(engine, a, b, out, options, options.num_moduli, auto)
    if outcome.missing_bits is None:
        return Served(outcome, options.num_moduli)
    used, hopeless = AUTO_MODULI, np.zeros(out.shape[0], dtype=bool)
    missing = outcome.missing_bits.copy()
    while missing.any():
        (open_,) = np.nonzero(missing)
        num_moduli = _moduli_for(used, int(missing[open_].min()))
        if num_moduli is None:
            hopeless[open_] = True
            break
        part = np.empty_like(out, shape=(open_.size, *out.shape[1:]))
        again = _run(
            engine, _pick(a, open_), _pick(b, open_), part, options, num_moduli, True
        )
        assert again.missing_bits is not None  # noqa: S101 - asked for just above
        out[open_.tolist()] = part
        missing[open_] = again.missing_bits
        used = num_moduli
        outcome = replace(
            outcome,
            overflow=outcome.overflow or again.overflow,
            tiles=outcome.tiles + again.tiles,
        )
    if not hopeless.any():
        return Served(outcome, used)
    (left,) = np.nonzero(hopeless)
    rest = _elsewhere(engine, _pick(a, left), _pick(b, left), options, left.size)
    out[left.tolist()] = engine.from_host(rest, out)
    elsewhere = "exact" if options.reproducible else "native"
    return Served(outcome, used, left.size, elsewhere, TOO_WIDE)


def _run(
    engine: Engine,
    a: Array,
    b: Array,
    out: Array,
    options: Options,
    num_moduli: int,
    certify: bool,
) -> Outcome:
    try:
        return engine.matmul(
            a,
            b,
            out,
            num_moduli=num_moduli,
            scaling=options.scaling,
            workspace_bytes=options.workspace_bytes,
            certify=certify,
        )
    except WorkspaceError:
        raise
    except MemoryError as error:
        raise WorkspaceError(
            refusal(
                "workspace_bytes",
                options.workspace_bytes,
                f"not enough memory for the tiles of a product ({error})",
                "lower it: products then run in smaller tiles, with the same bits",
            )
        ) from error


def _moduli_for(used: int, missing: int) -> int | None:
    """Return the least number of moduli with `missing` bits more, or None."""
    wanted = scaling_bits(used) + missing
    return next(
        (n for n in range(used + 1, MAX_MODULI + 1) if scaling_bits(n) >= wanted), None
    )


def _pick(x: Array, index: NDArray[np.intp]) -> Array:
    # A list: every kind of array takes one.
    return x[index.tolist()] if x.shape[0] > 1 else x


def _elsewhere(
    engine: Engine, a: Array, b: Array, options: Options, batch: int
) -> Array:
    if not options.reproducible:
        native: Array = engine.native(a, b)
        return native
    a, b = engine.to_host(a), engine.to_host(b)
    a = np.broadcast_to(a, (batch, *a.shape[1:]))
    b = np.broadcast_to(b, (batch, *b.shape[1:]))
    return np.array([exact_product(x, y) for x, y in zip(a, b, strict=True)])
