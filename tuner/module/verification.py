"""Comparing a built module with what its model says. Start at `verify`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.target import Target

from templates.epilogue import operands
from templates.operator import operator_named
from templates.reference import Operands, reference, relative_error
from templates.template import anchor_template
from templates.workloads import anchor_of
from tuner.errors import VerificationFailed
from tuner.graph import AnchorStep, FusedGraph, OperatorStep, TunedStep
from tuner.module.inputs import DISTRIBUTIONS, drawn_inputs, random_inputs
from tuner.module.manifest import Manifest, Operator, Part
from tuner.module.rows import in_order_of
from tuner.module.runtime import Module
from tuner.vendors import vendor_of, vendor_template
from tuning_db.record import Workload, tolerance_of

# Largest absolute error over the largest absolute value of an output, by what rounds most on the way. In half precision
# every tensor is rounded, to 11 digits: that says little about a single kernel, so each is checked on its own besides.
# Where a file quantises to 8 bits, a value on the border of two steps may fall on either side, and some steps add up.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "int8": 1e-1}
SEEDS = range(len(DISTRIBUTIONS))
# A deep network may round away more than TOLERANCE by itself: it is right within so many times what onnxruntime's own
# float32 result is off from float64, and never beyond the limit.
_OWN_ERRORS, _MOST = 8.0, 1e-2
_GIVEN = "the given inputs"

Reference = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class OperatorError:
    """How far one operator of a module is from the reference of the same operands."""

    operator: Operator
    error: float


def tolerance_for(manifest: Manifest) -> float:
    """The error that is allowed by default: by how the module stores values, and how its file rounds them."""
    return max(TOLERANCE[manifest.dtype], TOLERANCE[manifest.model.get("rounding", "float32")])


def verify(
    module: Module,
    expected: Reference,
    seeds: Sequence[int] = SEEDS,
    tolerance: float | None = None,
    graph: FusedGraph | None = None,
    *,
    given: Mapping[str, np.ndarray] | None = None,
    own_errors: Callable[[Mapping[str, np.ndarray]], Mapping[str, float]] | None = None,
) -> dict[str, float]:
    """Run both on drawn inputs of several distributions (see inputs.py), and on those that are `given`; the largest
    relative error of every output over all of them. Detections whose scores are equal but for rounding may come in
    another order (`rows.in_order_of`).

    Raises VerificationFailed if one is above `tolerance`, naming the output and, where `graph` (that the module was
    built from) is given, the operator that is farthest off. Without a tolerance it is that of how values are stored
    and rounded (`tolerance_for`); where that is exceeded, `own_errors` of the reference, of the same inputs and by
    output, may allow more. Where values are rounded to less than float32, every anchor's
    kernel has to be right by itself, too.
    """
    names = [t.name for t in module.manifest.outputs]
    errors = dict.fromkeys(names, 0.0)
    sets = [] if given is None else [(given, _GIVEN)]
    drawn = ((seed, *drawn_inputs(module.manifest.inputs, seed, module.manifest.outputs)) for seed in seeds)
    for inputs, title in (*sets, *((arrays, f"input seed {seed}, {name}") for seed, arrays, name in drawn)):
        found = _errors_of(module, expected, inputs)
        allowed = tolerance_for(module.manifest) if tolerance is None else tolerance
        worst = max(names, key=lambda name: found[name])
        if not found[worst] <= allowed and tolerance is None and own_errors is not None:
            own = own_errors(inputs)
            if "normal" not in title and title != _GIVEN and _OWN_ERRORS * max(own.values(), default=0.0) > _MOST:
                continue  # the reference itself has no digits there: unlike the network's own inputs, they tell nothing
            bounds = {name: max(allowed, min(_OWN_ERRORS * float(own.get(name, 0.0)), _MOST)) for name in names}
            worst = max(names, key=lambda name: found[name] / bounds[name])
            allowed = bounds[worst]
        if not found[worst] <= allowed:
            blame = "" if graph is None else _blame(operator_errors(module, graph, inputs))
            raise VerificationFailed(
                f"{module.manifest.model['name']}: output {worst!r} is off by {found[worst]:.2g} of its largest value "
                f"(allowed: {allowed:.2g}, {title}){blame}"
            )
        errors = {name: max(errors[name], found[name]) for name in names}
    if graph is not None and {graph.dtype, graph.model.rounding} != {"float32"}:
        _check_operators(operator_errors(module, graph, random_inputs(module.manifest.inputs, seeds[0])))
    return errors


def _errors_of(module: Module, expected: Reference, inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The relative error of every output; infinite where one is of another type."""
    references = {name: np.asarray(value) for name, value in expected(inputs).items()}
    results = in_order_of(references, module(inputs), module.manifest.outputs, tolerance_for(module.manifest))
    return {
        name: relative_error(result, references[name]) if result.dtype == references[name].dtype else float("inf")
        for name, result in results.items()
    }


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
