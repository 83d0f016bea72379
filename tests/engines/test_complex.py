"""Complex products of the CPU engine against the contract in Python integers."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from complex_pairs import complex_operands, join, normals, special_operands
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import complex_products
from np_ozaki.engines import complex_operand, cpu
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics import reference
from np_ozaki.numerics.complex_reference import complex_exponents, complex_matmul
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.testing import assert_hermitian, assert_same_bits, assert_transposes
from np_ozaki.tiling import Tiles

SCALINGS = ("norm", "accurate", "legacy")
num_moduli = st.integers(2, 22)
"""That may be asked for."""


def expected(a, b, n, scaling="norm"):
    return np.array(complex_matmul(a, b, n, scaling), dtype=complex).reshape(
        a.shape[0], b.shape[1]
    )


def embedded(a, b):
    return np.block([[a.real, -a.imag], [a.imag, a.real]]), np.vstack([b.real, b.imag])


def exact(a, b):
    """Return Re and Im of the product as fractions, [i][j]."""
    m = a.shape[0]
    rows = reference.exact_fractions(*embedded(a, b))
    return rows[:m], rows[m:]


def zeros_unsigned(z):
    """Return entries with +0 for -0: what is left of signs after a conjugation."""
    return join(z.real + 0.0, z.imag + 0.0)


# ---- The contract ----


@given(complex_operands(), num_moduli, st.sampled_from(SCALINGS))
def test_engine_equals_the_reference(pair, n, scaling):
    a, b = pair
    with np.errstate(over="ignore"):
        actual = np_ozaki.matmul(a, b, precision=n, scaling=scaling, engine="cpu")
    assert_same_bits(actual, expected(a, b, n, scaling))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("n", range(2, 23))
def test_every_number_of_moduli(n, scaling):
    a, b = normals(n, (4, 33), 1.0), normals(n + 100, (33, 3))
    actual = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
    assert_same_bits(actual, expected(a, b, n, scaling))


@pytest.mark.parametrize("turned", [False, True])
def test_parts_that_meet_less_have_no_exponent_of_their_own(turned):
    a, b = normals(9, (8, 20)), normals(10, (20, 6))
    a.imag[::2] *= 2.0**-20
    b.imag *= 2.0**-20
    a, b = (b.T, a.T) if turned else (a, b)
    c = np_ozaki.matmul(a, b, precision=6, scaling="accurate")
    assert_same_bits(c, expected(a, b, 6, "accurate"))


@pytest.mark.parametrize("n", [2, 3, 7, 15, 16, 22])
@pytest.mark.parametrize("v", [1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 255.0])
@pytest.mark.parametrize("k", [1, 2, 3, 64, 500])
def test_constants_at_the_crt_bound(v, n, k):
    # Parts of one size and signs that add up: |Im C'| is as large as it can be.
    a, b = np.full((2, k), join(v, v)), np.full((k, 2), join(v, v))
    b[:, 1] = join(-v, v)
    assert_same_bits(np_ozaki.matmul(a, b, precision=n), expected(a, b, n))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("power", [-2, -4, -20])
def test_legacy_products_wrap_to_the_complex_p(n, power):
    rng = np.random.default_rng(n)
    a = join(*rng.uniform(0.5, 1.0, (2, 6, 40))) * 2.0**power
    b = join(*rng.uniform(0.5, 1.0, (2, 40, 5))) * 2.0**power
    c = np_ozaki.matmul(a, b, precision=n, scaling="legacy")
    assert_same_bits(c, expected(a, b, n, "legacy"))
    if power == -20:
        assert (abs(c - a @ b) > 0.1 * abs(a @ b)).any()


@given(complex_operands(), num_moduli, st.sampled_from(SCALINGS))
def test_exponents_of_the_engine(pair, n, scaling):
    a, b = pair
    left, right = embedded(a, b)
    mu, nu = CpuEngine(1).scaling_exponents(
        left[np.newaxis], right[np.newaxis], n, scaling, "complex"
    )
    want_mu, want_nu = complex_exponents(a, b, n, scaling)
    assert mu[0].tolist() == want_mu + want_mu
    assert nu[0].tolist() == want_nu


@given(special_operands(), st.sampled_from(SCALINGS))
def test_special_values_equal_the_reference(pair, scaling):
    a, b = pair
    want = expected(a, b, 15, scaling)
    with np.errstate(all="ignore"):
        actual = np_ozaki.matmul(a, b, precision=15, scaling=scaling)
        batch = np_ozaki.matmul(
            np.stack([a, a]), np.stack([b, b]), precision=15, scaling=scaling
        )
    assert_same_bits(actual, want)
    assert_same_bits(batch, np.stack([want, want]))


@given(special_operands((0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)))
def test_special_values_are_those_of_numpys_products_and_sums(pair):
    a, b = pair
    with np.errstate(all="ignore"):
        want = (a[:, :, None] * b[None]).sum(1)
        for precision in ("auto", 16):
            actual = np_ozaki.matmul(a, b, precision=precision)
            np.testing.assert_array_equal(actual.real, want.real)
            np.testing.assert_array_equal(actual.imag, want.imag)
        np.testing.assert_array_equal(np.einsum("ij,jk->ik", a, b), want)


# ---- What must not change a bit ----


@given(complex_operands(), num_moduli, st.sampled_from(["norm", "accurate"]), st.data())
def test_powers_of_two_scale_exactly(pair, n, scaling, data):
    a, b = (
        join(
            *(
                np.where(abs(p) > 1e-110, p, 0.0).clip(-1e110, 1e110)
                for p in (x.real, x.imag)
            )
        )
        for x in pair
    )
    rows = data.draw(st.lists(st.integers(-99, 99), min_size=len(a), max_size=len(a)))
    count = b.shape[1]
    columns = data.draw(st.lists(st.integers(-99, 99), min_size=count, max_size=count))
    left, right = (2.0 ** np.array(x) for x in (rows, columns))
    product = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
    moved = np_ozaki.matmul(
        a * left[:, np.newaxis], b * right, precision=n, scaling=scaling
    )
    tiny = abs(join(product.real, product.imag)) < 1e-200
    want = product * left[:, np.newaxis] * right
    assert_same_bits(np.where(tiny, 0, moved), np.where(tiny, 0, want))


@given(complex_operands(), num_moduli, st.randoms(use_true_random=False))
def test_the_order_of_the_inner_index_does_not_matter(pair, n, random):
    a, b = pair
    order = list(range(a.shape[1]))
    random.shuffle(order)
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n)
        assert_same_bits(np_ozaki.matmul(a[:, order], b[order], precision=n), c)


@given(complex_operands(), num_moduli, st.sampled_from(SCALINGS))
def test_transposes(pair, n, scaling):
    a, b = pair
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
        turned = np_ozaki.matmul(b.T, a.T, precision=n, scaling=scaling)
    assert_same_bits(turned.T, c)


@given(complex_operands(), num_moduli, st.sampled_from(SCALINGS))
def test_conjugates(pair, n, scaling):
    a, b = pair
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n, scaling=scaling)
        d = np_ozaki.matmul(a.conj(), b.conj(), precision=n, scaling=scaling)
    assert_same_bits(d.real, c.real)
    assert_same_bits(zeros_unsigned(d), zeros_unsigned(c.conj()))


@given(complex_operands(max_side=5), num_moduli)
def test_products_with_ones_own_adjoint_are_hermitian(pair, n):
    for x in pair:
        with np.errstate(over="ignore"):
            c = np_ozaki.matmul(x, x.conj().T, precision=n)
            left = np_ozaki.matmul(x.conj().T, x, precision=n)
        for y in (c, left):
            assert_same_bits(zeros_unsigned(y.conj().T), zeros_unsigned(y))
            assert_same_bits(np.diagonal(y).imag, np.zeros(len(y)))


def test_a_large_gram_matrix_is_hermitian_in_auto():
    x = normals(1, (150, 170), 0.5)
    c, info = np_ozaki.matmul(x, x.conj().T, return_info=True)
    assert info.fallback is None
    assert_same_bits(c.conj().T + 0.0, c + 0.0)
    assert_same_bits(np.diagonal(c).imag, np.zeros(150))


@given(complex_operands(), num_moduli)
def test_a_turn_by_i_is_exact(pair, n):
    a, b = pair
    turned = join(-a.imag, a.real)
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, precision=n)
        d = np_ozaki.matmul(turned, b, precision=n)
    assert_same_bits(zeros_unsigned(d), zeros_unsigned(join(-c.imag, c.real)))


def test_layouts_and_batches():
    a, b = normals(3, (2, 3, 12, 17)), normals(4, (3, 17, 9))
    want = np.stack(
        [[np_ozaki.matmul(a[i, j], b[j]) for j in range(3)] for i in range(2)]
    )
    assert_same_bits(np_ozaki.matmul(a, b), want)
    assert_same_bits(
        np_ozaki.matmul(np.asfortranarray(a), b[:, :, ::-1])[..., ::-1], want
    )
    spread = np.zeros((2, 3, 24, 34), dtype=complex)
    spread[..., ::2, ::2] = a
    out = np.empty((2, 3, 9, 12), dtype=complex).swapaxes(2, 3)
    assert np_ozaki.matmul(spread[..., ::2, ::2], b, out=out) is out
    assert_same_bits(out, want)
    assert_same_bits(np_ozaki.matmul(a, b[1, :, 2]), np_ozaki.matmul(a, b[1])[..., 2])


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
@pytest.mark.parametrize("step", range(1, 10))
def test_every_distance_of_entries(step, dtype):
    # np.negative is wrong at some (64 bytes in, gaps in what it writes).
    a, b = normals(step, (7, 7 * step)).astype(dtype), normals(2, (7, 5)).astype(dtype)
    one, few = b[:1, :1], normals(3, (7, step)).astype(dtype)
    for x in (a[:, ::step], few[:, :1], a.T[::step], few[::-1, -1:]):
        y = one if x.shape[1] == 1 else b
        for options in (
            {"precision": 9},
            {"precision": "exact"},
            {"scheme": "slices", "pairs": "all"},
        ):
            want = np_ozaki.matmul(x.copy("C"), y, **options)
            assert_same_bits(np_ozaki.matmul(x, y, **options), want)
            assert_same_bits(np_ozaki.matmul(y.T, x.T, **options), want.T)
            want = np_ozaki.matmul(x.conj().copy("C"), y, **options)
            assert_same_bits(np_ozaki.matmul(x.conj(), y, **options), want)
            with np_ozaki.enabled(engine="cpu", min_flops=0, dtypes=[dtype], **options):
                assert_same_bits(np.vecdot(x, y[:, 0]), want[:, 0])


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_embedding_flips_signs_and_nothing_else(left, conjugated):
    sizes = (1, 2), range(1, 9), (1, 3), (1, 4)
    for batch, row, column, columns in itertools.product(*sizes):
        whole = np.zeros((batch, 5, row, columns, column), dtype=complex)
        x = whole[:, :, 0, :, 0]
        x[...] = normals(row, x.shape)
        x[0, 1, 0], x[-1, 2, 0] = join(-0.0, np.nan), join(0.0, -0.0)
        found = complex_operand.embedded(x, left=left, conjugated=conjugated)
        y = x.conj() if conjugated else x
        want = np.concatenate([y.real, y.imag], axis=1)
        if left:
            want = np.concatenate([want, np.concatenate([-y.imag, y.real], 1)], 2)
        np.testing.assert_array_equal(found.view(np.uint64), want.view(np.uint64))


def test_batches_in_chunks(monkeypatch):
    a, b = normals(5, (7, 6, 5)), normals(6, (7, 5, 4))
    shared = normals(7, (5, 4))
    kinds = ("auto", 9, 1e-12, "exact")
    want = [
        (np_ozaki.matmul(a, b, precision=p), np_ozaki.matmul(a, shared, precision=p))
        for p in kinds
    ]
    monkeypatch.setattr(complex_products, "_CHUNK_BYTES", 3000)
    for (each, one), precision in zip(want, kinds, strict=True):
        assert_same_bits(np_ozaki.matmul(a, b, precision=precision), each)
        c, info = np_ozaki.matmul(a, shared, precision=precision, return_info=True)
        assert_same_bits(c, one)
        assert info.tiles > 1


def test_nothing_is_kept_of_chunks(monkeypatch):
    a, b = normals(30, (3, 40, 41)), normals(31, (41, 40))
    want = np_ozaki.matmul(a, b, precision=16)
    monkeypatch.setattr(complex_products, "_CHUNK_BYTES", 1)
    with np_ozaki.enabled(engine="cpu", precision=16):
        left, right = np_ozaki.OzArray(a), np_ozaki.OzArray(b)
        for _ in range(2):
            assert_same_bits(np.asarray(left @ right), want)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_tiles_do_not_matter(scaling, monkeypatch):
    a, b = normals(8, (20, 60)), normals(9, (60, 17))
    want = np_ozaki.matmul(a, b, precision=16, scaling=scaling)

    def small(batch, m, n, k, num_planes, **more):
        return Tiles(1, 4, 3, 16, num_planes, True)

    monkeypatch.setattr(cpu, "choose_tiles", small)
    c, info = np_ozaki.matmul(a, b, precision=16, scaling=scaling, return_info=True)
    assert info.tiles > 4
    assert_same_bits(c, want)


# ---- Certificates ----


def worst(a, b, c):
    """Return the largest |part of C - AB| over that part's sum of magnitudes."""
    errors = []
    sizes = reference.exact_fractions(*map(abs, embedded(a, b)))
    m = a.shape[0]
    for part, rows, size in zip((c.real, c.imag), exact(a, b), (0, m), strict=True):
        for i, j in itertools.product(range(m), range(b.shape[1])):
            rest = abs(Fraction(float(part[i, j])) - rows[i][j])
            rest -= abs(rows[i][j]) / 2**53 + Fraction(2) ** -1074
            if rest > 0:
                errors.append(rest / sizes[i + size][j])
    return max(errors, default=Fraction(0))


@given(complex_operands())
def test_auto_is_as_accurate_as_conventional_products(pair):
    a, b = (np.where(abs(x) < 1e140, x, 1.0 - 2.0j) for x in pair)
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert worst(a, b, c) <= Fraction(2 * a.shape[1], 2**53)
    assert info.num_moduli is None or 2 <= info.num_moduli <= 49


@given(complex_operands(), st.sampled_from([2.0**-10, 1e-9, 2.0**-52]))
def test_tolerances_are_kept(pair, tolerance):
    a, b = (np.where(abs(x) < 1e140, x, 1.0 - 2.0j) for x in pair)
    c = np_ozaki.matmul(a, b, precision=tolerance)
    assert worst(a, b, c) <= Fraction(tolerance)


def test_auto_begins_with_sixteen_moduli_and_adds_some():
    a, b = normals(10, (40, 60)), normals(11, (60, 50))
    assert np_ozaki.matmul(a, b, return_info=True)[1].num_moduli == 16
    a, b = normals(10, (40, 60), 3.0), normals(11, (60, 50), 3.0)
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert 16 < info.num_moduli <= 22
    assert info.fallback is None
    assert_same_bits(c, np_ozaki.matmul(a, b, precision=info.num_moduli))
    assert worst(a[:3], b[:, :3], c[:3, :3]) <= Fraction(120, 2**53)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scaling", ["norm", "accurate"])
def test_more_than_the_complex_table_holds(seed, scaling):
    # Each row needs another inner index to be large: no rebalancing helps.
    a = normals(seed, (6, 6)) * 2.0 ** np.where(np.eye(6), 0, -60)
    b = normals(seed + 9, (6, 6)) * 2.0 ** np.where(np.eye(6), -60, 0)
    c, info = np_ozaki.matmul(a, b, scaling=scaling, return_info=True)
    assert info.fallback is None
    assert 22 < info.num_moduli <= 49
    assert_same_bits(c, expected(a, b, info.num_moduli, scaling))
    assert worst(a, b, c) <= Fraction(12, 2**53)
    assert_same_bits(np_ozaki.matmul(b.T, a.T, scaling=scaling).T, c)
    bound = np_ozaki.matmul(a, b, scaling=scaling, return_info="bound")[1].bound
    for name, rows in zip(("real", "imag"), exact(a, b), strict=True):
        for i, j in np.ndindex(c.shape):
            error = abs(Fraction(float(getattr(c, name)[i, j])) - rows[i][j])
            assert error <= Fraction(float(getattr(bound, name)[i, j]))


def test_ordinary_double_doubles_are_the_engines():
    a, b = normals(60, (300, 310)), normals(61, (310, 8))
    a[0, 0] *= 2.0**-30
    (hi, lo), info = np_ozaki.matmul(a, b, output="dd", return_info=True)
    assert info.engine == "cpu"
    assert info.num_moduli > 22
    for name, rows in zip(("real", "imag"), exact(a[:1], b), strict=True):
        for j in range(8):
            rest = Fraction(float(getattr(hi, name)[0, j])) - rows[0][j]
            rest += Fraction(float(getattr(lo, name)[0, j]))
            assert abs(rest) <= 620 * Fraction(2) ** -100


def test_what_cannot_be_certified_falls_back():
    a, b = normals(12, (6, 60), 60.0), normals(13, (60, 5), 60.0)
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert info.engine == "native"
    assert info.fallback == "range too wide to certify"
    assert worst(a, b, c) <= Fraction(120, 2**53)
    d, info = np_ozaki.matmul(a, b, return_info=True, precision=2.0**-52)
    assert info.engine == "exact"
    left, right = embedded(a, b)
    want = np.array(reference.exact_product(left, right))
    assert_same_bits(d, join(want[:6], want[6:]))
    with np_ozaki.enabled(reproducible=True, engine="cpu"):
        assert_same_bits(np_ozaki.matmul(a, b), d)


def test_graded_inner_indices_are_rebalanced_for_both_parts_together():
    # Far more bits than moduli hold, but for the powers of two in between.
    d = 2.0 ** np.linspace(-60, 60, 40).round()
    a, b = normals(14, (8, 40)) * d, normals(15, (40, 9)) / d[:, np.newaxis]
    b.imag *= 2.0**-9
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert info.rebalanced
    assert info.fallback is None
    assert worst(a, b, c) <= Fraction(80, 2**53)
    assert_same_bits(np_ozaki.matmul(b.T, a.T).T, c)


@given(complex_operands(2, 3))
def test_exact_products_are_correctly_rounded(pair):
    a, b = (
        join(*(np.round(x.clip(-9, 9) * 2**20) / 2**20 for x in (z.real, z.imag)))
        for z in pair
    )
    c, info = np_ozaki.matmul(a, b, precision="exact", return_info=True)
    want = np.array(reference.exact_product(*embedded(a, b)))
    m = a.shape[0]
    assert_same_bits(c, join(want[:m], want[m:]))
    assert info.num_moduli <= 22


def test_an_exact_product_of_too_many_bits():
    a = join([[1.0, 2.0**-270]], [[0.0, 1.0]])
    with pytest.raises(np_ozaki.PrecisionError, match="49 moduli hold 342"):
        np_ozaki.matmul(a, a.T * (1 + 2.0**-50), precision="exact")


def test_short_entries_take_fewer_moduli():
    rng = np.random.default_rng(16)
    a = join(*rng.integers(-3, 4, (2, 150, 170)).astype(float))
    b = join(*rng.integers(-3, 4, (2, 170, 180)).astype(float))
    c, info = np_ozaki.matmul(a, b, return_info=True)
    assert info.num_moduli <= 3
    assert_same_bits(c, a @ b)


@pytest.mark.parametrize(("precision", "usual"), [("auto", 16), (1e-5, 7)])
def test_short_entries_lend_bits(precision, usual):
    rng = np.random.default_rng(16)
    a, b = join(*rng.integers(-3, 4, (2, 150, 170))), normals(17, (170, 180))
    c, info = np_ozaki.matmul(a, b, precision=precision, return_info=True)
    assert info.num_moduli < usual
    assert info.shift > 0
    mu, nu = complex_exponents(a[:2], b[:, :2], info.num_moduli)
    left, right = embedded(a[:2], b[:, :2])
    mu, nu = [x - info.shift for x in mu], [x + info.shift for x in nu]
    rows = reference.integers(reference.row_vectors(left), mu + mu)
    columns = reference.integers(reference.column_vectors(right), nu)
    for i, j in np.ndindex(2, 2):
        re, im = (
            reference.round_to_double(reference.dot(row, columns[j]), -mu[i] - nu[j])
            for row in (rows[i], rows[2 + i])
        )
        assert_same_bits(c[i, j], np.complex128(complex(re, im)))


# ---- Double-doubles, bounds, checks ----


@given(complex_operands(2, 3), st.sampled_from([7, 16, 22]))
def test_double_doubles_hold_twice_the_bits(pair, n):
    a, b = (np.where(abs(x) < 1e140, x, 1.0 - 2.0j) for x in pair)
    hi, lo = np_ozaki.matmul(a, b, precision=n, output="dd")
    assert hi.dtype == lo.dtype == np.complex128
    assert_same_bits(hi, np_ozaki.matmul(a, b, precision=n))
    mu, nu = complex_exponents(a, b, n)
    left, right = embedded(a, b)
    rows = reference.integers(reference.row_vectors(left), mu + mu)
    columns = reference.integers(reference.column_vectors(right), nu)
    m = a.shape[0]
    for i, j in np.ndindex(hi.shape):
        for part, row in (("real", rows[i]), ("imag", rows[m + i])):
            whole = Fraction(sum(x * y for x, y in zip(row, columns[j], strict=True)))
            whole *= Fraction(2) ** -(mu[i] + nu[j])
            rest = whole - Fraction(float(getattr(hi, part)[i, j]))
            assert float(getattr(lo, part)[i, j]) == rest.numerator / rest.denominator


def test_double_doubles_in_auto():
    a, b = normals(18, (5, 30)), normals(19, (30, 4))
    pair = np_ozaki.matmul(a, b, output="dd")
    for name, rows in zip(("real", "imag"), exact(a, b), strict=True):
        hi, lo = getattr(pair.hi, name), getattr(pair.lo, name)
        for i, j in np.ndindex(hi.shape):
            rest = Fraction(float(hi[i, j])) + Fraction(float(lo[i, j])) - rows[i][j]
            assert abs(rest) <= 60 * Fraction(2) ** -100


@given(complex_operands(), st.sampled_from([5, 16, "auto", 1e-8]))
def test_bounds_hold_for_each_part(pair, precision):
    a, b = (np.where(abs(x) < 1e140, x, 1.0 - 2.0j) for x in pair)
    c, info = np_ozaki.matmul(a, b, precision=precision, return_info="bound")
    before = np_ozaki.error_bound(a, b, precision=precision)
    after = np_ozaki.error_bound(a, b, c, precision=precision)
    for name, rows in zip(("real", "imag"), exact(a, b), strict=True):
        part = getattr(c, name)
        for i, j in np.ndindex(part.shape):
            error = abs(Fraction(float(part[i, j])) - rows[i][j])
            for bound in (info.bound, before, after):
                assert error <= Fraction(float(getattr(bound, name)[i, j]))


def test_bounds_of_other_products():
    a, b = normals(20, (5, 9)), normals(21, (9, 4))
    for more in (
        {"output": "dd"},
        {"precision": "exact"},
        {"scheme": "slices"},
        {"engine": "native"},
    ):
        bound = np_ozaki.error_bound(a, b, **more)
        assert bound.dtype == np.complex128
        assert bound.shape == (5, 4)
        assert (bound.real > 0).all()
        assert (bound.imag > 0).all()
    a[1, 2] = join(np.nan, 0.0)
    bound = np_ozaki.error_bound(a, b)
    assert np.isnan(bound[1]).all()
    assert np.isfinite(bound[2]).all()


@pytest.mark.parametrize("n", [2, 16, 22])
def test_checked_products(n):
    a, b = normals(22, (20, 30), 1.0), normals(23, (30, 17))
    c, info = np_ozaki.matmul(a, b, precision=n, check=True, return_info=True)
    assert info.checked
    assert_same_bits(c, np_ozaki.matmul(a, b, precision=n))


@pytest.mark.parametrize("chunk", [1 << 26, 1])
def test_a_failed_check_names_complex_rows(chunk, monkeypatch):
    monkeypatch.setattr(complex_products, "_CHUNK_BYTES", chunk)
    a, b = normals(24, (3, 6, 5)), normals(25, (3, 5, 4))

    class Spoiled(CpuEngine):
        seen = 0

        def residue_gemm(self, left, right, out):
            super().residue_gemm(left, right, out)
            # The imaginary part of row 2 of matrix 1 of three.
            matrix = 1 - self.seen
            if 0 <= matrix < out.shape[1]:
                out[1, matrix, 6 + 2, 3] += 1
            self.seen += out.shape[1]

    with pytest.raises(np_ozaki.CheckError) as error:
        complex_products.multiply_complex(
            Spoiled(1),
            a,
            b,
            np.empty((3, 6, 4), dtype=complex),
            np_ozaki.context.default_options().with_changes(precision=16, check=True),
        )
    assert error.value.matrix == 1
    assert error.value.rows == (2,)
    assert error.value.columns == (3,)


@pytest.mark.parametrize("accumulate", ["exact", "float64"])
def test_slices(accumulate):
    a, b = normals(26, (12, 30)), normals(27, (30, 11))
    c, info = np_ozaki.matmul(
        a, b, scheme="slices", accumulate=accumulate, return_info=True
    )
    assert info.num_slices == 8
    left, right = embedded(a, b)
    parts = np_ozaki.matmul(left, right, scheme="slices", accumulate=accumulate)
    assert_same_bits(c, join(parts[:12], parts[12:]))


@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("num_slices", [1, 3, 8])
def test_all_pairs_of_slices_mirror(num_slices, bits):
    a, b = normals(28, (9, 30), 1.0), normals(29, (30, 4), 1.0)
    options = {"scheme": "slices", "num_slices": num_slices, "bits_per_slice": bits}

    def product(x, y):
        return np_ozaki.matmul(x, y, pairs="all", **options)

    assert_hermitian(product, a)
    assert_transposes(product, a, b)
    full = np_ozaki.context.default_options().with_changes(pairs="all", **options)
    assert full.mirrors(is_complex=True)
    for change in ({"pairs": "triangular"}, {"accumulate": "float64"}):
        some = full.with_changes(**change)
        assert some.mirrors(is_complex=False)
        # Of one slice there is one pair.
        alone = num_slices == 1 and "pairs" in change
        assert some.mirrors(is_complex=True) == alone


def test_a_scheme_knows_its_family():
    scheme = Scheme(16, family="complex")
    assert scheme.limit == product_bound(16, "complex")
    assert scheme != Scheme(16)
