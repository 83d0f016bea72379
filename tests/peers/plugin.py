"""A pytest plugin that runs any test suite inside a scope, products of all sizes.

    PYTHONPATH=tests/peers python -m pytest -p plugin --pyargs numpy.linalg.tests

The scope is open from before collection, since modules multiply when they are
imported, to after the last test.  ``--native`` leaves it out, for comparison.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import np_ozaki

# From good to bad.  A test is as bad as the worst of its phases, but a setup or a
# teardown that passes says nothing.
RANKS = ("passed", "xpassed", "xfailed", "skipped", "failed")


class Session:
    """Scope, outcomes and counters of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self.native: bool = config.getoption("--native")
        self.report: str | None = config.getoption("--outcomes")
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        dtypes = ("float64", "complex128", "float32", "complex64")
        self.scope = np_ozaki.enabled(engine="cpu", min_flops=0, dtypes=dtypes)
        self.open = contextlib.ExitStack()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Enter the scope."""
        if self.native:
            return
        # A missing hook would leave products native and the run without meaning.  The
        # filter holds while entering only: it is not the suites' own.
        with warnings.catch_warnings():
            warnings.simplefilter("error", np_ozaki.OzakiWarning)
            self.open.enter_context(self.scope)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that cannot be imported."""
        if report.failed:
            self.note(report.nodeid, "failed", report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how one phase of a test ended."""
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"
        if report.when == "call" or not report.passed:
            self.note(report.nodeid, outcome, report)

    def note(self, test: str, outcome: str, report: Any) -> None:
        """Keep the worst outcome of a test, and the last line of why it failed."""
        known = self.outcomes.get(test, RANKS[0])
        self.outcomes[test] = max(known, outcome, key=RANKS.index)
        if outcome == "failed":
            lines = [x for x in report.longreprtext.splitlines() if x.startswith("E ")]
            self.reasons[test] = "\n".join(lines[:12])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Leave the scope and write the report."""
        self.open.close()
        if self.report is not None:
            content = {
                "outcomes": self.outcomes,
                "reasons": self.reasons,
                "routes": self.scope.stats().as_dict(),
            }
            Path(self.report).write_text(json.dumps(content), encoding="utf-8")

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Say what was routed."""
        if not self.native:
            terminalreporter.section("np_ozaki")
            terminalreporter.write_line(str(self.scope.stats()))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("np_ozaki")
    group.addoption("--native", action="store_true", help="do not enter the scope")
    group.addoption("--outcomes", metavar="FILE", help="write outcomes as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Start a session of this plugin."""
    config.pluginmanager.register(Session(config), "np_ozaki-session")
