"""Recorded spaces: written, read, thinned, replayed."""

from __future__ import annotations

import dataclasses
import itertools
import lzma
import math
from pathlib import Path

import pytest

from tests.tuner.search.landscape import direct_seconds, direct_space
from tuner.errors import BadInput
from tuner.measure.replay.recorded import Record, RecordedSpace, read, thinned, write
from tuner.measure.replay.runner import ReplayRunner
from tuner.measure.runner import Candidate
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Workload

BROKEN = Failure(FailureKind.COMPILE, "register: pressure")


def made(most: int = 200) -> RecordedSpace:
    """Of the analytic landscape's direct template; every ninth config fails."""
    space = thinned(direct_space(), most)
    configs = tuple(space)
    assert space.features is not None
    records = {}
    for i, config in enumerate(configs):
        seconds = direct_seconds(config)
        result = BROKEN if i % 9 == 8 else (seconds, 1.5 * seconds, 0.9 * seconds)
        records[config.key] = Record(result, 0.25, 0.05, space.features(config.knobs))
    return RecordedSpace(
        Workload("conv2d", {"channels": 128}),
        DeviceKey("cpu", "synthetic", "analytic"),
        (space,),
        {"direct": 2},
        {"workload.channels.0": 7.0},
        configs,
        records,
        {"machine": "none"},
    )


def test_a_file_says_all_that_was_recorded(tmp_path: Path) -> None:
    space = made()
    write(space, tmp_path / "s.jsonl.xz")
    found = read(tmp_path / "s.jsonl.xz")
    assert (found.workload, found.device, found.versions, found.context, found.note) == (
        space.workload,
        space.device,
        space.versions,
        space.context,
        space.note,
    )
    assert found.configs == space.configs
    assert list(found.space) == list(space.configs)
    assert found.space.seed_configs() == space.spaces[0].seed_configs() != []
    for config in space.configs:
        kept, was = found.records[config.key], space.records[config.key]
        assert kept.features == pytest.approx(was.features, rel=1e-5)
        if isinstance(was.result, Failure):
            assert kept.result == was.result
        else:
            assert kept.result == pytest.approx(was.result, rel=1e-4)
    assert found.best_seconds == pytest.approx(space.best_seconds, rel=1e-4)


def test_only_recorded_configs_are_valid() -> None:
    space = made()
    knobs = space.spaces[0].knobs
    combinations = itertools.product(*(k.values for k in knobs))
    every = (Config("direct", dict(zip([k.name for k in knobs], values, strict=True))) for values in combinations)
    other = next(c for c in every if c.key not in space.records)
    assert not space.space.is_valid(other)
    assert all(space.space.is_valid(c) for c in space.configs)
    assert "was not recorded" in str(space.space.spaces[0].why_invalid(other))


@pytest.mark.parametrize("most", [50, 300, 10_000])
def test_thinning_keeps_the_seeds_and_about_as_many_configs(most: int) -> None:
    whole = direct_space()
    count = sum(1 for _ in whole)
    thin = thinned(whole, most)
    kept = sum(1 for _ in thin)
    assert min(count, most) <= kept <= max(2 * most, 1) or kept == count
    assert thin.seed_configs() == whole.seed_configs()
    assert all(whole.is_valid(c) for c in thin)


def test_replaying_costs_what_it_cost_and_is_as_noisy_as_it_was() -> None:
    space = made()
    config = space.configs[0]
    exact, noisy = space.answer(), space.answer(noise=3)
    runner = ReplayRunner(space.device, exact, space.versions, exact.cost)
    (trial,) = runner.measure([Candidate(space.workload, config)])
    assert trial == dataclasses.replace(space.trial(config), created=trial.created)
    assert runner.clock() == pytest.approx(0.3)
    drawn = {noisy(Candidate(space.workload, config)) for _ in range(50)}
    assert len(drawn) > 5
    assert {t for times in drawn for t in times} == set(trial.times)
    (failed,) = runner.measure([Candidate(space.workload, space.configs[8])])
    assert failed.failure == BROKEN
    assert math.isinf(failed.seconds)


def test_what_is_no_recorded_space_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.xz"
    with pytest.raises(BadInput, match=r"s\.jsonl\.xz: No such file"):
        read(path)
    path.write_bytes(b"not xz at all")
    with pytest.raises(BadInput, match=r"s\.jsonl\.xz, line \d+: not a recorded space, or cut short"):
        read(path)
    write(made(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"s\.jsonl\.xz, line \d+: not a recorded space, or cut short"):
        read(path)
    lines = lzma.decompress(whole).decode().splitlines()
    path.write_bytes(lzma.compress("\n".join([lines[0].replace('"format": 1', '"format": 9'), *lines[1:]]).encode()))
    with pytest.raises(BadInput, match=r"s\.jsonl\.xz: format 9; this version reads format 1"):
        read(path)
    path.write_bytes(lzma.compress("\n".join([*lines[:4], "[0, [99], [1.0], 0, 0, []]"]).encode()))
    with pytest.raises(BadInput, match=r"s\.jsonl\.xz, line 5: not a recorded space"):
        read(path)
