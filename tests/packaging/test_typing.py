"""Type checkers accept what users write, and see OzArrays where there are some."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER_CODE = Path(__file__).parent / "user_code.py"


def check(*command):
    # From the root, where every checker finds the package beside the code.
    done = subprocess.run(
        [*command, str(USER_CODE)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    own = ("--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path))
    check(sys.executable, "-m", "mypy", *own, "--follow-imports", "silent")


def test_basedpyright():
    if shutil.which("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    check("basedpyright", "--level", "error")
