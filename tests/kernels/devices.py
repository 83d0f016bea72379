"""Places where the CUDA engine runs: the kernels on the CPU, or a GPU.

One test body serves both: a place makes device arrays of host arrays and back, and
says how large operands may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from np_ozaki.engines.cuda import CudaEngine

Change = Callable[[Any], Any]

POISON = np.frombuffer(b"\xa5" * 8, np.float64)[0]


def poisoned(shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Return an array of what no product gives."""
    return np.full(shape, np.frombuffer(b"\xa5" * 16, dtype)[0])


@dataclass
class Place:
    """An engine of a kind of device.

    Attributes
    ----------
    engine, unfused, other : CudaEngine
        The second has no shared memory for whole lines, so that exponents and residues
        are stages of their own, and int32 products; its arrays hold garbage at first.
        The third is that of a GPU with residue tiles where the first is not, and the
        other way round.
    own, host : callable
        A copy of a host array, C-contiguous, and the way back.
    side, inner : int
        Largest m and n, and largest k, that tests should ask for.
    """

    engine: CudaEngine
    unfused: CudaEngine
    other: CudaEngine
    own: Change
    host: Change
    side: int
    inner: int
    name: str = field(default="")

    def engines(self) -> tuple[CudaEngine, CudaEngine, CudaEngine]:
        """Return every way to a product."""
        return self.engine, self.unfused, self.other

    @property
    def hopper(self) -> CudaEngine:
        """The engine that makes residue tiles, if there is one."""
        return next(x for x in self.engines() if x.device.tile_clusters())

    @property
    def int32(self) -> CudaEngine:
        """The engine that has room for whole lines and makes int32 products."""
        both = self.engine, self.other
        return next(x for x in both if not x.device.tile_clusters())


def simulated() -> Place:
    """Return the kernels on the CPU."""
    from host_device import HostDevice

    device = HostDevice()
    # All know each other's arrays.
    unfused, hopper = HostDevice(shared=0), HostDevice(shared=1 << 17, hopper=True)
    unfused._roots = hopper._roots = device._roots
    return Place(
        CudaEngine(device),
        CudaEngine(unfused),
        CudaEngine(hopper),
        lambda x: device.own(np.ascontiguousarray(x)),
        np.array,
        side=6,
        inner=20,
        name="simulated",
    )


def on_gpu() -> Place:
    """Return the current GPU."""
    import cupy

    from np_ozaki.engines.choice import cuda_engine
    from np_ozaki.engines.cuda_device import CupyDevice

    class Older(CupyDevice):
        """What any GPU has."""

        def tile_clusters(self) -> int:
            return 0

    class Unfused(Older):
        """No shared memory for whole lines, and poison in new arrays."""

        def shared_bytes(self) -> int:
            return 0

        def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
            array = super().empty(shape, dtype)
            array.view(np.uint8).fill(0xA5)
            return array

    return Place(
        cuda_engine(),
        CudaEngine(Unfused()),
        CudaEngine(Older()),
        lambda x: cupy.asarray(np.ascontiguousarray(x)),
        cupy.asnumpy,
        side=150,
        inner=600,
        name="gpu",
    )


def without_memory_once(monkeypatch, device) -> list[tuple[int, ...]]:
    """Let the next array find no memory; return where its shape will be noted."""
    real, failed = device.empty, []

    def empty(shape, dtype):
        if not failed:
            failed.append(shape)
            raise MemoryError
        return real(shape, dtype)

    monkeypatch.setattr(device, "empty", empty, raising=False)
    monkeypatch.setattr(
        device, "is_out_of_memory", lambda e: isinstance(e, MemoryError), raising=False
    )
    return failed


# ---- Layouts ----


def _spread(x: Any) -> Any:
    batch, rows, columns = x.shape
    wide = poisoned((batch, 2 * rows, 3 * columns), x.dtype)
    wide[:, ::2, 1::3] = x
    return wide


LAYOUTS: dict[str, tuple[Change, Change]] = {
    "C": (lambda x: x, lambda x: x),
    "F": (lambda x: x.swapaxes(1, 2), lambda x: x.swapaxes(1, 2)),
    "reversed": (lambda x: x[:, ::-1, ::-1], lambda x: x[:, ::-1, ::-1]),
    "reversed F": (
        lambda x: x[::-1, ::-1].swapaxes(1, 2),
        lambda x: x.swapaxes(1, 2)[::-1, ::-1],
    ),
    "spread": (_spread, lambda x: x[:, ::2, 1::3]),
    "spread F": (
        lambda x: _spread(x.swapaxes(1, 2)),
        lambda x: x[:, ::2, 1::3].swapaxes(1, 2),
    ),
    "batch last": (lambda x: x.transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1)),
}
"""Name: what is copied to the device, and the view of it that is the operand.  What
lies between the entries is poison."""


def laid_out(own: Change, x: Any, layout: str) -> Any:
    """Return (batch, rows, columns) with the memory layout of a name."""
    prepare, view = LAYOUTS[layout]
    return view(own(np.ascontiguousarray(prepare(x))))


# ---- Entries ----


def entries(rng: np.random.Generator, shape: tuple[int, ...], regime: str) -> Any:
    """Return finite doubles of a regime of `np_ozaki.testing.REGIMES`, or nearly."""
    x = rng.standard_normal(shape)
    if regime == "wide":
        x *= np.exp(15 * rng.standard_normal(shape))
    elif regime == "any":
        x = rng.integers(0, 2**64, shape, np.uint64).view(np.float64)
        x = np.where(np.isfinite(x), x, 1.0)
    elif regime == "subnormal":
        x = np.ldexp(x, rng.integers(-1073, -1018, shape))
    elif regime == "tiny products":
        x = np.ldexp(x, rng.integers(-560, -480, shape))
    elif regime == "near overflow":
        x = np.ldexp(np.clip(x, -1.9, 1.9), rng.integers(1015, 1023, shape))
    elif regime == "same sign":
        x = np.abs(x)
    elif regime == "integers":
        x = rng.integers(-(2**20), 2**20, shape).astype(np.float64)
    elif regime == "sparse":
        x = np.where(rng.random(shape) < 0.6, rng.choice([0.0, -0.0], shape), x)
    elif regime == "edge constants":
        x = rng.choice([1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 255.0], shape)
    return x
