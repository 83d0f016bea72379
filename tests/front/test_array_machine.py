"""Long stories of OzArrays: views, writes, products, moves, against an ndarray twin.

After every step each array is compared with its twin on every side that claims to be
current, without moving anything: a look must not cure what it is there to find.

``HYPOTHESIS_PROFILE=thorough`` tells 10,000 steps a place.
"""

import copy
import pickle

import numpy as np
import pytest
import twin_device
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.engines import choice

SHAPES = [(3, 3), (3, 2), (2, 3), (4, 3), (3,), (2,), (2, 3, 3)]
MOST = 10

seeds = st.integers(0, 2**32 - 1)
places = st.integers(0, 2**16)
VIEWS = {
    "all": lambda x: x[...],
    "first": lambda x: x[:2],
    "last": lambda x: x[1:],
    "other": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "T": lambda x: x.T,
    "mT": lambda x: x.mT if x.ndim > 1 else x[:],
    "new axis": lambda x: x[None],
    "swapped": lambda x: np.swapaxes(x, 0, -1),
    "squeezed": lambda x: np.squeeze(x),
    "flat": lambda x: x.reshape(-1),
    "ravelled": lambda x: np.ravel(x),
    "moved": lambda x: np.moveaxis(x, 0, -1),
    "row": lambda x: x[0] if x.ndim > 1 else x[:],
    "columns": lambda x: x[..., 1:],
    "bits": lambda x: x.view(np.int64).view(np.float64),
}
VALUES = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: y - x,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "by number": lambda x, y: 2.5 * x - 1,
    "root": lambda x, y: np.sqrt(np.abs(x)),
    "neg": lambda x, y: -x,
    "less": lambda x, y: (x < y) * 1.0,
    "equal": lambda x, y: np.equal(x, y) + 0.0,
    "sum": lambda x, y: np.sum(x, axis=0, keepdims=True),
    "exp": lambda x, y: np.exp(-np.abs(x)),
    "where": lambda x, y: np.where(x > 0, x, 0.0),
    "concatenate": lambda x, y: np.concatenate([x, x]),
    "picked": lambda x, y: x[[0, -1]],
    "picked columns": lambda x, y: x[..., np.array([0, -1, 0])],
    "masked": lambda x, y: x[x > 0],
    "copy": lambda x, y: x.copy(),
    "F": lambda x, y: np.copy(x, order="F"),
    "sorted": lambda x, y: np.sort(x),
    "float32": lambda x, y: x.astype(np.float32).astype(np.float64),
    "pickle": lambda x, y: pickle.loads(pickle.dumps(x)),
    "deepcopy": lambda x, y: copy.deepcopy(x),
}


def _in_place(x, y, which):
    if which == "iadd":
        x += y
    elif which == "imul":
        x *= 0.5
    elif which == "isub self":
        x -= x[::-1]
    elif which == "shifted":
        x[1:] += x[:-1]
    elif which == "out":
        np.subtract(x, y, out=x)
    elif which == "out of itself":
        np.add(x[:-1], x[1:], out=x[1:])
    elif which == "slice":
        x[:1] = 7.0
    elif which == "overlap":
        x[1:] = x[:-1]
    elif which == "array":
        x[...] = y
    elif which == "mask":
        x[x > 0] = -1.0
    elif which == "index":
        x[np.array([0, -1])] = 0.25
    elif which == "copyto":
        np.copyto(x, y)
    elif which == "put":
        np.put(x, [0, 1], [3.0, 4.0])
    elif which == "at":
        np.add.at(x, [0, 0], 1.0)
    elif which == "fill":
        x.fill(1.5)
    elif which == "sort":
        x.sort(axis=-1)
    elif which == "flat":
        x.flat[::2] = -2.0
    elif which == "diagonal" and x.ndim == 2:
        np.fill_diagonal(x, 9.0)
    elif which == "nan_to_num":
        np.nan_to_num(x, copy=False)
    elif which == "clip":
        np.clip(x, -100.0, 100.0, out=x)


WRITES = [
    *("iadd", "imul", "isub self", "shifted", "out", "out of itself", "slice"),
    *("overlap", "array", "mask", "index", "copyto", "put", "at", "fill", "sort"),
    *("flat", "diagonal", "nan_to_num", "clip"),
]


def same(x, y):
    """Return whether two arrays hold the same numbers, signs of zeros included."""
    return (
        x.shape == y.shape
        and x.dtype == y.dtype
        and np.array_equal(x, y, equal_nan=True)
        and np.array_equal(np.signbit(x) & (x == 0), np.signbit(y) & (y == 0))
    )


def sides(x):
    """Return the current data of an OzArray on each side, leaving it as it is."""
    storage, view = x._storage, x._view
    found = {}
    if storage.on_host and storage.shared != "device":
        found["host"] = view.copy()
    if storage.on_device:
        there = choice.device_memory().view(
            storage._buffer,
            view.__array_interface__["data"][0]
            - storage.bytes.__array_interface__["data"][0],
            view.shape,
            view.strides,
            view.dtype,
        )
        found["device"] = choice.to_host(there)
    return found


def outcome(function, *args):
    """Return what a call gives: (result, None) or (None, type of the exception)."""
    try:
        return function(*args), None
    except Exception as error:  # noqa: BLE001 - its type is the outcome
        return None, type(error)


class Story(RuleBasedStateMachine):
    """Arrays and their twins."""

    has_device = False

    def __init__(self):
        super().__init__()
        self.pool = []
        self.callers = []  # (ndarray of the caller, twin)
        self.lent = []  # (what numpy.asarray gave, twin)
        self.writers = []  # (write to an export, twin)
        self.errors = np.errstate(all="ignore")
        self.errors.__enter__()

    def teardown(self):
        self.errors.__exit__(None, None, None)

    def pick(self, place):
        return self.pool[place % len(self.pool)]

    def add(self, array, twin):
        self.pool.append((array, twin))
        del self.pool[:-MOST]
        for others in (self.callers, self.lent, self.writers):
            del others[:-MOST]

    @initialize(seed=seeds)
    def begin(self, seed):
        self.snapshot(seed, 0, "C")

    @rule(seed=seeds, place=places, order=st.sampled_from("CF"))
    def snapshot(self, seed, place, order):
        shape = SHAPES[place % len(SHAPES)]
        x = np.random.default_rng(seed).standard_normal(shape)
        twin = np.array(x, order=order)
        self.add(OzArray(twin), twin.copy(order="K"))

    @rule(seed=seeds, place=places)
    def share(self, seed, place):
        shape = SHAPES[place % len(SHAPES)]
        x = np.random.default_rng(seed).standard_normal((2, *shape))[1]
        twin = x.copy()
        self.callers.append((x, twin))
        self.add(OzArray(x, copy=False), twin)

    @precondition(lambda self: self.callers)
    @rule(place=places)
    def caller_writes(self, place):
        x, twin = self.callers[place % len(self.callers)]
        x[:1] = twin[:1] = place
        x *= 0.5
        twin *= 0.5

    @rule(place=places, name=st.sampled_from(sorted(VIEWS)))
    def view(self, place, name):
        x, twin = self.pick(place)
        want, error = outcome(VIEWS[name], twin)
        result, ours = outcome(VIEWS[name], x)
        assert error is None if ours is None else issubclass(ours, error), name
        if isinstance(want, np.ndarray) and np.may_share_memory(want, twin):
            assert np.may_share_memory(result._view, x._view)
            self.add(result, want)

    @rule(place=places, other=places, name=st.sampled_from(sorted(VALUES)))
    def value(self, place, other, name):
        (x, twin), (y, twin_y) = self.pick(place), self.pick(other)
        if twin.shape != twin_y.shape:
            y, twin_y = 2.0, 2.0
        want, error = outcome(VALUES[name], twin, twin_y)
        result, ours = outcome(VALUES[name], x, y)
        assert error is None if ours is None else issubclass(ours, error), name
        if not isinstance(want, np.ndarray):
            return
        assert type(result) is OzArray, name
        assert result.strides == want.strides or 1 in want.shape or not want.size
        self.add(result, want)

    @rule(place=places, other=places, name=st.sampled_from(WRITES))
    def write(self, place, other, name):
        (x, twin), (y, twin_y) = self.pick(place), self.pick(other)
        if twin.shape != twin_y.shape:
            y, twin_y = 0.5, 0.5
        _, error = outcome(_in_place, twin, twin_y, name)
        _, ours = outcome(_in_place, x, y, name)
        assert error is None if ours is None else issubclass(ours, error), name

    @rule(place=places, other=places, way=st.sampled_from(["@", "out", "dot", "@="]))
    def product(self, place, other, way):
        (x, twin), (y, twin_y) = self.pick(place), self.pick(other)
        if twin.ndim < 2:
            return
        if twin.ndim != 2 or twin_y.ndim != 2 or twin.shape[1] != twin_y.shape[0]:
            y, twin_y = x.mT, twin.mT
        want = np_ozaki.matmul(twin.copy(), twin_y.copy(), engine="cpu")
        if way == "@=" and want.shape == twin.shape:
            x @= y
            twin[...] = want
        elif way == "out":
            targets = [p for p in self.pool if p[1].shape == want.shape]
            if targets:
                out, twin_out = targets[other % len(targets)]
                assert np.matmul(x, y, out=out) is out
                twin_out[...] = want
        elif way == "dot" and twin.ndim == 2:
            self.add(x.dot(y), want)
        else:
            self.add(x @ y, want)

    @rule(place=places, device=st.sampled_from(["cpu", "cuda"]))
    def move(self, place, device):
        x, _ = self.pick(place)
        if device == "cpu" or (self.has_device and x._storage.may_move):
            assert x.to_device(device) is x

    @rule(place=places)
    def lend(self, place):
        x, twin = self.pick(place)
        lent = np.asarray(x)
        assert not lent.flags.writeable
        if x._storage.shared != "device":
            self.lent.append((lent, twin))

    @rule(place=places)
    def export(self, place):
        x, twin = self.pick(place)
        if twin.size and x.__dlpack_device__()[0] == 1 and x.flags.writeable:
            writer = np.from_dlpack(x)
            if writer.flags.writeable:
                self.writers.append((writer, twin))

    @rule(place=places)
    def export_device(self, place):
        x, twin = self.pick(place)
        if self.has_device and x._storage.may_move and twin.size:
            x.__cuda_array_interface__  # noqa: B018 - the access is the export
            writer = x._device_view()
            self.writers.append((writer, twin))
            assert x._storage.shared == "device"
            # What was lent of the host's memory before sees no more of it.
            self.lent = [p for p in self.lent if not np.may_share_memory(p[1], twin)]

    @precondition(lambda self: self.writers)
    @rule(place=places)
    def stranger_writes(self, place):
        writer, twin = self.writers[place % len(self.writers)]
        part = slice(1) if twin.ndim else ...
        writer[part] = twin[part] = place / 3

    @invariant()
    def every_side_is_the_twin(self):
        for x, twin in self.pool:
            found = sides(x)
            assert found
            for side, data in found.items():
                assert same(data, twin), (side, data, twin, x._storage.shared)
        for x, twin in (*self.lent, *self.callers):
            assert same(np.asarray(x), twin)


PROFILES = {"quick": (25, 25), "no-shrinking": (25, 25)}
EXAMPLES, STEPS = PROFILES.get(settings.get_current_profile_name(), (200, 50))


def tell(story):
    run_state_machine_as_test(
        story,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS),
    )


def test_on_the_host():
    tell(Story)


def test_on_a_device(monkeypatch):
    twin_device.install(monkeypatch)
    tell(type("DeviceStory", (Story,), {"has_device": True}))


@pytest.mark.gpu
def test_on_a_gpu():
    tell(type("GpuStory", (Story,), {"has_device": True}))
