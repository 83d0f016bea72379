"""Error bounds against errors known exactly, as Fractions."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError, ShapeError
from np_ozaki.numerics import reference
from np_ozaki.numerics.bounds import (
    conventional_bound,
    error_bound,
    exponent_bound,
    residual_bound,
    rounding_bound,
)
from np_ozaki.numerics.budget import relative_error_bound
from np_ozaki.numerics.moduli import modulus_product

NUM_MODULI = st.integers(2, 49)
LARGEST = np.finfo(np.float64).max
WILD = st.floats(allow_nan=False, allow_infinity=False)
SUBNORMAL = st.floats(-(2.0**-1020), 2.0**-1020)
ORDINARY = st.floats(-1.0, 1.0)
GRADED = st.builds(
    math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-300, 250)
)


@st.composite
def operands(draw):
    """Arrays of up to 3 x 6 x 3; A and B draw from one kind of entries each."""
    m, k, n = (draw(st.integers(1, top)) for top in (3, 6, 3))
    arrays = []
    for shape in ((m, k), (k, n)):
        entry = draw(st.sampled_from([ORDINARY, GRADED, WILD, SUBNORMAL]))
        entry = st.one_of(entry, st.just(0.0))
        size = shape[0] * shape[1]
        flat = draw(st.lists(entry, min_size=size, max_size=size))
        arrays.append(np.array(flat).reshape(shape))
    return arrays


def integer_errors(a, b, mu, nu, truncated):
    """Return C' (as integers) and ``abs(C' * 2**-(mu + nu) - AB)``, both exact."""
    left = reference.integers(a.tolist(), mu, truncate=truncated)
    right = reference.integers(b.T.tolist(), nu, truncate=truncated)
    exact = reference.exact_fractions(a, b)
    products, errors = [], []
    for i, row in enumerate(left):
        products.append([sum(map(lambda x, y: x * y, row, y)) for y in right])
        errors.append(
            [
                abs(c / Fraction(2) ** (mu[i] + nu[j]) - exact[i][j])
                for j, c in enumerate(products[-1])
            ]
        )
    return products, errors


def assert_bounds(bounds, errors) -> None:
    for bound, error in zip(
        bounds.ravel().tolist(), itertools.chain(*errors), strict=True
    ):
        assert bound >= 0.0
        assert bound == math.inf or error <= Fraction(bound), (bound, float(error))


def total_errors(c, exact):
    """Errors of finite entries; an infinite entry is infinitely wrong."""
    return [
        [
            abs(Fraction(x) - y) if math.isfinite(x) else Fraction(10) ** 700
            for x, y in zip(row, exact_row, strict=True)
        ]
        for row, exact_row in zip(c, exact, strict=True)
    ]


@pytest.mark.parametrize("scaling", ["norm", "accurate"])
@given(ab=operands(), num_moduli=NUM_MODULI)
def test_every_bound_holds(ab, num_moduli: int, scaling: str) -> None:
    a, b = ab
    mu, nu = reference.scaling_exponents(a, b, num_moduli, scaling)
    _, errors = integer_errors(a, b, mu, nu, truncated=False)
    assert_bounds(exponent_bound(a, b, mu, nu), errors)
    assert_bounds(residual_bound(a, b, mu, nu), errors)
    c = reference.matmul(a, b, num_moduli, scaling)
    exact = reference.exact_fractions(a, b)
    assert_bounds(error_bound(a, b, c, mu, nu), total_errors(c, exact))


@given(operands(), NUM_MODULI)
def test_bounds_of_truncated_integers_hold(ab, num_moduli: int) -> None:
    a, b = ab
    mu, nu = reference.scaling_exponents(a, b, num_moduli, "legacy")
    products, errors = integer_errors(a, b, mu, nu, truncated=True)
    assert_bounds(exponent_bound(a, b, mu, nu, truncated=True), errors)
    assert_bounds(residual_bound(a, b, mu, nu, truncated=True), errors)
    limit = modulus_product(num_moduli) // 2
    if all(abs(x) < limit for row in products for x in row):
        c = reference.matmul(a, b, num_moduli, "legacy")
        exact = reference.exact_fractions(a, b)
        bound = error_bound(a, b, c, mu, nu, truncated=True)
        assert_bounds(bound, total_errors(c, exact))


@given(operands(), st.data(), st.booleans())
def test_bounds_hold_for_any_exponents(ab, data, truncated: bool) -> None:
    # Shifted exponents (bits lent from one operand to the other) are not those of a
    # scaling rule; the integers then differ, and the bounds must follow.
    a, b = ab
    exponent = st.integers(-1100, 1200)
    mu = data.draw(st.lists(exponent, min_size=a.shape[0], max_size=a.shape[0]))
    nu = data.draw(st.lists(exponent, min_size=b.shape[1], max_size=b.shape[1]))
    _, errors = integer_errors(a, b, mu, nu, truncated)
    assert_bounds(exponent_bound(a, b, mu, nu, truncated), errors)
    assert_bounds(residual_bound(a, b, mu, nu, truncated), errors)


@given(st.integers(-(2**120), 2**120), st.integers(-1200, 1200))
def test_rounding_bound_holds(value: int, shift: int) -> None:
    for x in (value, value >> 60, value >> 66, value >> 67, value >> 68, 2**53 + 1):
        c = reference.round_to_double(x, -shift)
        bound = rounding_bound([[c]], [shift], [0])
        assert_bounds(bound, total_errors([[c]], [[x / Fraction(2) ** shift]]))
        if abs(x) < 2**53 and shift <= 1074 and math.isfinite(c):
            assert bound == 0.0


def test_rounding_bound_at_its_edges() -> None:
    one = rounding_bound([[1.0]], [60], [0])[0, 0]
    assert 2.0**-53 < one < 2.0**-53 * (1 + 2.0**-50)
    assert rounding_bound([[0.0]], [1000], [75])[0, 0] == 2.0**-1074
    assert rounding_bound([[0.0]], [1000], [74])[0, 0] == 0.0
    assert rounding_bound([[math.inf]], [0], [0])[0, 0] == math.inf


@pytest.mark.parametrize("scaling", ["norm", "accurate"])
def test_an_exact_product_has_bound_zero(scaling: str) -> None:
    rng = random.Random(3)
    a = np.array([[rng.randint(-99, 99) for _ in range(20)] for _ in range(4)]) * 0.125
    b = np.array([[rng.randint(-99, 99) for _ in range(4)] for _ in range(20)]) * 1e10
    a[2] = 0.0
    mu, nu = reference.scaling_exponents(a, b, 15, scaling)
    c = reference.matmul(a, b, 15, scaling)
    assert not residual_bound(a, b, mu, nu).any()
    assert not error_bound(a, b, c, mu, nu).any()
    assert c == reference.exact_product(a, b)


@given(operands(), NUM_MODULI)
def test_bounds_are_within_the_a_priori_bound(ab, num_moduli: int) -> None:
    a, b = ab
    mu, nu = reference.scaling_exponents(a, b, num_moduli)
    bound = np.minimum(exponent_bound(a, b, mu, nu), residual_bound(a, b, mu, nu))
    a_priori = Fraction(relative_error_bound(num_moduli, a.shape[1]))
    # Relative to the norms, apart from what is rounded up to the next subnormal.
    for i, j in itertools.product(range(len(a)), range(b.shape[1])):
        if bound[i, j] == math.inf:
            continue
        norms = sum(Fraction(x) ** 2 for x in a[i].tolist()) * sum(
            Fraction(x) ** 2 for x in b[:, j].tolist()
        )
        got = Fraction(bound[i, j].item()) / Fraction(1 + 2.0**-40)
        got = max(got - Fraction(2) ** -1070, Fraction(0))
        assert got**2 <= a_priori**2 * norms


def test_bounds_are_attained() -> None:
    # 1.5 is a tie and becomes 2: every term of both bounds counts in full.
    a, zero = np.full((1, 100), 1.5), [0]
    _, ((error,),) = integer_errors(a, a.T, zero, zero, truncated=False)
    assert error == 100 * (4 - 2.25)
    for function in (exponent_bound, residual_bound):
        bound = function(a, a.T, zero, zero)[0, 0]
        assert error <= bound < float(error) * (1 + 1e-12)
    # Truncated to 1, except for bounding A' by A on one side.
    assert 100 * 1.25 < residual_bound(a, a.T, zero, zero, True) < 151
    assert 100 * 2.25 < exponent_bound(a, a.T, zero, zero, True) < 301


def test_residuals_beside_an_entry_that_overflows_when_scaled() -> None:
    a, b, mu, nu = np.array([[1.0, 2.0**-1074]]), np.ones((2, 1)), [1073], [0]
    _, errors = integer_errors(a, b, mu, nu, truncated=False)
    assert errors == [[Fraction(2) ** -1074]]
    assert_bounds(residual_bound(a, b, mu, nu), errors)


def test_bounds_are_sharp() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((4, 300)), rng.random((300, 4))
    mu, nu = reference.scaling_exponents(a, b, 8)
    for truncated, factor in ((True, 2.5), (False, 200.0)):
        _, errors = integer_errors(a, b, mu, nu, truncated)
        worst = float(max(itertools.chain(*errors)))
        for function in (exponent_bound, residual_bound):
            bound = function(a, b, mu, nu, truncated).max()
            assert worst < bound < factor * worst


def test_the_two_bounds_complement_each_other() -> None:
    rng = np.random.default_rng(8)
    for spread, better, worse in (
        (0.0, residual_bound, exponent_bound),
        (4.0, exponent_bound, residual_bound),
    ):
        a, b = (
            rng.uniform(-1, 1, shape) * np.exp(spread * rng.standard_normal(shape))
            for shape in ((4, 300), (300, 4))
        )
        mu, nu = reference.scaling_exponents(a, b, 12)
        ratio = better(a, b, mu, nu) / worse(a, b, mu, nu)
        assert np.median(ratio) < 0.9


def test_a_wrong_product_is_noticed() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 50)), rng.standard_normal((50, 3))
    mu, nu = reference.scaling_exponents(a, b, 15)
    c = np.array(reference.matmul(a, b, 15))
    exact = reference.exact_fractions(a, b)
    bound = error_bound(a, b, c, mu, nu)
    assert_bounds(bound, total_errors(c.tolist(), exact))
    with pytest.raises(AssertionError):
        assert_bounds(bound, total_errors((c + 3 * bound).tolist(), exact))


@pytest.mark.parametrize("scale", [2.0**1000, 2.0**-1000, 2.0**-1060])
def test_extreme_scales_keep_the_relative_size(scale: float) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((3, 30)), rng.standard_normal((30, 3))
    scaled = np.round(a * 1024) / 1024 * scale  # exact at every scale
    a = scaled / scale
    c = reference.matmul(a, b, 10)
    mu, nu = reference.scaling_exponents(a, b, 10)
    want = error_bound(a, b, c, mu, nu) * scale
    mu, nu = reference.scaling_exponents(scaled, b, 10)
    got = error_bound(scaled, b, np.array(c) * scale, mu, nu)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=2.0**-1070)


def test_bounds_out_of_range_are_infinite_and_silent() -> None:
    a = np.full((1, 3), LARGEST)
    mu, nu = reference.scaling_exponents(a, a.T, 2)
    with np.errstate(all="raise"):
        assert exponent_bound(a, a.T, mu, nu) == math.inf
        assert residual_bound(a / 3, a.T / 3, mu, nu) == math.inf
        assert error_bound(a, a.T, [[math.inf]], mu, nu) == math.inf
        assert conventional_bound(a, a.T) == math.inf


@given(operands())
def test_conventional_bound_is_an_upper_bound(ab) -> None:
    a, b = ab
    k = a.shape[1]
    bound = conventional_bound(a, b)
    size = reference.exact_fractions(np.abs(a), np.abs(b))
    floor = k * Fraction(2) ** -1074
    assert_bounds(bound, [[k * x / 2**53 + floor for x in row] for row in size])


@given(operands())
def test_conventional_bound_is_close(ab) -> None:
    a, b = ab
    k = a.shape[1]
    size = reference.exact_fractions(np.abs(a), np.abs(b))
    for bound, x in zip(
        conventional_bound(a, b).ravel().tolist(), itertools.chain(*size), strict=True
    ):
        tops = Fraction(np.abs(a).max().item()) * Fraction(np.abs(b).max().item())
        want = k * x / 2**53 + (k + 2) * Fraction(2) ** -1074
        want += k * k * tops / Fraction(2) ** 1049
        if want * (1 + Fraction(2) ** -40) < Fraction(LARGEST):
            assert Fraction(bound) <= want * (1 + Fraction(2) ** -40)


@given(operands())
def test_conventional_bound_holds_for_numpy_and_for_sequential_sums(ab) -> None:
    a, b = ab
    exact = reference.exact_fractions(a, b)
    bound = conventional_bound(a, b)
    with np.errstate(all="ignore"):
        product = a @ b
        sequential = np.zeros_like(product)
        for h in range(a.shape[1]):
            sequential += np.multiply.outer(a[:, h], b[h])
    for c in (product, sequential):
        for i, j in np.ndindex(*c.shape):
            if math.isfinite(c[i, j]):
                error = abs(Fraction(c[i, j].item()) - exact[i][j])
                assert bound[i, j] == math.inf or error <= Fraction(bound[i, j].item())


def test_conventional_bound_where_only_scaled_products_underflow() -> None:
    a = np.array([[2.0**1000, 2.0**400, 0.0]])
    size = 2.0**800
    assert conventional_bound(a, a[:, ::-1].T)[0, 0] >= 3 * 2.0**-53 * size


def test_conventional_bound_of_disjoint_supports_is_the_underflow_term() -> None:
    a, b = np.array([[LARGEST, 0.0]]), np.array([[0.0], [LARGEST]])
    assert 2 * 2.0**-1074 <= conventional_bound(a, b)[0, 0] <= 4 * 2.0**-1074


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_empty_dimensions(shape) -> None:
    m, k, n = shape
    a, b, c = np.ones((m, k)), np.ones((k, n)), np.zeros((m, n))
    mu, nu = reference.scaling_exponents(a, b, 15)
    for bound in (error_bound(a, b, c, mu, nu), conventional_bound(a, b)):
        assert bound.shape == (m, n)
        assert not bound.any()


def test_operands_that_do_not_fit() -> None:
    a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))
    mu, nu = [0, 0], [0, 0, 0, 0]
    for wrong in (
        lambda: conventional_bound(a, a),
        lambda: conventional_bound(a[0], b),
        lambda: exponent_bound(a, b, nu, nu),
        lambda: residual_bound(a, b, mu, mu),
        lambda: error_bound(a, b, c.T, mu, nu),
        lambda: rounding_bound(c[0], mu, nu),
    ):
        with pytest.raises(ShapeError):
            wrong()
    for name, x, y in (("a", a * math.inf, b), ("b", a, b * math.nan)):
        with pytest.raises(OptionError, match=f"{name}='non-finite"):
            conventional_bound(x, y)
        with pytest.raises(OptionError, match=f"{name}='non-finite"):
            error_bound(x, y, c, mu, nu)
