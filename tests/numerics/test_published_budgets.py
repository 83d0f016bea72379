"""Published budgets and experiments, of moduli and of slices, found again.

Published slices have one scale a matrix and a ratio of 254 from one to the next; the
product is summed in float64, pair by pair.  Only this file multiplies so.
"""

import itertools
import math

import numpy as np
import pytest

import np_ozaki
from np_ozaki.numerics.budget import moduli_for_bits, required_bits
from np_ozaki.numerics.moduli import coprime_descent, log2_modulus_product
from np_ozaki.numerics.slice_budget import slice_bits
from np_ozaki.numerics.slicing import Slicing, chosen_pairs

# Slices, pairs, and the error that one finds, relative and of the whole matrix.
LAB = [
    (2, 3, 2.7e-5),
    (4, 10, 5.3e-10),
    (6, 10, 5.3e-10),
    (8, 10, 5.3e-10),
    (6, 36, 5.2e-15),
    (8, 64, 2.7e-16),
]


def first_pairs(num_slices, count):
    """Return the pairs of largest weight."""
    every = itertools.product(range(num_slices), repeat=2)
    return tuple(sorted(every, key=lambda pair: (sum(pair), pair))[:count])


def one_scale_slices(x, num_slices):
    """Return [(scale, slice), ...] and what is left of x."""
    scale = np.abs(x).max() / 127
    slices, rest = [], x
    for _ in range(num_slices):
        digits = np.rint(rest / scale)
        slices.append((scale, digits))
        rest = rest - scale * digits
        scale /= 254
    return slices, rest


def one_scale_product(a, b, num_slices, pairs):
    left, right = (one_scale_slices(x, num_slices)[0] for x in (a, b))
    c = np.zeros((a.shape[0], b.shape[1]))
    for i, j in pairs:
        # Sums of products of digits are exact in float64.
        c += left[i][0] * right[j][0] * (left[i][1] @ right[j][1])
    return c


def relative_error(c, want):
    return float(np.linalg.norm(c - want) / np.linalg.norm(want))


@pytest.fixture(scope="module")
def uniform():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 64, 64))
    return a, b, np_ozaki.matmul(a, b, precision="exact", engine="cpu")


# ---- Moduli and bits ----


def test_seven_small_primes():
    # The largest seven whose residues are 7 bits, without sign.
    primes = [p for p in range(2, 128) if all(p % q for q in range(2, p))][-7:]
    assert primes == [97, 101, 103, 107, 109, 113, 127]
    assert round(math.log2(math.prod(primes)), 2) == 47.26
    # With signs, seven moduli hold eight bits more.
    assert round(log2_modulus_product(7), 2) == 55.71


@pytest.mark.parametrize(("num_moduli", "bits"), [(15, 117.78), (20, 155.37)])
def test_moduli_of_eight_bits(num_moduli, bits):
    assert round(log2_modulus_product(num_moduli), 2) == bits
    moduli = itertools.islice(coprime_descent(256), num_moduli)
    assert round(math.log2(math.prod(moduli)), 2) == bits


@pytest.mark.parametrize(
    ("target", "k", "bits", "num_moduli"),
    [
        (16, 4096, 44, 6),
        (24, 4096, 60, 8),
        (53, 1024, 116, 15),
        (53, 4096, 118, 16),
        (64, 1 << 20, 148, 20),
        (71, 4096, 154, 20),
    ],
)
def test_required_bits(target, k, bits, num_moduli):
    assert required_bits(target, k) == 2 * target + math.ceil(math.log2(k)) == bits
    assert moduli_for_bits(bits) == num_moduli


# ---- Slices and pairs ----


@pytest.mark.parametrize("num_slices", [1, 2, 4, 6])
def test_each_slice_leaves_a_254th(num_slices, uniform):
    a, _, _ = uniform
    slices, rest = one_scale_slices(a, num_slices)
    limit = np.abs(a).max() / 254.0**num_slices
    assert 0.9 * limit < np.abs(rest).max() <= limit * (1 + 1e-3) + 2.0**-53
    assert all(np.abs(digits).max() <= 127 for _, digits in slices)


@pytest.mark.parametrize(("num_slices", "count", "error"), LAB)
def test_pairs_that_are_left_out_cap_the_accuracy(num_slices, count, error, uniform):
    a, b, want = uniform
    pairs = first_pairs(num_slices, count)
    of_one_scale = one_scale_product(a, b, num_slices, pairs)
    assert 0.7 * error < relative_error(of_one_scale, want) < 1.4 * error
    # Powers of two may miss the largest entry's by a bit.
    here = np_ozaki.matmul(
        a, b, scheme="slices", num_slices=num_slices, pairs=pairs, engine="cpu"
    )
    assert relative_error(here, want) < 2 * error


def test_ten_pairs_are_four_slices(uniform):
    a, b, want = uniform
    pairs = first_pairs(8, 10)
    assert pairs == tuple(sorted(chosen_pairs("triangular", 4), key=sum))
    errors = [
        relative_error(
            np_ozaki.matmul(
                a, b, scheme="slices", num_slices=s, pairs=pairs, engine="cpu"
            ),
            want,
        )
        for s in (4, 6, 8)
    ]
    np.testing.assert_allclose(errors, errors[0], rtol=0.2)
    bits = [slice_bits(Slicing(s, 8, pairs)) for s in (4, 6, 8)]
    assert bits[0] == slice_bits(Slicing(4))
    assert max(bits) - min(bits) < 0.5
    assert slice_bits(Slicing(8)) > bits[2] + 30


def test_one_scale_costs_small_rows_their_digits():
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, (2, 64, 64))
    shrunk = np.ldexp(1.0, -8 * (np.arange(64) // 16))
    a *= shrunk[:, None]
    want = np_ozaki.matmul(a, b, precision="exact", engine="cpu")
    every = chosen_pairs("all", 4)
    of_one_scale = one_scale_product(a, b, 4, every)
    by_rows = np_ozaki.matmul(
        a, b, scheme="slices", num_slices=4, pairs="all", engine="cpu"
    )
    lost = []
    for part in range(4):
        rows = slice(16 * part, 16 * part + 16)
        lost.append(relative_error(of_one_scale[rows], want[rows]))
        assert relative_error(by_rows[rows], want[rows]) < 1.5e-9
    # Eight bits smaller is a slice less, of rows alone.
    ratios = np.divide(lost[1:], lost[:-1])
    assert (ratios > 100).all()
    assert (ratios < 400).all()
