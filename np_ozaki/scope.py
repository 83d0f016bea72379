"""The scope: plain NumPy code, unchanged, with its products on an engine."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

from np_ozaki import context, hooks
from np_ozaki.config import (
    Check,
    Dtypes,
    EngineName,
    Options,
    Precision,
    Scaling,
    SchemeOptions,
    Strategy,
    as_dtypes,
    config,
    scheme_options,
)
from np_ozaki.engines import choice
from np_ozaki.errors import (
    HookUnavailableError,
    OperandTypeError,
    PerformanceWarning,
    RouteWarning,
    refusal,
)
from np_ozaki.gemm import min_flops as smallest_routed
from np_ozaki.gemm import native_reason
from np_ozaki.routes.table import HANDLERS
from np_ozaki.stats import Stats

__all__ = ["disable", "disabled", "enable", "enabled"]

_F = TypeVar("_F", bound=Callable[..., Any])

_NEVER = (1 << 63) - 1


_gate_lock = threading.Lock()


def _forget_gate_lock() -> None:
    # Another thread of the parent may have held it.
    global _gate_lock
    _gate_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_gate_lock)


def _move_gate() -> None:
    """Tell the C loop how many scopes live and the smallest product any wants."""
    # Looking and telling together, or a slower thread would tell of times gone by.
    with _gate_lock:
        scopes = [s.options for s in context.live_scopes() if s.options is not None]
        routing = [smallest_routed(o) for o in scopes if native_reason(o) is None]
        hooks.set_gate(len(routing), min(routing, default=_NEVER))


class _Scope:
    """What `enabled` and `disabled` return: context manager and decorator.

    One object may be entered several times, also at once: each entry is a scope of
    its own.
    """

    def __init__(self, options: Options | None, local: bool) -> None:
        self._options = options
        self._local = local
        self._entries: list[context.LiveScope] = []
        self._last: context.LiveScope | None = None
        self._lock = threading.Lock()

    def _prepare(self) -> None:
        """Install hooks, warn; nothing is in force yet if this raises."""

    def __enter__(self) -> Self:
        """Put the scope in force."""
        self._prepare()
        scope = context.LiveScope(self._options, self._local)
        with self._lock:
            self._entries.append(scope)
            self._last = scope
        context.enter(scope)
        _move_gate()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the entry that this context, else any, made last through this object."""
        with self._lock:
            if not self._entries:
                return
            mine = [s for s in self._entries if context.entered_here(s)]
            scope = (mine or self._entries)[-1]
            self._entries.remove(scope)
        context.leave(scope)
        _move_gate()

    def __call__(self, function: _F) -> _F:
        """Return `function` running inside a scope of its own at every call.

        Generators run inside at every step, and the caller between the steps does not;
        coroutines and asynchronous generators likewise.
        """
        if inspect.isclass(function) or not callable(function):
            raise OperandTypeError(
                refusal(
                    "function",
                    function,
                    "only functions and methods can be decorated",
                    "decorate the methods of a class one by one",
                )
            )
        return cast("_F", _decorate(function, self._fresh))

    def _fresh(self) -> _Scope:
        return type(self)._from(self._options, self._local)

    @classmethod
    def _from(cls, options: Options | None, local: bool) -> _Scope:
        scope = cls.__new__(cls)
        _Scope.__init__(scope, options, local)
        return scope

    def stats(self) -> Stats:
        """Return the counters of the entry made last through this object.

        Returns
        -------
        Stats
            Products that this scope decided, also after it was left.
        """
        return Stats() if self._last is None else self._last.recorder.snapshot()


def _body(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return whose code runs in the end: of an object that is called, its method."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _decorate(function: Callable[..., Any], fresh: Callable[[], _Scope]) -> Any:
    body = _body(function)
    if inspect.isasyncgenfunction(body):

        async def run_async_generator(*args: Any, **kwargs: Any) -> Any:
            generator, scope = function(*args, **kwargs), fresh()
            step = functools.partial(generator.asend, None)
            while True:
                try:
                    with scope:
                        item = await step()
                except StopAsyncIteration:
                    return
                try:
                    step = functools.partial(generator.asend, (yield item))
                except GeneratorExit:
                    with scope:
                        await generator.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on, not handled
                    step = functools.partial(generator.athrow, error)

        return functools.wraps(function)(run_async_generator)
    if inspect.iscoroutinefunction(body):

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with fresh():
                return await function(*args, **kwargs)

        return functools.wraps(function)(run_coroutine)
    if inspect.isgeneratorfunction(body):

        def run_generator(*args: Any, **kwargs: Any) -> Any:
            generator, scope = function(*args, **kwargs), fresh()
            step = functools.partial(generator.send, None)
            while True:
                try:
                    with scope:
                        item = step()
                except StopIteration as stop:
                    return stop.value
                try:
                    step = functools.partial(generator.send, (yield item))
                except GeneratorExit:
                    with scope:
                        generator.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on, not handled
                    step = functools.partial(generator.throw, error)

        return functools.wraps(function)(run_generator)

    def run(*args: Any, **kwargs: Any) -> Any:
        with fresh():
            return function(*args, **kwargs)

    return functools.wraps(function)(run)


@functools.cache
def _handlers() -> dict[str, Callable[..., Any]]:
    """Return the handlers that the environment allows, the same dict each time."""
    allowed = config().hooks
    return {
        name: handler
        for name, handler in HANDLERS.items()
        if allowed is None or name in allowed
    }


def _install(options: Options) -> None:
    handlers = _handlers()
    statuses = hooks.install(handlers)
    escaping = [status for status in statuses if status.escapes]
    if escaping and options.reproducible:
        raise HookUnavailableError(
            f"reproducible=True: {_listed(escaping)}; wrap the arrays in "
            "np_ozaki.OzArray instead"
        )
    failed = [status for status in escaping if status.name in handlers]
    if failed:
        warnings.warn(
            f"enabled() cannot catch all products of plain arrays: {_listed(failed)}",
            RouteWarning,
            stacklevel=4,
        )


def _listed(escaping: list[hooks.HookStatus]) -> str:
    """Return which products stay native and why, reasons once each."""
    names: dict[str, list[str]] = {}
    for status in escaping:
        names.setdefault(status.reason, []).append(status.name)
    return "; ".join(
        f"{', '.join(group)} would stay native ({reason})"
        for reason, group in names.items()
    )


class enabled(_Scope):
    """Run the matrix products of plain NumPy code on an np_ozaki engine.

    Context manager and decorator; nothing happens before it is entered.  Caught are
    float64 and complex128 products (whatever NumPy casts to them; `dtypes` names
    others) by ``@``, `numpy.matmul`, `numpy.dot`, `numpy.inner`, `numpy.einsum` and
    their relatives, and by ``scipy.linalg.blas``, however they were imported, and the
    functions of NumPy and SciPy that call them.

    Parameters
    ----------
    function : None
        Options have names; this place catches a decorator without parentheses.
    precision : "auto", "exact", float or int, default "auto"
        "auto": every entry as accurate as a conventional FP64 product is guaranteed to
        be, certified for each matrix; beyond 49 moduli it goes native.  "exact":
        correctly rounded.  A float, 2^-52 to below 1: largest error relative to
        |A||B|.  An int: number of moduli, 2 to 49.
    scaling : {"norm", "accurate", "legacy"}, default "norm"
        Rule of the scaling exponents.
    engine : {"auto", "cpu", "cuda", "cublas", "native"}, default "auto"
        Who multiplies: "auto" is the GPU, else the CPU engine; "cublas" is the
        emulation of cuBLAS, with bits of its own, and what it does not multiply goes
        where "auto" goes; "native" leaves everything to NumPy.
    strategy : {"always", "performant"}, default "always"
        "performant" routes only what is predicted to be faster than native.
    min_flops : int, optional
        Products of fewer operations (2 m n k of one matrix of a batch, 8 m n k of a
        complex one) stay native; the default is 2 * 256**3 on the CPU engine and
        2 * 1024**3 on a GPU.  Such products are not counted.
    local : bool, default False
        True: for this context (thread, task) only.  False: also for threads and tasks
        that have no scope of their own.
    reproducible : bool, default False
        Same bits on every machine for every product that the scope catches:
        `min_flops` is 0, options that leave such products to NumPy are refused, and
        so is a machine where the scope catches none.
    check : bool or "recompute", default False
        Whether products on an engine are held to checksums of their rows and columns;
        one that fails raises CheckError, with "recompute" only if it fails twice.
    workspace_bytes : int, optional
        Memory for workspaces; by default 1 GiB for all running products of this
        process on the CPU engine, and a quarter of the device's memory for each
        product on a GPU.
    dtypes : iterable of dtype_like, default ("float64", "complex128")
        Of the products that are caught, any of float64, complex128, float32 and
        complex64.  If given, `matmul` and OzArrays leave the others to NumPy, too;
        left out, they multiply all four.

    **more : object
        Options of scheme "slices" and engine "cublas"; see Other Parameters.

    Other Parameters
    ----------------
    scheme : {"moduli", "slices"}, default "moduli"
        Ozaki scheme II, or scheme I: entries are cut to slices, pairs of which are
        multiplied.  `precision` and `scaling` stay out then, and so does `check`.
    num_slices : int, default 8
        S, 1 to 16.
    bits_per_slice : int, default 8
        b, 2 to 8.
    pairs : "triangular", "all" or sequence of (i, j), default "triangular"
        Slices of the left and of the right operand that are multiplied, 0 being the
        most significant one; "triangular" has those with i + j < S.
    accumulate : {"exact", "float64"}, default "exact"
        Whether what pairs give is added exactly and rounded once, or in float64.
    mantissa_bits : int, default min(8 * num_slices, 55)
        Bits of an entry that engine "cublas" keeps, up to 79.
    mantissa_control : {"fixed", "dynamic"}, default "fixed"
        Whether engine "cublas" takes so many, or as many as it finds needed up to that.
    special_values : bool, default True
        Whether engine "cublas" looks for NaN and Inf.

    Raises
    ------
    OptionError, OperandTypeError
        An option cannot be used; raised here, not when entering.
    EngineUnavailableError
        When entering with ``engine="cuda"`` where there is no CuPy or no GPU for it.
    HookUnavailableError
        When entering, on interpreters whose NumPy cannot be hooked, and with
        ``reproducible=True`` wherever a hook is missing.

    Warns
    -----
    PerformanceWarning
        When entering with ``engine="auto"`` or "cublas" on a machine without a GPU:
        results get the contract's bits, but slower than native.
    RouteWarning
        When entering where a hook cannot be installed, as without the compiled
        extension: its products of plain arrays are not caught, `OzArray` is.

    See Also
    --------
    disabled : opts out inside a scope.
    OzArray : wraps single arrays, patch-free.

    Notes
    -----
    Options come from the innermost scope of the current context that is still
    entered, else from the process-wide scope that was entered last.  Scopes may be
    left in any order, by exceptions and in other threads.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> a = np.ones((3, 3))
    >>> with np_ozaki.enabled(engine="cpu", min_flops=0) as scope:
    ...     c = a @ a
    >>> c[0, 0]
    np.float64(3.0)
    """

    def __init__(
        self,
        function: None = None,
        /,
        *,
        precision: Precision | None = None,
        scaling: Scaling | None = None,
        engine: EngineName | None = None,
        strategy: Strategy | None = None,
        min_flops: int | None = None,
        local: bool | None = None,
        reproducible: bool | None = None,
        check: Check | None = None,
        workspace_bytes: int | None = None,
        dtypes: Dtypes | None = None,
        **more: Unpack[SchemeOptions],
    ) -> None:
        if function is not None:
            raise OperandTypeError(
                refusal(
                    "enabled",
                    function,
                    "takes options by name only",
                    "write @np_ozaki.enabled() with parentheses",
                )
            )
        options = config().options.with_changes(
            precision=precision,
            scaling=scaling,
            engine=engine,
            strategy=strategy,
            min_flops=min_flops,
            local=local,
            reproducible=reproducible,
            check=check,
            workspace_bytes=workspace_bytes,
            dtypes=None if dtypes is None else as_dtypes(dtypes),
            **scheme_options("enabled", more),
        )
        super().__init__(options, options.local)

    def _prepare(self) -> None:
        assert self._options is not None  # noqa: S101 - set by __init__
        resolved = choice.resolve(self._options)
        _install(self._options)
        slow = self._options.engine in {"auto", "cublas"} and resolved == "cpu"
        if slow and native_reason(self._options) is None:
            warnings.warn(
                f"no GPU engine here ({choice.cuda_unavailable()}): products run on "
                "the CPU engine, with the same bits but slower than native; "
                'engine="cpu" says that this is meant, strategy="performant" leaves '
                "them to NumPy",
                PerformanceWarning,
                stacklevel=3,
            )


class disabled(_Scope):
    """Leave products to NumPy inside an `enabled` scope.

    Context manager and decorator, for this context only.  Explicit calls of
    `np_ozaki.matmul` and products of `OzArray` still run on an engine.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> a = np.ones((3, 3))
    >>> with np_ozaki.enabled(engine="cpu", min_flops=0), np_ozaki.disabled():
    ...     c = a @ a
    >>> c[0, 0]
    np.float64(3.0)
    """

    def __init__(self) -> None:
        super().__init__(None, local=True)


_switched_on: list[enabled] = []
_switch_lock = threading.Lock()


def enable(**options: Any) -> None:
    """Enter a scope that lasts until `disable`: for scripts and notebooks.

    Parameters
    ----------
    **options : object
        As for `enabled`.

    Notes
    -----
    Enabling again replaces the scope of the last call, so a notebook cell may be run
    twice.
    """
    scope = enabled(**options)
    with _switch_lock:
        scope.__enter__()
        while _switched_on:
            _switched_on.pop().__exit__(None, None, None)
        _switched_on.append(scope)


def disable() -> None:
    """Leave the scope of `enable`; without one, do nothing."""
    with _switch_lock:
        while _switched_on:
            _switched_on.pop().__exit__(None, None, None)
