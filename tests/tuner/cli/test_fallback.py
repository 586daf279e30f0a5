"""`tune build --device opencl:N,cpu`: what falls back to the CPU, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import everything_under, result_and_reference
from tests.tuner.graph.networks import Net


@pytest.mark.night
def test_builds_and_runs_on_both(tune, tuned_on_pocl, tmp_path):
    device = f"opencl:{device_number('pocl')}"
    shutil.copytree(tuned_on_pocl, tmp_path, dirs_exist_ok=True)
    tiny = tmp_path / "tiny.onnx"
    both = ("--device", f"{device},cpu", "--db", "t.db", "--json")
    built = tune("build", tiny.name, *both, "--fallback", "dense", "-o", "out")
    assert built.status == 0, built.err
    result = built.json()
    assert result["devices"] == [device, "cpu"]
    assert [(o["workload"]["op"], o["device"]) for o in result["operators"]][-1] == ("dense", 1)
    assert {o["device"] for o in result["operators"]} == {0, 1}
    assert "are computed by the CPU" in built.err

    value, expected = result_and_reference(tune, tiny, "out")
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)

    # Where nothing has to fall back, the module is the GPU's alone.
    alone = tune("build", tiny.name, *both, "-o", "alone")
    assert alone.status == 0, alone.err
    assert alone.json()["devices"] == [device]
    assert len(json.loads((tmp_path / "alone" / "manifest.json").read_text())["devices"]) == 1


@pytest.mark.sampled(2)
def test_what_needs_too_much_memory_falls_back(tune, tmp_path):
    """The second convolution makes 2 MiB."""
    device = f"opencl:{device_number('pocl')}"
    net = Net()
    x = net.conv(net.input(1, 3, 64, 64), (3, 16), 1)
    for channels in ((16, 128), (128, 16)):
        x = net.conv(x, channels, 1)
    net.save(tmp_path / "wide.onnx", x)
    assert tune("model", "wide.onnx", "--db", "t.db", "--trials", 3, "--searcher", "random").status == 0
    both = ("--device", f"{device},cpu", "--db", "t.db", "--json")
    for memory, wanted in ((64, [0, 0, 0]), (1, [0, 1, 1])):
        built = tune("build", "wide.onnx", *both, "--memory", memory, "-o", f"out{memory}")
        assert built.status == 0, built.err
        assert [o["device"] for o in built.json()["operators"]] == wanted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--device", "cpu,{gpu}"), "one device, or a GPU and the CPU that it falls back to: opencl:0,cpu"),
        (("--device", "{gpu},{gpu}"), "give devices that differ"),
        (("--device", "{gpu}", "--fallback", "nms"), "--fallback nms: to what? Name the CPU behind the GPU"),
        (("--device", "{gpu},cpu", "--fallback", "nms"), "no operator 'nms' to fall back: the network has conv2d"),
    ],
)
def test_what_cannot_be_placed(tune, tiny, tmp_path, words, says):
    gpu = f"opencl:{device_number('pocl')}"
    before = everything_under(tmp_path)
    done = tune("build", tiny.name, *(word.format(gpu=gpu) for word in words), "-o", "out")
    assert done.status == 2
    assert says in done.error
    assert everything_under(tmp_path) == before
