"""Exports for OpenCL, on drivers that compute on the CPU: alone, together with the host, and in stages."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.made_once import made_once
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import NETWORKS, Made, compiled_against, in_stages
from tuner.devices import open_device
from tuner.devices.opencl import devices
from tuner.errors import BadInput
from tuner.export import export
from tuner.export.checking import place_of, wrapper_of
from tuner.graph import Program, fuse, load_onnx
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, build_placed, load, random_inputs
from tuning_db.store import open_db


@dataclass(frozen=True)
class MadeForDevice(Made):
    """An export for the device of this number."""

    device: int

    def network(self, **options: Any) -> Any:
        return super().network(**{**place_of(self.device), **options})


@pytest.fixture(params=["pocl", "intel"])
def device(request: pytest.FixtureRequest) -> int:
    return device_number(request.param)


@pytest.fixture(params=["alone", "both", "staged"])
def made(request: pytest.FixtureRequest, device: int, tmp_path_factory: pytest.TempPathFactory) -> MadeForDevice:
    """The tiny network on a device, or every second step of it, or the network of branches in stages."""
    return made_for(device, request.param, tmp_path_factory)


@pytest.fixture
def staged(device: int, tmp_path_factory: pytest.TempPathFactory) -> MadeForDevice:
    return made_for(device, "staged", tmp_path_factory)


def made_for(device: int, what: str, factory: pytest.TempPathFactory) -> MadeForDevice:
    """Make what the fixture `made` says."""

    def make(folder: Path) -> None:
        graph = fuse(load_onnx(NETWORKS["branches" if what == "staged" else "tiny"](folder / "net.onnx")))
        used = [open_device(f"opencl:{device}"), *([open_device("cpu", 2)] if what == "both" else [])]
        planned = Planned([i % len(used) for i in range(len(graph.steps))])
        options = BuildOptions(portable=True, arrange=in_stages if what == "staged" else None)
        build_placed(graph, used, planned, directory=folder / "module", options=options)
        export(folder / "module", folder / "out", "net")

    folder = made_once(factory, f"opencl-{device}-{what}", make)
    return MadeForDevice(folder / "module", folder / "out", "net", device)


def test_it_computes_what_the_module_does(made: MadeForDevice) -> None:
    """From several threads at once, with buffers that are not aligned too."""
    module, network = load(made.module, pin=False), made.network()
    inputs = [random_inputs(module.manifest.inputs, seed) for seed in range(4)]
    wanted = [module(given) for given in inputs]
    networks = [network, *(network.clone() for _ in range(3))]
    begin = threading.Barrier(4)

    def differs(i: int) -> bool:
        room = np.empty(inputs[i]["data"].size + 3, np.float32)
        shifted = room[i : inputs[i]["data"].size + i].reshape(inputs[i]["data"].shape)
        shifted[:] = inputs[i]["data"]
        begin.wait()
        results = [networks[i]({"data": shifted}) for _ in range(10)]
        return any(r[name].tobytes() != value.tobytes() for r in results for name, value in wanted[i].items())

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(differs, range(4)))


def test_compiled_kernels_are_kept(made: MadeForDevice, tmp_path: Path) -> None:
    module = load(made.module, pin=False)
    inputs = random_inputs(module.manifest.inputs, 0)
    (wanted,) = module(inputs).values()
    (first,) = made.network(cache=tmp_path)(inputs).values()
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept
    (second,) = made.network(cache=tmp_path)(inputs).values()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged")
    (third,) = made.network(cache=tmp_path)(inputs).values()
    assert {first.tobytes(), second.tobytes(), third.tobytes()} == {wanted.tobytes()}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_what_can_be_wrong(made: MadeForDevice) -> None:
    wrapper, place = wrapper_of(made.folder, "net"), place_of(made.device)

    def opened(**options: Any) -> Any:
        return wrapper.Network(keep=False, **{**place, **options})

    with pytest.raises(
        wrapper.NetworkError, match=r"there is no device opencl:57 here \(\d found\): there is no OpenCL"
    ):
        opened(device=57)
    with pytest.raises(wrapper.NetworkError, match="an argument is null or out of range"):
        opened(device=-1)


def test_another_driver(made: MadeForDevice, tmp_path: Path) -> None:
    """A process of its own runs it, as a library that is loaded keeps its driver."""
    code = f"import net; net.Network(driver={str(tmp_path / 'none.so')!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=made.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"net.NetworkError: {tmp_path / 'none.so'} cannot be opened: ")


def test_no_driver(made: MadeForDevice, tmp_path: Path) -> None:
    """The loader of OpenCL's drivers finds none."""
    program = compiled_against(made.folder, "net", made.folder / "example.c", tmp_path / "example")
    done = subprocess.run(
        [str(program), str(made.folder / "net.weights")],
        env={"OCL_ICD_VENDORS": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("net_create: there is no OpenCL driver, or no such device")


def held_driver(device: int, folder: Path) -> Path:
    """Compile a library that stands before a device's driver (programs/held_queues.c), and return its path."""
    driver = next(Path(info.library) for info in devices() if info.index == device)
    library, source = folder / "held.so", Path(__file__).parent / "programs" / "held_queues.c"
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    linked = ["-Wl,--no-as-needed", str(driver), f"-Wl,-rpath,{driver.parent}", "-ldl"]
    done = subprocess.run(
        [*command, f'-DREAL="{driver}"', str(source), *linked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return library


def expected_notes(program: Program, queues: int) -> list[str]:
    """Return what a run puts into which of so many queues: launches, marks and waits, as held_queues.c notes them."""
    notes = []
    for groups in program.groups():
        functions = [[program.calls[i].function for i in group] for group in groups]
        counts = [sum(len(program.launches.get(f, {}).get("launches", ())) for f in group) for group in functions]
        aside = min(len(groups), queues) - 1
        notes += ["m0"] if aside else []
        for i in range(1, aside + 1):
            notes += [f"w{i}", *[f"l{i}"] * counts[i - 1], f"m{i}"]
        notes += ["l0"] * sum(counts[aside:]) + (["w0"] if aside else [])
    return notes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("held", [0, 1], ids=["first-held", "others-held"])
@pytest.mark.parametrize("most", [1, 2, 64])
def test_groups_run_in_queues_of_their_own(
    staged: MadeForDevice, most: int, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are right however long a queue takes, and where the driver makes fewer queues than a stage has groups."""
    program = Program.from_dict(json.loads((staged.module / "program.json").read_text()))
    widest = max(len(stage.groups) for stage in program.stages)
    assert widest == 3
    shutil.copytree(staged.folder, tmp_path / "out")  # a library keeps the driver that it has opened
    library = held_driver(staged.device, tmp_path)
    monkeypatch.setenv("HELD_QUEUES", f"{most},{held}")
    network = replace(staged, folder=tmp_path / "out").network(driver=str(library))
    module, driver = load(staged.module, pin=False), ctypes.CDLL(str(library))
    driver.held_notes.restype = ctypes.c_char_p
    for seed in range(2):
        inputs = random_inputs(module.manifest.inputs, seed)
        made = network(inputs)
        assert driver.held_notes().decode().split() == expected_notes(program, min(most, widest))
        for name, wanted in module(inputs).items():
            assert made[name].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("stages", [False, True])
def test_a_module_that_does_not_hold_what_it_takes(staged: MadeForDevice, stages: bool, tmp_path: Path) -> None:
    graph = fuse(load_onnx(staged.module.parent / "net.onnx"))
    planned, options = Planned([0] * len(graph.steps)), BuildOptions(arrange=in_stages if stages else None)
    build_placed(graph, [open_device(f"opencl:{staged.device}")], planned, directory=tmp_path / "m", options=options)
    asked = "opencl:0 --stages auto" if stages else "opencl:0"
    with pytest.raises(BadInput, match=rf"export its model: tune export M.onnx --device {asked} \(or cuda:0\)"):
        export(tmp_path / "m", tmp_path / "again")


def test_a_model_is_exported_by_the_command(device: int, tmp_path: Path) -> None:
    NETWORKS["detector"](tmp_path / "detector.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("export", "detector.onnx", "-o", "out", "--device", f"opencl:{device},cpu", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.json()["checked"] == {"equal": True}
    assert done.json()["device"] > 0
