"""`tune db` shows and maintains a tuning database: stats, best, import, export, merge, verify, withdraw, prune.

SQLAlchemy, which the database uses, is imported inside functions. Otherwise every command's `--help` would wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DeviceOption,
    JsonOption,
    Output,
    PluginOption,
    SeedOption,
    ThreadsOption,
    VendorOption,
    check_file,
    check_parent_writable,
)
from tuner.cli.examples import examples
from tuner.cli.remeasure import Request, exit_of, verify_by_measuring
from tuner.errors import BadInput, VerificationFailed
from tuning_db import logs
from tuning_db.errors import DatabaseError
from tuning_db.record import Trial
from tuning_db.rows import from_record

if TYPE_CHECKING:
    from tuning_db.importing import ImportReport
    from tuning_db.store import Store

app = typer.Typer(
    no_args_is_help=True,
    help="Look into a tuning database, join and keep it.",
    epilog=examples("tune db stats", "tune db export trials.jsonl.xz", "tune db merge other.db --db team.db"),
)

ToleranceOption = Annotated[
    float | None,
    typer.Option("--tolerance", min=0, help="Largest error against the reference that a best may have (by dtype)."),
]


@app.command(epilog=examples("tune db stats", "tune db stats --db postgresql://user@host/tuning --json"))
def stats(db: DbOption = DEFAULT_DB, as_json: JsonOption = False) -> None:
    """Count trials, failures, workloads and devices."""
    from tuning_db.store import open_db

    with Output(as_json) as out, open_db(db, read_only=True) as store:
        counts = store.stats()
        table = Table(box=None, show_header=False)
        for name in ("trials", "failures", "workloads", "devices", "in_flight"):
            table.add_row(name.replace("_", " "), f"{getattr(counts, name):,}")
            if name == "failures":
                for kind, count in counts.failures_by_kind.items():
                    table.add_row(f"  {kind}", f"{count:,}")
        out.show(table)
        out.result({**vars(counts), "failures_by_kind": dict(counts.failures_by_kind)})


@app.command(epilog=examples("tune db best", "tune db best --op conv2d --tolerance 1e-5"))
def best(
    op: Annotated[str | None, typer.Option("--op", help="Only workloads of this operator.")] = None,
    tolerance: ToleranceOption = None,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Show the best config of each workload on each device."""
    from tuner.report.text import microseconds, workload_text
    from tuning_db.store import open_db
    from tuning_db.trial_flags import identity

    with Output(as_json) as out, open_db(db, read_only=True) as store:
        found = _all_best(store, op, tolerance)
        table = Table(box=None)
        for title in ("name", "us", "workload", "template", "error", "device", "knobs"):
            right = title in ("us", "error")
            fixed = {"justify": "right"} if right else {"no_wrap": True} if title in ("name", "template") else {}
            table.add_column(title, overflow="fold", **fixed)
        for trial in found:
            knobs = " ".join(f"{name}={_text(value)}" for name, value in trial.config.knobs.items())
            device = f"{trial.device.kind} {trial.device.model} {_attrs(trial.device.attrs)}".strip()
            what, template = workload_text(trial.workload), trial.config.template
            seconds, error = microseconds(trial.seconds), f"{trial.error:.1e}"
            table.add_row(identity(trial), seconds, what, template, error, device, knobs)
        out.show(table)
        out.result({"best": [_as_dict(trial) for trial in found]})


def _all_best(
    store: Store,
    op: str | None = None,
    tolerance: float | None = None,
    usable: Callable[[Trial], bool] | None = None,
) -> list[Trial]:
    pairs = [(w, d) for d in store.devices() for w in store.workloads(d) if op is None or w.op == op]
    found = (store.best(workload, device, tolerance, usable) for workload, device in pairs)
    return [trial for trial in found if trial is not None]


def _as_dict(trial: Trial) -> dict[str, Any]:
    from tuning_db.trial_flags import identity

    return {
        "name": identity(trial),
        "workload": trial.workload.as_dict(),
        "device": trial.device.as_dict(),
        "config": trial.config.as_dict(),
        "template_version": trial.template_version,
        "seconds": trial.seconds,
        "error": trial.error,
        "created": trial.created.isoformat(),
    }


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _attrs(attrs: Any) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in attrs.items())


@app.command("import", epilog=examples("tune db import trials.jsonl.xz", "tune db import autotvm.log --db team.db"))
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Logs as `export` writes (.gz, .xz too), or AutoTVM's (0.2)."),
    ],
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Add the trials of logs; those that are known already, and lines that are no trials, are skipped."""
    from tuning_db.store import open_db

    for path in files:
        if not path.is_dir():
            check_file(path, "a log of JSON lines")
        with _opened(path) as items:
            _check_log(path, items)
    with Output(as_json) as out, open_db(db) as store:
        reports = []
        for path in files:
            report = _imported(store, path)
            reports.append(report)
            out.show(f"{path}: {report.added} added, {report.known} known, {len(report.bad)} bad lines")
            out.remark_some(_grouped(path, report.bad))
        bad = [
            {"file": str(path), "line": bad.number, "reason": bad.reason}
            for path, report in zip(files, reports, strict=True)
            for bad in report.bad
        ]
        out.result({"added": sum(r.added for r in reports), "known": sum(r.known for r in reports), "bad": bad})


def _imported(store: Store, path: Path) -> ImportReport:
    from tuning_db import importing

    if path.is_dir():
        with _opened(path) as items:
            return importing.import_all(store, items)
    with logs.opened(path) as lines:
        return importing.import_log(store, lines, _decoded)


def _decoded(data: Any, known: dict[str, Any] | None) -> Trial:
    """Decode the trial of a record, ours or AutoTVM's. `known` is the cache that `from_record` takes."""
    if isinstance(data, dict) and "format" not in data and not {"input", "i"}.isdisjoint(data):
        from tuner.interop import autotvm  # this import needs TVM

        return autotvm.from_record(data)
    return from_record(data, known)


def _grouped(path: Path, bad: Iterable[logs.BadLine]) -> list[str]:
    """Return one line for each reason, with the number of the first bad line and how many more there are."""
    lines: dict[str, list[int]] = {}
    for line in bad:
        lines.setdefault(line.reason, []).append(line.number)
    more = {reason: f" ({len(found) - 1} more lines like it)" if found[1:] else "" for reason, found in lines.items()}
    return [f"{path}:{found[0]}: {reason}{more[reason]}" for reason, found in lines.items()]


@contextmanager
def _opened(path: Path) -> Generator[Iterator[Trial | logs.BadLine], None, None]:
    """Open a log, ours or another tuner's, and give an iterator over its trials and bad lines.

    Raises BadInput for a folder that is no database of MetaSchedule's.
    """
    if not path.is_dir():
        with logs.opened(path) as lines:
            yield logs.read(lines, _decoded)
        return
    from tuner.interop import metaschedule  # this import needs TVM

    if not metaschedule.is_database(path):
        raise BadInput(f"{path}: is a folder without {metaschedule.WORKLOADS} and {metaschedule.RECORDS}")
    yield metaschedule.read(path)


def _check_log(path: Path, items: Iterator[Trial | logs.BadLine]) -> None:
    """Raises BadInput for a log that has lines but no trial. It is called before a database is created for the log."""
    first = next(items, None)
    if isinstance(first, logs.BadLine) and not any(isinstance(item, Trial) for item in items):
        raise BadInput(f"{path}: holds no trial; line {first.number}: {first.reason}")


def _remark_unreadable(out: Output, store: Store) -> None:
    if store.unreadable:
        out.remark(f"{store.name}: {len(store.unreadable)} records cannot be read: `tune db verify` says why")


@app.command(
    epilog=examples(
        "tune db export trials.jsonl.xz", "tune db export bests.jsonl.xz --bests", "tune db export - --db team.db"
    )
)
def export(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="Where to (.gz and .xz are compressed); - is standard output.")
    ] = Path("-"),
    bests: Annotated[
        bool,
        typer.Option("--bests", help="Only the best of each workload and device, of templates as they are here now."),
    ] = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Write every trial as a JSON line."""
    from tuning_db.store import open_db

    to_stdout = str(file) == "-"
    if to_stdout and as_json:
        raise BadInput("--json leaves standard output to its one object: give a FILE to export to")
    if not to_stdout:
        check_parent_writable(file)
        if file.exists() and not file.is_file():
            raise BadInput(f"{file}: is not a plain file; give another, or - for standard output")
    with Output(as_json) as out, open_db(db, read_only=True) as store:
        if to_stdout:
            logs.write(_exported(store, bests), sys.stdout)
            return
        if store.path is not None and file.exists() and os.path.samefile(file, store.path):
            raise BadInput(f"{file}: is the database itself; give another file")
        count = logs.write_file(_exported(store, bests), file)
        out.show(f"{file}: {count} trials")
        _remark_unreadable(out, store)
        out.result({"file": str(file), "trials": count})


def _exported(store: Store, bests: bool) -> Iterable[Trial]:
    return current_bests(store) if bests else store.trials()


def current_bests(store: Store) -> list[Trial]:
    """Return the best trial of each workload on each device, of templates as they are here now."""
    versions = template_versions()
    return _all_best(store, usable=lambda trial: versions.get(trial.config.template) == trial.template_version)


def template_versions() -> dict[str, int]:
    """Return the version of every built-in template by name."""
    import vision_ops  # noqa: F401  (registers the built-in templates)
    from templates.template import all_templates

    return {template.name: template.version for template in all_templates()}


@app.command(
    epilog=examples(
        "tune db merge laptop.db board.db --db team.db", "tune db merge edgetune.db --db postgresql://user@host/tuning"
    )
)
def merge(
    others: Annotated[list[str], typer.Argument(metavar="OTHER...", help="Databases to take trials from.")],
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Add the trials of other databases to this one; the others are only read."""
    from tuning_db import maintain
    from tuning_db.store import open_db

    for other in others:
        with open_db(other, read_only=True) as source:
            if source.path is not None and Path(db).exists() and os.path.samefile(db, source.path):
                raise BadInput(f"{other}: is the database to merge into; give another one")
    with Output(as_json) as out, open_db(db) as store:
        added = known = 0
        for other in others:
            with open_db(other, read_only=True) as source:
                merged = maintain.merge(store, source)
                _remark_unreadable(out, source)
            out.show(f"{other}: {merged.added} added, {merged.known} known")
            added, known = added + merged.added, known + merged.known
        out.result({"added": added, "known": known})


@app.command(epilog=examples("tune db verify", "tune db verify --measure 20 --device cpu --threads 1"))
def verify(
    measure: Annotated[
        int | None,
        typer.Option("--measure", min=1, metavar="N", help="Also measure N of the device's bests again, at random."),
    ] = None,
    *,
    device: DeviceOption = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    factor: Annotated[
        float, typer.Option("--factor", min=1.0, help="Tell times that differ by more, in either direction.")
    ] = 1.5,
    seed: SeedOption = 0,
    plugin: PluginOption = None,
    vendor: VendorOption = "",
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Check the file's structure and that every record decodes and matches its keys; with --measure also that kernels
    are right and as fast as they were. Exit status 4 if not right; what is measured is added to the history."""
    from tuning_db import maintain
    from tuning_db.store import open_db

    with Output(as_json) as out, open_db(db, create=False, read_only=measure is None) as store:
        problems = list(maintain.verify(store))
        trials = None if problems else store.stats().trials
        out.remark_some(problems)
        out.show(f"{db}: {len(problems)} problems" if problems else f"{db}: {trials} trials, all good")
        result: dict[str, Any] = {"trials": trials, "problems": problems}
        if measure is not None and not problems:
            request = Request(measure, device, threads, seed, factor, plugin or (), vendor)
            result["measured"] = verify_by_measuring(store, request, out)
        out.result(result)
    if problems:
        raise typer.Exit(VerificationFailed.exit_status)
    if "measured" in result:
        exit_of(result["measured"])


@app.command(
    epilog=examples(
        "tune db withdraw 1f0c3a99b2d4 --why 'wrong on the second board'", "tune db withdraw 1f0c3a99b2d4 --db team.db"
    )
)
def withdraw(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of bests, as `tune db best` shows them.")],
    why: Annotated[str, typer.Option("--why", help="What to note with it.")] = "by hand",
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Let configs never be a best again, whatever was or will be measured of them; the next best takes their place."""
    from tuning_db import trial_flags
    from tuning_db.store import open_db

    with Output(as_json) as out, open_db(db, create=False) as store:
        found = [trial_flags.trial_of(store, name) for name in names]
        for name, trial in zip(names, found, strict=True):
            trial_flags.withdraw(store, trial, why)
            left = store.best(trial.workload, trial.device)
            now = (
                "nothing is left of this workload" if left is None else f"{trial_flags.identity(left)} is the best now"
            )
            out.show(f"{name}: withdrawn; {now}")
        out.result({"withdrawn": names})


@app.command(epilog=examples("tune db prune --failures --older-than 30 --dry-run", "tune db prune --keep-best 10"))
def prune(
    failures: Annotated[bool, typer.Option("--failures", help="Remove failed trials.")] = False,
    *,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Remove trials older than this.")
    ] = None,
    keep_best: Annotated[
        int | None,
        typer.Option("--keep-best", min=1, metavar="N", help="Keep N successes for each workload and device."),
    ] = None,
    tolerance: ToleranceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Remove the trials that meet any of the given criteria."""
    from tuning_db import maintain
    from tuning_db.store import open_db

    if not failures and older_than is None and keep_best is None:
        raise BadInput("nothing says which trials to remove: give --failures, --older-than or --keep-best")
    before = None if older_than is None else _days_ago(older_than)
    with Output(as_json) as out, open_db(db, create=False, read_only=dry_run) as store:
        pruned = maintain.prune(store, failures, before, keep_best=keep_best, tolerance=tolerance, dry_run=dry_run)
        out.show(f"{db}: {pruned.removed} trials {'would go' if dry_run else 'removed'}, {pruned.kept} kept")
        if pruned.removed and not dry_run:
            try:
                store.compact()
            except DatabaseError as error:  # the trials are gone; only the file keeps its size
                out.remark(f"the file could not be made smaller: {error}")
        out.result({"removed": pruned.removed, "kept": pruned.kept, "dry_run": dry_run})


def _days_ago(days: float) -> datetime:
    try:
        return datetime.now(UTC) - timedelta(days=days)
    except OverflowError:
        raise BadInput(f"--older-than {days:g}: no trial can be that old") from None
