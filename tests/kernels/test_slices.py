"""Exponents and digits of scheme "slices", compiled for the CPU, against integers."""

import functools
import random

import numpy as np
import pytest
import simt
from loops import each
from np_ozaki._kernels.render import Sums, text_of
from np_ozaki._kernels.slice_tables import slice_constants, value_words

from np_ozaki.numerics import reference, slice_reference
from np_ozaki.numerics.slicing import Slicing

pytestmark = pytest.mark.skipif(
    simt.COMPILER is None, reason="no C++ compiler (c++ or g++) on the path"
)

SLICINGS = [Slicing(s, b) for b in range(2, 9) for s in range(1, 17)]
FEW_SLICINGS = [
    pytest.param(
        x,
        marks=()
        if x.num_slices in {1, 2, 7, 8, 16} and x.bits_per_slice in {2, 5, 8}
        else pytest.mark.slow,
    )
    for x in SLICINGS
]

_PLAIN = """
#define EACH for (int64 i = 0; i < count; ++i)

extern "C" void each_exponent(int64 count, const uint64* largest, int* out, int64 bits,
                              uint64 most) {
  EACH out[i] = slice_exponent(largest[i], (int)bits, most);
}

extern "C" void each_is_plain_slicing(int64 count, const int* exponent, uint8* out) {
  EACH out[i] = is_plain_slicing(exponent[i]);
}

extern "C" void each_transposed(int64 count, const uint32* word, uint32* byte) {
  EACH transpose_bytes(word + 4 * i, byte + 4 * i);
}

template <int b, int s>
void digits(Long value, int8* out) {
  value = with_offsets<b, s>(value);
  for (int first = 0; first < s; first += 4) {
    uint32 four = four_digits<b>(value, first);
    for (int i = 0; i < 4 && first + i < s; ++i)
      out[s - 1 - first - i] = (int8)(four >> 8 * i);
  }
}
"""

_OF_SLICING = """
extern "C" void each_digits_{s}_{b}(int64 count, const uint64* x, const int* exponent,
                                    int8* out, int64 plain) {{
  const bool wide = {s} * {b} > 64;
  EACH digits<{b}, {s}>(plain ? plain_sliced_integer<wide>(x[i], exponent[i])
                              : sliced_integer<wide>(x[i], exponent[i]), out + {s} * i);
}}
"""


@functools.cache
def library():
    each_slicing = (
        _OF_SLICING.format(s=x.num_slices, b=x.bits_per_slice) for x in SLICINGS
    )
    headers = text_of("arithmetic.cuh", "slices.cuh")
    parts = (simt.SHIM.read_text(), headers, _PLAIN, *each_slicing)
    return simt.build("slices", "\n".join(parts))


def lines(slicing, rng):
    """Return lines of finite entries: ordinary ones, and those that decide much."""
    bits = slicing.num_slices * slicing.bits_per_slice
    most = slicing.largest_mantissa
    found = [[0.0, -0.0], [5e-324], [-5e-324, 0.0], [1.0], [-1.0, 2.0**-60]]
    for e in (-1126, -1075, -1074, -1022, -700, -53, 0, 700, 971):
        for f in (most - 1, most, most + 1, 2**52, 2**53 - 1, 2**52 + 1):
            if f >> 53:
                continue
            x = reference.round_to_double(f, e)
            if not x or x == np.inf:
                continue
            # Ties of the rounding, beside the largest entry: halves of the last bit.
            last = e + 54 - bits
            ties = [
                reference.round_to_double((2 * n + 1) * sign, last - 1)
                for n in (0, 1, 2, 127, 128, rng.randrange(2**20))
                for sign in (-1, 1)
            ]
            some = [
                reference.round_to_double(
                    rng.randrange(-(2**53), 2**53), e - rng.randrange(130)
                )
                for _ in range(4)
            ]
            far = [5e-324, -(2.0**-1023), 2.0**-1022, 0.0, -0.0]
            line = [x, -x, x / 2, *ties, *some, *far]
            found.append([y for y in line if abs(y) <= x])
    return found


def as_bits(values):
    return np.array(values, dtype=np.float64).view(np.uint64)


@pytest.mark.parametrize("slicing", FEW_SLICINGS, ids=str)
def test_exponents_and_digits(slicing):
    s, b = slicing.num_slices, slicing.bits_per_slice
    vectors = lines(slicing, random.Random(s + 16 * b))
    want = slice_reference.slice_exponents(vectors, slicing)
    largest = as_bits([max(map(abs, vector)) for vector in vectors])
    mu = np.empty(len(vectors), np.int32)
    each(library(), "exponent", mu.size, largest, mu, s * b, slicing.largest_mantissa)
    assert mu.tolist() == want
    plain_lines = np.empty(mu.size, np.uint8)
    each(library(), "is_plain_slicing", mu.size, mu, plain_lines)
    assert 0 < plain_lines.sum() < mu.size
    digits = slice_reference.slices(reference.integers(vectors, want), slicing)
    for i, vector in enumerate(vectors):
        exact = [list(each_slice[i]) for each_slice in digits]
        exponents = np.full(len(vector), mu[i])
        for plain in range(plain_lines[i] + 1):
            found = np.empty((len(vector), s), np.int8)
            name = f"digits_{s}_{b}"
            x = as_bits(vector)
            each(library(), name, x.size, x, exponents, found, plain)
            assert found.T.tolist() == exact, (vector, plain)


def test_nan_and_inf_count_as_zero():
    x = as_bits([np.nan, -np.inf, np.inf, 0.0])
    for exponent in (-900, 10, 1100):
        found = np.full((4, 8), 99, np.int8)
        each(library(), "digits_8_8", 4, x, np.full(4, exponent, np.int32), found, 0)
        assert not found.any()


def test_transposed_bytes():
    rng = np.random.default_rng(1)
    words = rng.integers(0, 256, (50, 4, 4)).astype(np.uint8)
    found = np.empty((50, 4), np.uint32)
    each(library(), "transposed", 50, words.view(np.uint32).reshape(50, 4), found)
    assert np.array_equal(found.view(np.uint8).reshape(50, 4, 4), words.swapaxes(1, 2))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("slicing", FEW_SLICINGS, ids=str)
def test_words_hold_every_sum(slicing, wide):
    b = slicing.bits_per_slice
    for pairs in ("all", "triangular"):
        diagonals = Slicing(slicing.num_slices, b, pairs).diagonals
        weights = tuple(
            each.weight for each in diagonals for _ in range(1 + (not wide))
        )
        words = value_words(Sums(b, weights, wide, "exact"))
        largest = 2 ** (63 if wide else 31)
        total = sum(largest << b * (w - weights[0]) for w in weights)
        assert -(2 ** (32 * words - 1)) <= -total
        assert total < 2 ** (32 * words - 1)
        # A column takes parts of 32 bits of all planes.
        assert 3 * len(weights) * 2**32 < 2**62


def test_constants_count_from_the_least_weight():
    text = slice_constants(Sums(7, (3, 3, 5), False, "float64", False))
    assert "#define LEAST_SHIFT 21" in text
    assert "{0, 0, 14}" in text
    assert "#define FLOAT64 1" in text
    assert "#define VALUE_WORDS 2" in text
