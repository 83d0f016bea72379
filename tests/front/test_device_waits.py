"""What a product of arrays on a device waits for: each look at the device is counted.

On the device of `twin_device`; there a stage that copies to the host is a wait.
"""

import types

import numpy as np
import pytest
import twin_device
from twin_device import DeviceArray

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.engines import choice
from np_ozaki.testing import assert_same_bits

N = 256  # from here on "auto" looks at the entries first
RNG = np.random.default_rng(3)
A, B = RNG.standard_normal((2, N, N))
LOOKS = ("line_exponents", "line_units", "missing_bits", "samples", "to_host")


@pytest.fixture
def waits(monkeypatch):
    """Return a list that every look at the device goes to."""
    memory, seen = twin_device.install(monkeypatch), []
    engine = choice.cuda_engine()

    def counted(owner, name):
        function = getattr(owner, name)

        def method(*args, **kwargs):
            seen.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, method)

    for name in LOOKS:
        counted(engine, name)
    counted(choice, "to_host")
    counted(memory, "download")
    counted(memory, "synchronize")
    return seen


def on_device(*arrays):
    return [DeviceArray(x.copy()) for x in arrays]


@pytest.mark.parametrize("given", [False, True])
def test_a_number_of_moduli_waits_for_nothing(waits, given):
    a, b, out = on_device(A, B, np.zeros((N, N)))
    result = np_ozaki.matmul(a, b, out if given else None, precision=14)
    assert waits == []
    assert (result is out) == given
    assert_same_bits(result.memory, np_ozaki.matmul(A, B, precision=14, engine="cpu"))
    assert np_ozaki.stats().routes["matmul"].calls == {"cuda": 1, "cpu": 1}


def test_arrays_that_live_there_wait_for_nothing(waits):
    a, b = (OzArray(x).to_device() for x in (A, B))
    with np_ozaki.enabled(precision=14):
        result = a @ b
        result = np.matmul(a, b, out=result)
        np_ozaki.matmul(a, b, result)
    assert waits == []
    assert result.device == "cuda:0"


def test_auto_looks_at_entries_once_and_not_at_those_it_knows(waits):
    a, b = on_device(A, B)
    np_ozaki.matmul(a, b)
    assert waits == ["samples"]
    x, y = (OzArray(z).to_device() for z in (A, B))
    waits.clear()
    for _ in range(4):
        x @ y
    # Kept from the second time on.
    assert waits == ["samples"] * 2


def test_auto_waits_for_units_where_entries_may_be_short(waits):
    a, b = on_device(np.rint(9 * A), B)
    np_ozaki.matmul(a, b)
    assert waits == ["samples", "line_units"]
    a, b = on_device(A[:24, :24], B[:24, :24])
    waits.clear()
    np_ozaki.matmul(a, b)
    assert waits == []


# ---- Arrays of CuPy itself, which are asked less ----


class OfCupy(DeviceArray):
    """An array that tells by its class where it lies."""

    def __init__(self, memory, dtype=None):
        if dtype is not None:
            memory = np.empty(memory, dtype)
        super().__init__(memory)

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("made without need")

    def __dlpack_device__(self):
        raise AssertionError("made without need")


@pytest.fixture
def cupy(waits, monkeypatch):
    """Return a module with the functions of CuPy that are called by name."""
    module = types.SimpleNamespace(ndarray=OfCupy, asked=[])

    def may_share_memory(x, y):
        module.asked.append("may_share_memory")
        return np.may_share_memory(x.memory, y.memory)

    module.may_share_memory = may_share_memory
    monkeypatch.setattr(choice, "_cupy", module)
    return module


def test_cupy_arrays_are_known_by_their_class(cupy, waits):
    a, b = OfCupy(A), OfCupy(B)
    result = np_ozaki.matmul(a, b, precision=14)
    assert type(result) is OfCupy
    want = np_ozaki.matmul(A, B, precision=14, engine="cpu")
    assert_same_bits(result.memory, want)
    assert cupy.asked == []
    out = OfCupy(np.zeros((N, N)))
    assert np_ozaki.matmul(a, b, out, precision=14) is out
    assert cupy.asked == ["may_share_memory"] * 2
    assert_same_bits(out.memory, want)
    copy = OfCupy(A.copy())
    assert np_ozaki.matmul(copy, b, copy, precision=14) is copy
    assert_same_bits(copy.memory, want)
    assert waits == []


def test_empty_like_makes_arrays_of_the_kind(cupy):
    for shape in ((), (3,), (2, 3), (0, 4)):
        for like in (np.ones((3, 2)), OfCupy(np.ones((3, 2))), DeviceArray(A)):
            made = choice.empty_like(like, shape)
            assert type(made) is type(like)
            assert made.shape == shape
            assert made.dtype == np.float64
            assert made.flags.c_contiguous
