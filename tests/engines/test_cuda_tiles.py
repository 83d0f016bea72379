"""Reconstruction from tiles of one-byte residues, bit for bit.

Against exact integers, and against the reconstruction from int32 products.
"""

import random

import numpy as np
import pytest
from complex_pairs import join
from devices import POISON, laid_out, poisoned
from np_ozaki._kernels.limb_tables import residue_weights
from np_ozaki._kernels.render import Variant
from tile_layout import places, tile_corners, tiles_of

from np_ozaki.engines import cuda_checksum, cuda_lines, cuda_tiles
from np_ozaki.engines.checksum import PRIME
from np_ozaki.engines.cuda_lines import Operands
from np_ozaki.engines.cuda_tiles import residue_tiles_bytes, tile_shape
from np_ozaki.numerics import reference
from np_ozaki.numerics.moduli import (
    COMPLEX_MODULI,
    MODULI,
    balanced_residue,
    crt_weights,
    modulus_product,
    product_bound,
    root_of_minus_one,
)
from np_ozaki.testing import assert_same_bits

QUICK = (2, 3, 6, 14, 15, 16, 17, 49)
EVERY = [
    n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in range(2, 50)
]

PAIRS = range(2, len(COMPLEX_MODULI) + 1)

# The four quarters of C by products P1 to P7, as they are numbered from 0.
QUARTERS = {
    (0, 0): {0: 1, 1: 1},
    (0, 1): {0: 1, 5: 1, 4: 1, 2: 1},
    (1, 0): {0: 1, 5: 1, 6: 1, 3: -1},
    (1, 1): {0: 1, 5: 1, 6: 1, 4: 1},
}


# ---- Residues --------------------------------------------------------------------


def residues_of(values, num_moduli, rng):
    """Return residues of integers, in any representation that fits."""
    residues = np.empty((num_moduli, *values.shape), np.int8)
    for index, p in enumerate(MODULI[:num_moduli]):
        for at, value in np.ndenumerate(values):
            r = balanced_residue(int(value), p)
            others = [x for x in (r - p, r, r + p) if -128 <= x <= 127]
            residues[(index, *at)] = rng.choice(others)
    return residues


def integers_of(residues):
    """Return the balanced integers of (N, ...) residues."""
    num_moduli = residues.shape[0]
    product = modulus_product(num_moduli)
    weights = crt_weights(MODULI[:num_moduli])
    total = sum(w * r.astype(object) for w, r in zip(weights, residues, strict=True))
    return (total + product // 2) % product - product // 2


def rounded(values, mu, nu):
    """Return integers (batch, m, n) times powers of two, rounded once."""
    want = np.empty(values.shape)
    for (h, i, j), value in np.ndenumerate(values):
        a, b = min(h, len(mu) - 1), min(h, len(nu) - 1)
        want[h, i, j] = reference.round_to_double(int(value), -int(mu[a, i] + nu[b, j]))
    return want


# ---- Running ---------------------------------------------------------------------


def facts_from(place, exponents, special=None):
    """Return facts that hold nothing but exponents and flags."""
    words = np.zeros((4, *exponents.shape), np.uint64)
    small = words[3].reshape(-1).view(np.int32).reshape(2, *exponents.shape)
    small[1] = exponents
    if special is not None:
        small[0] = special
    return cuda_lines.Facts(place.own(words))


def variant_of(num_moduli, dtype):
    kind = {"family": "complex", "parts": 2} if dtype is complex else {}
    return Variant(num_moduli, "norm", True, **kind)


def special_of(x):
    return np.isinf(x).any(axis=2) + 2 * np.isnan(x).any(axis=2)


def run(
    place,
    tiles,
    num_moduli,
    mu,
    nu,
    shape,
    *,
    layout="C",
    low=False,
    check=False,
    operands=None,
    engine=None,
    dtype=np.float64,
    **how,
):
    """Return results and flags of reconstruct_tiles as host arrays."""
    engine = engine or place.engine
    if operands is None:
        operands = np.ones((*mu.shape, 1), dtype), np.ones((*nu.shape, 1), dtype)
    left, right = (Operands(place.own(x), engine.device) for x in operands)
    facts = [
        facts_from(place, e, special_of(x))
        for e, x in zip((mu, nu), operands, strict=True)
    ]
    out = laid_out(place.own, poisoned(shape, dtype), layout)
    rest = laid_out(place.own, poisoned(shape, dtype), layout) if low else None
    remainders = place.own(np.full(shape, 2**63, np.uint64)) if check else None
    flags = place.own(np.zeros(1, np.int32))
    cuda_tiles.reconstruct_tiles(
        engine,
        place.own(tiles),
        left,
        right,
        tuple(facts),
        variant_of(num_moduli, dtype),
        out,
        flags,
        rest,
        remainders,
        **how,
    )
    found = [None if x is None else place.host(x) for x in (out, rest, remainders)]
    return (*found, int(place.host(flags)[0]))


def exponents(rng, batch, lines, spread=40):
    return np.array(
        [[rng.randint(-spread, spread) for _ in range(lines)] for _ in range(batch)]
    ).reshape(batch, lines)


# ---- Layout ----------------------------------------------------------------------


def test_every_entry_of_a_tile_has_one_byte():
    row, column = places()
    at = row * 256 + column
    assert sorted(at.reshape(-1)) == list(range(128 * 256))
    assert (row[1, 0, 37, 3], column[1, 0, 37, 3]) == (64 + 16 + 1 + 8, 2 + 1)


@pytest.mark.parametrize("symmetric", [False, True])
def test_sizes_of_residues(symmetric):
    n = 300
    residues = np.zeros((3, 2, n, n), np.int8)
    tiles = tiles_of(residues, symmetric)
    assert tiles.size == residue_tiles_bytes(2, n, n, 3, symmetric=symmetric)
    shape = tile_shape(n, n, symmetric=symmetric)
    assert tiles.size == 2 * shape.tiles * 3 * 128 * 256
    assert shape.tiles == len(tile_corners(n, n, symmetric)) == 6


def test_shapes_of_halves():
    assert tile_shape(300, 31, 7) == (160, 16, 2, 1, 2)
    assert tile_shape(1, 1, 7) == (16, 16, 1, 1, 1)
    assert residue_tiles_bytes(1, 300, 31, 15, 7) == 2 * 105 * 32768


# ---- Values ----------------------------------------------------------------------


def values_to_round(rng, num_moduli, family="real"):
    """Return integers at the ends, around halves of last places, and of any size."""
    bound = product_bound(num_moduli, family)
    bits = bound.bit_length()
    values = [0, 1, 2, bound, bound - 1, bound // 2, bound - (bound >> 7)]
    for excess in (1, 2, 11, 31, 32, 33, 64, 96, bits - 54, bits - 53):
        if not 0 < excess <= bits - 53:
            continue
        for odd in (0, 1):
            kept = (rng.getrandbits(52) | 1 << 52) & ~1 | odd
            values += [(kept << excess) + (1 << excess - 1) + d for d in (-1, 0, 1)]
            # A carry through all of the mantissa.
            values.append((((1 << 53) - 1) << excess) + (1 << excess - 1) + odd)
    values += [1 << e for e in range(0, bits, 3)]
    values += [rng.randrange(1 << rng.randint(1, bits)) for _ in range(40)]
    values += [rng.randint(0, bound) for _ in range(40)]
    return [s * v for v in values if v <= bound for s in (1, -1)]


@pytest.mark.parametrize("n", EVERY)
def test_values_of_every_number_of_moduli(place, n):
    rng = random.Random(n)
    # The balanced interval reaches one further on its lower side.
    found = [*values_to_round(rng, n), -modulus_product(n) // 2]
    rows = -(-len(found) // 7)
    values = np.array([*found, *[0] * (7 * rows - len(found))], object)
    values = values.reshape(1, rows, 7)
    mu = exponents(rng, 1, rows)
    nu = np.array([[0, 3, -7, 900, 1000, -1000, 1060]])
    nu[0, 4] += product_bound(n).bit_length() - 60
    tiles = tiles_of(residues_of(values, n, rng))
    out, low, remainders, flags = run(
        place, tiles, n, mu, nu, values.shape, low=True, check=True
    )
    want = rounded(values, mu, nu)
    assert_same_bits(out, want)
    assert flags == np.isinf(want).any()
    assert (remainders == np.array(values % PRIME, np.uint64)).all()
    for (_, i, j), value in np.ndenumerate(values):
        rest = reference._rest(int(value), -int(mu[0, i] + nu[0, j]), want[0, i, j])
        assert low[0, i, j] == rest
    # Without them another text runs.
    assert_same_bits(run(place, tiles, n, mu, nu, values.shape)[0], want)


@pytest.mark.parametrize("n", [2, 14, 15, 49])
def test_any_bytes(place, n):
    rng = np.random.default_rng(n)
    residues = rng.integers(-128, 128, (n, 1, 40, 33)).astype(np.int8)
    # Sums at their ends.
    residues[:, 0, 0, :2] = -128, 127
    residues[:, 0, 1] = rng.choice([-128, 127], (n, 33))
    mu, nu = exponents(random.Random(n), 1, 40), exponents(random.Random(n), 1, 33)
    out, *_, flags = run(place, tiles_of(residues), n, mu, nu, (1, 40, 33))
    assert_same_bits(out, rounded(integers_of(residues), mu, nu))
    assert flags == 0


# ---- Complex results -------------------------------------------------------------


@pytest.mark.parametrize(
    "n", [n if n == 16 else pytest.param(n, marks=pytest.mark.slow) for n in PAIRS]
)
def test_both_parts_of_complex_results(place, n):
    """Among them the ends of the balanced interval, which P odd has on both sides."""
    rng = random.Random(n)
    moduli = COMPLEX_MODULI[:n]
    found = values_to_round(rng, n, "complex")
    bound = product_bound(n, "complex")
    found += [s * (bound - d) for s in (1, -1) for d in (0, 1)]
    found += [bound] * (-len(found) % 6)
    x, y = (
        np.array(rng.sample(found, len(found)), object).reshape(1, -1, 6) for _ in "xy"
    )
    x[0, 0], y[0, 0] = [bound, -bound] * 3, [bound, bound, -bound, -bound, 0, 0]
    products = np.empty((2 * n, *x.shape), np.int32)
    residues = np.empty(products.shape, np.int8)
    for index, p in enumerate(moduli):
        for i, sign in enumerate((1, -1)):
            r = (x + sign * root_of_minus_one(p) * y + p // 2) % p - p // 2
            steps = np.array([rng.randint(-(2**20), 2**20) for _ in r.flat])
            products[2 * index + i] = r + p * steps.reshape(r.shape)
            # In any representation that fits a byte.
            r = r + p * ((r < 0) & (r + p < 128) & (steps.reshape(r.shape) & 1 == 1))
            residues[2 * index + i] = r
    mu = exponents(rng, 1, x.shape[1])
    nu = np.array([[0, 3, -7, 900, 1060, bound.bit_length() - 1060]])
    want = join(rounded(x, mu, nu), rounded(y, mu, nu))
    left_over = np.empty((2, *x.shape))
    for part, values in enumerate((x, y)):
        for (_, i, j), value in np.ndenumerate(values):
            power = -int(mu[0, i] + nu[0, j])
            c = (want.imag if part else want.real)[0, i, j]
            left_over[part, 0, i, j] = reference._rest(int(value), power, c)
    found = run(place, tiles_of(residues), n, mu, nu, x.shape, low=True, dtype=complex)
    assert_same_bits(found[0], want)
    assert_same_bits(found[1], join(*left_over))
    assert found[3] == np.isinf(want.real).any() | np.isinf(want.imag).any()
    # Without them another text runs; and from int32 products.
    found = run(
        place, tiles_of(residues), n, mu, nu, x.shape, dtype=complex, layout="spread"
    )
    assert_same_bits(found[0], want)
    out, rest = (place.own(poisoned(x.shape, complex)) for _ in "cl")
    engine = place.engine
    engine.reconstruct(
        place.own(products),
        *(
            Operands(place.own(np.ones((*e.shape, 1), complex)), engine.device)
            for e in (mu, nu)
        ),
        tuple(facts_from(place, e) for e in (mu, nu)),
        variant_of(n, complex),
        out,
        place.own(np.zeros(1, np.int32)),
        rest,
    )
    assert_same_bits(place.host(out), want)
    assert_same_bits(place.host(rest), join(*left_over))


@pytest.mark.parametrize("n", [16, pytest.param(22, marks=pytest.mark.slow)])
def test_any_bytes_of_complex_results(place, n):
    # Sums at their ends and beyond the interval, where they wrap in each part.
    rng = np.random.default_rng(n)
    residues = rng.choice(np.array([-128, 127], np.int8), (2 * n, 1, 20, 33))
    residues[:, :, 10:] = rng.integers(-128, 128, (2 * n, 1, 10, 33))
    residues[:, 0, 0, :2] = -128, 127
    parts = []
    for weights in residue_weights(n, "complex", 2):
        total = sum(
            w * r.astype(object) for w, r in zip(weights, residues, strict=True)
        )
        product = modulus_product(n, "complex")
        parts.append((total + product // 2) % product - product // 2)
    mu, nu = exponents(random.Random(n), 1, 20), exponents(random.Random(n), 1, 33)
    out, *_ = run(place, tiles_of(residues), n, mu, nu, (1, 20, 33), dtype=complex)
    assert_same_bits(out, join(*(rounded(part, mu, nu) for part in parts)))


# ---- Against the other reconstruction --------------------------------------------


def both(place, shape, num_moduli, *, seed=0, batches=None, special=None, **how):
    """Assert that tiles and int32 products of the same residues give the same."""
    rng = np.random.default_rng(seed)
    residues = rng.integers(-128, 128, (num_moduli, *shape)).astype(np.int8)
    batch, m, n = shape
    batch_a, batch_b = batches or (batch, batch)
    mu = rng.integers(-60, 60, (batch_a, m))
    nu = rng.integers(-60, 60, (batch_b, n))
    operands = special or (np.ones((batch_a, m, 1)), np.ones((batch_b, n, 1)))
    tiles = tiles_of(residues)
    found = run(place, tiles, num_moduli, mu, nu, shape, operands=operands, **how)
    out = place.own(np.full(shape, POISON))
    flags = place.own(np.zeros(1, np.int32))
    engine = place.engine
    engine.reconstruct(
        place.own(residues.astype(np.int32)),
        *(Operands(place.own(x), engine.device) for x in operands),
        tuple(
            facts_from(place, e, special_of(x))
            for e, x in zip((mu, nu), operands, strict=True)
        ),
        Variant(num_moduli, "norm", False),
        out,
        flags,
    )
    assert_same_bits(found[0], place.host(out))
    assert found[3] == int(place.host(flags)[0])
    return found


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (16, 32), (17, 33), (64, 1), (1, 257), (65, 256), (128, 31), (129, 290)],
)
def test_shapes_at_and_beside_the_edges_of_tiles(place, shape):
    both(place, (1, *shape), 14)
    both(place, (2, *shape), 3, engine=place.unfused)


@pytest.mark.parametrize("batches", [(3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("layout", ["C", "F", "spread", "reversed", "batch last"])
def test_layouts_and_batches(place, layout, batches):
    both(place, (3, 18, 35), 15, batches=batches, layout=layout)


def test_what_lies_between_entries_stays(place):
    rng = random.Random(5)
    values = np.array([[[rng.randint(-9, 9) for _ in range(5)] for _ in range(3)]])
    tiles = tiles_of(residues_of(values, 15, rng))
    device = place.engine.device
    whole = place.own(np.full((1, 8, 12), POISON))
    out = whole[:, 2:5, 3:8]
    zeros = np.zeros((1, 3)), np.zeros((1, 5))
    cuda_tiles.reconstruct_tiles(
        place.engine,
        place.own(tiles),
        Operands(place.own(np.ones((1, 3, 1))), device),
        Operands(place.own(np.ones((1, 5, 1))), device),
        tuple(facts_from(place, x.astype(int)) for x in zeros),
        Variant(15, "norm", False),
        out,
        place.own(np.zeros(1, np.int32)),
    )
    want = np.full((1, 8, 12), POISON)
    want[:, 2:5, 3:8] = values
    assert_same_bits(place.host(whole), want)


@pytest.mark.parametrize("batches", [(2, 2), (2, 1), (1, 2)])
def test_lines_that_are_not_finite(place, batches):
    rng = np.random.default_rng(1)
    choices = [0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]
    chances = [0.1, 0.4, 0.38, 0.05, 0.05, 0.02]
    a, b = (
        rng.choice(choices, (batch, lines, 4), p=chances)
        for batch, lines in zip(batches, (19, 37), strict=True)
    )
    found = both(place, (2, 19, 37), 14, batches=batches, special=(a, b))
    assert np.isnan(found[0]).any()
    assert found[3] == 2


# ---- Products of half the size ---------------------------------------------------


@pytest.mark.parametrize(
    ("n", "shape"),
    [
        (14, (1, 33, 40)),
        (15, (2, 16, 71)),
        (15, (1, 1, 1)),
        (2, (1, 5, 31)),
        (17, (1, 17, 33)),
        (49, (1, 20, 7)),
        (14, (1, 270, 530)),
    ],
)
@pytest.mark.parametrize("extra", [False, True])
def test_seven_products(place, n, shape, extra):
    batch, rows, columns = shape
    rng = np.random.default_rng(n)
    half = tile_shape(rows, columns, 7)
    residues = rng.integers(-128, 128, (n, 7, batch, half.rows, half.columns), np.int8)
    residues[..., 0, 0] = rng.choice([-128, 127], residues.shape[:3])
    combined = np.zeros((n, batch, 2 * half.rows, 2 * half.columns), np.int64)
    for (lower, right), terms in QUARTERS.items():
        rows_of = slice(lower * half.rows, (lower + 1) * half.rows)
        columns_of = slice(right * half.columns, (right + 1) * half.columns)
        combined[:, :, rows_of, columns_of] = sum(
            sign * residues[:, q].astype(np.int64) for q, sign in terms.items()
        )
    values = integers_of(combined[:, :, :rows, :columns])
    mu = rng.integers(-60, 60, (batch, rows))
    nu = rng.integers(-60, 60, (batch, columns))
    tiles = tiles_of(residues.reshape(7 * n, *residues.shape[2:]))
    assert tiles.size == residue_tiles_bytes(*shape, n, 7)
    out, _, remainders, flags = run(
        place, tiles, n, mu, nu, shape, products=7, low=extra, check=extra
    )
    assert_same_bits(out, rounded(values, mu, nu))
    assert flags == 0
    if extra:
        assert (remainders == np.array(values % PRIME, np.uint64)).all()


# ---- Symmetric results -----------------------------------------------------------


@pytest.mark.parametrize("size", [1, 31, 130, 257])
@pytest.mark.parametrize("layout", ["C", "F", "spread"])
def test_symmetric_results(place, size, layout):
    rng = np.random.default_rng(size)
    residues = rng.integers(-128, 128, (15, 2, size, size)).astype(np.int8)
    upper = np.triu(np.ones((size, size), bool))
    residues = np.where(upper, residues, residues.swapaxes(2, 3))
    mu = rng.integers(-60, 60, (2, size))
    tiles = tiles_of(residues, symmetric=True)
    assert tiles.size == residue_tiles_bytes(2, size, size, 15, symmetric=True)
    shape = (2, size, size)
    out = run(place, tiles, 15, mu, mu, shape, layout=layout, symmetric=True)[0]
    want = run(place, tiles_of(residues), 15, mu, mu, shape)[0]
    assert_same_bits(out, want)
    assert_same_bits(out, out.swapaxes(1, 2))


def test_symmetric_results_with_all_that_can_be_asked_for(place):
    rng = np.random.default_rng(3)
    size = 40
    residues = rng.integers(-128, 128, (15, 1, size, size)).astype(np.int8)
    upper = np.triu(np.ones((size, size), bool))
    residues = np.where(upper, residues, residues.swapaxes(2, 3))
    mu = rng.integers(-60, 60, (1, size))
    a = np.ones((1, size, 2))
    a[0, 3, 0], a[0, 7, 1], a[0, 9] = np.nan, np.inf, (np.inf, -np.inf)
    both = [
        run(
            place,
            tiles_of(residues, symmetric=symmetric),
            15,
            mu,
            mu,
            (1, size, size),
            operands=(a, a),
            low=True,
            check=True,
            symmetric=symmetric,
        )
        for symmetric in (False, True)
    ]
    for x, y in zip(*both, strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


# ---- Sums of remainders ----------------------------------------------------------


def test_sums_take_remainders_of_either_kind(place):
    rng = np.random.default_rng(4)
    m, n = 9, 21
    remainders = rng.integers(0, PRIME, (1, m, n), np.uint64)
    halves = remainders.view(np.uint32).view(np.int32).reshape(1, m, n, 2)
    products = np.ascontiguousarray(np.moveaxis(halves, 3, 0))
    engine = place.engine
    x, y = (Operands(place.own(np.ones((1, k, 2))), engine.device) for k in (m, n))

    class Side:
        def __init__(self, operand):
            self.operand = operand
            self.facts = facts_from(place, np.zeros(operand.x.shape[:2], int))

    def sums(left):
        words = [place.own(np.zeros((2, 1, k), np.uint64)) for k in (m, n)]
        part = cuda_checksum.PartSums(engine, words, stays=True)
        part.tile(slice(0, m), slice(0, n), place.own(left), Side(x), Side(y))
        return [place.host(w)[1] % PRIME for w in words]

    for one, other in zip(sums(remainders), sums(products), strict=True):
        assert one.any()
        assert np.array_equal(one, other)
