"""Arrays that nobody holds any more: what NumPy is given then is its own."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_REFERENCES"]


class _Probe:
    """Counts the references to itself while NumPy asks for an array."""

    seen = 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        _Probe.seen = sys.getrefcount(self)
        return np.empty(0)


def _most_references() -> int:
    """Return how often a temporary is referred to in `__array__`, or 0 if unknown.

    Interpreters that lend references, or count none, cannot tell.
    """
    try:
        np.asarray(_Probe())
        temporary = _Probe.seen
        named = _Probe()
        np.asarray(named)
    except AttributeError:
        return 0
    return temporary if _Probe.seen == temporary + 1 else 0


MOST_REFERENCES = _most_references()
"""References that `sys.getrefcount` sees in `__array__` of an array that has no name.

Measured once, by an array with a name and one without.
"""
