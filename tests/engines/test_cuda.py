"""The CUDA engine against the CPU engine and exact integers, bit for bit.

Every test runs with the kernels compiled for the CPU, and on a GPU where there is one.
"""

import math
import random
from contextlib import contextmanager
from fractions import Fraction

import devices
import numpy as np
import pytest
import simt
from devices import LAYOUTS, POISON, entries, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st
from np_ozaki._kernels.render import Variant, limit_words

import np_ozaki
from np_ozaki import tiling
from np_ozaki.engines import choice, cuda, cuda_certificate, cuda_lines, cuda_stages
from np_ozaki.engines.base import Outcome, Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.engines.cuda_stages import Stages
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import MODULI, balanced_residue, product_bound
from np_ozaki.testing import REGIMES, assert_same_bits, operands

CPU = CpuEngine(1)
SCALINGS = ("norm", "accurate", "legacy")

# One text of each kind: narrow and wide integers, one word and many, with and without
# the certificate's plane.  Each is compiled, so there are few.
VARIANTS = (
    Variant(15, "norm", True),
    Variant(2, "norm", False),
    Variant(20, "accurate", False),
    Variant(15, "legacy", False),
    Variant(49, "norm", True),
)
ORDINARY = VARIANTS[0]

# Simulated products are slow: a share of the examples of a profile.
few = settings(max_examples=max(12, settings.default.max_examples // 5))

variants = st.sampled_from(VARIANTS)
layouts = st.sampled_from(sorted(LAYOUTS))
regimes = st.sampled_from(REGIMES)
seeds = st.integers(0, 2**32)


def scheme_of(variant):
    return Scheme(variant.num_moduli, variant.scaling)


def target_of(variant):
    return "conventional" if variant.cut_plane else None


def expected(a, b, variant):
    """Return the CPU engine's result and outcome."""
    out = np.full((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), POISON)
    outcome = CPU.matmul(a, b, out, scheme_of(variant), certify=target_of(variant))
    return out, outcome


def run(engine, a, b, out, variant, workspace=None):
    return engine.matmul(
        a,
        b,
        out,
        scheme_of(variant),
        workspace_bytes=workspace,
        certify=target_of(variant),
    )


def check(
    place,
    a,
    b,
    variant=ORDINARY,
    *,
    layout=("C", "C", "C"),
    host=False,
    engine=None,
    workspace=None,
) -> Outcome:
    """Assert that a product has the CPU engine's bits; return its outcome."""
    want, outcome = expected(a, b, variant)
    own = np.array if host else place.own
    left, right = (
        laid_out(own, x, name) for x, name in zip((a, b), layout, strict=False)
    )
    out = laid_out(own, np.full(want.shape, POISON), layout[2])
    found = run(engine or place.engine, left, right, out, variant, workspace)
    assert_same_bits(out if host else place.host(out), want)
    if variant[2]:
        assert found.missing_bits.tolist() == outcome.missing_bits.tolist()
    else:
        assert found.missing_bits is None
    if host:
        flags = found.overflow, found.invalid
        assert flags == (outcome.overflow, outcome.invalid)
    return found


def matrices(rng, batch, shape, regime):
    return entries(rng, (batch, *shape), regime)


@contextmanager
def short_k_blocks(size):
    """Cut k as if int32 held only so many products."""
    kept = tiling.INT8_K_BLOCK
    tiling.INT8_K_BLOCK = size
    tiling.choose_cuda_tiles.cache_clear()
    try:
        yield
    finally:
        tiling.INT8_K_BLOCK = kept
        tiling.choose_cuda_tiles.cache_clear()


# ---- Stage scaling_exponents -----------------------------------------------------


@few
@given(st.data(), st.sampled_from(SCALINGS), st.integers(2, 49))
def test_scaling_exponents(place, data, scaling, n):
    a, b = data.draw(operands())
    name = data.draw(layouts)
    x, y = (laid_out(place.own, v[np.newaxis], name) for v in (a, b))
    mu, nu = place.engine.scaling_exponents(x, y, n, scaling)
    want = reference.scaling_exponents(a, b, n, scaling)
    assert (mu[0].tolist(), nu[0].tolist()) == tuple(map(list, want))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaling_exponents_of_a_batch_with_special_values(place, scaling):
    rng = np.random.default_rng(1)
    a, b = entries(rng, (3, 4, 9), "wide"), entries(rng, (3, 9, 5), "any")
    a[0, 1], a[1, 2, 3], b[2, :, 1], b[0, 0, 0] = 0.0, np.nan, -np.inf, np.inf
    finite = [np.where(np.isfinite(x), x, 0.0) for x in (a, b)]
    mu, nu = place.engine.scaling_exponents(*map(place.own, (a, b)), 15, scaling)
    want = CPU.scaling_exponents(*finite, 15, scaling)
    assert np.array_equal(mu, want[0])
    assert np.array_equal(nu, want[1])


def facts_of(place, engine, operand, variant, fused):
    if fused:
        facts, planes = engine.fused(operand, variant, scheme_of(variant), left=True)
    else:
        facts = engine.line_facts(operand, scheme_of(variant), left=True)
        planes = engine.residues(operand, facts, variant)
    words = place.host(facts.words)
    return words, place.host(planes)


@pytest.mark.parametrize("layout", ["C", "F", "spread", "reversed"])
@pytest.mark.parametrize("k", [1, 5, 4100])
def test_facts_of_lines(place, layout, k):
    # 4100 is more than one block takes of a line, either way it is read.
    rng = np.random.default_rng(k)
    x = entries(rng, (2, 3, k), "wide")
    x[0, 1] = 0.0
    x[0, 2, k // 2], x[1, 0, -1] = np.nan, np.inf
    x[1, 1, 0] = 5e-324
    if k > 1000:
        # One thread meets both, whichever way the line is read.
        x[1, 2, [3, 11, 515]] = np.nan, np.inf, np.inf
    operand = Operands(laid_out(place.own, x, layout), place.engine.device)
    facts = place.engine.line_facts(operand, Scheme(15), left=True)
    largest, squares, norms, rest = place.host(facts.words)
    special, exponents = rest.view(np.int32).reshape(2, 2, 3)
    for index in np.ndindex(2, 3):
        line = x[index]
        finite = np.where(np.isfinite(line), np.abs(line), 0.0).tolist()
        e = reference._top_exponent(finite)
        # What is kept of an ordinary largest entry has its exponent.
        kept = float(largest.view(np.float64)[index])
        assert math.frexp(kept)[1] == math.frexp(max(finite))[1]
        assert (kept == 0) == (max(finite) == 0)
        want = [0, 0, 0]
        if e is not None:
            want = [
                sum(reference._ceil_scaled(v, 15 - e) ** 2 for v in finite),
                sum(reference._ceil_scaled(v, 15 - e) for v in finite),
                reference._norm_exponent(finite, product_bound(15)),
            ]
        found = [int(squares[index]), int(norms[index]), int(exponents[index])]
        assert found == want, index
        assert special[index] == np.isinf(line).any() + 2 * np.isnan(line).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_read_of_a_line_finds_the_same_as_two(place, variant):
    rng = np.random.default_rng(2)
    x = entries(rng, (2, 3, 600), "wide")
    x[0, 0], x[1, 1, 3] = 0.0, np.inf
    x[1, 2, [3, 11, 515]] = np.nan, np.inf, np.inf
    operand = Operands(place.own(x), place.engine.device)
    fused, planes = facts_of(place, place.engine, operand, variant, True)
    two, others = facts_of(place, place.engine, operand, variant, False)
    assert np.array_equal(fused, two)
    assert np.array_equal(planes, others)


# ---- Stage residues --------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("lines", "k", "layout"), [(3, 17, "C"), (17, 3, "F")])
def test_residues_and_their_padding(place, variant, fused, lines, k, layout):
    num_moduli, scaling, certify = variant[:3]
    rng = np.random.default_rng(k)
    x = entries(rng, (2, lines, k), "ordinary")
    x[0, 0, 0], x[1, 1, :2] = 0.0, (np.nan, -np.inf)
    finite = np.where(np.isfinite(x), x, 0.0)
    operand = Operands(laid_out(place.own, x, layout), place.unfused.device)
    words, planes = facts_of(place, place.unfused, operand, variant, fused)
    exponents = words[3].view(np.int32).reshape(2, 2, lines)[1]
    shape = (num_moduli + certify, 2, tiling.padded(lines), tiling.padded(k))
    assert planes.shape == shape
    inside = planes[:, :, :lines, :k]
    for h in range(2):
        rows = reference.integers(
            finite[h].tolist(), exponents[h].tolist(), truncate=scaling == "legacy"
        )
        for plane, p in zip(inside[:num_moduli, h], MODULI, strict=False):
            want = [[balanced_residue(v, p) for v in row] for row in rows]
            assert plane.tolist() == want, p
    if certify:
        tops = np.frexp(np.abs(finite).max(axis=2, keepdims=True))[1] - 1
        want = np.floor(np.ldexp(np.abs(finite), 6 - tops))
        assert np.array_equal(inside[-1], want)
    outside = planes.copy()
    outside[:, :, :lines, :k] = 0
    assert not outside.any()


def test_residues_of_lines_longer_than_a_chunk(place):
    rng = np.random.default_rng(3)
    for layout, k in (("C", 4100), ("F", 130)):
        x = entries(rng, (1, 2, k), "wide")
        operand = Operands(laid_out(place.own, x, layout), place.unfused.device)
        words, planes = facts_of(place, place.unfused, operand, ORDINARY, False)
        exponents = words[3].view(np.int32).reshape(2, 2)[1].tolist()
        rows = np.array(reference.integers(x[0].tolist(), exponents), dtype=object)
        for plane, p in zip(planes[:15, 0, :2, :k], MODULI, strict=False):
            assert np.array_equal(plane, (rows + p // 2) % p - p // 2)
        assert not planes[:, :, 2:].any()
        assert not planes[:, :, :, k:].any()


# ---- Stage residue_gemm ----------------------------------------------------------


def bytes_of(rng, shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("batches", [(1, 1), (3, 3), (3, 1), (1, 3)])
def test_residue_gemm_folds_and_accumulates(place, batches):
    rng = np.random.default_rng(4)
    left = bytes_of(rng, (2, batches[0], 16, 32))
    right = bytes_of(rng, (2, batches[1], 48, 32))
    exact = np.matmul(left.astype(int), right.astype(int).swapaxes(2, 3))
    x, y = place.own(left), place.own(right)
    engine = place.engine
    products = engine.residue_gemm(x, y)
    assert np.array_equal(place.host(engine.per_matrix(products, x, y)), exact)
    again = engine.residue_gemm(x, y, products, accumulate=True)
    assert np.array_equal(place.host(engine.per_matrix(again, x, y)), 2 * exact)
    anew = engine.residue_gemm(x, y, again)
    assert np.array_equal(place.host(engine.per_matrix(anew, x, y)), exact)


def test_residue_gemm_wraps_at_32_bits(place):
    # Residues modulo 256 of the longest block: -128^2 2^17 = 2^31.
    left = np.full((1, 1, 16, 1 << 17), -128, np.int8)
    right = left.copy()
    right[:, :, 1] = 127
    x, y = place.own(left), place.own(right)
    products = place.host(place.engine.residue_gemm(x, y))[0, 0]
    assert products[0, 0] == -(2**31)
    assert products[0, 1] == -128 * 127 * 2**17


# ---- Stage reduce ----------------------------------------------------------------


@pytest.mark.parametrize("variant", [ORDINARY, Variant(2, "norm", False)])
def test_reduce_leaves_the_plane_of_a_certificate(place, variant):
    planes = variant[0] + variant[2]
    rng = np.random.default_rng(5)
    values = rng.integers(-(2**31), 2**31, (planes, 1, 9, 31)).astype(np.int32)
    values[:, 0, 0, :4] = -(2**31), 2**31 - 1, 0, -1
    products = place.own(values)
    place.engine.reduce(products, variant)
    found = place.host(products)
    for index, p in enumerate(MODULI[: variant[0]]):
        assert not ((found[index].astype(int) - values[index]) % p).any()
        assert np.abs(found[index]).max() <= p // 2
    if variant[2]:
        assert np.array_equal(found[-1], values[-1])


# ---- Stage reconstruct -----------------------------------------------------------


def facts_from(place, exponents, special=None):
    """Return facts that hold nothing but exponents and flags."""
    words = np.zeros((4, *exponents.shape), np.uint64)
    small = words[3].reshape(-1).view(np.int32).reshape(2, *exponents.shape)
    small[1] = exponents
    if special is not None:
        small[0] = special
    return cuda_lines.Facts(place.own(words))


def products_of(values, num_moduli, rng, padding):
    """Return int32 products of integers, any representatives, among garbage."""
    batch, m, n = values.shape
    shape = (num_moduli, batch, m + padding, n + padding)
    products = np.full(shape, 0x5A5A5A5A, np.int32)
    for index, p in enumerate(MODULI[:num_moduli]):
        for at, value in np.ndenumerate(values):
            residue = value % p
            products[(index, *at)] = residue + p * rng.randint(-1000, 1000)
    return products


@pytest.mark.parametrize(
    "variant", [ORDINARY, Variant(2, "norm", False), Variant(49, "norm", True)]
)
@pytest.mark.parametrize("layout", ["C", "F", "spread"])
def test_reconstruct(place, variant, layout):
    num_moduli = variant[0]
    bound = product_bound(num_moduli)
    rng = random.Random(num_moduli)
    values = np.empty((2, 3, 5), dtype=object)
    for at in np.ndindex(values.shape):
        values[at] = rng.choice([0, bound, -bound, rng.randint(-bound, bound)])
    values[0, 2, :3] = bound, -bound, 1
    mu = np.array([[0, 3, -2000], [500, 560, 40]])
    nu = np.array([[0, 1, 2, 2000, -9], [510, 515, 530, 600, -900]])
    products = place.own(products_of(values, num_moduli, rng, 11))
    left = Operands(place.own(np.ones((2, 3, 1))), place.engine.device)
    right = Operands(place.own(np.ones((2, 5, 1))), place.engine.device)
    out = laid_out(place.own, np.full(values.shape, POISON), layout)
    flags = place.own(np.zeros(1, np.int32))
    facts = facts_from(place, mu), facts_from(place, nu)
    place.engine.reconstruct(products, left, right, facts, variant, out, flags)
    want = np.array(
        [
            [
                [
                    reference.round_to_double(
                        values[h, i, j], -int(mu[h, i] + nu[h, j])
                    )
                    for j in range(5)
                ]
                for i in range(3)
            ]
            for h in range(2)
        ]
    )
    assert np.isinf(want).any()
    assert_same_bits(place.host(out), want)
    assert place.host(flags)[0] == 1
    if layout == "spread":
        whole = place.host(out if out.base is None else out.base)
        kept = whole.reshape(2, 6, 15).copy()
        kept[:, ::2, 1::3] = POISON
        assert_same_bits(kept, np.full(kept.shape, POISON))


def test_rows_beyond_the_largest_grid_are_reached_in_steps(place, monkeypatch):
    monkeypatch.setattr(cuda_stages, "_MOST_BLOCKS", 2)
    monkeypatch.setattr(cuda_stages, "_ROWS_A_THREAD", 1)
    rng = np.random.default_rng(6)
    check(place, entries(rng, (2, 300, 3), "wide"), entries(rng, (2, 3, 5), "wide"))


@given(st.integers(1, 9), st.integers(1, 10**7), st.integers(1, 10**6))
def test_grids_cover_every_entry(batch, rows, columns):
    (x, y, z), width = Stages.entry_grid(batch, rows, columns)
    assert z == batch
    assert x * width >= columns
    assert (x - 1) * width < columns
    assert y <= 65535
    assert 256 % width == 0


# ---- Products --------------------------------------------------------------------


@few
@given(st.data(), variants, st.booleans())
def test_products_equal_the_reference(place, data, variant, fused):
    a, b = data.draw(operands())
    want = np.array(reference.matmul(a, b, *variant[:2])).reshape(len(a), b.shape[1])
    out = place.own(np.full((1, *want.shape), POISON))
    engine = place.engine if fused else place.unfused
    run(engine, place.own(a[np.newaxis]), place.own(b[np.newaxis]), out, variant)
    assert_same_bits(place.host(out)[0], want)


@few
@given(st.data(), variants, seeds, regimes, regimes)
def test_products_of_every_layout_and_batch(place, data, variant, seed, one, other):
    rng = np.random.default_rng(seed)
    sides = st.integers(1, place.side)
    m, n, k = data.draw(sides), data.draw(sides), data.draw(st.integers(1, place.inner))
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (1, 3)]))
    layout = data.draw(st.tuples(layouts, layouts, layouts))
    a = matrices(rng, batches[0], (m, k), one)
    b = matrices(rng, batches[1], (k, n), other)
    engine = data.draw(st.sampled_from(place.engines()))
    host = data.draw(st.booleans())
    check(place, a, b, variant, layout=layout, host=host, engine=engine)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 19, 1), (17, 1, 16), (16, 33, 17)])
def test_shapes_at_and_beside_the_padding(place, variant, shape):
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = entries(rng, (1, m, k), "ordinary"), entries(rng, (1, k, n), "wide")
    check(place, a, b, variant, layout=("C", "C", "F"))


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0), (1, 0, 0, 0)]
)
def test_empty_products(place, shape, host):
    batch, m, k, n = shape
    own = np.array if host else place.own
    out = own(np.full((batch, m, n), POISON))
    a, b = own(np.ones((batch, m, k))), own(np.ones((batch, k, n)))
    outcome = run(place.engine, a, b, out, ORDINARY)
    assert_same_bits(out if host else place.host(out), np.zeros((batch, m, n)))
    assert outcome.missing_bits.tolist() == [0] * batch
    assert (outcome.overflow, outcome.invalid) == (False, False)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("batches", [(4, 1), (1, 4), (4, 4)])
def test_batches_equal_their_matrices(place, batches, scaling):
    variant = next(v for v in VARIANTS if v[1] == scaling)
    rng = np.random.default_rng(7)
    a = entries(rng, (batches[0], 3, 5), "wide")
    b = entries(rng, (batches[1], 5, 4), "wide")
    # Each matrix has its own largest entry, so that no exponent serves another.
    a *= np.ldexp(1.0, 10 * np.arange(batches[0]))[:, np.newaxis, np.newaxis]
    b *= np.ldexp(1.0, -7 * np.arange(batches[1]))[:, np.newaxis, np.newaxis]
    check(place, a, b, variant, layout=("F", "C", "C"))
    check(place, a, b, variant, layout=("C", "batch last", "F"), engine=place.unfused)


def test_operands_repeated_by_stride_zero(place):
    rng = np.random.default_rng(8)
    row, column = entries(rng, (1, 1, 9), "wide"), entries(rng, (1, 9, 1), "wide")
    a, b = np.broadcast_to(row, (2, 4, 9)), np.broadcast_to(column, (2, 9, 3))
    want, _ = expected(a, b, ORDINARY)
    for engine in place.engines():
        out = place.own(np.full(want.shape, POISON))
        x = np.broadcast_to(place.own(row), a.shape)
        y = np.broadcast_to(place.own(column), b.shape)
        run(engine, x, y, out, ORDINARY)
        assert_same_bits(place.host(out), want)


@pytest.mark.parametrize(
    ("s", "t"),
    [(-1074, 0), (-1060, 1000), (1000, -1060), (-540, -535), (1010, 13), (1020, -1070)],
)
def test_scales_from_subnormal_to_overflow(place, s, t):
    rng = np.random.default_rng(9)
    with np.errstate(all="ignore"):
        a = np.ldexp(rng.integers(-9, 9, (1, 4, 6)).astype(float), s)
        b = np.ldexp(entries(rng, (1, 6, 5), "ordinary"), t)
    for variant in (ORDINARY, Variant(20, "accurate", False)):
        for engine in place.engines():
            check(place, a, b, variant, engine=engine)


def test_underflow_keeps_the_sign_and_zero_is_positive(place):
    a = np.array([[[2.0**-600], [0.0], [-0.0]]])
    b = np.array([[[-(2.0**-600), 3.0]]])
    check(place, a, b)
    want = np.array([[-0.0, 3 * 2.0**-600], [0.0, 0.0], [0.0, 0.0]])
    assert_same_bits(expected(a, b, ORDINARY)[0][0], want)


# ---- NaN, Inf, exceptions --------------------------------------------------------

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
    layout = data.draw(st.tuples(layouts, layouts, layouts))
    engine = data.draw(st.sampled_from(place.engines()))
    check(place, *pair, layout=layout, host=host, engine=engine)


def test_nan_of_any_payload_becomes_the_canonical_one(place):
    odd = np.array([0xFFF0000000000001], np.uint64).view(np.float64)
    a = np.array([[[1.0, odd[0]], [1.0, 2.0]]])
    check(place, a, np.ones((1, 2, 3)), host=True)
    check(place, np.ones((1, 2, 2)), a)


@pytest.mark.parametrize("side", ["left", "right"])
def test_special_values_stay_in_their_row_or_column(place, side):
    rng = np.random.default_rng(10)
    a, b = entries(rng, (3, 5, 6), "ordinary"), entries(rng, (3, 6, 4), "ordinary")
    x = a if side == "left" else b.swapaxes(1, 2)
    x[1, 2, 3], x[2, 0, 0], x[2, 3, 1] = np.inf, np.nan, -np.inf
    want, _ = expected(a, b, ORDINARY)
    assert 0 < np.count_nonzero(~np.isfinite(want)) < want.size // 2
    # Small tiles, so that rows and columns of a tile are not those of the operand.
    check(place, a, b, workspace=60_000)
    accurate = Variant(20, "accurate", False)
    assert check(place, a, b, accurate, workspace=1).tiles == 3 * 5 * 4
    check(place, a, b, accurate)
    check(place, a, b, layout=("F", "C", "F"), engine=place.unfused)


@pytest.mark.parametrize(
    ("a", "b", "flags"),
    [
        ([[1e300, 1e300]], [[1e300], [1e300]], (True, False)),
        ([[np.inf, 1.0]], [[0.0], [1.0]], (False, True)),
        ([[np.inf, np.inf]], [[1.0], [-1.0]], (False, True)),
        ([[np.inf, 1.0]], [[1.0], [1.0]], (False, False)),
        ([[np.nan, np.inf]], [[1.0], [1.0]], (False, False)),
        ([[np.nan, np.inf]], [[1.0], [0.0]], None),
        ([[np.nan, 1e300]], [[1.0], [1e300]], None),
        ([[np.inf, 1e300]], [[1.0], [1e300]], None),
        ([[np.inf, 1e300, 1.0]], [[1.0], [1e300], [-np.inf]], None),
        ([[1e300, -1e300]], [[1.0], [1.0]], (False, False)),
        ([[5e-324]], [[5e-324]], (False, False)),
    ],
)
def test_exceptions_of_operands_on_the_host(place, a, b, flags):
    outcome = check(place, np.array([a]), np.array([b]), host=True)
    # Where nothing is said, it is for the CPU engine to say.
    assert flags is None or (outcome.overflow, outcome.invalid) == flags


# ---- The certificate -------------------------------------------------------------


@pytest.mark.parametrize("num_moduli", [15, 49])
@pytest.mark.parametrize("phi", [0.0, 1.0, 4.0, 8.0, 40.0])
def test_certificate_misses_the_same_bits(place, phi, num_moduli):
    rng = np.random.default_rng(int(phi))
    shapes = (3, 5, 20), (3, 20, 4)
    a, b = (
        rng.standard_normal(x) * np.exp(phi * rng.standard_normal(x)) for x in shapes
    )
    a[0, 0, 3], b[0] = np.nan, np.abs(b[0])
    a[1] *= np.eye(5, 20)
    outcome = check(place, a, b, Variant(num_moduli, "norm", True))
    if phi == 40.0:
        assert outcome.missing_bits.any()
    if phi == 0.0:
        assert not outcome.missing_bits.any()
    check(place, a[:1], b, Variant(num_moduli, "norm", True), engine=place.unfused)
    check(place, a, b[1:2], Variant(num_moduli, "norm", True), layout=("F", "F", "F"))


def wide_pair(k):
    rng = np.random.default_rng(23)
    shapes = (1, 3, k), (1, k, 4)
    return [
        rng.standard_normal(x) * np.exp(6.0 * rng.standard_normal(x)) for x in shapes
    ]


def test_second_look_in_blocks_of_k(place):
    # The smallest workspace lets it have 1024 of k at a time.
    assert check(place, *wide_pair(1100), workspace=1).missing_bits[0] > 0


def test_second_look_without_memory_is_taken_on_the_host(place, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(cuda, "second_look", fail)
    monkeypatch.setattr(
        place.engine.device, "is_out_of_memory", lambda e: isinstance(e, MemoryError)
    )
    assert check(place, *wide_pair(40)).missing_bits[0] > 0


@pytest.mark.parametrize("e", [1e-5, 1e-9, 1e-12, 1e-300])
def test_certificate_of_entries_far_below_their_lines(place, e):
    a, b = np.array([[[2.0, 0.0], [1.0, 3.0]]]), np.array([[[e, 1.0], [1.0, 0.1]]])
    assert check(place, a, b).missing_bits[0] > 0


def first_look(a, b, num_moduli):
    """Return the bits that a product misses by the rule of certificate.cu, exactly."""
    k = a.shape[1]
    mu, nu = reference.scaling_exponents(a, b, num_moduli)
    sides = []
    for lines, exponents in ((a, mu), (b.T, nu)):
        tops = [reference._top_exponent(line) for line in lines.tolist()]
        spare = [m + e for m, e in zip(exponents, tops, strict=True)]
        shifts = np.array(tops)[:, np.newaxis]
        norms = np.ceil(np.ldexp(np.abs(lines), 15 - shifts)).sum(axis=1)
        planes = np.floor(np.ldexp(np.abs(lines), 6 - shifts))
        sides.append((spare, norms.astype(int).tolist(), planes))
    (spare_a, norm_a, left), (spare_b, norm_b, right) = sides
    need = [0]
    for spares, norms in ((spare_a, norm_a), (spare_b, norm_b)):
        growths = [norm.bit_length() - 16 for norm in norms]
        pairs = zip(spares, growths, strict=True)
        need += [k.bit_length() + 9 - growth - spare for spare, growth in pairs]
    for (i, j), lower in np.ndenumerate(left @ right.T):
        assert lower > 0
        for norm, spare in ((norm_b[j], spare_a[i]), (norm_a[i], spare_b[j])):
            ratio = Fraction(norm, int(lower) * 127 * k) * Fraction(2) ** (57 - spare)
            bits = ratio.numerator.bit_length() - ratio.denominator.bit_length()
            bits += ratio >= Fraction(2) ** bits
            need.append(bits if ratio > 1 else 0)
    return max(need)


@pytest.mark.parametrize("block", [16, 1 << 17])
@pytest.mark.parametrize("num_moduli", [2, 15])
def test_first_look_is_the_rule_read_literally(place, monkeypatch, num_moduli, block):
    # A second look, on the host, would hide a first one that asks for too much.
    engine = place.engine
    monkeypatch.setattr(engine, "_missing_bits", lambda a, b, x, *_: x)
    rng = np.random.default_rng(22)
    a = 1.0 + np.abs(rng.standard_normal((4, 3, 40)))
    b = 1.0 + np.abs(rng.standard_normal((4, 40, 5)))
    # Lines of other spare bits on one side than on the other.
    a[1, :, 1:] *= 2.0**-30
    b[1, 0] *= 2.0**-3
    b[2, 1:] *= 2.0**-22
    a[3, 1, 5:] *= 2.0**-40
    out = place.own(np.full((4, 3, 5), POISON))
    with short_k_blocks(block):
        variant = Variant(num_moduli, "norm", True)
        outcome = run(engine, place.own(a), place.own(b), out, variant)
    want = [first_look(x, y, num_moduli) for x, y in zip(a, b, strict=True)]
    assert outcome.missing_bits.tolist() == want
    assert num_moduli == 15 or len(set(want)) > 1


@pytest.mark.parametrize("shape", [(1, 270, 9), (2, 37, 70), (1, 40, 300), (2, 1, 1)])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("block", [pytest.param(16, marks=pytest.mark.slow), 1 << 17])
def test_first_look_at_many_rows(place, monkeypatch, shape, large, block):
    # Blocks go through the rows in steps, and the last one is not full; one row, one
    # column or one entry is short, wherever it lies.
    least = 1 if large else 1 << 40
    monkeypatch.setattr(cuda_certificate, "_LARGE_RESULT", least)
    batch, m, n = shape
    rng = np.random.default_rng([23, m])
    places = [(0, 0), (m - 1, n - 1), (m // 2, 0), (m // 3, n // 2)]
    for engine in (place.engine, place.other):
        monkeypatch.setattr(engine, "_missing_bits", lambda a, b, x, *_: x)
        for i, j in places:
            a = 1.0 + rng.random((batch, m, 20))
            b = 1.0 + rng.random((batch, 20, n))
            a[0, i, 1:] *= 2.0**-25
            b[-1, 0, j] *= 2.0**-5
            out = place.own(np.full(shape, POISON))
            with short_k_blocks(block):
                variant = Variant(3, "norm", True)
                outcome = run(engine, place.own(a), place.own(b), out, variant)
            want = [first_look(x, y, 3) for x, y in zip(a, b, strict=True)]
            assert outcome.missing_bits.tolist() == want


@pytest.mark.parametrize("transposed", [False, True])
def test_first_look_sees_what_is_short_on_one_side(place, monkeypatch, transposed):
    # Row i has one entry and column j little there: all others are far from short.
    rng = np.random.default_rng(24)
    shape, found = (1, 70, 37) if transposed else (1, 37, 70), []
    for engine in (place.engine, place.other):
        monkeypatch.setattr(engine, "_missing_bits", lambda a, b, x, *_: x)
        for bits in range(7):
            m, n = shape[:0:-1] if transposed else shape[1:]
            a, b = 1.0 + rng.random((1, m, 20)), 1.0 + rng.random((1, 20, n))
            i, j = m - 1 - bits, n - 1 - bits
            a[0, i, 1:] = 0.0
            b[0, 0, j] *= 2.0**-bits
            # What is known of the first line is not what is known of others.
            b[0, 1:, 0] = 0.0
            if transposed:
                a, b = b.swapaxes(1, 2), a.swapaxes(1, 2)
            out = place.own(np.full(shape, POISON))
            variant = Variant(15, "norm", True)
            outcome = run(engine, place.own(a), place.own(b), out, variant)
            assert outcome.missing_bits.tolist() == [first_look(a[0], b[0], 15)]
            found += outcome.missing_bits.tolist()
    assert min(found) == 0 < max(found)


# ---- Lent bits, targets, line shifts, the rest of the rounding --------------------


def same_as_cpu(
    place, a, b, scheme, *, layout=("C", "C", "C"), engine=None, low=True, **options
):
    """Assert that a product and its low part have the CPU engine's bits."""
    engine = engine or place.engine
    shape = (max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2])
    want, want_low = np.full(shape, POISON), np.full(shape, POISON)
    extra = {"low": want_low} if low else {}
    workspace = options.pop("workspace_bytes", None)
    outcome = CPU.matmul(a, b, want, scheme, **extra, **options)
    x, y, out, rest = (
        laid_out(place.own, v, name)
        for v, name in zip(
            (a, b, np.full(shape, POISON), np.full(shape, POISON)),
            (*layout, layout[2]),
            strict=True,
        )
    )
    extra = {"low": rest} if low else {}
    found = engine.matmul(
        x, y, out, scheme, workspace_bytes=workspace, **extra, **options
    )
    assert_same_bits(place.host(out), want)
    if low:
        assert_same_bits(place.host(rest), want_low)
    if outcome.missing_bits is not None:
        assert found.missing_bits.tolist() == outcome.missing_bits.tolist()
    return found


def bits_and_numbers(rng, batch=2):
    """Return a matrix of 0 and 1, and numbers."""
    a = rng.integers(0, 2, (batch, 4, 13)).astype(np.float64)
    return a, entries(rng, (batch, 13, 5), "ordinary")


def spare_bits(a, num_moduli):
    """Return the bits that a matrix of 0 and 1 can lend."""
    return int(CPU.line_exponents(a, num_moduli, left=True).min())


@pytest.mark.parametrize("scaling", SCALINGS[:2])
@pytest.mark.parametrize(
    "num_moduli", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (15, 49))]
)
def test_bits_that_one_operand_lends(place, num_moduli, scaling):
    rng = np.random.default_rng(num_moduli)
    a, b = bits_and_numbers(rng)
    spare = spare_bits(a, num_moduli)
    assert num_moduli < 49 or spare > 130
    options = {"certify": "conventional"}
    for shift in (3, spare):
        scheme = Scheme(num_moduli, scaling, shift)
        same_as_cpu(place, a, b, scheme, **options)
        same_as_cpu(place, a[:1], b, scheme, layout=("F", "C", "F"), **options)
        other = Scheme(num_moduli, scaling, -shift)
        turned = b.swapaxes(1, 2), a.swapaxes(1, 2)
        same_as_cpu(place, *turned, other, engine=place.unfused, **options)
        same_as_cpu(place, *turned, other, layout=("C", "F", "F"), workspace_bytes=1)


@few
@given(
    seeds,
    st.sampled_from(["conventional", -10, -30, -50, -96]),
    st.sampled_from([0.0, 2.0, 8.0, 30.0]),
    st.sampled_from([0, 9, -9]),
    st.sampled_from([9, 15]),
)
def test_targets_are_missed_by_the_same_bits(place, seed, target, phi, shift, n):
    rng = np.random.default_rng(seed)
    a, b = bits_and_numbers(rng)
    b = b * np.exp(phi * rng.standard_normal(b.shape))
    if shift <= 0:
        a = a * np.exp(phi * rng.standard_normal(a.shape))
    if shift < 0:
        b = np.sign(b)
    b[0, 2, 1] = 0.0
    scheme = Scheme(n, shift=shift)
    same_as_cpu(place, a, b, scheme, certify=target, low=False)
    want = CPU.missing_bits(a, b, scheme, target)
    for own in (place.own, np.array):
        found = place.engine.missing_bits(own(a), own(b), scheme, target)
        assert found.tolist() == want.tolist()
        found = place.engine.missing_bits(own(a[:1]), own(b), scheme, target)
        assert found.tolist() == CPU.missing_bits(a[:1], b, scheme, target).tolist()


@few
@given(seeds, regimes, st.sampled_from(["conventional", -33]))
def test_errors_beyond_float64_are_hopeless_alike(place, seed, regime, target):
    # Only scaling "legacy" lacks so many bits: its exponents depend on the scale.
    rng = np.random.default_rng(seed)
    a = entries(rng, (2, 3, 12), "near overflow")
    b = entries(rng, (2, 12, 4), regime)
    a[0] *= rng.random(12) ** 60
    same_as_cpu(place, a, b, Scheme(15, "legacy"), certify=target, low=False)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("workspace", [None, 1])
def test_line_shifts_join_the_last_stage_only(place, scaling, workspace):
    rng = np.random.default_rng(40)
    a, b = entries(rng, (3, 4, 9), "wide"), entries(rng, (3, 9, 5), "wide")
    a[1, 2, 0] = np.inf
    rows = rng.integers(-900, 900, (3, 4))
    columns = rng.integers(-900, 900, (3, 5))
    options = {"line_shifts": (rows, columns), "workspace_bytes": workspace}
    for layout in (("C", "C", "C"), ("F", "C", "F")):
        same_as_cpu(place, a, b, Scheme(15, scaling), layout=layout, **options)
    options["certify"] = "conventional"
    same_as_cpu(place, a[:1], b, Scheme(15, scaling), engine=place.unfused, **options)


@few
@given(st.sampled_from([2, 9, 15, 20, 49]), seeds, regimes, regimes)
def test_rest_of_the_rounding(place, n, seed, one, other):
    rng = np.random.default_rng(seed)
    a, b = matrices(rng, 1, (3, 6), one), matrices(rng, 1, (6, 4), other)
    same_as_cpu(place, a, b, Scheme(n))


def test_rest_of_the_rounding_on_the_host(place):
    rng = np.random.default_rng(41)
    a, b = entries(rng, (2, 5, 9), "wide"), entries(rng, (2, 9, 4), "ordinary")
    a[0, 1, 1], b[1, 0, 0] = np.nan, np.inf
    want, want_low, out, low = np.full((4, 2, 5, 4), POISON)
    CPU.matmul(a, b, want, Scheme(15), low=want_low)
    place.engine.matmul(a, b, out, Scheme(15), low=low, workspace_bytes=1)
    assert_same_bits(out, want)
    assert_same_bits(low, want_low)


# ---- Rebalancing, units, samples -------------------------------------------------


def check_rebalancing(place, a, b, layout=("C", "C")):
    """Assert that both engines rebalance alike; return whether they could."""
    x, y = (laid_out(place.own, v, n) for v, n in zip((a, b), layout, strict=True))
    want, found = CPU.rebalance(a, b), place.engine.rebalance(x, y)
    assert found.rows.tolist() == want.rows.tolist()
    assert found.columns.tolist() == want.columns.tolist()
    assert found.spread.tolist() == want.spread.tolist()
    if not want.spread.all():
        return False
    assert_same_bits(place.host(found.a), want.a)
    assert_same_bits(place.host(found.b), want.b)
    return True


@few
@given(st.data(), seeds, regimes, st.sampled_from([0, 30, 700]))
def test_rebalancing_is_the_cpu_engines(place, data, seed, regime, grade):
    rng = np.random.default_rng(seed)
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (1, 2)]))
    a = matrices(rng, batches[0], (4, 9), regime)
    b = matrices(rng, batches[1], (9, 3), "ordinary")
    steps = rng.integers(-grade, grade + 1, 9)
    with np.errstate(all="ignore"):
        a, b = np.ldexp(a, steps), np.ldexp(b, -steps[:, np.newaxis])
    a[0, 0], b[0, 4] = 0.0, 0.0
    a[0, 1, :2] = np.nan, -np.inf
    check_rebalancing(place, a, b, data.draw(st.tuples(layouts, layouts)))
    host = place.engine.rebalance(a, b)
    assert host.spread.tolist() == CPU.rebalance(a, b).spread.tolist()


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (40, 1, 3), (1, 70, 1), (1, 5, 33), (37, 6, 2), (32, 65, 64)],
)
@pytest.mark.parametrize("layout", [("C", "C"), ("F", "F"), ("spread", "batch last")])
@pytest.mark.parametrize("shares", [(4096, 512), (30, 22)])
def test_rebalancing_by_blocks(place, monkeypatch, m, k, n, layout, shares):
    # Of lines and inner indices alike, some of zeros; every matrix has a D of its own.
    monkeypatch.setattr(cuda_stages, "_CHUNK", shares[0])
    monkeypatch.setattr(cuda_stages, "_DEPTH", shares[1])
    rng = np.random.default_rng([m, k, n])
    for batches in ((1, 3), (3, 1), (2, 2)):
        steps = rng.integers(-100, 101, (max(batches), k))
        a = matrices(rng, batches[0], (m, k), "sparse")
        b = matrices(rng, batches[1], (k, n), "ordinary")
        a = np.ldexp(a, steps[: batches[0], np.newaxis, :])
        b = np.ldexp(b, -steps[: batches[1], :, np.newaxis])
        a[0, m // 2], b[-1, :, n // 2], b[0, k // 3] = -0.0, 0.0, 0.0
        a[-1, m // 3, k // 2], b[0, k // 2, n // 3] = np.inf, np.nan
        check_rebalancing(place, a, b, layout)


@pytest.mark.parametrize("layout", [("C", "F"), ("F", "C")])
def test_rebalancing_of_long_lines(place, layout):
    # Shares hold groups of entries that are read together, and a rest.
    rng = np.random.default_rng(43)
    k = 2048 + 300
    steps = rng.integers(-60, 61, k)
    a = np.ldexp(rng.standard_normal((1, 2, k)), steps)
    b = np.ldexp(rng.standard_normal((1, k, 3)), -steps[:, np.newaxis])
    assert check_rebalancing(place, a, b, layout)


def test_rebalancing_of_subnormal_numbers(place):
    rng = np.random.default_rng(44)
    a, b = entries(rng, (1, 5, 40), "subnormal"), entries(rng, (1, 40, 4), "ordinary")
    b = np.ldexp(b, rng.integers(-9, 10, (40, 1)))
    assert check_rebalancing(place, a, b)


@pytest.mark.parametrize("transposed", [False, True])
def test_rebalancing_that_would_underflow(place, transposed):
    a, b = np.ones((2, 3, 40)), np.ones((2, 40, 3))
    a[:, :, :20], b[:, :20] = 2.0**900, 2.0**-900
    # One entry of one matrix, in a line that is small where D makes it smaller.
    a[1, 2, :20], a[1, 2, 3] = 0.0, 2.0**-1074
    if transposed:
        a, b = b.swapaxes(1, 2), a.swapaxes(1, 2)
    assert not check_rebalancing(place, a, b)
    assert CPU.rebalance(a, b).spread.astype(bool).tolist() == [True, False]


def test_rounds_of_rebalancing_do_not_wait(place, monkeypatch):
    device, queued = place.engine.device, []
    launch, fetch = device.launch, device.fetch

    def noted(stage, variant, kernel, *args, **kwargs):
        queued.append(kernel)
        return launch(stage, variant, kernel, *args, **kwargs)

    def waited(x):
        queued.append("fetch")
        return fetch(x)

    monkeypatch.setattr(device, "launch", noted)
    monkeypatch.setattr(device, "fetch", waited)
    x = place.own(np.ones((1, 4, 4)))
    place.engine.rebalance(x, x)
    first = queued.index("fetch")
    assert set(queued[first:]) == {"fetch"}
    assert queued.count("balance") == 4


def test_a_product_with_the_own_transpose_needs_no_rebalancing(place):
    rng = np.random.default_rng(42)
    a = entries(rng, (1, 5, 8), "wide")
    x = place.own(a)
    balanced = place.engine.rebalance(x, x.swapaxes(1, 2))
    assert balanced.spread.tolist() == [0]
    assert_same_bits(place.host(balanced.a), CPU.rebalance(a, a.swapaxes(1, 2)).a)


@few
@given(seeds, regimes, layouts, st.booleans())
def test_what_is_known_of_lines(place, seed, regime, layout, left):
    rng = np.random.default_rng(seed)
    x = matrices(rng, 2, (5, 7), regime)
    x[0, 1], x[1, :, 2], x[0, 3, 3], x[1, 4, 4] = 0.0, 0.0, np.nan, -np.inf
    for given_x in (laid_out(place.own, x, layout), x):
        e, unit = place.engine.line_units(given_x, left=left)
        want_e, want_unit = CPU.line_units(x, left=left)
        assert e.tolist() == want_e.tolist()
        assert unit.tolist() == want_unit.tolist()
        mu = place.engine.line_exponents(given_x, 15, left=left)
        assert mu.tolist() == CPU.line_exponents(x, 15, left=left).tolist()
        for found, want in zip(
            place.engine.samples(given_x, given_x[:1]),
            CPU.samples(x, x[:1]),
            strict=True,
        ):
            assert_same_bits(found, want)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 8, 8), (2, 9, 17), (1, 40, 7), (1, 1, 70), (130, 8, 9)]
)
def test_samples_take_one_launch_and_one_wait(place, monkeypatch, shape):
    rng = np.random.default_rng(45)
    x, y = entries(rng, shape, "any"), entries(rng, (1, *shape[:0:-1]), "any")
    x[0, 0, 0], y[0, 0, 0] = np.nan, -np.inf
    device, seen = place.engine.device, []
    for name in ("launch", "written", "fetch"):
        monkeypatch.setattr(device, name, noted(seen, name, getattr(device, name)))
    for layout in LAYOUTS:
        a, b = (laid_out(place.own, z, layout) for z in (x, y))
        for given_ones, want in (((a, b), (x, y)), ((a,), (x,)), ((b, a), (y, x))):
            seen.clear()
            found = place.engine.samples(*given_ones)
            # Many words come by way of the device's own memory.
            assert [name for name in seen if name != "fetch"] == ["written", "launch"]
            for one, other in zip(found, CPU.samples(*want), strict=True):
                assert one.shape == other.shape
                assert_same_bits(one, other)
    host = place.engine.samples(x, y)
    for one, other in zip(host, CPU.samples(x, y), strict=True):
        assert_same_bits(one, other)


def noted(seen, name, function):
    """Return a function that notes its calls."""

    def call(*args, **kwargs):
        seen.append(name)
        return function(*args, **kwargs)

    return call


def test_few_words_are_read_with_one_wait(place):
    # Again and again: memory for them is used anew.
    device = place.engine.device
    for count in (1, 3, 40, 5000, 2):
        x = np.arange(count, dtype=np.int32) - count
        there = place.own(x)
        found = device.read(device.pointer(there), x.nbytes)
        assert found.dtype == np.uint8
        assert found.view(np.int32).tolist() == x.tolist()


def test_memory_for_words_is_whole_again_after_an_error(place):
    device = place.engine.device

    def fail(pointer):
        raise ValueError(pointer)

    x = np.arange(4.0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\d"):
            device.written(4, fail)
        there = place.own(x)
        assert_same_bits(device.read(device.pointer(there), 32).view(np.float64), x)


# ---- Tiles -----------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("F", "F", "F")])
def test_blocks_of_k(place, variant, layout):
    rng = np.random.default_rng(11)
    a, b = entries(rng, (1, 3, 70), "wide"), entries(rng, (1, 70, 4), "ordinary")
    a[0, 1], b[0, :, 2] = 1.0 - 2.0**-53, 1.0
    with short_k_blocks(16):
        check(place, a, b, variant, layout=layout)


def test_blocks_of_k_need_reduction(place, monkeypatch):
    # Equal entries of one sign: unreduced sums of so many blocks wrap.
    k, block = 400_003, tiling.INT8_K_BLOCK
    if place.name == "simulated":
        # 21 bits hold blocks of 64 as 32 bits hold blocks of 2^17.
        k, block = 640, 64
        monkeypatch.setattr(place.engine.device, "accumulator_bits", 21)
    a, b = np.full((1, 1, k), 0.1), np.full((1, k, 1), 0.3)
    with short_k_blocks(block):
        check(place, a, b)
        check(place, -a, b, layout=("F", "F", "C"))


def test_longest_block_of_k_does_not_wrap(place, monkeypatch):
    # One block whose residue products are as large as they can be.
    k = tiling.INT8_K_BLOCK
    if place.name == "simulated":
        k = 64
        monkeypatch.setattr(place.engine.device, "accumulator_bits", 21)
    left = np.full((1, 1, 16, k), 127, np.int8)
    x, y = place.own(left), place.own(-left)
    products = place.host(place.engine.residue_gemm(x, y))
    assert (products == -(127**2) * k).all()


@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("variant", [ORDINARY, Variant(20, "accurate", False)])
def test_blocks_of_k_of_a_batch(place, variant, batches):
    rng = np.random.default_rng(12)
    a = entries(rng, (batches[0], 2, 40), "ordinary")
    b = entries(rng, (batches[1], 40, 3), "wide")
    with short_k_blocks(32):
        check(place, a, b, variant)


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_in_every_direction(place, variant, host):
    rng = np.random.default_rng(13)
    a, b = entries(rng, (2, 5, 40), "wide"), entries(rng, (2, 40, 4), "wide")
    # The smallest there are: one line each way, 16 of k.
    outcome = check(place, a, b, variant, host=host, workspace=1)
    assert outcome.tiles == 2 * 5 * 4
    # Lines are cut, k is not.
    outcome = check(place, a, b, variant, host=host, workspace=80_000)
    assert outcome.workspace_bytes <= 80_000 or host


@pytest.mark.parametrize("workspace", [30_000, 60_000, 10**6])
def test_batches_in_parts(place, workspace):
    rng = np.random.default_rng(14)
    for batches in ((5, 5), (5, 1), (1, 5)):
        a = entries(rng, (batches[0], 2, 3), "wide")
        b = entries(rng, (batches[1], 3, 2), "ordinary")
        check(place, a, b, workspace=workspace)
        check(
            place, a, b, Variant(20, "accurate", False), workspace=workspace, host=True
        )


def test_wide_and_tall_products(place):
    rng = np.random.default_rng(15)
    long = place.side * 8
    a, b = entries(rng, (1, long, 2), "ordinary"), entries(rng, (1, 2, 3), "ordinary")
    for workspace in (None, 40_000):
        check(place, a, b, workspace=workspace)
        check(place, b.swapaxes(1, 2), a.swapaxes(1, 2), workspace=workspace)


def test_maxima_of_one_product_over_all_tiles(place):
    # "accurate": the largest entry of a row of Cbar may lie in any tile.
    rng = np.random.default_rng(16)
    a, b = entries(rng, (1, 4, 20), "wide"), entries(rng, (1, 20, 5), "wide")
    a[0, 2], b[0, :, 3] = 0.0, 0.0
    for n in range(5):
        moved = np.roll(b, n, axis=2)
        check(place, a, moved, Variant(20, "accurate", False), workspace=1)


# ---- Memory ----------------------------------------------------------------------


@pytest.fixture
def short_of_memory():
    """An engine whose device refuses arrays above a size."""
    if simt.COMPILER is None:
        pytest.skip("no C++ compiler (c++ or g++) on the path")
    place = devices.simulated()

    def limit(size):
        place.engine.device.largest_array = size
        return place

    return limit


def test_smaller_tiles_where_memory_is_short(short_of_memory):
    rng = np.random.default_rng(17)
    a, b = entries(rng, (1, 40, 300), "ordinary"), entries(rng, (1, 300, 40), "wide")
    # Planes of whole operands take 16 * 48 * 304 bytes.
    place = short_of_memory(100_000)
    outcome = check(place, a, b)
    assert outcome.tiles > 1
    assert place.engine.device.freed > 0


def test_no_memory_at_all_is_an_error_and_the_next_product_works(short_of_memory):
    rng = np.random.default_rng(18)
    a, b = entries(rng, (1, 3, 4), "ordinary"), entries(rng, (1, 4, 2), "wide")
    place = short_of_memory(100)
    x, y, out = place.own(a), place.own(b), place.own(np.zeros((1, 3, 2)))
    with pytest.raises(np_ozaki.WorkspaceError, match="smallest tiles"):
        run(place.engine, x, y, out, ORDINARY)
    check(short_of_memory(None), a, b)


# ---- From the front --------------------------------------------------------------


@pytest.fixture
def chosen(place, monkeypatch):
    """Let the place's engine be the CUDA engine of this process."""
    if place.name == "simulated":
        monkeypatch.setattr(choice, "cuda_unavailable", lambda: None)
        monkeypatch.setattr(choice, "cuda_engine", lambda: place.engine)
    return place


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("phi", [0.0, 4.0, 100.0])
def test_auto_precision_decides_as_on_the_cpu(phi):
    rng = np.random.default_rng(20)
    shapes = (3, 8), (8, 4)
    a, b = (
        rng.standard_normal(x) * np.exp(phi * rng.standard_normal(x)) for x in shapes
    )
    c, info = np_ozaki.matmul(a, b, engine="cuda", return_info=True)
    want, other = np_ozaki.matmul(a, b, engine="cpu", return_info=True)
    assert_same_bits(c, want)
    assert (info.num_moduli, info.fallback) == (other.num_moduli, other.fallback)
    if phi == 0.0:
        assert info.engine == "cuda"


@pytest.mark.usefixtures("chosen")
def test_scope_on_the_cuda_engine_has_the_cpu_engines_bits():
    blas = pytest.importorskip("scipy.linalg.blas")
    rng = np.random.default_rng(21)
    a, b = rng.standard_normal((4, 7)), rng.standard_normal((7, 5))

    def products():
        yield a @ b
        yield np.dot(a, b)
        yield np.matmul(a[:2], b, out=np.full((2, 5), POISON))
        yield np.einsum("ij,jk->ki", a, b)
        yield a[0] @ b
        yield blas.dgemm(2.0, a, b)
        yield blas.dsyrk(1.0, a)

    with np_ozaki.enabled(engine="cpu", min_flops=0, local=True):
        want = list(products())
    np_ozaki.reset_stats()
    with np_ozaki.enabled(engine="cuda", min_flops=0, local=True):
        found = list(products())
    for x, y in zip(found, want, strict=True):
        assert_same_bits(x, y)
    for counts in np_ozaki.stats().as_dict().values():
        assert set(counts["calls"]) == {"cuda"}


@pytest.mark.usefixtures("chosen")
def test_exceptions_of_operands_on_the_host_follow_errstate():
    big = np.full((2, 2), 1e300)
    with np.errstate(all="raise"):
        with pytest.raises(FloatingPointError, match="overflow"):
            np_ozaki.matmul(big, big, engine="cuda")
        with pytest.raises(FloatingPointError, match="invalid"):
            np_ozaki.matmul([[np.inf, 1.0]], [[0.0], [1.0]], engine="cuda")


@pytest.mark.usefixtures("chosen")
def test_auto_takes_the_cuda_engine_without_a_warning():
    with np_ozaki.enabled(min_flops=0, local=True):
        np.eye(3) @ np.eye(3)
    assert np_ozaki.last_call().engine == "cuda"
    assert np_ozaki.info().engines["cuda"] == "available"


# ---- Ways in and out -------------------------------------------------------------


def test_native_products_and_copies(place):
    rng = np.random.default_rng(19)
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    engine = place.engine
    assert np.array_equal(engine.native(a, b), np.matmul(a, b))
    x, y = place.own(a), place.own(b)
    native = engine.native(x, y)
    assert not engine.device.is_host(native)
    np.testing.assert_allclose(engine.to_host(native), np.matmul(a, b), rtol=1e-12)
    assert engine.from_host(a, b) is a
    moved = engine.from_host(a, x)
    assert not engine.device.is_host(moved)
    assert_same_bits(engine.to_host(moved), a)


def test_limit_words_are_what_kernels_are_told(place):
    for left, shift in ((True, -7), (False, 7)):
        rule = place.engine.rule(Scheme(15, shift=7), left)
        first, second, top = rule.view(np.int64).tolist()
        assert (second % 2**32, top % 2**64) == limit_words(15)
        assert second >> 32 == shift
    assert (first % 2**32, first >> 32) == (0, reference.norm_width(product_bound(15)))
