"""A device whose memory is the host's: OzArrays live on it as they do on a GPU.

Its arrays are no ndarrays, refuse to become any unasked, and have memory of their own,
so that a copy which should have crossed and did not is seen.  Products are the CPU
engine's.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from np_ozaki.engines import choice
from np_ozaki.engines.cpu import CpuEngine

POISON = 0xA5


def host(x: Any) -> Any:
    """Return x with every array of the device in it as an ndarray of its memory."""
    if isinstance(x, DeviceArray):
        return x.memory
    if isinstance(x, (tuple, list)):
        return type(x)(map(host, x))
    if isinstance(x, dict):
        return {key: host(value) for key, value in x.items()}
    return x


def device(x: Any) -> Any:
    """Return x with every ndarray in it as an array of the device."""
    if isinstance(x, tuple):
        return tuple(map(device, x))
    if isinstance(x, np.generic):
        x = np.asarray(x)
    return DeviceArray(x) if isinstance(x, np.ndarray) else x


class DeviceArray:
    """An array of the device, as CuPy's are: no scalars, no silent conversions."""

    __array_priority__ = 100.0

    def __init__(self, memory: np.ndarray, number: int = 0) -> None:
        self.memory = memory
        self.number = number

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.memory, name)
        if not callable(value):
            return device(value)

        def method(*args: Any, **kwargs: Any) -> Any:
            return device(value(*host(args), **host(kwargs)))

        return method

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.memory.__array_interface__, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.memory.__dlpack__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any):
        out = kwargs.get("out", ())
        for target in out:
            assert all(_apart(target, x) for x in inputs if isinstance(x, DeviceArray))
        assert not any(isinstance(x, np.ndarray) and x.ndim for x in (*inputs, *out))
        with np.errstate(all="ignore"):
            result = getattr(ufunc, method)(*host(inputs), **host(kwargs))
        return out[0] if out else device(result)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return device(func(*host(args), **host(kwargs)))

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(np.asarray(self.memory[host(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        assert not isinstance(value, np.ndarray) or not value.ndim
        assert not isinstance(value, DeviceArray) or _apart(self[key], value)
        self.memory[host(key)] = host(value)


def _apart(target: DeviceArray, source: DeviceArray) -> bool:
    """Return whether a device may write one while it reads the other, in any order."""
    x, y = (a.memory.__array_interface__ for a in (target, source))
    same = all(x[key] == y[key] for key in ("data", "shape", "strides"))
    return same or not np.may_share_memory(target.memory, source.memory)


def _operators() -> None:
    import operator

    for name in "add sub mul truediv and or lt le gt ge eq ne".split():
        function = getattr(operator, f"__{name}__")

        def method(self: Any, other: Any, function: Any = function) -> Any:
            return device(function(self.memory, host(other)))

        setattr(DeviceArray, f"__{name}__", method)
    DeviceArray.__invert__ = lambda self: device(~self.memory)  # type: ignore[attr-defined]


_operators()


class Memory:
    """`np_ozaki.engines.memory.DeviceMemory` of this device."""

    def __init__(self) -> None:
        self.current = 0
        self.largest: int | None = None
        """Bytes beyond which a buffer finds no memory."""

    def device(self) -> int:
        return self.current

    def allocate(self, nbytes: int) -> DeviceArray:
        if self.largest is not None and nbytes > self.largest:
            raise MemoryError(f"{nbytes} bytes on the device")
        return DeviceArray(np.full(nbytes, POISON, np.uint8), self.current)

    def upload(self, source: np.ndarray, buffer: DeviceArray) -> None:
        buffer.memory[...] = source

    def download(self, buffer: DeviceArray, target: np.ndarray, mark: None) -> None:
        target[...] = buffer.memory

    def view(self, buffer, offset, shape, strides, dtype) -> DeviceArray:
        return DeviceArray(np.ndarray(shape, dtype, buffer.memory, offset, strides))

    def extent(self, x: DeviceArray) -> tuple[DeviceArray, int]:
        low, high = np.lib.array_utils.byte_bounds(x.memory)
        spans = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
        below = -sum(min(0, span) for span in spans)
        root = x.memory if x.memory.base is None else x.memory.base
        while isinstance(root.base, np.ndarray):
            root = root.base
        flat = np.ndarray(
            (high - low,),
            np.uint8,
            root.ravel(order="K").view(np.uint8).data,
            low - np.lib.array_utils.byte_bounds(root)[0],
        )
        return DeviceArray(flat), below

    def device_of(self, buffer: DeviceArray) -> int:
        return buffer.number

    def mark(self) -> None:
        return None

    def wait(self, mark: None) -> bool:
        return False

    def synchronize(self, device: int) -> None:
        pass


class Engine(CpuEngine):
    """The CPU engine on this device's memory."""

    name = "cuda"
    shortcuts = types.SimpleNamespace(matmul=lambda *product: None)

    def to_host(self, x: Any) -> Any:
        return host(x)

    def from_host(self, x: Any, like: Any) -> Any:
        return device(x) if isinstance(like, DeviceArray) else x


def _on_memory(name: str) -> Callable[..., Any]:
    function = getattr(CpuEngine, name)

    def method(self: Engine, *args: Any, **kwargs: Any) -> Any:
        return function(self, *host(args), **host(kwargs))

    return method


for _name in "line_exponents line_units matmul missing_bits rebalance samples".split():
    setattr(Engine, _name, _on_memory(_name))
Engine.native = lambda self, a, b: device(  # type: ignore[method-assign]
    CpuEngine.native(self, host(a), host(b))
)


def _as_device_array(x: Any, *, copy: bool = True) -> Any:
    if isinstance(x, DeviceArray) or (not copy and not choice.is_device_array(x)):
        return x
    return DeviceArray(np.array(x))


def install(monkeypatch: Any) -> Memory:
    """Let this process have the device; return its memory."""
    memory, engine = Memory(), Engine(1)
    stand_ins: dict[str, Any] = {
        "cuda_unavailable": lambda: None,
        "cuda_engine": lambda: engine,
        "device_memory": lambda: memory,
        "as_device_array": _as_device_array,
        "on_device": lambda number: contextlib.nullcontext(),
        "to_host": lambda x: host(x).copy(),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(choice, name, value)
    return memory


__all__ = ["DeviceArray", "Memory", "device", "host", "install"]
