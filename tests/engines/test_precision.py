"""Precisions that a user can ask for, held against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki.config import Options
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics import budget, reference
from np_ozaki.precision import multiply, schemes
from np_ozaki.testing import assert_same_bits, matrices, operands

ENGINE = CpuEngine()
U = Fraction(1, 2**53)
HALF_SUBNORMAL = Fraction(1, 2**1075)
TOLERANCES = (2.0**-52, 1e-14, 1e-10, 1e-5, 1e-3, 0.1, 0.9)


def product(a, b, **options):
    with np.errstate(all="ignore"):
        return np_ozaki.matmul(a, b, return_info=True, engine="cpu", **options)


@pytest.fixture
def every_size(monkeypatch):
    """Let small products look for short entries, too."""
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)


def assert_within(c, a, b, tolerance, limit=2**1023):
    exact = reference.exact_fractions(a, b)
    absolute = reference.exact_fractions(np.abs(a), np.abs(b))
    for (i, j), value in np.ndenumerate(c):
        if not np.isfinite(value):
            assert abs(exact[i][j]) > limit
            continue
        error = abs(Fraction(float(value)) - exact[i][j])
        assert error <= Fraction(tolerance) * absolute[i][j] + HALF_SUBNORMAL, (i, j)


# ---- Tolerances ----


@given(operands(max_side=4, max_k=8), st.sampled_from(TOLERANCES))
def test_a_tolerance_is_kept(pair, tolerance):
    a, b = pair
    c, info = product(a, b, precision=tolerance)
    if info.engine != "native":
        assert_within(c, a, b, tolerance)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_native_arithmetic_serves_only_tolerances_that_it_keeps(tolerance):
    # Each row needs another inner index to be large: no D serves both.
    a, b = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])
    c, info = product(a, b, precision=tolerance)
    assert info.engine == ("native" if tolerance > 3 * 2.0**-53 else "exact")
    assert info.fallback is not None
    assert_within(c, a, b, tolerance)


def test_looser_tolerances_take_fewer_moduli():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((40, 300)), rng.standard_normal((300, 40))
    used = [product(a, b, precision=t)[1].num_moduli for t in TOLERANCES[:5]]
    assert used == sorted(used, reverse=True)
    assert (used[0], used[3], used[4]) == (16, 6, 5)


def test_tolerance_exponents_leave_room_for_the_last_rounding():
    for tolerance in (*TOLERANCES, 0.5, 2.0**-51, 3e-16):
        theta = Fraction(2) ** schemes.tolerance_exponent(tolerance)
        assert theta + U * (1 + theta) <= Fraction(tolerance)
        assert 2 * theta + U * (1 + 2 * theta) > Fraction(tolerance)


@pytest.mark.parametrize(
    ("precision", "kind"),
    [
        (2.0**-53, ValueError),
        (0.0, ValueError),
        (-1e-3, ValueError),
        (float("nan"), ValueError),
        (1.0, ValueError),
        (1e300, ValueError),
        ("1e-10", ValueError),
    ],
)
def test_tolerances_that_cannot_be(precision, kind):
    with pytest.raises(kind, match="precision"):
        np_ozaki.matmul(np.eye(2), np.eye(2), precision=precision)


def test_legacy_keeps_no_promise():
    for precision in ("exact", 1e-10):
        with pytest.raises(np_ozaki.OptionError, match="legacy"):
            np_ozaki.matmul(np.eye(2), np.eye(2), precision=precision, scaling="legacy")


# ---- Exact ----


@given(operands(max_side=4, max_k=8))
def test_exact_is_correctly_rounded_or_refused(pair):
    a, b = pair
    try:
        c, info = product(a, b, precision="exact")
    except np_ozaki.PrecisionError:
        spread = [np.ptp(np.frexp(x[x != 0])[1]) if x.any() else 0 for x in (a, b)]
        assert sum(spread) > 150
        return
    assert info.fallback is None
    assert_same_bits(c, np.array(reference.exact_product(a, b)).reshape(c.shape))


def test_exact_takes_no_more_moduli_than_needed():
    a = np.arange(-6.0, 6.0).reshape(3, 4)
    assert product(a, a.T, precision="exact")[1].num_moduli == 2
    rng = np.random.default_rng(2)
    b = rng.integers(-(2**52), 2**52, (4, 3)).astype(float)
    _, info = product(a, b, precision="exact")
    assert info.num_moduli == 8
    assert info.shift > 20


def test_exact_says_how_many_bits_it_would_take():
    a = np.array([[1.0, 2.0**-400]])
    with pytest.raises(np_ozaki.PrecisionError, match=r"about \d+ bits.*hold 342"):
        np_ozaki.matmul(a, np.array([[1.0], [1.0]]), precision="exact")


@pytest.mark.parametrize("output", ["float64", "dd"])
def test_exact_rebalances_what_is_only_graded(output):
    rng = np.random.default_rng(7)
    d = np.ldexp(1.0, rng.integers(-200, 200, 12))
    a, b = rng.standard_normal((4, 5, 12)), rng.standard_normal((4, 12, 3))
    for i in (1, 3):
        a[i] *= d
        b[i] /= d[:, None]
    c, info = product(a, b, precision="exact", output=output)
    assert info.rebalanced
    assert info.num_moduli < 20
    for i in range(4):
        want = reference.exact_pair(a[i], b[i])
        halves = (c,) if output == "float64" else c
        for half, entries in zip(halves, want, strict=False):
            assert_same_bits(half[i], np.array(entries))
    # One that rebalancing does not help is enough to refuse.
    a[2, 0, :2], a[2, 1, :2] = (1.0, 1e-200), (1e-200, 1.0)
    with pytest.raises(np_ozaki.PrecisionError, match="bits"):
        product(a, b, precision="exact")


def test_exact_leaves_special_values_to_ieee():
    a = np.array([[np.inf, 1.0], [2.0, 3.0]])
    c, _ = product(a, np.array([[1.0, 0.0], [5.0, 7.0]]), precision="exact")
    assert_same_bits(c, [[np.inf, np.nan], [17.0, 21.0]])


# ---- Entries of few bits ----


@given(st.integers(2, 49), st.integers(1, 12), st.data())
def test_least_exponent_is_a_bound(n, k, data):
    a = data.draw(matrices(3, k))
    mu, _ = reference.scaling_exponents(a, np.ones((k, 1)), n)
    for row, exponent in zip(a, mu, strict=True):
        if row.any():
            e = int(np.frexp(np.abs(row).max())[1]) - 1
            assert exponent + e >= budget.least_exponent(n, k)


@pytest.mark.parametrize("n", range(2, 50))
@pytest.mark.parametrize("k", [1, 3, 1024, 1 << 17, (1 << 40) + 1])
def test_least_exponent_counts_the_longest_norm(n, k):
    from np_ozaki.numerics.moduli import product_bound

    limit = product_bound(n)
    width = reference.norm_width(limit)
    least = budget.least_exponent(n, k)
    q = next(q for q in range(200, -100, -1) if _fits(k, width + q, limit))
    assert least == q + width - 1 - (q < 0)


def _fits(k, power, limit):
    return k * Fraction(4) ** power <= limit


@given(operands(max_side=4, max_k=6), st.integers(1, 12), st.booleans())
def test_lent_bits_leave_one_operand_exact(pair, bits, swap):
    a, b = pair
    a = np.round(np.clip(a, -1, 1) * (2**bits - 1))
    if swap:
        a, b = b.T, a.T
    found = budget.lent_bits(15, a.shape[1], *_bits(a, b))
    if found is None:
        return
    n, shift, both = found
    assert n < 15
    out = np.full((1, a.shape[0], b.shape[1]), np.nan)
    with np.errstate(all="ignore"):
        ENGINE.matmul(a[None], b[None], out, Scheme(n, "norm", shift))
    mu, nu = reference.scaling_exponents(a, b, n)
    left = [x - shift for x in mu]
    right = [x + shift for x in nu]
    rounded = [
        bool(np.any(reference_rounds(x, e))) for x, e in ((a, left), (b.T, right))
    ]
    assert rounded == [False, False] if both else not rounded[0 if shift > 0 else 1]
    assert_same_bits(out[0], by_exponents(a, b, left, right))


def _bits(a, b):
    return (
        int(schemes._most_bits(*ENGINE.line_units(x[None], left=left))[0])
        for x, left in ((a, True), (b, False))
    )


def reference_rounds(rows, exponents):
    return [
        (Fraction(float(x)) * Fraction(2) ** int(e)).denominator > 1
        for row, e in zip(rows, exponents, strict=True)
        for x in row
    ]


def by_exponents(a, b, mu, nu, low=False):
    """Return C (or what its rounding left) for any exponents, by fractions."""

    def integers(rows, exponents):
        return [
            [round(Fraction(float(x)) * Fraction(2) ** int(e)) for x in row]
            for row, e in zip(rows, exponents, strict=True)
        ]

    left, right = integers(a, mu), integers(b.T, nu)
    result = np.empty((len(left), len(right)))
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            c = sum(f * g for f, g in zip(x, y, strict=True))
            exponent = -int(mu[i]) - int(nu[j])
            value = reference.round_to_double(c, exponent)
            if low:
                rest = 0
                if np.isfinite(value):
                    rest = Fraction(c) * Fraction(2) ** exponent - Fraction(value)
                # A power of two for a denominator.
                rest = Fraction(rest)
                value = reference.round_to_double(
                    rest.numerator, 1 - rest.denominator.bit_length()
                )
            result[i, j] = value
    return result


@pytest.mark.parametrize("transposed", [False, True])
def test_auto_takes_fewer_moduli_for_zeros_and_ones(every_size, transposed):
    rng = np.random.default_rng(3)
    a = (rng.random((20, 64)) < 0.5).astype(float)
    b = rng.standard_normal((64, 20))
    pair = (b.T, a.T) if transposed else (a, b)
    c, info = product(*pair)
    assert (info.num_moduli, info.fallback) == (8, None)
    assert (info.shift > 0) is not transposed
    assert_within(c, *pair, 64 * 2.0**-53)
    other, _ = product(pair[1].T, pair[0].T)
    assert_same_bits(c, other.T.copy())


def test_auto_counts_integers_exactly(every_size):
    rng = np.random.default_rng(4)
    a = rng.integers(-3, 4, (9, 50)).astype(float)
    c, info = product(a, a.T)
    assert (info.num_moduli, info.shift) == (2, 0)
    assert_same_bits(c, a @ a.T)


@given(operands(max_side=4, max_k=6), st.integers(1, 40))
def test_auto_with_short_entries_keeps_its_promise(pair, bits):
    a, b = pair
    a = np.round(np.clip(a, -1, 1) * (2**bits - 1))
    before, schemes.SHORT_MIN_FLOPS = schemes.SHORT_MIN_FLOPS, 0
    try:
        c, info = product(a, b)
    finally:
        schemes.SHORT_MIN_FLOPS = before
    if info.engine != "native":
        assert_within(c, a, b, Fraction(a.shape[1] + 1, 2**53))


# ---- What the rounding left ----


@given(
    operands(max_side=3, max_k=6),
    st.integers(2, 49),
    st.sampled_from(["norm", "accurate"]),
)
def test_low_is_what_the_rounding_left(pair, n, scaling):
    a, b = pair
    shape = (1, a.shape[0], b.shape[1])
    out, low = np.full(shape, np.nan), np.full(shape, np.nan)
    with np.errstate(all="ignore"):
        ENGINE.matmul(a[None], b[None], out, Scheme(n, scaling), low=low)
    mu, nu = reference.scaling_exponents(a, b, n, scaling)
    assert_same_bits(out[0], by_exponents(a, b, mu, nu))
    assert_same_bits(low[0], by_exponents(a, b, mu, nu, low=True))


# ---- Rebalancing ----


def graded(seed, m, k, n, width):
    rng = np.random.default_rng(seed)
    d = np.ldexp(1.0, rng.integers(-width, width + 1, k))
    return rng.standard_normal((m, k)) * d, rng.standard_normal((k, n)) / d[:, None]


@pytest.mark.parametrize("width", [10, 40, 160, 480])
def test_graded_products_take_fifteen_moduli(width):
    a, b = graded(5, 24, 48, 20, width)
    c, info = product(a, b)
    assert (info.num_moduli, info.rebalanced, info.fallback) == (15, True, None)
    assert_within(c, a, b, 49 * 2.0**-53)


class Counting(CpuEngine):
    """Counts what rebalancing costs."""

    def __init__(self):
        super().__init__()
        self.searches = self.looks = 0

    def rebalance(self, a, b, family):
        self.searches += 1
        return super().rebalance(a, b, family)

    def missing_bits(self, a, b, scheme, target):
        self.looks += 1
        return super().missing_bits(a, b, scheme, target)


def served(a, b):
    """Return how a product was served, and the engine."""
    engine = Counting()
    out = np.empty((1, a.shape[0], b.shape[1]))
    return multiply(engine, a[None], b[None], out, Options()), engine


def test_rebalancing_is_not_tried_for_a_few_moduli():
    a, b = graded(5, 24, 48, 20, 5)
    result, engine = served(a, b)
    assert 15 < result.most()[0] < 19
    assert (engine.searches, engine.looks) == (0, 0)


def test_copies_are_not_looked_at_where_little_was_moved():
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 96, 96)) * np.exp(
        4 * rng.standard_normal((2, 96, 96))
    )
    result, engine = served(a, b)
    assert (engine.searches, engine.looks) == (1, 0)
    num_moduli, _, balanced = result.most()
    assert num_moduli >= 19
    assert not balanced


def test_copies_are_looked_at_once():
    result, engine = served(*graded(5, 24, 48, 20, 40))
    assert (engine.searches, engine.looks) == (1, 1)
    assert result.most() == (15, 0, True)


@pytest.mark.parametrize("grade", [12, 200])
def test_rebalancing_promises_no_more_than_it_moves(grade):
    # What is missed falls by no more bits than D spreads over.
    rng = np.random.default_rng(10)
    a, b = graded(11, 32, 64, 32, grade)
    a = a * np.exp(2 * rng.standard_normal(a.shape))
    balanced = ENGINE.rebalance(a[None], b[None])
    before = ENGINE.missing_bits(a[None], b[None], Scheme(15), "conventional")
    after = ENGINE.missing_bits(balanced.a, balanced.b, Scheme(15), "conventional")
    assert before > after
    assert before - after <= balanced.spread


@given(operands(max_side=4, max_k=8))
def test_rebalancing_is_exact_and_odd(pair):
    a, b = pair
    with np.errstate(all="ignore"):
        there = ENGINE.rebalance(a[None], b[None])
        back = ENGINE.rebalance(b.T[None], a.T[None])
    assert there.spread == back.spread
    if not there.spread[0]:
        return
    assert_same_bits(there.a[0], back.b[0].T.copy())
    assert_same_bits(there.b[0], back.a[0].T.copy())
    shifts = np.add.outer(there.rows[0], there.columns[0])
    moved = reference.exact_fractions(there.a[0], there.b[0])
    for (i, j), shift in np.ndenumerate(shifts):
        exact = reference.exact_fractions(a[i : i + 1], b[:, j : j + 1])[0][0]
        assert moved[i][j] == exact * Fraction(2) ** int(shift)


@given(matrices(4, 6))
def test_a_product_with_its_own_transpose_is_not_rebalanced(a):
    with np.errstate(all="ignore"):
        assert ENGINE.rebalance(a[None], a.T[None]).spread == 0
    c, _ = product(a, a.T)
    assert_same_bits(c, c.T.copy())


def test_zeros_and_special_values_stay_what_they_are():
    a, b = graded(6, 4, 6, 3, 30)
    a[0, 1], a[1, 2], a[2, 3], b[:, 0] = np.nan, -np.inf, 0.0, 0.0
    a[:, 5], b[4] = 0.0, 0.0
    balanced = ENGINE.rebalance(a[None], b[None])
    for x, y in ((a, balanced.a[0]), (b, balanced.b[0])):
        unusual = ~np.isfinite(x) | (x == 0)
        assert_same_bits(y[unusual], x[unusual])
        assert ((y == 0) == (x == 0)).all()


# ---- Batches ----


def test_each_matrix_of_a_batch_decides_by_itself(every_size):
    rng = np.random.default_rng(7)
    shape = (8, 16)
    some = [
        rng.standard_normal(shape),
        (rng.random(shape) < 0.5).astype(float),
        graded(8, *shape, 8, 60)[0],
        rng.standard_normal(shape) * np.exp(5 * rng.standard_normal(shape)),
        rng.standard_normal(shape) * np.exp(9 * rng.standard_normal(shape)),
        rng.integers(-9, 9, shape).astype(float),
        np.zeros(shape),
    ]
    a = np.array([some[i % len(some)] for i in range(20)])
    b = np.array([some[3 * i % len(some)].T for i in range(20)])
    for precision in ("auto", 1e-6, 1e-13):
        c, _ = product(a, b, precision=precision)
        for x, y, z in zip(a, b, c, strict=True):
            assert_same_bits(z, product(x, y, precision=precision)[0])


# ---- The look at a sample ----


def bits(x):
    """Return the bits of a number from its first to its last, in Python integers."""
    if not np.isfinite(x) or not x:
        return 0
    mantissa, _ = float(abs(x)).as_integer_ratio()
    return mantissa.bit_length() - (mantissa & -mantissa).bit_length() + 1


@given(
    st.lists(st.floats() | st.integers(-3, 3).map(float), min_size=1, max_size=8),
    st.integers(0, 52),
)
def test_the_longest_entry_of_a_sample(values, cut):
    row = np.array(values)
    words = row.view(np.int64)
    words &= -(1 << cut)
    longest, are_long = schemes._longest_entries(row[np.newaxis])
    want = min(max(map(bits, row)), budget.LONG)
    assert longest.tolist() == [want]
    assert are_long == (want == budget.LONG)


@pytest.mark.parametrize("n", range(1, 54))
def test_entries_of_every_length(n):
    for scale in (1.0, -(2.0**-1074), 2.0**960):
        x = scale * (1 << n - 1 | 1)
        assert bits(x) == n
        longest, are_long = schemes._longest_entries(np.array([[0.0, x]]))
        assert longest.tolist() == [min(bits(x), budget.LONG)]
        assert are_long == (bits(x) >= budget.LONG)


def test_the_longest_entries_of_a_batch():
    long, short = 1 / 3, 3.0
    late = [short] * 7 + [long]
    for rows, want in (
        ([[long] * 8, late], [budget.LONG] * 2),
        ([[short] * 8, late], [2, budget.LONG]),
        ([[np.nan] * 8, [np.inf] * 7 + [0.0]], [0, 0]),
    ):
        longest, are_long = schemes._longest_entries(np.array(rows))
        assert np.broadcast_to(longest, 2).tolist() == want
        assert are_long == (min(want) == budget.LONG)


def test_short_matrices_beside_long_ones_in_a_batch(every_size):
    rng = np.random.default_rng(5)
    a = rng.standard_normal((2, 8, 8))
    b = rng.standard_normal((8, 8))
    b[:] = 2.0
    a[1] = np.rint(4 * a[1])
    c, info = product(a, b)
    assert info.num_moduli <= 15
    for x, y in zip(a, c, strict=True):
        assert_same_bits(product(x, b)[0], y)
