"""The pages say what the code does: every block runs, every table is compared."""

import contextlib
import dataclasses
import doctest
import functools
import importlib.util
import inspect
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import pytest

import np_ozaki
from np_ozaki import config
from np_ozaki.config import Options, read_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAGS = doctest.ELLIPSIS


def name_of(path):
    return path.relative_to(ROOT).as_posix()


HAS_CUPY = importlib.util.find_spec("cupy") is not None
WITH_CUPY = {
    "np_ozaki.engines.cuda_bench",
    "np_ozaki.engines.cuda_copies",
    "np_ozaki.engines.cuda_cublas",
    "np_ozaki.engines.cuda_device",
    "np_ozaki.engines.cuda_hopper",
    "np_ozaki.engines.cuda_launch",
    "np_ozaki.engines.cuda_memory",
}
"""Modules that cannot be imported without CuPy."""
HAS_DASK = all(importlib.util.find_spec(x) for x in ("dask", "distributed"))

MODULES = [
    found.name
    for found in pkgutil.walk_packages(np_ozaki.__path__, "np_ozaki.")
    if found.name not in {"np_ozaki._hooks", "np_ozaki.__main__"}
    and (HAS_CUPY or found.name not in WITH_CUPY)
    and (HAS_DASK or not found.name.startswith("np_ozaki.dask"))
]


def blocks_of(text):
    """Yield (language, code, number of the line before the code)."""
    for match in FENCE.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2))


def run_examples(code, namespace, page, line):
    """Run a ``>>>`` block; what it defines stays in the namespace."""
    test = doctest.DocTestParser().get_doctest(code, namespace, page, page, line)
    report = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)
    namespace.update(test.globs)


def run_commands(code, folder):
    """Run those ``$`` lines of a console block that call np_ozaki."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("NP_OZAKI_")},
        "PYTHONPATH": str(ROOT),
    }
    for line in code.splitlines():
        found = re.fullmatch(r"\$ ((?:\w+=\S+ )*)python (-m np_ozaki .*)", line)
        if found is None:
            continue
        done = subprocess.run(
            [sys.executable, *shlex.split(found[2])],
            env=environment | dict(x.split("=", 1) for x in found[1].split()),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_run(page, tmp_path, monkeypatch):
    if page.name == "dask.md" and not HAS_DASK:
        pytest.skip("there is no dask")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    namespace = {"__name__": "__main__"}
    for language, code, line in blocks_of(page.read_text(encoding="utf-8")):
        with warnings.catch_warnings():
            # A page may show a plain enabled(), and a fork beside other threads.
            warnings.simplefilter("ignore", np_ozaki.PerformanceWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            if language in {"console", "sh", "bash"}:
                run_commands(code, tmp_path)
            elif language != "python" or code.startswith("# not run"):
                continue
            elif code.startswith(">>>"):
                run_examples(code, namespace, name_of(page), line)
            else:
                exec(compile("\n" * line + code, page, "exec"), namespace)


def test_pages_were_found():
    counts = {name_of(page): len(FENCE.findall(page.read_text())) for page in PAGES}
    assert counts["docs/usage.md"] > 15
    assert counts["docs/numerics.md"] > 4


def test_a_wrong_block_is_noticed():
    text = "x\n```python\na = 1\n```\n\n```python\n>>> a\n2\n```\n"
    (_, first, line), (_, second, _) = blocks_of(text)
    assert (first, line) == ("a = 1\n", 2)
    with pytest.raises(AssertionError, match="Expected"):
        run_examples(second, {"a": 1}, "page", 0)
    with pytest.raises(AssertionError, match="invalid choice"):
        run_commands("$ python -m np_ozaki nothing", ROOT)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failed = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        runner.run(test, out=failed.append)
    assert not failed, "".join(failed)


def slug(heading):
    """Return the anchor of a heading as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}: {target}"
        assert file.is_relative_to(ROOT), f"{name_of(page)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{name_of(page)}: {target}"


def test_usage_names_everything_public():
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    missing = [x for x in np_ozaki.__all__ if not re.search(rf"\b{x}\b", text)]
    assert not missing


def table(page, heading):
    """Return the rows below a header whose first cell is `heading`, as cells."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, x in enumerate(lines) if x.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_options_of_usage():
    rows = table("docs/usage.md", "option")
    fields = dataclasses.fields(Options)
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert list(shown) == [field.name for field in fields]
    for field in fields:
        assert eval(shown[field.name]) == field.default


@pytest.mark.parametrize("dtype", ["complex128", "float32", "complex64"])
def test_figures_are_those_of_the_record(dtype):
    record = table("docs/benchmarks/2026-12-01-complex-single.md", dtype)
    assert table("docs/complex.md", dtype) == record


def exists(code):
    """Return whether a dotted name, cut off at the left, is one of the package."""
    first, *rest = code.split(".")
    for name in MODULES:
        module = importlib.import_module(name)
        start = module if name.endswith(f".{first}") else getattr(module, first, None)
        with contextlib.suppress(AttributeError):
            if functools.reduce(getattr, rest, start) is not None:
                return True
    return False


def test_files_and_tests_that_numerics_names():
    assert exists("moduli.crt_weights")
    assert not exists("moduli.crt_weight")
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    files = {path.name: path for path in ROOT.glob("tests/**/test_*.py")}
    for row in table("docs/numerics.md", "equation"):
        assert re.search(r"test_\w+", row[2]), row
        for code in re.findall(r"`([^`]+)`", row[1]):
            assert exists(code), code
    for file, test in re.findall(r"`(?:\S*/)?(test_\w+\.py)(?:::(test_\w+))?`", text):
        assert file in files, file
        assert not test or f"def {test}(" in files[file].read_text(), (file, test)


# ---- docs/environment.md ----

VARIABLES = {
    row[0].strip("`"): row[1:] for row in table("docs/environment.md", "variable")
}


def test_every_variable_is_listed():
    of_options = {f"NP_OZAKI_{f.name.upper()}" for f in dataclasses.fields(Options)}
    assert VARIABLES.keys() == of_options | config._OTHER


def as_text(value):
    if isinstance(value, bool):
        value = int(value)
    return "unset" if value is None else str(value)


@pytest.mark.parametrize("name", VARIABLES)
def test_variable(name):
    default, values, _ = VARIABLES[name]
    default = default.strip("`")
    field = name.removeprefix("NP_OZAKI_").lower()
    settings = read_config({})
    if hasattr(Options, field):
        assert default == as_text(getattr(settings.options, field))
    elif field == "threads":
        assert default == as_text(settings.threads)
    elif field == "hooks":
        assert (default, settings.hooks) == ("all", None)
    listed = re.findall(r"`([^`]+)`", values)
    for value in listed:
        read_config({name: value})
    choices = typing.get_type_hints(Options).get(field)
    if typing.get_origin(choices) is typing.Literal:
        assert listed == list(typing.get_args(choices))
    if name == "NP_OZAKI_REQUIRE_GPU":
        return
    for bad in ("nonsense", "-1"):
        with pytest.raises(np_ozaki.OptionError, match=name):
            read_config({name: bad})
    if " to " in values or " or more" in values:
        numbers = [int(x) for x in listed if x.isdecimal()]
        with pytest.raises(np_ozaki.OptionError, match=name):
            read_config({name: str(min(numbers) - 1)})
    if " to " in values:
        with pytest.raises(np_ozaki.OptionError, match=name):
            read_config({name: str(max(numbers) + 1)})


# ---- Docstrings ----


def public_callables():
    """Yield (name, function or class) of every module's __all__.

    Methods count where a user meets the class: in np_ozaki itself.
    """
    for module_name in ["np_ozaki", *MODULES]:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if getattr(found, "__module__", None) != module_name:
                continue
            if inspect.isfunction(found):
                yield f"{module_name}.{name}", found
            elif inspect.isclass(found) and not getattr(found, "_is_protocol", False):
                yield f"{module_name}.{name}", found
                methods = vars(found) if name in np_ozaki.__all__ else {}
                for key, method in methods.items():
                    if inspect.isfunction(method) and not key.startswith("_"):
                        yield f"{module_name}.{name}.{key}", method


PUBLIC = dict(public_callables())


def sections(docstring):
    """Return the sections of a numpydoc docstring by title."""
    parts = re.split(r"^(\w[\w ]*)\n-+$", inspect.cleandoc(docstring), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented(text):
    """Return the names that the entries of a section define."""
    heads = re.findall(r"^([*\w][\w, *]*?)(?: :.*)?$", text, re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def undocumented(found):
    """Return what a docstring lacks."""
    if not found.__doc__:
        return ["docstring"]
    parts = sections(found.__doc__)
    if inspect.isclass(found):
        if dataclasses.is_dataclass(found):
            wanted = {f.name for f in dataclasses.fields(found)}
            return sorted(wanted - documented(parts.get("Attributes", "")))
        if issubclass(found, BaseException) or "__init__" not in vars(found):
            return []
        function = found.__init__
    else:
        function = found
    signature = inspect.signature(function)
    wanted = set(signature.parameters) - {"self", "cls"}
    lacking = sorted(wanted - documented(parts.get("Parameters", "")))
    if not inspect.isclass(found) and signature.return_annotation not in {
        "None",
        None,
        "NoReturn",
    }:
        lacking += [] if parts.keys() & {"Returns", "Yields"} else ["Returns"]
    return lacking


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_is_complete(name):
    assert undocumented(PUBLIC[name]) == []


def test_incomplete_docstrings_are_noticed():
    def function(a: int, b: int, *c: int) -> int:
        """Return a sum.

        Parameters
        ----------
        a, c : int
            Numbers.
        """

    assert undocumented(function) == ["b", "Returns"]


# ---- The example ----


def test_example_is_plain_numpy():
    text = (ROOT / "docs" / "examples" / "least_squares.py").read_text(encoding="utf-8")
    assert "ozaki" not in text.lower()
    imports = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    assert imports == ["numpy"]
