"""Who answers: dask above OzArray above ndarray; strangers are left alone."""

import operator
import subprocess
import sys

import numpy as np
import pytest
from chunked import SQUARE, assert_alike, assert_values, computed, da, oz, plain
from dask.array.chunk_types import is_valid_array_chunk, is_valid_chunk_type
from dask.array.dispatch import (
    concatenate_lookup,
    einsum_lookup,
    empty_lookup,
    percentile_lookup,
    tensordot_lookup,
    to_numpy_dispatch,
)

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.testing import assert_same_bits

OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.eq,
    operator.ge,
    np.add,
    np.maximum,
]


@pytest.mark.parametrize("operation", OPERATORS)
@pytest.mark.parametrize("chunks", [oz, plain])
def test_dask_is_above(operation, chunks):
    lazy, eager = chunks(SQUARE, 5), OzArray(SQUARE + 3)
    for ours, want in (
        (operation(lazy, eager), operation(SQUARE, SQUARE + 3)),
        (operation(eager, lazy), operation(SQUARE + 3, SQUARE)),
    ):
        assert isinstance(ours, da.Array)
        assert type(ours._meta) is OzArray
        assert_values(ours.compute(), want)


@pytest.mark.parametrize("multiply", [operator.matmul, np.matmul, np.dot, np.tensordot])
@pytest.mark.parametrize("chunks", [oz, plain])
@pytest.mark.parametrize("swap", [False, True])
def test_products_with_an_oz_array(multiply, chunks, swap):
    axes = {"axes": 1} if multiply is np.tensordot else {}
    lazy, eager = chunks(SQUARE, 12), OzArray(SQUARE[::-1])
    pair = (eager, lazy) if swap else (lazy, eager)
    result = multiply(*pair, **axes)
    assert isinstance(result, da.Array)
    product, calls = computed(result)
    assert type(product) is OzArray
    assert calls == 1
    a, b = (np.asarray(x) for x in pair)
    assert_same_bits(np.asarray(product), np_ozaki.matmul(a, b))


def test_in_place_matmul():
    x = oz(SQUARE, 12)
    x @= OzArray(SQUARE)
    assert isinstance(x, da.Array)
    assert_same_bits(np.asarray(x.compute()), np_ozaki.matmul(SQUARE, SQUARE))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: np.concatenate([x, y]),
        lambda x, y: np.stack([y, x]),
        lambda x, y: np.where(x > y, x, y),
        lambda x, y: np.vstack([y, x]),
    ],
)
def test_functions_of_numpy(function):
    ours = function(oz(SQUARE, 5), OzArray(SQUARE[::-1]))
    theirs = function(plain(SQUARE, 5), SQUARE[::-1])
    assert isinstance(ours, da.Array)
    assert_alike(ours, theirs)


def test_functions_that_dask_does_not_have_compute():
    with pytest.warns(FutureWarning, match="not implemented by Dask"):
        result = np.kron(oz(SQUARE, 5), OzArray(np.eye(2)))
    assert type(result) is OzArray
    assert_values(result, np.kron(SQUARE, np.eye(2)))


@pytest.mark.parametrize(
    ("x", "valid"),
    [
        (OzArray(np.arange(4)), True),
        (np.arange(4), True),
        (da.arange(4), False),
        (2.0, False),
        ([1], False),
    ],
)
def test_what_may_be_a_chunk(x, valid):
    assert is_valid_array_chunk(x) is valid
    assert is_valid_chunk_type(type(x)) is valid


@pytest.mark.parametrize(
    "lookup",
    [
        concatenate_lookup,
        einsum_lookup,
        empty_lookup,
        percentile_lookup,
        tensordot_lookup,
        to_numpy_dispatch,
    ],
)
def test_registered(lookup):
    assert OzArray in lookup._lookup


def test_lookups():
    x = OzArray(SQUARE)
    assert type(empty_lookup.dispatch(OzArray)((2, 3), dtype="f4")) is OzArray
    assert type(concatenate_lookup.dispatch(OzArray)([x, SQUARE])) is OzArray
    back = to_numpy_dispatch(x)
    assert type(back) is np.ndarray
    assert not np.shares_memory(back, np.asarray(x))
    assert back.flags.writeable
    values, count = percentile_lookup(x[0], [0, 50, 100])
    assert type(values) is OzArray
    assert count == 12


# ---- Strangers ----


class Above(np.lib.mixins.NDArrayOperatorsMixin):
    """Wraps dask arrays, or anything, and wants to answer."""

    def __init__(self, inner):
        self.inner = inner

    shape = property(lambda self: self.inner.shape)
    ndim = property(lambda self: self.inner.ndim)
    dtype = property(lambda self: self.inner.dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = (x.inner if isinstance(x, Above) else x for x in inputs)
        return Above(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, function, types, args, kwargs):
        plain = (x.inner if isinstance(x, Above) else x for x in args)
        return Above(function(*plain, **kwargs))


class Unwilling:
    """Wants no ufunc, and answers operators itself."""

    __array_ufunc__ = None

    def __mul__(self, other):
        return "unwilling"

    __rmul__ = __matmul__ = __rmatmul__ = __add__ = __radd__ = __mul__


@pytest.mark.parametrize("inner", [SQUARE, oz(SQUARE, 5)], ids=["ndarray", "dask"])
@pytest.mark.parametrize("operation", [*OPERATORS, operator.matmul])
def test_types_above(inner, operation):
    above = Above(inner)
    for other in (oz(SQUARE + 3, 5), OzArray(SQUARE + 3)):
        assert type(operation(above, other)) is Above
        assert type(operation(other, above)) is Above


def test_dask_leaves_an_unknown_type_alone():
    assert oz(SQUARE, 5).__add__(Above(SQUARE)) is NotImplemented
    assert oz(SQUARE, 5).__matmul__(Above(SQUARE)) is NotImplemented


@pytest.mark.parametrize("x", [oz(SQUARE, 5), OzArray(SQUARE)], ids=["dask", "OzArray"])
def test_types_that_want_no_ufunc(x):
    for operation in (operator.mul, operator.add, operator.matmul):
        assert operation(x, Unwilling()) == "unwilling"
        assert operation(Unwilling(), x) == "unwilling"
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.multiply(x, Unwilling())


class Unrelated:
    """An array by protocol that knows nobody."""

    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented

    def __array_function__(self, *args, **kwargs):
        return NotImplemented


@pytest.mark.parametrize("x", [oz(SQUARE, 5), OzArray(SQUARE)], ids=["dask", "OzArray"])
def test_nobody_answers(x):
    for call in (
        lambda: np.add(x, Unrelated()),
        lambda: np.matmul(Unrelated(), x),
        lambda: np.concatenate([x, Unrelated()]),
        lambda: np.dot(x, Unrelated()),
    ):
        with pytest.raises(TypeError, match=r"NotImplemented|no implementation found"):
            call()


def test_strings():
    words = da.from_array(OzArray(np.array(["a", "b", ".", "d"])), chunks=2)
    assert_values((words == ".").compute(), np.array([False, False, True, False]))
    assert "b" in words


def test_without_registration_dask_and_oz_array_do_not_meet():
    program = (
        "import numpy as np, dask.array as da\n"
        "from np_ozaki import OzArray\n"
        "try:\n"
        "    da.ones((3, 3)) @ OzArray(np.eye(3))\n"
        "except TypeError:\n"
        "    import np_ozaki.dask, sys\n"
        "    assert 'distributed' not in sys.modules\n"
        "    result = da.ones((3, 3)) @ OzArray(np.eye(3))\n"
        "    assert type(result.compute()) is OzArray\n"
        "    print('registered')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "registered\n"
