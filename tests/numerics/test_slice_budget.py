"""The budget of slices: guarantees against exact products, costs against counts."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki.errors import OptionError
from np_ozaki.numerics import reference, slice_reference
from np_ozaki.numerics.budget import (
    effective_bits,
    moduli_for_target,
    relative_error_bound,
)
from np_ozaki.numerics.slice_budget import (
    moduli_against_slices,
    moduli_cost,
    slice_bits,
    slice_error_bound,
    slices_cost,
    slices_for_bits,
    slices_for_target,
)
from np_ozaki.numerics.slicing import Slicing

U = Fraction(1, 2**53)


@st.composite
def slicings(draw):
    num_slices = draw(st.integers(1, 16))
    number = st.integers(0, num_slices - 1)
    listed = st.sets(st.tuples(number, number), min_size=1).map(sorted).map(tuple)
    return Slicing(
        num_slices,
        draw(st.integers(2, 8)),
        draw(st.one_of(st.sampled_from(["all", "triangular"]), listed)),
        draw(st.sampled_from(["exact", "float64"])),
    )


@st.composite
def operands(draw):
    entry = st.builds(
        math.ldexp, st.integers(-(2**53), 2**53).map(float), st.integers(-90, 0)
    )
    k = draw(st.integers(1, 6))
    a = draw(st.lists(st.lists(entry, min_size=k, max_size=k), min_size=1, max_size=2))
    b = draw(st.lists(st.lists(entry, min_size=2, max_size=2), min_size=k, max_size=k))
    repeat = draw(st.sampled_from([1, 1, 1, 40]))
    return [row * repeat for row in a], b * repeat


def peak_of(vectors):
    """Return the largest max / norm of vectors, rounded up."""
    ratios = [max(map(abs, x)) / (math.hypot(*x) or 1.0) for x in vectors]
    return min(1.0, max(max(ratios) * (1 + 1e-12), 1e-3))


def assert_normwise(a, b, slicing, bound):
    columns = reference.column_vectors(b)
    c = slice_reference.matmul_by_slices(a, b, slicing)
    exact = reference.exact_fractions(a, b)
    for i, j in itertools.product(range(len(a)), range(len(columns))):
        norms = sum(Fraction(x) ** 2 for x in a[i]) * sum(
            Fraction(x) ** 2 for x in columns[j]
        )
        error = abs(Fraction(c[i][j]) - exact[i][j]) - U * abs(Fraction(c[i][j]))
        assert error <= 0 or error**2 <= Fraction(bound) ** 2 * norms


@given(operands(), slicings())
def test_error_bound_holds_normwise(ab, slicing):
    a, b = ab
    assert_normwise(a, b, slicing, slice_error_bound(slicing, len(b)))
    peak = max(peak_of(a), peak_of(reference.column_vectors(b)))
    assert_normwise(a, b, slicing, slice_error_bound(slicing, len(b), peak=peak))


@pytest.mark.parametrize("slicing", [Slicing(3), Slicing(3, 8, "all"), Slicing(4, 3)])
def test_error_bound_of_equal_entries_is_attained(slicing):
    # All digits are the largest there are, or all entries are rounded by a half.
    k = 60
    largest = float(slicing.largest_integer)
    bound = slice_error_bound(slicing, k, peak=1 / math.sqrt(k))
    worst = 0.0
    for entry in (largest, largest - 0.5):
        a, b = [[entry] * k], [[entry]] * k
        assert_normwise(a, b, slicing, bound)
        ((c,),) = slice_reference.matmul_by_slices(a, b, slicing)
        want = Fraction(entry) ** 2 * k
        worst = max(worst, float(abs(Fraction(c) - want) / want))
    # Exponents that just do not fit cost a bit a side, which these do not lose.
    assert worst < bound < 6 * worst


def test_error_bound_is_close_to_its_leading_terms():
    for size, k in itertools.product(range(2, 17), (1, 1024, 2**13)):
        every, half = Slicing(size, 8, "all"), Slicing(size)
        leading = 4 * math.sqrt(k) / (2 * every.largest_integer + 1)
        assert 1 < slice_error_bound(every, k) / leading < 1 + 1e-2 * math.sqrt(k)
        if k > 1:
            # Of two slices one of a pair may be the first one of its line.
            left_out = 4 * k * (size - 1) * 2.0 ** (-8 * size)
            ratio = (slice_error_bound(half, k) - slice_error_bound(every, k)) / (
                left_out
            )
            assert 1 < ratio < 1.1
    assert slice_error_bound(Slicing(), 0) == 0.0


def test_float64_sums_stop_where_float64_does():
    exact, float64 = (Slicing(16, 8, "all", x) for x in ("exact", "float64"))
    assert slice_error_bound(exact, 1024) < 1e-35
    assert 2.0**-54 < slice_error_bound(float64, 1024) < 2.0**-51


def test_random_errors_are_covered_by_the_statistical_bound():
    rng = np.random.default_rng(0)
    k = 500
    a, b = rng.standard_normal((6, k)), rng.standard_normal((k, 6))
    peak = max(np.abs(x).max() / np.linalg.norm(x) for x in (*a, *b.T))
    for slicing in (Slicing(4), Slicing(5, 7, "all"), Slicing(3, 6)):
        bound = slice_error_bound(slicing, k, peak=peak, statistical=True)
        assert bound < slice_error_bound(slicing, k, peak=peak) / 5
        assert_normwise(a.tolist(), b.tolist(), slicing, bound)


def test_bits():
    assert round(slice_bits(Slicing(7, 8, "all")), 2) == 54.99
    assert round(slice_bits(Slicing(7)), 2) == 52.99
    assert round(slice_bits(Slicing(8)), 2) == 60.82
    for slicing in (Slicing(1), Slicing(16), Slicing(5, 3, ((0, 0),))):
        # What rounding and pairs may take of k equal entries, in units of D.
        bound = slice_error_bound(slicing, 9, peak=1 / 3)
        assert 0.0 < math.log2(bound) + slice_bits(slicing) < 2.3


@given(st.floats(1.0, 113.0), st.integers(7, 8), st.sampled_from(["all", "triangular"]))
def test_slices_for_bits_are_least(bits, b, pairs):
    if b == 7:
        bits *= 0.8
    size = slices_for_bits(bits, bits_per_slice=b, pairs=pairs)
    assert slice_bits(Slicing(size, b, pairs)) >= bits
    assert size == 1 or slice_bits(Slicing(size - 1, b, pairs)) < bits


@given(
    st.floats(1e-28, 1e-1),
    st.integers(1, 2**20),
    st.floats(1.0, 1e3),
    st.floats(0.01, 1.0),
    st.booleans(),
)
def test_slices_for_target_are_least(tolerance, k, kappa, peak, statistical):
    options = {"kappa": kappa, "peak": peak, "statistical": statistical}
    size = slices_for_target(tolerance, k, **options)
    assert slice_error_bound(Slicing(size), k, **options) <= tolerance
    if size > 1:
        assert slice_error_bound(Slicing(size - 1), k, **options) > tolerance


def test_cost_of_the_usual_products():
    n = 8192
    cost = slices_cost(n, n, n, Slicing(8))
    assert (cost.num_planes, cost.num_gemms) == (8, 36)
    assert cost.operations == 36 * 2 * n**3
    assert cost.planes_bytes == 8 * 2 * n * n
    assert cost.sums_bytes == 8 * 4 * n * n
    assert cost.traffic_bytes == (8 * 3 + 2 * (16 + 32)) * n * n
    assert slices_cost(n, n, n, Slicing(8, 8, "all")).num_gemms == 64
    by_moduli = moduli_cost(n, n, n, 15)
    assert (by_moduli.num_planes, by_moduli.num_gemms) == (15, 15)
    assert by_moduli.planes_bytes == 2 * by_moduli.sums_bytes == 30 * n * n
    for found in (cost, by_moduli):
        want = found.operations / 1.3e15 + found.traffic_bytes / 4e12
        assert found.seconds(1300.0, 4.0) == pytest.approx(want)


def test_sums_that_pass_31_bits_are_written_more_often():
    m, n = 3, 5
    for k, sums in ((2**13, 8), (2**14 - 1, 8), (2**14, 9), (2**17, 36 + 8), (0, 8)):
        assert slices_cost(m, n, k, Slicing(8)).sums_bytes == 4 * m * n * sums
    # Of fewer bits they are exact for longer.
    assert slices_cost(m, n, 2**14, Slicing(8, 7)).sums_bytes == 4 * m * n * 8


def test_moduli_against_slices():
    both = moduli_against_slices(100, 200, 1024, target_bits=53)
    assert (both.moduli.num_planes, both.slices.num_planes) == (15, 7)
    assert (both.moduli.scheme, both.slices.scheme) == ("moduli", "slices")
    assert both.slices == slices_cost(100, 200, 1024, Slicing(7))
    # Slices do not need more bits for longer sums, moduli do.
    longer = moduli_against_slices(100, 200, 2**16, target_bits=53)
    assert (longer.moduli.num_planes, longer.slices.num_planes) == (16, 7)
    every = moduli_against_slices(
        9, 9, 1024, relative_tolerance=2.0**-53, pairs="all", peak=0.1, kappa=2.0
    )
    assert every.moduli.num_gemms == moduli_for_target(2.0**-53, 1024, kappa=2.0)
    assert every.slices.num_gemms == 64
    seven = moduli_against_slices(9, 9, 1024, target_bits=53, bits_per_slice=7)
    assert seven.slices.num_planes == 8


def test_moduli_take_fewer_products_from_five_slices_on():
    for k, size in itertools.product((256, 1024, 16384), range(1, 17)):
        bits = slice_bits(Slicing(size))
        fewest = next(n for n in range(2, 50) if effective_bits(n, k) >= bits)
        assert size < 5 or fewest < Slicing(size).num_products
        assert size > 3 or fewest >= Slicing(size).num_products
        assert relative_error_bound(fewest, k) < slice_error_bound(Slicing(size), k)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: slice_error_bound(Slicing(), -1), "k=-1"),
        (lambda: slice_error_bound(Slicing(), 5, kappa=0.5), "kappa=0.5"),
        (lambda: slice_error_bound(Slicing(), 5, peak=0.0), "peak=0.0"),
        (lambda: slice_error_bound(Slicing(), 5, peak=1.5), "peak=1.5"),
        (lambda: slices_for_bits(125.0), "16 slices of 8 bits keep 123.9"),
        (lambda: slices_for_target(0.0, 5), "relative_tolerance=0.0"),
        (lambda: slices_for_target(1e-60, 5), "16 slices guarantee"),
        (lambda: moduli_cost(1, 1, 1, 50), "num_moduli=50"),
        (lambda: moduli_against_slices(1, 1, 1), "one target"),
        (
            lambda: moduli_against_slices(
                1, 1, 1, target_bits=53, relative_tolerance=0.1
            ),
            "one target",
        ),
        (lambda: moduli_cost(1, 1, 1, 5).seconds(0.0, 1.0), "int8_tops=0.0"),
        (lambda: moduli_cost(1, 1, 1, 5).seconds(1.0, -1.0), "second=-1.0"),
    ],
)
def test_refusals_name_argument_and_limit(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_costs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        moduli_cost(1, 1, 1, 5).num_gemms = 3
