"""Which configs are compiled for a task, and what is reported; the compiling itself is tested with its runner."""

from __future__ import annotations

import random

import pytest

from templates.space import Constraint, Knob, SearchSpace, Space
from templates.workloads import Conv2d
from tests.tuner.measure.offline.faulty import WORKLOAD
from tests.tuner.measure.offline.support import compilers_or_skip
from tuner.devices.profiles import profile_named
from tuner.measure.offline import OfflineOptions, OfflineRunner
from tuner.session import Task
from tuner.session.compile_check import CompileOptions, choose, compile_tasks

SMALL = Space("small", (Knob("a", (1, 2, 3)),), seeds=({"a": 2},))
LARGE = Space(
    "large",
    (Knob("a", tuple(range(40))), Knob("b", tuple(range(40)))),
    (Constraint("odd", lambda v: v["a"] % 2 == 0),),
    seeds=tuple({"a": a} for a in range(0, 40, 2)),
)


@pytest.mark.parametrize("count", [1, 2, 8, 20])
def test_every_template_gets_its_share_of_different_valid_configs(count):
    space = SearchSpace((SMALL, LARGE))
    chosen = choose(space, count, random.Random(0))
    assert len(set(chosen)) == len(chosen)
    assert all(map(space.is_valid, chosen))
    shares = {name: sum(c.template == name for c in chosen) for name in ("small", "large")}
    assert shares["large"] == -(-count // 2)
    assert shares["small"] == min(3, shares["large"])


def test_half_are_seeds_and_the_rest_are_drawn():
    chosen = choose(SearchSpace((LARGE,)), 8, random.Random(0))
    assert chosen[:4] == LARGE.seed_configs()[:4]
    assert any(config not in LARGE.seed_configs() for config in chosen[4:])
    assert choose(SearchSpace((LARGE,)), 8, random.Random(0)) == chosen
    assert choose(SearchSpace((LARGE,)), 8, random.Random(1)) != chosen


def test_a_report_names_the_tasks_without_a_config_that_compiles():
    profile = profile_named("mali-t860")
    compilers_or_skip(profile)
    tasks = [Task(WORKLOAD, 2, "known"), Task(Conv2d(1, 3, 5, 5, 7, (1, 1)).workload(), 1, "unknown")]
    seen = []
    options = OfflineOptions(builders=1, plugins=("tests.tuner.measure.offline.faulty",))
    with OfflineRunner(profile, options) as runner:
        report = compile_tasks(
            tasks, profile, runner, CompileOptions(configs=2, only=["test.faulty"]), progress=seen.append
        )
    assert [check.task.name for check in report.failed] == ["unknown"]
    assert tuple(seen) == report.tasks
    found = report.as_dict()
    assert (found["profile"], found["failed"], found["compilers"]) == ("mali-t860", ["unknown"], ["clang"])
    assert [task["compiles"] for task in found["tasks"]] == [True, False]
    assert sum(found["verdicts"].values()) == 2
