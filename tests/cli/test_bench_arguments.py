"""``bench`` refuses what it cannot use before it measures anything."""

import pytest

from np_ozaki import cli
from np_ozaki.cli import chart
from np_ozaki.engines import choice


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "cuda_unavailable", lambda: "there is no CUDA device")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "0"], "--sizes: '0': a size is n or MxNxK with numbers from 1 to"),
        (["--sizes", "8,,9"], "--sizes: ''"),
        (["--sizes", "8x9"], "--sizes: '8x9'"),
        (["--sizes", "big"], "give some, as in 512,1024 or 4096x64x1024"),
        (["--sizes", "2000000"], "numbers from 1 to 1048576"),
        (["--moduli", "1"], "--moduli: '1': must be auto or a number of moduli, 2 to"),
        (["--moduli", "15,50"], "'50': must be auto or a number of moduli, 2 to 49"),
        (["--moduli", "exact"], "15 gives FP64 accuracy on ordinary data"),
        (
            ["--dtype", "float16"],
            "--dtype: 'float16': must be one of float64, complex128, float32",
        ),
        (["--engines", "native"], "--engines: 'native': must be one of cpu, cuda"),
        (["--repeats", "0"], "--repeats: '0': must be a whole number, at least 1"),
        (["--load=-1"], "--load: '-1': must be a number of seconds, at least 0; try"),
        (["--load", "nan"], "--load: 'nan': must be a number of seconds"),
        (["--load", "inf"], "--load: 'inf': must be a number of seconds"),
        (["--load", "long"], "--load: 'long': must be a number of seconds"),
        (["--json", "no/r.json"], "--json='no/r.json': No such file"),
    ],
)
def test_refused_arguments(here, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "--no-progress", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_engine_that_is_not_there(here, capsys):
    choice.cuda_engine.cache_clear()
    assert cli.main(["bench", "--engines", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert "error: engine='cuda': there is no CUDA device" in err
    assert out == ""


def test_environment_that_routes_nothing(terminal):
    done = terminal.cli("bench", NP_OZAKI_STRATEGY="performant")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unset NP_OZAKI_STRATEGY" in done.stderr


def test_picture_without_matplotlib(here, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["bench", "--plot", "p.png"]) == 2
    err = capsys.readouterr().err
    assert "--plot='p.png': matplotlib is not installed" in err
    assert "pip install 'np_ozaki[plot]'" in err
    assert not (here / "p.png").exists()


def test_picture_of_an_unknown_format(here, capsys):
    assert cli.main(["bench", "--plot", "p.gif"]) == 2
    assert "--plot='p.gif': known formats are .png, .pdf, .svg" in (
        capsys.readouterr().err
    )


def test_colours_and_marks_suffice():
    assert len(set(chart.COLOURS)) == len(chart.MARKERS) == 8
