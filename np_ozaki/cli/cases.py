"""The built-in cases of `verify`: real data, and data that are hard on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.measure import Case

__all__ = ["MISSING_EXAMPLES", "gram", "lognormal", "real_cases", "synthetic_cases"]

Array = NDArray[np.float64]

MISSING_EXAMPLES = (
    "left out: the data sets of scikit-learn (diabetes, breast cancer, digits), which "
    'is not installed; pip install "np_ozaki[examples]" gets it'
)
"""What `verify` says without scikit-learn."""

_SEED = 20260101


def gram(name: str, x: Array) -> Case:
    """Return the case ``X.T @ X``.

    Parameters
    ----------
    name : str
        Of the data.
    x : (k, m) ndarray of float64
        One observation a row.

    Returns
    -------
    Case
        Symmetric.
    """
    return Case(name, x.T, x, symmetric=True)


def real_cases() -> list[Case]:
    """Return Gram matrices of data sets that scikit-learn ships.

    Returns
    -------
    list of Case
        Empty without scikit-learn.
    """
    try:
        from sklearn import datasets
    except ImportError:
        return []
    return [
        gram(f"{name} X.T @ X", np.asarray(load().data, dtype=np.float64))
        for name, load in (
            ("diabetes", datasets.load_diabetes),
            ("breast cancer", datasets.load_breast_cancer),
            ("digits", datasets.load_digits),
        )
    ]


def synthetic_cases() -> Iterator[Case]:
    """Yield the cases that need nothing but NumPy; the same at every run.

    Yields
    ------
    Case
        Small enough for exact products of all entries.
    """
    rng = np.random.default_rng(_SEED)
    hilbert = _hilbert(64)
    yield gram("Hilbert H @ H, n=64", hilbert)
    yield Case("Hilbert H @ inv(H), n=12", _hilbert(12), _inverse_hilbert(12))
    yield Case("U(0,1), one sign", rng.random((64, 256)), rng.random((256, 64)))
    for phi in (2, 4):
        yield Case(
            f"lognormal, phi={phi}",
            lognormal(rng, (64, 128), phi),
            lognormal(rng, (128, 64), phi),
        )
    steps = np.linspace(150.0, -150.0, 64)
    yield Case(
        "rows 1e150 to 1e-150",
        rng.standard_normal((64, 128)) * 10.0 ** steps[:, np.newaxis],
        rng.standard_normal((128, 64)) * 10.0**steps,
    )
    signs = np.where(np.arange(64) % 2, 300, -300)
    yield Case(
        "rows, cols times 2^+-300",
        np.ldexp(rng.standard_normal((64, 128)), signs[:, np.newaxis]),
        np.ldexp(rng.standard_normal((128, 64)), np.roll(signs, 16)),
    )
    yield Case(
        "subnormal operand, result",
        np.ldexp(rng.integers(-(2**30), 2**30, (64, 128)).astype(np.float64), -1074),
        rng.standard_normal((128, 64)),
    )
    yield Case(
        "integers, exact result",
        rng.integers(-(10**6), 10**6, (64, 128)).astype(np.float64),
        rng.integers(-(10**6), 10**6, (128, 64)).astype(np.float64),
    )
    yield gram("covariance", _centred(rng))
    yield _special_values(rng)


def lognormal(rng: np.random.Generator, shape: tuple[int, int], phi: float) -> Array:
    """Return a test matrix of the papers: a wider range with a larger phi.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of the entries.
    shape : tuple of int
        Of the matrix.
    phi : float
        Spread.

    Returns
    -------
    ndarray of float64
        (rand - 0.5) exp(phi randn).
    """
    spread = np.exp(phi * rng.standard_normal(shape))
    return np.asarray((rng.random(shape) - 0.5) * spread)


def _hilbert(n: int) -> Array:
    i = np.arange(n)
    return np.asarray(1.0 / (i[:, np.newaxis] + i + 1.0), dtype=np.float64)


def _inverse_hilbert(n: int) -> Array:
    """Return the inverse, made of integers; they are doubles up to n = 12 or so."""

    def entry(i: int, j: int) -> int:
        size = (
            (i + j - 1)
            * math.comb(n + i - 1, n - j)
            * math.comb(n + j - 1, n - i)
            * math.comb(i + j - 2, i - 1) ** 2
        )
        return -size if (i + j) % 2 else size

    rows = range(1, n + 1)
    return np.array([[float(entry(i, j)) for j in rows] for i in rows])


def _centred(rng: np.random.Generator) -> Array:
    """Return correlated observations of different units, without their means."""
    mixed = rng.standard_normal((256, 40)) @ rng.standard_normal((40, 40))
    x = (mixed + 1000.0) * 10.0 ** np.linspace(-6, 6, 40)
    return np.asarray(x - x.mean(axis=0))


def _special_values(rng: np.random.Generator) -> Case:
    a, b = rng.standard_normal((48, 64)), rng.standard_normal((64, 48))
    a[3, 5], a[7, 11], a[20, 30], a[20, 31] = np.nan, np.inf, np.inf, -np.inf
    b[2, 4], b[9, 13], b[11, 17] = np.nan, -np.inf, 0.0
    a[30] = 0.0  # meets the infinities of B
    return Case("NaN and infinities", a, b)
