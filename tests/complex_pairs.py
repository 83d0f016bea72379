"""Complex operands for tests: each part of each operand of a regime of its own."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from np_ozaki.testing import operands

SPECIAL = (0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e300, 5e-324)


def join(real, imag):
    """Complex entries from parts, without the arithmetic that spoils Inf and -0."""
    z = np.empty(np.shape(real), dtype=np.complex128)
    z.real, z.imag = real, imag
    return z


def _joined(pairs):
    (a, b), (c, d) = pairs
    m = min(a.shape[-2], c.shape[-2])
    k = min(a.shape[-1], c.shape[-1])
    n = min(b.shape[-1], d.shape[-1])
    return (
        join(a[..., :m, :k], c[..., :m, :k]),
        join(b[..., :k, :n], d[..., :k, :n]),
    )


def complex_operands(max_side=3, max_k=5):
    """Small finite pairs (A, B) that can be multiplied."""
    pair = operands(max_side, max_k)
    return st.tuples(pair, pair).map(_joined)


@st.composite
def special_operands(draw, elements=SPECIAL):
    """Small pairs with NaN and Inf in either part."""
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    parts = [
        draw(hnp.arrays(np.float64, shape, elements=st.sampled_from(elements)))
        for shape in ((m, k), (m, k), (k, n), (k, n))
    ]
    return join(*parts[:2]), join(*parts[2:])


def normals(seed, shape, spread=0.0):
    """Gaussian parts, times exp of a Gaussian of this spread."""
    rng = np.random.default_rng(seed)
    size = np.exp(spread * rng.standard_normal(shape))
    return join(rng.standard_normal(shape) * size, rng.standard_normal(shape) * size)
