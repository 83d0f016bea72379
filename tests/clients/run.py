"""Real programs inside a scope: what share of their BLAS operations is routed?

    python tests/clients/run.py [--quick] [--json FILE] [NAME ...]

Runs each script of docs/examples/clients three times under a counter of BLAS calls
(blas_counter.c, preloaded): natively; inside a scope with everything forced, 15 moduli;
and inside the same scope with precision="auto".  All shares are of the operations that
the native run asked of BLAS.

- share: what stats() counts, with 15 moduli.
- escaped: what reached BLAS inside that scope without passing a hook, and the calls
  that np_ozaki itself turned down.  What stats() counts and BLAS never saw, such as
  small einsums, cannot hide anything here.
- left: calls that precision="auto" left to NumPy, since it could certify no result.
- differ: the largest relative difference of a result to native, in both scopes.

Exit status 1 if a share is below 97 %, more than 3 % escaped, or results disagree.
LAPACK runs inside OpenBLAS and is native in both runs; its operations are estimates.

Linux, with a C compiler and `pip install 'np_ozaki[clients]'`.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections import Counter as Counts
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "docs" / "examples" / "clients"
LEAST_SHARE = 0.97
MODES: dict[str, int | str | None] = {"native": None, "forced": 15, "auto": "auto"}


@dataclass(frozen=True)
class Client:
    """A script and what is asked of it."""

    package: str
    tolerance: float
    share_required: bool = True


CLIENTS = {
    "statsmodels_ols_glm_var": Client("statsmodels", 1e-12),
    "quimb_peps": Client("quimb", 1e-12),
    "pyscf_df_mp2": Client("pyscf", 1e-10),
    "sklearn_pca": Client("scikit-learn", 1e-10, share_required=False),
}


# ---- In the child: one script, natively or inside a scope ----


class Counter:
    """The preloaded library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def reset(self) -> None:
        self._library.blas_count_reset()

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with counting stopped while it runs."""

        @functools.wraps(function)
        def uncounted(*args: Any, **kwargs: Any) -> Any:
            self._library.blas_count_pause(1)
            try:
                return function(*args, **kwargs)
            finally:
                self._library.blas_count_pause(-1)

        return uncounted

    def read(self) -> list[dict[str, Any]]:
        name, caller = ctypes.c_char_p(), ctypes.c_char_p()
        lapack, calls, flops = ctypes.c_int(), ctypes.c_int64(), ctypes.c_double()
        cells = (name, caller, lapack, calls, flops)
        rows = []
        while self._library.blas_count_read(len(rows), *map(ctypes.byref, cells)):
            rows.append(
                {
                    "name": (name.value or b"").decode(),
                    "caller": (caller.value or b"").decode(),
                    "lapack": bool(lapack.value),
                    "calls": calls.value,
                    "flops": flops.value,
                }
            )
        return rows


def load(name: str) -> Callable[..., dict[str, float]]:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def note_fallbacks(fallbacks: list[dict[str, Any]]) -> None:
    """Have every call listed that was left, in part or whole, to other arithmetic."""
    from np_ozaki import context

    record = context.record

    def noting(info: context.CallInfo) -> None:
        if info.fallback is not None:
            fallbacks.append(
                {
                    "route": info.route,
                    "reason": info.fallback,
                    "size": (info.batch, info.m, info.n, info.k),
                    "flops": info.flops,
                }
            )
        record(info)

    context.record = noting


def child(mode: str, name: str, small: bool, report: Path) -> None:
    # What the client warns of is not the subject.
    warnings.simplefilter("ignore")
    counter = Counter()
    main = load(name)
    stats: dict[str, Any] = {}
    fallbacks: list[dict[str, Any]] = []
    precision = MODES[mode]
    if precision is None:
        counter.reset()
        start = time.perf_counter()
        results = main(small=small)
        seconds = time.perf_counter() - start
    else:
        import np_ozaki
        from np_ozaki import scope as scope_module
        from np_ozaki.routes.table import HANDLERS

        # What the engine itself asks of BLAS did not escape it.
        engine = {key: counter.outside(handle) for key, handle in HANDLERS.items()}
        scope_module.HANDLERS = engine
        options = {"engine": "cpu", "min_flops": 0, "precision": precision}
        with np_ozaki.enabled(**options) as scope:
            note_fallbacks(fallbacks)
            counter.reset()
            start = time.perf_counter()
            results = main(small=small)
            seconds = time.perf_counter() - start
        stats = scope.stats().as_dict()
    blas = counter.read()
    report.write_text(
        json.dumps(
            {
                "results": results,
                "seconds": seconds,
                "stats": stats,
                "fallbacks": fallbacks,
                "blas": blas,
            }
        )
    )


# ---- In the parent ----


def build_counter(folder: Path) -> Path:
    library = folder / "blas_counter.so"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    source = str(HERE / "blas_counter.c")
    flags = ["-O2", "-shared", "-fPIC", "-o", str(library), source, "-ldl"]
    subprocess.run([*compiler, *flags], check=True)
    return library


def run_child(
    mode: str, name: str, small: bool, library: Path, folder: Path
) -> dict[str, Any]:
    report = folder / f"{name}.{mode}.json"
    command = [sys.executable, __file__, "--child", mode, "--report", str(report), name]
    done = subprocess.run(
        [*command, "--quick"] if small else command,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("NP_OZAKI_")},
            "LD_PRELOAD": str(library),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "NP_OZAKI_THREADS": "1",  # the counter is paused for one thread
            "PYTHONHASHSEED": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}, {mode}:\n{done.stdout}\n{done.stderr}")
    return json.loads(report.read_text())


def total(blas: list[dict[str, Any]], lapack: bool) -> float:
    return sum(row["flops"] for row in blas if row["lapack"] == lapack)


def difference(native: dict[str, float], routed: dict[str, float]) -> float:
    """Return the largest relative difference of a result; NaN counts as infinite."""
    worst = 0.0
    for key in native.keys() | routed.keys():
        one, other = native[key], routed[key]
        scale = max(abs(one), abs(other))
        relative = abs(one - other) / scale if scale else 0.0
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst


def share_left(run: dict[str, Any], asked: float) -> float:
    return sum(call["flops"] for call in run["fallbacks"]) / asked


def judge(
    name: str,
    client: Client,
    native: dict[str, Any],
    forced: dict[str, Any],
    auto: dict[str, Any],
) -> dict[str, Any]:
    asked = total(native["blas"], lapack=False)
    counted = sum(
        flops
        for route in forced["stats"].values()
        for engine, flops in route["flops"].items()
        if engine != "native"
    )
    around = total(forced["blas"], lapack=False) / asked
    row = {
        "client": name,
        "version": importlib.metadata.version(client.package),
        "blas_flops": asked,
        "lapack_flops": total(native["blas"], lapack=True),
        "share": counted / asked,
        "escaped": around + share_left(forced, asked),
        "left": share_left(auto, asked),
        "difference": max(
            difference(native["results"], run["results"]) for run in (forced, auto)
        ),
        "tolerance": client.tolerance,
        "runs": {"native": native, "forced": forced, "auto": auto},
    }
    enough = row["share"] >= LEAST_SHARE and row["escaped"] <= 1 - LEAST_SHARE
    agrees = row["difference"] <= client.tolerance
    row["passed"] = agrees and (enough or not client.share_required)
    return row


COLUMNS = (
    f"{'client':24} {'version':8} {'BLAS MF':>9} {'LAPACK MF':>9} {'share':>8} "
    f"{'escaped':>8} {'left':>8} {'differ':>8} {'allowed':>8}  seconds"
)


def show(row: dict[str, Any]) -> None:
    seconds = " ".join(f"{run['seconds']:.2f}" for run in row["runs"].values())
    print(
        f"{row['client']:24} {row['version']:8} {row['blas_flops'] / 1e6:9.1f} "
        f"{row['lapack_flops'] / 1e6:9.1f} {row['share']:8.2%} {row['escaped']:8.2%} "
        f"{row['left']:8.2%} {row['difference']:8.1e} {row['tolerance']:8.0e}  "
        f"{seconds} {'ok' if row['passed'] else 'FAILED'}"
    )
    forced, auto = row["runs"]["forced"], row["runs"]["auto"]
    for found in forced["blas"]:
        if not found["lapack"]:
            print(
                f"    escaped: {found['name']} from {found['caller']}, "
                f"{found['calls']} calls, {found['flops'] / 1e6:.3f} MFLOP"
            )
    for mode, run in (("15 moduli", forced), ("auto", auto)):
        reasons = Counts((call["route"], call["reason"]) for call in run["fallbacks"])
        for (route, reason), calls in sorted(reasons.items()):
            print(f"    left with {mode}: {route}, {calls} calls: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CLIENTS))
    parser.add_argument("--quick", action="store_true", help="the small problems")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.names) - CLIENTS.keys()
    if unknown:
        parser.error(f"no script {', '.join(sorted(unknown))}")
    if args.child:
        child(args.child, args.names[0], args.quick, args.report)
        return 0

    from tqdm import tqdm

    names = args.names or list(CLIENTS)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        library = build_counter(folder)
        with tqdm(total=len(MODES) * len(names), disable=None) as progress:
            for name in names:
                runs = []
                for mode in MODES:
                    progress.set_description(f"{name}, {mode}")
                    runs.append(run_child(mode, name, args.quick, library, folder))
                    progress.update()
                rows.append(judge(name, CLIENTS[name], *runs))
    versions = {p: importlib.metadata.version(p) for p in ("numpy", "scipy")}
    print(f"Python {platform.python_version()}, {versions}")
    print(COLUMNS)
    for row in rows:
        show(row)
    if args.json:
        args.json.write_text(json.dumps({"versions": versions, "clients": rows}))
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
