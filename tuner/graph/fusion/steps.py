"""The steps that `fuse` makes of a model: anchors with their epilogues, operators of other templates, and plain Relax
bindings. `FusedGraph` holds them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.ir import IRModule, Var

from tuner.graph.ir.bindings import operands
from tuner.graph.ir.model import Model
from tuner.precision import Precision
from tuning_db.record import Workload


@dataclass(frozen=True, eq=False)
class AnchorStep:
    """A step that computes `out` = epilogue(anchor(`data`, `weight`)).

    `bias` is given if the epilogue has the token "bias". `extras` are the operands of its other tokens, in order. The
    weight is OIHW or (out, in), and the bias is (channels,). Their types are those of `templates.integers.Types`. All
    axes of a dense layer's tensors but the last count as rows. `zero` is the zero point of an integer anchor's data,
    and None if it is not a known number.
    """

    workload: Workload
    node: str
    data: Any
    extras: tuple[Any, ...]
    weight: np.ndarray
    bias: np.ndarray | None
    out: Var
    zero: int | None = None


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """A step that computes an operator (templates/operator.py) of `inputs`. `out` is a tuple if the operator has
    several outputs."""

    workload: Workload
    node: str
    inputs: tuple[Any, ...]
    out: Var


@dataclass(frozen=True, eq=False)
class PlainStep:
    """A Relax binding that no template computes."""

    node: str
    value: Any
    out: Var


TunedStep = AnchorStep | OperatorStep  # computed by a template
Step = TunedStep | PlainStep


def reads_of(step: Step) -> list[Var]:
    """Return the variables that a step reads. A variable that is read several times is listed as often."""
    if isinstance(step, AnchorStep):
        reads = [step.data, *step.extras]
    else:
        reads = operands(step.value) if isinstance(step, PlainStep) else list(step.inputs)
    return [r for r in reads if isinstance(r, Var)]


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """The steps of a model in an order that can be executed, and the expressions that are its results. `dtype` is the
    type that activations and weights are stored in between steps (see `half.halved`), or "bfloat16" where they are
    multiplied in it (see `bfloats.with_bfloats`). `precisions` has what was chosen
    for the anchors of integers, and is empty if all are as the file says."""

    model: Model
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    dtype: str = "float32"
    precisions: tuple[Precision, ...] = ()

    @property
    def anchors(self) -> tuple[AnchorStep, ...]:
        """Return the convolutions and dense layers, in order."""
        return tuple(s for s in self.steps if isinstance(s, AnchorStep))

    @property
    def tuned(self) -> tuple[TunedStep, ...]:
        """Return the steps that a template computes, which are anchors and other operators, in order."""
        return tuple(s for s in self.steps if isinstance(s, TunedStep))

    @property
    def parameters(self) -> tuple[Var, ...]:
        """Return the inputs of the main function, in order."""
        return tuple(self.model.module["main"].params)

    @property
    def module(self) -> IRModule:
        """Return the module whose functions plain steps may call."""
        return self.model.module


def alive_steps(steps: Sequence[Step], outputs: tuple[Any, ...]) -> tuple[Step, ...]:
    """Return the steps that the outputs depend on. A Pad that became a convolution's padding is dropped here."""
    needed = {o for o in outputs if isinstance(o, Var)}
    alive = []
    for step in reversed(steps):
        if step.out in needed:
            alive.append(step)
            needed.update(reads_of(step))
    return tuple(reversed(alive))
