"""Random chunks: drawn as NumPy draws them and wrapped, or drawn wrapped."""

import numpy as np
import pytest
from chunked import assert_alike, computed, da

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.testing import assert_same_bits


class OzRandomState(np.random.RandomState):
    """NumPy's old generator with OzArrays for results."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found) or "state" in name:
            return found

        def drawn(*args, **kwargs):
            result = found(*args, **kwargs)
            return OzArray(result) if isinstance(result, np.ndarray) else result

        return drawn


DRAWS = {
    "beta": (1, 2),
    "binomial": (10, 0.5),
    "chisquare": (1,),
    "exponential": (1,),
    "f": (1, 2),
    "gamma": (5, 1),
    "geometric": (0.5,),
    "hypergeometric": (1, 2, 3),
    "laplace": (),
    "logistic": (),
    "lognormal": (),
    "normal": (2, 2),
    "pareto": (1,),
    "poisson": (),
    "power": (1,),
    "random_sample": (),
    "rayleigh": (1,),
    "standard_cauchy": (),
    "standard_normal": (),
    "standard_t": (2,),
    "triangular": (1, 2, 3),
    "uniform": (),
    "vonmises": (2, 3),
    "wald": (1, 2),
    "weibull": (2,),
    "zipf": (2,),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("shape", [5, (4, 3)])
def test_random_state_that_draws_wrapped(name, shape):
    ours = da.random.RandomState(3, RandomState=OzRandomState)
    theirs = da.random.RandomState(3)
    options = {"size": shape, "chunks": 2}
    assert_alike(
        getattr(ours, name)(*DRAWS[name], **options),
        getattr(theirs, name)(*DRAWS[name], **options),
    )


@pytest.mark.parametrize("name", ["standard_normal", "random", "standard_exponential"])
def test_generator_with_wrapped_chunks(name):
    def draw():
        return getattr(da.random.default_rng(5), name)(size=(6, 4), chunks=3)

    assert_alike(draw().map_blocks(OzArray), draw())


def test_parameters_that_are_dask_arrays_of_oz_arrays():
    center = da.from_array(OzArray(np.arange(6.0) * 100), chunks=3)
    drawn = da.random.default_rng(5).normal(center, 0.01, chunks=3).compute()
    np.testing.assert_allclose(np.asarray(drawn), np.arange(6.0) * 100, atol=1.0)


def test_permutation_and_choice():
    line = da.from_array(OzArray(np.arange(12.0)), chunks=4)
    shuffled = da.random.default_rng(5).permutation(line)
    assert type(shuffled.compute()) is OzArray
    assert sorted(np.asarray(shuffled.compute())) == list(range(12))
    chosen = da.random.default_rng(5).choice(12, size=5, chunks=5)
    assert line[chosen.compute()].compute().shape == (5,)


def test_product_of_random_chunks():
    x = da.random.default_rng(5).standard_normal((8, 6), chunks=(4, 6))
    x = x.map_blocks(OzArray)
    product, calls = computed(x @ x.T)
    values = np.asarray(x.compute())
    assert calls == 4
    assert_same_bits(np.asarray(product), np_ozaki.matmul(values, values.T))
