"""check=True from the user's side: options, errors, one more try, counters."""

import pickle

import numpy as np
import pytest

import np_ozaki
from np_ozaki.config import read_config
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.testing import assert_same_bits


class Fault:
    """Changes one entry of the residue products of chosen calls."""

    def __init__(self, monkeypatch, calls=None, entry=(1, 2)):
        self.count = 0
        self.calls = calls
        self.matrix = 0
        right = CpuEngine.residue_gemm

        def residue_gemm(engine, left, planes, out):
            right(engine, left, planes, out)
            if calls is None or self.count in calls:
                out[(-1, self.matrix, *entry)] += 1.0
            self.count += 1

        monkeypatch.setattr(CpuEngine, "residue_gemm", residue_gemm)


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    return rng.standard_normal((20, 30)), rng.standard_normal((30, 10))


def checked(a, b, **options):
    return np_ozaki.matmul(a, b, engine="cpu", return_info=True, **options)


@pytest.mark.parametrize("precision", ["auto", "exact", 1e-9, 2, 15, 49])
def test_right_products_pass_with_the_same_bits(pair, precision):
    want = np_ozaki.matmul(*pair, engine="cpu", precision=precision)
    for check in (True, "recompute"):
        c, info = checked(*pair, precision=precision, check=check)
        assert_same_bits(c, want)
        assert (info.checked, info.recomputed) == (True, False)
    _, info = checked(*pair, precision=precision)
    assert not info.checked


def test_without_a_check_a_fault_goes_unseen(pair, monkeypatch):
    want, _ = checked(*pair)
    Fault(monkeypatch)
    c, _ = checked(*pair)
    assert c[1, 2] != want[1, 2]


def test_the_error_says_where(pair, monkeypatch):
    Fault(monkeypatch)
    with pytest.raises(np_ozaki.CheckError) as caught:
        checked(*pair, check=True)
    error = caught.value
    assert isinstance(error, (np_ozaki.OzakiError, ArithmeticError))
    assert (error.matrix, error.rows, error.columns) == (0, (1,), (2,))
    assert error.tile == (slice(0, 20), slice(0, 10))
    for part in ("matrix 0", "[0:20, 0:10]", "row 1", "column 2", "recompute"):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rows) == (str(error), (1,))


def test_a_fault_that_goes_away_is_recomputed(pair, monkeypatch):
    want, _ = checked(*pair)
    Fault(monkeypatch, calls={0})
    c, info = checked(*pair, check="recompute")
    assert_same_bits(c, want)
    assert info.recomputed
    assert np_ozaki.last_call().recomputed
    assert np_ozaki.stats().as_dict()["matmul"]["recomputed"] == 1
    assert "recomputed after a check: 1" in str(np_ozaki.stats())


def test_a_fault_that_comes_back_is_an_error(pair, monkeypatch):
    fault = Fault(monkeypatch)
    with pytest.raises(np_ozaki.CheckError):
        checked(*pair, check="recompute")
    assert fault.count == 2


def test_the_matrix_is_counted_in_the_whole_batch(pair, monkeypatch):
    rng = np.random.default_rng(1)
    wide = [np.exp(6 * rng.standard_normal(x.shape)) for x in pair]
    left, right = (
        np.stack([x, x, x, w, x, w]).reshape(2, 3, *x.shape)
        for x, w in zip(pair, wide, strict=True)
    )
    _, info = checked(left, right)
    assert info.num_moduli > 15
    # The last product is that of the two matrices that want more moduli.
    fault = Fault(monkeypatch, calls=())
    checked(left, right)
    last = fault.count - 1
    monkeypatch.undo()
    Fault(monkeypatch, calls={last}).matrix = 1
    with pytest.raises(np_ozaki.CheckError) as caught:
        checked(left, right, check=True)
    assert caught.value.matrix == 5


def test_rebalanced_products_are_checked(monkeypatch):
    rng = np.random.default_rng(2)
    d = np.ldexp(1.0, rng.integers(-80, 80, 40))
    a, b = rng.standard_normal((6, 40)) * d, rng.standard_normal((40, 5)) / d[:, None]
    batch = np.stack([rng.standard_normal((6, 40)), a])
    _, info = checked(batch, np.stack([rng.standard_normal((40, 5)), b]), check=True)
    assert info.rebalanced
    assert info.checked
    fault = Fault(monkeypatch, calls=())
    checked(batch, np.stack([b / 1.0, b]))
    last = fault.count - 1
    monkeypatch.undo()
    Fault(monkeypatch, calls={last})
    with pytest.raises(np_ozaki.CheckError) as caught:
        checked(np.stack([a, a]), b, check=True)
    assert caught.value.matrix == 0


def test_double_doubles_are_checked(pair, monkeypatch):
    (hi, lo), info = checked(*pair, output="dd", check=True)
    assert info.checked
    for half, want in zip((hi, lo), checked(*pair, output="dd")[0], strict=True):
        assert_same_bits(half, want)
    Fault(monkeypatch)
    with pytest.raises(np_ozaki.CheckError):
        checked(*pair, output="dd", check=True)


def test_scopes_check(pair, monkeypatch):
    a, b = pair
    with np_ozaki.enabled(engine="cpu", min_flops=0, check=True):
        a @ b
        assert np_ozaki.last_call().checked
        np_ozaki.matmul(a, b, check=False)
        assert not np_ozaki.last_call().checked
        assert (np_ozaki.OzArray(a) @ b).shape == (20, 10)
        assert np_ozaki.last_call().checked
    Fault(monkeypatch)
    with np_ozaki.enabled(engine="cpu", min_flops=0, check=True):
        with pytest.raises(np_ozaki.CheckError):
            a @ b
        with pytest.raises(np_ozaki.CheckError):
            np.einsum("ij,jk", a, b)


def test_what_goes_elsewhere_is_not_checked():
    a, b = [[1.0, 1e-300], [1e-300, 1.0]], [[1e-300], [1.0]]
    for reproducible in (False, True):
        with np_ozaki.enabled(engine="cpu", reproducible=reproducible):
            _, info = np_ozaki.matmul(a, b, check=True, return_info=True)
        assert info.fallback == "range too wide to certify"
        assert not info.checked


@pytest.mark.parametrize(
    "shape", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 4)), ((4,), (4,))]
)
def test_small_and_empty(shape):
    a, b = (np.ones(s) for s in shape)
    c, info = checked(a, b, check=True)
    assert_same_bits(c, np.matmul(a, b) + 0.0)
    assert info.checked


@pytest.mark.parametrize("value", [1, 0, "yes", 2.0, [True]])
def test_other_values_are_refused(pair, value):
    with pytest.raises(np_ozaki.OperandTypeError, match="check"):
        np_ozaki.matmul(*pair, check=value)


def test_contradicting_options(pair):
    for options in ({"scaling": "legacy"}, {"engine": "native"}):
        with pytest.raises(np_ozaki.OptionError, match="check"):
            np_ozaki.matmul(*pair, check=True, **options)
        np_ozaki.matmul(*pair, check=False, **options)


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("1", True), ("recompute", "recompute")]
)
def test_the_environment(text, value):
    assert read_config({"NP_OZAKI_CHECK": text}).options.check == value


def test_the_environment_names_the_variable():
    with pytest.raises(np_ozaki.OptionError, match=r"NP_OZAKI_CHECK.*recompute"):
        read_config({"NP_OZAKI_CHECK": "maybe"})


def test_mixed_batches_tell_how_many_were_left_out():
    hard, easy = [[1.0, 1e-300], [1e-300, 1.0]], [[1.0, 2.0], [3.0, 4.0]]
    a, b = np.array([hard, easy, hard]), np.array([[[1e-300], [1.0]]] * 3)
    _, info = checked(a, b, check=True)
    assert (info.engine, info.left_out, info.checked) == ("cpu", 2, False)
    assert info.fallback == "range too wide to certify"


@pytest.mark.parametrize("axes", [33, 62])
def test_as_many_axes_as_numpy_takes(axes):
    a = np.ones((1,) * axes + (2, 3))
    c, info = checked(a, np.ones((3, 2)), check=True)
    assert c.shape == (1,) * axes + (2, 2)
    assert info.checked
    assert np_ozaki.error_bound(a, np.ones((3, 2))).shape == c.shape
