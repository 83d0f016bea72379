"""What engines have made of operands, kept for later products with the same operand.

A `Prepared` belongs to one array as its entries are now, in one role; whoever owns both
closes it when the entries have changed.  It knows no address and reads no entry.  All
of them share a shelf for each place, the host or a device, which gives up the values
that were used longest ago where a product's limit asks for it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from np_ozaki import context

__all__ = [
    "HOST",
    "NO_KEEPER",
    "UNPREPARED",
    "Keeper",
    "Name",
    "Pair",
    "Prepared",
    "Value",
    "WatchedKeeper",
    "drop_prepared",
    "find_all",
    "forget",
    "prepared_bytes",
]

HOST = "cpu"
"""The place of what lies in host memory; a device has a name of its own."""

Name = tuple[Hashable, ...]
"""Of a value, as for `Keeper.find`."""

Value = tuple[Any, ...]


class _Kept:
    """A value on the shelf; without content once it was given up."""

    __slots__ = ("content", "is_operand", "nbytes", "place")

    def __init__(
        self, content: Value, place: str, nbytes: int, is_operand: bool
    ) -> None:
        self.content: Value | None = content
        self.place = place
        self.nbytes = nbytes
        self.is_operand = is_operand


Values = dict[tuple[Hashable, ...], _Kept]


class _Shelf:
    """The order in which values were used, and their bytes, by place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, OrderedDict[_Kept, None]] = {}
        self._held: dict[str, int] = {}
        # Of owners that are no more.  These come from the garbage collector, at any
        # time and inside any lock: others take them off the shelf.
        self.orphans: deque[_Kept] = deque()

    def after_fork(self) -> None:
        """Begin with a fresh lock: who held the parent's may have been half done."""
        self._lock = threading.Lock()
        for place, order in self._places.items():
            self._held[place] = sum(kept.nbytes for kept in order)

    def put(
        self, kept: _Kept, limit: int, values: Values, key: Any, of: Prepared
    ) -> None:
        """Keep a value that `of` has not been closed under."""
        with self._lock:
            self._sweep()
            if of.values is not values:
                return
            self._take(values.pop(key, None))
            evicted = self._make_room(kept.place, kept.nbytes, limit)
            values[key] = kept
            self._places.setdefault(kept.place, OrderedDict())[kept] = None
            self._held[kept.place] = self._held.get(kept.place, 0) + kept.nbytes
        _count(made=int(kept.is_operand), evicted=evicted)

    def make_room(self, place: str, nbytes: int, limit: int) -> None:
        """Give up values used longest ago, so that so many bytes more fit."""
        with self._lock:
            self._sweep()
            evicted = self._make_room(place, nbytes, limit)
        _count(evicted=evicted)

    def use(self, kept: _Kept) -> None:
        """Note that a value was used just now."""
        with self._lock:
            order = self._places[kept.place]
            if kept in order:
                order.move_to_end(kept)

    def close(self, of: Prepared) -> None:
        """Forget all values of one operand."""
        with self._lock:
            values, of.values = of.values, {}
            for kept in values.values():
                self._take(kept)

    def drop(self, place: str) -> int:
        """Give up all values of a place; return their bytes."""
        with self._lock:
            self._sweep()
            held = self._held.get(place, 0)
            evicted = self._make_room(place, 0, -1)
        _count(evicted=evicted)
        return held

    def held(self) -> dict[str, int]:
        """Return the bytes of each place that holds some."""
        with self._lock:
            self._sweep()
            return {place: n for place, n in self._held.items() if n}

    # With the lock held -------------------------------------------------------------

    def _sweep(self) -> None:
        while self.orphans:
            self._take(self.orphans.popleft())

    def _take(self, kept: _Kept | None) -> None:
        if kept is None:
            return
        kept.content = None
        order = self._places[kept.place]
        if kept in order:
            del order[kept]
            self._held[kept.place] -= kept.nbytes

    def _make_room(self, place: str, nbytes: int, limit: int) -> int:
        order, evicted = self._places.get(place, OrderedDict()), 0
        while order and self._held[place] + nbytes > limit:
            oldest = next(iter(order))
            evicted += oldest.is_operand
            self._take(oldest)
        return evicted


_shelf = _Shelf()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shelf.after_fork)


def _count(*, made: int = 0, reused: int = 0, evicted: int = 0) -> None:
    if made or reused or evicted:
        for each in context.recorders():
            each.record_prepared(made=made, reused=reused, evicted=evicted)


class Prepared:
    """What engines have made of one operand, in one role, as its entries are now.

    Attributes
    ----------
    values : dict
        By what each depends on; another dict after `close`.

    Notes
    -----
    Who changes entries closes it afterwards: a product that began before keeps nothing
    then.
    """

    __slots__ = ("__weakref__", "_orphans", "values")

    def __init__(self) -> None:
        self.values: Values = {}
        self._orphans = _shelf.orphans

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        kept = list(self.values.values())
        return sum(x.nbytes for x in kept if x.content is not None)

    def close(self) -> None:
        """Forget everything; what is made later is kept anew."""
        _shelf.close(self)

    def __del__(self) -> None:
        kept = list(self.values.values())
        for each in kept:
            each.content = None
        self._orphans.extend(kept)


Pair = tuple[Prepared | None, Prepared | None]
"""Of A and of B."""

UNPREPARED: Pair = (None, None)


class Keeper:
    """One operand as a product sees it, and where to keep what is made of it.

    Parameters
    ----------
    prepared : Prepared or None
        None keeps nothing.
    place : str
        Where values lie: `HOST`, or a device's name.
    limit : int
        Bytes that all values of the place may have.
    *key : hashable
        What every value depends on: role, shape and strides, and for a device the
        stream that makes it.
    """

    __slots__ = ("_key", "_limit", "_place", "_prepared", "_values")

    def __init__(
        self, prepared: Prepared | None, place: str, limit: int, *key: Hashable
    ) -> None:
        self._prepared = prepared
        # Those of now: what is made of these entries is not for others.
        self._values: Values = {} if prepared is None else prepared.values
        self._place = place
        self._limit = limit
        self._key = key

    def of(self, *more: Hashable) -> Keeper:
        """Return the keeper of a part of the operand, told from others by `more`."""
        part = Keeper(self._prepared, self._place, self._limit, *self._key, *more)
        part._values = self._values
        return part

    def has_room(self, nbytes: int) -> bool:
        """Return whether a value of so many bytes would be kept."""
        return self._prepared is not None and nbytes <= self._limit

    def find(self, *what: Hashable) -> Value | None:
        """Return the value of a name, or None.

        Parameters
        ----------
        *what : hashable
            Its name, and what it depends on besides the operand.

        Returns
        -------
        tuple or None
            As it was kept; not to be written to.
        """
        found = find_all([(self, what)])
        return None if found is None else found[0]

    def keep(self, value: Value, *what: Hashable, is_operand: bool = False) -> None:
        """Keep a value, where there is room for it.

        Parameters
        ----------
        value : tuple
            Its size is that of its arrays.
        *what : hashable
            Its name, as for `find`.
        is_operand : bool, optional
            Whether it counts as the operand prepared, not as a fact beside.
        """
        if self._prepared is None:
            return
        nbytes = sum(getattr(x, "nbytes", 0) for x in value)
        if nbytes > self._limit:
            return
        kept = _Kept(value, self._place, nbytes, is_operand)
        key = (*self._key, *what)
        _shelf.put(kept, self._limit, self._values, key, self._prepared)

    def value(
        self,
        make: Callable[[], Value],
        *what: Hashable,
        nbytes: int = 0,
        is_operand: bool = False,
    ) -> Value:
        """Return the value of a name, made and kept where there was none.

        Parameters
        ----------
        make : callable
            Returns it.
        *what : hashable
            Its name, as for `find`.
        nbytes : int, optional
            Bytes to make room for before it is made.
        is_operand : bool, optional
            As for `keep`.

        Returns
        -------
        tuple
            Not to be written to.
        """
        if self._prepared is None:
            return make()
        found = self.find(*what)
        if found is None:
            if self.has_room(nbytes):
                _shelf.make_room(self._place, nbytes, self._limit)
            found = make()
            self.keep(found, *what, is_operand=is_operand)
        return found


NO_KEEPER = Keeper(None, HOST, 0)
"""Of an operand that nothing is kept of."""


class WatchedKeeper(Keeper):
    """A keeper that tells what is looked for.

    Parameters
    ----------
    keeper : Keeper
        Who keeps.
    tell : callable
        Is told the name, as that keeper's `find` takes it, and what was found or None.
    """

    __slots__ = ("_more", "_tell")

    def __init__(
        self, keeper: Keeper, tell: Callable[[Name, Value | None], None]
    ) -> None:
        super().__init__(keeper._prepared, keeper._place, keeper._limit, *keeper._key)
        self._values = keeper._values
        self._more: Name = ()
        self._tell = tell

    def of(self, *more: Hashable) -> Keeper:
        """Return the keeper of a part, which is watched, too."""
        part = WatchedKeeper(super().of(*more), self._tell)
        part._more = (*self._more, *more)
        return part

    def find(self, *what: Hashable) -> Value | None:
        """Return the value of a name, or None."""
        found = super().find(*what)
        self._tell((*self._more, *what), found)
        return found


def find_all(wanted: Sequence[tuple[Keeper, Name]]) -> list[Value] | None:
    """Return several values, or None where one is missing.

    Parameters
    ----------
    wanted : sequence of (Keeper, tuple)
        Who keeps them, and their names.

    Returns
    -------
    list of tuple or None
        As `Keeper.find` returns each; where one is missing, none counts as used.
    """
    kept = []
    for keeper, name in wanted:
        one = keeper._values.get((*keeper._key, *name)) if keeper._values else None
        content = None if one is None else one.content
        if one is None or content is None:
            return None
        kept.append((one, content))
    for one, _ in kept:
        _shelf.use(one)
        if one.is_operand:
            _count(reused=1)
    return [content for _, content in kept]


def drop_prepared(place: str) -> int:
    """Give up everything that is kept in a place, for want of memory there.

    Parameters
    ----------
    place : str
        `HOST`, or a device's name.

    Returns
    -------
    int
        Bytes that it had.
    """
    return _shelf.drop(place)


def prepared_bytes() -> dict[str, int]:
    """Return the bytes that prepared operands hold now.

    Returns
    -------
    dict of str to int
        By place: "cpu", "cuda:0".
    """
    return _shelf.held()


def forget(prepared: Pair) -> None:
    """Close those that there are.

    Parameters
    ----------
    prepared : tuple of Prepared or None
        Of operands whose values may be wrong.
    """
    for each in prepared:
        if each is not None:
            each.close()
