"""Fresh interpreters for what must not happen in the tests' own."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import np_ozaki


def run_python(code: str, *options: str, timeout: float = 60) -> str:
    """Run code in a fresh interpreter that imports this very np_ozaki."""
    root = Path(str(np_ozaki.__file__)).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def heed_interrupts() -> None:
    """Undo, in a child, that shells let what they start behind them ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
