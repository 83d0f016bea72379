"""Which hooks are installed, and the gate: the state of this process."""

from __future__ import annotations

import _imp
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import numpy as np

from np_ozaki.errors import HookUnavailableError, OptionError, refusal
from np_ozaki.hooks.extension import (
    REMEDY,
    extension,
    extension_reason,
    interpreter_reason,
)
from np_ozaki.hooks.probes import self_test
from np_ozaki.hooks.table import BLAS, HOOKS, NAMES, Hook, blas_module

__all__ = ["HookStatus", "install", "set_gate", "status"]


@dataclass(frozen=True)
class HookStatus:
    """State of one hook.

    Attributes
    ----------
    name : str
        Name of the hook, as in `NP_OZAKI_HOOKS`.
    active : bool
        Whether products reach the handler while the gate is open.
    reason : str
        Why it is active or not, with the remedy where there is one.
    escapes : bool
        Whether products stay native that the hook could catch here: it is switched
        off, or it failed.  Not while it waits for SciPy, nor where this NumPy lacks
        the function.
    """

    name: str
    active: bool
    reason: str
    escapes: bool = False


@dataclass
class _Slot:
    """What is known about one hook."""

    status: HookStatus
    handler: Callable[..., Any] | None = None
    target: Any = None
    settled: bool = False


def _fresh_slots() -> dict[str, _Slot]:
    reason = "not installed: no scope was entered yet"
    return {name: _Slot(HookStatus(name, False, reason)) for name in NAMES}


@dataclass
class _State:
    extension: ModuleType | None = None
    slots: dict[str, _Slot] = field(default_factory=_fresh_slots)
    handlers: Mapping[str, Callable[..., Any]] | None = None
    statuses: tuple[HookStatus, ...] = ()
    unfinished: bool = True
    arrays_known: bool = False
    gate: tuple[int, int] = (0, 0)


_state: Final = _State(extension)
# Reentrant: a signal handler or a finaliser may enter a scope during an install.
_lock: Final = threading.RLock()


def install(handlers: Mapping[str, Callable[..., Any]]) -> tuple[HookStatus, ...]:
    """Install hooks, or only change their handlers if they are installed.

    Parameters
    ----------
    handlers : mapping of str to callable
        Handler of each hook, by name; hooks without one are left out, and taken out
        if they are installed.  The module's docstring says what each kind is called
        with.  Not to be changed afterwards: the same mapping again costs nothing.

    Returns
    -------
    tuple of HookStatus
        One a hook, in the order of `NAMES`.  A missing extension, an unknown NumPy or
        a failed self-test gives an inactive hook with its reason, not an exception.

    Raises
    ------
    HookUnavailableError
        On PyPy, free-threaded Python and in subinterpreters.
    OptionError
        A name that no hook has.

    Notes
    -----
    SciPy's hooks wait until its BLAS module is imported, however and wherever that
    happens; nothing is imported on their account.
    """
    if interpreter_reason is not None:
        raise HookUnavailableError(f"{interpreter_reason}; {REMEDY}")
    with _lock:
        if _state.extension is not None and not _state.extension.is_owner(_state):
            _state.extension.set_owner(_state)
            _take_back(_state.extension)
        if handlers is not _state.handlers or _state.unfinished:
            unknown = sorted(handlers.keys() - set(NAMES))
            if unknown:
                raise OptionError(
                    refusal("handlers", unknown, "no such hooks", f"there are {NAMES}")
                )
            _state.handlers = handlers
            _settle(lambda hook: True, blas_complete=blas_module() is not None)
        return _state.statuses


def status() -> tuple[HookStatus, ...]:
    """Return the state of every hook without installing anything.

    Returns
    -------
    tuple of HookStatus
        In the order of `NAMES`.
    """
    with _lock:
        if _state.extension is None:
            return tuple(_without_extension(name) for name in NAMES)
        return tuple(slot.status for slot in _state.slots.values())


def set_gate(depth: int, min_flops: int) -> None:
    """Open or close the gate in front of the handlers, for the whole process.

    Parameters
    ----------
    depth : int
        Number of open scopes; at 0 every product is native at once.
    min_flops : int
        Products with 2*m*k*n of one matrix below this are native at once.  Numbers
        from 2**63 on let nothing pass.
    """
    if _state.extension is None:
        return
    with _lock:
        _state.extension.set_gate(depth, min_flops)
        _state.gate = (depth, min_flops)


def _without_extension(name: str) -> HookStatus:
    return HookStatus(name, False, extension_reason, escapes=True)


def _settle(which: Callable[[Hook], bool], *, blas_complete: bool) -> None:
    """Bring hooks to what `_state.handlers` asks for; call with the lock held."""
    handlers = _state.handlers or {}
    _state.unfinished = True  # and so it stays if Ctrl-C strikes in between
    for hook in filter(which, HOOKS):
        slot = _state.slots[hook.name]
        handler = handlers.get(hook.name)
        if handler is None:
            _take_out(hook, slot)
        elif _state.extension is None:
            slot.status = _without_extension(hook.name)
        elif hook.kind == "BLAS" and not blas_complete:
            reason = "waits for scipy.linalg to be imported"
            slot.status = HookStatus(hook.name, False, reason)
        elif slot.settled:
            _replace_handler(_state.extension, hook, slot, handler)
        else:
            _put_in(_state.extension, hook, slot, handler)
    waiting = not blas_complete and any(
        hook.kind == "BLAS" and hook.name in handlers for hook in HOOKS
    )
    _watch_imports(waiting)
    _state.statuses = tuple(slot.status for slot in _state.slots.values())
    _state.unfinished = waiting


def _take_back(extension: ModuleType) -> None:
    """Install handlers again that another import of this package has replaced.

    The extension is the process's: what one of two imports installs, both use.
    """
    for slot in _state.slots.values():
        if slot.status.active:
            extension.install(slot.status.name, slot.target, slot.handler)


def _take_out(hook: Hook, slot: _Slot) -> None:
    if slot.status.active and _state.extension is not None:
        _state.extension.uninstall(hook.name)
    exists = hook.kind == "BLAS" or hook.find() is not None
    reason = "switched off by configuration"
    _state.slots[hook.name] = _Slot(HookStatus(hook.name, False, reason, exists))


def _replace_handler(
    extension: ModuleType, hook: Hook, slot: _Slot, handler: Callable[..., Any]
) -> None:
    if slot.status.active and slot.handler is not handler:
        extension.install(hook.name, slot.target, handler)
        slot.handler = handler


def _put_in(
    extension: ModuleType, hook: Hook, slot: _Slot, handler: Callable[..., Any]
) -> None:
    target = hook.find()
    obstacle = hook.obstacle()
    escapes = True
    if obstacle is None and target is None:
        library = "SciPy" if hook.kind == "BLAS" else f"NumPy {np.__version__}"
        obstacle = f"{library} has no {hook.name}"
        escapes = False
    if obstacle is None:
        obstacle = _trial(extension, hook, target)
    if obstacle is None:
        extension.install(hook.name, target, handler)
        slot.handler, slot.target = handler, target
        slot.status = HookStatus(hook.name, True, "installed, self-tested")
    else:
        slot.status = HookStatus(hook.name, False, obstacle, escapes)
    slot.settled = True


def _trial(extension: ModuleType, hook: Hook, target: Any) -> str | None:
    """Install with probes and test; on failure uninstall and return the reason."""
    passed = False
    unrouted_before = extension.swap_unrouted(0)
    try:
        if hook.kind == "builtin":
            _learn_arrays(extension)
        self_test(extension, hook, target)
        passed = True
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, NumPy must live
        return f"self-test on NumPy {np.__version__} failed: {error!r}"
    finally:
        extension.set_gate(*_state.gate)
        extension.swap_unrouted(unrouted_before)
        if not passed:
            extension.uninstall(hook.name)
    return None


def _learn_arrays(extension: ModuleType) -> None:
    """Let the extension see arrays of several ranks and types, once."""
    if not _state.arrays_known:
        extension.learn_arrays(
            (
                np.empty((2, 3, 5)),
                np.empty((), np.float32),
                np.empty(7, np.int64),
                np.empty((3, 0), np.complex128),
                np.empty((4, 1), ">f8"),
            )
        )
        _state.arrays_known = True


def _watch_imports(waiting: bool) -> None:
    """Have `_imported` called while SciPy's BLAS is awaited, and not otherwise."""
    if _state.extension is None:
        return
    if not waiting:
        _state.extension.uninstall("imports")
        return
    try:
        _state.extension.install("imports", _imp.exec_dynamic, _imported)
    except TypeError as error:
        # Then the next scope that is entered looks again.
        _explain_waiting(f"and imports inside a scope are not seen: {error}")


def _explain_waiting(reason: str) -> None:
    for slot in _state.slots.values():
        if slot.status.reason.startswith("waits"):
            waits = f"waits for scipy.linalg to be imported, {reason}"
            slot.status = HookStatus(slot.status.name, False, waits)


def _imported(module: ModuleType) -> None:
    """Install SciPy's hooks in the moment that its BLAS module was executed."""
    if getattr(module, "__name__", None) == BLAS:
        with _lock:
            _settle(lambda hook: hook.kind == "BLAS", blas_complete=True)


# Held across a fork, so that no child inherits a half-done install or a lock whose
# owner it lacks.  The unrouted count needs no reset: the child goes on inside the
# same calls as the thread that forked, and leaves them as often.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )
