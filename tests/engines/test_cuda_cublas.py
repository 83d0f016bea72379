"""Calls of cuBLAS over a stand-in for CuPy and the library, as its manual has them."""

import ctypes
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cupy_modules import Cublas, stand_in

from np_ozaki import hooks
from np_ozaki.engines.cublas import CublasRefusal, Matrix, Settings

NAME = "np_ozaki.engines.cuda_cublas"
FIXED = Settings(True, 55, False, True)
DYNAMIC = Settings(False, 79, True, False)
BITS = "cublasSetFixedPointEmulationMantissaBitCountPointer"


def view(pointer, rows, columns, leading, stride=0, batch=1):
    last = (batch - 1) * stride + (columns - 1) * leading + rows
    flat = np.frombuffer((ctypes.c_double * last).from_address(pointer))
    strides = 8 * stride, 8, 8 * leading
    return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), strides)


class Handle:
    """What cuBLAS keeps of a handle."""

    def __init__(self):
        self.set, self.stream, self.workspace, self.bits = {}, None, None, 0


class Library:
    """Functions of libcublas that return a status."""

    def __init__(self, statuses=None, missing=()):
        self.statuses = statuses or {}
        self.handles = {}
        self.calls = []
        for name, function in (
            ("cublasSetEmulationStrategy", self._keep("strategy")),
            ("cublasSetFixedPointEmulationMantissaControl", self._keep("control")),
            ("cublasSetFixedPointEmulationMaxMantissaBitCount", self._keep("bits")),
            ("cublasSetEmulationSpecialValuesSupport", self._keep("special")),
            ("cublasSetStream_v2", self._set_stream),
            ("cublasSetWorkspace_v2", self._set_workspace),
            (BITS, self._set_pointer),
            ("cublasGemmEx_64", self._gemm),
            ("cublasGemmStridedBatchedEx_64", self._batched),
        ):
            if name not in missing:
                setattr(self, name, self._function(name, function))

    def _function(self, name, function):
        def call(handle, *arguments):
            assert len(call.argtypes) == 1 + len(arguments)
            assert call.restype is ctypes.c_int
            self.calls.append(name)
            status = self.statuses.get(name, 0)
            if not status:
                function(self.handles.setdefault(handle, Handle()), *arguments)
            return status

        return call

    def _keep(self, what):
        return lambda handle, value: handle.set.update({what: value})

    def _set_stream(self, handle, stream):
        handle.stream, handle.workspace = stream, None

    def _set_workspace(self, handle, pointer, nbytes):
        handle.workspace = pointer, nbytes

    def _set_pointer(self, handle, pointer):
        handle.bits = pointer

    def _gemm(self, handle, *arguments):
        *rest, kind, algorithm = arguments
        transposes, sizes, rest = rest[:2], rest[2:5], rest[5:]
        one, *a = rest[:4]
        b, zero, c = rest[4:7], rest[7], rest[8:]
        fields = [(*x, 0) for x in (a, b, c)]
        self._multiply(
            handle, transposes, sizes, (one, zero), fields, 1, kind, algorithm
        )

    def _batched(self, handle, *arguments):
        *rest, batch, kind, algorithm = arguments
        transposes, sizes, rest = rest[:2], rest[2:5], rest[5:]
        one, *a = rest[:5]
        b, zero, c = rest[5:9], rest[9], rest[10:]
        self._multiply(
            handle, transposes, sizes, (one, zero), (a, b, c), batch, kind, algorithm
        )

    def _multiply(self, handle, transposes, sizes, scales, fields, batch, kind, algo):
        assert handle.workspace is not None
        assert (kind, algo) == (79, -1)
        assert [ctypes.c_double.from_address(x).value for x in scales] == [1.0, 0.0]
        assert all(x[1] == 1 for x in fields)
        (m, n, k), (ta, tb) = sizes, transposes
        (pa, _, la, sa), (pb, _, lb, sb), (pc, _, lc, sc) = fields
        a = view(pa, *((k, m) if ta else (m, k)), la, sa, batch)
        b = view(pb, *((n, k) if tb else (k, n)), lb, sb, batch)
        a, b = a.swapaxes(1, 2) if ta else a, b.swapaxes(1, 2) if tb else b
        with hooks.unrouted():
            view(pc, m, n, lc, sc, batch)[...] = a @ b
        if handle.bits:
            ctypes.c_int32.from_address(handle.bits).value = 63


@pytest.fixture
def load(monkeypatch):
    """Return a function that loads the module over stand-ins."""

    def module_of(cublas, library):
        for name, module in stand_in(cublas).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        module = importlib.import_module(NAME)
        monkeypatch.setattr(module, "_library", lambda: library)
        return module

    yield module_of
    sys.modules.pop(NAME, None)


def rows_of(x):
    """Return the transpose of a stack of matrices in rows, as cuBLAS counts."""
    batch, rows, columns = x.shape
    return Matrix(x.ctypes.data, False, columns, rows * columns if batch > 1 else 0)


def product(module, settings=FIXED, batch=1, bits=0, workspace=(4096, 1 << 20)):
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, (batch, 5, 7)) * 1.0
    b = rng.integers(-9, 9, (batch, 7, 3)) * 1.0
    out = np.full((batch, 5, 3), np.nan)
    size = batch, 3, 5, 7
    where = rows_of(b), rows_of(a), rows_of(out)
    module.gemm(settings, size, *where, workspace, bits)
    assert (out == a @ b).all()


@pytest.mark.parametrize("batch", [1, 4])
def test_a_product_with_a_workspace_of_its_own(load, batch):
    cublas, library = Cublas(), Library()
    module = load(cublas, library)
    product(module.CublasLibrary(), batch=batch)
    (handle,) = library.handles.values()
    assert cublas.modes == {1: 8}
    assert handle.set == {"strategy": 2, "control": 1, "bits": 55, "special": 3}
    assert (handle.stream, handle.workspace) == (77, (4096, 1 << 20))
    # CuPy's own call would set the stream again, and so take the workspace away.
    assert not cublas.types


def test_transposed_operands(load):
    module = load(Cublas(), Library())
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    out = np.full((1, 2, 4), np.nan)
    x, y = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    left, right = Matrix(x.ctypes.data, True, 2, 0), Matrix(y.ctypes.data, True, 3, 0)
    size = 1, 4, 2, 3
    module.CublasLibrary().gemm(FIXED, size, right, left, rows_of(out), (256, 9), 0)
    assert (out == a @ b).all()


def test_handles_are_lent_to_one_at_a_time(load):
    cublas, library = Cublas(), Library()
    module = load(cublas, library)
    engine = module.CublasLibrary()
    for _ in range(3):
        product(engine)
    assert len(library.handles) == 1
    with engine._handle(FIXED) as first, engine._handle(FIXED) as second:
        assert first != second
    # Other settings are told to a handle that there is.
    product(engine, DYNAMIC)
    assert len(cublas.modes) == 2
    told = [handle.set for handle in library.handles.values()]
    assert {"strategy": 1, "control": 0, "bits": 79, "special": 0} in told
    product(engine)
    told = [handle.set for handle in library.handles.values()]
    assert told == 2 * [{"strategy": 2, "control": 1, "bits": 55, "special": 3}]


def test_a_handle_is_given_up_after_a_failure(load):
    cublas, library = Cublas(), Library()
    engine = load(cublas, library).CublasLibrary()
    with pytest.raises(KeyError), engine._handle(FIXED):
        raise KeyError
    assert not any(engine._idle.values())
    product(engine)
    assert len(cublas.modes) == 2


def test_bits_go_where_they_are_wanted_once(load):
    library = Library()
    module = load(Cublas(), library)
    told = np.full(1, -1, np.int32)
    engine = module.CublasLibrary()
    product(engine, DYNAMIC, bits=told.ctypes.data)
    assert told == 63
    (handle,) = library.handles.values()
    assert handle.bits == 0
    told[...] = -1
    product(engine, DYNAMIC)
    assert told == -1


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (
            Library({"cublasGemmEx_64": 15}),
            "cublasGemmEx_64 returns CUBLAS_STATUS_NOT_SUPPORTED",
        ),
        (Library({"cublasGemmEx_64": 99}), "cublasStatus_t 99"),
        (
            Library({"cublasSetWorkspace_v2": 7}),
            "cublasSetWorkspace_v2 returns CUBLAS_STATUS_INVALID_VALUE",
        ),
        (
            Library({"cublasSetEmulationStrategy": 7}),
            "no handle for the emulation: cublasSetEmulationStrategy=2: CUBLAS",
        ),
        (Library(missing=["cublasGemmEx_64"]), "cublasGemmEx_64 cannot be called"),
    ],
)
def test_refusals(load, library, reason):
    module = load(Cublas(), library)
    engine = module.CublasLibrary()
    with pytest.raises(CublasRefusal, match=reason):
        product(engine)
    # What a refused handle held is not lost, nor is it used by two.
    for handles in engine._idle.values():
        assert len(handles) == len(set(handles)) <= 1


def test_a_math_mode_that_is_refused(load):
    cublas = Cublas(refused_modes=(8,))
    module = load(cublas, Library())
    with pytest.raises(CublasRefusal, match="CUBLAS_STATUS_INVALID_VALUE"):
        product(module.CublasLibrary())
    assert cublas.modes == {1: "destroyed"}


def test_where_cublas_emulates(load):
    module = load(Cublas(), Library())
    assert module.unavailable() is None
    sys.modules["cupy"].cuda.Device = lambda: SimpleNamespace(compute_capability="75")
    assert module.unavailable() == (
        "the device has compute capability 7.5: cuBLAS emulates FP64 from 8.0 on"
    )
    cublas = Cublas()
    cublas.getVersion = lambda handle: 130002
    module = load(cublas, Library())
    assert module.unavailable() == (
        "cuBLAS 13.0.2 does not emulate FP64: 13.1.0 of CUDA 13.0 Update 2 does"
    )
    module = load(Cublas(), object())
    assert "cuBLAS 13.1.0 cannot be called: " in module.unavailable()
