"""The table of moduli against its definition and independently computed figures."""

import itertools
import math

import pytest

from np_ozaki.errors import OptionError
from np_ozaki.numerics.moduli import (
    MAX_MODULI,
    MIN_MODULI,
    MODULI,
    balanced_residue,
    check_num_moduli,
    coprime_descent,
    crt_weights,
    log2_modulus_product,
    modulus_product,
    product_bound,
    scaling_bits,
)

TABLE = """
    256 255 253 251 247 241 239 233 229 227 223 217 211 199 197 193 191 181 179 173
    167 163 157 151 149 139 137 131 127 113 109 107 103 101 97 89 83 79 73 71 67 61 59
    53 47 43 41 37 29
"""

# For 2, 3, ... 20 moduli.
LOG2_PRODUCT = """
    15.994 23.977 31.949 39.897 47.810 55.711 63.575 71.414 79.241 87.042 94.803
    102.525 110.161 117.783 125.376 132.953 140.453 147.937 155.371
"""
SCALING_BITS = """
    7.497 11.489 15.474 19.449 23.405 27.356 31.288 35.207 39.121 43.021 46.902 50.762
    54.581 58.392 62.188 65.977 69.726 73.468 77.186
"""


def from_two(figures: str) -> list[tuple[int, float]]:
    return list(enumerate(map(float, figures.split()), start=2))


def test_table_is_the_published_one() -> None:
    assert MODULI == tuple(map(int, TABLE.split()))
    assert len(MODULI) == MAX_MODULI == 49


def test_moduli_are_pairwise_coprime() -> None:
    assert all(math.gcd(p, q) == 1 for p, q in itertools.combinations(MODULI, 2))


def test_descent_leaves_out_only_what_it_must() -> None:
    taken = list(coprime_descent(256))
    assert taken[: len(MODULI)] == list(MODULI)
    for candidate in range(2, 257):
        larger = math.prod(p for p in taken if p > candidate)
        assert (candidate in taken) == (math.gcd(candidate, larger) == 1)


def test_balanced_residues_fit_int8() -> None:
    assert all(-128 <= -(p // 2) and (p - 1) // 2 <= 127 for p in MODULI)


@pytest.mark.parametrize("modulus", MODULI)
def test_balanced_residue_is_congruent_and_in_its_interval(modulus: int) -> None:
    values = {balanced_residue(x, modulus) for x in range(-600, 601)}
    assert values == set(range(-(modulus // 2), (modulus - 1) // 2 + 1))
    for x in (*range(-600, 601), 3**200, -(3**200)):
        assert (balanced_residue(x, modulus) - x) % modulus == 0


def test_balanced_residue_ends_of_an_even_modulus() -> None:
    ends = [balanced_residue(x, 256) for x in (127, 128, -128, -129)]
    assert ends == [127, -128, -128, 127]


@pytest.mark.parametrize(("num_moduli", "bits"), from_two(LOG2_PRODUCT))
def test_log2_product(num_moduli: int, bits: float) -> None:
    assert f"{log2_modulus_product(num_moduli):.3f}" == f"{bits:.3f}"


@pytest.mark.parametrize(
    ("num_moduli", "bits"),
    [(22, 170.1), (24, 184.6), (28, 213.1), (32, 240.4), (36, 266.8), (40, 291.9)],
)
def test_log2_product_of_the_extension(num_moduli: int, bits: float) -> None:
    assert f"{log2_modulus_product(num_moduli):.1f}" == f"{bits:.1f}"
    assert f"{log2_modulus_product(MAX_MODULI):.1f}" == "341.9"


def test_budget_figures_of_fifteen_and_twenty_moduli() -> None:
    assert round(log2_modulus_product(15), 2) == 117.78
    assert round(log2_modulus_product(20), 2) == 155.37


@pytest.mark.parametrize(("num_moduli", "bits"), from_two(SCALING_BITS))
def test_scaling_bits(num_moduli: int, bits: float) -> None:
    # The figures were rounded twice, first as log2(P).
    assert abs(scaling_bits(num_moduli) - bits) <= 0.00075


@pytest.mark.parametrize("num_moduli", range(MIN_MODULI, MAX_MODULI + 1))
def test_product_and_its_bound(num_moduli: int) -> None:
    product = modulus_product(num_moduli)
    assert product == math.prod(MODULI[:num_moduli])
    assert 2 * product_bound(num_moduli) <= product - 1
    assert 2 * (product_bound(num_moduli) + 1) > product - 1


@pytest.mark.parametrize("num_moduli", [2, 3, 15, 20, 49])
def test_crt_weights_are_one_and_zero(num_moduli: int) -> None:
    moduli = MODULI[:num_moduli]
    weights = crt_weights(moduli)
    for (i, weight), (j, p) in itertools.product(enumerate(weights), enumerate(moduli)):
        assert weight % p == (i == j)
        assert 0 <= weight < modulus_product(num_moduli)


@pytest.mark.parametrize("num_moduli", [-1, 0, 1, 50, 1000])
@pytest.mark.parametrize(
    "function", [check_num_moduli, modulus_product, product_bound, scaling_bits]
)
def test_number_of_moduli_out_of_range(num_moduli: int, function) -> None:
    with pytest.raises(OptionError, match=rf"num_moduli={num_moduli}: .*2 to 49"):
        function(num_moduli)
    with pytest.raises(ValueError, match="num_moduli"):
        function(num_moduli)
