"""np_ozaki.plan: what is foretold is what happens."""

import numpy as np
import pytest

import np_ozaki
from np_ozaki import complex_products
from np_ozaki.engines import cpu

SIZES = ((1, 300, 200, 100), (5, 40, 30, 20), (1, 700, 30, 2000), (3, 1, 1, 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"precision": 15}, {"precision": 30, "scaling": "accurate"}, {"check": True}],
)
@pytest.mark.parametrize("workspace", [None, 4 << 20])
def test_tiles_and_memory_are_those_of_the_product(size, options, workspace):
    batch, m, n, k = size
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
    options = {**options, "engine": "cpu", "workspace_bytes": workspace}
    plan = np_ozaki.plan(m, n, k, batch=batch, **options)
    _, info = np_ozaki.matmul(a, b, return_info=True, **options)
    assert (plan.batch, plan.m, plan.n, plan.k) == size
    assert (plan.engine, plan.flops) == (info.engine, info.flops)
    assert (plan.num_moduli, plan.scaling) == (info.num_moduli, info.scaling)
    assert (plan.tiles, plan.workspace_bytes) == (info.tiles, info.workspace_bytes)


@pytest.mark.parametrize("size", [(1, 150, 100, 50), (3, 70, 30, 70), (2, 0, 3, 4)])
@pytest.mark.parametrize(
    "options",
    [{}, {"check": True}, {"precision": 20, "output": "dd"}, {"scheme": "slices"}],
)
def test_complex_products_are_foretold(size, options, monkeypatch):
    # So that some batches are embedded in parts.
    monkeypatch.setattr(complex_products, "_CHUNK_BYTES", 1 << 19)
    batch, m, n, k = size
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
    options = {**options, "engine": "cpu", "workspace_bytes": 4 << 20}
    plan = np_ozaki.plan(m, n, k, batch=batch, dtype=complex, **options)
    _, info = np_ozaki.matmul(a * (1 + 1j), b, return_info=True, **options)
    assert (plan.dtype, plan.flops) == (info.dtype, info.flops)
    assert (plan.num_moduli, plan.num_slices) == (info.num_moduli, info.num_slices)
    assert (plan.tiles, plan.workspace_bytes) == (info.tiles, info.workspace_bytes)
    assert plan.gemm_operations == plan.num_gemms * plan.flops // 4


def test_complex_plans():
    plan = np_ozaki.plan(512, 512, 512, dtype="complex128", engine="cpu")
    real = np_ozaki.plan(512, 512, 512, engine="cpu")
    assert (plan.num_moduli, plan.flops) == (16, 4 * real.flops)
    assert (plan.by_moduli.num_gemms, plan.by_slices.num_gemms) == (32, 4 * 36)
    assert plan.by_moduli.planes_bytes == 2 * 16 * 2 * 512**2
    assert 53 < plan.bits < 55
    assert plan.relative_error < 1e-15
    assert "512 x 512 by 512 x 512, complex128\n" in str(plan)
    assert "\nby moduli  16, 32 products in INT8" in str(plan)
    assert np_ozaki.plan(200, 200, 200, dtype="D", engine="cpu").scope == "routed"
    assert "min_flops" in np_ozaki.plan(100, 100, 100, dtype="D", engine="cpu").scope
    with pytest.raises(np_ozaki.OptionError, match="2 to 22"):
        np_ozaki.plan(5, 5, 5, dtype="D", precision=30, engine="cpu")
    for dtype in ("float16", int, "no such"):
        with pytest.raises(np_ozaki.OperandTypeError, match="dtype="):
            np_ozaki.plan(5, 5, 5, dtype=dtype)


def test_plans_of_single_precision():
    for dtype, flops, num_moduli in ((np.float32, 1, 7), ("complex64", 4, 8)):
        a = np.ones((40, 50), dtype)
        _, info = np_ozaki.matmul(a, a.T, return_info=True)
        plan = np_ozaki.plan(40, 40, 50, dtype=dtype, engine="cpu")
        assert (plan.dtype, plan.num_moduli) == (info.dtype, info.num_moduli)
        assert (plan.num_moduli, plan.flops) == (num_moduli, flops * 2 * 40 * 40 * 50)
        assert plan.scope == f"{plan.dtype} is not among dtypes"
        double = np_ozaki.plan(4, 4, 5, dtype=dtype, engine="cpu", output="dd")
        assert double.dtype == np.result_type(dtype, float).name
        with np_ozaki.enabled(engine="cpu", min_flops=0, dtypes=[dtype]):
            assert np_ozaki.plan(4, 4, 5, dtype=dtype).scope == "routed"
            assert np_ozaki.plan(4, 4, 5).engine == "native"
            assert np_ozaki.plan(4, 4, 5, output="dd").engine == "cpu"
        with pytest.raises(np_ozaki.OptionError, match="2\\*\\*-23"):
            np_ozaki.plan(4, 4, 5, dtype=dtype, engine="cpu", precision=1e-9)
    assert np_ozaki.plan(4, 4, 5, dtype="f", engine="cublas").fallback is not None


def test_products_are_counted(monkeypatch):
    seen = []
    right = cpu.CpuEngine.residue_gemm

    def residue_gemm(engine, left, planes, out):
        seen.append(len(out))
        right(engine, left, planes, out)

    monkeypatch.setattr(cpu.CpuEngine, "residue_gemm", residue_gemm)
    x = np.random.default_rng(0).standard_normal((70, 70))
    for precision in (2, 10, 15, 49):
        seen.clear()
        plan = np_ozaki.plan(70, 70, 70, precision=precision, engine="cpu")
        np_ozaki.matmul(x, x, precision=precision, engine="cpu")
        assert seen == [plan.num_gemms] * plan.tiles
        assert plan.gemm_operations == plan.num_gemms * 2 * 70**3


def test_accuracy():
    plan = np_ozaki.plan(10, 10, 1024, precision=15, engine="cpu")
    assert 53 < plan.bits < 54
    assert 1e-16 < plan.relative_error < 2e-16
    assert np_ozaki.plan(10, 10, 1024, precision=1e-6, engine="cpu").num_moduli < 10
    legacy = np_ozaki.plan(10, 10, 1024, scaling="legacy", engine="cpu")
    assert legacy.relative_error is None
    assert "legacy" in str(legacy)


def test_exact_depends_on_the_entries():
    plan = np_ozaki.plan(10, 10, 10, precision="exact", engine="cpu")
    assert plan.num_moduli is plan.num_gemms is plan.gemm_operations is None
    assert "as many as" in str(plan)


def test_scopes():
    assert np_ozaki.plan(300, 300, 300, engine="cpu").scope == "routed"
    assert "min_flops" in np_ozaki.plan(100, 100, 100, engine="cpu").scope
    with np_ozaki.enabled(engine="cpu", min_flops=0):
        assert np_ozaki.plan(100, 100, 100).scope == "routed"
    with np_ozaki.enabled(engine="cpu", strategy="performant"):
        plan = np_ozaki.plan(3000, 3000, 3000)
    assert plan.engine == "native"
    assert "performant" in plan.scope
    plan = np_ozaki.plan(3000, 3000, 3000, engine="native")
    assert (plan.engine, plan.num_moduli) == ("native", None)
    assert "native" in str(plan)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_products(size):
    plan = np_ozaki.plan(*size, engine="cpu")
    assert (plan.tiles, plan.workspace_bytes) == (0, 0)
    assert plan.flops == plan.gemm_operations == 0


def test_huge_products_can_be_planned():
    plan = np_ozaki.plan(10**6, 10**6, 10**6, engine="cpu")
    assert plan.workspace_bytes <= 1 << 30
    assert plan.tiles > 1
    assert "e+" in str(plan)


def test_lengths():
    assert np_ozaki.plan(np.int64(3), np.int32(4), 5, engine="cpu").k == 5
    with pytest.raises(np_ozaki.OperandTypeError, match="m="):
        np_ozaki.plan(1.5, 2, 2)
    with pytest.raises(np_ozaki.OptionError, match="k=-1"):
        np_ozaki.plan(2, 2, -1)
    with pytest.raises(np_ozaki.OptionError, match="batch=-1"):
        np_ozaki.plan(2, 2, 2, batch=-1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "slices",
    [
        {},
        {"num_slices": 3, "bits_per_slice": 7, "pairs": "all"},
        {"num_slices": 4, "pairs": [(0, 0), (1, 0)], "accumulate": "float64"},
    ],
)
@pytest.mark.parametrize("workspace", [None, 4 << 20])
def test_slices_take_what_their_product_does(size, slices, workspace):
    batch, m, n, k = size
    a, b = np.ones((batch, m, k)), np.ones((batch, k, n))
    options = {
        "scheme": "slices",
        "engine": "cpu",
        "workspace_bytes": workspace,
        **slices,
    }
    plan = np_ozaki.plan(m, n, k, batch=batch, **options)
    _, info = np_ozaki.matmul(a, b, return_info=True, **options)
    assert (plan.engine, plan.scheme, plan.scaling) == ("cpu", "slices", None)
    assert (plan.num_slices, plan.num_moduli) == (info.num_slices, None)
    assert (plan.tiles, plan.workspace_bytes) == (info.tiles, info.workspace_bytes)
    assert plan.num_products == plan.num_gemms == plan.by_slices.num_gemms
    assert plan.gemm_operations == plan.num_gemms * plan.flops


def test_both_schemes_are_told_side_by_side():
    plan = np_ozaki.plan(1024, 512, 1024, engine="cpu")
    assert (plan.by_moduli.num_gemms, plan.num_products) == (15, 15)
    assert (plan.by_slices.num_planes, plan.by_slices.num_gemms) == (8, 36)
    assert plan.num_slices is plan.slicing is None
    text = str(plan)
    assert "\nby moduli  15, 15 products in INT8" in text
    assert "\nby slices  8, 36 products in INT8" in text
    plan = np_ozaki.plan(
        1024, 512, 1024, engine="cpu", scheme="slices", num_slices=7, pairs="all"
    )
    assert (plan.num_slices, plan.num_products) == (7, 49)
    assert round(plan.bits, 2) == 54.99
    assert plan.by_moduli.num_gemms == 16
    assert 1e-15 < plan.relative_error < 2e-15
    assert "\nscheme     7 slices, all\n" in str(plan)
    assert "\nby slices  7, 49 products in INT8" in str(plan)


def test_the_other_scheme_has_as_many_bits():
    for precision in (2, 8, 15, 30):
        plan = np_ozaki.plan(10, 10, 5000, engine="cpu", precision=precision)
        size = plan.by_slices.num_planes
        again = np_ozaki.plan(
            10, 10, 5000, engine="cpu", scheme="slices", num_slices=size
        )
        assert again.bits >= plan.bits
        assert again.by_moduli.num_planes >= precision
    # Sixteen slices of eight bits are fewer than 49 moduli.
    plan = np_ozaki.plan(10, 10, 5000, engine="cpu", precision=49)
    assert plan.by_slices is None
    assert "by slices" not in str(plan)


def test_empty_products_by_slices():
    plan = np_ozaki.plan(0, 3, 4, engine="cpu", scheme="slices")
    assert (plan.tiles, plan.workspace_bytes, plan.flops) == (0, 0, 0)


def test_options_of_slices_are_checked():
    with pytest.raises(np_ozaki.OptionError, match="num_slices"):
        np_ozaki.plan(2, 2, 2, num_slices=5)
    with pytest.raises(TypeError, match="got an unexpected"):
        np_ozaki.plan(2, 2, 2, slices=5)
