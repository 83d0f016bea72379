"""What the strategies promise to draw, and that they draw all of it."""

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import np_ozaki
from np_ozaki.testing import (
    GRADINGS,
    LAYOUTS,
    REGIMES,
    SPECIAL_VALUES,
    assert_same_bits,
    graded_operands,
    layouts,
    matrices,
    operands,
    random_matrices,
    with_special_values,
)

SHRINK = settings(
    max_examples=100,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
# Stops at the first example; how many it takes depends on what else is imported.
SEARCH = settings(SHRINK, phases=[Phase.generate], max_examples=2000)
IN_VAIN = settings(SEARCH, max_examples=150)


def found(strategy, condition, how=SEARCH):
    """Return an example that satisfies a condition."""
    return find(strategy, condition, settings=how)


def first(strategy):
    """Return the simplest example, which Hypothesis tries first."""
    return found(strategy, lambda _: True)


@pytest.mark.parametrize("regime", REGIMES)
@given(data=st.data())
def test_matrices_of_every_regime_are_finite(regime, data):
    a = data.draw(matrices(3, 2, regime))
    assert a.shape == (3, 2)
    assert np.isfinite(a).all()


@given(st.data())
def test_entries_of_float32_are_drawn_in_its_range(data):
    regime = data.draw(st.sampled_from(REGIMES))
    for strategy in (
        matrices(3, 2, regime, dtype=np.float32),
        random_matrices((3, 2), scale=None, dtype="f4"),
        graded_operands(3, 2, 3, bits=100, dtype=np.float32),
        layouts(operands(dtype=np.float32)),
    ):
        drawn = data.draw(strategy)
        for x in drawn if isinstance(drawn, tuple) else (drawn,):
            assert x.dtype.newbyteorder("=") == np.float32
            assert np.isfinite(x).all()
    limits = {"subnormal": (0.0, 2.0**-121), "near overflow": (0.0, 2.0**128)}
    x = data.draw(matrices(2, 2, regime, dtype=np.float32))
    low, high = limits.get(regime, (0.0, np.inf))
    assert (low <= np.abs(x)).all()
    assert (np.abs(x.astype(float)) < high).all()


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
def test_parts_of_complex_entries_are_drawn_like_real_ones(dtype):
    part = dtype(0).real.dtype
    near = found(
        matrices(1, 1, dtype=dtype),
        lambda x: 0 < abs(x.real[0, 0]) < np.finfo(part).tiny and x.imag[0, 0] > 1e30,
    )
    assert near.dtype == dtype
    x = first(random_matrices((2, 3), phi=1.0, scale=4, dtype=dtype))
    assert_same_bits(
        x.real, first(random_matrices((2, 3), phi=1.0, scale=4, dtype=part))
    )
    assert not np.isin(x.imag, x.real).any()
    of_parts = [
        first(graded_operands(7, 7, 7, grading="rows", bits=90, dtype=d))[0]
        for d in (dtype, part)
    ]
    assert_same_bits(of_parts[0].real, of_parts[1])
    assert np.ptp(np.frexp(of_parts[0].imag)[1]) > 150
    any_scale = random_matrices((2, 2), scale=None, dtype=dtype)
    found(any_scale, lambda x: np.abs(x.imag).max() > np.finfo(part).max / 4)
    with pytest.raises(NoSuchExample):
        found(any_scale, lambda x: not np.isfinite(x).all(), IN_VAIN)
    special = with_special_values(matrices(1, 1, "ordinary", dtype=dtype), (np.inf,))
    found(special, lambda x: np.isinf(x.imag[0, 0]) and np.isfinite(x.real[0, 0]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_complex_entries(layout):
    strategy = layouts(matrices(2, 3, "ordinary", dtype=np.complex128), layout)
    x = found(strategy, lambda x: x.imag[0, 0] > 0 > x.real[0, 0])
    assert x.dtype.newbyteorder("=") == np.complex128
    assert np.isfinite(x).all()
    if layout == "gaps":
        outside = np.asarray(x.base)[0]
        assert np.isnan(outside.real).all()
        assert np.isnan(outside.imag).all()
    assert_same_bits(
        np_ozaki.matmul(x, x.mT, precision=16),
        np_ozaki.matmul(x.copy(), x.copy().mT, precision=16),
    )


def test_single_precision_reaches_its_own_limits():
    near = matrices(1, 1, "near overflow", dtype=np.float32)
    assert found(near, lambda x: abs(x[0, 0]) > 2.0**127)
    special = with_special_values(matrices(1, 1, dtype=np.float32))
    assert found(special, lambda x: x[0, 0] == 2.0**-149)
    scaled = random_matrices((1,), scale=None, dtype="f")
    assert found(scaled, lambda x: 0 < abs(x[0]) < 2.0**-130)


@given(operands(3, 4, max_batch_dims=2))
def test_operands_can_be_multiplied(pair):
    a, b = pair
    with np.errstate(over="ignore"):
        c = np_ozaki.matmul(a, b, engine="native")
    assert c.shape[-2:] == (a.shape[-2], b.shape[-1])
    assert max(a.ndim, b.ndim) <= 4
    assert max(a.shape[-2], b.shape[-1]) <= 3
    assert a.shape[-1] <= 4


def test_operands_have_batches_only_if_asked():
    assert found(operands(max_batch_dims=2), lambda x: x[0].ndim == 3 != x[1].ndim)
    with pytest.raises(NoSuchExample):
        found(operands(), lambda x: x[0].ndim > 2 or x[1].ndim > 2, IN_VAIN)


@given(st.data())
def test_random_matrices_are_the_papers(data):
    a = data.draw(random_matrices((30, 40), phi=0.0))
    assert (np.abs(a) <= 0.5).all()
    assert a.std() == pytest.approx(12**-0.5, rel=0.1)
    b = data.draw(random_matrices((30, 40), phi=2.0, scale=-7))
    assert np.log(np.abs(b)).std() == pytest.approx(5**0.5, rel=0.2)


def test_random_matrices_at_every_scale():
    shape = (4, 5)
    assert_same_bits(
        first(random_matrices(shape, phi=0.0, scale=10)),
        np.ldexp(first(random_matrices(shape, phi=0.0)), 10),
    )
    any_scale = random_matrices(shape, scale=None)
    assert found(any_scale, lambda x: 0 < np.abs(x).max() < 2.0**-1022).shape == shape
    found(any_scale, lambda x: np.abs(x).max() > 2.0**1022)
    with pytest.raises(NoSuchExample):
        found(any_scale, lambda x: not np.isfinite(x).all(), IN_VAIN)
    assert np.isfinite(first(random_matrices(shape, phi=8.0, scale=1024))).all()
    assert first(random_matrices((2, 3, 0))).shape == (2, 3, 0)


def test_random_matrices_shrink_to_the_first_seed():
    by_hand = np.random.default_rng(0).random((2, 2)) - 0.5
    a = found(random_matrices((2, 2)), lambda x: x.max() < 0.5, SHRINK)
    assert_same_bits(a, by_hand)


def test_a_failure_tells_the_seed():
    @SHRINK
    @given(random_matrices((2, 2), phi=1.0), graded_operands(2, 2, 2, bits=3))
    def fails(a, pair):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        fails()
    notes = "\n".join(error.value.__notes__)
    assert "random_matrices: seed 0, phi=1.0, scale=0" in notes
    assert "graded_operands: seed 0, grading='rows', bits=3, in order" in notes


@pytest.mark.parametrize("grading", GRADINGS)
def test_graded_operands(grading):
    a, b = first(graded_operands(7, 7, 7, grading=grading, bits=900))
    plain = first(graded_operands(7, 7, 7, grading=grading, bits=0))
    d = np.arange(900, -901, -300)
    want = {
        "rows": (np.ldexp(plain[0], d[:, np.newaxis]), plain[1]),
        "columns": (plain[0], np.ldexp(plain[1], d)),
        "inner": (np.ldexp(plain[0], d), np.ldexp(plain[1], -d[:, np.newaxis])),
    }[grading]
    assert_same_bits(a, want[0])
    assert_same_bits(b, want[1])
    shuffled = graded_operands(7, 7, 7, grading=grading, bits=900)
    found(shuffled, lambda pair: np.isfinite(pair[0]).all() and (pair[0] != a).any())


@pytest.mark.parametrize("value", SPECIAL_VALUES)
def test_every_special_value_is_drawn(value):
    def holds(x):
        return (x.view(np.int64) == np.float64(value).view(np.int64)).any()

    a = found(with_special_values(matrices(2, 2, "edge constants")), holds, SHRINK)
    # No other entry is changed.
    assert np.count_nonzero(a != 1.0) == 1


def test_special_values_of_ones_own_in_each_of_two_operands():
    strategy = with_special_values(operands(), (np.inf,))
    found(strategy, lambda x: np.isinf(x[0]).any() and not np.isinf(x[1]).any())
    found(strategy, lambda x: np.isinf(x[1]).any() and not np.isinf(x[0]).any())
    with pytest.raises(NoSuchExample):
        found(strategy, lambda x: np.isnan(x[0]).any(), IN_VAIN)
    assert first(with_special_values(matrices(0, 2))).size == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 0), (1, 1), (5,)])
def test_layouts_keep_the_entries(layout, shape):
    x = first(layouts(random_matrices(shape), layout))
    plain = first(random_matrices(shape))
    if layout.startswith("repeated"):
        axis = -2 if layout == "repeated row" and len(shape) > 1 else -1
        index = np.zeros(shape[axis], dtype=int)
        plain = np.take(plain, index, axis)
        assert x.strides[axis] == 0 or shape[axis] < 2
    assert_same_bits(x.astype(np.float64), plain)


def test_layouts_are_what_they_are_called():
    laid_out = {
        layout: first(layouts(random_matrices((2, 3, 4)), layout)) for layout in LAYOUTS
    }
    strides = {layout: x.strides for layout, x in laid_out.items()}
    assert strides["C"] == (96, 32, 8)
    assert strides["Fortran"] == (8, 16, 48)
    assert strides["transposed"] == (96, 8, 24)
    assert strides["gaps"] == (7 * 9 * 16, 9 * 16, 16)
    assert strides["reversed"] == (-96, -32, -8)
    assert not laid_out["unaligned"].flags.aligned
    assert not laid_out["byte-swapped"].dtype.isnative
    assert np.isnan(laid_out["gaps"].base).any()


def test_layouts_of_pairs_differ():
    a, b = found(
        layouts(operands()),
        lambda x: x[0].flags.c_contiguous and x[1].strides[0] < 0,
    )
    assert a.shape[1] == b.shape[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: matrices(-1, 2), np_ozaki.OptionError, "rows=-1"),
        (lambda: matrices(1, 2.5), np_ozaki.OperandTypeError, "columns=2.5"),
        (lambda: matrices(1, 2, "huge"), np_ozaki.OptionError, "regime='huge'"),
        (lambda: operands(0), np_ozaki.OptionError, "max_side=0"),
        (lambda: operands(max_k=0), np_ozaki.OptionError, "max_k=0"),
        (
            lambda: operands(max_batch_dims=-1),
            np_ozaki.OptionError,
            "max_batch_dims=-1",
        ),
        (lambda: random_matrices((2, -1)), np_ozaki.OptionError, "shape=-1"),
        (lambda: random_matrices((2,), phi=-1), np_ozaki.OptionError, "phi=-1"),
        (lambda: random_matrices((2,), phi=np.nan), np_ozaki.OptionError, "phi=nan"),
        (lambda: random_matrices((2,), phi="x"), np_ozaki.OperandTypeError, "phi='x'"),
        (lambda: random_matrices((2,), scale=5000), np_ozaki.OptionError, "scale=5000"),
        (lambda: graded_operands(1, 1, -1), np_ozaki.OptionError, "n=-1"),
        (lambda: graded_operands(1, 1, 1, bits=961), np_ozaki.OptionError, "bits=961"),
        (
            lambda: graded_operands(1, 1, 1, bits=101, dtype="f"),
            np_ozaki.OptionError,
            "bits=101",
        ),
        (
            lambda: matrices(1, 1, dtype="O"),
            np_ozaki.OperandTypeError,
            "dtype='O': entries are float64, float32, complex128 or complex64",
        ),
        (lambda: operands(dtype=None), np_ozaki.OperandTypeError, "dtype=None"),
        (
            lambda: graded_operands(1, 1, 1, grading="all"),
            np_ozaki.OptionError,
            "grading='all': must be one of 'rows', 'columns', 'inner'",
        ),
        (
            lambda: with_special_values(matrices(1, 1), ()),
            np_ozaki.OptionError,
            "values=()",
        ),
        (
            lambda: with_special_values(np.eye(2)),
            np_ozaki.OperandTypeError,
            "must be a Hypothesis strategy",
        ),
        (lambda: layouts(3), np_ozaki.OperandTypeError, "strategy=3"),
        (lambda: layouts(operands(), "K"), np_ozaki.OptionError, "layout='K'"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_without_hypothesis_assertions_work_and_strategies_say_what_is_missing():
    program = """
import sys

sys.modules["hypothesis"] = None
import numpy as np
import np_ozaki
from np_ozaki import testing

testing.assert_symmetric(np_ozaki.matmul, np.eye(2))
testing.assert_error_bound(np.eye(2), np.eye(2), np.eye(2))
for call in (
    lambda: testing.matrices(1, 1),
    lambda: testing.operands(),
    lambda: testing.random_matrices((2, 2)),
    lambda: testing.graded_operands(1, 1, 1),
    lambda: testing.with_special_values(None),
    lambda: testing.layouts(None),
):
    try:
        call()
    except ImportError as error:
        assert "pip install hypothesis" in str(error)
    else:
        raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
