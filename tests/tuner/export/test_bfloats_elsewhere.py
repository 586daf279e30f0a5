"""Exports that multiply in bfloat16: they run under qemu, and processors without its dot products are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import compiled_for
from tests.tuner.export.test_halves_elsewhere import needs_qemu
from tests.tuner.graph.networks import Net
from tests.tuner.tiny_network import write_tiny_network
from tuner.graph import load_onnx
from tuner.module import OnnxReference, random_inputs

REFUSED = "is for CPUs with dot products of it (avx512_bf16 on x86, bf16 on ARM); use float32"


def write_network(path: Path) -> Path:
    """Layers of every kind that are multiplied in bfloat16, and steps between them that are not."""
    net = Net()
    x = net.op("Relu", net.conv(net.input(1, 3, 40, 40, name="data"), (3, 24), 7, strides=[2, 2], pads=[3] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    wide = net.op("Relu", net.conv(x, (24, 160), 1))
    x = net.op("Add", net.conv(wide, (160, 24), 3, pads=[1] * 4), x)
    x = net.op("Relu", net.conv(x, (24, 40), 1, strides=[2, 2]))
    x = net.op("Clip", net.conv(x, (1, 40), 3, pads=[1] * 4, group=40), net.scalar(0.0), net.scalar(6.0))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.save(path, net.op("Softmax", net.op("Gemm", x, net.weight(40, 12))), x)


@needs_qemu
def test_a_network_runs_under_qemu(tmp_path: Path) -> None:
    write_network(tmp_path / "net.onnx")
    words = ("export", "net.onnx", "-o", "out", "--target", "orion-o6", "--libc", "musl", "--dtype", "bfloat16")
    done = run_tune(*words, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "bfloat16: its error is not known, as nothing was run" in done.out
    program = compiled_for("aarch64", tmp_path / "out", tmp_path / "example")
    inputs = random_inputs(load_onnx(tmp_path / "net.onnx").inputs, 0)
    (tmp_path / "in.bin").write_bytes(inputs["data"].tobytes())
    command = [str(program), "out/net.weights", "1", "in.bin"]
    done = subprocess.run(["qemu-aarch64", "-cpu", "max", *command], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for i, wanted in enumerate(OnnxReference(tmp_path / "net.onnx")(inputs).values()):
        result = np.frombuffer((tmp_path / f"output{i}.bin").read_bytes(), wanted.dtype).reshape(wanted.shape)
        assert 1e-5 < np.abs(result - wanted).max() / np.abs(wanted).max() < 1e-2
    old = subprocess.run(
        ["qemu-aarch64", "-cpu", "cortex-a76", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert old.returncode == 2
    assert "the processor lacks instructions that the kernels need" in old.stderr


@pytest.mark.parametrize("target", ["rpi5", "x86-64-v4"])
def test_what_has_no_dot_products_is_refused(target: str, tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "tiny.onnx")
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", target, "--dtype", "bfloat16", cwd=tmp_path)
    assert done.status == 2
    assert done.error == f"tune: bfloat16 on cpu ({done.error.partition('(')[2].partition(')')[0]}): {REFUSED}"
    assert not (tmp_path / "out").exists()


def test_x86_with_dot_products_is_compiled_for(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "tiny.onnx")
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", "zen4", "--dtype", "bfloat16", cwd=tmp_path)
    assert done.status == 0, done.err
    code = subprocess.run(
        ["objdump", "-d", *map(str, (tmp_path / "out").glob("lib*.so"))], capture_output=True, text=True, check=True
    )
    assert "vdpbf16ps" in code.stdout
