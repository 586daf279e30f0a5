"""Writes workloads, numbers and counts as a person reads them. Times are in milliseconds or microseconds.

Nothing here needs TVM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from templates.workloads import STRANGE
from tuning_db.record import Config, Workload

_SMALL = 1e-4  # numbers below it are written with an exponent


def workload_text(workload: Workload) -> str:
    """Return a short text for a workload, such as "conv2d 64x56x56 -> 64, 3x3/1 +bias".

    The workload may be of an operator that is not known here.
    """
    try:
        return f"{workload.op} {describe(workload)}"
    except STRANGE:
        return f"{workload.op} {knobs_text(workload.attrs)}"


def describe(workload: Workload) -> str:
    """Return a short text for a workload, such as "64x56x56 -> 64, 3x3/1 +bias +relu"."""
    dtype = [] if workload.dtype == "float32" else [workload.dtype]
    epilogue = (f"+{token.partition(':')[0]}" for token in workload.epilogue)
    return " ".join([_describe_anchor(workload), *epilogue, *dtype])


def _describe_anchor(workload: Workload) -> str:
    a = workload.attrs
    if workload.op == "conv2d":
        batch = f"{a['batch']}x" if a["batch"] != 1 else ""
        kernel = f"{_by(a['kernel'])}/{a['strides'][0] if len(set(a['strides'])) == 1 else _by(a['strides'])}"
        groups = "" if a["groups"] == 1 else " depthwise" if a["groups"] == a["in_channels"] else f" in {a['groups']}"
        dilation = "" if set(a["dilation"]) == {1} else f" dilated {_by(a['dilation'])}"
        data = f"{batch}{a['in_channels']}x{a['height']}x{a['width']}"
        return f"{data} -> {a['out_channels']}, {kernel}{groups}{dilation}"
    if workload.op == "dense":
        return f"{a['rows']}x{a['in_features']} -> {a['out_features']}"
    return " ".join(name if value is True else f"{name}={value}" for name, value in a.items() if value is not False)


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def clipped(name: str, most: int = 100) -> str:
    """Shorten a name from a model for a table's cell. Files have the names in full."""
    return name if len(name) <= most else f"{name[:most]}... ({len(name):,} characters)"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, and whole if it has more before the point: "0.0412", "11,740".

    A number whose size is below 1e-4 has an exponent.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    if abs(rounded) < _SMALL:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)}f}"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds, or "-" for None."""
    return "-" if seconds is None else number(seconds * 1e3)


def microseconds(seconds: float | None) -> str:
    """Return seconds as microseconds, or "-" for None."""
    return "-" if seconds is None else number(seconds * 1e6)


def mebibytes(size: int | None) -> str:
    """Return a number of bytes as MiB, or "-" for None."""
    return "-" if size is None else number(size / 2**20)


def times_text(ratio: float) -> str:
    """Return how a time before over a time after reads: "1.75 times faster", or "1.06 times slower"."""
    return f"{ratio:.2f} times faster" if ratio >= 1 else f"{1 / ratio:.2f} times slower"


def failures_text(failures: Mapping[str, int]) -> str:
    """Return counts of failures by kind, such as "3 compile, 1 run", or "-" if there are none."""
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "-"


def knobs_text(knobs: Mapping[str, Any]) -> str:
    """Return all knobs as "name=value, ...", or "-" if there are none."""
    return ", ".join(f"{name}={value}" for name, value in knobs.items()) or "-"


def short_config(config: Config | None) -> str:
    """Return the name of a config's template without its device, or "-" for None."""
    return "-" if config is None else config.template.partition(".")[2] or config.template
