"""docs/routed.md says what is caught; here every function of its tables is called."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.spatial
import scipy.stats
from scipy.linalg import blas

import np_ozaki
from np_ozaki import hooks

PAGE = (Path(__file__).parents[2] / "docs" / "routed.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+?) \| (yes|no|partly) \| ?(.*?) ?\|$", re.MULTILINE)
TABLE = {row[1]: (row[2], re.findall(r"`(.+?)`", row[3])) for row in ROW.finditer(PAGE)}

RNG = np.random.default_rng(0)
S = RNG.standard_normal((6, 6))
V = S[0].copy()
SYMMETRIC = S + S.T
POSITIVE = S @ S.T + np.eye(6)
SMALL = S / 10
SINGLE = S.astype(np.float32)
MASKED = np.ma.array(S)


def in_place():
    x = S.copy()
    x @= S


def matrices():
    return np.matrix(S) * np.matrix(S)


# Each function of a row is called by itself.
CALLS = {
    "`a @ b`, `a @= b`": [lambda: S @ S, in_place],
    "`np.matmul`, `np.linalg.matmul`": [
        lambda: np.matmul(S, S),
        lambda: np.linalg.matmul(S, S),
    ],
    "`np.linalg.matrix_power`": [lambda: np.linalg.matrix_power(S, 3)],
    "`np.linalg.pinv`": [lambda: np.linalg.pinv(S)],
    "`np.vecdot`, `np.linalg.vecdot`": [
        lambda: np.vecdot(S, S),
        lambda: np.linalg.vecdot(S, S),
    ],
    "`np.matvec`": [lambda: np.matvec(S, V)],
    "`np.vecmat`": [lambda: np.vecmat(V, S)],
    "`np.dot`": [lambda: np.dot(S, S), lambda: np.dot(S.tolist(), V)],
    "`np.tensordot`, `np.linalg.tensordot`": [
        lambda: np.tensordot(S, S, 1),
        lambda: np.linalg.tensordot(S, S, axes=1),
    ],
    "`np.linalg.multi_dot`": [lambda: np.linalg.multi_dot([S, S, V])],
    "`np.cov`, `np.corrcoef`": [lambda: np.cov(S), lambda: np.corrcoef(S)],
    "`np.matrix * np.matrix`": [matrices],
    "`np.ma.dot`": [lambda: np.ma.dot(MASKED, MASKED)],
    "`np.random.Generator.multivariate_normal`": [
        lambda: np.random.default_rng(0).multivariate_normal(V, POSITIVE)
    ],
    "`ndarray.dot`": [lambda: S.dot(S), lambda: V.dot(V)],
    "`np.linalg.norm` of all entries": [
        lambda: np.linalg.norm(S),
        lambda: np.linalg.norm(V),
    ],
    "`np.inner`": [lambda: np.inner(S, S)],
    "`np.einsum`, two operands with a common summed label": [
        lambda: np.einsum("ij,jk", S, S),
        lambda: np.einsum(S, [0, 1], S, [1, 2], [2, 0]),
        lambda: np.einsum("...i,ij->...j", S, S),
        lambda: np.einsum("ij,ij", S, S),
    ],
    "`np.einsum`, the same with `optimize`": [
        lambda: np.einsum("ij,jk", S, S, optimize=True),
        lambda: np.einsum("ij,jk", S, S, optimize="greedy"),
    ],
    "`np.einsum`, more operands with `optimize`": [
        lambda: np.einsum("ij,jk,kl", S, S, S, optimize=True)
    ],
    "`np.einsum`, more operands without `optimize`": [
        lambda: np.einsum("ij,jk,kl", S, S, S)
    ],
    "`np.einsum` without a common summed label": [
        lambda: np.einsum("ij,kl", S, S),
        lambda: np.einsum("ij,ij->ij", S, S),
        lambda: np.einsum("ij->j", S),
    ],
    "`np.vdot`, `np.outer`, `np.kron`": [
        lambda: np.vdot(S, S),
        lambda: np.outer(V, V),
        lambda: np.kron(S, S),
    ],
    "`np.convolve`, `np.correlate`": [
        lambda: np.convolve(V, V),
        lambda: np.correlate(V, V),
    ],
    "`np.linalg.norm` along an axis": [lambda: np.linalg.norm(S, axis=0)],
    "`np.linalg.solve`, `inv`, `det`": [
        lambda: np.linalg.solve(S, S),
        lambda: np.linalg.inv(S),
        lambda: np.linalg.det(S),
    ],
    "`np.linalg.lstsq`, `np.polyfit`": [
        lambda: np.linalg.lstsq(S, V),
        lambda: np.polyfit(V, V, 1),
    ],
    "`np.linalg.qr`, `svd`, `cholesky`": [
        lambda: np.linalg.qr(S),
        lambda: np.linalg.svd(S),
        lambda: np.linalg.cholesky(POSITIVE),
    ],
    "`np.linalg.eig`, `eigh`": [
        lambda: np.linalg.eig(S),
        lambda: np.linalg.eigh(SYMMETRIC),
    ],
    "complex128 in any of these": [
        lambda: (S + 1j) @ S,
        lambda: S.dot(S + 1j),
        lambda: np.dot(S + 1j, S - 1j),
        lambda: np.einsum("ij,jk", S + 1j, S),
        lambda: np.inner(S + 1j, S),
        lambda: np.vecdot(S + 1j, S),
    ],
    "float32, complex64 unless [`dtypes`](#float32-and-complex64) names them": [
        lambda: SINGLE @ SINGLE,
        lambda: np.dot(SINGLE, SINGLE),
        lambda: S.astype(np.complex64) @ SINGLE,
        lambda: np.einsum("ij,jk", SINGLE + 1j, SINGLE),
    ],
    "integers, long double": [
        lambda: np.inner(S.astype(int), S.astype(int)),
        lambda: S.astype(np.clongdouble) @ S,
        lambda: S.astype(np.longdouble) @ S,
    ],
    "`blas.dgemm`, `zgemm`": [
        lambda: blas.dgemm(1.0, S, S),
        lambda: blas.zgemm(1.0, S, S),
    ],
    "`blas.dgemv`, `zgemv`": [
        lambda: blas.dgemv(1.0, S, V),
        lambda: blas.zgemv(1.0, S, V),
    ],
    "`blas.dsymm`, `zsymm`, `zhemm`": [
        lambda: blas.dsymm(1.0, S, S),
        lambda: blas.zsymm(1.0, S, S),
        lambda: blas.zhemm(1.0, S, S),
    ],
    "`blas.dsyrk`, `zsyrk`, `zherk`": [
        lambda: blas.dsyrk(1.0, S),
        lambda: blas.zsyrk(1.0, S),
        lambda: blas.zherk(1.0, S),
    ],
    "`blas.dsyr2k`, `zsyr2k`, `zher2k`": [
        lambda: blas.dsyr2k(1.0, S, S),
        lambda: blas.zsyr2k(1.0, S, S),
        lambda: blas.zher2k(1.0, S, S),
    ],
    "`blas.dtrmm`, `ztrmm`": [
        lambda: blas.dtrmm(1.0, S, S),
        lambda: blas.ztrmm(1.0, S, S),
    ],
    "`blas.dtrsm`, `ztrsm`": [
        lambda: blas.dtrsm(1.0, S, S),
        lambda: blas.ztrsm(1.0, S, S),
    ],
    '`get_blas_funcs("gemm")`': [
        lambda: scipy.linalg.get_blas_funcs("gemm", (S, S))(1.0, S, S),
        lambda: scipy.linalg.get_blas_funcs("gemm", (S, 1j * S))(1.0, S, S),
    ],
    "`blas.ddot`, `dger`, `dsymv`, `dtrmv`, `dtrsv`, and with z": [
        lambda: blas.ddot(V, V),
        lambda: blas.dger(1.0, V, V),
        lambda: blas.dsymv(1.0, S, V),
        lambda: blas.dtrmv(S, V),
        lambda: blas.dtrsv(S, V),
        lambda: blas.zdotc(V, V),
        lambda: blas.zgerc(1.0, V, V),
        lambda: blas.zhemv(1.0, S, V),
        lambda: blas.ztrsv(S, V),
    ],
    "`blas.sgemm`, `cgemm` unless [`dtypes`](#float32-and-complex64) names theirs": [
        lambda: blas.sgemm(1.0, S, S),
        lambda: blas.cgemm(1.0, S, S),
    ],
    "`scipy.linalg.expm`": [lambda: scipy.linalg.expm(5 * S)],
    "`scipy.linalg.cosm`": [lambda: scipy.linalg.cosm(SMALL)],
    "`scipy.linalg.sqrtm`": [lambda: scipy.linalg.sqrtm(POSITIVE)],
    "`scipy.linalg.logm`": [lambda: scipy.linalg.logm(POSITIVE)],
    "`scipy.linalg.fractional_matrix_power`": [
        lambda: scipy.linalg.fractional_matrix_power(POSITIVE, 0.5)
    ],
    "`scipy.linalg.funm`, `signm`": [
        lambda: scipy.linalg.funm(S, np.exp),
        lambda: scipy.linalg.signm(S),
    ],
    "`scipy.linalg.expm_frechet`": [lambda: scipy.linalg.expm_frechet(SMALL, S)],
    "`scipy.linalg.solve_sylvester`": [
        lambda: scipy.linalg.solve_sylvester(S, POSITIVE, S)
    ],
    "`scipy.linalg.solve_continuous_lyapunov`": [
        lambda: scipy.linalg.solve_continuous_lyapunov(S, SYMMETRIC)
    ],
    "`scipy.linalg.solve_discrete_lyapunov`, bilinear": [
        lambda: scipy.linalg.solve_discrete_lyapunov(SMALL, SYMMETRIC, "bilinear")
    ],
    "`scipy.linalg.solve_continuous_are`, `solve_discrete_are`": [
        lambda: scipy.linalg.solve_continuous_are(S, np.eye(6), POSITIVE, np.eye(6)),
        lambda: scipy.linalg.solve_discrete_are(S, np.eye(6), POSITIVE, np.eye(6)),
    ],
    "`scipy.linalg.subspace_angles`": [
        lambda: scipy.linalg.subspace_angles(S[:, :3], S[:, 3:])
    ],
    "`scipy.linalg.polar`, `rsf2csf`": [
        lambda: scipy.linalg.polar(S),
        lambda: scipy.linalg.rsf2csf(*scipy.linalg.schur(S)),
    ],
    "`scipy.linalg.orthogonal_procrustes`": [
        lambda: scipy.linalg.orthogonal_procrustes(S, S)
    ],
    "`scipy.linalg.pinv`, `pinvh`": [
        lambda: scipy.linalg.pinv(S),
        lambda: scipy.linalg.pinvh(SYMMETRIC),
    ],
    "`scipy.linalg.solve`, `inv`, `det`": [
        lambda: scipy.linalg.solve(S, S),
        lambda: scipy.linalg.inv(S),
        lambda: scipy.linalg.det(S),
    ],
    "`scipy.linalg.lu`, `qr`, `svd`, `cholesky`": [
        lambda: scipy.linalg.lu(S),
        lambda: scipy.linalg.qr(S),
        lambda: scipy.linalg.svd(S),
        lambda: scipy.linalg.cholesky(POSITIVE),
    ],
    "`scipy.linalg.eigh`, `schur`, `hessenberg`": [
        lambda: scipy.linalg.eigh(SYMMETRIC),
        lambda: scipy.linalg.schur(S),
        lambda: scipy.linalg.hessenberg(S),
    ],
    "`scipy.linalg.lstsq`, `solve_triangular`": [
        lambda: scipy.linalg.lstsq(S, V),
        lambda: scipy.linalg.solve_triangular(S, V),
    ],
    "`scipy.stats.multivariate_normal`": [
        lambda: scipy.stats.multivariate_normal(V, POSITIVE).pdf(S),
        lambda: scipy.stats.multivariate_normal(V, POSITIVE).rvs(3, random_state=0),
    ],
    "`scipy.stats.gaussian_kde`": [
        lambda: scipy.stats.gaussian_kde(np.random.default_rng(0).random((2, 30)))(
            np.ones((2, 4))
        )
    ],
    "`scipy.sparse` matrix `@` dense": [lambda: scipy.sparse.csr_matrix(S) @ S],
    "`scipy.spatial.distance.cdist`": [lambda: scipy.spatial.distance.cdist(S, S)],
}


def of_single(names, *operands):
    return [lambda name=name: getattr(blas, name)(1.0, *operands) for name in names]


# Rows of what option dtypes has to name.
SINGLE_CALLS = {
    "float32, complex64 in NumPy's functions": [
        lambda: SINGLE @ SINGLE,
        lambda: np.dot(SINGLE, SINGLE + 1j),
        lambda: SINGLE.dot(SINGLE),
        lambda: np.einsum("ij,jk", SINGLE + 1j, SINGLE),
        lambda: np.inner(SINGLE, SINGLE),
        lambda: np.vecdot(SINGLE + 1j, SINGLE),
    ],
    "`blas.sgemm`, `sgemv`, `ssymm`, `ssyrk`, `ssyr2k`": [
        *of_single(("sgemm", "ssymm", "ssyr2k"), S, S),
        *of_single(("sgemv",), S, V),
        *of_single(("ssyrk",), S),
    ],
    "`blas.strmm`, `strsm`": of_single(("strmm", "strsm"), S, S),
    "`blas.cgemm`, `cgemv`, `csymm`, `csyrk`, `csyr2k`": [
        *of_single(("cgemm", "csymm", "csyr2k"), S, S),
        *of_single(("cgemv",), S, V),
        *of_single(("csyrk",), S),
    ],
    "`blas.chemm`, `cherk`, `cher2k`": [
        *of_single(("chemm", "cher2k"), S, S),
        *of_single(("cherk",), S),
    ],
    "`blas.ctrmm`, `ctrsm`": of_single(("ctrmm", "ctrsm"), S, S),
}
CALLS |= SINGLE_CALLS


@pytest.fixture(autouse=True, scope="module")
def _needs_the_hooks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np_ozaki.enabled(engine="cpu"):
            inactive = [s for s in hooks.status() if s.escapes]
    if inactive:
        pytest.skip(f"nothing to catch here: {inactive}")


def test_every_row_is_tried():
    assert TABLE.keys() == CALLS.keys()
    assert len(TABLE) == len(ROW.findall(PAGE))
    named = {name for _, names in TABLE.values() for name in names}
    assert named == set(hooks.NAMES)


@pytest.mark.filterwarnings("ignore")  # deprecations of what is called
@pytest.mark.parametrize("function", CALLS)
def test_the_table_is_true(function):
    caught, named = TABLE[function]
    for call in CALLS[function]:
        if function in {"`np.matvec`", "`np.vecmat`"} and not hasattr(np, "matvec"):
            pytest.skip("this NumPy does not have it")
        dtypes = ("float32", "complex64") if function in SINGLE_CALLS else None
        with np_ozaki.enabled(engine="cpu", min_flops=0, dtypes=dtypes) as scope:
            call()
        routes = {name for name, r in scope.stats().routes.items() if r.calls["cpu"]}
        assert routes <= set(named)
        assert caught == "partly" or bool(routes) == (caught == "yes")
