"""`tune devices --topology`: the devices that are here, as a file that the simulator reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuner.cli.conftest import Done
from tuner.studies.topology import topology_of


@pytest.mark.night
def test_what_is_listed_is_measured_and_written(tune: Callable[..., Done], tmp_path: Path) -> None:
    done = tune("devices", "--topology", "here.toml", "--json")
    assert done.status == 0, done.err
    said = done.json()
    topology = topology_of(str(tmp_path / "here.toml"))
    assert topology.name == "here"
    assert [d.name for d in topology.devices] == [d["name"] for d in said["devices"]]
    assert [d.flops for d in topology.devices] == [d["flops"] for d in said["topology"]["devices"]]
    for said_of, link in zip(said["topology"]["links"], topology.links, strict=True):
        assert (said_of["source"], said_of["target"], said_of["latency"]) == (link.source, link.target, link.latency)
        assert len(said_of["sizes"]) == len(said_of["seconds"]) >= 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--topology", "here.json"), "here.json: topologies are read from .toml files"),
        (("--topology", "none/here.toml"), "does not exist"),
        (("--topology", "here.toml", "--profiles"), "leave out --profiles"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_measured(
    tune: Callable[..., Done], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = tune("devices", *words)
    assert done.status == 2
    assert message in done.error
    assert not list(tmp_path.iterdir())
