"""np_ozaki on workers: the scope, the device, OzArrays on the wire."""

import contextlib
import importlib
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from chunked import SQUARE, assert_values, da, oz, plain

import np_ozaki
import np_ozaki.dask
from np_ozaki import OzArray, context
from np_ozaki.engines import choice
from np_ozaki.testing import assert_same_bits

distributed = pytest.importorskip("distributed")
from distributed.protocol import (  # noqa: E402 - after the skip
    deserialize,
    serialize,
)

from np_ozaki.dask import EnablePlugin  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "dask_product.py"
OPTIONS = {"engine": "cpu", "min_flops": 0}
QUIET = {"dashboard_address": ":0", "silence_logs": 50}


@contextlib.contextmanager
def cluster(workers=1, **options):
    """Yield a client of a cluster of this machine."""
    options = {"threads_per_worker": 1, **QUIET, **options}
    with (
        distributed.LocalCluster(n_workers=workers, **options) as local,
        distributed.Client(local) as client,
    ):
        yield client


def state():
    """Return what a worker's process says of itself."""
    return np_ozaki.info().live_scopes, np_ozaki.stats().calls("cpu")


# ---- In this process ----


def test_scope_of_a_worker():
    square = plain(SQUARE, 12) @ SQUARE
    with cluster(processes=False) as client:
        client.register_plugin(EnablePlugin(**OPTIONS))
        assert len(context.live_scopes()) == 1
        result = client.compute(square).result()
        assert np_ozaki.stats().calls("cpu") == 1
        assert type(result) is np.ndarray
        assert_same_bits(result, np_ozaki.matmul(SQUARE, SQUARE))

        client.register_plugin(EnablePlugin(**OPTIONS, precision=9))
        assert len(context.live_scopes()) == 1
        assert client.submit(lambda: context.default_options().precision).result() == 9

        client.unregister_worker_plugin(EnablePlugin.name)
        assert not context.live_scopes()
        client.register_plugin(EnablePlugin(**OPTIONS))
    assert not context.live_scopes()


def test_options_are_looked_at_first():
    with pytest.raises(np_ozaki.OptionError, match="engine"):
        EnablePlugin(engine="gpu")
    with pytest.raises(TypeError):
        EnablePlugin(colour="red")
    with pytest.raises(np_ozaki.OptionError, match="local"):
        EnablePlugin(local=True)
    assert not context.live_scopes()


def test_scope_reaches_every_thread():
    worker = fake_worker()
    plugin = EnablePlugin(**OPTIONS)
    plugin.setup(worker)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(SQUARE @ SQUARE))
    thread.start()
    thread.join()
    plugin.teardown(worker)
    assert_same_bits(seen[0], np_ozaki.matmul(SQUARE, SQUARE))


def test_a_worker_without_the_engine_says_so():
    with cluster(processes=False) as client:
        with pytest.raises(np_ozaki.EngineUnavailableError):
            client.register_plugin(EnablePlugin(engine="cuda"))
        assert not context.live_scopes()


# ---- Devices, of which there are none here ----


def fake_worker(name=0):
    pools = {"default": ThreadPoolExecutor(2), "actor": ThreadPoolExecutor(1)}
    return types.SimpleNamespace(
        name=name, executors={**pools, "offload": ThreadPoolExecutor(1)}
    )


def current_device():
    return getattr(threading.current_thread(), "device", 0)


@contextlib.contextmanager
def on_device(index):
    thread, before = threading.current_thread(), current_device()
    thread.device = index
    yield
    thread.device = before


@pytest.fixture
def three_devices(monkeypatch):
    """Pretend that there are three devices, current ones being of each thread."""
    monkeypatch.setattr(choice, "resolve", lambda options: "cuda")
    monkeypatch.setattr(choice, "device_count", lambda: 3)
    monkeypatch.setattr(choice, "on_device", on_device)


@pytest.mark.usefixtures("three_devices")
@pytest.mark.parametrize(
    ("name", "device"),
    [
        (0, 0),
        (1, 1),
        (5, 2),
        ("4", 1),
        ("gpu-2", 2),
        ("SLURMCluster-7-1", 1),
        ("tcp://10.0.0.1:40001", 0),
        ("alice", 0),
        (None, 0),
    ],
)
def test_tasks_run_on_the_device_of_the_worker(name, device):
    worker, plugin = fake_worker(name), EnablePlugin(**OPTIONS)
    plugin.setup(worker)
    for key, pool in worker.executors.items():
        seen = {pool.submit(current_device).result() for _ in range(5)}
        assert seen == {0 if key == "offload" else device}
    assert (
        worker.executors["default"].submit(max, [1, 3], key=lambda x: -x).result() == 1
    )
    plugin.teardown(worker)
    for pool in worker.executors.values():
        assert pool.submit(current_device).result() == 0
        pool.shutdown()


@pytest.mark.usefixtures("three_devices")
def test_devices_of_a_cluster():
    with cluster(2, processes=False) as client:
        client.register_plugin(EnablePlugin(**OPTIONS))
        for address, worker in client.scheduler_info()["workers"].items():
            task = client.submit(current_device, workers=[address], pure=False)
            assert task.result() == worker["name"]


@pytest.mark.usefixtures("three_devices")
def test_two_workers_of_one_plugin():
    plugin, workers = EnablePlugin(**OPTIONS), [fake_worker(1), fake_worker(2)]
    for worker in workers:
        plugin.setup(worker)
    assert len(context.live_scopes()) == 2
    plugin.teardown(workers[0])
    plugin.teardown(workers[0])
    assert len(context.live_scopes()) == 1
    assert workers[1].executors["default"].submit(current_device).result() == 2
    plugin.teardown(workers[1])
    assert not context.live_scopes()
    for worker in workers:
        for pool in worker.executors.values():
            pool.shutdown()


@pytest.mark.usefixtures("three_devices")
def test_a_setup_that_fails_leaves_nothing(monkeypatch):
    def broken():
        raise RuntimeError("no devices")

    monkeypatch.setattr(choice, "device_count", broken)
    with pytest.raises(RuntimeError, match="no devices"):
        EnablePlugin(**OPTIONS).setup(fake_worker())
    assert not context.live_scopes()


def test_no_device_counts_where_there_is_none():
    assert choice.device_count() == 0


# ---- On the wire ----

VALUES = {
    "rows": SQUARE,
    "columns": np.asfortranarray(SQUARE),
    "steps": SQUARE[::2, 1::3],
    "no axes": np.array(2.5),
    "empty": np.empty((0, 3)),
    "float32": SQUARE.astype("f4"),
    "complex": SQUARE + 1j,
    "words": np.array(["a", "bc"]),
    "records": np.array([(1, 2.0)], dtype="i4,f8"),
    "dates": np.array(["2026-01-01"], dtype="M8[D]"),
    "objects": np.array([None, "x"]),
    "broadcast": np.broadcast_to(SQUARE[0], (3, 12)),
}


@pytest.fixture(params=["pickle", "dask"])
def serializer(request):
    """Be a client, whose OzArrays are pickled, or a worker with the plugin."""
    if request.param == "pickle":
        yield "pickle"
        return
    worker, plugin = fake_worker(), EnablePlugin(**OPTIONS)
    plugin.setup(worker)
    yield "dask"
    plugin.teardown(worker)


@pytest.mark.parametrize("name", VALUES)
def test_wire(name, serializer):
    x = OzArray(VALUES[name], copy=False) if name != "no axes" else OzArray(2.5)
    header, frames = serialize(x)
    assert header["serializer"] == serializer
    frames = [bytes(frame) for frame in frames]
    twin = deserialize(header, frames)
    assert type(twin) is OzArray
    assert twin.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(twin), VALUES[name])
    if name == "rows":
        twin[0, 0] = 99.0
        assert x[0, 0] == SQUARE[0, 0]


def test_clients_of_other_clusters_pickle():
    worker, plugin = fake_worker(), EnablePlugin(**OPTIONS)
    plugin.setup(worker)
    plugin.teardown(worker)
    header, _ = serialize(OzArray(SQUARE))
    assert header["serializer"] == "pickle"


@pytest.mark.parametrize("serializer", ["dask"], indirect=True)
def test_bytes_are_sent_as_they_lie(serializer):
    x = OzArray(SQUARE)
    _, (frame,) = serialize(x)
    assert np.shares_memory(np.frombuffer(frame), np.asarray(x))


# ---- Other processes ----


@pytest.mark.slow
def test_two_processes():
    x = np.random.default_rng(7).standard_normal((60, 40))
    with cluster(2, processes=True) as client:
        plugin = EnablePlugin(**OPTIONS)
        client.register_plugin(plugin)
        assert {scopes for scopes, _ in client.run(state).values()} == {1}

        lazy = da.from_array(x, chunks=(20, 40)).map_blocks(OzArray)
        product = client.compute(lazy @ lazy.T).result()
        assert type(product) is OzArray
        assert_same_bits(np.asarray(product), np_ozaki.matmul(x, x.T))
        assert sum(calls for _, calls in client.run(state).values()) == 9

        # A chunk that one worker has and the other needs.
        workers = list(client.scheduler_info()["workers"])
        first = client.submit(OzArray, x, workers=workers[0])
        second = client.submit(
            lambda y: (type(y).__name__, y), first, workers=workers[1]
        )
        name, twin = second.result()
        assert name == "OzArray"
        assert_values(twin, x)
        (sent,) = client.scatter([OzArray(x)])
        assert_values(client.submit(lambda y: y + 1, sent).result(), x + 1)

        # Plain chunks are caught, too, as the scope is one of the process.
        before = sum(calls for _, calls in client.run(state).values())
        result = client.compute(plain(x, (60, 40)) @ x.T).result()
        assert_same_bits(result, np_ozaki.matmul(x, x.T))
        assert sum(calls for _, calls in client.run(state).values()) == before + 1

        client.unregister_worker_plugin(plugin.name)
        assert {scopes for scopes, _ in client.run(state).values()} == {0}


@pytest.mark.slow
def test_workers_that_never_heard_of_it():
    with cluster(1, processes=True) as client:
        (sent,) = client.scatter([OzArray(SQUARE)])
        assert_values(
            client.submit(lambda x: x @ x, sent).result(), OzArray(SQUARE) @ SQUARE
        )
        product = oz(SQUARE, 6) @ oz(SQUARE, 6)
        assert_values(client.compute(product).result(), product.compute())


@pytest.mark.gpu
@pytest.mark.slow
def test_devices():
    x = np.random.default_rng(7).standard_normal((300, 200))

    def current():
        from np_ozaki.engines import choice

        return choice.device_memory().device(), choice.device_count()

    def product(y):
        return np.asarray(OzArray(y) @ y.T), np_ozaki.last_call().engine

    with cluster(3, processes=True) as client:
        client.register_plugin(EnablePlugin(engine="cuda", min_flops=0))
        for address, worker in client.scheduler_info()["workers"].items():
            where = {"workers": [address], "pure": False}
            device, count = client.submit(current, **where).result()
            assert device == worker["name"] % count
            result, engine = client.submit(product, x, **where).result()
            assert engine == "cuda"
            assert_same_bits(result, np_ozaki.matmul(x, x.T, engine="cpu"))
        client.unregister_worker_plugin(EnablePlugin.name)
        assert all(
            client.submit(current, workers=[address], pure=False).result()[0] == 0
            for address in client.scheduler_info()["workers"]
        )


@pytest.mark.slow
def test_example():
    sizes = "--size=512 --rows=64 --columns=16".split()
    done = subprocess.run(
        [sys.executable, EXAMPLE, *sizes], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "have the same bits: True" in done.stdout
    assert "'native': 0" in done.stdout


# ---- Without distributed ----


def test_without_distributed(monkeypatch):
    module = importlib.import_module("np_ozaki.dask")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"np_ozaki\[dask\]") as caught:
        module.EnablePlugin  # noqa: B018 - the access is the test
    assert isinstance(caught.value, np_ozaki.OzakiError)
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018 - the access is the test
