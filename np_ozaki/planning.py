"""What a product would take, before anything runs."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import SupportsIndex, Unpack

from np_ozaki import context
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
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cublas import CublasRefusal, Settings
from np_ozaki.errors import OperandTypeError, OptionError, refusal
from np_ozaki.gemm import engine_of, min_flops, native_reason, too_small
from np_ozaki.numerics import budget
from np_ozaki.precision import goal
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
    scaling : str or None
        Rule of the scaling exponents; None for native.
    num_moduli : int or None
        N that is tried first; "auto" and tolerances take fewer for entries of few bits
        and more for entries of wide range.  None for native, and for "exact", where
        the entries decide.
    bits : float or None
        Bits that an entry of a row of k equal entries keeps; float64 has 53.
    relative_error : float or None
        Largest error of C before its one rounding, relative to the product of the
        norms of row and column, that N moduli guarantee for any operands.
    num_gemms : int or None
        Matrix products of this size that the engine makes: INT8 on a GPU, one a modulus
        and one for a certificate; FP64 on the CPU engine, which is why a product there
        costs at least so many native ones.
    tiles : int or None
        Tiles that it is cut to.
    workspace_bytes : int or None
        Largest workspace in use at a time, for operands on the host.
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
    mantissa_bits: int | None = None
    fallback: str | None = None

    @property
    def flops(self) -> int:
        """2 m n k times the batch: the operations of one conventional product."""
        return self.batch * flops(self.m, self.n, self.k)

    @property
    def gemm_operations(self) -> int | None:
        """Operations of all the engine's matrix products, multiplied and added."""
        return None if self.num_gemms is None else self.num_gemms * self.flops

    def __str__(self) -> str:
        """Return a line for each thing that is known."""
        size = f"{self.m} x {self.k} by {self.k} x {self.n}"
        lines = [f"product    {self.batch} of {size}", f"engine     {self.engine}"]
        if self.num_moduli is not None:
            lines.append(f"moduli     {self.num_moduli}, scaling {self.scaling}")
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
        lines.append(f"a scope    {self.scope}")
        return "\n".join(lines)


def plan(
    m: SupportsIndex,
    n: SupportsIndex,
    k: SupportsIndex,
    *,
    batch: SupportsIndex = 1,
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
    precision, scaling, engine, workspace_bytes, check, output : optional
        As for `matmul`.

    **more : object
        Other options of products, as for `matmul`.

    Returns
    -------
    Plan
        Engine, moduli, accuracy, products, memory.

    Raises
    ------
    OptionError
        A length is negative, or an option out of range.
    OperandTypeError
        A length is no integer.
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
    """
    check_choice("output", output, Output)
    count, inner = _length("batch", batch), _length("k", k)
    rows, columns = _length("m", m), _length("n", n)
    size = (count, rows, columns, inner)
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
    scope = _scope(options, rows, columns, inner)
    result = Plan("native", *size, scope)
    if native_reason(options) or too_small(options, rows, columns, inner):
        return result
    if options.engine == "cublas":
        result = _by_cublas(result, size, options)
        if result.fallback is None:
            return result
    engine_name = engine_of(options).name
    result = replace(result, engine=engine_name, scaling=options.scaling)
    if options.precision == "exact":
        return result
    certified = not isinstance(options.precision, Integral)
    if isinstance(options.precision, Integral):
        num_moduli = int(options.precision)
    else:
        _, num_moduli = goal(options, max(1, inner), output == "dd")
    cut = engine_of(options).cut(
        size,
        Scheme(num_moduli, options.scaling),
        certified=certified and options.scaling != "legacy",
        checked=bool(options.check),
        workspace_bytes=options.workspace_bytes,
    )
    sure = options.scaling != "legacy"
    error = budget.relative_error_bound(num_moduli, max(1, inner)) if sure else None
    return replace(
        result,
        num_moduli=num_moduli,
        bits=budget.effective_bits(num_moduli, max(1, inner)),
        relative_error=error,
        num_gemms=cut.num_gemms,
        tiles=cut.tiles,
        workspace_bytes=cut.workspace_bytes,
    )


def _by_cublas(result: Plan, size: tuple[int, int, int, int], options: Options) -> Plan:
    """Return what cuBLAS would take, or the reason why it does not multiply."""
    reason = choice.cublas_unavailable()
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


def _length(name: str, value: SupportsIndex) -> int:
    try:
        length = operator.index(value)
    except TypeError:
        limit = f"must be an int, not {type(value).__name__}"
        raise OperandTypeError(refusal(name, value, limit, "pass a length")) from None
    if length < 0:
        raise OptionError(refusal(name, value, "must be 0 or more", "pass a length"))
    return length


def _scope(options: Options, m: int, n: int, k: int) -> str:
    """Return what a scope would do with such a product."""
    reason = native_reason(options) or too_small(options, m, n, k)
    if reason is not None:
        return reason
    least = min_flops(options)
    if flops(m, n, k) < least:
        return f"too small: min_flops is {least}"
    return "routed"
