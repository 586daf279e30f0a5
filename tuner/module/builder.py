"""Building a module from a network and the tuning database, without measuring. Start at `build`.

A module is a directory: kernels (a shared library), the network (the virtual machine's program with the weights, laid
out as the kernels read them) and manifest.json. It appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import FusedGraph, Model, compile_module, finish, fuse, lower
from tuner.measure.toolchain import check_toolchain
from tuner.module.choice import Choice, choose
from tuner.module.cpu_features import required_features
from tuner.module.manifest import FILE_NAME, Manifest, Operator, checksum, is_module
from tuning_db.record import Workload
from tuning_db.store import Store

_PACKAGES = ("edgetune", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx")


def build(
    network: Model | FusedGraph,
    device: Device,
    directory: str | Path,
    store: Store | None = None,
    exact: bool = False,
    choices: Mapping[Workload, Choice] | None = None,
    check: Callable[[Path], object] | None = None,
) -> Manifest:
    """Compile a network with the best known configs and write it to `directory`.

    `choices` overrides the database for the workloads that it has; `exact` forbids templates that round differently
    (Winograd). `check` is given the finished module before it is put in place: what it raises leaves `directory` as it
    was. An existing directory is replaced only if it is a module. Raises BadInput if the directory is
    something else or cannot be written (nothing is left behind then), or if a config cannot be applied.
    """
    directory = Path(directory)
    _check_target(directory)
    graph = network if isinstance(network, FusedGraph) else fuse(network)
    linker = check_toolchain()
    chosen = {**choose((s.workload for s in graph.anchors), device, store, exact), **(choices or {})}
    lowered = lower(graph, {w: c.config for w, c in chosen.items()}, device.target)
    executable = compile_module(finish(lowered.module, device.target), device.target)
    operators = tuple(
        Operator(node, function, workload, config, c.source, c.seconds, c.error)
        for node, workload, config, function in lowered.functions
        for c in (chosen[workload],)
    )
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent))
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written: {error.strerror}") from None
    try:
        os.chmod(partial, 0o755)
        files = _write_files(executable.mod, partial, linker)
        manifest = _manifest(graph.model, device, operators, partial, files)
        (partial / FILE_NAME).write_text(manifest.to_json())
        if check is not None:
            check(partial)
        _replace(partial, directory)
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _check_target(directory: Path) -> None:
    if directory.exists() and not (directory.is_dir() and (is_module(directory) or not any(directory.iterdir()))):
        raise BadInput(f"{directory}: exists and is not a built module; give another directory")
    if not directory.parent.is_dir():
        raise BadInput(f"{directory}: the folder {directory.parent} does not exist; create it first")
    if not os.access(directory.parent, os.W_OK | os.X_OK):
        raise BadInput(f"{directory}: the folder {directory.parent} cannot be written to")


def _write_files(module: Any, folder: Path, linker: str) -> tuple[str | None, str]:
    """Write kernels and network; returns their names. A library's name has its checksum: the loader takes two files
    of one name for the same."""
    try:
        module.write_to_file(str(folder / "network.ro"), "ro")
        kernels = [child for child in module.imports if child.kind == "llvm"]
        if not kernels:
            return None, "network.ro"
        kernels[0].write_to_file(str(folder / "kernels.o"), "o")
    except RuntimeError as error:
        raise OSError(str(error).strip().splitlines()[-1]) from error
    library = folder / "kernels.so"
    command = [linker, "-shared", "-z", "noexecstack", "-o", str(library), str(folder / "kernels.o")]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise OSError(f"{linker} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    (folder / "kernels.o").unlink()
    named = folder / f"kernels-{checksum(library)[:12]}.so"
    library.rename(named)
    return named.name, "network.ro"


def _manifest(
    model: Model, device: Device, operators: tuple[Operator, ...], folder: Path, files: tuple[str | None, str]
) -> Manifest:
    return Manifest(
        model={"name": model.name, "sha256": model.sha256, "source": model.source},
        inputs=model.inputs,
        outputs=model.outputs,
        device=device.key.as_dict(),
        target=json.loads(str(device.target)),
        threads=device.threads,
        cpu_features=required_features(device.target),
        operators=operators,
        versions={name: version(name) for name in _PACKAGES},
        kernels=files[0],
        network=files[1],
        files={name: checksum(folder / name) for name in files if name is not None},
    )


def _replace(partial: Path, directory: Path) -> None:
    """Put the finished directory in place; an older module there is moved away first and comes back on failure."""
    if not directory.exists():
        partial.rename(directory)
        return
    old = partial.with_suffix(".old")
    directory.rename(old)
    try:
        partial.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)
