"""Complex products of the CUDA engine: the CPU engine's bits.

The CPU engine takes complex operands embedded in real ones.  The CUDA engine takes
them as they lie, with two INT8 products for a modulus, or embedded as well.
"""

import numpy as np
import pytest
from complex_pairs import SPECIAL, join, normals, special_operands
from devices import LAYOUTS, entries, laid_out, poisoned, without_memory_once
from hypothesis import given, settings
from hypothesis import strategies as st
from np_ozaki._kernels.render import is_wide, limit_words

from np_ozaki import complex_products, context, tiling
from np_ozaki.engines import complex_operand, cuda_certificate
from np_ozaki.engines.base import Outcome, Scheme
from np_ozaki.engines.complex_operand import ComplexOperand
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.prepared import Prepared
from np_ozaki.errors import CheckError
from np_ozaki.numerics.complex_reference import complex_exponents
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.testing import REGIMES, assert_same_bits

CPU = CpuEngine(1)

few = settings(max_examples=max(12, settings.default.max_examples // 5))


def scheme_of(n, scaling="norm", shift=0):
    return Scheme(n, scaling, shift, "complex")


def slow_but(quick, schemes):
    """Return parameters: each takes a compiler, most are for the whole suite."""
    return [
        pytest.param(*each, marks=() if i in quick else pytest.mark.slow)
        for i, each in enumerate(schemes)
    ]


def embedded(a, b, conjugated=(False, False)):
    return (
        complex_operand.embedded(a, left=True, conjugated=conjugated[0]),
        complex_operand.embedded(b, left=False, conjugated=conjugated[1]),
    )


# ---- Embedded in real operands -------------------------------------------------------

# Narrow and wide integers, one word and many, each rule.
SCHEMES = (
    (scheme_of(17, "accurate"), None),
    (scheme_of(2), None),
    (scheme_of(16), "conventional"),
    (scheme_of(15, "legacy"), None),
    (scheme_of(22), "conventional"),
    (scheme_of(23, "accurate"), "conventional"),
)
FEW_SCHEMES = slow_but({0}, SCHEMES)


def check_embedded(place, a, b, scheme, target, layout=("C", "C", "C")):
    """Assert that embedded operands have the CPU engine's bits and missing bits."""
    want = poisoned((max(len(a), len(b)), a.shape[1], b.shape[2]))
    outcome = CPU.matmul(a, b, want, scheme, certify=target)
    left, right = (
        laid_out(place.own, x, name) for x, name in zip((a, b), layout, strict=False)
    )
    for engine in place.engines():
        out = laid_out(place.own, poisoned(want.shape), layout[2])
        found = engine.matmul(left, right, out, scheme, certify=target)
        assert_same_bits(place.host(out), want)
        if target:
            assert found.missing_bits.tolist() == outcome.missing_bits.tolist()


@few
@given(st.data(), st.sampled_from(["norm", "accurate", "legacy"]), st.integers(2, 49))
def test_scaling_exponents(place, data, scaling, n):
    a, b = data.draw(special_operands((0.0, 1.0, -2.5, 3e100, 5e-324, 1 / 3)))
    left, right = embedded(a[np.newaxis], b[np.newaxis])
    mu, nu = place.engine.scaling_exponents(
        place.own(left), place.own(right), n, scaling, "complex"
    )
    want_mu, want_nu = complex_exponents(a, b, n, scaling)
    assert mu[0].tolist() == want_mu + want_mu
    assert nu[0].tolist() == want_nu


@pytest.mark.parametrize(("scheme", "target"), FEW_SCHEMES)
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("F", "C", "F"), ("C", "F", "F")])
def test_embedded_products(place, scheme, target, layout):
    a, b = embedded(normals(1, (2, 9, 21), 1.0), normals(2, (2, 21, 12), 1.0))
    check_embedded(place, a, b, scheme, target, layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("C", "C", "F")])
def test_both_parts_of_a_row_have_one_exponent(place, layout):
    # Of some rows one part meets far less than the other.
    a, b = normals(9, (1, 8, 20)), normals(10, (1, 20, 6))
    a.imag[:, ::2] *= 2.0**-20
    b.imag *= 2.0**-20
    scheme = scheme_of(6, "accurate")
    check_embedded(place, *embedded(a, b), scheme, "conventional", layout)


@pytest.mark.parametrize(("scheme", "target"), FEW_SCHEMES)
def test_special_values_in_embedded_operands(place, scheme, target):
    rng = np.random.default_rng(3)
    parts = [rng.choice(SPECIAL, shape) for shape in 2 * [(1, 9, 3)] + 2 * [(1, 3, 9)]]
    a, b = embedded(join(*parts[:2]), join(*parts[2:]))
    check_embedded(place, a, b, scheme, target)


def test_rebalancing(place):
    d = 2.0 ** np.linspace(-60, 60, 24).round()
    a = normals(7, (1, 6, 24)) * d
    b = normals(8, (1, 24, 7)) / d[:, np.newaxis]
    b.imag *= 2.0**-9
    left, right = embedded(a, b)
    want = CPU.rebalance(left, right, "complex")
    found = place.engine.rebalance(place.own(left), place.own(right), "complex")
    assert want.spread[0] > 50
    for x, y in ((found.a, want.a), (found.b, want.b)):
        assert_same_bits(place.host(x), y)
    for x, y in ((found.rows, want.rows), (found.columns, want.columns)):
        np.testing.assert_array_equal(x, y)


def test_texts_know_the_family():
    assert [n for n in range(2, 23) if not is_wide(n, "norm", 0, "complex")] == list(
        range(2, 17)
    )
    limit = product_bound(20, "complex")
    assert limit_words(20, "complex") == (
        limit.bit_length(),
        limit >> limit.bit_length() - 64,
    )


# ---- Two products for a modulus ------------------------------------------------------

ORDINARY = scheme_of(16)
PAIRS = (
    (ORDINARY, "conventional"),
    (scheme_of(3), -4),
    (scheme_of(2), None),
    (scheme_of(15, "legacy"), None),
    (scheme_of(22), "conventional"),
)
FEW_PAIRS = slow_but({0, 1}, PAIRS)

NEITHER = (False, False)
CONJUGATES = [NEITHER, (True, False), (False, True), (True, True)]


def check(
    place,
    a,
    b,
    scheme=ORDINARY,
    target="conventional",
    *,
    layout=("C", "C", "C"),
    conjugated=NEITHER,
    host=False,
    low=False,
    engines=None,
    **options,
):
    """Assert that products have the CPU engine's bits; return their outcomes."""
    shape = max(len(a), len(b)), a.shape[1], b.shape[2]
    wanted = [poisoned((shape[0], 2 * shape[1], shape[2])) for _ in range(1 + low)]
    expected = CPU.matmul(
        *embedded(a, b, conjugated),
        wanted[0],
        scheme,
        certify=target,
        low=wanted[1] if low else None,
    )
    own, read = (np.array, np.array) if host else (place.own, place.host)
    left, right = (
        laid_out(own, x, name) for x, name in zip((a, b), layout, strict=False)
    )
    outcomes = []
    for engine in engines or place.engines():
        results = [
            laid_out(own, poisoned(shape, complex), layout[2]) for _ in range(1 + low)
        ]
        found = engine.matmul(
            ComplexOperand(left, left=True, conjugated=conjugated[0]),
            ComplexOperand(right, left=False, conjugated=conjugated[1]),
            results[0],
            scheme,
            certify=target,
            low=results[1] if low else None,
            **options,
        )
        for result, want in zip(results, wanted, strict=True):
            parts = want[:, : shape[1]], want[:, shape[1] :]
            assert_same_bits(read(result), join(*parts))
        if target is None:
            assert found.missing_bits is None
        else:
            assert found.missing_bits.tolist() == expected.missing_bits.tolist()
        if host:
            flags = found.overflow, found.invalid
            assert flags == (expected.overflow, expected.invalid)
        outcomes.append(found)
    return outcomes


def of_regimes(seed, batches=(1, 1), m=4, k=9, n=5, regimes=("ordinary", "ordinary")):
    """Return operands, the real parts of one regime, the imaginary ones of another."""
    rng = np.random.default_rng(seed)
    return [
        join(*(entries(rng, shape, regime) for regime in regimes))
        for shape in ((batches[0], m, k), (batches[1], k, n))
    ]


@pytest.mark.parametrize(("scheme", "target"), FEW_PAIRS)
@pytest.mark.parametrize("conjugated", CONJUGATES)
def test_products(place, scheme, target, conjugated):
    # Lines that end within a group of 8 and of 16 entries, of several such groups.
    a, b = normals(1, (2, 9, 21), 1.0), normals(2, (2, 21, 12), 1.0)
    check(place, a, b, scheme, target, conjugated=conjugated)
    layout = "F", "C", "F"
    check(place, a[:1], b, scheme, target, layout=layout, conjugated=conjugated)


MANY_LAYOUTS = [
    ((left, right, left), conjugated)
    for left, right, conjugated in zip(
        LAYOUTS, [*LAYOUTS][::-1], 2 * CONJUGATES, strict=False
    )
]


@pytest.mark.parametrize(("layout", "conjugated"), MANY_LAYOUTS)
def test_layouts(place, layout, conjugated):
    a, b = of_regimes(3, (2, 2), regimes=("ordinary", "wide"))
    check(place, a, b, layout=layout, conjugated=conjugated)
    check(place, a, b, layout=layout, conjugated=conjugated, host=True)


@pytest.mark.parametrize("batches", [(3, 1), (1, 3)])
def test_batches_that_broadcast(place, batches):
    a, b = of_regimes(4, batches, m=2, k=3, n=2)
    a[0] *= 1e-200
    check(place, a, b, conjugated=(True, False))


@pytest.mark.parametrize(("scheme", "target"), FEW_PAIRS)
def test_special_values_in_each_part(place, scheme, target):
    # Every pair of parts in an entry of its own, among ordinary ones.
    kinds = [join(x, y) for x in SPECIAL[:7] for y in SPECIAL[:7]]
    a, b = of_regimes(5, m=len(kinds), k=3, n=len(kinds))
    a[0, :, 1], b[0, 2] = kinds, kinds
    for conjugated in CONJUGATES[1:3]:
        check(place, a, b, scheme, target, conjugated=conjugated, host=True)


@few
@given(special_operands(), st.sampled_from(CONJUGATES), st.booleans())
def test_small_products_of_special_values(place, pair, conjugated, turned):
    a, b = (x[np.newaxis] for x in pair)
    layout = ("C", "F", "F" if turned else "C")
    check(place, a, b, layout=layout, conjugated=conjugated, host=True)


@pytest.mark.parametrize(
    "regimes",
    [
        ("near overflow", "subnormal"),
        ("any", "any"),
        *(
            pytest.param((x, y), marks=pytest.mark.slow)
            for x in REGIMES
            for y in REGIMES
        ),
    ],
)
def test_regimes_of_parts(place, regimes):
    a, b = of_regimes(6, m=7, k=17, n=6, regimes=regimes)
    check(place, a, b, conjugated=(False, True))
    check(place, a, b[:, :, ::-1], layout=("F", "F", "F"), host=True)


def test_parts_that_are_zero_or_subnormal(place):
    a, b = of_regimes(7, m=5, n=5)
    a.imag[0, 0], a.real[0, 1], a[0, 2], a[0, 3] = 0.0, -0.0, 0.0, a[0, 3] * 5e-324
    a[0, 4] *= 2.0**-1000
    b.imag[0, :, 0], b.real[0, :, 1], b[0, :, 2] = -0.0, 0.0, b[0, :, 2] * 2.0**-80
    for conjugated in (NEITHER, (True, True)):
        check(place, a, b, conjugated=conjugated)


@pytest.mark.parametrize("v", [1.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize(("scheme", "target"), FEW_PAIRS)
def test_constants_at_the_crt_bound(place, v, scheme, target):
    # Parts of one size and signs that add up: |Im C'| is as large as it can be.
    a, b = np.full((1, 2, 64), join(v, v)), np.full((1, 64, 2), join(v, v))
    b[..., 1] = join(-v, v)
    check(place, a, b, scheme, target)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("C", "C", "F")])
def test_every_integer_wraps_alike(place, n, layout):
    """Legacy products of few moduli meet both ends of the balanced interval."""
    limit = product_bound(n, "complex")
    steps = np.arange(-6.0, 7.0)
    ends = np.concatenate([limit + steps, -limit + steps, 3 * limit + steps])
    a = join(ends[:, np.newaxis], ends[::-1, np.newaxis])[np.newaxis]
    b = join([[1.0, 2.0, 0.0]], [[0.0, 1.0, -1.0]])[np.newaxis]
    scheme = scheme_of(n, "legacy")
    # Rows that lose no bit: exponents of "legacy" fall with the scale of B.
    for power in (0, 6, 12, 20):
        check(place, a, b * 2.0**power, scheme, None, layout=layout)
        check_embedded(place, *embedded(a, b * 2.0**power), scheme, None, layout)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(2, 23))
def test_every_number_of_moduli(place, n):
    a, b = normals(n, (1, 5, 33), 1.0), normals(n + 100, (1, 33, 3))
    check(place, a, b, scheme_of(n), conjugated=(False, True))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "most"), [(7, 5), (9, 20), (16, 30), (22, 30)])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("F", "F", "F")])
def test_lent_bits(place, n, most, sign, layout):
    a, b = normals(3, (1, 5, 9)), normals(4, (1, 9, 6))
    scheme = scheme_of(n, shift=sign * most)
    check(place, a, b, scheme, layout=layout, conjugated=(True, True))


def test_the_rest_of_the_rounding(place):
    a, b = of_regimes(8, (1, 2), regimes=("ordinary", "tiny products"))
    a[0, 1, 2] = join(np.inf, 1.0)
    check(place, a, b, low=True, conjugated=(True, False))
    check(place, a, b, target=None, low=True, layout=("C", "C", "F"), host=True)


def test_products_with_ones_own_adjoint_are_hermitian(place):
    x = place.own(normals(11, (1, 6, 20), 2.0))
    left = ComplexOperand(x, left=True)
    for conjugated in (True, False):
        other = ComplexOperand(x.swapaxes(1, 2), left=False, conjugated=conjugated)
        for engine in place.engines():
            out = place.own(poisoned((1, 6, 6), complex))
            engine.matmul(left, other, out, ORDINARY)
            c = place.host(out)[0]
            assert_same_bits(c.real, c.real.T)
            if conjugated:
                assert_same_bits(np.diag(c.imag), np.zeros(6))
                np.testing.assert_array_equal(c.imag, -c.imag.T)
            else:
                assert_same_bits(c.imag, c.imag.T)


@pytest.mark.parametrize("begin", [(1, 0, 0), (0, 0, 1), (1, 1, 1)])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_operands_between_multiples_of_sixteen_bytes(place, begin, layout):
    a, b = of_regimes(12)
    arrays = []
    for x, odd in zip((a, b, poisoned((1, 4, 5), complex)), begin, strict=True):
        x = x.swapaxes(1, 2) if layout == "F" else x
        words = poisoned((2 * x.size + 2,))
        words[odd : odd + 2 * x.size] = np.ascontiguousarray(x).view(float).ravel()
        own = place.own(words)[odd : odd + 2 * x.size].view(complex).reshape(x.shape)
        arrays.append(own.swapaxes(1, 2) if layout == "F" else own)
    want = poisoned((1, 8, 5))
    CPU.matmul(*embedded(a, b), want, ORDINARY)
    x, y, out = arrays
    for engine in place.engines():
        # Part by part, as CuPy itself asks for complex entries at multiples of 16.
        out.real[...] = out.imag[...] = 7.25
        engine.matmul(
            ComplexOperand(x, left=True), ComplexOperand(y, left=False), out, ORDINARY
        )
        found = join(place.host(out.real), place.host(out.imag))
        assert_same_bits(found, join(want[:, :4], want[:, 4:]))


def test_a_failed_check_names_the_matrix_of_the_batch(place, monkeypatch):
    engine, seen = place.engine, []

    def fail_at_the_third(job, workspace_bytes):
        seen.append(job)
        if len(seen) == 3:
            raise CheckError(0, (slice(0, 8), slice(0, 5)), (5,), (0,))
        return Outcome(False, False, 0, 1)

    monkeypatch.setattr(engine, "_within_memory", fail_at_the_third)
    a, b = (place.own(x) for x in (normals(1, (4, 4, 6)), normals(2, (4, 6, 5))))
    out = place.own(poisoned((4, 4, 5), complex))
    operands = ComplexOperand(a, left=True), ComplexOperand(b, left=False)
    with pytest.raises(CheckError) as caught:
        engine.matmul(*operands, out, ORDINARY, check=True)
    assert caught.value.matrix == 2


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (1, 0, 3, 4), (1, 3, 2, 0)])
def test_empty_products(place, shape):
    batch, m, k, n = shape
    a, b = np.ones((batch, m, k), complex), np.ones((batch, k, n), complex)
    check(place, a, b, low=True)


# ---- Certificates of pairs -----------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 4, 16, 32])
def test_certificates_count_the_products_of_both_parts(place, k):
    # What k terms of this size would allow, 2k do not.
    a, b = np.full((1, 2, k), 1e-30 + 0j), np.full((1, k, 2), 1e-30 + 0j)
    a[..., 0], b[:, 0] = 1.0, 1.0 + 1.0j
    check(place, a, b, scheme_of(3), -4)


@pytest.mark.parametrize("phi", [0.0, 4.0, pytest.param(40.0, marks=pytest.mark.slow)])
def test_certificates_miss_the_same_bits(place, phi):
    a, b = normals(13, (2, 6, 40), phi), normals(14, (2, 40, 7), phi)
    # Parts that cancel: of one part of an entry less is known than of the other.
    b[1, :, 0] = b[1, :, 0].real * (1 + 1j)
    a[1].imag *= 2.0**-30
    for target in ("conventional", -40):
        (found, *_) = check(place, a, b, target=target, conjugated=(True, False))
        assert bool(found.missing_bits.any()) == (phi > 0)


# ---- Long lines, tiles, memory -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("k", [600, 4100, 8200, 16390])
def test_long_lines(place, k):
    # Of one cluster each, one that shared memory has no room for among them.
    a, b = normals(15, (1, 2, k), 1.0), normals(16, (1, k, 1))
    a[0, 1, :-1] *= 1e-200
    b.imag[0, : k // 2] = 0.0
    check(place, a, b)
    check(place, a, b, layout=("F", "F", "C"), conjugated=(True, True))


@pytest.fixture
def short_blocks(monkeypatch):
    """Let blocks of k be as short as if sums had few bits."""

    def shorten(block):
        monkeypatch.setattr(tiling, "INT8_K_BLOCK", block)
        for choose in (tiling.choose_cuda_tiles, tiling.choose_residue_tiles):
            choose.cache_clear()

    kept = tiling.INT8_K_BLOCK
    yield shorten
    shorten(kept)


@pytest.mark.parametrize(("scheme", "target"), FEW_PAIRS)
def test_blocks_of_k(place, short_blocks, scheme, target):
    short_blocks(32)
    a, b = of_regimes(17, (2, 1), k=70, regimes=("wide", "ordinary"))
    check(place, a, b, scheme, target, layout=("C", "F", "C"), conjugated=(True, False))


def test_sums_of_a_longest_block_do_not_wrap(place, short_blocks, monkeypatch):
    # Equal entries of one sign, each as large as the certificate's plane can hold.
    k = 10**6
    if place.name == "simulated":
        # 21 bits hold blocks of 64 as 32 bits hold blocks of 2^17.
        k = 640
        short_blocks(64)
        monkeypatch.setattr(cuda_certificate, "INT8_K_BLOCK", 64)
        for engine in place.engines():
            monkeypatch.setattr(engine.device, "accumulator_bits", 21)
    v = 1.0 - 2.0**-53
    a, b = np.full((1, 1, k), join(v, v)), np.full((1, k, 1), join(v, -v))
    check(place, a, b)
    check(place, a, -b, layout=("F", "F", "C"), conjugated=(False, True))
    # A certificate whose sums wrap shows anything, also of lines that are rounded.
    a[0, 0, 0] = 1e-30
    (found, *_) = check(place, a, b, target=-60)
    assert found.missing_bits[0] > 0


@pytest.mark.parametrize("host", [False, True])
def test_tiles_in_every_direction(place, host):
    a, b = of_regimes(18, (2, 2), m=3, k=40, n=2, regimes=("wide", "ordinary"))
    # The smallest there are: one line each way, 16 of k.
    found = check(place, a, b, host=host, workspace_bytes=1, conjugated=(False, True))
    assert {x.tiles for x in found} == {2 * 3 * 2}
    # One matrix at a time, and then lines are cut.
    found = check(place, a, b, host=host, workspace_bytes=100_000)
    assert {x.tiles for x in found} == {2}
    assert all(x.workspace_bytes <= 100_000 for x in found)


@pytest.mark.parametrize("host", [False, True])
def test_smaller_tiles_where_memory_is_short(place, monkeypatch, host):
    a, b = of_regimes(19, m=9, n=3)
    for engine in (place.int32, place.hopper):
        failed = without_memory_once(monkeypatch, engine.device)
        check(place, a, b, engines=[engine], host=host)
        assert failed


# ---- Prepared operands ---------------------------------------------------------------


def test_nothing_is_made_twice(place, monkeypatch):
    made = []
    a, b = (place.own(x) for x in of_regimes(20, m=6, n=6))
    for engine in place.engines():
        launch = engine.device.launch

        def noted(stage, *args, real=launch, **kwargs):
            made.append(stage)
            return real(stage, *args, **kwargs)

        monkeypatch.setattr(engine.device, "launch", noted)
    stages = {"scaling_exponents", "residues", "cut_planes", "lines_in_clusters"}
    for engine in place.engines():
        kept = Prepared(), Prepared()
        for again in range(2):
            for conjugated in CONJUGATES:
                made.clear()
                out = place.own(poisoned((1, 6, 6), complex))
                left = ComplexOperand(a, left=True, conjugated=conjugated[0])
                right = ComplexOperand(b, left=False, conjugated=conjugated[1])
                engine.matmul(
                    left,
                    right,
                    out,
                    ORDINARY,
                    certify="conventional",
                    prepared=kept,
                )
                # Each operand is made once as it is, and once as its conjugate.
                first = not again and conjugated != (True, True)
                assert bool(stages & {*made}) == first
                want = poisoned((1, 12, 6))
                CPU.matmul(
                    *embedded(place.host(a), place.host(b), conjugated), want, ORDINARY
                )
                assert_same_bits(place.host(out), join(want[:, :6], want[:, 6:]))


# ---- From complex_products on --------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "spread"),
    [
        ({}, 3.0),
        ({"precision": 1e-12}, 3.0),
        ({"precision": "exact"}, 0.0),
        ({"precision": 16, "check": True}, 0.0),
        pytest.param({}, 0.0, marks=pytest.mark.slow),
        pytest.param({"precision": "exact"}, 3.0, marks=pytest.mark.slow),
        pytest.param({"precision": 16, "check": True}, 3.0, marks=pytest.mark.slow),
        pytest.param(
            {"precision": 20, "scaling": "accurate"}, 3.0, marks=pytest.mark.slow
        ),
    ],
)
def test_complex_products_of_the_host(place, more, spread):
    a, b = normals(5, (2, 6, 9), spread), normals(6, (9, 7), spread)[np.newaxis]
    if more.get("precision") == "exact":
        a, b = (join(np.round(x.real), np.round(x.imag)) for x in (a, b))
    options = context.default_options().with_changes(**more)
    results = []
    for engine in (CPU, place.engine):
        out = np.empty((2, 6, 7), dtype=complex)
        served = complex_products.multiply_complex(
            engine, a, b, out, options, conjugated=(False, True)
        )
        results.append((out, served.ways))
    assert_same_bits(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]
