"""What a measurement belongs to, with and without the tools that tell."""

import os
import stat

import pytest

from np_ozaki.cli import machine, places


@pytest.mark.skipif(os.name == "nt", reason="needs a shell script as program")
def test_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'Imaginary 9000, 580.95, 1980, 1980, 3201, 612.5, 700, [N/A]'"
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.gpu_state("0000:01:00.0") == {
        "gpu": "Imaginary 9000",
        "driver": "580.95",
        "sm_clock_mhz": 1980.0,
        "max_sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "power_w": 612.5,
        "power_limit_w": 700.0,
        "temperature_c": None,
    }
    program.write_text("#!/bin/sh\necho 'No devices were found'")
    assert machine.gpu_state("0000:01:00.0") is None
    program.write_text("#!/bin/sh\nexit 9")
    assert machine.gpu_state("0000:01:00.0") is None
    assert machine.gpu_state(None) is None


def test_machine_without_tools(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = machine.machine()
    assert found["commit"] is None
    assert found["processor"]


def test_free_memory_of_the_host():
    assert places.host_free_bytes() is None or places.host_free_bytes() > 0
