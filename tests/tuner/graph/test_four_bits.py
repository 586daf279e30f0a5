"""onnxruntime's MatMulNBits: matrices of four bits stay packed in the module, and results are onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from templates.four_bits import FourBits
from tests.templates.gpu.support import gpu
from tests.templates.support import host_target
from tests.tuner.graph.networks import Net, assert_as_onnxruntime, lowered, random_inputs, run
from tuner.devices.cpu import open_cpu
from tuner.errors import BadInput
from tuner.graph import AnchorStep, FusedGraph, OperatorStep, four_bits_remark, fuse, keeps_four_bits, load_onnx
from tuner.module import build, load

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Matrix:
    """What a node says of its matrix."""

    inputs: int = 64
    outputs: int = 48
    block: int = 32
    bits: int = 4
    zeros: str = ""  # "packed" or "real"
    ordered: bool = True
    bias: bool = False
    level: int = 0


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape, np.float32)


def product(net: Net, x: str, matrix: Matrix) -> str:
    blocks = -(-matrix.inputs // matrix.block)
    rng, out = net.rng, matrix.outputs
    packed = rng.integers(0, 256, (out, blocks, matrix.block * matrix.bits // 8), np.uint8)
    scale = (rng.uniform(0.5, 1.5, (out * blocks)) / np.sqrt(matrix.inputs)).astype(np.float32)
    reads = [net.constant(packed), net.constant(scale)]
    zeros = {
        "": None,
        "packed": rng.integers(0, 256, out * -(-blocks * matrix.bits // 8), np.uint8),
        "real": rng.uniform(0, 15, (out, blocks)).astype(np.float32),
    }[matrix.zeros]
    reads.append("" if zeros is None else net.constant(zeros))
    order = rng.integers(0, blocks, matrix.inputs).astype(np.int32)
    reads.append("" if matrix.ordered else net.constant(order))
    reads.append(net.weight(out) if matrix.bias else "")
    sizes = {
        "K": matrix.inputs,
        "N": out,
        "bits": matrix.bits,
        "block_size": matrix.block,
        "accuracy_level": matrix.level,
    }
    return net.op("MatMulNBits", x, *reads, domain=MICROSOFT, **sizes)


PACKED = {
    "plain": Matrix(),
    "zero points": Matrix(zeros="packed", inputs=96),
    "small blocks": Matrix(block=16, outputs=40, zeros="packed", bias=True),
    "one block": Matrix(block=128, inputs=128, outputs=5),
    "cut off": Matrix(inputs=80, block=32),
    "data that may be rounded": Matrix(level=4),
}
FLOATS = {
    "eight bits": Matrix(bits=8, zeros="packed"),
    "two bits": Matrix(bits=2),
    "real zero points": Matrix(zeros="real"),
    "an order of the inputs": Matrix(ordered=False),
}


def _graph(net: Net, folder: Path, *outputs: str) -> FusedGraph:
    return fuse(load_onnx(net.save_untyped(folder / "net.onnx", *outputs)))


@pytest.mark.parametrize("rows", [(1,), (2, 7)])
@pytest.mark.parametrize("name", PACKED)
def test_matrices_of_four_bits_stay_packed(name: str, rows: tuple[int, ...], tmp_path: Path) -> None:
    net, matrix = Net(seed=1), PACKED[name]
    x = net.input(*rows, matrix.inputs)
    out = net.op("Relu", product(net, x, matrix))
    assert_as_onnxruntime(
        net, tmp_path, out, x=np.random.default_rng(2).standard_normal((*rows, matrix.inputs), np.float32)
    )
    (step,) = [s for s in _graph(net, tmp_path, out).steps if isinstance(s, OperatorStep)]
    view = FourBits.of(step.workload)
    assert (view.rows, view.out_features, view.zeros) == (np.prod(rows), matrix.outputs, matrix.zeros == "packed")


@pytest.mark.parametrize("name", FLOATS)
def test_other_matrices_become_float32(name: str, tmp_path: Path) -> None:
    net, matrix = Net(seed=1), FLOATS[name]
    x = net.input(3, matrix.inputs)
    out = product(net, x, matrix)
    assert_as_onnxruntime(
        net, tmp_path, out, x=np.random.default_rng(2).standard_normal((3, matrix.inputs), np.float32)
    )
    graph = _graph(net, tmp_path, out)
    assert [type(s) for s in graph.tuned] == [AnchorStep]
    assert four_bits_remark(graph.model, True) == ""


def test_two_products_behind_each_other(tmp_path: Path) -> None:
    """The sizes behind the first are known, though onnx does not know the operator."""
    net = Net(seed=3)
    first = product(net, net.input(1, 5, 64), Matrix(outputs=96))
    out = product(net, net.op("Mul", first, net.op("Sigmoid", first)), Matrix(inputs=96, zeros="packed"))
    assert_as_onnxruntime(net, tmp_path, out, x=numbers(1, 5, 64))
    assert len(_graph(net, tmp_path, out).tuned) == 2


def test_a_matrix_that_is_computed_is_refused(tmp_path: Path) -> None:
    net = Net()
    x, scale = net.input(1, 64), net.input(96, name="scale")
    packed = net.constant(np.zeros((48, 2, 16), np.uint8))
    out = net.op("MatMulNBits", x, packed, scale, domain=MICROSOFT, K=64, N=48, bits=4, block_size=32)
    with pytest.raises(BadInput, match="MatMulNBits"):
        load_onnx(net.save_untyped(tmp_path / "net.onnx", out))


def test_a_module_has_the_numbers_in_four_bits(tmp_path: Path) -> None:
    """They and their scales take less than a sixth of the bytes of float32."""
    net, matrix = Net(seed=5), Matrix(inputs=256, outputs=512)
    out = product(net, net.input(1, 256), matrix)
    path = net.save_untyped(tmp_path / "net.onnx", out)
    graph = fuse(load_onnx(path))
    held = sum(array.nbytes for array in lowered(graph, host_target()).constants[0])
    assert held < 256 * 512 * 4 / 6
    manifest = build(load_onnx(path), open_cpu(1), tmp_path / "module")
    assert 256 * 512 / 2 <= manifest.sizes.weights < 256 * 512 * 4 / 6
    inputs = random_inputs(graph)
    found = load(tmp_path / "module")(inputs)[out]
    np.testing.assert_allclose(found, run(graph, host_target(), inputs)[out], rtol=1e-5, atol=1e-5)


def test_devices_without_kernels_for_them_get_float32(tmp_path: Path) -> None:
    net = Net(seed=6)
    out = product(net, net.input(2, 64), Matrix(zeros="packed"))
    model = load_onnx(net.save_untyped(tmp_path / "net.onnx", out))
    assert keeps_four_bits([host_target()])
    assert not keeps_four_bits([host_target(), gpu("mali")])
    assert four_bits_remark(model, True) == "1 matrix of 4-bit numbers: packed in memory, float32 in registers"
    assert "float32 in memory" in four_bits_remark(model, False)
    packed, floats = fuse(model), fuse(model, four_bits=False)
    assert [type(s) for s in floats.tuned] == [AnchorStep]
    inputs = random_inputs(packed)
    found = [run(graph, host_target(), inputs)[out] for graph in (packed, floats)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
