"""Hypothesis strategies that change what others draw: special values, layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from np_ozaki.errors import OperandTypeError, OptionError, refusal
from np_ozaki.numerics.formats import SINGLE, format_of
from np_ozaki.testing.arguments import one_of, require_hypothesis
from np_ozaki.testing.parts import is_complex

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["LAYOUTS", "SPECIAL_VALUES", "layouts", "with_special_values"]

Array = NDArray[Any]
"""Of float64, float32, complex128 or complex64."""
Drawn = TypeVar("Drawn", bound=Array | tuple[Array, ...])

SPECIAL_VALUES = (
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    2.0**-1022 - 2.0**-1074,
)
"""What `with_special_values` sprinkles in; the last three are subnormal."""

_SINGLE_SPECIAL_VALUES = (
    *SPECIAL_VALUES[:5],
    2.0**-149,
    -(2.0**-149),
    2.0**-126 - 2.0**-149,
)

LAYOUTS = (
    "C",
    "Fortran",
    "transposed",
    "gaps",
    "reversed",
    "repeated row",
    "repeated column",
    "unaligned",
    "byte-swapped",
)
"""Memory layouts that `layouts` draws."""

_MOST_SPECIAL = 8


def with_special_values(
    strategy: SearchStrategy[Drawn], values: Sequence[float] = SPECIAL_VALUES
) -> SearchStrategy[Drawn]:
    """Return a strategy that overwrites up to eight entries by special values.

    Of complex entries it overwrites parts.

    Parameters
    ----------
    strategy : SearchStrategy
        Draws an array, or a tuple of arrays that are changed each on its own.
    values : sequence of float, optional
        What to choose from; `SPECIAL_VALUES` by default, with the subnormal numbers of
        float32 in arrays of it and of complex64.

    Returns
    -------
    SearchStrategy
        Draws copies in C order: apply `layouts` afterwards.  It shrinks to arrays
        without special values.

    Raises
    ------
    OptionError
        There are no values.
    OperandTypeError
        `strategy` is none.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import assert_error_bound, operands, with_special_values
    >>> @settings(max_examples=5, database=None)
    ... @given(with_special_values(operands()))
    ... def test(pair):
    ...     with np.errstate(all="ignore"):
    ...         assert_error_bound(*pair, np_ozaki.matmul(*pair))
    >>> test()
    """
    require_hypothesis()
    from hypothesis import strategies as st

    if not len(values):
        limit = "there must be something to choose from"
        raise OptionError(refusal("values", values, limit, "leave it out"))

    def sprinkled(x: Array) -> SearchStrategy[Array]:
        if not x.size:
            return st.just(x)
        given = values
        if values is SPECIAL_VALUES and format_of(x.dtype) is SINGLE:
            given = _SINGLE_SPECIAL_VALUES
        places = st.tuples(
            st.integers(0, x.size * (1 + is_complex(x)) - 1), st.sampled_from(given)
        )
        return st.lists(places, max_size=_MOST_SPECIAL).map(
            functools.partial(_overwritten, x)
        )

    return _each_array(strategy, sprinkled)


def layouts(
    strategy: SearchStrategy[Drawn], layout: str | None = None
) -> SearchStrategy[Drawn]:
    """Return a strategy that gives arrays another layout in memory.

    Whatever the layout, a function must treat the array as its copy in C order; gaps
    hold NaN, so that reading them is noticed.

    Parameters
    ----------
    strategy : SearchStrategy
        Draws an array of one dimension or more, or a tuple of arrays that get each
        a layout of its own.
    layout : str, optional
        One of `LAYOUTS`; any of them by default.  "transposed" swaps the last two axes
        in memory, "Fortran" turns all of them around, and "reversed" has negative
        strides.  Of "repeated row" and "repeated column" only the first row, or column,
        of each matrix is kept; a stride of zero makes the others, and the array cannot
        be written.

    Returns
    -------
    SearchStrategy
        Draws arrays of equal shape, with equal entries except where they are repeated.

    Raises
    ------
    OptionError
        The layout is unknown.
    OperandTypeError
        `strategy` is none.
    ImportError
        Hypothesis is not installed.

    Examples
    --------
    >>> import np_ozaki
    >>> from hypothesis import given, settings
    >>> from np_ozaki.testing import assert_same_bits, layouts, operands
    >>> @settings(max_examples=5, database=None)
    ... @given(layouts(operands()))
    ... def test(pair):
    ...     a, b = pair
    ...     expected = np_ozaki.matmul(a.copy(), b.copy())
    ...     assert_same_bits(np_ozaki.matmul(a, b), expected)
    >>> test()
    """
    require_hypothesis()
    from hypothesis import strategies as st

    one_of("layout", layout, LAYOUTS)
    names = st.sampled_from(LAYOUTS) if layout is None else st.just(layout)
    return _each_array(strategy, lambda x: names.map(functools.partial(_laid_out, x)))


def _each_array(
    strategy: SearchStrategy[Drawn],
    change: Callable[[Array], SearchStrategy[Array]],
) -> SearchStrategy[Drawn]:
    """Return a strategy that draws an array, or each of a tuple, once more."""
    from hypothesis import strategies as st

    if not isinstance(strategy, st.SearchStrategy):
        limit = "must be a Hypothesis strategy"
        raise OperandTypeError(
            refusal("strategy", strategy, limit, "pass operands(), for example")
        )

    def changed(drawn: Any) -> SearchStrategy[Any]:
        if isinstance(drawn, tuple):
            return st.tuples(*map(change, drawn))
        return change(drawn)

    return strategy.flatmap(changed)


def _overwritten(x: Array, places: list[tuple[int, float]]) -> Array:
    changed = np.array(x, order="C")
    numbers = changed.reshape(-1).view(changed.real.dtype)
    for place, value in places:
        numbers[place] = value
    return changed


def _laid_out(x: Array, layout: str) -> Array:
    """Return an array of x's shape and entries, or some of them, in a layout."""
    last_two = (-1, -2) if x.ndim > 1 else (-1, -1)
    if layout == "Fortran":
        return np.array(x, order="F")
    if layout == "transposed":
        return np.array(np.swapaxes(x, *last_two), order="C").swapaxes(*last_two)
    if layout == "gaps":
        nan = complex(math.nan, math.nan) if is_complex(x) else math.nan
        memory = np.full([2 * length + 1 for length in x.shape], nan, x.dtype)
        view = memory[(slice(1, None, 2),) * x.ndim]
        view[...] = x
        return view
    if layout == "reversed":
        return np.flip(np.array(np.flip(x), order="C"))
    if layout == "repeated row":
        return np.broadcast_to(x[..., :1, :] if x.ndim > 1 else x[:1], x.shape)
    if layout == "repeated column":
        return np.broadcast_to(x[..., :1], x.shape)
    if layout == "unaligned":
        unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
        view = unaligned.reshape(x.shape)
        view[...] = x
        return view
    if layout == "byte-swapped":
        return x.astype(x.dtype.newbyteorder())
    return np.array(x, order="C")
