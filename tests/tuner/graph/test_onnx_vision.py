"""ONNX's vision operators become steps of templates, and compute what onnx computes, on the host and on drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from tests.tuner.graph.networks import Net, assert_close, assert_computes, expected, random_inputs, run
from tests.vision_ops.support import Place, place
from tuner.errors import BadInput
from tuner.graph import FusedGraph, OperatorStep, fuse, halved, load_onnx, tasks_of
from tuner.module.reference import OnnxReference

__all__ = ["place"]


@pytest.fixture
def host() -> Place:
    return Place.named("host")


def computed_by(graph: FusedGraph) -> list[str]:
    """The operators that are steps of templates."""
    return [step.workload.op for step in graph.steps if isinstance(step, OperatorStep)]


def int64(net: Net, *values: int) -> str:
    return net.constant(np.array(values, np.int64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (1, 0), (0, 1)])
def test_top_k(tmp_path: Path, place: Place, axis: int, largest: int) -> None:
    net = Net()
    x = net.conv(net.input(4, 3, 6, 10), (3, 5), 1)
    best = net.op("TopK", x, int64(net, 3), axis=axis, largest=largest, outputs=2)
    graph = assert_computes(net, tmp_path, place.target, [best, f"{best}_1"], device=place.device)
    assert computed_by(graph) == ["argsort"]


def test_equal_values_keep_their_order(tmp_path: Path, host: Place) -> None:
    net = Net()
    best = net.op("TopK", net.op("Round", net.input(2, 50)), int64(net, 20), outputs=2)
    assert_computes(net, tmp_path, host.target, [best, f"{best}_1"])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cum_sum(tmp_path: Path, place: Place, exclusive: int, reverse: int) -> None:
    net = Net()
    out = net.op(
        "CumSum", net.input(3, 40, 5), net.constant(np.array(-2, np.int64)), exclusive=exclusive, reverse=reverse
    )
    assert computed_by(assert_computes(net, tmp_path, place.target, [out], device=place.device)) == ["scan"]


def assert_pools_regions(net: Net, folder: Path, place: Place, out: str) -> FusedGraph:
    """The network gives what the reference gives, which gives what onnxruntime does; returns its fused graph."""
    graph = net.graph(folder, out)
    inputs = random_inputs(graph)
    wanted = OnnxReference(folder / "net.onnx")(inputs)
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"))
    np.testing.assert_allclose(wanted[out], session.run([out], inputs)[0], rtol=1e-4, atol=1e-5)
    assert_close(run(graph, place.target, inputs, device=place.device), wanted)
    return graph


@pytest.mark.sampled(3)
@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align(tmp_path: Path, place: Place, opset: int) -> None:
    """The rule for coordinates changed with operator set 16."""
    net = Net(opset=opset)
    x = net.conv(net.input(2, 3, 12, 16), (3, 6), 1)
    corners = net.rng.random((7, 2)) * 6
    regions = net.constant(np.concatenate([corners, corners + 4 * net.rng.random((7, 2)) + 0.5], 1).astype(np.float32))
    maps = int64(net, 0, 1, 1, 0, 0, 1, 0)
    out = net.op("RoiAlign", x, regions, maps, output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.5)
    assert computed_by(assert_pools_regions(net, tmp_path, place, out)) == ["roi_align"]


@pytest.mark.sampled(3)
def test_max_roi_pool(tmp_path: Path, place: Place) -> None:
    net = Net()
    x = net.conv(net.input(2, 3, 12, 16), (3, 6), 1)
    corners = net.rng.random((7, 2)) * 20 - 4
    maps = net.rng.integers(0, 2, (7, 1))
    regions = np.concatenate([maps, corners, corners + 9 * net.rng.random((7, 2))], 1).astype(np.float32)
    out = net.op("MaxRoiPool", x, net.constant(regions), pooled_shape=[3, 2], spatial_scale=0.5)
    assert computed_by(assert_pools_regions(net, tmp_path, place, out)) == ["roi_pool"]


def detector(net: Net, boxes: int, classes: int, keep: int, score: float, batch: int = 1) -> list[str]:
    """Selected boxes as an exporter writes them: indices, then the boxes and the scores that they name."""
    corners = net.rng.random((batch, boxes, 2)) * 10
    extents = 0.5 + 4 * net.rng.random((batch, boxes, 2))
    moved = net.op(
        "Add", net.constant(np.concatenate([corners, corners + extents], 2).astype(np.float32)), net.scalar(0)
    )
    scores = net.op("Sigmoid", net.input(batch, classes, boxes))
    limits = int64(net, keep), *(net.constant(np.array([value], np.float32)) for value in (0.4, score))
    picked = net.op("NonMaxSuppression", moved, scores, *limits)
    box = net.op("Gather", picked, int64(net, 0, 2), axis=1)
    coordinates = net.op("GatherND", moved, box)
    return [picked, coordinates, net.op("Mul", net.op("GatherND", scores, picked), net.scalar(100))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("boxes", "classes", "keep", "score", "batch"), [(60, 3, 8, 0.5, 1), (33, 1, 40, 0.2, 2), (20, 2, 5, 2.0, 1)]
)
def test_non_max_suppression(
    tmp_path: Path, place: Place, boxes: int, classes: int, keep: int, score: float, batch: int
) -> None:
    """As many results as the values say, none at all in the last case, and so behind operators that keep them."""
    net = Net()
    outputs = detector(net, boxes, classes, keep, score, batch)
    graph = net.graph(tmp_path, *outputs)
    inputs = random_inputs(graph)
    wanted = expected(net.model(*outputs), inputs)
    assert (len(wanted[outputs[0]]) == 0) == (score > 1)
    results = run(graph, place.target, inputs, device=place.device)
    np.testing.assert_array_equal(results[outputs[0]], wanted[outputs[0]])
    if score <= 1:
        assert_close(results, wanted)
    assert computed_by(graph) == ["compact", "argsort", "nms", "compact"]
    named = [(task.workload.op, task.name.split("/")[-1]) for task in tasks_of(graph)]
    assert named == [(op, "NonMaxSuppression") for op in ("compact", "argsort", "nms", "compact")]


def test_counted_results_in_other_shapes(tmp_path: Path, host: Place) -> None:
    net = Net()
    picked, boxes, scores = detector(net, 40, 2, 6, 0.5)
    column = net.op("Slice", picked, int64(net, 1), int64(net, 2), int64(net, 1))
    classes = net.op("Cast", net.op("Squeeze", column, int64(net, 1)), to=TensorProto.FLOAT)
    pair = net.op("Concat", net.op("Unsqueeze", scores, int64(net, 1)), boxes, axis=1)
    outputs = [
        net.op("Add", classes, scores),
        net.op("Transpose", pair, perm=[1, 0]),
        net.op("Reshape", boxes, int64(net, 0, 2, 2)),
    ]
    graph = net.graph(tmp_path, *outputs)
    inputs = random_inputs(graph)
    assert_close(run(graph, host.target, inputs), expected(net.model(*outputs), inputs))
    assert [t.count.axis for t in graph.model.outputs if t.count is not None] == [0, 1, 0]


def test_in_half_precision_they_compute_in_single(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.input(1, 3, 8, 8), (3, 4), 1)
    sums = net.op("CumSum", x, net.constant(np.array(3, np.int64)))
    out = net.conv(sums, (4, 4), 1)
    graph = halved(net.graph(tmp_path, out))
    place = Place.named("intel")
    inputs = random_inputs(graph)
    results = run(graph, place.target, inputs, device=place.device)
    assert_close(results, expected(net.model(out), inputs), 5e-3)
    assert {s.workload.dtype for s in graph.steps if isinstance(s, OperatorStep)} == {"float32"}


@pytest.mark.parametrize(
    ("follower", "message"),
    [
        (lambda net, x: net.op("ReduceSum", x, keepdims=0), "depends on entries that may not be there"),
        (lambda net, x: net.op("Slice", x, int64(net, 0), int64(net, 3), int64(net, 0)), "changes axis 0"),
        (lambda net, x: net.op("Reshape", x, int64(net, -1)), "does not keep axis 0"),
        (lambda net, x: net.op("Concat", x, net.constant(np.ones((1, 3), np.int64)), axis=0), "not all counted"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, follower: Any, message: str) -> None:
    net = Net()
    picked = detector(net, 10, 1, 4, 0.5)[0]
    output = follower(net, picked)
    with pytest.raises(BadInput, match=rf"net\.onnx: node '/{output}/\w+' .*{message}"):
        load_onnx(net.save(tmp_path / "net.onnx", output))


def test_bad_attributes_name_the_node(tmp_path: Path) -> None:
    net = Net()
    best = net.op("TopK", net.input(2, 5), int64(net, 6), outputs=2)
    with pytest.raises(BadInput, match=rf"node '/{best}/TopK' \(TopK\) cannot be converted: the 6 best of 5 values"):
        load_onnx(net.save(tmp_path / "net.onnx", best))
    net = Net()
    picked = detector(net, 5, 1, 0, 0.5)[0]
    with pytest.raises(BadInput, match=rf"node '/{picked}/.*max_output_boxes_per_class is 0"):
        load_onnx(net.save(tmp_path / "net.onnx", picked))


def test_a_constant_index_outside_names_the_node(tmp_path: Path) -> None:
    net = Net()
    out = net.op("Gather", net.input(2, 5), int64(net, 1, 5), axis=1)
    with pytest.raises(BadInput, match=rf"node '/{out}/Gather' .*: index 5 is outside of axis 1, which has 5 entries"):
        load_onnx(net.save(tmp_path / "net.onnx", out))


@pytest.mark.parametrize(("axis", "indices"), [(1, [4, -5, 2]), (0, 1), (-1, [[0], [3]])])
def test_constant_indices(tmp_path: Path, host: Place, axis: int, indices: Any) -> None:
    net = Net()
    out = net.op("Gather", net.input(2, 5), net.constant(np.array(indices, np.int64)), axis=axis)
    assert_computes(net, tmp_path, host.target, [out])


def test_a_name_that_a_count_would_have(tmp_path: Path) -> None:
    """Counts are results of the module; outputs keep their names and their number."""
    net = Net()
    outputs = detector(net, 10, 1, 4, 0.5)
    model = net.model(*outputs)
    model.graph.output.append(onnx.helper.make_tensor_value_info(f"{outputs[0]}.count", TensorProto.FLOAT, None))
    model.graph.node.append(onnx.helper.make_node("Neg", [net.inputs[0].name], [f"{outputs[0]}.count"]))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = fuse(load_onnx(path)).model
    assert [t.name for t in loaded.outputs] == [*outputs, f"{outputs[0]}.count"]
    assert [t.count is None for t in loaded.outputs] == [False, False, False, True]
