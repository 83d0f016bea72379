"""Prepared operands: the same bits, nothing made twice, memory within its limit."""

import gc
import os
import threading

import numpy as np
import pytest
from devices import LAYOUTS, entries, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st

import np_ozaki
from np_ozaki import tiling
from np_ozaki.config import Options
from np_ozaki.engines import cpu, cpu_operand, prepared, workspace
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.prepared import (
    HOST,
    UNPREPARED,
    Keeper,
    Prepared,
    drop_prepared,
    prepared_bytes,
)
from np_ozaki.errors import CheckError, OptionError, ShapeError
from np_ozaki.gemm import DoubleDouble, matmul_arrays, prepare_array
from np_ozaki.precision import multiply, schemes
from np_ozaki.testing import REGIMES, assert_same_bits

CPU = CpuEngine(1)

# Simulated products are slow: a share of the examples of a profile.
few = settings(max_examples=max(12, settings.default.max_examples // 5))

layouts = st.sampled_from(sorted(LAYOUTS))
regimes = st.sampled_from(REGIMES)
seeds = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def shelf(monkeypatch):
    """Let each test begin with an empty shelf."""
    monkeypatch.setattr(prepared, "_shelf", prepared._Shelf())


def pair():
    return Prepared(), Prepared()


def product(a, b, kept=UNPREPARED, *, double=False, **options):
    options = Options(engine="cpu", **options)
    result, info = matmul_arrays(
        a, b, None, route="test", options=options, double=double, prepared=kept
    )
    parts = result if isinstance(result, DoubleDouble) else (result,)
    return parts, info


def same_twice(a, b, kept=None, **options):
    """Assert that keeping, and using what was kept, changes nothing."""
    want, told = product(a, b, **options)
    for _ in range(3):
        found, info = product(a, b, kept := kept or pair(), **options)
        for x, y in zip(found, want, strict=True):
            assert_same_bits(x, y)
        assert info == told
    return kept


def counts():
    seen = np_ozaki.stats().arrays.prepared
    return seen.made, seen.reused, seen.evicted


def ordinary(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.fixture
def spy(monkeypatch):
    """Count calls of the CPU engine's stages."""
    calls = {"residues": 0, "line_exponents_of": 0}

    def counted(name):
        right = getattr(CpuEngine, name)

        def stage(*args, **kwargs):
            calls[name] += 1
            return right(*args, **kwargs)

        return staticmethod(stage) if name == "line_exponents_of" else stage

    for name in calls:
        monkeypatch.setattr(CpuEngine, name, counted(name))
    monkeypatch.setattr(
        cpu_operand,
        "finite_lines",
        lambda *args, right=cpu_operand.finite_lines: (
            calls.update(lines=calls.get("lines", 0) + 1) or right(*args)
        ),
    )
    return calls


# ---- Bits ------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["norm", "accurate", "legacy"])
@pytest.mark.parametrize("precision", ["auto", 2, 15, 30])
def test_scalings(scaling, precision):
    kept = same_twice(
        ordinary(70, 80), ordinary(80, 60), precision=precision, scaling=scaling
    )
    assert all(x.nbytes for x in kept)


@pytest.mark.parametrize("precision", [1e-6, 1e-13, "exact"])
def test_promises(precision):
    a, b = ordinary(70, 90), ordinary(90, 60)
    same_twice(a, b, precision=precision)
    same_twice(np.rint(99 * a), b, precision=precision)


@pytest.mark.parametrize("precision", ["auto", "exact", 20])
def test_double_doubles(precision):
    same_twice(ordinary(70, 90), ordinary(90, 60), precision=precision, double=True)


@pytest.mark.parametrize("check", [True, "recompute"])
def test_checked_products(check):
    same_twice(ordinary(70, 90), ordinary(90, 60), check=check)


@pytest.mark.parametrize("whose", [0, 1])
def test_operands_that_lend_bits(whose):
    full, short = ordinary(300, 300), np.rint(20 * ordinary(300, 299)).T
    a, b = (short, full[:, :260]) if whose == 0 else (full, short.T)
    kept = pair()
    info = product(a, b, kept)[1]
    assert info.shift != 0
    same_twice(a, b, kept)
    # A partner that lends nothing, or to which nothing is lent, has other exponents.
    for x in (ordinary(*a.shape), np.rint(3 * ordinary(*a.shape))):
        same_twice(x, b, (Prepared(), kept[1]))
        same_twice(x, b, (Prepared(), kept[1]), precision=12)


def test_nan_and_infinities():
    a, b = ordinary(70, 90), ordinary(90, 60)
    a[3, 4], a[5], b[7, 8], b[:, 9] = np.nan, np.inf, -np.inf, 0.0
    kept = pair()
    with np.errstate(invalid="ignore"):
        same_twice(a, b, kept)
        same_twice(ordinary(20, 90), b, (Prepared(), kept[1]))
        same_twice(a, ordinary(90, 30), (kept[0], Prepared()))


def test_rebalanced_and_hopeless_operands():
    d = np.ldexp(1.0, np.random.default_rng(0).integers(-300, 301, 90))
    a, b = ordinary(70, 90) * d, ordinary(90, 60) / d[:, np.newaxis]
    kept = pair()
    info = product(a, b, kept)[1]
    assert info.rebalanced
    same_twice(a, b, kept)
    same_twice(a, ordinary(90, 60), (kept[0], Prepared()))


@few
@given(st.data(), seeds, regimes, regimes)
def test_any_operands(data, seed, one, other):
    rng = np.random.default_rng(seed)
    sides = st.integers(1, 90)
    m, n, k = data.draw(sides), data.draw(sides), data.draw(sides)
    batch = data.draw(st.sampled_from([(1, 1), (3, 3), (3, 1), (1, 3)]))
    a, b = entries(rng, (batch[0], m, k), one), entries(rng, (batch[1], k, n), other)
    layout = data.draw(st.tuples(layouts, layouts))
    a, b = (laid_out(np.array, x, name) for x, name in zip((a, b), layout, strict=True))
    options = {
        "precision": data.draw(st.sampled_from(["auto", 8, 15, 1e-9])),
        "scaling": data.draw(st.sampled_from(["norm", "norm", "accurate"])),
        "check": data.draw(st.booleans()),
    }
    with np.errstate(all="ignore"):
        same_twice(a, b, **options)
        # The same operands by other numbers of moduli.
        kept = pair()
        for precision in (2, 30, "auto"):
            same_twice(a, b, kept, precision=precision)


def test_one_prepared_operand_with_many_partners():
    a = ordinary(100, 90)
    kept = Prepared()
    for n in (1, 3, 64, 200):
        same_twice(a, ordinary(90, n), (kept, None))
        same_twice(a, ordinary(90, n), (kept, Prepared()))
    same_twice(a, ordinary(90), (kept, None))
    assert counts()[0] == 5


def test_a_product_with_itself():
    a = ordinary(80, 80)
    same_twice(a, a)
    kept = Prepared()
    # One object for both roles: they are told apart.
    same_twice(a, a, (kept, kept))
    same_twice(a, a.T, (kept, kept))


def test_stacks_that_are_repeated_are_not_kept():
    a = ordinary(2, 1, 60, 70)
    kept = Prepared()
    same_twice(a, ordinary(2, 70, 50), (kept, None))
    same_twice(a, ordinary(2, 2, 1, 70, 50), (kept, None))
    assert kept.nbytes == 0
    same_twice(a, ordinary(2, 1, 70, 50), (kept, None))
    same_twice(a, ordinary(70, 50), (kept, None))
    assert kept.nbytes > 0


@pytest.mark.parametrize("bytes_", [4 << 20, 6 << 20])
def test_tiles_of_kept_planes(bytes_):
    # A's planes are kept, or are too large for it; products run in tiles.
    a, b = ordinary(300, 400), ordinary(400, 350)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        kept = same_twice(x, y, workspace_bytes=bytes_)
        assert all(each.nbytes for each in kept)
        assert prepared_bytes()[HOST] <= bytes_


def test_blocks_of_k(monkeypatch):
    monkeypatch.setattr(cpu, "EXACT_K_BLOCK", 32)
    tiling.choose_tiles.cache_clear()
    same_twice(ordinary(70, 90), ordinary(90, 60))


def test_batches_in_parts(monkeypatch):
    monkeypatch.setattr(tiling, "_PREFERRED_BYTES", 1 << 20)
    tiling.choose_tiles.cache_clear()
    a, b = ordinary(7, 60, 70), ordinary(7, 70, 50)
    a[3, 4, 5] = np.inf
    same_twice(a, b)
    same_twice(a[:1], b)
    same_twice(a, b, check=True)
    # Only some matrices are tried again.
    d = np.ldexp(1.0, np.random.default_rng(0).integers(-300, 301, 70))
    a[2], b[2] = a[2] * d, b[2] / d[:, np.newaxis]
    same_twice(a, b)
    same_twice(a, b[:1])
    tiling.choose_tiles.cache_clear()


def test_matrices_of_a_batch_that_take_schemes_of_their_own(monkeypatch):
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)
    a, kept = ordinary(3, 60, 70), Prepared()
    for short in range(3):
        # Each time others of A's matrices are multiplied together.
        b = ordinary(3, 70, 50)
        b[short] = np.rint(9 * b[short])
        same_twice(a, b, (kept, Prepared()))


def test_planes_are_not_written_to():
    kept = pair()
    product(ordinary(70, 80), ordinary(80, 60), kept)
    for each in kept:
        for value in each.values.values():
            for x in value.content:
                if getattr(x, "ndim", 0) == 4:
                    with pytest.raises(ValueError, match="read-only"):
                        x[...] = 0.0


# ---- What is not done again ------------------------------------------------------


def test_the_second_product_makes_nothing(spy):
    a, b = ordinary(70, 90), ordinary(90, 60)
    kept = pair()
    product(a, b, kept)
    assert spy == {"residues": 2, "line_exponents_of": 2, "lines": 2}
    product(a, b, kept)
    assert spy == {"residues": 2, "line_exponents_of": 2, "lines": 2}
    assert counts() == (2, 2, 0)
    product(a, ordinary(90, 61), (kept[0], None))
    assert spy == {"residues": 3, "line_exponents_of": 3, "lines": 3}
    assert counts() == (2, 3, 0)


def test_small_products_keep_nothing(spy):
    kept = pair()
    same_twice(ordinary(30, 40), ordinary(40, 30), kept)
    assert [x.nbytes for x in kept] == [0, 0]
    assert counts() == (0, 0, 0)


def test_samples_and_units_are_looked_at_once(monkeypatch):
    looked = []
    samples, units = CpuEngine.samples, CpuEngine.line_units
    monkeypatch.setattr(
        CpuEngine,
        "samples",
        lambda self, *x: looked.append(len(x)) or samples(self, *x),
    )
    monkeypatch.setattr(
        CpuEngine,
        "line_units",
        lambda self, x, *, left: looked.append(left) or units(self, x, left=left),
    )
    a, b = np.rint(9 * ordinary(270, 280)), ordinary(280, 290)
    kept = pair()
    product(a, b, kept)
    assert looked == [2, True]
    product(a, b, kept)
    assert looked == [2, True]
    product(a, ordinary(280, 291), (kept[0], Prepared()))
    assert looked == [2, True, 1]


def test_exact_products_ask_for_exponents_once(monkeypatch):
    asked = []
    right = CpuEngine.line_exponents
    monkeypatch.setattr(
        CpuEngine,
        "line_exponents",
        lambda self, x, *kind, left: (
            asked.append(kind) or right(self, x, *kind, left=left)
        ),
    )
    a, b = ordinary(70, 90), ordinary(90, 60)
    kept = pair()
    product(a, b, kept, precision="exact")
    once = len(asked)
    assert once
    product(a, b, kept, precision="exact")
    assert len(asked) == once


def test_exact_products_with_partners_of_many_lengths():
    a, kept = ordinary(70, 90), Prepared()
    for bits in (50, 30, 10, 1):
        b = np.rint(2.0**bits * ordinary(90, 60))
        same_twice(a, b, (kept, Prepared()), precision="exact")


def test_preparing_ahead(spy):
    a, x = ordinary(3, 70, 90), ordinary(90)
    for options in ({}, {"precision": 20}, {"precision": 1e-8}, {"scaling": "legacy"}):
        left, right = pair()
        chosen = Options(engine="cpu", **options)
        prepare_array(a, chosen, left, left=True)
        prepare_array(a, chosen, right, left=False)
        assert left.nbytes > a.nbytes < right.nbytes
        before = dict(spy)
        product(a, x, (left, None), **options)
        product(ordinary(70), a, (None, right), **options)
        # Only the vectors' were made.
        assert spy["residues"] == before["residues"] + 2
        assert spy["lines"] == before["lines"] + 2
        same_twice(a, ordinary(90, 10), (left, None), **options)
        same_twice(ordinary(10, 70), a, (None, right), **options)


def test_vectors_are_prepared():
    x = ordinary(5000)
    kept = Prepared()
    prepare_array(x, Options(engine="cpu"), kept, left=True)
    assert kept.nbytes
    same_twice(x, ordinary(5000, 3), (kept, None))
    assert counts()[0] == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [({"precision": "exact"}, "precision='exact'"), ({"scaling": "accurate"}, "scali")],
)
def test_what_depends_on_both_cannot_be_prepared(options, named):
    with pytest.raises(OptionError, match=named):
        prepare_array(ordinary(9, 9), Options(**options), Prepared(), left=True)


def test_what_nobody_would_find_is_not_prepared():
    kept = Prepared()
    prepare_array(ordinary(90, 90), Options(engine="native"), kept, left=True)
    prepare_array(ordinary(0, 90), Options(engine="cpu"), kept, left=True)
    assert kept.nbytes == 0
    with pytest.raises(ShapeError, match="x=array"):
        prepare_array(np.array(3.0), Options(), kept, left=True)


# ---- Memory ----------------------------------------------------------------------


def numbered(i, nbytes=100, prepared_=None, limit=1000, place=HOST):
    """Keep a value of so many bytes; return its owner."""
    owner = prepared_ or Prepared()
    keeper = Keeper(owner, place, limit, "key")
    keeper.keep((np.zeros(nbytes, np.uint8), i), i, is_operand=True)
    return owner


def found(owner, i):
    return Keeper(owner, HOST, 1000, "key").find(i) is not None


def test_the_value_used_longest_ago_goes_first():
    owners = [numbered(i) for i in range(10)]
    assert prepared_bytes() == {HOST: 1000}
    assert found(owners[0], 0)
    owners.append(numbered(10, nbytes=200))
    assert [found(x, i) for i, x in enumerate(owners)] == [1, 0, 0, *[1] * 8]
    assert prepared_bytes() == {HOST: 1000}
    assert owners[1].nbytes == 0
    assert counts() == (11, 9 + 1, 2)


def test_what_is_larger_than_the_limit_is_not_kept():
    first = numbered(0)
    second = numbered(1, nbytes=1001)
    assert found(first, 0)
    assert second.nbytes == 0
    assert counts() == (1, 1, 0)


def test_places_have_limits_of_their_own():
    on_host, there = numbered(0, nbytes=900), numbered(0, nbytes=900, place="cuda:0")
    assert prepared_bytes() == {HOST: 900, "cuda:0": 900}
    assert drop_prepared("cuda:0") == 900
    assert drop_prepared("cuda:0") == drop_prepared("cuda:1") == 0
    assert (on_host.nbytes, there.nbytes) == (900, 0)
    assert prepared_bytes() == {HOST: 900}


def test_closing_gives_memory_back():
    owner = numbered(0)
    numbered(1, prepared_=owner)
    numbered(1, nbytes=300, prepared_=owner)
    assert owner.nbytes == 400
    other = numbered(2)
    owner.close()
    assert owner.nbytes == 0
    assert prepared_bytes() == {HOST: 100}
    assert not found(owner, 0)
    numbered(3, prepared_=owner)
    assert found(owner, 3)
    assert found(other, 2)
    owner.close()
    owner.close()


def test_an_owner_that_is_no_more_gives_memory_back():
    gone = []

    class Told:
        nbytes = 500

        def __del__(self):
            gone.append(True)

    owner = Prepared()
    Keeper(owner, HOST, 1000, "key").keep((Told(),), 1)
    cycle = [owner]
    cycle.append(cycle)
    del owner, cycle
    gc.collect()
    assert gone == [True]
    assert prepared_bytes() == {}
    others = [numbered(i) for i in range(10)]
    assert all(found(x, i) for i, x in enumerate(others))


def test_a_product_that_began_before_closing_keeps_nothing():
    owner = numbered(0)
    keeper = Keeper(owner, HOST, 1000, "key")
    owner.close()
    assert keeper.find(0) is None
    keeper.keep((np.zeros(9),), 0)
    assert owner.nbytes == 0
    assert prepared_bytes() == {}
    assert not found(owner, 0)


def test_closing_between_products():
    a, b = ordinary(70, 90), ordinary(90, 60)
    kept = same_twice(a, b)
    a *= 3.0
    kept[0].close()
    same_twice(a, b, kept)


def test_the_limit_of_products():
    b = ordinary(200, 40)
    owners = [Prepared() for _ in range(4)]
    for turn in range(2):
        for i, kept in enumerate(owners):
            want, _ = product(ordinary(150 + i, 200), b)
            got, _ = product(
                ordinary(150 + i, 200), b, (kept, None), workspace_bytes=4 << 20
            )
            assert_same_bits(got[0], want[0])
            assert prepared_bytes()[HOST] <= 4 << 20, (turn, i)
    assert counts()[2] > 2
    assert workspace.reserved_bytes() == 0


def test_threads_share_operands():
    a = ordinary(90, 90)
    kept = pair()
    want, _ = product(a, a)
    wrong = []

    def work(i):
        for turn in range(12):
            (c,), _ = product(a, a, kept, workspace_bytes=4 << 20)
            if not np.array_equal(c, want[0]):
                wrong.append((i, turn))
            if turn % 4 == i:
                kept[i % 2].close()
            numbered(i, nbytes=2 << 20, limit=4 << 20)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for each in kept:
        each.close()
    assert prepared_bytes() == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_a_lock_of_its_own(monkeypatch):
    owner = numbered(0)
    shelf = prepared._shelf
    with shelf._lock:
        shelf._held[HOST] += 7
        child = os.fork()
        if not child:
            shelf.after_fork()
            right = prepared_bytes() == {HOST: 100} and found(owner, 0)
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_failed_check_forgets_what_was_kept():
    a, b = ordinary(70, 90), ordinary(90, 60)
    (want,), _ = product(a, b)
    for check in (True, "recompute"):
        kept = pair()
        product(a, b, kept)
        for value in kept[0].values.values():
            planes = value.content[1] if len(value.content) == 2 else None
            if getattr(planes, "ndim", 0) == 4:
                base = planes if planes.base is None else planes.base
                base.flags.writeable = planes.flags.writeable = True
                planes[1, 0, 3, 4] += 1.0
        if check is True:
            with pytest.raises(CheckError):
                product(a, b, kept, check=check)
            assert kept[0].nbytes == 0
        else:
            (c,), info = product(a, b, kept, check=check)
            assert info.recomputed
            assert_same_bits(c, want)
        (c,), info = product(a, b, kept, check=check)
        assert not info.recomputed
        assert_same_bits(c, want)


# ---- The CUDA engine -------------------------------------------------------------


@pytest.fixture
def launches(place, monkeypatch):
    """List the kernels, and waits, of the place's devices."""
    seen = []
    for engine in place.engines():
        device = engine.device

        def launch(stage, *args, right=device.launch, **kwargs):
            seen.append(stage)
            return right(stage, *args, **kwargs)

        def fetch(x, right=device.fetch):
            seen.append("wait")
            return right(x)

        def written(count, queue, right=device.written):
            seen.append("wait")
            return right(count, queue)

        monkeypatch.setattr(device, "launch", launch)
        monkeypatch.setattr(device, "fetch", fetch)
        monkeypatch.setattr(device, "written", written)
    return seen


MADE = {"scaling_exponents", "residues", "lines_in_clusters"}


def on_device(place, engine, a, b, kept=UNPREPARED, *, scheme, layout="C", **options):
    """Return a product as ndarray, and its outcome."""
    shape = (max(len(a), len(b)), a.shape[1], b.shape[2])
    out = laid_out(place.own, np.zeros(shape), layout)
    outcome = engine.matmul(a, b, out, scheme, prepared=kept, **options)
    missing = outcome.missing_bits
    return place.host(out), None if missing is None else missing.tolist()


def same_on_device(place, engine, a, b, kept=None, **options):
    want, missing = on_device(place, engine, a, b, **options)
    kept = kept or pair()
    for _ in range(2):
        found, told = on_device(place, engine, a, b, kept, **options)
        assert_same_bits(found, want)
        assert told == missing
    return kept


@few
@given(st.data(), seeds, regimes, regimes)
def test_products_on_a_device(place, data, seed, one, other):
    rng = np.random.default_rng(seed)
    sides = st.integers(1, place.side)
    m, n, k = data.draw(sides), data.draw(sides), data.draw(st.integers(1, place.inner))
    batches = data.draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (1, 3)]))
    layout = data.draw(st.tuples(layouts, layouts, layouts))
    a, b = (
        entries(rng, (batches[0], m, k), one),
        entries(rng, (batches[1], k, n), other),
    )
    a[0, 0, 0] = data.draw(st.sampled_from([1.0, np.nan, np.inf]))
    x, y = (laid_out(place.own, v, w) for v, w in zip((a, b), layout, strict=False))
    engine = data.draw(st.sampled_from(place.engines()))
    kept = pair()
    for scheme, certify in (
        (Scheme(15), "conventional"),
        (Scheme(2), None),
        (Scheme(15, "legacy"), None),
        (Scheme(20, "accurate"), None),
    ):
        same_on_device(
            place, engine, x, y, kept, scheme=scheme, certify=certify, layout=layout[2]
        )


@pytest.mark.parametrize("whose", ["C", "F"])
def test_nothing_is_made_twice_on_a_device(place, launches, whose):
    rng = np.random.default_rng(1)
    a, b = (place.own(entries(rng, (1, 6, 6), "same sign")) for _ in range(2))
    for engine in place.engines():
        np_ozaki.reset_stats()
        kept = pair()
        options = {"scheme": Scheme(15), "certify": "conventional", "layout": whose}
        on_device(place, engine, a, b, kept, **options)
        assert counts() == (2, 0, 0)
        assert MADE & set(launches)
        launches.clear()
        on_device(place, engine, a, b, kept, **options)
        # Whichever of C and C^T is multiplied.
        on_device(place, engine, a, b, kept, **{**options, "layout": "F"})
        assert not MADE & set(launches)
        assert counts() == (2, 4, 0)
        on_device(place, engine, a, b, (kept[0], None), **options)
        assert MADE & set(launches)
        launches.clear()


def test_keys_of_a_device(place):
    rng = np.random.default_rng(2)
    a, b = (place.own(entries(rng, (1, 5, 5), "integers")) for _ in range(2))
    engine = place.unfused
    kept = pair()
    views = (a, b), (a.swapaxes(1, 2), b), (a[:, ::2], b)
    for num_moduli, shift in ((15, 0), (16, 0), (15, 3)):
        scheme = Scheme(num_moduli, "norm", shift)
        for certify in (None, "conventional"):
            for x, y in views:
                same_on_device(
                    place, engine, x, y, kept, scheme=scheme, certify=certify
                )


def test_a_value_stays_on_its_stream(place, launches, monkeypatch):
    if place.name != "simulated":
        pytest.skip("streams of a GPU have tests of their own")
    rng = np.random.default_rng(3)
    a, b = (place.own(entries(rng, (1, 5, 5), "wide")) for _ in range(2))
    engine, kept = place.engine, pair()
    for stream, is_made in (("one", True), ("two", True), ("one", False)):
        monkeypatch.setattr(engine.device, "current_stream", stream)
        launches.clear()
        on_device(place, engine, a, b, kept, scheme=Scheme(15))
        assert bool(MADE & set(launches)) == is_made
    monkeypatch.setattr(engine.device, "current_stream", None)
    held = kept[0].nbytes
    same_on_device(place, engine, a, b, kept, scheme=Scheme(16))
    assert kept[0].nbytes == held


def test_operands_in_host_memory_are_not_kept(place):
    rng = np.random.default_rng(4)
    a, b = (entries(rng, (1, 5, 5), "wide") for _ in range(2))
    kept, out = pair(), np.zeros((1, 5, 5))
    for _ in range(2):
        place.engine.matmul(a, b, out, Scheme(15), prepared=kept)
    x, y = place.own(a), place.own(b)
    assert_same_bits(out, on_device(place, place.engine, x, y, scheme=Scheme(15))[0])
    assert prepared_bytes() == {}


def test_tiles_and_blocks_on_a_device(place, monkeypatch):
    rng = np.random.default_rng(5)
    a = place.own(entries(rng, (2, 20, 18), "wide"))
    b = place.own(entries(rng, (2, 18, 24), "wide"))
    scheme = Scheme(3)
    for engine in place.engines():
        for budget in (8_000, 20_000):
            kept = same_on_device(
                place, engine, a, b, scheme=scheme, workspace_bytes=budget, check=True
            )
            assert sum(prepared_bytes().values()) <= budget
            for each in kept:
                each.close()
    monkeypatch.setattr(tiling, "INT8_K_BLOCK", 16)
    tiling.choose_cuda_tiles.cache_clear()
    kept = same_on_device(place, place.engine, a, b, scheme=scheme)
    tiling.choose_cuda_tiles.cache_clear()
    # Only facts of lines: blocks of k make their own planes.
    assert 0 < kept[0].nbytes <= 32 * 2 * 20


def test_a_device_without_memory_drops_what_is_kept(place, monkeypatch):
    rng = np.random.default_rng(6)
    a, b = (place.own(entries(rng, (1, 20, 20), "wide")) for _ in range(2))
    engine, scheme = place.int32, Scheme(15)
    want, _ = on_device(place, engine, a, b, scheme=scheme)
    kept = pair()
    on_device(place, engine, a, b, kept, scheme=scheme)
    held = sum(prepared_bytes().values())
    right, tries = engine.residue_gemm, []

    def failing(*args, **kwargs):
        tries.append(sum(prepared_bytes().values()))
        if tries[-1]:
            raise MemoryError
        return right(*args, **kwargs)

    monkeypatch.setattr(engine, "residue_gemm", failing)
    monkeypatch.setattr(
        engine.device, "is_out_of_memory", lambda e: isinstance(e, MemoryError)
    )
    found, _ = on_device(place, engine, a, b, kept, scheme=scheme)
    assert tries == [held, 0]
    assert_same_bits(found, want)
    assert prepared_bytes() == {}


def test_both_prepared_leave_no_wait_for_samples(place, launches, monkeypatch):
    rng = np.random.default_rng(7)
    size = 260 if place.name == "gpu" else 6
    a, b = (place.own(rng.standard_normal((1, size, size))) for _ in range(2))
    kept = pair()
    out = place.own(np.zeros((1, size, size)))
    monkeypatch.setattr(schemes, "SHORT_MIN_FLOPS", 0)
    waits = []
    for _ in range(2):
        launches.clear()
        multiply(place.engine, a, b, out, Options(), None, kept)
        waits.append(launches.count("wait"))
    # The second one waits for its certificate only.
    assert waits == [2, 1]
