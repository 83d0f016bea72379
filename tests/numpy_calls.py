"""Example calls of every function of NumPy that arrays can override.

A call is a function ``(f, w)`` of the function called and of a converter (`twins`);
a name is that of the function below ``numpy``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from twins import Call, Side, raises, since, unasked

RNG = np.random.default_rng(7)
A = RNG.standard_normal((3, 4))
B = RNG.standard_normal((4, 3))
S = RNG.standard_normal((3, 3))
S = S @ S.T + np.eye(3)  # symmetric, positive definite
V = RNG.standard_normal(4)
N = np.where(A < 0, np.nan, A)
C = A + 1j * RNG.standard_normal((3, 4))
I = np.array([[3, 1, 2, 3], [0, 1, 7, 5], [2, 2, 0, 1]])  # noqa: E741
J = np.array([3, 0, 2, 1])
M = A > 0
T = A.reshape(3, 2, 2)
U = np.array([3, 0, 255, 7], "u1")
D = np.array(["2024-02-28", "2024-02-29", "2024-03-02"], "M8[D]")
W = np.array(["one", " Two ", "3", ""])  # words
Y = np.char.encode(W)  # bytes
R = np.array([(1, 2.5), (3, 4.5), (1, 0.5)], [("a", "i8"), ("b", "f8")])
Z = np.array([(1, 7), (4, 8)], [("a", "i8"), ("c", "i8")])
SORTED = np.sort(A, axis=None)


def find(name: str) -> Callable[..., Any] | None:
    """Return the public function of a name below ``numpy``, None without it."""
    # Only numpy.char shows the public functions of these.
    module, _, last = name.replace("strings._", "char.").rpartition(".")
    try:
        space = importlib.import_module(f"numpy.{module}" if module else "numpy")
    except ImportError:
        return None
    return getattr(space, last, None)


def each(names: str, *calls: Callable[..., Any]) -> dict[str, list[Any]]:
    """Return a table with the same calls for several names."""
    return {name: list(calls) for name in names.split()}


def _load(path: Any) -> Any:
    """Return the arrays of a file by name, as lists."""
    with np.load(path) as archive:
        return {name: archive[name].tolist() for name in archive.files}


def _text(text: str) -> str:
    """Return a repr without what says whose it is."""
    return " ".join(text.replace("OzArray", "array").split())


# ---- Reductions and scans ----

REDUCTIONS = each(
    "sum prod max min amax amin mean std var"
    " nansum nanprod nanmax nanmin nanmean nanstd nanvar",
    lambda f, w: f(w(N)),
    lambda f, w: f(w(A), axis=1),
    lambda f, w: f(w(A), 0),
    lambda f, w: f(w(T), axis=(0, 2), keepdims=True),
    lambda f, w: f(w(A), axis=0, out=w(np.zeros(4))),
    lambda f, w: f(w(A), axis=0, out=w.plain(np.zeros(4))),
    lambda f, w: f(w.plain(A), axis=0, out=w(np.zeros(4))),
    lambda f, w: f(w(A), 0, None, w(np.zeros(4))),
    lambda f, w: f(w(I)),
    unasked(lambda f, w: f([w(V), w(V)], axis=0)),
    raises(lambda f, w: f(w(A), axis=2)),
    raises(lambda f, w: f(w(A), axis=0, out=w(np.zeros(3)))),
)
for _name in "max min amax amin nanmax nanmin".split():  # without dtype
    REDUCTIONS[_name][7] = lambda f, w: f(w(A), 0, w(np.zeros(4)))
for _name in "sum prod max min amax amin nansum nanprod nanmax nanmin".split():
    REDUCTIONS[_name] += [
        lambda f, w: f(w(A), axis=1, where=w(M), initial=0.5),
        lambda f, w: f(w(A), axis=1, where=w.plain(M), initial=w(0.5)),
    ]
for _name in "mean std var nanmean nanstd nanvar".split():
    REDUCTIONS[_name] += [
        lambda f, w: f(w(A), axis=1, where=w(M)),
        lambda f, w: f(w(A.astype("f4")), dtype="f8"),
        lambda f, w: f(w(np.zeros(0))),
    ]
for _name in "std var nanstd nanvar".split():
    REDUCTIONS[_name] += [
        lambda f, w: f(w(A), axis=1, ddof=1),
        lambda f, w: f(w(A), axis=1, mean=w(A.mean(1, keepdims=True))),
    ]

LOGICAL = each(
    "all any",
    lambda f, w: f(w(M)),
    lambda f, w: f(w(A), axis=0, keepdims=True),
    lambda f, w: f(w(M), axis=1, out=w(np.zeros(3, bool))),
    lambda f, w: f(w(M), axis=1, where=w(M)),
)

SCANS = each(
    "cumsum cumprod nancumsum nancumprod",
    lambda f, w: f(w(N)),
    lambda f, w: f(w(A), axis=1),
    lambda f, w: f(w(A), 0, out=w(np.zeros((3, 4)))),
    lambda f, w: f(w(I), dtype="f4", out=w.plain(np.zeros(12, "f4"))),
) | each(
    "cumulative_sum cumulative_prod",
    lambda f, w: f(w(V)),
    lambda f, w: f(w(A), axis=0, include_initial=True),
    lambda f, w: f(w(A), axis=1, out=w(np.zeros((3, 4)))),
    raises(lambda f, w: f(w(A))),
)

POSITIONS = each(
    "argmax argmin nanargmax nanargmin",
    lambda f, w: f(w(N[:2, :2])),
    lambda f, w: f(w(A), axis=1),
    lambda f, w: f(w(A), axis=0, out=w(np.zeros(4, "i8"))),
    lambda f, w: f(w(A), axis=0, keepdims=True),
    raises(lambda f, w: f(w(np.zeros(0)))),
)
POSITIONS["nanargmax"].append(raises(lambda f, w: f(w(N * np.nan))))

QUANTILES = each(
    "median nanmedian",
    lambda f, w: f(w(N)),
    lambda f, w: f(w(A), axis=1, keepdims=True),
    lambda f, w: f(w(A), axis=0, out=w(np.zeros(4))),
    lambda f, w: f(w(A), overwrite_input=True) * 0,
    lambda f, w: f(w(T), axis=(0, 1)),
) | each(
    "percentile nanpercentile quantile nanquantile",
    lambda f, w: f(w(N), 0.5),
    lambda f, w: f(w(A), w([0.25, 0.5]), axis=1),
    lambda f, w: f(w.plain(A), w([0.25, 0.5]), axis=1, keepdims=True),
    lambda f, w: f(w(A), 0.3, axis=0, out=w(np.zeros(4))),
    lambda f, w: f(w(A), 0.3, axis=0, method="nearest"),
    lambda f, w: f(w(A), 0.3, axis=1, method="inverted_cdf", weights=w(A * A)),
    raises(lambda f, w: f(w(A), w([0.25, 101]))),
)

STATISTICS = {
    "ptp": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axis=1, keepdims=True),
        lambda f, w: f(w(A), axis=0, out=w(np.zeros(4))),
    ],
    "average": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axis=1, weights=w(V)),
        lambda f, w: f(w.plain(A), axis=1, weights=w(V), returned=True),
        raises(lambda f, w: f(w(A), weights=w(V))),
    ],
    "count_nonzero": [
        lambda f, w: f(w(I)),
        lambda f, w: f(w(I), axis=0),
        lambda f, w: f(w(M), axis=1, keepdims=True),
    ],
    "cov": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(V), w(V[::-1]), ddof=0),
        lambda f, w: f(w(A), rowvar=False, aweights=w([1.0, 2.0, 1.0])),
    ],
    "corrcoef": [lambda f, w: f(w(A)), lambda f, w: f(w(V), w.plain(V[::-1]))],
    "bincount": [
        lambda f, w: f(w(J)),
        lambda f, w: f(w(J), weights=w(V), minlength=6),
        lambda f, w: f(w.plain(J), w(V)),
        raises(lambda f, w: f(w(V))),
    ],
    "digitize": [
        lambda f, w: f(w(A), w([-1.0, 0.0, 1.0])),
        lambda f, w: f(w.plain(A), w([1.0, 0.0, -1.0]), right=True),
    ],
    "histogram": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), bins=3, range=(-1, 1), weights=w(A * A)),
        lambda f, w: f(w(A), w([-1.0, 0.0, 1.0]), density=True),
    ],
    "histogram2d": [
        lambda f, w: f(w(V), w(V[::-1]), bins=3),
        lambda f, w: f(w(V), w(V), bins=[w([-1.0, 0.0, 1.0]), 2]),
        lambda f, w: f(w(V), w(V), [[-1, 0, 1], [-2, 2]], weights=w(V)),
    ],
    "histogramdd": [
        lambda f, w: f(w(A.T), bins=2),
        lambda f, w: f((w(V), w(V)), bins=(w([-1.0, 0.0, 1.0]), 2)),
    ],
    "histogram_bin_edges": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), bins="sturges"),
        lambda f, w: f(w(A), w([-1.0, 0.0, 1.0])),
    ],
    "interp": [
        lambda f, w: f(w(V), w([-1.0, 1.0]), w([0.0, 2.0])),
        lambda f, w: f(0.5, w([-1.0, 1.0]), [0.0, 2.0], left=9),
        lambda f, w: f(w(V), [-1.0, 1.0], [0.0, 2.0j], period=1.5),
    ],
    "correlate": [
        lambda f, w: f(w(V), w(V[:2])),
        lambda f, w: f(w(V), [1.0, 2.0], "full"),
    ],
    "convolve": [
        lambda f, w: f(w(V), w(V[:2])),
        lambda f, w: f([1, 2, 3], w(J), mode="same"),
        raises(lambda f, w: f(w(V), w(np.zeros(0)))),
    ],
}

# ---- Entries ----

ENTRYWISE = {
    **each(
        "isreal iscomplex iscomplexobj isrealobj real imag angle real_if_close",
        lambda f, w: f(w(C)),
        lambda f, w: f(w(A)),
        lambda f, w: f(w(1 + 2j)),
        lambda f, w: f(w(A + 0j)),
    ),
    **each("i0 sinc sort_complex", lambda f, w: f(w(A)), lambda f, w: f(w(I))),
    **each(
        "fix isposinf isneginf",
        lambda f, w: f(w(A)),
        lambda f, w: f(w([np.inf, -np.inf, 0.5])),
        lambda f, w: f(w(V), out=w(np.zeros(4))),
        lambda f, w: f(w(V), w.plain(np.zeros(4))),
    ),
    **each(
        "round around",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), 1),
        lambda f, w: f(w(A), decimals=2, out=w(np.zeros((3, 4)))),
        lambda f, w: f(w(I), -1),
    ),
    "clip": [
        lambda f, w: f(w(A), -0.5, 0.5),
        lambda f, w: f(w(A), w(V), None),
        lambda f, w: f(w.plain(A), None, w(V)),
        lambda f, w: f(w(A), -0.5, 0.5, out=w(np.zeros((3, 4)))),
        lambda f, w: (x := w(A), f(x, 0, 1, x)),
        *since("2.1", lambda f, w: f(w(A), min=0.0, max=w(1.0))),
    ],
    "nan_to_num": [
        lambda f, w: f(w(N)),
        lambda f, w: f(w(N), copy=False, nan=7.0),
        lambda f, w: f(w(np.nan)),
    ],
    "unwrap": [
        lambda f, w: f(w(10 * V)),
        lambda f, w: f(w(10 * A), axis=0, period=3.0),
    ],
    "isclose": [
        lambda f, w: f(w(A), w(A + 1e-9)),
        lambda f, w: f(w(N), w(N), equal_nan=True),
        lambda f, w: f(1.0, w(A), rtol=w(V * 0 + 1)),
    ],
    **each(
        "allclose array_equal array_equiv",
        lambda f, w: f(w(A), w(A)),
        lambda f, w: f(w(A), w.plain(A)),
        lambda f, w: f(A.tolist(), w(A + 1)),
    ),
    "where": [
        lambda f, w: f(w(M)),
        lambda f, w: f(w(M), w(A), 0.0),
        lambda f, w: f(w.plain(M), [1, 2, 3, 4], w(A)),
        lambda f, w: f(M, 0, w(I)),
        raises(lambda f, w: f(w(M), w(A))),
    ],
    "select": [
        lambda f, w: f([w(M), w(A < -1)], [w(A), w(2 * A)], 7.0),
        lambda f, w: f([M, A < -1], [w(A), 1.0], default=w(V)),
    ],
    "choose": [
        lambda f, w: f(w(J), [w(V), w(2 * V), 3, w(4 * V)]),
        lambda f, w: f(w(J), w(np.arange(16).reshape(4, 4))),
        lambda f, w: f(w(J), [w(V), w(V)], out=w(np.zeros(4)), mode="wrap"),
        raises(lambda f, w: f(w(J), [w(V), w(V)])),
    ],
    "piecewise": [
        lambda f, w: f(w(V), [w(V < 0), w(V >= 0)], [lambda x: -x, 2.0]),
        lambda f, w: f(w(V), w(V < 0), [lambda x, by: x * by, 7.0], 3.0),
    ],
    "extract": [lambda f, w: f(w(M), w(A)), lambda f, w: f(M, w(A))],
    "astype": [
        lambda f, w: f(w(A), "f4"),
        lambda f, w: f(w(A), np.float64, copy=False),
        lambda f, w: f(w(A), np.float64),
    ],
}

WRITERS = {
    "copyto": [
        lambda f, w: f(w(A), w(2 * A)),
        lambda f, w: f(w(A), w(V), where=w(M)),
        lambda f, w: f(w(A), 0.5, where=M),
        lambda f, w: f(w.plain(A), w(V)),
        lambda f, w: f(w(I), w(A), casting="unsafe"),
        lambda f, w: f(w(A)[::2], w(V)),
        raises(lambda f, w: f(w(I), w(A))),
        raises(lambda f, w: f(w(A), w(B))),
    ],
    "fill_diagonal": [
        lambda f, w: f(w(S), 7.0),
        lambda f, w: f(w(np.zeros((7, 3))), w([1.0, 2.0]), wrap=True),
        unasked(lambda f, w: f(w.plain(S), w([1.0, 2.0]))),
        raises(lambda f, w: f(w(V), 1.0)),
    ],
    "place": [
        lambda f, w: f(w(A), w(M), w([1.0, 2.0])),
        lambda f, w: f(w(A), M, [1.0, 2.0]),
    ],
    "put": [
        lambda f, w: f(w(A), [0, 5], w([7.0, 8.0])),
        lambda f, w: f(w(A), w([1, -2]), 7.0),
        lambda f, w: f(w(A), w(99), 7.0, mode="clip"),
        raises(lambda f, w: f(w(A), 99, 7.0)),
    ],
    "putmask": [
        lambda f, w: f(w(A), w(M), w(V)),
        lambda f, w: f(w(A), M, 7.0),
        raises(lambda f, w: f(w(A), w([True]), 1.0)),
    ],
    "put_along_axis": [
        lambda f, w: f(w(A), w([[0], [1], [3]]), 7.0, axis=1),
        lambda f, w: f(w(A), w([0, 5]), w([7.0, 8.0]), None),
    ],
}

# ---- Sorting, searching, sets ----

SORTING = {
    "sort": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axis=None, kind="stable"),
        lambda f, w: f(w(A), 0),
        lambda f, w: f(w(R), order=["b"]),
        raises(lambda f, w: f(w(A), axis=5)),
    ],
    "argsort": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axis=None),
        lambda f, w: f(w(A), axis=0, stable=True),
        lambda f, w: f(w(R), order="b"),
    ],
    **each(
        "partition argpartition",
        lambda f, w: f(w(V), 2),
        lambda f, w: f(w(A), (0, 2), axis=1),
        lambda f, w: f(w(A), 1, axis=None),
        raises(lambda f, w: f(w(V), 9)),
    ),
    "lexsort": [
        lambda f, w: f((w(J), w(V))),
        lambda f, w: f(w(I)),
        unasked(lambda f, w: f([w(I), w(A)], axis=0)),
    ],
    "searchsorted": [
        lambda f, w: f(w(SORTED), 0.2),
        lambda f, w: f(w(SORTED), w(A), side="right"),
        lambda f, w: f(w.plain(SORTED), w(V)),
        lambda f, w: f(w(V), w(A), sorter=w(np.argsort(V))),
    ],
    **each(
        "nonzero flatnonzero argwhere",
        lambda f, w: f(w(I)),
        lambda f, w: f(w(M)),
    ),
    "unique": [
        lambda f, w: f(w(I)),
        lambda f, w: f(
            w(I), return_index=True, return_inverse=True, return_counts=True
        ),
        lambda f, w: f(w(I), axis=0),
        lambda f, w: f(w(N), equal_nan=False),
        *since("2.3", lambda f, w: f(w(I), sorted=True)),
    ],
    **each(
        "unique_all unique_counts unique_inverse unique_values",
        lambda f, w: f(w(I)),
        lambda f, w: f(w(N)),
    ),
    **each(
        "intersect1d setxor1d",
        lambda f, w: f(w(I), w(J)),
        lambda f, w: f(w(I[1]), [7, 9, 0]),
        lambda f, w: f([7, 9, 0], w(I[1]), assume_unique=True),
    ),
    **each("setdiff1d", lambda f, w: f(w(I), w(J[:2])), lambda f, w: f([7, 9], w(J))),
    **each("union1d", lambda f, w: f(w(I), w(J)), lambda f, w: f([7, 9], w(J))),
    **each(
        "isin in1d",
        lambda f, w: f(w(I), w(J[:2])),
        lambda f, w: f([7, 1], w(J)),
        lambda f, w: f(w(A), w(V), invert=True),
        lambda f, w: f(w(I), w(J), kind="table"),
    ),
    "trim_zeros": [
        lambda f, w: f(w([0, 0, 1, 2, 0])),
        lambda f, w: f(w([0, 0, 1, 2, 0]), "f"),
        *since("2.2", lambda f, w: f(w(np.diag([0, 1, 0])))),
    ],
}
SORTING["intersect1d"].append(lambda f, w: f(w(I), w(J), return_indices=True))

# ---- Shape ----

SHAPES = {
    **each(
        "shape ndim size",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(0.5)),
        unasked(lambda f, w: f([w(V), w(V)])),
    ),
    "reshape": [
        lambda f, w: f(w(A), (4, 3)),
        lambda f, w: f(w(A), -1),
        lambda f, w: f(w(A).T, -1),
        lambda f, w: f(w(A), (2, 6), order="F"),
        *since("2.1", lambda f, w: f(w(A), shape=(6, 2), copy=True)),
        *since("2.1", raises(lambda f, w: f(w(A).T, -1, copy=False))),
        raises(lambda f, w: f(w(A), (5, 5))),
    ],
    "ravel": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), "F"),
        lambda f, w: f(w(A).T, order="K"),
    ],
    "resize": [
        lambda f, w: f(w(A), (2, 3)),
        lambda f, w: f(w(A), (5, 5)),
        lambda f, w: f(w(V), 0),
    ],
    "squeeze": [
        lambda f, w: f(w(A[None])),
        lambda f, w: f(w(A[None]), axis=0),
        raises(lambda f, w: f(w(A), axis=0)),
    ],
    "expand_dims": [
        lambda f, w: f(w(A), 0),
        lambda f, w: f(w(A), axis=(0, -1)),
        raises(lambda f, w: f(w(A), 5)),
    ],
    "transpose": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(T), (1, 0, 2)),
        raises(lambda f, w: f(w(T), (1, 0))),
    ],
    **each("matrix_transpose linalg.matrix_transpose", lambda f, w: f(w(T))),
    "swapaxes": [lambda f, w: f(w(T), 0, 2), raises(lambda f, w: f(w(T), 0, 3))],
    "moveaxis": [lambda f, w: f(w(T), 0, -1), lambda f, w: f(w(T), [0, 1], [2, 0])],
    "rollaxis": [lambda f, w: f(w(T), 2), lambda f, w: f(w(T), 0, 2)],
    "roll": [
        lambda f, w: f(w(A), 2),
        lambda f, w: f(w(A), (1, 2), axis=(0, 1)),
        lambda f, w: f(w(A), w(1), axis=0),
    ],
    "rot90": [lambda f, w: f(w(A)), lambda f, w: f(w(T), 3, axes=(1, 2))],
    "flip": [lambda f, w: f(w(A)), lambda f, w: f(w(A), axis=1)],
    **each("fliplr flipud", lambda f, w: f(w(A))),
    **each(
        "atleast_1d atleast_2d atleast_3d",
        lambda f, w: f(w(0.5)),
        lambda f, w: f(w(A)),
        lambda f, w: f(w(V), 2.0, w.plain(T)),
    ),
    "broadcast_to": [
        lambda f, w: f(w(V), (3, 4)),
        lambda f, w: f(w(0.5), 3),
        raises(lambda f, w: f(w(V), (3, 3))),
    ],
    "broadcast_arrays": [
        lambda f, w: f(w(A), w(V)),
        lambda f, w: f(w(A), 1.0, [1, 2, 3, 4]),
        raises(lambda f, w: f(w(A), w(B))),
    ],
    **each("diagonal", lambda f, w: f(w(A)), lambda f, w: f(w(T), 1, 1, 2)),
    "diag": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(V), k=1),
        raises(lambda f, w: f(w(T))),
    ],
    "diagflat": [lambda f, w: f(w(V)), lambda f, w: f(w(A), -1)],
    "trace": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(T), 0, 1, 2),
        lambda f, w: f(w(T), axis1=1, axis2=2, out=w(np.zeros(3))),
        lambda f, w: f(w(I), dtype="f4"),
    ],
    **each("tril triu", lambda f, w: f(w(A)), lambda f, w: f(w(T), k=1)),
    **each("tril_indices_from triu_indices_from", lambda f, w: f(w(A), 1)),
    "diag_indices_from": [lambda f, w: f(w(S)), raises(lambda f, w: f(w(A)))],
    "vander": [lambda f, w: f(w(V)), lambda f, w: f(w(V), 3, increasing=True)],
    "lib.stride_tricks.sliding_window_view": [
        lambda f, w: f(w(V), 2),
        lambda f, w: f(w(A), (2, 2)),
        lambda f, w: f(w(A), 2, axis=1, writeable=True),
    ],
}

# ---- Joining, splitting, taking ----

JOINING = {
    "concatenate": [
        lambda f, w: f([w(A), w(B.T)]),
        lambda f, w: f((w(A), w.plain(A)), axis=1),
        lambda f, w: f([w(A), A.tolist()], axis=None),
        lambda f, w: f([w(V), w(V)], out=w(np.zeros(8))),
        lambda f, w: f([w.plain(V), w.plain(V)], out=w(np.zeros(8))),
        lambda f, w: f([w(V), w(J)], dtype="f4", casting="unsafe"),
        lambda f, w: f(w(T)),
        raises(lambda f, w: f([w(A), w(B)])),
        raises(lambda f, w: f([w(0.5)])),
    ],
    "stack": [
        lambda f, w: f([w(V), w(V)]),
        lambda f, w: f((w(V), V.tolist()), axis=1),
        lambda f, w: f([w(V), w.plain(V)], out=w(np.zeros((2, 4)))),
        lambda f, w: f(w(A), axis=-1),
        raises(lambda f, w: f([w(V), w(A)])),
    ],
    **each(
        "hstack vstack dstack column_stack",
        lambda f, w: f([w(A), w(A)]),
        lambda f, w: f((w(V), w.plain(V))),
        lambda f, w: f([w(V), V.tolist()]),
        raises(lambda f, w: f([w(A), w(B)])),
    ),
    "block": [
        lambda f, w: f([[w(S), w(S)], [w.plain(S), w(S)]]),
        lambda f, w: f([w(V), 1.0, w([2.0])]),
        lambda f, w: f(w(A)),
    ],
    "append": [
        lambda f, w: f(w(A), 1.0),
        lambda f, w: f(w(A), w(A), axis=0),
        lambda f, w: f([1, 2], w(A)),
    ],
    "insert": [
        lambda f, w: f(w(A), 1, 7.0),
        lambda f, w: f(w(A), 1, w(V), axis=0),
        lambda f, w: f(w.plain(V), w([0, 2]), [7.0, 8.0]),
        lambda f, w: f(w(V), slice(1, 3), w([7.0, 8.0])),
        raises(lambda f, w: f(w(V), 9, 1.0)),
    ],
    "delete": [
        lambda f, w: f(w(A), 1),
        lambda f, w: f(w(A), w([0, 2]), axis=1),
        lambda f, w: f(w(A), slice(0, 2), axis=0),
        lambda f, w: f(w(V), w([True, False, True, False])),
        raises(lambda f, w: f(w(V), 9)),
    ],
    **each(
        "split array_split",
        lambda f, w: f(w(A), 2, axis=1),
        lambda f, w: f(w(A), [1, 2]),
        lambda f, w: f(w(V), w([1, 3])),
    ),
    "hsplit": [lambda f, w: f(w(A), 2), lambda f, w: f(w(V), [1])],
    "vsplit": [lambda f, w: f(w(A), 3), raises(lambda f, w: f(w(V), 2))],
    "dsplit": [lambda f, w: f(w(T), 2), raises(lambda f, w: f(w(A), 2))],
    "unstack": [lambda f, w: f(w(A)), lambda f, w: f(w(A), axis=1)],
    "take": [
        lambda f, w: f(w(A), 3),
        lambda f, w: f(w(A), [0, 2], axis=1),
        unasked(lambda f, w: f(w.plain(A), w(I))),
        lambda f, w: f(w(V), w(J), out=w(np.zeros(4)), mode="clip"),
        raises(lambda f, w: f(w(V), 9)),
    ],
    "take_along_axis": [
        lambda f, w: f(w(A), w(I % 3), axis=0),
        lambda f, w: f(w(A), w([0, 5]), axis=None),
        raises(lambda f, w: f(w(A), w(A), axis=0)),
    ],
    "compress": [
        lambda f, w: f(w([True, False, True]), w(A), axis=0),
        lambda f, w: f([0, 1, 1], w(A)),
        lambda f, w: f([True, False, True], w(A), axis=0, out=w(np.zeros((2, 4)))),
    ],
    "repeat": [
        lambda f, w: f(w(A), 2),
        lambda f, w: f(w(A), w(J), axis=1),
        unasked(lambda f, w: f(w.plain(V), w(J))),
        raises(lambda f, w: f(w(V), [1, 2])),
    ],
    "tile": [lambda f, w: f(w(A), 2), lambda f, w: f(w(V), (2, 2))],
    "pad": [
        lambda f, w: f(w(A), 1),
        lambda f, w: f(w(V), (2, 1), "constant", constant_values=(7, 8)),
        lambda f, w: f(w(A), ((1, 0), (0, 2)), mode="reflect"),
        lambda f, w: f(w(V), 2, "linear_ramp", end_values=5.0),
        lambda f, w: f(w(V), w([1, 2]), "mean"),
        raises(lambda f, w: f(w(V), 1, "nothing")),
    ],
    "meshgrid": [
        lambda f, w: f(w(V), w(J)),
        lambda f, w: f(w(V), [1, 2], indexing="ij", copy=False),
        lambda f, w: f(w(V), w(J), sparse=True),
    ],
    "ix_": [lambda f, w: f(w([0, 2]), [1, 3]), lambda f, w: f(w([True, False, True]))],
    "ravel_multi_index": [
        lambda f, w: f((w([0, 2]), w([1, 3])), (3, 4)),
        lambda f, w: f(w([[0, 2], [1, 3]]), (3, 4), order="F"),
        raises(lambda f, w: f((w([9]), w([1])), (3, 4))),
    ],
    "unravel_index": [
        lambda f, w: f(w([1, 7]), (3, 4)),
        lambda f, w: f(w(7), (3, 4), order="F"),
        raises(lambda f, w: f(w([99]), (3, 4))),
    ],
    "apply_along_axis": [
        lambda f, w: f(np.sum, 1, w(A)),
        lambda f, w: f(lambda x, by: x[::2] * by, 0, w(A), 3.0),
    ],
    "apply_over_axes": [lambda f, w: f(np.sum, w(T), [0, 2])],
    "diff": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), n=2, axis=0),
        lambda f, w: f(w(V), prepend=0.0, append=w([1.0])),
        lambda f, w: f(w(D)),
        raises(lambda f, w: f(w(0.5))),
    ],
    "ediff1d": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(V), to_begin=w([1.0]), to_end=[2.0, 3.0]),
    ],
    "gradient": [
        lambda f, w: f(w(V)),
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), 2.0, axis=1, edge_order=2),
        lambda f, w: f(w(V), w([0.0, 1.0, 3.0, 4.0])),
    ],
    "trapezoid": [
        lambda f, w: f(w(V)),
        lambda f, w: f(w(A), x=w(V)),
        lambda f, w: f(w(A), dx=0.5, axis=0),
    ],
}

# ---- Making arrays ----

LIKE = {
    "array": [
        lambda f, w: f([[1, 2], [3, 4]], like=w(A)),
        lambda f, w: f(w(A), like=w(A)),
        lambda f, w: f([w(V), w(V)], dtype="f4", ndmin=3, like=w(A)),
        lambda f, w: f(w.plain(A), copy=None, order="F", like=w(A)),
    ],
    **each(
        "asarray asanyarray ascontiguousarray asfortranarray",
        lambda f, w: f([[1, 2], [3, 4]], like=w(A)),
        lambda f, w: f(w(A), like=w(A)),
        lambda f, w: f(w(A), "f4", like=w(A)),
        lambda f, w: f([w(V), [1, 2, 3, 4]], like=w(A)),
    ),
    "require": [
        lambda f, w: f([1, 2], like=w(A)),
        lambda f, w: f(w(A), "f4", ["F", "W"], like=w(A)),
    ],
    "arange": [
        lambda f, w: f(5, like=w(A)),
        lambda f, w: f(1, 5, 0.5, dtype="f4", like=w(A)),
        lambda f, w: f(start=1, stop=4, like=w(A)),
        raises(lambda f, w: f(0, 5, 0, like=w(A))),
    ],
    "empty": [
        lambda f, w: (x := f((2, 3), like=w(A)), x.fill(1))[0],
        lambda f, w: (x := f(3, "i4", order="F", like=w(A)), x.fill(1))[0],
    ],
    **each(
        "zeros ones",
        lambda f, w: f((2, 3), like=w(A)),
        lambda f, w: f(3, dtype="i4", like=w(A)),
        lambda f, w: f(shape=(2, 3), order="F", like=w(A)),
        raises(lambda f, w: f(-1, like=w(A))),
    ),
    "full": [
        lambda f, w: f((2, 3), 7.0, like=w(A)),
        lambda f, w: f((2, 4), w(V), dtype="f4", like=w(A)),
    ],
    "eye": [
        lambda f, w: f(3, like=w(A)),
        lambda f, w: f(3, 4, k=1, dtype=int, order="F", like=w(A)),
    ],
    "identity": [lambda f, w: f(3, like=w(A)), lambda f, w: f(2, "c16", like=w(A))],
    "tri": [lambda f, w: f(3, like=w(A)), lambda f, w: f(3, 4, -1, like=w(A))],
    "fromfunction": [
        lambda f, w: f(lambda i, j: i + 2 * j, (2, 3), like=w(A)),
        lambda f, w: f(lambda i: i, (3,), dtype=int, like=w(A)),
    ],
    "fromiter": [
        lambda f, w: f((i * i for i in range(4)), float, like=w(A)),
        lambda f, w: f([1, 2, 3], "i4", count=2, like=w(A)),
        raises(lambda f, w: f([1], int, count=5, like=w(A))),
    ],
    "frombuffer": [
        lambda f, w: f(b"\1\2\3\4", "u1", like=w(A)),
        lambda f, w: f(bytearray(b"\1\2\3\4"), "u1", count=2, offset=1, like=w(A)),
        raises(lambda f, w: f(b"\1\2\3", "i8", like=w(A))),
    ],
    "fromstring": [lambda f, w: f("1 2 3", sep=" ", like=w(A))],
    "fromfile": [
        lambda f, w: f(w.file(A.tobytes()), like=w(A)),
        lambda f, w: f(w.file(b"1,2,3"), "i4", sep=",", like=w(A)),
        raises(lambda f, w: f(w.folder / "absent", like=w(A))),
    ],
    **each(
        "loadtxt genfromtxt",
        lambda f, w: f(["1 2", "3 4"], like=w(A)),
        lambda f, w: f(w.file(b"1,2\n3,4\n"), delimiter=",", like=w(A)),
        lambda f, w: f(["1 2", "3 4"], unpack=True, usecols=(1, 0), like=w(A)),
        lambda f, w: f(
            ["1 x", "2 y"], dtype=[("a", "i8"), ("b", "U1")], encoding=None, like=w(A)
        ),
        raises(lambda f, w: f(w.folder / "absent", like=w(A))),
    ),
}

MAKING = LIKE | {
    "copy": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A).T),
        lambda f, w: f(w(A).T, order="C", subok=True),
    ],
    "empty_like": [
        lambda f, w: (x := f(w(A)), x.fill(1))[0],
        lambda f, w: (x := f(w(A), "i4", shape=(2, 2)), x.fill(1))[0],
        lambda f, w: (x := f(w(A).T, order="C", subok=False), x.fill(1))[0],
    ],
    **each(
        "zeros_like ones_like",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A).T),
        lambda f, w: f(w(A), dtype="i4", order="F", shape=5),
    ),
    "full_like": [
        lambda f, w: f(w(A), 7.0),
        lambda f, w: f(w(A), w(V)),
        unasked(lambda f, w: f(w.plain(A), w(V), dtype="f4")),
    ],
    **each(
        "linspace logspace geomspace",
        lambda f, w: f(w([1.0, 2.0]), 5.0, 4),
        lambda f, w: f(1.0, w(V * V + 1), num=3, endpoint=False, axis=-1),
        lambda f, w: f(w(1.0), w(2.0), 3, dtype="f4"),
    ),
    **each(
        "shares_memory may_share_memory",
        lambda f, w: f(w(A), w(A)),
        lambda f, w: (x := w(A), f(x, x[1:]))[1],
        lambda f, w: (x := w.plain(A), f(x[1:], w(A)))[1],
    ),
}
MAKING["linspace"].append(lambda f, w: f(w(V), w(2 * V), retstep=True))
MAKING["logspace"].append(lambda f, w: f(1.0, 2.0, 3, base=w([2.0, 10.0])))

# ---- Types, text, files ----

TYPES = {
    "can_cast": [
        lambda f, w: f(w(A), "f4"),
        lambda f, w: f(w(I), "f8", casting="safe"),
        lambda f, w: f(w(0.5), "f4"),
    ],
    "result_type": [
        lambda f, w: f(w(A), w(A.astype("f4"))),
        lambda f, w: f(w(J.astype("i1")), 3.0, "f4"),
    ],
    "min_scalar_type": [lambda f, w: f(w(3)), lambda f, w: f(w(A))],
    "common_type": [lambda f, w: f(w(A), w(I)), raises(lambda f, w: f(w(W)))],
    "array2string": [
        lambda f, w: f(w(A), precision=2),
        lambda f, w: f(w(A), separator=", ", prefix="....", threshold=2, edgeitems=1),
        lambda f, w: f(w(A), formatter={"float_kind": lambda x: "x"}),
    ],
    "array_repr": [
        lambda f, w: _text(f(w(A))),
        lambda f, w: _text(f(w(A.astype("f4")), 60, 2, True)),
    ],
    "array_str": [lambda f, w: f(w(A)), lambda f, w: f(w(A), precision=2)],
    "packbits": [
        lambda f, w: f(w(M)),
        lambda f, w: f(w(M), axis=1, bitorder="little"),
        raises(lambda f, w: f(w(A))),
    ],
    "unpackbits": [lambda f, w: f(w(U)), lambda f, w: f(w(U), count=5)],
    "save": [
        lambda f, w: (f(p := w.folder / "a.npy", w(A)), p.read_bytes()),
        raises(lambda f, w: f(w.folder / "o.npy", w([None]), allow_pickle=False)),
    ],
    **each(
        "savez savez_compressed",
        lambda f, w: (f(p := w.folder / "a.npz", w(A), x=w(V)), _load(p)),
        lambda f, w: (f(p := w.folder / "b.npz", V, x=w(V)), _load(p)),
    ),
    "savetxt": [
        lambda f, w: (f(p := w.folder / "a.txt", w(A)), p.read_text()),
        lambda f, w: (
            f(p := w.folder / "b.txt", w(I), fmt="%d", delimiter=",", header="h"),
            p.read_text(),
        ),
        raises(lambda f, w: f(w.folder / "c.txt", w(T))),
    ],
}

DATES = {
    "busday_count": [
        lambda f, w: f(w(D), w(D + 9)),
        lambda f, w: f(w(D), "2024-04-01", holidays=w(D)),
        lambda f, w: f("2024-02-01", w(D), out=w(np.zeros(3, "i8"))),
    ],
    "busday_offset": [
        lambda f, w: f(w(D), 2, roll="forward"),
        lambda f, w: f(w(D[0]), w([1, 2, 3])),
        lambda f, w: f(w(D), 1, "backward", out=w(D)),
        raises(lambda f, w: f(w(D), 1)),
    ],
    "is_busday": [
        lambda f, w: f(w(D)),
        lambda f, w: f(w(D), "1111111", out=w(np.zeros(3, bool))),
        lambda f, w: f("2024-02-01", holidays=w(D)),
    ],
    "datetime_as_string": [
        lambda f, w: f(w(D)),
        lambda f, w: f(w(D), unit="M", casting="unsafe"),
        raises(lambda f, w: f(w(A))),
    ],
}

# ---- Products and linear algebra ----

PRODUCTS = {
    "dot": [
        lambda f, w: f(w(A), w(B)),
        lambda f, w: f(w.plain(A), w(B)),
        lambda f, w: f(w(A), V.tolist()),
        lambda f, w: f(w(V), w(V)),
        lambda f, w: f(w(T), w(A[:2])),
        lambda f, w: f(w(A), 2.0),
        lambda f, w: f(w(I), w(I.T)),
        lambda f, w: f(w(C), w(B)),
        lambda f, w: f(w(A), w(B), out=w(np.zeros((3, 3)))),
        lambda f, w: f(w(A), w(B), w.plain(np.zeros((3, 3)))),
        lambda f, w: f(w.plain(A), w.plain(B), out=w(np.zeros((3, 3)))),
        raises(lambda f, w: f(w(A), w(A))),
        raises(lambda f, w: f(w(A), w(B), out=w(np.zeros((3, 3), "f4")))),
    ],
    "inner": [
        lambda f, w: f(w(A), w(A)),
        lambda f, w: f(w(V), V.tolist()),
        lambda f, w: f(w(I), 3),
        lambda f, w: f(w.plain(C), w(T.reshape(3, 4))),
        raises(lambda f, w: f(w(A), w(B))),
    ],
    "vdot": [
        lambda f, w: f(w(C), w(A)),
        lambda f, w: f(w(V), w(V)),
        lambda f, w: f(w(I), w.plain(I)),
        raises(lambda f, w: f(w(A), w(V))),
    ],
    "outer": [
        lambda f, w: f(w(A), w(V)),
        lambda f, w: f(w(V), [1, 2]),
        lambda f, w: f(w(V), w(V), out=w(np.zeros((4, 4)))),
        lambda f, w: f(w.plain(V), w(J), w.plain(np.zeros((4, 4)))),
    ],
    "linalg.outer": [lambda f, w: f(w(V), w(J)), raises(lambda f, w: f(w(A), w(V)))],
    "kron": [lambda f, w: f(w(A), w(V)), lambda f, w: f([[1, 2]], w(I))],
    "tensordot": [
        lambda f, w: f(w(A), w(B), 1),
        lambda f, w: f(w(A), w(A)),
        lambda f, w: f(w(T), w(T), axes=([0, 1], [0, 2])),
        lambda f, w: f(w(A), w.plain(V), axes=0),
        raises(lambda f, w: f(w(A), w(A), 1)),
    ],
    "linalg.tensordot": [lambda f, w: f(w(A), w(B), axes=1)],
    "einsum": [
        lambda f, w: f("ij,jk->ik", w(A), w(B)),
        lambda f, w: f("ij,jk", w(A), w.plain(B), optimize=True).copy(),
        lambda f, w: f("ij,jk,kl->il", w(A), w(B), w(A), optimize="greedy"),
        lambda f, w: f("ij,jk->ik", w(A), w(B), out=w(np.zeros((3, 3)))),
        lambda f, w: f("ij,jk->ik", w(A), w(B), out=w.plain(np.zeros((3, 3)))),
        lambda f, w: f("ij,jk->ik", w.plain(A), w.plain(B), out=w(np.zeros((3, 3)))),
        lambda f, w: f("ij,jk->ik", A, w(B), out=w(np.zeros((3, 3))), optimize=True),
        lambda f, w: f(w(A), [0, 1], w(B), [1, 2], [0, 2]),
        lambda f, w: f("ii->i", w(S)),
        lambda f, w: f("ij->ji", w(A)),
        lambda f, w: f("ii", w(S)),
        lambda f, w: f("...j,j", w(T), [1, 2], dtype="f4", casting="unsafe"),
        lambda f, w: f("ij,j->i", w(I), w(J)),
        raises(lambda f, w: f("ij,jk", w(A), w(A))),
        raises(lambda f, w: f("ij", w(V))),
    ],
    "einsum_path": [
        lambda f, w: f("ij,jk,kl->il", w(A), w(B), w(A)),
        lambda f, w: f("ij,jk", w(A), w(B), optimize="optimal"),
    ],
    "cross": [
        lambda f, w: f(w(S), w(A[:, :3])),
        lambda f, w: f(w(S), [1.0, 2.0, 3.0], axis=0),
        lambda f, w: f(w(A[:, :2]), w(A[:, 2:])),
        raises(lambda f, w: f(w(V), w(V))),
    ],
    "linalg.cross": [lambda f, w: f(w(S), w(B)[:3]), raises(lambda f, w: f(w(V), V))],
    "linalg.matmul": [
        lambda f, w: f(w(A), w(B)),
        lambda f, w: f(w(T), w.plain(T)),
        lambda f, w: f(A, w(V)),
        raises(lambda f, w: f(w(A), w(A))),
    ],
    "linalg.vecdot": [
        lambda f, w: f(w(A), w(V)),
        lambda f, w: f(w(C), w(A), axis=0),
        raises(lambda f, w: f(w(A), w(B))),
    ],
    "linalg.multi_dot": [
        lambda f, w: f([w(A), w(B), w(A)]),
        lambda f, w: f([w(A), w.plain(B)]),
        lambda f, w: f((w(S), w(A), w(B), w(A)), out=w(np.zeros((3, 4)))),
        lambda f, w: f([A, B], out=w(np.zeros((3, 3)))),
        raises(lambda f, w: f([w(A)])),
    ],
    "linalg.matrix_power": [
        lambda f, w: f(w(S), 3),
        lambda f, w: f(w(S), 0),
        lambda f, w: f(w(S), 1),
        lambda f, w: f(w(S), -2),
        lambda f, w: f(w(I[:, :3]), 5),
        raises(lambda f, w: f(w(A), 2)),
        raises(lambda f, w: f(w(S), 0.5)),
    ],
}

LINALG = {
    **each(
        "linalg.det linalg.slogdet linalg.inv linalg.eig linalg.eigvals",
        lambda f, w: f(w(S)),
        lambda f, w: f(w(np.stack([S, 2 * S]))),
        lambda f, w: f(w(I[:, :3])),
        raises(lambda f, w: f(w(A))),
    ),
    **each(
        "linalg.eigh linalg.eigvalsh",
        lambda f, w: f(w(S)),
        lambda f, w: f(w(S), UPLO="U"),
        lambda f, w: f(w(S + 0j), "L"),
        raises(lambda f, w: f(w(A))),
    ),
    "linalg.cholesky": [
        lambda f, w: f(w(S)),
        lambda f, w: f(w(S), upper=True),
        raises(lambda f, w: f(w(-S))),
    ],
    "linalg.qr": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), "complete"),
        lambda f, w: f(w(A), mode="r"),
        lambda f, w: f(w(A), mode="raw"),
    ],
    "linalg.svd": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), full_matrices=False),
        lambda f, w: f(w(C), compute_uv=False),
        raises(lambda f, w: f(w(V))),
    ],
    "linalg.svdvals": [lambda f, w: f(w(A))],
    "linalg.cond": [lambda f, w: f(w(S)), lambda f, w: f(w(S), "fro")],
    "linalg.norm": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axis=1),
        lambda f, w: f(w(A), "nuc"),
        lambda f, w: f(w(A), 2),
        lambda f, w: f(w(V), np.inf, keepdims=True),
        lambda f, w: f(w(C), ord=3, axis=0),
        raises(lambda f, w: f(w(A), "what")),
    ],
    "linalg.vector_norm": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(T), axis=(0, 2), ord=1, keepdims=True),
    ],
    "linalg.matrix_norm": [lambda f, w: f(w(T)), lambda f, w: f(w(A), ord=1)],
    "linalg.matrix_rank": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(T), tol=w([0.1, 0.1, 0.1])),
    ],
    "linalg.pinv": [
        lambda f, w: f(w(A)),
        lambda f, w: f(w(S), rcond=1e-10, hermitian=True),
    ],
    "linalg.solve": [
        lambda f, w: f(w(S), w(A)),
        lambda f, w: f(w.plain(S), w(V[:3])),
        lambda f, w: f(w(S), [1, 2, 3]),
        raises(lambda f, w: f(w(np.zeros((3, 3))), w(A))),
        raises(lambda f, w: f(w(S), w(V))),
    ],
    "linalg.lstsq": [
        lambda f, w: f(w(B), w(V)),
        lambda f, w: f(w(B), w.plain(S @ A).T, rcond=1e-9),
    ],
    "linalg.tensorinv": [lambda f, w: f(w(np.eye(4).reshape(4, 2, 2) + 1.5), ind=1)],
    "linalg.tensorsolve": [
        lambda f, w: f(w(np.eye(4).reshape(2, 2, 2, 2)), w(V.reshape(2, 2)))
    ],
    "linalg.diagonal": [lambda f, w: f(w(T)), lambda f, w: f(w(A), offset=1)],
    "linalg.trace": [lambda f, w: f(w(T)), lambda f, w: f(w(I), dtype="f4")],
}

POLYNOMIALS = {
    **each(
        "polyadd polysub polymul polydiv",
        lambda f, w: f(w(V), w(V[:2])),
        lambda f, w: f([1, 2], w(V)),
        lambda f, w: f(w(V), np.poly1d([1.0, 2.0])),
    ),
    "poly": [
        unasked(lambda f, w: f(w(V))),
        lambda f, w: f(w(S)),
        raises(lambda f, w: f(w(A))),
    ],
    "polyval": [
        lambda f, w: f(w(V), 0.5),
        lambda f, w: f(w(V), w(A)),
        lambda f, w: f([1, 2, 3], w(A)),
    ],
    "polyder": [lambda f, w: f(w(V)), lambda f, w: f(w(V), 2)],
    "polyint": [lambda f, w: f(w(V)), lambda f, w: f(w(V), 2, k=[1, 2])],
    "polyfit": [
        lambda f, w: f(w(V), w(V**2), 2),
        lambda f, w: f([0, 1, 2, 3], w(V), 1, full=True),
        lambda f, w: f(w(J), w(V), 1, cov="unscaled"),
        lambda f, w: f(w(J), w(V), 1, w=w(V * V)),
    ],
    "roots": [
        unasked(lambda f, w: f(w(V))),
        raises(lambda f, w: f(w(A))),
    ],
    "polynomial.polynomial.polyval2d": [lambda f, w: f(w(V), w(V), w(A))],
    "polynomial.polynomial.polygrid2d": [lambda f, w: f(w(V), w(J), w(A))],
}

SCIMATH = each(
    "lib.scimath.sqrt lib.scimath.log lib.scimath.log2 lib.scimath.log10"
    " lib.scimath.arccos lib.scimath.arcsin lib.scimath.arctanh",
    lambda f, w: f(w(A)),
    lambda f, w: f(w(V * V / 9)),
    lambda f, w: f(w(-2)),
    unasked(lambda f, w: f([w(V), w(V)])),
) | {
    "lib.scimath.logn": [lambda f, w: f(w(2.0), w(A)), lambda f, w: f(2, w(A))],
    "lib.scimath.power": [lambda f, w: f(w(A), w(V)), lambda f, w: f(w(A), 0.5)],
}

FFT = {
    **each(
        "fft.fft fft.ifft fft.rfft fft.irfft fft.hfft fft.ihfft",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), 6, axis=0, norm="ortho"),
        lambda f, w: f(w(A.astype("f4"))),
        raises(lambda f, w: f(w(A), axis=5)),
    ),
    **each(
        "fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(T), s=(3, 4), axes=(0, 1)),
    ),
    **each(
        "fft.fftn fft.ifftn fft.rfftn fft.irfftn",
        lambda f, w: f(w(T)),
        lambda f, w: f(w(T), axes=(0, 1), norm="forward"),
    ),
    **each(
        "fft.fftshift fft.ifftshift",
        lambda f, w: f(w(A)),
        lambda f, w: f(w(A), axes=0),
    ),
}
for _name in "fft ifft fft2 ifft2 fftn ifftn".split():
    FFT[f"fft.{_name}"].append(lambda f, w: f(w(A), out=w(np.zeros((3, 4), complex))))

# ---- Strings and records ----

STRINGS = {
    **each(
        "char.equal char.not_equal char.less char.less_equal"
        " char.greater char.greater_equal",
        lambda f, w: f(w(W), w(W[::-1])),
        lambda f, w: f(w(W), "3"),
        lambda f, w: f(Y.tolist(), w(Y)),
        raises(lambda f, w: f(w(A), w(W))),
    ),
    **each(
        "strings.upper strings.lower strings.swapcase strings.capitalize strings.title",
        lambda f, w: f(w(W)),
        lambda f, w: f(w(Y)),
        lambda f, w: f(w(W, "T")),
        raises(lambda f, w: f(w(A))),
    ),
    **each(
        "strings.center strings.ljust strings.rjust",
        lambda f, w: f(w(W), 7),
        lambda f, w: f(w(W), w([5, 6, 7, 8]), "*"),
        lambda f, w: f(w(W, "T"), 7),
        unasked(lambda f, w: f("x", w([2, 3]))),
    ),
    "strings.zfill": [
        lambda f, w: f(w(W), 4),
        unasked(lambda f, w: f(["+1"], w([2, 4]))),
    ],
    "strings.encode": [lambda f, w: f(w(W)), lambda f, w: f(w(W), "utf-16")],
    "strings.decode": [lambda f, w: f(w(Y)), lambda f, w: f(w(Y), "ascii", "strict")],
    "strings.expandtabs": [
        lambda f, w: f(w(["a\tb"])),
        lambda f, w: f(w(["\t"]), w(3)),
    ],
    "strings.mod": [lambda f, w: f(w(["%d", "%s"]), w([1, 2]))],
    "strings.multiply": [lambda f, w: f(w(W), 2), lambda f, w: f(w(W), w(J))],
    **each(
        "strings.partition strings.rpartition",
        lambda f, w: f(w(W), "n"),
        lambda f, w: f(w(W), w(["n", "w", "x", "y"])),
        lambda f, w: f(w(W, "T"), w(["n", "w", "x", "y"], "T")),
    ),
    "strings.replace": [
        lambda f, w: f(w(W), "o", "00"),
        lambda f, w: f(w(W), w(["o"]), "*", w(1)),
    ],
    "strings.translate": [
        lambda f, w: f(w(W), str.maketrans("o", "0")),
        lambda f, w: f(w(Y), bytes(range(256)), b"o"),
    ],
    "strings._join": [lambda f, w: f("-", w(W)), lambda f, w: f(w([",", "."]), "abc")],
    **each(
        "strings._split strings._rsplit",
        lambda f, w: f(w(W)),
        lambda f, w: f(w(W), "w", 1),
    ),
    "strings._splitlines": [lambda f, w: f(w(["a\nb", "c"]))],
}

RECORDS = {
    "append_fields": [
        lambda f, w: f(w(R), "c", w([1, 2, 3]), usemask=False),
        lambda f, w: f(w.plain(R), ["c", "d"], [w([1, 2, 3]), w([4.0, 5.0, 6.0])]),
    ],
    "rec_append_fields": [lambda f, w: f(w(R), "c", w([1, 2, 3]))],
    "apply_along_fields": [lambda f, w: f(np.mean, w(R))],
    "assign_fields_by_name": [
        lambda f, w: f(w(R), w(R[::-1])),
        lambda f, w: f(w(R)[:2], w(Z), zero_unassigned=False),
    ],
    "drop_fields": [
        lambda f, w: f(w(R), "a", usemask=False),
        lambda f, w: f(w(R), ["b"], asrecarray=True),
    ],
    "rec_drop_fields": [lambda f, w: f(w(R), "a")],
    "find_duplicates": [raises(lambda f, w: f(w(R[["a"]])))],
    "join_by": [
        lambda f, w: f("a", w(R[:2]), w(Z), usemask=False),
        lambda f, w: f("a", w(R[:2]), w(Z), jointype="outer"),
    ],
    "rec_join": [lambda f, w: f("a", w(R[:2]), w(Z))],
    "merge_arrays": [
        lambda f, w: f((w(J), w(V))),
        lambda f, w: f([w(R), w(V[:3])], flatten=True, asrecarray=True),
    ],
    "recursive_fill_fields": [lambda f, w: f(w(R), w(np.zeros(4, R.dtype)))],
    "rename_fields": [lambda f, w: f(w(R), {"a": "x"})],
    "repack_fields": [
        lambda f, w: f(w(R)),
        lambda f, w: f(w(np.zeros(2, np.dtype("u1,f8", align=True)))),
    ],
    "require_fields": [lambda f, w: f(w(R), [("b", "f4"), ("n", "u1")])],
    "stack_arrays": [
        lambda f, w: f((w(R), w(Z)), usemask=False),
        lambda f, w: f([w(R), w.plain(Z)]),
    ],
    "structured_to_unstructured": [
        lambda f, w: f(w(R)),
        lambda f, w: f(w(np.zeros(3, "f8,f8"))),
        lambda f, w: f(w(R), dtype="f4", copy=True),
    ],
    "unstructured_to_structured": [
        lambda f, w: f(w(B), np.dtype("f8,f4,i8"), casting="unsafe"),
        lambda f, w: f(w(I), names=["p", "q", "r", "s"]),
    ],
}
RECORDS = {f"lib.recfunctions.{name}": calls for name, calls in RECORDS.items()}

FUNCTIONS = (
    REDUCTIONS | LOGICAL | SCANS | POSITIONS | QUANTILES | STATISTICS | ENTRYWISE
    | WRITERS | SORTING | SHAPES | JOINING | MAKING | TYPES | DATES | PRODUCTS
    | LINALG | POLYNOMIALS | SCIMATH | FFT | STRINGS | RECORDS
)  # fmt: skip

# Of these floats need only be close: products run on an engine.
CLOSE = {*PRODUCTS, "cov", "corrcoef"} | {n for n in FUNCTIONS if "linalg." in n}


def calls_of(name: str) -> list[Call]:
    """Return the calls of a function of NumPy, as functions of a `Side`."""
    function = find(name)
    return [functools.partial(_apply, call, function) for call in FUNCTIONS[name]]


def _apply(call: Callable[..., Any], function: Callable[..., Any], w: Side) -> Any:
    return call(function, w)
