"""Compile what a network needs for a device that is not here: a few configs of every template for every task.

Start at `compile_tasks`. Nothing is measured and no report is stored; tuner.measure.offline gives the reason.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from templates.space import SearchSpace, Space
from templates.template import search_space
from tuner.devices.profiles import Profile
from tuner.measure.offline import CandidateReport, OfflineRunner, Verdict
from tuner.measure.runner import Candidate
from tuner.session.proposing import task_seed
from tuner.tasks import Task
from tuning_db.record import Config

CONFIGS = 8  # of each task, unless the caller says otherwise


@dataclass(frozen=True)
class TaskCheck:
    """A task with the reports that its configs got. There are none where no template applies."""

    task: Task
    reports: tuple[CandidateReport, ...]

    @property
    def compiles(self) -> bool:
        return any(report.verdict is Verdict.OK for report in self.reports)

    def by_template(self) -> Mapping[str, list[CandidateReport]]:
        """Return the reports of each template, in the order of the templates' names."""
        names = sorted({report.config.template for report in self.reports})
        return {name: [r for r in self.reports if r.config.template == name] for name in names}

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.task.name,
            "workload": self.task.workload.as_dict(),
            "occurrences": self.task.occurrences,
            "compiles": self.compiles,
            "verdicts": verdicts(self.reports),
            "configs": [report.as_dict() for report in self.reports],
        }


@dataclass(frozen=True)
class CompileReport:
    """A report that says how every task compiled for the profile. `seconds` is wall time."""

    profile: Profile
    tasks: tuple[TaskCheck, ...]
    seconds: float

    @property
    def failed(self) -> list[TaskCheck]:
        """Return the tasks without a config that compiles."""
        return [task for task in self.tasks if not task.compiles]

    def as_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "target": str(self.profile.target()),
            "compilers": list(self.profile.compilers),
            "seconds": self.seconds,
            "verdicts": verdicts([report for task in self.tasks for report in task.reports]),
            "failed": [task.task.name for task in self.failed],
            "tasks": [task.as_dict() for task in self.tasks],
        }


def verdicts(reports: Sequence[CandidateReport]) -> dict[str, int]:
    """Count how often each verdict was given, "ok" first."""
    counts = Counter(report.verdict for report in reports)
    return {str(verdict): counts[verdict] for verdict in Verdict if counts[verdict]}


@dataclass(frozen=True)
class CompileOptions:
    """Says what is compiled: `configs` configs of every task, drawn by `seed`. `exact` and `only` are as in
    `TuneOptions`."""

    configs: int = CONFIGS
    seed: int = 0
    exact: bool = False
    only: Sequence[str] | None = None


def compile_tasks(
    tasks: Sequence[Task],
    profile: Profile,
    runner: OfflineRunner,
    options: CompileOptions | None = None,
    progress: Callable[[TaskCheck], None] | None = None,
) -> CompileReport:
    """Check configs of every task, at least one of every template that applies. `runner` is the profile's. `progress`
    is called after each task. Raises BadInput if workers cannot start."""
    started, target, options = time.monotonic(), profile.target(), options or CompileOptions()
    checks = []
    for task in tasks:
        space = search_space(task.workload, target, options.only, options.exact)
        rng = random.Random(task_seed(options.seed, task))
        chosen = [] if space is None else choose(space, options.configs, rng)
        reports = runner.check([Candidate(task.workload, config) for config in chosen])
        checks.append(TaskCheck(task, tuple(reports)))
        if progress is not None:
            progress(checks[-1])
    return CompileReport(profile, tuple(checks), time.monotonic() - started)


def choose(space: SearchSpace, configs: int, rng: random.Random) -> list[Config]:
    """Return different valid configs, as many of each template, and at least one. Half of them are seeds of the
    template's author, and half are drawn at random."""
    share = -(-configs // len(space.spaces))
    return [config for part in space.spaces for config in _choose(part, share, rng)]


def _choose(space: Space, count: int, rng: random.Random) -> list[Config]:
    seeds = space.seed_configs()
    drawn = (space.sample(rng) for _ in range(4 * count))
    candidates = [*seeds[: -(-count // 2)], *(config for config in drawn if config is not None), *seeds]
    return list(dict.fromkeys(candidates))[:count]
