"""Source texts of the kernels: constants of a number of moduli, headers, one stage.

Everything that a kernel knows about moduli is computed here from `numerics.moduli`,
with Python integers.  A text is complete: it includes no file, so that the text is all
that a cache of compiled kernels needs to be keyed by.
"""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction
from importlib import resources
from typing import NamedTuple, TypeAlias

import numpy as np
from np_ozaki._kernels.limb_tables import limb_constants, residue_weights
from np_ozaki._kernels.slice_tables import Digits, Sums, slice_constants
from np_ozaki._kernels.tables import table, words

from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    MODULI,
    Family,
    balanced_residue,
    moduli_of,
    product_bound,
    root_of_minus_one,
)

__all__ = [
    "HOPPER_STAGES",
    "OVERLAPPING_STAGES",
    "STAGES",
    "TILE_STEP",
    "AnyVariant",
    "Digits",
    "Entries",
    "Sums",
    "Variant",
    "constants",
    "is_wide",
    "lent_bits",
    "limit_words",
    "quick_products",
    "source",
    "text_of",
]

STAGES: tuple[str, ...] = (
    "scaling_exponents",
    "accurate",
    "residues",
    "cut_planes",
    "reduce",
    "reconstruct",
    "reconstruct_tiles",
    "checksum",
    "certificate",
    "second_look",
    "rebalance",
    "samples",
    "slice_exponents",
    "slices",
    "recombine",
    "lines_in_clusters",
    "winograd_planes",
    "winograd_in_clusters",
    "residue_tiles",
)
"""Parts with a source file; those for which `Variant` matters know moduli, and those of
scheme "slices" have variants of their own: `Digits`, `Sums`.

Lines in clusters and Winograd's planes are for GPUs with clusters of blocks, compute
capability 9.0 on.
"""

HOPPER_STAGES: tuple[str, ...] = ("residue_tiles",)
"""Those for sm_90a alone; they serve every number of moduli."""

OVERLAPPING_STAGES = ("lines_in_clusters", "residue_tiles", "reconstruct_tiles")
"""Those whose kernels wait for the end of the kernel before them by themselves."""

TILE_STEP = 128
"""Entries along k that `residue_tiles` takes at a time."""

_MOST_PRODUCTS = 2**17
"""Entries along k of the longest products: sums in int32."""

_HEADERS = {
    "scaling_exponents": ("lines.cuh", "shares.cuh"),
    "residues": ("lines.cuh", "residues.cuh"),
    "cut_planes": ("lines.cuh", "cut_planes.cuh"),
    "lines_in_clusters": (
        "lines.cuh",
        "cut_planes.cuh",
        "residues.cuh",
        "warps.cuh",
        "shared_lines.cuh",
        "facts_in_clusters.cuh",
        "launches.cuh",
    ),
    "winograd_planes": (
        "lines.cuh",
        "warps.cuh",
        "shared_lines.cuh",
        "launches.cuh",
        "winograd.cuh",
    ),
    "winograd_in_clusters": (
        "lines.cuh",
        "warps.cuh",
        "shared_lines.cuh",
        "facts_in_clusters.cuh",
        "launches.cuh",
        "winograd.cuh",
    ),
    "reconstruct": ("checksum.cuh", "lines.cuh", "reconstruct.cuh", "results.cuh"),
    "reconstruct_tiles": (
        "checksum.cuh",
        "lines.cuh",
        "launches.cuh",
        "limbs.cuh",
        "results.cuh",
    ),
    "slice_exponents": ("lines.cuh", "shares.cuh", "slices.cuh"),
    "slices": ("lines.cuh", "slices.cuh"),
    "recombine": ("lines.cuh", "recombine.cuh", "results.cuh"),
    "checksum": ("checksum.cuh", "lines.cuh", "shares.cuh"),
    "certificate": ("lines.cuh", "certificate.cuh"),
    "second_look": ("lines.cuh", "certificate.cuh", "shares.cuh"),
    "rebalance": ("lines.cuh", "shares.cuh"),
    "residue_tiles": ("hopper.cuh", "launches.cuh", "tile_order.cuh"),
}


class Variant(NamedTuple):
    """What the text of a stage that knows moduli depends on.

    Attributes
    ----------
    num_moduli : int
        N, 2 to 49.
    scaling : str
        "norm", "accurate" or "legacy".
    cut_plane : bool
        Whether the plane of a certificate follows the residues.
    lent_bits : int
        Bits that the scaled integers of this operand may have more than usual.
    with_low, with_check : bool
        What reconstruct writes besides C: the rest of the rounding, and C' modulo the
        prime of checksums.
    products : int
        Of which reconstruct_tiles makes a result: 1, or 7 of matrices of half the size.
    symmetric : bool
        Whether reconstruct_tiles mirrors what lies above the diagonal.
    family : {"real", "complex"}
        Whose moduli.
    parts : int
        Real parts of an entry, and products that a modulus takes: 2 where operands are
        complex, 1 for real ones and for complex ones embedded in them.
    single, single_result : bool
        Whether operands, and C, are of float32 or complex64.
    """

    num_moduli: int
    scaling: str
    cut_plane: bool
    lent_bits: int = 0
    with_low: bool = False
    with_check: bool = False
    products: int = 1
    symmetric: bool = False
    family: Family = "real"
    parts: int = 1
    single: bool = False
    single_result: bool = False

    @property
    def planes(self) -> int:
        """Residues of an entry."""
        return self.parts * self.num_moduli


class Entries(NamedTuple):
    """What the text of a stage depends on that knows operands and no moduli.

    Attributes
    ----------
    parts : int
        Real parts of an entry.
    single : bool
        Whether they are float32.
    """

    parts: int = 1
    single: bool = False


AnyVariant: TypeAlias = Variant | Digits | Sums | Entries

_NARROW_BITS = 60
_OFFSET_BITS = 60
_SUM_OFFSET_BITS = 63
"""The offset of sums of up to four scaled integers, which stay below 2^62."""
_LENT_STEP = 64
"""Lent bits are rounded up to so many, so that few texts are compiled."""

_SHORT_BITS = 28
"""Of the scaled integers of float32 that are held in 32 bits: SHORT_BITS of
arithmetic.cuh."""

_LARGEST_DIGIT = 4 * 255 * 255 + 255
"""Digits of the reconstruction: four bytes times residues, and one residue."""


def magnitude_bits(num_moduli: int, scaling: str, family: Family = "real") -> int:
    """Return b with ``abs(A') < 2**b`` for every entry of a scaled operand.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    scaling : str
        "norm", "accurate" or "legacy".
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        Half the bits of M; in "accurate" 6 more, for a row that meets only far
        smaller partners than its own largest entry allows.
    """
    half = (product_bound(num_moduli, family).bit_length() + 1) // 2
    return half + 6 if scaling == "accurate" else half


def lent_bits(num_moduli: int, scaling: str, lent: int, family: Family = "real") -> int:
    """Return the `Variant.lent_bits` of an operand whose exponents are `lent` larger.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    scaling : str
        "norm", "accurate" or "legacy".
    lent : int
        Bits; negative for the operand that lends them.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    int
        0 while the usual text does; else a multiple of 64 not below `lent`.
    """
    bits = magnitude_bits(num_moduli, scaling, family)
    if lent <= 0 or bits + lent <= _NARROW_BITS:
        return 0
    return -(-lent // _LENT_STEP) * _LENT_STEP


def is_wide(
    num_moduli: int, scaling: str, lent_bits: int = 0, family: Family = "real"
) -> bool:
    """Return whether scaled integers can exceed the 60 bits of the narrow form.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    scaling : str
        "norm", "accurate" or "legacy".
    lent_bits : int, optional
        As in `Variant`.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    bool
        For "norm" from 16 moduli on, complex from 17.
    """
    return magnitude_bits(num_moduli, scaling, family) + lent_bits > _NARROW_BITS


def limit_words(num_moduli: int, family: Family = "real") -> tuple[int, int]:
    """Return the bits of M and its top 64 bits.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.

    Returns
    -------
    bits : int
        ``bit_length(M)``.
    top : int
        M shifted so that its leading bit is bit 63.
    """
    limit = product_bound(num_moduli, family)
    bits = limit.bit_length()
    return bits, limit >> (bits - 64) if bits > 64 else limit << (64 - bits)


def _bytes(values: list[int]) -> int:
    """Return four residues as the bytes of one word, the first lowest."""
    return sum((value & 0xFF) << 8 * i for i, value in enumerate(values))


def _powers(p: int, first: int, factor: int = 1) -> int:
    """Return 2^(8 i) times a factor modulo p, balanced, for four i from `first` on."""
    powers = range(first, first + 4)
    return _bytes([balanced_residue(factor * 2 ** (8 * i), p) for i in powers])


_FLOAT_INTEGERS = 2**23
_FLOAT_BITS = 0x4B000000
"""Bits of the FP32 number 2^23; those of 2^23 + i are i more."""


@functools.cache
def _bias(p: int, scaling_shifts: int, parts: int = 1) -> tuple[int, int]:
    """Return the bits of the float that sums modulo p start at, and its quotient.

    The float is the least multiple of p and 256 from which no sum falls below 2^23:
    the closer to 2^23, the smaller the error of a quotient by p.
    """

    def powers(factor: int) -> list[int]:
        some = range(scaling_shifts + 8)
        return [balanced_residue(factor * 2 ** (8 * i), p) for i in some]

    below = -255 * 8 * min(0, *powers(1)) + p
    if parts == 2:
        # Of an imaginary part, which is added or taken away.
        below += 255 * 8 * max(map(abs, powers(root_of_minus_one(p)))) + p
    step = math.lcm(p, 256)
    number = -(-(_FLOAT_INTEGERS + below) // step) * step
    return _FLOAT_BITS + number - _FLOAT_INTEGERS, 3 * 2**22 + number // p


def _wide_tables(moduli: tuple[int, ...], shifts: int, parts: int) -> list[str]:
    """Return the tables of residues for integers cut by 8 q bits, to be looked up."""
    rows = [(q, p) for q in range(shifts) for p in moduli]

    def offset(q: int, p: int, factor: int = 1) -> int:
        return balanced_residue(-factor * 2 ** (_OFFSET_BITS + 8 * q), p)

    biases = {p: _bias(p, shifts, parts) for p in moduli}
    starts = [biases[p][0] + offset(q, p) for q, p in rows]
    tables: list[tuple[str, str, list[str]]] = [
        ("uint32", "wide_low", [f"{_powers(p, q)}u" for q, p in rows]),
        ("uint32", "wide_high", [f"{_powers(p, q + 4)}u" for q, p in rows]),
        ("int", "wide_start", [str(x) for x in starts]),
        ("float", "wide_modulus", [f"{p}.0f" for p in moduli]),
        ("float", "wide_inverse", [f"1.0f / {p}.0f" for p in moduli]),
        ("float", "wide_quotients", [f"{biases[p][1]}.0f" for p in moduli]),
    ]
    if parts == 2:
        rotated = [(q, p, root_of_minus_one(p)) for q, p in rows]
        tables += [
            (kind, f"wide_rotated_{name}", values)
            for kind, name, values in (
                ("uint32", "low", [f"{_powers(p, q, s)}u" for q, p, s in rotated]),
                ("uint32", "high", [f"{_powers(p, q + 4, s)}u" for q, p, s in rotated]),
                ("int", "start", [str(offset(*each)) for each in rotated]),
            )
        ]
    lines = [_device_table(*each) for each in tables]
    return [
        "// The same for integers cut by 8 q bits: rows q of NUM_MODULI entries, where",
        "// starts are bias and offset.",
        "#if WIDE",
        *lines,
        "#endif",
    ]


def _rotated_tables(moduli: tuple[int, ...]) -> list[str]:
    """Return the tables of residues of s times an integer, s s = -1 modulo p."""
    roots = [(p, root_of_minus_one(p)) for p in moduli]
    return [
        "// The same of s times a scaled integer, s s = -1 modulo p.",
        table("uint32", "rotated_low", [_powers(p, 0, s) for p, s in roots], "u"),
        table("uint32", "rotated_high", [_powers(p, 4, s) for p, s in roots], "u"),
        table(
            "int",
            "rotated_offset",
            [balanced_residue(-s * 2**_OFFSET_BITS, p) for p, s in roots],
        ),
    ]


def _reduction_tables() -> str:
    """Return tables of all moduli as C++ text: how int32 products are reduced."""
    moduli = MODULI + COMPLEX_MODULI
    shifts = [(p - 1).bit_length() - 2 for p in moduli]
    inverses = [
        (2 ** (33 + shift) + p) // (2 * p)
        for p, shift in zip(moduli, shifts, strict=True)
    ]
    tables = [
        ("int", "reduce_modulus", [str(p) for p in moduli]),
        ("int", "reduce_inverse", [str(x) for x in inverses]),
        ("int", "reduce_shift", [str(x) for x in shifts]),
        ("float", "quick_inverse", [f"1.0f / {p}.0f" for p in moduli]),
        ("int", "quick_steps", [str(quick_products(p) // TILE_STEP) for p in moduli]),
    ]
    return "".join(_device_table(*each) + "\n" for each in tables)


def quick_products(p: int) -> int:
    """Return how many products of residues `quick_residue_byte` may be told the sum of.

    Parameters
    ----------
    p : int
        Modulus, 2 to 256.

    Returns
    -------
    int
        A multiple of 128, at most 2**17.
    """
    if p == 256:  # its quotient does not matter
        return _MOST_PRODUCTS
    inverse = Fraction(float(np.float32(1) / np.float32(p)))

    def is_wrong(products: int) -> bool:
        largest = products * (p // 2) ** 2
        # Half a unit in the last place of the sum as a float.
        rounding = 2 ** (largest.bit_length() - 25) if largest >= 2**24 else 0
        off = rounding + p * (largest + rounding) * abs(inverse - Fraction(1, p))
        # The quotient has its place in the float, and the residue in a byte.
        return largest + rounding >= (2**22 - 1) * p or p + 2 * off >= 256

    tried = range(TILE_STEP, _MOST_PRODUCTS + TILE_STEP, TILE_STEP)
    return bisect.bisect_left(tried, True, key=is_wrong) * TILE_STEP


def _device_table(kind: str, name: str, values: list[str]) -> str:
    return f"DEVICE_TABLE {kind} {name}[] = {{{', '.join(values)}}};"


def _reconstruction(variant: Variant) -> list[str]:
    """Return the constants of reconstruct.cuh."""
    moduli, parts = moduli_of(variant.num_moduli, variant.family), variant.parts
    product = math.prod(moduli)
    bits = product.bit_length()
    of_planes = [p for p in moduli for _ in range(parts)]
    digits = [
        # Weights are multiples of P / p.
        (p, weight // (product // p))
        for part in residue_weights(variant.num_moduli, variant.family, parts)
        for p, weight in zip(of_planes, part, strict=True)
    ]
    largest = _LARGEST_DIGIT * len(of_planes) * product + product // 2
    sum_words = -(-largest.bit_length() // 32)
    value_words = -(-(bits + 1) // 32)
    # The sum's top 32 bits, times F: the quotient by P and a fraction below it.
    top = max(0, largest.bit_length() - 32)
    shift = 32 + bits - 1 - top
    factor = (1 << shift + top) // product
    pairs = [moduli[i : i + 2] for i in range(0, len(moduli), 2)]
    weights = [product // math.prod(pair) for pair in pairs]
    return [
        "// and to its digit.",
        table(
            "uint32",
            "digit_powers",
            [_bytes([s * 2 ** (8 * i) % p for i in range(4)]) for p, s in digits],
            "u",
        ),
        table(
            "uint32",
            "digit_offset",
            [-(2**31) * s % p for p, s in digits],
            "u",
        ),
        f"#define SUM_WORDS {sum_words}",
        f"#define VALUE_WORDS {value_words}",
        "// P over the moduli of a pair: SUM_WORDS words each, the lowest first.",
        table(
            "uint32",
            "weight_word",
            [word for weight in weights for word in words(weight, sum_words)],
            "u",
        ),
        "// -P, and P / 2 rounded up, in VALUE_WORDS words",
        table("uint32", "minus_product_word", words(-product, value_words), "u"),
        table("uint32", "half_word", words((product + 1) // 2, value_words), "u"),
        f"#define TOP_SHIFT {top}",
        f"#define TOP_HALF {product // 2 >> top}u",
        f"#define QUOTIENT_SHIFT {shift}",
        f"#define QUOTIENT_FACTOR {factor}u",
    ]


def constants(variant: Variant) -> str:
    """Return the tables of a number of moduli as C++ text.

    Parameters
    ----------
    variant : Variant
        Of one stage.

    Returns
    -------
    str
        Macros and constexpr functions; see the comments in the text.
    """
    num_moduli, scaling, cut_plane, lent = variant[:4]
    family, parts = variant.family, variant.parts
    moduli = moduli_of(num_moduli, family)
    shifts = (magnitude_bits(num_moduli, scaling, family) + lent) // 8 + 2
    biases = [_bias(p, shifts, parts) for p in moduli]
    lines = [
        *_entries(variant),
        "// ---- Constants, generated by render.py ----",
        f"#define NUM_MODULI {num_moduli}",
        f"#define PARTS {parts}",
        f"#define FIRST_IS_256 {str(moduli[0] == 256).lower()}",
        f"#define WIDE {str(is_wide(num_moduli, scaling, lent, family)).lower()}",
        f"#define TRUNCATE {str(scaling == 'legacy').lower()}",
        f"#define CUT_PLANE {int(cut_plane)}",
        f"#define WITH_LOW {int(variant.with_low)}",
        f"#define WITH_CHECK {int(variant.with_check)}",
        table("int", "modulus", list(moduli)),
        "// Where sums modulo p start, as bits of a float, and that over p plus MAGIC.",
        table("int", "bias", [start for start, _ in biases]),
        table("float", "quotients", [quotient for _, quotient in biases], ".0f"),
        "// Bytes i of a scaled integer count 2^(8 i) modulo p.",
        table("uint32", "powers_low", [_powers(p, 0) for p in moduli], "u"),
        table("uint32", "powers_high", [_powers(p, 4) for p in moduli], "u"),
        "// Takes the offset 2^60 of a scaled integer away again.",
        table(
            "int", "offset", [balanced_residue(-(2**_OFFSET_BITS), p) for p in moduli]
        ),
        "// The same for 2^63, the offset of sums of scaled integers.",
        table(
            "int",
            "sum_offset",
            [balanced_residue(-(2**_SUM_OFFSET_BITS), p) for p in moduli],
        ),
        *(_rotated_tables(moduli) if parts == 2 else ()),
        *_wide_tables(moduli, shifts, parts),
        "// c + 2^31 is taken as four bytes: to reduce c,",
        table("int", "reduce_offset", [balanced_residue(-(2**31), p) for p in moduli]),
        *_reconstruction(variant),
        "// ---- End of constants ----",
    ]
    return "\n".join(lines) + "\n"


def _entries(variant: AnyVariant) -> list[str]:
    """Return macros that tell the types of operands and results; none for float64."""
    names = {"single": "SINGLE", "single_result": "SINGLE_RESULT"}
    found = [macro for name, macro in names.items() if getattr(variant, name, False)]
    if isinstance(variant, Variant) and variant.single:
        bits = magnitude_bits(variant.num_moduli, variant.scaling, variant.family)
        if bits <= _SHORT_BITS:
            found.append("SHORT_INTEGERS")
    return [f"#define {macro}" for macro in found]


@functools.cache
def _text(name: str) -> str:
    """Return a source file without its includes, which `source` puts in order."""
    lines = resources.files(__package__).joinpath(name).read_text("utf-8").splitlines()
    dropped = ('#include "', "#pragma once")
    return "\n".join(line for line in lines if not line.startswith(dropped)) + "\n"


@functools.cache
def source(stage: str, variant: AnyVariant | None = None) -> str:
    """Return the complete text of one stage's kernels.

    Parameters
    ----------
    stage : str
        One of `STAGES`.
    variant : Variant, Digits, Sums or Entries, optional
        For the stages that know moduli, for "slices" and for "recombine"; for the
        others where operands are not of float64.

    Returns
    -------
    str
        CUDA C++ that includes nothing.
    """
    if isinstance(variant, Entries):
        macros = [f"#define PARTS {variant.parts}", *_entries(variant)]
        tables = "".join(f"{line}\n" for line in macros)
    elif isinstance(variant, Digits | Sums):
        macros = _entries(variant)
        tables = "".join(f"{line}\n" for line in macros) + slice_constants(variant)
    else:
        tables = "" if variant is None else constants(variant)
    if stage in HOPPER_STAGES:
        tables = _reduction_tables()
    if isinstance(variant, Variant) and stage == "reconstruct_tiles":
        tables += limb_constants(
            variant.num_moduli, variant.products, variant.family, variant.parts
        )
        tables += f"#define SYMMETRIC {int(variant.symmetric)}\n"
    headers = _HEADERS.get(stage, ("lines.cuh",))
    files = (*headers, f"{stage}.cu")
    return "\n".join([_text("arithmetic.cuh"), tables, text_of(*files)])


def text_of(*names: str) -> str:
    """Return files one after the other, without what they include.

    Parameters
    ----------
    *names : str
        Of the kernels' folder.

    Returns
    -------
    str
        C++ text.
    """
    return "\n".join(map(_text, names))
