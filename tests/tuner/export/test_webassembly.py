"""Exports for WebAssembly: they are linked by zig and run by wasmtime."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.manual import ROOT, Reader
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import NETWORKS, Made
from tests.tuner.tiny_network import write_tiny_network
from tuner.errors import BadInput
from tuner.export.checking import wrapper_of
from tuner.export.compiling import run_tool
from tuner.export.webassembly import find_zig, with_local_symbols
from tuner.graph import load_onnx
from tuner.module import OnnxReference, random_inputs

WANTED = ("ziglang", "wasmtime")
needs_engine = pytest.mark.skipif(
    not all(map(find_spec, WANTED)) or shutil.which("llvm-objdump") is None,
    reason="needs ziglang, wasmtime and llvm-objdump",
)


@pytest.fixture(scope="module")
def folder(exports: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has the exports of NETWORKS in folders of their names."""
    made = tmp_path_factory.mktemp("wasm")
    for name in NETWORKS:
        asked = ("--target", "wasm32", "--experimental", "--name", name, "-o", name, "--json")
        done = run_tune("export", str(exports / f"{name}.onnx"), *asked, cwd=made)
        assert done.status == 0, done.error
        assert done.json()["libc"] == "wasi"
        assert done.json()["checked"] == {}
        assert "it was not run, as it is for another system" in done.err
    return made


def objdump(option: str, library: Path) -> list[str]:
    command = ["llvm-objdump", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_engine
@pytest.mark.night
@pytest.mark.parametrize("name", NETWORKS)
def test_the_outputs_are_the_models(exports: Path, folder: Path, name: str) -> None:
    network, model = wrapper_of(folder / name, name).Network(), exports / f"{name}.onnx"
    reference, graph = OnnxReference(model), load_onnx(model)
    for seed in (0, 1, 0):
        inputs = random_inputs(graph.inputs, seed)
        wanted, made = reference(inputs), network(inputs)
        assert made.keys() == wanted.keys()
        for output, value in wanted.items():
            assert made[output].dtype == value.dtype
            np.testing.assert_allclose(made[output], value, rtol=1e-4, atol=1e-5 * max(1, np.abs(value).max()))


@needs_engine
@pytest.mark.night
def test_the_files_of_an_export(folder: Path) -> None:
    """Kernels compute with vectors, and a library shows no other names than the network's."""
    assert {path.name for path in (folder / "tiny").iterdir()} == {
        *("tiny.wasm", "tiny.py", "tiny.h", "tiny.hpp", "tiny.json", "tiny.weights", "libtiny.a", "example.c")
    }
    code = objdump("-d", folder / "tiny" / "libtiny.a")
    assert sum("f32x4.mul" in line for line in code) > 10
    assert sum("v128.load" in line for line in code) > 10
    symbols = [line.split() for line in objdump("-t", folder / "tiny" / "libtiny.a") if line.startswith("0")]
    shown = {words[-1] for words in symbols if words[1] in ("g", "w")}
    assert {"tiny_run", "tiny_create", "tiny_inputs"} <= shown
    assert all(name.startswith("tiny_") for name in shown)


@needs_engine
@pytest.mark.night
def test_the_program_in_c_reads_files(exports: Path, folder: Path, tmp_path: Path) -> None:
    """It has its weights by reading a file, and finds faults in it."""
    import wasmtime

    out, program = folder / "tiny", tmp_path / "example.wasm"
    command = [*find_zig(), "cc", "-target", "wasm32-wasi", "-O1", f"-I{out}", "-o", str(program)]
    run_tool([*command, str(out / "example.c"), str(out / "libtiny.a")])
    inputs = random_inputs(load_onnx(exports / "tiny.onnx").inputs, 0)
    (tmp_path / "in.bin").write_bytes(inputs["data"].tobytes())
    weights = (out / "tiny.weights").read_bytes()
    (tmp_path / "tiny.weights").write_bytes(weights)
    (tmp_path / "short.weights").write_bytes(weights[:-64])

    def run(file: str) -> int:
        engine = wasmtime.Engine()
        store, linker, wasi = wasmtime.Store(engine), wasmtime.Linker(engine), wasmtime.WasiConfig()
        wasi.argv = ("example", file, "2", "in.bin")
        wasi.preopen_dir(str(tmp_path), ".")
        wasi.stderr_file = str(tmp_path / "err")
        wasi.stdout_file = str(tmp_path / "out")
        store.set_wasi(wasi)
        linker.define_wasi()
        module = wasmtime.Module.from_file(engine, str(program))
        try:
            linker.instantiate(store, module).exports(store)["_start"](store)
        except wasmtime.ExitTrap as ended:
            return ended.code
        return 0

    assert run("tiny.weights") == 0, (tmp_path / "err").read_text()
    (wanted,) = OnnxReference(exports / "tiny.onnx")(inputs).values()
    made = np.frombuffer((tmp_path / "output0.bin").read_bytes(), np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert run("short.weights") == 2
    assert (tmp_path / "err").read_text() == "short.weights: the weights end too early\n"


@needs_engine
@pytest.mark.night
def test_faults_are_told(folder: Path, tmp_path: Path) -> None:
    wrapper = wrapper_of(folder / "tiny", "tiny")
    with pytest.raises(wrapper.NetworkError, match="not those of this export"):
        wrapper.Network(weights=folder / "detector" / "detector.weights")
    with pytest.raises(wrapper.NetworkError, match=r"nothing\.wasm"):
        wrapper.Network(module=tmp_path / "nothing.wasm")
    network = wrapper.Network()
    with pytest.raises(wrapper.NetworkError, match="takes data, not image"):
        network({"image": np.zeros(1, np.float32)})
    with pytest.raises(wrapper.NetworkError, match=r"input 'data' is float32 of shape \(1,\), not"):
        network({"data": np.zeros(1, np.float32)})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((), "any WebAssembly engine with SIMD is an experiment; add --experimental to have it"),
        (("--experimental", "--threads", "2"), "--threads 2: kernels for wasm32 have one thread; leave the option out"),
        (("--experimental", "--libc", "musl"), "an export for wasm32 has WASI's C library; leave the option out"),
        (("--experimental", "--target", "wasm32:sm_86"), "wasm32 has no GPU; give --target wasm32"),
    ],
)
def test_what_is_refused(exports: Path, asked: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run_tune("export", str(exports / "tiny.onnx"), "-o", "out", "--target", "wasm32", *asked, cwd=tmp_path)
    assert done.status == 2
    assert done.err.splitlines()[-1].endswith(said)
    assert not (tmp_path / "out").exists()


def test_zig_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.export.webassembly.zig_command", lambda: None)
    with pytest.raises(BadInput, match="wasm32 needs zig: pip install ziglang"):
        find_zig()


def test_what_is_no_object_file(tiny: Made) -> None:
    with pytest.raises(ValueError, match="no object file of WebAssembly"):
        with_local_symbols((tiny.folder / f"lib{tiny.name}.a").read_bytes(), "tiny_")


@needs_engine
@pytest.mark.night
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    write_tiny_network(tmp_path / "resnet18.onnx")
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / "docs" / "export.md", ["Experiment: WebAssembly"])
    assert (tmp_path / "resnet18.web" / "resnet18.wasm").exists()
    assert len(reader.done) == 2  # the first of the page's three commands installs
