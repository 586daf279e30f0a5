"""Exports for OpenCL, on drivers that compute on the CPU: alone and together with the host."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.made_once import made_once
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.support import NETWORKS, Made, compiled_against
from tuner.devices import open_device
from tuner.export import export
from tuner.export.checking import place_of, wrapper_of
from tuner.graph import fuse, load_onnx
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


@pytest.fixture(params=["alone", "both"])
def made(request: pytest.FixtureRequest, device: int, tmp_path_factory: pytest.TempPathFactory) -> MadeForDevice:
    """The tiny network on a device, or every second step of it."""

    def make(folder: Path) -> None:
        graph = fuse(load_onnx(NETWORKS["tiny"](folder / "tiny.onnx")))
        devices = [open_device(f"opencl:{device}"), *([open_device("cpu", 2)] if request.param == "both" else [])]
        planned = Planned([i % len(devices) for i in range(len(graph.steps))])
        options = BuildOptions(portable=True)
        build_placed(graph, devices, planned, directory=folder / "module", options=options)
        export(folder / "module", folder / "out", "net")

    folder = made_once(tmp_path_factory, f"opencl-{device}-{request.param}", make)
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


def test_a_model_is_exported_by_the_command(device: int, tmp_path: Path) -> None:
    NETWORKS["detector"](tmp_path / "detector.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("export", "detector.onnx", "-o", "out", "--device", f"opencl:{device},cpu", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.json()["checked"] == {"equal": True}
    assert done.json()["device"] > 0
