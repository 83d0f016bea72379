"""OzArrays for other libraries, without a copy: whoever gets one may write unseen."""

from __future__ import annotations

from typing import Any

from np_ozaki.array.core import Core
from np_ozaki.array.shapes import copied
from np_ozaki.engines import choice

__all__ = ["cuda_array_interface", "dlpack", "dlpack_device"]

_CPU, _CUDA = 1, 2
"""Kinds of devices in the header of DLPack."""


def cuda_array_interface(x: Core) -> dict[str, Any]:
    """Return ``__cuda_array_interface__``, after which the device's bytes count only.

    Parameters
    ----------
    x : Core
        Of a dtype that devices have, and not of others' host memory.

    Returns
    -------
    dict
        Version 3.

    Raises
    ------
    AttributeError
        There is no device, or the array cannot live on one.
    """
    if choice.device_memory() is None or not x._fits_device:
        raise AttributeError("this OzArray has no __cuda_array_interface__")
    interface = dict(x._device_view().__cuda_array_interface__)
    pointer, _ = interface["data"]
    interface["data"] = pointer, not x._view.flags.writeable
    x._storage.hand_out("device")
    return interface


def dlpack_device(x: Core) -> tuple[int, int]:
    """Return where DLPack will find the data.

    Parameters
    ----------
    x : Core
        Array.

    Returns
    -------
    tuple of int
        Kind of the device, and its number: the CPU unless current data are on a GPU.
    """
    device = x._storage.device
    return (_CPU, 0) if device is None or not x._fits_device else (_CUDA, device)


def dlpack(
    x: Core,
    *,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Return a DLPack capsule.

    Parameters
    ----------
    x : Core
        Array.
    dl_device : tuple of int, optional
        Where the data are wanted.
    copy : bool, optional
        True hands out a copy, False never does.
    **kwargs
        `stream` and `max_version`.

    Returns
    -------
    capsule

    Raises
    ------
    BufferError
        Not without a copy, or not at all.
    """
    here = dlpack_device(x)
    wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted[0] != _CPU and wanted != here:
        raise BufferError(f"dl_device={wanted}: the data are on {here}")
    if copy is False and wanted != here:
        raise BufferError(f"copy=False: the data are on {here}, not on {wanted}")
    if copy or wanted != here:
        x = copied(x, "K")
    given = {key: value for key, value in kwargs.items() if value is not None}
    if wanted[0] == _CPU:
        given.pop("stream", None)
        capsule = x._read().__dlpack__(**given)
        x._storage.hand_out("host")
        return capsule
    with choice.on_device(here[1]):
        capsule = x._device_view().__dlpack__(**given)
    x._storage.hand_out("device")
    return capsule
