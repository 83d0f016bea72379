"""The one table of routes: which hook is answered by which function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from np_ozaki.hooks import DTYPES
from np_ozaki.routes.einsum import handle_einsum
from np_ozaki.routes.numpy_api import handle_dot, handle_inner, handle_loop
from np_ozaki.routes.scipy_blas import (
    handle_gemm,
    handle_gemv,
    handle_rank_2k,
    handle_rank_k,
    handle_symmetric,
    handle_triangular,
)

__all__ = ["HANDLERS"]

_BLAS: Final[Mapping[str, Callable[..., Any]]] = {
    "gemm": handle_gemm,
    "gemv": handle_gemv,
    "symm": handle_symmetric,
    "syrk": handle_rank_k,
    "syr2k": handle_rank_2k,
    "trmm": handle_triangular,
    "trsm": handle_triangular,
}
_HERMITIAN: Final[Mapping[str, Callable[..., Any]]] = {
    "hemm": handle_symmetric,
    "herk": handle_rank_k,
    "her2k": handle_rank_2k,
}


def _blas_handlers() -> dict[str, Callable[..., Any]]:
    return {
        letter + name: functools.partial(handler, letter + name)
        for letter, dtype in DTYPES.items()
        for name, handler in (
            {**_BLAS, **_HERMITIAN} if dtype.kind == "c" else _BLAS
        ).items()
    }


HANDLERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: functools.partial(handle_loop, name)
        for name in ("matmul", "vecdot", "matvec", "vecmat")
    },
    "dot": functools.partial(handle_dot, "dot"),
    "ndarray.dot": functools.partial(handle_dot, "ndarray.dot"),
    "inner": handle_inner,
    "einsum": handle_einsum,
    **_blas_handlers(),
}
"""Handler of each hook by its name; `np_ozaki.hooks` says what they are called with."""
