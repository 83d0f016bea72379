"""Facts and planes of one launch, against stages of their own and Python integers."""

import numpy as np
import pytest
from devices import LAYOUTS, entries, laid_out
from np_ozaki._kernels.render import Variant

from np_ozaki import tiling
from np_ozaki.engines import cuda_hopper_lines as hopper
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import MODULI, balanced_residue
from np_ozaki.tiling import padded

# Narrow with and without rows for more than eight moduli and the certificate's plane,
# sums of fewer bits, truncation, wide.
VARIANTS = (
    Variant(14, "norm", False),
    Variant(15, "norm", True),
    Variant(3, "norm", True),
    Variant(15, "legacy", False),
    Variant(9, "accurate", False),
    Variant(20, "norm", True),
)
ORDINARY = VARIANTS[1]
NARROW = VARIANTS[:5]

LENGTHS = (1, 15, 63, 130, 600)
LONG = (1030, 2100, 4100, 8200, 16400)
"""One of each cluster: 2, 4, 8 blocks; then half as many lines, and a quarter."""


@pytest.fixture
def stages(place, monkeypatch):
    """Return stages whose arrays hold garbage at first, on a device with clusters."""
    if place.name == "gpu" and not place.engine.device.tile_clusters():
        pytest.skip("needs clusters of blocks")
    device = place.unfused.device
    monkeypatch.setattr(device, "shared_bytes", lambda: 1 << 17)
    return place.unfused


def scheme_of(variant, shift=0):
    return Scheme(variant.num_moduli, variant.scaling, shift)


def lines_of(place, x, layout="C"):
    return Operands(laid_out(place.own, x, layout), place.unfused.device)


def mixed(rng, shape):
    """Return lines of all kinds: ordinary, zeros, special values, subnormal numbers."""
    x = entries(rng, shape, "wide")
    flat = x.reshape(-1, shape[2])
    for i, line in enumerate(flat):
        kind = i % 7
        middle = shape[2] // 2
        if kind == 1:
            line[:] = rng.choice([0.0, -0.0], shape[2])
        elif kind == 2:
            line[middle] = np.nan
        elif kind == 3:
            line[-1], line[0] = np.inf, 5e-324
        elif kind == 4:
            line[:] = entries(rng, (1, 1, shape[2]), "subnormal")[0, 0]
        elif kind == 5:
            line[::3] *= 1e-300
            line[middle] = 2.0**1023
    return x


def assert_same_facts(place, found, want):
    """Compare all words; of the largest entry its exponent is what is kept."""
    found, want = place.host(found.words), place.host(want.words)
    assert np.array_equal(found[1:], want[1:])
    tops = [np.frexp(x[0].view(np.float64))[1] for x in (found, want)]
    assert np.array_equal(*tops)
    assert np.array_equal(found[0] == 0, want[0] == 0)


def compare(place, stages, operand, found, variant, scheme, *, left):
    facts, planes = found
    want = stages.line_facts(operand, scheme, left=left)
    assert_same_facts(place, facts, want)
    own = stages.operand_variant(variant, scheme, operand, left=left)
    others = stages.residues(operand, want, own)
    assert planes.shape == others.shape
    assert np.array_equal(place.host(planes), place.host(others))


# ---- Shapes ----------------------------------------------------------------------


@pytest.mark.parametrize("with_planes", [False, True])
def test_clusters_hold_every_line_up_to_32768(with_planes):
    shapes = [hopper.cluster_shape(k, with_planes=with_planes) for k in range(1, 32769)]
    for k, shape in enumerate(shapes, 1):
        most = 4096 if with_planes and 512 < k <= 8192 else 8192
        assert shape.chunk * shape.blocks >= padded(k)
        assert shape.chunk % (512 >> shape.line_bits) == 0
        assert shape.chunk << shape.line_bits <= most
        # Three blocks and what the system keeps of each fit a multiprocessor.
        assert 3 * (shape.shared_bytes + 1024) <= 228 << 10
        assert shape.blocks in (1, 2, 4, 8)
        # No smaller cluster would do.
        assert shape.blocks == 1 or (shape.blocks // 2 * most >> shape.line_bits) < k
    bits = [shapes[k - 1].line_bits for k in (512, 513, 8192, 8193, 16384, 16385)]
    assert bits == ([3, 2, 2, 2, 2, 1] if with_planes else [3, 3, 3, 2, 2, 1])
    assert hopper.cluster_shape(0, with_planes=with_planes) is None
    assert hopper.cluster_shape(32769, with_planes=with_planes) is None


# ---- Facts and planes ------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", LENGTHS)
def test_both_operands_of_a_product(place, stages, variant, k):
    rng = np.random.default_rng(k)
    left = lines_of(place, mixed(rng, (2, 9, k)))
    right = lines_of(place, mixed(rng, (1, 17, k)), "F")
    scheme = scheme_of(variant)
    found = hopper.facts_and_planes(stages, left, right, scheme, variant)
    compare(place, stages, left, found[0], variant, scheme, left=True)
    compare(place, stages, right, found[1], variant, scheme, left=False)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(place, stages, layout):
    rng = np.random.default_rng(1)
    left = lines_of(place, mixed(rng, (2, 3, 70)), layout)
    right = lines_of(place, mixed(rng, (2, 8, 70)), layout)
    scheme = scheme_of(ORDINARY)
    found = hopper.facts_and_planes(stages, left, right, scheme, ORDINARY)
    compare(place, stages, left, found[0], ORDINARY, scheme, left=True)
    compare(place, stages, right, found[1], ORDINARY, scheme, left=False)


@pytest.mark.parametrize("k", [128, 1024, 2048])
def test_lines_whose_entries_are_close(place, stages, k):
    # No zeros, also none behind the lines; then what is too far from the rest.
    rng = np.random.default_rng(k)
    x = np.ldexp(1 + rng.random((1, 12, k)), rng.integers(-100, 1, (1, 12, k)))
    x *= rng.choice([-1.0, 1.0], x.shape)
    x[0, :, 0] = 1.5
    x[0, 1:, k // 2] = [*(2.0 ** -np.arange(136, 144)), 0.0, 2.0**-1021, 5e-324]
    x[0, 2] *= 2.0**-900
    operands = lines_of(place, x), lines_of(place, x, "F")
    scheme = scheme_of(ORDINARY)
    found = hopper.facts_and_planes(stages, *operands, scheme, ORDINARY)
    for i, operand in enumerate(operands):
        compare(place, stages, operand, found[i], ORDINARY, scheme, left=i == 0)


@pytest.mark.parametrize("k", LONG)
def test_lines_that_blocks_share(place, stages, k):
    rng = np.random.default_rng(k)
    left, right = mixed(rng, (1, 7, k)), mixed(rng, (1, 5, k))
    # What decides lies in another block than the first.
    left[0, 0, :-1] *= 1e-200
    right[0, 1, -1] = 1.0
    operands = lines_of(place, left), lines_of(place, right, "F")
    scheme = scheme_of(ORDINARY)
    found = hopper.facts_and_planes(stages, *operands, scheme, ORDINARY)
    for i, operand in enumerate(operands):
        compare(place, stages, operand, found[i], ORDINARY, scheme, left=i == 0)


def test_rows_at_odd_addresses(place, stages):
    rng = np.random.default_rng(2)
    whole = place.own(mixed(rng, (2, 6, 75)))
    scheme = scheme_of(ORDINARY)
    for part in (whole[:, :, 1:], whole[:, :, :70], whole[:, 2:3, 3:], whole[1:, ::2]):
        operand = Operands(part, stages.device)
        found = hopper.facts_and_planes(stages, operand, None, scheme, ORDINARY)
        compare(place, stages, operand, found[0], ORDINARY, scheme, left=True)


@pytest.mark.parametrize("width", [64, 65])
def test_pairs_of_entries(place, stages, width):
    # Even strides at an even address, and an odd number of entries.
    rng = np.random.default_rng(3)
    whole = place.own(mixed(rng, (2, 5, 80)))
    operand = Operands(whole[:, :, :width], stages.device)
    scheme = scheme_of(ORDINARY)
    found = hopper.facts_and_planes(stages, operand, None, scheme, ORDINARY)
    compare(place, stages, operand, found[0], ORDINARY, scheme, left=True)


@pytest.mark.parametrize(
    "regime", ["ordinary", "same sign", "integers", "any", "sparse"]
)
def test_residues_are_those_of_the_contract(place, stages, regime):
    rng = np.random.default_rng(4)
    x = entries(rng, (1, 3, 90), regime)
    operand = lines_of(place, x)
    (facts, planes), _ = hopper.facts_and_planes(
        stages, operand, None, scheme_of(ORDINARY), ORDINARY
    )
    mu = facts.exponents(stages.device)[0].tolist()
    want = reference.scaling_exponents(x[0].tolist(), np.zeros((90, 1)).tolist(), 15)
    assert mu == list(want[0])
    rows = reference.integers(x[0].tolist(), mu)
    planes = place.host(planes)[:, 0]
    for plane, p in zip(planes[:15], MODULI, strict=False):
        residues = [[balanced_residue(v, p) for v in row] for row in rows]
        assert plane[:3, :90].tolist() == residues, p
    tops = np.frexp(np.abs(x[0]).max(axis=1, keepdims=True))[1] - 1
    cuts = np.floor(np.ldexp(np.abs(x[0]), 6 - tops))
    assert np.array_equal(planes[15, :3, :90], cuts)
    assert not planes[:, 3:].any()
    assert not planes[:, :, 90:].any()


@pytest.mark.parametrize("shift", [0, 70, -3])
def test_operands_that_lend_bits(place, stages, shift):
    # By 70 bits the kernels of the operands differ.
    rng = np.random.default_rng(5)
    variant = Variant(9, "norm", True)
    left = lines_of(place, entries(rng, (1, 4, 40), "ordinary"))
    right = lines_of(place, entries(rng, (1, 6, 40), "ordinary"), "F")
    scheme = scheme_of(variant, shift)
    found = hopper.facts_and_planes(stages, left, right, scheme, variant)
    compare(place, stages, left, found[0], variant, scheme, left=True)
    compare(place, stages, right, found[1], variant, scheme, left=False)


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_facts_only_and_single_operands(place, stages, given):
    rng = np.random.default_rng(6)
    both = (
        lines_of(place, mixed(rng, (3, 9, 33))),
        lines_of(place, mixed(rng, (1, 20, 33)), "F"),
    )
    operands = [
        x if is_given else None for x, is_given in zip(both, given, strict=True)
    ]
    scheme = scheme_of(ORDINARY)
    facts = hopper.facts_only(stages, *operands, scheme, ORDINARY)
    found = hopper.facts_and_planes(stages, *operands, scheme, ORDINARY)
    for i, operand in enumerate(operands):
        if operand is None:
            assert facts[i] is None
            assert found[i] is None
        else:
            want = stages.line_facts(operand, scheme, left=i == 0)
            assert_same_facts(place, facts[i], want)
            compare(place, stages, operand, found[i], ORDINARY, scheme, left=i == 0)


def test_what_does_not_fit(place, stages, monkeypatch):
    scheme = scheme_of(ORDINARY)
    x = lines_of(place, np.ones((1, 2, 10)))
    for shape in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (1, 1, 32769)):
        other = lines_of(place, np.ones(shape))
        assert hopper.facts_and_planes(stages, x, other, scheme, ORDINARY) is None
        assert hopper.facts_only(stages, other, None, scheme, ORDINARY) is None
    assert hopper.facts_and_planes(stages, None, None, scheme, ORDINARY) is None
    monkeypatch.setattr(stages.device, "shared_bytes", lambda: 1000)
    assert hopper.facts_and_planes(stages, x, None, scheme, ORDINARY) is None


# ---- Winograd's sums -------------------------------------------------------------


def quadrants(x, lines, k):
    """Return the quadrants of a matrix of integers, padded with zeros."""
    whole = np.zeros((2 * lines, 2 * k), object)
    whole[: x.shape[0], : x.shape[1]] = x
    return (
        whole[:lines, :k],
        whole[:lines, k:],
        whole[lines:, :k],
        whole[lines:, k:],
    )


def winograd_factors(x, lines, k, *, left):
    x00, x01, x10, x11 = quadrants(x, lines, k)
    if left:
        s1 = x10 + x11
        s2 = s1 - x00
        return [x00, x01, x01 - s2, x11, s1, s2, x00 - x10]
    t1 = x10 - x00
    t2 = x11 - t1
    return [x00, x01, x11, t2 - x01, t1, t2, x11 - x10]


def check_winograd(place, stages, operand, facts, found, variant):
    planes, cuts = (None if x is None else place.host(x) for x in found)
    _, lines, k = operand.x.shape
    half_lines, half_k = (padded(-(-size // 2)) for size in (lines, k))
    assert planes.shape == (variant.num_moduli, 7, half_lines, half_k)
    x = place.host(operand.x)[0]
    finite = np.where(np.isfinite(x), x, 0.0).tolist()
    exponents = facts.exponents(stages.device)[0].tolist()
    truncate = variant.scaling == "legacy"
    return (
        planes,
        cuts,
        np.array(
            reference.integers(finite, exponents, truncate=truncate), object
        ).reshape(lines, k),
        (half_lines, half_k),
    )


@pytest.mark.parametrize("variant", NARROW)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (9, 40, 30), (35, 17, 300)])
def test_winograd_planes(place, stages, variant, m, n, k):
    rng = np.random.default_rng(k)
    scheme = scheme_of(variant)
    operands = (
        lines_of(place, mixed(rng, (1, m, k))),
        lines_of(place, mixed(rng, (1, n, k)), "F"),
    )
    facts = [stages.line_facts(x, scheme, left=i == 0) for i, x in enumerate(operands)]
    sides = list(zip(operands, facts, strict=True))
    found = hopper.winograd_planes(stages, *sides, scheme, variant)
    for i, (operand, of_lines) in enumerate(sides):
        planes, cuts, integers, half = check_winograd(
            place, stages, operand, of_lines, found[i], variant
        )
        for j, sums in enumerate(winograd_factors(integers, *half, left=i == 0)):
            for plane, p in zip(planes[:, j], MODULI, strict=False):
                want = (sums + p // 2) % p - p // 2
                assert np.array_equal(plane, want), (j, p)
        if variant.cut_plane:
            own = stages.operand_variant(variant, scheme, operand, left=i == 0)
            others = place.host(stages.residues(operand, of_lines, own))
            assert np.array_equal(cuts, others[-1:])
        else:
            assert cuts is None


@pytest.mark.parametrize("layout", ["reversed", "spread F", "batch last"])
def test_winograd_planes_of_one_operand(place, stages, layout):
    rng = np.random.default_rng(8)
    scheme = scheme_of(ORDINARY)
    operand = lines_of(place, mixed(rng, (1, 20, 90)), layout)
    for left in (True, False):
        facts = stages.line_facts(operand, scheme, left=left)
        sides = ((operand, facts), None) if left else (None, (operand, facts))
        found = hopper.winograd_planes(stages, *sides, scheme, ORDINARY)
        assert found[left] is None
        planes, _, integers, half = check_winograd(
            place, stages, operand, facts, found[not left], ORDINARY
        )
        for j, sums in enumerate(winograd_factors(integers, *half, left=left)):
            for plane, p in zip(planes[:, j], MODULI, strict=False):
                assert np.array_equal(plane, (sums + p // 2) % p - p // 2), (j, p)


def test_winograd_sums_of_the_largest_integers(place, stages):
    # Sums of four entries of one sign each, as large as 15 moduli allow.
    x = np.zeros((1, 32, 32))
    x[0, :, 0] = 2.0 - 2.0**-52
    x[0, :, 16] = -(2.0 - 2.0**-52)
    x[0, 16:, 0] *= -1
    scheme = scheme_of(ORDINARY)
    operand = lines_of(place, x)
    for left in (True, False):
        facts = stages.line_facts(operand, scheme, left=left)
        sides = ((operand, facts), None) if left else (None, (operand, facts))
        found = hopper.winograd_planes(stages, *sides, scheme, ORDINARY)
        planes, _, integers, half = check_winograd(
            place, stages, operand, facts, found[not left], ORDINARY
        )
        factors = winograd_factors(integers, *half, left=left)
        assert max(abs(v) for sums in factors for v in sums.ravel()) > 2**57
        for j, sums in enumerate(factors):
            for plane, p in zip(planes[:, j], MODULI, strict=False):
                assert np.array_equal(plane, (sums + p // 2) % p - p // 2), (j, p)


def test_no_winograd_planes_of_long_integers_or_batches(place, stages):
    x = np.ones((2, 3, 4))
    for count, variant in ((1, Variant(16, "norm", False)), (2, ORDINARY)):
        operand = lines_of(place, x[:count])
        scheme = scheme_of(variant)
        side = operand, stages.line_facts(operand, scheme, left=True)
        assert hopper.winograd_planes(stages, side, None, scheme, variant) is None


# ---- Facts and Winograd's sums ---------------------------------------------------


def compare_winograd(place, stages, operand, found, variant, scheme, *, left):
    """Compare with facts and sums of launches of their own."""
    facts, planes, cuts = found
    want = stages.line_facts(operand, scheme, left=left)
    assert_same_facts(place, facts, want)
    sides = ((operand, want), None) if left else (None, (operand, want))
    others = hopper.winograd_planes(stages, *sides, scheme, variant)[not left]
    assert planes.shape == others[0].shape
    assert np.array_equal(place.host(planes), place.host(others[0]))
    assert (cuts is None) == (others[1] is None)
    assert cuts is None or np.array_equal(place.host(cuts), place.host(others[1]))


@pytest.mark.parametrize(("along", "longest"), [(False, 8192), (True, 16384)])
def test_clusters_hold_lines_of_both_halves(along, longest):
    for k in range(1, longest + 1):
        shape = hopper.winograd_shape(k, along=along)
        assert shape.line_bits == (2 if k <= 8192 else 1)
        assert shape.chunk * shape.blocks >= padded(-(-k // 2))
        assert shape.chunk % (512 >> shape.line_bits) == 0
        assert 4 * shape.chunk << shape.line_bits <= 8192
        # No smaller cluster would do.
        held = 2048 >> shape.line_bits
        assert shape.blocks == 1 or shape.blocks // 2 * held < padded(-(-k // 2))
    assert hopper.winograd_shape(0, along=along) is None
    assert hopper.winograd_shape(longest + 1, along=along) is None


def test_facts_and_winograd_planes_of_long_lines(place, stages):
    """Along the lines: with half as many of them in a cluster."""
    variant = Variant(15, "norm", True)
    scheme = scheme_of(variant)
    x = entries(np.random.default_rng(17), (1, 10, 8300), "ordinary")
    operand = lines_of(place, x)
    for left in (True, False):
        sides = (operand, None) if left else (None, operand)
        found = hopper.facts_and_winograd_planes(stages, *sides, scheme, variant)
        compare_winograd(
            place, stages, operand, found[not left], variant, scheme, left=left
        )
    across = lines_of(place, x, "F")
    given = stages, across, None, scheme, variant
    assert hopper.facts_and_winograd_planes(*given) is None


@pytest.mark.parametrize("variant", NARROW)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (9, 40, 30), (35, 17, 300), (18, 3, 1025)]
)
def test_facts_and_winograd_planes(place, stages, variant, m, n, k):
    rng = np.random.default_rng(k)
    left = lines_of(place, mixed(rng, (1, m, k)))
    right = lines_of(place, mixed(rng, (1, n, k)), "F")
    scheme = scheme_of(variant)
    found = hopper.facts_and_winograd_planes(stages, left, right, scheme, variant)
    compare_winograd(place, stages, left, found[0], variant, scheme, left=True)
    compare_winograd(place, stages, right, found[1], variant, scheme, left=False)


@pytest.mark.parametrize("k", [2050, 4100, 8180])
def test_quadrants_that_blocks_share(place, stages, k):
    rng = np.random.default_rng(k)
    left, right = mixed(rng, (1, 7, k)), mixed(rng, (1, 5, k))
    # What decides lies in the last block, and at the end of the first half.
    left[0, 0, :-1] *= 1e-200
    right[0, 1, :] *= 1e-200
    right[0, 1, padded(-(-k // 2)) - 1] = 1.0
    operands = lines_of(place, left), lines_of(place, right, "F")
    scheme = scheme_of(ORDINARY)
    found = hopper.facts_and_winograd_planes(stages, *operands, scheme, ORDINARY)
    for i, operand in enumerate(operands):
        compare_winograd(
            place, stages, operand, found[i], ORDINARY, scheme, left=i == 0
        )


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts_of_quadrants(place, stages, layout):
    rng = np.random.default_rng(11)
    operand = lines_of(place, mixed(rng, (1, 37, 70)), layout)
    scheme = scheme_of(ORDINARY)
    for left in (True, False):
        pair = (operand, None) if left else (None, operand)
        found = hopper.facts_and_winograd_planes(stages, *pair, scheme, ORDINARY)
        assert found[left] is None
        compare_winograd(
            place, stages, operand, found[not left], ORDINARY, scheme, left=left
        )


def test_quadrants_at_odd_addresses(place, stages):
    rng = np.random.default_rng(12)
    whole = place.own(mixed(rng, (1, 40, 76)))
    scheme = scheme_of(ORDINARY)
    for part in (whole[:, :, 1:], whole[:, :, :70], whole[:, :, :65], whole[:, 2:3]):
        operand = Operands(part, stages.device)
        found = hopper.facts_and_winograd_planes(
            stages, operand, None, scheme, ORDINARY
        )
        compare_winograd(place, stages, operand, found[0], ORDINARY, scheme, left=True)


def test_quadrants_of_an_operand_that_lends_bits(place, stages):
    rng = np.random.default_rng(13)
    variant = Variant(9, "norm", True)
    left = lines_of(place, entries(rng, (1, 20, 40), "ordinary"))
    right = lines_of(place, entries(rng, (1, 6, 40), "ordinary"), "F")
    scheme = scheme_of(variant, 3)
    found = hopper.facts_and_winograd_planes(stages, left, right, scheme, variant)
    compare_winograd(place, stages, left, found[0], variant, scheme, left=True)
    compare_winograd(place, stages, right, found[1], variant, scheme, left=False)


def test_quadrants_that_do_not_fit(place, stages, monkeypatch):
    scheme = scheme_of(ORDINARY)
    x = lines_of(place, np.ones((1, 2, 10)))
    for shape in ((0, 2, 3), (2, 2, 3), (1, 0, 3), (1, 2, 0), (1, 1, 16385)):
        other = lines_of(place, np.ones(shape))
        given = stages, x, other, scheme, ORDINARY
        assert hopper.facts_and_winograd_planes(*given) is None
    assert hopper.facts_and_winograd_planes(stages, None, None, *given[3:]) is None
    wide = Variant(16, "norm", False)
    given = stages, x, None, scheme_of(wide), wide
    assert hopper.facts_and_winograd_planes(*given) is None
    monkeypatch.setattr(stages.device, "shared_bytes", lambda: 1000)
    given = stages, x, None, scheme, ORDINARY
    assert hopper.facts_and_winograd_planes(*given) is None


@pytest.mark.parametrize("certify", [None, "conventional"])
@pytest.mark.parametrize("longest", [8192, 1])
def test_products_of_quadrants(place, stages, monkeypatch, certify, longest):
    # With lines that fit clusters and as if they did not: the bits of whole matrices.
    own_shape = hopper.winograd_shape
    monkeypatch.setattr(
        hopper,
        "winograd_shape",
        lambda k, **options: own_shape(k, **options) if k <= longest else None,
    )
    rng = np.random.default_rng(14)
    a, b = entries(rng, (1, 41, 60), "ordinary"), entries(rng, (1, 60, 50), "ordinary")
    results = []
    # Of other sizes, so that nothing recorded is queued again.
    for columns, least in ((50, 61), (49, 32)):
        monkeypatch.setattr(tiling, "_WINOGRAD_SIZE", least)
        tiling.choose_residue_tiles.cache_clear()
        out = place.own(np.zeros((1, 41, columns)))
        operands = place.own(a), place.own(b[:, :, :columns])
        place.hopper.matmul(*operands, out, Scheme(14), certify=certify)
        results.append(place.host(out)[:, :, :49])
    tiling.choose_residue_tiles.cache_clear()
    assert np.array_equal(*results)
