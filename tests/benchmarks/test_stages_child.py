"""The peer of benchmarks/stages.py: torch computes what the file says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.benchmarks.scripts import FOLDER, script
from tests.tuner.graph.networks import Net


def every_operator() -> onnx.ModelProto:
    """That the networks have which are scheduled; windows that are padded on one side alone, too."""
    net = Net()
    x = net.op("Relu", net.batch_norm(net.conv(net.input(1, 3, 17, 17), (3, 8), pads=[1, 0, 2, 1]), 8))
    parts = [net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=0)]
    for every in (0, 1):
        pool = {"kernel_shape": [3, 3], "strides": [2, 2], "count_include_pad": every}
        parts += [net.op("AveragePool", x, pads=pads, **pool) for pads in ([1, 1, 0, 0], [0, 0, 1, 1])]
    axes = [net.constant(np.array(a, np.int64)) for a in ([1, 1], [17, 17], [2, 3])]
    side = net.constant(np.array([0, 0, 0, 1, 0, 0, 0, 0], np.int64))
    small = net.op("Add", net.op("Concat", *parts, axis=1), net.constant(np.ones((1, 1, 1, 1), np.float32)))
    cut = net.op("Pad", net.op("Slice", net.op("Mul", x, x), *axes), side)
    ends = [net.op("Flatten", net.op("GlobalAveragePool", net.op("Dropout", y))) for y in (small, cut)]
    found = net.op("Gemm", net.op("Concat", *ends, axis=1), net.weight(7, 48), net.weight(7), transB=1)
    return net.model(found)


def test_it_computes_what_the_file_says() -> None:
    torch, runtime = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    model = every_operator()
    data = np.random.default_rng(0).standard_normal((1, 3, 17, 17)).astype(np.float32)
    wanted = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": data})
    found = script("stages_child").network(model, torch.device("cpu"))(torch.from_numpy(data))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-5)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Here: torch, or a device that it could use."""
    path = tmp_path / "m.onnx"
    onnx.save(every_operator(), path)
    command = [sys.executable, FOLDER / "stages_child.py", path, "--rounds", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert found.keys() in ({"skipped"}, {"torch_eager", "torch_compiled", "torch_graph"})
