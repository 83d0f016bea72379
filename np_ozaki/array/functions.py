"""NumPy's functions of OzArrays (NEP 18).

Products go to the engine, views ask for no data, all else runs on the host and is
counted.  There NumPy gets read-only arrays, but for the arguments that it is known to
write to: a write that nobody knew of would be an error, not a stale copy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from np_ozaki import context
from np_ozaki.array.adopt import Passed, adopt
from np_ozaki.array.contractions import FUNCTIONS
from np_ozaki.array.core import Core, mapped, written_on_host
from np_ozaki.array.shapes import copied, ravel, reshape

__all__ = ["call", "count_on_host"]

Function = Callable[..., Any]

_VIEWS: Final = frozenset(
    """atleast_1d atleast_2d atleast_3d array_split broadcast_arrays broadcast_to
    diagonal dsplit expand_dims flip fliplr flipud hsplit imag linalg.diagonal
    linalg.matrix_transpose matrix_transpose moveaxis permute_dims real rollaxis rot90
    split squeeze swapaxes transpose unstack vsplit
    lib.stride_tricks.sliding_window_view""".split()
)
"""Functions whose results are views, where they are, whatever the data."""

_SHAPES: Final = frozenset(
    """can_cast common_type empty_like iscomplexobj isrealobj may_share_memory ndim
    ones_like result_type shape shares_memory size zeros_like""".split()
)
"""Functions that look at shapes, dtypes and addresses only."""

_OF_ARRAYS: Final = frozenset(
    """atleast_1d atleast_2d atleast_3d broadcast_arrays can_cast common_type
    may_share_memory result_type shares_memory""".split()
)
"""Those that look so at all their arguments; others at the first."""

_READ_ONLY: Final = frozenset(
    """broadcast_arrays broadcast_to diag diagonal linalg.diagonal
    lib.stride_tricks.sliding_window_view""".split()
)
"""Functions whose views NumPy makes read-only."""

_WRITES: Final[Mapping[str, str]] = {
    "copyto": "dst",
    "fill_diagonal": "a",
    "lib.recfunctions.assign_fields_by_name": "dst",
    "lib.recfunctions.recursive_fill_fields": "output",
    "place": "arr",
    "put": "a",
    "put_along_axis": "arr",
    "putmask": "a",
}
"""Functions that write to an argument, and which."""

_OVERWRITES: Final[Mapping[str, tuple[str, str, bool]]] = {
    "nan_to_num": ("x", "copy", False),
    **dict.fromkeys(
        (
            "median",
            "nanmedian",
            "percentile",
            "nanpercentile",
            "quantile",
            "nanquantile",
        ),
        ("a", "overwrite_input", True),
    ),
}
"""Functions that write to an argument where another has a value."""

_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "busday_count": (*"begindates enddates weekmask holidays busdaycal out".split(),),
    "busday_offset": (*"dates offsets roll weekmask holidays busdaycal out".split(),),
    "concatenate": ("arrays", "axis", "out"),
    "copyto": ("dst", "src"),
    "dot": ("a", "b", "out"),
    "is_busday": (*"dates weekmask holidays busdaycal out".split(),),
    "putmask": ("a", "mask", "values"),
}
"""Positional arguments of builtins, which have no signature before NumPy 2.4."""


@functools.cache
def _name(func: Function) -> str:
    """Return a function's name below numpy."""
    module = func.__module__.removeprefix("numpy").lstrip(".")
    return f"{module}.{func.__name__}" if module else func.__name__


@functools.cache
def _parameters(func: Function) -> tuple[str, ...]:
    """Return the names of positional arguments, as far as they can be known."""
    name = _name(func)
    if name in _PARAMETERS:
        return _PARAMETERS[name]
    try:
        return tuple(inspect.signature(func).parameters)
    except ValueError:
        return ()


_signature = functools.cache(inspect.signature)


def _argument(func: Function, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Return an argument that was passed by name or position, or None."""
    if name in kwargs:
        return kwargs[name]
    parameters = _parameters(func)
    if name in parameters and parameters.index(name) < len(args):
        return args[parameters.index(name)]
    return None


def _written(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments that a function writes to."""
    out = _argument(func, "out", args, kwargs)
    found = list(out) if isinstance(out, tuple) else [out]
    name = _name(func)
    if name in _WRITES:
        found.append(_argument(func, _WRITES[name], args, kwargs))
    if name in _OVERWRITES:
        which, condition, value = _OVERWRITES[name]
        asked = _argument(func, condition, args, kwargs)
        if asked is not None and bool(asked) is value:
            found.append(_argument(func, which, args, kwargs))
    return tuple(x for x in found if x is not None)


def count_on_host(name: str) -> None:
    """Count a function that runs on the host.

    Parameters
    ----------
    name : str
        For the counters.
    """
    for recorder in context.recorders():
        recorder.record_on_host(name)


def call(
    cls: type[Core], func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Answer a call of a NumPy function.

    Parameters
    ----------
    cls : type
        Of the results.
    func : callable
        NumPy's public function.
    args : tuple
        At least one argument is a Core, or `like` was.
    kwargs : dict
        As passed, without `like`.

    Returns
    -------
    object
        As NumPy's, with OzArrays for ndarrays.
    """
    name = _name(func)
    special = FUNCTIONS.get(func) or _ON_DEVICE.get(name)
    if special is not None:
        result = _tried(special, cls, args, kwargs)
        if result is not NotImplemented:
            return result
    if name in _VIEWS or name in _SHAPES:
        return _without_data(cls, func, args, kwargs)
    return _on_host(cls, func, args, kwargs)


def _tried(
    special: Function, cls: type[Core], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call an own version; calls that do not fit its signature are NumPy's."""
    if kwargs or len(args) != 2:  # two operands fit every product
        try:
            _signature(special).bind(cls, *args, **kwargs)
        except TypeError:
            return NotImplemented
    return special(cls, *args, **kwargs)


def _without_data(
    cls: type[Core], func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function that copies no data on host memory that need not be current."""
    cores: list[Core] = []
    others: list[Any] = []
    name = _name(func)

    def twin(leaf: Any) -> Any:
        if not isinstance(leaf, Core):
            others.append(leaf)
            return leaf
        cores.append(leaf)
        return leaf._view

    def current(leaf: Any) -> Any:
        if isinstance(leaf, Core):
            leaf._read_unasked(name)
        return twin(leaf)

    # Where to split, which axis, what shape: these are data.
    arrays = len(args) if name in _OF_ARRAYS else 1
    plain = (
        (*mapped(args[:arrays], twin), *mapped(args[arrays:], current)),
        mapped(kwargs, current),
    )
    result = func(*plain[0], **plain[1])

    def wrapped(leaf: Any) -> Any:
        if type(leaf) is not np.ndarray or any(leaf is x for x in others):
            return leaf
        for core in cores:
            if leaf is core._view:
                return core
        for core in cores:
            if leaf.base is not None and np.may_share_memory(leaf, core._storage.host):
                return core._see(leaf)
        theirs = (x for x in others if isinstance(x, np.ndarray))
        if any(np.may_share_memory(leaf, x) for x in theirs):
            return cls._sharing(leaf)
        return cls._own(leaf)

    return mapped(result, wrapped)


def _on_host(
    cls: type[Core], func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    name = _name(func)
    count_on_host(name)
    written = _written(func, args, kwargs)
    passed = Passed(name, written)
    # Before anything is held for writing: to read is to wait for others' locks.
    plain = mapped(args, passed.ndarray), mapped(kwargs, passed.ndarray)
    with written_on_host(written):
        result = func(*plain[0], **plain[1])
    return adopt(cls, passed, result, read_only=name in _READ_ONLY)


# ---- Where the data are ----


def _copy(cls: type[Core], a: Any, order: Any = "K", subok: bool = False) -> Any:
    del cls, subok  # an OzArray has no subclasses of ndarray
    return copied(a, order) if isinstance(a, Core) else NotImplemented


def _reshape(
    cls: type[Core], a: Any, /, shape: Any, order: Any = "C", *, copy: Any = None
) -> Any:
    del cls
    how = {} if copy is None else {"copy": copy}
    return reshape(a, (shape,), order, **how) if isinstance(a, Core) else NotImplemented


def _ravel(cls: type[Core], a: Any, order: Any = "C") -> Any:
    del cls
    return ravel(a, order) if isinstance(a, Core) else NotImplemented


_ON_DEVICE: Final[Mapping[str, Function]] = {
    "copy": _copy,
    "ravel": _ravel,
    "reshape": _reshape,
}
