"""What a product queues on the device, recorded once and queued again for other data.

A product of data on the device queues the same kernels for any operands of the same
shapes, strides and options: only addresses differ.  Where it is small, Python takes
longer to find that out than the device takes to multiply.  A recording holds the
kernels with all that they are told; a replay puts in the addresses of the day.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.engines.cuda_lines import Address, Device, PlaneStack, Told
from np_ozaki.engines.prepared import NO_KEEPER, Keeper, Name, Value, WatchedKeeper

__all__ = ["Recorder", "Recording"]

_ALIGNMENT = 256
_BYTE = np.dtype(np.uint8)
_CONSTANT, _OPERAND_A, _OPERAND_B, _RESULT, _WORKSPACE, _KEPT = range(6)
"""What an address is relative to: from _KEPT on, arrays of prepared operands."""


_WORK_ADDRESSES = 0, 1
"""Words of `cuda_tiles.WORK`."""

_HARMLESS = frozenset(
    {
        "default_workspace",
        "is_host",
        "is_out_of_memory",
        "is_timed",
        "mark",
        "place",
        "shared_bytes",
        "stream",
        "tile_clusters",
        "transfer",
    }
)
"""What a device is asked for without anything being queued.  Whatever else it is asked
for, a library's product or an array of the host, cannot be told again."""

Place = tuple[int, int]
"""Where words lie, from first to last."""

Words = Callable[[Place], NDArray[np.int64]]
"""Returns the words of a recording, which change as it is replayed."""

_Step = Callable[[Words], tuple[Any, Callable[[], None] | None]]
"""Returns what `Device.queue_again` takes, and what to call when words have changed."""


class Recorder:
    """A device that does what it is told, and notes what can be told again.

    Parameters
    ----------
    device : Device
        Who does it.
    a, b, out : device array of float64
        Operands and result.
    """

    def __init__(self, device: Device, a: Any, b: Any, out: Any) -> None:
        self._device = device
        self._operands = [device.pointer(x) for x in (a, b, out)]
        self._arrays: list[tuple[int, int, int, Any]] = []
        self._nbytes = 0
        self._words: list[int] = []
        self._spaces: list[int] = []
        self._steps: list[_Step] = []
        self._fetched: tuple[int, int] | None = None
        self._found: dict[tuple[int, Name], Value] = {}
        self.is_complete = True
        self.has_made = False

    def watched(self, operand: int, keeper: Keeper) -> Keeper:
        """Return the keeper of an operand, so that what it has is known here.

        Parameters
        ----------
        operand : int
            Its number, as `Recording.wanted` has it.
        keeper : Keeper
            Of that operand.

        Returns
        -------
        Keeper
            Once it makes something, the product cannot be told again, but the next one
            may: see `has_made`.
        """
        if keeper is NO_KEEPER:
            return keeper
        return WatchedKeeper(keeper, functools.partial(self._told, operand))

    def _told(self, operand: int, name: Name, value: Value | None) -> None:
        if value is None:
            self.is_complete, self.has_made = False, True
        else:
            self._found[operand, name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in _HARMLESS:
            self.is_complete = False
        return getattr(self._device, name)

    def pointer(self, x: Any) -> Address:
        """Return an address that `structure` knows for one."""
        return Address(self._device.pointer(x))

    # What changes with the data ----------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array, which lives until the recording is made.

        So no two arrays have one address.  Where there will be no recording, as in a
        product of several tiles for want of memory, it is the caller's alone.
        """
        array = self._device.empty(shape, dtype)
        if self.is_complete:
            pointer = self._device.pointer(array)
            self._arrays.append((pointer, array.nbytes, self._nbytes, array))
            self._nbytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros."""
        array = self.empty(shape, dtype)
        self.clear(self._device.pointer(array), array.nbytes)
        return array

    def free(self) -> None:
        """Give unused memory back: the product found none, and begins anew."""
        self.is_complete = False
        self._arrays.clear()
        self._device.free()

    # What is queued ----------------------------------------------------------------

    def clear(self, pointer: int, nbytes: int) -> None:
        """Queue the writing of zeros."""
        self._device.clear(pointer, nbytes)
        place = self._structure([pointer], (0,))
        self._steps.append(
            lambda words: (self._device.clear_again(words(place), nbytes), None)
        )

    def launch(
        self,
        stage: str,
        variant: Any,
        kernel: str,
        grid: tuple[int, ...],
        block: int,
        args: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Queue a kernel."""
        # The device's own way with arrays does not know what is told of words here.
        plain = tuple(x.view(np.ndarray) if isinstance(x, Told) else x for x in args)
        self._device.launch(stage, variant, kernel, grid, block, plain, shared)
        places = [self._argument(x) for x in args]
        job = stage, variant, kernel, grid, block
        self._steps.append(
            lambda words: (
                self._device.launch_again(
                    *job, [_structure(words(place)) for place in places], shared
                ),
                None,
            )
        )

    def residue_tiles(
        self, left: PlaneStack, right: PlaneStack, work: NDArray[np.void], blocks: int
    ) -> None:
        """Queue products of planes that leave residue tiles."""
        self._device.residue_tiles(left, right, work, blocks)
        planes = self._structure([left.pointer, right.pointer], (0, 1))
        place = self._structure(work.view(np.int64).tolist(), _WORK_ADDRESSES)
        self._steps.append(
            lambda words: self._device.residue_tiles_again(
                left, right, words(planes), _structure(words(place)), blocks
            )
        )

    # Words -------------------------------------------------------------------------

    def _word(self, value: int, *, is_address: bool) -> None:
        """Note a word that kernels are told."""
        space, value = self._relative(value) if is_address else (_CONSTANT, value)
        self._words.append(value)
        self._spaces.append(space)

    def _relative(self, value: int) -> tuple[int, int]:
        """Return what an address is relative to, and the rest."""
        for space, pointer in enumerate(self._operands, _OPERAND_A):
            if value == pointer:
                return space, 0
        for pointer, nbytes, offset, _ in self._arrays:
            if pointer <= value < pointer + nbytes:
                return _WORKSPACE, offset + value - pointer
        for space, x in enumerate(_arrays(self._found.values()), _KEPT):
            offset = value - self._device.pointer(x)
            if 0 <= offset < x.nbytes:
                return space, offset
        if value:
            self.is_complete = False
        return _CONSTANT, value

    def _structure(self, words: list[int], addresses: tuple[int, ...]) -> Place:
        """Note words, some of them addresses; return where, from first to last."""
        first = len(self._words)
        for i, word in enumerate(words):
            self._word(word, is_address=i in addresses)
        return first, len(self._words)

    def _argument(self, x: Any) -> Place:
        """Note what a kernel is told; return where, in words."""
        if isinstance(x, (int, np.integer)):
            return self._structure([int(x)], (0,) if type(x) is Address else ())
        if isinstance(x, np.ndarray) and self._device.is_host(x):
            told = x.addresses if isinstance(x, Told) else ()
            return self._structure(x.view(np.ndarray).view(np.int64).tolist(), told)
        return self._structure([self._device.pointer(x)], (0,))

    def fetch(self, x: Any) -> NDArray[Any]:
        """Wait for an array; it is the last, and what a replay returns."""
        if self._fetched is not None:
            self.is_complete = False
        _, offset = self._relative(self._device.pointer(x))
        self._fetched = offset, x.nbytes
        return self._device.fetch(x)

    def recording(self, outcome: Any) -> Recording | None:
        """Return what was recorded, or None if something was queued beside.

        Parameters
        ----------
        outcome : object
            What the product said of itself.

        Returns
        -------
        Recording or None
            To be queued again.
        """
        # What is kept of this product must not keep its memory.
        self._arrays.clear()
        wanted = tuple(self._found)
        self._found.clear()
        if not self.is_complete:
            return None
        return Recording(
            self._words,
            self._spaces,
            self._steps,
            self._nbytes,
            outcome,
            self._fetched,
            wanted,
        )


def _arrays(values: Iterable[Value]) -> Iterable[Any]:
    """Return the arrays of kept values, one after the other."""
    return itertools.chain.from_iterable(values)


def _structure(words: NDArray[np.int64]) -> NDArray[np.void]:
    """Return words as the structure that a kernel gets by value, the same memory."""
    return words.view(f"V{words.nbytes}")


class Recording:
    """What a product queues, but for addresses.

    Parameters
    ----------
    words : list of int
        All that kernels are told; addresses are relative to their spaces.
    spaces : list of int
        What each word is relative to.
    steps : list of callable
        Return what is queued, told these words.
    nbytes : int
        Workspace.
    outcome : object
        What the product said of itself.
    fetched : tuple of int or None
        Where in the workspace the array lies that the product waits for, and its bytes.
    wanted : tuple of (int, name), optional
        What it reads of prepared operands: number of the operand, and name.
    """

    def __init__(
        self,
        words: list[int],
        spaces: list[int],
        steps: list[_Step],
        nbytes: int,
        outcome: Any,
        fetched: tuple[int, int] | None,
        wanted: tuple[tuple[int, Name], ...] = (),
    ) -> None:
        self._offsets = np.array(words, np.int64)
        self._spaces = np.array(spaces, np.intp)
        self._bases: tuple[int, ...] = ()
        self._nbytes = nbytes
        self._fetched = fetched
        self.wanted = wanted
        self._lock = threading.Lock()
        self._words = self._offsets.copy()
        made = [step(lambda place: self._words[slice(*place)]) for step in steps]
        self._launches = [launch for launch, _ in made]
        self._moves = [move for _, move in made if move is not None]
        self.outcome = outcome

    def _move_to(self, bases: tuple[int, ...]) -> None:
        """Put addresses into words, and into what was made of them."""
        self._bases = ()  # should this be interrupted
        np.add(
            self._offsets, np.array(bases, np.int64).take(self._spaces), out=self._words
        )
        for move in self._moves:
            move()
        self._bases = bases

    def replay(
        self,
        device: Device,
        left: int,
        right: int,
        target: int,
        kept: Sequence[Value] = (),
    ) -> NDArray[np.int32] | None:
        """Queue it for other data of the same shapes, strides and alignment.

        Parameters
        ----------
        device : Device
            Where they are.
        left, right, target : int
            Addresses of operands and result.
        kept : sequence of tuple, optional
            What is `wanted` of prepared operands.

        Returns
        -------
        (batch,) ndarray of int32 or None
            What a certificate finds, waited for.

        Raises
        ------
        Exception
            As the device says that it has no memory.
        """
        memory = device.empty((self._nbytes,), _BYTE)
        pointers = map(device.pointer, _arrays(kept))
        bases = 0, left, right, target, device.pointer(memory), *pointers
        # Kernels get copies of the words before this lock is given back.
        with self._lock:
            if bases != self._bases:
                self._move_to(bases)
            device.queue_again(self._launches)
        if self._fetched is None:
            return None
        offset, nbytes = self._fetched
        return device.read(bases[_WORKSPACE] + offset, nbytes).view(np.int32)
