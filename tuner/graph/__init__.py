"""From a model file to a Relax module of scheduled functions.

`load_onnx` (or `load_exported`) -> `fuse` (-> `halved`) -> `tasks_of` (what to tune) and `lower` -> `finish` ->
`compile_module`; for several devices `lower_placed` instead of `lower` and `finish`.
"""

from tuner.graph.fuse import AnchorStep, FusedGraph, fuse
from tuner.graph.half import halved
from tuner.graph.kernels import default_config
from tuner.graph.load import load_exported, load_onnx
from tuner.graph.lower import Lowered, LoweredAnchor, lower
from tuner.graph.model import Model, TensorInfo
from tuner.graph.passes import compile_module, finish
from tuner.graph.placed import COPY, Place, Placed, PlacedAnchor, host_of, lower_placed
from tuner.graph.tasks import FlopShare, flop_table, tasks_of

__all__ = [
    "COPY",
    "AnchorStep",
    "FlopShare",
    "FusedGraph",
    "Lowered",
    "LoweredAnchor",
    "Model",
    "Place",
    "Placed",
    "PlacedAnchor",
    "TensorInfo",
    "compile_module",
    "default_config",
    "finish",
    "flop_table",
    "fuse",
    "halved",
    "host_of",
    "load_exported",
    "load_onnx",
    "lower",
    "lower_placed",
    "tasks_of",
]
