"""LocalRunner with real processes, real kernels, and candidates that go wrong in every way."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import templates
from templates.template import search_space
from templates.workloads import Conv2d
from tests.tuner.measure.misbehaving import EVERY, candidate
from tuner.devices import open_device, usable_cpus
from tuner.measure import Candidate, LocalRunner, MeasureOptions
from tuning_db.record import FailureKind

OPTIONS = MeasureOptions(
    compile_seconds=10, run_seconds=5, memory_bytes=512 << 20, plugins=("tests.tuner.measure.misbehaving",)
)
MEMORY = r"out of memory \(limit 512 MiB\)"

# What goes wrong, and as what it has to be reported.
EXPECTED = {
    "erase_data": (FailureKind.WRONG_ANSWER, r"relative error .* exceeds"),
    "wrong": (FailureKind.WRONG_ANSWER, r"relative error .* exceeds 1.0e-04"),
    "nan": (FailureKind.WRONG_ANSWER, "not finite"),
    "build_tvm_schedule_error": (FailureKind.INVALID, "vectorize"),
    "build_schedule_error": (FailureKind.INVALID, "no such tile"),
    "build_raise": (FailureKind.COMPILE, r"ValueError: the last line \(misbehaving.py:\d+\)$"),
    "build_segfault": (FailureKind.COMPILE, "SIGSEGV"),
    "build_exit": (FailureKind.COMPILE, "status 5"),
    "build_sys_exit": (FailureKind.COMPILE, "SystemExit"),
    "build_hang": (FailureKind.COMPILE_TIMEOUT, "compile deadline of 10 s"),
    "build_allocate": (FailureKind.COMPILE, MEMORY),
    "run_abort": (FailureKind.RUN, "SIGABRT"),
    "run_segfault": (FailureKind.RUN, "SIGSEGV"),
    "run_exit": (FailureKind.RUN, "status 7"),
    "run_hang": (FailureKind.RUN_TIMEOUT, "run deadline of 5 s"),
    "run_raise": (FailureKind.RUN, "ValueError: the last line"),
    "run_allocate": (FailureKind.RUN, MEMORY),
}


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Iterator[Path]:
    """The folder in which the runner makes its own."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("scratch")
        patch.setattr(tempfile, "tempdir", str(path))
        yield path


@pytest.fixture(scope="module")
def runner(scratch) -> Iterator[LocalRunner]:
    with LocalRunner(open_device("cpu", 1), OPTIONS) as made:
        yield made
    assert list(scratch.iterdir()) == []


def test_each_misbehaving_candidate_costs_only_its_own_trial(runner):
    names = [name for bad in EVERY for name in ("good", bad)] + ["good"]
    trials = dict(enumerate(runner.measure([candidate(name) for name in names])))
    assert len(trials) == len(names)
    for i, name in enumerate(names):
        trial = trials[i]
        if name not in EXPECTED:
            assert trial.ok, (i, name, trial.failure)
            assert 0 <= trial.error < 1e-6
            continue
        kind, message = EXPECTED[name]
        assert trial.failure is not None, name
        assert trial.failure.kind is kind, (name, trial.failure)
        assert len(trial.failure.message.splitlines()) == 1
        assert len(trial.failure.message) <= 300
        assert re.search(message, trial.failure.message), (name, trial.failure)
    assert set(EXPECTED) | {"good", "build_leak", "build_shout"} == set(EVERY)


def test_trials_say_which_versions_made_them(runner):
    (trial,) = runner.measure([candidate("good")])
    assert set(trial.versions) == {"tvm", "edgetune"}
    assert trial.template_version == 3


def test_a_builder_that_leaks_is_replaced(runner):
    """Builds keep 40 MiB each; all of them pass under a limit for each build, and no worker keeps what they kept."""
    trials = list(runner.measure([candidate("build_leak")] * 40))
    assert all(t.ok for t in trials), [t.failure for t in trials if not t.ok]
    assert all(child.memory_info().rss < 2 * OPTIONS.memory_bytes for child in children())


def test_compare_alternates_and_keeps_failures(runner):
    trials = runner.compare([candidate("good"), candidate("wrong"), candidate("run_segfault"), candidate("good", 4)])
    kinds = [t.failure.kind if t.failure else None for t in trials]
    assert kinds == [None, FailureKind.WRONG_ANSWER, FailureKind.RUN, None]
    assert all(len(t.times) == OPTIONS.compare_rounds for t in trials if t.ok)
    assert all(t.error < 1e-6 for t in trials if t.ok)


def test_compare_refuses_different_workloads(runner):
    other = candidate("good").workload
    strange = Candidate(replace(other, epilogue=("bias",)), candidate("good").config)
    with pytest.raises(ValueError, match="one workload"):
        runner.compare([candidate("good"), strange])


def test_leaving_early_removes_libraries(runner, scratch):
    trials = runner.measure([candidate("good"), candidate("good", 2)])
    next(trials)
    trials.close()
    left = [path.name for path in scratch.glob("*/*.so")]
    assert left == ["k1.so"]  # the preflight kernel, which every new measuring worker runs first


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", sorted({1, len(usable_cpus())}))
def test_real_templates_measure_on_pinned_threads(threads):
    assert templates is not None
    device = open_device("cpu", threads)
    workload = Conv2d(1, 32, 14, 14, 32, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"))
    space = search_space(workload, device.target)
    assert space is not None
    rng = random.Random(1)
    candidates = [Candidate(workload, config) for _ in range(6) if (config := space.sample(rng)) is not None]
    others = children()
    with LocalRunner(device) as runner:
        trials = list(runner.measure(candidates))
        assert [t.failure for t in trials] == [None] * len(candidates)
        masks = measuring_masks(others)
    cores = set(usable_cpus()[:threads])
    assert {cpu for mask in masks for cpu in mask} == cores
    assert all(len(mask) == 1 for mask in masks)
    assert len(masks) == threads


def measuring_masks(others: list[psutil.Process]) -> list[tuple[int, ...]]:
    """The affinity of every thread of the measuring worker that is not one of the `others`."""
    (worker,) = (child for child in children() if child not in others and child.name() == "tune-measure")
    return [tuple(psutil.Process(thread.id).cpu_affinity()) for thread in worker.threads()]
