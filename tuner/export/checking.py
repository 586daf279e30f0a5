"""Compare an exported network with the module that it was made from. Start at `check_equal`."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tuner.devices.opencl import devices
from tuner.errors import BadInput, VerificationFailed
from tuner.graph import host_of
from tuner.measure.codegen.toolchain import machine_of
from tuner.module import device_for, load, random_inputs
from tuner.module.cpu_features import missing_features
from tuner.module.manifest import Manifest, read_manifest

_SEEDS = (0, 1)

# Checks the export of a name: see `exporting.export`.
Check = Callable[[Path, Path, str], Mapping[str, Any]]


def wrapper_of(folder: Path, name: str) -> Any:
    """Import the Python wrapper of the export `name` in a folder, and return the module."""
    spec = importlib.util.spec_from_file_location(f"edgetune_export_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    wrapper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wrapper)
    return wrapper


def host_target(manifest: Manifest) -> Target:
    """Return the target of a module's code for the host."""
    return host_of([Target(dict(processor.target)) for processor in manifest.devices])


def _runs_here(manifest: Manifest) -> bool:
    """Return whether this machine has the processors that a module was built for."""
    if machine_of(host_target(manifest)) != platform.machine() or missing_features(manifest.cpu_features):
        return False
    try:
        for processor in manifest.devices:
            if not processor.is_host:
                device_for(processor)
    except BadInput:  # there is no such device here
        return False
    return manifest.kernels is not None or manifest.objects is None


def check_equal(directory: Path, folder: Path, name: str) -> dict[str, Any]:
    """Run the module in `directory` and the export `name` in `folder` on random inputs. Return {"equal": True}, or
    nothing for a module that cannot be loaded as it is for another processor.

    Raises VerificationFailed if any output differs in any bit.
    """
    manifest = read_manifest(directory)
    if not _runs_here(manifest):
        return {}
    module = load(directory, pin=False)
    place = next((_place(device_for(p).name) for p in manifest.devices if not p.is_host), {})
    network = wrapper_of(folder, name).Network(keep=False, **place)
    for seed in _SEEDS:
        inputs = random_inputs(module.manifest.inputs, seed)
        made = network(inputs)
        for output, expected in module(inputs).items():
            if not _same(made[output], expected):
                raise VerificationFailed(f"{folder}: output {output!r} differs from the module's in {directory}")
    return {"equal": True}


def _place(device: str) -> dict[str, Any]:
    """Return the options with which an export finds a device such as "cuda:0" of this machine."""
    kind, _, number = device.partition(":")
    return place_of(int(number)) if kind == "opencl" else {"device": int(number)}


def place_of(number: int) -> dict[str, Any]:
    """Return the options with which an export finds the device "opencl:`number`" of this machine. Some drivers that
    edgetune opens by itself are not known to the system."""
    known = devices()
    own = next(info for info in known if info.index == number)
    alike = [info.index for info in known if info.library == own.library]
    loader = Path(own.library).name.startswith("libOpenCL.so")
    return {"device": alike.index(number), "driver": None if loader else own.library}


def check_nothing(_directory: Path, _folder: Path, _name: str) -> dict[str, Any]:
    """Return nothing: the export cannot be run here."""
    return {}


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()
