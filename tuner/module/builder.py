"""Building a module from a network and the tuning database, without measuring. Start at `build`.

A module is a directory: kernels (a shared library), the network (the virtual machine's program with the weights, laid
out as the kernels read them) and manifest.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from tvm import tirx

from tuner.devices import Device
from tuner.graph import FusedGraph, Lowered, Model, compile_module, finish, fuse, lower
from tuner.measure.toolchain import check_toolchain
from tuner.module.choice import Choice, choose
from tuner.module.cpu_features import required_features
from tuner.module.manifest import Manifest, Operator
from tuner.module.saving import check_directory, save
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
    """Compile a network with the best known configs and write it to `directory`, whole or not at all.

    `choices` overrides the database for the workloads that it has; `exact` forbids templates that round differently
    (Winograd). `check` is given the finished module before it is put in place: what it raises leaves `directory` as it
    was. An existing directory is replaced only if it is a module. Raises BadInput if the directory is something else
    or cannot be written, or if a config cannot be applied; DatabaseError if the store cannot be read.
    """
    directory = Path(directory)
    check_directory(directory)
    graph = network if isinstance(network, FusedGraph) else fuse(network)
    linker = check_toolchain()
    chosen = {**choose((s.workload for s in graph.anchors), device, store, exact), **(choices or {})}
    lowered = lower(graph, {w: c.config for w, c in chosen.items()}, device.target)
    finished = finish(lowered.module, device.target)
    executable = compile_module(finished, device.target)
    functions = sum(isinstance(f, tirx.PrimFunc) for f in finished.functions.values())
    operators = _operators(lowered, chosen)

    def describe(kernels: str | None, program: str, files: dict[str, str]) -> Manifest:
        return _manifest(graph.model, device, operators, kernels, program, files)

    return save(executable.mod, functions, directory, linker, describe, check)


def _operators(lowered: Lowered, chosen: Mapping[Workload, Choice]) -> tuple[Operator, ...]:
    operators = []
    for anchor in lowered.anchors:
        choice = chosen[anchor.workload]
        measured = (choice.source, choice.seconds, choice.error)
        operators.append(
            Operator(anchor.node, anchor.function, anchor.workload, anchor.config, *measured, anchor.first_block)
        )
    return tuple(operators)


def _manifest(
    model: Model,
    device: Device,
    operators: tuple[Operator, ...],
    kernels: str | None,
    program: str,
    files: dict[str, str],
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
        kernels=kernels,
        network=program,
        files=files,
    )
