"""Constants of the reconstruction from one-byte residues, and what it rests on."""

import functools
import random
import re

import pytest
from np_ozaki._kernels.limb_tables import limb_constants, residue_weights

from np_ozaki.numerics.moduli import MODULI, crt_weights, modulus_product

TERMS = {1: 1, 7: 4}

# Moduli, products of one result, and parts of an entry: 2 of a complex one.
KINDS = [(n, products, 1) for n in range(2, 50) for products in (1, 7)]
KINDS += [(n, 1, 2) for n in range(2, 23)]
kinds = pytest.mark.parametrize(("n", "products", "parts"), KINDS)


def family_of(parts):
    return "complex" if parts == 2 else "real"


@functools.cache
def tables(n, products, parts):
    """Return every table and macro by name."""
    text = limb_constants(n, products, family_of(parts), parts)
    pattern = r"(?:DEVICE_TABLE uint32 |HD constexpr uint32 )(\w+)[^{=]*[{=]([^}]*)\}"
    found = {
        name: [int(x.rstrip("u")) for x in body.split("{")[-1].split(", ")]
        for name, body in re.findall(pattern, text)
    }
    for name, value in re.findall(r"#define (\w+) (\d+)u?$", text, re.MULTILINE):
        found[name] = int(value)
    return found


def weights_of(n, parts):
    """Return what residues count in each part."""
    if parts == 1:
        return [crt_weights(MODULI[:n])]
    return residue_weights(n, "complex", 2)  # which test_render holds to what they say


def rows_of(t, part=0):
    """Return the weights of a part as bytes, by rows."""
    count = t["WEIGHT_COUNT"]
    rows = [t["limb_weights"][i * count : (i + 1) * count] for i in range(9)]
    rows = rows[3 * part : 3 * part + 3]
    return [[list(word.to_bytes(4, "little")) for word in row] for row in rows]


def joined(rows, pairs, at):
    """Return the number whose limbs `at(row, pair)` gives."""
    return sum(
        at(rows[parity], pair) << 8 * (2 * pair + parity)
        for pair in range(pairs)
        for parity in range(2)
    )


@kinds
def test_tables_say_what_their_names_say(n, products, parts):
    t, product = tables(n, products, parts), modulus_product(n, family_of(parts))
    bits = t["PRODUCT_BITS"]
    assert bits == product.bit_length()
    assert 0 <= 8 * t["LIMBS"] - bits - 1 < 8
    top = 32 * t["LIMB_WORDS"] - bits - 1
    assert t["LIMB_PAD"] == top
    for name, value in (("product", product), ("half", product // 2)):
        number = sum(w << 32 * i for i, w in enumerate(t[f"limb_{name}_word"]))
        assert number == value << top
    assert t["LIMB_HALF_TOP"] == t["limb_half_word"][-1] > 1
    of_parts = weights_of(n, parts)
    assert len(t["limb_weights"]) == 3 * len(of_parts) * t["WEIGHT_COUNT"]
    for part, weights in enumerate(of_parts):
        check_rows(t, rows_of(t, part), weights, product)


def check_rows(t, rows, weights, product):
    limbs, count = t["LIMBS"], len(weights)
    pairs, words = (limbs + 1) // 2, (count + 3) // 4
    shift, modulus = 8 * limbs - product.bit_length() - 1, 1 << 8 * limbs
    assert not any(map(any, rows[2]))
    for index in range(4 * words):
        word, byte = divmod(index, 4)
        weight = joined(rows, pairs, lambda r, p, w=word, b=byte: r[p * words + w][b])
        part = rows[0][pairs * words + word], rows[1][pairs * words + word]
        fraction = part[0][byte] + (part[1][byte] << 8)
        if index < count:
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


@kinds
def test_sums_fit_their_words(n, products, parts):
    t = tables(n, products, parts)
    bias, most = t["LIMB_BIAS"], TERMS[products] * parts * n * 128 * 255
    assert bias % 2**16 == 2**15
    assert bias >= most
    assert t["WEIGHT_COUNT"] <= 400
    # Two bytes of a quotient and a 1 come on top of a limb.
    largest = bias + most + (255 + 255 + 2) * 255
    assert largest < 2**25
    # A pair of limbs, what the words below carry, and the sum of W_l / P.
    assert 257 * largest + 2**17 < 2**32
    assert 257 * (bias + most) + t["NEGATED_FRACTION"] < 2**32
    assert parts * n * 2**16 > t["NEGATED_FRACTION"]


@kinds
def test_quotient_is_at_most_one_off(n, products, parts):
    t, product = tables(n, products, parts), modulus_product(n, family_of(parts))
    assert t["PRODUCT_BITS"] + 1 <= 8 * t["LIMBS"]
    for part, weights in enumerate(weights_of(n, parts)):
        check_quotients(t, rows_of(t, part), weights, product, TERMS[products])


def check_quotients(t, rows, weights, product, terms):
    n = len(weights)
    rng = random.Random(n)
    pairs, words = (t["LIMBS"] + 1) // 2, (n + 3) // 4
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
    assert 8 * terms * 128 * errors < 3 * product << 16
    bytes_of = [[rng.choice((-128, 127)) for _ in range(n)] for _ in range(50)]
    bytes_of += [[rng.randint(-128, 127) for _ in range(n)] for _ in range(50)]
    for residues in [[-128] * n, [127] * n, *bytes_of]:
        total = sum(r * w for r, w in zip(residues, weights, strict=True))
        scaled = sum(r * f for r, f in zip(residues, fractions, strict=True))
        scaled += 257 * t["LIMB_BIAS"]
        assert 0 <= scaled < 2**32
        quotient = (scaled >> 16) - (257 * t["LIMB_BIAS"] >> 16)
        assert abs(2 * (total - quotient * product)) < 2 * 7 * product // 8
