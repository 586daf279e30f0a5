"""Exports of small networks, and programs that are compiled against them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.tuner.graph.networks import Net
from tests.tuner.module.test_detector import write_tiny_detector
from tests.tuner.stages.networks import host, with_threads
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import open_device
from tuner.export import export
from tuner.export.checking import wrapper_of
from tuner.export.compiling import toolchain_for
from tuner.graph import Placed, load_onnx
from tuner.module import BuildOptions, Module, build, load, random_inputs
from tuner.stages import greedy
from tuner.stages.calls import Calls
from tuner.stages.rewrite import staged


def write_branches(path: Path) -> Path:
    """Write a network with branches of three, one and two convolutions."""
    net = Net()
    x, ends = net.op("Relu", net.input(1, 16, 12, 12, name="data")), []
    for length in (3, 1, 2):
        y = x
        for _ in range(length):
            y = net.op("Relu", net.conv(y, (16, 16), 3, pads=[1] * 4))
        ends.append(y)
    return net.save(path, net.op("Flatten", net.op("Concat", *ends, axis=1)))


# "branches" is built in stages.
NETWORKS = {"tiny": write_tiny_network, "detector": write_tiny_detector, "branches": write_branches}


@dataclass(frozen=True)
class Made:
    """A module and what was exported from it, under a name."""

    module: Path
    folder: Path
    name: str

    def network(self, **options: Any) -> Any:
        """The export, as its Python wrapper runs it."""
        return wrapper_of(self.folder, self.name).Network(keep=False, **options)

    def loaded(self) -> Module:
        return load(self.module, pin=False)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        return random_inputs(self.loaded().manifest.inputs, seed)


def compiled(made: Made, source: Path, program: Path, *, shared: bool = False, flags: Sequence[str] = ()) -> Path:
    """Compile a C or C++ program against an export."""
    return compiled_against(made.folder, made.name, source, program, shared=shared, flags=flags)


def compiled_against(
    folder: Path, name: str, source: Path, program: Path, *, shared: bool = False, flags: Sequence[str] = ()
) -> Path:
    """Compile a C or C++ program against the export of a name in a folder."""
    library = folder / f"lib{name}.{'so' if shared else 'a'}"
    compiler = "g++" if source.suffix == ".cc" else "gcc"
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", *flags, f"-I{folder}", "-o", str(program)]
    done = subprocess.run(
        [*command, str(source), str(library), f"-Wl,-rpath,{folder}", "-pthread", "-lm", "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


def in_stages(placed: Placed) -> Placed:
    """Run all that can be run at the same time, on a CPU on four threads."""
    calls = Calls.of(placed)
    schedule = greedy(calls.graph())
    on_host = placed.module.global_infos["vdevice"][0].target.kind.name == "llvm"
    return staged(placed, calls, with_threads(schedule, 4) if on_host else schedule)


def make_exports(folder: Path) -> None:
    """Fill a folder with the modules and the exports of NETWORKS."""
    for name, write in NETWORKS.items():
        model = load_onnx(write(folder / f"{name}.onnx"))
        has_stages = name == "branches"
        device = host(4) if has_stages else open_device("cpu", 2)
        options = BuildOptions(arrange=in_stages if has_stages else None)
        build(model, device, folder / f"{name}.module", options=options)
        export(folder / f"{name}.module", folder / f"{name}.c", name)


def compiled_for(machine: str, folder: Path, program: Path) -> Path:
    """Compile the example of an export for another kind of machine, as a program that needs no library there."""
    tools = toolchain_for(machine, "musl")
    (archive,) = folder.glob("lib*.a")
    command = [*tools.compiler, "-static", "-O1", f"-I{folder}", "-o", str(program)]
    done = subprocess.run(
        [*command, str(folder / "example.c"), str(archive), "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program
