"""Makes the table of kernels that were compiled for a device that is not here. Start at `compile_table`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tuner.measure.offline import CandidateReport, KernelReport, Resources, Verdict
from tuner.report.text import describe, failures_text
from tuner.session.compile_check import CompileReport, verdicts

_FIGURES = ("kernel", "items", "registers", "spilled", "private", "local")


def compile_table(report: CompileReport) -> Table:
    """Return a table with one row per kernel, grouped by task and template.

    A kernel's figures are those of the first config that compiles. Spilled and private bytes are per work-item, local
    bytes per group. A figure is "-" if no compiler tells it.
    """
    table = Table(box=None, title=f"Compiled for {report.profile.title}", title_justify="left")
    table.add_column("task", overflow="fold")
    table.add_column("template", no_wrap=True)
    for title in ("tried", "ok"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("rejected")
    for title in _FIGURES:
        table.add_column(title, justify="left" if title == "kernel" else "right", no_wrap=True)
    for check in report.tasks:
        workload = check.task.workload
        head = f"{workload.op} {describe(workload)}"
        if not check.reports:
            table.add_row(head, "none applies", "0", "0")
        for template, reports in check.by_template().items():
            counts = verdicts(reports)
            ok = counts.pop(str(Verdict.OK), 0)
            cells = [head, template, str(len(reports)), str(ok), failures_text(counts)]
            for kernel in _shown(reports) or [None]:
                table.add_row(*cells, *_figures(kernel))
                cells = [""] * len(cells)
            head = ""
    return table


def rejections(report: CompileReport) -> list[str]:
    """Return one line for each template and verdict, with the first message, for a person to act on."""
    lines: dict[tuple[str, Verdict], str] = {}
    for check in report.tasks:
        for found in check.reports:
            if found.verdict is not Verdict.OK:
                lines.setdefault((found.config.template, found.verdict), found.message)
    return [f"{template}: {verdict}, for one: {message}" for (template, verdict), message in lines.items()]


def compile_summary(report: CompileReport) -> str:
    """Return a sentence that says how many configs compile, by which compilers, and why others do not."""
    counts = verdicts([found for check in report.tasks for found in check.reports])
    ok = counts.pop(str(Verdict.OK), 0)
    tried = ok + sum(counts.values())
    checked = " and ".join(report.profile.compilers)
    rejected = f"; rejected: {failures_text(counts)}" if counts else ""
    return (
        f"{len(report.tasks) - len(report.failed)} of {len(report.tasks)} tasks compile for {report.profile.name} "
        f"({checked}), {ok} of {tried} configs{rejected}; {report.seconds:.0f} s"
    )


def _shown(reports: Sequence[CandidateReport]) -> Sequence[KernelReport | None]:
    return next((report.kernels for report in reports if report.verdict is Verdict.OK), ())


def _figures(kernel: KernelReport | None) -> list[str]:
    if kernel is None:
        return ["-"] * len(_FIGURES)
    taken = kernel.resources or Resources()
    figures = (taken.registers, taken.spill_bytes, taken.private_bytes, kernel.local_bytes)
    return [kernel.kernel.name, str(kernel.kernel.items), *("-" if n is None else str(n) for n in figures)]
