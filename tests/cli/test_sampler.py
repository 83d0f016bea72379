"""Clock and power in the background, from programs that stand in for nvidia-smi."""

import os
import stat
import time

import pytest

from np_ozaki.cli import sampler
from np_ozaki.cli.sampler import GpuUse, Sampler

BUS_ID = "0000:01:00.0"

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="needs a shell script as program"
)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_medians_over_some_time():
    found = Sampler(BUS_ID)
    found._samples += [
        (1.0, 1980.0, 100.0),
        (2.0, 1500.0, 690.0),
        (3.0, 1400.0, None),
        (4.0, 1300.0, 700.0),
        (5.0, 210.0, 90.0),
    ]
    assert found.use(2.0, 4.0) == GpuUse(1400.0, 695.0, 3)
    assert found.use(3.0, 3.5) == GpuUse(1400.0, None, 1)
    assert found.use(6.0, 7.0) == GpuUse(None, None, 0)


def test_what_is_asked(nvidia_smi, tmp_path):
    nvidia_smi(
        f'echo "$*" > {tmp_path}/asked; echo "clocks, power"; echo "1980, [N/A]"; '
        "exec sleep 60"
    )
    begin = time.perf_counter()
    with Sampler(BUS_ID) as found:
        assert found.answers
        assert found.use(begin, time.perf_counter()) == GpuUse(1980.0, None, 1)
        process = found._process
        assert process.poll() is None
    assert process.poll() is not None
    assert found.answers  # what was told stays
    assert (tmp_path / "asked").read_text().split() == [
        "--query-gpu=clocks.sm,power.draw",
        "--format=csv,noheader,nounits",
        f"--id={BUS_ID}",
        "--loop-ms=50",
    ]


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'"])
def test_a_program_that_tells_nothing(nvidia_smi, script):
    nvidia_smi(script)
    with Sampler(BUS_ID) as found:
        assert not found.answers


def test_no_program_and_no_address(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for bus_id in (BUS_ID, None):
        with Sampler(bus_id) as found:
            assert not found.answers
            assert found.use(0.0, 1e9) == GpuUse(None, None, 0)


def test_a_program_that_does_not_want_to_end(nvidia_smi, monkeypatch):
    monkeypatch.setattr(sampler, "_STOP_SECONDS", 0.1)
    nvidia_smi("trap '' TERM; while :; do echo '1, 2'; sleep 0.01; done")
    with Sampler(BUS_ID) as found:
        process = found._process
    assert process.returncode == -9


def test_interruption_of_the_start(nvidia_smi, monkeypatch):
    nvidia_smi("exec sleep 60")
    found = Sampler(BUS_ID)
    processes = []

    def interrupted(seconds):
        processes.append(found._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(found._begun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), found:
        pass
    assert processes[0].poll() is not None
