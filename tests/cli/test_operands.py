"""The operands of ``bench`` and what their products are compared with."""

import numpy as np
import pytest

from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.cli.operands import Operands, Size
from np_ozaki.engines.base import Scheme
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.functions import matmul
from np_ozaki.testing import assert_same_bits


def test_small_products_are_compared_in_full():
    operands = Operands(Size(9, 9, 9), DTYPES["float64"])
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
    of = DTYPES["float64"]
    first, second = Operands(Size(30, 20, 40), of), Operands(Size(30, 20, 40), of)
    assert (first.a == second.a).all()
    assert (first.rows, first.columns) == (second.rows, second.columns)
    assert np.unique(first.a).size == first.a.size
    assert not (Operands(Size(30, 20, 41), of).a[:, :40] == first.a).any()


@pytest.mark.parametrize("name", ["complex128", "float32", "complex64"])
def test_operands_of_other_dtypes(name):
    entries = DTYPES[name]
    operands = Operands(Size(9, 7, 8), entries)
    assert operands.a.dtype == operands.b.dtype == entries.dtype
    real = Operands(Size(9, 7, 8), DTYPES["float64"])
    assert_same_bits(operands.a.real, real.a.astype(operands.a.real.dtype))
    product = matmul(operands.a, operands.b, precision=8, engine="cpu")
    sampled = operands.sampled(product[operands.rows])
    operands.check_sampled(sampled, 8)
    operands.check_whole(product, 8)
    if entries.part.bits == 24:
        assert operands.error(sampled) <= 1.0
    wrong = sampled.copy()
    wrong[-1, -1] = -wrong[-1, -1].conj()  # of complex entries the real part alone
    with pytest.raises(AssertionError):
        operands.check_sampled(wrong, 8)
    assert operands.error(wrong) > 100
