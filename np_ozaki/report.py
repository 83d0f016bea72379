"""What a user can ask about this process: counters, engines, hooks, settings."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from np_ozaki import context, hooks
from np_ozaki.config import config
from np_ozaki.engines import choice, workspace
from np_ozaki.engines.parallel import available_threads
from np_ozaki.engines.prepared import prepared_bytes
from np_ozaki.hooks import HookStatus
from np_ozaki.stats import Stats

__all__ = ["Info", "info", "reset_stats", "stats"]


def stats() -> Stats:
    """Return the counters of this process.

    Returns
    -------
    Stats
        For each route, calls and operations by engine, and fallbacks by reason.
    """
    return context.recorder.snapshot()


def reset_stats() -> None:
    """Set the counters of this process to zero; scopes keep theirs."""
    context.recorder.reset()


@dataclass(frozen=True)
class Info:
    """State of np_ozaki in this process.

    Attributes
    ----------
    versions : dict of str to str
        np_ozaki, Python, NumPy, SciPy and the platform.
    engines : dict of str to str
        Each engine and whether it can run here.
    hooks : tuple of HookStatus
        Each hook, whether it is active and why.
    threads : int
        Threads of the CPU engine's elementwise stages.
    live_scopes : int
        Scopes entered and not left.
    reserved_bytes : int
        Workspace that running products hold.
    prepared_bytes : dict of str to int
        What is kept of operands, by place.
    options : dict of str to object
        Defaults after the environment was read.
    """

    versions: dict[str, str]
    engines: dict[str, str]
    hooks: tuple[HookStatus, ...]
    threads: int
    live_scopes: int
    reserved_bytes: int
    prepared_bytes: dict[str, int]
    options: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and scalars, as for JSON.

        Returns
        -------
        dict
            The fields by name.
        """
        plain = asdict(self)
        return {**plain, "hooks": list(plain["hooks"])}

    def __str__(self) -> str:
        """Return a short report, one fact a line."""
        lines = [f"{name} {version}" for name, version in self.versions.items()]
        lines += [f"engine {name}: {state}" for name, state in self.engines.items()]
        lines += [
            f"hook {hook.name}: {'active' if hook.active else 'inactive'}, "
            f"{hook.reason}"
            for hook in self.hooks
        ]
        lines += [
            f"threads: {self.threads}",
            f"live scopes: {self.live_scopes}",
            f"workspace in use: {self.reserved_bytes} bytes",
        ]
        lines += [
            f"prepared operands on {place}: {size} bytes"
            for place, size in self.prepared_bytes.items()
        ]
        lines += [f"option {name}: {value}" for name, value in self.options.items()]
        return "\n".join(lines)


def _version(package: str) -> str:
    # Imported here: it takes as long as the rest of np_ozaki together.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def info() -> Info:
    """Return versions, engines, hooks and settings.

    Installs nothing, and imports nothing but CuPy, to see whether there is a GPU.

    Returns
    -------
    Info
        Printable; `Info.as_dict` for programs.
    """
    settings = config()
    return Info(
        versions={
            "np_ozaki": _version("np_ozaki"),
            "Python": platform.python_version(),
            "NumPy": np.__version__,
            "SciPy": _version("scipy"),
            "platform": f"{sys.platform} {platform.machine()}",
        },
        engines=choice.engine_states(),
        hooks=hooks.status(),
        threads=settings.threads or available_threads(),
        live_scopes=len(context.live_scopes()),
        reserved_bytes=workspace.reserved_bytes(),
        prepared_bytes=prepared_bytes(),
        options=asdict(settings.options),
    )
