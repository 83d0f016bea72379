"""Hypothesis strategies for operands: their range, scale and grading.

Matrices come in two kinds.  Those of `matrices` and `operands` are drawn entry by
entry, so that Hypothesis can shrink every entry; they are meant to be small.  Those of
`random_matrices` and `graded_operands` are made by a NumPy generator from a drawn seed:
any size is cheap, and a failure is reproduced by the seed, which is noted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from np_ozaki.errors import OperandTypeError, OptionError, refusal
from np_ozaki.numerics.formats import DOUBLE, SINGLE, Format, format_of
from np_ozaki.testing.arguments import (
    entry_dtype,
    integer,
    one_of,
    require_hypothesis,
)
from np_ozaki.testing.parts import concatenated, join, ldexp, real_dtype_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "GRADINGS",
    "PHIS",
    "REGIMES",
    "graded_operands",
    "matrices",
    "operands",
    "random_matrices",
]

Array = NDArray[Any]
"""Of float64, float32, complex128 or complex64."""

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

PHIS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Spreads that `random_matrices` draws: from uniform to hopeless for few moduli."""

GRADINGS = ("rows", "columns", "inner")
"""Indices along which `graded_operands` grades."""

_MOST_BITS = {DOUBLE: 960, SINGLE: 100}
_SEEDS = 2**32


def _edge_constants(of: Format) -> tuple[float, ...]:
    """Return constants whose rows of equal entries come closest to the CRT bound."""
    u = of.unit
    return 1.0, 1.0 - u, 1.0 + 2.0 * u, 255.0, 0.5 / u + 1.0


def _entries(regime: str, dtype: np.dtype[Any]) -> SearchStrategy[float]:
    from hypothesis import strategies as st

    of = format_of(dtype)

    def scaled(low: int, high: int) -> SearchStrategy[float]:
        mantissas = st.integers(-(2**of.bits) + 1, 2**of.bits - 1)
        return st.builds(
            lambda m, e: float(dtype.type(np.ldexp(float(m), e - of.bits))),
            mantissas,
            st.integers(low, high),
        )

    tiny = (-80, -60) if of is SINGLE else (-560, -480)

    kinds: dict[str, SearchStrategy[float]] = {
        "ordinary": scaled(-1, 1),
        "wide": scaled(-60, 60),
        "any": st.floats(width=32, allow_nan=False, allow_infinity=False)
        if of is SINGLE
        else st.floats(allow_nan=False, allow_infinity=False),
        "subnormal": scaled(of.lowest + 1, of.lowest + of.bits + 3),
        "tiny products": scaled(*tiny),
        "near overflow": scaled(of.top - 6, of.top),
        "same sign": scaled(-1, 1).map(abs),
        "integers": st.integers(-(2**20), 2**20).map(float),
        "sparse": st.one_of(st.just(0.0), st.just(-0.0), scaled(-3, 3)),
        "edge constants": st.sampled_from(_edge_constants(of)),
    }
    return kinds[regime]


def _by_entries(
    shape: tuple[int, ...], regime: str | None, dtype: np.dtype[Any]
) -> SearchStrategy[Array]:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    if dtype.kind == "c":
        part = _by_entries(shape, regime, real_dtype_of(dtype))
        return st.builds(join, part, part)
    kinds = st.sampled_from(REGIMES) if regime is None else st.just(regime)
    return kinds.flatmap(
        lambda kind: hnp.arrays(dtype, shape, elements=_entries(kind, dtype))
    )


def matrices(
    rows: int,
    columns: int,
    regime: str | None = None,
    *,
    dtype: DTypeLike = np.float64,
) -> SearchStrategy[Array]:
    """Return a strategy for small finite matrices, entry by entry.

    Parameters
    ----------
    rows, columns : int
        Shape, from 0.
    regime : str, optional
        One of `REGIMES`; any of them by default, of either part of complex entries.
    dtype : dtype_like, default float64
        Or float32, whose regimes have its own limits, complex128 or complex64.

    Returns
    -------
    SearchStrategy
        Draws (rows, columns) ndarrays.

    Raises
    ------
    OptionError
        The shape is negative, or the regime unknown.
    OperandTypeError
        The shape is not made of integers.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import matrices
    >>> @settings(max_examples=5, database=None)
    ... @given(matrices(2, 3, "subnormal"))
    ... def test(a):
    ...     assert a.shape == (2, 3)
    ...     assert abs(a).max() <= 2.0**-1018
    >>> test()
    """
    require_hypothesis()
    shape = integer("rows", rows, 0), integer("columns", columns, 0)
    one_of("regime", regime, REGIMES)
    return _by_entries(shape, regime, entry_dtype(dtype))


def operands(
    max_side: int = 5,
    max_k: int = 8,
    *,
    max_batch_dims: int = 0,
    dtype: DTypeLike = np.float64,
) -> SearchStrategy[tuple[Array, Array]]:
    """Return a strategy for small finite pairs (A, B) that can be multiplied.

    Parameters
    ----------
    max_side : int, default 5
        Largest m and n.
    max_k : int, default 8
        Largest inner length.
    max_batch_dims : int, default 0
        Most dimensions before the last two, of lengths 1 to 3 that broadcast.
    dtype : dtype_like, default float64
        Of both; or float32, complex128 or complex64.

    Returns
    -------
    SearchStrategy
        Draws pairs of shapes (..., m, k) and (..., k, n), each from a regime of its
        own.

    Raises
    ------
    OptionError
        A limit is below 1, or that of batches below 0.
    OperandTypeError
        A limit is no integer.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> import np_ozaki
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import assert_transposes, operands
    >>> @settings(max_examples=5, database=None)
    ... @given(operands(max_batch_dims=1))
    ... def test(pair):
    ...     assert_transposes(np_ozaki.matmul, *pair)
    >>> test()
    """
    require_hypothesis()
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    of = entry_dtype(dtype)
    sides = st.integers(1, integer("max_side", max_side, 1))
    inner = st.integers(1, integer("max_k", max_k, 1))
    batches = hnp.mutually_broadcastable_shapes(
        num_shapes=2,
        max_dims=integer("max_batch_dims", max_batch_dims, 0, 30),
        max_side=3,
    ).map(lambda found: found.input_shapes)
    return st.tuples(sides, inner, sides, batches).flatmap(
        lambda s: st.tuples(
            _by_entries((*s[3][0], s[0], s[1]), None, of),
            _by_entries((*s[3][1], s[1], s[2]), None, of),
        )
    )


def random_matrices(
    shape: tuple[int, ...],
    *,
    phi: float | None = None,
    scale: int | None = 0,
    dtype: DTypeLike = np.float64,
) -> SearchStrategy[Array]:
    """Return a strategy for random finite matrices of any size.

    Entries are (U - 0.5) exp(phi N) 2**scale, with U uniform in [0, 1) and N normal:
    the test matrices of the papers.  A larger phi spreads the entries of a row over a
    wider range.

    Parameters
    ----------
    shape : tuple of int
        Of the array; more than two dimensions are a batch.
    phi : float, optional
        0 to 8; one of `PHIS` by default.
    scale : int or None, default 0
        Exponent of the power of two that multiplies every entry, less where the largest
        would overflow.  None draws one from the whole range, down to subnormal entries.
    dtype : dtype_like, default float64
        Or float32, or complex128 or complex64, whose parts are drawn likewise.

    Returns
    -------
    SearchStrategy
        Draws ndarrays.  It shrinks the seed, phi and the scale, and notes
        them for the example that fails.

    Raises
    ------
    OptionError
        A length is negative, or phi or the scale is out of range.
    OperandTypeError
        A length or the scale is no integer, or phi no number.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import assert_symmetric, random_matrices
    >>> @settings(max_examples=5, database=None)
    ... @given(random_matrices((40, 60), phi=1.0, scale=None))
    ... def test(a):
    ...     assert np.isfinite(a).all()
    ...     assert_symmetric(np_ozaki.matmul, a)
    >>> test()
    """
    require_hypothesis()
    from hypothesis import strategies as st

    lengths = tuple(integer("shape", x, 0) for x in shape)
    phis = st.sampled_from(PHIS) if phi is None else st.just(_checked_phi(phi))
    dtype = entry_dtype(dtype)
    # At the lowest exponent the largest entry vanishes; from the opposite of it on all
    # scales are the same.
    lowest = format_of(dtype).lowest
    scales = (
        st.integers(lowest + 1, -lowest)
        if scale is None
        else st.just(integer("scale", scale, -1100, 1100))
    )
    return st.builds(
        functools.partial(_random_matrix, lengths, dtype),
        st.integers(0, _SEEDS - 1),
        phis,
        scales,
    )


def graded_operands(
    m: int,
    k: int,
    n: int,
    *,
    grading: str | None = None,
    bits: int | None = None,
    dtype: DTypeLike = np.float64,
) -> SearchStrategy[tuple[Array, Array]]:
    """Return a strategy for pairs (A, B) that are graded by powers of two.

    The powers go evenly from 2**bits down to 2**-bits along one index, in that order or
    shuffled.  With R and S uniform in [-0.5, 0.5) and D the diagonal of powers, the
    pair is (D R, S) if rows are graded, (R, S D) if columns are, and (R D, D**-1 S) if
    the inner index is.  The first two must not cost accuracy.  In the third all terms
    of an entry are of one size, while rows of A and columns of B spread by a factor of
    4**bits: integers of few moduli cannot hold them.

    Parameters
    ----------
    m, k, n : int
        A is (m, k), B is (k, n).
    grading : str, optional
        One of `GRADINGS`; any of them by default.
    bits : int, optional
        0 to 960, of float32 and complex64 0 to 100; by default one of 0 to 100.
    dtype : dtype_like, default float64
        Of both; or float32, complex128 or complex64.

    Returns
    -------
    SearchStrategy
        Draws pairs of ndarrays.

    Raises
    ------
    OptionError
        A length is negative, `bits` is out of range, or the grading unknown.
    OperandTypeError
        A length or `bits` is no integer.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> import np_ozaki
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import assert_error_bound, graded_operands
    >>> @settings(max_examples=5, database=None)
    ... @given(graded_operands(6, 20, 5))
    ... def test(pair):
    ...     assert_error_bound(*pair, np_ozaki.matmul(*pair))
    >>> test()
    """
    require_hypothesis()
    from hypothesis import strategies as st

    sizes = integer("m", m, 0), integer("k", k, 0), integer("n", n, 0)
    one_of("grading", grading, GRADINGS)
    dtype = entry_dtype(dtype)
    spans = (
        st.integers(0, 100)
        if bits is None
        else st.just(integer("bits", bits, 0, _MOST_BITS[format_of(dtype)]))
    )
    return st.builds(
        functools.partial(_graded_pair, sizes, dtype),
        st.integers(0, _SEEDS - 1),
        st.sampled_from(GRADINGS) if grading is None else st.just(grading),
        spans,
        st.booleans(),
    )


def _checked_phi(phi: float) -> float:
    try:
        number = float(phi)
    except (TypeError, ValueError):
        raise OperandTypeError(
            refusal("phi", phi, "must be a number", "pass a float")
        ) from None
    if not 0.0 <= number <= 8.0:
        limit = "the spread of exponents is 0 to 8"
        raise OptionError(refusal("phi", phi, limit, "choose another"))
    return number


def _random_matrix(
    shape: tuple[int, ...], dtype: np.dtype[Any], seed: int, phi: float, scale: int
) -> Array:
    from hypothesis import note

    note(f"random_matrices: seed {seed}, phi={phi}, scale={scale}")
    rng = np.random.default_rng(seed)

    def spread() -> Array:
        x = (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))
        return x.astype(real_dtype_of(dtype), copy=False)

    x = join(spread(), spread()) if dtype.kind == "c" else spread()
    top = int(np.frexp(np.abs(concatenated(x, -1)).max(initial=0.0))[1])
    # NumPy reports the underflow that a small scale asks for.
    with np.errstate(under="ignore"):
        return ldexp(x, np.asarray(min(scale, format_of(dtype).top - top)))


def _graded_pair(
    sizes: tuple[int, int, int],
    dtype: np.dtype[Any],
    seed: int,
    grading: str,
    bits: int,
    shuffled: bool,
) -> tuple[Array, Array]:
    from hypothesis import note

    note(
        f"graded_operands: seed {seed}, grading={grading!r}, bits={bits}, "
        f"{'shuffled' if shuffled else 'in order'}"
    )
    m, k, n = sizes
    rng = np.random.default_rng(seed)

    def uniform(shape: tuple[int, int]) -> Array:
        return (rng.random(shape) - 0.5).astype(real_dtype_of(dtype))

    a, b = uniform((m, k)), uniform((k, n))
    if dtype.kind == "c":
        a, b = join(a, uniform((m, k))), join(b, uniform((k, n)))
    length = {"rows": m, "columns": n, "inner": k}[grading]
    d = np.rint(np.linspace(bits, -bits, length)).astype(np.intc)
    if shuffled:
        d = rng.permutation(d)
    if grading == "rows":
        return ldexp(a, d[:, np.newaxis]), b
    if grading == "columns":
        return a, ldexp(b, d)
    return ldexp(a, d), ldexp(b, -d[:, np.newaxis])
