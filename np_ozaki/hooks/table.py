"""The one table of hooks: what each is called, where it sits, how it is recognised."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

__all__ = [
    "BLAS",
    "DTYPES",
    "HOOKS",
    "NAMES",
    "Hook",
    "Kind",
    "blas_module",
    "multiarray",
]

Kind = Literal["loop", "builtin", "BLAS"]

BLAS: Final = "scipy.linalg._fblas"
"""The extension module whose objects scipy.linalg.blas and get_blas_funcs hand out."""

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "d": np.dtype(np.float64),
    "z": np.dtype(np.complex128),
    "s": np.dtype(np.float32),
    "c": np.dtype(np.complex64),
}
"""What hooks catch products of, by BLAS's letters; loops.c and blas.c have the same."""

_ROUTINES: Final = ("gemm", "gemv", "symm", "syrk", "syr2k", "trmm", "trsm")
_HERMITIAN_ROUTINES: Final = ("hemm", "herk", "her2k")
"""Those that complex dtypes alone have."""


def multiarray() -> Any:
    """Return NumPy's C module: its names cannot have been rebound by accident.

    Returns
    -------
    module
        numpy._core._multiarray_umath.
    """
    return importlib.import_module("numpy._core._multiarray_umath")


def blas_module() -> Any:
    """Return SciPy's BLAS module once it is imported and complete.

    Returns
    -------
    module or None
        `BLAS`; None also while a thread is importing it.
    """
    module = sys.modules.get(BLAS)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


@dataclass(frozen=True)
class Hook:
    """One row of the table.

    Attributes
    ----------
    name : str
        As in `HookStatus` and in NP_OZAKI_HOOKS.
    kind : {"loop", "builtin", "BLAS"}
        How it is hooked: the loops of a ufunc, one for each of `DTYPES`, the C
        function of a builtin, or the Fortran routine of an f2py object.
    find : callable
        Returns the object to hook; None where this NumPy does not have it.
    """

    name: str
    kind: Kind
    find: Callable[[], Any]

    def obstacle(self) -> str | None:
        """Return why this kind of hook cannot be on this NumPy or SciPy, or None."""
        # Places in tables of C functions and members of arrays are stable within
        # NumPy 2 only.
        if np.__version__.partition(".")[0] != "2":
            return f"NumPy {np.__version__}: only the C ABI of NumPy 2 is known"
        if self.kind == "loop" and not hasattr(multiarray(), "_UFUNC_API"):
            return f"NumPy {np.__version__} exports no _UFUNC_API capsule"
        if self.kind == "BLAS" and _has_wide_integers():
            return "SciPy with 64-bit BLAS integers: its routines are not known"
        return None


def _has_wide_integers() -> bool:
    # By looking at files: to ask importlib would wait for scipy.linalg, which may
    # wait for us.
    folder = os.path.dirname(getattr(sys.modules.get(BLAS), "__file__", None) or "")
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return False  # imported from an archive: nothing to see
    return any(name.startswith("_fblas_64.") for name in names)


def _loop(name: str) -> Hook:
    # Not np.matmul: that name may have been rebound, `@` does not follow it.
    return Hook(name, "loop", lambda: getattr(multiarray(), name, None))


def _builtin(name: str, attribute: str) -> Hook:
    def find() -> Any:
        found = getattr(multiarray(), attribute, None)
        return getattr(found, "_implementation", found)

    return Hook(name, "builtin", find)


# A bound method: it has the PyMethodDef of the descriptor in the type's dict.  One
# object for ever, because the hook knows its target by identity.
_bound_dot: Final = np.empty(0).dot


def _blas(name: str) -> Hook:
    return Hook(name, "BLAS", lambda: getattr(sys.modules.get(BLAS), name, None))


def _all_blas() -> tuple[Hook, ...]:
    return tuple(
        _blas(letter + routine)
        for letter, dtype in DTYPES.items()
        for routine in _ROUTINES + _HERMITIAN_ROUTINES * (dtype.kind == "c")
    )


HOOKS: Final = (
    _loop("matmul"),
    _loop("vecdot"),
    _loop("matvec"),
    _loop("vecmat"),
    _builtin("dot", "dot"),
    Hook("ndarray.dot", "builtin", lambda: _bound_dot),
    _builtin("inner", "inner"),
    _builtin("einsum", "c_einsum"),
    *_all_blas(),
)

NAMES: Final = tuple(hook.name for hook in HOOKS)
"""Every name that `install` and NP_OZAKI_HOOKS know."""
