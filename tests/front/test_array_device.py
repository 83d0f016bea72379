"""OzArrays that live on a device: what crosses, when, and what never does.

On the CPU the device is `twin_device`; the same tests run on a GPU.
"""

import gc
import operator
import os
import pickle
import threading

import numpy as np
import pytest
import twin_device

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.array import functions
from np_ozaki.array.storage import Storage
from np_ozaki.engines import choice
from np_ozaki.testing import assert_same_bits

RNG = np.random.default_rng(7)
A, B, C, D = (RNG.standard_normal((24, 24)) for _ in range(4))
PRODUCT = np_ozaki.matmul(A, B, engine="cpu")


@pytest.fixture(params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    """Return the memory of a device that products run on."""
    if request.param == "twin":
        return twin_device.install(monkeypatch)
    return choice.needed_memory()


@pytest.fixture
def twin(monkeypatch):
    return twin_device.install(monkeypatch)


def device_arrays(*arrays):
    return [OzArray(x).to_device() for x in arrays]


def transfers():
    """Return (copies to the device, copies to the host)."""
    seen = np_ozaki.stats().arrays.transfers
    return tuple(
        seen[way].calls if way in seen else 0 for way in ("to device", "to host")
    )


def data(x):
    """Return an OzArray's entries without being counted as a transfer."""
    return choice.to_host(x._device_view()) if x.device != "cpu" else x._view.copy()


# ---- What crosses ----


def test_a_chain_makes_no_copy_between_products(place):
    a, b, c, d = map(OzArray, (A, B, C, D))
    result = a @ b @ c + d
    assert result.device == "cuda:0"
    assert transfers() == (4, 0)
    want = np_ozaki.matmul(PRODUCT, C, engine="cpu") + D
    assert_same_bits(result.copy_to_host(), want)
    assert transfers() == (4, 1)
    seen = np_ozaki.stats()
    assert seen.arrays.transfers["to host"].bytes == A.nbytes
    assert seen.calls("cuda") == 2
    assert "4 copies to device" in str(seen)
    again = a @ b
    assert transfers() == (4, 1)
    assert_same_bits(data(again), PRODUCT)


@pytest.mark.parametrize("dtype", ["f", "F"])
def test_products_of_single_precision_stay_there(place, dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    if dtype == "F":
        a, b = a + 1j * a[::-1], b - 1j * b[:, ::-1]
    want, (x, y) = np_ozaki.matmul(a, b, engine="cpu"), device_arrays(a, b)
    before, out = transfers(), OzArray(np.empty_like(a)).to_device()
    for result in (
        x @ y,
        np.dot(x, y),
        np.einsum("ij,jk->ki", x, y).T,
        np.tensordot(x, y, 1),
        np.matmul(x, y, out=out),
    ):
        assert result.device == "cuda:0"
        assert_same_bits(data(result), want)
    assert transfers() == (before[0] + 1, before[1])
    gram = data(x.conj().T @ x)
    np.testing.assert_array_equal(gram, gram.conj().T)
    assert (x @ OzArray(B)).dtype == np.result_type(dtype, float)
    with np_ozaki.enabled(engine="cuda", dtypes=["float64"]):
        np.testing.assert_allclose((x @ y).copy_to_host(), want, rtol=1e-4, atol=1e-4)
        assert "not among dtypes" in np_ozaki.last_call().fallback


def test_large_snapshots_are_taken_on_the_device(place):
    source = np.asfortranarray(RNG.standard_normal((400, 330)))
    want = source.copy(order="K")
    x = OzArray(source)
    source[:] = 0.0
    assert x.device == "cuda:0"
    assert not x._storage.on_host
    assert x.strides == want.strides
    assert_same_bits(x.copy_to_host(), want)
    assert_same_bits(x.T.copy_to_host(), want.T)
    assert not x._storage.on_host
    assert transfers() == (1, 2)
    assert_same_bits(np.array(x), want)
    assert_same_bits(x[1:].copy_to_host(), want[1:])
    assert OzArray(want[::2]).device == "cpu"
    with np_ozaki.enabled(engine="cpu"):
        assert OzArray(want).device == "cpu"


def test_host_operands_are_brought_for_the_user(place):
    (a,) = device_arrays(A)
    for result in (a @ B, A @ OzArray(B), a.dot(B), np.dot(a, B), np.matmul(A, a)):
        assert type(result) is OzArray
        assert result.device == "cuda:0"
    assert_same_bits(data(a @ B), PRODUCT)
    assert_same_bits(data(np_ozaki.matmul(a, B)), PRODUCT)
    assert type(a @ B[0]) is OzArray
    assert type(A[0] @ OzArray(B[0])) is np.float64


@pytest.mark.parametrize(
    ("call", "on_device"),
    [
        (lambda x, y: x + y, True),
        (lambda x, y: x - 2, True),
        (lambda x, y: 2.5 * x, True),
        (lambda x, y: np.float64(3) / x, True),
        (lambda x, y: np.sqrt(abs(x)), True),
        (lambda x, y: -x, True),
        (lambda x, y: x < y, True),
        (lambda x, y: x == 0, True),
        (lambda x, y: x[3:, ::2] * y[3:, ::2], True),
        (lambda x, y: x.T + y, True),
        (lambda x, y: x.T * y.T, True),
        (lambda x, y: -x.T, True),
        (lambda x, y: x[:, None] + y, True),
        (lambda x, y: x[[0, -1, 3]], True),
        (lambda x, y: x[:, np.array([[1, -2], [0, 5]])], True),
        (lambda x, y: x.copy(), True),
        (lambda x, y: np.copy(x.T), True),
        (lambda x, y: x.T.reshape(-1), True),
        (lambda x, y: x.reshape(4, 144), True),
        (lambda x, y: np.tensordot(x, y, 1), True),
        (lambda x, y: np.inner(x, y), True),
        (lambda x, y: np.einsum("ij,kj->ik", x, y), True),
        (lambda x, y: np.linalg.matrix_power(x / 9, 5), True),
        (lambda x, y: np.linalg.multi_dot([x, y, x]), True),
        (lambda x, y: np.exp(x), False),
        (lambda x, y: np.sum(x, axis=0), False),
        (lambda x, y: x[x > 0], False),
        (lambda x, y: np.concatenate([x, y]), False),
        (lambda x, y: x.astype(np.float32), False),
        (lambda x, y: x + np.float32(1) * np.ones(24, np.float32), False),
        (lambda x, y: x * 1j, False),
        (lambda x, y: x // y, False),
    ],
)
def test_where_work_is_done(place, call, on_device):
    x, y = device_arrays(A, B)
    result = call(x, y)
    assert (result.device == "cuda:0") == on_device
    want = call(OzArray(A).to_device("cpu"), OzArray(B)) if not on_device else None
    with np_ozaki.enabled(engine="cpu"):
        want = call(OzArray(A), OzArray(B))
    assert want.device == "cpu"
    assert result.strides == want.strides
    assert result.dtype == want.dtype
    np.testing.assert_array_equal(data(result), want.copy_to_host())


def test_views_ask_for_no_data(place):
    (x,) = device_arrays(A)
    x += 1
    views = [
        x.T,
        x[3:],
        x[..., None],
        x.reshape(12, 48),
        x.ravel(),
        np.swapaxes(x, 0, 1),
        np.broadcast_to(x, (2, 24, 24)),
        x.squeeze(),
        x.diagonal(),
        np.split(x, 2)[1],
        np.flip(x),
        x.real,
    ]
    assert [np.shape(v) for v in views][3] == (12, 48)
    assert np.zeros_like(x).shape == x.shape
    assert not x._storage.on_host
    assert transfers() == (1, 0)
    x[0] = 5.0
    views[1][0, 0] = -3.0
    assert transfers() == (1, 0)
    assert x[3, 0] == -3.0
    assert transfers()[1] == 1  # of one entry
    assert np_ozaki.stats().arrays.transfers["to host"].bytes == 8


# ---- Coherence ----


def test_writes_by_functions_are_seen_by_products(place):
    x, eye = device_arrays(np.ones((4, 4)), np.eye(4))
    assert_same_bits(data(x @ eye), np.ones((4, 4)))
    view = x[1:3]
    twin = np.ones((4, 4))
    for write in (
        lambda x, v: v.__setitem__(slice(None), 2.0),
        lambda x, v: np.fill_diagonal(x, 5.0),
        lambda x, v: np.copyto(v[0], np.arange(4.0)),
        lambda x, v: np.put(x, [1, 2], [7.0, 8.0]),
        lambda x, v: np.add.at(x, (0, [0, 0]), 1.0),
        lambda x, v: np.multiply(v, 3.0, out=v),
        lambda x, v: x.__imul__(0.5),
        lambda x, v: np.place(x, np.eye(4) > 0, [-1.0]),
        lambda x, v: np.putmask(x, np.eye(4) > 0, -2.0),
        lambda x, v: np.put_along_axis(x, np.array([[0]] * 4), 6.0, axis=1),
        lambda x, v: v.fill(0.25),
        lambda x, v: x.sort(axis=0),
        lambda x, v: np.cumsum(v, 0, None, v),
        lambda x, v: x.partition(2),
        lambda x, v: setattr(x, "flat", 1.0),
        lambda x, v: setattr(v, "real", 4.0),
        lambda x, v: np.nan_to_num(x, copy=False, nan=1.0),
        lambda x, v: np.median(v, overwrite_input=True),
        lambda x, v: x.T.__setitem__((0, slice(None)), 9.0),
    ):
        write(x, view)
        write(twin, twin[1:3])
        assert_same_bits(data(x @ eye), twin)


def test_the_caller_changes_what_was_wrapped(place):
    source = A.copy()
    snapshot, shared = OzArray(source), OzArray(source, copy=False)
    first = shared @ B
    assert_same_bits(data(first), PRODUCT)
    source[:] = C
    assert_same_bits(data(snapshot @ B), PRODUCT)
    assert_same_bits(data(shared @ B), np_ozaki.matmul(C, B, engine="cpu"))
    shared *= 0.5
    assert_same_bits(source, C * 0.5)
    with pytest.raises(np_ozaki.EngineUnavailableError, match="shares host memory"):
        shared.to_device()


def test_a_lent_ndarray_sees_later_writes(place):
    (x,) = device_arrays(A)
    lent = np.asarray(x)
    assert not lent.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        lent.flags.writeable = True
    part = lent[2:]
    del lent
    x += 1.0  # on the host, as an ndarray of it is out
    assert x.device == "cpu"
    assert_same_bits(part, A[2:] + 1)
    del part
    gc.collect()
    x.to_device()
    x += 1.0
    assert x.device == "cuda:0"
    assert_same_bits(x.copy_to_host(), A + 1 + 1)


def test_numpy_asarray_without_a_copy(place):
    (x,) = device_arrays(A)
    x += 0.0
    with pytest.raises(ValueError, match="copy_to_host"):
        np.asarray(x, copy=False)
    assert transfers() == (1, 0)
    host = np.array(x)
    host[0] = 0.0
    assert_same_bits(x.copy_to_host(), A)
    assert np_ozaki.stats().arrays.conversions == 2
    seen = np.asarray(x)
    assert np.shares_memory(np.asarray(x, copy=False), seen)


def test_out_routes_as_without_it(place):
    a, b, out = device_arrays(A, B, C)
    assert np.matmul(a, b, out=out) is out
    assert transfers() == (3, 0)
    assert_same_bits(data(out), PRODUCT)
    plain = np.empty((24, 24))
    assert np.matmul(a, b, out=plain) is plain
    assert_same_bits(plain, PRODUCT)
    assert np_ozaki.matmul(a, b, out=out[::-1]).device == "cuda:0"
    assert_same_bits(data(out)[::-1], PRODUCT)
    shared = OzArray(plain, copy=False)
    plain[:] = 0
    assert np.matmul(a, b, out=shared) is shared
    assert_same_bits(plain, PRODUCT)
    assert np.matmul(a, b, out=a) is a  # overlaps an operand
    assert_same_bits(data(a), PRODUCT)
    frozen = OzArray(A).to_device()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"read-only|writeable"):
        np.matmul(out, b, out=frozen)
    with pytest.raises(ValueError, match="read-only"):
        frozen += 1
    with pytest.raises(ValueError, match="read-only"):
        frozen[0] = 1


def _shifted(x):
    x[1:] += x[:-1]


def _reversed(x):
    x -= x[::-1]


def _itself(x):
    x *= x


@pytest.mark.parametrize(
    "write",
    [
        _shifted,
        _reversed,
        _itself,
        lambda x: np.add(x[:-1], x[1:], out=x[1:]),
        lambda x: np.subtract(x, x.T, out=x),
        lambda x: x.__setitem__(slice(1, None), x[:-1]),
        lambda x: x.__setitem__(slice(None), x[::-1]),
    ],
)
def test_operands_that_overlap_the_target(place, write):
    (x,) = device_arrays(A)
    twin = A.copy()
    write(x)
    write(twin)
    assert_same_bits(x.copy_to_host(), twin)


@pytest.mark.parametrize(
    "host",
    [
        np.zeros((4, 6)),
        np.zeros((4, 6), order="F"),
        np.zeros((8, 6))[::2],
        np.zeros(24)[::-1],
        np.zeros((4, 6))[::-1, ::-1],
        np.zeros((4, 6))[:, ::-1],
    ],
)
def test_where_a_view_begins(host):
    storage = Storage(host, shared="host")
    start = host.ctypes.data
    for view in (
        host,
        host.T,
        host.view(),
        host[::-1],
        host[1:],
        host[..., ::-1],
        np.flip(host),
        host[:0],
        host[..., None],
        np.broadcast_to(host[:1], host.shape),
    ):
        assert storage.offset(view) == view.ctypes.data - start


# ---- Honest errors ----


def test_integers_out_of_bounds(place):
    (x,) = device_arrays(A)
    for key in ([0, 24], np.array([-25]), (slice(None), [24])):
        with pytest.raises(IndexError, match="out of bounds"):
            x[key]


def test_floating_point_errors_that_are_asked_for(place):
    (x,) = device_arrays(np.zeros((2, 2)))
    assert np.isnan((x / x).copy_to_host()).all()
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        x / x
    caught = []
    with np.errstate(call=lambda *args: caught.append(args), divide="call"):
        assert (1 / x).device == "cpu"
    assert caught


@pytest.mark.parametrize("name", ["add", "eq", "matmul"])
def test_shapes_that_do_not_fit(place, name):
    x, y = device_arrays(A, np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"broadcast|equal length"):
        getattr(operator, name)(x, y)
    with pytest.raises(ValueError, match="broadcast"):
        x[:] = y


def test_no_room_on_the_device(twin):
    twin.largest = A.nbytes - 1
    a = OzArray(A)
    result = a @ B
    assert_same_bits(result.copy_to_host(), PRODUCT)
    assert a.device == "cpu"
    small = OzArray(A[:2]).to_device()
    twin.largest = small.nbytes - 1
    assert_same_bits((small + 1.0).copy_to_host(), A[:2] + 1)
    assert_same_bits(small[[1, 0]].copy_to_host(), A[[1, 0]])
    assert_same_bits(small.copy().copy_to_host(), A[:2])


def test_strict_mode(place):
    (x,) = device_arrays(A)
    x += 0.0
    with np_ozaki.strict():
        for convert in (
            lambda: np.asarray(x),
            lambda: np.exp(x),
            lambda: np.sum(x),
            lambda: x // 2,
            lambda: x.max(),
            lambda: x[x > 0],
        ):
            with pytest.raises(np_ozaki.ConversionError, match="copy_to_host"):
                convert()
        assert x.copy_to_host().shape == A.shape
        assert isinstance(x.tolist(), list)
        assert float(x[0, 0]) == A[0, 0]
        assert "OzArray" in repr(x)
        with np_ozaki.strict(False):
            np.asarray(x)
    np.asarray(x)


def test_strict_mode_without_a_device():
    x = OzArray(A)
    with np_ozaki.strict():
        assert np.exp(x).shape == A.shape  # nothing crosses, nothing converts
        with pytest.raises(TypeError, match=r"numpy\.asarray"):
            np.asarray(x)
        seen = []
        other = threading.Thread(target=lambda: seen.append(np.asarray(x)))
        other.start()
        other.join()
    assert len(seen) == 1  # of another context


def test_devices_by_name(place):
    x = OzArray(A)
    assert x.device == "cpu"
    assert x.to_device("cuda:0") is x
    assert x.device == "cuda:0"
    assert x.to_device("cpu").device == "cpu"
    for wrong in ("gpu", "cuda:", "cuda:x", ""):
        with pytest.raises(ValueError, match="device"):
            x.to_device(wrong)
    with pytest.raises(np_ozaki.EngineUnavailableError, match="current device is 0"):
        x.to_device("cuda:7")
    with pytest.raises(np_ozaki.EngineUnavailableError, match="dtype"):
        OzArray(np.array(["text"])).to_device()


def test_without_a_device():
    x = OzArray(A)
    with pytest.raises(np_ozaki.EngineUnavailableError, match="GPU"):
        x.to_device()
    assert x.to_device("cpu") is x
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.__dlpack_device__() == (1, 0)


def test_another_current_device(twin):
    (x,) = device_arrays(A)
    x += 1.0
    twin.current = 1
    y = x + 1.0
    assert x.device == "cuda:1"
    assert_same_bits(y.copy_to_host(), A + 1 + 1)
    x.__cuda_array_interface__  # noqa: B018 - the access is the export
    twin.current = 0
    with pytest.raises(np_ozaki.EngineUnavailableError, match="device 1"):
        x + 1.0


# ---- Exports and imports ----


def test_a_writable_export_keeps_no_copies(place):
    large = RNG.standard_normal((72, 72))  # would be kept as an operand
    (x,) = device_arrays(large)
    interface = x.__cuda_array_interface__
    assert interface["shape"] == large.shape
    writer = x._device_view()
    for value in (3.0, 4.0):
        writer[0] = value
        assert x[0, 0] == value
        assert np.asarray(x)[0, 5] == value
        assert (x @ np.eye(72)).copy_to_host()[0, 3] == value
    np.negative(x[1:], out=x[1:])
    np.put(x, [0], [8.0])  # on the host, and back
    assert float(choice.to_host(x._device_view())[0, 0]) == 8.0
    assert_same_bits(data(x)[1:], -large[1:])
    x.to_device("cpu")
    assert x.device == "cuda:0"


def test_dlpack(place):
    (x,) = device_arrays(A)
    assert tuple(map(int, x.__dlpack_device__())) == (2, 0)
    with pytest.raises(BufferError, match="copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    x.to_device("cpu")
    there = np.from_dlpack(x)
    assert x.__dlpack_device__() == (1, 0)
    x += 1.0
    assert_same_bits(there, A + 1)
    assert_same_bits(data(x @ B), np_ozaki.matmul(A + 1, B, engine="cpu"))
    with pytest.raises(np_ozaki.EngineUnavailableError):
        x.to_device()  # someone else may write the host's memory


def test_arrays_of_other_libraries(place):
    (x,) = device_arrays(A)
    theirs = x.copy()._device_view()
    snapshot, shared = OzArray(theirs), OzArray(theirs, copy=False)
    theirs[0] = 0.0
    assert_same_bits(snapshot.copy_to_host(), A)
    assert (shared.copy_to_host()[0] == 0).all()
    shared[1] = 1.0
    assert (choice.to_host(theirs)[1] == 1).all()
    backwards = OzArray(theirs[::-1, 1:], copy=False)
    assert_same_bits(backwards.copy_to_host(), choice.to_host(theirs)[::-1, 1:])
    # On the left CuPy's own arrays answer, in their way.
    for result in (x + theirs, x @ theirs, np.add(x, theirs), np.matmul(x, theirs)):
        assert type(result) is OzArray
        assert result.device == "cuda:0"
    assert_same_bits(data(snapshot @ theirs), data(snapshot @ shared))


class OnlyDLPack:
    """What speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_from_the_host():
    source = A.copy()
    snapshot = OzArray(OnlyDLPack(source))
    shared = OzArray(OnlyDLPack(source), copy=False)
    source[0] = 1.0
    assert_same_bits(snapshot.copy_to_host(), A)
    assert (np.asarray(shared)[0] == 1.0).all()


def test_pickles_carry_the_data(place):
    (x,) = device_arrays(A)
    x += 1
    twin = pickle.loads(pickle.dumps(x[2:]))
    assert type(twin) is OzArray
    assert_same_bits(twin.copy_to_host(), A[2:] + 1)
    twin[0] = 0
    assert x[2, 0] != 0


def test_threads_share_one_copy(place):
    x = OzArray(A)
    results = []
    threads = [threading.Thread(target=lambda: results.append(x @ B)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for result in results:
        assert_same_bits(data(result), PRODUCT)
    assert transfers()[0] == 1 + 8  # x once, B by each


def test_scopes_choose_the_engine(place):
    (x,) = device_arrays(A)
    with np_ozaki.enabled(engine="cpu"):
        result = x @ B
    assert result.device == "cpu"
    assert_same_bits(result.copy_to_host(), PRODUCT)
    assert np_ozaki.last_call().engine == "cpu"
    with np_ozaki.enabled(engine="native", min_flops=0):
        assert (x @ B).shape == A.shape
    assert np_ozaki.last_call().engine == "native"


# ---- What attackers found ----


def test_refused_writes_spoil_nothing(place):
    x, y = device_arrays(A, B)
    x += 0.0
    with np_ozaki.strict():
        for write in (
            lambda: np.fill_diagonal(x, 1.0),
            lambda: np.copyto(y, x, where=A > 0),
            lambda: OzArray(A).sum(axis=0, out=x[0]),
            lambda: x.sort(),
            lambda: setattr(x, "real", 0.0),
            lambda: x.flat.__setitem__(0, 1.0),
            lambda: np.einsum("ij,jk", A, y, out=x, optimize=True),
        ):
            with pytest.raises(np_ozaki.ConversionError):
                write()
    assert_same_bits(x.copy_to_host(), A + 0.0)
    assert_same_bits(y.copy_to_host(), B)


def test_a_failed_copy_spoils_nothing(twin, monkeypatch):
    (x,) = device_arrays(A)
    x += 0.0

    def failing(*args):
        raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(twin, "download", failing)
        for write in (lambda: np.fill_diagonal(x, 1.0), lambda: x.sort()):
            with pytest.raises(RuntimeError, match="lost"):
                write()
    assert_same_bits(x.copy_to_host(), A + 0.0)


def test_arguments_of_views_are_data(place):
    y, cuts, axis = device_arrays(A, np.array([2, 5]), np.array([1]))
    cuts._device_view()[...] = choice.as_device_array(np.array([1, 3]))
    cuts._storage.hand_out("device")
    assert [len(part) for part in np.split(y, cuts)] == [1, 2, 21]
    assert np.broadcast_to(y[:1, :1], OzArray([3, 8]).to_device()).shape == (3, 8)
    assert np.expand_dims(y, axis[0]).shape == (24, 1, 24)


class Returns:
    """Answers operators of ndarrays with its operand, and keeps it."""

    __array_priority__ = 50.0

    def __rmatmul__(self, other):
        self.kept = other
        return other

    __radd__ = __rmul__ = __rmatmul__


@pytest.mark.parametrize("function", [operator.matmul, operator.add, operator.imatmul])
def test_strangers_get_no_secret_memory(function):
    big = RNG.standard_normal((80, 80))
    x, stranger = OzArray(big), Returns()
    x @ big
    result = function(x, stranger)
    assert isinstance(result, OzArray)
    if function is not operator.imatmul:
        assert not stranger.kept.flags.writeable
        result[...] = 0.0
    assert_same_bits(np.asarray(x @ big), np_ozaki.matmul(np.array(x), big))


def test_operators_of_strangers_see_current_data(place):
    class Looks:
        __array_ufunc__ = None

        def __rmatmul__(self, other):
            return float(other[0, 0])

    (x,) = device_arrays(np.zeros((2, 2)))
    x += 1.0
    assert x @ Looks() == 1.0
    with pytest.raises(TypeError):
        x @= Looks()


def test_entries_and_results_of_callbacks_belong_to_others():
    others, eye = np.ones((80, 80)), np.eye(80)
    holder = np.empty(1, object)
    holder[0] = others
    found = [
        OzArray(holder)[0],
        OzArray(holder).flat[0],
        np.take(OzArray(holder), 0),
        np.frompyfunc(lambda _: others, 1, 1)(OzArray(0.0)),
        np.add.reduce(OzArray(holder)),
        np.fromfunction(lambda i, j: others, (1, 1), like=OzArray(0.0)),
    ]
    for y in found:
        np_ozaki.matmul(y, eye)
    others[...] = 2.0
    for y in found:
        assert (np.asarray(np_ozaki.matmul(y, eye)) == np.asarray(y)).all()


def test_writes_inside_of_writes(place):
    (x,) = device_arrays(np.ones((64, 64)))

    class Value:
        def __array__(self, dtype=None, copy=None):
            x[1] = 7.0
            return np.zeros(64)

    x[0] = Value()
    assert x[0, 0] == 0.0
    assert x[1, 0] == 7.0


def test_threads_write_other_parts(place):
    (x,) = device_arrays(np.ones((64, 64)))
    stop, failed = threading.Event(), []

    def forever(work):
        try:
            while not stop.is_set():
                work()
        except Exception as error:  # noqa: BLE001 - shown below
            failed.append(error)

    def host():
        np.add(x[0], 2, out=x[0], where=True)

    def there():
        x[1] = 3.0

    def scaled():
        x[2] *= 1.0

    workers = [
        threading.Thread(target=forever, args=(work,))
        for work in (host, there, scaled, lambda: x @ B[:1].repeat(64, 0), lambda: x.T)
    ]
    for worker in workers:
        worker.start()
    for _ in range(30):
        lent = np.asarray(x)
        x[3] += 1.0
        assert lent[3, 0] == x[3, 0]
        del lent
    stop.set()
    for worker in workers:
        worker.join()
    assert failed == []
    x[0] = 1.0
    want = np.ones((64, 64))
    want[1], want[3] = 3.0, 31.0
    assert_same_bits(x.copy_to_host(), want)
    assert_same_bits(data(x @ want), np_ozaki.matmul(want, want, engine="cpu"))


def test_an_interrupted_write_on_the_device(twin, monkeypatch):
    (x,) = device_arrays(A)
    x.copy()
    np.array(x[:1])

    def interrupted(self, key, value):
        self.memory[0] = 5.0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(twin_device.DeviceArray, "__setitem__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            x[...] = 5.0
    assert_same_bits(x.copy_to_host(), data(x.to_device()))
    assert x[0, 0] == 5.0


def test_masks_and_classes_do_not_depend_on_residence(place):
    (x,) = device_arrays(A)
    masked = np.ma.masked_array(A, mask=A > 1)
    for call in (
        lambda x: x @ masked,
        lambda x: np.matmul(x, masked),
        lambda x: np.dot(x, masked),
        lambda x: np.inner(x, masked),
        lambda x: x + masked,
    ):
        assert type(call(x)) is type(call(OzArray(A, copy=False))) is not OzArray


def test_buffers_that_are_pickled_out_of_band_are_read_only():
    x, buffers = OzArray(np.ones((80, 80))), []
    text = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert buffers[0].raw().readonly
    twin = pickle.loads(text, buffers=buffers)
    twin[0] = 5.0
    assert x[0, 0] == 1.0


def test_writes_that_nobody_knows_of_are_errors(monkeypatch):
    monkeypatch.setattr(functions, "_WRITES", {})
    x = OzArray(A)
    for write in (
        lambda: np.put(x, [0], [1.0]),
        lambda: np.fill_diagonal(x, 1.0),
        lambda: np.copyto(x, 1.0),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert_same_bits(np.asarray(x), A)


def test_what_is_kept_is_given_back_at_a_write():
    x = OzArray(RNG.standard_normal((80, 80)))
    x @ x
    x @ x
    kept = [x._prepared(left=left) for left in (True, False)]
    assert all(each.nbytes for each in kept)
    x[0] = 1.0
    assert not any(each.nbytes for each in kept)
    # Other data: what was used once is forgotten, too.
    assert x._prepared(left=True) is None


def test_an_operand_is_kept_from_its_second_product_on():
    x, y = (OzArray(RNG.standard_normal((80, 80))) for _ in "xy")
    want = [data(x @ y), data(y @ x)]
    seen = []
    for _ in range(3):
        with np_ozaki.enabled(engine="cpu") as scope:
            assert_same_bits(data(x @ y), want[0])
        counted = scope.stats().arrays.prepared
        seen.append((counted.made, counted.reused > 0))
    assert seen == [(2, False), (0, True), (0, True)]
    # In the other roles it is their second time now.
    for made in (2, 0):
        with np_ozaki.enabled(engine="cpu") as scope:
            assert_same_bits(data(y @ x), want[1])
        assert scope.stats().arrays.prepared.made == made
    once = OzArray(RNG.standard_normal((80, 80)))
    assert once._prepared(left=True) is None
    assert once._prepared(left=False, at_once=True) is not None
    assert once._prepared(left=True) is not None


def test_what_is_kept_of_many_views_is_bounded():
    x = OzArray(RNG.standard_normal((300, 64)))
    for i in range(200):
        x[i : i + 64] @ x[0]
    assert len(x._storage._prepared) <= 64


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_small_indices(place, dtype):
    (x,) = device_arrays(np.arange(1000.0)[:, None] * np.ones(3))
    assert data(x[np.array([1, 2], dtype)])[:, 0].tolist() == [1.0, 2.0]
    assert data(x[..., np.array([0], dtype)]).shape == (1000, 1)


def test_iteration_sees_writes(place):
    (z,) = device_arrays(np.arange(4.0))
    z += 0.0
    seen = []
    for i, value in enumerate(z):
        seen.append(float(value))
        if i < 3:
            z[i + 1] = 100.0
    assert seen == [0.0, 100.0, 100.0, 100.0]


def test_layout_of_picked_entries(place):
    x = device_arrays(RNG.standard_normal((5, 6, 7)))[0].transpose(2, 0, 1)
    twin = x.copy_to_host()
    twin = np.ascontiguousarray(twin.transpose(1, 2, 0)).transpose(2, 0, 1)
    for key in (
        (slice(None), np.array([[0, 1], [2, 3]])),
        np.array([3, 1]),
        (..., np.array([0, 5])),
    ):
        assert x[key].strides == twin[key].strides
        assert x[key].device == "cuda:0"


def test_multi_dot_follows_numpy():
    x, v = OzArray(A), A[0]
    assert type(np.linalg.multi_dot([v, x, v])) is np.float64
    for out in (np.empty((24, 24), np.float32), np.empty(24)):
        with pytest.raises(ValueError, match=r"output array|aligned|out|shape"):
            np.linalg.multi_dot([x, x, x], out=out)
    assert bytes(OzArray([1, 2])) == np.array([1, 2]).tobytes()
    with pytest.raises(ValueError, match=r".*"):
        np.tensordot(x, x, "a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_what_is_on_the_host(twin, monkeypatch):
    (both,) = device_arrays(A)
    alone = both + 1.0
    monkeypatch.setattr(choice, "device_memory", lambda: None)  # as in the child
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "forked")
    assert both.device == "cpu"
    assert_same_bits((both + 1.0).copy_to_host(), A + 1.0)
    both[0] = 1.0
    assert both[[0]].shape == (1, 24)
    with pytest.raises(np_ozaki.EngineUnavailableError, match="forked"):
        np.exp(alone)


def test_dlpack_names_the_device(place):
    (x,) = device_arrays(A)
    with pytest.raises(BufferError, match="dl_device"):
        x.__dlpack__(dl_device=(2, 7))
    with pytest.raises(BufferError, match="dl_device"):
        x.__dlpack__(dl_device=(10, 0))


@pytest.mark.gpu
def test_streams_are_put_in_order():
    import cupy

    size = 4000
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream()
    big = RNG.standard_normal((size, size))
    want = np_ozaki.matmul(big, big)
    for _ in range(3):
        with first:
            x = OzArray(big)
            y = x @ x  # on its way for milliseconds
        with second:
            x *= 0.0  # after the product has read it
            total = y + 0.0  # after the product has written it
        assert_same_bits(total.copy_to_host(), want + 0.0)
        assert not x.copy_to_host().any()
        del x, y, total


@pytest.mark.gpu
def test_cupy_takes_exports():
    import cupy

    (x,) = device_arrays(A)
    for theirs in (cupy.asarray(x), cupy.from_dlpack(x)):
        theirs += 1.0
        assert x[0, 0] == theirs[0, 0].get()
    assert_same_bits(x.copy_to_host(), A + 1 + 1)
    assert_same_bits(cupy.asnumpy(cupy.asarray(OzArray(A, copy=False))), A)


class Value:
    """A number that calls user code when it is asked for."""

    def __init__(self, call):
        self.call = call

    def __float__(self):
        self.call()
        return 4.0


def store(x, call):
    values = np.array([Value(call)], object)
    np.copyto(x[0, :1], values, casting="unsafe")


def test_user_code_in_writes_waits_for_nobody(place):
    x, y = device_arrays(np.ones((64, 64)), np.ones((64, 64)))

    def elsewhere(work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    def others():
        elsewhere(lambda: y @ x)
        elsewhere(lambda: x.__setitem__((1, 1), 2.0))
        elsewhere(lambda: np.asarray(x))

    store(x, others)
    want = np.ones((64, 64))
    want[0, 0], want[1, 1] = 4.0, 2.0
    assert_same_bits(x.copy_to_host(), want)
    assert_same_bits(data(x @ np.eye(64)), want)


def test_nested_reads_of_shared_device_memory(place):
    theirs = OzArray(np.ones((8, 8))).to_device()._device_view()
    x = OzArray(theirs, copy=False)
    for call in (lambda: x.sum(), lambda: np.asarray(x)):
        np.copyto(x[0, :3], np.array([Value(call)] * 3, object), casting="unsafe")
        assert x[0, :3].tolist() == [4.0] * 3
        x[0] = 1.0


def test_a_write_by_a_signal_in_a_write_on_the_device(twin, monkeypatch):
    (x,) = device_arrays(np.ones((4, 4)))
    plain = twin_device.DeviceArray.__setitem__

    def interrupted(self, key, value):
        monkeypatch.setattr(twin_device.DeviceArray, "__setitem__", plain)
        np.copyto(x[3], np.float32(7))
        plain(self, key, value)

    monkeypatch.setattr(twin_device.DeviceArray, "__setitem__", interrupted)
    x[0] = 5.0
    assert x[3, 0] == 7.0
    assert x.copy_to_host().shape == (4, 4)


def test_what_others_may_keep_is_lent(place):
    class Keeps(np.ndarray):
        def __radd__(self, other):
            Keeps.kept = other
            return 0

        __rmul__ = __radd__

    (y,) = device_arrays(np.ones((80, 80)))
    stranger = np.ones((80, 80)).view(Keeps)
    y @ y
    y + stranger
    assert not Keeps.kept.flags.writeable
    del Keeps.kept

    class Priority:
        __array_priority__ = 50.0

        def __radd__(self, other):
            self.kept = other
            return 0

    keeper = Priority()
    z = y.copy()
    before = z
    z += keeper
    keeper.kept[...] = 6.0
    assert_same_bits(
        (before @ np.eye(80)).copy_to_host(), np.full((80, 80), before[0, 0])
    )
    holder = OzArray(np.empty(3, object))
    holder[0] = y
    assert holder[0] is y
    holder[1:] = [y, None]
    holder.flat[2] = y
    y[...] = 3.0
    assert holder[0][0, 0] == 3.0
    with pytest.raises(ValueError, match="read-only"):
        holder[1][0, 0] = 1.0
