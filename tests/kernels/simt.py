"""Kernels compiled for the CPU: one library a source text, kept for the process."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from np_ozaki._kernels.render import AnyVariant, source

COMPILER = shutil.which("c++") or shutil.which("g++")

SHIM = Path(__file__).with_name("simt.hpp")
# -ffp-contract=off: the compiler may not fuse what the text keeps apart.
# -U_FORTIFY_SOURCE: some compilers turn it on, and it takes fibers' jumps for faults.
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-w",
]


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="np_ozaki-simt-")


def build(name: str, text: str) -> ctypes.CDLL:
    """Compile C++ text to a library and load it."""
    assert COMPILER is not None
    stem = Path(_directory().name) / f"{name}-{abs(hash(text)):x}"
    stem.with_suffix(".cpp").write_text(text)
    command = [COMPILER, *_FLAGS, "-o", f"{stem}.so", f"{stem}.cpp"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(f"{stem}.so")


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
