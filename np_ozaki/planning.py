"""What a product would take, before anything runs."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, SupportsIndex, Unpack

import numpy as np
from numpy.typing import DTypeLike

from np_ozaki import context
from np_ozaki.complex_products import cut_complex
from np_ozaki.config import (
    DTYPES,
    Check,
    EngineName,
    MultiplicationScheme,
    Options,
    Output,
    Precision,
    Scaling,
    SchemeOptions,
    check_choice,
    scheme_options,
)
from np_ozaki.engines import choice
from np_ozaki.engines.base import AnyScheme, Cut, Scheme
from np_ozaki.engines.cublas import CublasRefusal, Settings
from np_ozaki.errors import OperandTypeError, OptionError, refusal
from np_ozaki.gemm import (
    check_doubles,
    engine_of,
    left_out,
    min_flops,
    native_reason,
    too_small,
)
from np_ozaki.numerics import budget, slice_budget
from np_ozaki.numerics.formats import format_of
from np_ozaki.numerics.moduli import Family
from np_ozaki.numerics.slice_budget import Cost
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.precision import check_keeps_tolerance, first_scheme, goal
from np_ozaki.stats import CUBLAS_FALLBACK
from np_ozaki.tiling import flops

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """What a product of (m, k) and (k, n) matrices takes.

    Attributes
    ----------
    engine : str
        Who multiplies: "cpu", "cuda", "cublas" or "native".
    batch, m, n, k : int
        Size.
    scope : str
        What a scope with these options would do: "routed", or why it would not.
    dtype : str
        "float64", "complex128", "float32" or "complex64".
    scaling : str or None
        Rule of the scaling exponents of moduli; None for others.
    num_moduli : int or None
        N that is tried first; "auto" and tolerances take fewer for entries of few bits
        and more for entries of wide range.  None for slices, for native, and for
        "exact", where the entries decide.
    bits : float or None
        Bits that an entry, or a part of a complex one, of a row of k equal entries
        keeps; float64 has 53.
    relative_error : float or None
        Largest error of C before its one rounding, relative to the product of the
        norms of row and column, that is guaranteed for any operands.
    num_gemms : int or None
        Products of real matrices of this size that the engine makes: INT8 on a GPU, one
        a modulus and one for a certificate, or one a pair of slices, and two or four
        times as many of complex matrices; FP64 on the CPU engine, which is why a
        product there costs at least so many native ones.
    tiles : int or None
        Tiles that it is cut to.
    workspace_bytes : int or None
        Largest workspace in use at a time, for operands on the host.
    scheme : str or None
        "moduli" or "slices"; None for native.
    slicing : Slicing or None
        Slices, their bits and pairs; None for others.
    by_moduli, by_slices : Cost or None
        What one matrix takes on INT8 units by either scheme: the planned one, and the
        other with as many bits an entry, or None if it cannot have them.
    mantissa_bits : int or None
        For engine "cublas": bits that an entry keeps, or may keep.
    fallback : str or None
        Why engine "cublas", which was asked for, leaves such a product to another.
    """

    engine: str
    batch: int
    m: int
    n: int
    k: int
    scope: str
    scaling: str | None = None
    num_moduli: int | None = None
    bits: float | None = None
    relative_error: float | None = None
    num_gemms: int | None = None
    tiles: int | None = None
    workspace_bytes: int | None = None
    scheme: MultiplicationScheme | None = None
    slicing: Slicing | None = None
    by_moduli: Cost | None = None
    by_slices: Cost | None = None
    mantissa_bits: int | None = None
    fallback: str | None = None
    dtype: str = "float64"

    @property
    def num_slices(self) -> int | None:
        """S, or None for what is no product by slices."""
        return None if self.slicing is None else self.slicing.num_slices

    @property
    def num_products(self) -> int | None:
        """INT8 products of the scheme: moduli, or pairs of slices."""
        cost = self.by_moduli if self.slicing is None else self.by_slices
        return None if cost is None else cost.num_gemms

    @property
    def flops(self) -> int:
        """Operations of one conventional product: 2 m n k times the batch.

        8 m n k of complex matrices.
        """
        each = 4 if self.family == "complex" else 1
        return each * self.batch * flops(self.m, self.n, self.k)

    @property
    def family(self) -> Family:
        """Whose moduli: "real" or "complex"."""
        return "complex" if self.dtype.startswith("complex") else "real"

    @property
    def gemm_operations(self) -> int | None:
        """Operations of all the engine's matrix products, multiplied and added."""
        if self.num_gemms is None:
            return None
        return self.num_gemms * self.batch * flops(self.m, self.n, self.k)

    def __str__(self) -> str:
        """Return a line for each thing that is known."""
        size = f"{self.m} x {self.k} by {self.k} x {self.n}"
        what = "" if self.dtype == "float64" else f", {self.dtype}"
        lines = [f"product    {self.batch} of {size}{what}"]
        lines.append(f"engine     {self.engine}")
        if self.num_moduli is not None:
            lines.append(f"moduli     {self.num_moduli}, scaling {self.scaling}")
            lines.append(f"accuracy   {self.bits:.1f} bits an entry")
        elif self.slicing is not None:
            lines.append(f"scheme     {self.slicing}")
            lines.append(f"accuracy   {self.bits:.1f} bits an entry")
        elif self.mantissa_bits is not None:
            lines.append(f"mantissa   {self.mantissa_bits} bits")
        elif self.engine != "native":
            lines.append("moduli     as many as the entries take to be exact")
        if self.relative_error is not None:
            lines[-1] += (
                f", off by at most {self.relative_error:.1e} of row's norm times "
                "column's, and one rounding"
            )
        if self.fallback is not None:
            lines.append(f"because    {self.fallback}")
        if self.gemm_operations is not None:
            kind = "INT8" if self.engine == "cuda" else "FP64"
            lines.append(
                f"products   {self.num_gemms} in {kind}, "
                f"{self.gemm_operations / 1e9:.3g} G operations "
                f"(one conventional: {self.flops / 1e9:.3g})"
            )
        if self.workspace_bytes is not None:
            megabytes = self.workspace_bytes / 1e6
            lines.append(f"workspace  {megabytes:.3g} MB in {self.tiles} tiles")
        lines += [
            f"{f'by {cost.scheme}':10} {cost.num_planes}, "
            f"{cost.num_gemms} products in INT8, planes of "
            f"{cost.planes_bytes / 1e6:.3g} MB, "
            f"{cost.traffic_bytes / 1e6:.3g} MB read and written"
            f"{', for each matrix' if self.batch > 1 else ''}"
            for cost in (self.by_moduli, self.by_slices)
            if cost is not None and self.num_gemms
        ]
        lines.append(f"a scope    {self.scope}")
        return "\n".join(lines)


def plan(
    m: SupportsIndex,
    n: SupportsIndex,
    k: SupportsIndex,
    *,
    batch: SupportsIndex = 1,
    dtype: DTypeLike = np.float64,
    precision: Precision | None = None,
    scaling: Scaling | None = None,
    engine: EngineName | None = None,
    workspace_bytes: int | None = None,
    check: Check | None = None,
    output: Output = "float64",
    **more: Unpack[SchemeOptions],
) -> Plan:
    """Return what a product of (m, k) and (k, n) matrices would take.

    Nothing is multiplied and no memory is reserved; ``engine="auto"`` looks for a GPU.
    Options that are not given come from the active scope and the environment, as for
    `matmul`.

    Parameters
    ----------
    m, n, k : int
        Rows of A, columns of B, inner length; 0 or more.
    batch : int, optional
        So many products.
    dtype : dtype_like, default float64
        Of the product: float64, complex128, float32 or complex64.  With
        ``output="dd"`` the latter two stand for the former, as in `matmul`.
    precision, scaling, engine, workspace_bytes, check, output : optional
        As for `matmul`.
    **more : object
        Options of scheme "slices" and engine "cublas", as for `matmul`.

    Returns
    -------
    Plan
        Engine, moduli or slices, accuracy, products, memory.

    Raises
    ------
    OptionError
        A length is negative, or an option out of range.
    OperandTypeError
        A length is no integer, or `dtype` is none that an engine multiplies.
    EngineUnavailableError
        ``engine="cuda"`` without CuPy or a GPU for it.

    See Also
    --------
    error_bound : what given operands may err by.

    Examples
    --------
    >>> import np_ozaki
    >>> np_ozaki.plan(1000, 1000, 1000, precision=15, engine="cpu").num_gemms
    5
    >>> np_ozaki.plan(1000, 1000, 1000, scheme="slices", engine="cpu").num_products
    36
    """
    check_choice("output", output, Output)
    count, inner = _length("batch", batch), _length("k", k)
    rows, columns = _length("m", m), _length("n", n)
    size = (count, rows, columns, inner)
    wanted = _as_dtype(dtype, wide=output == "dd")
    parts = 2 if wanted.kind == "c" else 1
    if engine == "native" and check is None:
        check = False
    options = context.default_options().with_changes(
        precision=precision,
        scaling=scaling,
        engine=engine,
        workspace_bytes=workspace_bytes,
        check=check,
        **scheme_options("plan", more),
    )
    if options.engine == "cublas" and output == "dd":
        limit = 'output="dd" is no product of engine "cublas"'
        remedy = 'choose engine="auto", "cpu" or "cuda"'
        raise OptionError(refusal("engine", "cublas", limit, remedy))
    if output == "dd":
        check_doubles(options)
    real_size = parts * rows, columns, parts * inner
    scope = _scope(options, wanted, *real_size)
    result = Plan("native", *size, scope, dtype=wanted.name)
    unwanted = output != "dd" and left_out(options, wanted)
    if native_reason(options) or unwanted or too_small(options, *real_size):
        return result
    if options.engine == "cublas":
        result = _by_cublas(result, size, options)
        if result.fallback is None:
            return result
    engine_name = engine_of(options).name
    result = replace(result, engine=engine_name, scheme=options.scheme)
    if options.scheme == "slices":
        return _by_slices(result, options, output)
    return _by_moduli(replace(result, scaling=options.scaling), options, output)


def _by_moduli(result: Plan, options: Options, output: Output) -> Plan:
    """Return the plan of scheme "moduli"."""
    if options.precision == "exact":
        return result
    family, to = result.family, format_of(np.dtype(result.dtype))
    inner = max(1, result.k) * (2 if family == "complex" else 1)
    certified = not isinstance(options.precision, Integral)
    if certified:
        check_keeps_tolerance(options, to)
        _, num_moduli = goal(options, inner, output == "dd", family, to)
        scheme = Scheme(num_moduli, options.scaling, family=family)
    else:
        given, _ = first_scheme(options, inner, family, to)
        assert isinstance(given, Scheme)  # noqa: S101 - of a number of moduli
        scheme, num_moduli = given, given.num_moduli
    sure = options.scaling != "legacy"
    cut = _cut(
        result,
        options,
        scheme,
        certified=certified and sure,
        checked=bool(options.check),
        double=output == "dd",
    )
    bits = budget.effective_bits(num_moduli, inner, family)
    error = budget.relative_error_bound(num_moduli, inner, family) if sure else None
    return replace(
        result,
        num_moduli=num_moduli,
        bits=bits,
        relative_error=error,
        num_gemms=cut.num_gemms,
        tiles=cut.tiles,
        workspace_bytes=cut.workspace_bytes,
        by_moduli=slice_budget.moduli_cost(
            result.m, result.n, result.k, num_moduli, family
        ),
        by_slices=_slices_of_bits(result, bits),
    )


def _cut(
    result: Plan,
    options: Options,
    scheme: AnyScheme,
    *,
    certified: bool,
    checked: bool,
    double: bool,
) -> Cut:
    """Return how the engine would cut the product."""
    engine, size = engine_of(options), (result.batch, result.m, result.n, result.k)
    word = 4 if result.dtype in {"float32", "complex64"} else 8
    if result.family == "complex":
        return cut_complex(
            engine,
            size,
            scheme,
            certified=certified,
            checked=checked,
            double=double,
            workspace_bytes=options.workspace_bytes,
            word=word,
        )
    return engine.cut(
        size,
        scheme,
        certified=certified,
        checked=checked,
        workspace_bytes=options.workspace_bytes,
        word=word,
    )


def _by_slices(result: Plan, options: Options, output: Output) -> Plan:
    """Return the plan of scheme "slices"."""
    slicing = options.slicing
    cut = _cut(
        result,
        options,
        slicing,
        certified=False,
        checked=False,
        double=output == "dd",
    )
    inner = max(1, result.k) * (2 if result.family == "complex" else 1)
    bits = slice_budget.slice_bits(slicing)
    return replace(
        result,
        bits=bits,
        relative_error=slice_budget.slice_error_bound(slicing, inner),
        num_gemms=cut.num_gemms,
        tiles=cut.tiles,
        workspace_bytes=cut.workspace_bytes,
        slicing=slicing,
        by_moduli=_moduli_of_bits(result, bits),
        by_slices=slice_budget.slices_cost(
            result.m, result.n, result.k, slicing, result.family
        ),
    )


def _slices_of_bits(result: Plan, bits: float) -> Cost | None:
    try:
        slicing = Slicing(slice_budget.slices_for_bits(bits))
    except OptionError:
        return None
    return slice_budget.slices_cost(
        result.m, result.n, result.k, slicing, result.family
    )


def _moduli_of_bits(result: Plan, bits: float) -> Cost:
    # Of k equal entries: log2(P) = 2 bits + log2(k) + 1.  Slices never want too many.
    inner = max(1, result.k) * (2 if result.family == "complex" else 1)
    whole = 2.0 * bits + math.log2(inner) + 1.0
    num_moduli = budget.moduli_for_bits(whole, result.family)
    return slice_budget.moduli_cost(
        result.m, result.n, result.k, num_moduli, result.family
    )


def _by_cublas(result: Plan, size: tuple[int, int, int, int], options: Options) -> Plan:
    """Return what cuBLAS would take, or the reason why it does not multiply."""
    reason = choice.cublas_unavailable()
    if reason is None and result.family == "complex":
        reason = "complex products"
    if reason is None and result.dtype != "float64":
        reason = f"{result.dtype} products"
    if reason is not None:
        return replace(result, fallback=f"{CUBLAS_FALLBACK}{reason}")
    settings = Settings.of(options)
    try:
        tiles = choice.cublas_engine().cut(
            size, settings, workspace_bytes=options.workspace_bytes
        )
    except CublasRefusal as error:
        return replace(result, fallback=f"{CUBLAS_FALLBACK}{error}")
    return replace(
        result,
        engine="cublas",
        tiles=tiles.calls(*size[:3]),
        workspace_bytes=tiles.workspace_bytes,
        mantissa_bits=settings.mantissa_bits,
    )


def _as_dtype(dtype: DTypeLike, *, wide: bool) -> np.dtype[Any]:
    """Return a dtype whose products an engine makes; if `wide`, in float64."""
    names = tuple(DTYPES.values())
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.name not in names:
        limit = f"an engine multiplies {', '.join(names)}"
        raise OperandTypeError(refusal("dtype", dtype, limit, "pass one of these"))
    return np.result_type(found, np.float64) if wide else found


def _length(name: str, value: SupportsIndex) -> int:
    try:
        length = operator.index(value)
    except TypeError:
        limit = f"must be an int, not {type(value).__name__}"
        raise OperandTypeError(refusal(name, value, limit, "pass a length")) from None
    if length < 0:
        raise OptionError(refusal(name, value, "must be 0 or more", "pass a length"))
    return length


def _scope(options: Options, dtype: np.dtype[Any], m: int, n: int, k: int) -> str:
    """Return what a scope would do with such a product."""
    reason = (
        native_reason(options)
        or left_out(options, dtype, scoped=True)
        or too_small(options, m, n, k)
    )
    if reason is not None:
        return reason
    least = min_flops(options)
    if flops(m, n, k) < least:
        return f"too small: min_flops is {least}"
    return "routed"
