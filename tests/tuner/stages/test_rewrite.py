"""Networks in stages compute what they compute one kernel after the other, however their queues are held up."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm_ffi

from templates.template import search_space
from tests.templates.gpu.support import device_number
from tests.tuner.graph.test_placed import placed as placed_on
from tests.tuner.stages.networks import RUNS, Delays, Machine, branches, lowered
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import DevicePlan, Placed, lower_placed
from tuner.stages import Schedule, Stage, check, greedy, sequential
from tuner.stages.blocks import blocks
from tuner.stages.calls import Calls
from tuner.stages.operators import numbers

pytestmark = pytest.mark.sampled(2)  # each runs on several devices


@pytest.fixture(scope="module", params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Placed:
    return lowered(branches(tmp_path_factory.mktemp("net")), device)


def by_branch(calls: Calls) -> Schedule:
    """Every block as one stage, every connected part of it as a group: its branches side by side as a whole."""
    graph = calls.graph()
    stages = []
    for members in blocks(graph):
        groups = [tuple(numbers(part)) for part in graph.components(members)]
        stages.append(Stage(tuple(sorted(groups, key=lambda g: (-len(g), g)))))
    check(graph, stages)
    return tuple(stages)


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 16, 12, 12)).astype(np.float32)


def test_branches_are_found(network: Placed) -> None:
    schedule = by_branch(Calls.of(network))
    wide = [stage for stage in schedule if len(stage.groups) == 3]
    assert len(wide) == 2
    assert all(len(stage.groups[0]) == 4 for stage in wide)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", [sequential, greedy])
def test_baselines_compute_the_same(network: Placed, device: Device, make) -> None:
    machine = Machine(network, device, make(Calls.of(network).graph()))
    for one, other in zip(machine.run(inputs()), Machine(network, device).run(inputs()), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [by_branch, lambda calls: greedy(calls.graph())])
def test_held_up_queues_change_nothing(network: Placed, device: Device, make) -> None:
    """EDGETUNE_STAGE_RUNS: how often."""
    machine, plain = Machine(network, device, make(Calls.of(network))), Machine(network, device)
    delays = Delays(device, seed=1)
    for run in range(RUNS):
        given = inputs(run)
        for one, other in zip(machine.run_delayed(delays, given), plain.run(given), strict=True):
            np.testing.assert_array_equal(one, other)
    assert delays.count > RUNS


@pytest.mark.sampled(4)
def test_several_launches_and_their_workspace_in_a_group(tmp_path: Path, device: Device) -> None:
    """Winograd's: of every stream another, or the groups would write each other's."""
    graph = branches(tmp_path)
    configs = {}
    for step in graph.tuned:
        space = search_space(step.workload, device.target, only=["gpu.conv2d_winograd"])
        config = None if space is None else space.sample(Random(0))
        if config is not None:
            configs[step.workload] = config
    assert configs
    placed = lower_placed(graph, [DevicePlan(device.target, configs)], [0] * len(graph.steps))
    calls = Calls.of(placed)
    winograd = {i for i, call in enumerate(calls.kernels) if "winograd" in call.name}
    schedule = by_branch(calls)
    assert any(sum(not winograd.isdisjoint(group) for group in stage.groups) > 1 for stage in schedule)
    machine, plain, delays = Machine(placed, device, schedule), Machine(placed, device), Delays(device, seed=4)
    for run in range(RUNS):
        given = inputs(run)
        for one, other in zip(machine.run_delayed(delays, given), plain.run(given), strict=True):
            np.testing.assert_array_equal(one, other)
    assert delays.count > RUNS


def test_without_longer_lives_results_would_be_wrong(network: Placed, device: Device) -> None:
    """What `keep` is for: memory planning gives a branch's tensors to the others while they run."""
    schedule = by_branch(Calls.of(network))
    careless, careful = (Machine(network, device, schedule, keep) for keep in (False, True))
    assert _storages(careless) < _storages(careful)
    plain, delays, wrong = Machine(network, device), Delays(device, seed=2), 0
    for run in range(30):
        given = inputs(run)
        pairs = zip(careless.run_delayed(delays, given), plain.run(given), strict=True)
        wrong += any(not np.array_equal(one, other) for one, other in pairs)
    assert wrong > 0


def _storages(machine: Machine) -> int:
    return machine.executable.as_text().count("vm.builtin.alloc_storage")


def test_an_error_in_a_stage_leaves_the_streams_as_they_were(network: Placed, device: Device) -> None:
    machine, dev = Machine(network, device, by_branch(Calls.of(network))), device.tvm_device()
    plain = Machine(network, device).run(inputs())

    class Broken(Delays):
        def instrument(self, function, name, before, result, *arguments) -> int:
            super().instrument(function, name, before, result, *arguments)
            if before and name.startswith("conv2d") and self.count > 3:
                raise RuntimeError("broken on purpose")
            return 0

    for attempt in range(3):
        with pytest.raises(RuntimeError, match="on purpose"):
            machine.run_delayed(Broken(device, attempt, share=1.0), inputs())
        assert int(tvm_ffi.get_raw_stream(dev)) == 0
        for one, other in zip(machine.run(inputs()), plain, strict=True):
            np.testing.assert_array_equal(one, other)


def test_several_devices_are_refused(tmp_path: Path) -> None:
    devices = [open_device(f"opencl:{device_number('pocl')}"), open_device("cpu", 1)]
    graph = branches(tmp_path)
    placed = placed_on(graph, devices, [i % 2 for i in range(len(graph.steps))])
    with pytest.raises(BadInput, match="one device"):
        Calls.of(placed)
