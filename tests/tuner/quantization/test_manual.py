"""The page on quantising works as it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.manual import ROOT, Reader
from tests.tuner.quantization.networks import classifier, samples
from tuner.graph import is_quantised


def test_a_network_is_quantised_tuned_and_built_as_it_says(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    classifier(tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=samples(8))
    (tmp_path / "labels.txt").write_text("0\n" * 8)
    (tmp_path / "images").mkdir()
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 256, (9, 7, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / "images" / f"{index}.jpg")
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / "docs" / "quantize.md")
    assert [words[1] for words in reader.done] == [
        *("quantize", "quantize", "model", "build", "quantize", "quantize"),
        *("model", "build"),
    ]
    assert is_quantised(onnx.load(tmp_path / "net.int8.onnx"))
    for module in ("net.tuned", "net.mixed"):
        assert (tmp_path / module / "manifest.json").is_file()
