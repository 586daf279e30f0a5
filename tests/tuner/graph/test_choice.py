"""What plans choose from: the best kernel of every layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from templates.template import anchor_template, search_space
from templates.workloads import Conv2d
from tuner.devices import open_device
from tuner.graph.choice import choose, rivals
from tuning_db.record import Config, Trial
from tuning_db.store import Store, open_db

WORKLOAD = Conv2d(1, 32, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("relu",))


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
