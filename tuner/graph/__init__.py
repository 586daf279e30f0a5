"""From a model file to a Relax module of scheduled functions.

`load_onnx` (or `load_exported`) -> `fuse` (-> `halved`) -> `tasks_of` (what to tune) and `lower_placed` ->
`compile_module`.
"""

from tuner.graph.alone import Alone, lower_alone, lower_transform, runs_on
from tuner.graph.capture import why_not_captured
from tuner.graph.fuse import AnchorStep, FusedGraph, OperatorStep, TunedStep, fuse
from tuner.graph.half import halved
from tuner.graph.hashes import kernel_hash
from tuner.graph.kernels import Place
from tuner.graph.load import load_exported, load_onnx
from tuner.graph.lower import LoweredOperator
from tuner.graph.merge import merged_tasks
from tuner.graph.model import Count, Model, TensorInfo
from tuner.graph.onnx_check import load_weights
from tuner.graph.onnx_dtypes import widen_singles
from tuner.graph.onnx_operator import operator_model
from tuner.graph.onnx_parts import Parts
from tuner.graph.onnx_rules import write_old_rules
from tuner.graph.passes import compile_module, memory_as_operands
from tuner.graph.placed import COPY, MergedOperator, Part, Placed, PlacedOperator, host_of, lower_placed
from tuner.graph.stopwatch import Stopwatch
from tuner.graph.tasks import FlopShare, flop_table, tasks_of

__all__ = [
    "COPY",
    "Alone",
    "AnchorStep",
    "Count",
    "FlopShare",
    "FusedGraph",
    "LoweredOperator",
    "MergedOperator",
    "Model",
    "OperatorStep",
    "Part",
    "Parts",
    "Place",
    "Placed",
    "PlacedOperator",
    "Stopwatch",
    "TensorInfo",
    "TunedStep",
    "compile_module",
    "flop_table",
    "fuse",
    "halved",
    "host_of",
    "kernel_hash",
    "load_exported",
    "load_onnx",
    "load_weights",
    "lower_alone",
    "lower_placed",
    "lower_transform",
    "memory_as_operands",
    "merged_tasks",
    "operator_model",
    "runs_on",
    "tasks_of",
    "why_not_captured",
    "widen_singles",
    "write_old_rules",
]
