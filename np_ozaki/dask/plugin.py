"""np_ozaki on the workers of a distributed cluster."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from distributed import Worker, WorkerPlugin
from distributed.protocol import dask_deserialize, dask_serialize
from distributed.threadpoolexecutor import ThreadPoolExecutor as TaskThreads

from np_ozaki.array import OzArray
from np_ozaki.config import config
from np_ozaki.engines import choice
from np_ozaki.errors import OptionError, refusal
from np_ozaki.scope import enabled

__all__ = ["EnablePlugin"]

_here: set[int] = set()
"""Workers of this process that have the plugin."""


class EnablePlugin(WorkerPlugin):  # type: ignore[misc] # distributed's, unseen by mypy
    """Enable np_ozaki on every worker of a cluster, those to come included.

    Each worker's process gets a process-wide scope, which ends with the worker or when
    the plugin is unregistered.  Registering again replaces options.  Where the engine
    is a GPU, tasks in the threads of worker number i run on device i modulo the number
    of devices.

    Parameters
    ----------
    **options : object
        As for `np_ozaki.enabled`, except `local`.  What is not given comes from the
        environment of each worker.

    Raises
    ------
    OptionError, OperandTypeError
        An option cannot be used.
    MissingPackageError
        On import of this class, without distributed; an ImportError.

    Notes
    -----
    The number of a worker is its name or what its name ends with, as ``LocalCluster``
    and ``dask worker --name gpu-0`` give it; workers without a number, whose names are
    addresses, count as 0.  Coroutines, and processes that tasks start, run on the
    device they choose themselves.

    Examples
    --------
    >>> from np_ozaki.dask import EnablePlugin
    >>> plugin = EnablePlugin(engine="cpu", reproducible=True)
    >>> client.register_plugin(plugin)  # doctest: +SKIP
    >>> client.unregister_worker_plugin(plugin.name)  # doctest: +SKIP
    """

    name = "np_ozaki"

    def __init__(self, **options: Any) -> None:
        enabled(**options)
        if options.get("local"):
            raise OptionError(
                refusal(
                    "local",
                    True,
                    "tasks run in threads that such a scope does not reach",
                    "leave it out",
                )
            )
        self._options = {**options, "local": False}
        self._entered: dict[int, contextlib.ExitStack] = {}

    def setup(self, worker: Worker) -> None:
        """Enter the scope, and let tasks run on the worker's device.

        Parameters
        ----------
        worker : distributed.Worker
            Whom the plugin was sent to.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(enabled(**self._options))
            options = config().options.with_changes(**self._options)
            if choice.on_gpu(options):
                device = _number(worker.name) % choice.device_count()
                for executor in _task_threads(worker):
                    stack.enter_context(_on_device(executor, device))
            stack.callback(_here.discard, id(worker))
            _here.add(id(worker))
            self._entered[id(worker)] = stack.pop_all()

    def teardown(self, worker: Worker) -> None:
        """Leave the scope and the device.

        Parameters
        ----------
        worker : distributed.Worker
            Whom `setup` was called with.
        """
        stack = self._entered.pop(id(worker), None)
        if stack is not None:
            stack.close()


def _number(name: object) -> int:
    """Return the number that a worker's name is or ends with, or 0."""
    found = re.search(r"(\d+)$", str(name))
    # An address ends with a port, which says nothing.
    return int(found[1]) if found and ":" not in str(name) else 0


def _task_threads(worker: Worker) -> list[Executor]:
    """Return the worker's own pools of threads; "offload" belongs to the process."""
    pools = {id(x): x for key, x in worker.executors.items() if key != "offload"}
    # distributed's own pools are no subclass of Python's.
    threads = (TaskThreads, ThreadPoolExecutor)
    return [pool for pool in pools.values() if isinstance(pool, threads)]


@contextlib.contextmanager
def _on_device(executor: Any, device: int) -> Iterator[None]:
    """Let all that is submitted to a pool run with a device as the current one.

    The current device is one of each thread, and pools start threads when they like.
    """
    executor.submit = functools.partial(executor.submit, _call_on, device)
    try:
        yield
    finally:
        del executor.submit


def _call_on(
    device: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    with choice.on_device(device):
        return function(*args, **kwargs)


# Chunks on the wire.  Without this they are pickled, with more copies on the way.  Only
# who imported this module can read them.  All workers have when one has the plugin, but
# a client may talk to workers that never heard of it, and goes on to pickle.


def _serialize(x: OzArray) -> tuple[dict[str, Any], list[Any]]:
    if not _here:
        raise NotImplementedError  # how distributed is told to go on to pickle
    parts: tuple[dict[str, Any], list[Any]]
    parts = dask_serialize.dispatch(np.ndarray)(np.asarray(x))
    return parts


def _deserialize(header: dict[str, Any], frames: list[Any]) -> OzArray:
    return OzArray(dask_deserialize.dispatch(np.ndarray)(header, frames))


dask_serialize.register(OzArray, _serialize)
dask_deserialize.register(OzArray, _deserialize)
