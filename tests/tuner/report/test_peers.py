"""Every peer that is installed computes what the ONNX reference does, with the threads that it was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import usable_cpus
from tuner.errors import BadInput
from tuner.report.contender import Spec
from tuner.report.peers import available, peer_named, peer_names
from tuner.report.peers.ort import OnnxRuntime, free_sizes


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Path, inputs and the reference's outputs."""
    path = write_tiny_network(tmp_path_factory.mktemp("peers") / "tiny.onnx")
    inputs = {"data": np.random.default_rng(1).standard_normal((1, 3, 16, 16), dtype=np.float32)}
    model = onnx.load(path)
    names = [output.name for output in model.graph.output]
    return path, inputs, dict(zip(names, ReferenceEvaluator(model).run(names, inputs), strict=True))


@pytest.mark.parametrize("name", peer_names())
def test_computes_what_the_reference_does(network, tmp_path, name):
    """In its own process, as in a comparison: two thread pools in one process disturb each other."""
    peer = peer_named(name)
    if not available(peer):
        pytest.skip(peer.install)
    path, inputs, expected = network
    np.savez(tmp_path / "inputs.npz", **inputs)
    files = (str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz"))
    spec = Spec(name, str(path), 1, tuple(usable_cpus()[:1]), *files)
    done = subprocess.run(
        [sys.executable, "-m", "tuner.report.contender", spec.to_json()],
        input='{"block": 0.01}\n',
        capture_output=True,
        text=True,
        env={**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    ready, block = map(json.loads, done.stdout.splitlines())
    assert peer.version() == ready["version"]
    assert min(block["times"]) > 0  # how long a block is: test_contender.py, with its own clock
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert set(outputs.files) == set(expected)
        for output, value in expected.items():
            np.testing.assert_allclose(outputs[output], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())


def test_sizes_of_named_axes_are_told_to_onnxruntime(tmp_path):
    net = Net()
    net.input("n", 3, "?", "?")
    path = net.save(tmp_path / "m.onnx", net.op("Relu", "x"))
    assert free_sizes(path, {"x": (2, 3, 8, 9)}) == {"n": 2}


def test_a_network_with_free_axes_is_run_for_the_sizes_of_the_inputs(tmp_path):
    net = Net()
    net.input("n", 3, "rows", 5)
    path = net.save(tmp_path / "m.onnx", net.op("Relu", "x"))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    infer = OnnxRuntime().open(path, 1, {"x": x.shape})
    (value,) = infer({"x": x}).values()
    np.testing.assert_array_equal(value, np.maximum(x, 0))


def test_an_unknown_peer_is_refused_with_the_known_names():
    with pytest.raises(BadInput, match="known: ort, openvino, opencv, ncnn, mnn, default"):
        peer_named("tensorrt")
