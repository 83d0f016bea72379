"""Products in exit handlers, when threads can no longer be started."""

import subprocess
import sys

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
