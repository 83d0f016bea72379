"""Every name of NumPy that arrays can override gives with OzArray what it gives."""

import contextlib
import functools
import importlib
import warnings

import ndarray_calls
import numpy as np
import numpy_calls
import pytest
import twins
import ufunc_calls
from numpy.testing import overrides
from twins import differences

from np_ozaki import OzArray

# NumPy imports these on first use, and registers their functions then.
for _module in "char fft lib.recfunctions ma polynomial strings".split():
    importlib.import_module(f"numpy.{_module}")


def name_of(function):
    """Return the name below numpy of a function; NumPy 2.0 shows a private module."""
    module = function.__module__.replace("_scimath_impl", "scimath")
    return f"{module}.{function.__name__}".removeprefix("numpy.")


HERE = {name_of(f): f for f in overrides.get_overridable_numpy_array_functions()}
FUNCTIONS = sorted(set(numpy_calls.FUNCTIONS) & set(HERE))


def here(calls):
    return [call for call in calls if twins.is_here(call)]


def check(calls, folder=None, **options):
    """Fail with what differs in each call, and the line that it is written in."""
    lines = []
    for call in here(calls):
        if what := differences(call, folder, **options):
            lines.append("\n    ".join([twins.place(call), *what]))
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def faults(calls, folder=None, array_type=np.ndarray):
    """Return the calls that NumPy itself does not answer as the table says."""
    lines = []
    for call in here(calls):
        want = twins.marks(call, "raises") or False
        side = twins.Side(array_type, folder)
        error = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(side)
        except Exception as raised:  # noqa: BLE001 (reported)
            error = raised
        if want is not (error is not None) and want != "it depends":
            lines.append(f"{twins.place(call)}\n    {error!r}")
    return "\n".join(lines)


# ---- Functions ----


def test_every_function_has_a_call():
    missing = sorted(set(HERE) - set(numpy_calls.FUNCTIONS))
    assert not missing, (
        f"NumPy {np.__version__} has functions that tests/numpy_calls.py does not"
        f" call: {', '.join(missing)}"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name, tmp_path):
    close = name in numpy_calls.CLOSE
    check(numpy_calls.calls_of(name), tmp_path, close=close)


def test_the_table_is_right_about_numpy(tmp_path):
    wrong = [faults(numpy_calls.calls_of(name), tmp_path) for name in FUNCTIONS]
    assert not any(wrong), "\n".join(filter(None, wrong))
    aside = []
    for name in FUNCTIONS:
        for call in here(numpy_calls.calls_of(name)):
            spies = twins.SpySide(tmp_path)
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                call(spies)
            asked = name in map(name_of, twins.Spy.seen)
            if asked is bool(twins.marks(call, "unasked")):
                aside.append(f"{name}: asked: {asked}: {twins.place(call)}")
    assert not aside, "\n".join(aside)


# ---- Ufuncs ----

UFUNCS = sorted(overrides.get_overridable_numpy_ufuncs(), key=lambda u: u.__name__)


def test_every_ufunc_has_a_call():
    missing = [u.__name__ for u in UFUNCS if not any(ufunc_calls.calls_of(u))]
    assert not missing, (
        f"NumPy {np.__version__} has ufuncs without loops that tests/ufunc_calls.py"
        f" does not call: {', '.join(missing)}"
    )


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda u: u.__name__)
def test_ufunc(ufunc):
    close = bool(ufunc.signature)
    lines = []
    for call, sharing in ufunc_calls.calls_of(ufunc):
        if what := differences(call, close=close, sharing=sharing):
            lines.append("\n    ".join([twins.place(call), *what]))
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


# ---- All that an ndarray has ----


def test_all_of_an_ndarray_has_a_call():
    missing = sorted(set(ndarray_calls.names()) - set(ndarray_calls.CALLS))
    assert not missing, (
        f"NumPy {np.__version__} has attributes of ndarray that tests/ndarray_calls.py"
        f" does not call: {', '.join(missing)}"
    )


@pytest.mark.parametrize("name", sorted(ndarray_calls.CALLS))
def test_ndarray(name, tmp_path):
    check(ndarray_calls.CALLS[name], tmp_path, close=name in ndarray_calls.CLOSE)


def test_the_table_is_right_about_ndarrays(tmp_path):
    tables = ndarray_calls.ATTRIBUTES | ndarray_calls.METHODS
    wrong = [faults(calls, tmp_path) for calls in tables.values()]
    # Of operators and keys every combination is tried, also those that make no sense.
    for calls in (ndarray_calls.SPECIAL | ndarray_calls.INDEXING).values():
        written = [call for call in calls if not isinstance(call, functools.partial)]
        wrong.append(faults(written, tmp_path))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_what_is_different_by_design():
    x = OzArray(np.eye(2))
    assert not isinstance(x, np.ndarray)
    assert not hasattr(x, "__array_interface__")
    assert not hasattr(x, "__array_struct__")
    with pytest.raises(TypeError):
        memoryview(x)
    # A method of ndarray asks no other array.
    assert type(np.eye(2).dot(x)) is np.ndarray
    assert type(np.array(x)) is np.ndarray
    assert np.array(x).flags.writeable
    assert not np.asarray(x).flags.writeable
