"""The one table of routes: which hook is answered by which function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from np_ozaki.routes.einsum import handle_einsum
from np_ozaki.routes.numpy_api import handle_dot, handle_inner, handle_loop
from np_ozaki.routes.scipy_blas import (
    handle_dgemm,
    handle_dgemv,
    handle_dsymm,
    handle_dsyr2k,
    handle_dsyrk,
    handle_triangular,
)

__all__ = ["HANDLERS"]

HANDLERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: functools.partial(handle_loop, name)
        for name in ("matmul", "vecdot", "matvec", "vecmat")
    },
    "dot": functools.partial(handle_dot, "dot"),
    "ndarray.dot": functools.partial(handle_dot, "ndarray.dot"),
    "inner": handle_inner,
    "einsum": handle_einsum,
    "dgemm": handle_dgemm,
    "dgemv": handle_dgemv,
    "dsymm": handle_dsymm,
    "dsyrk": handle_dsyrk,
    "dsyr2k": handle_dsyr2k,
    "dtrmm": functools.partial(handle_triangular, "dtrmm"),
    "dtrsm": functools.partial(handle_triangular, "dtrsm"),
}
"""Handler of each hook by its name; `np_ozaki.hooks` says what they are called with."""
