"""Does what `tune model`, `tune op` and `tune demo` have in common: check the request, tune the tasks, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from tuner.activity import activity
from tuner.cli.common import DEFAULT_LEASE, INTERRUPTED, Output, Preset, import_plugins, threads_text
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tvm.target import Target

    from tuner.session import SessionReport, Task


@dataclass(frozen=True)
class Request:
    """The options of a tuning command, as given.

    - `seconds`, `trials` and `preset` are explained in tuner.session.Budget.
    - `plugins` are modules that register templates.
    - `only` has the names of the templates that may be used. If it is empty, all may be.
    - `dtype` is the type that the tasks' values are stored in.
    - `ray` is the address of the cluster that builds.
    - `lease_seconds` is explained in tuner.session.sharing.
    """

    device: str
    threads: int | None
    searcher: str | None
    trials: int | None
    seconds: float | None
    preset: Preset | None
    db: str
    seed: int
    exact: bool
    plugins: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    dtype: str = "float32"
    ray: str | None = None
    lease_seconds: float = DEFAULT_LEASE


def tune_tasks(request: Request, make_tasks: Callable[[Target], Sequence[Task]], out: Output) -> SessionReport:
    """Tune, show the table of tasks and return the report.

    Everything is checked before the database is touched: the tasks (`make_tasks` loads those for a target), the
    device, the searcher, the toolchain. Raises TuneError or DatabaseError. After an interrupt the report says so, and
    `finish` raises typer.Exit(130).
    """
    from tuner.devices import check_storage, is_emulated, open_device
    from tuner.measure import MeasureOptions, check_ray, check_toolchain, open_runner
    from tuner.report.tables import session_summary, task_table
    from tuner.search import DEFAULT, check_searcher
    from tuner.session import Budget, TuneOptions, check_templates, tune
    from tuning_db.store import open_db

    budget = Budget(request.trials, request.seconds, None if request.preset is None else str(request.preset))
    device = open_device(request.device, request.threads)
    check_storage(request.dtype, device.target, device.title)
    if is_emulated(device.key):
        out.remark(f"{device.name} is emulated: its times mean nothing, and never count for a real device")
    plugins = import_plugins(request.plugins)
    searcher = check_searcher(request.searcher or DEFAULT)  # a plug-in may have registered it
    if device.kind.is_remote and (vendors := [name for name in plugins if name.startswith("tuner.vendors.")]):
        raise BadInput(f"device {device.name}: other libraries' kernels run in this process: leave out {vendors[0]}")
    check_templates(request.only)
    tasks = make_tasks(device.target)
    check_toolchain(device.target)
    if request.ray is not None:
        check_ray(request.ray, device)
    with open_db(request.db) as store:
        flop = sum((task.flop or 0.0) * task.occurrences for task in tasks)
        out.remark(
            f"{len(tasks)} tasks, {flop / 1e9:.3g} GFLOP a run; {device.name} {device.key.model}, "
            f"{threads_text(device.threads)}; {store.name}"
        )
        options = MeasureOptions(plugins=plugins, ray=request.ray)
        with activity("starting what builds and measures"):
            opened = open_runner(device, options, out.remark)
        with opened as runner:
            tune_options = TuneOptions(
                searcher=searcher,
                budget=budget,
                seed=request.seed,
                exact=request.exact,
                only=request.only or None,
                lease_seconds=request.lease_seconds,
                notice=out.remark,
                make=runner.searchers.make,
            )
            report = tune(tasks, device, store, runner, tune_options)
            spent = {"build": runner.spent.build_seconds, "run": runner.spent.run_seconds}
    report = replace(report, spent=spent)
    out.show(task_table(report))
    out.show(session_summary(report))
    for remark in (*report.remarks, *_used_up(report, request)):
        out.remark(remark)
    return report


def _used_up(report: SessionReport, request: Request) -> Iterator[str]:
    """Yield a remark if nothing was measured, because what earlier runs measured counts as well."""
    if report.new_trials or report.stopped not in ("time", "trials"):
        return
    if report.stopped == "time" and request.seconds is not None:
        minutes = request.seconds / 60
        asked, more = f"--minutes {minutes:g}", f"--minutes {2 * minutes:g}"
    else:
        asked, more = f"--trials {request.trials}", f"--trials {2 * (request.trials or 0)}"
    yield f"nothing was measured: earlier runs with this database have used up {asked}, for they count: give {more}"


def finish(report: SessionReport, out: Output, **more: Any) -> None:
    """Print the result; after an interrupt say how to go on, and exit with 130."""
    interrupted = report.stopped == "interrupted"
    out.result({**report.as_dict(), **more})
    if interrupted:
        out.remark("interrupted: all that was measured is kept; run the same command again to go on")
        raise typer.Exit(INTERRUPTED)
