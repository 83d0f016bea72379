"""The kernels' arithmetic, compiled for the CPU, against Python integers.

Exhaustive where a range is small enough; else at its ends, beside every boundary that
the text names, and at random.
"""

import math
import random
import re
from fractions import Fraction

import numpy as np
import pytest
import simt
from loops import WORDS, each, of, plain
from np_ozaki._kernels.render import Variant, limit_words, quick_products, source
from test_render import PAIRS, pairs_of, sums_of, tables

from np_ozaki.engines.checksum import PRIME, WEIGHT_BITS, weights
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

pytestmark = pytest.mark.skipif(
    simt.COMPILER is None, reason="no C++ compiler (c++ or g++) on the path"
)

# Few and many moduli, both sides of the wide form, a product below and at 24 bits.
QUICK = (2, 3, 6, 15, 16, 20, 33, 49)
COUNTS = [
    pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(2, 50)
]
KINDS = [
    pytest.param(
        n,
        family,
        marks=() if n in ((2, 17) if most < 49 else QUICK) else pytest.mark.slow,
    )
    for family, most in (("real", len(MODULI)), ("complex", len(COMPLEX_MODULI)))
    for n in range(2, most + 1)
]

# Two residues for a modulus: narrow integers and wide ones.
OF_PAIRS = [
    pairs_of(16),
    pairs_of(22, 64),
    *(pytest.param(pairs_of(n), marks=pytest.mark.slow) for n in PAIRS if n != 16),
]


def as_bits(values):
    return np.asarray(values, dtype=np.float64).view(np.uint64)


def as_doubles(bits):
    return bits.view(np.float64)


def mantissa(x):
    """Return (f, e) with x = f 2^e, as integers."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, 53)), exponent - 53


def balanced_mod(values, p):
    return (values + p // 2) % p - p // 2


# ---- Residues -------------------------------------------------------------------


def reachable_sums(variant, index):
    """Return the least and the largest sum that `balanced` meets for a modulus."""
    t, n = tables(variant), variant[0]
    sums = [
        sums_of([t["powers_low"][index], t["powers_high"][index]], t["offset"][index]),
        sums_of([t["powers_low"][index]], t["reduce_offset"][index]),
    ]
    for at in range(index, len(t["wide_low"]), n):
        offset = t["wide_start"][at] - t["bias"][index]
        sums.append(sums_of([t["wide_low"][at], t["wide_high"][at]], offset))
    words = [t["powers_low"][index], t["powers_high"][index]]
    sums.append(sums_of(words, t["sum_offset"][index]))
    low, high = min(low for low, _ in sums), max(high for _, high in sums)
    if variant.parts == 1:
        return low, high
    # x + s y and x - s y.
    rows = range(index, len(t["wide_low"]), n)
    turned = [
        sums_of(
            [t["wide_rotated_low"][at], t["wide_rotated_high"][at]],
            t["wide_rotated_start"][at],
        )
        for at in rows
    ]
    furthest = max(max(-least, most) for least, most in turned)
    return low - furthest, high + furthest


@pytest.mark.parametrize(
    "variant",
    [
        Variant(15, "norm", False),
        Variant(49, "accurate", False),
        Variant(9, "norm", False, 64),
        Variant(49, "norm", False, 192),
        Variant(16, "norm", False, family="complex"),
        Variant(22, "norm", False, 64, family="complex"),
        *OF_PAIRS[:2],
    ],
)
def test_balanced_on_every_sum_that_bytes_can_make(variant):
    for index, p in enumerate(moduli_of(variant[0], variant.family)):
        low, high = reachable_sums(variant, index)
        s = np.arange(low, high + 1, dtype=np.int32)
        r = np.empty(s.size, np.int8)
        each(of(variant), "balanced", s.size, s, r, index)
        if p != 256:  # which needs no division
            assert np.array_equal(r, balanced_mod(s, p)), p
        if p >= 5:
            each(of(variant), "balanced_byte", s.size, s, r, index)
            assert np.array_equal(r, balanced_mod(s, p)), p


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_reduced(n, family):
    edges = [-(2**31), 2**31 - 1, -(2**24), 2**24, 2**16, -(2**16), 255, -256]
    steps = np.arange(-300, 301)
    near = np.clip(np.add.outer(edges, steps), -(2**31), 2**31 - 1).ravel()
    rng = np.random.default_rng(n)
    some = rng.integers(-(2**31), 2**31, 20_000)
    bytes_ = rng.choice([0, 1, 127, 128, 254, 255], (2000, 4)).astype(np.uint8)
    c = np.concatenate([steps, near, some, bytes_.view(np.int32).ravel()])
    c = np.ascontiguousarray(c, dtype=np.int32)
    for index, p in enumerate(moduli_of(n, family)):
        r = np.empty_like(c)
        each(
            of(Variant(n, "norm", False, family=family)), "reduced", c.size, c, r, index
        )
        if p == 256:
            assert np.array_equal((c.astype(np.int64) - r) % p, np.zeros(c.size))
            assert np.abs(r).max() <= 128
        else:
            assert np.array_equal(r, balanced_mod(c.astype(np.int64), p)), p


@pytest.mark.parametrize("index", range(len(MODULI)))
def test_residue_bytes_of_any_int32(index):
    p, minus_p, inverse, shift = (
        MODULI[index],
        -MODULI[index],
        *(constant_table(name)[index] for name in ("reduce_inverse", "reduce_shift")),
    )
    assert 2**30 <= inverse < 2**31
    halves = np.array([0, 1, p // 2, p // 2 + 1, p - 1])
    multiples = np.concatenate(
        [np.arange(-300, 301), 2**31 // p - np.arange(300), np.arange(300) - 2**31 // p]
    )
    near = np.add.outer(multiples * p, halves).ravel()
    rng = np.random.default_rng(index)
    c = np.concatenate(
        [near, rng.integers(-(2**31), 2**31, 20_000), [-(2**31), 2**31 - 1]]
    )
    c = np.ascontiguousarray(np.clip(c, -(2**31), 2**31 - 1), dtype=np.int32)
    r = np.empty_like(c)
    each(plain(), "residue_byte", c.size, c, r, minus_p, inverse, shift)
    if p == 256:
        r = r.astype(np.int8)
    assert ((c.astype(np.int64) - r) % p == 0).all()
    assert r.min() >= -128
    assert r.max() <= 127


@pytest.mark.parametrize("p", MODULI)
def test_quick_residue_bytes_of_few_products(p):
    """For as many products as it is meant for, at the worst: sums close to halves."""
    products = quick_products(p)
    largest = products * (p // 2) ** 2
    assert products >= 512
    quotients = np.concatenate(
        [
            np.arange(-300, 301),
            largest // p - np.arange(3000),
            np.arange(3000) - largest // p,
        ]
    )
    halves = np.array([0, 1, p // 2, p // 2 + 1, p - 1])
    near = np.add.outer(quotients * p, halves).ravel()
    rng = np.random.default_rng(p)
    c = np.concatenate([near, rng.integers(-largest, largest + 1, 100_000)])
    c = np.ascontiguousarray(c[np.abs(c) <= largest], dtype=np.int32)
    r = np.empty_like(c)
    each(plain(), "quick_residue_byte", c.size, c, r, -p)
    assert ((c.astype(np.int64) - r.astype(np.int8)) % p == 0).all()


def constant_table(name):
    """Return a table of all moduli as the text of stage residue_tiles has it."""
    (values,) = re.findall(rf"int {name}\[\] = {{(.*?)}};", source("residue_tiles"))
    return [int(value) for value in values.split(",")]


def random_entries(rng, count):
    """Return doubles of every exponent, among them ties and subnormals."""
    f = rng.integers(1, 2**53, count)
    f[::5] = (rng.integers(1, 2**12, f[::5].size) << 41) + (1 << 40)  # ties
    f[1::5] = 2**53 - 1
    f[2::5] >>= rng.integers(0, 53, f[2::5].size)
    e = rng.integers(-1074, 971, count)
    sign = rng.choice([-1.0, 1.0], count)
    return np.ldexp(f.astype(np.float64), e) * sign


def scaled(x, exponent, truncate):
    f, e = mantissa(x)
    shift = reference._truncate if truncate else reference._round_half_even
    return shift(f, e + exponent)


VARIANTS = [
    pytest.param(
        Variant(n, scaling, False),
        marks=()
        if (n, scaling)
        in {
            (2, "norm"),
            (15, "norm"),
            (15, "legacy"),
            (20, "norm"),
            (49, "norm"),
        }
        else pytest.mark.slow,
        id=f"{n}-{scaling}",
    )
    for n in range(2, 50)
    for scaling in ("norm", "accurate", "legacy")
] + [
    # Operands that gain bits.
    pytest.param(Variant(n, "norm", False, lent), id=f"{n}-norm-{lent}")
    for n, lent in ((9, 64), (49, 192))
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_residues_of_scaled_integers(variant):
    n, scaling, *_ = variant
    truncate = scaling == "legacy"
    rng = np.random.default_rng(n)
    x = random_entries(rng, 1500)
    # The largest A' that this scaling makes has so many bits.
    most = (product_bound(n).bit_length() + 1) // 2 + (
        6 if scaling == "accurate" else 0
    )
    most += variant.lent_bits
    tops = np.frexp(x)[1]
    exponent = np.ascontiguousarray(rng.integers(-4, most, x.size) - tops, np.int32)
    integers = [
        scaled(v, e, truncate)
        for v, e in zip(x.tolist(), exponent.tolist(), strict=True)
    ]
    assert max(map(abs, integers)) < 2**most
    assert max(map(abs, integers)) > 2 ** (most - 2)
    for index, p in enumerate(MODULI[:n]):
        r = np.empty(x.size, np.int8)
        each(of(variant), "residue", x.size, as_bits(x), exponent, r, index)
        assert r.tolist() == [balanced_residue(v, p) for v in integers], p


@pytest.mark.parametrize("variant", OF_PAIRS)
def test_residues_of_both_parts_of_scaled_integers(variant):
    rng = np.random.default_rng(variant.num_moduli)
    x = random_entries(rng, 1000)
    # The other part is of any size up to as large.
    y = random_entries(rng, x.size)
    y = np.ldexp(np.frexp(y)[0], np.frexp(x)[1] - rng.integers(0, 70, x.size))
    y[::7] = rng.choice([0.0, -0.0], y[::7].size)
    words = np.stack([x, y], axis=1)
    words[::2] = words[::2, ::-1]
    limit = product_bound(variant.num_moduli, "complex")
    most = (limit.bit_length() + 1) // 2 + variant.lent_bits
    exponent = rng.integers(-4, most, x.size) - np.frexp(x)[1]
    exponent = np.ascontiguousarray(exponent, np.int32)
    integers = [
        [scaled(v, e, False) for v in pair]
        for pair, e in zip(words.tolist(), exponent.tolist(), strict=True)
    ]
    r = np.empty((x.size, 2), np.int8)
    for index, p in enumerate(COMPLEX_MODULI[: variant.num_moduli]):
        s = root_of_minus_one(p)
        each(
            of(variant), "pair_of_residues", len(r), as_bits(words), exponent, r, index
        )
        assert r.tolist() == [
            [balanced_residue(v + sign * s * w, p) for sign in (1, -1)]
            for v, w in integers
        ], p


# ---- Scaled integers ------------------------------------------------------------


def halves_and_neighbours():
    """Return (x, exponent) whose product lies at, or next to, a half."""
    pairs = []
    for whole in (0, 1, 2, 3, 1000, 1001, 2**51 - 1, 2**51, 2**52 - 1):
        middle = whole + 0.5
        for x in (np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf)):
            pairs += [(x, 0), (-x, 0), (math.ldexp(x, -300), 300), (x, 1), (x, -1)]
    # Subnormal: few bits, huge exponents.
    for f in (1, 2, 3, 5, 2**51 + 1, 2**52 - 1):
        x = math.ldexp(float(f), -1074)
        pairs += [(x, e) for e in (1072, 1073, 1074, 1075, 1076, 1100)]
    tiny = [(5e-324, 1133), (5e-324, 1000), (5e-324, -2000), (1.7e308, -1100)]
    zero = [(0.0, 0), (0.0, 1200), (-0.0, 1200), (0.0, -1200)]
    not_finite = [(np.inf, 3), (-np.inf, 0), (np.nan, 0), (np.nan, 1200)]
    return pairs + tiny + zero + not_finite


def random_pairs(seed, highest):
    rng = np.random.default_rng(seed)
    x = random_entries(rng, 5000)
    e = rng.integers(-3, highest, x.size) - np.frexp(x)[1]
    return list(zip(x.tolist(), e.tolist(), strict=True))


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_scaled_integer(wide, truncate):
    pairs = halves_and_neighbours() + random_pairs(1, 199 if wide else 60)
    if not wide:
        pairs = [(x, e) for x, e in pairs if not x or math.frexp(x)[1] + e <= 60]
    x = np.array([pair[0] for pair in pairs])
    exponent = np.array([pair[1] for pair in pairs], np.int32)
    value, byte_shift = np.empty(x.size, np.uint64), np.empty(x.size, np.int32)
    kind = f"{'wide' if wide else 'narrow'}_{'truncate' if truncate else 'nearest'}"
    each(plain(), f"integer_{kind}", x.size, as_bits(x), exponent, value, byte_shift)
    for (one, e), v, q in zip(pairs, value.tolist(), byte_shift.tolist(), strict=True):
        want = scaled(one, e, truncate) if math.isfinite(one) else 0
        assert (v - 2**60) << 8 * q == want, (one, e)
        assert 0 <= v < 2**61, (one, e)
        assert wide or q == 0


# What lies beside the largest entry of a plain line: all magnitudes, and zeros.
BESIDE = [0.0, -0.0, 5e-324, -(2.0**-1030), 2.0**-1022]


def in_plain_lines(seed):
    """Return numbers, and e of a plain line that holds each."""
    rng = np.random.default_rng(seed)
    x = [*BESIDE, *random_entries(rng, 4000).tolist()]
    tops = [math.frexp(v)[1] - 1 if v else -1074 for v in x]
    spread = rng.integers(0, 70, len(x)).tolist()
    e = [max(top, -959) + i for top, i in zip(tops, spread, strict=True)]
    kept = [i for i, v in enumerate(e) if v < 961]
    edges = [(v, top) for v in BESIDE for top in (-959, 0, 960)]
    x = [x[i] for i in kept] + [v for v, _ in edges]
    return x, [e[i] for i in kept] + [top for _, top in edges]


@pytest.mark.parametrize("truncate", [False, True])
def test_integers_in_plain_lines(truncate):
    x, e = in_plain_lines(5)
    halves = [
        v for v, shift in halves_and_neighbours() if math.isfinite(v) and not shift
    ]
    x, e = x + halves, e + [53] * len(halves)
    rng = np.random.default_rng(6)
    # A' of the largest entry has up to 59 bits.
    exponents = (58 - rng.integers(0, 58, len(e)) - e).tolist()
    exponents[len(e) - len(halves) :] = [0] * len(halves)
    largest = as_bits(np.ldexp(1.0, e))
    plain_lines, value = np.empty(len(x), np.uint8), np.empty(len(x), np.uint64)
    shifts = np.array(exponents, np.int32)
    each(plain(), "is_plain_line", len(x), largest, shifts, plain_lines)
    assert plain_lines.tolist() == [v <= 1019 for v in exponents]
    each(plain(), "integer_in_plain", len(x), as_bits(x), shifts, value, truncate)
    for i in np.flatnonzero(plain_lines):
        want = scaled(x[i], exponents[i], truncate)
        assert int(value[i]) - 2**60 == want, (x[i], exponents[i])


def test_what_is_no_plain_line():
    cases = [
        (2.0**-960, 0, False),  # too near to the subnormal numbers
        (2.0**-959, 0, True),
        (2.0**960, -950, True),
        (2.0**961, -950, False),  # too near to infinity
        (2.0**-959, 1019, False),  # 61 bits
        (2.0**-961, 1019, False),
        (1.5, 58, True),
        (1.5, 59, False),
        (0.0, 0, False),
    ]
    largest, exponents, want = (list(x) for x in zip(*cases, strict=True))
    found = np.empty(len(cases), np.uint8)
    shifts = np.array(exponents, np.int32)
    each(plain(), "is_plain_line", len(cases), as_bits(largest), shifts, found)
    assert found.astype(bool).tolist() == want


@pytest.mark.parametrize("w", [2, 7, 9, 16])
@pytest.mark.parametrize("up", [True, False])
def test_ceilings_and_floors_in_plain_lines(up, w):
    x, e = in_plain_lines(w)
    edges = [2.0**-15 * i for i in (1, 2, 3, 32767, 32768)]
    for v in (*edges, *(np.nextafter(edges, 0)), *(np.nextafter(edges, 2))):
        x, e = [*x, float(v), -float(v)], [*e, 0, 0]
    out = np.empty(len(x), np.uint64)
    name = "ceiling_in_plain" if up else "floor_in_plain"
    each(plain(), name, len(x), as_bits(x), np.array(e, np.int32), out, w)
    for one, top, actual in zip(x, e, out.tolist(), strict=True):
        exact = abs(Fraction(one)) * Fraction(2) ** (w - 1 - top)
        assert actual == (math.ceil(exact) if up else math.floor(exact)), (one, top)


def test_ceilings_in_close_lines():
    x, e = in_plain_lines(7)
    edges = [2.0**-15 * i for i in (1, 2, 3, 32767, 32768, 65535)]
    for v in (*edges, *(np.nextafter(edges, 0)), *(np.nextafter(edges, 2))):
        x, e = [*x, float(v), -float(v)], [*e, 0, 0]
    # The upper word is that of an integer, or all ones, with and without a lower one.
    for v in (1.0, 1.5, 2.0 - 2.0**-20, 2.0 - 2.0**-52, 2.0**-7):
        for shift in (0, 15, 16, 137, 138, 139, 140, 200):
            number = math.ldexp(v, -shift)
            x, e = [*x, number, math.nextafter(number, 2)], [*e, 0, 0]
    close = np.empty(len(x), np.uint8)
    lowest = as_bits(np.abs(x))
    each(plain(), "is_close", len(x), lowest, as_bits(np.ldexp(1.0, e)), close)
    assert close.tolist() == [
        abs(v) >= 2.0**-1022 and math.frexp(v)[1] - 1 > top - 140
        for v, top in zip(x, e, strict=True)
    ]
    out = np.empty(len(x), np.uint64)
    tops = np.array(e, np.int32)
    each(plain(), "ceiling_in_close", len(x), as_bits(x), tops, out)
    for i in np.flatnonzero(close):
        exact = abs(Fraction(x[i])) * Fraction(2) ** (15 - e[i])
        assert int(out[i]) == math.ceil(exact), (x[i], e[i])


@pytest.mark.parametrize("up", [True, False])
def test_scaled_ceiling_and_floor(up):
    pairs = [(x, e) for x, e in halves_and_neighbours() if math.isfinite(x)]
    pairs += random_pairs(2, 17)
    pairs += [(x, 4 - math.frexp(x)[1]) for x, _ in random_pairs(3, 1)]
    # The result has 17 bits at most where kernels use it.
    pairs = [(x, e) for x, e in pairs if not x or math.frexp(x)[1] + e <= 17]
    x = np.array([pair[0] for pair in pairs])
    shift = np.array([pair[1] for pair in pairs], np.int32)
    out = np.empty(x.size, np.uint64)
    each(plain(), "ceiling" if up else "floor", x.size, as_bits(x), shift, out)
    for (one, e), actual in zip(pairs, out.tolist(), strict=True):
        exact = abs(Fraction(one)) * Fraction(2) ** e
        assert actual == (math.ceil(exact) if up else math.floor(exact)), (one, e)


def test_top_exponent_of_every_power_of_two():
    x = np.ldexp(1.0, np.arange(-1074, 1024))
    top = np.empty(x.size, np.int32)
    for values in (x, np.nextafter(x, np.inf)[np.arange(-1074, 1024) > -1023]):
        each(plain(), "top_exponent", values.size, as_bits(values), top)
        assert top[: values.size].tolist() == (np.frexp(values)[1] - 1).tolist()
    below = np.nextafter(x[1:], 0)
    each(plain(), "top_exponent", below.size, as_bits(below), top)
    assert top[: below.size].tolist() == list(range(-1074, 1023))


# ---- Exponents ------------------------------------------------------------------


def near_powers_of_four(limit):
    """Return 64-bit values on both sides of every limit / 4^g."""
    values = {1, 2, 3, 2**63, 2**64 - 1}
    for g in range(-34, 105):
        edge = limit >> 2 * g if g >= 0 else limit << -2 * g
        values |= {edge - 1, edge, edge + 1}
    rng = random.Random(limit)
    values |= {rng.getrandbits(rng.randint(1, 64)) for _ in range(200)}
    return sorted(v for v in values if 0 < v < 2**64)


@pytest.mark.parametrize("n", range(2, 50))
def test_largest_power_of_four(n):
    limit = product_bound(n)
    values = near_powers_of_four(limit)
    g = np.empty(len(values), np.int32)
    each(
        plain(),
        "power_of_four",
        g.size,
        np.array(values, np.uint64),
        g,
        *limit_words(n),
    )
    assert g.tolist() == [reference._largest_power_of_four(v, limit) for v in values]


def vectors_of_all_kinds(seed):
    """Return vectors of finite doubles, short and long, some of equal entries."""
    rng = np.random.default_rng(seed)
    vectors = [[0.0], [0.0, -0.0], [5e-324], [1.7976931348623157e308] * 3, [1.0] * 5000]
    for _ in range(60):
        k = int(rng.integers(1, 40))
        x = random_entries(rng, k)
        vectors.append(x.tolist())
        near = np.ldexp(rng.standard_normal(k), int(rng.integers(-1060, 1000)))
        vectors.append(near.tolist())
        vectors.append([float(near[0])] * int(rng.integers(1, 3000)))
    return vectors


@pytest.mark.parametrize("n", COUNTS)
def test_line_exponents(n):
    limit = product_bound(n)
    w = reference.norm_width(limit)
    vectors = vectors_of_all_kinds(n)
    largest = np.array([max(map(abs, v)) for v in vectors])
    tops = [reference._top_exponent(v) for v in vectors]
    squares = np.array(
        [
            0 if e is None else reference._integer_norm(v, e, w)
            for v, e in zip(vectors, tops, strict=True)
        ],
        np.uint64,
    )
    out = np.empty(len(vectors), np.int32)
    for rule, exponent_of in enumerate(
        (reference._norm_exponent, reference._legacy_exponent)
    ):
        args = as_bits(largest), squares, out, rule, w, *limit_words(n)
        each(plain(), "line_exponent", out.size, *args)
        assert out.tolist() == [exponent_of(v, limit) for v in vectors]


@pytest.mark.parametrize("n", QUICK)
def test_accurate_exponents(n):
    limit = product_bound(n)
    peaks = [0, *near_powers_of_four(limit)]
    rng = np.random.default_rng(n)
    x = np.abs(random_entries(rng, len(peaks)))
    x[::7] = 0.0
    out = np.empty(x.size, np.int32)
    args = as_bits(x), np.array(peaks, np.uint64), out, *limit_words(n)
    each(plain(), "accurate_exponent", out.size, *args)
    for one, peak, actual in zip(x.tolist(), peaks, out.tolist(), strict=True):
        g = reference._largest_power_of_four(max(peak, 1), limit)
        shift = 5 - (math.frexp(one)[1] - 1)
        assert actual == (shift + g - (g < 0) if one else 0), (one, peak)


# ---- Words ----------------------------------------------------------------------


def test_pack_takes_low_bytes():
    rng = np.random.default_rng(1)
    quads = rng.integers(-(2**31), 2**31, (500, 4), dtype=np.int32)
    out = np.empty(500, np.uint32)
    each(plain(), "packed", 500, quads, out)
    assert np.array_equal(out.view(np.int8).reshape(-1, 4), quads.astype(np.int8))


def test_dot4_takes_unsigned_bytes_by_signed_ones():
    rng = np.random.default_rng(2)
    unsigned = rng.choice([0, 1, 127, 128, 255], (500, 4)).astype(np.uint8)
    signed = rng.choice([-128, -127, -1, 0, 127], (500, 4)).astype(np.int8)
    c = rng.integers(-(2**20), 2**20, 500, dtype=np.int32)
    out = np.empty(500, np.int32)
    words = unsigned.view(np.uint32).ravel(), signed.view(np.uint32).ravel()
    each(plain(), "dot4", 500, *words, c, out)
    want = c + (unsigned.astype(np.int32) * signed).sum(axis=1)
    assert np.array_equal(out, want)


def test_bits_that_one_number_lies_above_another():
    rng = random.Random(3)
    cases = []
    for _ in range(3000):
        x, y = (rng.getrandbits(rng.randint(1, 64)) or 1 for _ in range(2))
        shift = rng.choice([0, rng.randint(-70, 70), y.bit_length() - x.bit_length()])
        cases.append((x, shift, y))
        cases += [(x, s, x) for s in (-1, 0, 1)]
        cases += [(x, s, x + 1) for s in (0, 1) if x + 1 < 2**64]
    out = np.empty(len(cases), np.int32)
    x, shift, y = zip(*cases, strict=True)
    each(
        plain(),
        "bits_above",
        out.size,
        np.array(x, np.uint64),
        np.array(shift, np.int32),
        np.array(y, np.uint64),
        out,
    )
    for (x, shift, y), actual in zip(cases, out.tolist(), strict=True):
        ratio = Fraction(x, y) * Fraction(2) ** shift
        # frexp's e: 2^(e - 1) <= ratio < 2^e.
        e = x.bit_length() - y.bit_length() + shift
        e += ratio >= Fraction(2) ** e
        assert Fraction(2) ** (e - 1) <= ratio < Fraction(2) ** e
        assert actual == (e if ratio > 1 else 0), (x, shift, y)


# ---- One rounding ---------------------------------------------------------------


def sizes_to_round(bits, seed):
    """Return integers of at most `bits` bits: halves, their neighbours, anything."""
    rng = random.Random(seed)
    values = {0, 1, 2, 3, (1 << bits) - 1, 1 << (bits - 1)}
    for _ in range(250):
        values.add(rng.getrandbits(rng.randint(1, bits)))
        values.add(rng.choice([1, 3]) << rng.randint(0, bits - 2))
        # 54 bits that end in 1: a half of the last place, alone or with one bit below.
        half = (rng.getrandbits(53) | 1 << 52) << 1 | 1
        shift = rng.randint(0, max(0, bits - 54))
        for tail in (0, 1, -1, 1 << (shift // 2)):
            values.add((half << shift) + tail)
        values.add(((1 << 54) - 1) << shift)  # a carry through the whole mantissa
        # Sparse words: nothing between the leading bit and the last one.
        values.add(1 << rng.randint(0, bits - 1) | 1 << rng.randint(0, bits - 1))
    return sorted(v for v in values if 0 <= v < 1 << bits)


def exponents_to_round(size, rng):
    """Return mu + nu at which the result is normal, subnormal, tiny and too large."""
    top = size.bit_length() - 1
    tops = [0, 1, -1022, -1023, -1030, -1060, -1073, -1074, -1075, -1076, -1077, -1200]
    tops += [1022, 1023, 1024, 1025, 5000, -5000, rng.randint(-1100, 1030)]
    return [top - e for e in tops]


def check_rounding(sizes, seed, run):
    rng = random.Random(seed)
    cases = [
        (size, rng.random() < 0.5, e)
        for size in sizes
        for e in rng.sample(exponents_to_round(size, rng), 6)
    ]
    actual = run(cases).tolist()
    for (size, negative, e), bits in zip(cases, actual, strict=True):
        value = reference.round_to_double(-size if negative else size, -e)
        assert bits == int(as_bits([value])[0]), (size, negative, e, value)


@pytest.mark.parametrize("words", WORDS)
def test_rounded(words):
    def run(cases):
        value = np.array(
            [[c[0] >> 32 * i & 0xFFFFFFFF for i in range(words)] for c in cases],
            np.uint32,
        )
        negative = np.array([c[1] for c in cases], np.uint8)
        exponents = np.array([c[2] for c in cases], np.int64)
        out = np.empty(len(cases), np.uint64)
        each(plain(), f"rounded_{words}", out.size, value, negative, exponents, out)
        return out

    check_rounding(sizes_to_round(32 * words, words), words, run)


def test_rounding_at_the_ends_of_the_range():
    largest = (2**53 - 1) << 971
    for size, exponents, want in (
        (2**54 - 1, -970, math.inf),  # half a unit above the largest double
        (2**55 - 3, -969, 1.7976931348623157e308),  # a little below that
        (2**53 - 1, -971, float(largest)),
        (1, 1074, 5e-324),
        (1, 1075, 0.0),  # a tie with zero, the even one
        (3, 1076, 5e-324),
        (3, 1075, 1e-323),  # 1.5 units, to even
        (5, 1075, 1e-323),  # 2.5 units, to even
        (2**53 - 1, 1075, 2.0**-1022),  # carries into the normal range
        (2**70 + 1, 1145, 5e-324),  # a tie and one bit far below
        (1, 3000, 0.0),
        (1, -3000, math.inf),
    ):
        value = np.array([size >> 32 * i & 0xFFFFFFFF for i in range(4)], np.uint32)
        for negative in (0, 1):
            out = np.empty(1, np.uint64)
            args = value, np.array([negative], np.uint8), np.array([exponents])
            each(plain(), "rounded_4", 1, *args, out)
            assert out.tolist() == as_bits([-want if negative else want]).tolist(), size


# ---- Checksums ------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True])
def test_weights_are_those_of_the_host(left):
    out = np.empty(200_000, np.uint32)
    each(plain(), "weight_of", out.size, out, int(left))
    assert out.tolist() == weights(out.size, left=left).tolist()
    assert 0 < out.min() < 10
    assert 2**WEIGHT_BITS - 10 < out.max() < 2**WEIGHT_BITS
    assert abs(out.mean() / 2 ** (WEIGHT_BITS - 1) - 1) < 0.01
    # Lines that lie side by side, or apart by a power of two, have different ones.
    for step in 2 ** np.arange(12):
        assert (out[step:] == out[:-step]).mean() < 1e-3


def ends_of_remainders(rng, most):
    """Return numbers at the ends of 0 .. most, beside powers of two, and others."""
    values = {0, 1, 2, PRIME - 1, PRIME, PRIME + 7, most - 1, most}
    for bit in range(most.bit_length()):
        values |= {(1 << bit) - 1, 1 << bit, (1 << bit) + 1}
    values |= {rng.randint(0, most) for _ in range(300)}
    return sorted(x for x in values if x <= most)


def test_folded():
    values = ends_of_remainders(random.Random(1), 2**64 - 1)
    values += [i * PRIME + j for i in range(1, 8) for j in (-1, 0, 1)]
    x = np.array(values, np.uint64)
    nearly, out = np.empty_like(x), np.empty_like(x)
    each(plain(), "folded", x.size, x, nearly, out)
    assert out.tolist() == [v % PRIME for v in values]
    for v, found in zip(values, nearly.tolist(), strict=True):
        assert found % PRIME == v % PRIME
        assert found <= (PRIME if v <= 2 * PRIME else PRIME + 7)


MOST_OF_ENTRY = 2**61 + 2**60 - 1
"""Remainders of entries are not larger."""


@pytest.mark.parametrize("terms", [1, 2, 31, 32])
def test_long_sums(terms):
    rng = random.Random(terms)
    xs, ys = ends_of_remainders(rng, MOST_OF_ENTRY), ends_of_remainders(rng, PRIME)
    rows = [[(MOST_OF_ENTRY, PRIME)] * terms, [(MOST_OF_ENTRY, PRIME - 1)] * terms]
    rows += [[(x, rng.choice(ys))] * terms for x in xs]
    rows += [[(rng.choice(xs), rng.choice(ys)) for _ in range(terms)] for _ in xs]
    x, y = (np.array([[v[i] for v in row] for row in rows], np.uint64) for i in (0, 1))
    out = np.empty(len(rows), np.uint64)
    each(plain(), "long_sum", out.size, x, y, out, terms)
    assert out.tolist() == [sum(u * v for u, v in row) % PRIME for row in rows]


@pytest.mark.parametrize("terms", [1, 3, 2**13])
def test_short_sums(terms):
    rng = np.random.default_rng(terms)
    largest = np.array([2**62 - 1, 2**62 - 2**32, 2**32 - 1, PRIME], np.uint64)
    x = np.concatenate(
        [
            np.repeat(largest, terms).reshape(-1, terms),
            rng.integers(0, 2**62, (9, terms), np.uint64),
        ]
    )
    for y in (
        np.full(x.shape, 2**WEIGHT_BITS - 1, np.uint32),
        rng.integers(1, 2**WEIGHT_BITS, x.shape, np.uint32),
    ):
        out = np.empty(len(x), np.uint64)
        each(plain(), "short_sum", out.size, x, y, out, terms)
        want = (x.astype(object) * y.astype(object)).sum(axis=1) % PRIME
        assert out.tolist() == want.tolist()


@pytest.mark.parametrize("shift", range(61))
def test_rotated(shift):
    x = np.array(ends_of_remainders(random.Random(3), PRIME), np.uint64)
    out = np.empty_like(x)
    each(plain(), "rotated", x.size, x, out, shift)
    for v, found in zip(x.tolist(), out.tolist(), strict=True):
        assert (found - (v << shift)) % PRIME == 0
        assert found <= PRIME


def test_remainders_of_scaled_integers():
    x = random_entries(np.random.default_rng(4), 8000)
    x[:8] = 0.0, -0.0, np.nan, -np.inf, 1.0, -1.0, 5e-324, -5e-324
    exponent = np.array(
        [
            # From far below one half to the longest integers that lent bits make.
            random.Random(i).randint(-3, 450) - math.frexp(v)[1]
            for i, v in enumerate(np.nan_to_num(x, posinf=0.0, neginf=0.0).tolist())
        ],
        np.int32,
    )
    out = np.empty(x.size, np.uint64)
    for name in ("integer_remainder", "plain_remainder"):
        each(plain(), name, x.size, as_bits(x), exponent, out)
        values = zip(x.tolist(), exponent.tolist(), out.tolist(), strict=True)
        for v, e, found in values:
            want = scaled(v, e, truncate=False) if math.isfinite(v) else 0
            assert (found - want) % PRIME == 0, (v, e)
            assert found <= MOST_OF_ENTRY


@pytest.mark.parametrize("words", WORDS)
def test_remainders_of_words(words):
    rng = random.Random(words)
    most = (1 << 32 * words) - 1
    values = [*ends_of_remainders(rng, most), *range(0, most, most // 50 + 1)]
    values += [i * PRIME for i in (1, 2, 7) if i * PRIME <= most]
    value = np.array(
        [[v >> 32 * i & 0xFFFFFFFF for i in range(words)] for v in values], np.uint32
    )
    out = np.empty(len(values), np.uint64)
    for negative in (0, 1):
        signs = np.full(len(values), negative, np.uint8)
        each(plain(), f"remainder_{words}", out.size, value, signs, out)
        assert out.tolist() == [(-v if negative else v) % PRIME for v in values]


def test_sums_wrap_and_are_made_good():
    rng = random.Random(5)
    for start in (0, 2**64 - 1, 2**64 - 8, 2**64 - PRIME):
        for terms in ([PRIME - 1] * 100, [rng.randrange(PRIME) for _ in range(100)]):
            x, total = np.array(terms, np.uint64), np.array([start], np.uint64)
            each(plain(), "added", x.size, x, total)
            assert int(total[0]) % PRIME == (start + sum(terms)) % PRIME


# ---- Reconstruction -------------------------------------------------------------


def integers_to_rebuild(n, family):
    """Return integers C' of the whole balanced interval."""
    product, bound = modulus_product(n, family), product_bound(n, family)
    rng = random.Random(n)
    values = {0, bound, bound - 1, bound // 2, bound // 3, product // 2 - 1}
    values |= {2**e + d for e in range(bound.bit_length()) for d in (-1, 0, 1)}
    values |= {rng.randint(0, bound) for _ in range(100)}
    values |= {
        rng.randint(0, 1 << rng.randint(1, bound.bit_length())) for _ in range(50)
    }
    values |= {-v for v in values}
    values |= {-(product // 2), bound - 2, 2 - bound}
    return sorted(v for v in values if -(product // 2) <= v <= bound)


def representatives(values, n, family, rng):
    """Return int32 products: any that are congruent to the values, the ends too."""
    products = np.empty((len(values), n), np.int32)
    for index, p in enumerate(moduli_of(n, family)):
        for row, value in enumerate(values):
            low, high = -((2**31 + value % p) // p), (2**31 - 1 - value % p) // p
            t = rng.choice([0, -1, low, high, rng.randint(low, high)])
            products[row, index] = value % p + p * t
    return products


def rebuilt(products, n, family):
    return rebuilt_part(Variant(n, "norm", False, family=family), products, 0)


def rebuilt_part(variant, products, part):
    library = of(variant)
    count, words = products.shape[0], library.value_words()
    value, negative = np.empty((count, words), np.uint32), np.empty(count, np.uint8)
    each(library, "crt", count, products, value, negative, part)
    sizes = [sum(w << 32 * i for i, w in enumerate(row)) for row in value.tolist()]
    return [
        -s if minus else s for s, minus in zip(sizes, negative.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_every_integer_comes_back_from_its_residues(n, family):
    values = integers_to_rebuild(n, family)
    assert (
        rebuilt(representatives(values, n, family, random.Random(n)), n, family)
        == values
    )


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_integers_out_of_range_wrap_to_the_balanced_interval(n, family):
    product = modulus_product(n, family)
    values = [
        side * product // 2 + d for side in (-3, -1, 1, 3, 5) for d in (-2, -1, 0, 1, 2)
    ]
    products = representatives(values, n, family, random.Random(n))
    assert rebuilt(products, n, family) == [
        balanced_residue(v, product) for v in values
    ]


@pytest.mark.parametrize("variant", OF_PAIRS)
def test_both_parts_come_back_from_their_residues(variant):
    """Among them the ends of the balanced interval, which P odd has on both sides."""
    n = variant.num_moduli
    moduli, rng = COMPLEX_MODULI[:n], random.Random(n)
    product, bound = modulus_product(n, "complex"), product_bound(n, "complex")
    assert bound == (product - 1) // 2 == product // 2
    ends = [s * (bound - d) for s in (1, -1) for d in (0, 1, 2)] + [
        0,
        1,
        -1,
        bound // 2,
    ]
    # What lies beyond wraps by itself in each part.
    ends += [bound + 1, -bound - 1, product, 5 * product // 2]
    values = [(x, y) for x in ends for y in ends]
    values += [tuple(rng.randint(-bound, bound) for _ in "xy") for _ in range(300)]
    products = np.empty((len(values), 2 * n), np.int32)
    for index, p in enumerate(moduli):
        for row, (x, y) in enumerate(values):
            for i, sign in enumerate((1, -1)):
                r = (x + sign * root_of_minus_one(p) * y) % p
                low, high = -((2**31 + r) // p), (2**31 - 1 - r) // p
                t = rng.choice([0, -1, low, high, rng.randint(low, high)])
                products[row, 2 * index + i] = r + p * t
    for part in range(2):
        found = rebuilt_part(variant, products, part)
        assert found == [balanced_residue(v[part], product) for v in values]


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_digits_of_products(n, family):
    product = modulus_product(n, family)
    rng = np.random.default_rng(n)
    c = rng.integers(-(2**31), 2**31, 5000).astype(np.int32)
    c[:4] = -(2**31), 2**31 - 1, 0, -1
    for index, p in enumerate(moduli_of(n, family)):
        out = np.empty(c.size, np.uint32)
        each(
            of(Variant(n, "norm", False, family=family)), "digit", c.size, c, out, index
        )
        factor = pow(product // p, -1, p)
        assert not ((out - c.astype(np.int64) * factor) % p).any(), p
        assert out.max() < 2**18


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_digits_at_their_ends(n, family):
    # All digits smallest, all largest, and each alone: the sums of T at their ends.
    product = modulus_product(n, family)
    ends = [(-(p // 2), 0, (p - 1) // 2) for p in moduli_of(n, family)]
    choices = [[end[i] for end in ends] for i in range(3)]
    choices += [
        [ends[i][side] if i == j else 0 for i in range(n)]
        for j in range(n)
        for side in (0, 2)
    ]
    rng = random.Random(n)
    choices += [[rng.choice(end) for end in ends] for _ in range(50)]
    moduli = moduli_of(n, family)
    values = [
        balanced_residue(
            sum(d * (product // p) for d, p in zip(ds, moduli, strict=True)), product
        )
        for ds in choices
    ]
    assert rebuilt(representatives(values, n, family, rng), n, family) == values


@pytest.mark.parametrize(("n", "family"), KINDS)
def test_reconstructed_is_the_integer_rounded_once(n, family):
    bound = product_bound(n, family)
    sizes = [v for v in sizes_to_round(bound.bit_length(), n) if v <= bound]
    sizes = [*random.Random(n).sample(sizes, min(len(sizes), 250)), bound]

    def run(cases):
        values = [-size if negative else size for size, negative, _ in cases]
        distinct = sorted(set(values))
        rows = dict(
            zip(
                distinct,
                representatives(distinct, n, family, random.Random(n)),
                strict=True,
            )
        )
        products = np.array([rows[v] for v in values])
        exponents = np.array([c[2] for c in cases], np.int64)
        out = np.empty(len(cases), np.uint64)
        args = products, exponents, out
        each(
            of(Variant(n, "norm", False, family=family)),
            "reconstructed",
            len(cases),
            *args,
        )
        return out

    check_rounding(sizes, n, run)
