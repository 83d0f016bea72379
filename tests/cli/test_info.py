"""``info``: the state after the hooks have been tried."""

import json

import pytest

from np_ozaki import cli, info


def test_hook_status_is_real(terminal):
    done = terminal.cli("info")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hook matmul: active, installed, self-tested" in done.stdout
    assert "live scopes: 0" in done.stdout


def test_json_is_what_info_returns(terminal):
    done = terminal.cli("info", "--json")
    state = json.loads(done.stdout)
    assert state.keys() == info().as_dict().keys()
    assert state["hooks"][0]["active"] is True
    assert done.stderr == ""


def test_switched_off_hook(terminal):
    done = terminal.cli("info", NP_OZAKI_HOOKS="none")
    assert done.returncode == 0
    assert "hook matmul: inactive, switched off by configuration" in done.stdout


def test_environment_that_cannot_be_used(terminal):
    done = terminal.cli("info", NP_OZAKI_THREADS="none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "NP_OZAKI_THREADS='none'" in done.stderr
    assert "Traceback" not in done.stderr


def test_misspelt_variable_is_warned_of(terminal):
    done = terminal.cli("info", NP_OZAKI_THREDS="2")
    assert done.returncode == 0
    assert "NP_OZAKI_THREDS is no variable of np_ozaki" in done.stderr


def test_no_hooks_in_this_interpreter(monkeypatch, capsys):
    monkeypatch.setattr(
        "np_ozaki.hooks.installation.interpreter_reason", "this one is strange"
    )
    assert cli.main(["info"]) == 0
    out, err = capsys.readouterr()
    assert "no scope can be entered here: this one is strange" in err
    assert "engine cpu: available" in out


def test_unknown_option(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["info", "--yaml"])
    assert caught.value.code == 2
    assert "--yaml" in capsys.readouterr().err
