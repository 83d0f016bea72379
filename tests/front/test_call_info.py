"""What a call tells: a frozen dataclass, though its `__init__` is written by hand."""

import copy
import dataclasses
import inspect
import pickle

import numpy as np
import pytest

import np_ozaki
from np_ozaki.stats import CallInfo

GIVEN = {field.name: f"value of {field.name}" for field in dataclasses.fields(CallInfo)}


def test_arguments_are_the_fields_in_their_order():
    parameters = list(inspect.signature(CallInfo).parameters.values())
    fields = dataclasses.fields(CallInfo)
    assert [p.name for p in parameters] == [f.name for f in fields]
    assert [p.annotation for p in parameters] == [f.type for f in fields]
    for parameter, field in zip(parameters, fields, strict=True):
        needed = field.default is dataclasses.MISSING
        want = inspect.Parameter.empty if needed else field.default
        assert parameter.default is want


def test_every_argument_is_kept():
    info = CallInfo(**GIVEN)
    assert {name: getattr(info, name) for name in GIVEN} == GIVEN
    assert CallInfo(*GIVEN.values()) == info
    assert vars(info) == GIVEN


def test_it_is_a_value():
    _, info = np_ozaki.matmul(np.eye(3), np.eye(3), return_info="bound")
    for twin in (
        copy.copy(info),
        copy.deepcopy(info),
        pickle.loads(pickle.dumps(info)),
        dataclasses.replace(info, bound=None),
    ):
        assert twin == info
        assert hash(twin) == hash(info)
        assert repr(twin) == repr(info)
    assert dataclasses.replace(info, m=4) != info
    for name in ("m", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(info, name, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del info.m
