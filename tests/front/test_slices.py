"""``scheme="slices"`` in the functions, routes and scopes of np_ozaki."""

import numpy as np
import pytest
import scipy.linalg.blas as blas

import np_ozaki
from np_ozaki.config import Options, read_config
from np_ozaki.numerics.slice_reference import matmul_by_slices
from np_ozaki.numerics.slicing import Slicing
from np_ozaki.testing import assert_same_bits

rng = np.random.default_rng(8)
A, B = rng.standard_normal((30, 40)), rng.standard_normal((40, 20))


def expected(a, b, **options):
    return np.array(matmul_by_slices(a, b, Slicing(**options)))


def test_matmul_tells_what_it_did():
    c, info = np_ozaki.matmul(A, B, scheme="slices", return_info=True, engine="cpu")
    assert_same_bits(c, expected(A, B))
    assert (info.engine, info.num_slices, info.num_moduli) == ("cpu", 8, None)
    assert (info.fallback, info.scaling, info.slicing) == (None, None, Slicing())
    assert np_ozaki.last_call() == info
    _, info = np_ozaki.matmul(A, B, return_info=True, engine="cpu")
    assert info.num_slices is None


@pytest.mark.parametrize(
    "options",
    [
        {"num_slices": 5, "bits_per_slice": 7},
        {"pairs": "all"},
        {"pairs": [(1, 0), (0, 0)]},
        {"pairs": np.array([[0, 0], [2, 1]])},
        {"accumulate": "float64"},
        {"num_slices": np.int64(4)},
    ],
)
def test_options_reach_the_engine(options):
    given = dict(options)
    if "num_slices" in given:
        given["num_slices"] = int(given["num_slices"])
    if "pairs" in given and not isinstance(given["pairs"], str):
        given["pairs"] = tuple(sorted((int(i), int(j)) for i, j in given["pairs"]))
    want = expected(A, B, **given)
    assert_same_bits(np_ozaki.matmul(A, B, scheme="slices", **options), want)
    with np_ozaki.enabled(engine="cpu", min_flops=0, scheme="slices", **options):
        assert_same_bits(A @ B, want)


def product_routes():
    yield "matmul", lambda: np.matmul(A, B)
    yield "@", lambda: A @ B
    yield "dot", lambda: np.dot(A, B)
    yield "einsum", lambda: np.einsum("ij,jk->ik", A, B)
    yield "tensordot", lambda: np.tensordot(A, B, 1)
    yield "dgemm", lambda: blas.dgemm(1.0, A, B)
    yield "OzArray", lambda: np.asarray(np_ozaki.OzArray(A) @ B)


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in product_routes()]
)
def test_every_route(call):
    with np_ozaki.enabled(
        engine="cpu", min_flops=0, scheme="slices", num_slices=6
    ) as scope:
        assert_same_bits(np.ascontiguousarray(call()), expected(A, B, num_slices=6))
        assert sum(sum(r.calls.values()) for r in scope.stats().routes.values()) == 1
        assert np_ozaki.last_call().num_slices == 6


@pytest.mark.parametrize("name", ["dsyrk", "dsymm", "dtrmm", "dtrsm"])
def test_structured_routines(name):
    x = rng.standard_normal((70, 70)) + 70 * np.eye(70)
    args = (1.0, x) if name == "dsyrk" else (1.0, x, rng.standard_normal((70, 50)))
    want = getattr(blas, name)(*args)
    with np_ozaki.enabled(engine="cpu", min_flops=0, scheme="slices"):
        got = getattr(blas, name)(*args)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    call = np_ozaki.last_call()
    assert (call.route, call.engine, call.num_slices) == (name, "cpu", 8)


ONE_SIDED = [(0, 0), (0, 1), (2, 0), (1, 3)]
FEW = {"scheme": "slices", "engine": "cpu", "num_slices": 5, "pairs": ONE_SIDED}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
def test_pairs_belong_to_left_and_right(side, trans):
    x, y = rng.standard_normal((2, 6, 6))
    triangle = np.triu(x).T if trans else np.triu(x)
    operands = (y, triangle) if side else (triangle, y)
    want = np_ozaki.matmul(*operands, **FEW)
    with np_ozaki.enabled(min_flops=0, **FEW):
        got = blas.dtrmm(1.0, x, y, side=side, trans_a=trans)
    assert_same_bits(np.ascontiguousarray(got), want)


def test_both_products_of_dsyr2k():
    x, y = rng.standard_normal((2, 6, 7))
    want = np_ozaki.matmul(x, y.T, **FEW) + np_ozaki.matmul(y, x.T, **FEW)
    with np_ozaki.enabled(min_flops=0, **FEW) as scope:
        got = blas.dsyr2k(1.0, x, y)
    assert_same_bits(np.triu(got), np.triu(want))
    assert scope.stats().routes["dsyr2k"].calls == {"cpu": 1}


def test_solutions_on_the_right():
    x = rng.standard_normal((600, 600)) / 600 + np.eye(600)
    y = rng.standard_normal((20, 600))
    with np_ozaki.enabled(min_flops=0, **FEW):
        right = blas.dtrsm(1.0, x, y, side=1)
    turned = FEW | {"pairs": [(j, i) for i, j in ONE_SIDED]}
    with np_ozaki.enabled(min_flops=0, **turned):
        left = blas.dtrsm(1.0, x, y.T, trans_a=1)
    assert_same_bits(np.ascontiguousarray(right), np.ascontiguousarray(left.T))


def test_a_product_may_leave_the_scheme_of_its_scope():
    with np_ozaki.enabled(engine="cpu", scheme="slices"):
        c, info = np_ozaki.matmul(A, B, scheme="moduli", precision=15, return_info=True)
    assert info.num_moduli == 15
    assert_same_bits(c, np_ozaki.matmul(A, B, precision=15, engine="cpu"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": 15}, "precision=15"),
        ({"precision": 1e-10}, "choose num_slices"),
        ({"precision": "exact"}, "precision='exact'"),
        ({"scaling": "accurate"}, "scaling='accurate'"),
        ({"check": True}, "checksums are of residues"),
        ({"engine": "native"}, 'engine="native" does not multiply by scheme="slices"'),
        ({"engine": "cublas"}, 'engine="cublas" does not multiply by scheme="slices"'),
        ({"num_slices": 17}, "num_slices=17: must be at most 16"),
        ({"num_slices": 0}, "num_slices=0: must be at least 1"),
        ({"bits_per_slice": 1}, "bits_per_slice=1: must be at least 2"),
        ({"bits_per_slice": 9}, "bits_per_slice=9: must be at most 8"),
        ({"pairs": "some"}, "pairs='some'"),
        ({"pairs": []}, "must name a pair"),
        ({"pairs": [(0, 8)]}, "slices are numbered 0 to 7"),
        ({"pairs": [(0, 1), (0, 1)]}, "each pair counts once"),
        ({"accumulate": "int32"}, "accumulate='int32'"),
    ],
)
def test_refused_values(options, text):
    for function in (
        lambda **given: np_ozaki.matmul(A, B, **given),
        lambda **given: np_ozaki.enabled(**given),
        lambda **given: np_ozaki.plan(3, 3, 3, **given),
    ):
        with pytest.raises(np_ozaki.OptionError) as error:
            function(scheme="slices", **options)
        assert text in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"num_slices": "8"},
        {"num_slices": 8.0},
        {"num_slices": True},
        {"bits_per_slice": None, "pairs": 3},
        {"pairs": [(0,)]},
        {"pairs": [(0.0, 1)]},
    ],
)
def test_refused_types(options):
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.matmul(A, B, scheme="slices", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_slices": 8},
        {"bits_per_slice": 8},
        {"pairs": "all"},
        {"accumulate": "exact"},
    ],
)
def test_options_without_the_scheme_are_refused(options):
    with pytest.raises(np_ozaki.OptionError, match='scheme="slices"'):
        np_ozaki.matmul(A, B, **options)
    with pytest.raises(np_ozaki.OptionError, match='scheme="slices"'):
        np_ozaki.enabled(**options)


def test_unknown_names_are_refused_as_python_does():
    for function in (np_ozaki.matmul, np_ozaki.error_bound):
        with pytest.raises(TypeError, match="unexpected keyword argument 'slices'"):
            function(A, B, slices=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_flops'"):
        np_ozaki.matmul(A, B, min_flops=0)
    with pytest.raises(TypeError, match=r"enabled\(\) got an unexpected keyword"):
        np_ozaki.enabled(slices=3)


def test_no_lower_half_of_sums_in_float64():
    with pytest.raises(np_ozaki.OptionError, match="exact sums"):
        np_ozaki.matmul(A, B, scheme="slices", accumulate="float64", output="dd")


def test_variables():
    options = read_config(
        {
            "NP_OZAKI_SCHEME": "slices",
            "NP_OZAKI_NUM_SLICES": "7",
            "NP_OZAKI_BITS_PER_SLICE": "7",
            "NP_OZAKI_PAIRS": "0-0,1-0",
            "NP_OZAKI_ACCUMULATE": "float64",
        }
    ).options
    assert options.slicing == Slicing(7, 7, ((0, 0), (1, 0)), "float64")
    # A number of slices is no scheme.
    assert read_config({"NP_OZAKI_NUM_SLICES": "7"}).options.scheme == "moduli"
    for name, value in (("PAIRS", "0,1"), ("NUM_SLICES", "x"), ("SCHEME", "fast")):
        with pytest.raises(np_ozaki.OptionError, match=f"NP_OZAKI_{name}"):
            read_config({f"NP_OZAKI_{name}": value})


def test_pairs_are_looked_at_once_and_each_time():
    def pairs(*values):
        return (pair for pair in values)

    for _ in range(2):
        with pytest.raises(np_ozaki.OperandTypeError):
            np_ozaki.matmul(A, B, scheme="slices", pairs=pairs((0, "x"), (0, 0)))
    _, info = np_ozaki.matmul(
        A, B, scheme="slices", pairs=pairs((0, 1), (0, 0)), return_info=True
    )
    assert info.slicing.pairs == ((0, 0), (0, 1))
    np_ozaki.matmul(A, B, scheme="slices", pairs=((0, 0),))
    with pytest.raises(np_ozaki.OperandTypeError):
        np_ozaki.matmul(A, B, scheme="slices", pairs=((0.0, 0.0),))


def test_plan_refuses_what_matmul_does():
    options = {"scheme": "slices", "accumulate": "float64", "output": "dd"}
    with pytest.raises(np_ozaki.OptionError, match="exact sums"):
        np_ozaki.plan(5, 4, 7, **options)
    text = str(np_ozaki.plan(5, 4, 7, batch=3, scheme="slices"))
    assert text.count("for each matrix") == 2
    assert "INT8" not in str(np_ozaki.plan(5, 4, 0, scheme="slices", engine="cpu"))


def test_options_can_be_hashed():
    assert hash(Options(scheme="slices", pairs=[[0, 0]])) == hash(
        Options(scheme="slices", pairs=((0, 0),))
    )


def test_special_values_and_empty_products():
    a = A.copy()
    a[0, 0], a[1, 1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        got = np_ozaki.matmul(a, B, scheme="slices")
        want = a @ B
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(np.isinf(got[1]), np.isinf(want[1]))
    assert_same_bits(got[2:], np_ozaki.matmul(A, B, scheme="slices")[2:])
    assert (
        np_ozaki.matmul(A[:, :0], B[:0], scheme="slices").tolist() == [[0.0] * 20] * 30
    )
    assert np_ozaki.matmul(A[:0], B, scheme="slices").shape == (0, 20)


def test_a_prepared_operand():
    x = np_ozaki.prepare(A, "left", scheme="slices", engine="cpu")
    c = np_ozaki.matmul(x, B, scheme="slices", engine="cpu")
    assert_same_bits(np.asarray(c), expected(A, B))
