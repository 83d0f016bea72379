"""The report of `bench` as text."""

from __future__ import annotations

from typing import Any

from np_ozaki.cli.dtypes import DTYPES

__all__ = ["footer", "header", "problems", "table"]

_COLUMNS = (
    ("contestant", -19),
    ("median", 10),
    ("min", 9),
    ("max", 9),
    ("TFLOP/s", 10),
    ("x native", 9),
    ("SM MHz", 7),
    ("W", 6),
    ("max err", 8),
    ("workspace", 12),
)
"""Titles and widths; negative ones are flush left.  99 columns together."""

_OF_LOAD = frozenset({"SM MHz", "W"})
"""Columns that only a size has where they were sampled."""

_LEGEND = """\
median    milliseconds a product, with the least and the most of the repeats beside it
TFLOP/s   {operations} in the median time{of_symmetric}
x native  speed over {native}{of_load}
max err   largest error of a {part}sampled entry relative to |A||B|, in u = 2^-{bits},
          against exact integers
workspace memory of np_ozaki's product besides operands and result
{turns} on the same random data of {dtype}.
What np_ozaki's own engines computed had the contract's bits before it was timed."""

_LEGEND_OF_LOAD = """
SM MHz, W medians of the GPU's clock and power during the repeats"""

_LEGEND_OF_SYMMETRIC = ", also for A times its transpose (syrk)"


def header(report: dict[str, Any]) -> str:
    """Return what the measurement belongs to.

    Parameters
    ----------
    report : dict
        As written to JSON.

    Returns
    -------
    str
        One fact a line.
    """
    host, lines = report["machine"], []
    versions = host["versions"]
    software = ", ".join(f"{name} {value}" for name, value in versions.items())
    lines += [
        software,
        f"commit {host['commit'] or 'unknown: the source is no checkout'}",
        f"{host['processor']}, {host['logical_cores']} logical cores, np_ozaki on "
        f"{host['threads']} threads, BLAS of NumPy {host['blas'] or 'unknown'}",
    ]
    for name, place in report["places"].items():
        facts = place["facts"]
        if facts:
            lines.append(
                f"{facts['gpu']}, compute capability {facts['compute_capability']}, "
                f"CUDA {facts['cuda_runtime']} (driver's {facts['cuda_of_driver']}), "
                f"cuBLAS {facts['cublas']}, CuPy {facts['cupy']}"
            )
            lines.append(_gpu_line(place["state"]))
        lines += [
            f"{name}: {way} is not available: {reason}"
            for way, reason in place["missing"].items()
        ]
    variables = [f"{k}={v}" for k, v in host["environment"].items()]
    if variables:
        lines.append(" ".join(variables))
    return "\n".join(lines)


def _gpu_line(state: dict[str, Any] | None) -> str:
    if state is None:
        return "clocks and power unknown: nvidia-smi does not answer"
    return (
        f"driver {state['driver']}, SM {state['sm_clock_mhz']} of "
        f"{state['max_sm_clock_mhz']} MHz, memory {state['memory_clock_mhz']} MHz, "
        f"{state['power_w']} of {state['power_limit_w']} W, {state['temperature_c']} C"
    )


def _line(cells: tuple[str, ...], *, loaded: bool) -> str:
    parts = []
    for cell, (title, width) in zip(cells, _COLUMNS, strict=True):
        if loaded or title not in _OF_LOAD:
            parts.append(f"{cell.ljust(-width)}" if width < 0 else cell.rjust(width))
    return "".join(parts).rstrip()


def table(size: dict[str, Any]) -> str:
    """Return the rows of one size.

    Parameters
    ----------
    size : dict
        As in the report.

    Returns
    -------
    str
        A title, a line a contestant, and lines for each one's stages and single calls.
    """
    shape = "{m} x {k} times {k} x {n}".format(**size)
    measured = [row for row in size["results"] if row["times_s"]]
    loaded = _was_sampled(size)
    lines = [
        "",
        f"{shape}, {size['flop'] / 1e9:.4g} GFLOP",
        _line(tuple(title for title, _ in _COLUMNS), loaded=loaded),
    ]
    lines += [_row(row, loaded=loaded) for row in measured]
    lines += [
        f"  stages of {row['contestant']}, ms: {_stages(row['stages_ms'])}"
        for row in measured
        if row["stages_ms"]
    ]
    lines += [
        f"  one call of {row['contestant']}: {row['host_us']:.4g} us until it returns, "
        f"{row['wall_us']:.4g} us until its result is there"
        for row in measured
        if row["host_us"] is not None
    ]
    if size.get("gpu_after"):
        lines.append(f"  after it: {_gpu_line(size['gpu_after'])}")
    return "\n".join(lines)


def _row(row: dict[str, Any], *, loaded: bool) -> str:
    workspace = row["workspace_bytes"]
    return _line(
        (
            row["contestant"],
            *(_ms(row[key]) for key in ("median_s", "min_s", "max_s")),
            f"{row['tflop_per_s']:.3g}",
            _known(row["speed_over_native"], ".3g"),
            _known(row["sm_clock_mhz"], ".0f"),
            _known(row["power_w"], ".0f"),
            _known(row["max_error_u"], ".3g"),
            "-" if workspace is None else f"{workspace / 1e6:.3g} MB",
        ),
        loaded=loaded,
    )


def _known(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.4g}" if ms < 1000 else f"{ms:.0f}"


def _stages(stages: dict[str, float]) -> str:
    return ", ".join(f"{stage} {value:.4g}" for stage, value in stages.items())


def problems(size: dict[str, Any]) -> list[str]:
    """Return who was not measured at one size, and why.

    Parameters
    ----------
    size : dict
        As in the report.

    Returns
    -------
    list of str
        One or more lines each.
    """
    lines = []
    for row in size["results"]:
        if row["state"] in {"measured", "waiting"} or row["known_before"]:
            continue
        word = {"unavailable": "not available", "wrong": "WRONG", "failed": "FAILED"}
        lines.append(
            f"{row['contestant']}, {size['size']}: {word[row['state']]}: "
            f"{row['reason']}"
        )
    return lines


def footer(report: dict[str, Any]) -> str:
    """Return what follows the tables: legend, notes, summary.

    Parameters
    ----------
    report : dict
        As written to JSON.

    Returns
    -------
    str
        The last line is the summary.
    """
    natives = [place["native"] for place in report["places"].values()]
    whose = " or ".join(natives)
    if len(natives) > 1:
        whose += ", on the same side"
    lines = ["", _legend(report, whose), ""]
    lines += [f"note: {note}" for note in report["notes"]]
    count = len([size for size in report["sizes"] if _was_measured(size)])
    summary = f"bench: {count} size{'s' * (count != 1)}"
    if report["skipped"]:
        summary += f", {len(report['skipped'])} skipped"
    if not report["ok"]:
        summary += ", some results WRONG or FAILED"
    if report["interrupted"]:
        summary += ", interrupted"
    lines.append(summary)
    return "\n".join(lines)


def _legend(report: dict[str, Any], native: str) -> str:
    load = report["command"]["load_s"]
    turns = f"Each multiplied for {load:g} s right before its repeats,"
    entries = DTYPES[report["command"]["dtype"]]
    return _LEGEND.format(
        operations=entries.operations,
        part="part of a " if entries.is_complex else "",
        bits=entries.part.bits,
        dtype=entries.name,
        native=native,
        of_symmetric=_LEGEND_OF_SYMMETRIC if report["command"]["syrk"] else "",
        of_load=_LEGEND_OF_LOAD if any(map(_was_sampled, report["sizes"])) else "",
        turns=turns if load else "All took turns",
    )


def _was_sampled(size: dict[str, Any]) -> bool:
    """Return whether clock or power of a GPU are known for a contestant."""
    return any(row["gpu_samples"] for row in size["results"])


def _was_measured(size: dict[str, Any]) -> bool:
    return any(row["times_s"] for row in size["results"])
