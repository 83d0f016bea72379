"""From validated operands to a result: the one function that every route calls."""

from __future__ import annotations

import functools
import math
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from np_ozaki import context, hooks
from np_ozaki.complex_products import (
    UNCONJUGATED,
    Conjugated,
    as_operands,
    complex_bound_of_ways,
    complex_promised_bound,
    is_complex,
    multiply_complex,
)
from np_ozaki.config import DTYPES, Options
from np_ozaki.engines import choice
from np_ozaki.engines.base import Engine, Outcome, Scheme
from np_ozaki.engines.cublas import CublasProduct, CublasRefusal, Settings
from np_ozaki.engines.prepared import UNPREPARED, Pair, Prepared
from np_ozaki.errors import OperandTypeError, OptionError, ShapeError, refusal
from np_ozaki.numerics.formats import format_of
from np_ozaki.numerics.moduli import Family
from np_ozaki.precision import (
    Served,
    Way,
    bound_of_ways,
    first_scheme,
    multiply,
    promised_bound,
)
from np_ozaki.stats import CUBLAS_FALLBACK, CallInfo
from np_ozaki.tiling import CPU_MIN_FLOPS, CUDA_MIN_FLOPS, flops

__all__ = [
    "FLOAT64",
    "DoubleDouble",
    "check_doubles",
    "check_prepares",
    "engine_of",
    "error_bound_arrays",
    "left_out",
    "matmul_arrays",
    "min_flops",
    "native_reason",
    "prepare_array",
    "product",
    "signal",
    "too_small",
]

Array = NDArray[Any]
"""Of float64, float32, complex128 or complex64."""

FLOAT64 = np.dtype(np.float64)
"""Of native byte order; NumPy has one such object, but for those with metadata."""

_BOUNDS = {"f": np.float64, "c": np.complex128}
"""dtype of bounds, by the kind of results: float32 could not tell small ones."""

_PACKAGE = "np_ozaki."

_SCOPED = "dD"
"""What scopes catch products of unless their options name dtypes."""

_SHORT_ROUTE = "matmul"
"""The one that looks for shortcuts."""


class DoubleDouble(NamedTuple):
    """A product in twice the precision: the unevaluated sum hi + lo.

    Attributes
    ----------
    hi : ndarray of float64
        The product, rounded once.
    lo : ndarray of float64
        What that rounding left, rounded once: at most half a unit in the last place of
        `hi`; 0 where `hi` is not finite.
    """

    hi: Any
    lo: Any


_NO_OUTCOME = Outcome(overflow=False, invalid=False, workspace_bytes=0, tiles=0)


def engine_of(options: Options) -> Engine:
    """Return the engine of the contract of options that are not native.

    Parameters
    ----------
    options : Options
        The scope's or the call's.

    Returns
    -------
    Engine
        The only one of its kind in this process; for "cublas" the one that multiplies
        what cuBLAS does not.
    """
    if choice.on_gpu(options):
        return choice.cuda_engine()
    return choice.cpu_engine()


def min_flops(options: Options) -> int:
    """Return the smallest product that a scope routes, in operations.

    Parameters
    ----------
    options : Options
        The scope's.

    Returns
    -------
    int
        2 m n k of one matrix.
    """
    if options.reproducible:
        return 0
    if options.min_flops is not None:
        return options.min_flops
    return CUDA_MIN_FLOPS if choice.on_gpu(options) else CPU_MIN_FLOPS


def native_reason(options: Options) -> str | None:
    """Return why no product is routed under these options, or None.

    Parameters
    ----------
    options : Options
        The scope's or the call's.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    if options.engine == "native":
        return 'engine="native"'
    if options.strategy == "performant" and choice.resolve(options) == "cpu":
        return 'strategy="performant": the CPU engine is slower than native'
    return None


def left_out(
    options: Options, dtype: np.dtype[Any], *, scoped: bool = False
) -> str | None:
    """Return why products of a dtype are left to NumPy, or None.

    Parameters
    ----------
    options : Options
        The scope's or the call's.
    dtype : dtype
        Of the product, one of `DTYPES`.
    scoped : bool, optional
        Whether a scope caught it; else it was asked for by name.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    # By letters: the names of dtypes take longer to ask for than all the rest.
    letters = options.letters or (_SCOPED if scoped else None)
    if letters is None or dtype.char in letters:
        return None
    return f"{DTYPES[dtype.char]} is not among dtypes"


def too_small(options: Options, m: int, n: int, k: int) -> str | None:
    """Return why a product is predicted to be faster natively, or None.

    Parameters
    ----------
    options : Options
        The scope's or the call's.
    m, n, k : int
        Size of one matrix product.

    Returns
    -------
    str or None
        Reason for the counters.
    """
    if options.strategy == "performant" and flops(m, n, k) < CUDA_MIN_FLOPS:
        return 'strategy="performant": too small to gain from the GPU'
    return None


def product(
    a: Array,
    b: Array,
    out: Array,
    *,
    route: str,
    options: Options,
    counted: bool = True,
    low: Array | None = None,
    bound: Array | None = None,
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
) -> tuple[CallInfo, Outcome]:
    """Multiply stacks of matrices and count the call.

    Parameters
    ----------
    a : (batch, m, k) ndarray of float64
        Any strides; batch 1 broadcasts.  Or an array on a GPU, like the other two.
        Or of float32, complex128 or complex64, like all of them.
    b : (batch, k, n) ndarray of float64
        Any strides; batch 1 broadcasts.
    out : (batch, m, n) ndarray of float64
        Overwritten; must not overlap an operand.
    route : str
        Name for the counters.
    options : Options
        Precision, scaling, engine.
    counted : bool, optional
        False for one of several products of a routine, which counts itself.
    low : (batch, m, n) ndarray of float64, optional
        Takes what the rounding to `out` left; never native then.  Not for float32 and
        complex64.
    bound : (batch, m, n) ndarray of float64, or complex128, optional
        On the host; takes a bound of the error of every entry.
    prepared : tuple of Prepared or None, optional
        Of A and of B, as they are here: what is made of them is kept there.
    conjugated : tuple of bool, optional
        Whether conj(A) takes the place of A, conj(B) that of B; they are not copied.

    Returns
    -------
    CallInfo
        What happened, as recorded.
    Outcome
        Floating-point exceptions, for the route to report.
    """
    batch, m, n = out.shape
    k = a.shape[2]
    parts, dtype = 2 if is_complex(out) else 1, DTYPES[out.dtype.char]
    reason = (
        native_reason(options)
        or left_out(options, out.dtype)
        or too_small(options, parts * m, n, parts * k)
    )
    if reason is not None and low is None:
        with hooks.unrouted():
            left, right = (
                x.conj() if conj else x
                for x, conj in zip((a, b), conjugated, strict=True)
            )
            np.matmul(left, right, out=out)
        if bound is not None:
            ways = [Way(Scheme(2), elsewhere="native")] * batch
            _fill(bound, a, b, out, ways)
        info = CallInfo(route, "native", batch, m, n, k, fallback=reason, dtype=dtype)
        if counted:
            context.record(info)
        return info, _NO_OUTCOME
    engine = engine_of(options)
    if a.shape[0] == b.shape[0] == 1 < batch:
        # Both operands are repeated, as broadcasting may ask for: one product is all.
        first = product(
            a,
            b,
            out[:1],
            route=route,
            options=options,
            counted=False,
            low=None if low is None else low[:1],
            bound=None if bound is None else bound[:1],
            prepared=prepared,
            conjugated=conjugated,
        )
        for x in (out, low, bound):
            if x is not None:
                x[1:] = x[:1]
        info = replace(first[0], batch=batch)
        outcome = replace(first[1], recording=None)
        if counted:
            context.record(info)
        return info, outcome
    fallback = None
    if options.engine == "cublas":
        made = _by_cublas(a, b, out, options)
        if not isinstance(made, str):
            info = CallInfo(
                route,
                "cublas",
                batch,
                m,
                n,
                k,
                workspace_bytes=made.outcome.workspace_bytes,
                tiles=made.outcome.tiles,
                mantissa_bits=made.mantissa_bits,
            )
            if counted:
                context.record(info)
            return info, made.outcome
        fallback = made
    with hooks.arithmetic():
        served = _multiply(engine, a, b, out, options, low, prepared, conjugated)
        if bound is not None:
            _fill(bound, a, b, out if low is None else low, served.ways)
    outcome = served.outcome
    if bound is not None and low is not None:
        hi = out if isinstance(out, np.ndarray) else choice.to_host(out)
        for x, y in zip(_parts(hi), _parts(bound), strict=True):
            y[np.isinf(x) & ~np.isnan(y)] = np.inf
    num_moduli, shift, balanced = served.most()
    slicing = options.slicing if options.scheme == "slices" else None
    info = CallInfo(
        route,
        engine.name,
        batch,
        m,
        n,
        k,
        num_moduli,
        None if slicing else options.scaling,
        fallback,
        shift=shift,
        rebalanced=balanced,
        workspace_bytes=outcome.workspace_bytes,
        tiles=outcome.tiles,
        checked=bool(options.check),
        recomputed=served.recomputed,
        slicing=slicing,
        dtype=dtype,
    )
    if served.left_out:
        return _count_left_out(info, served, counted=counted), outcome
    if counted:
        context.record(info)
    return info, outcome


def _by_cublas(a: Array, b: Array, out: Array, options: Options) -> CublasProduct | str:
    """Multiply by cuBLAS, or return why it has not; `out` may hold anything then."""
    reason = choice.cublas_unavailable()
    if reason is not None:
        return f"{CUBLAS_FALLBACK}{reason}"
    if is_complex(out):
        return f"{CUBLAS_FALLBACK}complex products"
    if out.dtype != FLOAT64:
        return f"{CUBLAS_FALLBACK}{out.dtype.name} products"
    try:
        return choice.cublas_engine().matmul(
            a,
            b,
            out,
            Settings.of(options),
            workspace_bytes=options.workspace_bytes,
        )
    except CublasRefusal as error:
        return f"{CUBLAS_FALLBACK}{error}"


def _multiply(
    engine: Engine,
    a: Array,
    b: Array,
    out: Array,
    options: Options,
    low: Array | None,
    prepared: Pair,
    conjugated: Conjugated,
) -> Served:
    """Multiply where the engine can: the CPU engine takes copies of device arrays."""
    how: Callable[..., Served] = multiply
    if is_complex(out):
        how = functools.partial(multiply_complex, conjugated=conjugated)
    if engine.name != "cpu" or isinstance(out, np.ndarray):
        return how(engine, a, b, out, options, low, prepared)
    here = np.empty(out.shape, out.dtype)
    rest = None if low is None else np.empty_like(here)
    served = how(engine, choice.to_host(a), choice.to_host(b), here, options, rest)
    out[...] = choice.as_device_array(here)
    if low is not None:
        low[...] = choice.as_device_array(rest)
    return served


def _fill(bound: Array, a: Array, b: Array, last: Array, ways: Sequence[Way]) -> None:
    """Write the bound of a product that was multiplied in these ways."""
    x, y, z = (
        x if isinstance(x, np.ndarray) else choice.to_host(x) for x in (a, b, last)
    )
    how = complex_bound_of_ways if is_complex(bound) else bound_of_ways
    bound[...] = how(choice.cpu_engine(), x, y, z, ways)


def _parts(x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return real and imaginary parts of complex entries, or the array itself."""
    return (x.real, x.imag) if is_complex(x) else (x,)


def _count_left_out(info: CallInfo, served: Served, *, counted: bool) -> CallInfo:
    """Count the engine's part of a batch and the rest; return the whole call."""
    info = replace(info, left_out=served.left_out)
    # The reason of who multiplied in the end comes first.
    reasons = [x for x in (served.fallback, info.fallback) if x is not None]
    fallback = "; ".join(reasons)
    others = replace(
        info,
        engine=served.elsewhere,
        batch=served.left_out,
        num_moduli=None,
        scaling=None,
        fallback=fallback,
        checked=False,
    )
    if counted:
        context.record(others)
    if served.left_out == info.batch:
        return others
    if counted:
        ours = replace(info, batch=info.batch - served.left_out, left_out=0)
        context.record(ours)
    return replace(info, fallback=fallback, checked=False)


def signal(outcome: Outcome, native: Callable[[Array, Array], Any] = np.matmul) -> None:
    """Raise the floating-point exceptions of a product under NumPy's own rules.

    Parameters
    ----------
    outcome : Outcome
        From `product`.
    native : callable, optional
        The NumPy function that was called, of two matrices.

    Notes
    -----
    A one-entry native product that overflows, or is invalid, tells what NumPy's
    function says; `numpy.errstate` decides between silence, a warning, a call and an
    error.  Functions that report nothing in this version of NumPy report nothing here.
    A warning is one of the line that called, as NumPy's are.
    """
    if not (outcome.overflow or outcome.invalid):
        return
    modes: dict[str, Any] = dict(np.geterr())
    for happened, kind, x, y in (
        (outcome.overflow, "over", 1e300, 1e300),
        (outcome.invalid, "invalid", np.inf, 0.0),
    ):
        how = modes[kind] if happened else "ignore"
        if how == "ignore":
            continue
        try:
            # To be warned of from another line, an exception is caught first.
            caught: Any = {kind: "raise" if how == "warn" else how}
            with hooks.unrouted(), np.errstate(**caught):
                native(np.array([[x]]), np.array([[y]]))
        except FloatingPointError as error:
            if how != "warn":
                raise
            warnings.warn(str(error), RuntimeWarning, stacklevel=_steps_out())


def _steps_out() -> int:
    """Return the `stacklevel`, for `signal`, of the first line outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _batch_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the common shape, or None; `numpy.broadcast_shapes` stops at 32 axes."""
    length = max(len(a), len(b))
    pairs = zip((1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b, strict=True)
    shape = tuple(x if y == 1 else y for x, y in pairs)
    fits = all(
        size in {1, want}
        for x in (a, b)
        for size, want in zip(x, shape[length - len(x) :], strict=True)
    )
    return shape if fits else None


def _stack(x: Array, batch: tuple[int, ...]) -> Array:
    """Return (..., r, c) as (1, r, c) where one matrix serves all, else (batch, r, c).

    The reshape copies only where batch dimensions are broadcast in part.
    """
    core = x.shape[-2:]
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, *core)
    return np.broadcast_to(x, (*batch, *core)).reshape(math.prod(batch), *core)


def _scalar_error(name: str, x: NDArray[Any]) -> ShapeError:
    limit = "a scalar is no matrix operand"
    return ShapeError(refusal(name, x, limit, "multiply with *"))


def _shape_error(a: NDArray[Any], b: NDArray[Any]) -> ShapeError:
    return ShapeError(
        f"a.shape={a.shape}, b.shape={b.shape}: the last axis of a and the "
        "second-to-last (or only) axis of b must have equal length, and the axes "
        "before them must broadcast; transpose or reshape one of them"
    )


def matmul_arrays(
    a: Array,
    b: Array,
    out: NDArray[Any] | None,
    *,
    route: str,
    options: Options,
    native: Callable[[Array, Array], Any] = np.matmul,
    double: bool = False,
    bounded: bool = False,
    prepared: Pair = UNPREPARED,
    conjugated: Conjugated = UNCONJUGATED,
) -> tuple[Any, CallInfo]:
    """Multiply under the shape rules of `numpy.matmul`.

    Parameters
    ----------
    a, b : ndarray of float64, or both of float32, complex128 or complex64
        1-D or more, any strides.
    out : ndarray or None
        Where to write; may overlap the operands.
    route : str
        Name for the counters.
    options : Options
        Precision, scaling, engine.
    native : callable, optional
        The NumPy function that was called, as for `signal`.
    double : bool, optional
        Return a DoubleDouble; there is no `out` then, and operands are of float64 or
        complex128.
    bounded : bool, optional
        Let the info carry a bound of the error.
    prepared : tuple of Prepared or None, optional
        Of `a` as left and of `b` as right operand: what is made of them is looked for
        there, and kept for later products.
    conjugated : tuple of bool, optional
        Whether conj(a) takes the place of a, conj(b) that of b: complex operands only.

    Returns
    -------
    result : ndarray, numpy scalar or DoubleDouble
        Of the operands' dtype.  A scalar for two vectors; `out` itself if given.
    CallInfo
        What happened.

    Raises
    ------
    ShapeError
        Operands, or `out`, do not fit.
    OperandTypeError
        The result cannot be cast to `out` under the rule "same_kind".
    """
    stacked_a, stacked_b, batch, core, shape = _stacks(a, b)
    direct = _can_write(out, shape, a, b)
    if direct:
        assert out is not None  # noqa: S101 - implied by `direct`, told to the type checker
        result = out
    else:
        _check_out(out, shape, a)
        result = choice.empty_like(a, shape)
    stacked = result.reshape(batch, *core)
    low = choice.empty_like(a, shape) if double else None
    bound: Any = np.empty(shape, _BOUNDS[a.dtype.kind]) if bounded else None
    info, outcome = product(
        stacked_a,
        stacked_b,
        stacked,
        route=route,
        options=options,
        low=None if low is None else low.reshape(stacked.shape),
        bound=None if bound is None else bound.reshape(stacked.shape),
        prepared=(
            _unless_repeated(prepared[0], a, stacked_a),
            _unless_repeated(prepared[1], b, stacked_b),
        ),
        conjugated=conjugated,
    )
    if bound is not None:
        info = replace(info, bound=bound)
    elif (
        outcome.recording is not None
        and (direct or out is None)
        and conjugated == UNCONJUGATED
    ):
        arrays, stacks = (a, b, result), (stacked_a, stacked_b, stacked)
        _keep_shortcut(arrays, stacks, options, info, outcome.recording, direct)
    # Only where axes of a batch become one can the reshape have copied: never with two
    # axes, the last of which is a matrix's own.
    if direct and result.ndim > 2 and not np.may_share_memory(stacked, result):
        result[...] = stacked.reshape(shape)
    signal(outcome, native)
    if low is not None:
        pair = (result, low) if shape else (result[()], low[()])
        return DoubleDouble(*pair), info
    if out is None:
        return (result if shape else result[()]), info
    if not direct:
        np.copyto(out, result, casting="same_kind")
    return out, info


def _keep_shortcut(
    arrays: tuple[Array, Array, Array],
    stacks: tuple[Array, Array, Array],
    options: Options,
    info: CallInfo,
    recording: Any,
    with_out: bool,
) -> None:
    """Let products of this kind skip what was decided, where data decided nothing."""
    # Of two vectors the result is not the array that was written.
    if info.route != _SHORT_ROUTE or not arrays[2].ndim:
        return
    if choice.takes_shortcuts(options):
        choice.cuda_engine().shortcuts.keep(
            arrays, stacks, options, info, recording, with_out=with_out
        )


def _unless_repeated(
    prepared: Prepared | None, x: Array, stack: Array
) -> Prepared | None:
    if prepared is None:
        return None
    # Which matrices of a stack are repeated is not told by its shape.
    return prepared if stack.shape[0] == math.prod(x.shape[:-2]) else None


def check_prepares(options: Options) -> None:
    """Refuse options under which nothing can be prepared of one operand.

    Parameters
    ----------
    options : Options
        Of later products.

    Raises
    ------
    OptionError
        Their exponents or moduli depend on both operands.
    """
    for name, value, remedy in (
        ("precision", "exact", 'pass "auto", a number of moduli or a tolerance'),
        ("scaling", "accurate", 'pass scaling="norm"'),
    ):
        if getattr(options, name) == value:
            limit = "depends on both operands: nothing can be prepared of one"
            raise OptionError(refusal(name, value, limit, remedy))


def check_doubles(options: Options) -> None:
    """Refuse options whose products have no lower half.

    Parameters
    ----------
    options : Options
        Of a product with ``output="dd"``.

    Raises
    ------
    OptionError
        No exact integers are left to round twice.
    """
    if options.engine in {"cublas", "native"}:
        limit = f'output="dd" is no product of engine "{options.engine}"'
        remedy = 'choose engine="auto", "cpu" or "cuda"'
        raise OptionError(refusal("engine", options.engine, limit, remedy))
    if options.scheme == "slices" and options.accumulate == "float64":
        limit = 'output="dd" is of exact sums'
        remedy = 'pass accumulate="exact"'
        raise OptionError(refusal("accumulate", "float64", limit, remedy))


def prepare_array(
    x: Array, options: Options, prepared: Prepared, *, left: bool
) -> None:
    """Make and keep what later products ask of an operand alone.

    Nothing is made where they would not find it: native products, and operands that
    the engine takes copies of.

    Parameters
    ----------
    x : array of float64, float32, complex128 or complex64
        1-D or more, any strides; of the host or of a GPU.
    options : Options
        Of those products.
    prepared : Prepared
        Of `x` in that role.
    left : bool
        Whether `x` will be the left operand.

    Raises
    ------
    OptionError
        Their exponents or moduli depend on both operands.
    ShapeError
        `x` is a scalar.
    """
    check_prepares(options)
    if not x.ndim:
        raise _scalar_error("x", x)
    if not x.size or native_reason(options) or choice.resolve(options) == "cublas":
        return
    engine = engine_of(options)
    if (engine.name == "cpu") != isinstance(x, np.ndarray):
        return
    if x.ndim == 1:
        x = x[np.newaxis, :] if left else x[:, np.newaxis]
    x = _stack(x, x.shape[:-2])
    batch, rows, columns = x.shape
    k = columns if left else rows
    # A product keeps what the next ones look for; this is the least of all products.
    zeros = np.zeros((1, k, 1) if left else (1, 2, k), x.dtype)
    other = engine.from_host(zeros, x)
    out = choice.empty_like(x, (batch, rows, 1) if left else (batch, 2, columns))
    a, b = (x, other) if left else (other, x)
    family: Family = "real"
    if is_complex(x):
        family = "complex"
        a, b, out = as_operands(engine, a, b, out)
        k *= 2
    scheme, target = first_scheme(options, k, family, format_of(x.dtype))
    engine.matmul(
        a,
        b,
        out,
        scheme,
        workspace_bytes=options.workspace_bytes,
        certify=target,
        prepared=(prepared, None) if left else (None, prepared),
    )


def error_bound_arrays(
    a: Array, b: Array, c: Array | None, options: Options, *, double: bool = False
) -> Array:
    """Bound the error of a product before, or after, it is multiplied.

    Parameters
    ----------
    a, b : ndarray of float64, or both of float32, complex128 or complex64
        1-D or more, as for `matmul_arrays`.
    c : ndarray or None
        The product, of a double-double the lower half.
    options : Options
        Precision, scaling, engine.
    double : bool, optional
        Whether it is a double-double.

    Returns
    -------
    ndarray
        Of the product's shape, float64 or complex128; the parts of a complex bound are
        for the parts of entries.

    Raises
    ------
    ShapeError
        Operands, or `c`, do not fit.
    OptionError
        A tolerance is below what float32 can keep.
    """
    stacked_a, stacked_b, batch, core, shape = _stacks(a, b)
    if c is not None and c.shape != shape:
        raise ShapeError(
            refusal("c.shape", c.shape, f"the product has {shape}", "pass the product")
        )
    stacked_c = None if c is None else c.reshape(batch, *core)
    stacked_a = np.broadcast_to(stacked_a, (batch, *stacked_a.shape[1:]))
    engine = choice.cpu_engine()
    how = complex_promised_bound if is_complex(a) else promised_bound
    with hooks.arithmetic():
        bound = how(engine, stacked_a, stacked_b, stacked_c, options, double=double)
    return bound.reshape(shape)


def _stacks(
    a: Array, b: Array
) -> tuple[Array, Array, int, tuple[int, int], tuple[int, ...]]:
    """Return operands as stacks, and batch, (m, n) and shape of the result."""
    if a.ndim == b.ndim == 2:
        # What follows would find the same, by way of the shapes of no batch.
        (m, k), (rows, n) = a.shape, b.shape
        if k != rows:
            raise _shape_error(a, b)
        return a.reshape(1, m, k), b.reshape(1, k, n), 1, (m, n), (m, n)
    if not a.ndim or not b.ndim:
        raise _scalar_error(*(("a", a) if not a.ndim else ("b", b)))
    left = a[np.newaxis, :] if a.ndim == 1 else a
    right = b[:, np.newaxis] if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise _shape_error(a, b)
    batch = _batch_shape(left.shape[:-2], right.shape[:-2])
    if batch is None:
        raise _shape_error(a, b)
    core = (left.shape[-2], right.shape[-1])
    shape = batch + core[:1] * (a.ndim > 1) + core[1:] * (b.ndim > 1)
    stacks = _stack(left, batch), _stack(right, batch)
    return *stacks, math.prod(batch), core, shape


def _can_write(
    out: NDArray[Any] | None, shape: tuple[int, ...], a: Array, b: Array
) -> bool:
    """Return whether the engine may write into `out` itself."""
    return (
        out is not None
        and type(out) is type(a)
        and (out.dtype is a.dtype or (out.dtype == a.dtype and out.dtype.isnative))
        and _is_writeable(out)
        and out.shape == shape
        and not choice.may_share_memory(out, a)
        and not choice.may_share_memory(out, b)
    )


def _is_writeable(out: NDArray[Any]) -> bool:
    # Arrays on a GPU have neither flag: all are aligned and writeable.
    if not isinstance(out, np.ndarray):
        return True
    return out.flags.aligned and out.flags.writeable


def _check_out(
    out: NDArray[Any] | None, shape: tuple[int, ...], like: NDArray[Any]
) -> None:
    """Refuse an `out` that the result cannot be copied to, before any work."""
    if out is None:
        return
    kind = type(like)
    if not isinstance(out, kind):
        raise OperandTypeError(
            refusal(
                "out",
                type(out).__name__,
                f"must be a {kind.__module__}.{kind.__name__}, as the operands are",
                "make it by empty of the same library",
            )
        )
    if not np.can_cast(like.dtype, out.dtype, casting="same_kind"):
        raise OperandTypeError(
            refusal(
                "out.dtype",
                out.dtype.name,
                f"{like.dtype} results cannot be cast to it (casting='same_kind')",
                f"pass a {like.dtype} array",
            )
        )
    if not _is_writeable(out) and not out.flags.writeable:
        raise ShapeError(
            refusal(
                "out.flags.writeable",
                False,
                "the result must go somewhere",
                "pass a writeable array",
            )
        )
    fits = out.ndim >= len(shape) and all(
        map(operator.eq, out.shape[out.ndim - len(shape) :], shape)
    )
    if not fits:
        raise ShapeError(
            refusal("out.shape", out.shape, f"the result has {shape}", "match it")
        )
