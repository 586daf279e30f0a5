"""A built module as an operator of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from templates.workloads import Conv2d
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, fuse, load_onnx, operator_model
from tuner.interop import torch_operator
from tuner.module import build, load

torch = pytest.importorskip("torch")


def loaded(graph: FusedGraph, folder: Path):
    build(graph, open_device("cpu", 1), folder / "module")
    return load(folder / "module")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_network(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.fixture(scope="module")
def operator(tiny: Path):
    return torch_operator(loaded(fuse(load_onnx(tiny)), tiny.parent), "tiny")


def expected(model: Path, *arrays: np.ndarray) -> list[np.ndarray]:
    evaluator = ReferenceEvaluator(onnx.load(model))
    return list(evaluator.run(None, dict(zip(evaluator.input_names, arrays, strict=True))))


def test_called_and_compiled(operator, tiny: Path) -> None:
    class Around(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(torch.ops.edgetune.tiny(x * 2), -1)

    x = torch.randn(1, 3, 16, 16)
    (wanted,) = expected(tiny, (2 * x).numpy())
    torch.testing.assert_close(operator(2 * x), torch.from_numpy(wanted), rtol=1e-4, atol=1e-5)
    plain, compiled = Around()(x), torch.compile(Around(), backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close(plain, torch.softmax(torch.from_numpy(wanted), -1), rtol=1e-4, atol=1e-5)


def test_it_keeps_the_rules_of_operators(operator) -> None:
    torch.library.opcheck(operator, (torch.randn(1, 3, 16, 16),))


def test_views_and_odd_addresses(operator, tiny: Path) -> None:
    wide = torch.randn(1, 3, 16, 32)
    x = wide[..., 1:17]
    (wanted,) = expected(tiny, x.contiguous().numpy())
    torch.testing.assert_close(operator(x), torch.from_numpy(wanted), rtol=1e-4, atol=1e-5)
    odd = torch.randn(1 + 3 * 16 * 16)[1:].reshape(1, 3, 16, 16)
    (wanted,) = expected(tiny, odd.numpy())
    torch.testing.assert_close(operator(odd), torch.from_numpy(wanted), rtol=1e-4, atol=1e-5)


def test_several_results_one_of_them_an_input(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 8, 6, 6)
    y = net.op("Relu", net.conv(x, (8, 8), 1))
    same = net.op("Identity", x)
    model = net.save(tmp_path / "net.onnx", y, same)
    operator = torch_operator(loaded(fuse(load_onnx(model)), tmp_path), "pair")
    given = torch.randn(1, 8, 6, 6)
    wanted = expected(model, given.numpy())
    results = operator(given)
    for result, array in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, torch.from_numpy(array), rtol=1e-4, atol=1e-5)
    assert results[1].data_ptr() != given.data_ptr()
    torch.library.opcheck(operator, (given,))


def test_one_tuned_function(tmp_path: Path) -> None:
    """A workload with its weights is a network of one operator."""
    rng = np.random.default_rng(0)
    conv = Conv2d(1, 16, 12, 12, 32, (3, 3), (1, 1), (1, 1, 1, 1))
    weight = rng.standard_normal(conv.weight_shape).astype(np.float32)
    path = tmp_path / "conv.onnx"
    path.write_bytes(
        operator_model(conv.workload(("bias", "relu")), weight, np.ones(32, np.float32)).SerializeToString()
    )
    operator = torch_operator(loaded(fuse(load_onnx(path)), tmp_path), "one")
    x = torch.randn(1, 16, 12, 12)
    wanted = torch.relu(torch.nn.functional.conv2d(x, torch.from_numpy(weight), torch.ones(32), padding=1))
    torch.testing.assert_close(operator(x), wanted, rtol=1e-4, atol=1e-4)


def test_bad_names_and_tensors(operator, tiny: Path) -> None:
    with pytest.raises(BadInput, match="give a name of letters"):
        torch_operator(load(tiny.parent / "module"), "a b")
    with pytest.raises(BadInput, match=r"has shape \(1, 3, 8, 8\)"):
        operator(torch.randn(1, 3, 8, 8))
