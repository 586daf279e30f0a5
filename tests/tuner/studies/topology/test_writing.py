"""Topologies as files: whatever there is reads back equal."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.studies.topology import DeviceSpec, Link, Memory, Topology, as_toml, read_topology, topology_of
from tuner.studies.topology.profiles import PROFILES

# Lone surrogates are no characters of a file.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
RATES = st.floats(1e-300, 1e300)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
    memories = [Memory(n, draw(RATES | st.just(math.inf))) for n in draw(st.lists(TEXTS, min_size=1, unique=True))]
    devices = tuple(
        DeviceSpec(
            name,
            draw(TEXTS),
            draw(RATES),
            draw(RATES),
            draw(st.sampled_from(memories)).name,
            draw(st.floats(0, 1)),
            frozenset(draw(st.lists(TEXTS, max_size=2))),
            draw(TEXTS | st.just("")),
        )
        for name in names
    )
    pairs = draw(st.permutations([(a, b) for a in names for b in names if a != b]))
    rates = RATES | st.just(math.inf)
    links = tuple(Link(a, b, draw(rates), draw(st.floats(0, 1)), draw(TEXTS | st.just(""))) for a, b in pairs)
    return Topology(draw(TEXTS), devices, tuple(memories), links)


def read_back(topology: Topology, folder: Path) -> Topology:
    path = folder / "written.toml"
    path.write_text(as_toml(topology), encoding="utf-8")
    return read_topology(path)


@given(topologies())
def test_whatever_there_is_reads_back_equal(topology: Topology) -> None:
    with TemporaryDirectory() as folder:
        assert read_back(topology, Path(folder)) == topology


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_read_back_equal(name: str, tmp_path: Path) -> None:
    topology = topology_of(name)
    found = read_back(topology, tmp_path)
    assert found == topology
    assert found.lanes == topology.lanes
    assert found.lane_of == topology.lane_of
