"""Example calls of all that an ndarray has: attributes, methods, operators, indexing.

A call is a function of a converter ``w`` (`twins`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy_calls import A, B, C, D, I, J, M, N, R, S, T, U, V, W
from twins import Call, Side, raises, since, unasked, varies


def _load(path: Any) -> Any:
    return pickle.loads(path.read_bytes())


def _text(text: str) -> str:
    """Return a repr without what says whose it is."""
    return " ".join(text.replace("OzArray", "array").split())


def _set(name: str, value: Any) -> Callable[[Any], Any]:
    """Return a function that assigns to an attribute."""
    return lambda x: setattr(x, name, value(x) if callable(value) else value)


# ---- Differences by design: names of ndarray that need no twin ----

DIFFERENT = {
    "base": "the memory is the wrapper's own affair",
    "ctypes": "a pointer into memory that may not be the host's",
    "data": "as ctypes; numpy.asarray gives an ndarray that has it",
    "__array_interface__": "lets others take the memory without asking",
    "__array_struct__": "lets others take the memory without asking",
    "__buffer__": "lets others take the memory without asking (memoryview)",
    "__array__": "what makes it an ndarray; read-only unless a copy is asked for",
    "__array_finalize__": "a hook of ndarray's subclasses",
    "__array_wrap__": "a hook of ndarray's subclasses",
    "__setstate__": "pickles of OzArrays are rebuilt by a function",
    "__array_priority__": "above those of others, so that the wrapper decides",
    "__array_ufunc__": "the protocol itself",
    "__array_function__": "the protocol itself",
    "__sizeof__": "bytes of the wrapper",
}
# What every object has, and what other calls come down to.
_OBJECT = {name for name in dir(object) if name not in ("__eq__", "__ne__")}
_OBJECT -= {"__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__str__", "__repr__"}
_OBJECT -= {"__format__", "__reduce__", "__reduce_ex__"}


def names() -> list[str]:
    """Return the names of the running NumPy's ndarray that must have a call."""
    return sorted(set(dir(np.ndarray)) - _OBJECT - set(DIFFERENT))


# ---- Attributes ----

ATTRIBUTES = {
    "T": [lambda w: w(A).T, lambda w: w(T).T, lambda w: w(V).T],
    "mT": [lambda w: w(T).mT, raises(lambda w: w(V).mT)],
    "shape": [
        lambda w: w(A).shape,
        lambda w: _set("shape", (4, 3))(w(A)),
        lambda w: (x := w(A), _set("shape", -1)(x), x[5])[2],
        raises(lambda w: _set("shape", (5, 5))(w(A))),
        raises(lambda w: _set("shape", -1)(w(A).T)),
    ],
    "dtype": [lambda w: w(A).dtype, lambda w: w(R).dtype],
    "strides": [lambda w: w(A).strides, lambda w: w(A).T[::2].strides],
    "ndim": [lambda w: w(A).ndim],
    "size": [lambda w: w(A).size],
    "itemsize": [lambda w: w(A).itemsize],
    "nbytes": [lambda w: w(A).nbytes],
    "flags": [
        lambda w: [w(A).T.flags.c_contiguous, w(A).flags["F"]],
        lambda w: _set("writeable", False)(w(A).flags),
        lambda w: (x := w(A), _set("writeable", False)(x.flags), x)[2],
    ],
    "flat": [
        lambda w: list(w(A).flat),
        lambda w: w(A).flat[3],
        lambda w: w(A).flat[1:7:2],
        lambda w: w(A).flat[w([0, 2])],
        lambda w: operator.setitem(w(A).flat, 3, 7.0),
        lambda w: operator.setitem(w(A).T.flat, slice(1, 4), w([7.0, 8.0])),
        lambda w: _set("flat", w(V))(w(A)),
        lambda w: (len(w(A).flat), w(A).flat.index, w(A).flat.coords),
        lambda w: w(A).flat.copy(),
        raises(lambda w: w(A).flat[99]),
    ],
    "real": [
        lambda w: w(C).real,
        lambda w: w(A).real,
        lambda w: _set("real", 7.0)(w(C)),
        lambda w: _set("real", w(V))(w(A)),
    ],
    "imag": [
        lambda w: w(C).imag,
        lambda w: w(A).imag,
        lambda w: _set("imag", w(V))(w(C)),
        raises(lambda w: _set("imag", 1.0)(w(A))),
    ],
    "device": since("2.1", lambda w: w(A).device),
}

# ---- Methods ----


def _method(name: str) -> list[Call]:
    """Return calls that reductions have in common."""
    return [
        lambda w: getattr(w(A), name)(),
        lambda w: getattr(w(A), name)(axis=1),
        lambda w: getattr(w(A), name)(0, out=w(np.zeros(4))),
        lambda w: getattr(w(A), name)(0, out=w.plain(np.zeros(4))),
        lambda w: getattr(w(T), name)(axis=(0, 2), keepdims=True),
        raises(lambda w: getattr(w(A), name)(axis=5)),
    ]


METHODS = {name: _method(name) for name in "sum prod max min mean std var".split()} | {
    "all": [lambda w: w(M).all(), lambda w: w(M).all(0, out=w(np.zeros(4, bool)))],
    "any": [lambda w: w(M).any(), lambda w: w(M).any(axis=1, keepdims=True)],
    "argmax": [lambda w: w(A).argmax(), lambda w: w(A).argmax(1, w(np.zeros(3, "i8")))],
    "argmin": [lambda w: w(A).argmin(), lambda w: w(A).argmin(axis=0, keepdims=True)],
    "argpartition": [lambda w: w(V).argpartition(2), lambda w: w(A).argpartition(1, 0)],
    "argsort": [lambda w: w(A).argsort(), lambda w: w(R).argsort(order="b")],
    "astype": [
        lambda w: w(A).astype("f4"),
        lambda w: w(A).astype(float, copy=False),
        lambda w: w(A).astype(int, order="F", casting="unsafe"),
        raises(lambda w: w(A).astype(int, casting="safe")),
    ],
    "byteswap": [lambda w: w(I).byteswap(), lambda w: w(I).byteswap(inplace=True)],
    "choose": [
        lambda w: w(J).choose([w(V), 1.0, 2.0, w(V)]),
        lambda w: w(J).choose(w(np.arange(16).reshape(4, 4))),
    ],
    "clip": [
        lambda w: w(A).clip(-0.5, 0.5),
        lambda w: w(A).clip(min=w(V)),
        lambda w: (x := w(A), x.clip(0, 1, out=x)),
        lambda w: w(A).clip(0, 1, w.plain(np.zeros((3, 4)))),
    ],
    "compress": [lambda w: w(A).compress(w([True, False, True]), axis=0)],
    "conj": [lambda w: w(C).conj(), lambda w: w(A).conj()],
    "conjugate": [lambda w: w(C).conjugate(), lambda w: w(A).conjugate()],
    "copy": [lambda w: w(A).copy(), lambda w: w(A).T.copy(), lambda w: w(A).copy("F")],
    "cumprod": [lambda w: w(A).cumprod(), lambda w: w(A).cumprod(axis=1)],
    "cumsum": [
        lambda w: w(A).cumsum(dtype="f4"),
        lambda w: w(A).cumsum(0, out=w(np.zeros((3, 4)))),
    ],
    "diagonal": [lambda w: w(A).diagonal(), lambda w: w(T).diagonal(1, 1, 2)],
    "dot": [
        lambda w: w(A).dot(w(B)),
        lambda w: w(A).dot(w.plain(B)),
        lambda w: w(A).dot(V.tolist()),
        lambda w: w(A).dot(b=w(B), out=w(np.zeros((3, 3)))),
        lambda w: w(A).dot(w(B), w.plain(np.zeros((3, 3)))),
        lambda w: w(V).dot(w(V)),
        lambda w: w(I).dot(2),
        raises(lambda w: w(A).dot(w(A))),
        raises(lambda w: w(A).dot()),
    ],
    "dump": [
        lambda w: (w(A).dump(p := w.folder / "p"), np.asarray(_load(p)).tolist())[1]
    ],
    "dumps": [lambda w: np.asarray(pickle.loads(w(A).dumps())).tolist()],
    "fill": [
        lambda w: w(A).fill(7),
        lambda w: w(A)[::2].fill(w(7.0)),
        raises(lambda w: w(A).fill("x")),
    ],
    "flatten": [lambda w: w(A).flatten(), lambda w: w(A).flatten("F")],
    "getfield": [lambda w: w(A).getfield("i4"), lambda w: w(C).getfield("f8", 8)],
    "item": [
        lambda w: w(A).item(3),
        lambda w: w(A).item((1, 2)),
        lambda w: w(A).item(1, -1),
        lambda w: w(0.5).item(),
        raises(lambda w: w(A).item()),
        raises(lambda w: w(A).item(99)),
    ],
    # NumPy 2.0 still names these, to say that they are gone.
    "itemset": [raises(lambda w: w(A).itemset(0, 7.0))],
    "newbyteorder": [raises(lambda w: w(A).newbyteorder())],
    "ptp": [raises(lambda w: w(A).ptp())],
    "tostring": [varies(lambda w: w(A).tostring())],
    "nonzero": [lambda w: w(I).nonzero()],
    "partition": [
        lambda w: w(A).partition(2),
        lambda w: w(A).partition((0, 2), axis=0),
    ],
    "put": [
        lambda w: w(A).put(w([0, 5]), w([7.0, 8.0])),
        lambda w: w(A).put(99, 7.0, mode="wrap"),
        raises(lambda w: w(A).put(99, 7.0)),
    ],
    "ravel": [
        lambda w: w(A).ravel(),
        lambda w: w(A).T.ravel(),
        lambda w: w(A).ravel("F"),
    ],
    "repeat": [lambda w: w(A).repeat(2), lambda w: w(A).repeat(w(J), axis=1)],
    "reshape": [
        lambda w: w(A).reshape(4, 3),
        lambda w: w(A).reshape((2, -1)),
        lambda w: w(A).T.reshape(-1, order="A"),
        *since("2.1", lambda w: w(A).reshape(-1, copy=True)),
        raises(lambda w: w(A).reshape(5, 5)),
    ],
    "resize": [
        raises(lambda w: w(A)[1:].resize(2)),
        raises(lambda w: w(A).resize(-1)),
    ],
    "round": [lambda w: w(A).round(), lambda w: w(A).round(1, out=w(np.zeros((3, 4))))],
    "searchsorted": [
        lambda w: w([1.0, 2.0, 4.0]).searchsorted(w(A)),
        lambda w: w(V).searchsorted(0.1, "right", sorter=w(V.argsort())),
    ],
    "setfield": [
        lambda w: w(A).setfield(w([[7]]), "i4"),
        lambda w: w(C).setfield(1.5, "f8", 8),
        raises(lambda w: w(A).setfield(1, "i4", 99)),
    ],
    "setflags": [
        lambda w: (x := w(A), x.setflags(write=False), x)[1:],
        lambda w: (x := w(A), x.setflags(write=False), x.setflags(write=True), x)[1:],
        raises(lambda w: (x := w(A), x.setflags(write=0), x.fill(1))),
        raises(lambda w: (x := w(A), x.setflags(write=0), x.__setitem__(0, 1))),
        raises(lambda w: (x := w(A), x.setflags(write=0), operator.iadd(x, 1))),
        raises(lambda w: (x := w(A), x.setflags(write=0), np.add(1, 2, out=x))),
        raises(lambda w: (x := w(A), x.setflags(write=0), x[1:].sort())),
    ],
    "sort": [
        lambda w: w(A).sort(),
        lambda w: w(A).T.sort(0, kind="stable"),
        lambda w: w(R).sort(order="b"),
        raises(lambda w: w(A).sort(axis=5)),
    ],
    "squeeze": [lambda w: w(A[None]).squeeze(), raises(lambda w: w(A).squeeze(0))],
    "swapaxes": [lambda w: w(T).swapaxes(0, 2), raises(lambda w: w(T).swapaxes(0, 9))],
    "take": [
        lambda w: w(A).take(3),
        lambda w: w(A).take(w([0, 2]), axis=1),
        lambda w: w(V).take([0, 9], mode="clip", out=w(np.zeros(2))),
        raises(lambda w: w(V).take(9)),
    ],
    "to_device": since(
        "2.1", lambda w: w(A).to_device("cpu"), raises(lambda w: w(A).to_device("gpu"))
    ),
    "tobytes": [lambda w: w(A).tobytes(), lambda w: w(A).T.tobytes("A")],
    "tofile": [
        lambda w: (w(A).tofile(p := w.folder / "f"), p.read_bytes()),
        lambda w: (
            w(I).tofile(p := w.folder / "t", sep=" ", format="%d"),
            p.read_text(),
        ),
    ],
    "tolist": [
        lambda w: w(A).tolist(),
        lambda w: w(0.5).tolist(),
        lambda w: w(D).tolist(),
    ],
    "trace": [
        lambda w: w(A).trace(),
        lambda w: w(T).trace(0, 1, 2, out=w(np.zeros(3))),
    ],
    "transpose": [
        lambda w: w(T).transpose(),
        lambda w: w(T).transpose(1, 0, 2),
        lambda w: w(T).transpose((2, 0, 1)),
        lambda w: w(T).transpose(None),
        raises(lambda w: w(T).transpose(0, 1)),
    ],
    "view": [
        lambda w: w(A).view(),
        lambda w: w(A).view("i8"),
        lambda w: w(A).view(dtype="u1"),
        lambda w: w(C).view("f8"),
        raises(lambda w: w(A).T.view("f4")),
    ],
}

# ---- What the language calls ----

BINARY = "add sub mul truediv floordiv mod pow lshift rshift and or xor".split()
COMPARISONS = "lt le eq ne gt ge".split()
UNARY = "neg pos abs invert".split()
OTHERS = {
    "OzArray": lambda w, y: w(y),
    "ndarray": lambda w, y: w.plain(y),
    "row": lambda w, y: w(y[0]),
    "list": lambda w, y: y.tolist(),
    "tuple": lambda w, y: tuple(y[0].tolist()),
    "0-d": lambda w, y: w(y[0, 0]),
    "scalar": lambda w, y: y[0, 1],
    "Python": lambda w, y: y[0, 1].item(),
    "int": lambda w, y: 2,
    "float": lambda w, y: 2.5,
    "complex": lambda w, y: 1j,
    "bool": lambda w, y: True,
    "None": lambda w, y: None,
    "string": lambda w, y: "x",
    "wrong shape": lambda w, y: w(y[:, :2]),
    "object": lambda w, y: Deferring(),
}
VALUES = {"float": A, "int": I, "bool": M, "complex": C, "uint8": U.reshape(2, 2)}


class Deferring:
    """An object that an ndarray leaves operators to."""

    __array_ufunc__ = None

    def _answer(self, other: Any) -> str:
        return "answered"

    for _name in (*BINARY, "matmul", "divmod"):
        locals()[f"__r{_name}__"] = locals()[f"__{_name}__"] = _answer
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _answer
    __hash__ = None


def _function(name: str) -> Callable[[Any, Any], Any]:
    """Return the function of the operator of a special method."""
    return divmod if name == "divmod" else getattr(operator, f"__{name}__")


def _binary(name: str, x: Any, other: Any, w: Side) -> Any:
    return _function(name)(w(x), other(w, x))


def _reflected(name: str, x: Any, other: Any, w: Side) -> Any:
    return _function(name)(other(w, x), w(x))


def operators(name: str) -> list[Call]:
    """Return calls of a binary operator, as functions of a `Side`."""
    pairs = itertools.product(VALUES.values(), OTHERS.values())
    called = _reflected if name.startswith("r") and name not in BINARY else _binary
    stem = name.removeprefix("r") if called is _reflected else name
    if stem in ("matmul", "imatmul"):
        pairs = itertools.product((S, I[:, :3], S + 1j), OTHERS.values())
    return [functools.partial(called, stem, *pair) for pair in pairs]


OPERATORS = [*BINARY, "divmod", "matmul"]
OPERATORS += [f"r{name}" for name in OPERATORS]
OPERATORS += [f"i{name}" for name in (*BINARY, "matmul")] + COMPARISONS

SPECIAL = {f"__{name}__": operators(name) for name in OPERATORS} | {
    f"__{name}__": [
        functools.partial(lambda f, w: f(w(A)), getattr(operator, name)),
        functools.partial(lambda f, w: f(w(I)), getattr(operator, name)),
        functools.partial(lambda f, w: f(w(M)), getattr(operator, name)),
        functools.partial(lambda f, w: f(w(0.5)), getattr(operator, name)),
    ]
    for name in UNARY
}
SPECIAL["__pow__"] += [
    lambda w: pow(w(A), 2),
    lambda w: w(A) ** 0.5,
    raises(lambda w: pow(w(I), 2, 3)),
]
SPECIAL["__lt__"] += [
    lambda w: np.float64(0.1) < w(A),
    raises(lambda w: -1 < w(A) < 1),
    lambda w: -1 < w(0.5) < 1,
    raises(lambda w: bool(w(A) < w(A))),
]
SPECIAL["__eq__"] += [
    lambda w: w(W) == "one",
    lambda w: w(W) == w(W[::-1]),
    lambda w: w(R) == w(R[::-1]),
    lambda w: w(A) == "one",
    lambda w: w(D) == D[0],
]
SPECIAL["__ne__"].append(lambda w: w(W) != "one")
SPECIAL["__add__"] += [lambda w: w(D) + 1, lambda w: w(D) - w(D[::-1])]
SPECIAL["__imul__"] += [
    raises(lambda w: operator.imul(w(I), 0.5)),
    lambda w: operator.imul(w(A)[1], w(V)),
    lambda w: operator.imul(w.plain(A), w(V)),
]
SPECIAL["__imatmul__"] += [lambda w: operator.imatmul(w.plain(S), w(S))]

SPECIAL |= {
    "__bool__": [
        lambda w: bool(w(0.5)),
        lambda w: bool(w([[0]])),
        lambda w: not w([7]),
        raises(lambda w: bool(w(A))),
        varies(lambda w: bool(w([]))),
    ],
    "__int__": [
        lambda w: int(w(2.5)),
        lambda w: int(w(True)),
        varies(lambda w: int(w([2]))),
        raises(lambda w: int(w(A))),
        raises(lambda w: int(w("x"))),
        raises(lambda w: int(w(1j))),
    ],
    "__float__": [
        lambda w: float(w(2)),
        varies(lambda w: float(w([0.5]))),
        raises(lambda w: float(w(A))),
        raises(lambda w: float(w("x"))),
    ],
    "__complex__": [
        lambda w: complex(w(2)),
        lambda w: complex(w(1j)),
        raises(lambda w: complex(w(A))),
    ],
    "__index__": [
        lambda w: [10, 20, 30][w(1)],
        lambda w: list(range(w(3))),
        raises(lambda w: operator.index(w(1.0))),
        raises(lambda w: operator.index(w([1]))),
    ],
    "__len__": [
        lambda w: len(w(A)),
        lambda w: len(w([])),
        raises(lambda w: len(w(0.5))),
    ],
    "__iter__": [
        lambda w: list(w(A)),
        lambda w: list(w(V)),
        lambda w: [row.fill(1) for row in w(A)],
        lambda w: next(iter(w(A))),
        lambda w: (lambda x, *rest: rest)(*w(A)),
        lambda w: list(zip(w(V), w(J), strict=True)),
        lambda w: sum(w(V)),
        lambda w: max(w(V)),
        lambda w: sorted(w(V)),
        lambda w: list(reversed(w(A))),
        lambda w: list(enumerate(w(V))),
        raises(lambda w: iter(w(0.5))),
    ],
    "__contains__": [
        lambda w: 3 in w(I),
        lambda w: 99 in w(I),
        lambda w: w(3) in w(I),
        lambda w: w(I[0]) in w(I),
        lambda w: np.nan in w(N),
        lambda w: "one" in w(W),
        lambda w: None in w(A),
        raises(lambda w: [1, 2] in w(I)),
    ],
    "__hash__": [raises(lambda w: hash(w(A))), raises(lambda w: {w(0.5)})],
    "__str__": [lambda w: str(w(A)), lambda w: str(w(0.5)), lambda w: f"{w(W)}"],
    "__repr__": [
        lambda w: _text(repr(w(A))),
        lambda w: _text(f"{w(W)!r}"),
        lambda w: _text(repr(w(R))),
        lambda w: _text(repr(w(np.zeros((0, 3), "f4")))),
        lambda w: _text(repr(w(0.5))),
        lambda w: _in_context(lambda: _text(repr(w(A)))),
        lambda w: _in_context(lambda: str(w(A))),
    ],
    "__format__": [
        lambda w: f"{w(0.5):.3f}",
        lambda w: f"{w(A)}",
        lambda w: f"{w(7):>5d}",
        lambda w: f"{w([0.5])}",
        raises(lambda w: f"{w(A):.3f}"),
    ],
    "__copy__": [
        lambda w: copy.copy(w(A)),
        lambda w: copy.copy(w(A).T),
    ],
    "__deepcopy__": [
        lambda w: copy.deepcopy(w(A)),
        lambda w: copy.deepcopy(w(A).T),
        lambda w: (x := w(A), y := copy.deepcopy([x, x]), y[0] is y[1])[2],
        lambda w: copy.deepcopy(w([None, 1], object)),
    ],
    "__reduce__": [lambda w: pickle.loads(pickle.dumps(w(A), 2))],
    "__reduce_ex__": [
        lambda w: [pickle.loads(pickle.dumps(w(A), level)) for level in range(6)],
        lambda w: pickle.loads(pickle.dumps(w(A).T)),
        lambda w: pickle.loads(pickle.dumps(w(A)[:, ::2])),
        lambda w: pickle.loads(pickle.dumps(w(R))),
        lambda w: (y := pickle.loads(pickle.dumps([x := w(A), x])), y[0] is y[1])[1],
    ],
    "__dlpack__": [
        lambda w: np.from_dlpack(w(A)).tolist(),
        raises(lambda w: np.from_dlpack(w(W))),
    ],
    "__dlpack_device__": [lambda w: tuple(map(int, w(A).__dlpack_device__()))],
    "__array_namespace__": [lambda w: w(A).__array_namespace__() is np],
    "__class_getitem__": [
        lambda w: type(w(A))[Any, np.dtype[np.float64]].__args__,
        raises(lambda w: type(w(A))[()]),
    ],
    "__delitem__": [raises(lambda w: operator.delitem(w(A), 0))],
}


def _in_context(show: Callable[[], str]) -> str:
    """Return a text made with other print options."""
    with np.printoptions(precision=2, threshold=5, edgeitems=1, suppress=True):
        return show()


# ---- Indexing ----

# Keys of an array of shape (3, 4), as functions of a converter.
_KEYS = [
    lambda w: 1,
    lambda w: -1,
    lambda w: np.int64(2),
    lambda w: w(1),
    lambda w: slice(1, None),
    lambda w: slice(None, None, -2),
    lambda w: slice(w(0), w(2)),
    lambda w: slice(5, 9),
    lambda w: ...,
    lambda w: (..., 1),
    lambda w: None,
    lambda w: (None, 1, None),
    lambda w: (slice(None), np.newaxis, 2),
    lambda w: (1, 2),
    lambda w: (1, 2, ...),
    lambda w: (w(1), w(2)),
    lambda w: (),
    lambda w: (slice(1), slice(None, None, 2)),
    lambda w: w(M),
    lambda w: w.plain(M),
    lambda w: M.tolist(),
    lambda w: w([True, False, True]),
    lambda w: (slice(None), w([True, False, True, True])),
    lambda w: True,
    lambda w: w(False),
    lambda w: [0, 2],
    lambda w: w([0, 2]),
    lambda w: w([[0], [2]]),
    lambda w: (w([0, 2]), [1, -1]),
    lambda w: (w([[0], [2]]), w.plain([1, 3])),
    lambda w: (w([0, 2]), slice(1, 3)),
    lambda w: (1, w([0, 2])),
    lambda w: (w([True, False, True]), w([0, 2])),
    lambda w: (None, w([0, 2]), None),
    lambda w: np.ix_(w([0, 2]), w([1, 3])),
    lambda w: np.nonzero(w(M)),
    lambda w: [],
    lambda w: w([], int),
]
_WRONG_KEYS = [
    lambda w: 3,
    lambda w: -4,
    lambda w: (0, 4),
    lambda w: (0, 0, 0),
    lambda w: (..., ...),
    lambda w: 1.0,
    lambda w: "a",
    lambda w: w(1.0),
    lambda w: w([0.0, 2.0]),
    lambda w: w([0, 3]),
    lambda w: w([True, False]),
    lambda w: w(M.T),
    lambda w: (w([0, 1]), w([0, 1, 2])),
    lambda w: slice("a", None),
    lambda w: {},
]
_RECORD_KEYS = [
    lambda w: "a",
    lambda w: ["a", "b"],
    lambda w: 1,
    lambda w: slice(1),
    lambda w: w([True, False, True]),
]
_WRONG_RECORD_KEYS = [lambda w: "c", lambda w: ["a", "c"], lambda w: ("a", 0)]


def _get(key: Any, x: Any, w: Side) -> Any:
    return w(x)[key(w)]


def _put(key: Any, x: Any, value: Any, w: Side) -> None:
    w(x)[key(w)] = value(w)


def _values(x: Any, key: Any) -> list[Callable[[Side], Any]]:
    """Return what to assign to ``x[key]``."""
    try:
        part = 2 * x[key(Side(np.ndarray))]
    except (IndexError, TypeError):
        part = np.zeros(1)
    return [
        lambda w: 7,
        lambda w: w(7.5),
        lambda w: w(part),
        lambda w: w.plain(part),
        lambda w: part.tolist(),
        lambda w: w(np.zeros((3, 9))),
        lambda w: "x",
        lambda w: None,
    ]


INDEXING = {
    "__getitem__": [
        *(functools.partial(_get, key, A) for key in _KEYS + _WRONG_KEYS),
        *(functools.partial(_get, key, T) for key in _KEYS),
        *(functools.partial(_get, key, R) for key in _RECORD_KEYS + _WRONG_RECORD_KEYS),
        *(functools.partial(_get, key, 0.5) for key in _KEYS[8:16] + _WRONG_KEYS[:3]),
        unasked(lambda w: w.plain(A)[w([0, 2])]),
        unasked(lambda w: w.plain(A)[w([True, False, True])]),
        lambda w: [1, 2, 3][w(1)],
        lambda w: w(R)["b"][1],
        lambda w: w(R)[1]["b"],
        lambda w: w(A)[1][::2][1],
    ],
    "__setitem__": [
        *(
            functools.partial(_put, key, A, value)
            for key in _KEYS + _WRONG_KEYS
            for value in _values(A, key)
        ),
        *(
            functools.partial(_put, key, R, value)
            for key in _RECORD_KEYS
            for value in (lambda w: 7, lambda w: w([1, 2, 3]), lambda w: (1, 2.0))
        ),
        lambda w: operator.setitem(w(R)["b"], 1, 9.0),
        lambda w: operator.setitem(w(0.5), (), 7.0),
        lambda w: operator.setitem(w(0.5), ..., w(7)),
        lambda w: operator.setitem(w(I), 0, w(A[0])),
        lambda w: operator.setitem(w(I), 0, w(N[0])),
        lambda w: operator.setitem(w(A), 0, w(C[0])),
        lambda w: operator.setitem(w.plain(A), 0, w(V)),
        lambda w: operator.setitem(w.plain(A), w([0, 2]), w(V)),
        lambda w: (x := w(A), operator.setitem(x, (slice(1, None)), x[:-1])),
        lambda w: (x := w(A), operator.setitem(x[1], w([0, 1]), x[0, :2])),
    ],
}

CALLS = ATTRIBUTES | METHODS | SPECIAL | INDEXING
CLOSE = {"dot", "__matmul__", "__rmatmul__", "__imatmul__"}
