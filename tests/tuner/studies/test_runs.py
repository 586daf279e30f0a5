"""Placements that are built and run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.templates.gpu.support import GPUS, device_number, driver
from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_onnx_vision import detector
from tests.tuner.graph.test_placed import branches
from tuner.devices import Device, open_device
from tuner.placement.fallback import fall_back
from tuner.studies.runs import Runs
from tuning_db.store import open_db


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(f"opencl:{device_number('pocl')}"), open_device("cpu", 1)]


def test_a_placement_takes_what_it_takes_once(tmp_path: Path, devices: list[Device]) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    with open_db(tmp_path / "t.db") as store:
        runs = Runs(graph, devices, store, runs=2)
        steps = len(graph.steps)
        for placement in ([0] * steps, [1] * steps, [i % 2 for i in range(steps)]):
            seconds = runs(placement)
            assert 0 < seconds < math.inf
            assert runs(tuple(placement)) == seconds


def test_what_a_device_cannot_compute_takes_for_ever(tmp_path: Path, devices: list[Device]) -> None:
    """Suppression needs local memory, which some GPUs lack."""
    net, here = Net(), driver("pocl")
    graph = net.graph(tmp_path, *detector(net, 60, 3, 8, 0.5))
    lacking = replace(devices[0], target=here.target(GPUS["no_local_memory"]))
    with open_db(tmp_path / "t.db") as store:
        runs = Runs(graph, [lacking, devices[1]], store, runs=1)
        assert runs([0] * len(graph.steps)) == math.inf
        assert 0 < runs(fall_back(graph, lacking.target)) < math.inf
