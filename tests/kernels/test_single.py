"""The kernels' arithmetic of FP32 entries and results, against Python integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
import simt
from loops import WORDS, each, plain

from np_ozaki.numerics.formats import SINGLE
from np_ozaki.numerics.reference import round_to

pytestmark = pytest.mark.skipif(
    simt.COMPILER is None, reason="no C++ compiler (c++ or g++) on the path"
)

MANTISSAS = (0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF)
FIELDS = (0, 1, 2, 15, 16, 17, 63, 64, 126, 127, 128, 200, 253, 254, 255)


def every_kind(seed=1, count=3000):
    """Return bits of numbers of all kinds, of both signs."""
    rng = np.random.default_rng(seed)
    edges = [f << 23 | m for f in FIELDS for m in MANTISSAS]
    # Subnormal numbers by their leading bit.
    edges += [
        m for bit in range(23) for m in (1 << bit, (1 << bit) + 1, (2 << bit) - 1)
    ]
    bits = np.array(edges, np.uint32)
    bits = np.concatenate([bits, rng.integers(0, 2**31, count).astype(np.uint32)])
    return np.concatenate([bits, bits | np.uint32(1 << 31)])


def test_widened():
    bits = every_kind()
    out = np.empty(bits.size, np.uint64)
    each(plain(), "widened", bits.size, bits, out)
    x = bits.view(np.float32)
    nans = np.isnan(x)
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64)
    assert np.isnan(out.view(np.float64)[nans]).all()
    assert (out[~nans] == want[~nans].view(np.uint64)).all()


def in_lines(seed, most):
    """Return entries of plain lines, e of their largest and exponents.

    A' has up to `most` bits; e and exponents are all that such lines may have.
    """
    rng = np.random.default_rng(seed)
    bits = every_kind(seed, 20000)
    tops, exponents = [], []
    for one in bits:
        # The entry is the largest of its line, or has a larger one beside it.
        size = float((one & np.uint32(0x7FFFFFFF)).view(np.float32))
        own = math.frexp(size)[1] - 1 if 0 < size < math.inf else -200
        e = max(own + int(rng.choice([0, 0, 1, 5, 40])), -111)
        tops.append(min(e, 127))
        exponents.append(int(rng.integers(-126, min(120, most - 1 - tops[-1]) + 1)))
    x = bits.view(np.float32)
    kept = np.isfinite(x) & (np.array(exponents) >= -126)
    arrays = x, np.array(tops, np.int32), np.array(exponents, np.int32)
    return [np.ascontiguousarray(a[kept]) for a in arrays]


def scaled(x, shift, truncate):
    exact = Fraction(float(x)) * Fraction(2) ** shift
    return math.trunc(exact) if truncate else round(exact)


@pytest.mark.parametrize("truncate", [False, True])
def test_integers(truncate):
    for name, most in (("single_integer", 58), ("short_integer", 28)):
        x, e, exponents = in_lines(2 + truncate, most)
        kind = np.int32 if most == 28 else np.uint64
        out, lines = np.empty(x.size, kind), np.empty((2, x.size), np.uint8)
        each(plain(), "is_plain_single_line", x.size, e, exponents, *lines)
        assert lines[most == 28].all()
        each(plain(), name, x.size, x.view(np.uint32), exponents, out, truncate)
        offset = 0 if most == 28 else 2**60
        for value, one, shift in zip(out.tolist(), x, exponents.tolist(), strict=True):
            assert value - offset == scaled(one, shift, truncate), (one, shift)


def test_lines_that_are_not_plain():
    for e, exponent, want in (
        (-111, 120, (1, 1)),
        (-112, 0, (0, 0)),
        (-100, 121, (0, 0)),
        (0, 57, (1, 0)),
        (0, 58, (0, 0)),
        (0, 27, (1, 1)),
        (0, 28, (1, 0)),
        (127, -126, (1, 1)),
        (127, -127, (1, 0)),
    ):
        found = np.empty((2, 1), np.uint8)
        args = (np.array([x], np.int32) for x in (e, exponent))
        each(plain(), "is_plain_single_line", 1, *args, *found)
        assert tuple(found[:, 0]) == want, (e, exponent)


def test_floors_and_ceilings():
    x, e, _ = in_lines(4, 28)
    for w in (2, 5, 7):
        out = np.empty(x.size, np.uint32)
        each(plain(), "single_floor", x.size, x.view(np.uint32), e, out, w)
        for value, one, top in zip(out.tolist(), x, e.tolist(), strict=True):
            exact = abs(Fraction(float(one))) * Fraction(2) ** (w - 1 - top)
            assert value == math.floor(exact), (one, top)
    shifts = (15 - e).astype(np.int32)
    each(plain(), "raised_product", x.size, x.view(np.uint32), shifts, out)
    for value, one, shift in zip(out.tolist(), x, shifts.tolist(), strict=True):
        exact = abs(Fraction(float(one))) * Fraction(2) ** shift
        assert value == math.ceil(exact), (one, shift)


def numbers(words, rng):
    """Return integers of so many words: ties of 24 bits, their neighbours, others."""
    values = {1, 2, 3, 5, 2**25 - 1, 2**25 - 3, (1 << 32 * words) - 1}
    for size in range(1, 32 * words + 1):
        values.add(1 << size - 1)
        for place in {0, max(0, size - 25), max(0, size - 24)}:
            for _ in range(3):
                kept = int(rng.integers(0, 2**24)) | 1 << min(23, size - 1)
                tie = (2 * kept + 1) << place
                values |= {tie - 1, tie, tie + 1}
    return sorted(v for v in values if 0 < v < 1 << 32 * words)


@pytest.mark.parametrize("words", WORDS)
def test_rounded_once_to_24_bits(words):
    rng = np.random.default_rng(words)
    cases = []
    for value in numbers(words, rng):
        top = value.bit_length() - 1
        # Into the middle, below the normal numbers, beside the smallest, infinity.
        for at in (0, -126, -127, -140, -149, -150, -151, 126, 127, 128, 300, -300):
            cases.append((value, len(cases) % 2, top - at))
    cases += [(0, 0, 5), (0, 1, -5)]
    size = len(cases)
    value = np.array(
        [[v >> 32 * i & 0xFFFFFFFF for i in range(words)] for v, *_ in cases], np.uint32
    )
    negative = np.array([c[1] for c in cases], np.uint8)
    exponents = np.array([c[2] for c in cases], np.int64)
    out, inside = np.empty(size, np.uint32), np.empty(size, np.uint32)
    name = f"single_rounded_{words}"
    each(plain(), name, size, value, negative, exponents, out, inside)
    want = np.array(
        [round_to(-v if sign else v, -exponent, SINGLE) for v, sign, exponent in cases]
    )
    want = want.astype(np.float32).view(np.uint32)
    for found in (out, inside):
        wrong = np.flatnonzero(found != want)
        assert not wrong.size, (cases[wrong[0]], hex(found[wrong[0]]))
