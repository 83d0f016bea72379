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
from np_ozaki.cli.multipliers import Native, Ours
from np_ozaki.config import Options, Scaling
from np_ozaki.errors import OptionError

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
    """

    size: int
    inner: tuple[int, ...]
    phis: tuple[float, ...]
    moduli: tuple[int, ...]
    scales: tuple[int, ...]
    scale_moduli: int
    seed: int

    @property
    def num_products(self) -> int:
        """Products of np_ozaki that it takes."""
        spreads = len(self.phis) * len(self.moduli)
        return len(SCALINGS) * len(self.inner) * (spreads + 2 * len(self.scales))


def full_plan(size: int, seed: int) -> Plan:
    """Return the experiments of the paper; some minutes on two cores.

    Parameters
    ----------
    size : int
        m and n.
    seed : int
        Of the random data.

    Returns
    -------
    Plan
        With phi up to 4, k up to 16384, N from 8 to 20.
    """
    return Plan(
        size=size,
        inner=(1024, 16384),
        phis=(0, 0.5, 1, 2, 4),
        moduli=tuple(range(8, 21)),
        scales=_SCALES,
        scale_moduli=15,
        seed=seed,
    )


def quick_plan(size: int, seed: int) -> Plan:
    """Return smaller experiments with the same outcome; some seconds.

    Parameters
    ----------
    size : int
        m and n.
    seed : int
        Of the random data.

    Returns
    -------
    Plan
        With fewer values of everything.
    """
    return Plan(
        size=size,
        inner=(256, 1024),
        phis=(0, 0.5, 2, 4),
        moduli=(8, 12, 14, 15, 16, 18, 20),
        scales=(-480, -16, -4, 0, 8, 40, 480),
        scale_moduli=15,
        seed=seed,
    )


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
            reference = Reference(a, b)
            results = []
            for scaling in SCALINGS:
                for num_moduli in plan.moduli:
                    c = _product(a, b, num_moduli, scaling, options)
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
                **_case(a, b, reference),
                "native": asdict(reference.errors(Native()(a, b)[0])),
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
                a, b = np.ones((plan.size, k)), np.ones((k, plan.size))
            else:
                a, b = _random(plan, k, _PHI_OF_SCALE)
            reference = Reference(a, b)
            results = []
            for scaling in SCALINGS:
                unscaled = _product(a, b, plan.scale_moduli, scaling, options)
                for s in plan.scales:
                    c = _product(
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
                **_case(a, b, reference),
                "num_moduli": plan.scale_moduli,
                "native": asdict(reference.errors(Native()(a, b)[0])),
                "results": results,
            }


def _case(a: Array, b: Array, reference: Reference) -> dict[str, Any]:
    return {
        "m": a.shape[0],
        "n": b.shape[1],
        "k": a.shape[1],
        "reference_exact": reference.exact,
        "reference_entries": reference.entries,
    }


def _random(plan: Plan, k: int, phi: float) -> tuple[Array, Array]:
    rng = np.random.default_rng((plan.seed, plan.size, k, int(1000 * phi)))
    return lognormal(rng, (plan.size, k), phi), lognormal(rng, (k, plan.size), phi)


def _product(
    a: Array, b: Array, num_moduli: int, scaling: Scaling, options: Options
) -> Array:
    multiply = Ours(
        {"precision": num_moduli, "scaling": scaling, "engine": options.engine}, options
    )
    c, engine, taken = multiply(a, b)
    if taken != num_moduli:
        # The errors of somebody else's product must not pass for this mode's.
        raise OptionError(
            f"a product with {num_moduli} moduli was multiplied by {engine!r} with "
            f"{taken}; unset the NP_OZAKI_* variables"
        )
    return c
