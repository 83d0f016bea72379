"""Products in exit handlers, when threads can no longer be started."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, numpy as np, np_ozaki
a = np.random.default_rng(0).standard_normal((400, 400))
atexit.register(lambda: print(np_ozaki.matmul(a, a).shape))
{before}
"""


def run(before):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
    )


def test_first_large_product_at_exit():
    result = run("")
    assert (result.stdout, result.stderr) == ("(400, 400)\n", "")


def test_large_product_at_exit_after_others():
    result = run("np_ozaki.matmul(a, a)")
    assert (result.stdout, result.stderr) == ("(400, 400)\n", "")


FORK = """
import os, signal, threading, time
import numpy as np, np_ozaki
signal.alarm(50)
big = np.ones((500, 500))
threading.Thread(target=lambda: np_ozaki.matmul(big, big), daemon=True).start()
if not os.fork():
    signal.alarm(20)
    # An engine that needs no BLAS threads, so that only np_ozaki can hang.
    same = np_ozaki.matmul(np.ones((400, 9)), np.ones((9, 400)))[0, 0] == 9
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_during_the_first_product_of_another_thread():
    for _ in range(5):
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORK],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == "0\n"
