"""Exported networks compute what their modules do, bit for bit, however they are called."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from board_agent.networks import Options
from tests.tuner.export.support import Made, compiled
from tests.tuner.graph.networks import Net
from tuner.devices import open_device
from tuner.export import export
from tuner.export.checking import check_nothing, wrapper_of
from tuner.graph import load_onnx
from tuner.module import build, load, random_inputs

SOURCES = Path(__file__).with_name("programs")


def _same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        a.shape == second[name].shape and a.tobytes() == second[name].tobytes() for name, a in first.items()
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_the_wrapper_computes_what_the_module_does(made: Made, threads: int, shared: bool) -> None:
    module, network = made.loaded(), made.network(threads=threads, shared=shared)
    assert network.inputs == {n: (s, np.dtype(d)) for n, (s, d) in module.inputs.items()}
    for seed in range(4):
        inputs = made.inputs(seed)
        assert _same(network(inputs), module(inputs))


def test_the_wrapper_and_the_agent_of_a_board_have_the_options_of_the_header(tiny: Made) -> None:
    """The library would read beyond a structure that lacks a field."""
    header = (tiny.folder / f"{tiny.name}.h").read_text()
    (fields,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {tiny.name}_options;", header)
    wanted = re.findall(r"^ *(.*?)(\w+);", fields, flags=re.MULTILINE)
    for options in (wrapper_of(tiny.folder, tiny.name)._Options, Options):
        found = [(name, kind in (ctypes.c_int, ctypes.c_size_t)) for name, kind in options._fields_]
        assert found == [(name, kind.strip() in ("int", "size_t")) for kind, name in wanted]


def test_eight_threads_share_weights(made: Made) -> None:
    module, network = made.loaded(), made.network()
    inputs = [made.inputs(seed) for seed in range(8)]
    wanted = [module(given) for given in inputs]
    networks = [network, *(network.clone() for _ in range(7))]
    begin = threading.Barrier(8)

    def differs(i: int) -> bool:
        begin.wait()
        return not all(_same(networks[i](inputs[i]), wanted[i]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(differs, range(8)))


def test_a_library_may_be_closed_and_opened_again(tiny: Made) -> None:
    """Its threads wait for work when it is closed."""
    code = f"""
import _ctypes, ctypes, sys, time
sys.path.insert(0, {str(tiny.folder)!r})
import numpy as np
from tiny import Network
results = []
for _ in range(3):
    network = Network(threads=2, keep=False)
    results.append(network({{"data": np.ones((1, 3, 16, 16), np.float32)}})["gemm_0"].tobytes())
    handle = network._library._handle
    del network
    _ctypes.dlclose(handle)
    time.sleep(0.05)
assert len(set(results)) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_buffers_that_are_not_aligned_are_copied(tiny: Made) -> None:
    inputs = tiny.inputs()
    room = np.empty(inputs["data"].size + 1, np.float32)
    shifted = room[1:].reshape(inputs["data"].shape)
    shifted[:] = inputs["data"]
    assert {room.ctypes.data % 64, shifted.ctypes.data % 64} != {0}
    network = tiny.network()
    assert _same(network({"data": shifted}), network(inputs))


@pytest.mark.parametrize("shared", [False, True])
def test_the_example_in_c(made: Made, shared: bool, tmp_path: Path) -> None:
    program = compiled(made, made.folder / "example.c", tmp_path / "example", shared=shared)
    inputs, files = made.inputs(), []
    for i, array in enumerate(inputs.values()):
        (tmp_path / f"{i}.bin").write_bytes(array.tobytes())
        files.append(f"{i}.bin")
    command = [str(program), str(made.folder / f"{made.name}.weights"), "3", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    module = made.loaded()
    for i, (name, value) in enumerate(module(inputs).items()):
        shape, dtype = module.outputs[name]
        whole = np.frombuffer((tmp_path / f"output{i}.bin").read_bytes(), dtype).reshape(shape)
        valid = whole[tuple(slice(extent) for extent in value.shape)]
        assert valid.tobytes() == value.tobytes()
        assert f"output {i} ({name}): " in done.stdout
    for count in (value.shape[0] for value in module(inputs).values()):
        assert f"{count} entries" in done.stdout


@pytest.mark.parametrize("program", ["allocations.c", "callers_threads.c", "cplusplus.cc", "misuse.c"])
def test_programs(tiny: Made, program: str, tmp_path: Path) -> None:
    """Nothing is allocated in a run; the caller's threads and arena serve; C++ works; misuse ends in statuses."""
    flags = ("-std=c++17",) if program.endswith(".cc") else ("-std=gnu11",)
    binary = compiled(tiny, SOURCES / program, tmp_path / "program", flags=flags)
    weights = tiny.folder / "tiny.weights"
    done = subprocess.run([str(binary), str(weights)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("program", ["allocations.c", "callers_threads.c"])
def test_programs_with_stages(exports: Path, program: str, tmp_path: Path) -> None:
    made = Made(exports / "branches.module", tmp_path / "out", "tiny")
    assert len(json.loads((made.module / "program.json").read_text())["stages"]) == 2
    export(made.module, made.folder, made.name, check=check_nothing)
    binary = compiled(made, SOURCES / program, tmp_path / "program", flags=["-std=gnu11"])
    done = subprocess.run([str(binary), str(made.folder / "tiny.weights")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tiny", "branches"])
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(exports: Path, network: str, sanitizers: str, tmp_path: Path) -> None:
    flag = f"-fsanitize={sanitizers}"
    flags = [flag, "-g", "-fno-sanitize-recover=all"]
    made = Made(exports / f"{network}.module", tmp_path / "out", "tiny")
    export(made.module, made.folder, made.name, flags=flags, check=check_nothing)
    binary = compiled(made, SOURCES / "contexts.c", tmp_path / "contexts", flags=[flag, "-std=gnu11"])
    done = subprocess.run([str(binary), str(made.folder / "tiny.weights")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    net = Net()
    data = net.input(1, 8)
    relu, same, fixed = net.op("Relu", data), net.op("Identity", data), net.op("Identity", net.weight(1, 8))
    model = net.save(tmp_path / "through.onnx", relu, same, fixed)
    build(load_onnx(model), open_device("cpu", 1), tmp_path / "module")
    made = export(tmp_path / "module", tmp_path / "out")
    network, module = wrapper_of(made.folder, made.name).Network(), load(tmp_path / "module")
    inputs = random_inputs(module.manifest.inputs, 0)
    assert _same(network(inputs), module(inputs))


def test_a_network_without_kernels(tmp_path: Path) -> None:
    net = Net()
    model = net.save(tmp_path / "same.onnx", net.op("Identity", net.input(2, 3)))
    build(load_onnx(model), open_device("cpu", 1), tmp_path / "module")
    made = export(tmp_path / "module", tmp_path / "out")
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert made.calls == 0
    assert _same(wrapper_of(made.folder, made.name).Network()(inputs), load(tmp_path / "module")(inputs))
