"""Exports in half precision for ARM processors: they run under qemu, and processors without halves are refused."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import compiled_for
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.graph import load_onnx
from tuner.module import OnnxReference, random_inputs
from tuner.module.verification import TOLERANCE

HALVES = ("--target", "rpi5", "--libc", "musl", "--dtype", "float16")
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or find_spec("ziglang") is None or shutil.which("llvm-objcopy") is None,
    reason="needs qemu-aarch64, ziglang and llvm-objcopy",
)


def write_network(path: Path) -> Path:
    """A network with every kind of layer that templates of CPUs compute, and with steps between them."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 40, 40, name="data"), (3, 24), 7, strides=[2, 2], pads=[3] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    wide = net.op("Relu", net.conv(x, (24, 160), 1))
    x = net.op("Add", net.conv(wide, (160, 24), 3, pads=[1] * 4), x)
    x = net.op("Relu", net.conv(x, (24, 40), 1, strides=[2, 2]))
    x = net.op("Clip", net.conv(x, (1, 40), 3, pads=[1] * 4, group=40), net.scalar(0.0), net.scalar(6.0))
    x = net.op("Relu", net.conv(x, (4, 40), 3, pads=[1] * 4, group=10))
    x = net.op("Concat", x, net.op("Sigmoid", x), axis=1)
    x = net.op("Mul", x, net.op("Sigmoid", net.conv(x, (80, 80), 1)))
    tokens = net.op("Reshape", x, net.constant(np.array([1, 80, 25])))
    turned = net.op("Transpose", tokens, perm=[0, 2, 1])
    product = net.op("MatMul", tokens, turned)
    shares = net.op("Softmax", net.op("Mul", net.op("MatMul", turned, tokens), net.scalar(0.1)), axis=-1)
    attended = net.op("MatMul", shares, turned)
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.save(
        path, net.op("Softmax", net.op("Gemm", x, net.weight(80, 12))), x, net.op("Relu", product), attended
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network's file, its export and the export's example."""
    folder = tmp_path_factory.mktemp("halves")
    write_network(folder / "net.onnx")
    done = run_tune("export", "net.onnx", "-o", "out", *HALVES, cwd=folder)
    assert done.status == 0, done.err
    compiled_for("aarch64", folder / "out", folder / "example")
    return folder


@needs_qemu
@pytest.mark.parametrize("cpu", ["max", "cortex-a76"])
def test_a_network_in_halves_runs_under_qemu(made: Path, cpu: str, tmp_path: Path) -> None:
    inputs = random_inputs(load_onnx(made / "net.onnx").inputs, 0)
    (tmp_path / "in.bin").write_bytes(inputs["data"].tobytes())
    command = ["qemu-aarch64", "-cpu", cpu, str(made / "example"), str(made / "out" / "net.weights"), "1", "in.bin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for i, wanted in enumerate(OnnxReference(made / "net.onnx")(inputs).values()):
        result = np.frombuffer((tmp_path / f"output{i}.bin").read_bytes(), wanted.dtype).reshape(wanted.shape)
        error = np.abs(result - wanted).max() / np.abs(wanted).max()
        assert 1e-5 < error < TOLERANCE["float16"]


@needs_qemu
def test_a_processor_without_halves_says_so(made: Path) -> None:
    command = ["qemu-aarch64", "-cpu", "cortex-a72", str(made / "example"), str(made / "out" / "net.weights"), "1"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the processor lacks instructions that the kernels need" in done.stderr


@needs_qemu
def test_inputs_and_outputs_keep_the_files_type(tmp_path: Path) -> None:
    net = Net()
    x = net.input(1, 16, 6, 6, name="data", dtype=TensorProto.FLOAT16)
    y = net.op("Cast", net.conv(net.op("Cast", x, to=1), (16, 16), 3, pads=[1] * 4), to=10)
    net.save_untyped(tmp_path / "net.onnx", y)
    done = run_tune("export", "net.onnx", "-o", "out", *HALVES, cwd=tmp_path)
    assert done.status == 0, done.err
    program = compiled_for("aarch64", tmp_path / "out", tmp_path / "example")
    inputs = random_inputs(load_onnx(tmp_path / "net.onnx").inputs, 0)
    assert inputs["data"].dtype == np.float16
    (tmp_path / "in.bin").write_bytes(inputs["data"].tobytes())
    command = ["qemu-aarch64", "-cpu", "max", str(program), "out/net.weights", "1", "in.bin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wanted,) = OnnxReference(tmp_path / "net.onnx")(inputs).values()
    result = np.frombuffer((tmp_path / "output0.bin").read_bytes(), np.float16).reshape(wanted.shape)
    assert np.abs(result.astype(np.float32) - wanted).max() < 5e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["rpi4", "x86-64-v3"])
def test_what_has_no_halves_is_refused(target: str, tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "tiny.onnx")
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", target, "--dtype", "float16", cwd=tmp_path)
    assert done.status == 2
    assert "this CPU has no arithmetic in halves (asimdhp on ARM); use float32" in done.error
    assert not (tmp_path / "out").exists()
