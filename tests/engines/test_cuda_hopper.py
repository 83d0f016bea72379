"""Products by way of residue tiles: on a twin of a Hopper GPU, or on one."""

import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out
from tile_layout import residues_in

from np_ozaki import tiling
from np_ozaki.engines import cuda, cuda_tiles
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda import CudaEngine
from np_ozaki.engines.cuda_stages import Stages
from np_ozaki.errors import CheckError
from np_ozaki.numerics.moduli import MODULI
from np_ozaki.testing import assert_same_bits

CPU = CpuEngine()


@pytest.fixture
def engine(place):
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


def launched(engine):
    """Return the names of kernels that the twin has run, or None."""
    return getattr(engine.device, "launched", None)


def check(
    place, engine, a, b, scheme, *, layout=("C", "C", "C"), host=False, **options
):
    """Assert that a product, its rest and its certificate are the CPU engine's."""
    shape = (max(len(a), len(b)), a.shape[1], b.shape[2])
    low = options.pop("low", False)
    limit = options.pop("workspace_bytes", None)
    want, want_low = np.full(shape, POISON), np.full(shape, POISON)
    extra = {"low": want_low} if low else {}
    expected = CPU.matmul(a, b, want, scheme, **extra, **options)
    own = np.array if host else place.own
    x, y, out, rest = (
        laid_out(own, v, name)
        for v, name in zip(
            (a, b, np.full(shape, POISON), np.full(shape, POISON)),
            (*layout, layout[2]),
            strict=True,
        )
    )
    extra = {"low": rest} if low else {}
    found = engine.matmul(x, y, out, scheme, workspace_bytes=limit, **extra, **options)
    read = np.array if host else place.host
    assert_same_bits(read(out), want)
    if low:
        assert_same_bits(read(rest), want_low)
    if expected.missing_bits is not None:
        assert found.missing_bits.tolist() == expected.missing_bits.tolist()
    if host:
        assert (found.overflow, found.invalid) == (expected.overflow, expected.invalid)
    return found


def pair(seed, batches=(1, 1), m=5, n=7, k=9, regime="ordinary"):
    rng = np.random.default_rng(seed)
    return (
        entries(rng, (batches[0], m, k), regime),
        entries(rng, (batches[1], k, n), regime),
    )


# ---- The kernel --------------------------------------------------------------------


@pytest.fixture(params=[2, 3])
def block_groups(request, monkeypatch):
    """Let blocks take so many groups of rows; three of symmetric products are none."""
    steps = 0 if request.param == 3 else 1 << 30
    monkeypatch.setattr(cuda_tiles, "_TALL_STEPS", steps)
    return request.param


@pytest.mark.parametrize(
    ("batches", "shape", "k", "planes", "products", "lower"),
    [
        ((1, 1), (1, 1), 1, 2, 1, False),
        ((1, 1), (128, 256), 128, 2, 1, False),
        ((1, 1), (130, 258), 300, 5, 1, True),
        ((3, 1), (129, 40), 64, 3, 1, True),
        ((1, 2), (40, 300), 17, 49, 1, False),
        ((1, 1), (70, 90), 200, 14, 7, False),
        ((40, 40), (20, 30), 33, 2, 1, True),
        ((2, 2), (450, 270), 700, 9, 1, True),
        ((1, 1), (1000, 530), 1200, 14, 1, False),
    ],
)
@pytest.mark.parametrize("symmetric", [False, True])
def test_residues_of_products(
    place, engine, block_groups, batches, shape, k, planes, products, lower, symmetric
):
    rng = np.random.default_rng(k)
    m, n = (shape[0], shape[0]) if symmetric else shape
    if symmetric and batches[0] != batches[1]:
        batches = (2, 2)
    every = planes + lower
    p = np.array([MODULI[i // products] for i in range(planes)] + [255] * lower)

    def operand(batch, lines):
        padded = np.zeros(
            (every, batch, tiling.padded(lines), tiling.padded(k)), np.int8
        )
        values = rng.integers(-128, 128, (every, batch, lines, k))
        half = (p // 2).reshape(-1, 1, 1, 1)
        padded[:, :, :lines, :k] = np.clip(values, -half, half - (half == 128))
        return padded

    a = operand(batches[0], m)
    b = a if symmetric else operand(batches[1], n)
    batch = max(batches)
    size = cuda_tiles.residue_tiles_bytes(batch, m, n, planes, symmetric=symmetric)
    tiles = place.own(np.full(size + 64, 0xA5, np.uint8))
    below = place.own(np.full((batch, m, n), -7, np.int32)) if lower else None
    left = place.own(a)
    right = left if symmetric else place.own(b)
    cuda_tiles.queue_residue_tiles(
        Stages(engine.device),
        left,
        right,
        tiles,
        below,
        (batch, m, n),
        planes,
        products,
        symmetric=symmetric,
    )
    sums = np.matmul(a.astype(np.int64), b.astype(np.int64).swapaxes(2, 3))
    sums = np.broadcast_to(sums, (every, batch, *sums.shape[2:]))[:, :, :m, :n]
    found = place.host(tiles)
    assert (found[size:] == 0xA5).all()
    residues, there = residues_in(found[:size], planes, (batch, m, n), symmetric)
    difference = residues.astype(np.int64) - sums[:planes]
    wrong = (difference % p[:planes].reshape(-1, 1, 1, 1) != 0) & there
    assert not wrong.any(), np.argwhere(wrong)[0]
    if lower:
        assert (place.host(below) == sums[-1]).all()


@pytest.mark.parametrize("products", [1, 7])
@pytest.mark.parametrize(
    "k", [1, 512, 513, 1024, 1025, 2048, 2049, 4352, 4353, 9472, 9473, 65536, 131072]
)
def test_residues_of_the_largest_sums(place, engine, block_groups, k, products):
    """Where the quick reduction is right, and where it would not be."""
    if place.name == "simulated":
        pytest.skip("only a GPU runs residue_tiles.cu: a twin has sums of NumPy's")
    m, n, planes = 130, 60, 14
    p = np.array([MODULI[i // products] for i in range(planes)])
    half = (p // 2 - (p == 256)).reshape(-1, 1)

    def operand(lines, at):
        # As large as can be, but for one entry of a line.
        x = np.zeros((planes, 1, tiling.padded(lines), tiling.padded(k)), np.int8)
        x[:, 0, :lines, :k] = half[:, :, None]
        x[:, 0, :lines, at % k] = 2 * np.arange(lines) % (2 * half + 1) - half
        return x

    a, b = operand(m, 0), operand(n, 1)
    b[:, :, 1::2] *= -1
    size = cuda_tiles.residue_tiles_bytes(1, m, n, planes)
    tiles = place.own(np.full(size, 0xA5, np.uint8))
    sides = place.own(a), place.own(b)
    cuda_tiles.queue_residue_tiles(
        Stages(engine.device), *sides, tiles, None, (1, m, n), planes, products
    )
    sums = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(2, 3))
    sums = sums[:, :, :m, :n].astype(np.int64)
    residues, there = residues_in(place.host(tiles), planes, (1, m, n))
    wrong = ((residues.astype(np.int64) - sums) % p.reshape(-1, 1, 1, 1) != 0) & there
    assert not wrong.any(), np.argwhere(wrong)[0]


# ---- Products ----------------------------------------------------------------------


def seen_works(engine, monkeypatch, field):
    """Return a list that grows by what `residue_tiles` is told of a field."""
    seen, real = [], engine.device.residue_tiles

    def residue_tiles(left, right, work, blocks):
        seen.append(int(work[field][0]))
        return real(left, right, work, blocks)

    monkeypatch.setattr(engine.device, "residue_tiles", residue_tiles)
    return seen


def test_blocks_of_long_products_are_tall(place, engine, monkeypatch):
    seen = seen_works(engine, monkeypatch, "block_groups")
    for k in (6016, 6017):
        check(place, engine, *pair(14, m=390, n=20, k=k), Scheme(2))
    x = place.own(pair(15, m=5, k=9000)[0])
    engine.matmul(x, x.swapaxes(1, 2), place.own(np.empty((1, 5, 5))), Scheme(2))
    assert seen == [2, 3, 2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batches", [(3, 1), (1, 3), (2, 2)])
def test_layouts_and_batches(place, engine, layout, batches):
    a, b = pair(1, batches)
    others = [x for x in LAYOUTS if x != layout]
    check(place, engine, a, b, Scheme(15), layout=(layout, others[0], layout))
    check(place, engine, a, b, Scheme(15), layout=(others[1], layout, others[2]))
    if launched(engine) is not None:
        assert "residue_tiles" in launched(engine)


QUICK = {(15, "norm"), (20, "norm"), (15, "accurate"), (15, "legacy")}


@pytest.mark.parametrize(
    ("n", "scaling"),
    [
        pytest.param(
            n, scaling, marks=() if (n, scaling) in QUICK else pytest.mark.slow
        )
        for n in (2, 3, 9, 14, 15, 16, 20, 49)
        for scaling in ("norm", "accurate", "legacy")
    ],
)
def test_numbers_of_moduli_and_scalings(place, engine, n, scaling):
    a, b = pair(n, m=4, n=3, k=11)
    options = {} if scaling == "legacy" else {"certify": "conventional"}
    check(place, engine, a, b, Scheme(n, scaling), low=True, **options)


@pytest.mark.parametrize("regime", ["subnormal", "near overflow", "sparse", "any"])
def test_regimes(place, engine, regime):
    a, b = pair(3, (2, 2), regime=regime)
    check(place, engine, a, b, Scheme(15), low=True, certify="conventional")
    check(place, engine, a, b, Scheme(15), host=True)


def test_lines_that_are_not_finite(place, engine):
    a, b = pair(4, (2, 1))
    a[0, 1, 2], a[1, 3, 3], b[0, 4, 5] = np.nan, np.inf, -np.inf
    check(place, engine, a, b, Scheme(15), host=True)
    check(place, engine, a, b, Scheme(15), low=True)


@pytest.mark.parametrize("shift", [9, -9])
def test_bits_that_one_operand_lends(place, engine, shift):
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2, (2, 4, 13)).astype(np.float64)
    numbers = entries(rng, (2, 13, 5), "ordinary")
    a, b = bits, numbers
    if shift < 0:
        a, b = numbers.swapaxes(1, 2), bits.swapaxes(1, 2)
    check(place, engine, a, b, Scheme(9, shift=shift), certify="conventional")


def test_shifts_of_lines(place, engine):
    a, b = pair(6, (2, 1))
    shifts = (
        np.arange(10).reshape(2, 5).astype(np.int64),
        -np.arange(14).reshape(2, 7).astype(np.int64),
    )
    check(place, engine, a, b, Scheme(15), line_shifts=shifts)


@pytest.mark.parametrize("limit", [1 << 17, 1 << 20, None])
def test_limits_of_memory_change_no_bit(place, engine, limit):
    a, b = pair(7, (2, 2), m=20, n=300, k=10)
    for host in (False, True):
        outcome = check(
            place, engine, a, b, Scheme(15), host=host, workspace_bytes=limit
        )
        assert limit is None or outcome.tiles > 0


def test_checks_take_what_residue_tiles_leave(place, engine):
    a, b = pair(8, (2, 1))
    check(place, engine, a, b, Scheme(15), check=True)
    check(place, engine, a, b, Scheme(15), check=True, host=True)


@pytest.mark.parametrize("plane", [0, 3, 14])
def test_a_wrong_residue_in_a_tile_is_found(place, engine, monkeypatch, plane):
    a, b = pair(8, (1, 1), m=300, n=20, k=10)
    out = np.zeros((1, 300, 20))
    CPU.matmul(a, b, out, Scheme(15))
    queue = cuda.queue_residue_tiles

    def spoiling(stages, left, right, residues, *args, **options):
        queue(stages, left, right, residues, *args, **options)
        # The first entry of the second tile.
        residues[(15 + plane) * 128 * 256] ^= 4

    monkeypatch.setattr(cuda, "queue_residue_tiles", spoiling)
    x, y, target = map(place.own, (a, b, np.zeros_like(out)))
    with pytest.raises(CheckError) as caught:
        engine.matmul(x, y, target, Scheme(15), check=True)
    found = (caught.value.matrix, caught.value.rows, caught.value.columns)
    assert found == (0, (128,), (0,))
    assert np.argwhere(place.host(target) != out).tolist() == [[0, 128, 0]]


# ---- Seven products ----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (33, 18, 35), (5, 40, 70)])
@pytest.mark.parametrize("n", [15, pytest.param(2, marks=pytest.mark.slow)])
def test_seven_products_of_half_the_size(place, engine, winograd, shape, n):
    m, columns, k = shape
    a, b = pair(n, m=m, n=columns, k=k)
    check(place, engine, a, b, Scheme(n), certify="conventional", low=True)
    check(place, engine, a, b, Scheme(n), layout=("F", "F", "F"), check=True)
    check(place, engine, a, b, Scheme(n), host=True)
    if launched(engine) is not None:
        assert any("winograd" in name for name in launched(engine))


def test_seven_products_of_every_matrix_of_a_batch(place, engine, winograd):
    a, b = pair(9, (3, 1), regime="wide")
    check(place, engine, a, b, Scheme(15), certify="conventional")


def test_integers_that_are_too_wide_for_sums_take_eight(place, engine, winograd):
    a, b = pair(10)
    for scheme in (Scheme(20), Scheme(15, "accurate"), Scheme(9, shift=3)):
        if launched(engine) is not None:
            launched(engine).clear()
        check(place, engine, np.sign(a), b, scheme)
        if launched(engine) is not None and scheme.scaling == "norm":
            assert not any("winograd" in name for name in launched(engine))


# ---- One matrix times its transpose --------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 9), (1, 6, 9), (2, 130, 20), (1, 300, 3)])
@pytest.mark.parametrize("options", [{}, {"certify": "conventional"}, {"check": True}])
def test_symmetric_products(place, engine, shape, options):
    a, _ = pair(11, (shape[0], 1), m=shape[1], k=shape[2])
    x = place.own(a)
    out = place.own(np.full((shape[0], shape[1], shape[1]), POISON))
    outcome = engine.matmul(x, x.swapaxes(1, 2), out, Scheme(15), **options)
    want = np.empty(out.shape)
    expected = CPU.matmul(a, a.swapaxes(1, 2), want, Scheme(15), **options)
    assert_same_bits(place.host(out), want)
    assert_same_bits(place.host(out), place.host(out).swapaxes(1, 2).copy())
    if expected.missing_bits is not None:
        assert outcome.missing_bits.tolist() == expected.missing_bits.tolist()


def test_half_the_tiles_of_a_symmetric_product(place, engine, monkeypatch):
    a, _ = pair(12, m=600, k=4)
    x = place.own(a)
    seen = seen_works(engine, monkeypatch, "symmetric")
    out = place.own(np.empty((1, 600, 600)))
    engine.matmul(x, x.swapaxes(1, 2), out, Scheme(2))
    engine.matmul(x, place.own(a).swapaxes(1, 2), out, Scheme(2))
    assert seen == [True, False]


def test_other_views_of_one_array_are_not_symmetric(place, engine):
    a, _ = pair(13, m=6, k=6)
    x = place.own(a)
    out = place.own(np.full((1, 6, 6), POISON))
    for y in (x, x[:, ::-1].swapaxes(1, 2), x[:, :, ::-1].swapaxes(1, 2)):
        engine.matmul(x, y, out, Scheme(15))
        want = np.empty((1, 6, 6))
        CPU.matmul(a, place.host(y), want, Scheme(15))
        assert_same_bits(place.host(out), want)


# ---- What is cut ---------------------------------------------------------------------


def test_long_k_goes_by_way_of_int32(place, engine, monkeypatch):
    monkeypatch.setattr(tiling, "INT8_K_BLOCK", 16)
    for choose in (tiling.choose_cuda_tiles, tiling.choose_residue_tiles):
        choose.cache_clear()
    try:
        a, b = pair(14, k=40)
        check(place, engine, a, b, Scheme(15), certify="conventional")
    finally:
        for choose in (tiling.choose_cuda_tiles, tiling.choose_residue_tiles):
            choose.cache_clear()


def test_tiles_are_taken_back_and_forth(place, engine, monkeypatch):
    def quarters(batch, m, n, k, *, num_planes, host, **_):
        return tiling.CudaTiles(1, 32, 32, k, k, num_planes, host, fused=True)

    monkeypatch.setattr(cuda, "choose_residue_tiles", quarters)
    names = launched(engine)
    before = 0 if names is None else len(names)
    found = check(place, engine, *pair(3, m=64, n=96, k=9), Scheme(5))
    assert found.tiles == 6
    if names is not None:
        made = [x for x in names[before:] if x.startswith("lines_in_cluster")]
        # Both operands at first, then what is new: two panels of B, rows three times.
        assert len(made) == 1 + 2 + 3
