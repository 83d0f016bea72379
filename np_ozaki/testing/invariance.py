"""Changes of the operands that must change no bit of a product, or only its exponent.

All assertions call the product with ndarrays of two or more dimensions, both of one
dtype (float64, float32, complex128 or complex64), and without the warnings of overflow
and invalid operations: scaled data may overflow in entries that are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from np_ozaki.errors import OperandTypeError, refusal
from np_ozaki.numerics.formats import format_of
from np_ozaki.testing.arguments import integer, operand, operand_pair
from np_ozaki.testing.bits import compare_bits
from np_ozaki.testing.parts import concatenated, is_complex, join, ldexp

__all__ = [
    "assert_hermitian",
    "assert_permutation_invariant",
    "assert_scale_invariant",
    "assert_symmetric",
    "assert_transposes",
]

Array = NDArray[Any]
Product: TypeAlias = Callable[[Any, Any], ArrayLike]
_Exponents = NDArray[np.int64]


def assert_scale_invariant(
    product: Product,
    a: ArrayLike,
    b: ArrayLike,
    *,
    inner: bool = False,
    max_shift: int = 100,
    seed: int = 0,
) -> None:
    """Raise unless powers of two on rows and columns shift a product exactly.

    Row i of A is multiplied by 2**s_i and column j of B by 2**t_j; entry (i, j) of the
    product must become 2**(s_i + t_j) times what it was, bit for bit.

    Parameters
    ----------
    product : callable
        Called as ``product(a, b)``; returns the dtype of `a`.
    a : (..., m, k) array_like
        Left operand.
    b : (..., k, n) array_like
        Right operand.
    inner : bool, default False
        Also multiply column h of A by 2**d_h and row h of B by 2**-d_h: no bit may
        change.  Conventional products have this property, np_ozaki has it only where
        it rounds no entry of an operand.
    max_shift : int, default 100
        Exponents are drawn from -max_shift to max_shift, 1 to 2000, and cut to what
        keeps the row or column finite and exact.
    seed : int, default 0
        Of the exponents.

    Raises
    ------
    AssertionError
        Names the first entry that differs, with both values in hexadecimal.
    OperandTypeError
        `product` cannot be called, or an operand has no numbers.
    OptionError
        `max_shift` or `seed` is out of range.
    ShapeError
        The operands do not fit.

    Notes
    -----
    Entries are compared where no product of two entries, by size, can overflow or lose
    a bit to underflow, before or after; with entries of ordinary size that is all.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_scale_invariant
    >>> a = np.random.default_rng(0).standard_normal((4, 9))
    >>> assert_scale_invariant(np_ozaki.matmul, a, a.T)
    >>> assert_scale_invariant(lambda a, b: a @ b + 1.0, a, a.T)
    Traceback (most recent call last):
    AssertionError: rows times 2**s, columns times 2**t: 16 of 16 entries differ, ...
    """
    left, right = _arguments(product, a, b)
    integer("max_shift", max_shift, 1, 2000)
    rng, of = _generator(seed), format_of(left.dtype)
    # From this exponent on all bits of a product of two entries are in range.
    least = of.lowest + 2 * of.bits
    rows, columns = _Lines(left, -1), _Lines(right, -2)
    lows, highs = rows.lowest + columns.lowest, rows.highest + columns.highest
    terms = left.shape[-1] * (1 + is_complex(left))
    highs = highs + terms.bit_length()
    base = _call(product, left, right)

    def compare(x: Array, y: Array, shift: _Exponents, what: str, inside: Any) -> None:
        with np.errstate(all="ignore"):
            expected = ldexp(base, shift)
        compare_bits(_call(product, x, y), expected, what=what, where=inside)

    def in_range(shift: _Exponents) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = (lows + shift >= least) & (
            highs + shift <= of.top - 1
        )
        return inside

    unscaled = np.zeros((1, 1), dtype=np.int64)
    s = _shifts(rng, *rows.room(), max_shift)
    t = _shifts(rng, *columns.room(), max_shift)
    compare(
        ldexp(left, s),
        ldexp(right, t),
        s + t,
        "rows times 2**s, columns times 2**t",
        in_range(unscaled) & in_range(s + t),
    )
    if inner:
        a_low, a_high = _Lines(left, (*range(left.ndim - 2), -2)).room()
        b_low, b_high = _Lines(right, (*range(right.ndim - 2), -1)).room()
        a_low, a_high = a_low.ravel(), a_high.ravel()
        b_low, b_high = b_low.ravel(), b_high.ravel()
        low, high = np.maximum(a_low, -b_high), np.minimum(a_high, -b_low)
        d = _shifts(rng, low, high, max_shift)
        compare(
            ldexp(left, d),
            ldexp(right, -d[:, np.newaxis]),
            unscaled,
            "inner index times 2**d and 2**-d",
            in_range(unscaled),
        )


def assert_symmetric(product: Product, a: ArrayLike) -> None:
    """Raise unless the product of a matrix by its transpose is symmetric in every bit.

    Parameters
    ----------
    product : callable
        Called as ``product(a, a.T)``; returns the dtype of `a`.
    a : (..., m, k) array_like
        The last two axes are transposed.

    Raises
    ------
    AssertionError
        Names the first entry that differs from its mirror image, with both values in
        hexadecimal.
    OperandTypeError
        `product` cannot be called, or `a` has no numbers.
    ShapeError
        `a` is no matrix.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_symmetric
    >>> a = np.random.default_rng(0).standard_normal((5, 30))
    >>> assert_symmetric(np_ozaki.matmul, a)
    """
    _check_callable(product)
    x = operand("a", a)
    c = _call(product, x, x.mT)
    compare_bits(c, c.mT, what="A A^T and its transpose")


def assert_hermitian(product: Product, a: ArrayLike) -> None:
    """Raise unless a matrix by its conjugate transpose is Hermitian in every bit.

    The diagonal must be real: imaginary parts are zero.

    Parameters
    ----------
    product : callable
        Called as ``product(a, a.conj().T)``; returns the dtype of `a`.
    a : (..., m, k) array_like
        The last two axes are transposed.  Of a real one the product is symmetric.

    Raises
    ------
    AssertionError
        Names the first entry that is not the conjugate of its mirror image, with both
        values in hexadecimal; a last index of 0 is the real part, 1 the imaginary one.
    OperandTypeError
        `product` cannot be called, or `a` has no numbers.
    ShapeError
        `a` is no matrix.

    Notes
    -----
    The sign of a zero does not count: an imaginary part that is exactly zero is +0 on
    both sides of the diagonal.  On the diagonal a NaN passes, which infinite entries
    make there.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_hermitian
    >>> rng = np.random.default_rng(0)
    >>> a = rng.standard_normal((5, 30)) + 1j * rng.standard_normal((5, 30))
    >>> assert_hermitian(np_ozaki.matmul, a)
    """
    _check_callable(product)
    x = operand("a", a)
    c = _call(product, x, x.conj().mT)
    mirrored = c.mT
    if is_complex(c):
        # A sum with 0 makes +0 of -0, and leaves all else.  Of a NaN the sign stays.
        imag = np.where(np.isnan(c.imag), c.imag, 0.0 - c.imag)
        mirrored = join(c.real + 0.0, imag + 0.0).mT
        c = join(c.real + 0.0, c.imag + 0.0)
    compare_bits(c, mirrored, what="A A^H and its conjugate transpose")


def assert_transposes(product: Product, a: ArrayLike, b: ArrayLike) -> None:
    """Raise unless ``(B^T A^T)^T`` has the bits of ``A B``.

    Parameters
    ----------
    product : callable
        Called as ``product(a, b)``; returns the dtype of `a`.
    a : (..., m, k) array_like
        Left operand; the last two axes are transposed.
    b : (..., k, n) array_like
        Right operand.

    Raises
    ------
    AssertionError
        Names the first entry that differs, with both values in hexadecimal.
    OperandTypeError
        `product` cannot be called, or an operand has no numbers.
    ShapeError
        The operands do not fit.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_transposes
    >>> a = np.random.default_rng(0).standard_normal((5, 30))
    >>> assert_transposes(np_ozaki.matmul, a, a.T @ a)
    """
    left, right = _arguments(product, a, b)
    turned = _call(product, right.mT, left.mT)
    compare_bits(turned.mT, _call(product, left, right), what="(B^T A^T)^T and A B")


def assert_permutation_invariant(
    product: Product, a: ArrayLike, b: ArrayLike, *, seed: int = 0
) -> None:
    """Raise unless the order of the inner index leaves every bit as it is.

    The columns of A and rows of B are reversed, and then put in a random order.

    Parameters
    ----------
    product : callable
        Called as ``product(a, b)``; returns the dtype of `a`.
    a : (..., m, k) array_like
        Left operand.
    b : (..., k, n) array_like
        Right operand.
    seed : int, default 0
        Of the random order.

    Raises
    ------
    AssertionError
        Names the first entry that differs, with both values in hexadecimal.
    OperandTypeError
        `product` cannot be called, or an operand has no numbers.
    OptionError
        `seed` is negative.
    ShapeError
        The operands do not fit.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from np_ozaki.testing import assert_permutation_invariant
    >>> a = np.random.default_rng(0).standard_normal((5, 300))
    >>> assert_permutation_invariant(np_ozaki.matmul, a, a.T)
    """
    left, right = _arguments(product, a, b)
    rng = _generator(seed)
    k = left.shape[-1]
    base = _call(product, left, right)
    for name, order in (
        ("reversed", np.arange(k)[::-1]),
        ("permuted", rng.permutation(k)),
    ):
        moved = _call(product, left[..., order], right[..., order, :])
        compare_bits(moved, base, what=f"inner index {name}")


class _Lines:
    """Exponents of the lines of a stack of matrices, from their finite entries.

    Parameters
    ----------
    x : ndarray
        The stack.
    axes : int or tuple of int
        Those that run along a line.  They stay as axes of length 1.
    """

    def __init__(self, x: Array, axes: int | tuple[int, ...]) -> None:
        x = concatenated(x, axes if isinstance(axes, int) else axes[-1])
        counts = np.isfinite(x) & (x != 0.0)
        exponents = np.frexp(np.where(counts, x, 1.0))[1].astype(np.int64)
        self._of = format_of(x.dtype)
        some = counts.any(axis=axes, keepdims=True)
        # Products of entries of lines lie between 2**(lowest - 2) and 2**highest.
        highest = exponents.max(axis=axes, keepdims=True, initial=-5000, where=counts)
        lowest = exponents.min(axis=axes, keepdims=True, initial=5000, where=counts)
        self.highest: _Exponents = np.where(some, highest, 0)
        self.lowest: _Exponents = np.where(some, lowest, 0)

    def room(self) -> tuple[_Exponents, _Exponents]:
        """Return the least and the largest shift that keep a line exact and finite."""
        # Subnormal lines only go up.
        least_normal = self._of.lowest + self._of.bits
        room: tuple[_Exponents, _Exponents] = (
            np.minimum(0, least_normal - self.lowest),
            self._of.top - self.highest,
        )
        return room


def _shifts(
    rng: np.random.Generator, low: _Exponents, high: _Exponents, most: int
) -> _Exponents:
    return rng.integers(np.maximum(low, -most), np.minimum(high, most), endpoint=True)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(integer("seed", seed, 0))


def _arguments(product: Product, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    _check_callable(product)
    return operand_pair(a, b)


def _check_callable(product: Product) -> None:
    if not callable(product):
        limit = "is called as product(a, b)"
        raise OperandTypeError(
            refusal("product", product, limit, "pass a function of two arrays")
        )


def _call(product: Product, a: Array, b: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.asarray(product(a, b))
    if result.dtype != a.dtype:
        # Scaled by powers of two, it might hide what another dtype would round.
        raise AssertionError(f"dtypes {result.dtype} and {a.dtype} of product and A")
    return result
