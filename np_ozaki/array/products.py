"""Products of OzArrays: where two operands are multiplied, and the result written."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from np_ozaki import context
from np_ozaki.array.core import (
    Core,
    adopted,
    borrow,
    unwrap,
    written_on_host,
)
from np_ozaki.array.storage import NotOnDevice
from np_ozaki.complex_products import UNCONJUGATED, Conjugated
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.prepared import Pair
from np_ozaki.gemm import matmul_arrays
from np_ozaki.routes import explicit
from np_ozaki.routes.decision import (
    COMPLEX64,
    COMPLEX128,
    FLOAT32,
    FLOAT64,
    common_dtype,
)
from np_ozaki.routes.numpy_api import dot as dot_arrays
from np_ozaki.stats import CallInfo

__all__ = [
    "as_array",
    "dot",
    "is_foreign",
    "matmul",
    "multiply",
    "on_host",
    "operand_for",
    "operands",
    "placed",
    "prepared_pair",
]

_KNOWN = (FLOAT64, COMPLEX128, FLOAT32, COMPLEX64)

_Result = tuple[Any, CallInfo]


def placed(
    cls: type[Core],
    a: Any,
    b: Any,
    options: Options,
    *,
    dtype: np.dtype[Any] | None = None,
) -> Any:
    """Return both operands on the device, or None where the host's are multiplied.

    Parameters
    ----------
    cls : type
        Of OzArrays.
    a, b : array_like or Core
        Operands.
    options : Options
        Of the call.
    dtype : dtype, optional
        The caller asked for a product of this dtype, whatever can be cast to it.

    Returns
    -------
    tuple of two device arrays, or None
        Of one dtype, that of the product.
    """
    if choice.device_memory() is None:
        return None
    engine = choice.resolve(options)
    x, y = as_array(adopted(cls, a)), as_array(adopted(cls, b))
    if engine == "cpu" or (
        engine == "native" and not (_lives_on_device(x) or _lives_on_device(y))
    ):
        return None
    left, right = (z._view if isinstance(z, Core) else z for z in (x, y))
    if explicit.native_reason(left, right, dtype=dtype) is not None:
        return None
    if not (left.ndim and left.dtype.isnative and right.ndim and right.dtype.isnative):
        return None
    try:
        found = common_dtype(left, right) if dtype is None else dtype
        return _brought(x, found), _brought(y, found)
    except MemoryError:
        # The engine brings operands from the host tile by tile.
        return None


def _lives_on_device(x: Any) -> bool:
    return isinstance(x, Core) and x._lives_on_device


def _brought(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return an operand as an array of a dtype on the device."""
    there = x._device_view() if isinstance(x, Core) else borrow(x)
    return there if there.dtype is dtype else there.astype(dtype, copy=False)


def operand_for(x: Core, options: Options) -> Any:
    """Return an array where products under some options would find it.

    Parameters
    ----------
    x : Core
        Of a dtype whose products are the engine's.
    options : Options
        Of those products.

    Returns
    -------
    array
        On the device or the host.
    """
    if choice.device_memory() is None or not choice.on_gpu(options):
        return x._read()
    try:
        return x._device_view()
    except MemoryError:
        return x._read()


def multiply(
    cls: type[Core],
    name: str,
    a: Any,
    b: Any,
    out: Any,
    options: Options,
    *,
    dtype: np.dtype[Any] | None = None,
    native: Callable[..., Any] = np.matmul,
    conjugated: Conjugated = UNCONJUGATED,
) -> _Result:
    """Multiply under the rules of `numpy.matmul`.

    Parameters
    ----------
    cls : type
        Of the result.
    name : str
        Route, for the counters; "dot" has the rules of `numpy.dot`.
    a, b : array_like or Core
        Operands.
    out : ndarray, Core or None
        Where to write.
    options : Options
        Of the call.
    dtype : dtype, optional
        The caller asked for a product of this dtype, whatever can be cast to it.
    native : callable, optional
        NumPy's function, of two ndarrays and perhaps `out`.
    conjugated : tuple of bool, optional
        Whether conj(a) takes the place of a, conj(b) that of b; operands are the
        engine's business then.

    Returns
    -------
    result : Core or scalar
        `out` itself where one is given.
    CallInfo
        What happened.
    """
    # First: a write in between closes them, and nothing old is kept for new data.
    prepared = prepared_pair(a, b)
    there = placed(cls, a, b, options, dtype=dtype)
    if there is not None and _suits_device(name, there, out):
        try:
            how = {"native": native, "prepared": prepared, "conjugated": conjugated}
            return _multiply_there(cls, name, there, out, options, how)
        except (MemoryError, NotOnDevice):
            pass  # no room for the result: tile by tile, from and to the host
    product = functools.partial(
        explicit.matmul_product if name == "matmul" else dot_arrays,
        prepared=prepared,
        conjugated=conjugated,
    )
    if name != "matmul":
        product.keywords["route"] = name
    operands = on_host(a, name, beside=b), on_host(b, name, beside=a)
    target = out._read_unasked(name) if isinstance(out, Core) else out
    with written_on_host([out]) if out is not None else contextlib.nullcontext():
        result, info = explicit.run(
            name, native, product, operands, target, options, dtype
        )
    if out is not None:
        return out, info
    return (cls._own(result) if type(result) is np.ndarray else result), info


def prepared_pair(a: Any, b: Any) -> Pair:
    """Return what is kept of the operands of a product.

    Parameters
    ----------
    a, b : object
        Operands, wrapped or not.

    Returns
    -------
    tuple of Prepared or None
    """
    return (
        a._prepared(left=True) if isinstance(a, Core) else None,
        b._prepared(left=False) if isinstance(b, Core) else None,
    )


def operands(
    cls: type[Core], a: Any, b: Any, out: Any, options: Options
) -> tuple[Any, Any, contextlib.AbstractContextManager[Any] | None]:
    """Return operands of a product as arrays of one side, and how to write its target.

    Parameters
    ----------
    cls : type
        Of OzArrays.
    a, b : array_like or Core
        Operands.
    out : ndarray, Core or None
        Target.
    options : Options
        Of the call.

    Returns
    -------
    left, right : array_like or device array
    place : context manager or None
        Gives the target on that side, and holds it while it is written; None where
        `out` is the target as it is.
    """
    if not (isinstance(a, Core) or isinstance(b, Core) or isinstance(out, Core)):
        return a, b, None
    there = None
    if out is None or (isinstance(out, Core) and out._may_write_device()):
        there = placed(cls, a, b, options)
    if there is not None:
        return *there, None if out is None else out._written_on_device()
    left, right = on_host(a, "matmul"), on_host(b, "matmul")
    return left, right, _target_on_host(out) if isinstance(out, Core) else None


@contextlib.contextmanager
def _target_on_host(out: Core) -> Iterator[Any]:
    target = out._read_unasked("matmul")
    with written_on_host([out]):
        yield target


def as_array(x: Any) -> Any:
    """Return an operand as an array, a Core or an ndarray as it is.

    Parameters
    ----------
    x : array_like or Core

    Returns
    -------
    Core or ndarray
    """
    return x if isinstance(x, (Core, np.ndarray)) else np.asarray(x)


def on_host(x: Any, name: str, beside: Any = None) -> Any:
    """Return an operand on the host, which strict mode may refuse.

    Parameters
    ----------
    x : array_like or Core
        Operand.
    name : str
        Of the function, for the error.
    beside : object, optional
        The other operand: subclasses of ndarray may keep what they see.

    Returns
    -------
    array_like
    """
    if isinstance(x, (list, tuple)):
        return unwrap(x)
    if not isinstance(x, Core):
        return x
    data = x._read_unasked(name)
    return x._lent() if is_foreign(beside) else data


def is_foreign(x: Any) -> bool:
    """Return whether an operand is an ndarray with ideas of its own.

    Parameters
    ----------
    x : object

    Returns
    -------
    bool
        For subclasses of ndarray, but for memmap.
    """
    return isinstance(x, np.ndarray) and type(x) not in {np.ndarray, np.memmap}


def _suits_device(name: str, there: tuple[Any, Any], out: Any) -> bool:
    if out is not None and not (isinstance(out, Core) and out._may_write_device()):
        return False
    return name == "matmul" or (out is None and max(x.ndim for x in there) <= 2)


def _multiply_there(
    cls: type[Core],
    name: str,
    operands: tuple[Any, Any],
    out: Core | None,
    options: Options,
    how: dict[str, Any],
) -> _Result:
    product: Callable[..., Any] = functools.partial(
        matmul_arrays, *operands, route=name, options=options, **how
    )
    if out is None:
        result, info = product(None)
        if result.ndim:
            return cls._on_device(result), info
        return choice.to_host(result)[()], info
    with out._written_on_device() as target:
        _, info = product(target)
    return out, info


def matmul(cls: type[Core], a: Any, b: Any, out: Any = None) -> Any:
    """Return `numpy.matmul` of two arrays under the options in force.

    Parameters
    ----------
    cls : type
        Of the result.
    a, b : array_like or Core
        Operands.
    out : ndarray or Core, optional
        Where to write.

    Returns
    -------
    Core or scalar
    """
    options = context.default_options()
    if out is None and choice.device_memory() is None:
        left, right = _as_it_is(a), _as_it_is(b)
        if left is not None and right is not None and left.dtype is right.dtype:
            # The usual case without what only others need: a third of the overhead.
            result, _ = matmul_arrays(
                left,
                right,
                None,
                route="matmul",
                options=options,
                prepared=prepared_pair(a, b),
            )
            return cls._own(result) if type(result) is np.ndarray else result
    return multiply(cls, "matmul", a, b, out, options)[0]


def _as_it_is(x: Any) -> Any:
    """Return what the engine takes as it is, on the host, or None."""
    view = x._view if isinstance(x, Core) and x._storage.on_host else x
    if type(view) is not np.ndarray or not view.flags.aligned:
        return None
    return view if any(view.dtype is known for known in _KNOWN) else None


def dot(
    cls: type[Core],
    a: Any,
    b: Any,
    out: Any = None,
    name: str = "dot",
    conjugated: Conjugated = UNCONJUGATED,
) -> Any:
    """Return `numpy.dot` of two arrays under the options in force.

    Parameters
    ----------
    cls : type
        Of the result.
    a, b : array_like or Core
        Operands.
    out : ndarray or Core, optional
        What `numpy.dot` would make.
    name : str, optional
        Route, for the counters.
    conjugated : tuple of bool, optional
        As for `multiply`.

    Returns
    -------
    Core or scalar
    """
    options = context.default_options()
    how: dict[str, Any] = {"native": np.dot, "conjugated": conjugated}
    return multiply(cls, name, a, b, out, options, **how)[0]
