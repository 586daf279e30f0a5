"""Operands of a workload as kernels read them: activations in their layouts, packed weights and biases.

Start at `operands_of`; `AnchorOperands` caches all of it for one convolution or dense layer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tvm
from tvm.target import Target

from templates import reference
from templates.epilogue import operands
from templates.operator import operator_named
from templates.template import AnchorTemplate, Layout, anchor_template
from templates.workloads import anchor_of, is_anchor
from tuner.measure.cold import ColdWeight
from tuner.measure.place import Place
from tuning_db.record import Config, Failure, FailureKind, Workload, tolerance_of

_FILLER = 0.75  # in the channels that only fill up a block: templates must not rely on zeros there
_PACKED_KEPT = 8


def _filled(layout: Layout, plain: np.ndarray) -> np.ndarray:
    """`plain` in `layout`, with something other than zero in the channels that only fill up the last block."""
    packed = layout.pack(plain)
    channels = plain.shape[1]
    if layout.block and channels % layout.block:
        packed[:, -1, ..., channels % layout.block :] = _FILLER
    return packed


@dataclass(frozen=True)
class Call:
    """What a template's function is called with: `arguments()` are those of the next call, `outputs` the tensors among
    them that it writes, and `error()` how far what they hold is from the reference."""

    arguments: Callable[[], Sequence[tvm.runtime.Tensor]]
    outputs: Sequence[tvm.runtime.Tensor]
    error: Callable[[], float]


class WorkloadOperands(Protocol):
    """`nbytes`: memory held, roughly."""

    @property
    def nbytes(self) -> int: ...

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        """`cold`: copies of the weight that the config's template packs, where it has one."""
        ...


def operands_of(workload: Workload, target: Target, place: Place, seed: int) -> WorkloadOperands:
    """Raises KeyError for an operator that nobody knows."""
    kind = AnchorOperands if is_anchor(workload) else OperatorOperands
    return kind(workload, target, place, seed)


class OperatorOperands:
    """Operands of a workload without a weight (templates/operator.py), and the reference of its outputs."""

    def __init__(self, workload: Workload, target: Target, place: Place, seed: int) -> None:
        self.workload = workload
        self._operator = operator_named(workload.op)
        self._place = place
        inputs = self._operator.random_inputs(workload, np.random.default_rng(seed))
        self._expected = self._operator.reference(workload, inputs)
        self._inputs = [place.tensor(array) for array in inputs]
        self._outputs = [place.tensor(np.zeros(o.shape, o.dtype)) for o in self._operator.outputs(workload)]
        self.nbytes = sum(a.nbytes for a in (*inputs, *self._expected))

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        return Call(lambda: (*self._inputs, *self._outputs), self._outputs, self._error)

    def _error(self) -> float:
        results = [self._place.array(out) for out in self._outputs]
        return self._operator.error(self.workload, results, self._expected)


class AnchorOperands:
    """Everything that kernels of one workload read and write, and the float64 reference of what they should write."""

    def __init__(self, workload: Workload, target: Target, place: Place, seed: int) -> None:
        self.workload = workload
        self._target = target
        self._place = place
        self._plain = reference.random_operands(workload, seed)
        self.expected = reference.reference(workload, self._plain)
        self._steps = operands(workload.epilogue)
        self._tensors: dict[tuple[str, Layout], tvm.runtime.Tensor] = {}
        self._biases: dict[str, tvm.runtime.Tensor] = {}
        self._packed: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Memory held, roughly: every array and its copies in layouts."""
        arrays = [self.expected, self._plain.data, self._plain.weight, *self._plain.extra, *self._packed.values()]
        tensors = [int(np.prod(t.shape)) * 4 for t in self._tensors.values()]
        return sum(a.nbytes for a in arrays) + sum(tensors)

    def packed_weight(self, template: AnchorTemplate, config: Config) -> np.ndarray:
        key = template.name, template.weight_key(self.workload, self._target, config)
        if key not in self._packed:
            while len(self._packed) >= _PACKED_KEPT:
                self._packed.popitem(last=False)
            self._packed[key] = template.pack_weight(self.workload, self._target, config, self._plain.weight)
        self._packed.move_to_end(key)
        return self._packed[key]

    def _tensor(self, name: str, layout: Layout, plain: np.ndarray) -> tvm.runtime.Tensor:
        key = name, layout
        if key not in self._tensors:
            self._tensors[key] = self._place.tensor(_filled(layout, plain))
        return self._tensors[key]

    def _bias(self, template: AnchorTemplate, place: int) -> tvm.runtime.Tensor:
        key = f"{template.name}/{place}"
        if key not in self._biases:
            packed = template.pack_bias(self.workload, self._target, self._plain.extra[place])
            self._biases[key] = self._place.tensor(packed)
        return self._biases[key]

    def around_weight(self, template: AnchorTemplate) -> tuple[tvm.runtime.Tensor, list[tvm.runtime.Tensor]]:
        """The data, and what follows the weight: the epilogue's operands in order, then the output."""
        layouts = template.layouts(self.workload, self._target)
        behind = [
            self._bias(template, i) if step == "bias" else self._tensor(f"extra{i}", layouts.out, self._plain.extra[i])
            for i, step in enumerate(self._steps)
        ]
        behind.append(self._tensor("out", layouts.out, np.zeros(self.expected.shape, self.workload.dtype)))
        return self._tensor("data", layouts.data, self._plain.data), behind

    def error(self, template: AnchorTemplate, out: Any) -> float:
        """The relative error of an output tensor against the float64 reference; infinity if it is not finite."""
        layouts = template.layouts(self.workload, self._target)
        channels = anchor_of(self.workload).out_shape[1]
        return reference.relative_error(layouts.out.unpack(self._place.array(out), channels), self.expected)

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        template = anchor_template(config.template)
        data, behind = self.around_weight(template)
        weights = cold(template)
        return Call(lambda: (data, weights.next(), *behind), behind[-1:], lambda: self.error(template, behind[-1]))


def unwritten(dtype: str) -> float | int:
    """What an output is filled with before a kernel is checked, so that what it does not write is wrong."""
    return float("nan") if np.issubdtype(np.dtype(dtype), np.floating) else np.iinfo(dtype).min


def verdict(error: float, dtype: str, tolerance: float | None = None) -> Failure | None:
    """What a relative error says of a kernel; None where it is allowed (`tolerance`; default: the dtype's)."""
    allowed = tolerance_of(dtype) if tolerance is None else tolerance
    if error <= allowed:
        return None
    if not np.isfinite(error):
        return Failure(FailureKind.WRONG_ANSWER, "the result is not finite, or not all of it was written")
    return Failure(FailureKind.WRONG_ANSWER, f"relative error {error:.1e} exceeds {allowed:.1e}")
