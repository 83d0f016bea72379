"""Tasks run one after another in the thread of the test, unless a test says how."""

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="synchronous"):
        yield
