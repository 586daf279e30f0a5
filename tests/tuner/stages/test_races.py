"""No kernels of a stage that run at the same time touch the same memory, unless both only read it."""

from __future__ import annotations

import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.stages.networks import Machine, all_merged, branches, host, lowered, with_threads
from tests.tuner.stages.races import RaceDetector
from tests.tuner.stages.test_rewrite import by_branch, inputs
from tuner.devices import Device, open_device
from tuner.graph import Placed
from tuner.stages import Schedule, greedy
from tuner.stages.calls import Calls
from tuner.stages.merge import Merging


@pytest.fixture(scope="module", params=["pocl", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return host(4) if request.param == "cpu" else open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture
def streams(device: Device) -> None:
    """For tests that take calls apart which the host has as one."""
    if device.is_host:
        pytest.skip("a stage on the host is one call")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Placed:
    return lowered(branches(tmp_path_factory.mktemp("net")), device)


def detected(machine: Machine, device: Device) -> tuple[list[str], int]:
    detector = RaceDetector(device)
    machine.run_watched(detector.instrument, inputs())
    return detector.races(), detector.ordered


def schedules(network: Placed, device: Device) -> dict[str, Schedule]:
    calls = Calls.of(network)
    merged = all_merged(Merging(network, calls, device))
    found = {"by branch": by_branch(calls), "greedy": greedy(calls.graph()), "merged": merged}
    return {name: with_threads(s, 4) for name, s in found.items()} if device.is_host else found


@pytest.mark.parametrize("name", ["by branch", "greedy"])
def test_there_are_none(network: Placed, device: Device, name: str) -> None:
    races, ordered = detected(Machine(network, device, schedules(network, device)[name]), device)
    assert races == []
    assert ordered > 0  # streams were joined where they had to be


@pytest.mark.sampled(3)
def test_merged_kernels_have_none(network: Placed, device: Device) -> None:
    schedule = schedules(network, device)["merged"]
    assert any(stage.merged for stage in schedule)
    assert detected(Machine(network, device, schedule), device)[0] == []


@pytest.mark.usefixtures("streams")
def test_memory_that_is_given_away_too_early_is_one(network: Placed, device: Device) -> None:
    """What `keep` is for."""
    races, _ = detected(Machine(network, device, by_branch(Calls.of(network)), keep=False), device)
    assert races
    assert all("writes" in race for race in races)


@pytest.mark.usefixtures("streams")
def test_streams_that_are_not_joined_race(network: Placed, device: Device) -> None:
    detector = RaceDetector(device)

    def without_joins(function, name, before, result, *arguments) -> int:
        return 0 if name.endswith("stage.join") else detector.instrument(function, name, before, result, *arguments)

    Machine(network, device, by_branch(Calls.of(network))).run_watched(without_joins, inputs())
    assert detector.races()
