"""Which inputs of integers choose entries, and from how many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from tests.tuner.graph.networks import Net
from tuner.graph import load_onnx


def limits(net: Net, folder: Path, *outputs: str) -> dict[str, int | None]:
    return {t.name: t.below for t in load_onnx(net.save_untyped(folder / "net.onnx", *outputs)).inputs}


def test_tokens_choose_rows_and_a_mask_chooses_nothing(tmp_path: Path) -> None:
    """Positions and tokens choose from two tables; what the mask becomes is arithmetic."""
    net = Net()
    tokens, mask = (net.input(2, 5, name=name, dtype=TensorProto.INT64) for name in ("tokens", "mask"))
    words = net.op("Gather", net.weight(31, 4), net.op("Cast", tokens, to=TensorProto.INT32))
    spread = net.op("Unsqueeze", net.op("Cast", mask, to=TensorProto.FLOAT), net.constant(np.array([2])))
    assert limits(net, tmp_path, net.op("Mul", words, spread)) == {"tokens": 31, "mask": None}


def test_of_several_things_the_fewest(tmp_path: Path) -> None:
    net = Net()
    at = net.input(3, name="at", dtype=TensorProto.INT32)
    rows, columns = net.op("Gather", net.weight(9, 4), at), net.op("Gather", net.weight(3, 6), at, axis=1)
    assert limits(net, tmp_path, rows, columns) == {"at": 6}


def test_regions_choose_images(tmp_path: Path) -> None:
    net = Net()
    maps = net.input(4, name="maps", dtype=TensorProto.INT64)
    out = net.op("RoiAlign", net.input(3, 2, 8, 8), net.weight(4, 4), maps, output_height=2, output_width=2)
    assert limits(net, tmp_path, out) == {"maps": 3, "x": None}


def test_one_of_so_many(tmp_path: Path) -> None:
    net = Net()
    kinds = net.input(4, name="kinds", dtype=TensorProto.INT64)
    out = net.op("OneHot", kinds, net.constant(np.array(12)), net.constant(np.array([0, 1], np.float32)))
    assert limits(net, tmp_path, out) == {"kinds": 12}
