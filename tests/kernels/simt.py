"""Kernels compiled for the CPU: one library a source text, kept for later runs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from np_ozaki._kernels.render import AnyVariant, source

COMPILER = shutil.which("c++") or shutil.which("g++")

SHIM = Path(__file__).with_name("simt.hpp")
_RUNTIME = SHIM.with_suffix(".cpp")
# -ffp-contract=off: the compiler may not fuse what the text keeps apart.
# -U_FORTIFY_SOURCE: some compilers turn it on, and it takes fibers' jumps for faults.
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-w",
)

_KEPT_SECONDS = 14 * 24 * 3600.0
"""How long a library that nobody loads is kept."""


@functools.cache
def _directory() -> Path:
    """Return the folder of libraries, which all processes of a user share."""
    folder = Path(tempfile.gettempdir(), f"np_ozaki-simt-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode != stat.S_IFDIR | 0o700:
        # Others may write there, and what is there is run here.
        return Path(tempfile.mkdtemp(prefix="np_ozaki-simt-"))
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.glob("*.so"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()
    return folder


@functools.cache
def _compiler_version() -> str:
    assert COMPILER is not None
    command = [COMPILER, "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _compiled(name: str, text: str, *flags: str) -> str:
    """Return the library of a C++ text; it is compiled unless that has been done."""
    assert COMPILER is not None
    flags = (*_FLAGS, *flags)
    key = "\0".join((_compiler_version(), *flags, text)).encode()
    target = _directory() / f"{name}-{hashlib.sha256(key).hexdigest()[:32]}.so"
    if not target.exists():
        made = f"{target}.{os.getpid()}"
        command = [COMPILER, *flags, "-o", made, "-x", "c++", "-"]
        subprocess.run(command, check=True, input=text, text=True)
        # Whole or not there at all: another process may look for it now.
        os.replace(made, target)
    os.utime(target)
    return str(target)


@functools.cache
def _load_runtime() -> None:
    """Load what runs threads, where all libraries find it."""
    text = SHIM.read_text() + _RUNTIME.read_text()
    ctypes.CDLL(_compiled("simt", text, "-O3"), mode=ctypes.RTLD_GLOBAL)


def build(name: str, text: str) -> ctypes.CDLL:
    """Return the loaded library of a C++ text, which may lean on `SHIM`."""
    _load_runtime()
    return ctypes.CDLL(_compiled(name, text, "-O1"))


@functools.cache
def library(stage: str, variant: AnyVariant | None = None) -> ctypes.CDLL:
    """Return the kernels of a stage, each as `launch_<name>`."""
    text = source(stage, variant)
    names = re.findall(r"^KERNEL void (\w+)\(", text, re.MULTILINE)
    sizes = re.findall(r"^CLUSTERS\((\d+), \w+, (\w+),", text, re.MULTILINE)
    clusters = {name: int(size) for size, name in sizes}
    parts = [SHIM.read_text(), text]
    for name in names:
        parts.append(
            f'extern "C" void launch_{name}(const unsigned* grid, unsigned block, '
            "size_t shared, void** args) {\n"
            f"  simt::launch([](void** a) {{ simt::call({name}, a); }}, "
            f"{clusters.get(name, 1)}, grid, block, shared, args);\n}}"
        )
    return build(stage, "\n".join(parts))


def _value(argument: Any) -> Any:
    """Return a ctypes object that holds the argument: bytes are a structure."""
    if isinstance(argument, bytes):
        return ctypes.create_string_buffer(argument)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_int64(int(argument))


def launch(
    stage: str,
    variant: AnyVariant | None,
    name: str,
    grid: tuple[int, ...],
    block: int,
    args: tuple[Any, ...],
    shared: int = 0,
) -> None:
    """Run one kernel to its end."""
    values = [_value(x) for x in args]
    pointers = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in values)
    )
    sizes = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
    function = getattr(library(stage, variant), f"launch_{name}")
    function(sizes, ctypes.c_uint(block), ctypes.c_size_t(shared), pointers)
