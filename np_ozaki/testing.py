"""Assertions and Hypothesis strategies for tests of code that uses np_ozaki.

Hypothesis is needed for the strategies only (``pip install hypothesis``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["REGIMES", "assert_same_bits", "matrices", "operands"]


def assert_same_bits(actual: ArrayLike, expected: ArrayLike) -> None:
    """Raise unless two float64 arrays agree in shape and in every bit.

    Parameters
    ----------
    actual, expected : array_like
        float64; -0.0 and 0.0 differ, and so do NaNs of different payload.

    Raises
    ------
    AssertionError
        Names the first differing index with both values in hexadecimal, and how many
        entries differ.

    Examples
    --------
    >>> import numpy as np
    >>> from np_ozaki.testing import assert_same_bits
    >>> assert_same_bits([1.0, 2.0], np.array([1.0, 2.0]))
    >>> assert_same_bits([0.0], [-0.0])
    Traceback (most recent call last):
    AssertionError: 1 of 1 entries differ, first at (0,): 0x0.0p+0 is not -0x0.0p+0
    """
    x, y = np.asarray(actual), np.asarray(expected)
    if x.dtype != np.float64 or y.dtype != np.float64:
        raise AssertionError(f"dtypes {x.dtype} and {y.dtype}: both must be float64")
    if x.shape != y.shape:
        raise AssertionError(f"shape {x.shape} is not {y.shape}")
    differ = _bits(x) != _bits(y)
    if not differ.any():
        return
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    raise AssertionError(
        f"{np.count_nonzero(differ)} of {x.size} entries differ, first at {index}: "
        f"{float(x[index]).hex()} is not {float(y[index]).hex()}"
    )


def _bits(x: NDArray[Any]) -> NDArray[np.int64]:
    return (
        np.array(x, dtype=np.float64, order="C", ndmin=1)
        .view(np.int64)
        .reshape(x.shape)
    )


REGIMES = (
    "ordinary",
    "wide",
    "any",
    "subnormal",
    "tiny products",
    "near overflow",
    "same sign",
    "integers",
    "sparse",
    "edge constants",
)
"""Kinds of entries that `matrices` draws."""

# Constants whose rows of equal entries come closest to the CRT bound.
_EDGE_CONSTANTS = (1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 255.0, 2.0**52 + 1.0)


def _entries(regime: str) -> SearchStrategy[float]:
    from hypothesis import strategies as st

    def scaled(low: int, high: int) -> SearchStrategy[float]:
        mantissas = st.integers(-(2**53) + 1, 2**53 - 1)
        return st.builds(
            lambda m, e: float(np.ldexp(float(m), e - 53)),
            mantissas,
            st.integers(low, high),
        )

    kinds: dict[str, SearchStrategy[float]] = {
        "ordinary": scaled(-1, 1),
        "wide": scaled(-60, 60),
        "any": st.floats(allow_nan=False, allow_infinity=False),
        "subnormal": scaled(-1073, -1018),
        "tiny products": scaled(-560, -480),
        "near overflow": scaled(1018, 1024),
        "same sign": scaled(-1, 1).map(abs),
        "integers": st.integers(-(2**20), 2**20).map(float),
        "sparse": st.one_of(st.just(0.0), st.just(-0.0), scaled(-3, 3)),
        "edge constants": st.sampled_from(_EDGE_CONSTANTS),
    }
    return kinds[regime]


def matrices(
    rows: int, columns: int, regime: str | None = None
) -> SearchStrategy[NDArray[np.float64]]:
    """Return a Hypothesis strategy for finite float64 matrices.

    Parameters
    ----------
    rows, columns : int
        Shape.
    regime : str, optional
        One of `REGIMES`; any of them by default.

    Returns
    -------
    SearchStrategy
        Draws (rows, columns) ndarrays.
    """
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    kinds = st.sampled_from(REGIMES) if regime is None else st.just(regime)
    return kinds.flatmap(
        lambda kind: hnp.arrays(np.float64, (rows, columns), elements=_entries(kind))
    )


def operands(
    max_side: int = 5, max_k: int = 8
) -> SearchStrategy[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return a Hypothesis strategy for pairs (A, B) that can be multiplied.

    Parameters
    ----------
    max_side : int
        Largest m and n.
    max_k : int
        Largest inner length.

    Returns
    -------
    SearchStrategy
        Draws pairs of shapes (m, k) and (k, n), each from a regime of its own.
    """
    from hypothesis import strategies as st

    sides, inner = st.integers(1, max_side), st.integers(1, max_k)
    return st.tuples(sides, inner, sides).flatmap(
        lambda s: st.tuples(matrices(s[0], s[1]), matrices(s[1], s[2]))
    )
