"""The environment's defaults."""

import numpy as np
import pytest

import np_ozaki
from np_ozaki.config import Config, Options, read_config


def test_defaults():
    assert read_config({}) == Config()
    assert read_config({"NP_OZAKI_PRECISION": ""}) == Config()


def test_every_option_has_a_variable():
    config = read_config(
        {
            "NP_OZAKI_PRECISION": "20",
            "NP_OZAKI_SCALING": "accurate",
            "NP_OZAKI_ENGINE": "cpu",
            "NP_OZAKI_STRATEGY": "performant",
            "NP_OZAKI_MIN_FLOPS": "1000",
            "NP_OZAKI_LOCAL": "1",
            "NP_OZAKI_REPRODUCIBLE": "0",
            "NP_OZAKI_WORKSPACE_BYTES": "50000000",
            "NP_OZAKI_DTYPES": "complex64, float64",
            "NP_OZAKI_THREADS": "3",
            "NP_OZAKI_HOOKS": "matmul",
        }
    )
    options = config.options
    assert options.precision == 20
    assert (options.scaling, options.engine) == ("accurate", "cpu")
    assert (options.strategy, options.min_flops) == ("performant", 1000)
    assert (options.local, options.reproducible) == (True, False)
    assert options.workspace_bytes == 50_000_000
    assert options.dtypes == ("float64", "complex64")
    assert config.threads == 3
    assert config.hooks == {"matmul"}
    assert read_config({"NP_OZAKI_HOOKS": "none"}).hooks == frozenset()
    assert read_config({"NP_OZAKI_HOOKS": "all"}).hooks is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NP_OZAKI_PRECISION", "fine"),
        ("NP_OZAKI_PRECISION", "1"),
        ("NP_OZAKI_PRECISION", "1_5"),
        ("NP_OZAKI_PRECISION", "1e-1_0"),
        ("NP_OZAKI_PRECISION", "\N{ARABIC-INDIC DIGIT ONE}5"),
        ("NP_OZAKI_MIN_FLOPS", "1_000"),
        ("NP_OZAKI_SCALING", "fast"),
        ("NP_OZAKI_ENGINE", "gpu"),
        ("NP_OZAKI_STRATEGY", "maybe"),
        ("NP_OZAKI_MIN_FLOPS", "-5"),
        ("NP_OZAKI_MIN_FLOPS", "1e6"),
        ("NP_OZAKI_LOCAL", "yes"),
        ("NP_OZAKI_WORKSPACE_BYTES", "12"),
        ("NP_OZAKI_DTYPES", "float64,float16"),
        ("NP_OZAKI_DTYPES", ","),
        ("NP_OZAKI_THREADS", "0"),
        ("NP_OZAKI_HOOKS", "dot,everything"),
    ],
)
def test_bad_values_name_the_variable(name, text):
    with pytest.raises(np_ozaki.OptionError, match=name):
        read_config({name: text})


def test_contradictions_between_variables():
    with pytest.raises(
        np_ozaki.OptionError,
        match="NP_OZAKI_ENGINE, NP_OZAKI_REPRO",
    ):
        read_config({"NP_OZAKI_REPRODUCIBLE": "1", "NP_OZAKI_ENGINE": "native"})


def test_unknown_variables_warn():
    with pytest.warns(np_ozaki.OzakiWarning, match="NP_OZAKI_PRECISON"):
        read_config({"NP_OZAKI_PRECISON": "20"})


@pytest.mark.parametrize(
    "options",
    [{"engine": ["cpu"]}, {"precision": [1]}, {"precision": np.array([1, 2])}],
)
def test_options_of_strange_types_are_named(options):
    (name,) = options
    with pytest.raises((np_ozaki.OptionError, np_ozaki.OperandTypeError), match=name):
        np_ozaki.matmul(np.eye(2), np.eye(2), **options)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("check", True, 1), ("reproducible", True, 1), ("precision", 15, 15.0)],
)
def test_equal_values_of_another_type_are_not_mistaken(name, right, wrong):
    assert Options().with_changes(**{name: right})
    with pytest.raises(np_ozaki.OzakiError, match=name):
        Options().with_changes(**{name: wrong})
