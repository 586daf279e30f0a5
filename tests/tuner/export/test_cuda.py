"""Exports for CUDA, without a GPU: they are compiled and linked, and run on a stand-in for Nvidia's driver that
computes on the host and checks how it is called."""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.made_once import made_once
from tests.tuner.cli.conftest import run_tune
from tests.tuner.export.cuda_driver import Emulated, driver_for, emulated_driver
from tests.tuner.export.support import NETWORKS, Made, compiled_against, in_stages
from tests.tuner.export.test_elsewhere import needs_zig
from tests.tuner.measure.offline.support import compiler_or_skip
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device
from tuner.devices.cuda.opening import CudaInfo
from tuner.devices.elsewhere import devices_elsewhere
from tuner.errors import BadInput
from tuner.export import export, exporting
from tuner.export.checking import check_nothing, wrapper_of
from tuner.export.device import device_tables
from tuner.export.layout import laid_out, on_host
from tuner.graph import Program, fuse, load_onnx
from tuner.graph.layout.choice import Planned
from tuner.module import BuildOptions, OnnxReference, build_placed, random_inputs
from tuner.module.manifest import read_manifest
from tuning_db.store import open_db

NO_DRIVER = "there is no CUDA driver, or no such device"
# A GPU as a Jetson Nano's, in this machine; the driver of one is older than some functions.
GPU = CudaInfo(
    name="Emulated GPU",
    capability=(5, 3),
    compute_units=1,
    max_threads=1024,
    shared_memory_bytes=48 << 10,
    warp=32,
    memory_bytes=1 << 30,
    cache_bytes=1 << 20,
)
FLAGS = {"alone": ("-DOLD_DRIVER",), "both": (), "detector": (), "staged": ()}

_NETWORKS = {"detector": "detector", "staged": "branches"}


@dataclass(frozen=True)
class MadeForCuda(Made):
    """An export with the emulated driver that knows its kernels."""

    driver: Path

    @property
    def program(self) -> Program:
        return program_in(self.module)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        return random_inputs(read_manifest(self.module).inputs, seed)


def program_in(module: Path) -> Program:
    return on_host(Program.from_dict(json.loads((module / "program.json").read_text())))


@pytest.fixture(params=FLAGS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MadeForCuda:
    """The tiny network on a GPU, or every second step of it, or the detector, or the network of branches in stages."""
    return made_for_cuda(request.param, tmp_path_factory)


def made_for_cuda(what: str, factory: pytest.TempPathFactory) -> MadeForCuda:
    """Make what the fixture `made` says."""
    compiler_or_skip("jetson-nano", "nvrtc")

    def make(folder: Path) -> None:
        graph = fuse(load_onnx(NETWORKS[_NETWORKS.get(what, "tiny")](folder / "net.onnx")))
        devices = [GPU.device("cuda:0"), *([open_device("cpu", 2)] if what == "both" else [])]
        planned = Planned([i % len(devices) for i in range(len(graph.steps))])
        options = BuildOptions(portable=True, link=False, arrange=in_stages if what == "staged" else None)
        build_placed(graph, devices, planned, directory=folder / "module", options=options)
        export(folder / "module", folder / "out", "net", check=check_nothing)
        emulated_driver(program_in(folder / "module"), GPU.arch, folder, FLAGS[what])

    folder = made_once(factory, f"cuda-{what}", make)
    return MadeForCuda(folder / "module", folder / "out", "net", folder / "libcuda.so.1")


@pytest.fixture
def emulated(made: MadeForCuda) -> Iterator[Emulated]:
    """The driver's reports. What was made is gone at the end."""
    with reports_of(made) as driver:
        yield driver


@contextmanager
def reports_of(made: MadeForCuda) -> Iterator[Emulated]:
    """Return the reports of an export's driver, and check at the end that nothing of it is left."""
    driver = Emulated(made.driver)
    driver.launches()
    driver.branches()
    yield driver
    assert driver.count("alive") == 0


def expected_launches(program: Program) -> list[str]:
    """Return what a run has to compute, in order, from what the module says of each function."""
    called = [call.function for call in program.calls if call.function in program.launches]
    launches = [launch for function in called for launch in program.launches[function]["launches"]]
    return [" ".join([x["kernel"], *(",".join(map(str, x[shape])) for shape in ("groups", "items"))]) for x in launches]


def graphs_of(program: Program) -> int:
    """How many times the GPU computes with nothing between."""
    return sum(on_gpu for on_gpu, _ in groupby(call.function in program.launches for call in program.calls))


@pytest.mark.parametrize("plain", [False, True])
def test_it_computes_what_the_model_does(made: MadeForCuda, emulated: Emulated, plain: bool) -> None:
    network = made.network(driver=made.driver, plain_launches=plain)
    program, made_before = made.program, emulated.count("made")
    plain_before, replayed_before = emulated.count("plain"), emulated.count("replayed")
    for seed in range(2):
        inputs = made.inputs(seed)
        outputs = network(inputs)
        for name, wanted in OnnxReference(made.module.parent / "net.onnx")(inputs).items():
            assert outputs[name].shape == wanted.shape
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
        assert emulated.launches() == expected_launches(program)
    assert emulated.count("made") == made_before
    launched = 2 * len(expected_launches(program)) if plain else 0
    assert emulated.count("plain") - plain_before == launched
    assert emulated.count("replayed") - replayed_before == (0 if plain else 2 * graphs_of(program))
    assert (graphs_of(program) == 1) == (made.module.parent.name != "cuda-both")
    del network


def test_plain_launches_and_graphs_are_equal_on_many_threads(made: MadeForCuda, emulated: Emulated) -> None:
    network = made.network(driver=made.driver)
    networks = [network, *(network.clone() for _ in range(3))]
    inputs = [made.inputs(seed) for seed in range(4)]
    one_by_one = made.network(driver=made.driver, plain_launches=True)
    wanted = [one_by_one(given) for given in inputs]
    begin = threading.Barrier(4)

    def differs(i: int) -> bool:
        ((name, array),) = inputs[i].items()
        room = np.empty(array.size + 3, np.float32)
        shifted = room[i : array.size + i].reshape(array.shape)
        shifted[:] = array
        begin.wait()
        results = [networks[i]({name: shifted}) for _ in range(5)]
        return any(r[output].tobytes() != value.tobytes() for r in results for output, value in wanted[i].items())

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(differs, range(4)))
    networks.clear()  # before the network whose weights they share
    emulated.launches()
    del network, one_by_one


# What a function of the driver answers, and what is said of it.
FAULTS = (
    ("cuInit=100", f"cuInit: no CUDA-capable device is detected (error 100): {NO_DRIVER}"),
    ("cuInit=803", f"cuInit: unknown error (error 803): {NO_DRIVER}"),
    ("cuDeviceGet=101", f"there is no device cuda:0 here (1 found): {NO_DRIVER}"),
    (
        "cuModuleLoadData=209",
        "the kernels are for sm_53, and the device is Emulated GPU (sm_53): no kernel image is available for the "
        "device (error 209): the driver refused the kernels",
    ),
    ("cuMemAlloc_v2=2", "cuMemAlloc: out of memory (error 2): memory ran out"),
    ("cuStreamCreate=2", "cuStreamCreate: out of memory (error 2): memory ran out"),
    ("cuMemcpyHtoDAsync_v2=700", "cuMemcpyHtoDAsync: unknown error (error 700): the device or its driver failed"),
    ("cuStreamBeginCapture_v2=900", "cuStreamBeginCapture: unknown error (error 900): the device or its driver failed"),
    ("cuStreamEndCapture=901", "cuStreamEndCapture: unknown error (error 901): the device or its driver failed"),
    ("cuLaunchKernel=1", "main_kernel: "),
    ("cuGraphInstantiate=2", "cuGraphInstantiate: out of memory (error 2): memory ran out"),
    ("cuCtxPushCurrent_v2=201", "cuCtxPushCurrent: unknown error (error 201): the device or its driver failed"),
    ("cuDevicePrimaryCtxRetain=2", "cuDevicePrimaryCtxRetain: out of memory (error 2): memory ran out"),
)


def refusal(made: MadeForCuda, **options: Any) -> str:
    """Return what is said where no network can be made; nothing of it is left."""
    wrapper = wrapper_of(made.folder, "net")
    try:
        wrapper.Network(driver=made.driver, **options)
    except wrapper.NetworkError as error:
        return str(error)
    raise AssertionError("a network was made")


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("fault", "line"), FAULTS)
def test_what_the_driver_refuses(made: MadeForCuda, fault: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that was made before is given back."""
    monkeypatch.setenv("EMULATED_FAULT", fault)
    said = refusal(made)
    assert said.startswith(line)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("fault", ["cuGraphLaunch=719", "cuMemcpyDtoHAsync_v2=719", "cuStreamSynchronize=719"])
def test_a_run_that_fails(made: MadeForCuda, emulated: Emulated, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = wrapper_of(made.folder, "net")
    network = wrapper.Network(driver=made.driver)
    monkeypatch.setenv("EMULATED_FAULT", fault)
    with pytest.raises(wrapper.NetworkError, match=r"unknown error \(error 719\): the device or its driver failed"):
        network(made.inputs())
    monkeypatch.delenv("EMULATED_FAULT")
    assert network(made.inputs()).keys() == network.outputs.keys()
    emulated.launches()
    del network


@pytest.mark.usefixtures("emulated")
def test_devices_are_counted(made: MadeForCuda) -> None:
    assert refusal(made, device=57) == f"there is no device cuda:57 here (1 found): {NO_DRIVER}"
    assert refusal(made, device=-1).endswith("an argument is null or out of range")


def test_a_driver_without_a_function(made: MadeForCuda, tmp_path: Path) -> None:
    """A process of its own runs it, as a library that is loaded keeps its driver."""
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "old.so"), str(tmp_path / "old.c")], check=True)
    for driver, said in (("old.so", "lacks the function cuGetErrorString"), ("none.so", "cannot be opened")):
        code = f"import net; net.Network(driver={str(tmp_path / driver)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=made.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == f"net.NetworkError: {tmp_path / driver} {said}: {NO_DRIVER}"


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="a CUDA driver is installed here")
def test_no_driver(made: MadeForCuda, tmp_path: Path) -> None:
    program = compiled_against(made.folder, "net", made.folder / "example.c", tmp_path / "example")
    command = [str(program), str(made.folder / "net.weights")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"net_create: {NO_DRIVER}: libcuda.so.1 cannot be opened\n"


def test_numbers_and_shared_memory(tmp_path: Path) -> None:
    """Sanitizers find nothing, no leak either, whatever fails."""
    images = """
#include "cuda.h"
static void scale(float *out, const float *by, int first, float more) {
  int i = first + static_cast<int>(blockIdx.x * 4 + threadIdx.y * 2 + threadIdx.x);
  out[i] = out[i] * by[0] + more;
}
static const unsigned char code[] = "scale";
extern const std::vector<Image> images = {{code, sizeof code, {kernel("scale", scale, false)}}};
"""
    driver, runtime = driver_for(images, tmp_path), Path(exporting.__file__).with_name("runtime")
    program, flags = tmp_path / "session", ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{runtime}"]
    sources = [Path(__file__).parent / "programs" / "cuda_session.c", runtime / "cuda.c", runtime / "driver.c"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["gcc", *flags, *sanitizers, "-o", str(program), *map(str, sources), "-pthread", "-ldl"]
    subprocess.run(command, check=True)
    faults = ("cuInit=100", "cuModuleLoadData=209", "cuMemAlloc_v2=2", "cuGraphInstantiate=2", "cuGraphLaunch=1")
    for fault in ("", *faults):
        env = {"EMULATED_FAULT": fault}
        done = subprocess.run([str(program), str(driver)], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode != 0, bool(done.stdout), done.stderr) == (bool(fault), bool(fault), "")


@pytest.mark.slow
def test_sanitizers_find_nothing(made: MadeForCuda, tmp_path: Path) -> None:
    """The example runs on the emulated driver, found as the system's."""
    flags = ["-fsanitize=address,undefined", "-g", "-fno-sanitize-recover=all"]
    export(made.module, tmp_path / "out", "net", flags=flags, check=check_nothing)
    program = compiled_against(
        tmp_path / "out", "net", tmp_path / "out" / "example.c", tmp_path / "example", flags=flags[:1]
    )
    (tmp_path / "in.bin").write_bytes(made.inputs()["data"].tobytes())
    done = subprocess.run(
        [str(program), str(made.folder / "net.weights"), "3", "in.bin"],
        env={"LD_LIBRARY_PATH": str(made.driver.parent), "ASAN_OPTIONS": "detect_leaks=0"},  # the example frees nothing
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted, *_ = OnnxReference(made.module.parent / "net.onnx")(made.inputs()).values()
    whole = np.frombuffer((tmp_path / "output0.bin").read_bytes(), wanted.dtype)
    result = whole[: wanted.size].reshape(wanted.shape)  # only so many entries are valid
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_the_kernels_that_are_launched_are_in_the_library(made: MadeForCuda) -> None:
    """Each code is an object file for a GPU that defines the kernels of its launches, and lies in the library."""
    program, manifest = made.program, read_manifest(made.module)
    tables = device_tables(program, laid_out(program, len(manifest.outputs)), manifest.devices[0])
    assert tables is not None
    library = (made.folder / "libnet.so").read_bytes()
    for i, code in enumerate(tables.codes):
        assert code.content in library
        assert code.options == "sm_53"
        symbols = functions_of(code.content)
        assert {launch.kernel for launch in tables.plan.launches if launch.code == i} <= symbols
    assert sum(count for _, count in tables.plan.groups) == len(tables.plan.launches)


def functions_of(binary: bytes) -> set[str]:
    """The functions that an object file for a GPU (ELF, 64 bits) defines."""
    assert binary[:6] == b"\x7fELF\2\1"
    assert int.from_bytes(binary[18:20], "little") == 190  # EM_CUDA

    def number(at: int, size: int) -> int:
        return int.from_bytes(binary[at : at + size], "little")

    first, size, count = number(0x28, 8), number(0x3A, 2), number(0x3C, 2)
    sections = [first + i * size for i in range(count)]
    found = set()
    for section in (s for s in sections if number(s + 4, 4) == 2):  # tables of symbols
        strings = number(sections[number(section + 0x28, 4)] + 0x18, 8)
        begin, length = number(section + 0x18, 8), number(section + 0x20, 8)
        for symbol in range(begin, begin + length, 24):
            if binary[symbol + 4] & 15 == 2:  # a function
                name = strings + number(symbol, 4)
                found.add(binary[name : binary.index(b"\0", name)].decode())
    return found


@needs_zig
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("target", "arch", "machine"),
    [
        ("jetson-nano:cuda", "sm_53", 183),
        ("jetson-xavier:cuda", "sm_72", 183),
        ("jetson-orin:cuda", "sm_87", 183),
        ("x86-64-v3:sm_90", "sm_90a", 62),
    ],
)
def test_a_gpu_that_is_not_here(target: str, arch: str, machine: int, tmp_path: Path) -> None:
    compiler_or_skip("jetson-nano", "nvrtc")
    write_tiny_network(tmp_path / "tiny.onnx")
    open_db(tmp_path / "edgetune.db").close()
    done = run_tune("export", "tiny.onnx", "-o", "out", "--target", target, "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.json()["checked"] == {}
    library = (tmp_path / "out" / "libtiny.so").read_bytes()
    assert int.from_bytes(library[18:20], "little") == machine
    assert library.count(b"\x7fELF\2\1\1") > 3  # the library itself, and the codes of its kernels
    assert b"libcuda.so.1" in library
    assert arch.encode() + b"\0" in library
    described = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert [device["target"]["arch"] for device in described["devices"]] == [arch]


def test_names_of_gpus_elsewhere() -> None:
    (gpu,) = devices_elsewhere("jetson-orin:cuda")
    assert (gpu.key.kind, gpu.key.model, gpu.target.attrs["arch"]) == ("cuda", "orin", "sm_87")
    assert gpu.target.host.attrs["mcpu"] == "cortex-a78"
    gpu, cpu = devices_elsewhere("x86-64-v3:sm_86,cpu", 2)
    assert (gpu.target.attrs["arch"], cpu.threads, cpu.is_host) == ("sm_86", 2, True)
    for spec, line in (
        ("rpi4:cuda", "--target rpi4:cuda: no such GPU; give an architecture, such as rpi4:sm_86"),
        ("rpi4:mali", "--target rpi4:mali: no such GPU"),
        ("x86-64-v3:sm_86,gpu", "only the CPU computes beside a GPU: x86-64-v3:sm_86,cpu"),
        ("z80:cuda", "--target z80: is not known"),
    ):
        with pytest.raises(BadInput, match=line):
            devices_elsewhere(spec)
    with pytest.raises(BadInput, match="a number of threads is for the device cpu"):
        devices_elsewhere("jetson-orin:cuda", 2)
