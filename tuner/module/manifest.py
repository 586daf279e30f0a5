"""What a built module says about itself: manifest.json, and the checks that loading makes. Start at `Manifest`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from board_agent.parsing import parse_json
from tuner.errors import BadInput
from tuner.graph import Count, TensorInfo
from tuner.module.typed import check_fields
from tuning_db.record import Config, DeviceKey, Workload

FILE_NAME = "manifest.json"
KIND = "edgetune-module"
FORMAT = 9
NETWORKS, KERNELS, CONSTANTS = ".ro", ".so", ".params"  # how names of files end
_UNSIGNED = 8  # the last format whose manifests have no checksum of their own; it is read as well


@dataclass(frozen=True)
class Processor:
    """A device that a module was built for: its name, such as "opencl:0", its DeviceKey's dictionary, its target."""

    name: str
    key: Mapping[str, Any]
    target: Mapping[str, Any]

    @property
    def is_host(self) -> bool:
        """Whether it is a CPU."""
        return self.key["kind"] == "cpu"


@dataclass(frozen=True)
class Part:
    """What a merged kernel computes of one step of the network, and where it is: in the `result`-th of the kernel's
    results, from channel block `first_block` on."""

    node: str
    result: int
    first_block: int


@dataclass(frozen=True)
class OperatorEntry:
    """One step that a template computes, in execution order, and where its kernel came from.

    `function` is the kernel's name in the library (None: legalised without a template); `source` is that of its choice
    (tuner.graph.layout.choice); `seconds` per call and `error` are those of the stored trial; `first_block` is where
    its channel blocks begin in the kernel's last tensor, of which it may compute only a part (a concatenation);
    `device` is the index of the one that computes it. `parts`: where its kernel is several steps' merged one, these;
    `workload` and `node` are those of all together then.
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
        """How many tensors a merged kernel writes: the last of its arguments."""
        return 1 + max((part.result for part in self.parts), default=0)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        config = self.config.as_dict() if self.config is not None else None
        parts = [asdict(part) for part in self.parts]
        return {**self.__dict__, "workload": self.workload.as_dict(), "config": config, "parts": parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperatorEntry:
        """As `as_dict` wrote it. Raises KeyError, TypeError or ValueError for anything else."""
        config = Config.from_dict(data["config"]) if data["config"] is not None else None
        parts = tuple(Part(**part) for part in data["parts"])
        return cls(**{**data, "workload": Workload.from_dict(data["workload"]), "config": config, "parts": parts})


@dataclass(frozen=True)
class Manifest:
    """`model` has name, sha256, source and rounding (see Model); `devices` are the virtual machine's, in order, and
    `input_devices` says on which of them each input is read. `kernels` (None if the network needs none), `network` and,
    for each device, `constants` (None if it has no file of its own) name files; `files` maps every file to its SHA-256.
    `vendors`: the libraries that its kernels call, with the versions that they were checked with. `dtype` is how
    activations and weights are stored; `errors` has the largest error of every output relative to its largest value,
    found when the module was built (empty: not verified)."""

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

    @property
    def computes_on_host(self) -> bool:
        """Whether a CPU computes any of it."""
        return any(processor.is_host for processor in self.devices)

    def to_json(self) -> str:
        """As it is stored in a module's folder."""
        data = {
            **self.__dict__,
            "kind": KIND,
            "format": FORMAT,
            "inputs": [asdict(t) for t in self.inputs],
            "outputs": [asdict(t) for t in self.outputs],
            "devices": [asdict(p) for p in self.devices],
            "operators": [o.as_dict() for o in self.operators],
        }
        data["checksum"] = checksum_of(data)
        return json.dumps(data, indent=1, sort_keys=True)


def checksum_of(data: Mapping[str, Any]) -> str:
    """Return the checksum of all that a manifest says but this. It finds damage; whoever changes a manifest on purpose
    can change this, too."""
    said = {name: value for name, value in data.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def is_module(directory: Path) -> bool:
    """Whether a directory holds a module, of whatever format."""
    return bool(written_files(directory))


def written_files(directory: Path) -> set[str]:
    """Names of the files that a build wrote to a directory; empty where it holds no module, of whatever format."""
    try:
        data = parse_json((directory / FILE_NAME).read_text())
    except (OSError, ValueError):
        return set()
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return set()
    return {FILE_NAME, *(data["files"] if isinstance(data.get("files"), dict) else ())}


def read_manifest(directory: Path, check_files: bool = True) -> Manifest:
    """The manifest of a directory, whose files have the checksums that it says.

    Raises BadInput if there is none, if it is of a newer format, or if a file is missing or damaged.
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
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError):  # NumPy's, of type names
        raise BadInput(f"{path}: damaged; build the module again") from None
    _check_names(path, manifest)
    if check_files:
        for name, expected in manifest.files.items():
            if checksum(directory / name) != expected:
                raise BadInput(f"{directory / name}: damaged (its checksum differs); build the module again")
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    """Raises BadInput for a file that is not in the module's folder, or is used and has no checksum."""
    for name in manifest.files:
        if name in ("", "..") or Path(name).name != name:
            raise BadInput(f"{path}: names {name!r}, which is no file in the module's folder; do not use this module")
    kinds = {manifest.network: NETWORKS, manifest.kernels: KERNELS, **dict.fromkeys(manifest.constants, CONSTANTS)}
    for used, kind in kinds.items():
        if used is not None and not used.endswith(kind):  # each is read as what it is
            raise BadInput(f"{path}: {used!r} is no file of the kind {kind}; build the module again")
    for used in (manifest.network, manifest.kernels, *manifest.constants):
        if used is not None and used not in list(manifest.files):
            raise BadInput(f"{path}: {used!r} has no checksum; build the module again")


def _from_dict(data: Mapping[str, Any]) -> Manifest:
    def tensors(entries: list[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(e["name"], tuple(e["shape"]), e["dtype"], e["count"] and Count(**e["count"]), e.get("below"))
            for e in entries  # modules of before 2026-11-27 do not say how many entries integers choose from
        )

    if not isinstance(data["files"], dict):
        raise TypeError("the files are names with checksums")
    data = {"entry": "main", **data}  # modules of before 2026-11-25 have no other
    fields = {name: data[name] for name in Manifest.__dataclass_fields__}
    fields["inputs"], fields["outputs"] = tensors(data["inputs"]), tensors(data["outputs"])
    fields["operators"] = tuple(OperatorEntry.from_dict(o) for o in data["operators"])
    fields["devices"] = tuple(Processor(**p) for p in data["devices"])
    for name in ("cpu_features", "input_devices", "constants", "stages"):
        fields[name] = tuple(data[name])
    manifest = Manifest(**fields)
    check_fields(manifest)
    _check_places(manifest)
    return manifest


def _check_places(manifest: Manifest) -> None:
    """Raises ValueError where one part of a manifest does not fit another."""
    tensors = (*manifest.inputs, *manifest.outputs)
    if any(extent < 0 for tensor in tensors for extent in tensor.shape) or manifest.threads < 1:
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
    """SHA-256 of a file. Raises BadInput if it cannot be read."""
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
