"""Complex products of the CUDA engine: the CPU engine's bits, without tiles."""

import numpy as np
import pytest
from complex_pairs import join, normals, special_operands
from devices import POISON, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st
from np_ozaki._kernels.render import is_wide, limit_words

from np_ozaki import complex_products, context
from np_ozaki.engines import complex_operand
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics.complex_reference import complex_exponents
from np_ozaki.numerics.moduli import product_bound
from np_ozaki.testing import assert_same_bits

CPU = CpuEngine(1)

few = settings(max_examples=max(12, settings.default.max_examples // 5))

# Narrow and wide integers, one word and many, each rule.
SCHEMES = (
    (Scheme(16, "norm", 0, "complex"), "conventional"),
    (Scheme(2, "norm", 0, "complex"), None),
    (Scheme(17, "accurate", 0, "complex"), None),
    (Scheme(15, "legacy", 0, "complex"), None),
    (Scheme(22, "norm", 0, "complex"), "conventional"),
    (Scheme(23, "accurate", 0, "complex"), "conventional"),
)

# Each takes a compiler; the others are for the whole suite.
FEW_SCHEMES = [
    pytest.param(*scheme, marks=() if i in {0, 2} else pytest.mark.slow)
    for i, scheme in enumerate(SCHEMES)
]


def embedded(a, b):
    both = ((a, True), (b, False))
    return tuple(complex_operand.embedded(x, left=left) for x, left in both)


def check(place, a, b, scheme, target, layout=("C", "C", "C"), *, host=False):
    """Assert that embedded operands have the CPU engine's bits and missing bits."""
    want = np.full((max(len(a), len(b)), a.shape[1], b.shape[2]), POISON)
    outcome = CPU.matmul(a, b, want, scheme, certify=target)
    own = np.array if host else place.own
    left, right = (
        laid_out(own, x, name) for x, name in zip((a, b), layout, strict=False)
    )
    for engine in place.engines():
        out = laid_out(own, np.full(want.shape, POISON), layout[2])
        found = engine.matmul(left, right, out, scheme, certify=target)
        assert_same_bits(out if host else place.host(out), want)
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
def test_products(place, scheme, target, layout):
    a, b = embedded(normals(1, (2, 9, 21), 1.0), normals(2, (2, 21, 12), 1.0))
    check(place, a, b, scheme, target, layout)
    check(place, a[:1], b, scheme, target, layout, host=True)


@pytest.mark.parametrize("layout", [("C", "C", "C"), ("C", "C", "F")])
def test_both_parts_of_a_row_have_one_exponent(place, layout):
    # Of some rows one part meets far less than the other.
    a, b = normals(9, (1, 8, 20)), normals(10, (1, 20, 6))
    a.imag[:, ::2] *= 2.0**-20
    b.imag *= 2.0**-20
    scheme = Scheme(6, "accurate", 0, "complex")
    check(place, *embedded(a, b), scheme, "conventional", layout)


@few
@given(special_operands(), st.sampled_from(SCHEMES))
def test_special_values(place, pair, kind):
    a, b = embedded(*(x[np.newaxis] for x in pair))
    check(place, a, b, *kind)


@pytest.mark.parametrize("v", [1.0, 1.0 - 2.0**-53, 255.0])
@pytest.mark.parametrize(("scheme", "target"), FEW_SCHEMES)
def test_constants_at_the_crt_bound(place, v, scheme, target):
    a, b = np.full((1, 2, 64), join(v, v)), np.full((1, 64, 2), join(v, v))
    b[..., 1] = join(-v, v)
    check(place, *embedded(a, b), scheme, target)


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", [("C", "C", "C"), ("C", "C", "F")])
def test_every_integer_wraps_alike(place, n, layout):
    """Legacy products of few moduli meet both ends of the balanced interval."""
    limit = product_bound(n, "complex")
    steps = np.arange(-6.0, 7.0)
    ends = np.concatenate([limit + steps, -limit + steps, 3 * limit + steps])
    a = join(ends[:, np.newaxis], ends[::-1, np.newaxis])[np.newaxis]
    b = join([[1.0, 2.0, 0.0]], [[0.0, 1.0, -1.0]])[np.newaxis]
    scheme = Scheme(n, "legacy", 0, "complex")
    # Rows that lose no bit: exponents of "legacy" fall with the scale of B.
    for power in (0, 6, 12, 20):
        check(place, *embedded(a, b * 2.0**power), scheme, None, layout)


@pytest.mark.parametrize(
    "shift", [-30, 5, *(pytest.param(x, marks=pytest.mark.slow) for x in (-5, 30))]
)
def test_lent_bits(place, shift):
    a, b = embedded(normals(3, (1, 5, 9)), normals(4, (1, 9, 6)))
    check(place, a, b, Scheme(16, "norm", shift, "complex"), "conventional")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"precision": 1e-12},
        {"precision": "exact"},
        {"precision": 16, "check": True},
        {"precision": 20, "scaling": "accurate"},
    ],
)
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_complex_products_of_the_host(place, more, spread):
    a, b = normals(5, (2, 6, 9), spread), normals(6, (9, 7), spread)[np.newaxis]
    if more.get("precision") == "exact":
        a, b = (join(np.round(x.real), np.round(x.imag)) for x in (a, b))
    options = context.default_options().with_changes(**more)
    results = []
    for engine in (CPU, place.engine):
        out = np.empty((2, 6, 7), dtype=complex)
        served = complex_products.multiply_complex(engine, a, b, out, options)
        results.append((out, served.ways))
    assert_same_bits(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]


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
