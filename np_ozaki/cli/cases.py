"""The built-in cases of `verify`: real data, and data that are hard on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import DTYPES, Entries
from np_ozaki.cli.measure import Case
from np_ozaki.numerics.formats import SINGLE

__all__ = [
    "MISSING_EXAMPLES",
    "gram",
    "lognormal",
    "product",
    "real_cases",
    "synthetic_cases",
]

Array = NDArray[np.float64]

MISSING_EXAMPLES = (
    "left out: the data sets of scikit-learn (diabetes, breast cancer, digits), which "
    'is not installed; pip install "np_ozaki[examples]" gets it'
)
"""What `verify` says without scikit-learn."""

_SEED = 20260101


def gram(name: str, x: NDArray[Any], entries: Entries = DTYPES["float64"]) -> Case:
    """Return the case ``X.conj().T @ X``.

    Parameters
    ----------
    name : str
        Of the data.
    x : (k, m) ndarray
        One observation a row.
    entries : Entries, optional
        What it is converted to.

    Returns
    -------
    Case
        Symmetric.
    """
    with np.errstate(all="ignore"):
        x = x.astype(entries.dtype)
    left, right = entries.real_left(x.conj().T), entries.real_right(x)
    return Case(name, left, right, symmetric=True, entries=entries)


def product(
    name: str,
    a: NDArray[Any],
    b: NDArray[Any],
    entries: Entries = DTYPES["float64"],
) -> Case:
    """Return the case ``A @ B``.

    Parameters
    ----------
    name : str
        Of the data.
    a : (m, k) ndarray
        Left operand.
    b : (k, n) ndarray
        Right operand.
    entries : Entries, optional
        What they are converted to.

    Returns
    -------
    Case
        Not symmetric.
    """
    with np.errstate(all="ignore"):
        a, b = a.astype(entries.dtype), b.astype(entries.dtype)
    return Case(name, entries.real_left(a), entries.real_right(b), entries=entries)


def real_cases(entries: Entries = DTYPES["float64"]) -> list[Case]:
    """Return Gram matrices of data sets that scikit-learn ships.

    Parameters
    ----------
    entries : Entries, optional
        What data are converted to.

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
        gram(f"{name} X.T @ X", np.asarray(load().data, dtype=np.float64), entries)
        for name, load in (
            ("diabetes", datasets.load_diabetes),
            ("breast cancer", datasets.load_breast_cancer),
            ("digits", datasets.load_digits),
        )
    ]


def synthetic_cases(entries: Entries = DTYPES["float64"]) -> Iterator[Case]:
    """Yield the cases that need nothing but NumPy; the same at every run.

    Parameters
    ----------
    entries : Entries, optional
        Of the matrices; imaginary parts are of the same kind as real ones.

    Yields
    ------
    Case
        Small enough for exact products of all entries.
    """
    real = _matrices(np.random.default_rng(_SEED), entries)
    imaginary = _matrices(np.random.default_rng(_SEED + 1), entries)
    for (name, *parts), (_, *others) in zip(real, imaginary, strict=True):
        if entries.is_complex:
            # Not by arithmetic, which would make NaN of an infinite part's partner.
            parts = [
                entries.right_of(np.concatenate(pair))
                for pair in zip(parts, others, strict=True)
            ]
        if len(parts) == 1:
            yield gram(name, parts[0], entries)
        else:
            yield product(name, parts[0], parts[1], entries)


def _matrices(rng: np.random.Generator, entries: Entries) -> Iterator[tuple[Any, ...]]:
    """Yield name and one or two matrices: X of X.T @ X, or A and B."""
    single = entries.part is SINGLE
    decades, bits, digits = (15, 30, 20) if single else (150, 300, 30)
    yield "Hilbert H @ H, n=64", _hilbert(64)
    yield "Hilbert H @ inv(H), n=12", _hilbert(12), _inverse_hilbert(12)
    yield "U(0,1), one sign", rng.random((64, 256)), rng.random((256, 64))
    for phi in (2, 4):
        yield (
            f"lognormal, phi={phi}",
            lognormal(rng, (64, 128), phi),
            lognormal(rng, (128, 64), phi),
        )
    steps = np.linspace(decades, -decades, 64)
    yield (
        f"rows 1e{decades} to 1e-{decades}",
        rng.standard_normal((64, 128)) * 10.0 ** steps[:, np.newaxis],
        rng.standard_normal((128, 64)) * 10.0**steps,
    )
    signs = np.where(np.arange(64) % 2, bits, -bits)
    yield (
        f"rows, cols times 2^+-{bits}",
        np.ldexp(rng.standard_normal((64, 128)), signs[:, np.newaxis]),
        np.ldexp(rng.standard_normal((128, 64)), np.roll(signs, 16)),
    )
    subnormal = rng.integers(-(2**digits), 2**digits, (64, 128)).astype(np.float64)
    yield (
        "subnormal operand, result",
        np.ldexp(subnormal, entries.part.lowest),
        rng.standard_normal((128, 64)),
    )
    most = 10**3 if single else 10**6
    yield (
        "integers, exact result",
        rng.integers(-most, most, (64, 128)).astype(np.float64),
        rng.integers(-most, most, (128, 64)).astype(np.float64),
    )
    yield "covariance", _centred(rng)
    yield "NaN and infinities", *_special_values(rng)


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


def _special_values(rng: np.random.Generator) -> tuple[Array, Array]:
    a, b = rng.standard_normal((48, 64)), rng.standard_normal((64, 48))
    a[3, 5], a[7, 11], a[20, 30], a[20, 31] = np.nan, np.inf, np.inf, -np.inf
    b[2, 4], b[9, 13], b[11, 17] = np.nan, -np.inf, 0.0
    a[30] = 0.0  # meets the infinities of B
    return a, b
