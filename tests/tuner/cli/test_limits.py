"""Small files that ask for more memory than there is are one line, and nothing is taken from this process for good."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.tuner.graph.networks import Net
from tuner.cli.limits import memory_limited
from tuner.errors import BadInput
from tuner.graph import load_onnx

GIGABYTE = 1 << 30


def very_many(net: Net, how: str) -> str:
    """Sixteen billion numbers."""
    many = 2**34
    if how == "Range":
        return net.op("Range", *(net.constant(np.array(n, np.int64)) for n in (0, many, 1)))
    if how == "ConstantOfShape":
        return net.op("ConstantOfShape", net.constant(np.array([many])))
    if how == "Expand":
        return net.op("Expand", net.scalar(1.0), net.constant(np.array([many])))
    if how == "Tile":
        return net.op("Tile", net.constant(np.ones(4, np.float32)), net.constant(np.array([many // 4])))
    joined = net.constant(np.ones(1, np.int64))
    for _ in range(34):
        joined = net.op("Concat", joined, joined, axis=0)
    return joined


@pytest.mark.parametrize("how", ["Range", "ConstantOfShape", "Expand", "Tile", "Concat"])
def test_a_file_that_becomes_larger_than_memory(tmp_path: Path, how: str) -> None:
    net = Net()
    numbers = net.op("ReduceMax", net.op("Cast", very_many(net, how), to=TensorProto.FLOAT))
    path = net.save(tmp_path / "small.onnx", net.op("Add", net.input(2, 3), numbers))
    assert path.stat().st_size < 4096
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(BadInput, match=r"^[^\n]*small.onnx[^\n]*$"), memory_limited(path, 2 * GIGABYTE):
        load_onnx(path)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_fits_is_loaded(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", net.op("Relu", net.input(2, 3)))
    with memory_limited(path, 2 * GIGABYTE):
        assert load_onnx(path).outputs[0].shape == (2, 3)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_weights_in_what_is_no_file(tmp_path: Path, kind: str) -> None:
    net = Net()
    model = net.model(net.op("Add", net.input(2, 3), net.weight(2, 3)))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    weights = tmp_path / "w.bin"
    weights.unlink()
    if kind == "pipe":
        os.mkfifo(weights)
    elif kind == "device":
        weights.symlink_to("/dev/zero")
    else:
        weights.mkdir()
    with pytest.raises(BadInput, match=r"m.onnx: the weights 'w0' are said to be in 'w.bin', which is not a file"):
        load_onnx(tmp_path / "m.onnx")
