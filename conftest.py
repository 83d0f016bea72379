"""Hypothesis profiles, the GPU gate, and a clean state around every test."""

import functools
import os
import warnings

if "PYTEST_XDIST_WORKER" in os.environ:
    # A worker for each core: more threads would only wait for each other.  BLAS reads
    # it when NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, Phase, settings

import np_ozaki
from np_ozaki import context
from np_ozaki.engines import choice

settings.register_profile(
    "quick",
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    max_examples=3000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For tests/faults.py: that a test fails is all it asks, not the smallest example.
settings.register_profile(
    "no-shrinking", settings.get_profile("quick"), phases=[Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@functools.cache
def _has_gpu() -> bool:
    with warnings.catch_warnings():
        # What importing CuPy warns of is not ours to turn into errors.
        warnings.simplefilter("ignore")
        return np_ozaki.info().engines["cuda"] == "available"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _has_gpu() or os.environ.get("NP_OZAKI_REQUIRE_GPU") == "1":
        return
    skip = pytest.mark.skip(reason="no GPU here (NP_OZAKI_REQUIRE_GPU=1 makes it fail)")
    for item in items:
        if "gpu" in item.keywords or "hopper" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def no_gpu(request, monkeypatch):
    """Let tests that are not about a GPU run as they do where there is none."""
    if "gpu" not in request.keywords:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if _has_gpu():
            hidden = "hidden from tests without the marker gpu"
            monkeypatch.setattr(choice, "cuda_unavailable", lambda: hidden)
            monkeypatch.setattr(choice, "device_memory", lambda: None)


@pytest.fixture(autouse=True)
def clean_state():
    """Fail a test that leaves a scope behind, and start each with zero counters."""
    np_ozaki.reset_stats()
    yield
    np_ozaki.disable()
    left = len(context.live_scopes())
    assert left == 0, f"{left} scopes were entered and not left"
