"""Other libraries change how a thread rounds: products stay what they are."""

import ctypes
import ctypes.util
import platform
import shutil
import subprocess
import threading

import numpy as np
import pytest
from scipy.linalg import blas

import np_ozaki
from np_ozaki import hooks
from np_ozaki.engines import choice, parallel
from np_ozaki.hooks.extension import extension
from np_ozaki.testing import assert_same_bits

pytestmark = pytest.mark.skipif(extension is None, reason="there is no extension")

UPWARD, DOWNWARD, TO_ZERO = 0x4000, 0x2000, 0x6000
FLUSHED, ZERO_OPERANDS = 0x8000, 0x0040
MODES = {
    "upward": UPWARD,
    "downward": DOWNWARD,
    "to zero": TO_ZERO,
    "results flushed": FLUSHED,
    "operands flushed": ZERO_OPERANDS,
    "all of it": UPWARD | FLUSHED | ZERO_OPERANDS,
}
SOURCE = """
#include <xmmintrin.h>
unsigned get(void) { return _mm_getcsr(); }
void set(unsigned word) { _mm_setcsr(word); }
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Return the library that reads and writes a thread's control word."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if platform.machine() != "x86_64" or compiler is None:
        pytest.skip("needs a C compiler for x86-64")
    folder = tmp_path_factory.mktemp("control")
    (folder / "word.c").write_text(SOURCE)
    library = folder / "word.so"
    command = [compiler, "-shared", "-fPIC", "-o", library, folder / "word.c"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def under(control, mode, call):
    """Call something in another mode; return what it returns, and the mode after."""
    usual = control.get()
    control.set(usual | mode)
    try:
        result = call()
        after = control.get()
    finally:
        control.set(usual)
    return result, after & 0xFFC0 == (usual | mode) & 0xFFC0


RNG = np.random.default_rng(1)
ORDINARY = RNG.standard_normal((150, 170)), RNG.standard_normal((170, 130))
DATA = {
    "ordinary": ORDINARY,
    "subnormal": (1e-310 * ORDINARY[0], 1e300 * ORDINARY[1]),
    "subnormal results": (1e-160 * ORDINARY[0], 1e-155 * ORDINARY[1]),
    "wide": (np.exp(40 * ORDINARY[0][:20]), np.exp(4 * ORDINARY[1])),
    "complex": (ORDINARY[0] + 1j * ORDINARY[0][::-1], ORDINARY[1] + 0j),
    "float32": tuple(x.astype(np.float32) for x in ORDINARY),
    "subnormal float32": (
        (1e-40 * ORDINARY[0]).astype(np.float32),
        (1e30 * ORDINARY[1]).astype(np.float32),
    ),
}

PRODUCTS = {
    "auto": lambda a, b: np_ozaki.matmul(a, b),
    "15": lambda a, b: np_ozaki.matmul(a, b, precision=15),
    "exact": lambda a, b: np_ozaki.matmul(a, b, precision="exact"),
    "a tolerance": lambda a, b: np_ozaki.matmul(a, b, precision=1e-6),
    "accurate": lambda a, b: np_ozaki.matmul(a, b, precision=12, scaling="accurate"),
    "slices": lambda a, b: np_ozaki.matmul(a, b, scheme="slices", accumulate="float64"),
    "checked": lambda a, b: np_ozaki.matmul(a, b, precision=15, check=True),
    "dd": lambda a, b: np.stack(np_ozaki.matmul(a, b, output="dd")),
    "bound before": lambda a, b: np_ozaki.error_bound(a, b),
    "bound after": lambda a, b: np_ozaki.matmul(a, b, return_info="bound")[1].bound,
    "OzArray": lambda a, b: np.asarray(np_ozaki.OzArray(a) @ np_ozaki.OzArray(b)),
}


def outcome(product, a, b):
    try:
        return product(a, b)
    except np_ozaki.OzakiError as error:
        return repr(error)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_do_not_see_it(control, name, data):
    want = outcome(PRODUCTS[name], *DATA[data])
    for mode in MODES.values():
        found, restored = under(
            control, mode, lambda: outcome(PRODUCTS[name], *DATA[data])
        )
        assert restored
        if isinstance(want, str):
            assert found == want
        else:
            assert_same_bits(found, want)


@pytest.mark.parametrize("mode", MODES)
def test_routes_do_not_see_it(control, mode):
    a, b = ORDINARY
    c = RNG.standard_normal((150, 130))
    calls = [
        lambda: a @ b,
        lambda: np.dot(a, b),
        lambda: np.einsum("ij,jk", a, b),
        lambda: blas.dgemm(0.3, a, b, beta=0.7, c=c),
        lambda: blas.dsyr2k(0.3, a, a[::-1]),
        lambda: blas.dtrmm(0.3, a[:150, :150], c),
    ]
    with np_ozaki.enabled(engine="cpu", min_flops=0):
        for call in calls:
            want = call()
            found, restored = under(control, MODES[mode], call)
            assert restored
            assert_same_bits(found, want)


def test_threads_of_the_engine_do_not_see_it(control, monkeypatch):
    monkeypatch.setattr(choice.cpu_engine(), "threads", 3)
    a, b = RNG.standard_normal((2, 600, 600))
    want = np_ozaki.matmul(a, b)
    # A thread inherits the mode of the one that starts it.
    monkeypatch.setattr(parallel, "_pool", None)
    found = []

    def multiply():
        call = lambda: np_ozaki.matmul(a, b)  # noqa: E731
        found.append(under(control, MODES["all of it"], call))

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    ((c, restored),) = found
    assert restored
    assert_same_bits(c, want)


def test_what_is_left_to_numpy_does(control):
    a, b = (np.rint(100 * x) + 0.1 for x in ORDINARY)
    native, _ = under(control, UPWARD, lambda: a @ b)
    with np_ozaki.enabled(engine="native"):
        found, restored = under(control, UPWARD, lambda: a @ b)
    assert restored
    assert (found == native).all()
    assert (found != a @ b).any()


def test_arithmetic_nests(control):
    usual = control.get() & 0xFFC0
    control.set(control.get() | TO_ZERO)
    try:
        with hooks.arithmetic() as target, hooks.arithmetic():
            inside = control.get() & 0xFFC0
        after = control.get() & 0xFFC0
    finally:
        control.set(control.get() & ~TO_ZERO)
    assert target is None
    assert (inside, after) == (usual, usual | TO_ZERO)
    with pytest.raises(RuntimeError, match="without having been entered"):
        hooks.arithmetic().__exit__(None, None, None)
    with pytest.raises(KeyError), hooks.arithmetic():
        raise KeyError
