"""Strict mode: what would be converted or copied to the host unasked is an error."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from np_ozaki.config import config
from np_ozaki.errors import ConversionError, refusal

__all__ = ["check_conversion", "strict"]

_chosen: contextvars.ContextVar[bool | None] = contextvars.ContextVar(
    "np_ozaki_strict", default=None
)


@contextlib.contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Refuse implicit conversions of OzArrays in this context.

    Parameters
    ----------
    on : bool, optional
        False allows them again inside a strict context, or where ``NP_OZAKI_STRICT``
        is set.

    Raises
    ------
    ConversionError
        Inside: where an OzArray would become an ndarray without being asked by name
        (``numpy.asarray``, and what calls it, SciPy for one), or data would come from a
        device because a function of NumPy runs on the host; a TypeError.

    Yields
    ------
    None

    Notes
    -----
    ``copy_to_host()``, ``tolist()``, ``item()``, ``float(x)`` and printing ask by name.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> with np_ozaki.strict():
    ...     np.asarray(np_ozaki.OzArray([1.0]))
    Traceback (most recent call last):
    np_ozaki.errors.ConversionError: numpy.asarray='OzArray': implicit conversions are \
errors in strict mode; call copy_to_host() where a copy is meant
    """
    token = _chosen.set(bool(on))
    try:
        yield
    finally:
        _chosen.reset(token)


def check_conversion(what: str, value: str) -> None:
    """Refuse an implicit conversion in strict mode.

    Parameters
    ----------
    what : str
        Function that would convert.
    value : str
        What it would convert.

    Raises
    ------
    ConversionError
        In strict mode.
    """
    chosen = _chosen.get()
    if config().strict if chosen is None else chosen:
        limit = "implicit conversions are errors in strict mode"
        remedy = "call copy_to_host() where a copy is meant"
        raise ConversionError(refusal(what, value, limit, remedy))
