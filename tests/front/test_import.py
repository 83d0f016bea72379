"""What importing np_ozaki costs and touches."""

import subprocess
import sys


def test_import_is_light():
    program = (
        "import sys, np_ozaki\n"
        "print(*[m for m in ('cupy', 'scipy', 'scipy.linalg', 'matplotlib', 'tqdm', "
        "'hypothesis', 'sklearn', 'concurrent.futures.process') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_import_changes_nothing():
    program = (
        "import numpy as np, os, warnings\n"
        "before = (np.matmul, np.dot, np.geterr(), dict(os.environ), "
        "list(warnings.filters))\n"
        "import np_ozaki\n"
        "after = (np.matmul, np.dot, np.geterr(), dict(os.environ), "
        "list(warnings.filters))\n"
        "assert before == after\n"
        "assert np_ozaki.info().hooks[0].active is False\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
