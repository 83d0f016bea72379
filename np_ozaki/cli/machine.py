"""What a measurement belongs to: processor, GPU, driver, libraries, commit.

Nothing here may stop a measurement: what cannot be found out is None.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import np_ozaki
from np_ozaki.report import info

__all__ = ["gpu_state", "machine", "number"]

_QUERIES = {
    "name": "gpu",
    "driver_version": "driver",
    "clocks.sm": "sm_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
}

_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NP_OZAKI_THREADS",
)

_TIMEOUT = 20.0


def machine() -> dict[str, Any]:
    """Return what is known of this process and of the host.

    Returns
    -------
    dict
        Plain values; units are in the names.
    """
    state = info()
    return {
        "versions": {**state.versions, "np_ozaki": np_ozaki.__version__},
        "commit": _commit(),
        "processor": _processor(),
        "logical_cores": os.cpu_count(),
        "threads": state.threads,
        "blas": _blas(),
        "environment": {
            name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ
        },
    }


def gpu_state(bus_id: str | None) -> dict[str, Any] | None:
    """Return what nvidia-smi says of one GPU: driver, clocks, power.

    Parameters
    ----------
    bus_id : str or None
        PCI address; None if unknown, when nothing can be said.

    Returns
    -------
    dict or None
        None without nvidia-smi.
    """
    if bus_id is None:
        return None
    fields = ",".join(_QUERIES)
    query = [f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    text = _output(["nvidia-smi", *query, f"--id={bus_id}"])
    if text is None:
        return None
    values = [value.strip() for value in text.splitlines()[0].split(",")]
    if len(values) != len(_QUERIES):
        return None
    return {
        key: number(value) if query not in {"name", "driver_version"} else value
        for (query, key), value in zip(_QUERIES.items(), values, strict=True)
    }


def number(text: str) -> float | None:
    """Return a value that nvidia-smi prints.

    Parameters
    ----------
    text : str
        With or without spaces around it.

    Returns
    -------
    float or None
        None for what is no number, such as [N/A].
    """
    try:
        return float(text)
    except ValueError:
        return None


def _output(command: Sequence[str]) -> str | None:
    """Return what a program prints; None if it is not there, fails or is silent."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None


def _commit() -> str | None:
    """Return the commit of the sources, if they are a checkout."""
    root = Path(np_ozaki.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    commit = _output([*git, "rev-parse", "HEAD"])
    if commit is None:
        return None
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return f"{commit} and changes" if changed else commit


def _processor() -> str:
    if sys.platform.startswith("linux"):
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:
                for line in file:
                    if line.startswith("model name"):
                        return line.split(":", 1)[1].strip()
        except OSError:
            pass  # the next line knows less
    return platform.processor() or platform.machine()


def _blas() -> str | None:
    """Return the BLAS that NumPy was built with."""
    try:
        built: Any = np.show_config(mode="dicts")
        found = built["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return None
