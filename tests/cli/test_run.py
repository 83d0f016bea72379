"""``run``: the program notices nothing, the user learns what was routed."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from processes import heed_interrupts

PRODUCT = "import numpy as np\na = np.ones((64, 64))\nb = a @ a\n"
SHOW = """\
import sys
import __main__
print(sys.argv, sys.path[0], __name__, __file__, __package__)
print(__spec__ and __spec__.name, type(__loader__).__name__, __builtins__)
print(__main__.__dict__ is globals(), sorted(globals()))
"""


def test_report_counts_what_was_routed(terminal):
    terminal.write("a.py", PRODUCT + "print(b[0, 0])\nsmall = a[:2, :2] @ a[:2, :2]\n")
    done = terminal.cli("run", "--min-flops", 1000, "a.py")
    assert (done.returncode, done.stdout) == (0, "64.0\n")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("np_ozaki: 1 of 1 counted products routed, ")
    assert ["matmul", "cpu", "1", "0.001"] in [line.split() for line in lines]
    assert "hook matmul: active" in done.stderr
    assert "below min_flops=1000" in done.stderr


def test_performance_warning_is_one_line_of_the_report(terminal):
    terminal.write("a.py", PRODUCT)
    done = terminal.cli("run", "--min-flops", 0, "a.py")
    assert "PerformanceWarning" not in done.stderr
    assert sum("no GPU engine here" in line for line in done.stderr.splitlines()) == 1
    meant = terminal.cli("run", "--min-flops", 0, "--engine", "cpu", "a.py")
    assert "no GPU engine" not in meant.stderr


def test_warnings_as_errors_do_not_stop_the_run(terminal):
    terminal.write("a.py", PRODUCT)
    done = terminal.python("-W", "error", "-m", "np_ozaki", "run", "a.py")
    assert done.returncode == 0, done.stderr


def test_nothing_routed_says_how(terminal):
    terminal.write("a.py", PRODUCT)
    done = terminal.cli("run", "a.py")
    assert "nothing was routed" in done.stderr
    assert "--min-flops 0" in done.stderr
    native = terminal.cli("run", "--engine", "native", "a.py")
    assert 'the scope routed nothing: engine="native"' in native.stderr


def test_fallbacks_by_reason(terminal):
    terminal.write(
        "a.py",
        "import numpy as np, np_ozaki\nx = np.ones((2, 2), dtype=int)\n"
        "np_ozaki.matmul(x, x)\ny = x.astype(np.float32)\ny @ y, 1j * x @ x\n",
    )
    done = terminal.cli("run", "--min-flops", 0, "--dtypes", "float32,float64", "a.py")
    assert "native because dtypes int64, int64: 1 calls" in done.stderr
    assert "native because complex128 is not among dtypes: 1 calls" in done.stderr
    assert "np_ozaki: 1 of 3 counted products routed" in done.stderr


def test_inactive_hook_says_what_was_missed(terminal):
    terminal.write("a.py", PRODUCT)
    done = terminal.cli("run", "--min-flops", 0, "a.py", NP_OZAKI_HOOKS="none")
    assert done.returncode == 0
    assert "hook matmul is inactive (switched off by configuration)" in done.stderr
    assert "a @ b and numpy.matmul on plain arrays were not caught" in done.stderr


def test_json_report(terminal):
    terminal.write("a.py", "import os\nos.chdir('/')\n" + PRODUCT)
    done = terminal.cli(
        "run", "--json", "r.json", "--quiet", "--min-flops", 0, "--precision", 9,
        "--scaling", "accurate", "a.py",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((terminal.folder / "r.json").read_text())
    assert report["routes"]["matmul"]["calls"] == {"cpu": 1}
    assert report["flops"] == {"cpu": 2 * 64**3}
    assert report["options"]["precision"] == 9
    assert report["options"]["scaling"] == "accurate"
    assert report["hooks"][0]["active"] is True
    assert report["seconds"] > 0


def test_report_comes_after_exit_handlers_and_counts_them(terminal):
    terminal.write(
        "a.py",
        "import atexit, sys\n" + PRODUCT + "atexit.register(lambda: ("
        "sys.stderr.write('handler\\n'), a @ a))\n"
        "raise ValueError('from the program')\n",
    )
    done = terminal.cli("run", "--min-flops", 0, "a.py")
    assert done.returncode == 1
    order = [
        done.stderr.index(text)
        for text in ("from the program", "handler", "np_ozaki: 2 of 2")
    ]
    assert order == sorted(order)


def test_products_of_threads_are_routed(terminal):
    terminal.write(
        "a.py",
        "import threading\n" + PRODUCT + "def late():\n    import time\n"
        "    time.sleep(0.2)\n    a @ a\nthreading.Thread(target=late).start()\n",
    )
    done = terminal.cli("run", "--min-flops", 0, "a.py")
    assert "np_ozaki: 2 of 2" in done.stderr


def test_stdin_stdout_and_order_in_one_pipe(terminal):
    terminal.write("a.py", "print(input().upper())\n")
    done = subprocess.run(
        [sys.executable, "-m", "np_ozaki", "run", "a.py"],
        cwd=terminal.folder,
        env=terminal.environment,
        input="hello\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("HELLO\nnp_ozaki: ")


@pytest.mark.parametrize(
    ("target", "cwd"),
    [
        (("x/s.py",), "."),
        (("./x/s.py",), "."),
        (("../x/s.py",), "y"),
        (("--", "x/s.py"), "."),
        (("link.py",), "."),
        (("x",), "."),
        (("-m", "s"), "x"),
        (("-m", "package"), "."),
        (("-m", "package.inner"), "."),
    ],
)
def test_program_sees_what_it_sees_under_python(terminal, target, cwd):
    for name in ("x/s.py", "x/__main__.py", "package/__main__.py", "package/inner.py"):
        terminal.write(name, SHOW)
    terminal.write("package/__init__.py", "import sys\nprint(sys.argv[0])\n")
    terminal.write("y/other.py", "")
    (terminal.folder / "link.py").symlink_to(terminal.folder / "x" / "s.py")
    arguments = ("-v", "--json", "--", "-m", "b c")
    folder = terminal.folder / cwd
    plain = terminal.python(*target, *arguments, cwd=folder)
    routed = terminal.cli("run", "--quiet", *target, *arguments, cwd=folder)
    assert plain.returncode == 0
    assert (routed.stdout, routed.stderr) == (plain.stdout, plain.stderr)


ENDINGS = {
    "nested": "def f(x):\n    return g(x)\ndef g(x):\n    return 1 / x\nf(0)\n",
    "in a library": "import numpy as np\nnp.linalg.inv(np.zeros((2, 2)))\n",
    "chained": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n"
        "    raise RuntimeError('second') from e\n"
    ),
    "context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['key']\n",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])\n",
    "syntax": "x = 1\ndef f(:\n    pass\n",
    "import": "import broken\n",
    "import syntax": "import unreadable\n",
    "own hook": (
        "import sys, traceback\n"
        "def hook(kind, value, tb):\n"
        "    print('hook', len(traceback.extract_tb(tb)), value)\n"
        "sys.excepthook = hook\n1 / 0\n"
    ),
    "thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\n"
        "t.start()\nt.join()\n"
    ),
    "interrupt": "def f():\n    raise KeyboardInterrupt\nf()\n",
    "exit 0": "import sys\nsys.exit(0)\n",
    "exit 3": "import sys\nsys.exit(3)\n",
    "exit None": "import sys\nsys.exit(None)\n",
    "exit text": "import sys\nsys.exit('the message')\n",
    "exit object": "raise SystemExit((1, 2))\n",
    "hard exit": "import os\nos._exit(7)\n",
    "closed streams": "import sys\nsys.stdout.close()\nsys.stderr.close()\n",
    "no streams": "import sys\nsys.stdout = sys.stderr = None\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends_as_under_python(terminal, ending):
    terminal.write("a.py", ENDINGS[ending])
    terminal.write("broken.py", "def f():\n    return undefined\nf()\n")
    terminal.write("unreadable.py", "def f(:\n")
    plain = terminal.python("a.py")
    routed = terminal.cli("run", "--quiet", "a.py")
    assert routed.stderr == plain.stderr
    assert routed.stdout == plain.stdout
    assert routed.returncode == plain.returncode
    for name in ("np_ozaki", "runpy"):
        assert name not in routed.stderr


def test_module_traceback_begins_in_the_module(terminal):
    terminal.write("a.py", "1 / 0\n")
    terminal.write("package/__init__.py", "{}['package']\n")
    terminal.write("package/b.py", "")
    for name, error in (("a", "ZeroDivisionError"), ("package.b", "KeyError")):
        done = terminal.cli("run", "--quiet", "-m", name)
        assert done.returncode == 1
        assert done.stderr.splitlines()[1].strip().startswith("File ")
        assert error in done.stderr.splitlines()[-1]
        assert "np_ozaki" not in done.stderr
        assert "importlib" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c(terminal):
    terminal.write(
        "a.py",
        "import os, time\n" + PRODUCT + "print(os.getpid(), flush=True)\n"
        "time.sleep(30)\n",
    )
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"{sys.executable} -m np_ozaki run a.py; echo $?"],
        cwd=terminal.folder,
        env=terminal.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
        text=True,
    )
    watchdog = threading.Timer(40, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGINT)
        out, err = process.communicate()
    finally:
        watchdog.cancel()
    assert out == "130\n"
    assert err.index("KeyboardInterrupt") < err.index("np_ozaki: ")


POOL = """\
import multiprocessing, pickle, sys
from dataclasses import dataclass
import numpy as np
@dataclass
class Item:
    value: float
def work(item):
    a = np.full((32, 32), item.value)
    return Item(float((a @ a)[0, 0]))
if __name__ == "__main__":
    item = pickle.loads(pickle.dumps(Item(1.0)))
    assert type(item) is Item and Item.__module__ == "__main__"
    a = np.ones((32, 32)); a @ a
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(work, [Item(1.0), Item(2.0)]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("as_module", [False, True])
def test_multiprocessing_and_pickle(terminal, method, as_module):
    terminal.write("a.py", POOL)
    target = ("-m", "a") if as_module else ("a.py",)
    done = terminal.cli("run", "--min-flops", 0, *target, method)
    assert done.stdout == "[Item(value=32.0), Item(value=128.0)]\n", done.stderr
    assert done.returncode == 0
    assert done.stderr.count("np_ozaki: 1 of 1") == 1
    assert "their products are not counted here" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_that_exits_reports_nothing(terminal):
    terminal.write(
        "a.py",
        "import os, sys\n" + PRODUCT + "pid = os.fork()\nc = a @ a\n"
        "if pid == 0:\n    import np_ozaki\n"
        "    print(np_ozaki.last_call().engine, flush=True)\n    sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    )
    done = terminal.cli("run", "--min-flops", 0, "a.py")
    assert done.stdout == "cpu\n5\n"
    assert done.stderr.count("counted products routed") == 1
    assert "np_ozaki: 2 of 2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("missing.py",), 2, "can't open file '{folder}/missing.py': [Errno 2]"),
        (("empty",), 2, "can't find '__main__' module in 'empty'"),
        (("-m", "missing_module"), 1, "No module named missing_module"),
        (("-m", "missing_module.x"), 1, "Error while finding module specification"),
        (("-m", "empty_package"), 1, "is a package and cannot be directly executed"),
        ((), 2, "nothing to run: give a script, or -m"),
        (("-m",), 2, "nothing to run: give a script, or -m"),
        (("--precision", "99", "a.py"), 2, "precision=99: the table holds 2 to 49"),
        (("--min-flops", "-1", "a.py"), 2, "min_flops=-1: must be at least 0"),
        (("--scaling", "none", "a.py"), 2, "invalid choice: 'none'"),
        (("--unknown", "a.py"), 2, "unrecognized arguments: --unknown"),
        (("--reproducible", "--min-flops", "5", "a.py"), 2, "reproducible=True routes"),
        (("--json", "no/where.json", "a.py"), 2, "--json='no/where.json': No such"),
    ],
)
def test_refusals(terminal, arguments, status, message):
    terminal.write("a.py", "print('ran')\n")
    terminal.write("empty_package/__init__.py", "")
    (terminal.folder / "empty").mkdir()
    done = terminal.cli("run", *arguments)
    assert done.returncode == status
    assert message.format(folder=terminal.folder) in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "counted products" not in done.stderr


def test_environment_that_cannot_be_used(terminal):
    terminal.write("a.py", "print('ran')\n")
    done = terminal.cli("run", "a.py", NP_OZAKI_PRECISION="many")
    assert done.returncode == 2
    assert "NP_OZAKI_PRECISION" in done.stderr
    assert done.stdout == ""


def test_reproducible_routes_everything(terminal):
    terminal.write("a.py", "import numpy as np\nx = np.ones((2, 2))\nx @ x\n")
    done = terminal.cli("run", "--reproducible", "a.py")
    assert "np_ozaki: 1 of 1" in done.stderr
    assert "min_flops=0 dtypes=None reproducible=True" in done.stderr


def test_no_arguments_print_help(terminal):
    done = terminal.cli()
    assert (done.returncode, done.stdout) == (2, "")
    for command in ("run", "verify", "bench", "info"):
        assert f"    {command} " in done.stderr
    assert terminal.cli("--version").stdout.startswith("np_ozaki ")


def test_the_command_line_imports_nothing_heavy(terminal):
    done = terminal.python(
        "-c",
        "import sys\nfrom np_ozaki.cli import build_parser\nbuild_parser()\n"
        "print({'scipy', 'tqdm', 'sklearn', 'cupy'} & set(sys.modules))",
    )
    assert done.stdout == "set()\n"
