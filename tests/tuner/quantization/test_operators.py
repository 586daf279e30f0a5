"""Which operators work on integers, which read real numbers, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.tuner.graph.networks import Net
from tuner.graph import fuse, load_onnx
from tuner.module import OnnxReference
from tuner.quantization import Judged, Wanted, open_samples, prepare, quantize

SHAPE = (1, 8, 8, 8)


def quantised(net: Net, folder: Path, *outputs: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model, and why each product and joint is in float, by its type and output."""
    file = net.save(folder / "net.onnx", *outputs)
    prepared = prepare(file, {}, scratch=folder)
    rng = np.random.default_rng(0)
    np.savez(folder / "x.npz", x=rng.standard_normal((4, *SHAPE[1:])).astype(np.float32))
    done = quantize(prepared, open_samples(folder / "x.npz", prepared.inputs), Wanted(), scratch=folder)
    onnx.checker.check_model(done.choice.model, full_check=True)
    return done.choice.model, {_named(judged): judged.why_float for judged in done.choice.operators}


def _named(judged: Judged) -> str:
    return judged.operator.name.split("/")[1]


def reads(model: onnx.ModelProto, output: str) -> str:
    """The type of the node that makes what the node of this output reads first, or what tensor that is."""
    makers = {name: node for node in model.graph.node for name in node.output}
    source = makers[output].input[0]
    return makers[source].op_type if source in makers else source


def test_what_follows_the_last_product_reads_real_numbers(tmp_path: Path) -> None:
    """A sum of boxes and scores would need one scale for both."""
    net = Net()
    x = net.conv(net.input(*SHAPE), (8, 8), 3)
    boxes, scores = net.conv(x, (8, 4), 1), net.op("Sigmoid", net.conv(x, (8, 4), 1))
    model, why = quantised(net, tmp_path, net.op("Concat", boxes, scores, axis=1))
    assert why == {"conv_0": "", "conv_1": "", "conv_2": "", "concat_4": "no product of integers reads it"}
    assert reads(model, "concat_4") == "Conv"
    assert reads(model, scores) == "Conv"


def test_an_activation_reads_sums_before_they_are_rounded(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.input(*SHAPE), (8, 8), 3)
    x = net.op("Mul", x, net.op("Sigmoid", x))
    model, why = quantised(net, tmp_path, net.conv(x, (8, 8), 3))
    assert why == {"conv_0": "", "conv_3": ""}
    assert reads(model, "sigmoid_1") == "Conv"
    assert reads(model, "conv_3") == "DequantizeLinear"


def test_a_gate_of_another_branch_is_a_joint(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(*SHAPE), (8, 8), 3))
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), (8, 8), 1))
    model, why = quantised(net, tmp_path, net.conv(net.op("Mul", x, gate), (8, 8), 1))
    assert set(why.values()) == {""}
    assert "mul_5" in why
    assert reads(model, "mul_5") == "DequantizeLinear"


def test_a_maximum_and_a_reshape_between_products_move_integers(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(*SHAPE), (8, 8), 3))
    x = net.op("Flatten", net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    model, why = quantised(net, tmp_path, net.op("Gemm", x, net.weight(5, 72), transB=1))
    assert set(why.values()) == {""}
    kinds = [node.op_type for node in model.graph.node]
    assert "Relu" not in kinds  # uint8 has nothing below its zero point
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert kinds.count("QuantizeLinear") == 4
    assert len(scales) == 2
    assert reads(model, model.graph.output[0].name) == "DequantizeLinear"


def test_what_has_no_kernel_of_integers_stays_in_float(tmp_path: Path) -> None:
    net = Net()
    x = net.input(*SHAPE)
    x = net.conv(x, (1, 8), 3, group=8)
    x = net.conv(x, (4, 8), 3, group=2)
    x = net.op("ConvTranspose", x, net.weight(8, 2, 2, 2), group=2)
    x = net.op("MatMul", x, net.weight(5, 6))
    model, why = quantised(net, tmp_path, net.op("MatMul", net.op("Transpose", x, perm=[0, 1, 3, 2]), x))
    assert why == {
        "conv_0": "",
        "conv_1": "it has too few channels in groups for a kernel of integers",
        "convtranspose_2": "onnxruntime does not quantise transposed convolutions with groups",
        "matmul_3": "",
        "matmul_5": "its weights are computed",
    }
    assert reads(model, "convtranspose_2") == "Conv"


def test_groups_and_transposed_convolutions_work_on_integers(tmp_path: Path) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input(*SHAPE), (8, 16), 3))
    x = net.op("Relu", net.conv(x, (4, 16), 3, group=4))
    x = net.op("Relu", net.op("ConvTranspose", x, net.weight(16, 8, 2, 2), net.weight(8), strides=[2, 2]))
    model, why = quantised(net, tmp_path, net.conv(x, (8, 4), 1))
    assert why == {"conv_0": "", "conv_2": "", "convtranspose_4": "", "conv_6": ""}
    onnx.save(model, tmp_path / "q.onnx")
    assert {a.workload.dtype for a in fuse(load_onnx(tmp_path / "q.onnx"), integers=True).anchors} == {"uint8"}


def test_results_inside_the_network_are_real_numbers(tmp_path: Path) -> None:
    """One output is read by a product as well, which rounds it for itself."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(*SHAPE), (8, 8), 3))
    model, _ = quantised(net, tmp_path, x, net.conv(x, (8, 8), 3))
    assert reads(model, x) == "Conv"
    assert reads(model, "conv_2") == "DequantizeLinear"
    onnx.save(model, tmp_path / "q.onnx")
    results = OnnxReference(tmp_path / "q.onnx")({"x": np.ones(SHAPE, np.float32)})
    assert list(results) == [x, "conv_2"]
    assert results[x].min() >= 0
