"""``bench``: figures with their units, honest gaps, and no time for a wrong product."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import heed_interrupts

from np_ozaki import cli, hooks
from np_ozaki.cli import bench, contest, places
from np_ozaki.cli.dtypes import DTYPES
from np_ozaki.engines import choice
from np_ozaki.engines.base import Outcome
from np_ozaki.engines.cpu import CpuEngine
from np_ozaki.engines.cublas import CublasProduct

MISSING = "cuBLAS 12.9.1: cublasSetEmulationStrategy=2: cannot be called"


class FakeGpu(places.CpuPlace):
    """Looks like the GPU's place; the CPU does the work."""

    native = "cuBLAS"
    ways = ("cuBLAS", "cuBLAS emulated")
    emulated = frozenset({"cuBLAS emulated", "cuBLAS emulated 55"})

    def __init__(self, entries):
        super().__init__(entries)
        self.missing = {"cuBLAS emulated 55": MISSING}
        self.closed = False

    def close(self):
        self.closed = True

    def multiply(self, way, a, b, out):
        np.matmul(a, b, out=out)
        if way == "cuBLAS emulated":
            out *= 1 + 2.0**-50

    def call_us(self, function):
        function()
        return 41.5, 130.25

    def stages_ms(self, function):
        function()
        return {"scaling_exponents": 0.25, "residues": 0.5, "residue_gemm": 3.0}

    def facts(self):
        return {
            "gpu": "Imaginary 9000",
            "compute_capability": "90",
            "pci_bus_id": "0000:01:00.0",
            "cuda_runtime": "13.0",
            "cuda_of_driver": "13.0",
            "cublas": "13.1.0",
            "cupy": "14.2.0",
        }


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contest, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "there is no CUDA device")
    return tmp_path


@pytest.fixture
def gpu(here, monkeypatch):
    place = FakeGpu(DTYPES["float64"])
    monkeypatch.setattr(bench, "open_place", lambda engine, entries: place)
    return place


def run(*arguments):
    """Return (exit status, report)."""
    common = ["--no-progress", "--repeats", "2", "--json", "r.json"]
    if "--sizes" not in arguments:
        common += ["--sizes", "24"]
    status = cli.main(["bench", *common, *arguments])
    with open("r.json", encoding="utf-8") as file:
        return status, json.load(file)


def row(report, name, size=0):
    (found,) = (x for x in report["sizes"][size]["results"] if x["contestant"] == name)
    return found


# The report -----------------------------------------------------------------------


def test_report_of_a_cpu(here, capsys):
    status, report = run("--sizes", "24,8x20x12", "--moduli", "14,auto")
    assert status == 0
    assert report["command"] == {
        "sizes": ["24", "8x20x12"],
        "moduli": [14, "auto"],
        "scheme": ["moduli"],
        "slices": [],
        "engines": ["cpu"],
        "dtype": "float64",
        "repeats": 2,
        "load_s": 0.0,
        "syrk": False,
        "phi": 0.5,
        "seed": 20260101,
        "least_seconds_a_repeat": 0.01,
    }
    assert report["machine"]["versions"]["np_ozaki"]
    assert report["machine"]["processor"]
    assert report["places"] == {
        "cpu": {"native": "NumPy", "missing": {}, "facts": {}, "state": None}
    }
    assert (report["interrupted"], report["ok"], report["skipped"]) == (False, True, [])
    first, second = report["sizes"]
    assert (first["size"], first["flop"], first["operand_bytes"]) == (
        "24",
        2 * 24**3,
        2 * 8 * 24**2,
    )
    assert (second["m"], second["n"], second["k"]) == (8, 20, 12)
    for size in report["sizes"]:
        assert size["sampled_entries"] == 36
        names = [x["contestant"] for x in size["results"]]
        assert names == ["NumPy", "cpu 14", "cpu auto"]
        for result in size["results"]:
            check_row(size, result)
    assert row(report, "cpu auto")["num_moduli"] == 15
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "bench: 2 sizes"
    assert "8 x 12 times 12 x 20, 3.84e-06 GFLOP" in lines
    assert max(map(len, lines[2:])) <= 100


def check_row(size, result):
    assert result["state"] == "measured"
    assert len(result["times_s"]) == 2
    assert result["min_s"] <= result["median_s"] <= result["max_s"]
    speed = size["flop"] / result["median_s"] / 1e12
    assert result["tflop_per_s"] == pytest.approx(speed)
    assert result["native"] is (result["contestant"] == "NumPy")
    assert result["ours"] is not result["native"]
    native = size["results"][0]["median_s"]
    assert result["speed_over_native"] == pytest.approx(native / result["median_s"])
    assert 0 <= result["max_error_u"] < 10
    assert (result["workspace_bytes"] is None) is result["native"]
    assert result["stages_ms"] is None
    assert (result["sm_clock_mhz"], result["power_w"]) == (None, None)
    assert (result["host_us"], result["wall_us"]) == (None, None)


def test_default_run_in_a_process(terminal):
    done = terminal.cli("bench", "--sizes", "16", "--repeats", "1", "--engines", "cpu")
    assert done.returncode == 0, done.stderr
    assert "bench:" in done.stderr  # the progress bar
    assert "logical cores" in done.stdout
    for name in ("NumPy", "cpu 14", "cpu 15", "cpu auto"):
        assert any(x.startswith(f"{name} ") for x in done.stdout.splitlines())


def test_gpu_report(gpu, capsys):
    status, report = run("--moduli", "15")
    out = capsys.readouterr().out
    assert status == 0
    assert gpu.closed
    place = report["places"]["cpu"]
    assert place["missing"] == {"cuBLAS emulated 55": MISSING}
    assert place["facts"]["gpu"] == "Imaginary 9000"
    assert "Imaginary 9000, compute capability 90, CUDA 13.0" in out
    assert "clocks and power unknown: nvidia-smi does not answer" in out
    assert f"cpu: cuBLAS emulated 55 is not available: {MISSING}" in out
    assert "x native  speed over cuBLAS" in out
    assert "stages of cpu 15, ms: scaling_exponents 0.25, residues 0.5, resid" in out
    assert row(report, "cpu 15")["stages_ms"]["residue_gemm"] == 3.0
    assert row(report, "cuBLAS emulated")["state"] == "measured"
    missing = row(report, "cuBLAS emulated 55")
    assert (missing["state"], missing["reason"]) == ("unavailable", MISSING)
    assert "median_s" not in missing
    assert report["notes"] == []  # the header has said it


def test_emulation_that_does_not_emulate(gpu, monkeypatch, capsys):
    monkeypatch.setattr(
        FakeGpu, "multiply", lambda self, way, a, b, out: np.matmul(a, b, out=out)
    )
    status, report = run()
    assert status == 0
    assert row(report, "cuBLAS emulated")["times_s"] == []
    reason = "the result has the bits of cuBLAS: nothing was emulated"
    assert f"cuBLAS emulated, 24: not available: {reason}" in report["notes"]
    assert reason in capsys.readouterr().out


class CublasOnTheHost:
    """The engine cublas as far as a bench knows it; the CPU does the work."""

    def __init__(self, factor=1 + 2.0**-50):
        self.factor = factor

    def matmul(self, a, b, out, settings, *, workspace_bytes):
        with hooks.unrouted():
            np.matmul(a, b, out=out)
        out *= self.factor
        outcome = Outcome(False, False, 1000, 1)
        return CublasProduct(outcome, settings.mantissa_bits)


@pytest.fixture
def engine_cublas(gpu, monkeypatch):
    gpu.engine = "cuda"
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: None)
    monkeypatch.setattr(choice, "cublas_engine", CublasOnTheHost)
    monkeypatch.setattr(choice, "on_gpu", lambda options: False)


@pytest.mark.usefixtures("engine_cublas")
def test_engine_cublas_takes_part_when_asked():
    status, report = run("--engines", "cublas", "--syrk")
    assert status == 0
    assert report["command"]["engines"] == ["cublas"]
    ours = row(report, "cublas engine")
    assert (ours["state"], ours["mantissa_bits"]) == ("measured", 55)
    assert ours["workspace_bytes"] == 1000
    assert {x["contestant"] for x in report["sizes"][0]["results"]} == {
        "cuBLAS",
        "cuBLAS emulated",
        "cuBLAS emulated 55",
        "cublas engine",
    }


@pytest.mark.usefixtures("engine_cublas")
def test_engine_cublas_that_is_not_cublas(monkeypatch):
    monkeypatch.setattr(choice, "cublas_engine", lambda: CublasOnTheHost(1.0))
    status, report = run("--engines", "cublas")
    assert status == 0
    assert "nothing was emulated" in row(report, "cublas engine")["reason"]
    monkeypatch.setattr(choice, "cublas_unavailable", lambda: "it is too old")
    status, report = run("--engines", "cublas")
    assert status == 0
    ours = row(report, "cublas engine")
    assert ours["state"] == "unavailable"
    assert ours["reason"] == (
        'the product was not cublas\'s: engine="cublas": it is too old'
    )


def test_emulation_that_fails(gpu, monkeypatch):
    def multiply(self, way, a, b, out):
        if way == "cuBLAS emulated":
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        np.matmul(a, b, out=out)

    monkeypatch.setattr(FakeGpu, "multiply", multiply)
    status, report = run()
    assert status == 0
    reason = row(report, "cuBLAS emulated")["reason"]
    assert reason == "RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED"


def test_gpu_is_the_default_where_there_is_one(here, monkeypatch):
    assert places.default_engine() == "cpu"
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: None)
    assert places.default_engine() == "cuda"


def test_time_of_one_call(gpu, monkeypatch, capsys):
    _, report = run("--moduli", "15")
    for name in ("cuBLAS", "cpu 15"):
        result = row(report, name)
        assert (result["host_us"], result["wall_us"]) == (41.5, 130.25)
    assert row(report, "cuBLAS emulated")["host_us"] is None
    line = "one call of cpu 15: 41.5 us until it returns, 130.2 us until its result is"
    assert line in capsys.readouterr().out
    monkeypatch.setattr(contest, "_LONGEST_CALL_FLOPS", 2 * 24**3 - 1)
    _, report = run("--moduli", "15")
    assert row(report, "cpu 15")["wall_us"] is None
    assert "one call of" not in capsys.readouterr().out


# Under load -------------------------------------------------------------------------


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return a function that puts a program of that name first on the path."""
    if os.name == "nt":
        pytest.skip("needs a shell script as program")

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_load(here, monkeypatch, capsys):
    seen, honest = [], places.CpuPlace.laps

    def laps(self, function, calls, repeats, load):
        seen.append((repeats, load))
        return honest(self, function, calls, repeats, load)

    monkeypatch.setattr(places.CpuPlace, "laps", laps)
    status, report = run("--load", "0.01", "--moduli", "14,15")
    assert status == 0
    assert seen == [(2, 0.01)] * 3
    assert report["command"]["load_s"] == 0.01
    assert report["command"]["least_seconds_a_repeat"] == 0.1
    for result in report["sizes"][0]["results"]:
        check_row(report["sizes"][0], result)
        assert result["gpu_samples"] == 0
    assert report["notes"] == []  # a CPU's clock is not asked for
    out = capsys.readouterr().out
    assert "Each multiplied for 0.01 s right before its repeats" in out
    assert "SM MHz" not in out


def test_clock_and_power_under_load(gpu, nvidia_smi, capsys):
    nvidia_smi(
        'case "$*" in *loop-ms*) while :; do echo "1410, 698.5"; sleep 0.01; done;; '
        "*) echo 'Imaginary 9000, 580.95, 1980, 1980, 3201, 90.5, 700, 41';; esac"
    )

    def laps(function, calls, repeats, load):
        time.sleep(0.2)
        return [0.2 / calls / repeats] * repeats

    gpu.laps = laps
    status, report = run("--load", "0.01", "--moduli", "15", "--syrk")
    assert status == 0
    for result in report["sizes"][0]["results"]:
        if result["state"] == "measured":
            assert (result["sm_clock_mhz"], result["power_w"]) == (1410.0, 698.5)
            assert result["gpu_samples"] > 0
    assert report["notes"] == []
    out = capsys.readouterr().out
    lines = out.splitlines()
    (titles,) = (line for line in lines if line.startswith("contestant"))
    assert titles.split()[4:9] == ["TFLOP/s", "x", "native", "SM", "MHz"]
    (ours,) = (line.split() for line in lines if line.startswith("cpu 15 syrk"))
    assert ours[8:11] == ["1410", "698", "-"]
    assert max(map(len, lines[lines.index("") :])) <= 100
    assert "medians of the GPU's clock and power" in out


def test_load_without_nvidia_smi(gpu, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    status, report = run("--load", "0.01", "--sizes", "24,12")
    assert status == 0
    note = "clock and power under load are unknown: nvidia-smi does not answer"
    assert report["notes"] == [note]
    assert row(report, "cuBLAS")["sm_clock_mhz"] is None
    assert "SM MHz" not in capsys.readouterr().out


def test_interruption_under_load(here, monkeypatch):
    honest = places.CpuPlace.laps

    def laps(self, *arguments):
        monkeypatch.setattr(places.CpuPlace, "laps", interrupted)
        return honest(self, *arguments)

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(places.CpuPlace, "laps", laps)
    status, report = run("--load", "0.01", "--moduli", "15")
    assert (status, report["interrupted"]) == (130, True)
    assert len(row(report, "NumPy")["times_s"]) == 2
    assert row(report, "cpu 15")["times_s"] == []


# A times its transpose --------------------------------------------------------------


def test_symmetric_product(here, capsys):
    status, report = run("--syrk", "--sizes", "24,8x8x20,8x20x12", "--moduli", "14,15")
    assert status == 0
    assert report["command"]["syrk"] is True
    for number, size in enumerate(report["sizes"][:2]):
        names = [x["contestant"] for x in size["results"]]
        assert names == ["NumPy", "cpu 14", "cpu 15", "cpu 14 syrk", "cpu 15 syrk"]
        result = row(report, "cpu 15 syrk", number)
        assert (result["state"], result["symmetric"]) == ("measured", True)
        assert (result["num_moduli"], result["max_error_u"]) == (15, None)
        speed = size["flop"] / result["median_s"] / 1e12
        assert result["tflop_per_s"] == pytest.approx(speed)
        native = row(report, "NumPy", number)["median_s"]
        assert result["speed_over_native"] == pytest.approx(native / result["median_s"])
    result = row(report, "cpu 15 syrk", 2)
    assert (result["state"], result["reason"]) == ("unavailable", "A @ A.T needs m = n")
    assert "also for A times its transpose (syrk)" in capsys.readouterr().out


def test_wrong_symmetric_product_is_not_timed(here, monkeypatch):
    honest = CpuEngine.matmul

    def matmul(self, a, b, out, scheme, **options):
        outcome = honest(self, a, b, out, scheme, **options)
        if np.shares_memory(a, b):
            out[..., 3, 5] = np.nextafter(out[..., 3, 5], np.inf)
        return outcome

    monkeypatch.setattr(CpuEngine, "matmul", matmul)
    status, report = run("--syrk", "--moduli", "15")
    assert status == 1
    wrong = row(report, "cpu 15 syrk")
    assert (wrong["state"], wrong["times_s"]) == ("wrong", [])
    assert wrong["reason"] == "not the bits of the product of A and a copy of A.T"
    assert row(report, "cpu 15")["state"] == "measured"


def test_symmetric_product_without_a_right_one_to_compare_with(here, monkeypatch):
    plant(monkeypatch, last_bit)
    status, report = run("--syrk", "--moduli", "15")
    assert status == 1
    lone = row(report, "cpu 15 syrk")
    assert lone["state"] == "unavailable"
    assert lone["reason"] == "cpu 15, to compare with, is wrong"


def test_native_symmetric_product_is_not_passed_off_as_ours(here, monkeypatch):
    monkeypatch.setattr(FakeGpu, "engine", "native")
    monkeypatch.setattr(bench, "open_place", lambda _, entries: FakeGpu(entries))
    _, report = run("--syrk", "--moduli", "15")
    assert 'engine="native"' in row(report, "native 15 syrk")["reason"]


# What must not be timed -------------------------------------------------------------


def plant(monkeypatch, fault):
    honest = CpuEngine.matmul

    def matmul(self, a, b, out, scheme, **options):
        outcome = honest(self, a, b, out, scheme, **options)
        fault(out)
        return outcome

    monkeypatch.setattr(CpuEngine, "matmul", matmul)


def last_bit(out):
    out[...] = np.nextafter(out, np.inf)


def nothing_written(out):
    out[...] = np.nan


@pytest.mark.parametrize("fault", [last_bit, nothing_written])
def test_wrong_bits_are_not_timed(here, monkeypatch, capsys, fault):
    plant(monkeypatch, fault)
    status, report = run("--moduli", "15")
    assert (status, report["ok"]) == (1, False)
    wrong = row(report, "cpu 15")
    assert (wrong["state"], wrong["times_s"]) == ("wrong", [])
    assert "not the contract's bits: 36 of 36 entries differ" in wrong["reason"]
    assert row(report, "NumPy")["state"] == "measured"
    out = capsys.readouterr().out
    assert "note: cpu 15, 24: WRONG: not the contract's bits" in out
    assert out.endswith("bench: 1 size, some results WRONG or FAILED\n")


def test_a_native_product_that_is_garbage(gpu, monkeypatch):
    monkeypatch.setattr(FakeGpu, "multiply", lambda self, way, a, b, out: None)
    status, report = run()
    assert status == 1
    native = row(report, "cuBLAS")
    assert (native["state"], native["max_error_u"]) == ("wrong", "inf")
    assert row(report, "cuBLAS emulated")["state"] == "unavailable"
    ours = row(report, "cpu 15")
    assert (ours["state"], ours["speed_over_native"]) == ("measured", None)


def test_a_native_product_is_not_passed_off_as_ours(here, monkeypatch):
    monkeypatch.setattr(FakeGpu, "engine", "native")
    monkeypatch.setattr(bench, "open_place", lambda _, entries: FakeGpu(entries))
    _, report = run("--moduli", "15")
    ours = row(report, "native 15")
    assert ours["state"] == "unavailable"
    assert 'engine="native"' in ours["reason"]


def test_engine_that_crashes(here, monkeypatch, capsys):
    def crash(*args, **kwargs):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(CpuEngine, "matmul", crash)
    status, report = run("--moduli", "15")
    assert status == 1
    failed = row(report, "cpu 15")
    assert failed["state"] == "failed"
    assert "Traceback" in failed["reason"]
    assert row(report, "NumPy")["state"] == "measured"
    assert "FAILED" in capsys.readouterr().out


# Memory, interruption ---------------------------------------------------------------


def test_sizes_that_do_not_fit_are_skipped(here, monkeypatch, capsys):
    monkeypatch.setattr(places.CpuPlace, "free_bytes", lambda self: 100_000)
    status, report = run("--sizes", "24,300,12")
    assert status == 0
    assert [size["size"] for size in report["sizes"]] == ["24", "12"]
    (skipped,) = report["skipped"]
    assert skipped["size"] == "300"
    assert skipped["reason"].endswith("of memory for engine cpu, 0.0001 GB are free")
    out = capsys.readouterr().out
    assert "note: 300 is skipped: it takes about" in out
    assert out.endswith("bench: 2 sizes, 1 skipped\n")


def test_allocation_that_fails(here, monkeypatch):
    def empty(self, shape):
        raise MemoryError("no more")

    monkeypatch.setattr(places.CpuPlace, "empty", empty)
    status, report = run()
    assert (status, report["sizes"]) == (0, [])
    assert report["skipped"][0]["reason"] == "does not fit the memory: no more"


def test_product_without_memory(here, monkeypatch):
    def matmul(*args, **kwargs):
        raise MemoryError("no more")

    monkeypatch.setattr(CpuEngine, "matmul", matmul)
    status, report = run("--moduli", "15")
    assert status == 0
    assert row(report, "cpu 15")["state"] == "unavailable"


def test_unknown_memory_is_tried(here, monkeypatch):
    monkeypatch.setattr(contest, "host_free_bytes", lambda: None)
    monkeypatch.setattr(places.CpuPlace, "free_bytes", lambda self: None)
    assert run()[0] == 0


@pytest.mark.parametrize(
    ("calls", "sizes", "repeats"), [(3, 0, 0), (10, 1, 1), (20, 2, 0)]
)
def test_interruption_keeps_what_there_is(
    here, monkeypatch, capsys, calls, sizes, repeats
):
    """Of 12 calls a size, 6 qualify three contestants (NumPy, 14, 15)."""
    honest, count = places.CpuPlace.seconds, [0]

    def seconds(self, function, times):
        count[0] += 1
        if count[0] > calls:
            raise KeyboardInterrupt
        return honest(self, function, times)

    monkeypatch.setattr(places.CpuPlace, "seconds", seconds)
    status, report = run("--sizes", "24,12,6", "--moduli", "14,15")
    assert (status, report["interrupted"]) == (130, True)
    whole = [x for x in report["sizes"] if x["results"][0]["times_s"]]
    assert len(whole) == sizes
    if repeats:
        assert len(row(report, "cpu 15")["times_s"]) == repeats
        assert len(row(report, "NumPy")["times_s"]) == 2
    assert capsys.readouterr().out.splitlines()[-1].endswith(", interrupted")


@pytest.mark.skipif(os.name == "nt", reason="signals differ")
def test_control_c_in_a_process(terminal):
    arguments = ["-m", "np_ozaki", "bench", "--sizes", "32,1500", "--engines", "cpu"]
    with subprocess.Popen(
        [sys.executable, *arguments, "--json", "r.json", "--repeats", "3"],
        cwd=terminal.folder,
        env=terminal.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_interrupts,
        text=True,
    ) as process:
        for line in process.stdout:
            if line.startswith("cpu auto"):  # the first size is done
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert rest.endswith(", interrupted\n")
    report = json.loads((terminal.folder / "r.json").read_text())
    assert report["interrupted"] is True
    assert len(row(report, "cpu 15")["times_s"]) == 3


def test_failure_outside_the_products(here, monkeypatch, capsys):
    def race(*args):
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(bench, "_race", race)
    status, report = run()
    assert (status, report["ok"]) == (1, False)
    assert "unforeseen" in report["notes"][0]
    assert "Traceback" in capsys.readouterr().err


def test_duplicates_count_once(here):
    _, report = run("--sizes", "8,8x8x8", "--moduli", "15,auto,15")
    assert report["command"]["sizes"] == ["8"]
    assert report["command"]["moduli"] == [15, "auto"]


def test_picture(gpu):
    pytest.importorskip("matplotlib")
    status, _ = run("--sizes", "8,12x20x16,24", "--plot", "p.png")
    assert status == 0
    with open("p.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    run("--plot", "p.svg")
    with open("p.svg", encoding="utf-8") as file:
        assert "<svg" in file.read()


def test_nothing_to_draw(here, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(places.CpuPlace, "free_bytes", lambda self: 0)
    status, _ = run("--plot", "p.png")
    assert status == 0


def test_slices_race_beside_moduli(here):
    status, report = run(
        *("--sizes", "24,8x20x12", "--moduli", "14", "--scheme", "moduli,slices"),
        *("--slices", "7,6:all", "--bits-per-slice", "7"),
    )
    assert status == 0
    assert report["command"]["slices"] == ["7 slices of 7", "6 slices of 7, all"]
    for size in report["sizes"]:
        rows = {row["contestant"]: row for row in size["results"]}
        assert list(rows)[-3:] == [
            "cpu 14",
            "cpu 7 slices of 7",
            "cpu 6 slices of 7, all",
        ]
        for row in rows.values():
            assert row["state"] == "measured", row
        of_slices = rows["cpu 7 slices of 7"]
        assert of_slices["num_moduli"] is None
        assert of_slices["slicing"] == {
            "num_slices": 7,
            "bits_per_slice": 7,
            "pairs": "triangular",
            "accumulate": "exact",
        }
        assert of_slices["max_error_u"] < 1e4


def test_slices_alone(here):
    status, report = run("--sizes", "9", "--scheme", "slices")
    assert status == 0
    names = [row["contestant"] for row in report["sizes"][0]["results"]]
    assert names[-1] == "cpu 8 slices"
    assert not any("14" in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--slices", "0"), "must be 1 to 16"),
        (("--slices", "8:some"), "must be 1 to 16"),
        (("--scheme", "fast"), "must be one of moduli, slices"),
        (("--scheme", "slices", "--bits-per-slice", "9"), "must be 2 to 8"),
        (("--slices", "4"), "--slices='4': is of scheme slices"),
        (("--slices", "4,8:all"), "--slices='4,8:all': is of scheme slices"),
        (("--accumulate", "float64"), "is of scheme slices"),
        (("--scheme", "slices", "--moduli", "12"), "is of scheme moduli"),
        (("--scheme", "slices", "--syrk"), "is of scheme moduli"),
    ],
)
def test_refused_slices(here, capsys, arguments, text):
    try:
        status = cli.main(["bench", "--sizes", "9", *arguments])
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["complex128", "float32", "complex64"])
def test_other_dtypes(here, capsys, dtype):
    status, report = run("--dtype", dtype, "--moduli", "8,auto")
    assert status == 0
    text = capsys.readouterr().out
    assert report["command"]["dtype"] == dtype
    size = report["sizes"][0]
    operations = 8 if dtype.startswith("complex") else 2
    assert size["flop"] == operations * size["m"] * size["n"] * size["k"]
    assert f"{operations} m n k" in text
    assert ("u = 2^-53" in text) == (dtype == "complex128")
    states = {x["contestant"]: x["state"] for x in size["results"]}
    assert states == dict.fromkeys(("NumPy", "cpu 8", "cpu auto"), "measured")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--scheme", "slices"],
            "only float64 is timed by slices, and --dtype is complex128",
        ),
        (["--engines", "cublas"], "only float64 is emulated"),
        (["--moduli", "23"], "a complex product takes 2 to 22 moduli; ask for fewer"),
    ],
)
def test_what_goes_with_float64_only(here, capsys, arguments, says):
    assert cli.main(["bench", "--sizes", "8", "--dtype", "complex128", *arguments]) == 2
    assert says in capsys.readouterr().err
