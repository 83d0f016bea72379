"""What NumPy returned, as OzArrays: views stay views, targets stay themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.array.core import Core, mapped
from np_ozaki.array.storage import address

__all__ = ["Passed", "adopt"]


_OF_CALLABLES = frozenset({"apply_over_axes", "fromfunction"})
"""Functions that return what a caller's function returned, and may keep."""


class Passed:
    """The arguments of one call of NumPy on the host, and what came back.

    Parameters
    ----------
    name : str
        Of the function, for errors and counters.
    written : sequence of Core
        Arguments that the function writes to; all others it gets read-only, so that no
        write goes unseen.
    """

    def __init__(self, name: str, written: Sequence[Core] = ()) -> None:
        self._name = name
        self._written = {id(x): x for x in written}
        # By the identity of what NumPy gets: the Core, or None for others' arrays.
        self._given: dict[int, tuple[NDArray[Any], Core | None]] = {}
        self._cores: list[Core] = []

    def ndarray(self, leaf: Any) -> Any:
        """Return what NumPy gets for one argument."""
        if isinstance(leaf, Core):
            view = leaf._read_unasked(self._name)
            if id(leaf) not in self._written and view.flags.writeable:
                view = view.view()
                view.flags.writeable = False
            self._given[id(view)] = view, leaf
            self._cores.append(leaf)
            return view
        if isinstance(leaf, np.ndarray):
            self._given[id(leaf)] = leaf, None
        return leaf

    def _has_objects(self) -> bool:
        """Return whether arrays may be among the entries."""
        return any(view.dtype.hasobject for view, _ in self._given.values())

    def result(
        self,
        cls: type[Core],
        leaf: Any,
        *,
        read_only: bool = False,
        shared: bool = False,
    ) -> Any:
        """Return one result as an OzArray, if it is an ndarray.

        Parameters
        ----------
        cls : type
            Of OzArrays.
        leaf : object
            What NumPy returned.
        read_only : bool, optional
            Whether the function means its views to be read-only.
        shared : bool, optional
            Whether new arrays may be others', too.

        Returns
        -------
        object
            The very argument that was written to or returned, a view, or a new array.
        """
        if id(leaf) in self._given:
            view, core = self._given[id(leaf)]
            if core is None and not self._cores and type(view) is np.ndarray:
                return cls._sharing(view)  # numpy.asarray(x, like=...)
            return view if core is None else core
        if type(leaf) is not np.ndarray:
            return leaf
        if shared or self._name in _OF_CALLABLES or self._has_objects():
            return cls._sharing(leaf)
        for core in self._cores:
            if np.may_share_memory(leaf, core._storage.host):
                if core._view.flags.writeable and not read_only:
                    leaf = _writeable(leaf, core)
                return core._see(leaf)
        others = (view for view, core in self._given.values() if core is None)
        if any(np.may_share_memory(leaf, view) for view in others):
            return cls._sharing(leaf)
        return cls._own(leaf)


def _writeable(view: NDArray[Any], core: Core) -> NDArray[Any]:
    """Return a read-only view of a storage as one that its array may write through."""
    try:
        view.flags.writeable = True
    except ValueError:
        # A view of a read-only view of another dtype: made anew from the memory.
        flat = core._storage.bytes
        offset = address(view) - address(flat)
        return np.ndarray(view.shape, view.dtype, flat.data, offset, view.strides)
    return view


def adopt(
    cls: type[Core], passed: Passed, result: Any, *, read_only: bool = False
) -> Any:
    """Return a result with every ndarray in it as an OzArray.

    Parameters
    ----------
    cls : type
        Of OzArrays.
    passed : Passed
        The call.
    result : object
        Lists and tuples are looked into.
    read_only : bool, optional
        As for `Passed.result`.

    Returns
    -------
    object
        Of the same structure.
    """
    return mapped(result, lambda leaf: passed.result(cls, leaf, read_only=read_only))
