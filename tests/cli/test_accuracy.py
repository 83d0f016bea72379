"""``accuracy``: the figures of the experiments, and claims that faults turn false."""

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from np_ozaki import cli
from np_ozaki.cli import accuracy_checks, accuracy_experiments
from np_ozaki.cli.accuracy_checks import moduli_for_native, of_scaling
from np_ozaki.cli.accuracy_experiments import quick_plan, scale, spread
from np_ozaki.cli.accuracy_reference import Reference
from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.numerics import reference
from np_ozaki.numerics.formats import DOUBLE

U = 2.0**-53
CPU = Options(engine="cpu")
FLOAT64 = DTYPES["float64"]
PLAN = quick_plan(16, 1, FLOAT64)

REFERENCES, EQUAL, NATIVE, NORM_SCALES, ACCURATE_SCALES = range(5)
WRAPS, LOSES, NARROW, WIDE = range(5, 9)


def spreads_of(plan=PLAN):
    return list(spread(plan, CPU, lambda: None))


def scales_of(plan=PLAN):
    return list(scale(plan, CPU, lambda: None))


def holds(spreads, scales):
    """Return whether each claim holds."""
    return [check["holds"] for check in accuracy_checks.checks(spreads, scales, DOUBLE)]


@pytest.fixture(scope="module")
def outcome():
    return spreads_of(), scales_of()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "there is no CUDA device")
    return tmp_path


def run(*arguments):
    """Return (exit status, report)."""
    common = ["accuracy", "--quick", "--no-progress", "--json", "r.json"]
    status = cli.main([*common, *arguments])
    with open("r.json", encoding="utf-8") as file:
        return status, json.load(file)


# The reference --------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0, 4])
def test_errors_are_those_of_fractions(phi):
    a, b = accuracy_experiments._random(quick_plan(16, 3, FLOAT64), 40, phi)
    exact = reference.exact_fractions(a, b)
    size = reference.exact_fractions(np.abs(a), np.abs(b))
    found = Reference(a, b, FLOAT64)
    assert found.exact
    assert found.entries == 256
    for num_moduli in (6, 10, 14, 20):
        c = np.array(reference.matmul(a, b, num_moduli))
        pairs = [(i, j) for i in range(16) for j in range(16)]
        errors = {p: abs(Fraction(c[p]) - exact[p[0]][p[1]]) for p in pairs}
        relative = max(float(errors[i, j] / abs(exact[i][j])) for i, j in pairs)
        componentwise = max(float(errors[i, j] / size[i][j]) for i, j in pairs)
        assert found.errors(c).relative == pytest.approx(relative)
        assert found.errors(c).componentwise == pytest.approx(componentwise)


def test_rounded_operands_are_no_reference():
    a, b = np.ones((16, 20)), np.ones((20, 16))
    a[0, 0] = 2.0**-400
    assert not Reference(a, b, FLOAT64).exact


def test_what_is_not_finite_is_infinitely_wrong():
    found = Reference(np.ones((16, 4)), np.ones((4, 16)), FLOAT64)
    c = np.full((16, 16), 4.0)
    assert (found.errors(c).relative, found.errors(c).componentwise) == (0.0, 0.0)
    for wrong in (np.nan, np.inf):
        c[3, 5] = wrong
        assert found.errors(c).relative == found.errors(c).componentwise == np.inf


# The outcome ----------------------------------------------------------------------


def test_all_claims_hold(outcome):
    assert holds(*outcome) == [True] * 9


def test_errors_fall_with_the_moduli(outcome):
    for case in outcome[0]:
        for scaling in ("norm", "accurate"):
            rows = {x["num_moduli"]: x for x in of_scaling(case, scaling)}
            assert tuple(rows) == PLAN.moduli
            errors = [row["componentwise"] for row in rows.values()]
            assert errors == sorted(errors, reverse=True)
            # Twelve moduli more, each worth a factor of 15: nothing but the rounding
            # of the result is left.
            assert rows[8]["componentwise"] > 1e-10
            assert rows[20]["relative"] < 3 * U


def test_native_is_conventional(outcome):
    for case in outcome[0]:
        assert 0.1 * U < case["native"]["componentwise"] < case["k"] * U


def test_legacy_needs_more_moduli_as_phi_grows(outcome):
    for k in PLAN.inner:
        found = [
            moduli_for_native(case, "legacy", "componentwise") or 99
            for case in outcome[0]
            if case["k"] == k
        ]
        assert found == sorted(found)
        assert found[0] <= 15 < found[2] <= 20 < found[3]


def test_legacy_depends_on_the_scale(outcome):
    for case in outcome[1]:
        rows = {x["log2_alpha"]: x for x in of_scaling(case, "legacy")}
        assert rows[0]["same_bits"]
        assert not rows[40]["same_bits"] or case["data"] == "ones"
        assert rows[480]["relative"] == 1.0  # everything is lost
        if case["data"] == "random":
            # A doubling costs each operand a bit.
            growth = rows[40]["componentwise"] / rows[8]["componentwise"]
            assert 2.0**30 < growth < 2.0**34
        else:
            assert rows[8]["relative"] == rows[40]["relative"] == 0.0
            assert rows[-4]["relative"] > 0.5


# Faults ---------------------------------------------------------------------------


def plant(monkeypatch, fault):
    """Let products of the modes go through `fault(c, a, num_moduli, scaling)`."""
    honest = accuracy_experiments._product

    def product(plan, a, b, num_moduli, scaling, options):
        c = honest(plan, a, b, num_moduli, scaling, options)
        return fault(c, a, num_moduli, scaling)

    monkeypatch.setattr(accuracy_experiments, "_product", product)


def loses_two_moduli_at_once(c, a, num_moduli, scaling):
    worse = scaling == "norm" and num_moduli == 12
    return c * (1 + 2.0**-34) if worse else c


def stops_at_24_bits(c, a, num_moduli, scaling):
    if scaling != "norm":
        return c
    fractions, exponents = np.frexp(c)
    return np.ldexp(np.trunc(fractions * 2.0**24) / 2.0**24, exponents)


def last_bit_when_scaled(scaling):
    def fault(c, a, num_moduli, used):
        moved = used == scaling and abs(a).max() > 2.0**300
        return np.nextafter(c, np.inf) if moved else c

    return fault


def legacy_right_on_ones(c, a, num_moduli, scaling):
    right = a.shape[1] * a[0, 0] ** 2
    return np.full_like(c, right) if scaling == "legacy" and (a == a[0, 0]).all() else c


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (loses_two_moduli_at_once, EQUAL),
        (stops_at_24_bits, NATIVE),
    ],
)
def test_faults_at_any_scale(monkeypatch, outcome, fault, broken):
    plant(monkeypatch, fault)
    assert not holds(spreads_of(), outcome[1])[broken]


def test_one_modulus_less_than_asked_for(monkeypatch, outcome):
    honest = accuracy_experiments._product

    def product(plan, a, b, num_moduli, scaling, options):
        return honest(plan, a, b, num_moduli - (scaling == "norm"), scaling, options)

    monkeypatch.setattr(accuracy_experiments, "_product", product)
    assert not holds(spreads_of(), outcome[1])[EQUAL]


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (last_bit_when_scaled("norm"), NORM_SCALES),
        (last_bit_when_scaled("accurate"), ACCURATE_SCALES),
        (legacy_right_on_ones, WRAPS),
    ],
)
def test_faults_of_scaled_products(monkeypatch, outcome, fault, broken):
    plant(monkeypatch, fault)
    expected = [number != broken for number in range(9)]
    assert holds(outcome[0], scales_of()) == expected


def test_legacy_by_another_rule_breaks_its_claims(outcome):
    """As if "legacy" had the exponents of "norm", and the other way round."""
    other = {"norm": "legacy", "legacy": "norm", "accurate": "accurate"}
    spreads, scales = (
        [
            {
                **case,
                "results": [
                    {**row, "scaling": other[row["scaling"]]} for row in case["results"]
                ],
            }
            for case in cases
        ]
        for cases in outcome
    )
    found = holds(spreads, scales)
    assert [found[i] for i in (EQUAL, NATIVE, NORM_SCALES)] == [False] * 3
    assert [found[i] for i in (WRAPS, LOSES, WIDE)] == [False] * 3
    assert found[REFERENCES]
    assert found[ACCURATE_SCALES]
    assert found[NARROW]


def test_a_wrong_engine_does_not_grade_itself(here, monkeypatch, capsys):
    honest = CpuEngine.matmul

    def matmul(self, a, b, out, scheme, **options):
        outcome = honest(self, a, b, out, scheme, **options)
        out[...] = np.nextafter(out, np.inf)
        return outcome

    monkeypatch.setattr(CpuEngine, "matmul", matmul)
    status, report = run("--size", "16")
    assert (status, report["ok"]) == (1, False)
    assert not report["checks"][REFERENCES]["holds"]
    assert "not so: phi=0, k=256" in report["checks"][REFERENCES]["seen"]
    out = capsys.readouterr().out
    assert "FALSE the products compared with are exact" in out
    assert re.search(r"accuracy: 9 checks, \d FALSE\n$", out)


# The command ----------------------------------------------------------------------


def test_report_and_files(here, capsys):
    pytest.importorskip("matplotlib")
    status, report = run("--size", "16", "--output", "out/new", "--seed", "5")
    assert (status, report["ok"], report["notes"]) == (0, True, [])
    assert report["command"] == {
        "dtype": "float64",
        "quick": True,
        "size": 16,
        "seed": 5,
        "engine": "cpu",
        "inner": [256, 1024],
        "phis": [0, 0.5, 2, 4],
        "moduli": [8, 12, 14, 15, 16, 18, 20],
    }
    assert len(report["spread"]) == 8
    assert [case["data"] for case in report["scale"]] == ["ones", "random"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "accuracy: 9 checks, all true"
    assert "phi = 0.5, 16 x 1024 times 1024 x 16" in lines
    assert max(map(len, lines[3:])) <= 88

    folder = here / "out" / "new"
    page = (folder / "tables.md").read_text(encoding="utf-8")
    for picture in ("phi-relative.png", "phi-componentwise.png", "scale.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert f"]({picture})" in page
    norm = of_scaling(report["spread"][1], "norm")
    cells = " | ".join(f"{row['relative']:.1e}" for row in norm)
    native = f"{report['spread'][1]['native']['relative']:.1e}"
    assert f"| 0.5 | {native} | norm | {cells} |" in page
    assert page.count("| yes |") == 9
    assert str(here) not in page


def test_without_matplotlib(here, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, report = run("--size", "16", "--output", "out")
    assert status == 0
    (note,) = report["notes"]
    assert "pip install 'np_ozaki[plot]'" in note
    assert note in capsys.readouterr().out
    assert [path.name for path in (here / "out").iterdir()] == ["tables.md"]
    assert "![" not in (here / "out" / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "8"], "--size: '8': must be a whole number from 16 to 1024"),
        (["--size", "2k"], "'2k'"),
        (["--seed", "-1"], "--seed: '-1': must be a whole number, at least 0"),
        (["--engine", "native"], "--engine: invalid choice: 'native'"),
        (["--json", "no/r.json"], "--json='no/r.json': No such file"),
        (["--output", "file/x"], "--output='file/x': Not a directory"),
        (["--precision", "15"], "unrecognized arguments: --precision"),
    ],
)
def test_refused_arguments(here, capsys, arguments, message):
    (here / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        cli.main(["accuracy", "--quick", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_engine_that_is_not_there(here, capsys):
    choice.cuda_engine.cache_clear()
    assert cli.main(["accuracy", "--quick", "--engine", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert "error: engine='cuda': there is no CUDA device" in err
    assert out == ""


@pytest.mark.parametrize(
    "variable", [{"NP_OZAKI_ENGINE": "native"}, {"NP_OZAKI_STRATEGY": "performant"}]
)
def test_environment_that_routes_nothing(terminal, variable):
    done = terminal.cli("accuracy", "--quick", **variable)
    assert (done.returncode, done.stdout) == (2, "")
    assert "products would stay native; unset NP_OZAKI_ENGINE" in done.stderr


def test_native_products_are_not_passed_off_as_ours(here, capsys, monkeypatch):
    monkeypatch.setattr(
        "np_ozaki.cli.multipliers.Ours.__call__",
        lambda self, a, b: (a @ b, "native", None),
    )
    assert cli.main(["accuracy", "--quick", "--size", "16"]) == 2
    err = capsys.readouterr().err
    assert "error: a product with 8 moduli was multiplied by 'native'" in err


def test_default_run_in_a_process(terminal):
    done = terminal.cli("accuracy", "--quick", "--size", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy:" in done.stderr  # the progress bar
    assert done.stdout.endswith("accuracy: 9 checks, all true\n")


# The record -----------------------------------------------------------------------


def test_page_quotes_the_record():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "accuracy.md").read_text(encoding="utf-8")
    record = (docs / "accuracy" / "tables.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE)
    assert len(rows) == 10
    assert all(row in record.splitlines() for row in rows)
    assert record.count("| yes |") == 9
    assert "NO" not in record
    assert "and changes" not in record  # of a commit


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        pytest.param("complex128", marks=pytest.mark.slow),
        pytest.param("complex64", marks=pytest.mark.slow),
    ],
)
def test_claims_hold_for_other_dtypes(here, capsys, dtype):
    status, report = run("--dtype", dtype)
    assert status == 0
    assert all(check["holds"] for check in report["checks"])
    assert f", {dtype}, m = n = 32" in capsys.readouterr().out
    assert {case["m"] for case in report["spread"]} == {32}
    assert report["scale"][0]["num_moduli"] == DTYPES[dtype].usual
