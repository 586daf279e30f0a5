"""This benchmark compiles every task of three networks for every profile and reports what the kernels need.

    python benchmarks/compile_profiles.py [--quick] [--json] [--configs 4] [--profile NAME ...] [--models M,...]

The distinct tasks of ResNet50_v1, MobileNet1.0 and SqueezeNet1.0 are compiled for devices that this machine does not
have. A few configs of every template are compiled for each task, as by `tune model --compile-only`, which also prints
tables of kernels. A row for each profile says how many tasks have a config that compiles. It also has the median and
the largest number of registers, spilled bytes and local memory of all kernels that compile. Nothing is installed: a
profile whose compiler is missing is skipped and named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import vision_ops
from tuner.devices.profiles import Profile, all_profiles, profile_named
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx, tasks_of
from tuner.measure.offline import CandidateReport, OfflineRunner, Verdict
from tuner.session import Task
from tuner.session.compile_check import CompileOptions, CompileReport, compile_tasks, verdicts
from tuner.zoo import write_model

MODELS = ("resnet50_v1", "mobilenet1.0", "squeezenet1.0")
assert vision_ops is not None  # imported for the templates and operators that it registers


def tasks_of_models(models: Sequence[str]) -> list[Task]:
    """Return the tasks of these models, one for each distinct workload."""
    found: dict[Any, Task] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = write_model(model, Path(folder) / f"{model}.onnx")
            for task in tasks_of(fuse(load_onnx(path))):
                found.setdefault(task.workload, task)
    return list(found.values())


def _figures(values: Sequence[int | None]) -> dict[str, float] | None:
    told = [value for value in values if value is not None]
    return {"median": median(told), "most": max(told)} if told else None


def row_of(report: CompileReport) -> dict[str, Any]:
    """Summarise the report of `compile_tasks` for a profile.

    The figures are those of all kernels of the configs that compile.
    """
    reports: list[CandidateReport] = [found for check in report.tasks for found in check.reports]
    kernels = [kernel for found in reports if found.verdict is Verdict.OK for kernel in found.kernels]
    taken = [kernel.resources for kernel in kernels if kernel.resources is not None]
    return {
        "profile": report.profile.name,
        "compilers": list(report.profile.compilers),
        "tasks": len(report.tasks),
        "tasks_that_compile": len(report.tasks) - len(report.failed),
        "failed": [check.task.name for check in report.failed],
        "configs": len(reports),
        "verdicts": verdicts(reports),
        "kernels": len(kernels),
        "registers": _figures([resources.registers for resources in taken]),
        "spilled_bytes": _figures([resources.spill_bytes for resources in taken]),
        "private_bytes": _figures([kernel.kernel.private_bytes for kernel in kernels]),
        "local_bytes": _figures([kernel.local_bytes for kernel in kernels]),
        "items": _figures([kernel.kernel.items for kernel in kernels]),
        "seconds": report.seconds,
        "problems": sorted({f"{r.config.template}: {r.message}" for r in reports if r.verdict is Verdict.COMPILE})[:5],
    }


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table in Markdown. Figures are "median / most"."""
    titles = ("registers", "spilled_bytes", "private_bytes", "local_bytes", "items")
    head = ["profile", "compiled by", "tasks", "configs that compile", "rejected", "kernels"]
    head += [title.replace("_", " ") for title in titles]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        rejected = ", ".join(f"{n} {verdict}" for verdict, n in row["verdicts"].items() if verdict != "ok") or "-"
        cells = [row["profile"], ", ".join(row["compilers"]), f"{row['tasks_that_compile']} of {row['tasks']}"]
        cells += [f"{row['verdicts'].get('ok', 0)} of {row['configs']}", rejected, str(row["kernels"])]
        cells += ["-" if row[t] is None else f"{row[t]['median']:.0f} / {row[t]['most']:.0f}" for t in titles]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def check(profile: Profile, tasks: Sequence[Task], configs: int) -> dict[str, Any] | None:
    """Return the row of a profile. If a compiler is missing, print a line that says what to install and return None."""
    try:
        with OfflineRunner(profile) as runner:
            return row_of(compile_tasks(tasks, profile, runner, CompileOptions(configs=configs)))
    except BadInput as missing:
        print(f"{profile.name} is skipped: {missing}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet1.0 alone, 2 configs of a task")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--configs", type=int, help="of each task, at least one of every template (default: 4)")
    parser.add_argument("--profile", action="append", metavar="NAME", help="default: all of them")
    parser.add_argument("--models", default=",".join(MODELS), help="of tune zoo, separated by commas")
    options = parser.parse_args()
    models = MODELS[2:] if options.quick else options.models.split(",")
    tasks = tasks_of_models(models)
    profiles = [profile_named(name) for name in options.profile] if options.profile else all_profiles()
    rows = []
    for profile in profiles:
        row = check(profile, tasks, options.configs or (2 if options.quick else 4))
        if row is not None:
            rows.append(row)
            print(table_of([row]).splitlines()[-1], file=sys.stderr, flush=True)
            for problem in row["problems"]:
                print(f"  {problem}", file=sys.stderr)
    print(table_of(rows), file=sys.stderr)
    if options.json:
        print(json.dumps({"models": list(models), "rows": rows}))
    if any(row["failed"] for row in rows):
        raise SystemExit(
            "a task has no config that compiles: " + "; ".join(f"{r['profile']}: {r['failed']}" for r in rows)
        )


if __name__ == "__main__":
    main()
