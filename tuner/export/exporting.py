"""Export a built module as a library in C that runs without TVM. Start at `export`."""

from __future__ import annotations

import json
import keyword
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from board_agent.parsing import parse_json
from tuner.errors import BadInput
from tuner.export.checking import Check, check_equal, check_nothing, host_target
from tuner.export.compiling import Code, Libc, System, link, own_libc, toolchain_for
from tuner.export.device import DRIVERS, device_tables
from tuner.export.layout import HOST, Layout, kernels_of, laid_out, on_host
from tuner.export.source import Source, filled
from tuner.export.webassembly import find_zig, link_module
from tuner.export.weights import Weights, weights_of
from tuner.graph import Program
from tuner.measure.codegen.toolchain import machine_of
from tuner.module.constants import read_constants
from tuner.module.manifest import Manifest, Processor, read_manifest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FORMAT = 1


@dataclass(frozen=True)
class _Files:
    """Names what an export for a kind of system consists of, besides weights, header and description. `library` is
    what runs, and `plain` are files with names of their own; {} stands for the network's name. `wrapper` is the
    template of the wrapper for Python."""

    library: str
    wrapper: str
    plain: tuple[str, ...]


_LINUX = _Files("lib{}.so", "wrapper.py.in", ("example.c", "serve.py", "Makefile", "CMakeLists.txt"))
_WASI = _Files("{}.wasm", "module.py.in", ("example.c",))


@dataclass(frozen=True)
class Exported:
    """What was exported: the files' folder, and sizes in bytes. `arena` is what one context with the usual number of
    threads needs on the host, `device` what it needs on another device, `least` the most values that are needed at one
    time on the host, and `library` the size of the shared library or WebAssembly module. `libc` is the system's C
    library. `checked` is what its check says of it, and empty if nothing could be run."""

    folder: Path
    name: str
    libc: System
    library: int
    weights: int
    arena: int
    least: int
    device: int
    calls: int
    checked: Mapping[str, Any]


def export(
    directory: str | Path,
    folder: str | Path,
    name: str | None = None,
    *,
    libc: Libc | None = None,
    flags: Sequence[str] = (),
    check: Check | None = None,
) -> Exported:
    """Export the module in `directory` to `folder`, under a `name` (default: the model's), for systems with this C
    library (default: this system's; WebAssembly has its own). `flags` are given to the C compiler. Files of an earlier
    export are replaced, others are kept. `check` gets the module's folder, the folder of the finished export and its
    name, before the export is put in place. What it returns becomes part of the export's description. By default an
    export for this system is compared with its module.

    Raises BadInput if the module cannot be exported, the name is no identifier, or a tool is missing or fails. Raises
    VerificationFailed if an output of the export differs from the module's.
    """
    directory, folder = Path(directory), Path(folder)
    manifest = read_manifest(directory)
    machine = machine_of(host_target(manifest))
    system = _system(machine, libc)
    program = on_host(_program(directory, manifest))
    name = identifier(manifest.model["name"] if name is None else name, given=name is not None)
    linked = _linker(machine, system, flags)
    weights = _weights(directory, manifest, program)
    source = _source(name, manifest, program, weights)
    kernels = directory / manifest.objects if manifest.objects and kernels_of(program, HOST) else None
    device = None if source.tables is None else source.tables.kind
    code = Code(name, source.body(), source.header(), kernels, device)
    check = check or (check_equal if system == own_libc() else check_nothing)
    made = _WASI if system == "wasi" else _LINUX

    def write(work: Path) -> dict[str, Any]:
        """Write all files to a folder and check them. Return the description of the export."""
        linked(code, work)
        _write_rest(source, weights, work, made)
        found = _described(source, manifest, work / made.library.format(name))
        found["checked"] = dict(check(directory, work, name))
        (work / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        return found

    found = _whole(folder, write)
    return Exported(folder, name, system, calls=len(program.calls), checked=found["checked"], **found["memory"])


def _system(machine: str, libc: Libc | None) -> System:
    """Return the C library of the system that an export is for, where a person may have chosen one. Raises BadInput for
    one that the machine does not have."""
    if machine != "wasm32":
        return libc or own_libc()
    if libc is not None:
        raise BadInput(f"--libc {libc}: an export for wasm32 has WASI's C library; leave the option out")
    return "wasi"


def _linker(machine: str, system: System, flags: Sequence[str]) -> Callable[[Code, Path], None]:
    """Return what links an export in a folder. Raises BadInput naming what to install."""
    if system == "wasi":
        return partial(link_module, zig=find_zig(), flags=flags)
    return partial(link, tools=toolchain_for(machine, system), flags=flags)


def _whole(folder: Path, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Let `write` write to a new folder, and move its files to `folder` at the end. Return what it returns. Raises
    BadInput if a file cannot be written."""
    target = folder.resolve()  # a link's target is written to
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
            found = write(Path(temporary))
            target.mkdir(exist_ok=True)
            for path in [p for p in Path(temporary).iterdir() if p.is_file()]:
                path.replace(target / path.name)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror or error}") from None
    return found


def _source(name: str, manifest: Manifest, program: Program, weights: Weights) -> Source:
    """Return the network as C, with its memory planned."""
    layout = laid_out(program, len(manifest.outputs))
    return Source(
        name,
        program,
        layout,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        threads=manifest.threads,
        features=manifest.cpu_features,
        identity=weights.identity,
        tables=device_tables(program, layout, _beside_host(manifest)),
    )


def identifier(name: str, given: bool) -> str:
    """Return a name for C and Python. One that was `given` has to be an identifier; another is made one.

    Raises BadInput for a given name that is none.
    """
    if not given:
        name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
        name = name if _NAME.fullmatch(name) and not keyword.iskeyword(name) else f"network_{name}".strip("_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise BadInput(f"--name {name!r}: is no identifier of C and Python; begin with a letter, such as resnet18")
    return name


def _beside_host(manifest: Manifest) -> Processor | None:
    """Return the device that is not the host, or None if there is none."""
    return next((processor for processor in manifest.devices if not processor.is_host), None)


def _program(directory: Path, manifest: Manifest) -> Program:
    if manifest.program is None:
        stages = " --stages auto" if manifest.stages else ""
        raise BadInput(
            f"{directory}: cannot be exported: it was built by an earlier version, or for a GPU; "
            f"export its model: tune export M.onnx --device opencl:0{stages} (or cuda:0)"
        )
    try:
        program = Program.from_dict(parse_json((directory / manifest.program).read_text()))
    except (OSError, KeyError, TypeError, ValueError):
        raise BadInput(f"{directory / manifest.program}: damaged; build the module again") from None
    if others := sorted({*program.devices} - {HOST, *DRIVERS}):
        raise BadInput(f"{directory}: cannot be exported: networks on {others[0]} are not exported yet")
    return program


def _weights(directory: Path, manifest: Manifest, program: Program) -> Weights:
    arrays = [
        np.from_dlpack(tensor)
        for name in manifest.constants
        if name is not None
        for tensor in read_constants(directory / name)
    ]
    if len(arrays) != len(program.constants):
        raise BadInput(f"{directory}: damaged: its constants are not those of its program; build the module again")
    return weights_of(arrays, json.dumps(program.as_dict(), sort_keys=True))


def _write_rest(source: Source, weights: Weights, folder: Path, made: _Files) -> None:
    (folder / f"{source.name}.weights").write_bytes(weights.content)
    (folder / f"{source.name}.h").write_text(source.header())
    for ending, template in ((".hpp", "interface.hpp.in"), (".py", made.wrapper)):
        (folder / f"{source.name}{ending}").write_text(filled(template, source.words))
    for file in made.plain:
        (folder / file).write_text(filled(f"{file}.in", source.words))


def _described(source: Source, manifest: Manifest, library: Path) -> dict[str, Any]:
    """Return the description of an export, which is written beside it."""
    layout: Layout = source.layout
    memory = {
        "library": library.stat().st_size,
        "weights": library.with_name(f"{source.name}.weights").stat().st_size,
        "arena": layout.arena + manifest.threads * layout.part,
        "device": layout.device.size,
        "least": layout.least + manifest.threads * layout.part,
    }
    return {
        "kind": "edgetune-export",
        "format": _FORMAT,
        "name": source.name,
        "model": dict(manifest.model),
        "inputs": [asdict(t) for t in source.inputs],
        "outputs": [asdict(t) for t in source.outputs],
        "devices": [{"name": p.name, "target": dict(p.target)} for p in manifest.devices],
        "cpu_features": list(source.features),
        "threads": manifest.threads,
        "calls": len(source.program.calls),
        "stages": [len(stage.groups) for stage in source.program.stages],
        "memory": memory,
        "errors": dict(manifest.errors),
        "versions": dict(manifest.versions),
    }
