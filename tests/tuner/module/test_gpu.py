"""Modules for OpenCL devices, alone and beside the CPU: saved, loaded in a fresh process, weights placed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.manifests import write_manifest
from tests.templates.gpu.support import PLATFORMS, device_number, gpu
from tests.tuner.module.test_by_memory import assert_foreseen, fastest_of, lowering_of
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import Device, open_device, opencl, parallel
from tuner.errors import BadInput
from tuner.graph import AnchorStep, FusedGraph, fuse, load_onnx
from tuner.graph.layout.choice import Planned
from tuner.module import (
    Manifest,
    OnnxReference,
    VerifyOptions,
    build,
    build_placed,
    load,
    operator_errors,
    random_inputs,
    read_manifest,
    verify,
)
from tuning_db.record import DeviceKey

pytestmark = pytest.mark.sampled(2)  # each runs on several devices

INPUT_BYTES = 3 * 16 * 16 * 4
OUTPUT_BYTES = 10 * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_network(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def graph(model: Path) -> FusedGraph:
    return fuse(load_onnx(model))


@pytest.fixture(scope="module", params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def built(graph: FusedGraph, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built") / "tiny"
    build(graph, device, directory)
    return directory


@pytest.fixture(scope="module")
def half(graph: FusedGraph, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The convolutions on the CPU, the rest on the GPU, where its dense layer has weights."""
    directory = tmp_path_factory.mktemp("half") / "tiny"
    placement = [int(i > 2) for i in range(len(graph.steps))]
    build_placed(graph, [open_device("cpu", 1), device], Planned(placement), directory=directory)
    return directory


def changed(directory: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a module with another manifest."""
    subprocess.run(["cp", "-r", str(directory), str(copy)], check=True)
    data = json.loads((copy / "manifest.json").read_text())
    change(data)
    write_manifest(copy, data)
    return copy


def test_a_module_for_a_gpu_is_right_and_says_what_it_needs(built: Path, model: Path, device: Device) -> None:
    manifest = read_manifest(built)
    (processor,) = manifest.devices
    assert (processor.name, DeviceKey.from_dict(processor.key)) == (device.name, device.key)
    assert processor.target["kind"] == "opencl"
    assert manifest.constants == (None,)
    assert not manifest.computes_on_host
    assert {p.name for p in built.iterdir()} == {"manifest.json", *manifest.files}
    assert not any(Path(name).match(parallel.PATTERN) for name in manifest.files)  # it has no loops for threads
    assert max(verify(load(built), OnnxReference(model)).values()) < 1e-5


def test_the_memory_of_a_module_for_a_gpu_is_foreseen(built: Path, graph: FusedGraph, device: Device) -> None:
    assert_foreseen(read_manifest(built), lowering_of(graph, device).footprint(fastest_of(graph, device)))


def test_a_part_on_the_cpu_and_a_part_on_a_gpu(half: Path, model: Path, graph: FusedGraph) -> None:
    manifest = read_manifest(half)
    assert [p.is_host for p in manifest.devices] == [True, False]
    assert any(Path(name).match(parallel.PATTERN) for name in manifest.files)
    assert set(manifest.constants) <= set(manifest.files)
    assert [operator.device for operator in manifest.operators] == [0, 0, 0, 1]
    assert max(verify(load(half), OnnxReference(model), graph=graph).values()) < 1e-5


def test_the_gpu_first(graph: FusedGraph, model: Path, device: Device, tmp_path: Path) -> None:
    """The virtual machine's first device holds the constants: here the CPU's are parameters."""
    placement = [int(not isinstance(step, AnchorStep) or i > 2) for i, step in enumerate(graph.steps)]
    manifest = build_placed(graph, [device, open_device("cpu", 1)], Planned(placement), directory=tmp_path / "m")
    assert manifest.constants[0] is None
    assert manifest.constants[1] is not None
    assert max(verify(load(tmp_path / "m"), OnnxReference(model)).values()) < 1e-5


COUNT = """
import json, sys
import numpy as np, tvm
from tuner.devices import opencl
from tuner.module import load, random_inputs
opencl.load()
counters = tvm.get_global_func("edgetune.opencl.counters")
module = load(sys.argv[1])
placed = counters()["bytes_to_device"]
inputs = random_inputs(module.manifest.inputs, 0)
results = module(inputs)
module(inputs)  # the virtual machine keeps the last call's results: from the third call on nothing is new
before = counters()
for _ in range(100):
    module(inputs)
after = counters()
print(json.dumps({name: int(after[name]) - int(before[name]) for name in before} | {"placed": int(placed),
    "results": {name: value.tolist() for name, value in results.items()}}))
"""


def fresh(directory: Path, **environment: str) -> dict[str, Any]:
    """What 100 inferences in a process of their own cost, after the first two."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(directory)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_results(counted: dict[str, Any], model: Path, manifest: Manifest) -> None:
    wanted = OnnxReference(model)(random_inputs(manifest.inputs, 0))
    for name, value in wanted.items():
        np.testing.assert_allclose(np.array(counted["results"][name]), value, rtol=1e-4, atol=1e-5)


def weight_bytes(graph: FusedGraph, *anchors: int) -> int:
    return sum(4 * graph.anchors[i].weight.size for i in anchors)


@pytest.mark.sampled(2)
def test_no_weight_is_copied_in_100_inferences(built: Path, model: Path, graph: FusedGraph) -> None:
    counted = fresh(built)
    assert counted["placed"] >= weight_bytes(graph, 0, 1, 2, 3)
    assert counted["bytes_to_device"] == 100 * INPUT_BYTES
    assert counted["bytes_from_device"] == 100 * OUTPUT_BYTES
    assert counted["allocations"] == 0
    assert counted["programs_compiled"] == 0
    assert_results(counted, model, read_manifest(built))


def test_nor_in_a_module_on_two_devices(half: Path, model: Path, graph: FusedGraph) -> None:
    counted = fresh(half)
    assert weight_bytes(graph, 3) <= counted["placed"] < weight_bytes(graph, 0, 1, 2, 3)
    crossing = 16 * 16 * 16 * 4  # what the convolutions make
    assert counted["bytes_to_device"] == 100 * crossing
    assert counted["bytes_from_device"] == 100 * OUTPUT_BYTES
    assert counted["allocations"] == 0
    assert_results(counted, model, read_manifest(half))


def test_profile_waits_for_every_kernel(built: Path, half: Path) -> None:
    for directory in (built, half):
        module = load(directory)
        calls = module.profile(random_inputs(module.manifest.inputs, 0), runs=3)
        assert all(call.seconds > 0 for call in calls)
        known = [o.node for o in module.manifest.operators if o.function is not None]
        assert [call.operator.node for call in calls if call.operator] == known
        assert ("copy between devices" in [call.name for call in calls]) == (directory == half)


def test_the_longer_kernel_takes_longer(device: Device, tmp_path: Path) -> None:
    """Times of launches alone would be equal."""
    from tests.tuner.graph.networks import Net

    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 64, 28, 28), (64, 64), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, net.conv(x, (64, 8), 1))
    build(graph, device, tmp_path / "m", choices={})
    module = load(tmp_path / "m")
    seconds = [call.seconds for call in module.profile(random_inputs(module.manifest.inputs, 0), runs=10)]
    flop = 2 * 64 * 64 * 9 * 28 * 28
    assert max(seconds) > flop / 2e12  # no two cores do 2 Tflop/s
    assert max(seconds) > 2 * min(seconds)


def test_every_anchor_is_checked_on_its_device(built: Path, half: Path, graph: FusedGraph) -> None:
    for directory in (built, half):
        module = load(directory)
        errors = operator_errors(module, graph, random_inputs(module.manifest.inputs, 0))
        named = [o for o in module.manifest.operators if o.config is not None]
        assert [e.operator for e in errors] == named
        assert all(e.error < 1e-5 for e in errors)


def test_two_modules_at_once_and_other_threads(built: Path, half: Path, model: Path) -> None:
    modules = [load(built), load(half), load(built)]
    for seed in range(3):
        wanted = OnnxReference(model)(random_inputs(modules[0].manifest.inputs, seed))
        for module in modules:
            for name, value in module(random_inputs(module.manifest.inputs, seed)).items():
                np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
def test_without_a_driver(built: Path, device: Device) -> None:
    """One line that says which device is missing."""
    script = (
        "import sys\nfrom tuner.errors import BadInput\nfrom tuner.module import load\n"
        "try:\n    load(sys.argv[1])\nexcept BadInput as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(built)],
        capture_output=True,
        text=True,
        env={**os.environ, "EDGETUNE_OPENCL": "/none/libOpenCL.so"},
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{built}: was built for {device.name} ({device.key.model}): ")
    assert "/none/libOpenCL.so" in line


def test_a_driver_with_another_number(built: Path, model: Path, device: Device) -> None:
    """Where a module's driver is the only one its device is the first, whatever its number was."""
    counted = fresh(built, EDGETUNE_OPENCL=opencl.device_info(int(device.name.partition(":")[2])).library)
    assert counted["bytes_to_device"] == 100 * INPUT_BYTES
    assert_results(counted, model, read_manifest(built))


def test_kernels_that_use_more_than_the_device_allows(built: Path, device: Device, tmp_path: Path) -> None:
    def grow(data: dict[str, Any]) -> None:
        target = data["devices"][0]["target"]
        target["max_threads_per_block"] = target["max_num_threads"] = 1 << 20

    with pytest.raises(BadInput, match="may use more than") as caught:
        load(changed(built, tmp_path / "m", grow))
    assert device.key.model in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_model_that_allows_as_much_will_do(built: Path, model: Path, tmp_path: Path) -> None:
    def rename(data: dict[str, Any]) -> None:
        data["devices"][0]["key"]["model"] = "of last year"
        target = data["devices"][0]["target"]
        target["keys"] = [key for key in target["keys"] if key != "fp16" and "subgroup" not in key]
        target["max_threads_per_block"] = target["max_num_threads"] = 64
        target["max_shared_memory_per_block"] = 1024

    module = load(changed(built, tmp_path / "m", rename))
    assert max(verify(module, OnnxReference(model), VerifyOptions(seeds=[0])).values()) < 1e-5


def test_the_drivers_are_told_apart() -> None:
    numbers = {driver: device_number(driver) for driver in PLATFORMS}
    assert len(set(numbers.values())) == len(PLATFORMS)
    models = {open_device(f"opencl:{number}").key.attrs["platform"] for number in numbers.values()}
    assert models == set(PLATFORMS.values())


def test_a_module_for_cuda_is_saved_where_there_is_none(graph: FusedGraph, tmp_path: Path) -> None:
    key = DeviceKey("cuda", "nvidia", "Orin", {})
    manifest = build(graph, Device("cuda:7", gpu("orin"), key, 1, 1 << 22), tmp_path / "m")
    assert manifest.devices[0].target["arch"] == "sm_87"
    library = (tmp_path / "m" / str(manifest.kernels)).read_bytes()
    assert b"__global__" in library
    with pytest.raises(BadInput, match=r"was built for cuda:7 \(Orin\)") as caught:
        load(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_tensors_of_the_host_are_taken(built: Path) -> None:
    module = load(built)
    data = random_inputs(module.manifest.inputs, 0)["data"]
    (wanted,) = module({"data": data}).values()
    (result,) = module({"data": tvm.runtime.tensor(data)}).values()
    np.testing.assert_array_equal(result, wanted)
