"""Operators of templates in a Relax function: calls of functions that nobody defines, with the workload in their names.

An importer emits such a call where a template is to compute something that Relax has no operator for, or a slow one;
`fuse` makes a step of it. Start at `emit_operator`.
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
    """A call of an operator of `vision_ops` in a graph, with its operands."""

    workload: Workload
    inputs: tuple[Any, ...]


def emit_operator(builder: relax.BlockBuilder, workload: Workload, inputs: Sequence[Any]) -> list[Any]:
    """Emit an operator of `inputs`, which have the shapes and dtypes that it says; returns its outputs."""
    types = output_types(workload)
    function = relax.ExternFunc(_MARK + workload.key)
    out = builder.emit(relax.op.call_dps_packed(function, relax.Tuple(list(inputs)), out_ty=types))
    if len(types) == 1:
        return [out]
    return [builder.emit(relax.TupleGetItem(out, i)) for i in range(len(types))]


def operator_of(value: Any) -> OperatorCall | None:
    """The operator that a binding's value was emitted for, else None."""
    if not is_call(value, "call_dps_packed"):
        return None
    function, inputs = value.args
    if not isinstance(function, relax.ExternFunc) or not function.global_symbol.startswith(_MARK):
        return None
    data = json.loads(function.global_symbol.removeprefix(_MARK))
    return OperatorCall(Workload.from_dict(data), tuple(inputs.fields))


def output_types(workload: Workload) -> list[relax.TensorType]:
    """The types of what a workload's operator makes."""
    return [relax.TensorType(o.shape, o.dtype) for o in operator_named(workload.op).outputs(workload)]
