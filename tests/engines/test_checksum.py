"""Checked products: no false alarm, no wrong entry missed, sums held to integers."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki import CheckError
from np_ozaki.engines import cpu, cpu_checksum, cpu_sums, workspace
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.checksum import PRIME, weights
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics import reference
from np_ozaki.testing import (
    assert_same_bits,
    layouts,
    operands,
    with_special_values,
)

ENGINE = CpuEngine(2)
SCALINGS = ["norm", "accurate"]
COUNTS = [2, 8, 15, 20, 49]


def product(a, b, scheme, engine=ENGINE, **options):
    a, b = (x if x.ndim == 3 else x[np.newaxis] for x in (a, b))
    batch = max(len(a), len(b))
    out = np.full((batch, a.shape[1], b.shape[2]), np.nan)
    with np.errstate(all="ignore"):
        engine.matmul(a, b, out, scheme, **options)
    return out


@pytest.fixture(scope="module", autouse=True)
def tiny_tiles():
    """Let limits of a few KiB cut small products."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "FLOOR_BYTES", 1)
        yield


@pytest.fixture
def tiles(monkeypatch):
    """Collect the sums of every tile that is checked."""
    found = []

    def verify(new):
        found.extend(new)

    monkeypatch.setattr(cpu, "verify", verify)
    return found


# ---- Nothing is wrong ----


@given(
    layouts(with_special_values(operands(max_batch_dims=1))),
    st.integers(2, 49),
    st.sampled_from(SCALINGS),
    st.integers(-12, 12),
    st.sampled_from([None, 1, 2000, 20_000]),
)
def test_checked_products_have_the_same_bits(pair, n, scaling, shift, limit):
    scheme = Scheme(n, scaling, shift)
    plain = product(*pair, scheme, workspace_bytes=limit)
    assert_same_bits(product(*pair, scheme, workspace_bytes=limit, check=True), plain)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("spread", [0, 30, 600])
def test_larger_products_pass(n, scaling, spread):
    rng = np.random.default_rng(n)
    for m, k, columns in ((150, 260, 140), (1, 40_000, 2), (2, 3, 9000), (9000, 3, 2)):
        a, b = (
            np.ldexp(rng.standard_normal(s), rng.integers(-spread, spread + 1, s))
            for s in ((m, k), (columns, k))
        )
        plain = product(a, b.T, Scheme(n, scaling))
        assert_same_bits(product(a, b.T, Scheme(n, scaling), check=True), plain)


def test_extreme_operands_pass():
    # The largest entries that the exponents allow, and the largest sums.
    for n, k in itertools.product((2, 7, 15, 49), (1, 2, 130)):
        for x in (1.0, 2.0 - 2.0**-52, -1.5):
            a = np.full((130, k), x)
            plain = product(a, a.T, Scheme(n))
            assert_same_bits(product(a, a.T, Scheme(n), check=True), plain)


def test_empty_products_pass():
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)):
        c = product(np.ones((m, k)), np.ones((k, n)), Scheme(15), check=True)
        assert_same_bits(c, np.zeros((1, m, n)))


def test_line_shifts_and_low_are_not_disturbed():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 9, 12)), rng.standard_normal((1, 12, 7))
    shifts = (rng.integers(-50, 50, (2, 9)), rng.integers(-50, 50, (1, 7)))
    found = []
    for check in (False, True):
        low = np.full((2, 9, 7), np.nan)
        c = product(a, b, Scheme(20), line_shifts=shifts, low=low, check=check)
        found.append((c, low))
    for plain, checked in zip(*found, strict=True):
        assert_same_bits(checked, plain)


# ---- Both sides are the sums of the integers ----


def integers(a, b, scheme):
    """Return C' by the reference."""
    mu, nu = reference.scaling_exponents(a, b, scheme.num_moduli, scheme.scaling)
    rows = reference.integers(a, [x - scheme.shift for x in mu])
    columns = reference.integers(b.T, [x + scheme.shift for x in nu])
    return np.array(
        [[sum(map(int.__mul__, x, y)) for y in columns] for x in rows], dtype=object
    ).reshape(len(rows), len(columns))


def assert_sums(tile, c):
    """Hold all four sums of a tile to C' of its matrices."""
    for x, *sums in zip(c[tile.batch], *tile.of_rows, strict=True):
        part = x[tile.rows, tile.columns]
        want = part @ weights(part.shape[1], left=False).astype(object) % PRIME
        for found in sums:
            assert found.tolist() == want.tolist()
    for x, *sums in zip(c[tile.batch], *tile.of_columns, strict=True):
        part = x[tile.rows, tile.columns]
        want = weights(part.shape[0], left=True).astype(object) @ part % PRIME
        for found in sums:
            assert found.tolist() == want.tolist()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("n", [*COUNTS, 6, 7, 33])
@pytest.mark.parametrize("limit", [None, 3000])
def test_sums_are_those_of_python_integers(n, scaling, limit, tiles):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((3, 6, 11)), rng.standard_normal((1, 11, 5))
    a[1] = np.ldexp(a[1], rng.integers(-200, 200, (6, 11)))
    scheme = Scheme(n, scaling, 3 if scaling == "norm" else 0)
    product(a, b, scheme, workspace_bytes=limit, check=True)
    c = np.array([integers(x, b[0], scheme) for x in a])
    assert sum(np.prod(t.of_rows[0].shape) for t in tiles) % a[:, :, 0].size == 0
    for tile in tiles:
        assert_sums(tile, c)


@pytest.mark.parametrize("shape", [(2, 700, 300), (300, 700, 2), (1, 20_000, 2)])
def test_sums_over_many_blocks_and_pieces(shape, tiles, monkeypatch):
    # So few additions between reductions that these happen, too.
    monkeypatch.setattr(cpu_sums, "_ADDITIONS", 2)
    m, k, n = shape
    rng = np.random.default_rng(0)
    a = np.ldexp(rng.standard_normal((m, k)), rng.integers(-40, 40, (m, k)))
    b = np.ldexp(rng.standard_normal((k, n)), rng.integers(-40, 40, (k, n)))
    for layout in (np.ascontiguousarray, np.asfortranarray):
        product(layout(a), layout(b), Scheme(30), check=True)
    c = integers(a, b, Scheme(30))[None]
    for tile in tiles:
        assert_sums(tile, c)


def test_sums_at_the_bound_are_exact():
    # All pieces as large as they come, in the longest block.
    for shape in ((1, 16384), (128, 128), (16384, 1), (64, 256)):
        tall, wide = cpu_checksum._sides((1, *shape))
        assert (tall, wide) == shape
        for length in shape:
            largest = cpu_sums.room(length) + cpu_sums._PIECE
            assert length << largest <= 1 << 53
    for x in (PRIME - 1, PRIME // 2, PRIME // 2 + 1, (1 << 60) - 1, 0, 1 << 17):
        for bits in (11, 18):
            pieces = cpu_sums.vector_pieces(np.array([x], dtype=np.uint64), 61, bits)[0]
            assert sum(int(p) << bits * i for i, p in enumerate(pieces)) == x
            assert np.abs(pieces).max() <= 1 << bits
    pieces = np.empty((3, 5))
    whole = np.array([2.0**86, -(2.0**86), 2.0**28, -(2.0**28), 2.0**57 + 2.0**28])
    cpu_sums.cut(whole, cpu_checksum._OPERAND_BITS, pieces)
    assert_same_bits(pieces[2] + pieces[1] + pieces[0], whole)
    units = np.ldexp(1.0, -cpu_checksum._OPERAND_BITS * np.arange(3))[:, None]
    assert np.abs(pieces * units).max() <= 2.0**cpu_sums._PIECE


def test_sums_of_many_blocks_do_not_overflow():
    sums = cpu_sums.Accumulator((2, 1, 1, 1), [0, 29], [0, 29], 18)
    for _ in range(3000):
        sums.add(
            slice(1), slice(1), np.full((2, 1, 1, 1), [[[[2.0**53]]], [[[2.0**82]]]])
        )
    found, spoiled = sums.modulo()
    assert found.tolist() == [[3000 * (2**53 + 2**82) % PRIME]]
    assert not spoiled.any()


@pytest.mark.parametrize("value", [np.nan, -np.inf, 2.0**60, -(2.0**53) - 2])
def test_sums_that_are_not_exact_agree_with_nothing(value):
    sums = cpu_sums.Accumulator((1, 1, 3, 1), [0], [0], 18)
    with np.errstate(invalid="ignore"):
        found = np.array([5.0, value]).reshape(1, 1, 2, 1)
        sums.add_doubtful(slice(0, 1), slice(0, 2), found)
    found, spoiled = sums.modulo()
    assert spoiled.tolist() == [[False, True, False]]
    side, other = cpu_checksum._pair(found, (found, spoiled))
    assert (side != other).tolist() == spoiled.tolist()


# ---- Something is wrong ----


class Faulty(CpuEngine):
    """Spoils what one stage returns, at one of its calls."""

    def __init__(self, stage, spoil, call=0):
        super().__init__(2)
        self.stage, self.spoil, self.call = stage, spoil, call
        self.calls = 0

    def strike(self, stage, *arrays):
        if stage == self.stage:
            if self.calls == self.call:
                self.spoil(*arrays)
            self.calls += 1

    def residues(self, x, exponents, system, *, left, **kwargs):
        planes = super().residues(x, exponents, system, left=left, **kwargs)
        self.strike("left" if left else "right", planes)
        return planes

    def residue_gemm(self, left, right, out):
        super().residue_gemm(left, right, out)
        self.strike("gemm", out)

    def reconstruct(self, products, mu, nu, system, *args):
        if self.stage == "system":
            system = self.spoil(system)
        super().reconstruct(products, mu, nu, system, *args)


def outcome(engine, a, b, scheme, right):
    """Return the error of a faulty product, or None where the fault is harmless."""
    try:
        c = product(a, b, scheme, engine, check=True)
    except CheckError as error:
        return error
    assert_same_bits(c, right)
    return None


def subjects(seed):
    """Return a pair whose C' is near P/2 on the diagonal and 0 in a corner."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((7, 12))
    a[0, 6:], a[1, :6] = 0.0, 0.0
    return a, a.T.copy()


PLACES = [(0, 0), (0, 1), (6, 6), (3, 2)]


def planes_of(n):
    counts = []
    engine = Faulty("gemm", lambda out: counts.append(len(out)))
    product(*subjects(0), Scheme(n), engine, check=True)
    return counts[0]


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_wrong_residue_products_are_found(n, scaling):
    pair, scheme = subjects(n), Scheme(n, scaling)
    right = product(*pair, scheme)
    rng = np.random.default_rng(n)
    for plane, (i, j) in itertools.product(range(planes_of(n)), PLACES):
        amounts = [(-1) ** i, *rng.integers(2, 400_000, 3 if n < 49 else 1).tolist()]
        for amount in amounts:

            def spoil(out, place=(plane, 0, i, j), amount=amount):
                out[place] += amount

            error = outcome(Faulty("gemm", spoil), *pair, scheme, right)
            if plane or n == 2:
                assert error is not None
            if error is not None:
                assert (error.matrix, error.tile) == (0, (slice(0, 7), slice(0, 7)))
                assert (error.rows, error.columns) == ((i,), (j,))


@pytest.mark.parametrize("n", COUNTS)
def test_flipped_bits_of_residue_products_are_found(n):
    pair, scheme = subjects(n), Scheme(n)
    right = product(*pair, scheme)
    found = 0
    # All bits of every plane, or of many planes every third.
    step = 3 if n > 15 else 1
    places = [
        (plane, bit)
        for plane in range(planes_of(n))
        for bit in range(plane % step, 64, step)
    ]
    for plane, bit in places:
        i, j = PLACES[(plane + bit) % len(PLACES)]

        def spoil(out, place=(plane, 0, i, j), bit=bit):
            entry = out[place].view(np.uint64) ^ np.uint64(1 << bit)
            out[place] = entry.view(np.float64)

        error = outcome(Faulty("gemm", spoil), *pair, scheme, right)
        if error is not None:
            found += 1
            assert (error.rows, error.columns) == ((i,), (j,))
    # The low bits of a small integer are 0 and do no harm.
    assert found > len(places) // 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**90, 0.5])
@pytest.mark.parametrize("n", COUNTS)
def test_values_that_are_no_residues_are_found(n, value):
    pair, scheme = subjects(n), Scheme(n)
    right = product(*pair, scheme)
    for plane in range(planes_of(n)):

        def spoil(out, plane=plane):
            out[plane, 0, 4, 5] = value

        error = outcome(Faulty("gemm", spoil), *pair, scheme, right)
        assert error is not None
        assert (error.rows, error.columns) == ((4,), (5,))


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_wrong_residue_of_an_operand_is_found(n, side):
    pair, scheme = subjects(n), Scheme(n)
    right = product(*pair, scheme)
    for plane, line in itertools.product(range(planes_of(n)), (0, 5)):

        def spoil(planes, plane=plane, line=line):
            where = (line, 8) if side == "left" else (8, line)
            large = np.abs(planes[0]).max()
            planes[(plane, 0, *where)] += 1 if plane or n == 2 else large

        error = outcome(Faulty(side, spoil), *pair, scheme, right)
        assert error is not None
        several, single = (
            (error.columns, error.rows)
            if side == "left"
            else (error.rows, error.columns)
        )
        # An entry of A that met 0 in B does not change that column.
        assert set(several) >= {0, 2, 3, 4, 5, 6} - {0}
        assert single == (line,)


@pytest.mark.parametrize("n", COUNTS)
def test_rows_of_products_that_changed_places_are_found(n):
    pair, scheme = subjects(n), Scheme(n)
    right = product(*pair, scheme)
    for plane in range(1 if n > 2 else 0, planes_of(n)):

        def spoil(out, plane=plane):
            out[plane, 0, [2, 5]] = out[plane, 0, [5, 2]]

        error = outcome(Faulty("gemm", spoil), *pair, scheme, right)
        assert error is not None
        assert error.rows == (2, 5)


@pytest.mark.parametrize("rows", [True, False])
def test_one_direction_is_enough(rows):
    # Two wrong entries of a line, such that its own sum is right.
    pair, scheme = subjects(2), Scheme(2)
    first, second = (int(w) for w in weights(7, left=not rows)[[1, 4]])

    def spoil(out):
        line = out[0, 0, 2] if rows else out[0, 0, :, 2]
        line[1] += second
        line[4] -= first

    error = outcome(Faulty("gemm", spoil), *pair, scheme, None)
    assert (error.rows, error.columns) == (((), (1, 4)) if rows else ((1, 4), ()))


def test_changes_that_plain_sums_would_not_show_are_found():
    pair, scheme = subjects(2), Scheme(2)

    def spoil(out):
        out[0, 0, 1:3, 3:5] += np.array([[1, -1], [-1, 1]])

    error = outcome(Faulty("gemm", spoil), *pair, scheme, None)
    assert (error.rows, error.columns) == ((1, 2), (3, 4))


def constants_of(system):
    """Yield a name and an index for every constant that `reconstruct` uses."""
    if not system.moduli:
        return
    for name in ("weights", "product_limbs", "head_high", "head_low", "modulus"):
        table = getattr(system, name)
        for index in np.ndindex(table.shape):
            if name != "weights" or index[0] < system.num_limbs:
                yield name, index


@pytest.mark.parametrize("n", COUNTS)
def test_wrong_constants_of_reconstruct_are_found(n):
    pair, scheme = subjects(n), Scheme(n)
    right = product(*pair, scheme)
    systems = []
    product(*pair, scheme, Faulty("system", lambda s: systems.append(s) or s))
    for name, index in itertools.islice(constants_of(systems[0]), 0, None, n // 10 + 1):

        def spoil(system, name=name, index=index):
            table = getattr(system, name).copy()
            table[index] += 1
            return dataclasses.replace(system, **{name: table})

        error = outcome(Faulty("system", spoil), *pair, scheme, right)
        assert error is not None or name == "product_limbs"


@given(
    operands(max_side=4, max_k=6),
    st.integers(2, 49),
    st.sampled_from(SCALINGS),
    st.data(),
)
def test_any_fault_is_found_or_harmless(pair, n, scaling, data):
    scheme = Scheme(n, scaling)
    right = product(*pair, scheme)
    stage = data.draw(st.sampled_from(["left", "right", "gemm"]))

    def spoil(planes):
        size = planes.size
        for place in data.draw(st.lists(st.integers(0, size - 1), max_size=3)):
            where = np.unravel_index(place, planes.shape)
            amount = data.draw(st.integers(-(2**21), 2**21) | st.just(2**60))
            planes[where] += amount

    outcome(Faulty(stage, spoil), *pair, scheme, right)


# ---- Where it is wrong ----


@pytest.mark.parametrize("limit", [None, 60_000, 20_000])
def test_an_error_names_matrix_and_tile(limit, tiles, monkeypatch):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 40, 30)), rng.standard_normal((3, 30, 50))
    product(a, b, Scheme(15), workspace_bytes=limit, check=True)
    recorded = list(tiles)
    monkeypatch.undo()
    assert len(recorded) > (1 if limit else 0)
    for call in sorted({0, 1, len(recorded) // 2, len(recorded) - 1}):
        if call >= len(recorded):
            continue
        tile = recorded[call]
        matrix = len(range(*tile.batch.indices(3))) - 1
        i, j = (s.stop - s.start - 1 for s in (tile.rows, tile.columns))

        def spoil(out, place=(1, matrix, i, j)):
            out[place] += 1

        with pytest.raises(CheckError) as found:
            product(
                a,
                b,
                Scheme(15),
                Faulty("gemm", spoil, call),
                workspace_bytes=limit,
                check=True,
            )
        error = found.value
        assert error.matrix == tile.batch.start + matrix
        assert error.tile == (tile.rows, tile.columns)
        assert error.rows == (tile.rows.stop - 1,)
        assert error.columns == (tile.columns.stop - 1,)


def test_a_later_block_of_k_is_checked():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 40_000)), rng.standard_normal((40_000, 2))
    for call in range(3):

        def spoil(out):
            out[2, 0, 1, 1] -= 3

        with pytest.raises(CheckError, match=r"matrix 0.*row 1 and column 1"):
            product(a, b, Scheme(15), Faulty("gemm", spoil, call), check=True)


def test_unchecked_products_are_not_checked():
    def spoil(out):
        out[1] += 1

    a, b = subjects(0)
    c = product(a, b, Scheme(15), Faulty("gemm", spoil))
    assert not np.array_equal(c, product(a, b, Scheme(15)))
