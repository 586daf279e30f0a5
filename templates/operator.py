"""Operators without a weight (sorting, suppression, pooling of regions, ...): what they read and write, and their
references. Start at `Operator`; a new one is a file in `vision_ops/` with its templates, and a line in its registry.

The function of a template of such an operator takes the inputs in order, then the outputs in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import numpy as np

from templates.reference import relative_error
from templates.registry import Registry
from tuning_db.record import Workload


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of an operand."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class View:
    """The typed view of an operator's workloads: a dataclass of their attributes, which raises ValueError for wrong
    ones."""

    op: ClassVar[str]  # the Workload.op

    def workload(self, dtype: str = "float32") -> Workload:
        return Workload(self.op, asdict(self), (), dtype)

    @classmethod
    def of(cls, workload: Workload) -> Self:
        return cls(**workload.attrs)


class Operator(ABC):
    """What is computed, whatever the template."""

    view: type[View]

    @property
    def op(self) -> str:
        return self.view.op

    @abstractmethod
    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    @abstractmethod
    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    def operands(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """What a template's function takes."""
        return *self.inputs(workload), *self.outputs(workload)

    @abstractmethod
    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Inputs as a network has them: a kernel's time may depend on their values."""

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Further inputs that find mistakes which usual ones hide, made from such (large, zero, NaN where the operator
        passes them), each by what it is called. Kernels are checked with them."""
        return iter(())

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


_REGISTRY: Registry[Operator] = Registry("operator")


def register_operator(operator: Operator) -> Operator:
    """Make an operator known. Registering another object under the same `op` raises ValueError."""
    return _REGISTRY.add(operator.op, operator)


def operator_named(op: str) -> Operator:
    """Raises KeyError with the known ones if there is none."""
    return _REGISTRY.named(op)


def all_operators() -> list[Operator]:
    """All that are registered, plugins' among them."""
    return _REGISTRY.all()
