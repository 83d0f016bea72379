"""Operands of float32 for tests: of every scale, and where roundings are twice or none.

A product of float32 entries and few terms fits float64 or nearly does, so that a result
which was rounded to float64 first is hard to tell from one that was not: `tie_operands`
makes those that differ.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SPECIAL = (0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 3e38, 2.0**-149)


def _scaled(low, high):
    return st.builds(
        lambda m, e: float(np.float32(np.ldexp(float(m), e - 24))),
        st.integers(1 - 2**24, 2**24 - 1),
        st.integers(low, high),
    )


REGIMES = {
    "ordinary": _scaled(-1, 1),
    "wide": _scaled(-60, 60),
    "any": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "subnormal": _scaled(-148, -120),
    "tiny products": _scaled(-80, -60),
    "near overflow": _scaled(124, 128),
    "large products": _scaled(60, 66),
    "integers": st.integers(-4096, 4096).map(float),
    "sparse": st.one_of(st.just(0.0), st.just(-0.0), _scaled(-3, 3)),
}


@st.composite
def single_operands(draw, max_side=3, max_k=5):
    """Small finite pairs (A, B), each operand of a regime of its own."""
    m, k, n = (draw(st.integers(1, most)) for most in (max_side, max_k, max_side))
    a, b = (
        draw(
            st.sampled_from(sorted(REGIMES)).flatmap(
                lambda kind, shape=shape: hnp.arrays(
                    np.float32, shape, elements=REGIMES[kind]
                )
            )
        )
        for shape in ((m, k), (k, n))
    )
    return a, b


@st.composite
def special_operands(draw):
    """Small pairs with NaN and Inf."""
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    elements = st.sampled_from(SPECIAL).map(lambda x: float(np.float32(x)))
    return tuple(
        draw(hnp.arrays(np.float32, shape, elements=elements))
        for shape in ((m, k), (k, n))
    )


def tie_operands(whole, place, tail):
    """Rows and a column whose products are ties of float32, plus `tail` far below.

    They are ``whole + 1/2`` times 2^place, 2^place being the last place of float32
    there; the tail is 2^-60 of it, so that float64 cannot hold both.
    """
    shift = place // 2
    rows = [[x, 1.0, tail * 2.0**-30] for x in whole]
    a = np.ldexp(np.float32(rows), shift)
    b = np.ldexp(np.float32([[1.0], [0.5], [2.0**-30]]), place - shift)
    return a, b


def normals(seed, shape, spread=0.0, dtype=np.float32):
    """Gaussian entries, or parts, times exp of a Gaussian of this spread."""
    rng = np.random.default_rng(seed)
    size = np.exp(spread * rng.standard_normal(shape))
    x = rng.standard_normal(shape) * size
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape) * size
    return x.astype(dtype)
