"""The operands of ``bench`` and what their products are compared with."""

import numpy as np
import pytest

from np_ozaki.cli.operands import Operands, Size
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine


def test_small_products_are_compared_in_full():
    operands = Operands(Size(9, 9, 9))
    assert operands.small
    product = operands.a @ operands.b
    others = [i for i in range(9) if i not in operands.rows]
    right = CpuEngine()
    out = np.empty((1, 9, 9))
    right.matmul(
        operands.a[np.newaxis],
        operands.b[np.newaxis],
        out,
        Scheme(15),
    )
    operands.check_whole(out[0], 15)
    operands.check_sampled(operands.sampled(out[0][operands.rows]), 15)
    assert operands.error(operands.sampled(product[operands.rows])) < 10
    out[0, others[0], 0] += 1
    operands.check_sampled(operands.sampled(out[0][operands.rows]), 15)
    with pytest.raises(AssertionError, match="1 of 81 entries differ"):
        operands.check_whole(out[0], 15)


def test_operands_are_random_and_the_same_every_time():
    first, second = Operands(Size(30, 20, 40)), Operands(Size(30, 20, 40))
    assert (first.a == second.a).all()
    assert (first.rows, first.columns) == (second.rows, second.columns)
    assert np.unique(first.a).size == first.a.size
    assert not (Operands(Size(30, 20, 41)).a[:, :40] == first.a).any()
