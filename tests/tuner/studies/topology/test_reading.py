"""Topologies from files and profiles: what they say, and one clear line for each thing that can be wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tuner.errors import BadInput
from tuner.studies.topology import read_topology, topology_of
from tuner.studies.topology.profiles import PROFILES

BOARD = """
[[memory]]
name = "ram"
bytes = 4e9
[[device]]
name = "gpu"
kind = "gpu"
flops = 2e11
bandwidth = 2e10
memory = "ram"
[[device]]
name = "cpu"
kind = "cpu"
flops = 4e10
bandwidth = 2e10
memory = "ram"
overhead = 1e-6
lacks = ["nms"]
[[link]]
from = "gpu"
to = "cpu"
bandwidth = "shared"
latency = 2e-5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "board.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_what_a_board_has(tmp_path: Path) -> None:
    found = topology_of(str(written(tmp_path, BOARD)))
    assert [d.name for d in found.devices] == ["gpu", "cpu"]
    assert found.devices[1].overhead == 1e-6
    assert found.memory_of == (0, 0)
    assert found.link(0, 1).seconds(1e9) == found.link(1, 0).seconds(1) == 2e-5
    assert found.able("nms") == (0,)
    assert found.lane_of[0, 1] != found.lane_of[1, 0]


def test_names_with_a_star_are_all_devices_that_they_match(tmp_path: Path) -> None:
    device = '[[device]]\nname = "g{}"\nkind = "gpu"\nflops = 1e12\nbandwidth = 1e11\n'
    text = "".join(device.format(i) for i in range(3))
    text += '[[link]]\nfrom = "g*"\nto = "g*"\nbandwidth = 1e10\nbus = "pcie"\n'
    text += '[[link]]\nfrom = "g0"\nto = "g1"\nbandwidth = 4e10\nboth = false\n'
    found = read_topology(written(tmp_path, text))
    assert found.link(0, 1).bandwidth == 4e10
    assert found.link(1, 0).bandwidth == found.link(0, 2).bandwidth == 1e10
    assert found.lane_of[1, 0] == found.lane_of[2, 0] != found.lane_of[0, 1]
    assert all(math.isinf(m.bytes) for m in found.memories)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('to = "cpu"', 'to = "npu"', "link: unknown device 'npu': the devices are gpu, cpu"),
        ("[[link]]", "[[other]]", "unknown key 'other'"),
        ('bandwidth = "shared"', "bandwidth = -1e9", "bandwidth must be above 0 bytes per second, not -1e+09"),
        ('bandwidth = "shared"', "bandwidth = nan", "bandwidth must be above 0"),
        ('bandwidth = "shared"', 'bandwidth = "fast"', "bandwidth must be a float, not 'fast'"),
        ("latency = 2e-5", "latency = -1", "latency must be 0 or more seconds"),
        ("latency = 2e-5", "both = false", "no link from 'cpu' to 'gpu': add a [[link]]"),
        ("flops = 2e11", "flops = 0", "device 'gpu': flops must be a number above 0"),
        (
            "flops = 2e11",
            f"flops = {10**400}",
            "device 'gpu': flops must be below 1.8e308, not an integer of 401 digits",
        ),
        ("flops = 2e11", "flops = 1" + "0" * 5000, "not TOML"),
        ("flops = 2e11\n", "", "device 'gpu': no 'flops'"),
        ("flops = 2e11", "speed = 2e11", "device: unknown key 'speed'"),
        ('name = "ram"', 'name = "rom"', "device 'gpu': unknown memory 'ram'"),
        ("bytes = 4e9", "bytes = 0", "memory 'ram': bytes must be above 0"),
        (
            "[[link]]",
            '[[device]]\nname = "gpu"\nkind = "gpu"\nflops = 1\nbandwidth = 1\n[[link]]',
            "'gpu' is there twice",
        ),
        ('lacks = ["nms"]', "lacks = [1]", "lacks must be names of operators"),
        ("overhead = 1e-6", "cores = 4", "device 'cpu': cores must be a str, not 4"),
        ("[[device]]", "[[device]", "not TOML"),
        ('to = "cpu"\n', "", "has no 'to'"),
        ('to = "cpu"', 'to = "gpu"', "a device needs no link to itself"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BOARD
    path = written(tmp_path, BOARD.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        read_topology(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_devices_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no devices"):
        read_topology(written(tmp_path, ""))
    with pytest.raises(BadInput, match=r"cannot be read \(No such file .*\): give a TOML file, as `tune devices"):
        topology_of(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(BadInput, match=r"cannot be read \(it is not UTF-8\)"):
        read_topology(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_whole(name: str) -> None:
    found = topology_of(name)
    assert len(found.links) == len(found.devices) * (len(found.devices) - 1)


def test_clusters_are_those_of_the_paper() -> None:
    p100, k80 = topology_of("p100:16"), topology_of("k80:64")
    assert p100.link(0, 3).bandwidth > p100.link(3, 4).bandwidth
    assert len(k80.devices) == 64
    assert k80.lane_of[0, 2] == k80.lane_of[1, 3]  # through the switch that a node's GPUs share
    assert k80.lane_of[0, 1] != k80.lane_of[0, 2]
    assert k80.lane_of[0, 4] == k80.lane_of[1, 7] == k80.lane_of[0, 8]  # through the adapter of the node that sends
    assert k80.lane_of[4, 0] != k80.lane_of[0, 4] != k80.lane_of[4, 8]
    haswell = topology_of("k80-cpu:2")
    assert [haswell.link(*ends).bus for ends in ((0, 1), (2, 0))] == ["from cpu", "to cpu"]


@pytest.mark.parametrize("text", ["p200", "jetson-nano:4", "p100:0", "p100:x", "p100:9999"])
def test_unknown_profiles_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="topology"):
        topology_of(text)


def test_some_of_its_devices() -> None:
    whole = topology_of("k80-cpu:4")
    names = [d.name for d in whole.devices]
    found = whole.among([names[-1], names[0]])
    assert [d.name for d in found.devices] == [names[-1], names[0]]
    assert found.link(0, 1) == whole.link(len(names) - 1, 0)
    assert len(found.links) == 2
    with pytest.raises(BadInput, match=r"no device 'gpu99': it has "):
        whole.among([names[0], "gpu99"])
