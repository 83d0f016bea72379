"""Which scope is in force here and now, and the process's counters.

A scope lives from entering to leaving, wherever it is left.  Two lists lead to it: the
context's own (a ContextVar, so threads, tasks and generators each see theirs) and the
process-wide one for scopes that are not local.  A scope that was left is skipped even
by tasks that copied the context while it lived, so leaving in any order is safe and no
token has to be handed back.
"""

from __future__ import annotations

import contextvars
import os
import threading
import weakref

from np_ozaki.config import Options, config
from np_ozaki.stats import CallInfo, Recorder

__all__ = [
    "LiveScope",
    "active_scope",
    "default_options",
    "enter",
    "entered_here",
    "last_call",
    "leave",
    "live_scopes",
    "record",
    "recorder",
    "recorders",
]


class LiveScope:
    """One entered scope.

    Parameters
    ----------
    options : Options or None
        None switches routing off (`np_ozaki.disabled`).
    local : bool
        Whether other contexts must not see it.
    """

    __slots__ = ("__weakref__", "alive", "local", "options", "recorder")

    def __init__(self, options: Options | None, local: bool) -> None:
        self.options = options
        self.local = local
        self.alive = True
        self.recorder = Recorder()


recorder = Recorder()
_lock = threading.Lock()
_live: tuple[LiveScope, ...] = ()
_here: contextvars.ContextVar[tuple[LiveScope, ...]] = contextvars.ContextVar(
    "np_ozaki_scopes", default=()
)
_thread = threading.local()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    recorder.forget_lock()
    for scope in _recorders:
        scope.recorder.forget_lock()


_recorders: weakref.WeakSet[LiveScope] = weakref.WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def enter(scope: LiveScope) -> None:
    """Put a scope in force in this context and, unless local, in the process.

    Parameters
    ----------
    scope : LiveScope
        A new scope.
    """
    # Scopes that were left in another context are dropped here, so that a long-lived
    # context does not collect them.
    global _live
    _here.set((*(s for s in _here.get() if s.alive), scope))
    with _lock:
        _live = (*_live, scope)
        _recorders.add(scope)


def entered_here(scope: LiveScope) -> bool:
    """Return whether this context entered a scope, or copied one that had.

    Parameters
    ----------
    scope : LiveScope
        Any scope.

    Returns
    -------
    bool
        Whether the context's own list holds it.
    """
    return scope in _here.get()


def leave(scope: LiveScope) -> None:
    """End a scope, from whatever thread or context.

    Parameters
    ----------
    scope : LiveScope
        As given to `enter`; leaving twice does nothing.
    """
    global _live
    with _lock:
        scope.alive = False
        _live = tuple(s for s in _live if s.alive)
    _here.set(tuple(s for s in _here.get() if s.alive))


def live_scopes() -> tuple[LiveScope, ...]:
    """Return every scope that is entered and not left, oldest first.

    Returns
    -------
    tuple of LiveScope
        As of now.
    """
    return _live


def active_scope() -> LiveScope | None:
    """Return the scope that decides here, or None.

    Returns
    -------
    LiveScope or None
        The innermost live scope of this context, else the process-wide one that was
        entered last.
    """
    here, live = _here.get(), _live
    if here:
        for scope in reversed(here):
            if scope.alive:
                return scope
    if live:
        for scope in reversed(live):
            if scope.alive and not scope.local:
                return scope
    return None


def default_options() -> Options:
    """Return the options that an explicit call starts from.

    Returns
    -------
    Options
        Those of the active scope, else the environment's.
    """
    scope = active_scope()
    if scope is None or scope.options is None:
        return config().options
    return scope.options


def record(info: CallInfo) -> None:
    """Count a call for the process, for the active scope and as the thread's last.

    Parameters
    ----------
    info : CallInfo
        What the call did.
    """
    recorder.record(info)
    scope = active_scope()
    if scope is not None:
        scope.recorder.record(info)
    _thread.last = info


def recorders() -> tuple[Recorder, ...]:
    """Return the counters that see what happens here.

    Returns
    -------
    tuple of Recorder
        The process's, and the active scope's.
    """
    scope = active_scope()
    return (recorder,) if scope is None else (recorder, scope.recorder)


def last_call() -> CallInfo | None:
    """Return what this thread's last product did.

    Returns
    -------
    CallInfo or None
        None before the first one.
    """
    return getattr(_thread, "last", None)
