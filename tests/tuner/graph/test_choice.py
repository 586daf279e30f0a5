"""What is chosen for a workload, and what plans choose from: the best kernel of every layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from templates.gpu.limits import GpuLimits, gpu_target
from templates.template import anchor_template, search_space, template_named
from templates.workloads import Conv2d
from tests.templates.support import host_target
from tuner.devices import Device, open_device
from tuner.graph.layout.choice import Choice, choose, rivals
from tuning_db import shipped
from tuning_db.record import Config, Trial
from tuning_db.store import Store, open_db

CPUS = {"x86_64-avx512": "skylake-avx512", "x86_64-avx2": "haswell"}  # what something is shipped for
WORKLOAD = Conv2d(1, 32, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("relu",))

# Knobs of a direct convolution; every space has these values.
DIRECT = {"ui": 4, "th": 1, "chunk": 0, "unroll_kw": 0, "skip": 0, "prefetch": 0}
DIRECT |= {"order": "c.kh.kw.i", "inner": "pixels"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as found:
        yield found


def by_layout(name: str) -> list[list[Config]]:
    """Seeds of templates with plain data, and of those with blocked."""
    target = open_device(name).target
    space = search_space(WORKLOAD, target)
    assert space is not None
    kinds: list[list[Config]] = [[], []]
    for config in space.seed_configs():
        kinds[bool(anchor_template(config.template).layouts(WORKLOAD, target).data.block)].append(config)
    return kinds


def test_every_layout_has_its_best(store: Store) -> None:
    device = open_device("opencl:0")
    plain, blocked = by_layout("opencl:0")
    for seconds, config in ((3e-3, plain[0]), (2e-3, plain[1]), (4e-3, blocked[0])):
        version = anchor_template(config.template).version
        store.add(Trial(WORKLOAD, device.key, config, version, (seconds,), error=1e-7))
    first, other = rivals([WORKLOAD], device, store)[WORKLOAD]
    assert first == choose([WORKLOAD], device, store)[WORKLOAD]
    assert (first.config, first.seconds) == (plain[1], 2e-3)
    assert (other.config, other.seconds, other.source) == (blocked[0], 4e-3, "device")


def test_what_was_not_measured_is_no_rival(store: Store) -> None:
    device = open_device("opencl:0")
    (only,) = rivals([WORKLOAD], device, store)[WORKLOAD]
    assert only.source == "default"
    plain, _ = by_layout("opencl:0")
    store.add(Trial(WORKLOAD, device.key, plain[0], anchor_template(plain[0].template).version, (1.0,), error=1e-7))
    (only,) = rivals([WORKLOAD], device, store)[WORKLOAD]
    assert only.config == plain[0]


def as_shipped(trial: Trial) -> Device:
    """A device with the key of a shipped trial, and a target with its vectors: not those of a device that is here."""
    if trial.device.kind == "cpu":
        return replace(open_device("cpu", 1), key=trial.device, target=host_target(CPUS[trial.device.family]))
    names = ("max_threads", "local_memory_bytes", "lanes", "subgroups", "fp16")
    said = {name: trial.device.attrs[name] for name in names}
    limits = GpuLimits(trial.device.kind, trial.device.family, **said)
    return replace(open_device("opencl:0"), key=trial.device, target=gpu_target(limits, host_target()))


@pytest.mark.night
def test_every_shipped_config_is_chosen_where_nothing_else_is_known(store: Store) -> None:
    by_device: dict[str, list[Trial]] = {}
    for trial in shipped.trials():
        by_device.setdefault(trial.device.key, []).append(trial)
    for trials in by_device.values():
        chosen = choose([t.workload for t in trials], as_shipped(trials[0]), store)
        # Nobody knows what they take here: a plan measures them.
        assert list(chosen.values()) == [Choice(t.config, "shipped", None, t.error) for t in trials]
    assert store.stats().trials == 0


def test_what_a_user_has_measured_goes_before_what_is_shipped(store: Store) -> None:
    trial = next(t for t in shipped.trials() if t.device.kind == "cpu")
    device = as_shipped(trial)
    space = search_space(trial.workload, device.target)
    assert space is not None
    configs = iter(c for c in space.seed_configs() if c != trial.config)
    relative = replace(trial.device, model="another")
    for where, source in ((relative, "family"), (trial.device, "device")):
        slow = replace(trial, config=next(configs), device=where, times=(100.0,))
        store.add(replace(slow, template_version=template_named(slow.config.template).version))
        (choice,) = choose([trial.workload], device, store).values()
        assert choice == Choice(slow.config, source, 100.0, trial.error)


def test_without_a_database_nothing_shipped_is_used() -> None:
    trial = next(t for t in shipped.trials() if t.device.kind == "cpu")
    (choice,) = choose([trial.workload], as_shipped(trial), None).values()
    assert choice.source == "default"


def test_what_was_measured_with_one_thread_is_spread_over_two(store: Store) -> None:
    """The trial keeps its error, and loses its time, which is that of another kernel."""
    workload = Conv2d(1, 16, 64, 64, 16, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("relu",))
    one, two = open_device("cpu", 1), open_device("cpu", 2)
    config = Config("cpu.conv2d_direct", DIRECT | {"ob": 1, "tw": 8, "groups": 1})
    store.add(Trial(workload, one.key, config, anchor_template(config.template).version, (1e-3,), error=1e-7))
    assert choose([workload], one, store)[workload] == Choice(config, "device", 1e-3, 1e-7)
    spread = Config(config.template, {**config.knobs, "groups": 2})
    assert choose([workload], two, store)[workload] == Choice(spread, "family", None, 1e-7)
