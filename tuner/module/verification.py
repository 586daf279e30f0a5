"""Comparing a built module with what its model says. Start at `verify`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.target import Target

from templates.epilogue import operands
from templates.operator import operator_named
from templates.reference import Operands, reference, relative_error
from templates.template import anchor_template
from templates.workloads import anchor_of
from tuner.errors import VerificationFailed
from tuner.graph import AnchorStep, FusedGraph, OperatorStep, TensorInfo, TunedStep
from tuner.module.manifest import Operator, Part
from tuner.module.rows import in_order_of
from tuner.module.runtime import Module
from tuner.vendors import vendor_of, vendor_template
from tuning_db.record import Workload, tolerance_of

# Largest absolute error over the largest absolute value of an output. In half precision every tensor on the way is
# rounded: that says little about a single kernel, so each is checked on its own besides.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
SEEDS = (0, 1, 2)

Reference = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class OperatorError:
    """How far one operator of a module is from the reference of the same operands."""

    operator: Operator
    error: float


def random_inputs(tensors: Iterable[TensorInfo], seed: int) -> dict[str, np.ndarray]:
    """Inputs by name: standard normal for floating point, 0 or 1 for everything else."""
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.standard_normal(t.shape).astype(t.dtype)
        if np.issubdtype(np.dtype(t.dtype), np.floating)
        else rng.integers(0, 2, t.shape).astype(t.dtype)
        for t in tensors
    }


def verify(
    module: Module,
    expected: Reference,
    seeds: Sequence[int] = SEEDS,
    tolerance: float | None = None,
    graph: FusedGraph | None = None,
) -> dict[str, float]:
    """Run both on random inputs; the largest relative error of every output over all seeds. Detections whose scores are
    equal but for rounding may come in another order (`rows.in_order_of`).

    Raises VerificationFailed if one is above `tolerance` (default: that of how the module stores values), naming the
    output and, where `graph` (that the module was built from) is given, the operator that is farthest off. With a
    graph in half precision every anchor's kernel has to be right by itself, too.
    """
    tolerance = TOLERANCE[module.manifest.dtype] if tolerance is None else tolerance
    errors = {t.name: 0.0 for t in module.manifest.outputs}
    for seed in seeds:
        inputs = random_inputs(module.manifest.inputs, seed)
        references = {name: np.asarray(value) for name, value in expected(inputs).items()}
        results = in_order_of(references, module(inputs), module.manifest.outputs, tolerance)
        for name in errors:
            errors[name] = max(errors[name], relative_error(results[name], references[name]))
        worst = max(errors, key=lambda name: errors[name])
        if not errors[worst] <= tolerance:
            blame = "" if graph is None else _blame(operator_errors(module, graph, inputs))
            raise VerificationFailed(
                f"{module.manifest.model['name']}: output {worst!r} is off by {errors[worst]:.2g} of its largest value "
                f"(allowed: {tolerance:g}, input seed {seed}){blame}"
            )
    if graph is not None and graph.dtype != "float32":
        _check_operators(operator_errors(module, graph, random_inputs(module.manifest.inputs, seeds[0])))
    return errors


def _check_operators(errors: Sequence[OperatorError]) -> None:
    """Raises VerificationFailed where a kernel alone is off by more than its own rounding."""
    for found in errors:
        allowed = tolerance_of(found.operator.workload.dtype)
        if not found.error <= allowed:
            raise VerificationFailed(
                f"node {found.operator.node!r} is off by {found.error:.2g} of its largest value alone "
                f"(allowed: {allowed:g})"
            )


def operator_errors(module: Module, graph: FusedGraph, inputs: Mapping[str, np.ndarray]) -> list[OperatorError]:
    """The error of everything that a template computes, on the operands that it has in one inference; of a merged
    kernel, that of the member that is farthest off."""
    steps = _steps(module, graph)
    targets = [Target(dict(processor.target)) for processor in module.manifest.devices]
    found: list[OperatorError] = []

    def compare(operator: Operator, tensors: tuple) -> None:
        arrays, errors = [t.numpy() for t in tensors], []
        for part, step in zip(_parts(operator), steps[id(operator)], strict=True):
            if isinstance(step, OperatorStep):
                errors.append(_operator_error(step, arrays))
            else:
                errors.append(_anchor_error(operator, part, step, targets[operator.device], arrays))
        found.append(OperatorError(operator, float(np.max(errors))))  # not max: one may be no number

    module.observe(inputs, compare)
    return found


def _parts(operator: Operator) -> Sequence[Part]:
    return operator.parts or (Part(operator.node, 0, operator.first_block),)


def _steps(module: Module, graph: FusedGraph) -> dict[int, list[TunedStep]]:
    """The steps of every operator, which stages may have put in another order than the graph's. A node may have become
    several: those of equal workloads are in order."""
    waiting: dict[str, list[TunedStep]] = defaultdict(list)
    for step in graph.tuned:
        waiting[step.node].append(step)

    def taken(node: str, workload: Workload | None) -> TunedStep:
        steps = waiting[node]
        return steps.pop(next(i for i, step in enumerate(steps) if workload in (None, step.workload)))

    return {
        id(operator): [taken(part.node, None if operator.parts else operator.workload) for part in _parts(operator)]
        for operator in module.manifest.operators
    }


def _operator_error(step: OperatorStep, arrays: Sequence[np.ndarray]) -> float:
    operator, inputs = operator_named(step.workload.op), len(step.inputs)
    wanted = operator.reference(step.workload, arrays[:inputs])
    return operator.error(step.workload, arrays[inputs:], wanted)


def _anchor_error(
    operator: Operator, part: Part, step: AnchorStep, target: Target, arrays: Sequence[np.ndarray]
) -> float:
    assert operator.config is not None
    name = operator.config.template
    template = (
        anchor_template(name) if (vendor := vendor_of(name)) is None else vendor_template(vendor, operator.workload)
    )
    layouts = template.layouts(step.workload, target)
    data, _, *extra = arrays[: -operator.results]
    result = arrays[len(arrays) - operator.results + part.result]
    anchor = anchor_of(step.workload)
    channels = anchor.out_shape[1]
    plain = []
    for token, array in zip(operands(step.workload.epilogue), extra, strict=True):
        value = step.bias if token == "bias" else layouts.out.unpack(array, channels)
        assert value is not None
        plain.append(value)
    data = layouts.data.unpack(data, anchor.data_shape[1])
    wanted = reference(step.workload, Operands(data, step.weight, tuple(plain)))
    if layouts.out.block:
        blocks = layouts.out.shape(anchor.out_shape)[1]
        result = result[:, part.first_block : part.first_block + blocks]
    return relative_error(layouts.out.unpack(result, channels), wanted)


def _blame(errors: Sequence[OperatorError]) -> str:
    if not errors:
        return ""
    worst = max(errors, key=lambda e: e.error)
    config = worst.operator.config
    assert config is not None
    return f"; farthest off alone is node {worst.operator.node!r} by {config.template}: {worst.error:.2g}"
