"""Options and their defaults; the only reader of the environment.

Each option of `np_ozaki.enabled` has one ``NP_OZAKI_*`` variable that changes its
default.  A variable with a value that cannot be used raises at the first use, naming
the variable; an unknown ``NP_OZAKI_*`` name warns, because it is likely a typing error.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, cast, get_args

import numpy as np
from numpy.typing import DTypeLike

from np_ozaki.errors import (
    OperandTypeError,
    OptionError,
    OzakiWarning,
    refusal,
)
from np_ozaki.hooks import NAMES
from np_ozaki.numerics.moduli import MAX_MODULI, MIN_MODULI
from np_ozaki.numerics.slicing import (
    DEFAULT_BITS_PER_SLICE,
    DEFAULT_SLICES,
    MAX_BITS_PER_SLICE,
    MAX_SLICES,
    MIN_BITS_PER_SLICE,
    Accumulate,
    PairSchedule,
    Slicing,
    as_schedule,
)

__all__ = [
    "AUTO_MODULI",
    "COMPLEX_AUTO_MODULI",
    "COMPLEX_SINGLE_AUTO_MODULI",
    "DTYPES",
    "MAX_MANTISSA_BITS",
    "SINGLE_AUTO_MODULI",
    "SLICE_OPTIONS",
    "SMALLEST_TOLERANCE",
    "Accumulate",
    "Check",
    "Config",
    "Dtypes",
    "EngineName",
    "MantissaControl",
    "MultiplicationScheme",
    "Options",
    "Output",
    "PairSchedule",
    "Precision",
    "Scaling",
    "SchemeOptions",
    "Strategy",
    "as_dtypes",
    "check_choice",
    "config",
    "pairs_from_text",
    "read_config",
    "scheme_options",
]

Precision = Literal["auto", "exact"] | int | float
Scaling = Literal["norm", "accurate", "legacy"]
EngineName = Literal["auto", "cpu", "cuda", "cublas", "native"]
MultiplicationScheme = Literal["moduli", "slices"]
MantissaControl = Literal["fixed", "dynamic"]
Strategy = Literal["always", "performant"]
Check = bool | Literal["recompute"]
Output = Literal["float64", "dd"]
Dtypes: TypeAlias = Iterable[DTypeLike]
"""What option `dtypes` is given as."""

DTYPES: Final[Mapping[str, str]] = {
    "d": "float64",
    "D": "complex128",
    "f": "float32",
    "F": "complex64",
}
"""The dtypes of products that an engine makes: names by NumPy's letters."""

AUTO_MODULI = 15
COMPLEX_AUTO_MODULI = 16
SINGLE_AUTO_MODULI = 7
COMPLEX_SINGLE_AUTO_MODULI = 8
"""Moduli that ``precision="auto"`` tries first; ordinary data need no more.  The last
two are for float32 and complex64."""

SMALLEST_TOLERANCE = 2.0**-52
"""Smallest tolerance that a float64 result can keep for certain: two roundings."""

MAX_MANTISSA_BITS = 79
"""Ten slices of 8 bits and a sign: the most that cuBLAS takes by itself."""

SLICE_OPTIONS = ("num_slices", "bits_per_slice", "pairs", "accumulate")
"""What scheme "slices" has."""

_CUBLAS_OPTIONS = ("mantissa_bits", "mantissa_control", "special_values")
"""What engine "cublas" has."""

_PRECISIONS = (
    'must be "auto", "exact", a number of moduli as an int or a tolerance below 1 as '
    "a float"
)
_SMALLEST_WORKSPACE = 4 << 20


class SchemeOptions(TypedDict, total=False):
    """Options of scheme "slices" and engine "cublas", as `Options` describes them.

    They are keywords wherever a product's options are; None is as if left out.
    """

    scheme: MultiplicationScheme | None
    num_slices: int | None
    bits_per_slice: int | None
    pairs: Literal["all", "triangular"] | Sequence[tuple[int, int]] | None
    accumulate: Accumulate | None
    mantissa_bits: int | None
    mantissa_control: MantissaControl | None
    special_values: bool | None


def scheme_options(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `SchemeOptions`; refuse others as Python itself does.

    Parameters
    ----------
    function : str
        Who was called.
    given : mapping of str to object
        The keywords that it has no names for.

    Returns
    -------
    dict of str to object
        For `Options.with_changes`.

    Raises
    ------
    TypeError
        A name is none of an option.
    """
    for name in given:
        if name not in SchemeOptions.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    if given.get("pairs") is None:
        return dict(given)
    # Now, as what cannot be hashed, or is used up by a look, would not be found again.
    return {**given, "pairs": as_schedule(given["pairs"])}


def as_dtypes(value: Any) -> tuple[str, ...]:
    """Return the names of dtypes, each once and in the order of `DTYPES`.

    Parameters
    ----------
    value : iterable of dtype_like
        Option `dtypes`.

    Returns
    -------
    tuple of str

    Raises
    ------
    OptionError
        None is named, or one that no engine multiplies.
    OperandTypeError
        Not an iterable of dtypes.
    """
    names = tuple(DTYPES.values())
    choices = f"name some of {', '.join(names)}"
    if isinstance(value, (str, bytes, type, np.dtype)) or not isinstance(
        value, Iterable
    ):
        limit = "must be a sequence of dtypes"
        raise OperandTypeError(refusal("dtypes", value, limit, 'as in ("float32",)'))
    found = set()
    for given in value:
        try:
            # None would be float64.
            dtype = None if given is None else np.dtype(given)
        except TypeError:
            dtype = None
        if dtype is None or dtype.name not in names:
            limit = "an engine multiplies no such dtype"
            raise OptionError(refusal("dtypes", given, limit, choices))
        found.add(dtype.name)
    if not found:
        limit = "names no dtype"
        raise OptionError(refusal("dtypes", value, limit, 'or pass engine="native"'))
    return tuple(name for name in names if name in found)


def check_choice(name: str, value: object, kind: Any) -> None:
    """Refuse a value that is none of a Literal's.

    Parameters
    ----------
    name : str
        Of the argument.
    value : object
        What was passed.
    kind : type
        A Literal of strings.

    Raises
    ------
    OptionError
        Names the choices.
    """
    allowed = get_args(kind)
    if value not in allowed:
        raise OptionError(
            refusal(name, value, f"must be one of {', '.join(allowed)}", "choose one")
        )


def _check_integer(
    name: str, value: object, smallest: int, remedy: str, largest: int | None = None
) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OperandTypeError(
            refusal(name, value, f"must be an int, not {type(value).__name__}", remedy)
        )
    if int(value) < smallest:
        raise OptionError(refusal(name, value, f"must be at least {smallest}", remedy))
    if largest is not None and int(value) > largest:
        raise OptionError(refusal(name, value, f"must be at most {largest}", remedy))


@dataclass(frozen=True)
class Options:
    """What a scope or a call asks for.

    Attributes
    ----------
    precision : "auto", "exact", int or float
        "auto": every entry as accurate as a conventional product is guaranteed to be;
        "exact": correctly rounded; an int: number of moduli, 2 to 49; a float: largest
        error relative to |A||B|, 2^-52 to below 1.
    scaling : {"norm", "accurate", "legacy"}
        Rule of the scaling exponents.
    engine : {"auto", "cpu", "cuda", "cublas", "native"}
        Who multiplies; "auto" is the GPU, else the CPU engine, "cublas" the emulation
        that cuBLAS has itself, with bits of its own, "native" leaves everything to
        NumPy.
    strategy : {"always", "performant"}
        "performant" routes only what is predicted to be faster than native.
    min_flops : int or None
        Products of fewer operations (2 m n k of one matrix) stay native; None is the
        engine's own threshold.
    local : bool
        Whether a scope holds for the current context only, not for the process.
    reproducible : bool
        Forbids native arithmetic for the products that a scope catches.
    check : bool or "recompute"
        Whether the exact integers behind every entry are held to checksums, and whether
        a product that fails is multiplied once more before an error is raised.
    workspace_bytes : int or None
        Memory for the workspaces of products, bytes; None is the engine's own: 1 GiB
        for all running products of the process on the CPU engine, a quarter of the
        device's memory for each product on a GPU.  Each thread of the CPU engine takes
        up to 12 MB besides, for blocks in cache.
    scheme : {"moduli", "slices"}
        Ozaki scheme II, residues of N moduli, or scheme I, S slices of an operand.
        Slices take what `num_slices` says, so `precision` is "auto", `scaling` "norm".
    num_slices : int
        S, 1 to 16; for engine "cublas", which has no more than 55 bits by it.
    bits_per_slice : int
        b, 2 to 8.
    pairs : "triangular", "all" or sequence of (i, j)
        Which slices of A and B are multiplied; 0 is the most significant one, and
        "triangular" has those with i + j < S.
    accumulate : {"exact", "float64"}
        Whether the sums of pairs of one weight are added as integers and rounded once,
        or in float64.
    mantissa_bits : int or None
        Bits of an entry that engine "cublas" keeps, 1 to 79; None is min(8 S, 55).
    mantissa_control : {"fixed", "dynamic"}
        Whether engine "cublas" takes that many bits, or as many as it finds entries
        need, up to so many.
    special_values : bool
        Whether engine "cublas" looks for NaN and Inf.
    dtypes : tuple of str, or None
        Of the products that leave NumPy, in scopes and by name.  None is float64 and
        complex128 in scopes, and whatever an engine multiplies by name.
    """

    precision: Precision = "auto"
    scaling: Scaling = "norm"
    engine: EngineName = "auto"
    strategy: Strategy = "always"
    min_flops: int | None = None
    local: bool = False
    reproducible: bool = False
    check: Check = False
    workspace_bytes: int | None = None
    scheme: MultiplicationScheme = "moduli"
    num_slices: int = DEFAULT_SLICES
    bits_per_slice: int = DEFAULT_BITS_PER_SLICE
    pairs: PairSchedule = "triangular"
    accumulate: Accumulate = "exact"
    mantissa_bits: int | None = None
    mantissa_control: MantissaControl = "fixed"
    special_values: bool = True
    dtypes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises
        ------
        OptionError
            Value out of range, or contradicting options.
        OperandTypeError
            Value of the wrong type.
        """
        self._check_precision()
        check_choice("scaling", self.scaling, Scaling)
        check_choice("engine", self.engine, EngineName)
        check_choice("strategy", self.strategy, Strategy)
        if self.min_flops is not None:
            _check_integer("min_flops", self.min_flops, 0, "0 routes every product")
        if self.workspace_bytes is not None:
            _check_integer(
                "workspace_bytes",
                self.workspace_bytes,
                _SMALLEST_WORKSPACE,
                "4 MiB suffice for any product",
            )
        for name in ("local", "reproducible", "special_values"):
            if not isinstance(getattr(self, name), bool):
                raise OperandTypeError(
                    refusal(
                        name, getattr(self, name), "must be a bool", "True or False"
                    )
                )
        self._check_check()
        self._check_reproducible()
        self._check_slices()
        self._check_cublas()
        if self.dtypes is not None:
            object.__setattr__(self, "dtypes", as_dtypes(self.dtypes))

    @functools.cached_property
    def letters(self) -> str | None:
        """NumPy's letters of `dtypes`, or None."""
        if self.dtypes is None:
            return None
        return "".join(letter for letter in DTYPES if DTYPES[letter] in self.dtypes)

    @functools.cached_property
    def slicing(self) -> Slicing:
        """What scheme "slices" multiplies."""
        return Slicing(
            self.num_slices, self.bits_per_slice, self.pairs, self.accumulate
        )

    def _check_slices(self) -> None:
        check_choice("scheme", self.scheme, MultiplicationScheme)
        check_choice("accumulate", self.accumulate, Accumulate)
        for name, least, most in (
            ("num_slices", 1, MAX_SLICES),
            ("bits_per_slice", MIN_BITS_PER_SLICE, MAX_BITS_PER_SLICE),
        ):
            remedy = f"{least} to {most}; the default is 8"
            _check_integer(name, getattr(self, name), least, remedy, most)
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "pairs", as_schedule(self.pairs))
        if self.scheme == "moduli":
            return
        # Whatever names no slice is refused here.
        _ = self.slicing
        for name, usual, limit, remedy in (
            (
                "precision",
                "auto",
                'scheme="slices" is as precise as num_slices and pairs make it',
                'choose num_slices, with precision="auto", or scheme="moduli"',
            ),
            (
                "scaling",
                "norm",
                'scheme="slices" scales by the largest entry of a line',
                'scaling="norm" stands for that; or use scheme="moduli"',
            ),
            (
                "check",
                False,
                "checksums are of residues",
                'use scheme="moduli" with check, or check=False',
            ),
        ):
            value = getattr(self, name)
            if value != usual:
                raise OptionError(refusal(name, value, limit, remedy))
        if self.engine in {"cublas", "native"}:
            limit = f'engine="{self.engine}" does not multiply by scheme="slices"'
            remedy = 'choose engine="auto", "cpu" or "cuda", or scheme="moduli"'
            raise OptionError(refusal("engine", self.engine, limit, remedy))

    def mirrors(self, *, is_complex: bool) -> bool:
        """Return whether B^T A^T has the bits of (A B)^T, and B^H A^H those of (A B)^H.

        Parameters
        ----------
        is_complex : bool
            Whether operands are.  Slices of -x are not those of x with other signs, as
            -2^(b-1) has no opposite: only what leaves out none of them does not see it.

        Returns
        -------
        bool
            Always true of moduli.
        """
        if self.scheme == "moduli":
            return True
        slicing = self.slicing
        return slicing.is_exact if is_complex else slicing.symmetric

    def _check_cublas(self) -> None:
        check_choice("mantissa_control", self.mantissa_control, MantissaControl)
        if self.mantissa_bits is not None:
            remedy = f"1 to {MAX_MANTISSA_BITS}; None is min(8 num_slices, 55)"
            bits = self.mantissa_bits
            _check_integer("mantissa_bits", bits, 1, remedy, MAX_MANTISSA_BITS)
        if self.engine != "cublas":
            return
        for name, bad, limit, remedy in (
            (
                "reproducible",
                bool(self.reproducible),
                'engine="cublas" has bits of its own, which a version may change',
                'engine="auto" has the same bits everywhere',
            ),
            (
                "check",
                bool(self.check),
                'engine="cublas" shows no integers to check',
                'engine="cuda" has check',
            ),
            (
                "precision",
                isinstance(self.precision, float) or self.precision == "exact",
                'engine="cublas" keeps bits of a mantissa, no tolerance',
                "pass mantissa_bits, or another engine",
            ),
        ):
            if bad:
                value = getattr(self, name)
                raise OptionError(refusal(name, value, limit, remedy))

    def _check_check(self) -> None:
        value = self.check
        if isinstance(value, bool) or (isinstance(value, str) and value == "recompute"):
            if value and self.scaling == "legacy":
                limit = 'the integers of scaling="legacy" may wrap: nothing to hold to'
                raise OptionError(
                    refusal("check", value, limit, 'use scaling="norm" with check')
                )
            if value and self.engine == "native":
                limit = "native products have no exact integers to check"
                raise OptionError(refusal("check", value, limit, "choose an engine"))
            return
        limit = 'must be True, False or "recompute"'
        raise OperandTypeError(refusal("check", value, limit, "True raises CheckError"))

    def _check_precision(self) -> None:
        value, remedy = self.precision, "15 gives FP64 accuracy on ordinary data"
        if isinstance(value, bool) or not isinstance(value, (str, Real)):
            raise OperandTypeError(refusal("precision", value, _PRECISIONS, remedy))
        if isinstance(value, str):
            if value not in {"auto", "exact"}:
                raise OptionError(refusal("precision", value, _PRECISIONS, remedy))
            if value == "exact" and self.scaling != "norm":
                limit = 'precision="exact" has the scaling "norm"'
                raise OptionError(
                    refusal("scaling", self.scaling, limit, 'pass scaling="norm"')
                )
        elif isinstance(value, Integral):
            if not MIN_MODULI <= value <= MAX_MODULI:
                limit = f"the table holds {MIN_MODULI} to {MAX_MODULI} moduli"
                raise OptionError(refusal("precision", value, limit, remedy))
        elif not value < 1.0:
            raise OptionError(refusal("precision", value, _PRECISIONS, remedy))
        elif not value >= SMALLEST_TOLERANCE:
            limit = "a tolerance is at least 2**-52, the spacing of float64"
            raise OptionError(
                refusal("precision", value, limit, 'precision="exact" rounds once')
            )
        elif self.scaling == "legacy":
            limit = 'scaling="legacy" keeps no tolerance'
            raise OptionError(refusal("precision", value, limit, 'use scaling="norm"'))
        promises = value != "auto" and not isinstance(value, Integral)
        if promises and self.engine == "native":
            limit = "native products promise what FP64 does, no more"
            raise OptionError(
                refusal("precision", value, limit, 'choose an engine, or "auto"')
            )

    def _check_reproducible(self) -> None:
        if not self.reproducible:
            return
        for name, bad in (("engine", "native"), ("strategy", "performant")):
            if getattr(self, name) == bad:
                raise OptionError(
                    refusal(
                        name,
                        bad,
                        "reproducible=True forbids native arithmetic",
                        "drop one of the two",
                    )
                )
        if self.min_flops:
            raise OptionError(
                refusal(
                    "min_flops",
                    self.min_flops,
                    "reproducible=True routes every product",
                    "leave min_flops out",
                )
            )

    def with_changes(self, **changes: Any) -> Options:
        """Return a copy with every option changed that is not None.

        Parameters
        ----------
        **changes : object
            Fields of this class; None keeps the value.

        Returns
        -------
        Options
            Checked anew.
        """
        try:
            return _changed(self, **changes)
        except TypeError:
            # An option that cannot be hashed is none that can be used: say which.
            return _replaced(self, _given(changes))


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in changes.items() if x is not None}


# With types: True is not 1, nor 15 the tolerance 15.0, but they are equal keys.
@functools.lru_cache(maxsize=256, typed=True)
def _changed(options: Options, **changes: Any) -> Options:
    # Cached: checking every field anew would take as long as all else before a product.
    given = _given(changes)
    return _replaced(options, given) if given else options


def _replaced(options: Options, given: dict[str, Any]) -> Options:
    """Return changed options; refuse changes that would change nothing."""
    changed = replace(options, **given)
    of_slices = changed.scheme == "slices"
    for name in given:
        if name == "num_slices" and changed.engine == "cublas":
            continue
        if name in SLICE_OPTIONS and not of_slices:
            limit = 'is of scheme="slices"'
            remedy = 'pass scheme="slices" with it'
        elif name in _CUBLAS_OPTIONS and changed.engine != "cublas":
            limit = 'is of engine="cublas"'
            remedy = 'pass engine="cublas" with it'
        else:
            continue
        raise OptionError(refusal(name, given[name], limit, remedy))
    return changed


@dataclass(frozen=True)
class Config:
    """Process-wide settings.

    Attributes
    ----------
    options : Options
        Defaults of every scope and call.
    threads : int or None
        Threads of the CPU engine's elementwise stages; None is all cores.
    hooks : frozenset of str or None
        Hooks that may be installed; None is all.
    strict : bool
        Whether implicit conversions of OzArrays are errors.
    """

    options: Options = Options()
    threads: int | None = None
    hooks: frozenset[str] | None = None
    strict: bool = False


_Number = TypeVar("_Number", int, float)


def _read(kind: type[_Number], text: str) -> _Number:
    """Return a number written as people write it, not as in a program: no 1_000."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return kind(text)


def _number(name: str, text: str) -> int:
    try:
        return _read(int, text)
    except ValueError:
        raise OptionError(
            refusal(name, text, "must be an integer", "write digits only")
        ) from None


def _precision(name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return _read(kind, text)
        except ValueError:
            continue
    limit = "must be auto, exact, a number of moduli or a tolerance such as 1e-10"
    raise OptionError(refusal(name, text, limit, "unset it for auto"))


def _flag(name: str, text: str, allowed: str = "0 or 1") -> bool:
    if text in {"0", "1"}:
        return text == "1"
    raise OptionError(refusal(name, text, f"must be {allowed}", "unset it for 0"))


_NUMBERS = {
    "bits_per_slice",
    "mantissa_bits",
    "min_flops",
    "num_slices",
    "workspace_bytes",
}


def pairs_from_text(name: str, text: str) -> PairSchedule:
    """Return a schedule of pairs of slices.

    Parameters
    ----------
    name : str
        Of the variable or option, for the message.
    text : str
        "all", "triangular" or pairs, as in "0-0,0-1,1-0".

    Returns
    -------
    "all", "triangular" or tuple of (i, j)

    Raises
    ------
    OptionError
        It is none of these.
    """
    if text in {"all", "triangular"}:
        return cast(PairSchedule, text)
    try:
        return tuple(
            (_read(int, i), _read(int, j))
            for i, j in (part.split("-") for part in text.split(","))
        )
    except ValueError:
        limit = "must be all, triangular or pairs such as 0-0,0-1,1-0"
        raise OptionError(
            refusal(name, text, limit, "unset it for triangular")
        ) from None


def _option_from_text(field: str, name: str, text: str) -> Any:
    if field in _NUMBERS:
        return _number(name, text)
    if field == "dtypes":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if field == "pairs":
        return pairs_from_text(name, text)
    if field in {"local", "reproducible", "special_values"}:
        return _flag(name, text)
    if field == "check":
        return text if text == "recompute" else _flag(name, text, "0, 1 or recompute")
    if field == "precision" and text not in {"auto", "exact"}:
        return _precision(name, text)
    return text


_PREFIX = "NP_OZAKI_"
_OTHER = {
    "NP_OZAKI_HOOKS",
    "NP_OZAKI_REQUIRE_GPU",
    "NP_OZAKI_STRICT",
    "NP_OZAKI_THREADS",
}


def _hooks_from_text(text: str) -> frozenset[str] | None:
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    if names == {"all"}:
        return None
    if names == {"none"}:
        return frozenset()
    unknown = names - set(NAMES)
    if unknown or not names:
        raise OptionError(
            refusal(
                "NP_OZAKI_HOOKS",
                text,
                "must be all, none, or names of hooks with commas between: "
                + ", ".join(NAMES),
                "unset it for all",
            )
        )
    return names


def read_config(environment: Mapping[str, str]) -> Config:
    """Return the settings that an environment asks for.

    Parameters
    ----------
    environment : mapping of str to str
        As `os.environ`.

    Returns
    -------
    Config
        Defaults where a variable is missing or empty.

    Raises
    ------
    OptionError, OperandTypeError
        A variable has a value that cannot be used; the message names it.
    """
    given = {
        name: text
        for name, text in environment.items()
        if name.startswith(_PREFIX) and text
    }
    variables = {f"{_PREFIX}{f.name.upper()}": f.name for f in fields(Options)}
    options = {}
    for name, field in variables.items():
        if name in given:
            options[field] = _option_from_text(field, name, given[name])
            try:
                Options(**{field: options[field]})
            except (OptionError, OperandTypeError) as error:
                raise OptionError(f"{name}: {error}") from None
    threads = None
    if "NP_OZAKI_THREADS" in given:
        threads = _number("NP_OZAKI_THREADS", given["NP_OZAKI_THREADS"])
        _check_integer("NP_OZAKI_THREADS", threads, 1, "unset it for all cores")
    hooks = None
    if "NP_OZAKI_HOOKS" in given:
        hooks = _hooks_from_text(given["NP_OZAKI_HOOKS"])
    strict = _flag("NP_OZAKI_STRICT", given.get("NP_OZAKI_STRICT", "0"))
    for name in sorted(given.keys() - variables.keys() - _OTHER):
        warnings.warn(
            f"{name} is no variable of np_ozaki; known are "
            f"{', '.join(sorted(variables.keys() | _OTHER))}",
            OzakiWarning,
            stacklevel=2,
        )
    try:
        chosen = Options(**options)
    except OptionError as error:
        names = [name for name, field in variables.items() if field in options]
        raise OptionError(f"{', '.join(names)} contradict: {error}") from None
    return Config(chosen, threads, hooks, strict)


@functools.cache
def config() -> Config:
    """Return the process's settings, read from the environment once.

    Returns
    -------
    Config
        The same object at every call.
    """
    return read_config(os.environ)
