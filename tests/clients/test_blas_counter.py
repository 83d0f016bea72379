"""The counter counts what NumPy and SciPy ask of BLAS, and knows what escaped."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

RUN = Path(__file__).with_name("run.py")
BUNDLED = Path(np.__file__).parents[1] / "numpy.libs"

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64",
        reason="preloads a library",
    ),
    pytest.mark.skipif(
        not list(BUNDLED.glob("libscipy_openblas64_*")),
        reason="NumPy is not from a wheel with OpenBLAS",
    ),
    pytest.mark.skipif(
        shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None,
        reason="no C compiler",
    ),
]

PROGRAM = """
import json, numpy as np, np_ozaki, run
from scipy.linalg import blas, solve_triangular
counter = run.Counter()
a = np.random.default_rng(0).standard_normal((50, 40))
s = np.asfortranarray(a.T @ a)
found = {}
def look(name, function):
    counter.reset()
    function()
    found[name] = [(r["name"], r["flops"], r["lapack"]) for r in counter.read()]
look("matmul", lambda: a @ s)
look("gram", lambda: a @ a.T)
look("matvec", lambda: a @ a[0])
look("dot", lambda: a[0] @ a[1])
look("dgemm", lambda: blas.dgemm(1.0, s, s))
look("dsyrk", lambda: blas.dsyrk(1.0, a))
look("dtrsm", lambda: blas.dtrsm(1.0, s, a, side=1))
look("paused", counter.outside(lambda: a @ s))
look("solve", lambda: np.linalg.solve(s, s))
look("triangle", lambda: solve_triangular(s, s))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("clients_run", RUN)
    module = importlib.util.module_from_spec(spec)
    sys.modules["clients_run"] = module
    spec.loader.exec_module(module)
    return module.build_counter(tmp_path_factory.mktemp("counter"))


def test_counts(library):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join([str(RUN.parent), str(RUN.parents[2])]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("solve")[0][::2] == ["numpy dgesv", True]
    assert found.pop("triangle")[0][::2] == ["scipy dtrtrs", True]
    assert found == {
        "matmul": [["numpy dgemm", 2 * 50 * 40 * 40, False]],
        "gram": [["numpy dsyrk", 2 * 50 * 50 * 40, False]],
        "matvec": [["numpy dgemv", 2 * 50 * 40, False]],
        "dot": [["numpy ddot", 2 * 40, False]],
        "dgemm": [["scipy dgemm", 2 * 40**3, False]],
        "dsyrk": [["scipy dsyrk", 50 * 51 * 40, False]],
        "dtrsm": [["scipy dtrsm", 50 * 40 * 40, False]],
        "paused": [],
    }
