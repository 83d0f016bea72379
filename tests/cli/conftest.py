"""The command line in a process of its own, beside the plain interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import np_ozaki


class Terminal:
    """Runs commands in one folder, with the package under test importable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NP_OZAKI_", "PYTHON"))
        }
        self.environment["PYTHONPATH"] = str(Path(np_ozaki.__file__).parents[1])

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def python(self, *arguments, cwd=None, stdin="", **environment):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd or self.folder,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def cli(self, *arguments, **kwargs):
        return self.python("-m", "np_ozaki", *arguments, **kwargs)


@pytest.fixture
def terminal(tmp_path):
    return Terminal(tmp_path)
