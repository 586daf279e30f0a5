"""Built networks: `build` writes one as a directory, `load` gives a callable, `verify` compares it with its model.

module = tuner.module.load("resnet18")
outputs = module({"data": image})
"""

from tuner.module.builder import build
from tuner.module.choice import Choice, choose
from tuner.module.manifest import Manifest, Operator, read_manifest
from tuner.module.runtime import CallTime, Module, load

__all__ = [
    "CallTime",
    "Choice",
    "Manifest",
    "Module",
    "Operator",
    "build",
    "choose",
    "load",
    "read_manifest",
]
