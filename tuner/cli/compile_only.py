"""`--target PROFILE --compile-only` compiles and checks for a device that is not here, and measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import DEFAULT_DEVICE, Output, import_plugins
from tuner.cli.completion import PROFILES, one_of
from tuner.cli.tuning import Request
from tuner.errors import BadInput, NothingMeasured

if TYPE_CHECKING:
    from tvm.target import Target

    from tuner.session import Task

TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="PROFILE",
        help="A device that is not here (tune devices --profiles).",
        autocompletion=one_of(PROFILES),
    ),
]
CompileOnlyOption = Annotated[
    bool, typer.Option("--compile-only", help="Compile and check for --target, measuring nothing.")
]
ConfigsOption = Annotated[
    int | None, typer.Option("--configs", min=1, help="With --compile-only: configs of each task, 8 by default.")
]


def profile_asked(target: str | None, compile_only: bool, configs: int | None, request: Request) -> str | None:
    """Return the profile's name if only compiling is asked for, else None. Raises BadInput if options do not fit."""
    if not compile_only:
        if target is not None:
            raise BadInput(f"--target {target}: a device that is not here cannot be measured; add --compile-only")
        if configs is not None:
            raise BadInput("--configs goes with --compile-only; --trials limits a tuning session")
        return None
    if target is None:
        raise BadInput("--compile-only needs --target PROFILE (`tune devices --profiles` lists them)")
    measuring = {
        "--device": None if request.device == DEFAULT_DEVICE else request.device,
        "--threads": request.threads,
        "--searcher": request.searcher,
        "--trials": request.trials,
        "--minutes": request.seconds,
        "--preset": request.preset,
        "--ray": request.ray,
    }
    given = [option for option, value in measuring.items() if value is not None]
    if given:
        raise BadInput(f"{', '.join(given)}: nothing is measured with --compile-only; leave it out")
    return target


def compile_all(
    target: str,
    configs: int | None,
    request: Request,
    *,
    make_tasks: Callable[[Target], Sequence[Task]],
    out: Output,
    **more: Any,
) -> None:
    """Compile every task for the profile `target`, show the table, print the result.

    Everything is checked before anything is compiled. Raises BadInput; typer.Exit(3) if a task has no config that
    compiles.
    """
    from tuner.devices import check_storage
    from tuner.devices.profiles import profile_named
    from tuner.measure.offline import OfflineOptions, OfflineRunner
    from tuner.report.offline import compile_summary, compile_table, rejections
    from tuner.report.text import describe
    from tuner.session import check_templates
    from tuner.session.compile_check import CONFIGS, CompileOptions, TaskCheck, compile_tasks, verdicts

    profile = profile_named(target)
    check_storage(request.dtype, profile.target(), profile.name)
    plugins = import_plugins(request.plugins)
    check_templates(request.only)
    tasks = make_tasks(profile.target())

    def show(check: TaskCheck) -> None:
        found = ", ".join(f"{count} {verdict}" for verdict, count in verdicts(check.reports).items())
        workload = check.task.workload
        out.remark(f"{workload.op} {describe(workload)}: {found or 'no template applies'}")

    with OfflineRunner(profile, OfflineOptions(plugins=plugins)) as runner:
        options = CompileOptions(configs or CONFIGS, request.seed, request.exact, request.only or None)
        report = compile_tasks(tasks, profile, runner, options, progress=show)
    out.show(compile_table(report))
    for line in rejections(report):
        out.remark(line)
    out.show(compile_summary(report))
    out.result({**report.as_dict(), **more})
    if report.failed:
        names = ", ".join(check.task.name for check in report.failed)
        out.remark(f"tune: no config compiles for {len(report.failed)} of {len(report.tasks)} tasks: {names}")
        raise typer.Exit(NothingMeasured.exit_status)
