"""What arrives where the package is installed, with and without a compiler."""

import email.message
import email.parser
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STABLE_ABI = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)
LEFT_OVERS = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "*.so", "*.pyd", "build", "dist", "venv"
)


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, without this process's Python settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def build(source: Path, *what: str, **environment: str) -> dict[str, Path]:
    """Build into source/dist; return the files by their suffix."""
    for name, least in (("build", "1.0"), ("setuptools", "77"), ("wheel", "0.40")):
        pytest.importorskip(name, minversion=least)
    run(
        sys.executable, "-m", "build", "--no-isolation", *what,
        cwd=source, **environment,
    )  # fmt: skip
    return {path.suffix: path for path in (source / "dist").iterdir()}


def clean_copy(target: Path) -> Path:
    return shutil.copytree(ROOT, target, ignore=LEFT_OVERS)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
        return email.parser.Parser().parsestr(archive.read(member).decode())


def install(wheel: Path, target: Path) -> Path:
    """Install a wheel in a fresh environment, offline; return its Python.

    The dependencies are those of this environment.  Only its directory is lent, so
    that no editable install of np_ozaki takes part.
    """
    venv.create(target, with_pip=True)
    scripts = target / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    run(
        python, "-m", "pip", "install", "--no-deps", "--no-index", wheel,
        cwd=target,
    )  # fmt: skip
    (purelib,) = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=target,
    ).split("\n")[:1]  # fmt: skip
    numpy = importlib.util.find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    lent = Path(numpy.origin).parents[1]
    Path(purelib, "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    return python


def report(python: Path, code: str) -> list[str]:
    """Run code with the installed package, away from the sources."""
    program = textwrap.dedent(code)
    return run(python, "-I", "-c", program, cwd=python.parent).split("\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An sdist, and the wheel that was built from the sdist."""
    return build(clean_copy(tmp_path_factory.mktemp("built") / "source"))


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(built[".whl"], tmp_path_factory.mktemp("installed"))


# ---- The lists in pyproject.toml ----


def test_every_package_is_listed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "np_ozaki").rglob("*.py")
    }
    assert set(pyproject()["tool"]["setuptools"]["packages"]) == {
        *found,
        "np_ozaki._kernels",
    }


def test_every_kernel_file_has_a_shipped_suffix() -> None:
    files = [p for p in (ROOT / "kernels").iterdir() if p.is_file()]
    assert {p.suffix for p in files} <= {".cu", ".cuh", ".py"}
    modules = {p.name for p in files if p.suffix == ".py"}
    tables = {"limb_tables.py", "slice_tables.py", "tables.py"}
    assert modules == {"__init__.py", "render.py"} | tables


def test_version_is_stated_once_or_alike() -> None:
    namespace = (ROOT / "np_ozaki" / "__init__.py").read_text(encoding="utf-8")
    stated = [
        line for line in namespace.split("\n") if line.startswith("__version__ =")
    ]
    version = pyproject()["project"]["version"]
    assert stated in ([], [f'__version__ = "{version}"'])


# ---- The archives ----


@pytest.mark.slow
def test_wheel_has_all_of_the_package(built: dict[str, Path]) -> None:
    expected = {"np_ozaki/py.typed", "np_ozaki/_hooks.pyi"}
    for path in (ROOT / "np_ozaki").rglob("*.py"):
        expected.add(path.relative_to(ROOT).as_posix())
    for path in (ROOT / "kernels").glob("*.*"):
        expected.add(f"np_ozaki/_kernels/{path.name}")
    inside = {n for n in names_in(built[".whl"]) if ".dist-info/" not in n}
    extension = {n for n in inside if n.endswith((".so", ".pyd"))}
    assert inside - extension == expected
    assert len(extension) == int(STABLE_ABI)


@pytest.mark.slow
def test_wheel_is_for_the_stable_abi(built: dict[str, Path]) -> None:
    tag = metadata_of(built[".whl"], "WHEEL")["Tag"]
    assert tag.startswith("cp311-abi3-" if STABLE_ABI else "py3-none-any")
    assert built[".whl"].stem.endswith(f"-{tag}")
    names = {n for n in names_in(built[".whl"]) if n.startswith("np_ozaki/_hooks.")}
    if STABLE_ABI and os.name == "posix":
        assert "np_ozaki/_hooks.abi3.so" in names


@pytest.mark.slow
def test_metadata(built: dict[str, Path]) -> None:
    project = pyproject()["project"]
    metadata = metadata_of(built[".whl"], "METADATA")
    assert metadata["Name"] == "np_ozaki"
    assert metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == set(project["optional-dependencies"])
    required = {r for r in metadata.get_all("Requires-Dist", []) if "extra" not in r}
    assert required == set(project["dependencies"])


@pytest.mark.slow
def test_sdist_can_be_built_and_tested(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "setup.py",
        "kernels/__init__.py",
        "np_ozaki/_hooks.pyi",
        "np_ozaki/py.typed",
        "tests/packaging/test_packaging.py",
    } <= names
    for path in (ROOT / "kernels").glob("*.cu*"):
        assert f"kernels/{path.name}" in names
    for path in (ROOT / "np_ozaki" / "hooks").glob("*.[ch]"):
        assert f"np_ozaki/hooks/{path.name}" in names
    assert not [n for n in names if n.endswith((".so", ".pyd", ".pyc"))]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the compiler is no variable on Windows")
def test_left_overs_of_older_builds_stay_out(tmp_path: Path) -> None:
    source = clean_copy(tmp_path / "source")
    for stale in (
        "build/lib/np_ozaki/_kernels/deleted.cu",
        "build/lib/np_ozaki/deleted.py",
        "np_ozaki/_hooks.abi3.so",
    ):
        path = source / stale
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stale")
    wheel = build(source, "--wheel", CC="/bin/false")[".whl"]
    stale_names = [n for n in names_in(wheel) if "deleted" in n or n.endswith(".so")]
    assert stale_names == []
    assert {p.name for p in (source / "build").rglob("*") if p.is_file()} == {
        "deleted.cu",
        "deleted.py",
    }


# ---- The installed package ----


@pytest.mark.slow
def test_installed_kernels_and_types(installed: Path) -> None:
    kernels, typed, *_ = report(
        installed,
        """
        from importlib.resources import files
        kernels = files("np_ozaki._kernels").iterdir()
        print(*sorted(k.name for k in kernels if k.name.endswith((".cu", ".cuh"))))
        print(files("np_ozaki").joinpath("py.typed").is_file())
        """,
    )
    assert kernels.split() == sorted(p.name for p in (ROOT / "kernels").glob("*.cu*"))
    assert typed == "True"


@pytest.mark.slow
def test_installed_package_lies_elsewhere(installed: Path) -> None:
    (where, *_) = report(installed, "import np_ozaki; print(np_ozaki.__file__)")
    assert Path(where).is_relative_to(installed.parents[1])


@pytest.mark.slow
@pytest.mark.skipif(not STABLE_ABI, reason="no extension on this interpreter")
def test_installed_hooks_work(installed: Path) -> None:
    (line, *_) = report(
        installed,
        """
        from np_ozaki import hooks
        print(hooks.install({"matmul": lambda *loop: None})[0])
        """,
    )
    assert "active=True" in line, line


@pytest.mark.slow
def test_console_script(installed: Path) -> None:
    script = installed.parent / ("np-ozaki.exe" if os.name == "nt" else "np-ozaki")
    assert "usage: np-ozaki" in run(script, "--help", cwd=installed.parent)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the compiler is no variable on Windows")
def test_install_without_a_compiler(tmp_path: Path) -> None:
    source = clean_copy(tmp_path / "source")
    wheel = build(source, "--wheel", CC="/bin/false")[".whl"]
    assert not [n for n in names_in(wheel) if n.endswith(".so")]
    python = install(wheel, tmp_path / "installed")
    product, line, *_ = report(
        python,
        """
        import numpy as np
        from np_ozaki import hooks
        status = hooks.install({"matmul": lambda *loop: None})[0]
        hooks.set_gate(1, 0)
        with hooks.unrouted():
            print((np.ones((2, 2)) @ np.ones((2, 2)))[0, 0])
        print(status)
        """,
    )
    assert product == "2.0"
    if STABLE_ABI:
        assert "active=False" in line
        assert "C compiler" in line
