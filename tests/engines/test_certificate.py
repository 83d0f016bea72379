"""precision="auto": every entry at least as accurate as a conventional product."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import precision
from np_ozaki.engines import cpu_certificate
from np_ozaki.numerics import reference
from np_ozaki.testing import assert_same_bits, operands

U = Fraction(1, 2**53)
HALF_SUBNORMAL = Fraction(1, 2**1075)


def auto(a, b, **options):
    with np.errstate(over="ignore"):
        return np_ozaki.matmul(a, b, return_info=True, **options)


def lognormal(seed, shape, phi):
    rng = np.random.default_rng(seed)
    return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))


@given(operands(max_side=4, max_k=10), st.sampled_from(["norm", "accurate"]))
def test_every_entry_keeps_to_the_bound_of_a_conventional_product(pair, scaling):
    a, b = pair
    c, info = auto(a, b, scaling=scaling)
    if info.fallback is not None:
        return
    exact = reference.exact_fractions(a, b)
    absolute = reference.exact_fractions(np.abs(a), np.abs(b))
    k = a.shape[1]
    for (i, j), value in np.ndenumerate(c):
        if not np.isfinite(value):
            assert abs(exact[i][j]) > 2**1023
            continue
        error = abs(Fraction(value) - exact[i][j])
        assert error <= (k + 1) * U * absolute[i][j] + HALF_SUBNORMAL, (i, j)


@given(operands(max_side=4, max_k=6))
def test_reproducible_never_goes_native(pair):
    a, b = pair
    with (
        np.errstate(all="ignore"),
        np_ozaki.enabled(engine="cpu", reproducible=True, local=True),
    ):
        c, info = np_ozaki.matmul(a, b, return_info=True)
    if info.fallback is not None:
        exact = np.array(reference.exact_product(a, b)).reshape(c.shape)
        assert_same_bits(c, exact)


@pytest.mark.parametrize(
    ("k", "phi"), [(4, 0.0), (4, 0.5), (64, 0.5), (64, 1.0), (1024, 0.0), (1024, 1.0)]
)
def test_ordinary_data_take_fifteen_moduli(k, phi):
    a, b = lognormal(1, (20, k), phi), lognormal(2, (k, 20), phi)
    c, info = auto(a, b)
    assert (info.num_moduli, info.fallback) == (15, None)
    assert_same_bits(c, np_ozaki.matmul(a, b, precision=15))


def test_wide_data_take_more_moduli():
    a, b = lognormal(3, (256, 128), 4.0), lognormal(4, (128, 256), 4.0)
    c, info = auto(a, b)
    assert 15 < info.num_moduli < 25
    assert (info.rebalanced, info.fallback) == (False, None)
    assert_same_bits(c, np_ozaki.matmul(a, b, precision=info.num_moduli))


# Each row needs another inner index to be large: no D serves both.
HOPELESS = np.array([[1.0, 1e-300], [1e-300, 1.0]]), np.array([[1e-300], [1.0]])


def test_graded_products_that_cancel_in_the_inner_index():
    d = np.ldexp(1.0, np.linspace(-20, 20, 40).astype(int))
    rng = np.random.default_rng(5)
    a, b = rng.random((9, 40)) * d, rng.random((40, 9)) / d[:, None]
    c, info = auto(a, b)
    assert info.fallback is None
    exact = np.array(reference.exact_product(a, b))
    assert (np.abs(c - exact) <= 40 * 2.0**-53 * exact).all()


def test_hopeless_ranges_go_native_and_say_so():
    a, b = HOPELESS
    c, info = auto(a, b)
    assert (info.engine, info.fallback) == ("native", precision.TOO_WIDE)
    assert_same_bits(c, a @ b)
    assert np_ozaki.stats().as_dict() == {
        "matmul": {
            "calls": {"native": 1},
            "flops": {"native": 8},
            "fallbacks": {precision.TOO_WIDE: 1},
            "recomputed": 0,
        }
    }


def test_parts_of_a_batch_are_counted_where_they_went():
    a, b = np.array([HOPELESS[0], np.ones((2, 2)), 2 * np.ones((2, 2))]), HOPELESS[1]
    _, info = auto(a, b)
    assert (info.engine, info.batch, info.fallback) == ("cpu", 3, precision.TOO_WIDE)
    assert np_ozaki.stats().as_dict()["matmul"]["calls"] == {"native": 1, "cpu": 1}
    assert np_ozaki.stats().as_dict()["matmul"]["flops"] == {"native": 8, "cpu": 16}


@pytest.mark.parametrize("e", [1e-5, 1e-6, 1e-9, 1e-12])
def test_entries_far_below_their_lines_take_more_moduli(e):
    # The only term of an entry may be far below the largest of its row and column.
    a, b = np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([[e, 1.0], [1.0, 0.1]])
    c, info = auto(a, b)
    assert info.fallback is None
    assert info.num_moduli > 15
    exact = np.array(reference.exact_product(a, b))
    assert (np.abs(c - exact) <= 3 * 2.0**-53 * np.abs(exact)).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.eye(6), np.arange(36.0).reshape(6, 6) - 17),
        (np.ldexp(np.eye(6), 40), np.ldexp(np.eye(6), -60)),
        (np.diag(np.ldexp(1.0, np.arange(-50, 46, 16))), np.eye(6)),
        (np.array([[1.0, 0.0], [0.0, 1e-200]]), np.array([[1e-200, 0.0], [0.0, 1.0]])),
        (np.zeros((3, 4)), np.ones((4, 2))),
    ],
)
def test_exact_products_are_certified(a, b):
    c, info = auto(a, b)
    assert (info.num_moduli, info.fallback) == (15, None)
    assert_same_bits(c, np.array(reference.exact_product(a, b)))


def test_matrices_of_a_batch_decide_by_themselves():
    phis = (0.0, 4.0, 1.0, 8.0)
    a = np.stack([lognormal(i, (5, 30), phi) for i, phi in enumerate(phis)])
    b = np.stack([lognormal(9 + i, (30, 4), phi) for i, phi in enumerate(phis)])
    a[2, 1, 1], b[2] = 1e-300, 1e300
    b[2, 1] = 1e-300
    batch, _ = auto(a, b)
    for i in range(4):
        assert_same_bits(batch[i], auto(a[i], b[i])[0])
    one, _ = auto(a, b[1])
    for i in range(4):
        assert_same_bits(one[i], auto(a[i], b[1])[0])


@given(operands(max_side=4, max_k=8), st.integers(-200, 200), st.randoms())
def test_decisions_do_not_depend_on_scale_order_or_transposition(pair, s, random):
    a, b = pair
    for x in pair:
        x = np.abs(x[x != 0])
        if x.size and (x.min() < 2.0**-300 or x.max() > 2.0**300):
            return
    c, info = auto(a, b)
    if info.fallback is not None:
        return
    order = list(range(a.shape[1]))
    random.shuffle(order)
    assert_same_bits(auto(np.ldexp(a, s), b)[0], np.ldexp(c, s))
    assert_same_bits(auto(a[:, order], b[order])[0], c)
    assert_same_bits(auto(b.T, a.T)[0].T, c)


def test_legacy_and_fixed_precision_are_not_certified():
    a, b = lognormal(3, (30, 128), 4.0), lognormal(4, (128, 30), 4.0)
    assert auto(a, b, scaling="legacy")[1].num_moduli == 15
    assert auto(a, b, precision=15)[1].num_moduli == 15


def test_subnormal_and_tiny_products():
    a = np.ldexp(lognormal(6, (6, 20), 1.0), -1060)
    b = np.ldexp(lognormal(7, (20, 5), 1.0), 30)
    c, info = auto(a, b)
    exact = np.array(reference.exact_product(a, b))
    assert info.fallback is None
    np.testing.assert_allclose(c, exact, rtol=1e-10, atol=5e-324)


@pytest.mark.parametrize("workspace_bytes", [None, 4 << 20])
def test_a_matrix_is_certified_alone_as_in_a_batch(monkeypatch, workspace_bytes):
    # Many entries that only exponents can tell of: few enough in one matrix, not in
    # all of a batch.
    monkeypatch.setattr(cpu_certificate, "_MOST_EXPONENTS", 60 * 60 * 60)
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, (60, 60)) * 2.0**-40
    a[:, 0], a[-1] = 1.5, 1.0
    b = rng.uniform(1, 2, (60, 60))
    b[0] *= 2.0**-60
    b[:, -1] = 1.0
    options = {"precision": 1e-3, "engine": "cpu", "return_info": True}
    alone, info = np_ozaki.matmul(a, b, **options)
    assert info.engine == "cpu"
    batch, of_batch = np_ozaki.matmul(
        np.stack([a] * 5), np.stack([b] * 5), workspace_bytes=workspace_bytes, **options
    )
    assert of_batch.engine == "cpu"
    for c in batch:
        assert_same_bits(c, alone)
