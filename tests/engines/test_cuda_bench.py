"""The GPU's place of `bench` over a stand-in for CuPy: what is asked of cuBLAS."""

import importlib
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from cupy_modules import Cublas, Event, stand_in

from np_ozaki.engines import choice

NAME = "np_ozaki.engines.cuda_bench"
SHARED = "np_ozaki.engines.cuda_cublas"


class Timeline:
    def __enter__(self):
        return {"residues": 1.5}

    def __exit__(self, *args):
        pass


@pytest.fixture
def load(monkeypatch):
    """Return a function that opens the place over a stand-in for cuBLAS."""
    device = SimpleNamespace(free=lambda: None, timeline=Timeline)
    monkeypatch.setattr(choice, "cuda_engine", lambda: SimpleNamespace(device=device))

    def open_place(cublas, library, dtype="float64"):
        for name, module in stand_in(cublas).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        monkeypatch.delitem(sys.modules, SHARED, raising=False)
        monkeypatch.setattr(importlib.import_module(SHARED), "_library", library)
        return importlib.import_module(NAME).CudaPlace(dtype)

    yield open_place
    for name in (NAME, SHARED):
        sys.modules.pop(name, None)


class Library:
    """The functions of libcublas that CuPy does not wrap."""

    def __init__(self, status=0):
        self.calls = []
        for name in (
            "cublasSetEmulationStrategy",
            "cublasSetFixedPointEmulationMantissaControl",
            "cublasSetFixedPointEmulationMaxMantissaBitCount",
        ):
            setattr(self, name, self._recorder(name, status))

    def _recorder(self, name, status):
        def call(handle, value):
            self.calls.append((handle, name, value))
            return status

        return call


def test_every_way_multiplies(load):
    cublas, library = Cublas(), Library()
    place = load(cublas, lambda: library)
    assert place.ways == (
        "cuBLAS",
        "cuBLAS pedantic",
        "cuBLAS emulated",
        "cuBLAS emulated 55",
    )
    assert (place.native, place.missing) == ("cuBLAS", {})
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (5, 7)) * 1.0, rng.integers(-9, 9, (7, 3)) * 1.0
    x, y = place.put(a), place.put(b)
    for way in place.ways:
        out = place.empty((5, 3))
        out.fill(np.nan)
        place.multiply(way, x, y, out)
        assert (np.asarray(out) == a @ b).all()
    assert cublas.types == [(0, 70), (2, 71), (8, 79), (8, 79)]
    assert library.calls == [
        (3, "cublasSetEmulationStrategy", 2),
        (4, "cublasSetEmulationStrategy", 2),
        (4, "cublasSetFixedPointEmulationMantissaControl", 1),
        (4, "cublasSetFixedPointEmulationMaxMantissaBitCount", 55),
    ]
    assert (place.rows(x, [4, 0]) == a[[4, 0]]).all()
    assert place.same_bits(x, place.put(a))
    assert not place.same_bits(place.put(0.0 * a), place.put(-0.0 * a))
    place.close()
    assert set(cublas.modes.values()) == {"destroyed"}


@pytest.mark.parametrize(
    ("dtype", "types"),
    [
        ("complex128", [(0, 70), (2, 71)]),
        ("float32", [(0, 68), (2, 69)]),
        ("complex64", [(0, 68), (2, 69)]),
    ],
)
def test_other_dtypes_are_not_emulated(load, dtype, types):
    cublas = Cublas()
    place = load(cublas, Library, dtype)
    assert place.ways == ("cuBLAS", "cuBLAS pedantic")
    a = np.arange(6.0).reshape(2, 3).astype(dtype)
    b = (np.arange(6.0) - 2).reshape(3, 2).astype(dtype)
    if a.dtype.kind == "c":
        a += 1j
    x, y = place.put(a), place.put(b)
    for way in place.ways:
        out = place.empty((2, 2))
        assert out.dtype == dtype
        place.multiply(way, x, y, out)
        assert (np.asarray(out) == a @ b).all()
    assert cublas.types == types
    assert not place.same_bits(x, place.put(-a))


def test_clock_stages_and_facts(load):
    place = load(Cublas(), Library)
    count = []
    each = place.seconds(lambda: (count.append(0), time.sleep(0.002)), 3)
    assert len(count) == 3
    assert each >= 0.002
    assert place.stages_ms(lambda: None) == {"residues": 1.5}
    assert place.free_bytes() == 1000
    facts = place.facts()
    assert facts.pop("environment") is not None
    assert facts == {
        "gpu": "Imaginary 9000",
        "compute_capability": "90",
        "multiprocessors": 132,
        "memory_bytes": 2000,
        "pci_bus_id": "0000:01:00.0",
        "cuda_runtime": "13.0",
        "cuda_of_driver": "13.1",
        "cublas": "13.1.0",
        "cupy": "14.2.0",
    }


def test_laps_follow_the_load_without_a_pause(load):
    place = load(Cublas(), Library)
    queue, marks = [], []

    class Watched(Event):
        def __init__(self):
            marks.append(self)

        def record(self):
            super().record()
            queue.append(self)

        def synchronize(self):
            queued.append(sum(x == "call" for x in queue[queue.index(self) :]))
            del queue[: queue.index(self)]

    queued = []
    sys.modules["cupy.cuda"].Event = Watched
    seconds = place.laps(
        lambda: (queue.append("call"), time.sleep(1e-3)), 3, 4, load=0.02
    )
    assert len(seconds) == 4
    assert min(seconds) >= 1e-3
    assert len(marks) > 1 + 4  # load was more than a lap
    # Whenever the host waits a lap is queued, except at the end.
    assert queued == [3] * (len(marks) - 1) + [0]
    quick = place.laps(lambda: None, 1, 2, load=0.0)
    assert len(quick) == 2


def test_single_calls_on_the_clock_of_the_host(load):
    place = load(Cublas(), Library)
    done = []
    stream = SimpleNamespace(synchronize=lambda: done.append("synchronize"))
    sys.modules["cupy.cuda"].get_current_stream = lambda: stream
    host, wall = place.call_us(lambda: done.append("call"))
    assert 0 < host <= wall
    timed = done[done.index("synchronize") + 1 :]
    assert timed == ["call", "synchronize"] * 200
    assert done.count("call") > 200  # and a warm-up


def no_library():
    raise OSError("libcublas.so is not among the files of this process")


@pytest.mark.parametrize(
    ("cublas", "library", "reason"),
    [
        (Cublas(refused_modes=(8,)), Library, "CUBLAS_STATUS_INVALID_VALUE"),
        (Cublas(), no_library, "=2: cannot be called (libcublas.so is not among"),
        (Cublas(), object, "has no attribute 'cublasSetEmulationStrategy'"),
        (Cublas(), lambda: Library(7), "=2: CUBLAS_STATUS_INVALID_VALUE"),
    ],
)
def test_a_library_without_emulation(load, cublas, library, reason):
    place = load(cublas, library)
    assert place.ways == ("cuBLAS", "cuBLAS pedantic")
    assert place.missing.keys() == {"cuBLAS emulated", "cuBLAS emulated 55"}
    for text in place.missing.values():
        assert text.startswith("cuBLAS 13.1.0: ")
        assert reason in text
