"""The precision budget: published tables, and the guarantees against exact products."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError
from np_ozaki.numerics import reference
from np_ozaki.numerics.budget import (
    effective_bits,
    moduli_for_bits,
    moduli_for_target,
    relative_error_bound,
    required_bits,
    required_moduli_exact,
)
from np_ozaki.numerics.moduli import log2_modulus_product, product_bound

U = 2.0**-53

# For 2, 3, ... 20 moduli at k = 1024; each factor of four in k costs one bit.
EFFECTIVE_BITS = """
    2.50 6.49 10.47 14.45 18.41 22.36 26.29 30.21 34.12 38.02 41.90 45.76 49.58 53.39
    57.19 60.98 64.73 68.47 72.19
"""

# Spread of the data, its kappa, the accuracy of a conventional product at k = 1024,
# and the moduli for it: guaranteed, statistical, and guaranteed for k * u.
AUTOMATIC = [
    (0.0, 1.4, 1.4e-16, 16, 15, 13),
    (0.5, 1.9, 1.8e-16, 16, 15, 13),
    (1.0, 6.6, 4.8e-16, 16, 15, 14),
    (2.0, 9e2, 1.7e-15, 17, 16, 16),
    (4.0, 2.7e7, 2.8e-15, 21, 20, 20),
]


@pytest.mark.parametrize(
    ("num_moduli", "bits"),
    list(enumerate(map(float, EFFECTIVE_BITS.split()), start=2)),
)
def test_effective_bits(num_moduli: int, bits: float) -> None:
    for k, lost in ((1024, 0), (4096, 1), (16384, 2)):
        # The figures were rounded from three decimals.
        assert abs(effective_bits(num_moduli, k) - (bits - lost)) <= 0.0055


def test_effective_bits_of_short_rows() -> None:
    assert effective_bits(15, 0) == effective_bits(15, 1)
    assert effective_bits(15, 4) == effective_bits(15, 1) - 1


@pytest.mark.parametrize(
    ("target_bits", "k", "bits", "num_moduli"),
    [
        (53, 1024, 116, 15),
        (53, 1025, 117, 15),
        (53, 4096, 118, 16),
        (53, 1, 106, 14),
        (53, 0, 106, 14),
        (24, 1024, 58, 8),
        (1, 1, 2, 2),
        (8, 1 << 17, 33, 5),
    ],
)
def test_required_bits(target_bits: int, k: int, bits: int, num_moduli: int) -> None:
    assert required_bits(target_bits, k) == bits
    assert moduli_for_bits(bits) == num_moduli


@given(st.integers(1, 140), st.integers(1, 2**20))
def test_required_bits_hold_the_largest_sum(target_bits: int, k: int) -> None:
    bits = required_bits(target_bits, k)
    largest = k * 4 ** (target_bits - 1)
    assert largest <= product_bound(moduli_for_bits(bits))
    assert k <= 2 ** (bits - 2 * target_bits) < 2 * k


@given(st.floats(0.0, 341.0))
def test_moduli_for_bits_is_least(bits: float) -> None:
    num_moduli = moduli_for_bits(bits)
    assert log2_modulus_product(num_moduli) >= bits
    assert num_moduli == 2 or log2_modulus_product(num_moduli - 1) < bits


@pytest.mark.parametrize("row", AUTOMATIC, ids=lambda row: f"phi={row[0]}")
def test_moduli_for_target(row) -> None:
    _, kappa, native, guaranteed, statistical, conventional = row
    assert moduli_for_target(native, 1024, kappa=kappa) == guaranteed
    assert moduli_for_target(native, 1024, kappa=kappa, statistical=True) == statistical
    assert moduli_for_target(1024 * U, 1024, kappa=kappa) == conventional


def test_normwise_double_precision_takes_sixteen_moduli() -> None:
    assert moduli_for_target(U, 1024) == 16


@given(st.floats(1e-30, 1.0), st.integers(1, 2**40), st.floats(1.0, 1e9), st.booleans())
def test_moduli_for_target_is_least(tolerance, k, kappa, statistical) -> None:
    options = {"kappa": kappa, "statistical": statistical}
    num_moduli = moduli_for_target(tolerance, k, **options)
    assert relative_error_bound(num_moduli, k, **options) <= tolerance
    if num_moduli > 2:
        assert relative_error_bound(num_moduli - 1, k, **options) > tolerance


def test_error_bound_is_close_to_its_leading_term() -> None:
    for num_moduli, k in itertools.product(range(8, 50), (1, 1024, 2**20)):
        leading = 2 * math.sqrt(k / product_bound(num_moduli))
        ratio = relative_error_bound(num_moduli, k) / leading
        assert 1.0 < ratio < 1.0 + 2.0**-14 * math.sqrt(k)
    assert relative_error_bound(15, 0) == 0.0
    assert relative_error_bound(15, 1, statistical=True) == relative_error_bound(15, 1)


@st.composite
def operands(draw):
    entry = st.builds(
        math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-90, 0)
    )
    k = draw(st.integers(1, 6))
    a = draw(st.lists(st.lists(entry, min_size=k, max_size=k), min_size=1, max_size=2))
    b = draw(st.lists(st.lists(entry, min_size=2, max_size=2), min_size=k, max_size=k))
    # Long vectors of few distinct rows: where two moduli cannot hold even one bit.
    repeat = draw(st.sampled_from([1, 1, 1, 100]))
    return [row * repeat for row in a], b * repeat


@given(operands(), st.integers(2, 49))
def test_error_bound_holds_normwise(ab, num_moduli: int) -> None:
    a, b = ab
    k = len(b)
    bound = Fraction(relative_error_bound(num_moduli, k))
    exact = reference.exact_fractions(a, b)
    mu, nu = reference.scaling_exponents(a, b, num_moduli)
    columns = reference.column_vectors(b)
    left, right = reference.integers(a, mu), reference.integers(columns, nu)
    for i, j in itertools.product(range(len(a)), range(2)):
        value = sum(x * y for x, y in zip(left[i], right[j], strict=True))
        error = value / Fraction(2) ** (mu[i] + nu[j]) - exact[i][j]
        norms = sum(Fraction(x) ** 2 for x in a[i]) * sum(
            Fraction(x) ** 2 for x in columns[j]
        )
        assert error**2 <= bound**2 * norms


def test_error_bound_holds_where_the_norm_exceeds_the_range() -> None:
    for k, entry in itertools.product((3000, 9000, 14500), (1.01, 1.26, 1.5, 1.99)):
        ((mu,), _) = reference.scaling_exponents([[entry] * k], [[entry]] * k, 2)
        ((integer,),) = reference.integers([[entry]], [mu])
        error = abs((integer / Fraction(2) ** mu) ** 2 - Fraction(entry) ** 2)
        assert error <= Fraction(relative_error_bound(2, k)) * Fraction(entry) ** 2


def test_error_bound_where_two_bits_an_entry_may_exceed_the_range() -> None:
    for k, halved in ((2000, 1), (3000, 2)):
        phi = halved * (1 + math.sqrt(k) / 2)
        want = (1 + phi * math.sqrt(k / product_bound(2))) ** 2 - 1
        assert math.isclose(relative_error_bound(2, k), want, rel_tol=1e-9)
        twice = relative_error_bound(2, k, kappa=2.0)
        assert math.isclose(twice, 2 * want, rel_tol=1e-9)


def test_exactness_of_a_full_lattice() -> None:
    # Entries of 53 bits, k = 1024, norms 2**56.25 units: 112.5 bits of both together.
    assert required_moduli_exact(56.25, 56.25, 1024) == 15
    assert required_moduli_exact(56.25, 56.25, 1024, asymmetric=False) == 15
    assert required_moduli_exact(0.0, 0.0, 1) == 2


@given(st.data())
def test_exact_moduli_round_nothing(data) -> None:
    k = data.draw(st.integers(1, 12))
    widths = data.draw(st.tuples(st.integers(1, 53), st.integers(1, 53)))
    vectors, norms = [], []
    for width, lsb in zip(widths, (-40, 17), strict=True):
        integer = st.integers(1 - 2**width, 2**width - 1)
        units = data.draw(st.lists(integer, min_size=k, max_size=k))
        vectors.append([math.ldexp(x, lsb) for x in units])
        norms.append(math.log2(sum(x * x for x in units) or 1) / 2 + 1e-12)
    a, b = [vectors[0]], [[x] for x in vectors[1]]
    for asymmetric in (True, False):
        num_moduli = required_moduli_exact(*norms, k, asymmetric=asymmetric)
        (mu,), (nu,) = reference.scaling_exponents(a, b, num_moduli)
        # mu + lsb and nu + lsb are the bits to spare on either side.
        spare = [
            exponent + lsb if any(vector) else 1000
            for exponent, lsb, vector in zip((mu, nu), (-40, 17), vectors, strict=True)
        ]
        assert (sum(spare) if asymmetric else min(spare)) >= 0
        if not asymmetric:
            assert reference.matmul(a, b, num_moduli) == reference.exact_product(a, b)


def test_lending_bits_saves_moduli() -> None:
    zeros_and_ones, doubles = 5.0, 58.0
    assert required_moduli_exact(zeros_and_ones, doubles, 1024) == 9
    assert required_moduli_exact(doubles, zeros_and_ones, 1024) == 9
    assert required_moduli_exact(zeros_and_ones, doubles, 1024, asymmetric=False) == 15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: required_bits(0, 5), "target_bits=0"),
        (lambda: required_bits(53, -1), "k=-1"),
        (lambda: moduli_for_bits(341.95), "49 moduli hold 341.9 bits"),
        (lambda: effective_bits(1, 5), "num_moduli=1"),
        (lambda: effective_bits(15, -5), "k=-5"),
        (lambda: relative_error_bound(50, 5), "num_moduli=50"),
        (lambda: relative_error_bound(15, 5, kappa=0.5), "kappa=0.5"),
        (lambda: relative_error_bound(15, 5, kappa=math.nan), "kappa=nan"),
        (lambda: moduli_for_target(0.0, 5), "relative_tolerance=0.0"),
        (lambda: moduli_for_target(math.nan, 5), "relative_tolerance=nan"),
        (lambda: moduli_for_target(1e-60, 5), "49 moduli guarantee"),
        (lambda: required_moduli_exact(5.0, 5.0, -1), "k=-1"),
        (lambda: required_moduli_exact(300.0, 300.0, 9), "49 moduli hold"),
    ],
)
def test_refusals_name_argument_and_limit(call, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()
