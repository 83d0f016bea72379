"""The functions of np_ozaki that multiply, and that tell of a product."""

from __future__ import annotations

import functools
from numbers import Integral, Real
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from np_ozaki import context
from np_ozaki.array import OzArray, operand_for, operands, prepared_pair, unwrap, wrap
from np_ozaki.config import (
    Check,
    EngineName,
    Options,
    Output,
    Precision,
    Scaling,
    SchemeOptions,
    check_choice,
    scheme_options,
)
from np_ozaki.engines import choice
from np_ozaki.engines.prepared import Pair
from np_ozaki.errors import OperandTypeError, OptionError, WorkspaceError, refusal
from np_ozaki.gemm import (
    FLOAT64,
    DoubleDouble,
    check_doubles,
    check_prepares,
    error_bound_arrays,
    left_out,
    matmul_arrays,
    prepare_array,
)
from np_ozaki.routes import explicit
from np_ozaki.routes.decision import as_common, common_dtype
from np_ozaki.stats import CallInfo

__all__ = ["error_bound", "matmul", "prepare"]

Role = Literal["left", "right", "both"]
_Result = tuple[Any, CallInfo]
_LARGEST_INTEGER = 1 << 53


def _device_matmul(
    a: Any,
    b: Any,
    out: Any,
    options: Options,
    double: bool,
    bounded: bool,
    prepared: Pair,
) -> _Result:
    """Multiply where an operand lies on a GPU; the result lies there, too."""
    try:
        a, b = choice.as_device_array(a), choice.as_device_array(b)
        target = None if out is None else choice.as_device_array(out, copy=False)
        reason = explicit.dtype_reason(a, b)
        if reason is not None and not double:
            result = np.matmul(a, b) if target is None else np.matmul(a, b, out=target)
            return result, explicit.left_to_numpy("matmul", a, b, reason)
        if double:
            _check_doubled(a, b)
        common = common_dtype(a, b, wide=double)
        return matmul_arrays(
            a if a.dtype is common else a.astype(common, copy=False),
            b if b.dtype is common else b.astype(common, copy=False),
            target,
            route="matmul",
            options=options,
            double=double,
            bounded=bounded,
            prepared=prepared,
        )
    except WorkspaceError:
        raise
    except MemoryError as error:
        raise WorkspaceError(
            refusal(
                "operands",
                f"shapes {np.shape(a)}, {np.shape(b)}",
                f"the GPU has no memory for the result or a copy ({error})",
                "free arrays there, or pass them from the host",
            )
        ) from error


def _check_doubled(*operands: Any) -> None:
    """Refuse operands of a double-double that float64 or complex128 cannot hold."""
    whole = any(getattr(x, "dtype", FLOAT64).kind == "c" for x in operands)
    kinds, most = ("biufc", np.complex128) if whole else ("biuf", np.float64)
    for name, x in zip("ab", operands, strict=True):
        kind = type(x)
        on_host = not choice.is_device_array(x)
        if on_host and kind not in {np.ndarray, np.memmap}:
            limit = 'output="dd" multiplies plain arrays'
            what = f"{kind.__module__}.{kind.__name__}"
        elif x.dtype.kind not in kinds or not np.can_cast(x.dtype, most):
            limit = f'output="dd" multiplies entries that {most.__name__} holds'
            what = x.dtype.name
        else:
            continue
        remedy = "pass an ndarray of float64, or leave output out"
        raise OperandTypeError(refusal(name, what, limit, remedy))


def matmul(
    a: ArrayLike | OzArray,
    b: ArrayLike | OzArray,
    out: NDArray[Any] | OzArray | None = None,
    *,
    precision: Precision | None = None,
    scaling: Scaling | None = None,
    engine: EngineName | None = None,
    workspace_bytes: int | None = None,
    check: Check | None = None,
    output: Output = "float64",
    return_info: bool | Literal["bound"] = False,
    **more: Unpack[SchemeOptions],
) -> Any:
    """Return the matrix product of two arrays, with the contract's bits.

    Follows `numpy.matmul` in shapes: 2-D, 1-D, and batches that broadcast.  Options
    that are not given come from the active scope, else from the environment, else
    from the defaults below.  `min_flops` plays no part: every product of operands
    whose common dtype is float64, complex128, float32 or complex64 goes to the engine,
    unless the scope's `dtypes` leave it out.  Other dtypes and subclasses of ndarray go
    to NumPy, and the info says so.  What follows holds for
    each part of a complex product, as a sum of 2k real ones.

    Parameters
    ----------
    a : (..., m, k) or (k,) array_like
        Left operand; an OzArray makes the result one.  Arrays on a GPU, of CuPy or of
        any library that speaks ``__cuda_array_interface__`` or DLPack, stay there.
    b : (..., k, n) or (k,) array_like
        Right operand.
    out : (..., m, n) ndarray or OzArray, optional
        Where to write; any strides, may overlap the operands.  On the GPU if an
        operand is.
    precision : "auto", "exact", float or int, default "auto"
        "auto" certifies for each matrix that every entry is as accurate as a
        conventional FP64 product is guaranteed to be, |C - AB| <= k u |A||B| and one
        rounding: with 15 moduli, fewer where entries have few bits, more where their
        range is wide; beyond 49 it goes native.  A float from 2^-52 to below 1 is a
        tolerance instead, |C - AB| <= precision |A||B|.  "exact" is the correctly
        rounded product.  An int is the number of moduli, 2 to 49.  Complex products
        have 22 moduli of their own, begin with 16, and have the real ones beyond 22.
    scaling : {"norm", "accurate", "legacy"}, default "norm"
        Rule of the scaling exponents.  "accurate" spends one more product on up to
        one bit; "legacy" is the first published fast mode, which depends on the scale
        of the data and fails on some: for comparison only.
    engine : {"auto", "cpu", "cuda", "cublas", "native"}, default "auto"
        Who multiplies: "auto" is the GPU, else the CPU engine.  "cublas" is the
        emulation that cuBLAS has itself, with bits of its own; what it does not
        multiply goes where "auto" goes, and the info says why.
    workspace_bytes : int, optional
        Memory for workspaces, bytes; at least 4 MiB.  By default 1 GiB for all running
        products of this process on the CPU engine, where each thread takes up to 12 MB
        besides, and a quarter of the device's memory for each product on a GPU.
        Changes no bit.
    check : bool or "recompute", default False
        Whether the exact integers behind the entries are held to checksums modulo
        2^61 - 1 of rows and columns, which shows any wrong residue product or bit, in
        one entry or in several of one row or one column.  "recompute" multiplies once
        more before it raises an error.  Changes no bit.
    output : {"float64", "dd"}, default "float64"
        "dd" is a double-double of the same integers: hi is the result rounded once,
        lo what that left.  "auto" then certifies |hi + lo - AB| <= k 2^-106
        |A||B| before lo is rounded, beyond 49 moduli by Python integers.  No `out`
        then.
    return_info : bool or "bound", default False
        Also return what happened; "bound" lets ``info.bound`` hold a guaranteed bound
        of the error of every entry, on the host; of a complex product the parts bound
        those of the error.

    **more : object
        Options of scheme "slices" and engine "cublas"; see Other Parameters.

    Returns
    -------
    result : (..., m, n) ndarray, NumPy scalar, OzArray or DoubleDouble
        The product, of the operands' common dtype, rounded once from exact integers.  A
        CuPy array if an operand is on a GPU.
    info : CallInfo
        Only with `return_info`.

    Other Parameters
    ----------------
    scheme : {"moduli", "slices"}, default "moduli"
        Ozaki scheme II, or scheme I: entries are cut to slices, pairs of which are
        multiplied.  `precision` and `scaling` stay out then, and so does `check`.
    num_slices : int, default 8
        S, 1 to 16.
    bits_per_slice : int, default 8
        b, 2 to 8.
    pairs : "triangular", "all" or sequence of (i, j), default "triangular"
        Slices of the left and of the right operand that are multiplied, 0 being the
        most significant one; "triangular" has those with i + j < S.
    accumulate : {"exact", "float64"}, default "exact"
        Whether what pairs give is added exactly and rounded once, or in float64.
    mantissa_bits : int, default min(8 * num_slices, 55)
        Bits of an entry that engine "cublas" keeps, up to 79.
    mantissa_control : {"fixed", "dynamic"}, default "fixed"
        Whether engine "cublas" takes so many, or as many as it finds needed up to that.
    special_values : bool, default True
        Whether engine "cublas" looks for NaN and Inf.

    Raises
    ------
    ShapeError
        Operands or `out` do not fit; a ValueError.
    OptionError
        An option is out of range; a ValueError.
    OperandTypeError
        An option or `out` is of the wrong type; a tolerance or "exact" is asked for,
        and the operands are left to NumPy; integers above 2^53, which float64 rounds,
        and one of these, "dd" or a bound is asked for.  A TypeError.
    PrecisionError
        ``precision="exact"`` takes more bits than 49 moduli hold; an ArithmeticError.
    CheckError
        With `check`: entries do not agree with their checksums; an ArithmeticError.
    EngineUnavailableError
        ``engine="cuda"`` without CuPy or a GPU for it; a RuntimeError.
    WorkspaceError
        Even the smallest tiles find no memory; a MemoryError.

    See Also
    --------
    last_call : the same info after the fact.
    error_bound : bounds the error before anything is multiplied.

    Notes
    -----
    The result is a function of the operands and of the options that choose the
    arithmetic alone (precision, scaling, scheme and its slices): engines, threads,
    tiles, memory limits and machines do not change a bit, except where 49 moduli are
    too few and the info names a fallback: then it is as NumPy multiplies.  Engine
    "cublas" has bits of its own.

    On a GPU, work is queued on the current device and stream of CuPy.  With arrays
    there and a number of moduli for `precision` nothing waits for it; "auto" waits for
    its certificate, and from 256 x 256 x 256 on for a few entries of each operand
    before.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> np_ozaki.matmul(np.eye(2), [[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [3., 4.]])
    """
    options = context.default_options().with_changes(
        precision=precision,
        scaling=scaling,
        engine=engine,
        workspace_bytes=workspace_bytes,
        check=check,
        **scheme_options("matmul", more),
    )
    double = _is_double(output, out, options)
    bounded = _is_bounded(return_info, options)
    if not (double or bounded):
        found = choice.shortcut(a, b, out, options)
        if found is not None:
            return found if return_info else found[0]
    prepared = prepared_pair(a, b)
    x, y, place = operands(OzArray, a, b, out, options)
    wish = 'output="dd"' if double else _promise(precision)
    if wish is not None or bounded:
        x, y = _as_array(x), _as_array(y)
        if wish is not None and not double:
            _refuse_native(x, y, wish, options)
        _refuse_long_integers(x, y, wish or 'return_info="bound"')
    how = double, bounded, prepared
    if place is None:
        result, info = _multiplied(x, y, out, options, *how)
    else:
        with place as target:
            result, info = _multiplied(x, y, target, options, *how)
    if out is not None:
        result = out
    elif isinstance(a, OzArray) or isinstance(b, OzArray):
        result = wrap(result)
    return (result, info) if return_info else result


def _multiplied(
    a: Any,
    b: Any,
    out: Any,
    options: Options,
    double: bool,
    bounded: bool,
    prepared: Pair,
) -> _Result:
    """Multiply unwrapped operands, where they are."""
    if choice.is_device_array(a) or choice.is_device_array(b):
        return _device_matmul(a, b, out, options, double, bounded, prepared)
    if not double:
        multiply = functools.partial(
            explicit.matmul_product, bounded=bounded, prepared=prepared
        )
        return explicit.run("matmul", np.matmul, multiply, (a, b), out, options)
    _check_doubled(a, b)
    return matmul_arrays(
        *as_common(a, b, wide=True),
        None,
        route="matmul",
        options=options,
        double=True,
        bounded=bounded,
        prepared=prepared,
    )


def _is_double(output: object, out: object, options: Options) -> bool:
    """Return whether a double-double is asked for; refuse what it cannot go with."""
    if type(output) is str and output == "float64":
        return False
    check_choice("output", output, Output)
    if out is not None:
        limit = 'output="dd" makes two arrays'
        raise OptionError(refusal("out", "given", limit, "leave out= away"))
    check_doubles(options)
    return True


def _is_bounded(return_info: object, options: Options) -> bool:
    """Return whether a bound is asked for; refuse what it cannot go with."""
    if isinstance(return_info, (bool, np.bool_)):
        return False
    if not isinstance(return_info, str) or return_info != "bound":
        limit = 'must be True, False or "bound"'
        raise OperandTypeError(
            refusal("return_info", return_info, limit, "True returns a CallInfo, too")
        )
    _refuse_unbounded(options)
    return True


def _refuse_unbounded(options: Options) -> None:
    """Refuse options of products whose error has no bound."""
    if options.engine == "cublas":
        limit = "cuBLAS promises no bound of its errors"
        remedy = 'choose engine="auto", "cpu" or "cuda"'
        raise OptionError(refusal("engine", "cublas", limit, remedy))
    if options.scaling == "legacy" and options.engine != "native":
        limit = "its products may wrap, so that nothing bounds their error"
        raise OptionError(
            refusal("scaling", "legacy", limit, 'use scaling="norm" or "accurate"')
        )


def prepare(
    x: ArrayLike | OzArray,
    role: Role = "both",
    *,
    precision: Precision | None = None,
    scaling: Scaling | None = None,
    engine: EngineName | None = None,
    workspace_bytes: int | None = None,
    **more: Unpack[SchemeOptions],
) -> OzArray:
    """Make now what products will ask of an operand alone, and keep it.

    Products of an OzArray keep it anyhow, so that `A @ x_i` makes the scaling exponents
    and residues of A once; this is the explicit form.  Options that are not given come
    from the active scope and the environment, as for `matmul`.

    Parameters
    ----------
    x : (..., m, k) array_like
        An OzArray is prepared and returned, anything else is wrapped, which copies it.
    role : {"left", "right", "both"}, default "both"
        Which operand of later products it will be.
    precision : "auto", float or int, optional
        Of those products.
    scaling : {"norm", "legacy"}, optional
        Likewise.
    engine : {"auto", "cpu", "cuda", "cublas", "native"}, optional
        Likewise; "native" and "cublas" prepare nothing.
    workspace_bytes : int, optional
        Memory that may be held by all that is kept: what was used longest ago goes
        first.

    **more : object
        Other options of products, as for `matmul`: `scheme`, `num_slices`,
        `bits_per_slice`, `pairs`, `accumulate`.

    Returns
    -------
    OzArray
        Of the same data.  What is kept is given up when they change.

    Raises
    ------
    OptionError
        Moduli or exponents depend on both operands: ``precision="exact"`` and
        ``scaling="accurate"``; or an option is out of range.
    OperandTypeError
        The entries are of none of the dtypes that engines multiply, or `x` shares
        memory that others may write.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> a = np_ozaki.prepare(np.eye(100), "left")
    >>> (a @ np.ones(100)).sum()
    np.float64(100.0)
    >>> np_ozaki.stats().arrays.prepared.reused > 0
    True
    """
    check_choice("role", role, Role)
    options = context.default_options().with_changes(
        precision=precision,
        scaling=scaling,
        engine=engine,
        workspace_bytes=workspace_bytes,
        check=False,
        **scheme_options("prepare", more),
    )
    check_prepares(options)
    array = x if isinstance(x, OzArray) else OzArray(x)
    if not array.dtype.isnative or array.dtype.char not in "fdFD":
        limit = "prepared operands have entries of float64, float32 or their complex"
        kind = "complex" if array.dtype.kind == "c" else "float"
        raise OperandTypeError(
            refusal("x.dtype", str(array.dtype), limit, f"convert it by astype({kind})")
        )
    for side in ("left", "right") if role == "both" else (role,):
        left = side == "left"
        kept = array._prepared(left=left, at_once=True)
        if kept is not None:
            prepare_array(operand_for(array, options), options, kept, left=left)
        elif array._storage.shared:
            limit = "it shares memory that others may write, of which nothing is kept"
            remedy = "pass a copy: np_ozaki.OzArray(x)"
            raise OperandTypeError(refusal("x", "OzArray", limit, remedy))
    return array


def error_bound(
    a: ArrayLike | OzArray,
    b: ArrayLike | OzArray,
    c: ArrayLike | OzArray | DoubleDouble | None = None,
    *,
    precision: Precision | None = None,
    scaling: Scaling | None = None,
    engine: EngineName | None = None,
    output: Output | None = None,
    **more: Unpack[SchemeOptions],
) -> Any:
    """Return a guaranteed bound of the error of every entry of a product.

    Nothing is multiplied: norms and scaling exponents of rows and columns are all it
    takes, O(mk + kn + mn) operations.  Options that are not given come from the active
    scope and the environment, as for `matmul`.

    Parameters
    ----------
    a : (..., m, k) or (k,) array_like
        Left operand, of a dtype that `matmul` multiplies beside the other one.
    b : (..., k, n) or (k,) array_like
        Right operand.
    c : (..., m, n) array_like or DoubleDouble, optional
        The product that `matmul` returned for the same operands and options: it tells
        more of the last rounding, down to 0 where that was exact.
    precision : "auto", "exact", float or int, optional
        For an int the bound follows from the scaling exponents; for the others it is
        what they promise, with |A||B| bounded by norms.
    scaling : {"norm", "accurate"}, optional
        Rule of the scaling exponents.
    engine : {"auto", "cpu", "cuda", "native"}, optional
        "native" bounds NumPy's own product; among the others it makes no difference.
        "cublas" is refused: it promises no bound.
    output : {"float64", "dd"}, optional
        Of which product.

    **more : object
        Other options of products, as for `matmul`: `scheme`, `num_slices`,
        `bits_per_slice`, `pairs`, `accumulate`.

    Returns
    -------
    (..., m, n) ndarray, or NumPy scalar
        At least ``abs(C - A @ B)``, of a complex product for each part; NaN where a
        row or a column is not finite, infinite where an entry or its bound overflows.
        On the host.

    Raises
    ------
    ShapeError
        Operands, or `c`, do not fit.
    OptionError
        An option is out of range, the scaling is "legacy" or the engine "cublas".
    OperandTypeError
        An option is of the wrong type; `matmul` leaves operands of these dtypes to
        NumPy; or integers are above 2^53, which float64 rounds.

    See Also
    --------
    matmul : with ``return_info="bound"`` it bounds the product that it made, which is
        tighter, as it knows what was done.

    Notes
    -----
    The rounding to integers is bounded as in arXiv 2602.02549, from exponents and from
    what rounding removed; `np_ozaki.numerics.bounds` has the proofs.

    Examples
    --------
    >>> import numpy as np, np_ozaki
    >>> a = np.eye(2) / 3
    >>> bool((np_ozaki.error_bound(a, a, precision=15) < 1e-16).all())
    True
    """
    # Nothing is checked, whatever the scope says.
    options = context.default_options().with_changes(
        precision=precision,
        scaling=scaling,
        engine=engine,
        check=False,
        **scheme_options("error_bound", more),
    )
    _refuse_unbounded(options)
    x, y = _on_host(a), _on_host(b)
    double = output is not None and _is_double(output, None, options)
    if isinstance(c, DoubleDouble):
        double, c = True, c.lo
    _refuse_native(x, y, "error_bound", None if double else options)
    _refuse_long_integers(x, y, "error_bound")
    x, y = as_common(x, y, wide=double)
    z = None if c is None else as_common(_product_of(c, x), x)[0]
    bound = error_bound_arrays(x, y, z, options, double=double)
    return bound if bound.ndim else bound[()]


def _product_of(c: Any, x: NDArray[Any]) -> NDArray[Any]:
    """Return what is said to be a product of operands like `x`."""
    found = _on_host(c)
    if found.dtype.kind != "c" and x.dtype.kind == "c":
        limit = f"the product has {x.dtype}"
        remedy = "pass the product with both of its parts"
        raise OperandTypeError(refusal("c.dtype", str(found.dtype), limit, remedy))
    return found


def _on_host(x: Any) -> NDArray[Any]:
    """Return an operand as an ndarray."""
    x = unwrap(x)
    if choice.is_device_array(x):
        x = choice.to_host(choice.as_device_array(x))
    return np.asarray(x)


def _as_array(x: Any) -> Any:
    """Return an operand as an array where it lies, and what answers ufuncs as it is."""
    if choice.is_device_array(x):
        return choice.as_device_array(x)
    return x if hasattr(x, "__array_ufunc__") else np.asarray(x)


def _promise(precision: object) -> str | None:
    """Return what a precision promises beyond what NumPy's products keep, or None."""
    if precision is None or type(precision) is int:
        return None  # before what is slow: these are the usual ones
    if isinstance(precision, Real) and not isinstance(precision, Integral):
        return "a tolerance"
    if isinstance(precision, str) and precision == "exact":
        return 'precision="exact"'
    return None


def _refuse_native(a: Any, b: Any, wish: str, options: Options | None) -> None:
    """Refuse operands whose product would be left to NumPy, perhaps by options."""
    on_device = choice.is_device_array(a) or choice.is_device_array(b)
    rule = explicit.dtype_reason if on_device else explicit.native_reason
    reason = rule(a, b)
    remedy = "pass plain arrays of float64"
    if reason is None and options is not None:
        reason, remedy = left_out(options, common_dtype(a, b)), "name it there"
    if reason is not None:
        raise OperandTypeError(
            f"{reason}: left to NumPy, which {wish} does not go with; {remedy}"
        )


def _refuse_long_integers(a: Any, b: Any, wish: str) -> None:
    """Refuse integers that float64 does not hold."""
    for name, x in (("a", a), ("b", b)):
        dtype = getattr(x, "dtype", None)
        if isinstance(dtype, np.dtype) and dtype.kind in "iu" and x.size:
            most = max(int(x.max()), -int(x.min()))
            if most > _LARGEST_INTEGER:
                limit = f"float64 rounds integers above 2**53, and {wish} would not see"
                remedy = "pass float64 arrays, if their rounded values are meant"
                raise OperandTypeError(refusal(name, most, limit, remedy))
