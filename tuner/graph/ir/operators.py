"""Operators of templates are represented in a Relax function as calls of undefined functions, whose names hold the
workload. Start at `emit_operator`.

An importer emits such a call where a template is to compute something for which Relax has no operator or a slow one.
`fuse` makes a step of the call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from templates.operator import operator_named
from tuner.graph.ir.simplify import is_call
from tuning_db.record import Workload

_MARK = "edgetune.operator:"


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """A call in a graph that stands for an operator of `vision_ops`, with its operands."""

    workload: Workload
    inputs: tuple[Any, ...]


def emit_operator(builder: relax.BlockBuilder, workload: Workload, inputs: Sequence[Any]) -> list[Any]:
    """Emit a call of a workload's operator and return its outputs. `inputs` must have the shapes and dtypes that the
    operator declares."""
    types = output_types(workload)
    function = relax.ExternFunc(_MARK + workload.key)
    out = builder.emit(relax.op.call_dps_packed(function, relax.Tuple(list(inputs)), out_ty=types))
    if len(types) == 1:
        return [out]
    return [builder.emit(relax.TupleGetItem(out, i)) for i in range(len(types))]


def operator_of(value: Any) -> OperatorCall | None:
    """Return the operator that a binding's value was emitted for, or None if the value is anything else."""
    if not is_call(value, "call_dps_packed"):
        return None
    function, inputs = value.args
    if not isinstance(function, relax.ExternFunc) or not function.global_symbol.startswith(_MARK):
        return None
    data = json.loads(function.global_symbol.removeprefix(_MARK))
    return OperatorCall(Workload.from_dict(data), tuple(inputs.fields))


def output_types(workload: Workload) -> list[relax.TensorType]:
    """Return the types of the outputs of a workload's operator."""
    return [relax.TensorType(o.shape, o.dtype) for o in operator_named(workload.op).outputs(workload)]
