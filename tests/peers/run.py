"""Run test suites of NumPy and SciPy outside and inside a scope, and compare.

    python tests/peers/run.py [--sample] [suite ...]

The suites come with the installed NumPy and SciPy.  A test that ends worse inside is
lost; exit status 1 if one is lost that `EXCEPTIONS` does not name, or if a suite had
no product for the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Suite:
    """Modules of one library, and which of their tests run."""

    modules: tuple[str, ...]
    keywords: str = ""


CORE = "numpy._core.tests."
SUITES = {
    "numpy.multiarray": Suite(
        (CORE + "test_multiarray",),
        "atMul or atmul or Dot or dot or Inner or inner or Vdot",
    ),
    "numpy.core": Suite(
        tuple(
            f"{CORE}test_{name}" for name in ("ufunc", "einsum", "numeric", "overrides")
        ),
    ),
    "numpy.linalg": Suite(("numpy.linalg.tests",)),
    "numpy.polynomial": Suite(("numpy.polynomial.tests",)),
    "scipy.linalg": Suite(("scipy.linalg.tests",)),
}
SAMPLE = {
    "numpy": Suite(
        (
            *(
                f"{CORE}test_{name}"
                for name in ("multiarray", "ufunc", "einsum", "numeric")
            ),
            "numpy.linalg.tests.test_linalg",
        ),
        "matmul or dot or inner or vecmat or matvec or einsum or test_linalg",
    ),
    "scipy": Suite(
        tuple(
            f"scipy.linalg.tests.test_{name}"
            for name in ("blas", "matfuncs", "solvers", "procrustes")
        ),
        # Thousands of tiny products a call.
        "not expm_cond",
    ),
}

# Tests that are lost, and why that is right.
EXCEPTIONS: dict[str, str] = {}

RANKS = {"passed": 0, "xpassed": 0, "xfailed": 0, "skipped": 1, "failed": 2}


@dataclass(frozen=True)
class Outcome:
    """How one suite ended outside and inside."""

    outside: dict[str, Any]
    inside: dict[str, Any]

    @property
    def lost(self) -> dict[str, str]:
        """Tests that end worse inside, with the reason that pytest gives."""
        inside = self.inside["outcomes"]
        return {
            test: self.inside["reasons"].get(test, inside.get(test, "did not run"))
            for test, outcome in self.outside["outcomes"].items()
            if RANKS[inside.get(test, "failed")] > RANKS[outcome]
        }

    @property
    def routed(self) -> Counter[str]:
        """Products that an engine multiplied, by route."""
        return Counter(
            {
                name: route["calls"].get("cpu", 0)
                for name, route in self.inside["routes"].items()
            }
        )

    def __str__(self) -> str:
        """Return the counts in two lines."""
        outside, inside = (
            Counter(x["outcomes"].values())["passed"]
            for x in (self.outside, self.inside)
        )
        routed = ", ".join(f"{name} {calls}" for name, calls in self.routed.items())
        return f"{outside} pass outside, {inside} inside\n  products: {routed}"


def start(suite: Suite, report: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start pytest on a suite in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "plugin"]
    # Away from this repository: its settings are not the suites'.
    command += ["--rootdir", sysconfig.get_path("purelib")]
    command += ["-m", "not slow", "-k", suite.keywords, f"--outcomes={report}"]
    command += [*options, "--pyargs", *suite.modules]
    # One thread each: two runs at a time fill two cores, and native bits stay the same.
    threads = dict.fromkeys(
        ("NP_OZAKI_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"
    )
    with report.with_suffix(".txt").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=report.parent,
            env={**os.environ, **threads, "PYTHONPATH": str(HERE)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def compare(suite: Suite) -> Outcome:
    """Run a suite outside and inside a scope, both at a time."""
    with tempfile.TemporaryDirectory() as directory:
        reports = [Path(directory, f"{side}.json") for side in ("outside", "inside")]
        runs = [start(suite, reports[0], "--native"), start(suite, reports[1])]
        try:
            for run in runs:
                run.wait()
        finally:
            for run in runs:
                run.kill()
        for report in reports:
            if not report.exists():
                log = report.with_suffix(".txt").read_text(errors="replace")
                raise RuntimeError(f"no report from {report.stem}:\n{log[-4000:]}")
        return Outcome(*(json.loads(report.read_text()) for report in reports))


def main() -> int:
    """Run suites and print what was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", action="store_true", help="a part, in two minutes")
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    arguments = parser.parse_args()
    table = SAMPLE if arguments.sample else SUITES
    unknown = set(arguments.suites) - set(table)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    status = 0
    for name in tqdm(arguments.suites or table, unit="suite", disable=None):
        outcome = compare(table[name])
        tqdm.write(f"{name}: {outcome}")
        for test, reason in outcome.lost.items():
            expected = EXCEPTIONS.get(test)
            tqdm.write(f"  {test}\n    {expected or reason}")
            status |= expected is None
        status |= not outcome.routed.total()
    return status


if __name__ == "__main__":
    sys.exit(main())
