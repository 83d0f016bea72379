"""Facts and planes of complex lines: one launch, stages, and Python integers."""

import numpy as np
import pytest
from complex_pairs import join
from devices import LAYOUTS, entries, laid_out, poisoned
from np_ozaki._kernels.render import Variant

from np_ozaki.engines import complex_operand
from np_ozaki.engines import cuda_hopper_lines as hopper
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    root_of_minus_one,
)
from np_ozaki.tiling import padded

CPU = CpuEngine(1)


def variant_of(n, scaling="norm", cut_plane=True):
    return Variant(n, scaling, cut_plane, family="complex", parts=2)


# More than eight moduli with the certificate's plane; fewer, without; truncation; wide.
ORDINARY = variant_of(16)
VARIANTS = [
    ORDINARY,
    *(
        pytest.param(x, marks=pytest.mark.slow)
        for x in (
            variant_of(3),
            variant_of(8, cut_plane=False),
            variant_of(15, "legacy", cut_plane=False),
            variant_of(22),
        )
    ),
]


@pytest.fixture
def stages(place, monkeypatch):
    """Return stages whose arrays hold garbage at first, on a device with clusters."""
    if place.name == "gpu" and not place.engine.device.tile_clusters():
        pytest.skip("needs clusters of blocks")
    monkeypatch.setattr(place.unfused.device, "shared_bytes", lambda: 1 << 17)
    return place.unfused


def scheme_of(variant, shift=0):
    return Scheme(variant.num_moduli, variant.scaling, shift, "complex")


def lines_of(place, x, layout="C", *, conjugated=False):
    x = laid_out(place.own, x, layout)
    return Operands(x, place.unfused.device, conjugated)


def mixed(seed, shape):
    """Return lines of all kinds, the parts of a line of different ones."""
    rng = np.random.default_rng(seed)
    parts = [entries(rng, shape, "wide") for _ in "xy"]
    of_lines = zip(*(x.reshape(-1, shape[2]) for x in parts), strict=True)
    for i, pair in enumerate(of_lines):
        kind, middle = i % 8, shape[2] // 2
        one, other = pair[i // 8 % 2], pair[1 - i // 8 % 2]
        if kind == 1:
            one[:] = rng.choice([0.0, -0.0], shape[2])
        elif kind == 2:
            one[middle] = np.nan
        elif kind == 3:
            one[-1], other[0] = -np.inf, 5e-324
        elif kind == 4:  # subnormal
            one[:], other[:] = entries(rng, (2, 1, shape[2]), "subnormal")[:, 0]
        elif kind == 5:
            one *= 1e-300
            other[middle] = 2.0**1023
        elif kind == 6:
            one[:], other[:] = entries(rng, (2, 1, shape[2]), "ordinary")[:, 0]
        elif kind == 7:
            one[:] = other[:] = 0.0
    return join(*parts)


def finite(x):
    return np.where(np.isfinite(x), x, 0.0)


def check(place, stages, operand, found, variant, scheme, *, left):
    """Compare with embedded lines, with Python integers and with NumPy."""
    facts, planes, cuts = found
    # Part by part, as CuPy itself asks for complex entries at multiples of 16.
    x = join(place.host(operand.x.real), place.host(operand.x.imag))
    x = x.conj() if operand.conjugated else x
    batch, lines, k = x.shape
    # A's lines are there twice, as real parts have them and as imaginary ones do.
    real = complex_operand.embedded(x, left=True)[:, :lines]
    of_real = Operands(place.own(real), place.unfused.device)
    want = stages.line_facts(of_real, scheme, left=left)
    ours, theirs = place.host(facts.words), place.host(want.words)
    assert np.array_equal(ours[1:], theirs[1:])
    tops = [np.frexp(words[0].view(np.float64))[1] for words in (ours, theirs)]
    assert np.array_equal(*tops)

    assert planes.shape == (variant.planes, batch, padded(lines), padded(k))
    planes = place.host(planes)
    exponents = facts.exponents(stages.device).tolist()
    parts = []
    for part in (finite(x.real), finite(x.imag)):
        integers = [
            reference.integers(rows.tolist(), mu, truncate=variant.scaling == "legacy")
            for rows, mu in zip(part, exponents, strict=True)
        ]
        parts.append(np.array(integers, object).reshape(x.shape))
    for index, p in enumerate(COMPLEX_MODULI[: variant.num_moduli]):
        for i, sign in enumerate((1, -1)):
            residues = parts[0] + sign * root_of_minus_one(p) * parts[1]
            plane = planes[2 * index + i]
            want = (residues + p // 2) % p - p // 2
            assert np.array_equal(plane[:, :lines, :k], want), (p, sign)
            assert not plane[:, lines:].any()
            assert not plane[:, :, k:].any()

    if not variant.cut_plane:
        assert cuts is None
        return
    tops = np.frexp(np.abs(finite(real)).max(axis=2, keepdims=True))[1] - 1
    # By halves: a factor may be no double.
    half = np.abs(finite(np.stack([x.real, x.imag], axis=2)))
    half = np.ldexp(half, -(tops[:, :, np.newaxis] // 2))
    half = np.floor(np.ldexp(half, 6 - (tops - tops // 2)[:, :, np.newaxis]))
    whole = np.zeros((batch, padded(lines), 2, padded(k)), np.int8)
    whole[:, :lines, :, :k] = half
    rows = [whole, whole[:, :, ::-1]] if left else [whole]
    want = np.concatenate([x.reshape(batch, padded(lines), -1) for x in rows], axis=1)
    assert np.array_equal(place.host(cuts)[0], want)


def check_both(place, stages, operands, variant, shift=0):
    """Compare what one launch finds of A and of B, and what stages do."""
    scheme = scheme_of(variant, shift)
    found = hopper.facts_and_planes(stages, *operands, scheme, variant)
    for i, operand in enumerate(operands):
        if operand is None:
            assert found[i] is None
            continue
        given = variant, scheme
        check(place, stages, operand, found[i], *given, left=i == 0)
        facts = stages.line_facts(operand, scheme, left=i == 0)
        own = stages.operand_variant(variant, scheme, operand, left=i == 0)
        planes = stages.residues(operand, facts, own)
        cuts = None
        if variant.cut_plane:
            cuts = stages.cuts(operand, facts, left=i == 0)
        check(place, stages, operand, (facts, planes, cuts), *given, left=i == 0)


def test_clusters_hold_every_line_up_to_32768():
    shapes = [
        hopper.cluster_shape(k, with_planes=True, parts=2) for k in range(1, 32769)
    ]
    for k, shape in enumerate(shapes, 1):
        words = 2 * shape.chunk << shape.line_bits
        assert shape.chunk * shape.blocks >= padded(k)
        assert shape.chunk % (512 >> shape.line_bits) == 0
        assert words <= 8192
        # Two blocks and what the system keeps of each fit a multiprocessor.
        assert 2 * (shape.shared_bytes + 1024) <= 228 << 10
        assert shape.shared_bytes >= 8 * words
        # No smaller cluster would do.
        assert shape.blocks == 1 or (shape.blocks // 2 * 4096 >> shape.line_bits) < k
    bits = [shapes[k - 1].line_bits for k in (1, 8192, 8193, 16384, 16385)]
    assert bits == [2, 2, 1, 1, 0]
    assert hopper.cluster_shape(32769, with_planes=True, parts=2) is None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [1, 63, pytest.param(600, marks=pytest.mark.slow)])
def test_both_operands_of_a_product(place, stages, variant, k):
    left = lines_of(place, mixed(k, (2, 9, k)), conjugated=True)
    right = lines_of(place, mixed(k + 1, (1, 17, k)), "F")
    check_both(place, stages, (left, right), variant)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(place, stages, layout):
    left = lines_of(place, mixed(1, (1, 8, 21)), layout)
    right = lines_of(place, mixed(2, (1, 5, 21)), layout, conjugated=True)
    check_both(place, stages, (left, right), ORDINARY)


@pytest.mark.parametrize(
    "k", [1030, *(pytest.param(k, marks=pytest.mark.slow) for k in (2100, 4100, 16384))]
)
def test_lines_that_blocks_share(place, stages, k):
    left, right = mixed(k, (1, 3, k)), mixed(k, (1, 2, k))
    # What decides lies in another block than the first, and in one part.
    left[0, 0, :-1] *= 1e-200
    right.imag[0, 1] *= 1e-200
    right.imag[0, 1, -1] = 1.0
    operands = lines_of(place, left), lines_of(place, right, "F", conjugated=True)
    check_both(place, stages, operands, ORDINARY)


@pytest.mark.parametrize("end", ["x", "y"])
def test_facts_of_the_longest_lines(place, stages, end):
    # What decides is told by the last warp of the last block; norms reach 2^32.
    x = np.full((1, 2, 32768), 2.0 - 2.0**-52) * (1 + 1j)
    x[0, 1, :-1] *= 1e-200
    x[0, 1, -1] = 3.0 if end == "x" else 3j
    operand = lines_of(place, x)
    scheme = scheme_of(ORDINARY)
    facts, _ = hopper.facts_only(stages, operand, None, scheme, ORDINARY)
    want = stages.line_facts(operand, scheme, left=True)
    found = place.host(facts.words)
    assert np.array_equal(found[1:], place.host(want.words)[1:])
    assert found[2].tolist() == [[2**32, 3 * 2**14 + 2 * 32767]]


@pytest.mark.parametrize("begin", [1, 2, 3])
def test_lines_at_odd_addresses(place, stages, begin):
    words = poisoned((1, 5, 2 * 23 + 4))
    words[:, :, begin : begin + 46] = mixed(3, (1, 5, 23)).view(float)
    x = place.own(words)[:, :, begin : begin + 46].view(complex)
    for part in (x, x.swapaxes(1, 2)):
        operand = Operands(part, stages.device)
        check_both(place, stages, (operand, None), ORDINARY)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [70, -3])
def test_operands_that_lend_bits(place, stages, shift):
    # By 70 bits the kernels of the operands differ.
    left = lines_of(place, mixed(4, (1, 7, 40)))
    right = lines_of(place, mixed(5, (1, 6, 40)), "F", conjugated=True)
    check_both(place, stages, (left, right), variant_of(9), shift)


@pytest.mark.parametrize("given", [(True, False), (False, True)])
def test_facts_of_single_operands(place, stages, given):
    both = lines_of(place, mixed(6, (2, 9, 33))), lines_of(place, mixed(7, (1, 4, 33)))
    operands = [
        x if is_given else None for x, is_given in zip(both, given, strict=True)
    ]
    scheme = scheme_of(ORDINARY)
    facts = hopper.facts_only(stages, *operands, scheme, ORDINARY)
    for i, operand in enumerate(operands):
        if operand is None:
            assert facts[i] is None
            continue
        want = stages.line_facts(operand, scheme, left=i == 0)
        ours, theirs = (place.host(x.words)[1:] for x in (facts[i], want))
        assert np.array_equal(ours, theirs)
