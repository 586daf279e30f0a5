"""torch.export programs: the module computes what PyTorch computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tuner.graph.networks import run
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, fuse, load_exported

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


def randomised(module: Any) -> Any:
    """Batch statistics as after training."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor, low, high in (
                (part.running_mean, -0.5, 0.5),
                (part.running_var, 0.5, 2.0),
                (part.weight.data, 0.5, 1.5),
                (part.bias.data, -0.5, 0.5),
            ):
                tensor.uniform_(low, high)
    return module.eval()


def assert_same(module: Any, *shape: int) -> FusedGraph:
    torch.manual_seed(0)
    module = randomised(module)
    data = torch.randn(shape)
    model = load_exported(torch.export.export(module, (data,)))
    graph = fuse(model)
    (result,) = run(graph, open_device("cpu", 1).target, {model.inputs[0].name: data.numpy()}).values()
    with torch.no_grad():
        wanted = module(data).numpy()
    assert np.abs(result - wanted).max() <= 1e-5 * np.abs(wanted).max()
    return graph


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Any) -> Any:
        weight = functional.relu(self.down(x.mean((2, 3), keepdim=True)))
        return x * functional.hardsigmoid(self.up(weight))


def inverted(inner: int, stride: int, activation: type) -> Any:
    return nn.Sequential(
        nn.Conv2d(16, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        activation(),
        nn.Conv2d(inner, inner, 5, stride, 2, groups=inner, bias=False),
        nn.BatchNorm2d(inner),
        activation(),
        Gate(inner),
        nn.Conv2d(inner, 16, 1, bias=False),
        nn.BatchNorm2d(16),
    )


class Residual(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def test_mobile_network() -> None:
    graph = assert_same(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.Hardswish(),
            Residual(inverted(40, 1, nn.SiLU)),
            inverted(48, 2, nn.ReLU6),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 20),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(20, 5),
        ),
        2, 3, 32, 24,
    )  # fmt: skip
    last = {s.workload.epilogue[-1] for s in graph.anchors}
    assert {"hardswish", "silu", "add", "clip:0.0:6.0", "hardsigmoid:0.16666666666666666:0.5"} <= last


class Dense(nn.Module):
    """Concatenation upon concatenation, with normalisation before the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, 28, 40]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.PReLU(w), nn.Conv2d(w, 12, 3, padding=1)) for w in widths
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2)


def test_dense_network() -> None:
    assert_same(nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Dense()), 1, 3, 40, 32)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        x = x.flatten(2).transpose(1, 2)
        q, k, v = self.heads(self.norm(x)).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1) @ v)


def test_attention() -> None:
    assert_same(nn.Sequential(nn.Conv2d(3, 32, 4, 4), Attention(), nn.GELU()), 2, 3, 16, 16)


def test_shuffles_and_transposed_convolutions() -> None:
    assert_same(
        nn.Sequential(nn.Conv2d(3, 24, 3), nn.ChannelShuffle(3), nn.ConvTranspose2d(24, 16, 2, 2), nn.PixelShuffle(2)),
        1, 3, 9, 10,
    )  # fmt: skip


def test_what_cannot_be_converted() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x)

    with pytest.raises(BadInput, match="cannot be converted") as caught:
        load_exported(torch.export.export(Unknown(), (torch.zeros(3, 3),)))
    assert "\n" not in str(caught.value)


def test_dynamic_shapes() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(nn.Conv2d(3, 4, 3), (torch.zeros(2, 3, 8, 8),), dynamic_shapes={"input": {0: batch}})
    with pytest.raises(BadInput, match="not fixed"):
        load_exported(program)


def test_half_precision() -> None:
    program = torch.export.export(nn.Linear(4, 3).bfloat16(), (torch.zeros(2, 4, dtype=torch.bfloat16),))
    with pytest.raises(BadInput, match="bfloat16"):
        load_exported(program)
