"""The generated constants, and the bounds that the kernels' text relies on."""

import functools
import re

import pytest
from np_ozaki._kernels import render
from np_ozaki._kernels.render import (
    STAGES,
    constants,
    is_wide,
    limit_words,
    magnitude_bits,
    product_words,
    source,
)

from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import (
    MODULI,
    balanced_residue,
    modulus_product,
    product_bound,
)

SCALINGS = ("norm", "accurate", "legacy")
COUNTS = range(2, 50)
BALANCED_BOUND = 2**18.1  # stated at `balanced`, attacked in test_arithmetic


@functools.cache
def tables(variant):
    """Return every table and macro of the constants' text by name."""
    text = constants(variant)
    found = {}
    for name, body in re.findall(
        r"(?:constexpr \w+ table|DEVICE_TABLE \w+ (\w+))\[\] = \{([^}]*)\}", text
    ):
        if not name:
            continue
        found[name] = [int(x.rstrip("u")) for x in body.split(", ")]
    for name, body in re.findall(
        r"HD constexpr \w+ (\w+)\(int i\) \{\n  constexpr \w+ table\[\] = \{([^}]*)\}",
        text,
    ):
        found[name] = [int(x.rstrip("u")) for x in body.split(", ")]
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
    t = tables((n, "norm", False))
    product, words = modulus_product(n), product_words(n)
    assert (t["NUM_MODULI"], t["WORDS"]) == (n, words)
    assert t["modulus"] == list(MODULI[:n])
    for i, p in enumerate(MODULI[:n]):
        inverse = pow(product // p, -1, p)
        low, high = signed_bytes(t["powers_low"][i]), signed_bytes(t["powers_high"][i])
        assert low + high == [balanced_residue(2 ** (8 * j), p) for j in range(8)]
        assert t["offset"][i] == balanced_residue(-(2**60), p)
        assert signed_bytes(t["digit_powers"][i]) == [
            balanced_residue(inverse * 2 ** (8 * j), p) for j in range(4)
        ]
        assert t["digit_offset"][i] == balanced_residue(-inverse * 2**31, p)
        assert t["reduce_offset"][i] == balanced_residue(-(2**31), p)
        weight = t["weight_word"][i * words : (i + 1) * words]
        assert sum(w << 32 * j for j, w in enumerate(weight)) == product // p
    assert sum(w << 32 * j for j, w in enumerate(t["product_word"])) == product
    assert sum(w << 32 * j for j, w in enumerate(t["half_word"])) == product // 2


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("scaling", ["norm", "accurate"])
def test_wide_tables_reach_as_far_as_integers_do(n, scaling):
    t = tables((n, scaling, False))
    assert ("#if WIDE" in constants((n, scaling, False))) == ("wide_low" in t)
    rows = len(t["wide_low"]) // n
    for q in range(rows):
        for i, p in enumerate(MODULI[:n]):
            at = q * n + i
            words = signed_bytes(t["wide_low"][at]) + signed_bytes(t["wide_high"][at])
            assert words == [balanced_residue(2 ** (8 * (q + j)), p) for j in range(8)]
            assert t["wide_offset"][at] == balanced_residue(-(2 ** (60 + 8 * q)), p)
    # A' below 2^bits may be one bit of a subnormal, shifted all the way.
    assert (magnitude_bits(n, scaling) - 1) // 8 < rows


@pytest.mark.parametrize("n", COUNTS)
def test_sums_stay_in_the_range_of_balanced(n):
    # The tables of "accurate" go furthest.
    t = tables((n, "accurate", False))
    for i, p in enumerate(MODULI[:n]):
        sums = [
            sums_of([t["powers_low"][i], t["powers_high"][i]], t["offset"][i]),
            sums_of([t["digit_powers"][i]], t["digit_offset"][i]),
            sums_of([t["powers_low"][i]], t["reduce_offset"][i]),
        ]
        for at in range(i, len(t["wide_low"]), n):
            words = [t["wide_low"][at], t["wide_high"][at]]
            sums.append(sums_of(words, t["wide_offset"][at]))
        assert max(abs(s) for pair in sums for s in pair) < BALANCED_BOUND, p


@pytest.mark.parametrize("n", COUNTS)
def test_quotient_is_never_too_large_and_at_most_one_too_small(n):
    t, product, words = tables((n, "norm", False)), modulus_product(n), product_words(n)
    digits = [((p - 1) // 2 + p, product // p) for p in MODULI[:n]]
    largest = product - 1 + sum(d * weight for d, weight in digits)
    assert largest < 2 ** (32 * words)

    def quotient(total):
        if t["PRODUCT"]:
            # The sum is one word: the text divides it.
            assert (t["PRODUCT"], words) == (product, 1)
            return total // product
        top = total >> t["QUOTIENT_SHIFT"]
        assert top < 2**32
        return top * t["QUOTIENT_FACTOR"] >> 32 >> 23

    # The estimate grows with the sum, so the ends of each multiple of P are enough.
    for q in range(largest // product + 1):
        assert q - 1 <= quotient(q * product) <= q
        assert quotient(min((q + 1) * product - 1, largest)) in {q - 1, q}


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
    text = constants((15, "legacy", True))
    assert "#define TRUNCATE true" in text
    assert "#define CUT_PLANE 1" in text
    text = constants((16, "norm", False))
    assert "#define TRUNCATE false" in text
    assert "#define CUT_PLANE 0" in text
    assert "#define WIDE true" in text


@pytest.mark.parametrize("stage", STAGES)
def test_texts_are_complete(stage):
    variant = (15, "norm", True)
    text = source(stage, variant)
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
    text = source(stage, (15, "norm", True))
    code = re.sub(r"//.*", "", text)
    assert not re.findall(r"\b(?:double|float64|__d\w+_r[nzud])\b", code)
