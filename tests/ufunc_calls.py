"""Example calls of every ufunc that arrays can override, by its loops.

A call is a function ``(u, w, x)`` of the ufunc, of a converter (`twins`) and of the
operands for one of its loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from twins import Call, Side

WORDS = np.array(["one", " Two ", "3", ""])
BYTES = np.char.encode(WORDS)
FOUND = np.char.find(WORDS, "n")  # the ufuncs trust positions and widths
MASK = np.array([[True, False, True], [False, True, True]])

# Entries by kind of dtype, one row for each operand.
ENTRIES = {
    "b": ([[1, 0, 1], [0, 0, 1]], [[1, 1, 0], [0, 1, 1]]),
    "i": ([[1, 2, 3], [4, 0, 6]], [[2, 1, 3], [1, 2, 0]]),
    "f": ([[0.5, 1.5, -2.0], [0.0, np.nan, np.inf]], [[2.0, -1.0, 0.25], [3, 1, 0]]),
    "c": ([[1 + 2j, 0.5, -1j], [2, 3 - 1j, 0]], [[1j, 2.0, 1 - 1j], [1, 0, 4]]),
    "O": ([[1, 2, 3], [4, 5, 6]], [[2, 1, 3], [1, 2, 3]]),
}
ENTRIES["u"] = ENTRIES["m"] = ENTRIES["M"] = ENTRIES["i"]


def operands(ufunc: np.ufunc, loop: str) -> list[np.ndarray]:
    """Return operands of the dtypes of a loop such as ``"dd->d"``."""
    arrays = []
    for number, char in enumerate(loop.split("->")[0]):
        dtype = np.dtype(f"{char}8[D]" if char in "mM" else char)
        entries = np.array(ENTRIES[dtype.kind][number % 2])
        arrays.append(entries.astype(dtype))
    if ufunc.signature:
        square = {"n": 3, "m": 3, "k": 3}
        sides = ufunc.signature.split("->")[0].replace("?", "").strip("()").split("),(")
        arrays = [
            np.resize(x, [square[side] for side in names.split(",")])
            for x, names in zip(arrays, sides, strict=True)
        ]
    return arrays


def _outs(u: np.ufunc, make: Callable[..., Any], x: list[Any]) -> tuple[Any, ...]:
    """Return what the results of a call can be written to."""
    with np.errstate(all="ignore"):
        results = u(*x)
    results = results if u.nout > 1 else (results,)
    return tuple(make(np.zeros_like(result)) for result in results)


# Of every loop.
CALLS = [
    lambda u, w, x: u(*map(w, x)),
    lambda u, w, x: u(*map(w, x[:-1]), w.plain(x[-1])) if u.nin > 1 else u(w(x[0][0])),
    lambda u, w, x: u(*(w(entry.flat[1]) for entry in x)),
]
METHODS = [
    lambda u, w, x: u.reduce(w(x[0])),
    lambda u, w, x: u.accumulate(w(x[0]), axis=-1),
    lambda u, w, x: u.reduceat(w(x[0]), w([0, 1]), axis=1),
    lambda u, w, x: u.outer(*map(w, x)),
    lambda u, w, x: u.at(w(x[0][0]), w([0, 2, 0]), *(w(y[0]) for y in x[1:])),
]
# Of the first loop and of that of float64.
KEYWORDS = [
    lambda u, w, x: u(*map(w, x), out=_outs(u, w, x)),
    lambda u, w, x: u(*map(w, x), out=_outs(u, w.plain, x)),
    lambda u, w, x: u(*map(w.plain, x), out=_outs(u, w, x)),
    lambda u, w, x: u(*map(w, x), *_outs(u, w, x)),
    lambda u, w, x: u(*map(w, x), *_outs(u, w.plain, x)[:1]),
    lambda u, w, x: u(*map(w, x), out=(None,) * (u.nout - 1) + _outs(u, w, x)[-1:]),
    lambda u, w, x: (y := w(x[0]), u(y, *map(w, x[1:]), out=(y,) * u.nout)),
    lambda u, w, x: (y := w(x[0]), u(*[y] * u.nin, out=(y, *[None] * (u.nout - 1)))),
    lambda u, w, x: u(*map(w, x), out=_outs(u, w, x), where=w(MASK)),
    lambda u, w, x: u(*map(w, x), out=_outs(u, w, x), where=w.plain(MASK[0])),
    lambda u, w, x: u(*map(w.plain, x), out=_outs(u, w.plain, x), where=w(MASK)),
    lambda u, w, x: u(*map(w, x), dtype="f4"),
    lambda u, w, x: u(*map(w, x), dtype="f8", casting="no"),
    lambda u, w, x: u(*map(w, x), dtype=object),
    lambda u, w, x: u(*map(w, x), order="F", subok=False),
    lambda u, w, x: u(w(x[0].T), *(w(y.T) for y in x[1:])),
    lambda u, w, x: u(*(w(y[..., ::2]) for y in x)),
    lambda u, w, x: u(w(x[0]), *(y.tolist() for y in x[1:])),
    lambda u, w, x: u(w(x[0]), *(y.flat[0] for y in x[1:])),
    lambda u, w, x: u(w(x[0]), *(y.flat[0].item() for y in x[1:])),
    lambda u, w, x: u(*(y.tolist() for y in x[:-1]), w(x[-1])),
    lambda u, w, x: u(*(y.flat[0] for y in x[:-1]), w(x[-1])),
    lambda u, w, x: u(*(w(y[:0]) for y in x)),
    lambda u, w, x: u(*(w(y[:1]) for y in x)),
    lambda u, w, x: u(w(x[0][:, :2]), *(w(y[..., :1]) for y in x[1:])),
    lambda u, w, x: u(w(x[0][:, :2]), *map(w, x[1:])),
    lambda u, w, x: u(*map(w, x), out=w(np.zeros(2, "i1"))),
    lambda u, w, x: u(*map(w, x), where=3, what=4),
    lambda u, w, x: u(w(x[0]), *["no"] * (u.nin - 1)),
    lambda u, w, x: u(*map(w, x), *map(w, x), *map(w, x), *map(w, x)),
    lambda u, w, x: u.reduce(w(x[0]), axis=None),
    lambda u, w, x: u.reduce(w(x[0]), axis=(0, 1), keepdims=True),
    lambda u, w, x: u.reduce(w(x[0]), 1, None, w(np.zeros(2, x[0].dtype))),
    lambda u, w, x: u.reduce(w(x[0]), axis=1, out=w.plain(np.zeros(2, x[0].dtype))),
    lambda u, w, x: u.reduce(w.plain(x[0]), axis=1, out=w(np.zeros(2, x[0].dtype))),
    lambda u, w, x: u.reduce(w(x[0]), axis=1, dtype="f4"),
    lambda u, w, x: u.reduce(w(x[0]), axis=1, initial=1, where=w(MASK)),
    lambda u, w, x: u.reduce(w.plain(x[0]), axis=1, initial=1, where=w(MASK)),
    lambda u, w, x: u.reduce(w(x[0][:0])),
    lambda u, w, x: u.reduce(w(x[0]), axis=7),
    lambda u, w, x: u.accumulate(w(x[0]), out=w(np.zeros_like(x[0]))),
    lambda u, w, x: u.accumulate(w.plain(x[0]), 0, None, w(np.zeros_like(x[0]))),
    lambda u, w, x: u.reduceat(w(x[0]), [1, 0], out=w(np.zeros_like(x[0]))),
    lambda u, w, x: u.reduceat(w(x[0]), [0, 9]),
    lambda u, w, x: u.outer(w(x[0]), *(y[0].tolist() for y in x[1:])),
    lambda u, w, x: u.outer(*map(w, x), dtype="f4"),
    lambda u, w, x: u.outer(x[0].tolist(), *map(w, x[1:])),
    lambda u, w, x: u.at(w(x[0]), (slice(None), w([0, 0])), *(2 for _ in x[1:])),
    lambda u, w, x: u.at(w.plain(x[0][0]), [0, 0], *(w(y[0, :2]) for y in x[1:])),
    lambda u, w, x: u.at(w(x[0][0]), [0, 9], *(1 for _ in x[1:])),
]
# Of the ufuncs with a signature.
PRODUCTS = [
    lambda u, w, x: u(*(w([y, 2 * y]) for y in x)),
    lambda u, w, x: u(w([x[0]]), w.plain([x[1], 2 * x[1]])),
    lambda u, w, x: u(w(x[0][:2]), w(x[1])),
    lambda u, w, x: u(*map(w, x), axes=[(-1, -2)[-y.ndim :] for y in (*x, u(*x))]),
    lambda u, w, x: u(*map(w, x), axis=0),
    lambda u, w, x: u(*map(w, x), keepdims=True),
    lambda u, w, x: u(w(x[0]), 2.0),
]

# The ufuncs of strings have no table of loops.
_STRINGS = {
    "isalnum isalpha isdigit islower isspace istitle isupper str_len": [
        lambda u, w: u(w(WORDS)),
        lambda u, w: u(w(BYTES)),
        lambda u, w: u(w(WORDS, "T")),
        lambda u, w: u(w(WORDS), out=w(np.zeros(4, "i8"))),
        lambda u, w: u(w(WORDS), where=w([True, False] * 2), out=w.plain([7] * 4)),
        lambda u, w: u(w([1.0])),
    ],
    "isdecimal isnumeric": [lambda u, w: u(w(WORDS)), lambda u, w: u(w(BYTES))],
    "find rfind index rindex count startswith endswith": [
        lambda u, w: u(w(WORDS), w(["o", "w", "3", ""]), 0, 9),
        lambda u, w: u(WORDS.tolist(), "", w([0, 1, 0, 0]), w(9)),
        lambda u, w: u(w(BYTES), b"T", 0, 9),
        lambda u, w: u(w(WORDS, "T"), "o", w(0), 9),
        lambda u, w: u(w(WORDS), 1.0, 0, 9),
    ],
    "_lstrip_whitespace _rstrip_whitespace _strip_whitespace": [
        lambda u, w: u(w(WORDS)),
        lambda u, w: u(w(BYTES), out=w(BYTES)),
    ],
    "_lstrip_chars _rstrip_chars _strip_chars": [
        lambda u, w: u(w(WORDS), "o"),
        lambda u, w: u(WORDS, w(["o", "w", "3", ""])),
    ],
    "_center _ljust _rjust": [
        lambda u, w: u(w(WORDS), w([5, 6, 7, 8]), "*", out=w(np.zeros(4, "U8"))),
        lambda u, w: u(w(WORDS), 5, "*"),
    ],
    "_zfill": [lambda u, w: u(w(WORDS), w([6] * 4), out=w(np.zeros(4, "U8")))],
    "_expandtabs": [lambda u, w: u(w(["a\tb"]), w(3), out=w(np.zeros(1, "U8")))],
    "_expandtabs_length": [lambda u, w: u(w(["a\tb"]), w(3))],
    "_replace": [
        lambda u, w: u(w(WORDS), "o", w(["00"]), 1, out=w(np.zeros(4, "U9"))),
    ],
    "_partition _rpartition": [lambda u, w: u(w(WORDS), "n")],
    "_partition_index _rpartition_index": [
        lambda u, w: u(w(WORDS), "n", w(FOUND), out=[w(np.zeros(4, "U9"))] * 3),
        lambda u, w: u(w(WORDS), "n", w(FOUND), *(w(np.zeros(4, "U9")) for _ in "abc")),
    ],
    "_slice": [lambda u, w: u(w(WORDS), w([1, 0, 0, 0]), 2, 1)],
}
STRINGS = {name: calls for names, calls in _STRINGS.items() for name in names.split()}


def calls_of(ufunc: np.ufunc) -> Iterator[tuple[Call, bool]]:
    """Give calls of a ufunc, each with whether to look at shared memory."""
    for call in STRINGS.get(ufunc.__name__, []):
        yield functools.partial(_apply_string, call, ufunc), True
    for loop in ufunc.types:
        x = operands(ufunc, loop)
        first = loop == ufunc.types[0] or loop.startswith("d" * ufunc.nin)
        calls = CALLS + METHODS + (PRODUCTS if ufunc.signature else [])
        for call in calls + (KEYWORDS if first else []):
            yield functools.partial(_apply, call, ufunc, x, loop), first


def _apply(
    call: Callable[..., Any], ufunc: np.ufunc, x: list[Any], loop: str, w: Side
) -> Any:
    return call(ufunc, w, x)


def _apply_string(call: Callable[..., Any], ufunc: np.ufunc, w: Side) -> Any:
    return call(ufunc, w)
