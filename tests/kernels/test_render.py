"""The generated constants, and the bounds that the kernels' text relies on."""

import functools
import math
import random
import re

import pytest
from np_ozaki._kernels import render
from np_ozaki._kernels.limb_tables import residue_weights
from np_ozaki._kernels.render import (
    STAGES,
    Digits,
    Sums,
    Variant,
    constants,
    is_wide,
    limit_words,
    magnitude_bits,
    source,
)

from np_ozaki.engines.checksum import PRIME
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    MODULI,
    balanced_residue,
    moduli_of,
    modulus_product,
    product_bound,
    root_of_minus_one,
)
from np_ozaki.tiling import INT8_K_BLOCK

SCALINGS = ("norm", "accurate", "legacy")
COUNTS = range(2, 50)
PAIRS = range(2, len(COMPLEX_MODULI) + 1)
"""Numbers of moduli of complex products that take two residues for each."""


@functools.cache
def tables(variant):
    """Return every table and macro of the constants' text by name."""
    text = constants(variant)
    found = {}
    for name, body in re.findall(r"DEVICE_TABLE \w+ (\w+)\[\] = \{([^}]*)\}", text):
        parts = [x.rstrip("u").removesuffix(".0f") for x in body.split(", ")]
        found[name] = [int(x.removeprefix("1.0f / ")) for x in parts]
    for name, body in re.findall(
        r"HD constexpr \w+ (\w+)\(int i\) \{\n  constexpr \w+ table\[\] = \{([^}]*)\}",
        text,
    ):
        found[name] = [int(x.rstrip("u").removesuffix(".0f")) for x in body.split(", ")]
    for name, value in re.findall(r"#define (\w+) (\d+)u?$", text, re.MULTILINE):
        found[name] = int(value)
    return found


def signed_bytes(word):
    """Return the four signed bytes of a word, the lowest first."""
    raw = [word >> 8 * i & 0xFF for i in range(4)]
    return [x - 256 if x > 127 else x for x in raw]


def sums_of(words, offset):
    """Return the least and the largest sum of unsigned bytes by these, plus c."""
    factors = [x for word in words for x in signed_bytes(word)]
    low = offset + 255 * sum(min(x, 0) for x in factors)
    return low, offset + 255 * sum(max(x, 0) for x in factors)


@pytest.mark.parametrize("n", COUNTS)
def test_tables_say_what_their_names_say(n):
    t = tables(Variant(n, "norm", False))
    product, words = modulus_product(n), t["SUM_WORDS"]
    assert t["NUM_MODULI"] == n
    assert t["modulus"] == list(MODULI[:n])
    for i, p in enumerate(MODULI[:n]):
        inverse = pow(product // p, -1, p)
        low, high = signed_bytes(t["powers_low"][i]), signed_bytes(t["powers_high"][i])
        assert low + high == [balanced_residue(2 ** (8 * j), p) for j in range(8)]
        assert t["offset"][i] == balanced_residue(-(2**60), p)
        assert t["sum_offset"][i] == balanced_residue(-(2**63), p)
        digits = [t["digit_powers"][i] >> 8 * j & 0xFF for j in range(4)]
        assert digits == [inverse * 2 ** (8 * j) % p for j in range(4)]
        assert t["digit_offset"][i] == -inverse * 2**31 % p
        assert t["reduce_offset"][i] == balanced_residue(-(2**31), p)
    for i in range(0, n, 2):
        weight = t["weight_word"][i // 2 * words : (i // 2 + 1) * words]
        pair = math.prod(MODULI[i : min(i + 2, n)])
        assert sum(w << 32 * j for j, w in enumerate(weight)) == product // pair
    minus = sum(w << 32 * j for j, w in enumerate(t["minus_product_word"]))
    assert minus == -product % 2 ** (32 * t["VALUE_WORDS"])
    assert sum(w << 32 * j for j, w in enumerate(t["half_word"])) == product // 2
    assert product < 2 ** (32 * t["VALUE_WORDS"] - 1)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("scaling", ["norm", "accurate"])
def test_wide_tables_reach_as_far_as_integers_do(n, scaling):
    t = tables(Variant(n, scaling, False))
    assert ("#if WIDE" in constants(Variant(n, scaling, False))) == ("wide_low" in t)
    rows = len(t["wide_low"]) // n
    for q in range(rows):
        for i, p in enumerate(MODULI[:n]):
            at = q * n + i
            words = signed_bytes(t["wide_low"][at]) + signed_bytes(t["wide_high"][at])
            assert words == [balanced_residue(2 ** (8 * (q + j)), p) for j in range(8)]
            offset = balanced_residue(-(2 ** (60 + 8 * q)), p)
            assert t["wide_start"][at] == t["bias"][i] + offset
    if rows:
        assert t["wide_modulus"] == t["wide_inverse"] == t["modulus"]
        assert t["wide_quotients"] == t["quotients"]
    # A' below 2^bits may be one bit of a subnormal, shifted all the way.
    assert (magnitude_bits(n, scaling) - 1) // 8 < rows


@pytest.mark.parametrize("n", COUNTS)
def test_sums_stay_among_the_floats_that_are_integers(n):
    # The tables of "accurate" go furthest.
    t = tables(Variant(n, "accurate", False))
    for i, p in enumerate(MODULI[:n]):
        start = 2**23 + t["bias"][i] - 0x4B000000
        assert start % (256 * p // math.gcd(256, p)) == 0
        assert t["quotients"][i] == 3 * 2**22 + start // p
        sums = [
            sums_of([t["powers_low"][i], t["powers_high"][i]], t["offset"][i]),
            sums_of([t["powers_low"][i], t["powers_high"][i]], t["sum_offset"][i]),
            sums_of([t["powers_low"][i]], t["reduce_offset"][i]),
        ]
        for at in range(i, len(t["wide_low"]), n):
            words = [t["wide_low"][at], t["wide_high"][at]]
            sums.append(sums_of(words, t["wide_start"][at] - t["bias"][i]))
        for low, high in sums:
            assert 2**23 <= start + low
            assert start + high < 2**24


def pairs_of(n, lent=0):
    """Return a variant of two residues for a modulus."""
    return Variant(n, "norm", False, lent, family="complex", parts=2)


@pytest.mark.parametrize("n", PAIRS)
def test_tables_of_rotated_integers(n):
    t = tables(pairs_of(n, 64))
    rows = len(t["wide_low"]) // n
    assert rows == len(t["wide_rotated_low"]) // n > 8
    for i, p in enumerate(COMPLEX_MODULI[:n]):
        s = root_of_minus_one(p)
        assert s * s % p == p - 1
        turned = [balanced_residue(s * 2 ** (8 * j), p) for j in range(8 + rows)]
        words = [t["rotated_low"][i], t["rotated_high"][i]]
        assert [b for w in words for b in signed_bytes(w)] == turned[:8]
        assert t["rotated_offset"][i] == balanced_residue(-s * 2**60, p)
        start = 2**23 + t["bias"][i] - 0x4B000000
        for q in range(rows):
            at = q * n + i
            rest = t["wide_rotated_start"][at]
            assert rest == balanced_residue(-s * 2 ** (60 + 8 * q), p)
            both = [t[f"wide_rotated_{name}"][at] for name in ("low", "high")]
            assert [b for w in both for b in signed_bytes(w)] == turned[q : q + 8]
            # x + s y and x - s y, of any bytes, are among the floats that are integers.
            of_x = sums_of([t["wide_low"][at], t["wide_high"][at]], 0)
            of_y = sums_of(both, rest)
            begin = start + t["wide_start"][at] - t["bias"][i]
            assert begin + of_x[0] + min(of_y[0], -of_y[1]) >= 2**23
            assert begin + of_x[1] + max(of_y[1], -of_y[0]) < 2**24
        assert t["wide_rotated_start"][i] == t["rotated_offset"][i]


@pytest.mark.parametrize("n", PAIRS)
def test_weights_take_both_parts_from_their_residues(n):
    """Gaussian integers, and their ends, from x + s y and x - s y modulo p."""
    product, rng = modulus_product(n, "complex"), random.Random(n)
    bound = product // 2
    assert product % 2
    weights = residue_weights(n, "complex", 2)
    t, moduli = tables(pairs_of(n)), COMPLEX_MODULI[:n]
    ends = [0, 1, -1, bound, -bound]
    some = [rng.randint(-bound, bound) for _ in range(20)]
    for x, y in [(x, y) for x in ends for y in ends] + list(
        zip(some, some[::-1], strict=True)
    ):
        residues = [
            (x + sign * root_of_minus_one(p) * y) % p
            for p in moduli
            for sign in (1, -1)
        ]
        for part, weight in zip((x, y), weights, strict=True):
            total = sum(r * w for r, w in zip(residues, weight, strict=True))
            assert (total - part) % product == 0
    for part, of_part in enumerate(weights):
        for i, weight in enumerate(of_part):
            p, at = moduli[i // 2], part * 2 * n + i
            digits = [t["digit_powers"][at] >> 8 * j & 0xFF for j in range(4)]
            factor = weight // (product // p)
            assert weight == factor * (product // p) < product
            assert digits == [factor * 2 ** (8 * j) % p for j in range(4)]
            assert t["digit_offset"][at] == -factor * 2**31 % p
    assert len(t["digit_powers"]) == len(t["digit_offset"]) == 4 * n


@pytest.mark.parametrize(
    "variant",
    [*(Variant(n, "norm", False) for n in COUNTS), *map(pairs_of, PAIRS)],
    ids=lambda v: f"{v.num_moduli}-{v.parts}",
)
def test_quotient_is_right_or_one_less_where_its_fraction_says_so(variant):
    n, parts, family = variant.num_moduli, variant.parts, variant.family
    t, product = tables(variant), modulus_product(n, family)
    digit = parts * (4 * 255 * 255 + 255)
    largest = sum(digit * (product // p) for p in moduli_of(n, family))
    assert largest + product < 2 ** (32 * t["SUM_WORDS"])
    # A pair of digits fits a word, and a word's sum of all pairs fits 64 bits.
    pairs = -(-n // 2)
    assert digit < parts * 2**18
    assert 2 * digit * 256 < parts * 2**27
    assert pairs * parts * 2**27 * 2**32 + 2**33 < 2**64

    def quotient(total):
        top = (total >> t["TOP_SHIFT"]) + t["TOP_HALF"]
        assert top < 2**32
        scaled = top * t["QUOTIENT_FACTOR"]
        return scaled >> t["QUOTIENT_SHIFT"], scaled >> (t["QUOTIENT_SHIFT"] - 5) & 31

    half = product // 2
    rng = random.Random(n)
    steps = {0, 1, product // 2**12, product // 40, product // 33, product // 31}
    for q in {*range(40), *(rng.randrange(largest // product) for _ in range(2000))}:
        for step in steps:
            for total in (
                q * product - half + step,
                (q + 1) * product - half - 1 - step,
            ):
                if not 0 <= total <= largest:
                    continue
                right = (total + half) // product
                found, fraction = quotient(total)
                assert found in {right - 1, right}
                assert found == right or fraction == 31


@pytest.mark.parametrize("n", COUNTS)
def test_words_of_a_value_fit_a_sum_of_remainders(n):
    # `words_remainder` adds six of them to one that is nearly reduced.
    assert 6 * PRIME + PRIME + 7 < 2**64
    assert tables(Variant(n, "norm", False))["VALUE_WORDS"] <= 13


@pytest.mark.parametrize("n", COUNTS)
def test_limit_words(n):
    limit = product_bound(n)
    bits, top = limit_words(n)
    assert limit.bit_length() == bits
    assert 2**63 <= top < 2**64
    assert top == (limit << 64) >> bits


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_integers_stay_below_the_bits_that_are_assumed(scaling, n):
    bits = magnitude_bits(n, scaling)
    largest = 0
    # One entry a line, or one beside zeros, meets the fewest partners and is scaled
    # up most; in "accurate" most of all where all its partners are 0.
    for x in (1.0, 2.0 - 2.0**-52, 1.0 + 2.0**-52, 1.5, 5e-324, 2.0**1000):
        for y in (1.0, 2.0 - 2.0**-52, 0.0):
            a, b = [[x, 0.0]], [[y], [1.0]]
            mu, _ = reference.scaling_exponents(a, b, n, scaling)
            truncate = scaling == "legacy"
            (row,) = reference.integers(a, mu, truncate=truncate)
            largest = max(largest, abs(row[0]))
    assert 2 ** (bits - 3) < largest < 2**bits


def test_narrow_up_to_fifteen_moduli():
    assert [n for n in COUNTS if not is_wide(n, "norm")] == list(range(2, 16))
    assert [n for n in COUNTS if not is_wide(n, "legacy")] == list(range(2, 16))
    for scaling in SCALINGS:
        for n in COUNTS:
            assert is_wide(n, scaling) == (magnitude_bits(n, scaling) > 60)


def test_flags_of_a_variant():
    text = constants(Variant(15, "legacy", True))
    assert "#define TRUNCATE true" in text
    assert "#define CUT_PLANE 1" in text
    text = constants(Variant(16, "norm", False))
    assert "#define TRUNCATE false" in text
    assert "#define CUT_PLANE 0" in text
    assert "#define WIDE true" in text
    for low, check in ((0, 0), (0, 1), (1, 0), (1, 1)):
        flags = {"with_low": bool(low), "with_check": bool(check)}
        text = constants(Variant(15, "norm", False, **flags))
        assert f"#define WITH_LOW {low}\n#define WITH_CHECK {check}\n" in text


def test_sums_of_four_scaled_integers_fit_their_offset():
    widest = max(
        magnitude_bits(n, scaling)
        for n in COUNTS
        for scaling in SCALINGS
        if not is_wide(n, scaling)
    )
    assert 4 * 2**widest <= 2**63


@pytest.mark.parametrize("n", COUNTS)
def test_narrow_systems_fit_a_table_of_sixteen_rows(n):
    assert n <= 15 or all(is_wide(n, scaling) for scaling in SCALINGS)
    assert min(MODULI[:15]) >= 5


def variant_of(stage, **flags):
    """Return an ordinary variant of a stage."""
    if stage == "slices":
        return Digits(8, 8)
    if stage == "recombine":
        return Sums(8, tuple(range(7, 15)), False, "exact", with_low=True)
    return Variant(15, "norm", True, **flags)


@pytest.mark.parametrize("stage", STAGES)
def test_texts_are_complete(stage):
    text = source(stage, variant_of(stage))
    assert '#include "' not in text
    assert text.count("{") == text.count("}")
    assert re.findall(r"^KERNEL void (\w+)\(", text, re.MULTILINE)
    # What the host's compiler needs is kept from the GPU's.
    device = re.sub(r"#ifdef __CUDACC__\n(.*?)#else.*?#endif", r"\1", text, flags=re.S)
    assert "#include" not in device


def test_kernel_names_are_unique():
    names = [
        name
        for stage in STAGES
        for name in re.findall(
            r"^KERNEL void (\w+)\(", render._text(f"{stage}.cu"), re.MULTILINE
        )
    ]
    assert len(names) == len(set(names)) > 15


@pytest.mark.parametrize("stage", STAGES)
def test_texts_name_no_double(stage):
    text = source(stage, variant_of(stage, with_low=True, with_check=True))
    code = re.sub(r"//.*", "", text)
    # Only accumulate="float64" asks for FP64 arithmetic, and is left out here.
    code = re.sub(r"^#if FLOAT64\n.*?^#endif$", "", code, count=1, flags=re.M | re.S)
    assert not re.findall(r"\b(?:double|float64|__d\w+_r[nzud])\b", code)


def test_lent_bits_are_classes_where_the_narrow_form_ends():
    assert render.lent_bits(9, "norm", -20) == 0
    half = magnitude_bits(9, "norm")
    assert render.lent_bits(9, "norm", 60 - half) == 0
    assert render.lent_bits(9, "norm", 61 - half) == 64
    assert render.lent_bits(49, "norm", 1) == 64
    assert render.lent_bits(49, "norm", 170) == 192
    assert is_wide(9, "norm", 64)
    t = tables(Variant(49, "norm", False, 192))
    assert (magnitude_bits(49, "norm") + 192 - 1) // 8 < len(t["wide_low"]) // 49


def test_sizes_along_k_are_those_of_the_kernel_and_the_plans():
    text = render.source("residue_tiles")
    assert re.findall(r"const int STEP = (\d+);", text) == [str(render.TILE_STEP)]
    assert render._MOST_PRODUCTS == INT8_K_BLOCK
