"""Every name of NumPy that arrays can override gives with OzArray what it gives."""

import contextlib
import importlib
import warnings

import numpy as np
import numpy_calls
import pytest
import twins
from numpy.testing import overrides
from twins import differences

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
        want = bool(twins.marks(call, "raises"))
        side = twins.Side(array_type, folder)
        error = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(side)
        except Exception as raised:  # noqa: BLE001 (reported)
            error = raised
        if (error is not None) is not want:
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
