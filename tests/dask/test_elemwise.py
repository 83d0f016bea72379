"""Ufuncs, operators and other functions of one entry at a time."""

import operator

import numpy as np
import pytest
from chunked import CUBE, SQUARE, assert_alike, compare, da, oz, plain

from np_ozaki import OzArray

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
    np.arctan2,
    np.hypot,
    np.maximum,
    np.copysign,
    np.logaddexp,
    da.minimum,
]
UNARY = [
    np.exp,
    np.expm1,
    np.sin,
    np.tanh,
    np.floor,
    np.sign,
    np.isfinite,
    np.signbit,
    np.isneginf,
    np.isposinf,
    np.isreal,
    np.iscomplex,
    np.real,
    np.imag,
    np.fix,
    np.sinc,
    np.nan_to_num,
    np.angle,
    np.absolute,
    operator.neg,
    operator.pos,
    da.square,
    da.rint,
    da.deg2rad,
    da.logical_not,
    lambda x: np.i0(x.reshape(120)),
    lambda x: np.around(x, 2),
    lambda x: np.clip(x, -0.5, 0.5),
    lambda x: np.where(x > 0, x, -1.0),
    lambda x: np.angle(x, True),
]


@pytest.mark.parametrize("function", UNARY)
def test_one_operand(function):
    compare(function, CUBE)


@pytest.mark.parametrize("function", BINARY)
@pytest.mark.parametrize("other", ["same", "plain", "ndarray", "OzArray", "scalar"])
@pytest.mark.parametrize("swap", [False, True])
def test_two_operands(function, other, swap):
    y = SQUARE[::-1].copy()
    ours = {
        "same": oz(y, 5),
        "plain": plain(y, 5),
        "ndarray": y,
        "OzArray": OzArray(y),
        "scalar": 2.5,
    }[other]
    theirs = 2.5 if other == "scalar" else plain(y, 5)
    left, right = (oz(SQUARE, 5), ours), (plain(SQUARE, 5), theirs)
    if swap:
        left, right = left[::-1], right[::-1]
    assert_alike(function(*left), function(*right))


def test_operators_in_place():
    x, y = oz(SQUARE, 5), plain(SQUARE, 5)
    for z in (x, y):
        z += 1
        z *= 2.0
        z -= z[0]
    assert_alike(x, y)


def test_bits_of_integers():
    values = np.arange(24).reshape(4, 6)
    compare(lambda x: ((x << 2) & 12 | ~x) ^ 3, values, 2)


def test_two_results():
    compare(lambda x: np.modf(x), CUBE)
    compare(lambda x: np.frexp(x), CUBE)
    compare(lambda x: divmod(x, 0.3), CUBE)


def test_outer_of_a_ufunc():
    compare(lambda x: np.add.outer(x[0], x[1]), SQUARE, 12)


def test_where_and_out():
    x = oz(SQUARE, 5)
    out = da.zeros_like(x)
    np.add(x, 1.0, out=out)
    assert_alike(out, plain(SQUARE + 1, 5))
    ours = da.add(x, 1.0, where=oz(SQUARE > 0, 5), out=da.zeros_like(x))
    theirs = da.add(
        plain(SQUARE, 5),
        1.0,
        where=plain(SQUARE > 0, 5),
        out=da.zeros_like(plain(SQUARE, 5)),
    )
    assert_alike(ours, theirs)


def test_broadcasting():
    assert_alike(oz(CUBE) * OzArray(CUBE[0]), plain(CUBE) * plain(CUBE[0]))
    assert_alike(CUBE[:, :1] - oz(CUBE), CUBE[:, :1] - plain(CUBE))


def test_frompyfunc():
    function = da.frompyfunc(lambda x: x + 1, 1, 1)
    ours = function(oz(SQUARE, 5))
    assert (np.asarray(ours.compute()) == SQUARE + 1).all()
