"""Build and run networks as modules. `build` writes a module as a directory, `load` returns it as a callable, and
`verify` compares its results with those of its model.

module = tuner.module.load("resnet18")
outputs = module({"data": image})
"""

from tuner.graph.layout.choice import Choice, choose
from tuner.module.builder import BuildOptions, build, build_placed
from tuner.module.first_off import first_off
from tuner.module.inputs import random_inputs
from tuner.module.manifest import Manifest, OperatorEntry, Processor, read_manifest
from tuner.module.placement import device_for
from tuner.module.reference import OnnxReference
from tuner.module.rows import in_order_of
from tuner.module.runtime import CallTime, Module, load
from tuner.module.verification import TOLERANCE, OperatorError, VerifyOptions, operator_errors, tolerance_for, verify

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
