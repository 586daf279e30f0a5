"""A built module between two onnxruntime sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.utils import extract_model

from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx
from tuner.interop import ort_step
from tuner.module import build, load

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whole.onnx, and its parts first.onnx, middle (a built module), last.onnx; their names are in names.txt."""
    folder = tmp_path_factory.mktemp("parts")
    net = Net()
    a = net.op("Relu", net.conv(net.input(1, 3, 20, 20), (3, 16), pads=[1, 1, 1, 1]))
    b = net.op("Relu", net.conv(a, (16, 24), pads=[1, 1, 1, 1]))
    c = net.op("Softmax", net.op("Flatten", net.op("GlobalAveragePool", b)))
    onnx.save(onnx.shape_inference.infer_shapes(net.model(c)), folder / "whole.onnx")
    for name, reads, makes in (("first", "x", a), ("middle", a, b), ("last", b, c)):
        extract_model(str(folder / "whole.onnx"), str(folder / f"{name}.onnx"), [reads], [makes])
    build(fuse(load_onnx(folder / "middle.onnx")), open_device("cpu", 1), folder / "middle")
    (folder / "names.txt").write_text(" ".join((a, b, c)))
    return folder


def session(folder: Path, name: str):
    return ort.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def test_between_two_sessions_nothing_is_copied(folder: Path) -> None:
    a, b, c = (folder / "names.txt").read_text().split()
    x = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)
    (wanted,) = session(folder, "whole").run([c], {"x": x})
    first, last = session(folder, "first"), session(folder, "last")
    step = ort_step(load(folder / "middle"))
    for _ in range(3):
        given = first.run_with_ort_values([a], {"x": ort.OrtValue.ortvalue_from_numpy(x)})[0]
        made = step({a: given})
        (result,) = last.run_with_ort_values([c], {b: made[b]})
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_results_are_their_own(folder: Path) -> None:
    a, b, _ = (folder / "names.txt").read_text().split()
    step, rng = ort_step(load(folder / "middle")), np.random.default_rng(0)
    made, kept = [], []
    for _ in range(3):
        x = rng.standard_normal((1, 16, 20, 20)).astype(np.float32)
        made.append(step({a: ort.OrtValue.ortvalue_from_numpy(x)})[b])
        kept.append(made[-1].numpy().copy())
    for value, array in zip(made, kept, strict=True):
        np.testing.assert_array_equal(value.numpy(), array)
    assert len({value.data_ptr() for value in made}) == 3


def test_bad_input_is_one_line(folder: Path) -> None:
    a, _, _ = (folder / "names.txt").read_text().split()
    step = ort_step(load(folder / "middle"))
    with pytest.raises(BadInput, match="is a ndarray, not an OrtValue"):
        step({a: np.zeros((1, 16, 20, 20), np.float32)})
    with pytest.raises(BadInput, match=r"has shape \(1, 3\)"):
        step({a: ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 3), np.float32))})
    with pytest.raises(BadInput, match="has dtype float64"):
        step({a: ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 16, 20, 20)))})
    with pytest.raises(BadInput, match="is missing"):
        step({})
