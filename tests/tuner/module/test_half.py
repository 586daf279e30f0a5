"""Modules in half precision: what they store, what they say about their error, and what verification refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import Device, open_device
from tuner.errors import BadInput, VerificationFailed
from tuner.graph import FusedGraph, fuse, halved, load_onnx
from tuner.graph.layout.choice import Planned
from tuner.module import (
    BuildOptions,
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
from tuner.module.verification import TOLERANCE
from tuning_db.record import tolerance_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_network(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def graph(model: Path) -> FusedGraph:
    return halved(fuse(load_onnx(model)))


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(f"opencl:{device_number('intel')}")


@pytest.fixture(scope="module")
def built(graph: FusedGraph, model: Path, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built") / "tiny"

    def check(folder: Path) -> Mapping[str, float]:
        return verify(load(folder), OnnxReference(model), graph=graph)

    build(graph, device, directory, options=BuildOptions(check=check))
    return directory


def test_the_manifest_has_the_dtype_and_the_error(built: Path, model: Path) -> None:
    manifest = read_manifest(built)
    assert manifest.dtype == "float16"
    assert [tensor.dtype for tensor in (*manifest.inputs, *manifest.outputs)] == ["float32", "float32"]
    assert {operator.workload.dtype for operator in manifest.operators} == {"float16"}
    (error,) = manifest.errors.values()
    assert 1e-5 < error < TOLERANCE["float16"]
    assert verify(load(built), OnnxReference(model)) == manifest.errors


def test_a_module_that_nothing_checked_claims_no_error(graph: FusedGraph, device: Device, tmp_path: Path) -> None:
    assert build(graph, device, tmp_path / "m").errors == read_manifest(tmp_path / "m").errors == {}


def test_weights_take_half_the_bytes(device: Device, tmp_path: Path) -> None:
    net = Net()
    graph = net.graph(tmp_path, net.op("Gemm", net.input(1, 256), net.weight(256, 256)))
    sizes = []
    for name, network in (("single", graph), ("half", halved(graph))):
        build(network, device, tmp_path / name)
        sizes.append((tmp_path / name / "network.ro").stat().st_size)
    assert sizes[0] > 4 * 256 * 256
    assert 2 * 256 * 256 < sizes[1] < 0.52 * sizes[0]


def test_every_kernel_is_right_by_itself(built: Path, graph: FusedGraph) -> None:
    module = load(built)
    errors = operator_errors(module, graph, random_inputs(module.manifest.inputs, 0))
    assert len(errors) == len(graph.anchors)
    assert all(1e-5 < found.error < tolerance_of("float16") for found in errors)


def test_a_kernel_that_is_off_is_named(built: Path, model: Path, graph: FusedGraph) -> None:
    """By so little that the network's outputs do not tell."""
    anchor = graph.anchors[1]
    weight = anchor.weight.copy()
    try:
        anchor.weight[:] *= np.float16(1.004)  # what the module is compared with, not what it computes
        with pytest.raises(VerificationFailed, match=r"is off by .* alone \(allowed: 0.001\)") as caught:
            verify(load(built), OnnxReference(model), VerifyOptions(seeds=[0]), graph=graph)
    finally:
        anchor.weight[:] = weight
    assert repr(anchor.node) in str(caught.value)


def test_a_device_that_stores_no_halves(graph: FusedGraph, device: Device, tmp_path: Path) -> None:
    cpu = open_device("cpu", 1)
    with pytest.raises(BadInput, match="this CPU has no arithmetic in halves"):
        build(graph, cpu, tmp_path / "m")
    with pytest.raises(BadInput, match="this CPU has no arithmetic in halves"):
        build_placed(graph, [device, cpu], Planned([0] * len(graph.steps)), directory=tmp_path / "m")
    with pytest.raises(BadInput, match="cannot store halves"):
        build(graph, open_device(f"opencl:{device_number('pocl')}"), tmp_path / "m")
    assert not (tmp_path / "m").exists()
