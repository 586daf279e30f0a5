"""Operators without a weight (sorting, suppression, pooling of regions, ...): what they read and write, and their
references. Start at `Operator`; a new one is a file in `vision_ops/` with its templates, and a line in its registry.

The function of a template of such an operator takes the inputs in order, then the outputs in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from templates.reference import relative_error
from tuning_db.record import Workload


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of an operand."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Operator(ABC):
    """What is computed, whatever the template."""

    op: str  # the Workload.op
    view: type[Any]  # the typed view of its workloads' attributes: a dataclass, which raises ValueError for wrong ones

    @abstractmethod
    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    @abstractmethod
    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    @abstractmethod
    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Inputs as a network has them: a kernel's time may depend on their values."""

    @abstractmethod
    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs, floating-point ones in float64."""

    def error(self, workload: Workload, results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
        """How far results are from the reference: infinite where integers differ, else the largest relative error."""
        worst = 0.0
        for result, wanted in zip(results, expected, strict=True):
            if np.issubdtype(result.dtype, np.integer):
                worst = max(worst, 0.0 if np.array_equal(result, wanted) else float("inf"))
            else:
                worst = max(worst, relative_error(result, wanted))
        return worst


_REGISTRY: dict[str, Operator] = {}


def register_operator(operator: Operator) -> Operator:
    """Make an operator known. Registering another object under the same `op` raises ValueError."""
    if _REGISTRY.setdefault(operator.op, operator) is not operator:
        raise ValueError(f"operator {operator.op!r} is registered twice")
    return operator


def operator_named(op: str) -> Operator:
    """Raises KeyError with the known ones if there is none."""
    if op not in _REGISTRY:
        raise KeyError(f"no operator is named {op!r} (known: {', '.join(sorted(_REGISTRY))})")
    return _REGISTRY[op]


def all_operators() -> list[Operator]:
    return [_REGISTRY[op] for op in sorted(_REGISTRY)]
