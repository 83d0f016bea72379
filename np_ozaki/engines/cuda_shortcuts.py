"""From operands straight to kernels, for products whose like was recorded.

What lies between `np_ozaki.matmul` and a recording decides from shapes, strides and
options alone, and so the same way every time.  Where a product is small, to decide
takes longer than to multiply.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Hashable
from typing import Any, NamedTuple

from np_ozaki import context
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.cuda_lines import Device
from np_ozaki.engines.cuda_replay import Recording
from np_ozaki.stats import CallInfo

__all__ = ["Shortcuts"]

_MOST_KEPT = 256
_ALIGNMENT = 16
"""Only operands that begin at a multiple of it go straight to kernels: others may have
recordings of their own."""

Span = tuple[int, int]


class _Shortcut(NamedTuple):
    """What is known of products of a kind.

    Attributes
    ----------
    options : Options
        Held, so that no others have its identity.
    info : CallInfo
        What each of them does.
    recording : Recording
        What each of them queues.
    shape : tuple of int
        Of the result.
    spans : tuple of (int, int)
        Where the bytes of A, B and the result begin and end, relative to first entries.
    """

    options: Options
    info: CallInfo
    recording: Recording
    shape: tuple[int, ...]
    spans: tuple[Span, Span, Span]

    def overlap(self, left: int, right: int, target: int) -> bool:
        """Return whether the result shares memory with an operand."""
        a, b, out = self.spans
        low, high = target + out[0], target + out[1]
        return (low < left + a[1] and left + a[0] < high) or (
            low < right + b[1] and right + b[0] < high
        )


class Shortcuts:
    """Products that go straight to the kernels of a device.

    Parameters
    ----------
    device : Device
        Where kernels run.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[Hashable, _Shortcut] = {}
        self._lock = threading.Lock()
        self._missed = threading.local()

    def matmul(
        self, a: Any, b: Any, out: Any, options: Options
    ) -> tuple[Any, CallInfo] | None:
        """Multiply and count the call, or return None and do nothing.

        Parameters
        ----------
        a, b : device array
            Operands of `np_ozaki.matmul`.
        out : device array or None
            Where to write.
        options : Options
            Of the call.

        Returns
        -------
        tuple of (result, info) or None
            None where such a product has not been kept, and where something that is
            no matter of shapes and options asks for the long way.
        """
        device = self._device
        given = (a, b) if out is None else (a, b, out)
        where = device.addresses(given)
        if where is None:
            return None
        key = _key(where, given, options)
        kept = self._kept.get(key)
        if kept is None:
            self._missed.key = key
            return None
        try:
            if out is None:
                out = choice.empty_like(a, kept.shape)
                where = (*where, device.pointer(out))
            _, left, right, target = where
            if (left | right | target) % _ALIGNMENT or kept.overlap(*where[1:]):
                return None
            kept.recording.replay(device, left, right, target)
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
            return None
        context.record(kept.info)
        return out, kept.info

    def keep(
        self,
        arrays: tuple[Any, Any, Any],
        stacks: tuple[Any, Any, Any],
        options: Options,
        info: CallInfo,
        recording: Recording,
        *,
        with_out: bool,
    ) -> None:
        """Let products like the one last looked for go straight to its kernels.

        Does nothing for products that were not looked for: those of operands that are
        copied before they are multiplied never are.

        Parameters
        ----------
        arrays : tuple of device array
            A, B and the result.
        stacks : tuple of device array
            What the engine took them for; nothing is kept of copies.
        options : Options
            They alone decided on the number of moduli.
        info : CallInfo
            What the product did.
        recording : Recording
            What it queued.
        with_out : bool
            Whether the result was given.
        """
        missed = getattr(self._missed, "key", None)
        if missed is None:
            return
        self._missed.key = None
        given = arrays if with_out else arrays[:2]
        where = self._device.addresses(given)
        pointer = self._device.pointer
        starts = [pointer(x) for x in arrays]
        if (
            where is None
            or missed != _key(where, given, options)
            or any(start % _ALIGNMENT for start in starts)
            or starts != [pointer(x) for x in stacks]
        ):
            return
        a, b, result = arrays
        spans = _span(a), _span(b), _span(result)
        kept = _Shortcut(options, info, recording, result.shape, spans)
        with self._lock:
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[missed] = kept


def _key(
    where: tuple[int, ...], given: tuple[Any, ...], options: Options
) -> tuple[Hashable, ...]:
    """Return what a product of these operands, and `out`, depends on but addresses."""
    a, b, *rest = given
    device, left, right, *_ = where
    key = (
        id(options),
        device,
        left == right,  # of one array fewer lines are read
        a.shape,
        a.strides,
        a.dtype,
        b.shape,
        b.strides,
        b.dtype,
    )
    if not rest:
        return key
    (out,) = rest
    return (*key, out.shape, out.strides, out.dtype)


def _span(x: Any) -> Span:
    """Return where the bytes of an array begin and end, relative to its first entry."""
    reach = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return sum(min(0, r) for r in reach), sum(
        max(0, r) for r in reach
    ) + x.dtype.itemsize
