"""Compare a built module with what its model says. Start at `verify`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tvm.target import Target

from templates.epilogue import OPERANDS, operands
from templates.operator import operator_named
from templates.reference import Operands, reference, relative_error, same_integers, steps_off
from templates.template import Layout, anchor_template, tolerance_with
from templates.workloads import anchor_of
from tuner.activity import activity
from tuner.errors import VerificationFailed
from tuner.graph import AnchorStep, FusedGraph, OperatorStep, TunedStep
from tuner.module.inputs import DISTRIBUTIONS, USUAL, drawn_inputs, random_inputs
from tuner.module.manifest import Manifest, OperatorEntry, Part
from tuner.module.rows import in_order_of
from tuner.module.runtime import Module
from tuner.vendors import vendor_of, vendor_template
from tuning_db.record import Workload, tolerance_of

# The default tolerance, as the largest absolute error over the largest absolute value of an output. The key is what
# rounds most on the way. In half precision every tensor is rounded, to 11 binary digits, and with bfloat16 what is
# multiplied is, to 8. The outputs then say little about a single kernel, so each kernel is checked on its own besides.
# Where a file quantises to 8 bits, a value on the border of two steps may fall on either side, and some steps add up.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int8": 1e-1}
SEEDS = range(len(DISTRIBUTIONS))
# The rounding of a deep network alone may exceed TOLERANCE. Its outputs may then be off by _OWN_ERRORS times the error
# of onnxruntime's own float32 result against float64, but never by more than _MOST or TOLERANCE. In a file that
# quantises, one value on a border may decide what all layers behind it get, so that its outputs may be off as far as
# they reach.
_OWN_ERRORS, _MOST = 8.0, {"float32": 1e-2, "float16": 1e-2, "int8": 1.0}

Arrays = Mapping[str, np.ndarray]
Reference = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class OperatorError:
    """The error of one operator of a module, which is compared with the reference on the same operands."""

    operator: OperatorEntry
    error: float


def tolerance_for(manifest: Manifest) -> float:
    """Return the error that is allowed by default. It depends on how the module stores values, and on how its file
    rounds them."""
    return max(TOLERANCE[manifest.dtype], TOLERANCE[_rounding(manifest)])


@dataclass(frozen=True)
class _Set:
    """Inputs that a module is verified on. `is_usual` is true for a user's own inputs, and for normally distributed
    ones unless the file quantises to ranges that it measured on others. Where the reference itself has no accurate
    digits, a difference on usual inputs still fails, while unusual inputs tell nothing and are skipped."""

    inputs: Arrays
    title: str
    is_usual: bool


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification; all have defaults.

    `seeds` are those of the inputs that are drawn, from several distributions (see inputs.py). `given` are a user's own
    inputs, used besides. `tolerance` is the largest error of an output over its largest value. Without it, the default
    depends on how values are stored and rounded (`tolerance_for`).
    """

    seeds: Sequence[int] = SEEDS
    given: Arrays | None = None
    tolerance: float | None = None


class Verifiable(Protocol):
    """A network that can be run: a Module, or what runs its export elsewhere."""

    @property
    def manifest(self) -> Manifest:
        """Return the description of the module."""
        ...

    def __call__(self, inputs: Arrays) -> Arrays:
        """Return the outputs for arrays by name."""
        ...


@activity("verifying the module")
def verify(
    module: Verifiable,
    expected: Reference,
    options: VerifyOptions | None = None,
    *,
    graph: FusedGraph | None = None,
    own_errors: Callable[[Arrays], Mapping[str, float]] | None = None,
    locate: Callable[[str, Arrays, float], str | None] | None = None,
) -> dict[str, float]:
    """Run the module and the reference `expected` on the inputs of the options. Return the largest relative error of
    every output over all of them. Detections whose scores are equal but for rounding may come in another order
    (`rows.in_order_of`).

    Raises VerificationFailed if an error is above the tolerance, or if no inputs tell anything. The message names the
    output. If `graph` (from which
    the module was built) is given, the message also names the operator that is farthest off. It includes what `locate`
    returns for the output, those inputs and the allowed error.

    If an error exceeds the default tolerance, `own_errors` may allow more: it returns the reference's own errors by
    output for the same inputs. `graph` is only given for a Module. If it is given and values are rounded to less than
    float32, every anchor's kernel has to be right by itself, too.
    """
    options, manifest = options or VerifyOptions(), module.manifest

    def alone(inputs: Arrays) -> Sequence[OperatorError]:
        """Return the errors of the operators by themselves."""
        if graph is None:
            return ()
        assert isinstance(module, Module)
        return operator_errors(module, graph, inputs)

    errors, told = {t.name: 0.0 for t in manifest.outputs}, False
    least = tolerance_for(manifest) if options.tolerance is None else options.tolerance
    for each in _sets(manifest, options):
        found = _errors_of(module, expected, each.inputs)
        allowed: Mapping[str, float] | None = dict.fromkeys(errors, least)
        if options.tolerance is None and own_errors is not None and not all(found[name] <= least for name in errors):
            allowed = _more_allowed(max(least, _MOST[_rounding(manifest)]), least, each, own_errors)
        if allowed is None:
            continue
        told = True
        off = [name for name in errors if not found[name] <= allowed[name]]
        if off:
            worst = max(off, key=lambda name: found[name])
            blame = _blame(alone(each.inputs))
            node = None if locate is None else locate(worst, each.inputs, allowed[worst])
            first = "" if node is None else f"; the first that is off is {node}, on operands that are right"
            raise VerificationFailed(
                f"{manifest.model['name']}: output {worst!r} is off by {found[worst]:.2g} of its largest value "
                f"(allowed: {allowed[worst]:.2g}, {each.title}){blame}{first}"
            )
        errors = {name: max(errors[name], found[name]) for name in errors}
    if not told:
        raise VerificationFailed(
            f"{manifest.model['name']}: roundings move the reference's own outputs by more than their size for all "
            "inputs that were drawn: give inputs of the network's kind with --input"
        )
    if graph is not None and {graph.dtype, graph.model.rounding} != {"float32"}:
        _check_operators(alone(random_inputs(manifest.inputs, options.seeds[0])))
    return errors


def _sets(manifest: Manifest, options: VerifyOptions) -> Iterator[_Set]:
    if options.given is not None:
        yield _Set(options.given, "the given inputs", is_usual=True)
    for seed in options.seeds:
        inputs, name = drawn_inputs(manifest.inputs, seed, manifest.outputs)
        yield _Set(inputs, f"input seed {seed}, {name}", is_usual=name == USUAL and _rounding(manifest) != "int8")


def _rounding(manifest: Manifest) -> str:
    """Return what the file of a module rounds values to."""
    return manifest.model.get("rounding", "float32")


def _more_allowed(
    most: float, least: float, each: _Set, own_errors: Callable[[Arrays], Mapping[str, float]]
) -> Mapping[str, float] | None:
    """Return the allowed error by output, from `least` to `most`, where the reference is off itself. Return None if
    these inputs tell nothing."""
    own = own_errors(each.inputs)
    if not each.is_usual and _OWN_ERRORS * max(own.values(), default=0.0) > most:
        return None
    bounds = {name: max(least, min(_OWN_ERRORS * float(error), most)) for name, error in own.items()}
    return defaultdict(lambda: least, bounds)


def _errors_of(module: Verifiable, expected: Reference, inputs: Arrays) -> dict[str, float]:
    """Return the relative error of every output. It is infinite if an output has another dtype."""
    references = {name: np.asarray(value) for name, value in expected(inputs).items()}
    results = in_order_of(references, module(inputs), module.manifest.outputs, tolerance_for(module.manifest))
    return {
        name: relative_error(result, references[name]) if result.dtype == references[name].dtype else float("inf")
        for name, result in results.items()
    }


def _check_operators(errors: Sequence[OperatorError]) -> None:
    """Raise VerificationFailed if a kernel alone is off by more than its own rounding."""
    for found in errors:
        config, dtype = found.operator.config, found.operator.workload.dtype
        allowed = tolerance_of(dtype) if config is None else tolerance_with(config.template, dtype)
        if not found.error <= allowed:
            raise VerificationFailed(
                f"node {found.operator.node!r} is off by {found.error:.2g} of its largest value alone "
                f"(allowed: {allowed:g})"
            )


def operator_errors(module: Module, graph: FusedGraph, inputs: Arrays) -> list[OperatorError]:
    """Return the error of every operator that a template computes, on the operands that it has in one inference. The
    error of a merged kernel is that of its part that is farthest off."""
    steps = _steps(module, graph)
    targets = [Target(dict(processor.target)) for processor in module.manifest.devices]
    found: list[OperatorError] = []

    def compare(operator: OperatorEntry, tensors: tuple) -> None:
        arrays, errors = [t.numpy() for t in tensors], []
        for part, step in zip(_parts(operator), steps[id(operator)], strict=True):
            if isinstance(step, OperatorStep):
                errors.append(_operator_error(step, arrays))
            else:
                errors.append(_anchor_error(operator, part, step, target=targets[operator.device], arrays=arrays))
        found.append(OperatorError(operator, float(np.max(errors))))  # not max: an error may be NaN

    module.observe(inputs, compare)
    return found


def _parts(operator: OperatorEntry) -> Sequence[Part]:
    return operator.parts or (Part(operator.node, 0, operator.first_block),)


def _steps(module: Module, graph: FusedGraph) -> dict[int, list[TunedStep]]:
    """Return the steps of every operator, by the operator's `id`. Stages may have put operators in another order than
    the graph's. A node may have become several steps; those of equal workloads are in order."""
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
    operator: OperatorEntry, part: Part, step: AnchorStep, *, target: Target, arrays: Sequence[np.ndarray]
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
        # A merged kernel's bias has the channels of all its members.
        own = step.bias if token == "bias" else None
        plain.append(_unpacked(array, OPERANDS[token].shape, layouts.out, channels) if own is None else own)
    data = layouts.data.unpack(data, anchor.data_shape[1])
    wanted = reference(step.workload, Operands(data, step.weight, tuple(plain)))
    if layouts.out.block:
        blocks = layouts.out.shape(anchor.out_shape)[1]
        result = result[:, part.first_block : part.first_block + blocks]
    result = layouts.out.unpack(result, channels)
    if np.issubdtype(result.dtype, np.integer):
        return 0.0 if same_integers(result, wanted, steps_off(step.workload, plain)) else float("inf")
    return relative_error(result, wanted)


def _unpacked(array: np.ndarray, shape: str, layout: Layout, channels: int) -> np.ndarray:
    """Return an operand of an epilogue without the values that only fill it up."""
    if shape == "channel":
        return array.reshape(-1)[:channels]
    return layout.unpack(array, channels) if shape == "image" else array


def _blame(errors: Sequence[OperatorError]) -> str:
    if not errors:
        return ""
    worst = max(errors, key=lambda e: e.error)
    config = worst.operator.config
    assert config is not None
    return f"; farthest off alone is node {worst.operator.node!r} by {config.template}: {worst.error:.2g}"
