"""Exports for processors that are not here: they are linked by zig, and run under qemu where it emulates them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import NETWORKS, compiled_for
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices.cpu import cpu_elsewhere, cpus_elsewhere
from tuner.errors import BadInput
from tuner.export import export
from tuner.export.compiling import toolchain_for
from tuner.graph import load_onnx
from tuner.measure.codegen.toolchain import machine_of
from tuner.module import BuildOptions, OnnxReference, build, load, random_inputs
from tuner.module.cpu_features import missing_features, required_features

NAMES = [cpu.name for cpu in cpus_elsewhere() if not cpu.is_webassembly]  # see test_webassembly
EMULATORS = {"aarch64": "qemu-aarch64", "armv7a": "qemu-arm", "riscv64": "qemu-riscv64", "x86_64": "qemu-x86_64"}
# The processors that qemu-riscv64 emulates.
VECTORLESS, VECTORS = ({**os.environ, "QEMU_CPU": cpu} for cpu in ("rv64", "rv64,v=true,vlen=128"))

needs_zig = pytest.mark.skipif(
    find_spec("ziglang") is None or shutil.which("llvm-objcopy") is None, reason="needs ziglang and llvm-objcopy"
)


@needs_zig
@pytest.mark.night
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("libc", ["musl", "gnu"])
def test_every_cpu_that_is_known(name: str, libc: str, tmp_path: Path) -> None:
    model = write_tiny_network(tmp_path / "tiny.onnx")
    device = cpu_elsewhere(name)
    build(load_onnx(model), device, tmp_path / "module", options=BuildOptions(link=False))
    made = export(tmp_path / "module", tmp_path / "out", libc=libc)
    assert not made.checked
    machine = machine_of(device.target)
    assert (made.folder / "libtiny.so").stat().st_size > 0
    if libc == "gnu":
        return  # zig links no static programs with glibc
    emulator = [EMULATORS[machine]]
    vectors = VECTORS if machine == "riscv64" else None
    if machine == platform.machine():
        if missing_features(required_features(device.target)):
            pytest.skip(f"this machine lacks instructions of {name}")
        emulator = []
    elif shutil.which(emulator[0]) is None:
        pytest.skip(f"needs {emulator[0]}")
    program = compiled_for(machine, made.folder, tmp_path / "example")
    inputs = random_inputs(load_onnx(model).inputs, 0)
    (tmp_path / "in.bin").write_bytes(inputs["data"].tobytes())
    command = [*emulator, str(program), str(made.folder / "tiny.weights"), "2", "in.bin"]
    if name == "riscv64v":
        done = subprocess.run(command, cwd=tmp_path, env=VECTORLESS, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "zve64d" in done.stderr.splitlines()[-1]
    done = subprocess.run(command, cwd=tmp_path, env=vectors, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wanted,) = OnnxReference(model)(inputs).values()
    result = np.frombuffer((tmp_path / "output0.bin").read_bytes(), wanted.dtype).reshape(wanted.shape)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@needs_zig
@pytest.mark.parametrize(("name", "machine"), [("aarch64", 183), ("x86-64-v2", 62)])  # the architecture's number in ELF
def test_a_module_is_linked_for_another_processor(name: str, machine: int, tmp_path: Path) -> None:
    """As for a board: it is exported here, and says what it was built for where it is loaded."""
    device = cpu_elsewhere(name)
    linker = (*toolchain_for(machine_of(device.target)).compiler, "-nostdlib")
    model = write_tiny_network(tmp_path / "tiny.onnx")
    build(load_onnx(model), device, tmp_path / "module", options=BuildOptions(linker=linker))
    (kernels,) = (tmp_path / "module").glob("kernels-*.so")
    assert int.from_bytes(kernels.read_bytes()[18:20], "little") == machine
    done = run_tune("export", "module", "-o", "out", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    if machine_of(device.target) == platform.machine():
        assert done.json()["checked"] == {"equal": True}
    else:
        assert done.json()["checked"] == {}
        assert "it was not run, as it is for another system" in done.err
        assert "which this machine lacks; build it here" in run_tune("run", "module", cwd=tmp_path).error


@needs_zig
@pytest.mark.night
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change the root folder")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_system_with_nothing_but_the_program(exports: Path, name: str, tmp_path: Path) -> None:
    """With musl and without Python, in a root folder that has the program, the weights and the inputs alone, the
    outputs are the module's, bit for bit."""
    module, made = load(exports / f"{name}.module"), export(exports / f"{name}.module", tmp_path / "out", libc="musl")
    root = tmp_path / "root"
    root.mkdir()
    compiled_for(platform.machine(), made.folder, root / "example")
    shutil.copy(made.folder / f"{made.name}.weights", root / "net.weights")
    inputs = random_inputs(module.manifest.inputs, 0)
    for i, array in enumerate(inputs.values()):
        (root / f"{i}.bin").write_bytes(array.tobytes())
    command = [
        "/usr/sbin/chroot",
        str(root),
        "/example",
        "/net.weights",
        "2",
        *(f"/{i}.bin" for i in range(len(inputs))),
    ]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for i, (output, value) in enumerate(module(inputs).items()):
        shape, dtype = module.outputs[output]
        whole = np.frombuffer((root / f"output{i}.bin").read_bytes(), dtype).reshape(shape)
        assert whole[tuple(slice(extent) for extent in value.shape)].tobytes() == value.tobytes()


def test_a_cpu_that_is_not_known(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "tiny.onnx")
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", "z80", cwd=tmp_path)
    assert done.status == 2
    assert done.error.startswith("tune: --target z80: is not known; choose among rpi4, rpi5, ")
    with pytest.raises(BadInput, match="z80"):
        cpu_elsewhere("z80")


def test_no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tuner.export.compiling.find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"for riscv64 \(musl\) needs riscv64-linux-musl-gcc.*pip install ziglang"):
        toolchain_for("riscv64", "musl")
