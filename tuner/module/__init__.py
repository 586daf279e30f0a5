"""Build and run networks as modules. `build` writes a module as a directory, `load` returns it as a callable, and
`verify` compares its results with those of its model.

module = tuner.module.load("resnet18")
outputs = module({"data": image})

What builds and verifies is imported when it is first used: to run a module needs neither databases nor a compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuner.module.inputs import random_inputs
from tuner.module.manifest import Manifest, OperatorEntry, Processor, Sizes, read_manifest
from tuner.module.placement import device_for
from tuner.module.rows import in_order_of
from tuner.module.runtime import CallTime, Module, load

if TYPE_CHECKING:
    from tuner.graph.layout.choice import Choice, choose
    from tuner.module.builder import BuildOptions, build, build_placed
    from tuner.module.first_off import first_off
    from tuner.module.reference import OnnxReference
    from tuner.module.verification import (
        TOLERANCE,
        OperatorError,
        VerifyOptions,
        operator_errors,
        tolerance_for,
        verify,
    )

_HOMES = {
    "TOLERANCE": "tuner.module.verification",
    "BuildOptions": "tuner.module.builder",
    "Choice": "tuner.graph.layout.choice",
    "OnnxReference": "tuner.module.reference",
    "OperatorError": "tuner.module.verification",
    "VerifyOptions": "tuner.module.verification",
    "build": "tuner.module.builder",
    "build_placed": "tuner.module.builder",
    "choose": "tuner.graph.layout.choice",
    "first_off": "tuner.module.first_off",
    "operator_errors": "tuner.module.verification",
    "tolerance_for": "tuner.module.verification",
    "verify": "tuner.module.verification",
}

__all__ = [
    "TOLERANCE",
    "BuildOptions",
    "CallTime",
    "Choice",
    "Manifest",
    "Module",
    "OnnxReference",
    "OperatorEntry",
    "OperatorError",
    "Processor",
    "Sizes",
    "VerifyOptions",
    "build",
    "build_placed",
    "choose",
    "device_for",
    "first_off",
    "in_order_of",
    "load",
    "operator_errors",
    "random_inputs",
    "read_manifest",
    "tolerance_for",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what builds or verifies from the module that defines it. Raises AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tuner.module' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
