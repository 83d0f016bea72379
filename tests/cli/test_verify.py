"""``verify``: it accepts what is right, and above all refuses what is not."""

import json
import math
import os
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import io, sparse

from np_ozaki import cli, hooks
from np_ozaki.cli import cases, files, measure
from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.cli.exact import Vectors, exact_entry
from np_ozaki.cli.multipliers import Native
from np_ozaki.engines import choice
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cublas import CublasProduct
from np_ozaki.errors import WorkspaceError
from np_ozaki.numerics import reference

RNG = np.random.default_rng(5)
A = RNG.standard_normal((6, 9))
B = RNG.standard_normal((9, 4))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)
    return tmp_path


def verify(*arguments):
    """Return (exit status, report)."""
    status = cli.main(["verify", "--no-progress", "--json", "r.json", *arguments])
    with open("r.json", encoding="utf-8") as file:
        return status, json.load(file)


# The built-in cases ---------------------------------------------------------------


def test_default_run(terminal):
    pytest.importorskip("sklearn")
    done = terminal.cli("verify", "--json", "r.json")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "verify: 14 cases, all bounds hold"
    assert max(map(len, lines)) <= 100
    for name in ("diabetes", "digits", "Hilbert", "phi=4", "subnormal", "covariance"):
        assert any(name in line[:25] for line in lines)
    assert "in u = 2^-53" in done.stdout
    assert "28/28" in done.stderr
    assert "verify:" in done.stderr
    report = json.loads((terminal.folder / "r.json").read_text())
    assert report["ok"] is True
    for case in report["cases"]:
        ours, native = case["results"]
        assert (ours["engine"], native["engine"]) == ("cpu", "native")
        assert ours["holds"] is ours["scaled_bits"] is True
        assert ours["max_error"] <= ours["bound"]
        assert ours["symmetric"] in {True, None}
        wide = case["name"] == "lognormal, phi=4"
        assert (ours["num_moduli"] > 15) is wide
    by_name = {case["name"]: case["results"][0] for case in report["cases"]}
    assert by_name["integers, exact result"]["correct"] == 1.0
    assert by_name["digits X.T @ X"]["max_error"] == 0.0
    assert by_name["NaN and infinities"]["special_values"] is True


def test_without_scikit_learn(here, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    small = [cases.gram("small", A)]
    monkeypatch.setattr("np_ozaki.cli.verify.synthetic_cases", lambda _: small)
    status, report = verify()
    assert (status, len(report["cases"])) == (0, 1)
    assert 'pip install "np_ozaki[examples]"' in report["notes"][0]
    assert capsys.readouterr().out.count("np_ozaki[examples]") == 1


def test_inverse_hilbert_is_exact():
    h = [[Fraction(1, i + j + 1) for j in range(12)] for i in range(12)]
    inverse = [[Fraction(x) for x in row] for row in cases._inverse_hilbert(12)]
    for i in range(12):
        for j in range(12):
            assert sum(h[i][k] * inverse[k][j] for k in range(12)) == (i == j)


# Engine cublas ----------------------------------------------------------------------


class Inaccurate:
    """The engine cublas with bits, and a bad temper, of its own."""

    def matmul(self, a, b, out, settings, *, workspace_bytes):
        with hooks.unrouted(), np.errstate(all="ignore"):
            np.matmul(a, b, out=out)
        out *= 1 + 1e-9 * np.nanmax(np.abs(a))
        if self.loses_nan:
            out[np.isnan(out)] = 0.0
        return CublasProduct(Outcome(False, False, 0, 1), settings.mantissa_bits)


@pytest.mark.parametrize("loses_nan", [False, True])
def test_engine_cublas_is_held_to_nan_and_inf_alone(here, monkeypatch, loses_nan):
    engine = Inaccurate()
    engine.loses_nan = loses_nan
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: None)
    monkeypatch.setattr(choice, "cublas_engine", lambda: engine)
    monkeypatch.setattr(choice, "on_gpu", lambda options: False)
    odd = A.copy()
    odd[1, 1] = np.nan
    np.save("odd.npy", odd)
    status, report = verify("odd.npy", "b.npy", "--engine", "cublas")
    ours = report["cases"][0]["results"][0]
    assert ours["engine"] == "cublas"
    assert ours["max_error"] > 1000
    assert ours["bound"] is ours["scaled_bits"] is None
    assert report["options"]["cublas"] == "engine cublas, 55 bits"
    assert any("promises neither bits nor bounds" in x for x in report["notes"])
    assert ours["special_values"] is not loses_nan
    assert status == int(loses_nan)
    status, report = verify("a.npy", "--engine", "cublas", "--mantissa-bits", "40")
    assert (status, report["options"]["cublas"]) == (0, "engine cublas, 40 bits")
    assert report["cases"][0]["results"][0]["symmetric"] is None


def test_engine_cublas_that_is_not_there(here, monkeypatch, capsys):
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: "it is too old")
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "no GPU")
    status, report = verify("a.npy", "b.npy", "--engine", "cublas")
    assert status == 0
    assert report["cases"][0]["results"][0]["engine"] == "cpu"
    assert "engine cublas cannot run here: it is too old" in capsys.readouterr().out


# Files ----------------------------------------------------------------------------


def test_two_files(here, capsys):
    status, report = verify("a.npy", "b.npy")
    out = capsys.readouterr().out
    assert status == 0
    (case,) = report["cases"]
    assert (case["m"], case["k"], case["n"]) == (6, 9, 4)
    assert case["results"][0]["symmetric"] is None
    assert "A = a.npy (6, 9), B = b.npy (9, 4)" in out
    assert out.endswith("verify: 1 case, all bounds hold\n")


def test_one_file_is_a_gram_matrix(here, capsys):
    status, report = verify("a.npy")
    assert status == 0
    assert report["cases"][0]["results"][0]["symmetric"] is True
    assert "one file: the product is X.T @ X, X = a.npy" in capsys.readouterr().out


def test_formats_give_the_same_matrix(here):
    np.savez("one.npz", A)
    np.savez("two.npz", x=A, y=B)
    io.mmwrite("dense.mtx", A)
    io.mmwrite("sparse.mtx", sparse.coo_matrix(A))
    sparse.save_npz("sparse.npz", sparse.csr_matrix(A))
    np.savetxt("a.csv", A, delimiter=",", header="made by hand")
    np.savetxt("names.csv", A, delimiter=";", header=";".join("abcdefghi"), comments="")
    np.savetxt("a.tsv", A, delimiter="\t")
    np.savetxt("a.txt", A)
    for name in (
        "a.npy", "one.npz", "two.npz:x", "dense.mtx", "sparse.mtx", "sparse.npz",
        "a.csv", "names.csv", "a.tsv", "a.txt",
    ):  # fmt: skip
        np.testing.assert_array_equal(files.read_matrix(name), A, err_msg=name)


def test_complex_text(here, capsys):
    z = A - 1j * A[::-1]
    np.savetxt("z.csv", z, delimiter=",")
    np.savetxt("z.txt", z)
    (here / "names.csv").write_text("x,y\n1+2j,-3j\n")
    for name, want in (("z.csv", z), ("z.txt", z), ("names.csv", [[1 + 2j, -3j]])):
        found = files.read_matrix(name, DTYPES["complex128"])
        np.testing.assert_array_equal(found, want, err_msg=name)
    assert cli.main(["verify", "z.csv"]) == 2
    assert "holds complex128, real numbers are needed" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.float32])
def test_real_files_as_complex_matrices(here, recwarn, kind):
    np.save("real.npy", np.round(4 * A).astype(kind))
    assert verify("real.npy", "--dtype", "complex128")[0] == 0
    assert not [x for x in recwarn if x.category is np.exceptions.ComplexWarning]


def test_symmetric_and_integer_matrix_market(here):
    symmetric = np.array([[2.0, 1.0], [1.0, 3.0]])
    io.mmwrite("s.mtx", sparse.coo_matrix(symmetric), symmetry="symmetric")
    np.testing.assert_array_equal(files.read_matrix("s.mtx"), symmetric)
    io.mmwrite("i.mtx", sparse.coo_matrix(symmetric.astype(int)))
    assert files.read_matrix("i.mtx").dtype == np.float64


def test_commands_take_every_format(here):
    io.mmwrite("a.mtx", sparse.coo_matrix(A))
    np.savez("b.npz", B)
    assert verify("a.mtx", "b.npz")[0] == 0
    np.savetxt("x.csv", B, delimiter=",")
    assert verify("x.csv")[0] == 0


def test_special_values_in_files(here, capsys):
    a, b = A.copy(), B.copy()
    a[0, 0], a[2, 3], b[1, 1], b[3, 2] = np.nan, np.inf, -np.inf, 0.0
    np.save("a.npy", a)
    np.save("b.npy", b)
    status, report = verify("a.npy", "b.npy")
    ours = report["cases"][0]["results"][0]
    assert status == 0
    assert ours["special_values"] is True
    assert ours["holds"] is True
    assert "finite entries" in capsys.readouterr().out
    np.save("a.npy", np.full((3, 9), np.nan))
    status, report = verify("a.npy", "b.npy")
    assert status == 0
    assert report["cases"][0]["results"][0]["max_error"] is None


def test_empty_matrices(here):
    np.save("a.npy", np.zeros((0, 3)))
    assert verify("a.npy")[0] == 0
    np.save("b.npy", np.zeros((3, 0)))
    assert verify("a.npy", "b.npy")[0] == 0


def test_overflow_is_no_failure(here):
    np.save("a.npy", np.full((2, 2), 1e200))
    status, report = verify("a.npy")
    assert status == 0
    assert report["cases"][0]["results"][0]["correct"] == 1.0


REFUSED = {
    "shapes": (["a.npy", "a.npy"], "A = a.npy has shape (6, 9), B = a.npy has shape"),
    "missing": (["no.npy"], "file='no.npy': cannot be read: No such file"),
    "missing mtx": (["no.mtx"], "file='no.mtx'"),
    "missing csv": (["no.csv"], "file='no.csv': cannot be read: No such file"),
    "suffix": (["a.xls"], "known formats are .npy, .npz, .mtx"),
    "three": (["a.npy"] * 3, "3 files: a product has two operands"),
    "complex": (["complex.npy"], "holds complex128, real numbers are needed"),
    "vector": (["vector.npy"], "has shape (3,), two dimensions are needed"),
    "pickle": (["object.npy"], "is no valid .npy file"),
    "several": (["several.npz"], "holds 2 arrays: x, y; pick one, as in several.npz:"),
    "no such": (["several.npz:z"], "file='several.npz:z': holds 2 arrays"),
    "huge": (["huge.mtx"], "takes 80000000000 bytes of 268435456 allowed"),
    "huge npz": (["huge.npz"], "takes 80000000000 bytes of 268435456 allowed"),
    "text": (["text.csv"], "file='text.csv': is no valid .csv file"),
    "damaged": (["damaged.mtx"], "file='damaged.mtx': is no valid .mtx file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(here, capsys, name):
    np.save("complex.npy", np.ones((2, 2), dtype=complex))
    np.save("vector.npy", np.ones(3))
    np.save("object.npy", np.array([[None]]), allow_pickle=True)
    np.savez("several.npz", x=A, y=B)
    huge = sparse.coo_matrix(([1.0], ([0], [0])), shape=(100_000, 100_000))
    io.mmwrite("huge.mtx", huge)
    sparse.save_npz("huge.npz", huge)
    (here / "text.csv").write_text("a,b\n1,2\n3,blue\n")
    (here / "damaged.mtx").write_text("%%MatrixMarket matrix array real general\n2")
    arguments, message = REFUSED[name]
    assert cli.main(["verify", "--no-progress", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert ": error: " in err
    assert "max err" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "1"], "precision=1: the table holds 2 to 49 moduli"),
        (["--engine", "native"], "invalid choice: 'native'"),
        (["--workspace-bytes", "5"], "workspace_bytes=5"),
        (["a.npy", "--json", "no/r.json"], "--json='no/r.json': No such file"),
    ],
)
def test_refused_options(here, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", "--no-progress", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ENGINE=native", "STRATEGY=performant"])
def test_environment_that_leaves_nothing_to_verify(terminal, name):
    variable, _, value = f"NP_OZAKI_{name}".partition("=")
    done = terminal.cli("verify", **{variable: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to verify, all products are native" in done.stderr


def test_engine_that_gives_up(here, monkeypatch, capsys):
    def give_up(*args, **kwargs):
        raise WorkspaceError("no memory")

    monkeypatch.setattr(CpuEngine, "matmul", give_up)
    assert cli.main(["verify", "--no-progress", "a.npy"]) == 2
    assert "error: no memory" in capsys.readouterr().err


# Options --------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["norm", "accurate"])
@pytest.mark.parametrize("precision", ["2", "8", "15", "30"])
def test_bounds_hold_at_every_precision(here, precision, scaling):
    arguments = ["a.npy", "b.npy", "--precision", precision, "--scaling", scaling]
    status, report = verify(*arguments)
    assert status == 0
    assert report["options"]["precision"] == int(precision)
    ours = report["cases"][0]["results"][0]
    assert ours["max_error"] <= ours["bound"]
    assert (ours["max_error"] > 1e6) == (precision in {"2", "8"})


@pytest.mark.parametrize("precision", [1e-8, 1e-14])
def test_tolerances_hold_where_operands_are_rebalanced(here, precision):
    rng = np.random.default_rng(5)
    d = np.ldexp(1.0, rng.integers(-80, 81, 30))
    np.save("x.npy", rng.standard_normal((20, 30)) * d)
    np.save("y.npy", rng.standard_normal((30, 20)) / d[:, np.newaxis])
    status, report = verify("x.npy", "y.npy", "--precision", str(precision))
    assert status == 0
    ours = report["cases"][0]["results"][0]
    # In units of 2^-53, like the error.
    assert ours["max_error"] <= precision * 2.0**53


def test_legacy_promises_nothing(here, capsys):
    status, report = verify("a.npy", "b.npy", "--scaling", "legacy")
    assert (status, report["binding"]) == (0, False)
    assert report["cases"][0]["results"][0]["bound"] is None
    assert 'scaling "legacy" promises nothing' in capsys.readouterr().out


def test_large_products_are_sampled(here, monkeypatch, capsys):
    monkeypatch.setattr(measure, "_LARGEST_SAMPLE", 9 * 6)
    status, report = verify("a.npy", "b.npy")
    assert status == 0
    assert report["cases"][0]["entries"] == "2x2 entries"
    assert "2x2 entries" in capsys.readouterr().out


@pytest.mark.parametrize(("m", "n"), [(1000, 1000), (5000, 3), (3, 5000), (1, 9999)])
def test_samples_are_affordable_and_span_the_matrix(monkeypatch, m, n):
    monkeypatch.setattr(measure, "_LARGEST_SAMPLE", 10_000)
    case = measure.Case("", np.ones((m, 10)), np.ones((10, n)))
    sample = measure.Sample(case)
    assert 0.7 * 1000 <= len(sample.rows) * len(sample.columns) <= 1000
    for chosen, size in ((sample.rows, m), (sample.columns, n)):
        assert len(set(chosen.tolist())) == len(chosen)
        assert (chosen[0], chosen[-1]) == (0, size - 1)


# Planted faults -------------------------------------------------------------------


def plant(monkeypatch, fault):
    """Let `fault(a, b, out)` spoil every product of the engine."""
    honest = CpuEngine.matmul

    def matmul(self, a, b, out, scheme, **options):
        outcome = honest(self, a, b, out, scheme, **options)
        fault(a[0], b[0], out[0])
        return outcome

    monkeypatch.setattr(CpuEngine, "matmul", matmul)


def small_error(a, b, out):
    out[1, 2] += 3 * np.spacing(np.abs(a[1]) @ np.abs(b[:, 2]))


def scale_dependent(a, b, out):
    if np.abs(a).max() > 2.0**60:
        out[0, 1] = np.nextafter(out[0, 1], np.inf)


def lost_nan(a, b, out):
    out[np.isnan(out)] = 0.0


def invented_nan(a, b, out):
    out[2, 2] = np.nan


def wrong_infinity(a, b, out):
    out[np.isinf(out)] *= -1.0


def asymmetric(a, b, out):
    out[0, 1] = np.nextafter(out[0, 1], np.inf)


FAULTS = {
    small_error: r"entry \(1, 2\) = .*: the error of \S+ u exceeds the bound of \S+ u",
    scale_dependent: r"entry \(0, 1\): scaling A by 2\^297 changes the bits",
    lost_nan: r"entry \(0, 0\) = 0.0: IEEE arithmetic gives nan",
    wrong_infinity: r"entry \(2, 0\) = .*inf: IEEE arithmetic gives",
    invented_nan: r"entry \(3, 2\) is NaN although its row and column are finite",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(here, monkeypatch, capsys, fault):
    a = A.copy()
    if fault in {lost_nan, wrong_infinity}:
        a[0, 0], a[2, 3] = np.nan, np.inf
    np.save("a.npy", a)
    assert verify("a.npy", "b.npy")[0] == 0
    plant(monkeypatch, fault if fault is not invented_nan else row_three)
    status, report = verify("a.npy", "b.npy")
    out = capsys.readouterr().out
    assert (status, report["ok"]) == (1, False)
    assert re.search(FAULTS[fault], "\n".join(report["failures"]))
    assert "BROKEN A @ B: " in out
    assert out.endswith("verify: 1 case, 1 BROKEN\n")


def imaginary_error(a, b, out):
    out[7, 2] += 2.0**-20 * np.abs(a[7]) @ np.abs(b[:, 2])


def not_hermitian(a, b, out):
    out[-1, 0] = np.nextafter(out[-1, 0], np.inf)


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_planted_faults_in_imaginary_parts(here, monkeypatch, dtype):
    np.save("c.npy", (A + 1j * A[::-1]).astype(dtype))
    np.save("d.npy", (B - 1j * B[::-1]).astype(dtype))
    assert verify("c.npy", "d.npy", "--dtype", dtype)[0] == 0
    plant(monkeypatch, imaginary_error)
    status, report = verify("c.npy", "d.npy", "--dtype", dtype)
    assert status == 1
    assert "the imaginary part of entry (1, 2) = " in report["failures"][0]


def test_gram_matrices_that_are_not_hermitian(here, monkeypatch, capsys):
    np.save("c.npy", A + 1j * A[::-1])
    status, report = verify("c.npy", "--dtype", "complex128")
    assert status == 0
    assert report["cases"][0]["results"][0]["symmetric"] is True
    assert "X.conj().T @ X is exactly Hermitian" in capsys.readouterr().out
    plant(monkeypatch, not_hermitian)
    status, report = verify("c.npy", "--dtype", "complex128")
    assert status == 1
    assert report["cases"][0]["results"][0]["symmetric"] is False


@pytest.mark.parametrize("dtype", ["complex128", "float32", "complex64"])
def test_cases_of_other_dtypes(here, monkeypatch, capsys, dtype):
    def some(entries):
        found = list(cases.synthetic_cases(entries))
        assert len(found) == 11
        return [x for x in found if x.name.startswith(("Hil", "sub", "NaN", "rows 1"))]

    monkeypatch.setattr("np_ozaki.cli.verify.synthetic_cases", some)
    status, report = verify("--dtype", dtype)
    assert status == 0
    assert report["options"]["dtype"] == dtype
    assert len(report["cases"]) >= 5
    for case in report["cases"]:
        ours = case["results"][0]
        assert ours["holds"] is True
        assert ours["scaled_bits"] is not False
        assert case["m"] <= 64
    bits = 53 if dtype == "complex128" else 24
    assert f"u = 2^-{bits}" in capsys.readouterr().out


def test_entries_that_a_dtype_does_not_hold(here, capsys):
    assert cli.main(["verify", "--dtype", "float32", "a.npy"]) == 2
    assert "entries that float32 cannot hold" in capsys.readouterr().err
    assert cli.main(["verify", "--dtype", "float32", "--engine", "cublas"]) == 2
    assert "multiplies float64 only, and --dtype is float32" in capsys.readouterr().err


def row_three(a, b, out):
    out[3, 2] = np.nan


def test_planted_asymmetry_is_found(here, monkeypatch, capsys):
    plant(monkeypatch, asymmetric)
    status, report = verify("b.npy")
    assert status == 1
    assert "of a symmetric product differ" in "\n".join(report["failures"])


def test_planted_infinity_is_found(here, monkeypatch, capsys):
    def infinite(a, b, out):
        out[0, 0] = math.copysign(np.inf, out[0, 0])

    plant(monkeypatch, infinite)
    assert verify("a.npy", "b.npy")[0] == 1


def test_planted_fault_in_a_process_of_its_own(terminal):
    terminal.write(
        "faulty.py",
        "import sys\nimport numpy as np\n"
        "from np_ozaki.cli import main\nfrom np_ozaki.engines import cpu\n"
        "honest = cpu.CpuEngine.matmul\n"
        "def matmul(self, a, b, out, scheme, **options):\n"
        "    outcome = honest(self, a, b, out, scheme, **options)\n"
        "    out *= 1 + 2.0**-40\n    return outcome\n"
        "cpu.CpuEngine.matmul = matmul\nsys.exit(main())\n",
    )
    np.save(terminal.folder / "a.npy", A)
    done = terminal.python("faulty.py", "verify", "a.npy")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "verify: 1 case, 1 BROKEN"


def test_native_faults_do_not_count(here, monkeypatch):
    monkeypatch.setattr(
        Native, "__call__", lambda self, a, b: (1.5 * (a @ b), "native", None)
    )
    status, report = verify("a.npy")
    assert (status, report["ok"]) == (0, True)
    assert report["cases"][0]["results"][1]["holds"] is False


# Exact entries --------------------------------------------------------------------

WILD = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(WILD, WILD), min_size=1, max_size=6), WILD)
def test_exact_entries_against_fractions(pairs, value):
    x, y = np.array(pairs).T
    entry = exact_entry(Vectors(x[np.newaxis]), 0, Vectors(y[np.newaxis]), 0)
    exact = sum(Fraction(a) * Fraction(b) for a, b in pairs)
    size = sum(abs(Fraction(a) * Fraction(b)) for a, b in pairs)
    unit = Fraction(2) ** entry.exponent
    assert (entry.total * unit, entry.size * unit) == (exact, size)
    assert (
        entry.rounded() == reference.exact_product([x.tolist()], [[b] for b in y])[0][0]
    )
    difference = abs(Fraction(value) - exact)
    if size and difference < size * 10**6:
        assert entry.error(value) == float(difference / size * 2**53)
    for bound in (0.0, abs(value), float(min(difference, 10**300))):
        assert entry.within(value, bound) == (difference <= Fraction(bound))
    assert entry.within(value, math.inf)
    assert not entry.within(math.nan, math.inf)


def test_text_without_numbers(terminal):
    (terminal.folder / "empty.csv").write_text("")
    done = terminal.cli("verify", "empty.csv")
    assert done.returncode == 2
    assert "holds no numbers" in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    "x", [np.array([[2**63 + 1]], dtype=np.uint64), np.array([[2**53 + 1]])]
)
def test_entries_that_float64_cannot_hold(terminal, x):
    np.save(terminal.folder / "big.npy", x)
    done = terminal.cli("verify", "big.npy")
    assert done.returncode == 2
    assert "float64 cannot hold" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently")
def test_reader_that_stops_reading(terminal):
    program = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', "
        "'np_ozaki', 'info'], stdout=subprocess.PIPE, stderr=subprocess.PIPE); "
        "p.stdout.close(); print(p.stderr.read().decode())"
    )
    done = terminal.python("-c", program)
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("pairs", ["triangular", "all", "0-0,0-1,2-0"])
def test_slices_keep_their_bounds(pairs, dtype, tmp_path, capsys):
    path = tmp_path / "x.npy"
    x = np.random.default_rng(1).standard_normal((2, 20, 12))
    np.save(path, x[0] if dtype == "float64" else x[0] + 1j * x[1])
    status = cli.main(
        [
            *("verify", str(path), "--no-progress", "--engine", "cpu"),
            *("--scheme", "slices", "--num-slices", "5", "--pairs", pairs),
            *("--dtype", dtype),
            *("--json", str(tmp_path / "r.json")),
        ]
    )
    out = capsys.readouterr().out
    assert status == 0, out
    assert "np_ozaki: 5 slices" in out
    (case,) = json.loads((tmp_path / "r.json").read_text())["cases"]
    ours = case["results"][0]
    assert ours["num_moduli"] is None
    mirrors = pairs == "all" or (pairs, dtype) == ("triangular", "float64")
    assert ours["symmetric"] == (True if mirrors else None)
    assert ours["holds"]
    assert ours["max_error"] <= ours["bound"]


def test_refused_pairs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["verify", "--scheme", "slices", "--pairs", "0,1"])
    assert "pairs such as 0-0,0-1" in capsys.readouterr().err
