"""The experiments of arXiv 2606.29129 on the accuracy of Ozaki scheme II.

Spread: random matrices whose entries have a wider range with a larger phi, at growing
numbers of moduli.  Scale: matrices times a power of two, at one number of moduli.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.accuracy_reference import Reference
from np_ozaki.cli.cases import lognormal
from np_ozaki.cli.dtypes import Entries
from np_ozaki.cli.multipliers import Native, Ours
from np_ozaki.config import Options, Scaling
from np_ozaki.errors import OptionError
from np_ozaki.numerics.formats import SINGLE

__all__ = ["SCALINGS", "Plan", "full_plan", "quick_plan", "scale", "spread"]

Array = NDArray[np.float64]

SCALINGS: tuple[Scaling, ...] = ("norm", "accurate", "legacy")

_PHI_OF_SCALE = 0.5

# Products of the largest and the smallest scale stay far from overflow and from
# subnormal numbers; between -16 and 64 "legacy" goes from wrapping to losing all bits.
_SCALES = (
    -480, -240, -120, -60, -30, *range(-16, -4, 4), *range(-6, 8, 2),
    *range(8, 68, 4), 120, 240, 480,
)  # fmt: skip


_MOST_SINGLE = 48


@dataclass(frozen=True)
class Plan:
    """What is going to be multiplied.

    Attributes
    ----------
    size : int
        m and n.
    inner : tuple of int
        Values of k.
    phis : tuple of float
        Spreads of the random data.
    moduli : tuple of int
        Numbers of moduli, for the spreads.
    scales : tuple of int
        Values of s; both operands are multiplied by 2^s.
    scale_moduli : int
        Number of moduli, for the scales.
    seed : int
        Of the random data.
    entries : Entries
        Of the matrices.
    """

    size: int
    inner: tuple[int, ...]
    phis: tuple[float, ...]
    moduli: tuple[int, ...]
    scales: tuple[int, ...]
    scale_moduli: int
    seed: int
    entries: Entries

    @property
    def num_products(self) -> int:
        """Products of np_ozaki that it takes."""
        spreads = len(self.phis) * len(self.moduli)
        return len(SCALINGS) * len(self.inner) * (spreads + 2 * len(self.scales))


def full_plan(size: int, seed: int, entries: Entries) -> Plan:
    """Return the experiments of the paper; some minutes on two cores.

    Parameters
    ----------
    size : int
        m and n.
    seed : int
        Of the random data.
    entries : Entries
        Of the matrices.

    Returns
    -------
    Plan
        With phi up to 4, k up to 16384, N from 8 to 20; of single precision, which
        the paper does not have, from 4 to 12.
    """
    single = entries.part is SINGLE
    return Plan(
        size=size,
        inner=(1024, 16384),
        phis=(0, 0.5, 1, 2, 4),
        moduli=tuple(range(4, 13) if single else range(8, 21)),
        scales=_in_range(_SCALES, single=single),
        scale_moduli=entries.usual,
        seed=seed,
        entries=entries,
    )


def quick_plan(size: int, seed: int, entries: Entries) -> Plan:
    """Return smaller experiments with the same outcome; some seconds.

    Parameters
    ----------
    size : int
        m and n.
    seed : int
        Of the random data.
    entries : Entries
        Of the matrices.

    Returns
    -------
    Plan
        With fewer values of everything.
    """
    single = entries.part is SINGLE
    return Plan(
        size=size,
        inner=(256, 1024),
        phis=(0, 0.5, 2, 4),
        moduli=(4, 6, 7, 8, 9, 10, 12) if single else (8, 12, 14, 15, 16, 18, 20),
        scales=_in_range((-480, -16, -4, 0, 8, 40, 480), single=single),
        scale_moduli=entries.usual,
        seed=seed,
        entries=entries,
    )


def _in_range(scales: tuple[int, ...], *, single: bool) -> tuple[int, ...]:
    """Return scales, in single precision nearer to 0: products stay far from limits."""
    most = _MOST_SINGLE if single else max(scales)
    return tuple(dict.fromkeys(max(-most, min(most, s)) for s in scales))


def spread(
    plan: Plan, options: Options, advance: Callable[[], object]
) -> Iterator[dict[str, Any]]:
    """Multiply random matrices of growing spread by all modes, on the same data.

    Parameters
    ----------
    plan : Plan
        What to multiply.
    options : Options
        Of the products; the engine is taken from them.
    advance : callable
        Called after each product.

    Yields
    ------
    dict
        Errors for one phi and k.
    """
    for k in plan.inner:
        for phi in plan.phis:
            a, b = _random(plan, k, phi)
            reference = Reference(a, b, plan.entries)
            results = []
            for scaling in SCALINGS:
                for num_moduli in plan.moduli:
                    c = _product(plan, a, b, num_moduli, scaling, options)
                    results.append(
                        {
                            "scaling": scaling,
                            "num_moduli": num_moduli,
                            **asdict(reference.errors(c)),
                        }
                    )
                    advance()
            yield {
                "phi": phi,
                **_case(plan, a, b, reference),
                "native": asdict(reference.errors(_native(plan, a, b))),
                "results": results,
            }


def scale(
    plan: Plan, options: Options, advance: Callable[[], object]
) -> Iterator[dict[str, Any]]:
    """Multiply matrices times powers of two by all modes, and undo the powers.

    Parameters
    ----------
    plan : Plan
        What to multiply.
    options : Options
        Of the products; the engine is taken from them.
    advance : callable
        Called after each product.

    Yields
    ------
    dict
        Errors for one kind of data and k; ``same_bits`` compares with the product of
        the matrices as they were, by the same mode.
    """
    for k in plan.inner:
        for data in ("ones", "random"):
            if data == "ones":
                ones = np.ones((plan.size, k)), np.ones((k, plan.size))
                a, b = _real_forms(plan, *ones)
            else:
                a, b = _random(plan, k, _PHI_OF_SCALE)
            reference = Reference(a, b, plan.entries)
            results = []
            for scaling in SCALINGS:
                unscaled = _product(plan, a, b, plan.scale_moduli, scaling, options)
                for s in plan.scales:
                    c = _product(
                        plan,
                        np.ldexp(a, s),
                        np.ldexp(b, s),
                        plan.scale_moduli,
                        scaling,
                        options,
                    )
                    c = np.ldexp(c, -2 * s)
                    results.append(
                        {
                            "scaling": scaling,
                            "log2_alpha": s,
                            **asdict(reference.errors(c)),
                            "same_bits": c.tobytes() == unscaled.tobytes(),
                        }
                    )
                    advance()
            yield {
                "data": data,
                **_case(plan, a, b, reference),
                "num_moduli": plan.scale_moduli,
                "native": asdict(reference.errors(_native(plan, a, b))),
                "results": results,
            }


def _case(plan: Plan, a: Array, b: Array, reference: Reference) -> dict[str, Any]:
    return {
        "m": a.shape[0] // plan.entries.parts,
        "n": b.shape[1],
        "k": a.shape[1] // plan.entries.parts,
        "reference_exact": reference.exact,
        "reference_entries": reference.entries,
    }


def _random(plan: Plan, k: int, phi: float) -> tuple[Array, Array]:
    rng = np.random.default_rng((plan.seed, plan.size, k, int(1000 * phi)))

    def matrix(rows: int, columns: int) -> NDArray[Any]:
        x = lognormal(rng, (rows, columns), phi)
        if not plan.entries.is_complex:
            return x
        return x + 1j * lognormal(rng, (rows, columns), phi)

    return _real_forms(plan, matrix(plan.size, k), matrix(k, plan.size))


def _real_forms(plan: Plan, a: NDArray[Any], b: NDArray[Any]) -> tuple[Array, Array]:
    """Return matrices of the dtype as real ones, that errors are counted of."""
    a, b = (x.astype(plan.entries.dtype) for x in (a, b))
    return plan.entries.real_left(a), plan.entries.real_right(b)


def _native(plan: Plan, a: Array, b: Array) -> Array:
    entries = plan.entries
    c, *_ = Native()(entries.left_of(a), entries.right_of(b))
    return entries.real_right(c)


def _product(
    plan: Plan,
    a: Array,
    b: Array,
    num_moduli: int,
    scaling: Scaling,
    options: Options,
) -> Array:
    multiply = Ours(
        {"precision": num_moduli, "scaling": scaling, "engine": options.engine}, options
    )
    entries = plan.entries
    c, engine, taken = multiply(entries.left_of(a), entries.right_of(b))
    if taken != num_moduli:
        # The errors of somebody else's product must not pass for this mode's.
        raise OptionError(
            f"a product with {num_moduli} moduli was multiplied by {engine!r} with "
            f"{taken}; unset the NP_OZAKI_* variables"
        )
    return entries.real_right(c)
