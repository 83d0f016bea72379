"""Products in the precision that a user asks for: tries, certificates, fallbacks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from np_ozaki.config import Options
from np_ozaki.engines import workspace
from np_ozaki.engines.base import (
    AnyScheme,
    Balanced,
    Engine,
    Outcome,
    Scheme,
    Target,
)
from np_ozaki.engines.complex_operand import ComplexOperand, put_parts, real_of
from np_ozaki.engines.prepared import (
    HOST,
    NO_KEEPER,
    UNPREPARED,
    Keeper,
    Pair,
    Prepared,
    forget,
)
from np_ozaki.errors import CheckError, WorkspaceError, refusal
from np_ozaki.numerics.formats import SINGLE, Format, format_of
from np_ozaki.numerics.moduli import Family
from np_ozaki.numerics.reference import exact_pair, exact_product
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.precision.schemes import (
    auto_moduli,
    check_keeps_tolerance,
    exact_schemes,
    first_schemes,
    goal,
    more_moduli,
    plain_scheme,
    too_long,
)

__all__ = ["TOO_WIDE", "Served", "Way", "multiply"]

Array = NDArray[np.float64]
Operand = Any
"""Real matrices, or a ComplexOperand that stands for such."""

Integers = NDArray[np.int64]
_T = TypeVar("_T")

TOO_WIDE = "range too wide to certify"
"""Reason of a product that 49 moduli cannot certify."""

_LEAST_SPREAD = 4
"""Bits that rebalancing must move to be tried where 49 moduli are too few."""

_LEAST_SAVED = 4
"""Moduli that rebalancing must promise to save: its search and the second look at its
copies cost about as much."""

_COMMON, _SINGLE_COMMON = 500, 50
"""Exponents of lines whose products neither over- nor underflow in sums."""


@dataclass(frozen=True)
class Way:
    """How one matrix of a batch was multiplied in the end.

    Attributes
    ----------
    scheme : Scheme
        Moduli and lent bits; the last ones tried where another arithmetic took over.
    slicing : Slicing or None
        What was multiplied instead of residues.
    balanced : bool
        Whether the inner index was rebalanced.
    elsewhere : str
        Who multiplied instead: "native" or "exact"; "" for the engine.
    """

    scheme: Scheme
    balanced: bool = False
    elsewhere: str = ""
    slicing: Slicing | None = None


@dataclass
class Served:
    """How a product was served.

    Attributes
    ----------
    outcome : Outcome
        Floating-point exceptions, tiles.
    ways : sequence of Way
        One a matrix.
    fallback : str or None
        Why some were left to other arithmetic.
    recomputed : bool
        Whether a check failed once.
    """

    outcome: Outcome
    ways: Sequence[Way]
    fallback: str | None = None
    recomputed: bool = False

    @property
    def left_out(self) -> int:
        """Matrices that were left to other arithmetic."""
        if self.fallback is None:
            return 0
        return sum(bool(way.elsewhere) for way in self.ways)

    @property
    def elsewhere(self) -> str:
        """Who served those."""
        return next((way.elsewhere for way in self.ways if way.elsewhere), "")

    def most(self) -> tuple[int | None, int, bool]:
        """Return what the matrices took, at its most.

        Returns
        -------
        num_moduli : int or None
            None where all were left to other arithmetic, or made of slices.
        shift : int
            Bits that A lent to B (less than 0: B to A).
        balanced : bool
            Whether some matrix was rebalanced.
        """
        num_moduli: int | None = None
        shift, balanced = 0, False
        last: Way | None = None
        for way in self.ways:
            # Most batches have one way for all.
            if way is last:
                continue
            last = way
            balanced = balanced or way.balanced
            if way.elsewhere or way.slicing:
                continue
            scheme = way.scheme
            num_moduli = max(num_moduli or 0, scheme.num_moduli)
            if abs(scheme.shift) > abs(shift):
                shift = scheme.shift
        return num_moduli, shift, balanced


_NOTHING_DONE = Outcome(overflow=False, invalid=False, workspace_bytes=0, tiles=0)


@dataclass
class _Work:
    """One call: operands, results, and what has been seen so far."""

    engine: Engine
    a: Operand
    b: Operand
    out: Array
    low: Array | None
    options: Options
    ways: list[Way]
    missing: Integers
    outcome: Outcome = _NOTHING_DONE
    line_shifts: tuple[Integers, Integers] | None = None
    balanced: bool = False
    tries: int = 0
    members: Sequence[int] | None = None
    recomputed: bool = False
    prepared: Pair = UNPREPARED
    family: Family = "real"

    @property
    def to(self) -> Format:
        """What results are rounded to."""
        return format_of(self.out.dtype)

    @property
    def keepers(self) -> tuple[Keeper, Keeper]:
        """Where facts about the entries of A and B are kept, on the host."""
        left, right = self.prepared
        return self._keeper(self.a, left, "left"), self._keeper(self.b, right, "right")

    def _keeper(self, x: Operand, prepared: Prepared | None, role: str) -> Keeper:
        if prepared is None:
            return NO_KEEPER
        limit = self.options.workspace_bytes or workspace.DEFAULT_BYTES
        return Keeper(prepared, HOST, limit, "entries", role, x.shape, x.strides)

    def run(self, scheme: Scheme, index: list[int], target: Target | None) -> None:
        """Multiply the chosen matrices; note the bits that they miss."""
        whole = len(index) == self.out.shape[0]
        out, low = self.out, self.low
        a, b, shifts = self.a, self.b, self.line_shifts
        prepared = self.prepared
        if not whole:
            shape = (len(index), *out.shape[1:])
            out = np.empty_like(out, shape=shape)
            low = None if low is None else np.empty_like(low, shape=shape)
            a, b = _pick(a, index), _pick(b, index)
            # What was kept is about whole operands.
            prepared = (
                prepared[0] if a is self.a else None,
                prepared[1] if b is self.b else None,
            )
            if shifts is not None:
                shifts = shifts[0][index], shifts[1][index]
        try:
            outcome, again = _checked(
                self.engine,
                self.options,
                self.prepared,
                (a, b, out, low, scheme, target, shifts, prepared),
            )
        except CheckError as error:
            matrix = index[error.matrix]
            raise error.of(
                matrix if self.members is None else self.members[matrix]
            ) from None
        self.recomputed |= again
        if not whole:
            self.out[index] = out
            if self.low is not None:
                self.low[index] = low
        missing = 0 if outcome.missing_bits is None else outcome.missing_bits
        self.missing[slice(None) if whole else index] = missing
        way = _way(scheme, self.balanced)
        for i in index:
            self.ways[i] = way
        self.tries += 1
        if self.tries == 1:
            self.outcome = outcome
            return
        seen = self.outcome
        self.outcome = Outcome(
            overflow=seen.overflow or outcome.overflow,
            invalid=seen.invalid or outcome.invalid,
            workspace_bytes=max(seen.workspace_bytes, outcome.workspace_bytes),
            tiles=seen.tiles + outcome.tiles,
        )


_Job = tuple[
    Operand,
    Operand,
    Array,
    Array | None,
    AnyScheme,
    Target | None,
    tuple[Integers, Integers] | None,
    Pair,
]
"""A, B, out, low, scheme, target of a certificate, line shifts, what is kept."""


def _checked(
    engine: Engine, options: Options, prepared: Pair, job: _Job
) -> tuple[Outcome, bool]:
    """Multiply, and once more where a check fails if that was asked for.

    `prepared` is of the whole operands, also where the job is about some matrices.
    """
    try:
        return _matmul(engine, options, *job), False
    except CheckError:
        # The fault may be in what is kept of an operand.
        forget(prepared)
        if options.check != "recompute":
            raise
    return _matmul(engine, options, *job), True


def _matmul(
    engine: Engine,
    options: Options,
    a: Operand,
    b: Operand,
    out: Array,
    low: Array | None,
    scheme: AnyScheme,
    target: Target | None,
    line_shifts: tuple[Integers, Integers] | None,
    prepared: Pair,
) -> Outcome:
    limit = options.workspace_bytes
    try:
        return engine.matmul(
            a,
            b,
            out,
            scheme,
            workspace_bytes=limit,
            certify=target,
            line_shifts=line_shifts,
            low=low,
            check=bool(options.check),
            prepared=prepared,
        )
    except WorkspaceError:
        raise
    except MemoryError as error:
        raise WorkspaceError(
            refusal(
                "workspace_bytes",
                limit,
                f"not enough memory for the tiles of a product ({error})",
                "lower it: products then run in smaller tiles, with the same bits",
            )
        ) from error


def _way(scheme: Scheme, balanced: bool) -> Way:
    if balanced or scheme.shift:
        return Way(scheme, balanced)
    return _plain_way(scheme.num_moduli, scheme.scaling, scheme.family)


@functools.lru_cache(maxsize=256)
def _plain_way(num_moduli: int, scaling: str, family: Family) -> Way:
    """Return the way of matrices that no bits were lent in."""
    return Way(Scheme(num_moduli, scaling, family=family))


@functools.lru_cache(maxsize=256)
def _sliced_way(slicing: Slicing) -> Way:
    """Return the way of products by slices."""
    return Way(Scheme(2), slicing=slicing)


def multiply(
    engine: Engine,
    a: Operand,
    b: Operand,
    out: Array,
    options: Options,
    low: Array | None = None,
    prepared: Pair = UNPREPARED,
    family: Family = "real",
) -> Served:
    """Multiply with the precision that the options ask for.

    Parameters
    ----------
    engine : Engine
        Who multiplies.
    a : (batch, m, k) ndarray of float64 or float32, or ComplexOperand
        Batch 1 broadcasts.
    b : (batch, k, n) ndarray of the same dtype, or ComplexOperand
        Batch 1 broadcasts.
    out : (batch, m, n) ndarray of the operands' dtype, complex for a ComplexOperand
        Overwritten; must not overlap an operand.
    options : Options
        Precision, scaling, reproducible, workspace.
    low : (batch, m, n) ndarray of float64, optional
        Takes what the rounding to `out` left; for float64 only.
    prepared : tuple of Prepared or None, optional
        Of A and of B, as they are here: what is made of them is kept there.
    family : {"real", "complex"}, optional
        Whose moduli, and what operands stand for, as in a `Scheme`.

    Returns
    -------
    Served
        What it took.

    Raises
    ------
    OptionError
        A tolerance is below what float32 can keep.
    PrecisionError
        ``precision="exact"`` takes more bits than 49 moduli hold.
    CheckError
        ``check`` is set and entries do not keep to their checksums.
    WorkspaceError
        The system has no memory left for the tiles; a MemoryError.

    Notes
    -----
    "auto" and tolerances decide for each matrix of a batch by itself: enough moduli for
    ordinary data, or fewer where entries have few bits, and a certificate.  Where that
    fails, the inner index is rebalanced if that pays, then come as many moduli as the
    certificate asks for; where 49 are not enough, native arithmetic, or the correctly
    rounded product by Python integers where native arithmetic does not keep the
    promise or ``reproducible=True`` forbids it.
    """
    batch = out.shape[0]
    to = format_of(out.dtype)
    plain = plain_scheme(options, family, to)
    if plain is None:
        check_keeps_tolerance(options, to)
        if not out.size or not a.shape[2]:
            # Nothing to certify.
            plain = Scheme(auto_moduli(family, to), options.scaling, family=family)
    if plain is not None:
        job = (a, b, out, low, plain, None, None, prepared)
        outcome, recomputed = _checked(engine, options, prepared, job)
        if isinstance(plain, Slicing):
            way = _sliced_way(plain)
        else:
            way = _way(plain, False)
        return Served(outcome, [way] * batch, None, recomputed)
    ways = [_plain_way(2, "norm", family)] * batch
    missing = np.zeros(batch, dtype=np.int64)
    work = _Work(engine, a, b, out, low, options, ways, missing)
    work.prepared, work.family = prepared, family
    if options.precision == "exact":
        _exact(work)
    else:
        _certified(work)
    outcome = work.outcome
    fallback = TOO_WIDE if any(way.elsewhere for way in ways) else None
    if fallback or (outcome.overflow and work.tries > 1):
        # Results that were replaced may have overflowed, and others not.
        outcome = replace(outcome, overflow=_overflowed(a, b, out))
    return Served(outcome, ways, fallback, work.recomputed)


def _overflowed(a: Operand, b: Operand, out: Array) -> bool:
    """Return whether finite rows and columns have an infinite entry."""
    a, b = (x.x if isinstance(x, ComplexOperand) else x for x in (a, b))
    rows = np.isfinite(a).all(axis=2, keepdims=True)
    columns = np.isfinite(b).all(axis=1, keepdims=True)
    return bool((np.isinf(out) & rows & columns).any())


def _certified(work: _Work) -> None:
    """Multiply with certificates, and with more bits where they fail."""
    options, k, batch = work.options, work.a.shape[2], work.out.shape[0]
    family = work.family
    target, begin = goal(options, k, work.low is not None, family, work.to)
    keepers = work.keepers
    first = first_schemes(
        work.engine, work.a, work.b, options.scaling, begin, batch, keepers, family
    )
    if work.low is not None and options.scaling == "norm":
        # Twice the bits of float64 are often as many as an exact product takes.
        exact_ones = exact_schemes(
            work.engine, work.a, work.b, batch, keepers, begin, family
        )
        first = [
            (known, True) if known else other
            for known, other in zip(exact_ones, first, strict=True)
        ]
    for (scheme, exact), index in _groups(first):
        work.run(scheme, index, None if exact else target)
    if not np.count_nonzero(work.missing):
        return
    (doubtful,) = np.nonzero(work.missing)
    plain = [int(i) for i in doubtful if not work.ways[i].scheme.shift]
    helped = _rebalanced(work, plain, target)
    rest = [int(i) for i in doubtful if int(i) not in helped]
    _climb(work, rest, target)
    if work.missing.any():
        _elsewhere(work, [int(i) for i in np.flatnonzero(work.missing)], target)


def _climb(work: _Work, index: list[int], target: Target) -> None:
    """Try more moduli until all are certified or 49 are not enough.

    Each matrix takes its own steps, whoever shares the batch.
    """
    k = work.a.shape[2]
    while index:
        steps = [
            more_moduli(work.ways[i].scheme, int(work.missing[i]), k) for i in index
        ]
        index = [i for i, scheme in zip(index, steps, strict=True) if scheme]
        for scheme, members in _groups([s for s in steps if s]):
            work.run(scheme, [index[member] for member in members], target)
        index = [i for i in index if work.missing[i]]


def _rebalanced(work: _Work, index: list[int], target: Target) -> set[int]:
    """Multiply those that rebalancing helps; return them where certified."""
    index = [i for i in index if _promises(work, i, int(work.missing[i]))]
    if not index:
        return set()
    engine, scheme = work.engine, work.ways[index[0]].scheme
    a, b = _real(work, index)
    balanced = engine.rebalance(a, b, work.family)
    spread = [int(bits) for bits in balanced.spread]
    chosen = [j for j, i in enumerate(index) if _promises(work, i, spread[j])]
    if not chosen:
        return set()
    index = [index[i] for i in chosen]
    balanced = _of_balanced(balanced, chosen)
    missing = engine.missing_bits(balanced.a, balanced.b, scheme, target)
    (better,) = np.nonzero(missing < work.missing[index])
    if not better.size:
        return set()
    chosen = better.tolist()
    index = [index[i] for i in chosen]
    balanced = _of_balanced(balanced, chosen)
    part = _part(work, balanced, index, missing[chosen])
    ready = [i for i, bits in enumerate(part.missing) if not bits]
    if ready:
        # The second look has certified them already.
        part.run(scheme, ready, None)
    _climb(part, [i for i in range(len(index)) if part.missing[i]], target)
    return _adopt(work, part, index)


def _part(
    work: _Work, balanced: Balanced, index: list[int], missing: Integers
) -> _Work:
    """Return the work that multiplies balanced operands of some matrices.

    They are real ones, whatever those were that they come from.
    """
    shape = (len(index), balanced.a.shape[1], balanced.b.shape[2])
    return _Work(
        work.engine,
        balanced.a,
        balanced.b,
        np.empty_like(balanced.a, shape=shape, dtype=work.out.real.dtype),
        None if work.low is None else np.empty_like(balanced.a, shape=shape),
        work.options,
        [work.ways[i] for i in index],
        missing,
        work.outcome,
        (balanced.rows, balanced.columns),
        True,
        work.tries,
        index,
        family=work.family,
    )


def _adopt(work: _Work, part: _Work, index: list[int]) -> set[int]:
    """Take over what a part has multiplied as asked for; return which matrices."""
    work.recomputed |= part.recomputed
    done = [i for i in range(len(index)) if not part.missing[i]]
    where = [index[i] for i in done]
    if where:
        work.outcome, work.tries = part.outcome, part.tries
        _assign(work.out, where, part.out[done])
        if work.low is not None and part.low is not None:
            _assign(work.low, where, part.low[done])
        work.missing[where] = 0
        for i, j in zip(where, done, strict=True):
            work.ways[i] = part.ways[j]
    return set(where)


def _promises(work: _Work, i: int, bits: int) -> bool:
    """Return whether a matrix that misses so many bits less is worth rebalancing.

    A D and D^-1 B have the |A||B| of A and B, and the norm of a row times that of a
    column, which a certificate holds to it, shrinks by no more than the spread of D:
    so many bits can be gained, and hardly more where terms were too small to be seen.
    """
    scheme, missing, k = work.ways[i].scheme, int(work.missing[i]), work.a.shape[2]
    usual = more_moduli(scheme, missing, k)
    if usual is None:
        return bits >= _LEAST_SPREAD
    best = more_moduli(scheme, missing - bits, k) if bits < missing else None
    return usual.num_moduli - (best or scheme).num_moduli >= _LEAST_SAVED


def _exact(work: _Work) -> None:
    """Multiply with enough moduli that nothing is rounded."""
    engine, batch, family = work.engine, work.out.shape[0], work.family
    schemes = exact_schemes(engine, work.a, work.b, batch, work.keepers, family=family)
    hard = [i for i, scheme in enumerate(schemes) if scheme is None]
    if hard:
        a, b = _real(work, hard)
        balanced = engine.rebalance(a, b, family)
        found = exact_schemes(
            engine,
            balanced.a,
            balanced.b,
            len(hard),
            (NO_KEEPER, NO_KEEPER),
            family=family,
        )
        if None in found or not balanced.spread.all():
            raise too_long(engine, a, b, len(hard))
        part = _part(work, balanced, hard, np.zeros(len(hard), dtype=np.int64))
        for scheme, index in _groups([s for s in found if s]):
            part.run(scheme, index, None)
        _adopt(work, part, hard)
    easy = [i for i, scheme in enumerate(schemes) if scheme is not None]
    for scheme, index in _groups([s for s in schemes if s]):
        work.run(scheme, [easy[i] for i in index], None)


def _groups(items: Sequence[_T]) -> list[tuple[_T, list[int]]]:
    """Return the different items with where they stand."""
    if len(items) == 1:
        return [(items[0], [0])]
    found: dict[_T, list[int]] = {}
    for i, item in enumerate(items):
        found.setdefault(item, []).append(i)
    return list(found.items())


def _pick(x: Operand, index: list[int]) -> Operand:
    # A list: every kind of array takes one.
    return x[index] if x.shape[0] > 1 else x


def _real(work: _Work, index: list[int]) -> tuple[Array, Array]:
    """Return the real operands of some matrices."""
    return real_of(_pick(work.a, index)), real_of(_pick(work.b, index))


def _assign(target: Array, index: list[int], values: Array) -> None:
    """Write real results of some matrices, where a complex one takes two of theirs."""
    if target.dtype.kind != "c":
        target[index] = values
        return
    batch, rows, columns = values.shape
    whole: Any = np.empty_like(target, shape=(batch, rows // 2, columns))
    put_parts(values, whole)
    target[index] = whole


def _of_balanced(x: Balanced, index: list[int]) -> Balanced:
    if len(index) == x.spread.size:
        return x
    return Balanced(
        x.a[index], x.b[index], x.rows[index], x.columns[index], x.spread[index]
    )


def _native(engine: Engine, a: Array, b: Array, tried: Array) -> Array:
    """Return conventional products that overflow only where their results do.

    Entries of rows or columns with NaN or Inf are those of `tried`: IEEE's, whose bits
    native sums would let depend on their order.
    """
    native: Array = engine.native(a, b)
    common = _SINGLE_COMMON if format_of(tried.dtype) is SINGLE else _COMMON
    lost = ~np.isfinite(native)
    if not lost.any():
        return native
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    a, b = np.where(finite_a, a, 0.0), np.where(finite_b, b, 0.0)
    usual = finite_a.all(axis=2, keepdims=True) & finite_b.all(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        # With lines of a common size sums cannot overflow for k below 2^23; what
        # underflows then is nothing beside terms that did overflow.
        e = np.frexp(np.abs(a).max(axis=2, keepdims=True))[1]
        f = np.frexp(np.abs(b).max(axis=1, keepdims=True))[1]
        again = engine.native(np.ldexp(a, common - e), np.ldexp(b, common - f))
        again = np.ldexp(again, e + f - 2 * common)
    native = np.where(lost, np.where(usual, again, tried), native)
    return native


def _elsewhere(work: _Work, index: list[int], target: Target) -> None:
    """Multiply by other arithmetic what no number of moduli could certify."""
    engine, options = work.engine, work.options
    a, b = _real(work, index)
    # Native products promise k u |A||B|, which may be more than was asked for.
    k = work.a.shape[2]
    enough = isinstance(target, str) or k <= 2 ** (target + work.to.bits)
    if enough and work.low is None and not options.reproducible:
        tried = work.out[index]
        if isinstance(work.a, ComplexOperand):
            tried = ComplexOperand(tried, left=False).embedded()
        _assign(work.out, index, _native(engine, a, b, tried))
        who = "native"
    else:
        a, b = engine.to_host(a), engine.to_host(b)
        a = np.broadcast_to(a, (len(index), *a.shape[1:]))
        b = np.broadcast_to(b, (len(index), *b.shape[1:]))
        pairs = list(zip(a, b, strict=True))
        if work.low is None:
            exact = [exact_product(x, y, work.to) for x, y in pairs]
            high = np.array(exact, dtype=work.out.dtype)
        else:
            both = [exact_pair(x, y) for x, y in pairs]
            high = np.array([x for x, _ in both])
            low = np.array([y for _, y in both])
            _assign(work.low, index, engine.from_host(low, work.low))
        _assign(work.out, index, engine.from_host(high, work.out))
        who = "exact"
    for i in index:
        work.ways[i] = replace(work.ways[i], elsewhere=who)
