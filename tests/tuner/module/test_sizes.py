"""A manifest says how many bytes a module takes, and an inference besides."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.manifests import write_manifest
from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import Program, Value
from tuner.module import Sizes, build, load, random_inputs, read_manifest
from tuner.report.tables import sizes_text


@pytest.fixture
def module(exports: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    shutil.copytree(exports / "tiny.module", tmp_path / "module")
    return tmp_path / "module"


def _manifest(module: Path) -> dict[str, Any]:
    return json.loads((module / "manifest.json").read_text())


def _bytes(value: Value) -> int:
    return prod(value.shape) * np.dtype(value.dtype).itemsize


@pytest.mark.parametrize("name", ["tiny", "detector"])
def test_sizes_are_those_of_the_files_and_of_the_values(name: str, exports: Path) -> None:
    """Of the plan of values it is known that it holds all operands of each call, and no more than all values."""
    module = exports / f"{name}.module"
    manifest = read_manifest(module)
    sizes = manifest.sizes
    assert sizes is not None
    files = ("network.ro", *filter(None, manifest.constants))
    assert sizes.weights == sum((module / file).stat().st_size for file in files)
    assert manifest.kernels is not None
    assert sizes.kernels == (module / manifest.kernels).stat().st_size
    program = Program.from_dict(json.loads((module / "program.json").read_text()))
    given = {*program.inputs, *program.constants}
    held = {value.memory for i, value in enumerate(program.values)} - given
    at_once = [{program.values[o].memory for o in call.operands} - given for call in program.calls]
    least = max(sum(_bytes(program.values[root]) for root in roots) for roots in at_once)
    assert sizes.values is not None
    assert 0 < least <= sizes.values <= sum(_bytes(program.values[root]) for root in held)
    spaces = program.workspaces.values()
    assert sizes.workspaces == max((s.whole + manifest.threads * s.part for s in spaces), default=0)
    assert sizes.inference == sizes.values + sizes.workspaces


def test_values_that_are_not_needed_together_share_memory(tmp_path: Path) -> None:
    """Of a chain of poolings two neighbours are needed at one time, and the result is in memory of its own."""
    net = Net()
    x = net.input(1, 16, 32, 32)
    for _ in range(6):
        x = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    sizes = build(net.graph(tmp_path, x), open_device("cpu", 1), tmp_path / "m").sizes
    assert sizes is not None
    assert sizes.values == 3 * 16 * 32 * 32 * 4


def test_a_module_of_an_earlier_version_has_no_sizes(module: Path) -> None:
    data = _manifest(module)
    del data["sizes"]
    write_manifest(module, data)
    loaded = load(module)
    assert loaded.manifest.sizes is None
    assert loaded(random_inputs(loaded.manifest.inputs, 0))


@pytest.mark.parametrize(
    "sizes",
    [
        7,
        {},
        {"weights": 1},
        {"weights": -1, "kernels": 1, "values": 1, "workspaces": 1},
        {"weights": "1", "kernels": 1, "values": None, "workspaces": 1},
    ],
)
def test_other_sizes_are_damage(sizes: object, module: Path) -> None:
    write_manifest(module, {**_manifest(module), "sizes": sizes})
    with pytest.raises(BadInput, match="damaged; build the module again"):
        read_manifest(module)


def test_sizes_are_told_in_a_line() -> None:
    told = "weights 2.00 MiB, kernels 0.250 MiB"
    assert sizes_text(Sizes(2 << 20, 1 << 18, None, 0)) == told
    assert sizes_text(Sizes(2 << 20, 1 << 18, 3 << 20, 1 << 20)) == (
        f"{told}, in an inference 4.00 MiB more: with the weights 6.00 MiB at its peak"
    )
