"""The contract of operators that have no weight (sorting, suppression, pooling of regions, ...), and their registry.

Start at `Operator`. A new operator is a file in `vision_ops/`, with its templates, and a line in the package's
`__init__.py`. The function of such an operator's template takes the inputs in order, then the outputs in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import ClassVar, Self

import numpy as np

from templates.reference import relative_error
from templates.registry import Registry
from tuning_db.record import Workload


@dataclass(frozen=True)
class TensorSpec:
    """The name, shape and dtype that an operand has."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class View:
    """The typed view of an operator's workloads, a dataclass that has the workload's attributes as fields.

    It raises ValueError for attributes that do not fit.
    """

    op: ClassVar[str]  # the Workload.op of these workloads

    @classmethod
    def sizes(cls) -> tuple[str, ...]:
        """Return the fields that `tune op --shape` sets, in order: the numbers that have no default."""
        return tuple(f.name for f in fields(cls) if f.default is MISSING and str(f.type) == "int")

    def workload(self, dtype: str = "float32") -> Workload:
        return Workload(self.op, asdict(self), (), dtype)

    @classmethod
    def of(cls, workload: Workload) -> Self:
        return cls(**workload.attrs)


class Operator(ABC):
    """An operator that has no weight. It defines what templates compute, but not how they compute it."""

    view: type[View]

    @property
    def op(self) -> str:
        return self.view.op

    @abstractmethod
    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    @abstractmethod
    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]: ...

    def operands(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Return the operands that a template's function takes: the inputs, then the outputs."""
        return *self.inputs(workload), *self.outputs(workload)

    @abstractmethod
    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw inputs like those in a network. They should be realistic: a kernel's time may depend on values."""

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Yield (name, inputs) for further inputs that uncover errors which random ones hide.

        They are made from random `inputs`: large values, zeros, and a NaN if the operator passes it on. Kernels are
        checked on them.
        """
        return iter(())

    @abstractmethod
    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Compute the outputs in NumPy, floating-point ones in float64."""

    def error(self, workload: Workload, results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
        """Return how far results are from the reference: the largest relative error, or infinity if integers differ."""
        worst = 0.0
        for result, wanted in zip(results, expected, strict=True):
            if np.issubdtype(result.dtype, np.integer):
                worst = max(worst, 0.0 if np.array_equal(result, wanted) else float("inf"))
            else:
                worst = max(worst, relative_error(result, wanted))
        return worst


_REGISTRY: Registry[Operator] = Registry("operator", "templates.builtin")


def register_operator(operator: Operator) -> Operator:
    """Register an operator. Raises ValueError if another object is registered under the same `op`."""
    return _REGISTRY.add(operator.op, operator)


def operator_named(op: str) -> Operator:
    """Return the operator with this `op`. Raises KeyError with the known names if there is none."""
    return _REGISTRY.named(op)


def all_operators() -> list[Operator]:
    """Return all registered operators, including those of plugins, sorted by name."""
    return _REGISTRY.all()
