"""Constants of the reconstruction from one-byte residues, and what it rests on."""

import functools
import random
import re

import pytest
from np_ozaki._kernels.limb_tables import limb_constants

from np_ozaki.numerics.moduli import MODULI, crt_weights, modulus_product

COUNTS = range(2, 50)
TERMS = {1: 1, 7: 4}


@functools.cache
def tables(n, products):
    """Return every table and macro by name."""
    text = limb_constants(n, products)
    pattern = r"(?:DEVICE_TABLE uint32 |HD constexpr uint32 )(\w+)[^{=]*[{=]([^}]*)\}"
    found = {
        name: [int(x.rstrip("u")) for x in body.split("{")[-1].split(", ")]
        for name, body in re.findall(pattern, text)
    }
    for name, value in re.findall(r"#define (\w+) (\d+)u?$", text, re.MULTILINE):
        found[name] = int(value)
    return found


def rows_of(t):
    """Return weights as bytes, by rows."""
    count = t["WEIGHT_COUNT"]
    rows = [t["limb_weights"][i * count : (i + 1) * count] for i in range(3)]
    return [[list(word.to_bytes(4, "little")) for word in row] for row in rows]


def joined(rows, pairs, at):
    """Return the number whose limbs `at(row, pair)` gives."""
    return sum(
        at(rows[parity], pair) << 8 * (2 * pair + parity)
        for pair in range(pairs)
        for parity in range(2)
    )


@pytest.mark.parametrize("products", [1, 7])
@pytest.mark.parametrize("n", COUNTS)
def test_tables_say_what_their_names_say(n, products):
    t, product = tables(n, products), modulus_product(n)
    limbs, bits = t["LIMBS"], t["PRODUCT_BITS"]
    pairs, words = (limbs + 1) // 2, (n + 3) // 4
    shift, modulus = 8 * limbs - bits - 1, 1 << 8 * limbs
    assert bits == product.bit_length()
    assert 0 <= shift < 8
    assert t["LIMB_PAD"] == 32 * t["LIMB_WORDS"] - bits - 1
    rows = rows_of(t)
    assert not any(map(any, rows[2]))
    weights = crt_weights(MODULI[:n])
    for index in range(4 * words):
        word, byte = divmod(index, 4)
        weight = joined(rows, pairs, lambda r, p, w=word, b=byte: r[p * words + w][b])
        part = rows[0][pairs * words + word], rows[1][pairs * words + word]
        fraction = part[0][byte] + (part[1][byte] << 8)
        if index < n:
            assert weight == weights[index] << shift
            assert abs(fraction * product - (weights[index] << 16)) <= product
        else:
            assert weight == fraction == 0
    after = (pairs + 1) * words
    quotient = [
        joined(rows, pairs, lambda r, p, b=byte: r[after + p][b]) for byte in range(4)
    ]
    bias, biases = t["LIMB_BIAS"], t["LIMB_BIAS"] * (modulus - 1) // 255
    first = (257 * bias) >> 16
    assert quotient[0] == (-product << shift) % modulus
    assert quotient[1] == (-product << shift + 8) % modulus
    # With a quotient of 0, `first` of -P come in with the bias.
    start = biases + first * quotient[0] + quotient[2]
    assert start % modulus == 0
    assert quotient[3] == (sum(weights) << shift) % modulus
    top = 32 * t["LIMB_WORDS"] - bits - 1
    for name, value in (("product", product), ("half", product // 2)):
        number = sum(w << 32 * i for i, w in enumerate(t[f"limb_{name}_word"]))
        assert number == value << top
    assert t["LIMB_HALF_TOP"] == t["limb_half_word"][-1] > 1


@pytest.mark.parametrize("products", [1, 7])
@pytest.mark.parametrize("n", COUNTS)
def test_sums_fit_their_words(n, products):
    t = tables(n, products)
    bias, most = t["LIMB_BIAS"], TERMS[products] * n * 128 * 255
    assert bias % 2**16 == 2**15
    assert bias >= most
    assert t["WEIGHT_COUNT"] <= 400
    # Two bytes of a quotient and a 1 come on top of a limb.
    largest = bias + most + (255 + 255 + 2) * 255
    assert largest < 2**25
    # A pair of limbs, what the words below carry, and the sum of W_l / P.
    assert 257 * largest + 2**17 < 2**32
    assert 257 * (bias + most) + t["NEGATED_FRACTION"] < 2**32
    assert n * 2**16 > t["NEGATED_FRACTION"]


@pytest.mark.parametrize("products", [1, 7])
@pytest.mark.parametrize("n", COUNTS)
def test_quotient_is_at_most_one_off(n, products):
    t, product = tables(n, products), modulus_product(n)
    assert t["PRODUCT_BITS"] + 1 <= 8 * t["LIMBS"]
    rng = random.Random(n)
    weights = crt_weights(MODULI[:n])
    rows, pairs, words = rows_of(t), (t["LIMBS"] + 1) // 2, (n + 3) // 4
    part = [
        [byte for w in range(words) for byte in row[pairs * words + w]]
        for row in rows[:2]
    ]
    fractions = [low + (high << 8) for low, high in zip(*part, strict=True)][:n]
    # C' / P stays below 7/8 in size, where its limbs hold it, and adding or taking P
    # once brings it back.
    errors = sum(
        abs(f * product - (w << 16)) for f, w in zip(fractions, weights, strict=True)
    )
    assert 8 * TERMS[products] * 128 * errors < 3 * product << 16
    bytes_of = [[rng.choice((-128, 127)) for _ in range(n)] for _ in range(50)]
    bytes_of += [[rng.randint(-128, 127) for _ in range(n)] for _ in range(50)]
    for residues in [[-128] * n, [127] * n, *bytes_of]:
        total = sum(r * w for r, w in zip(residues, weights, strict=True))
        scaled = sum(r * f for r, f in zip(residues, fractions, strict=True))
        scaled += 257 * t["LIMB_BIAS"]
        assert 0 <= scaled < 2**32
        quotient = (scaled >> 16) - (257 * t["LIMB_BIAS"] >> 16)
        assert abs(2 * (total - quotient * product)) < 2 * 7 * product // 8
