"""Checked products of the CUDA engine: what changes nothing, and what is found.

As in test_cuda, kernels run compiled for the CPU, and on a GPU where there is one.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from devices import LAYOUTS, POISON, entries, laid_out

from np_ozaki import tiling
from np_ozaki.engines import cuda_checksum, cuda_stages
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.checksum import PRIME, weights
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.errors import CheckError
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import MODULI
from np_ozaki.testing import assert_same_bits

CPU = CpuEngine(1)
QUICK = (2, 15, 20, 49)
COUNTS = [
    pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
    for n in (2, 8, 14, 15, 20, 33, 49)
]
TINY = 1
"""Bytes of workspace that make tiles of one line each."""


def shape_of(a, b):
    return max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]


def plain(a, b, scheme):
    """Return the CPU engine's result without checks."""
    want = np.full(shape_of(a, b), POISON)
    CPU.matmul(a, b, want, scheme)
    return want


def checked(
    place, a, b, scheme, layout=("C", "C", "C"), *, engine=None, host=False, **options
):
    """Return a checked product, or the error that it raises, and its outcome."""
    own = np.array if host else place.own
    x, y, out = (
        laid_out(own, v, name)
        for v, name in zip((a, b, np.full(shape_of(a, b), POISON)), layout, strict=True)
    )
    engine = engine or place.engine
    try:
        outcome = engine.matmul(x, y, out, scheme, check=True, **options)
    except CheckError as error:
        outcome = error
    return (out if host else place.host(out)), outcome


def same(place, a, b, scheme, *args, **options):
    """Assert that checks find nothing and change nothing; return the outcome."""
    out, outcome = checked(place, a, b, scheme, *args, **options)
    assert not isinstance(outcome, CheckError), outcome
    assert_same_bits(out, plain(a, b, scheme))
    return outcome


def pair(seed, shapes, regime="wide"):
    rng = np.random.default_rng(seed)
    return [entries(rng, shape, regime) for shape in shapes]


# ---- Nothing is wrong ------------------------------------------------------------


@pytest.mark.parametrize("n", COUNTS)
def test_bits_are_those_without_checks(place, n):
    a, b = pair(n, [(2, 5, 9), (2, 9, 4)])
    for regime in ("any", "subnormal", "same sign"):
        x, y = pair(n, [(1, 3, 11), (1, 11, 5)], regime)
        same(place, x, y, Scheme(n))
        same(place, x, y, Scheme(n), ("F", "F", "F"), engine=place.unfused)
    same(place, a, b, Scheme(n), ("F", "C", "F"))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(place, layout):
    a, b = pair(2, [(2, 5, 9), (2, 9, 4)])
    same(place, a, b, Scheme(15), (layout, "C", layout))
    same(place, a, b, Scheme(15), ("F", layout, "F"), engine=place.unfused)


@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (3, 3)])
@pytest.mark.parametrize("workspace", [None, 9000, TINY])
def test_batches_and_their_parts(place, batches, workspace):
    a, b = pair(3, [(batches[0], 3, 9), (batches[1], 9, 2)])
    for layout in (("C", "C", "C"), ("F", "C", "F")):
        for scheme in (Scheme(15), Scheme(20, "accurate")):
            same(place, a, b, scheme, layout, workspace_bytes=workspace)


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize(
    ("shape", "workspace", "least"),
    [
        # Two tiles, of rows, and turned of columns.
        ((20, 9, 18), 50_000, 2),
        ((3, 9, 4), TINY, 12),
        ((1, 5, 3), TINY, 3),
        ((1, 1, 1), None, 1),
    ],
)
def test_tiles(place, shape, workspace, least, host):
    m, k, n = shape
    a, b = pair(4, [(1, m, k), (1, k, n)])
    options = {"host": host, "workspace_bytes": workspace}
    for layout in (("C", "C", "C"), ("F", "C", "F")):
        assert same(place, a, b, Scheme(15), layout, **options).tiles >= least


def test_blocks_of_k(place, monkeypatch):
    monkeypatch.setattr(tiling, "INT8_K_BLOCK", 16)
    tiling.choose_cuda_tiles.cache_clear()
    a, b = pair(5, [(1, 3, 50), (2, 50, 4)])
    try:
        same(place, a, b, Scheme(15))
    finally:
        monkeypatch.undo()
        tiling.choose_cuda_tiles.cache_clear()


def test_nan_and_inf_count_as_zero(place):
    a, b = pair(6, [(2, 5, 9), (2, 9, 4)])
    a[0, 1, 2], a[1, 2], b[0, 3, 1], b[1, :, 2] = np.nan, np.inf, -np.inf, np.nan
    for layout in (("C", "C", "C"), ("F", "F", "F")):
        for workspace in (None, TINY):
            same(place, a, b, Scheme(15), layout, workspace_bytes=workspace)
            same(place, a, b, Scheme(20), layout, workspace_bytes=workspace)


@pytest.mark.parametrize(("n", "shift"), [(15, 20), (49, 130)])
def test_bits_that_one_operand_lends(place, n, shift):
    rng = np.random.default_rng(7)
    a = rng.integers(0, 2, (2, 4, 13)).astype(np.float64)
    b = entries(rng, (2, 13, 5), "ordinary")
    assert shift <= int(CPU.line_exponents(a, n, left=True).min())
    same(place, a, b, Scheme(n, shift=shift))
    same(place, a[:1], b, Scheme(n, shift=shift), ("F", "C", "F"))
    b, a = a.swapaxes(1, 2), b.swapaxes(1, 2)
    same(place, a, b, Scheme(n, shift=-shift), engine=place.unfused)


def test_line_shifts_certificates_and_the_rest_of_the_rounding(place):
    a, b = pair(8, [(1, 4, 9), (2, 9, 5)])
    shifts = np.arange(8).reshape(2, 4) - 3, np.arange(10).reshape(2, 5) * 7
    options = {"line_shifts": shifts, "certify": "conventional"}
    want, low = np.full((2, 2, 4, 5), POISON)
    known = CPU.matmul(a, b, want, Scheme(15), low=low, **options)
    x, y, out, rest = map(place.own, (a, b, np.zeros((2, 4, 5)), np.zeros((2, 4, 5))))
    outcome = place.engine.matmul(
        x, y, out, Scheme(15), low=rest, check=True, **options
    )
    assert_same_bits(place.host(out), want)
    assert_same_bits(place.host(rest), low)
    assert outcome.missing_bits.tolist() == known.missing_bits.tolist()


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_empty_products(place, shape):
    m, k, n = shape
    a, b = np.ones((1, m, k)), np.ones((1, k, n))
    out, outcome = checked(place, a, b, Scheme(15))
    assert outcome.tiles == 0
    assert not out.any()


def test_shares_of_threads_are_as_short_as_kernels_need():
    # At most 32 entries of a line, whichever way lines lie; see `LongSum`.
    assert cuda_checksum._LINE_DEPTH // (256 // 32) <= 32
    assert cuda_stages._CHUNK // 256 <= 32


# ---- Sums are those of integers --------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """Return the list that sums come to on the way to their comparison."""
    tiles = []
    verify = cuda_checksum.verify

    def listen(given):
        tiles.extend(given)
        verify(given)

    monkeypatch.setattr(cuda_checksum, "verify", listen)
    return tiles


def sums_of_integers(a, b, scheme):
    """Return C' v and w C' modulo q for finite matrices of equal batch."""
    exponents = CPU.scaling_exponents(a, b, scheme.num_moduli, scheme.scaling)
    rows, columns = [], []
    for x, y, mu, nu in zip(a, b, *exponents, strict=True):
        left = np.array(reference.integers(x.tolist(), mu.tolist()), dtype=object)
        right = reference.integers(y.T.tolist(), nu.tolist())
        product = left @ np.array(right, dtype=object).T
        v = weights(product.shape[1], left=False).astype(object)
        w = weights(product.shape[0], left=True).astype(object)
        rows.append((product @ v % PRIME).tolist())
        columns.append((w @ product % PRIME).tolist())
    return rows, columns


def of_few_entries(engine, monkeypatch, depth):
    """Let blocks take shares of `depth` entries, so that many add to one sum."""

    def shares(shape, *, along, **_):
        (blocks,), _, how = type(engine).shares(shape, along=along)
        assert blocks <= shape[0] * shape[1]
        return (blocks * -(-shape[2] // depth),), depth, how

    monkeypatch.setattr(engine, "shares", shares, raising=False)


@pytest.mark.parametrize("layout", ["C", "F", "spread"])
@pytest.mark.parametrize(
    ("shape", "n", "scaling"),
    [
        ((3, 64, 4), 15, "norm"),
        ((34, 5, 3), 2, "norm"),
        ((3, 5, 34), 20, "accurate"),
        ((3, 9, 4), 49, "norm"),
    ],
)
def test_sums_are_those_of_integers(
    place, seen, monkeypatch, shape, n, scaling, layout
):
    m, k, columns = shape
    a, b = pair(9, [(2, m, k), (2, k, columns)], "ordinary")
    scheme = Scheme(n, scaling)
    of_few_entries(place.unfused, monkeypatch, 2)
    args = (place, a, b, scheme, (layout, layout, "C"))
    _, outcome = checked(*args, engine=place.unfused)
    assert outcome.tiles
    (tile,) = seen
    assert (tile.rows, tile.columns) == (slice(0, m), slice(0, columns))
    want = sums_of_integers(a, b, scheme)
    for pair_of_sums, right in zip((tile.of_rows, tile.of_columns), want, strict=True):
        for sums in pair_of_sums:
            assert sums.tolist() == right


# ---- Something is wrong ----------------------------------------------------------


@contextmanager
def spoiled(engine, method, spoil):
    """Call `spoil` with every result of a method."""
    kept = getattr(engine, method)

    def call(*args, **options):
        result = kept(*args, **options)
        spoil(result)
        return result

    setattr(engine, method, call)
    try:
        yield
    finally:
        delattr(engine, method)


def flip(array, index, bit):
    """Flip one bit of a device array's integer; return what that adds."""
    bits = 8 * array.dtype.itemsize
    old = int(array[index])
    new = (old & (1 << bits) - 1) ^ 1 << bit
    new -= (new >> (bits - 1)) << bits
    array[index] = new
    return new - old


def once(spoil, at=0):
    """Return `spoil` for call number `at` only."""
    calls = []

    def call(result):
        calls.append(result)
        if len(calls) == at + 1:
            spoil(result)

    return call


@pytest.mark.parametrize("n", [2, 15, 20])
def test_one_wrong_bit_of_a_product(place, n):
    rng = np.random.default_rng(n)
    (a,) = pair(10, [(1, 6, 9)], "ordinary")
    b = np.ascontiguousarray(a.swapaxes(1, 2))
    want = plain(a, b, Scheme(n))
    for plane in range(n):
        bits = rng.permutation(8 if MODULI[plane] == 256 else 32)[:3]
        for number, bit in enumerate(bits):
            i, j = rng.integers(0, 6, 2)
            if not number:
                j = i  # C' is about P / 2 there
            spoil = once(lambda x, at=(plane, 0, i, j), bit=bit: flip(x, at, bit))
            with spoiled(place.int32, "residue_gemm", spoil):
                out, error = checked(place, a, b, Scheme(n), engine=place.int32)
            assert isinstance(error, CheckError), (plane, bit)
            assert (error.matrix, error.rows, error.columns) == (0, (i,), (j,))
            assert np.argwhere(out != want).tolist() == [[0, i, j]]


def test_wrong_bits_that_cannot_matter(place):
    # The first modulus is 256: bits from 8 on belong to no residue.
    a, b = pair(11, [(1, 4, 9), (1, 9, 5)])
    assert MODULI[0] == 256
    with spoiled(place.int32, "residue_gemm", lambda x: flip(x, (0, 0, 1, 2), 8)):
        same(place, a, b, Scheme(15), engine=place.int32)


@pytest.mark.parametrize("n", [15, 20])
@pytest.mark.parametrize("left", [True, False])
def test_one_wrong_bit_of_a_residue(place, n, left):
    rng = np.random.default_rng(n)
    a, b = pair(12, [(2, 4, 9), (2, 9, 5)], "ordinary")
    for plane in range(n):
        h, line, inner = (int(rng.integers(x)) for x in (2, 4, 9))
        at, bit = (plane, h, line, inner), int(rng.integers(8))
        spoil = once(lambda x, at=at, bit=bit: flip(x, at, bit), at=int(not left))
        with spoiled(place.unfused, "residues", spoil):
            out, error = checked(place, a, b, Scheme(n), engine=place.unfused)
        if not isinstance(error, CheckError):
            # Numbers of the other operand are multiples of a power of two.
            assert MODULI[plane] == 256
            assert_same_bits(out, plain(a, b, Scheme(n)))
            continue
        one, all_others = error.rows, error.columns
        if not left:
            one, all_others = all_others, one
        assert (error.matrix, one) == (h, (line,))
        assert all_others


@pytest.mark.parametrize("layout", [("C", "C", "C"), ("F", "C", "F")])
@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (3, 3)])
@pytest.mark.parametrize("workspace", [None, 9000, TINY])
@pytest.mark.parametrize("host", [True, False])
def test_errors_name_the_place(place, layout, batches, workspace, host):
    a, b = pair(13, [(batches[0], 2, 9), (batches[1], 9, 3)])
    want = plain(a, b, Scheme(15))
    rng = np.random.default_rng(14)
    for call in (0, 2):

        def spoil(products):
            # Of what is not padding: the last matrix has an entry at its start.
            shape = products.shape
            flip(products, (3, shape[1] - 1, 0, 0), int(rng.integers(32)))

        with spoiled(place.int32, "residue_gemm", once(spoil, at=call)):
            options = {"workspace_bytes": workspace, "host": host}
            options["engine"] = place.int32
            out, error = checked(place, a, b, Scheme(15), layout, **options)
        wrong = np.argwhere(out != want)
        if not isinstance(error, CheckError):
            assert call
            assert not len(wrong)
            continue
        ((matrix, i, j),) = wrong
        assert (error.matrix, error.rows, error.columns) == (matrix, (i,), (j,))
        assert error.tile == (slice(0, 2), slice(0, 3))


def test_wrong_lines_of_several_tiles(place):
    a, b = pair(15, [(1, 20, 9), (1, 9, 20)])

    def spoil(products):
        """Change one entry of every tile."""
        return flip(products, (1, 0, 0, 0), 3)

    with spoiled(place.int32, "residue_gemm", spoil):
        options = {"engine": place.int32, "workspace_bytes": TINY}
        _, error = checked(place, a, b, Scheme(15), **options)
    assert error.rows == error.columns == tuple(range(20))
    with spoiled(place.int32, "residue_gemm", spoil):
        a, b, out = map(place.own, (a, b, np.zeros((1, 20, 20))))
        assert place.int32.matmul(a, b, out, Scheme(15)).tiles == 1


def test_the_next_product_is_right(place):
    a, b = pair(16, [(1, 4, 9), (1, 9, 5)])
    with spoiled(place.int32, "residue_gemm", lambda x: flip(x, (1, 0, 0, 0), 3)):
        _, error = checked(place, a, b, Scheme(15), engine=place.int32)
    assert isinstance(error, CheckError)
    same(place, a, b, Scheme(15), engine=place.int32)
