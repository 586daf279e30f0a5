"""The public names of edgetune, in one import: load a network, tune it, build a module, run the module.

    import edgetune

    module = edgetune.load("resnet18.tuned")
    outputs = module({"data": image})

Names are imported when they are first used, so that `import edgetune` takes no time. What is listed here stays between
releases as CHANGELOG.md promises; the packages behind it may move.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.activity import Activity, listening
    from tuner.alignment import aligned
    from tuner.cli.progress import verbose
    from tuner.devices import Device, open_device
    from tuner.errors import BadInput
    from tuner.graph import FusedGraph, Model, fuse, load_exported, load_onnx, tasks_of
    from tuner.interop import ort_step, torch_operator
    from tuner.measure import LocalRunner, MeasureOptions
    from tuner.module import BuildOptions, Module, VerifyOptions, build, load, random_inputs, verify
    from tuner.session import Budget, SessionReport, Task, TuneOptions, tune
    from tuning_db.record import Config, Trial, Workload
    from tuning_db.store import Store, open_db

__version__ = version("edgetune")

_HOMES = {
    "Activity": "tuner.activity",
    "BadInput": "tuner.errors",
    "Budget": "tuner.session",
    "BuildOptions": "tuner.module",
    "Config": "tuning_db.record",
    "Device": "tuner.devices",
    "FusedGraph": "tuner.graph",
    "LocalRunner": "tuner.measure",
    "MeasureOptions": "tuner.measure",
    "Model": "tuner.graph",
    "Module": "tuner.module",
    "SessionReport": "tuner.session",
    "Store": "tuning_db.store",
    "Task": "tuner.session",
    "Trial": "tuning_db.record",
    "TuneOptions": "tuner.session",
    "VerifyOptions": "tuner.module",
    "Workload": "tuning_db.record",
    "aligned": "tuner.alignment",
    "build": "tuner.module",
    "fuse": "tuner.graph",
    "listening": "tuner.activity",
    "load": "tuner.module",
    "load_exported": "tuner.graph",
    "load_onnx": "tuner.graph",
    "open_db": "tuning_db.store",
    "open_device": "tuner.devices",
    "ort_step": "tuner.interop",
    "random_inputs": "tuner.module",
    "tasks_of": "tuner.graph",
    "torch_operator": "tuner.interop",
    "tune": "tuner.session",
    "verbose": "tuner.cli.progress",
    "verify": "tuner.module",
}

__all__ = [
    "Activity",
    "BadInput",
    "Budget",
    "BuildOptions",
    "Config",
    "Device",
    "FusedGraph",
    "LocalRunner",
    "MeasureOptions",
    "Model",
    "Module",
    "SessionReport",
    "Store",
    "Task",
    "Trial",
    "TuneOptions",
    "VerifyOptions",
    "Workload",
    "aligned",
    "build",
    "fuse",
    "listening",
    "load",
    "load_exported",
    "load_onnx",
    "open_db",
    "open_device",
    "ort_step",
    "random_inputs",
    "tasks_of",
    "torch_operator",
    "tune",
    "verbose",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name from the package that defines it. Raises AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgetune' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, whether or not they were imported already."""
    return sorted([*__all__, "__version__"])
