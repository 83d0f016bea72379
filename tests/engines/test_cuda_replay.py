"""Products of one tile are queued again as they were, for other data."""

import threading

import numpy as np
import pytest
from complex_pairs import join
from devices import LAYOUTS, entries, laid_out, without_memory_once

import np_ozaki
from np_ozaki.config import Options
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.complex_operand import ComplexOperand, embedded
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cuda import CudaEngine
from np_ozaki.engines.cuda_lines import Address, structure
from np_ozaki.engines.cuda_replay import Recorder
from np_ozaki.engines.prepared import Prepared, drop_prepared
from np_ozaki.precision import multiply, schemes
from np_ozaki.testing import assert_same_bits

CPU = CpuEngine()


@pytest.fixture
def engine(place):
    """Return an engine of its own, which has recorded nothing."""
    if not any(x.device.tile_clusters() for x in place.engines()):
        pytest.skip("this GPU makes no residue tiles")
    return CudaEngine(place.hopper.device)


def pair(place, seed, *, batch=1, m=5, n=7, k=9, layout="C", regime="ordinary"):
    rng = np.random.default_rng(seed)
    a, b = entries(rng, (batch, m, k), regime), entries(rng, (batch, k, n), regime)
    return laid_out(place.own, a, layout), laid_out(place.own, b, layout)


ORDINARY = Scheme(15)


def check(place, engine, a, b, scheme=ORDINARY, **options):
    out = place.own(np.full((max(len(a), len(b)), a.shape[1], b.shape[2]), 7.25))
    outcome = engine.matmul(a, b, out, scheme, **options)
    want = np.empty(out.shape)
    x, y = place.host(a), place.host(b)
    expected = CPU.matmul(x, y, want, scheme, **options)
    assert_same_bits(place.host(out), want)
    if outcome.missing_bits is not None:
        assert (outcome.missing_bits == expected.missing_bits).all()
    return outcome


def recorded(engine):
    return sum(x is not None for x in engine._recordings.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("certify", [None, "conventional"])
def test_the_same_bits_again(place, engine, layout, certify):
    kept = []
    for seed in range(3):
        a, b = pair(place, seed, layout=layout)
        kept.append((a, b))  # other addresses
        check(place, engine, a, b, certify=certify)
    assert recorded(engine) == 1


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 7, 9), (1, 130, 3, 4)])
@pytest.mark.parametrize("n", [15, pytest.param(2, marks=pytest.mark.slow), 20])
def test_sizes_and_moduli(place, engine, shape, n):
    batch, m, columns, k = shape
    for seed in range(2):
        a, b = pair(place, seed, batch=batch, m=m, n=columns, k=k)
        check(place, engine, a, b, Scheme(n))
    assert recorded(engine) == 1


def test_a_certificate_that_fails_is_of_these_data(place, engine):
    for seed, regime in enumerate(("ordinary", "wide", "ordinary", "wide")):
        a, b = pair(place, seed, regime=regime)
        outcome = check(place, engine, a, b, certify="conventional")
        assert bool(outcome.missing_bits.any()) == (regime == "wide")
    assert recorded(engine) == 1


def test_auto_waits_once_for_a_sample_and_once_for_the_certificate(
    place, engine, monkeypatch
):
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)
    device, waits = engine.device, []

    def counted(name):
        function = getattr(device, name)

        def call(*args, **kwargs):
            waits.append(name)
            return function(*args, **kwargs)

        return call

    for seed in range(3):
        a, b = pair(place, seed)
        out = place.own(np.full((1, 5, 7), 7.25))
        with monkeypatch.context() as patch:
            for name in ("written", "fetch"):
                patch.setattr(device, name, counted(name))
            served = multiply(engine, a, b, out, Options())
        want = np.empty((1, 5, 7))
        x, y = place.host(a), place.host(b)
        assert served.ways == multiply(CPU, x, y, want, Options()).ways
        assert_same_bits(place.host(out), want)
        if seed:
            assert waits == ["written", "written"]
        waits.clear()
    assert recorded(engine) == 1


def test_every_target_has_its_recording(place, engine):
    a, b = pair(place, 1)
    for target in ("conventional", -10, -96, "conventional", -96):
        check(place, engine, a, b, certify=target)
    assert recorded(engine) == 3


def test_special_lines(place, engine):
    a, b = pair(place, 1)
    check(place, engine, a, b)
    x, y = place.host(a), place.host(b)
    x[0, 1, 2], x[0, 3, 3], y[0, 4, 5] = np.nan, np.inf, -np.inf
    check(place, engine, place.own(x), place.own(y))


@pytest.mark.parametrize("layout", ["C", "F"])
def test_complex_products(place, engine, layout):
    """Conjugates have recordings of their own."""
    scheme, sides = Scheme(16, family="complex"), ("C", layout, "C")
    for seed in range(2):
        for conjugated in ((False, False), (True, False), (False, True)):
            rng = np.random.default_rng(seed)
            a, b, out = (
                laid_out(place.own, join(*(entries(rng, x, "wide") for _ in "xy")), y)
                for x, y in zip(((1, 3, 9), (1, 9, 5), (1, 3, 5)), sides, strict=True)
            )
            left = ComplexOperand(a, left=True, conjugated=conjugated[0])
            right = ComplexOperand(b, left=False, conjugated=conjugated[1])
            outcome = engine.matmul(left, right, out, scheme, certify="conventional")
            parts = np.empty((1, 6, 5))
            real = (
                embedded(place.host(x.x), left=x.left, conjugated=x.conjugated)
                for x in (left, right)
            )
            expected = CPU.matmul(*real, parts, scheme, certify="conventional")
            assert_same_bits(place.host(out), join(parts[:, :3], parts[:, 3:]))
            assert outcome.missing_bits.tolist() == expected.missing_bits.tolist()
    assert recorded(engine) == 3


def test_operands_that_are_one_array(place, engine):
    a, b = pair(place, 1, m=6, n=6, k=6)
    check(place, engine, a, b)
    check(place, engine, a, a)
    check(place, engine, b, b)
    check(place, engine, b, a)
    assert recorded(engine) == 2


def test_symmetric_products(place, engine):
    for seed in range(3):
        a, other = pair(place, seed, m=6, n=6, k=6)
        check(place, engine, a, a.swapaxes(1, 2))
        check(place, engine, a, other.swapaxes(1, 2))
    assert recorded(engine) == 2


# ---- Prepared operands -----------------------------------------------------------


def steps_of(engine):
    """How many kernels the only recording queues."""
    (recording,) = [x for x in engine._recordings.values() if x is not None]
    return len(recording._launches)


@pytest.fixture
def long_ways(engine, monkeypatch):
    """Count products that were not replayed."""
    ways, real = [], CudaEngine._within_memory

    def counted(self, job, workspace_bytes):
        ways.append(job)
        return real(self, job, workspace_bytes)

    monkeypatch.setattr(CudaEngine, "_within_memory", counted)
    return ways


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("certify", [None, "conventional"])
def test_prepared_operands(place, engine, long_ways, layout, sides, certify):
    pairs = [pair(place, seed, layout=layout) for seed in range(3)]
    kept = [tuple(Prepared() if x else None for x in sides) for _ in pairs]
    for turn in range(3):
        for (a, b), prepared in zip(pairs, kept, strict=True):
            check(place, engine, a, b, certify=certify, prepared=prepared)
        # The first turn makes what is kept; the second records once.
        assert len(long_ways) == (3 if turn == 0 else 4)
        assert recorded(engine) == (turn > 0)
    unprepared = CudaEngine(engine.device)
    check(place, unprepared, *pairs[0], certify=certify)
    # What was made is not made again.
    less = steps_of(unprepared) - steps_of(engine)
    assert less == (1 if all(sides) else 0)


def test_what_changed_is_made_again(place, engine, long_ways):
    (a, b), (x, y) = pair(place, 1), pair(place, 2)
    kept = Prepared(), Prepared()
    for _ in range(3):
        check(place, engine, a, b, prepared=kept)
    assert (len(long_ways), recorded(engine)) == (2, 1)
    a[...] = x
    kept[0].close()
    for _ in range(2):
        check(place, engine, a, b, prepared=kept)
    assert len(long_ways) == 3
    b[...] = y
    kept[1].close()
    check(place, engine, a, b, prepared=kept)
    drop_prepared(engine.device.place())
    for _ in range(2):
        check(place, engine, a, b, prepared=kept)
    assert (len(long_ways), recorded(engine)) == (5, 1)


def test_replays_count_what_they_reuse(place, engine):
    a, b = pair(place, 3)
    kept = Prepared(), Prepared()
    out = place.own(np.empty((1, 5, 7)))
    with np_ozaki.enabled(engine="cpu") as scope:
        for _ in range(4):
            engine.matmul(a, b, out, ORDINARY, prepared=kept)
        # One is made anew: the other one counts once.
        kept[0].close()
        engine.matmul(a, b, out, ORDINARY, prepared=kept)
    counted = scope.stats().arrays.prepared
    assert (counted.made, counted.reused) == (3, 2 * 3 + 1)


def test_a_prepared_product_is_no_shortcut_for_others(place, engine):
    a, b = pair(place, 4)
    kept = Prepared(), Prepared()
    for _ in range(3):
        assert check(place, engine, a, b, prepared=kept).recording is None
    assert check(place, engine, a, b).recording is not None


def test_prepared_operands_of_other_kinds(place, engine, long_ways):
    square, other = pair(place, 5, m=6, n=6, k=6)
    many = pair(place, 6, batch=3)
    one = many[0], many[1][:1]
    for a, b in ((square, square.swapaxes(1, 2)), (square, other), many, one):
        kept = Prepared(), Prepared()
        for _ in range(3):
            check(place, engine, a, b, prepared=kept)
        out = laid_out(place.own, np.zeros((len(a), a.shape[1], b.shape[2])), "F")
        for _ in range(2):
            engine.matmul(a, b, out, ORDINARY, prepared=kept)
            want = np.empty(out.shape)
            CPU.matmul(place.host(a), place.host(b), want, ORDINARY)
            assert_same_bits(place.host(out), want)
    assert recorded(engine) == 8


@pytest.mark.parametrize("conjugated", [(False, False), (False, True), (True, False)])
def test_prepared_complex_operands(place, engine, long_ways, conjugated):
    rng = np.random.default_rng(8)
    a, b = (join(*entries(rng, (2, *s), "ordinary")) for s in ((3, 9), (9, 4)))
    scheme, kept = Scheme(16, family="complex"), (Prepared(), Prepared())
    x, y = (z.conj() if conj else z for z, conj in zip((a, b), conjugated, strict=True))
    want = np.empty((1, 6, 4))
    real = embedded(x[None], left=True), embedded(y[None], left=False)
    CPU.matmul(*real, want, scheme)
    for _ in range(4):
        out = place.own(np.zeros((1, 3, 4), complex))
        operands = [
            ComplexOperand(place.own(z[None]), left, conj)
            for z, left, conj in zip((a, b), (True, False), conjugated, strict=True)
        ]
        engine.matmul(*operands, out, scheme, prepared=kept)
        assert_same_bits(place.host(out)[0], join(want[0, :3], want[0, 3:]))
    assert (len(long_ways), recorded(engine)) == (2, 1)


def test_operands_that_there_is_no_room_for(place, engine, long_ways):
    a, b = pair(place, 7)
    kept = Prepared(), Prepared()
    for _ in range(3):
        check(place, engine, a, b, prepared=kept, workspace_bytes=1)
    assert not kept[0].nbytes


def test_products_of_other_kinds_are_not_recorded(place, engine):
    a, b = pair(place, 1)
    low = place.own(np.zeros((1, 5, 7)))
    out = place.own(np.zeros((1, 5, 7)))
    shifts = np.ones((1, 5), np.int64), np.zeros((1, 7), np.int64)
    engine.matmul(a, b, out, Scheme(15), low=low)
    engine.matmul(a, b, out, Scheme(15), line_shifts=shifts)
    engine.matmul(a, b, out, Scheme(15), check=True)
    x, y = place.host(a), place.host(b)
    engine.matmul(x, y, np.empty((1, 5, 7)), Scheme(15))
    for _ in range(2):
        check(place, engine, a, b, Scheme(15, "accurate"))
    assert recorded(engine) == 0


def test_only_so_many_are_kept(place, engine, monkeypatch):
    monkeypatch.setattr("np_ozaki.engines.cuda._MOST_RECORDINGS", 3)
    for k in (2, 3, 4, 5, 6, 2):
        check(place, engine, *pair(place, k, k=k))
    assert recorded(engine) == 3


def test_a_replay_that_finds_no_memory(place, engine, monkeypatch):
    a, b = pair(place, 1)
    check(place, engine, a, b)
    failed = without_memory_once(monkeypatch, engine.device)
    check(place, engine, *pair(place, 2))
    assert failed


def test_threads_share_a_recording(place, engine):
    a, b = pair(place, 0)
    check(place, engine, a, b)
    errors = []

    def work(seed):
        try:
            for i in range(5):
                check(place, engine, *pair(place, 100 * seed + i))
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert recorded(engine) == 1


def test_words_that_look_like_addresses_stay(place, engine):
    a, b = pair(place, 1)
    out = place.own(np.empty((1, 5, 7)))
    recorder = Recorder(engine.device, a, b, out)
    memory = recorder.empty((64,), np.uint8)
    pointer = engine.device.pointer(memory)
    told = structure(recorder.pointer(memory), pointer, 8 + recorder.pointer(memory))
    assert told.addresses == (0, 2)
    first, last = recorder._argument(told)
    assert recorder._words[first:last] == [0, pointer, 8]
    assert recorder._argument(pointer)[0] == last
    assert recorder._words[last] == pointer
    assert recorder.is_complete


@pytest.mark.parametrize(
    "use",
    [
        lambda recorder, x: recorder.own(np.zeros(3)),
        lambda recorder, x: recorder.native(x, x.swapaxes(1, 2)),
        lambda recorder, x: [recorder.fetch(recorder.empty((1,), int)) for _ in "ab"],
        # An address of nobody's.
        lambda recorder, x: recorder._argument(structure(Address(12345))),
        lambda recorder, x: recorder._argument(structure(recorder.pointer(x) + 8)),
    ],
)
def test_what_cannot_be_told_again_makes_a_recording_void(place, engine, use):
    a, b = pair(place, 1)
    recorder = Recorder(engine.device, a, b, place.own(np.empty((1, 5, 7))))
    recorder.empty((4,), np.int32)
    assert recorder.is_complete
    use(recorder, a)
    assert recorder.recording(None) is None


def test_a_recorder_that_gave_up_keeps_no_array(place):
    # A product of many tiles would else need the memory of all of them.
    device = place.engine.device
    recorder = Recorder(device, *(place.own(np.zeros((1, 2, 2))) for _ in range(3)))
    recorder.empty((5,), np.float64)
    assert len(recorder._arrays) == 1
    recorder.free()
    recorder.empty((5,), np.float64)
    assert recorder._arrays == []


@pytest.mark.gpu
def test_a_recording_keeps_no_memory():
    cupy = pytest.importorskip("cupy")
    from np_ozaki.engines.choice import cuda_engine

    engine = CudaEngine(cuda_engine().device)
    a, out = cupy.ones((1, 300, 300)), cupy.empty((1, 300, 300))
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    for _ in range(3):
        engine.matmul(a, a, out, Scheme(15))
        assert pool.used_bytes() == used
