"""`matmul` goes straight to the kernels where it can, and nobody sees a difference."""

import threading
import types

import numpy as np
import pytest
from complex_pairs import join
from devices import entries, without_memory_once

import np_ozaki
from np_ozaki.engines import choice
from np_ozaki.engines.cuda import CudaEngine
from np_ozaki.testing import assert_same_bits


class OnDevice(np.ndarray):
    """An array of the simulated device."""


class Front:
    """The engine behind `np_ozaki.matmul`, and how often it was asked.

    Attributes
    ----------
    asked : int
        Products that went the long way.
    """

    def __init__(self, place, monkeypatch):
        if not any(x.device.tile_clusters() for x in place.engines()):
            pytest.skip("this GPU makes no residue tiles")
        self.engine = CudaEngine(place.hopper.device)
        self.host = place.host
        self.own = place.own
        self.asked = 0
        if place.name == "simulated":
            self.own = lambda x: place.own(x).view(OnDevice)
            own = self.own
            stand_ins = {
                "cuda_unavailable": lambda: None,
                "as_device_array": lambda x, *, copy=True: x,
                "empty_like": lambda x, shape: own(np.full(shape, 7.25, x.dtype)),
                "_cupy": types.SimpleNamespace(
                    ndarray=OnDevice, may_share_memory=np.may_share_memory
                ),
            }
            for name, value in stand_ins.items():
                monkeypatch.setattr(choice, name, value)
        monkeypatch.setattr(choice, "cuda_engine", lambda: self.engine)
        multiply = self.engine.matmul

        def counted(*args, **kwargs):
            self.asked += 1
            return multiply(*args, **kwargs)

        monkeypatch.setattr(self.engine, "matmul", counted)

    def check(self, a, b, out=None, *, short=True, **options):
        """Assert that a product has its bits, and went the way it should."""
        options = {"precision": 15, **options}
        want, info = np_ozaki.matmul(
            self.host(a).view(np.ndarray),
            self.host(b).view(np.ndarray),
            return_info=True,
            **{**options, "engine": "cpu"},
        )
        asked = self.asked
        before = np_ozaki.stats().calls("cuda")
        result, ours = np_ozaki.matmul(a, b, out, return_info=True, **options)
        assert np_ozaki.stats().calls("cuda") == before + 1
        assert np_ozaki.last_call() is ours
        assert (out is None) or result is out
        assert type(result) is type(a)
        assert_same_bits(self.host(result), want)
        assert (self.asked == asked) == short
        assert ours.engine == "cuda"
        for name in ("route", "batch", "m", "n", "k", "num_moduli", "scaling"):
            assert getattr(ours, name) == getattr(info, name)
        return result


@pytest.fixture
def front(place, monkeypatch):
    return Front(place, monkeypatch)


def operands(front, seed, a=(5, 9), b=(9, 7)):
    rng = np.random.default_rng(seed)
    return [front.own(entries(rng, shape, "ordinary")) for shape in (a, b)]


def empty(front, *shape):
    return front.own(np.full(shape, 7.25))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((5, 9), (9, 7), (5, 7)),
        ((9,), (9, 7), (7,)),
        ((3, 5, 9), (9, 7), (3, 5, 7)),
        ((2, 2, 5, 9), (2, 2, 9, 7), (2, 2, 5, 7)),
    ],
)
def test_from_the_second_replay_on(front, given, a, b, out):
    kept = []
    for seed in range(5):
        x, y = operands(front, seed, a, b)
        target = empty(front, *out) if given else None
        kept.append(front.check(x, y, target, short=seed > 0))
    again = [front.host(x).copy() for x in kept]
    for x, same in zip(kept, again, strict=True):
        assert_same_bits(front.host(x), same)


def test_complex_operands(front):
    # Of the shapes of real ones, which have shortcuts of their own.
    for seed in range(3):
        rng = np.random.default_rng(seed)
        real = [entries(rng, shape, "ordinary") for shape in ((5, 9), (9, 7))]
        a, b = (front.own(join(x, x[::-1])) for x in real)
        front.check(a, b, short=seed > 0, precision=16)
        front.check(*map(front.own, real), short=seed > 0)


def test_the_same_arrays_with_other_entries(front):
    a, b = operands(front, 1)
    out = empty(front, 5, 7)
    front.check(a, b, out, short=False)
    for _ in range(3):
        a += 0.5
        b *= 3.0
        front.check(a, b, out)


def test_views_have_shortcuts_of_their_own(front):
    a, b = operands(front, 1, (9, 5), (18, 14))
    out = empty(front, 7, 5)
    front.check(a.T, b[::2, ::2], out.T, short=False)
    front.check(a.T, b[1::2, ::2], out.T)
    front.check(a.T, b[::-2, ::2], out.T, short=False)
    front.check(a.T, b[:9, :7], out.T, short=False)
    front.check(a.T, b[::2, ::2], short=False)
    front.check(a.T, b[::2, ::2], out.T)


def test_a_result_that_overlaps_an_operand(front):
    for seed in range(3):
        a, b = operands(front, seed, (6, 6), (6, 6))
        front.check(a, b, empty(front, 6, 6), short=seed > 0)
    front.check(a, b, a, short=False)
    front.check(a, b, b, short=False)
    both = empty(front, 12, 6)
    a, b = operands(front, 9, (6, 6), (6, 6))
    both[:6] = a
    front.check(both[:6], b, both[6:])
    front.check(both[6:], b, both[:6])
    front.check(both[:6], b, both[4:10], short=False)


def test_operands_that_are_one_array(front):
    for seed in range(3):
        a, b = operands(front, seed, (6, 6), (6, 6))
        front.check(a, b, short=seed > 0)
        front.check(a, a, short=seed > 0)
        front.check(a, a.T, short=seed > 0)
        front.check(a, b.T, short=seed > 0)


def test_operands_that_begin_between_two_pairs(front):
    a, b = operands(front, 1, (5, 10), (8, 7))
    front.check(a[:, :8], b, short=False)
    front.check(a[:, :8], b)
    for _ in range(2):
        front.check(a[:, 1:9], b, short=False)


def test_options_decide(front):
    a, b = operands(front, 1)
    for _ in range(2):
        front.check(a, b, short=False, check=True)
    front.check(a, b, short=False)
    front.check(a, b)
    front.check(a, b, short=False, precision=14)
    front.check(a, b, precision=14)
    front.check(a, b, short=False, workspace_bytes=1 << 26)
    with np_ozaki.enabled(precision=13):
        for short in (False, True):
            front.check(a, b, short=short, precision=None)
    front.check(a, b)
    for engine in ("cpu", "native"):
        info = np_ozaki.matmul(a, b, precision=15, engine=engine, return_info=True)[1]
        assert info.engine == engine
        assert np_ozaki.last_call() is info


@pytest.mark.parametrize("precision", ["auto", "exact", 2.0**-40])
def test_what_data_decide_goes_the_long_way(front, precision):
    a, b = operands(front, 1)
    a[...] = 1.0
    for _ in range(3):
        front.check(a, b, short=False, precision=precision)


def test_a_bound_goes_the_long_way(front):
    a, b = operands(front, 1)
    for short in (False, True):
        asked = front.asked
        info = np_ozaki.matmul(a, b, precision=15, return_info="bound")[1]
        assert info.bound.shape == (5, 7)
        assert front.asked == asked + 1
        front.check(a, b, short=short)
    assert np_ozaki.last_call().bound is None


def test_errors_are_those_of_the_long_way(front):
    a, b = operands(front, 1)
    for short in (False, True):
        front.check(a, b, short=short)
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.matmul(a, a, precision=15)
    with pytest.raises(np_ozaki.ShapeError):
        np_ozaki.matmul(a, b, empty(front, 7, 5), precision=15)
    with pytest.raises(np_ozaki.OptionError):
        np_ozaki.matmul(a, b, precision=15, output="float32")
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.matmul(a, b, precision=True)
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.matmul(a, b, precision=15, return_info="all")


def test_other_dtypes_are_not_taken_for_float64(front):
    a, b = operands(front, 1)
    for short in (False, True):
        front.check(a, b, short=short)
    x = front.own(np.ones((5, 9), np.int64))
    front.check(x, b, short=False)
    rough = front.own(np.zeros((5, 7), np.float32))
    np_ozaki.matmul(a, b, rough, precision=15)
    assert abs(front.host(rough) - front.host(a) @ front.host(b)).max() < 1e-5


def test_who_looks_at_stages_sees_them(front, monkeypatch):
    a, b = operands(front, 1)
    for short in (False, True):
        front.check(a, b, short=short)
    with monkeypatch.context() as patch:
        patch.setattr(front.engine.device, "is_timed", lambda: True)
        front.check(a, b, short=False)
    front.check(a, b)


def test_a_shortcut_that_finds_no_memory(front, monkeypatch):
    a, b = operands(front, 1)
    for short in (False, True):
        front.check(a, b, short=short)
    failed = without_memory_once(monkeypatch, front.engine.device)
    front.check(a, b, short=False)
    assert failed
    front.check(a, b)


def test_other_errors_are_not_hidden(front, monkeypatch):
    a, b = operands(front, 1)
    front.check(a, b, short=False)
    monkeypatch.setattr(front.engine.device, "empty", lambda *_: 1 / 0, raising=False)
    calls = np_ozaki.stats().calls("cuda")
    with pytest.raises(ZeroDivisionError):
        np_ozaki.matmul(a, b, empty(front, 5, 7), precision=15)
    assert np_ozaki.stats().calls("cuda") == calls


def test_only_so_many_are_kept(front, monkeypatch):
    monkeypatch.setattr("np_ozaki.engines.cuda_shortcuts._MOST_KEPT", 3)
    for k in (2, 3, 4, 5, 6):
        front.check(*operands(front, k, (5, k), (k, 7)), short=False)
    assert len(front.engine.shortcuts._kept) == 3
    front.check(*operands(front, 1, (5, 6), (6, 7)))
    front.check(*operands(front, 1, (5, 2), (2, 7)), short=False)


def test_threads_share_a_shortcut(front):
    front.check(*operands(front, 0), short=False)
    errors = []

    def work(seed):
        try:
            for i in range(5):
                a, b = operands(front, 100 * seed + i)
                out = np_ozaki.matmul(a, b, precision=15)
                x, y = (front.host(z).view(np.ndarray) for z in (a, b))
                want = np_ozaki.matmul(x, y, precision=15, engine="cpu")
                assert_same_bits(front.host(out), want)
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert front.asked == 1
