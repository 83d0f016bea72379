"""The reference against the contract, written a second time with Fractions.

The functions named `literal_*` search instead of computing, and divide instead of
shifting; they share no code with the reference.
"""

import itertools
import math
import random
import struct
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError, ShapeError
from np_ozaki.numerics import reference
from np_ozaki.numerics.formats import SINGLE
from np_ozaki.numerics.moduli import (
    MODULI,
    balanced_residue,
    modulus_product,
    product_bound,
)

NUM_MODULI = st.integers(2, 49)
SAFE_SCALINGS = ("norm", "accurate")
WILD = st.floats(allow_nan=False, allow_infinity=False)
# Zero or 2**-113 to 2**60, so that products scaled by 2**+-400 stay normal.
GRADED = st.builds(
    math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-113, 7)
)


def matrices(entries, rows, columns):
    row = st.lists(entries, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


@st.composite
def operands(draw, entries=None, max_dim=3, min_inner=1):
    """Two fitting operands: of one exponent, graded, or anything finite."""
    if entries is None:
        entries = draw(st.sampled_from([st.floats(-1.0, 1.0), GRADED, WILD]))
    m, n = draw(st.integers(1, max_dim)), draw(st.integers(1, max_dim))
    k = draw(st.integers(min_inner, 5))
    return draw(matrices(entries, m, k)), draw(matrices(entries, k, n))


def bits(matrix):
    """Bit patterns, so that zeros have a sign and NaN equals itself."""
    return [[struct.pack(">d", x).hex() for x in row] for row in matrix]


def columns_of(matrix):
    return [list(column) for column in zip(*matrix, strict=True)]


def literal_round(value: Fraction) -> float:
    """Nearest double; Python's int / int is correctly rounded in every range."""
    try:
        size = abs(value.numerator) / value.denominator
    except OverflowError:
        size = math.inf
    return -size if value < 0 else size


def literal_top(vector) -> int:
    largest = max(Fraction(abs(x)) for x in vector)
    e = math.frexp(float(largest))[1]
    while not Fraction(2) ** e <= largest:
        e -= 1
    assert largest < Fraction(2) ** (e + 1)
    return e


def literal_largest(fits, start: int) -> int:
    """Largest integer that fits, by walking; `fits` is monotone."""
    g = start
    while fits(g + 1):
        g += 1
    while not fits(g):
        g -= 1
    return g


def literal_norm_parts(vector, num_moduli):
    limit = product_bound(num_moduli)
    e = literal_top(vector)
    w = min(16, max(2, limit.bit_length() // 2 - 8))
    unit = Fraction(2) ** (w - 1 - e)
    sizes = Counter(map(abs, vector)).items()
    total = sum(count * math.ceil(Fraction(x) * unit) ** 2 for x, count in sizes)
    return e, w, total


def literal_norm(vector, num_moduli) -> int:
    if not any(vector):
        return 0
    limit = product_bound(num_moduli)
    e, w, total = literal_norm_parts(vector, num_moduli)
    mu = literal_largest(
        lambda mu: total * Fraction(4) ** (mu - (w - 1 - e)) <= limit, w - 1 - e
    )
    return mu - 1 if mu + e < w - 1 else mu


def literal_legacy(vector, num_moduli) -> int:
    if not any(vector):
        return 0
    limit = product_bound(num_moduli)
    e, w, total = literal_norm_parts(vector, num_moduli)
    norm = max(4, total * Fraction(4) ** (e - w + 1))
    g = literal_largest(lambda g: Fraction(4) ** (g + 1) * norm <= limit, 0)
    return g - e


def literal_accurate(a, b, num_moduli):
    limit = product_bound(num_moduli)

    def bar(vector):
        if not any(vector):
            return 0, [0 for _ in vector]
        r = 5 - literal_top(vector)
        return r, [math.ceil(abs(Fraction(x)) * Fraction(2) ** r) for x in vector]

    left, right = [bar(row) for row in a], [bar(column) for column in columns_of(b)]

    def exponents(own, others):
        result = []
        for r, vector in own:
            dots = [
                sum(x * y for x, y in zip(vector, v, strict=True)) for _, v in others
            ]
            peak = max([1, *dots])
            g = literal_largest(lambda g, p=peak: p * Fraction(4) ** g <= limit, 0)
            result.append((r + g - (g < 0)) if any(vector) else 0)
        return result

    return exponents(left, right), exponents(right, left)


def literal_integers(vectors, exponents, rounding=round):
    return [
        [rounding(Fraction(x) * Fraction(2) ** exponent) for x in vector]
        for vector, exponent in zip(vectors, exponents, strict=True)
    ]


def literal_matmul(a, b, num_moduli, scaling):
    """The product without residues; C' is wrapped in legacy mode alone."""
    mu, nu = reference.scaling_exponents(a, b, num_moduli, scaling)
    rounding = math.trunc if scaling == "legacy" else round
    left = literal_integers(a, mu, rounding)
    right = literal_integers(columns_of(b), nu, rounding)
    product = modulus_product(num_moduli)
    result = []
    for row, row_exponent in zip(left, mu, strict=True):
        result.append([])
        for column, column_exponent in zip(right, nu, strict=True):
            value = sum(x * y for x, y in zip(row, column, strict=True))
            if scaling == "legacy":
                value = (value + product // 2) % product - product // 2
            unit = Fraction(2) ** (row_exponent + column_exponent)
            result[-1].append(literal_round(value / unit))
    return result


# Rounding


@given(st.integers(-(2**130), 2**130), st.integers(-1300, 1100))
def test_round_to_double_agrees_with_true_division(n: int, e: int) -> None:
    got = reference.round_to_double(n, e)
    assert bits([[got]]) == bits([[literal_round(n * Fraction(2) ** e)]])
    assert math.copysign(1.0, got) == (-1.0 if n < 0 else 1.0)


@pytest.mark.parametrize("top", [-1075, -1074, -1060, -1023, -1022, -1, 0, 970, 1023])
def test_round_to_double_at_and_beside_every_kind_of_tie(top: int) -> None:
    rng = random.Random(top)
    for _ in range(50):
        size = rng.getrandbits(53) | 1 << 52
        for half, beside in itertools.product((0, 1), (-1, 0, 1)):
            n = (((size << 1) + half) << 60) + beside
            e = top - n.bit_length() + 1
            for sign in (1, -1):
                want = literal_round(sign * n * Fraction(2) ** e)
                assert reference.round_to_double(sign * n, e) == want


def test_subnormal_ties_are_not_rounded_twice() -> None:
    # 2**-1074 * (m + 1/2) plus one unit of 2**-1200: rounding to 53 bits first would
    # make it a tie and lose the unit.
    for m in (0, 2, 4, 2**40, 2**51):
        tie = (2 * m + 1) << 125
        assert reference.round_to_double(tie, -1200) == math.ldexp(m, -1074)
        assert reference.round_to_double(tie + 1, -1200) == math.ldexp(m + 1, -1074)
        assert reference.round_to_double(tie - 1, -1200) == math.ldexp(m, -1074)


def test_overflow_threshold() -> None:
    largest = 2**1024 - 2**971
    tie = 2**1024 - 2**970
    assert reference.round_to_double(largest, 0) == float(largest)
    assert reference.round_to_double(tie - 1, 0) == float(largest)
    assert reference.round_to_double(tie, 0) == math.inf
    assert reference.round_to_double(-tie, 0) == -math.inf
    assert reference.round_to_double(1, 10**9) == math.inf


def test_zero_and_underflow_keep_their_signs() -> None:
    values = [(0, 5), (1, -1075), (-1, -1075), (1, -(10**9)), (-1, -(10**9))]
    got = [reference.round_to_double(n, e) for n, e in values]
    assert bits([got]) == bits([[0.0, 0.0, -0.0, 0.0, -0.0]])
    assert reference.round_to_double(-3, -1076) == -(2.0**-1074)


def literal_single(value: Fraction) -> float:
    """Nearest float32, by search among its neighbours."""
    size = abs(value)
    if size >= 2**128 - 2**103:
        return math.copysign(math.inf, value)
    e = 0
    while Fraction(2) ** (e + 1) <= size:
        e += 1
    while e > -126 and size < Fraction(2) ** e:
        e -= 1
    unit = Fraction(2) ** (max(e, -126) - 23)
    below = size // unit
    twice = 2 * (size - below * unit) - unit
    below += twice > 0 or (twice == 0 and below % 2)
    return math.copysign(float(below * unit), value)


@given(
    st.integers(-(2**70), 2**70),
    st.one_of(st.integers(-230, 130), st.integers(-160, -140)),
)
def test_single_rounding_agrees_with_fractions(n: int, e: int) -> None:
    got = reference.round_to(n, e, SINGLE)
    assert bits([[got]]) == bits([[literal_single(n * Fraction(2) ** e) if n else 0.0]])
    assert bits([[got]]) == bits([[float(np.float32(got))]])


@pytest.mark.parametrize(
    ("m", "place"),
    [
        *((m, -149) for m in (0, 1, 2, 2**22 + 1, 2**23 - 1, 2**23, 2**24 - 1)),
        *((m, -60) for m in (2**23, 2**23 + 1, 2**24 - 1)),
        *((m, 104) for m in (2**23, 2**23 + 1, 2**24 - 1)),
    ],
)
def test_single_ties(m: int, place: int) -> None:
    lower, upper = math.ldexp(m, place), math.ldexp(m + 1, place)
    if upper == 2.0**128:
        upper = math.inf
    tie = (2 * m + 1) << 99
    for beside, want in ((-1, lower), (0, upper if m % 2 else lower), (1, upper)):
        for sign in (1, -1):
            got = reference.round_to(sign * (tie + beside), place - 100, SINGLE)
            assert bits([[got]]) == bits([[sign * want]])


@given(st.lists(WILD, min_size=1, max_size=4), st.integers(-1200, 1200))
def test_integers_round_half_to_even_or_truncate(vector, exponent: int) -> None:
    want = literal_integers([vector], [exponent])
    assert reference.integers([vector], [exponent]) == want
    want = literal_integers([vector], [exponent], math.trunc)
    assert reference.integers([vector], [exponent], truncate=True) == want


def test_integers_at_ties() -> None:
    vector = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, math.nextafter(0.5, 1)]
    assert reference.integers([vector], [0]) == [[0, 2, 2, 0, -2, -2, 1]]
    assert reference.integers([vector], [0], truncate=True) == [[0, 1, 2, 0, -1, -2, 0]]


# Scaling


@given(operands(), NUM_MODULI)
def test_exponents_are_the_rule_read_literally(ab, num_moduli: int) -> None:
    a, b = ab
    columns = columns_of(b)
    assert reference.scaling_exponents(a, b, num_moduli, "norm") == (
        [literal_norm(row, num_moduli) for row in a],
        [literal_norm(column, num_moduli) for column in columns],
    )
    assert reference.scaling_exponents(a, b, num_moduli, "legacy") == (
        [literal_legacy(row, num_moduli) for row in a],
        [literal_legacy(column, num_moduli) for column in columns],
    )
    want = literal_accurate(a, b, num_moduli)
    assert reference.scaling_exponents(a, b, num_moduli, "accurate") == want


@pytest.mark.parametrize("scaling", SAFE_SCALINGS)
@given(ab=operands(), num_moduli=NUM_MODULI)
def test_integers_never_exceed_the_bound(ab, num_moduli: int, scaling: str) -> None:
    a, b = ab
    mu, nu = reference.scaling_exponents(a, b, num_moduli, scaling)
    left = reference.integers(a, mu)
    right = reference.integers(reference.column_vectors(b), nu)
    limit = product_bound(num_moduli)
    for row, column in itertools.product(left, right):
        assert sum(abs(x * y) for x, y in zip(row, column, strict=True)) <= limit
    if scaling == "norm":
        assert all(sum(x * x for x in vector) <= limit for vector in left + right)


@pytest.mark.parametrize("entry", [1.5, 1.25, 1.0, math.nextafter(2.0, 1.0)])
@pytest.mark.parametrize("k", [3000, 9000, 14500])
def test_vectors_too_long_for_two_moduli(entry: float, k: int) -> None:
    # Here even one bit an entry exceeds M, and rounding to nearest may double the
    # integers: 14500 entries 1.5 would become 2 and 4 * k > M without the extra bit.
    a, b = [[entry] * k], [[entry]] * k
    norm = reference.scaling_exponents(a, b, 2, "norm")
    accurate = reference.scaling_exponents(a, b, 2, "accurate")
    assert norm == ([literal_norm(a[0], 2)], [literal_norm(a[0], 2)])
    assert accurate == literal_accurate(a, b, 2)
    for mu, _ in (norm, accurate):
        ((integer,),) = reference.integers([[entry]], mu)
        assert k * integer**2 <= product_bound(2)


@pytest.mark.parametrize("scaling", SAFE_SCALINGS)
@given(ab=operands(GRADED), num_moduli=NUM_MODULI, data=st.data())
def test_powers_of_two_shift_the_exponents_alone(ab, num_moduli, scaling, data) -> None:
    a, b = ab
    rows = data.draw(st.lists(st.integers(-200, 200), min_size=len(a), max_size=len(a)))
    n = len(b[0])
    columns = data.draw(st.lists(st.integers(-200, 200), min_size=n, max_size=n))
    a_scaled = [[math.ldexp(x, s) for x in row] for row, s in zip(a, rows, strict=True)]
    b_scaled = [
        [math.ldexp(x, s) for x, s in zip(row, columns, strict=True)] for row in b
    ]
    mu, nu = reference.scaling_exponents(a, b, num_moduli, scaling)
    mu_scaled, nu_scaled = reference.scaling_exponents(
        a_scaled, b_scaled, num_moduli, scaling
    )
    for i, row in enumerate(a):
        assert mu_scaled[i] == (mu[i] - rows[i] if any(row) else 0)
    for j, column in enumerate(columns_of(b)):
        assert nu_scaled[j] == (nu[j] - columns[j] if any(column) else 0)
    c = reference.matmul(a, b, num_moduli, scaling)
    want = [
        [math.ldexp(x, r + s) for x, s in zip(row, columns, strict=True)]
        for row, r in zip(c, rows, strict=True)
    ]
    got = reference.matmul(a_scaled, b_scaled, num_moduli, scaling)
    assert bits(got) == bits(want)


def test_zero_vectors_and_vectors_that_meet_no_partner() -> None:
    a, b = [[0.0, -0.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 5.0]]
    for scaling in reference.SCALINGS:
        mu, nu = reference.scaling_exponents(a, b, 15, scaling)
        assert (mu[0], nu[0]) == (0, 0)
        c = reference.matmul(a, b, 15, scaling)
        assert bits(c) == bits([[0.0, 0.0], [0.0, 0.0]])
    # Peak 0 counts as 1: r = 5 - 1, and the largest g with 4**g <= M is 58.
    mu, _ = reference.scaling_exponents(a, b, 15, "accurate")
    assert mu == [0, 4 + 58]


# Residues and reconstruction


@given(NUM_MODULI, st.data())
def test_crt_round_trip(num_moduli: int, data) -> None:
    limit = product_bound(num_moduli)
    value = data.draw(st.integers(-limit, limit))
    for x in (value, limit, -limit, limit - 1, 1 - limit, 0, 1, -1):
        planes = reference.residues([[x]], num_moduli)
        assert all(-128 <= plane[0][0] <= 127 for plane in planes)
        want = reference.round_to_double(x, 0)
        assert bits(reference.reconstruct(planes, [0], [0])) == bits([[want]])
        want = reference.round_to_double(x, 1100)
        assert bits(reference.reconstruct(planes, [-700], [-400])) == bits([[want]])


def test_reconstruction_wraps_into_the_balanced_interval() -> None:
    product = modulus_product(2)
    for x in (product // 2, -(product // 2), product, product + 5, -3 * product - 7):
        planes = reference.residues([[x]], 2)
        want = (x + product // 2) % product - product // 2
        assert reference.reconstruct(planes, [0], [0]) == [[float(want)]]


@given(
    st.lists(st.integers(-(2**170), 2**170), min_size=1, max_size=5),
    st.lists(st.integers(-(2**170), 2**170), min_size=5, max_size=5),
    NUM_MODULI,
)
def test_residue_gemm_is_the_product_modulo_p(x, y, num_moduli: int) -> None:
    y = y[: len(x)]
    planes = reference.residue_gemm(
        reference.residues([x], num_moduli), reference.residues([y], num_moduli)
    )
    exact = sum(s * t for s, t in zip(x, y, strict=True))
    want = [[[balanced_residue(exact, p)]] for p in MODULI[:num_moduli]]
    assert planes == want


# The whole product


@pytest.mark.parametrize("scaling", reference.SCALINGS)
@given(ab=operands(), num_moduli=NUM_MODULI)
def test_matmul_is_the_integer_product_rounded_once(ab, num_moduli, scaling) -> None:
    a, b = ab
    got = reference.matmul(a, b, num_moduli, scaling)
    assert bits(got) == bits(literal_matmul(a, b, num_moduli, scaling))


@pytest.mark.parametrize("scaling", reference.SCALINGS)
@given(ab=operands(), num_moduli=NUM_MODULI, order=st.randoms(use_true_random=False))
def test_transposition_and_permutation(ab, num_moduli, scaling, order) -> None:
    a, b = ab
    c = bits(reference.matmul(a, b, num_moduli, scaling))
    swapped = reference.matmul(columns_of(b), columns_of(a), num_moduli, scaling)
    assert columns_of(bits(swapped)) == c
    inner = list(range(len(b)))
    order.shuffle(inner)
    permuted = reference.matmul(
        [[row[h] for h in inner] for row in a],
        [b[h] for h in inner],
        num_moduli,
        scaling,
    )
    assert bits(permuted) == c
    gram = bits(reference.matmul(a, columns_of(a), num_moduli, scaling))
    assert gram == columns_of(gram)


@pytest.mark.parametrize("scaling", SAFE_SCALINGS)
@given(ab=operands(st.integers(-(2**20), 2**20).map(float)))
def test_integer_matrices_are_exact(ab, scaling) -> None:
    a, b = ab
    want = [
        [
            float(sum(int(x) * int(y) for x, y in zip(row, column, strict=True)))
            for column in columns_of(b)
        ]
        for row in a
    ]
    assert reference.matmul(a, b, 15, scaling) == want
    assert reference.exact_product(a, b) == want


@pytest.mark.parametrize("scaling", SAFE_SCALINGS)
def test_fifteen_moduli_reach_double_precision(scaling: str) -> None:
    rng = random.Random(1)
    a = [[rng.uniform(-1, 1) for _ in range(64)] for _ in range(3)]
    b = [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(64)]
    c, exact = reference.matmul(a, b, 15, scaling), reference.exact_fractions(a, b)
    size = reference.exact_fractions(
        [[abs(x) for x in row] for row in a], [[abs(x) for x in row] for row in b]
    )
    for i, j in itertools.product(range(3), range(3)):
        assert abs(Fraction(c[i][j]) - exact[i][j]) <= 4 * size[i][j] / 2**53


@given(operands())
def test_exact_product_is_correctly_rounded(ab) -> None:
    a, b = ab
    exact = [
        [
            sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True))
            for column in columns_of(b)
        ]
        for row in a
    ]
    assert reference.exact_fractions(a, b) == exact
    want = [[literal_round(x) for x in row] for row in exact]
    assert bits(reference.exact_product(a, b)) == bits(want)


def test_subnormal_results_are_rounded_once() -> None:
    # 4501 * 2**-1074 * (1 + 2**-52) / 2 lies just above a tie of subnormals.
    a, b = [[4501 * 2.0**-1074]], [[0.5 + 2.0**-53]]
    for scaling in SAFE_SCALINGS:
        assert reference.matmul(a, b, 20, scaling) == [[2251 * 2.0**-1074]]


def test_range_ends() -> None:
    largest, least = math.ldexp(2 - 2.0**-52, 1023), 2.0**-1074
    for scaling in SAFE_SCALINGS:
        c = reference.matmul(
            [[largest], [least]], [[largest, least, -least]], 20, scaling
        )
        assert bits(c[:1]) == bits([[math.inf, largest * least, -(largest * least)]])
        assert bits(c[1:]) == bits([[largest * least, 0.0, -0.0]])


# The legacy mode and what is wrong with it


def relative_error(alpha: float, scaling: str) -> float:
    k = 1024
    a, b = [[alpha] * k], [[alpha]] * k
    ((c,),) = reference.matmul(a, b, 15, scaling)
    return abs(c / (k * alpha * alpha) - 1)


@pytest.mark.parametrize("alpha", [2.0**-4, 2.0**-8, 2.0**-30])
def test_legacy_wraps_for_small_constant_matrices(alpha: float) -> None:
    assert relative_error(alpha, "legacy") > 0.5
    assert relative_error(alpha, "norm") == 0.0
    assert relative_error(alpha, "accurate") == 0.0


def test_legacy_loses_bits_for_large_matrices() -> None:
    errors = [relative_error(2.0**s / 3, "legacy") for s in (1, 12, 30, 56)]
    assert errors == sorted(errors)
    assert errors[1] > 1e-13
    assert errors[2] > 1e-9
    assert errors[3] > 0.1
    assert all(relative_error(2.0**s / 3, "norm") < 1e-15 for s in (1, 12, 30, 56))


# Special values

SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5, 1e308])


@pytest.mark.parametrize("scaling", reference.SCALINGS)
@given(ab=operands(SPECIAL), num_moduli=st.integers(2, 20))
def test_special_values_are_those_of_ieee_products(ab, num_moduli, scaling) -> None:
    a, b = ab
    c = reference.matmul(a, b, num_moduli, scaling)
    calm_a, calm_b = (
        [[x if math.isfinite(x) else 0.0 for x in row] for row in x] for x in ab
    )
    calm = reference.matmul(calm_a, calm_b, num_moduli, scaling)
    rounded = reference.exact_product(a, b)
    for i, row in enumerate(a):
        for j, column in enumerate(columns_of(b)):
            pairs = list(zip(row, column, strict=True))
            if all(map(math.isfinite, row + column)):
                assert bits([[c[i][j]]]) == bits([[calm[i][j]]])
                continue
            want = sum(x * y for x, y in pairs if not all(map(math.isfinite, (x, y))))
            if math.isnan(want):
                assert bits([[c[i][j]]]) == [["7ff8000000000000"]]
            else:
                assert c[i][j] == want
            assert bits([[rounded[i][j]]]) == bits([[c[i][j]]])


def test_non_finite_rows_leave_the_others_alone() -> None:
    a, b = [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]
    for scaling, bad in itertools.product(reference.SCALINGS, (math.nan, math.inf)):
        c = reference.matmul([[1.0, bad], [3.0, 4.0]], b, 15, scaling)
        assert c[1] == reference.matmul(a, b, 15, scaling)[1] == [43.0, 50.0]
        assert not any(map(math.isfinite, c[0]))


# Shapes and refusals


@pytest.mark.parametrize("scaling", reference.SCALINGS)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)])
def test_empty_dimensions(shape, scaling: str) -> None:
    m, k, n = shape
    c = reference.matmul(np.ones((m, k)), np.ones((k, n)), 15, scaling)
    assert c == [[0.0] * n for _ in range(m)]


def test_arrays_and_nested_lists_are_the_same() -> None:
    a, b = np.arange(6).reshape(2, 3) / 7, np.arange(12, dtype=np.float32).reshape(3, 4)
    want = reference.matmul(a.tolist(), b.tolist(), 15)
    assert bits(reference.matmul(a, b, 15)) == bits(want)
    assert bits(reference.matmul(a[::-1], b[:, ::-1], 15)[::-1]) == bits(
        [row[::-1] for row in want]
    )
    assert reference.row_vectors(a) == a.tolist()
    assert reference.column_vectors(b) == b.T.tolist()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1.0, 2.0]], [[1.0]]),
        ([[1.0], [1.0, 2.0]], [[1.0]]),
        (np.ones((0, 3)), np.ones((4, 2))),
        (np.ones(3), np.ones((3, 2))),
        (np.ones((1, 2, 3)), np.ones((3, 2))),
    ],
)
def test_shapes_that_do_not_fit(a, b) -> None:
    for function in (reference.exact_product, reference.exact_fractions):
        with pytest.raises(ShapeError):
            function(a, b)
    with pytest.raises(ShapeError):
        reference.matmul(a, b, 15)
    with pytest.raises(ShapeError):
        reference.scaling_exponents(a, b, 15)


def test_options_out_of_range() -> None:
    one = [[1.0]]
    for function in (reference.matmul, reference.scaling_exponents):
        with pytest.raises(OptionError, match="num_moduli=1"):
            function(one, one, 1)
        with pytest.raises(OptionError, match="scaling='fast'"):
            function(one, one, 15, "fast")
    with pytest.raises(OptionError, match="num_moduli=50"):
        reference.residues([[1]], 50)
    with pytest.raises(OptionError, match="num_moduli=1"):
        reference.reconstruct([[[1]]], [0], [0])
    with pytest.raises(OptionError, match="b=inf"):
        reference.exact_fractions(one, [[math.inf]])


def test_helpers_of_this_file_notice_differences() -> None:
    assert bits([[0.0]]) != bits([[-0.0]])
    assert bits([[1.0]]) != bits([[math.nextafter(1.0, 2.0)]])
    assert literal_round(Fraction(1, 3)) == 1 / 3
    assert literal_round(-(Fraction(2) ** 1024)) == -math.inf
