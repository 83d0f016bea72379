"""Each stage of the CPU engine against exact integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cpu_exponents import Lines
from np_ozaki.engines.parallel import blocks
from np_ozaki.engines.residue_system import (
    EXACT_K_BLOCK,
    LIMB_BITS,
    balanced_limbs,
    residue_system,
)
from np_ozaki.engines.rounding import add_term, two_sum
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import (
    MODULI,
    balanced_residue,
    modulus_product,
    product_bound,
)
from np_ozaki.testing import assert_same_bits, operands

ENGINE = CpuEngine()
KINDS = [(n, "real") for n in range(2, 50)] + [(n, "complex") for n in range(2, 24)]
SCALINGS = st.sampled_from(("norm", "accurate", "legacy"))
doubles = st.builds(
    lambda m, e: float(m) * 2.0**e, st.integers(-(2**53), 2**53), st.integers(0, 120)
)


@given(operands(), st.integers(2, 49), SCALINGS)
def test_scaling_exponents(pair, n, scaling):
    a, b = pair
    mu, nu = ENGINE.scaling_exponents(a[None], b[None], n, scaling)
    want = reference.scaling_exponents(a, b, n, scaling)
    assert (mu[0].tolist(), nu[0].tolist()) == tuple(map(list, want))


@given(operands(), st.integers(7, 49), SCALINGS, st.booleans())
def test_residues(pair, n, scaling, fortran):
    a, b = (np.asfortranarray(x) if fortran else x for x in pair)
    system = residue_system(n, scaling, 3)
    mu, nu = ENGINE.scaling_exponents(a[None], b[None], n, scaling)
    truncate = scaling == "legacy"
    rows = reference.integers(a.tolist(), mu[0].tolist(), truncate=truncate)
    columns = reference.integers(b.T.tolist(), nu[0].tolist(), truncate=truncate)
    want = (rows, list(zip(*columns, strict=True)))
    planes = (
        ENGINE.residues(a[None], mu, system, left=True),
        ENGINE.residues(b[None], nu, system, left=False),
    )
    product = int(np.prod([1, *map(int, system.moduli)], dtype=object))
    for x, integers, left in zip(planes, want, (True, False), strict=True):
        exact = np.array(integers, dtype=object)
        if system.has_head:
            assert (x[0, 0].astype(object) == exact).all()
        for plane, p in zip(x[int(system.has_head) :, 0], system.moduli, strict=True):
            factor = pow(product // p, -1, p) if left else 1
            residues = np.vectorize(int, otypes=[object])(plane)
            assert ((residues - exact * factor) % p == 0).all()
            assert (np.abs(plane) <= p / 2 + 4).all()


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
@pytest.mark.parametrize(("n", "family"), KINDS)
def test_residue_systems_keep_every_sum_exact(n, family, scaling):
    for k_class in (0, 1, 10, 14, 20, 40):
        system = residue_system(n, scaling, k_class, 0, family)
        largest = max([p // 2 + 4 for p in system.moduli], default=0)
        assert EXACT_K_BLOCK * largest**2 * 2 <= 2**53
        for weights in system.weights[:-1]:
            assert sum(abs(int(w)) for w in weights) * largest < 2**52
        fold = len(system.moduli) // 2 + 1
        assert max(abs(int(x)) for x in system.product_limbs) * fold < 2**52
        if system.has_head and system.moduli:
            q = int(np.prod([int(p) for p in system.moduli], dtype=object))
            error = Fraction((1 << k_class) * product_bound(n, family), 2**53)
            assert error + 2**system.head_shift < Fraction(q, 2)
        bits = product_bound(n, family).bit_length()
        # The leading bits of M are not all ones, as the exponents rely on.
        assert bits < 53 or product_bound(n, family) >> (bits - 53) != 2**53 - 1


def test_fifteen_moduli_take_four_primes_and_one_product():
    assert residue_system(15, "norm", 12).num_planes == 5
    assert residue_system(6, "norm", 12).num_planes == 1
    assert residue_system(15, "legacy", 12).moduli == MODULI[:15]


@given(st.integers(-(2**300), 2**300), st.integers(11, 13))
def test_balanced_limbs(value, count):
    limbs = balanced_limbs(value, count)
    assert sum(limb << (LIMB_BITS * i) for i, limb in enumerate(limbs)) == value
    assert all(-(2**29) <= limb < 2**29 for limb in limbs[:-1])


@given(doubles, doubles)
def test_two_sum(x, y):
    s, e = two_sum(np.array([x]), np.array([y]))
    assert s[0] == x + y
    assert Fraction(s[0]) + Fraction(e[0]) == Fraction(x) + Fraction(y)


@given(doubles, doubles, doubles)
def test_three_terms_round_once(x, y, z):
    high, low = two_sum(np.array([x]), np.array([y]))
    high, low = add_term(np.array([z]), high, low)
    exact = Fraction(x) + Fraction(y) + Fraction(z)
    assert float((high + low)[0]) == exact.numerator / exact.denominator


@given(st.integers(1, 2**52), st.integers(60, 100), st.sampled_from([-1, 0, 1]))
def test_three_terms_on_a_tie_and_beside_it(mantissa, e, unit):
    # mantissa + 1/2 in units of its last place, then one unit far below.
    terms = (float(2 * (mantissa | 2**52)) * 2.0**e, 2.0**e, float(unit))
    high, low = two_sum(np.array([terms[1]]), np.array([terms[2]]))
    high, low = add_term(np.array([terms[0]]), high, low)
    exact = sum(map(int, terms))
    assert float((high + low)[0]) == float(exact)


@given(hnp.array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=300))
def test_blocks_cover_once(shape):
    seen = np.zeros(shape, dtype=np.int8)
    for block in blocks(shape):
        seen[block] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_scaling_exponents_of_empty_operands(shape, scaling):
    m, k, n = shape
    a, b = np.zeros((1, m, k)), np.zeros((1, k, n))
    mu, nu = ENGINE.scaling_exponents(a, b, 15, scaling)
    assert (mu.shape, nu.shape) == ((1, m), (1, n))
    assert not mu.any()
    assert not nu.any()


ENDS = [(n, "real") for n in (2, 3, 6, 7, 8, 15, 16, 20, 35, 49)]
ENDS += [(n, "complex") for n in (2, 3, 6, 7, 8, 15, 16, 20, 22)]


def rebuilt(values, n, scaling, family):
    """Reconstruct integers from residue products as the GEMMs would leave them."""
    system = residue_system(n, scaling, 10, 0, family)
    q = math.prod(system.moduli)
    planes = [
        [float(v * pow(q // p, -1, p) % p) for v in values] for p in system.moduli
    ]
    if system.has_head:
        planes.insert(0, [float(v) for v in values])
    products = np.array(planes).reshape(len(planes), 1, 1, len(values))
    mu, nu = np.zeros((1, 1), int), np.zeros((1, len(values)), int)
    out = np.full((1, 1, len(values)), np.nan)
    ENGINE.reconstruct(products, mu, nu, system, out)
    return out[0, 0]


@pytest.mark.parametrize(("n", "family"), ENDS)
def test_reconstruction_at_the_ends_of_the_range(n, family):
    m = product_bound(n, family)
    values = [0, 1, -1, m, -m, m - 1, 1 - m, m // 2, -(m // 3), 2**53 + 1, -(2**53) - 3]
    values = [v for v in values if abs(v) <= m]
    want = [v / 1 for v in values]
    assert_same_bits(rebuilt(values, n, "norm", family), want)
    assert_same_bits(rebuilt(values, n, "legacy", family), want)


@pytest.mark.parametrize(("n", "family"), ENDS)
def test_legacy_wraps_at_exactly_half_of_p(n, family):
    p, m = modulus_product(n, family), product_bound(n, family)
    values = [m - 1, m, m + 1, m + 2, -(p // 2) - 1, -(p // 2), 1 - p // 2, 3 * p + m]
    want = [balanced_residue(v, p) / 1 for v in values]
    assert_same_bits(rebuilt(values, n, "legacy", family), want)


@given(st.sampled_from(KINDS), st.data())
def test_reconstruction_of_any_integer(kind, data):
    n, family = kind
    m = product_bound(n, family)
    values = [data.draw(st.integers(-m, m)) for _ in range(4)]
    want = [v / 1 for v in values]
    assert_same_bits(rebuilt(values, n, "norm", family), want)
    assert_same_bits(rebuilt(values, n, "legacy", family), want)


@pytest.mark.parametrize("halves", [2, 3, 4])
def test_exponent_where_the_sum_of_squares_meets_m(halves):
    # N = 2: w = 2, so S = 4 (ones) + 1 (halves), and M = 32639 = 4 * 8159 + 3.
    a = np.full((1, 8159 + halves), 1.0)
    a[0, :halves] = 0.5
    mu, _ = ENGINE.scaling_exponents(a[None], a.T[None], 2, "norm")
    assert product_bound(2) == 32639
    assert mu[0, 0] == (1 if halves <= 3 else -1)
    assert mu[0].tolist() == list(reference.scaling_exponents(a, a.T, 2, "norm")[0])


def test_lines_follow_memory():
    c_order = np.zeros((1, 3, 5))
    assert Lines.of(c_order, -1, 1).along
    assert not Lines.of(c_order.swapaxes(-1, -2), -1, 1).along
    assert Lines.of(c_order.swapaxes(-1, -2), -2, 1).along
