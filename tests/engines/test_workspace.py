"""Buffers: bounded, never shared, given back."""

import threading

import numpy as np
import pytest

import np_ozaki
from np_ozaki.engines import workspace
from np_ozaki.testing import assert_same_bits


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(workspace, "_kept", [])


def kept_bytes():
    return sum(x.nbytes for x in workspace._kept)


def test_a_buffer_comes_back_and_is_never_shared():
    with workspace.reserve(1 << 20, 1 << 30) as space:
        first = space.take((100, 10))
        second = space.take((100, 10))
        assert not np.shares_memory(first, second)
        space.give(first.swapaxes(0, 1))
        third = space.take((10, 90))
        assert np.shares_memory(first, third)
        space.give(third)
        space.give(third)
        space.give(None)
        space.give(np.empty(3))
    assert kept_bytes() == first.nbytes
    with workspace.reserve(1 << 20, 1 << 30) as space:
        assert not np.shares_memory(space.take((10,)), first)
        assert np.shares_memory(space.take((600,)), first)


@pytest.mark.parametrize("limit", [4 << 20, 1 << 30])
def test_no_more_is_kept_than_allowed(limit):
    a = np.ones((600, 600))
    np_ozaki.matmul(a, a, precision=15, workspace_bytes=limit)
    assert 0 < kept_bytes() <= min(limit, workspace.KEPT_BYTES)


def test_products_that_share_a_limit():
    with workspace.reserve(100 << 20, 120 << 20) as first:
        assert first.granted == 100 << 20
        with workspace.reserve(100 << 20, 120 << 20) as second:
            assert second.granted == 20 << 20
            with workspace.reserve(100 << 20, 120 << 20) as third:
                assert third.granted == workspace.FLOOR_BYTES
                assert workspace.reserved_bytes() == (124 << 20)
    assert workspace.reserved_bytes() == 0


def test_products_inside_and_beside_others_keep_their_bits():
    rng = np.random.default_rng(1)
    operands = [rng.standard_normal((300, 300)) for _ in range(4)]
    want = [np_ozaki.matmul(x, x) for x in operands]
    wrong = []

    def work(i):
        for _ in range(6):
            if not np.array_equal(np_ozaki.matmul(operands[i], operands[i]), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_same_bits(np_ozaki.matmul(operands[0], operands[0]), want[0])
