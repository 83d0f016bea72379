"""Products of float32 on the CUDA engine: read and rounded as they are, never copied.

The CPU engine is what bits are compared with; test_single.py compares that one with
Python integers.  Facts and planes are compared with stages that take every entry for a
double.
"""

from dataclasses import replace

import numpy as np
import pytest
from devices import LAYOUTS, laid_out, without_memory_once
from np_ozaki._kernels.render import Entries, Variant, source

from np_ozaki import tiling
from np_ozaki.engines import cuda_hopper_lines as hopper
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.complex_operand import ComplexOperand, put_parts
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda import CudaEngine
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.engines.prepared import Prepared
from np_ozaki.numerics import reference
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import assert_same_bits
from np_ozaki.tiling import padded

CPU = CpuEngine()

# Integers of 32 bits with the certificate's plane, of 64 bits, sums of fewer bits,
# more than eight moduli, truncation, wide.  One is quick: each takes a compiler.
VARIANTS = [
    Variant(7, "norm", True),
    *(
        pytest.param(x, marks=pytest.mark.slow)
        for x in (
            Variant(8, "norm", True),
            Variant(3, "norm", True),
            Variant(14, "norm", False),
            Variant(7, "legacy", True),
            Variant(7, "accurate", False),
            Variant(20, "norm", True),
        )
    ),
]
NARROW = VARIANTS[:-1]


@pytest.fixture
def stages(place, monkeypatch):
    """Return stages whose arrays hold garbage at first, on a device with clusters."""
    if place.name == "gpu" and not place.engine.device.tile_clusters():
        pytest.skip("needs clusters of blocks")
    monkeypatch.setattr(place.unfused.device, "shared_bytes", lambda: 1 << 17)
    return place.unfused


@pytest.fixture
def engine(place):
    """Return an engine with residue tiles, which has recorded nothing."""
    if not any(x.device.tile_clusters() for x in place.engines()):
        pytest.skip("this GPU makes no residue tiles")
    return CudaEngine(place.hopper.device)


@pytest.fixture
def winograd(monkeypatch):
    """Let every product be large enough for seven products of half the size."""
    monkeypatch.setattr(tiling, "_WINOGRAD_SIZE", 1)
    tiling.choose_residue_tiles.cache_clear()
    yield
    tiling.choose_residue_tiles.cache_clear()


def numbers(seed, shape, spread=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal(shape))
    return x.astype(np.float32)


def mixed(seed, shape):
    """Return lines of all kinds: ordinary, zeros, special values, of any size."""
    rng = np.random.default_rng(seed)
    x = numbers(seed, shape, 2.0)
    for i, line in enumerate(x.reshape(-1, shape[2])):
        kind, middle = i % 8, shape[2] // 2
        if kind == 1:
            line[:] = rng.choice([0.0, -0.0], shape[2])
        elif kind == 2:
            line[middle] = np.nan
        elif kind == 3:
            line[-1], line[0] = -np.inf, 2.0**-149
        elif kind == 4:  # subnormal
            line[:] = rng.integers(-(2**22), 2**22, shape[2]) * 2.0**-149
        elif kind == 5:  # far below the largest, and the largest there is
            line[::3] *= np.float32(2.0**-120)
            line[middle] = 3e38
        elif kind == 6:  # where exponents leave what is plain
            line[:] = np.ldexp(line, -115)
        elif kind == 7:
            line[:] = np.ldexp(line, int(rng.integers(-100, 100)))
    return x


def lines_of(place, x, layout="C"):
    return Operands(laid_out(place.own, x, layout), place.unfused.device)


def assert_same_facts(place, found, want):
    """Compare all words; of the largest entry its exponent is what is kept."""
    found, want = place.host(found.words), place.host(want.words)
    assert np.array_equal(found[1:], want[1:])
    tops = [np.frexp(x[0].view(np.float64))[1] for x in (found, want)]
    assert np.array_equal(*tops)


def of_doubles(place, operand):
    """Return the operand as float64, in the order of its memory."""
    x = place.host(operand.x)
    with np.errstate(invalid="ignore"):
        return Operands(place.own(x.astype(np.float64)), place.unfused.device)


def check_lines(place, stages, sides, variant):
    scheme = Scheme(variant.num_moduli, variant.scaling)
    found = hopper.facts_and_planes(stages, *sides, scheme, variant)
    for i, operand in enumerate(sides):
        # Another way, of the same entries and of doubles.
        own = stages.operand_variant(variant, scheme, operand, left=i == 0)
        assert own.single
        for same in (operand, of_doubles(place, operand)):
            facts = stages.line_facts(same, scheme, left=i == 0)
            assert_same_facts(place, found[i][0], facts)
        planes = stages.residues(operand, facts, own)
        assert np.array_equal(place.host(found[i][1]), place.host(planes))
        doubles = stages.residues(same, facts, own._replace(single=False))
        assert np.array_equal(place.host(planes), place.host(doubles))


# ---- Lines ----


@pytest.mark.parametrize("variant", VARIANTS)
def test_facts_and_planes(place, stages, variant):
    for k in (1, 63, 130, 600):
        sides = (
            lines_of(place, mixed(k, (2, 9, k))),
            lines_of(place, mixed(k + 1, (1, 17, k)), "F"),
        )
        check_lines(place, stages, sides, variant)


@pytest.mark.parametrize("layout", [x for x in sorted(LAYOUTS) if x not in "CF"])
def test_layouts_of_lines(place, stages, layout):
    operand = lines_of(place, mixed(3, (2, 11, 70)), layout)
    check_lines(place, stages, (operand, operand), Variant(7, "norm", True))


@pytest.mark.parametrize(
    "k", [1030, 4100, *(pytest.param(x, marks=pytest.mark.slow) for x in (8200, 16400))]
)
def test_lines_that_blocks_share(place, stages, k):
    left, right = mixed(k, (1, 9, k)), numbers(k, (1, 3, k))
    left[0, 0, :-1] *= np.float32(1e-20)  # what decides lies in the last block
    sides = lines_of(place, left), lines_of(place, right, "F")
    check_lines(place, stages, sides, Variant(7, "norm", True))


@pytest.mark.parametrize("width", [64, 65, 66, 68, 191])
@pytest.mark.parametrize("first", [0, 1, 2, 4])
def test_sixteen_bytes_at_a_time(place, stages, width, first):
    """Rows at any address, of which the last four entries are not all there."""
    whole = place.own(numbers(width, (1, 5, width + first + width % 3)))
    part = Operands(whole[:, :, first : first + width], stages.device)
    check_lines(place, stages, (part, part), Variant(7, "norm", True))


def test_shapes_of_clusters():
    for k in (1, 1024, 1025, 8192, 8193, 16384, 16385, 32768, 65536):
        for with_planes in (False, True):
            shape = hopper.cluster_shape(k, with_planes=with_planes, word=4)
            assert shape.chunk * shape.blocks >= padded(k)
            assert shape.chunk % (512 >> shape.line_bits) == 0
            # Three blocks and what the system keeps of each fit a multiprocessor.
            assert 3 * (shape.shared_bytes + 1024) <= 228 << 10
            other = hopper.cluster_shape(k, with_planes=with_planes)
            assert other is None or shape.line_bits >= other.line_bits
        assert (hopper.winograd_shape(k, along=False, word=4) is None) == (k > 16384)
    assert hopper.cluster_shape(65537, with_planes=True, word=4) is None
    assert hopper.winograd_shape(32768, along=True, word=4).line_bits == 1


# ---- Winograd's sums ----


def check_winograd(place, stages, operand, found, variant, *, left):
    """Compare facts and sums of one launch with those of two, and of doubles."""
    scheme = Scheme(variant.num_moduli, variant.scaling)
    facts, planes, cuts = found
    want = stages.line_facts(operand, scheme, left=left)
    assert_same_facts(place, facts, want)
    for same in (operand, of_doubles(place, operand)):
        sides = ((same, want), None) if left else (None, (same, want))
        others = hopper.winograd_planes(stages, *sides, scheme, variant)[not left]
        assert np.array_equal(place.host(planes), place.host(others[0]))
        assert (cuts is None) == (others[1] is None)
        assert cuts is None or np.array_equal(place.host(cuts), place.host(others[1]))


@pytest.mark.parametrize("variant", NARROW)
def test_facts_and_winograd_planes(place, stages, variant):
    scheme = Scheme(variant.num_moduli, variant.scaling)
    for m, n, k in ((1, 1, 1), (9, 40, 30), (35, 17, 300)):
        left = lines_of(place, mixed(k, (1, m, k)))
        right = lines_of(place, mixed(k + 1, (1, n, k)), "F")
        found = hopper.facts_and_winograd_planes(stages, left, right, scheme, variant)
        check_winograd(place, stages, left, found[0], variant, left=True)
        check_winograd(place, stages, right, found[1], variant, left=False)


def test_short_integers_at_their_largest(place, stages):
    """Sums of four integers of the most bits that 32 bits hold."""
    variant, scheme = Variant(7, "norm", True), Scheme(7)
    half = padded(1)
    x = np.zeros((1, 2 * half, 2 * half), np.float32)
    # S4 = X01 - X10 - X11 + X00, T4 = X11 - X10 + X00 - X01.
    for row, signs in ((0, (1, 1)), (half, (-1, -1))):
        x[0, row, 0], x[0, row, half] = signs
    operand = lines_of(place, x)
    found = hopper.facts_and_winograd_planes(stages, operand, operand, scheme, variant)
    for i in range(2):
        check_winograd(place, stages, operand, found[i], variant, left=i == 0)
    exponents = found[0][0].exponents(stages.device)[0]
    (largest,) = reference.integers([x[0, 0].tolist()], exponents[:1])
    assert 4 * max(largest) >= 2**28


# ---- Products ----


def check(place, engine, a, b, scheme, *, layout="CCC", host=False, **options):
    """Assert that a product, flags and certificate are the CPU engine's."""
    shape = (max(len(a), len(b)), a.shape[1], b.shape[2])
    limit = options.pop("workspace_bytes", None)
    want = np.full(shape, 7.25, np.float32)
    expected = CPU.matmul(a, b, want, scheme, **options)
    own = np.array if host else place.own
    x, y, out = (
        laid_out(own, v, name)
        for v, name in zip((a, b, np.full_like(want, 7.25)), layout, strict=True)
    )
    found = engine.matmul(x, y, out, scheme, workspace_bytes=limit, **options)
    assert_same_bits((np.array if host else place.host)(out), want)
    if expected.missing_bits is not None:
        assert found.missing_bits.tolist() == expected.missing_bits.tolist()
    if host:
        assert (found.overflow, found.invalid) == (expected.overflow, expected.invalid)
    return found


def pair(seed, batches=(1, 1), m=5, n=7, k=9, spread=1.0):
    return (
        numbers(seed, (batches[0], m, k), spread),
        numbers(seed + 99, (batches[1], k, n), spread),
    )


MODULI = [
    pytest.param(n, marks=() if n == 7 else pytest.mark.slow)
    for n in (2, 6, 7, 8, 14, 20, 22, 49)
]


@pytest.mark.parametrize("n", MODULI)
def test_moduli(place, n):
    scheme = Scheme(n)
    a, b = pair(n, (2, 1), spread=3.0)
    # Results that are subnormal, 0, and infinite; ties.
    a[0] *= np.ldexp(np.float32(1), [[-140], [-70], [60], [-149], [0]])
    b[0] *= np.ldexp(np.float32(1), [-20, 0, 66, -3, 2, 1, 0])
    a[1] = np.round(16 * a[1])
    for engine in place.engines():
        check(place, engine, a, b, scheme, certify="single")
        check(place, engine, a, b, scheme, host=True)
        check(place, engine, a, b, scheme, layout=("F", "spread", "reversed F"))
        a[0, 2, 4], a[1, 3, 1], b[0, 5, 2] = np.inf, np.nan, -np.inf
        check(place, engine, a, b, scheme, host=True)
        a[0, 2, 4], a[1, 3, 1], b[0, 5, 2] = 1, 1, 1


def test_layouts_turned_products_and_batches(place):
    for i, name in enumerate(sorted(LAYOUTS)):
        batches = ((3, 1), (1, 3), (3, 3))[i % 3]
        a, b = pair(i, batches, m=6, n=4)
        for engine in place.engines():
            check(place, engine, a, b, Scheme(7), layout=(name, "C", name))
            check(place, engine, a, b, Scheme(7), layout=("C", name, "F"))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["accurate", "legacy"])
def test_scalings(place, scaling):
    a, b = pair(5, (2, 2), spread=4.0)
    for engine in place.engines():
        check(place, engine, a, b, Scheme(7, scaling), certify="single")


def test_checks_shifts_and_lent_bits(place):
    a, b = pair(6, (2, 1))
    shifts = np.arange(10).reshape(2, 5) * 15 - 60, np.arange(14).reshape(2, 7) - 5
    for engine in place.engines():
        check(place, engine, a, b, Scheme(7), check=True)
        check(place, engine, a, b, Scheme(7), check=True, layout="FFF", host=True)
        check(place, engine, a, b, Scheme(7), line_shifts=shifts)
        check(place, engine, np.sign(a), b, Scheme(7, shift=12))
        check(place, engine, a, np.sign(b), Scheme(7, shift=-70))


def test_tiles_of_host_arrays(place):
    a, b = pair(7, m=40, n=50, k=30)
    for engine in place.engines():
        found = check(place, engine, a, b, Scheme(7), host=True, workspace_bytes=20_000)
        assert found.tiles > 1


def test_seven_products_of_half_the_size(place, engine, winograd):
    for (m, n, k), n_moduli in (((33, 18, 35), 7), ((2, 3, 4), 7), ((5, 40, 70), 8)):
        a, b = pair(8, m=m, n=n, k=k)
        a[0, -1, 0] = np.nan
        b[0, :, -1] *= np.float32(2.0**-140)
        check(place, engine, a, b, Scheme(n_moduli), certify="single")
        check(place, engine, a, b, Scheme(n_moduli), layout="FFF", check=True)
        check(place, engine, a, b, Scheme(n_moduli), host=True)
    launched = getattr(engine.device, "launched", None)
    assert launched is None or any("winograd" in name for name in launched)


@pytest.mark.parametrize("shape", [(1, 6, 9), (1, 130, 20), (1, 300, 3)])
def test_symmetric_products(place, engine, shape):
    a = numbers(9, shape)
    x = place.own(a)
    out = place.own(np.full((1, shape[1], shape[1]), 7.25, np.float32))
    engine.matmul(x, x.swapaxes(1, 2), out, Scheme(7))
    want = np.empty(out.shape, np.float32)
    CPU.matmul(a, a.swapaxes(1, 2), want, Scheme(7))
    assert_same_bits(place.host(out), want)


def test_recordings_know_types(place, engine):
    """Every second entry of float32 has the strides of float64."""
    scheme = Scheme(7)
    for dtype in (np.float32, np.float64, np.float32):
        step = 8 // np.dtype(dtype).itemsize
        a, b, out = (
            place.own(np.full((1, 1, step), x, dtype))[:, :, ::step]
            for x in (1.5, np.pi, 0.0)
        )
        assert a.strides == b.strides == out.strides == (8, 8, 8)
        want = np.zeros((1, 1, 1), dtype)
        engine.matmul(a, b, out, scheme)
        CPU.matmul(place.host(a), place.host(b), want, scheme)
        assert_same_bits(place.host(out), want)
    assert sum(x is not None for x in engine._recordings.values()) == 2
    kept = []
    for seed in range(3):
        a, b = pair(seed)
        kept.append((a, b))
        check(place, engine, a, b, scheme, certify="single")
    assert sum(x is not None for x in engine._recordings.values()) == 3


def test_kept_operands(place):
    a, b = pair(11, m=20, n=30, k=40)
    for engine in place.engines():
        prepared, want = Prepared(), np.empty((1, 20, 30), np.float32)
        CPU.matmul(a, b, want, Scheme(7))
        x, y = place.own(a), place.own(b)
        for _ in range(2):
            out = place.own(np.zeros_like(want))
            engine.matmul(x, y, out, Scheme(7), prepared=(prepared, None))
            assert_same_bits(place.host(out), want)
        assert prepared.nbytes > 0


@pytest.mark.slow
def test_slices(place):
    a, b = pair(12, (2, 1), k=40, spread=3.0)
    a[0, 1, 2] = np.inf
    for engine in place.engines():
        check(place, engine, a, b, Slicing(4, 8, "triangular", "exact"))


def test_rebalanced_operands_are_of_doubles(place):
    d = np.ldexp(1.0, np.linspace(-60, 60, 24).round().astype(int))
    a, b = pair(13, k=24)
    with np.errstate(over="ignore", under="ignore"):
        a, b = (a * d).astype(np.float32), (b / d[:, np.newaxis]).astype(np.float32)
    want = CPU.rebalance(a, b)
    out, expected = np.zeros((1, 5, 7), np.float32), np.zeros((1, 5, 7), np.float32)
    shifts = want.rows, want.columns
    CPU.matmul(want.a, want.b, expected, Scheme(7), line_shifts=shifts)
    for engine in place.engines():
        found = engine.rebalance(place.own(a), place.own(b))
        assert found.a.dtype == found.b.dtype == np.float64
        assert found.spread.tolist() == want.spread.tolist()
        assert (found.rows.tolist(), found.columns.tolist()) == (
            want.rows.tolist(),
            want.columns.tolist(),
        )
        assert_same_bits(place.host(found.a), np.asarray(want.a))
        out = place.own(np.zeros((1, 5, 7), np.float32))
        engine.matmul(found.a, found.b, out, Scheme(7), line_shifts=shifts)
        assert_same_bits(place.host(out), expected)


def test_what_is_known_of_operands(place):
    a, b = mixed(14, (2, 9, 40)), mixed(15, (1, 40, 8)).swapaxes(1, 2).copy()
    b = np.ascontiguousarray(b.swapaxes(1, 2))
    for engine in place.engines():
        x, y = place.own(a), place.own(b)
        for found, want in zip(
            (
                engine.line_exponents(x, 7, left=True),
                engine.line_exponents(y, 7, left=False),
                *engine.line_units(x, left=True),
                engine.missing_bits(x, y, Scheme(7), "single"),
                *engine.samples(x, y),
            ),
            (
                CPU.line_exponents(a, 7, left=True),
                CPU.line_exponents(b, 7, left=False),
                *CPU.line_units(a, left=True),
                CPU.missing_bits(a, b, Scheme(7), "single"),
                *CPU.samples(a, b),
            ),
            strict=True,
        ):
            np.testing.assert_array_equal(found, want)


def test_complex64(place):
    a, b = (
        (numbers(s, shape) + 1j * numbers(s + 1, shape)).astype(np.complex64)
        for s, shape in ((16, (1, 5, 12)), (18, (1, 12, 6)))
    )
    a[0, 1] *= np.float32(2.0**-140)
    a[0, 2, 3] = complex(np.inf, 1)
    scheme, want = Scheme(8, family="complex"), np.zeros((1, 5, 6), np.complex64)
    host = ComplexOperand(a, left=True), ComplexOperand(b, left=False, conjugated=True)
    parts = np.zeros((1, 10, 6), np.float32)
    CPU.matmul(*(x.embedded() for x in host), parts, scheme)
    put_parts(parts, want)
    for engine in place.engines():
        x, y = (replace(each, x=place.own(each.x)) for each in host)
        out = place.own(np.zeros_like(want))
        engine.matmul(x, y, out, scheme)
        for part in ("real", "imag"):
            assert_same_bits(getattr(place.host(out), part), getattr(want, part))


def test_want_of_memory(place, monkeypatch):
    if place.name == "gpu":
        pytest.skip("a twin's arrays are told to find no memory")
    a, b = pair(19)
    failed = without_memory_once(monkeypatch, place.int32.device)
    check(place, place.int32, a, b, Scheme(7))
    assert failed


# ---- Texts ----


def test_texts_of_doubles_say_nothing_of_single():
    assert "define SINGLE" not in source("residues", Variant(7, "norm", False))
    assert "define SINGLE" not in source("samples")
    text = source("residues", Variant(7, "norm", False, single=True))
    assert "#define SINGLE\n#define SHORT_INTEGERS\n" in text
    assert "#define SINGLE\n" in source("samples", Entries(single=True))
    for other in (Variant(8, "norm", False), Variant(7, "accurate", False)):
        text = source("residues", other._replace(single=True))
        assert "define SHORT_INTEGERS" not in text


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_panels_of_a_plan_are_those_of_the_product(place, dtype):
    a, b = np.ones((1, 40, 50), dtype), np.ones((1, 50, 60), dtype)
    engine, out = place.engine, np.empty((1, 40, 60), dtype)
    found = engine.matmul(a, b, out, Scheme(7))
    cut = engine.cut(
        (1, 40, 60, 50),
        Scheme(7),
        certified=False,
        checked=False,
        workspace_bytes=None,
        word=a.itemsize,
    )
    assert cut.workspace_bytes == found.workspace_bytes
