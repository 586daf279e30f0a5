"""Define manifest.json, which describes a built module, and the checks that loading makes. Start at `Manifest`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from board_agent.parsing import parse_json
from tuner.devices import DeviceKind, kind_of
from tuner.errors import BadInput
from tuner.module.typed import check_fields
from tuner.precision import Precision
from tuner.tensors import Count, TensorInfo
from tuning_db.record import Config, DeviceKey, Workload

FILE_NAME = "manifest.json"
KIND = "edgetune-module"
FORMAT = 9
NETWORKS, KERNELS, CONSTANTS = ".ro", ".so", ".params"  # endings of the files' names
PROGRAMS, OBJECTS = ".json", ".o"
_UNSIGNED = 8  # the last format whose manifests have no checksum of their own; it is read as well


@dataclass(frozen=True)
class Processor:
    """A device that a module was built for. `name` is such as "opencl:0", `key` is its DeviceKey as a dictionary, and
    `target` is its TVM target as a dictionary."""

    name: str
    key: Mapping[str, Any]
    target: Mapping[str, Any]

    @property
    def is_host(self) -> bool:
        """Return whether the device is a CPU."""
        return self.key["kind"] == "cpu"

    @property
    def kind(self) -> DeviceKind:
        """Return the kind that the device's name is of. Raises BadInput for a kind that is not known here."""
        return kind_of(self.name)


@dataclass(frozen=True)
class Part:
    """The part of a merged kernel's results that one step of the network computes. It lies in the `result`-th of the
    kernel's results, from channel block `first_block` on."""

    node: str
    result: int
    first_block: int


@dataclass(frozen=True)
class OperatorEntry:
    """One step that a template computes, in execution order, and where its kernel came from.

    `function` is the kernel's name in the library, or None if the step was legalised without a template. `source` says
    where its config came from (see tuner.graph.layout.choice). `seconds` per call and `error` are those of the stored
    trial. `first_block` is where the step's channel blocks begin in the kernel's last tensor, which may be larger than
    the step's result (a concatenation). `device` is the index of the device that computes the step. `parts` lists the
    steps that a merged kernel computes; `workload` and `node` then describe all of them together.
    """

    node: str
    function: str | None
    workload: Workload
    config: Config | None
    source: str
    seconds: float | None
    error: float | None
    first_block: int = 0
    device: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def results(self) -> int:
        """Return how many tensors the kernel writes, which are the last of its arguments. A merged kernel may write
        several."""
        return 1 + max((part.result for part in self.parts), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which `from_dict` reads."""
        config = self.config.as_dict() if self.config is not None else None
        parts = [asdict(part) for part in self.parts]
        return {**self.__dict__, "workload": self.workload.as_dict(), "config": config, "parts": parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperatorEntry:
        """Return the entry that `as_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        config = Config.from_dict(data["config"]) if data["config"] is not None else None
        parts = tuple(Part(**part) for part in data["parts"])
        return cls(**{**data, "workload": Workload.from_dict(data["workload"]), "config": config, "parts": parts})


@dataclass(frozen=True)
class Sizes:
    """How many bytes a module takes.

    `weights` is the size of the files that hold the network and its constants, in the layouts that the kernels read.
    `kernels` is that of the kernels' library. `values` is the memory that is planned for what an inference computes,
    its results included; it is None on several devices, where TVM's pools decide. `workspaces` is the most that a
    kernel takes for itself meanwhile, with the threads that the module was built for.
    """

    weights: int
    kernels: int
    values: int | None
    workspaces: int

    @property
    def inference(self) -> int | None:
        """Return how much memory an inference takes besides weights and kernels, or None if it is not known."""
        return None if self.values is None else self.values + self.workspaces

    @property
    def peak(self) -> int | None:
        """Return how much memory an inference takes with its weights, at its peak, or None if it is not known. The
        kernels' code is not counted."""
        return None if self.inference is None else self.weights + self.inference

    def figures(self) -> dict[str, int | None]:
        """Return all sizes and both sums, by name."""
        return {**asdict(self), "inference": self.inference, "peak": self.peak}


@dataclass(frozen=True)
class Manifest:
    """A description of a module, which is stored in its folder.

    `model` has name, sha256, source and rounding (see Model). `devices` are the virtual machine's, in order, and
    `input_devices` says on which of them each input is read. `kernels` (None if the network needs none), `network` and
    `constants` name files. `constants` has one entry for each device (None if the device has no file of its own).
    `files` maps every file to its SHA-256. `vendors` maps the libraries that the kernels call to the versions that they
    were checked with. `dtype` is how activations and weights are stored. `errors` has the largest error of every output
    relative to its largest value, as found when the module was built (empty if it was not verified). `stages` describes
    the stages in which kernels are launched, if they are not launched one after the other. `entry` is the function that
    an inference calls. `program` and `objects` name the files that an export is made of: the kernel calls, and the
    kernels before they were linked (None if there are none). `sizes` is None for a module of an earlier version.
    `precisions` has what was chosen for the operators of a quantised network, and is empty if all are as in its file.
    """

    model: Mapping[str, str]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    input_devices: tuple[int, ...]
    devices: tuple[Processor, ...]
    threads: int
    cpu_features: tuple[str, ...]
    operators: tuple[OperatorEntry, ...]
    versions: Mapping[str, str]
    kernels: str | None
    network: str
    constants: tuple[str | None, ...]
    files: Mapping[str, str]
    vendors: Mapping[str, str]
    dtype: str
    errors: Mapping[str, float]
    stages: tuple[str, ...] = ()
    entry: str = "main"
    program: str | None = None
    objects: str | None = None
    sizes: Sizes | None = None
    precisions: tuple[Precision, ...] = ()

    @property
    def driven_kinds(self) -> list[DeviceKind]:
        """Return the kinds of those devices that drivers drive. Raises BadInput for a kind that is not known here."""
        return list({processor.kind for processor in self.devices if not processor.is_host})

    @property
    def computes_on_host(self) -> bool:
        """Return whether a CPU computes any part of the network."""
        return any(processor.is_host for processor in self.devices)

    def to_json(self) -> str:
        """Return the manifest as the JSON text that is stored in a module's folder."""
        data = {
            **self.__dict__,
            "kind": KIND,
            "format": FORMAT,
            "inputs": [asdict(t) for t in self.inputs],
            "outputs": [asdict(t) for t in self.outputs],
            "devices": [asdict(p) for p in self.devices],
            "operators": [o.as_dict() for o in self.operators],
            "sizes": self.sizes and asdict(self.sizes),
            "precisions": [asdict(p) for p in self.precisions],
        }
        data["checksum"] = checksum_of(data)
        return json.dumps(data, indent=1, sort_keys=True)


def checksum_of(data: Mapping[str, Any]) -> str:
    """Return the checksum of all that a manifest says except the checksum itself. It finds damage, but not a change
    that was made on purpose, since the checksum can be changed as well."""
    said = {name: value for name, value in data.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def is_module(directory: Path) -> bool:
    """Return whether a directory holds a module, of whatever format."""
    return bool(written_files(directory))


def written_files(directory: Path) -> set[str]:
    """Return the names of the files that a build wrote to a directory. The result is empty if the directory holds no
    module, of whatever format."""
    try:
        data = parse_json((directory / FILE_NAME).read_text())
    except (OSError, ValueError):
        return set()
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return set()
    return {FILE_NAME, *(data["files"] if isinstance(data.get("files"), dict) else ())}


def read_manifest(directory: Path, check_files: bool = True) -> Manifest:
    """Read the manifest of a directory. With `check_files`, check that its files have the checksums that it says.

    Raises BadInput if there is no manifest, if it is damaged or of a format that this version does not read, or if a
    file is missing or damaged.
    """
    path = directory / FILE_NAME
    try:
        data = parse_json(path.read_text())
    except FileNotFoundError:
        raise BadInput(
            f"{directory}: not a built module (it has no {FILE_NAME}); build one with `tune build`"
        ) from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{path}: damaged; build the module again") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise BadInput(f"{path}: not the manifest of a built module; give a directory that `tune build` wrote")
    if data.get("format") not in (_UNSIGNED, FORMAT):
        raise BadInput(
            f"{path}: has format {data.get('format')}, this version reads {FORMAT}; "
            "build the module again or install the version that wrote it"
        )
    if data["format"] == FORMAT and data.get("checksum") != checksum_of(data):
        raise BadInput(f"{path}: damaged (its checksum differs); build the module again")
    try:
        manifest = _from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError):  # np.dtype raises the last
        raise BadInput(f"{path}: damaged; build the module again") from None
    _check_names(path, manifest)
    if check_files:
        for name, expected in manifest.files.items():
            if checksum(directory / name) != expected:
                raise BadInput(f"{directory / name}: damaged (its checksum differs); build the module again")
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    """Raise BadInput if a named file is not in the module's folder, or if a file that is used has the wrong ending or
    no checksum."""
    for name in manifest.files:
        if name in ("", "..") or Path(name).name != name:
            raise BadInput(f"{path}: names {name!r}, which is no file in the module's folder; do not use this module")
    kinds = {
        manifest.network: NETWORKS,
        manifest.kernels: KERNELS,
        manifest.program: PROGRAMS,
        manifest.objects: OBJECTS,
        **dict.fromkeys(manifest.constants, CONSTANTS),
    }
    for used, kind in kinds.items():
        if used is not None and not used.endswith(kind):  # a file of another kind would be misread
            raise BadInput(f"{path}: {used!r} is no file of the kind {kind}; build the module again")
    for used in kinds:
        if used is not None and used not in list(manifest.files):
            raise BadInput(f"{path}: {used!r} has no checksum; build the module again")


def _from_dict(data: Mapping[str, Any]) -> Manifest:
    def tensors(entries: list[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(e["name"], tuple(e["shape"]), e["dtype"], e["count"] and Count(**e["count"]), e.get("below"))
            for e in entries  # modules built before 2026-11-27 do not say how many entries integers choose from
        )

    if not isinstance(data["files"], dict):
        raise TypeError("the files are names with checksums")
    # Modules built before 2026-11-25 have no other entry, those before 2026-11-28 nothing to export and no sizes, and
    # those before 2026-11-29 no precisions.
    data = {"entry": "main", "program": None, "objects": None, "sizes": None, "precisions": [], **data}
    fields = {name: data[name] for name in Manifest.__dataclass_fields__}
    fields["inputs"], fields["outputs"] = tensors(data["inputs"]), tensors(data["outputs"])
    fields["operators"] = tuple(OperatorEntry.from_dict(o) for o in data["operators"])
    fields["devices"] = tuple(Processor(**p) for p in data["devices"])
    fields["precisions"] = tuple(Precision(**p) for p in data["precisions"])
    fields["sizes"] = data["sizes"] and Sizes(**data["sizes"])
    for name in ("cpu_features", "input_devices", "constants", "stages"):
        fields[name] = tuple(data[name])
    manifest = Manifest(**fields)
    check_fields(manifest)
    _check_places(manifest)
    return manifest


def _check_places(manifest: Manifest) -> None:
    """Raise ValueError if one part of a manifest does not fit another."""
    tensors = (*manifest.inputs, *manifest.outputs)
    if any(extent < 0 for tensor in tensors for extent in tensor.shape) or manifest.threads < 1:
        raise ValueError("a negative size")
    if manifest.sizes is not None and any(size is not None and size < 0 for size in vars(manifest.sizes).values()):
        raise ValueError("a negative size")
    for tensor in tensors:
        np.dtype(tensor.dtype)
    if {"name", "sha256", "source"} - manifest.model.keys():
        raise ValueError("the model is described")
    for processor in manifest.devices:
        check_fields(DeviceKey.from_dict(processor.key))
    devices = range(len(manifest.devices))
    if not manifest.devices or len(manifest.constants) != len(devices):
        raise ValueError("every device has its constants")
    if len(manifest.input_devices) != len(manifest.inputs) or not set(manifest.input_devices) <= set(devices):
        raise ValueError("every input is read on a device")
    if not all(operator.device in devices for operator in manifest.operators):
        raise ValueError("every operator is computed on a device")
    for tensor in manifest.outputs:
        if tensor.count is not None and not 0 <= tensor.count.axis < len(tensor.shape):
            raise ValueError("an output has as many entries along an axis of its own")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file. Raises BadInput if it cannot be read."""
    digest = hashlib.sha256()
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: not a file; build the module again")
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        raise BadInput(f"{path}: missing; build the module again") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
