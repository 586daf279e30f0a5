"""This package turns a model file into a Relax module of scheduled functions.

`load_onnx` or `load_exported` reads a model, `fuse` makes fused steps of it, and `halved` stores these in half
precision if that is wanted. `tasks_of` then lists what there is to tune. `lower_placed` and `compile_module` build the
module.
"""

from tuner.devices.stopwatch import COPY
from tuner.graph.fusion.bfloats import with_bfloats
from tuner.graph.fusion.float_forms import float_form, with_floats
from tuner.graph.fusion.fuse import fuse, fuse_for
from tuner.graph.fusion.half import halved
from tuner.graph.fusion.integers import keeps_four_bits, multiplies_integers, multiplies_pairs, precisions
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, OperatorStep, TunedStep
from tuner.graph.importers.load import load_exported, load_onnx
from tuner.graph.importers.onnx.check import load_weights
from tuner.graph.importers.onnx.dtypes import widen_singles
from tuner.graph.importers.onnx.operator import operator_model
from tuner.graph.importers.onnx.parts import Parts
from tuner.graph.importers.onnx.rewrites.quantized import is_quantised
from tuner.graph.importers.onnx.rules import write_old_rules
from tuner.graph.ir.four_bits import remark as four_bits_remark
from tuner.graph.ir.hashes import kernel_hash
from tuner.graph.ir.model import Model
from tuner.graph.lowering.alone import Alone, lower_alone, lower_conversion, lower_transform, runs_on
from tuner.graph.lowering.capture import why_not_captured
from tuner.graph.lowering.kernels import DevicePlan
from tuner.graph.lowering.lifting import with_lifted_constants
from tuner.graph.lowering.lower import LoweredOperator
from tuner.graph.lowering.merge import merged_tasks
from tuner.graph.lowering.passes import REMEDY, compile_module, culprit, memory_as_operands, plan_memory
from tuner.graph.lowering.placed import MergedOperator, Part, Placed, PlacedOperator, host_of, lower_placed
from tuner.graph.lowering.planned_memory import PlannedMemory
from tuner.graph.lowering.program import KernelCall, NoProgramError, Program, Value, program_of
from tuner.graph.lowering.workspaces import Workspace, Workspaces, workspace_of
from tuner.graph.tasks import FlopShare, flop_table, tasks_of, tasks_of_both
from tuner.tensors import Count, TensorInfo

__all__ = [
    "COPY",
    "REMEDY",
    "Alone",
    "AnchorStep",
    "Count",
    "DevicePlan",
    "FlopShare",
    "FusedGraph",
    "KernelCall",
    "LoweredOperator",
    "MergedOperator",
    "Model",
    "NoProgramError",
    "OperatorStep",
    "Part",
    "Parts",
    "Placed",
    "PlacedOperator",
    "PlannedMemory",
    "Program",
    "TensorInfo",
    "TunedStep",
    "Value",
    "Workspace",
    "Workspaces",
    "compile_module",
    "culprit",
    "float_form",
    "flop_table",
    "four_bits_remark",
    "fuse",
    "fuse_for",
    "halved",
    "host_of",
    "is_quantised",
    "keeps_four_bits",
    "kernel_hash",
    "load_exported",
    "load_onnx",
    "load_weights",
    "lower_alone",
    "lower_conversion",
    "lower_placed",
    "lower_transform",
    "memory_as_operands",
    "merged_tasks",
    "multiplies_integers",
    "multiplies_pairs",
    "operator_model",
    "plan_memory",
    "precisions",
    "program_of",
    "runs_on",
    "tasks_of",
    "tasks_of_both",
    "why_not_captured",
    "widen_singles",
    "with_bfloats",
    "with_floats",
    "with_lifted_constants",
    "workspace_of",
    "write_old_rules",
]
