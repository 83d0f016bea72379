"""Scheme "slices" on the CUDA engine against Python integers, bit for bit.

As `test_cuda`, with the kernels compiled for the CPU, and on a GPU where there is one.
"""

import random
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out, without_memory_once
from hypothesis import given, settings
from hypothesis import strategies as st
from np_ozaki._kernels.render import Sums

from np_ozaki.engines import cuda_slices, cuda_stages, prepared
from np_ozaki.engines.base import Cut, Outcome
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda_lines import Facts, Operands
from np_ozaki.errors import WorkspaceError
from np_ozaki.numerics import reference, slice_reference
from np_ozaki.numerics import slicing as rules
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import REGIMES, assert_same_bits, operands

CPU = CpuEngine(1)

SCATTERED = ((0, 0), (0, 2), (2, 0), (2, 1), (2, 2))
"""Two of these of one weight do not follow each other."""

# One text of each kind: each is compiled, so there are few.
SLICINGS = (
    Slicing(),
    Slicing(accumulate="float64"),
    Slicing(16, 8, "all"),
    Slicing(9, 7, "all"),
    Slicing(10, 6, accumulate="float64"),
    Slicing(3, 5, SCATTERED),
    Slicing(1, 2),
)
ORDINARY = SLICINGS[0]

FEW_SLICINGS = [
    pytest.param(slicing, marks=() if i in {0, 2} else pytest.mark.slow)
    for i, slicing in enumerate(SLICINGS)
]
"""Each takes a compiler; the others are for the whole suite."""

# Simulated products are slow: a share of the examples of a profile.
few = settings(max_examples=max(12, settings.default.max_examples // 5))

slicings = st.sampled_from(SLICINGS)
layouts = st.sampled_from(sorted(LAYOUTS))
regimes = st.sampled_from(REGIMES)
seeds = st.integers(0, 2**32)


def expected(a, b, slicing):
    """Return the contract's product of a batch, and the outcome on the CPU engine."""
    batch = max(a.shape[0], b.shape[0])
    out = np.empty((batch, a.shape[1], b.shape[2]))
    for h in range(batch):
        x, y = a[h % a.shape[0]].tolist(), b[h % b.shape[0]].tolist()
        out[h] = slice_reference.matmul_by_slices(x, y, slicing)
    outcome = CPU.matmul(a, b, np.empty(out.shape), slicing)
    return out, outcome


def check(
    place,
    a,
    b,
    slicing=ORDINARY,
    *,
    layout=("C", "C", "C"),
    host=False,
    engine=None,
    workspace=None,
) -> Outcome:
    """Assert that a product has the contract's bits; return its outcome."""
    want, outcome = expected(a, b, slicing)
    own = np.array if host else place.own
    left, right = (
        laid_out(own, x, name) for x, name in zip((a, b), layout, strict=False)
    )
    out = laid_out(own, np.full(want.shape, POISON), layout[2])
    found = (engine or place.engine).matmul(
        left, right, out, slicing, workspace_bytes=workspace
    )
    assert_same_bits(out if host else place.host(out), want)
    assert found.missing_bits is None
    if host:
        flags = found.overflow, found.invalid
        assert flags == (outcome.overflow, outcome.invalid)
    return found


@contextmanager
def sums_up_to(limit, *places):
    """Let int32 sums hold less: wrap on the simulated device, promise so everywhere."""
    kept = rules.EXACT_SUM
    simulated = [
        engine.device
        for place in places
        for engine in place.engines()
        if place.name == "simulated"
    ]
    rules.EXACT_SUM = limit
    for device in simulated:
        device.accumulator_bits = limit.bit_length() + 1
    try:
        yield
    finally:
        rules.EXACT_SUM = kept
        for device in simulated:
            device.accumulator_bits = 32


# ---- Stages slice_exponents and slices ---------------------------------------------


def stages_of(place, x, layout, slicing, *, left):
    """Return facts and slices, which one read of lines finds as two do."""
    found = []
    for engine in (place.engine, place.unfused):
        operand = Operands(laid_out(place.own, x, layout), engine.device)
        both = cuda_slices.facts_and_slices(engine, operand, slicing, left=left)
        words, planes = place.host(both[0].words), place.host(both[1])
        # Sums are nobody's business.
        found.append((words[[0, 3]], planes))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    return found[0]


@pytest.mark.parametrize("slicing", FEW_SLICINGS, ids=str)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    ("lines", "k", "layout"),
    [
        (3, 17, "C"),
        (17, 3, "F"),
        # More than one block takes of a line.
        (2, 4100, "spread"),
        (2, 530, "reversed F"),
    ],
)
def test_digits_of_lines_and_their_padding(place, slicing, left, lines, k, layout):
    rng = np.random.default_rng(k)
    x = entries(rng, (2, lines, k), "wide")
    x[0, 0, 0], x[1, 1, :2], x[1, 0] = 0.0, (np.nan, -np.inf), 0.0
    x[0, 1, -1] = x[0, 1].max() * 2.0**-53
    words, planes = stages_of(place, x, layout, slicing, left=left)
    special, exponents = words[1].view(np.int32).reshape(2, 2, lines)
    assert np.array_equal(special, np.isinf(x).any(2) + 2 * np.isnan(x).any(2))
    count = slicing.num_slices
    shape = (2, -(-lines // 16) * 16, count, -(-k // 16) * 16)
    planes = planes.reshape(shape)
    finite = np.where(np.isfinite(x), x, 0.0)
    for h in range(2):
        vectors = finite[h].tolist()
        mu = slice_reference.slice_exponents(vectors, slicing)
        assert exponents[h].tolist() == mu
        rows = reference.integers(vectors, mu)
        digits = np.array(slice_reference.slices(rows, slicing))
        if not left:
            digits = digits[::-1]
        assert np.array_equal(planes[h, :lines, :, :k].swapaxes(0, 1), digits)
    outside = planes.copy()
    outside[:, :lines, :, :k] = 0
    assert not outside.any()


@pytest.mark.parametrize("layout", ["C", "F"])
def test_the_last_bit_of_the_largest_entry_decides(place, layout):
    # One block of several finds it.
    most = ORDINARY.largest_mantissa
    x = np.full((1, 3, 4200), float(most - 1))
    x[0, 0, 4150], x[0, 1, 100], x[0, 2, 7] = most, -(most + 1), most + 1
    words, _ = stages_of(place, x, layout, ORDINARY, left=True)
    exponents = words[1].view(np.int32).reshape(2, 3)[1]
    assert exponents.tolist() == [10, 9, 9]


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("slicing", [ORDINARY, SLICINGS[2]], ids=str)
def test_exponents_of_subnormal_lines(place, layout, slicing):
    rng = np.random.default_rng(1)
    x = entries(rng, (1, 4, 20), "subnormal")
    x[0, 0] = 0.0
    x[0, 0, 3] = -5e-324
    x[0, 1] *= 2.0**40
    words, _ = stages_of(place, x, layout, slicing, left=False)
    exponents = words[1].view(np.int32).reshape(2, 4)[1]
    want = slice_reference.slice_exponents(x[0].tolist(), slicing)
    assert exponents.tolist() == want
    check(place, x, x.swapaxes(1, 2), slicing)


# ---- Stage recombine ---------------------------------------------------------------


def facts_from(place, exponents):
    words = np.zeros((4, *exponents.shape), np.uint64)
    words[3].reshape(-1).view(np.int32).reshape(2, *exponents.shape)[1] = exponents
    return Facts(place.own(words))


RECOMBINATIONS = [
    Sums(8, (7, 8, 9, 10, 11, 12, 13, 14), False, "exact", True),
    Sums(8, (7, 7, 9, 14, 14, 14), False, "exact", True),
    Sums(7, (0, 1, 9), True, "exact", True),
    Sums(2, (3,), False, "exact", True),
    Sums(8, (0, 15, 30), True, "exact", True),
    Sums(8, (7, 7, 9, 14, 14, 14), False, "float64"),
    Sums(8, (0, 15, 30), True, "float64"),
]
FEW_RECOMBINATIONS = [
    pytest.param(variant, marks=() if i in {0, 4, 5} else pytest.mark.slow)
    for i, variant in enumerate(RECOMBINATIONS)
]


@pytest.mark.parametrize("variant", FEW_RECOMBINATIONS, ids=str)
@pytest.mark.parametrize("layout", ["C", "spread F"])
def test_recombine(place, variant, layout):
    b, weights = variant.bits_per_slice, variant.weights
    rng = random.Random(str(variant))
    top = 2**63 if variant.wide else 2**31
    shape = (len(weights), 2, 19, 37)
    kind = np.int64 if variant.wide else np.int32
    sums = np.full(shape, 0x5A5A5A5A, kind)
    mu = np.array([[0, 3, -2000], [500, 560, 40]])
    nu = np.array([[0, 1, 2, 2000, -9], [510, 515, 530, 600, -900]])
    want, low = np.empty((2, 3, 5)), np.empty((2, 3, 5))
    for h, i, j in np.ndindex(2, 3, 5):
        parts = [
            rng.choice([0, top - 1, -top, rng.randrange(-top, top), rng.randrange(99)])
            for _ in weights
        ]
        # What is left of the largest of two that cancel; all the same; all 0.
        if (i, j) == (1, 1):
            parts = [-1] * len(weights)
        elif (i, j) == (1, 2):
            parts = [0] * len(weights)
        sums[:, h, i, j] = parts
        shift = -int(mu[h, i] + nu[h, j])
        value = sum(x << b * w for x, w in zip(parts, weights, strict=True))
        if variant.accumulate == "exact":
            want[h, i, j] = reference.round_to_double(value, shift)
            rest = value * Fraction(2) ** shift
            if np.isfinite(want[h, i, j]):
                rest -= Fraction(want[h, i, j])
                f = rest.numerator * 2**4000 // rest.denominator
                low[h, i, j] = reference.round_to_double(f, -4000)
            else:
                low[h, i, j] = 0.0
            continue
        total = 0.0
        for w in sorted(set(weights)):
            part = sum(x for x, y in zip(parts, weights, strict=True) if y == w)
            total += reference.round_to_double(part, b * w)
        f, e = reference.mantissa(total)
        want[h, i, j] = reference.round_to_double(f, e + shift)
    device = place.engine.device
    left = Operands(place.own(np.ones((2, 3, 1))), device)
    right = Operands(place.own(np.ones((2, 5, 1))), device)
    out, rest = (
        laid_out(place.own, np.full(want.shape, POISON), layout) for _ in range(2)
    )
    flags = place.own(np.zeros(1, np.int32))
    facts = facts_from(place, mu), facts_from(place, nu)
    cuda_slices.recombine(
        place.engine,
        place.own(sums),
        left,
        right,
        facts,
        variant,
        out,
        flags,
        rest if variant.with_low else None,
    )
    assert np.isinf(want).any()
    assert_same_bits(place.host(out), want)
    assert place.host(flags)[0] == 1
    if variant.with_low:
        assert np.array_equal(place.host(rest), low)


def test_rows_beyond_the_largest_grid_are_reached_in_steps(place, monkeypatch):
    monkeypatch.setattr(cuda_stages, "_MOST_BLOCKS", 2)
    monkeypatch.setattr(cuda_stages, "_ROWS_A_THREAD", 1)
    rng = np.random.default_rng(6)
    check(place, entries(rng, (2, 300, 3), "wide"), entries(rng, (2, 3, 5), "wide"))


# ---- Planes of sums ----------------------------------------------------------------


def test_planes_of_sums_hold_what_they_are_asked_to():
    for slicing in (*SLICINGS, Slicing(8, 7), Slicing(16, 2, "all")):
        largest = 4 ** (slicing.bits_per_slice - 1)
        for k in (1, 255, 2**13, 2**14, 2**15, 2**16, 2**17 - 1, 2**17, 10**6, 2**31):
            planes = cuda_slices.planes_of(slicing, k)
            sums = dict.fromkeys((each.weight for each in slicing.diagonals), 0)
            pairs = {each.weight: set() for each in slicing.diagonals}
            for part in planes.parts:
                sums[part.weight] += 1
                for first, count in part.runs:
                    new = set(range(first, first + count))
                    assert not new & pairs[part.weight]
                    pairs[part.weight] |= new
                if not planes.wide:
                    assert part.num_pairs * k * largest <= rules.EXACT_SUM
            assert pairs == {
                each.weight: {
                    i for first, count in each.runs for i in range(first, first + count)
                }
                for each in slicing.diagonals
            }
            assert min(sums.values()) == 1
            assert [x.weight for x in planes.parts] == sorted(
                x.weight for x in planes.parts
            )
            assert planes.wide or planes.exact_k == k
            assert planes.sums_bytes <= 8 * len(sums) + 4
            if planes.wide:
                assert planes.exact_k * largest <= rules.EXACT_SUM
                assert planes.exact_k % 16 == 0


def test_one_call_a_weight_where_int32_holds_the_sum(place, monkeypatch):
    calls = []
    device = place.engine.device
    real = device.gemm

    def gemm(left, right, out, *, accumulate):
        calls.append((left.shape[2], accumulate))
        real(left, right, out, accumulate=accumulate)

    monkeypatch.setattr(device, "gemm", gemm)
    rng = np.random.default_rng(2)
    a, b = entries(rng, (1, 3, 30), "wide"), entries(rng, (1, 30, 4), "wide")
    check(place, a, b)
    assert calls == [(32 * pairs, False) for pairs in range(8, 0, -1)]
    calls.clear()
    check(place, a, b, SLICINGS[5])
    # Weights 0, 1, 2 and 4: two runs, of one pair each, add to the sum of weight 2.
    assert calls == [(32, False)] * 3 + [(32, True), (32, False)]


# ---- Products ----------------------------------------------------------------------


@few
@given(st.data(), slicings)
def test_products_equal_the_contract(place, data, slicing):
    a, b = data.draw(operands())
    check(place, a[np.newaxis], b[np.newaxis], slicing)


@few
@given(st.data(), slicings, seeds, regimes, regimes)
def test_products_of_every_layout_and_batch(place, data, slicing, seed, one, other):
    rng = np.random.default_rng(seed)
    sides = st.integers(1, 6)
    m, n, k = data.draw(sides), data.draw(sides), data.draw(st.integers(1, 20))
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (1, 3)]))
    layout = data.draw(st.tuples(layouts, layouts, layouts))
    a = entries(rng, (batches[0], m, k), one)
    b = entries(rng, (batches[1], k, n), other)
    engine = data.draw(st.sampled_from(place.engines()))
    host = data.draw(st.booleans())
    check(place, a, b, slicing, layout=layout, host=host, engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("b", range(2, 9))
@pytest.mark.parametrize("s", range(1, 17))
def test_every_number_of_slices(place, s, b):
    rng = np.random.default_rng(s)
    x, y = entries(rng, (1, 4, 9), "wide"), entries(rng, (1, 9, 5), "ordinary")
    for pairs in ("triangular", "all"):
        check(place, x, y, Slicing(s, b, pairs))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 19, 1), (17, 1, 16), (16, 33, 17)])
def test_shapes_at_and_beside_the_padding(place, shape):
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = entries(rng, (1, m, k), "ordinary"), entries(rng, (1, k, n), "wide")
    check(place, a, b, layout=("C", "C", "F"))


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0), (1, 0, 0, 0)]
)
def test_empty_products(place, shape, host):
    batch, m, k, n = shape
    own = np.array if host else place.own
    out, low = (own(np.full((batch, m, n), POISON)) for _ in range(2))
    a, b = own(np.ones((batch, m, k))), own(np.ones((batch, k, n)))
    place.engine.matmul(a, b, out, ORDINARY, low=low)
    for x in (out, low):
        assert_same_bits(x if host else place.host(x), np.zeros((batch, m, n)))


@pytest.mark.parametrize("batches", [(4, 1), (1, 4), (4, 4)])
@pytest.mark.parametrize("slicing", [ORDINARY, SLICINGS[5]], ids=str)
def test_batches_equal_their_matrices(place, batches, slicing):
    rng = np.random.default_rng(7)
    a = entries(rng, (batches[0], 3, 5), "wide")
    b = entries(rng, (batches[1], 5, 4), "wide")
    # Each matrix has its own largest entry, so that no exponent serves another.
    a *= np.ldexp(1.0, 10 * np.arange(batches[0]))[:, np.newaxis, np.newaxis]
    b *= np.ldexp(1.0, -7 * np.arange(batches[1]))[:, np.newaxis, np.newaxis]
    check(place, a, b, slicing, layout=("F", "C", "C"))
    check(place, a, b, slicing, layout=("C", "batch last", "F"), engine=place.unfused)


@pytest.mark.parametrize(
    ("s", "t"),
    [(-1074, 0), (-1060, 1000), (1000, -1060), (-540, -535), (1010, 13), (1020, -1070)],
)
@pytest.mark.parametrize("slicing", SLICINGS[:3], ids=str)
def test_scales_from_subnormal_to_overflow(place, s, t, slicing):
    rng = np.random.default_rng(9)
    with np.errstate(all="ignore"):
        a = np.ldexp(rng.integers(-9, 9, (1, 4, 6)).astype(float), s)
        b = np.ldexp(entries(rng, (1, 6, 5), "ordinary"), t)
    check(place, a, b, slicing, host=True)


@pytest.mark.parametrize("slicing", SLICINGS[:2], ids=str)
def test_underflow_keeps_the_sign_and_zero_is_positive(place, slicing):
    a = np.array([[[2.0**-600], [0.0], [-0.0]]])
    b = np.array([[[-(2.0**-600), 3.0]]])
    check(place, a, b, slicing)


def test_the_largest_digits(place):
    # Every product of digits is the largest one, and all of them have one sign.
    top = float(ORDINARY.largest_mantissa)
    a, b = np.full((1, 3, 40), -top), np.full((1, 40, 2), top)
    for slicing in (ORDINARY, Slicing(8, 8, "all"), Slicing(accumulate="float64")):
        check(place, a, b, slicing)


# ---- NaN, Inf, exceptions ----------------------------------------------------------

special_entries = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e300, 5e-324]


@few
@given(st.data(), seeds, st.floats(0.1, 1.0), st.booleans())
def test_special_values(place, data, seed, share, host):
    rng = np.random.default_rng(seed)
    side = st.integers(1, 5)
    m, k, n = data.draw(side), data.draw(side), data.draw(side)
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (1, 3)]))
    pair = []
    for shape in ((batches[0], m, k), (batches[1], k, n)):
        x = entries(rng, shape, "ordinary")
        odd = rng.choice(special_entries, shape)
        pair.append(np.where(rng.random(shape) < share, odd, x))
    slicing = data.draw(st.sampled_from(SLICINGS[:3]))
    layout = data.draw(st.tuples(layouts, layouts, layouts))
    check(place, *pair, slicing, layout=layout, host=host)


# ---- What the rounding leaves ------------------------------------------------------


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("slicing", [ORDINARY, SLICINGS[2]], ids=str)
def test_rest_of_the_rounding(place, host, slicing):
    rng = np.random.default_rng(11)
    a, b = entries(rng, (2, 5, 20), "wide"), entries(rng, (2, 20, 4), "ordinary")
    a[1, 2, 3] = np.inf
    want, rest = np.empty((2, 5, 4)), np.empty((2, 5, 4))
    CPU.matmul(a, b, want, slicing, low=rest)
    for layout in ("C", "F"):
        own = np.array if host else place.own
        out, low = (
            laid_out(own, np.full(want.shape, POISON), layout) for _ in range(2)
        )
        place.engine.matmul(own(a), own(b), out, slicing, low=low)
        found = (out, low) if host else map(place.host, (out, low))
        for x, y in zip(found, (want, rest), strict=True):
            assert np.array_equal(x, y, equal_nan=True)


# ---- Tiles and blocks of k ---------------------------------------------------------


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("slicing", FEW_SLICINGS, ids=str)
def test_tiles_in_every_direction(place, slicing, host):
    rng = np.random.default_rng(12)
    a, b = entries(rng, (2, 40, 70), "wide"), entries(rng, (2, 70, 33), "wide")
    outcome = check(place, a[:, :6], b[:, :, :5], slicing, host=host, workspace=1)
    assert outcome.tiles == 2 * 6 * 5
    whole = check(place, a[:1], b[:1], slicing, host=host).workspace_bytes
    outcome = check(place, a[:1], b[:1], slicing, host=host, workspace=whole // 2)
    assert outcome.tiles > 1
    assert outcome.workspace_bytes <= whole // 2


@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("slicing", [ORDINARY, *SLICINGS[4:6]], ids=str)
@pytest.mark.parametrize(
    ("limit", "wide"), [(2**20 - 1, False), (2**19 - 1, True), (2**18 - 1, True)]
)
def test_sums_beyond_int32(place, batches, slicing, limit, wide):
    # Bytes of 8 bits: of 20 entries 3 pairs, one pair, none.
    if slicing.bits_per_slice < 8:
        limit >>= 2 * (8 - slicing.bits_per_slice)
    rng = np.random.default_rng(13)
    top = float(slicing.largest_mantissa)
    a = entries(rng, (batches[0], 4, 20), "wide")
    b = entries(rng, (batches[1], 20, 3), "same sign")
    a[:, 1], b[:, :, 2] = top, top
    a[:, 2] = 1 - 2.0**-9
    with sums_up_to(limit, place):
        planes = cuda_slices.planes_of(slicing, 20)
        if slicing is ORDINARY:
            assert planes.wide == wide
            assert wide or len(planes.parts) > 8
        check(place, a, b, slicing)
        check(place, a, b, slicing, workspace=1)


def test_blocks_of_k_where_planes_do_not_fit(place):
    rng = np.random.default_rng(14)
    a, b = entries(rng, (1, 2, 900), "wide"), entries(rng, (1, 900, 3), "wide")
    for layout in (("C", "C", "C"), ("F", "F", "F")):
        for workspace in (20_000, 1):
            check(place, a, b, layout=layout, workspace=workspace)


def test_a_product_of_a_weight_never_passes_int32(place):
    # The longest k that a single pair is exact for, and one more.
    longest = rules.EXACT_SUM >> 14
    for k in (longest, longest + 1):
        a, b = np.full((1, 1, k), -128.0), np.full((1, k, 1), -128.0)
        slicing = Slicing(2, 8, ((1, 1),))
        a[:, :, 0], b[:, 0] = 2.0**7, 2.0**7
        check(place, a, b, slicing)


# ---- How it is cut -----------------------------------------------------------------


def test_cut(place):
    size = (1, 8192, 8192, 8192)
    cut = place.engine.cut(
        size, ORDINARY, certified=False, checked=False, workspace_bytes=1 << 40
    )
    assert cut.num_gemms == 36
    none = place.engine.cut(
        (1, 0, 3, 4), ORDINARY, certified=False, checked=False, workspace_bytes=None
    )
    assert none == Cut(0, 0, 0)


@pytest.mark.parametrize(("size", "most"), [(8192, 2), (16384, 6)])
def test_memory_of_a_large_product(size, most):
    planes = cuda_slices.planes_of(ORDINARY, size)
    tiles = cuda_slices._tiles(
        (1, *3 * [size]), ORDINARY, planes, 1 << 40, host=False, word=8
    )
    assert (tiles.m, tiles.n, tiles.k) == (size, 4096, size)
    assert tiles.workspace_bytes < most * 10**9


# ---- Memory ------------------------------------------------------------------------


def test_smaller_tiles_where_memory_is_short(place, monkeypatch):
    rng = np.random.default_rng(15)
    a, b = entries(rng, (1, 90, 60), "wide"), entries(rng, (1, 60, 50), "wide")
    x, y = place.own(a), place.own(b)
    out = place.own(np.full((1, 90, 50), POISON))
    failed = without_memory_once(monkeypatch, place.engine.device)
    outcome = place.engine.matmul(x, y, out, ORDINARY)
    assert failed
    assert outcome.tiles > 1
    want = np.empty((1, 90, 50))
    CPU.matmul(a, b, want, ORDINARY)
    assert_same_bits(place.host(out), want)

    def nothing(*_):
        raise MemoryError

    monkeypatch.setattr(place.engine.device, "empty", nothing)
    with pytest.raises(WorkspaceError, match="no memory"):
        place.engine.matmul(x, y, out, ORDINARY)


def test_prepared_slices_are_made_once(place, monkeypatch):
    made = []
    real = cuda_slices.facts_and_slices

    def counted(stages, operand, slicing, *, left):
        made.append(left)
        return real(stages, operand, slicing, left=left)

    monkeypatch.setattr(cuda_slices, "facts_and_slices", counted)
    rng = np.random.default_rng(16)
    a, b = entries(rng, (2, 5, 9), "wide"), entries(rng, (2, 9, 4), "wide")
    want, _ = expected(a, b, ORDINARY)
    x, y = map(place.own, (a, b))
    pair = prepared.Prepared(), prepared.Prepared()

    def product(slicing, out_layout="C"):
        out = laid_out(place.own, np.full(want.shape, POISON), out_layout)
        place.engine.matmul(x, y, out, slicing, prepared=pair)
        return place.host(out)

    assert_same_bits(product(ORDINARY), want)
    assert sorted(made) == [False, True]
    assert_same_bits(product(ORDINARY), want)
    # Pairs and recombination make no difference to slices.
    other, _ = expected(a, b, Slicing(accumulate="float64"))
    assert_same_bits(product(Slicing(accumulate="float64")), other)
    assert sorted(made) == [False, True]
    other, _ = expected(a, b, SLICINGS[3])
    assert_same_bits(product(SLICINGS[3]), other)
    assert len(made) == 4
    for each in pair:
        each.close()
    assert_same_bits(product(ORDINARY), want)
    assert len(made) == 6


@pytest.fixture
def nothing_kept():
    prepared.drop_prepared("simulated:0")


def test_prepared_slices_of_a_transposed_result(place, nothing_kept):
    # A of C^T is B^T: its slices come in the other order.
    rng = np.random.default_rng(17)
    a, b = entries(rng, (1, 5, 9), "wide"), entries(rng, (1, 9, 4), "wide")
    want, _ = expected(a, b, ORDINARY)
    x, y = map(place.own, (a, b))
    pair = prepared.Prepared(), prepared.Prepared()
    for layout in ("C", "F", "C", "F"):
        out = laid_out(place.own, np.full(want.shape, POISON), layout)
        place.engine.matmul(x, y, out, ORDINARY, prepared=pair)
        assert_same_bits(place.host(out), want)
