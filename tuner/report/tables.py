"""Makes tables for a person. Times are in milliseconds or microseconds, as the headings say.

`task_table` shows what a session found, `comparison_table` a comparison with peers, and `operator_table` where a
module's time goes.
"""

from __future__ import annotations

from rich.table import Table

from tuner.module import Sizes
from tuner.precision import rate_unit
from tuner.report.bench import Comparison, Measured
from tuner.report.operators import Call, Profile
from tuner.report.text import (
    clipped,
    describe,
    failures_text,
    mebibytes,
    microseconds,
    milliseconds,
    number,
    short_config,
    times_text,
)
from tuner.session import SessionReport, TaskReport


def sizes_text(sizes: Sizes) -> str:
    """Return a line that says how much memory a module takes, for itself and in an inference."""
    text = f"weights {mebibytes(sizes.weights)} MiB, kernels {mebibytes(sizes.kernels)} MiB"
    if sizes.inference is None:
        return text
    more, peak = mebibytes(sizes.inference), mebibytes(sizes.peak)
    return f"{text}, in an inference {more} MiB more: with the weights {peak} MiB at its peak"


def task_table(report: SessionReport) -> Table:
    """Return a table with one row per task, in the order of their share of the network's time."""
    table = Table(box=None, title="Tasks", title_justify="left")
    table.add_column("task", overflow="fold")
    for title in ("calls", "share", "first us", "best us", "gain", "GF/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("template", no_wrap=True)
    for title in ("error", "trials", "new"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("failures")
    whole = sum(_weight(task) for task in report.tasks)
    for task in sorted(report.tasks, key=_weight, reverse=True):
        share = _weight(task) / whole if whole else 0.0
        gain = task.first_seconds / task.best_seconds if task.first_seconds and task.best_seconds else None
        table.add_row(
            f"{task.workload.op} {describe(task.workload)}",
            str(task.occurrences),
            f"{share:.0%}",
            microseconds(task.first_seconds),
            microseconds(task.best_seconds),
            "-" if gain is None else f"{gain:.2f}x",
            "-" if task.gflops is None else f"{task.gflops:.0f}",
            short_config(task.best_config) if task.best_config else f"default ({task.reason})",
            "-" if task.best_error is None else f"{task.best_error:.0e}",
            str(task.trials),
            str(task.new_trials),
            failures_text(task.failures),
        )
    return table


def _weight(task: TaskReport) -> float:
    return task.occurrences * (task.best_seconds or 0.0)


def session_summary(report: SessionReport) -> str:
    """Return a few lines that say how much was measured, where the time went, and what it gained."""
    rate = f", {report.trials_per_second:.1f} a second" if report.new_trials else ""
    lines = [
        f"{report.new_trials} configs tried in {report.seconds:.0f} s{rate} ({report.trials} in the database), "
        f"stopped: {report.stopped}"
    ]
    if report.new_trials and report.spent:
        own = max(0.0, report.seconds - sum(report.spent.values()))
        lines.append(
            f"of that {report.spent['build']:.0f} s building, {report.spent['run']:.0f} s checking and timing, "
            f"{own:.1f} s ({own / report.seconds:.1%}) choosing and recording"
        )
    if report.first_seconds and report.best_seconds:
        gain = report.first_seconds / report.best_seconds
        lines.append(
            f"all operators together: {milliseconds(report.first_seconds)} ms with the templates' first configs, "
            f"{milliseconds(report.best_seconds)} ms tuned ({times_text(gain)})"
        )
    return "\n".join(lines)


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with one row per contender, ours first."""
    threads = f"{comparison.threads} thread{'s' if comparison.threads > 1 else ''}"
    if comparison.streams > 1:
        threads = f"{comparison.streams} at the same time with {threads} each"
    table = Table(
        box=None,
        title=f"Latency, {threads}, alternating",
        title_justify="left",
        caption="p90, p99: milliseconds that 90 and 99 of 100 runs need at most. a second: inferences. peak MiB: the "
        "most memory of a contender's whole process, with Python and all of its libraries. ours/peer: below 1 ours is "
        "faster",
        caption_justify="left",
    )
    table.add_column("")
    for title in ("median ms", "p90", "p99", "a second", "runs", "peak MiB", "ours/peer", "difference"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row(*_contender_cells(comparison, comparison.ours), "", "")
    for peer in comparison.peers:
        error = "-" if peer.error is None else f"{peer.error:.1e}"
        table.add_row(*_contender_cells(comparison, peer), f"{1 / comparison.times_better(peer):.2f}", error)
    return table


def _contender_cells(comparison: Comparison, measured: Measured) -> tuple[str, ...]:
    peak = "-" if measured.peak_bytes is None else f"{measured.peak_bytes / 2**20:.0f}"
    percentiles = (milliseconds(measured.percentiles.get(each)) for each in (90, 99))
    rate = number(comparison.throughput(measured))
    return measured.version, milliseconds(measured.seconds), *percentiles, rate, str(measured.runs), peak


def operator_table(profile: Profile, most: int = 25) -> Table:
    """Return a table of the `most` kernels that take longest.

    The other kernels share one row, and the calls of the virtual machine share another.
    """
    peaks = ", ".join(f"{name} {peak / 1e9:.0f} {rate_unit(name)}" for name, peak in profile.peaks.items())
    table = Table(
        box=None,
        title="Where the time goes",
        title_justify="left",
        caption=f"GF/s by the direct algorithm's operations, shares of the peak of each one's precision (measured: "
        f"multiply-adds in registers): {peaks}",
        caption_justify="left",
    )
    table.add_column("operator", overflow="fold")
    table.add_column("computes", overflow="fold")
    for title in ("us", "share", "GF/s", "of peak"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("template", no_wrap=True)
    machine = [call for call in profile.calls if call.function.startswith("vm.")]
    ordered = sorted((call for call in profile.calls if call not in machine), key=lambda call: -call.seconds)
    for call in ordered[:most]:
        table.add_row(*_call_cells(call, profile))
    if rest := ordered[most:]:
        seconds = sum(call.seconds for call in rest)
        table.add_row(f"{len(rest)} others", "", microseconds(seconds), f"{seconds / profile.seconds:.0%}")
    if machine:
        seconds = sum(call.seconds for call in machine)
        table.add_row(
            "virtual machine", f"{len(machine)} calls", microseconds(seconds), f"{seconds / profile.seconds:.0%}"
        )
    return table


def _call_cells(call: Call, profile: Profile) -> tuple[str, ...]:
    what = call.function if call.workload is None else f"{call.workload.op} {describe(call.workload)}"
    cells = (clipped(call.name), what, microseconds(call.seconds), f"{call.seconds / profile.seconds:.0%}")
    if call.flops is None:
        return (*cells, "-", "-", "-")
    template, share = short_config(call.config) if call.config else "none", profile.share(call)
    return (*cells, f"{call.flops / 1e9:.0f}", "-" if share is None else f"{share:.0%}", template)
