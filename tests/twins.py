"""Run one call with ndarrays and with their OzArray twins; tell what differs.

A call is a function of a converter ``w``: ``w(x)`` is a fresh ndarray of x's entries
on one side and an OzArray of them on the other, ``w.plain(x)`` an ndarray on both.
Besides the result, `differences` compares what became of the arguments, which results
are arguments or share memory with them (by writing to each and looking at all), what is
not writeable, the exception, and the categories of warnings.
"""

from __future__ import annotations

import functools
import linecache
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from np_ozaki import OzArray

Call = Callable[["Side"], Any]


class Side:
    """Converter of one side; it remembers the arrays that it made.

    Parameters
    ----------
    array_type : type
        `numpy.ndarray` or `OzArray`.
    folder : Path, optional
        Where calls may write files, as ``w.folder``.
    """

    def __init__(self, array_type: type, folder: Path | None = None) -> None:
        self.array_type = array_type
        self.folder = folder
        self.asked = True
        self.made: list[Any] = []
        self.plains: list[Any] = []
        self.leaves: list[Any] = []
        self.itself: list[str] = []

    def __call__(self, x: Any, dtype: Any = None) -> Any:
        """Return a fresh array of this side's type."""
        array = np.array(x, dtype=dtype)
        if self.array_type is OzArray:
            array = OzArray(array, copy=False)
        self.made.append(array)
        return array

    def plain(self, x: Any, dtype: Any = None) -> np.ndarray:
        """Return a fresh ndarray, whatever the side."""
        array = np.array(x, dtype=dtype)
        self.made.append(array)
        self.plains.append(array)
        return array

    def file(self, content: bytes) -> Path:
        """Return the path of a file with this content."""
        path = self.folder / "given"
        path.write_bytes(content)
        return path


class Spy(np.ndarray):
    """An ndarray that notes which functions of NumPy were dispatched to it."""

    seen: set[Any] = set()  # noqa: RUF012 (one set for all, views too)

    def __array_function__(self, func, types, args, kwargs):
        self.seen.add(func)
        return super().__array_function__(func, types, args, kwargs)


class SpySide(Side):
    """Converter to spies."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(Spy, folder)
        Spy.seen.clear()

    def __call__(self, x: Any, dtype: Any = None) -> Any:
        """Return a fresh spy."""
        return np.array(x, dtype=dtype).view(Spy)


class _Close:
    """Entries of a product, equal up to an engine's rounding."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        a, b = self.array, getattr(other, "array", None)
        if b is None or a.shape != b.shape:
            return False
        scale = np.max(np.abs(a), initial=1.0, where=np.isfinite(a))
        return np.allclose(a, b, rtol=1e-13, atol=1e-13 * scale, equal_nan=True)

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.array.tolist())


def raises(call: Call) -> Call:
    """Mark a call that NumPy refuses."""
    call.raises = True
    return call


def varies(call: Call) -> Call:
    """Mark a call that some versions of NumPy refuse."""
    call.raises = "it depends"
    return call


def unasked(call: Call) -> Call:
    """Mark a call in which NumPy asks no array, so that ndarrays may come back."""
    call.unasked = True
    return call


def since(version: str, *calls: Call) -> list[Call]:
    """Mark calls of what older versions of NumPy do not have."""
    for call in calls:
        call.since = tuple(map(int, version.split(".")))
    return list(calls)


def marks(call: Call, mark: str) -> Any:
    """Return what was noted of a call, or of the function that a partial one calls."""
    written = call.args[0] if isinstance(call, functools.partial) else call
    return getattr(written, mark, None)


def is_here(call: Call) -> bool:
    """Return whether the running NumPy has what a call needs."""
    running = tuple(map(int, np.__version__.split(".")[:2]))
    return running >= (marks(call, "since") or (0,))


def place(call: Call) -> str:
    """Return file, line and first source line of a call, and its operands if any."""
    parts = call.args if isinstance(call, functools.partial) else (call,)
    said = []
    for part in parts:
        if code := getattr(part, "__code__", None):
            line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
            said.append(f"{Path(code.co_filename).name}:{code.co_firstlineno}: {line}")
        elif isinstance(part, np.ndarray):
            said.append(f"{part.dtype}{part.shape}")
        elif isinstance(part, str):
            said.append(part)
    return " ".join(said)


def differences(
    call: Call, folder: Path | None = None, close: bool = False, sharing: bool = True
) -> list[str]:
    """Return what an OzArray does otherwise than the ndarray in a call.

    Parameters
    ----------
    call : callable
        Function of a `Side`; one that NumPy refuses is marked by `raises`.
    folder : Path, optional
        For the call's files.
    close : bool
        Whether floats need only be close: results of matrix products.
    sharing : bool
        Whether to look for shared memory by writing to results and arguments.

    Returns
    -------
    list of str
        Empty where the twins agree.
    """
    outcomes = []
    for array_type in (np.ndarray, OzArray):
        below = None
        if folder is not None:
            below = folder / array_type.__name__
            below.mkdir(exist_ok=True)
        side = Side(array_type, below)
        side.asked = not marks(call, "unasked")
        outcomes.append(_outcome(call, side, close, sharing))
    want, got = outcomes
    if want == got:
        return []
    error, theirs = want["raised"], got["raised"]
    if error is not None and theirs is not None and issubclass(theirs, error):
        got["raised"] = error
    if error is not theirs and (error is None or theirs is None):
        # What follows a result that one side lacks says nothing more.
        what = f"{theirs.__name__}: {got['text']}" if theirs else "no error"
        instead = f"{error.__name__}: {want['text']}" if error else "a result"
        return [f"{what}, where NumPy gives {instead}"]
    said = []
    for key in want:
        if key == "text" or want[key] == got.get(key):
            continue
        if said and key.startswith("all after"):
            break  # what one write shows, the others show as well
        ours, numpys = _where_different(got.get(key), want[key])
        said.append(f"{key}: {ours}, NumPy: {numpys}")
    return said


def _where_different(a: Any, b: Any) -> tuple[str, str]:
    """Return the first parts that differ, cut to a length that can be read."""
    while type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        a, b = next(pair for pair in zip(a, b, strict=True) if pair[0] != pair[1])
    return f"{a}"[:200], f"{b}"[:200]


def _outcome(call: Call, side: Side, close: bool, sharing: bool) -> dict[str, Any]:
    """Return all that can be seen of a call."""
    seen: dict[str, Any] = {"raised": None, "text": "", "result": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(side)
        except Exception as error:  # noqa: BLE001 (which one is what we compare)
            public = (c for c in type(error).__mro__ if "._" not in c.__module__)
            seen["raised"], seen["text"] = next(public), str(error)
        else:
            seen["result"] = _describe(result, side, close)
            seen["results that are arguments"] = side.itself
    seen["warnings"] = {w.category.__name__ for w in caught}
    seen["arguments"] = [_entries(x, close) for x in side.made]
    if sharing and seen["raised"] is None:
        with warnings.catch_warnings():
            # A result of broadcasting warns of being written to.
            warnings.simplefilter("ignore")
            _write_everywhere(side, seen, close)
    return seen


def _describe(x: Any, side: Side, close: bool) -> Any:
    """Return a result in terms that are the same for both sides."""
    kind = type(x)
    side.itself += [f"argument {i}" for i, given in enumerate(side.made) if x is given]
    # An ndarray is right where NumPy asked no array, and where it is what was given.
    plain = side.plains if side.asked else [x]
    if kind is side.array_type or (
        kind is np.ndarray and any(x is given for given in plain)
    ):
        side.leaves.append(x)
        return ("array", *_entries(x, close))
    if kind is np.ndarray:
        return ("plain ndarray", *_entries(x, close))
    if issubclass(kind, np.ma.MaskedArray):
        return (kind.__name__, str(x.dtype), repr(x))
    if issubclass(kind, np.ndarray):
        return (kind.__name__, *_entries(x, close))
    if issubclass(kind, (tuple, list)):
        return (kind.__name__, *(_describe(item, side, close) for item in x))
    if kind is dict:
        return {key: _describe(value, side, close) for key, value in x.items()}
    if close and issubclass(kind, (float, complex, np.inexact)):
        return (kind.__name__, _Close(np.asarray(x)))
    return (kind.__name__, repr(x))


def _entries(x: Any, close: bool = False) -> tuple[Any, ...]:
    """Return shape, type, memory order and entries of an array."""
    flags = x.flags
    layout = {
        "C": flags.c_contiguous,
        "F": flags.f_contiguous,
        "writeable": flags.writeable,
    }
    return x.shape, x.dtype, layout, _values(x, close)


def _values(x: Any, close: bool) -> Any:
    """Return the entries of an array, to the last bit unless `close`."""
    array = np.array(x)
    inexact = close and array.dtype.kind in "fc"
    return _Close(array) if inexact else repr(array.tolist())


def _write_everywhere(side: Side, seen: dict[str, Any], close: bool) -> None:
    """Write to every result and argument in turn, and look at all after each."""
    arrays = {f"result {i}": x for i, x in enumerate(side.leaves)}
    arrays |= {f"argument {i}": x for i, x in enumerate(side.made)}
    if not side.leaves:
        return
    for number, (name, target) in enumerate(arrays.items()):
        try:
            target[...] = _other_entry(target, 71 + number)
        except Exception as error:  # noqa: BLE001 (which one is what we compare)
            after = type(error).__name__
        else:
            after = [_values(x, close) for x in arrays.values()]
        seen[f"all after writing to {name}"] = after


def _other_entry(x: Any, number: int) -> Any:
    """Return what to write to x, most likely not there yet."""
    kind = x.dtype.kind
    if kind == "b":
        return not x.size or not np.array(x).flat[0]
    if kind == "V":
        return np.full((), number, "u1").astype(x.dtype) if x.dtype.names else b"w"
    if kind in "mM":
        return np.array(number, "i8").astype(x.dtype)
    return str(number) if kind in "SUTO" else number
