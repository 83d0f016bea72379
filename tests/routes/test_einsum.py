"""numpy.einsum inside a scope: NumPy's results, shapes, layouts and refusals."""

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import np_ozaki
from np_ozaki.testing import assert_same_bits

LABELS = "abAB"


def scope(**options):
    return np_ozaki.enabled(**{"engine": "cpu", "min_flops": 0, **options})


def routed(*arguments, **keywords):
    """Return einsum's result in a scope, and whether it came from the engine."""
    with scope() as inside:
        result = np.einsum(*arguments, **keywords)
    return result, inside.stats().calls("cpu") == 1


def integers(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-9, 10, shape).astype(float)


def assert_like_native(result, native):
    """Compare values, types, and the layout that later code may rely on."""
    assert type(result) is type(native)
    assert result.dtype == native.dtype
    np.testing.assert_array_equal(result, native)
    assert np.shape(result) == np.shape(native)
    if np.size(native):
        kept = [i for i, size in enumerate(np.shape(native)) if size > 1]
        strides = [[np.asarray(x).strides[i] for i in kept] for x in (result, native)]
        assert strides[0] == strides[1]


@st.composite
def operand(draw, sizes, with_ellipsis):
    """Draw subscripts and an array with integer entries, of any strides."""
    labels = draw(st.lists(st.sampled_from(LABELS), max_size=3))
    text, shape = "".join(labels), [sizes[x] for x in labels]
    if draw(st.booleans()) and labels:
        # A repeated label is stretched in no operand.
        place = draw(st.integers(0, len(labels) - 1))
        if labels.count(labels[place]) == 1:
            shape[place] = 1
    if with_ellipsis:
        cut = draw(st.integers(0, len(text)))
        hidden = [sizes[x] for x in "yz"][draw(st.integers(0, 2)) :]
        hidden = [1 if draw(st.booleans()) else size for size in hidden]
        text = f"{text[:cut]}...{text[cut:]}"
        shape[cut:cut] = hidden
    array = integers(*shape, seed=draw(st.integers(0, 3)))
    order = draw(st.permutations(range(len(shape))))
    array = array.transpose(order).copy().transpose(np.argsort(order))
    if draw(st.booleans()) and array.ndim:
        array = np.repeat(array, 2, axis=0)[::-2][::-1]
    dtype = draw(st.sampled_from(["f8", "f8", "f4", "i4", ">f8", "c16", "c16", "c8"]))
    array = array.astype(dtype)
    if array.dtype.kind == "c":
        array *= 1.0 - 2.0j
    return text, array


@st.composite
def calls(draw):
    sizes = {x: draw(st.integers(0, 4)) for x in LABELS + "yz"}
    dots = draw(st.sampled_from([(False, False), (True, True), (True, False)]))
    (left, a), (right, b) = (draw(operand(sizes, d)) for d in dots)
    text = f"{left},{right}"
    if draw(st.booleans()):
        names = sorted(set(left + right) - {"."})
        output = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
        if "..." in text:
            output.insert(draw(st.integers(0, len(output))), "...")
        text += f"->{''.join(output)}"
    return text, a, b


@given(calls(), st.sampled_from([{}, {"order": "C"}, {"order": "F"}]))
def test_like_native(call, keywords):
    outcomes = []
    for context in (contextlib.nullcontext(), scope()):
        with context:
            try:
                outcomes.append(np.einsum(*call, **keywords))
            except ValueError as error:
                outcomes.append(str(error))
    native, result = outcomes
    if isinstance(native, str):
        assert result == native
    else:
        assert_like_native(result, native)


@pytest.mark.parametrize(
    ("text", "a_shape", "b_shape"),
    [
        ("ij,jk", (3, 4), (4, 5)),
        ("ij,jk->ki", (3, 4), (4, 5)),
        ("ij,kj", (3, 4), (5, 4)),
        ("ij,ij", (3, 4), (3, 4)),
        ("i,i", (4,), (4,)),
        ("ij,j->i", (3, 4), (4,)),
        ("hij,hjk->hik", (2, 3, 4), (2, 4, 5)),
        ("hij,hjk->ikh", (2, 3, 4), (2, 4, 5)),
        ("hij,jk->hik", (2, 3, 4), (4, 5)),
        ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 3, 2)),
        ("abcd,dbce->ae", (2, 3, 4, 5), (5, 3, 4, 2)),
        ("obk,ijk->ioj", (2, 4, 8), (2, 4, 8)),
        ("...ij,...jk->...ik", (2, 1, 3, 4), (3, 4, 5)),
        ("...ij,...jk", (1, 5), (5, 5)),
        ("t...i,ti->t...", (10, 2), (1, 2)),
        ("ii,ij->j", (4, 4), (4, 4)),
        ("ij,ji->", (4, 4), (4, 4)),
        ("ij,jk->k", (3, 4), (4, 5)),
        ("ijj,jk->ik", (3, 4, 4), (4, 5)),
        (" i j , j k -> i k ", (3, 4), (4, 5)),
        ("aZ,Zb", (3, 4), (4, 5)),
        ("ij,jk", (3, 0), (0, 5)),
        ("ij,jk", (0, 4), (4, 5)),
    ],
)
def test_what_is_caught(text, a_shape, b_shape):
    a, b = integers(*a_shape), integers(*b_shape, seed=1)
    for x, y in ((a, b), (a - 1j * a, b + 2j), (a, 1j * b)):
        native = np.einsum(text, x, y)
        result, caught = routed(text, x, y)
        assert caught
        assert_like_native(result, native)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("ii", [integers(3, 3)]),
        ("ij->ji", [integers(3, 4)]),
        ("ij,jk,kl", [integers(3, 3)] * 3),
        ("i,j", [integers(3), integers(4)]),
        ("ij,ij->ij", [integers(3, 4)] * 2),
        (",", [integers(), integers()]),
        (",ij", [2.0, integers(3, 4)]),
        ("i,i", [integers(1), integers(4)]),
        ("ij,jk", [integers(3, 3).astype(np.float32)] * 2),
        ("ij,jk", [integers(3, 3).astype(np.complex64)] * 2),
        ("ij,jk", [integers(3, 3) + 1j, integers(3, 3).astype(np.longdouble)]),
        ("ij,jk", [integers(3, 3).astype(int)] * 2),
        ("ij,jk", [integers(3, 3).astype(object), integers(3, 3)]),
        ("ij,jk", [np.ma.array(integers(3, 3))] * 2),
    ],
)
def test_what_stays_numpys(text, operands):
    native = np.einsum(text, *operands)
    result, caught = routed(text, *operands)
    assert not caught
    np.testing.assert_array_equal(result, native)


@pytest.mark.parametrize(
    "arguments",
    [
        ([0, 1], [1, 2]),
        ([0, 1], [1, 2], [2, 0]),
        ([30, 5], [5, 3]),
        ([Ellipsis, 0, 1], [1, 2], [Ellipsis, 2, 0]),
        ((0, 1), (0, 2)),
    ],
)
def test_lists_of_labels(arguments):
    a, b = integers(4, 4), integers(4, 4, seed=1)
    call = [a, arguments[0], b, *arguments[1:]]
    native = np.einsum(*call)
    result, caught = routed(*call)
    assert caught
    assert_like_native(result, native)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("ij,jk->il", (3, 3)),
        ("ij,jk->ii", (3, 3)),
        ("ij,j1", (3, 3)),
        ("ijk,jk", (3, 3)),
        ("i,jk", (3, 3)),
        ("ij,jk>ik", (3, 3)),
        ("ij,jk-", (3, 3)),
        ("...ij,jk->ik", (2, 3, 3)),
        ("ij...,jk......", (3, 3)),
        ("iji,jk", (3, 3, 2)),
        ("ij,jk", (3, 3, 3)),
    ],
)
def test_errors_are_numpys(text, shape):
    a, b = integers(*shape), integers(3, 3)
    with pytest.raises(ValueError) as native:  # noqa: PT011 - compared below
        np.einsum(text, a, b)
    with scope(), pytest.raises(ValueError) as caught:  # noqa: PT011
        np.einsum(text, a, b)
    assert str(caught.value) == str(native.value)


def test_out_of_any_layout():
    a, b = integers(3, 4), integers(4, 5)
    native = np.einsum("ij,jk", a, b)
    wide = np.zeros((6, 10))
    for out in (np.empty((3, 5)), np.empty((3, 5), order="F"), wide[::-2, 1::2]):
        result, caught = routed("ij,jk", a, b, out=out)
        assert caught
        assert result is out
        np.testing.assert_array_equal(out, native)
    assert not wide[::2].any()
    whole = np.empty((3, 5), complex, order="F")
    result, caught = routed("ij,jk", a, 1j * b, out=whole)
    assert caught
    assert result is whole
    np.testing.assert_array_equal(whole, 1j * native)
    scalar = np.empty(())
    result, caught = routed("ij,ij", a, a, out=scalar)
    assert caught
    assert result is scalar
    assert scalar == (a * a).sum()


def test_out_that_is_an_operand():
    a = np.random.default_rng(1).standard_normal((300, 300))
    want = np_ozaki.matmul(a, a)
    # So many tiles that the first are written before the last operands are read.
    with scope(workspace_bytes=4 << 20):
        assert np.einsum("ij,jk", a, a, out=a) is a
        assert np_ozaki.last_call().tiles > 1
    assert_same_bits(a, want)


@pytest.mark.parametrize(
    "keywords",
    [
        {"out": np.empty((3, 3), complex)},
        {"out": np.empty((3, 3), np.float32), "casting": "same_kind"},
        {"dtype": np.float32, "casting": "same_kind"},
        {"dtype": complex},
        {"out": np.empty((3, 3)).view(np.matrix)},
    ],
)
def test_unusual_keywords_are_numpys(keywords):
    a = integers(3, 3)
    native = np.array(np.einsum("ij,jk", a, a, **keywords))
    result, caught = routed("ij,jk", a, a, **keywords)
    assert not caught
    np.testing.assert_array_equal(result, native)
    assert result.dtype == native.dtype


@pytest.mark.parametrize("optimize", [False, True, "greedy", ["einsum_path", (0, 1)]])
def test_bits_are_those_of_matmul(optimize):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 5, 7)), rng.standard_normal((2, 7, 6))
    with scope():
        result = np.einsum("hij,hjk->hik", a - 2j * a, b + 1j, optimize=optimize)
    assert_same_bits(result, np_ozaki.matmul(a - 2j * a, b + 1j))
    with scope() as inside:
        result = np.einsum("hij,hjk->hik", a, b, optimize=optimize)
        transposed = np.einsum("hkj,hji->hik", b.swapaxes(1, 2), a.swapaxes(1, 2))
    assert inside.stats().calls("native") == 0
    assert inside.stats().calls("cpu") == 2
    assert_same_bits(result, np_ozaki.matmul(a, b))
    assert_same_bits(transposed, result)


def test_special_values_after_a_sum_are_numpys():
    a = np.array([[1.0, np.inf], [2.0, -np.inf]])
    with np.errstate(invalid="ignore"):
        native = np.einsum("ij,jk->k", a, a)
        result, caught = routed("ij,jk->k", a, a)
    assert not caught
    np.testing.assert_array_equal(result, native)
    # 5 Inf - 3 Inf is NaN, (5 - 3) Inf is not: NumPy shall choose.
    call = "ij,jk->k", np.array([[5.0], [-3.0]]), np.array([[np.inf]])
    with np.errstate(invalid="ignore"):
        native = np.einsum(*call)
        result, caught = routed(*call)
    np.testing.assert_array_equal(result, native)
    assert not caught
    large = np.full((2, 2), 1.5e308)
    result, caught = routed("ij,jk->k", large, np.full((2, 2), 1e-300))
    assert not caught
    assert np.isfinite(result).all() == np.isfinite(1.5e308 * 1e-300 * 4)


def test_small_products_are_not_asked_about():
    a = integers(4, 4)
    for x, flops in ((a, 2 * 4**3), (1j * a, 8 * 4**3)):
        with scope(min_flops=flops + 1) as inside:
            np.einsum("ij,jk", x, x)
            np.einsum(x, [0, 1], x, [1, 2])
        assert inside.stats().as_dict() == {}
        with scope(min_flops=flops) as inside:
            np.einsum("ij,jk", x, x)
            np.einsum(x, [0, 1], x, [1, 2])
        assert inside.stats().routes["einsum"].flops["cpu"] == 2 * flops
    assert inside.stats().routes["einsum"].calls["cpu"] == 2


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("other", ["f8", "c16", ">f8", "i8", "f4"])
def test_casting_is_numpys(other, casting):
    a, b = integers(4, 4), integers(4, 4).astype(other)
    try:
        want = np.einsum("ij,jk", a, b, casting=casting)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            routed("ij,jk", a, b, casting=casting)
    else:
        result, caught = routed("ij,jk", a, b, casting=casting)
        assert caught
        np.testing.assert_array_equal(result, want, strict=True)


@pytest.mark.parametrize(
    "keywords",
    [{"dtype": float}, {"dtype": "f8"}, {"dtype": np.float64}, {"casting": "unsafe"}],
)
def test_keywords_that_ask_for_what_it_is(keywords):
    a = integers(4, 4)
    same = keywords if "casting" in keywords else {"dtype": complex}
    result, caught = routed("ij,jk->ik", a, 1j * a, **same)
    assert caught
    np.testing.assert_array_equal(result, 1j * (a @ a))
    result, caught = routed("ij,jk->ik", a, a, **keywords)
    assert caught
    np.testing.assert_array_equal(result, a @ a)
    result, caught = routed("ij,jk->ik", a, a, dtype=np.float32, casting="unsafe")
    assert not caught
    assert result.dtype == np.float32
