"""numpy.einsum of two operands, as one (batched) matrix product.

Labels fall into four groups: those of both operands and the result (batch), of both
and not the result (summed: the inner index), of one operand and the result (rows or
columns), and of one operand alone (summed out beforehand).  The product does not depend
on the order of its inner index, so neither do the bits on how labels are grouped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.gemm import product, signal
from np_ozaki.routes.decision import (
    as_array,
    as_dtype,
    options_for,
    routed_dtype,
)

__all__ = ["einsum_product", "handle_einsum"]

Array = NDArray[Any]
Labels = tuple[int, ...]
"""One label an axis: the code of its letter, or -1, -2, ... for the axes of an
ellipsis from the right."""


class _LeftToNumpy(Exception):
    """The call is no product of two matrices, or NumPy would refuse it."""


# ---- Subscripts ----


def _operand_labels(text: str, ndim: int) -> Labels:
    """Return the labels of an operand's axes.

    Raises
    ------
    _LeftToNumpy
        They do not fit, or are none.
    """
    before, dots, after = text.partition("...")
    letters = before + after
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise _LeftToNumpy
    hidden = ndim - len(letters)
    if hidden < 0 or (hidden and not dots):
        raise _LeftToNumpy
    return (
        *map(ord, before),
        *range(-hidden, 0),
        *map(ord, after),
    )


def _output_labels(text: str | None, a: Labels, b: Labels) -> Labels:
    """Return the labels of the result's axes; without text those that occur once."""
    both = a + b
    hidden = tuple(range(min((*both, 0)), 0))
    if text is None:
        once = (x for x in set(both) if x >= 0 and both.count(x) == 1)
        return (*hidden, *sorted(once))
    if hidden and "..." not in text:
        raise _LeftToNumpy
    labels = _operand_labels(text, len(text.replace("...", "")) + len(hidden))
    if len(set(labels)) != len(labels) or not set(labels) <= set(both):
        raise _LeftToNumpy
    return labels


def _sublist_text(labels: Any) -> str:
    """Return subscripts for a list of numbers and at most one Ellipsis."""
    if not isinstance(labels, (list, tuple)):
        raise _LeftToNumpy
    text = ""
    for label in labels:
        if label is Ellipsis:
            text += "..."
        elif type(label) is int and 0 <= label < 52:
            # As NumPy numbers them: upper case first, which decides implicit order.
            text += chr(ord("A") + label) if label < 26 else chr(ord("a") + label - 26)
        else:
            raise _LeftToNumpy
    return text


def _operands_and_text(arguments: tuple[Any, ...]) -> tuple[Any, Any, str]:
    """Return both operands and subscripts, from either way of writing them."""
    if arguments and isinstance(arguments[0], str):
        if len(arguments) != 3:
            raise _LeftToNumpy
        return arguments[1], arguments[2], arguments[0].replace(" ", "")
    if len(arguments) not in {4, 5}:
        raise _LeftToNumpy
    text = f"{_sublist_text(arguments[1])},{_sublist_text(arguments[3])}"
    if len(arguments) == 5:
        text += f"->{_sublist_text(arguments[4])}"
    return arguments[0], arguments[2], text


@dataclass(frozen=True)
class _Contraction:
    """Two operands with the labels of their axes, none repeated, and the result's.

    The operands get the result's dtype when it is decided that they multiply.
    """

    a: NDArray[Any]
    a_labels: Labels
    b: NDArray[Any]
    b_labels: Labels
    out_labels: Labels
    dtype: np.dtype[Any]

    def sizes(self) -> dict[int, int]:
        """Return the length of each label; an axis of length 1 stretches."""
        found: dict[int, int] = {}
        for x, labels in ((self.a, self.a_labels), (self.b, self.b_labels)):
            for label, size in zip(labels, x.shape, strict=True):
                if found.setdefault(label, size) == 1:
                    found[label] = size
                elif size not in {1, found[label]}:
                    raise _LeftToNumpy
        return found


def _diagonals(x: NDArray[Any], labels: Labels) -> tuple[NDArray[Any], Labels]:
    """Return a view with repeated labels along a diagonal."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise _LeftToNumpy
            x = np.moveaxis(x.diagonal(0, first, second), -1, first)
            labels = labels[:second] + labels[second + 1 :]
    return x, labels


_CLASSES = frozenset({np.ndarray, np.memmap, np.matrix})


def _operand(x: Any) -> Any:
    return x if choice.is_device_array(x) else as_array(x, _CLASSES)


def _of_dtype(x: Any, dtype: np.dtype[Any]) -> Any:
    return as_dtype(x, dtype) if isinstance(x, np.ndarray) else x


def _parsed(arguments: tuple[Any, ...]) -> _Contraction:
    left, right, text = _operands_and_text(arguments)
    a, b = _operand(left), _operand(right)
    inputs, arrow, output = text.partition("->")
    parts = inputs.split(",")
    if a is None or b is None or len(parts) != 2:
        raise _LeftToNumpy
    dtype = routed_dtype(a, b)
    if dtype is None:
        raise _LeftToNumpy
    a_labels = _operand_labels(parts[0], a.ndim)
    b_labels = _operand_labels(parts[1], b.ndim)
    out_labels = _output_labels(output if arrow else None, a_labels, b_labels)
    a, a_labels = _diagonals(a, a_labels)
    b, b_labels = _diagonals(b, b_labels)
    return _Contraction(a, a_labels, b, b_labels, out_labels, dtype)


# ---- From labels to a matrix product ----


def _without(
    x: NDArray[Any], labels: Labels, gone: set[int]
) -> tuple[NDArray[Any], Labels]:
    """Return a view without the axes of some labels, which have length 1."""
    index = tuple(0 if label in gone else slice(None) for label in labels)
    kept = tuple(label for label in labels if label not in gone)
    return x[index], kept


def _unstretched(c: _Contraction) -> _Contraction:
    """Drop axes of length 1 that would be stretched: the label is the other's then."""
    sizes = c.sizes()

    def stretched(x: NDArray[Any], labels: Labels) -> set[int]:
        pairs = zip(labels, x.shape, strict=True)
        return {label for label, size in pairs if size == 1 != sizes[label]}

    a, a_labels = _without(c.a, c.a_labels, stretched(c.a, c.a_labels))
    b, b_labels = _without(c.b, c.b_labels, stretched(c.b, c.b_labels))
    return replace(c, a=a, a_labels=a_labels, b=b, b_labels=b_labels)


def _summed_out(c: _Contraction) -> _Contraction:
    """Sum each operand over labels that are neither the other's nor the result's.

    Sums are native: additions in an order that NumPy fixes.  With NaN and Inf the sum
    beforehand could give other entries than IEEE products do, so these stay native.
    """
    a_alone = set(c.a_labels) - set(c.b_labels) - set(c.out_labels)
    b_alone = set(c.b_labels) - set(c.a_labels) - set(c.out_labels)
    if not a_alone and not b_alone:
        return c

    def total(x: NDArray[Any], labels: Labels, alone: set[int]) -> tuple[Array, Labels]:
        axes = tuple(i for i, label in enumerate(labels) if label in alone)
        kept = tuple(label for label in labels if label not in alone)
        with np.errstate(all="ignore"):
            return np.asarray(as_dtype(x, c.dtype).sum(axis=axes)), kept

    if not isinstance(c.a, np.ndarray):
        raise _LeftToNumpy  # a device adds in another order
    if not (np.isfinite(c.a).all() and np.isfinite(c.b).all()):
        raise _LeftToNumpy
    a, a_labels = total(c.a, c.a_labels, a_alone)
    b, b_labels = total(c.b, c.b_labels, b_alone)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _LeftToNumpy  # overflowed on the way, which products need not do
    return replace(c, a=a, a_labels=a_labels, b=b, b_labels=b_labels)


@dataclass(frozen=True)
class _Groups:
    """Labels by their part in the matrix product."""

    batch: Labels
    rows: Labels
    inner: Labels
    columns: Labels

    @classmethod
    def of(cls, c: _Contraction) -> _Groups:
        out, right = set(c.out_labels), set(c.b_labels)
        return cls(
            batch=tuple(x for x in c.a_labels if x in right and x in out),
            rows=tuple(x for x in c.a_labels if x not in right),
            inner=tuple(x for x in c.a_labels if x in right and x not in out),
            columns=tuple(x for x in c.b_labels if x not in set(c.a_labels)),
        )


def _arranged(x: NDArray[Any], labels: Labels, *groups: Labels) -> NDArray[Any]:
    """Return `x` with one axis a group: a view where strides allow it."""
    order = [labels.index(label) for group in groups for label in group]
    x = x.transpose(order)
    shape, start = [], 0
    for group in groups:
        shape.append(math.prod(x.shape[start : start + len(group)]))
        start += len(group)
    return x.reshape(shape)


# ---- The result ----


def _accepts(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether `out` takes the result without a cast."""
    return (
        type(out) is np.ndarray
        and out.dtype == dtype
        and out.dtype.isnative
        and out.flags.aligned
        and out.flags.writeable
        and out.shape == shape
    )


def _overlaps(out: Array, c: _Contraction) -> bool:
    return np.may_share_memory(out, c.a) or np.may_share_memory(out, c.b)


def _new_output(c: _Contraction, order: Any) -> Array:
    """Return uninitialised memory in the layout that NumPy's einsum would choose.

    It takes what its iterator allocates, which depends on the operands' strides.
    """
    if not isinstance(c.a, np.ndarray):
        a, b = (
            np.lib.stride_tricks.as_strided(np.empty(1, c.dtype), x.shape, x.strides)
            for x in (c.a, c.b)
        )
        twin = _new_output(replace(c, a=a, b=b), order)
        axes = sorted(range(twin.ndim), key=lambda i: -twin.strides[i])
        shape = tuple(twin.shape[i] for i in axes)
        out = np.empty_like(c.a, shape=shape or (1,), order="C").reshape(shape)
        return out.transpose(*np.argsort(axes).tolist()) if axes else out
    rest = sorted(set(c.a_labels + c.b_labels) - set(c.out_labels))
    axes = (*c.out_labels, *rest)

    def places(labels: Labels) -> list[int]:
        return [labels.index(x) if x in labels else -1 for x in axes]

    iterator = np.nditer(
        (c.a, c.b, None),
        flags=["reduce_ok", "zerosize_ok", "buffered", "delay_bufalloc"],
        op_flags=[["readonly"], ["readonly"], ["readwrite", "allocate"]],
        op_dtypes=[c.dtype] * 3,
        op_axes=[places(c.a_labels), places(c.b_labels), places(c.out_labels)],
        order=order,
    )
    with iterator:
        return np.asarray(iterator.operands[2])


def _multiplied(c: _Contraction, out: Array, groups: _Groups, options: Options) -> None:
    a, b = _of_dtype(c.a, c.dtype), _of_dtype(c.b, c.dtype)
    left = _arranged(a, c.a_labels, groups.batch, groups.rows, groups.inner)
    right = _arranged(b, c.b_labels, groups.batch, groups.inner, groups.columns)
    target = _arranged(out, c.out_labels, groups.batch, groups.rows, groups.columns)
    _, outcome = product(left, right, target, route="einsum", options=options)
    if not np.may_share_memory(target, out):
        # The result's strides do not allow three axes: it has to be copied back.
        order = groups.batch + groups.rows + groups.columns
        view = out.transpose([c.out_labels.index(x) for x in order])
        view[...] = target.reshape(view.shape)
    signal(outcome, functools.partial(np.einsum, "ij,jk"))


_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


_Choose = Callable[[str, int, int, int, int, np.dtype[Any]], Options | None]
"""Options for a route's product of batch, m, n, k, dtype; None leaves it to NumPy."""


def _is_dtype(given: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether what was passed as a dtype means this one."""
    try:
        return bool(np.dtype(given) == dtype)
    except TypeError:
        return False  # NumPy's own error


def _routed(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], choose: _Choose
) -> Any:
    if keywords.keys() - {"out", "order", "dtype", "casting"}:
        raise _LeftToNumpy
    dtype, casting = keywords.get("dtype"), keywords.get("casting", "safe")
    order = keywords.get("order", "K")
    if casting not in _CASTINGS or order not in {"K", "A", "C", "F"}:
        raise _LeftToNumpy
    given = _parsed(arguments)
    if not (dtype is None or _is_dtype(dtype, given.dtype)):
        raise _LeftToNumpy
    # To the dtype that operands have together "safe" casting leads.
    if not all(np.can_cast(x.dtype, given.dtype, casting) for x in (given.a, given.b)):
        raise _LeftToNumpy  # NumPy's own error
    sizes = given.sizes()
    whole = _unstretched(given)
    groups = _Groups.of(whole)
    if not groups.inner:
        raise _LeftToNumpy
    shape = tuple(sizes[label] for label in given.out_labels)
    out = keywords.get("out")
    if out is not None and not _accepts(out, shape, given.dtype):
        raise _LeftToNumpy

    def count(labels: Sequence[int]) -> int:
        return math.prod(sizes[x] for x in labels)

    out_labels = set(given.out_labels)
    batch, k = count(groups.batch), count(groups.inner)
    rows = tuple(x for x in groups.rows if x in out_labels)
    columns = tuple(x for x in groups.columns if x in out_labels)
    options = choose("einsum", batch, count(rows), count(columns), k, given.dtype)
    if options is None:
        raise _LeftToNumpy
    whole = _summed_out(whole)
    if out is not None and not _overlaps(out, given):
        _multiplied(whole, out, _Groups.of(whole), options)
        return out
    target = _new_output(given, order)
    _multiplied(whole, target, _Groups.of(whole), options)
    if out is None:
        return target if shape else target[()]
    out[...] = target
    return out


def handle_einsum(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None
) -> Any:
    """Answer one call of NumPy's c_einsum, which numpy.einsum ends in.

    Parameters
    ----------
    arguments : tuple
        Subscripts and operands, or operands and lists of labels.
    keywords : mapping or None
        ``out``, ``order``, ``dtype``, ``casting``.

    Returns
    -------
    object
        The result, or NotImplemented, which leaves the call to NumPy: other numbers
        of operands, no common summed label, other dtypes than are routed, and whatever
        NumPy refuses.
    """
    try:
        return _routed(arguments, keywords or {}, options_for)
    except _LeftToNumpy:
        return NotImplemented


def einsum_product(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], options: Options
) -> Any:
    """Return numpy.einsum of two operands, asked for by name: any size is multiplied.

    Parameters
    ----------
    arguments : tuple
        As for `handle_einsum`; both operands may be arrays on a device, of one dtype.
    keywords : mapping
        Likewise; no `out` on a device.
    options : Options
        Of the call.

    Returns
    -------
    object
        The result, or NotImplemented as from `handle_einsum`.
    """
    try:
        return _routed(arguments, keywords, lambda *_: options)
    except _LeftToNumpy:
        return NotImplemented
