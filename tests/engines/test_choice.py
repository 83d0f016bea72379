"""Which engine runs, and what is said where it cannot."""

import os
import subprocess
import sys
import textwrap
from typing import ClassVar

import numpy as np
import pytest

import np_ozaki
from np_ozaki import engines
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.gemm import min_flops, native_reason
from np_ozaki.tiling import CPU_MIN_FLOPS, CUDA_MIN_FLOPS

NOT_INSTALLED = "CuPy is not installed: pip install 'np_ozaki[cuda13]' or [cuda12]"
A, B = np.eye(3), np.arange(9.0).reshape(3, 3)


def forget():
    choice.cuda_unavailable.cache_clear()
    choice.cuda_engine.cache_clear()
    choice.cublas_unavailable.cache_clear()


@pytest.fixture
def without_cupy(monkeypatch):
    """Let CuPy be missing, whether or not it is installed."""
    for name in [x for x in sys.modules if x.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("cuda_device", "cuda_copies"):
        monkeypatch.delitem(sys.modules, f"np_ozaki.engines.{name}", raising=False)
        monkeypatch.delattr(engines, name, raising=False)
    forget()
    yield
    forget()


@pytest.fixture
def with_gpu(monkeypatch):
    """Let there be a GPU, as far as the choice is concerned."""
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: None)
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: None)
    monkeypatch.setattr(choice, "cuda_engine", object)


# ---- Without CuPy ---------------------------------------------------------------


@pytest.mark.usefixtures("without_cupy")
def test_matmul_on_an_engine_that_is_not_there():
    with pytest.raises(np_ozaki.EngineUnavailableError) as raised:
        np_ozaki.matmul(A, B, engine="cuda")
    assert str(raised.value) == (
        f"engine='cuda': {NOT_INSTALLED}; engine=\"cpu\" gives the same bits"
    )
    assert isinstance(raised.value, RuntimeError)
    assert np_ozaki.stats().as_dict() == {}


@pytest.mark.usefixtures("without_cupy")
def test_scope_of_an_engine_that_is_not_there_is_not_entered():
    scope = np_ozaki.enabled(engine="cuda")
    with pytest.raises(np_ozaki.EngineUnavailableError, match="CuPy is not installed"):
        scope.__enter__()
    with pytest.raises(np_ozaki.EngineUnavailableError):
        np_ozaki.enable(engine="cuda")
    assert np_ozaki.info().live_scopes == 0
    with np_ozaki.enabled(engine="cpu"):
        with pytest.raises(np_ozaki.EngineUnavailableError), scope:
            pass
        assert np_ozaki.info().live_scopes == 1


@pytest.mark.usefixtures("without_cupy")
def test_info_names_the_reason():
    states = np_ozaki.info().engines
    missing = f"unavailable: {NOT_INSTALLED}"
    assert states == {"cpu": "available", "cuda": missing, "cublas": missing}


@pytest.mark.usefixtures("without_cupy")
def test_auto_is_the_cpu_engine_and_says_so():
    with pytest.warns(np_ozaki.PerformanceWarning) as record, np_ozaki.enabled():
        pass
    assert str(record[0].message) == (
        f"no GPU engine here ({NOT_INSTALLED}): products run on the CPU engine, with "
        'the same bits but slower than native; engine="cpu" says that this is meant, '
        'strategy="performant" leaves them to NumPy'
    )
    _, call = np_ozaki.matmul(A, B, return_info=True)
    assert call.engine == "cpu"
    assert choice.resolve(Options()) == "cpu"
    assert min_flops(Options()) == CPU_MIN_FLOPS


@pytest.mark.usefixtures("without_cupy")
def test_performant_leaves_everything_to_numpy():
    performant = Options(strategy="performant")
    assert "CPU engine is slower" in native_reason(performant)
    _, call = np_ozaki.matmul(A, B, return_info=True)
    assert call.fallback is None


class OnGpu:
    """An array that says that it lies on a GPU."""

    __cuda_array_interface__: ClassVar = {
        "shape": (3, 3),
        "typestr": "<f8",
        "version": 3,
    }


class OfDlpack:
    """The same by DLPack; or not, by kind of device."""

    def __init__(self, kind):
        self.kind = kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __array__(self, dtype=None, copy=None):
        return np.array(B)


@pytest.mark.usefixtures("without_cupy")
@pytest.mark.parametrize("operand", [OnGpu(), OfDlpack(2), OfDlpack(13)])
def test_arrays_on_a_gpu_without_cupy(operand):
    for pair in ((operand, B), (B, operand)):
        with pytest.raises(np_ozaki.EngineUnavailableError) as raised:
            np_ozaki.matmul(*pair)
        assert "operand='array on a GPU': CuPy cannot be imported" in str(raised.value)
        assert "np_ozaki[cuda13]" in str(raised.value)


def test_arrays_elsewhere_are_not_taken_for_arrays_on_a_gpu():
    assert np_ozaki.matmul(A, OfDlpack(1)).tolist() == B.tolist()

    class Odd:
        @property
        def __cuda_array_interface__(self):
            raise AttributeError("only on a GPU")

        def __dlpack_device__(self):
            raise RuntimeError("not a device")

    assert not choice.is_device_array(Odd())
    for plain in (A, A[0, 0], [1.0], (1.0,), 1, 1.0, None, "x"):
        assert not choice.is_device_array(plain)


# ---- With a GPU -----------------------------------------------------------------


@pytest.mark.usefixtures("with_gpu")
def test_auto_is_the_gpu_where_there_is_one():
    assert choice.resolve(Options()) == "cuda"
    assert choice.resolve(Options(engine="cpu")) == "cpu"
    assert choice.resolve(Options(engine="native")) == "native"
    assert choice.resolve(Options(engine="cublas")) == "cublas"
    assert set(choice.engine_states().values()) == {"available"}
    assert min_flops(Options()) == CUDA_MIN_FLOPS
    assert min_flops(Options(engine="cpu")) == CPU_MIN_FLOPS
    assert min_flops(Options(reproducible=True)) == 0
    assert native_reason(Options(strategy="performant")) is None


@pytest.mark.usefixtures("with_gpu")
def test_cublas_that_does_not_emulate_means_auto(monkeypatch):
    assert min_flops(Options(engine="cublas")) == CUDA_MIN_FLOPS
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: "too old")
    assert choice.resolve(Options(engine="cublas")) == "cuda"
    assert choice.engine_states()["cublas"] == "unavailable: too old"
    assert choice.on_gpu(Options(engine="cublas"))


@pytest.mark.usefixtures("with_gpu")
def test_performant_leaves_small_products_to_numpy_on_a_gpu():
    with np_ozaki.enabled(strategy="performant", min_flops=0, local=True):
        _, call = np_ozaki.matmul(A, B, return_info=True)
    assert call.engine == "native"
    assert "too small" in call.fallback


# ---- CuPy that does not work ------------------------------------------------------

_RUNTIME = """
class CUDARuntimeError(RuntimeError):
    pass

def getDeviceCount():
    {count}

def getDevice():
    return 0
"""


def fake_cupy(
    folder, first_line="", count="return 1", capability="90", nvrtc="return 13, 0"
):
    """Write packages that look like CuPy from a distance."""
    cuda = folder / "cupy" / "cuda"
    libs = folder / "cupy_backends" / "cuda" / "libs"
    cuda.mkdir(parents=True)
    libs.mkdir(parents=True)
    (folder / "cupy" / "__init__.py").write_text(
        f"{first_line}\nfrom . import cuda\nclass ndarray: pass\n"
    )
    (cuda / "__init__.py").write_text(
        "from . import driver, runtime\n"
        f"class Device:\n    compute_capability = '{capability}'\n"
    )
    (cuda / "runtime.py").write_text(_RUNTIME.format(count=count))
    for part in (folder / "cupy_backends", libs.parent, libs):
        (part / "__init__.py").touch()
    (libs / "cublas.py").write_text("def getVersion(handle):\n    return 130000\n")
    (cuda / "driver.py").touch()
    (libs / "nvrtc.py").write_text(f"def getVersion():\n    {nvrtc}\n")


def run_with(folder, program):
    """Run a program that finds these packages first."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not result.returncode, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            {"first_line": "raise ImportError('libcudart.so.13 is missing')"},
            "CuPy cannot be imported: libcudart.so.13 is missing",
        ),
        (
            {"first_line": "raise ValueError('numpy.dtype size changed')"},
            "CuPy cannot be imported: numpy.dtype size changed",
        ),
        ({"count": "return 0"}, "there is no CUDA device"),
        (
            {"count": "raise CUDARuntimeError('no driver')"},
            "CUDA does not start: no driver",
        ),
        (
            {"capability": "70"},
            "the device has compute capability 7.0: INT8 matrix units come with 7.5",
        ),
        (
            {"nvrtc": "raise ImportError('no libnvrtc')"},
            "CuPy finds no NVRTC, which compiles kernels: no libnvrtc",
        ),
    ],
)
def test_reasons_of_a_cupy_that_does_not_work(tmp_path, fault, reason):
    fake_cupy(tmp_path, **fault)
    printed = run_with(
        tmp_path,
        """
        import numpy as np, np_ozaki
        from np_ozaki.engines import choice
        print(np_ozaki.info().engines["cuda"])
        assert np_ozaki.matmul(np.eye(2), np.eye(2)).tolist() == [[1, 0], [0, 1]]
        try:
            np_ozaki.matmul(np.eye(2), np.eye(2), engine="cuda")
        except np_ozaki.EngineUnavailableError as error:
            assert choice.cuda_unavailable() in str(error)
        else:
            raise SystemExit("no error")
        """,
    )
    assert printed == f"unavailable: {reason}"


def test_importing_and_the_cpu_engine_leave_cupy_alone(tmp_path):
    fake_cupy(tmp_path, first_line="raise SystemExit('imported')")
    run_with(
        tmp_path,
        """
        import numpy as np, np_ozaki
        np_ozaki.matmul(np.eye(2), np.eye(2), engine="cpu")
        with np_ozaki.enabled(engine="cpu", min_flops=0):
            np.eye(2) @ np.eye(2)
        """,
    )


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

_FORK = """
import os, numpy as np, np_ozaki
from np_ozaki.engines import choice
{before}
child = os.fork()
if not child:
    try:
        print(np_ozaki.info().engines["cuda"])
        print(choice.resolve(choice.Options()))
        try:
            np_ozaki.matmul(np.eye(2), np.eye(2), engine="cuda")
        except np_ozaki.EngineUnavailableError as error:
            print("refused")
        else:
            print("not refused")
    except BaseException as error:
        print(type(error), error)
    os._exit(__import__("sys").stdout.flush() or 0)
os.waitpid(child, 0)
"""


@needs_fork
@pytest.mark.parametrize(
    "before", ["choice.cuda_engine()", "assert choice.cuda_unavailable() is None"]
)
def test_a_child_of_a_process_that_saw_the_gpu_has_none(tmp_path, before):
    # To look for a GPU starts the driver, and that does not survive a fork.
    fake_cupy(tmp_path)
    lines = run_with(tmp_path, _FORK.format(before=before)).splitlines()
    assert lines == [
        "unavailable: CUDA does not survive a fork: start processes by spawn",
        "cpu",
        "refused",
    ]


@needs_fork
def test_a_child_of_a_process_that_never_looked_may(tmp_path):
    fake_cupy(tmp_path)
    program = _FORK.format(before="pass")
    lines = run_with(
        tmp_path, program.replace("np_ozaki.matmul(", "(lambda *x, **y: 0)(")
    )
    assert lines.splitlines()[:2] == ["available", "cuda"]
