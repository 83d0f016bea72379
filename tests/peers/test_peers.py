"""NumPy's and SciPy's own tests pass inside a scope as they do outside."""

import pytest
from peers import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", run.SUITES)
def test_suite_passes_inside(name):
    outcome = run.compare(run.SUITES[name])
    print(f"{name}: {outcome}")
    assert outcome.routed.total() > 0
    assert len(outcome.outside["outcomes"]) > 100
    lost = outcome.lost
    unexpected = {test: lost[test] for test in lost.keys() - run.EXCEPTIONS.keys()}
    assert unexpected == {}
