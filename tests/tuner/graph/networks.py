"""Small ONNX networks for tests, node by node, and running them through the whole lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.target import Target

from tests.templates.support import host_target
from tuner.graph import DevicePlan, FusedGraph, Placed, compile_module, fuse, host_of, load_onnx, lower_placed
from tuner.module import OnnxReference
from tuning_db.record import Config, Workload


class Net:
    """Adds nodes with seeded random weights; every method takes and returns names of values."""

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, *shape: Any, name: str = "x", dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def op(self, kind: str, *reads: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; `domain` is one of its attributes."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        results = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(reads), results, name=f"/{name}/{kind}", **attributes))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int | tuple[int, int] = 3, bias: bool = True, **attributes: Any
    ) -> str:
        """`channels`: input channels per group, output channels."""
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        weight = self.weight(channels[1], channels[0], kh, kw, scale=1 / np.sqrt(channels[0] * kh * kw))
        reads = [x, weight, *([self.weight(channels[1])] if bias else [])]
        return self.op("Conv", *reads, kernel_shape=[kh, kw], **attributes)

    def batch_norm(self, x: str, channels: int) -> str:
        variance = self.constant((self.rng.random(channels) + 0.5).astype(np.float32))
        return self.op("BatchNormalization", x, *(self.weight(channels) for _ in range(3)), variance)

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def model(self, *outputs: str) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.weights)
        domains = {node.domain: 1 for node in self.nodes if node.domain} | {"": self.opset}
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in domains.items()])
        model.ir_version = 8
        return model

    def save(self, path: Path, *outputs: str) -> Path:
        path.write_bytes(self.model(*outputs).SerializeToString())
        return path

    def save_untyped(self, path: Path, *outputs: str) -> Path:
        """Save it with the types that its outputs have by its nodes, where onnx knows the operators."""
        model = self.model(*outputs)
        for value in model.graph.output:
            value.ClearField("type")
        path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
        return path

    def graph(self, folder: Path, *outputs: str) -> FusedGraph:
        return fuse(load_onnx(self.save(folder / "net.onnx", *outputs)))


def lowered(graph: FusedGraph, target: Target, choices: Mapping[Workload, Config | None] | None = None) -> Placed:
    """All on one device."""
    return lower_placed(graph, [DevicePlan(target, choices or {})], [0] * len(graph.steps))


def calls(graph: FusedGraph, target: Target) -> list[str]:
    """The functions that the finished module calls, in order."""
    module = lowered(graph, target).module
    values = [b.value for block in module["main"].body.blocks for b in block.bindings]
    named = [v for v in values if getattr(getattr(v, "op", None), "name", "").startswith("relax.call_tir")]
    return [v.args[0].name_hint for v in named]


def conversions(graph: FusedGraph, target: Target) -> int:
    return sum("to_blocked" in name or "to_plain" in name for name in calls(graph, target))


def run(
    graph: FusedGraph,
    target: Target,
    inputs: Mapping[str, np.ndarray],
    choices: Mapping[Workload, Config | None] | None = None,
    device: tvm.runtime.Device | None = None,
) -> dict[str, np.ndarray]:
    """Lower, compile in memory and run; on the CPU unless `device` is given."""
    return compiled(graph, target, choices, device)(inputs)


def compiled(
    graph: FusedGraph,
    target: Target,
    choices: Mapping[Workload, Config | None] | None = None,
    device: tvm.runtime.Device | None = None,
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Lower and compile in memory. Return what runs the network, on the CPU unless `device` is given."""
    tvm_device = device or tvm.cpu()
    whole = lowered(graph, target, choices)
    machine = relax.VirtualMachine(compile_module(whole.module, host_of([target]), 1), tvm_device)

    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = [*(inputs[t.name] for t in graph.model.inputs), *whole.constants[0]]
        results = [r.numpy() for r in machine["main"](*(tvm.runtime.tensor(array, tvm_device) for array in arrays))]
        return {t.name: t.entries(i, results) for i, t in enumerate(graph.model.outputs)}

    return call


def random_inputs(graph: FusedGraph, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in graph.model.inputs}


def expected(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnx itself computes."""
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))


def assert_computes(
    net: Net,
    folder: Path,
    target: Target,
    outputs: Sequence[str],
    tolerance: float = 1e-5,
    device: tvm.runtime.Device | None = None,
) -> FusedGraph:
    """The lowered network gives what onnx gives; returns its fused graph."""
    graph = net.graph(folder, *outputs)
    inputs = random_inputs(graph)
    assert_close(run(graph, target, inputs, device=device), expected(net.model(*outputs), inputs), tolerance)
    return graph


def assert_close(results: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> None:
    assert results.keys() == wanted.keys()
    for name, value in wanted.items():
        assert results[name].shape == value.shape
        assert np.abs(results[name] - value).max() <= tolerance * max(np.abs(value).max(), 1e-3), name


def assert_as_onnxruntime(net: Net, folder: Path, *outputs: str, tolerance: float = 1e-5, **inputs: np.ndarray) -> None:
    """On the CPU it has onnxruntime's shapes, types and values, those that are no numbers included. Integers are off by
    `tolerance` at most, whatever their size."""
    path = net.save_untyped(folder / "net.onnx", *outputs)
    graph, reference = fuse(load_onnx(path)), OnnxReference(path)
    assert reference.referee == "onnxruntime"
    results = run(graph, host_target(), inputs)
    for name, wanted in reference(inputs).items():
        assert (results[name].shape, results[name].dtype) == (wanted.shape, wanted.dtype), name
        found, wanted = (v.astype(np.float32) if v.dtype == np.float16 else v for v in (results[name], wanted))
        share = 1e-4 if np.issubdtype(wanted.dtype, np.floating) else 0
        np.testing.assert_allclose(found, wanted, rtol=share, atol=tolerance, err_msg=name)
