"""Makes the operands of a workload as kernels read them: activations in their layouts, packed weights and biases.

Start at `operands_of`; `AnchorOperands` caches all of it for one convolution or dense layer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import tvm
from tvm.target import Target

from templates import reference
from templates.bfloats import BFLOAT16
from templates.epilogue import OPERANDS, apply_numpy, operands
from templates.integers import SUMS, Types
from templates.operator import operator_named
from templates.template import PLAIN as PLAIN_LAYOUT
from templates.template import AnchorTemplate, Layout, anchor_template
from templates.workloads import anchor_of, is_anchor
from tuner.measure.targets.cold_weights import ColdWeight
from tuner.measure.targets.executor import Executor
from tuner.measure.targets.kinds import NAN, NORMAL, PLAIN, Kind, anchor_kinds, anchor_operands
from tuner.measure.targets.operand import Operand
from tuning_db.record import Config, Failure, FailureKind, Workload

# Values of channels that only fill up a block: templates must not rely on zeros there.
_FILLER, _WHOLE_FILLER = 0.75, 77
_PACKED_KEPT = 8
_GUARDED_WEIGHTS = 2
_GUARDED_BYTES = 64 << 20  # larger weights get no guarded copy, which would not fit everywhere


def _filled(layout: Layout, plain: np.ndarray) -> np.ndarray:
    """Return `plain` in `layout`, with something other than zero in the channels that only fill up the last block."""
    packed = layout.pack(plain)
    if layout.block and (channels := plain.shape[1]) % layout.block:
        whole = np.issubdtype(packed.dtype, np.integer)
        packed[:, -1, ..., channels % layout.block :] = _WHOLE_FILLER if whole else _FILLER
    return packed


@dataclass(frozen=True)
class Check:
    """A call that is made with operands of one kind. `operands` are its arguments, by name and in order. `error`
    returns, after the call, how far the outputs are from the reference, relative to the reference's largest value."""

    kind: Kind
    operands: dict[str, Operand]
    error: Callable[[], float]

    def arguments(self) -> list[Any]:
        """Return the tensors of the operands."""
        return [operand.tensor for operand in self.operands.values()]


@dataclass(frozen=True)
class Call:
    """Says what a template's function is called with. `arguments()` returns the arguments of the next timed call.
    `outputs` are the tensors among them that the function writes. `checks` are the calls whose results are compared;
    the first one has the timed operands."""

    arguments: Callable[[], Sequence[tvm.runtime.Tensor]]
    outputs: Sequence[tvm.runtime.Tensor]
    checks: Sequence[Check]


class WorkloadOperands(Protocol):
    """Holds the operands of one workload. `nbytes` is roughly the memory that they take."""

    @property
    def nbytes(self) -> int: ...

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        """Return the call for a config. `cold` makes the copies of the weight that the config's template packs, where
        it has one."""
        ...


def operands_of(
    workload: Workload, target: Target, executor: Executor, seed: int, *, denormals: bool = True
) -> WorkloadOperands:
    """Make the operands of a workload on an executor's device. `denormals` says whether the device keeps denormal
    numbers. Raises KeyError for an unknown operator."""
    if is_anchor(workload):
        return AnchorOperands(workload, target, executor, seed, denormals=denormals)
    return OperatorOperands(workload, executor, seed)


class OperatorOperands:
    """Holds the operands of a workload without a weight (templates/operator.py), and the reference of its outputs."""

    def __init__(self, workload: Workload, executor: Executor, seed: int) -> None:
        self.workload = workload
        self._operator = operator_named(workload.op)
        self._executor = executor
        self._outputs = {
            spec.name: executor.operand(np.zeros(spec.shape, spec.dtype), written=True)
            for spec in self._operator.outputs(workload)
        }
        first = self._operator.random_inputs(workload, np.random.default_rng(seed))
        second = self._operator.random_inputs(workload, np.random.default_rng([seed, 1]))
        others = [(Kind("fresh", poisoned=False), second)]
        hostile = [(Kind(name), inputs) for name, inputs in self._operator.hostile_inputs(workload, first)]
        self._checks = [self._check(kind, inputs) for kind, inputs in [(NORMAL, first), *hostile, *others]]
        self.nbytes = sum(a.nbytes for a in first) * (len(self._checks) + 1)

    def _check(self, kind: Kind, inputs: Sequence[np.ndarray]) -> Check:
        expected = self._operator.reference(self.workload, inputs)
        specs = self._operator.inputs(self.workload)
        given = {spec.name: self._executor.operand(array) for spec, array in zip(specs, inputs, strict=True)}
        return Check(kind, {**given, **self._outputs}, lambda: self._error(expected))

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        outputs = [operand.tensor for operand in self._outputs.values()]
        return Call(self._checks[0].arguments, outputs, self._checks)

    def _error(self, expected: Sequence[np.ndarray]) -> float:
        results = [self._executor.array(operand.tensor) for operand in self._outputs.values()]
        return self._operator.error(self.workload, results, expected)


class AnchorOperands:
    """Holds everything that kernels of one workload read and write, and the float64 reference of what they should
    write."""

    def __init__(
        self, workload: Workload, target: Target, executor: Executor, seed: int, *, denormals: bool = True
    ) -> None:
        self.workload = workload
        self._target = target
        self._executor = executor
        self._plain = anchor_operands(workload, seed)
        self._sums = reference.sums(workload, self._plain[PLAIN])
        self._steps = operands(workload.epilogue)
        self._kinds = anchor_kinds(workload.epilogue, workload.dtype, denormals, seed)
        self._expected = {kind.name: self._expect(kind) for kind in self._kinds}  # in no candidate's time
        self._expected_in: dict[tuple[str, Layout], np.ndarray] = {}
        self._tensors: dict[tuple[str, str, Layout | str], Operand] = {}
        self._packed: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
        self._weights: OrderedDict[tuple[str, str], Operand] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes are held: every array and its copies in layouts count."""
        plain = [a for p in self._plain.values() for a in (p.data, p.weight, *p.extra)]
        tensors = [int(np.prod(o.tensor.shape)) * 4 for o in (*self._tensors.values(), *self._weights.values())]
        expected = (*self._expected.values(), *self._expected_in.values())
        arrays = [*plain, self._sums, *expected, *self._packed.values()]
        return sum(a.nbytes for a in arrays) + sum(tensors)

    def expected(self, kind: Kind = NORMAL) -> np.ndarray:
        """Return what kernels should write, in plain layout."""
        return self._expected[kind.name]

    def _expect(self, kind: Kind) -> np.ndarray:
        plain = kind.base == PLAIN
        sums = self._sums if plain else reference.sums(self.workload, self._plain[kind.base])
        extra = [self._extra(kind, i).astype(np.float64) for i in range(len(self._steps))]
        with np.errstate(over="ignore", invalid="ignore"):
            found = apply_numpy(self.workload.epilogue, sums * kind.factor, extra)
        if Types.of(self.workload).out == SUMS:
            return found
        return found.astype(np.float32)  # has enough digits, takes half the memory, is compared in a fifth of the time

    def _extra(self, kind: Kind, step: int) -> np.ndarray:
        factor = kind.factor if kind.others is None else kind.others
        return _scaled(self._plain[kind.base].extra[step], factor)

    def packed_weight(self, template: AnchorTemplate, config: Config) -> np.ndarray:
        """Return the weight as a template packs it for a config."""
        key = template.name, template.weight_key(self.workload, self._target, config)
        if key not in self._packed:
            while len(self._packed) >= _PACKED_KEPT:
                self._packed.popitem(last=False)
            weight = self._plain[PLAIN].weight
            self._packed[key] = template.pack_weight(self.workload, self._target, config, weight)
        self._packed.move_to_end(key)
        return self._packed[key]

    def _guarded_weight(self, template: AnchorTemplate, config: Config, cold: ColdWeight) -> Operand:
        """Return the weight for checks. A large weight gets no guarded copy: one of the copies for timed calls is
        returned."""
        packed = self.packed_weight(template, config)
        if packed.nbytes > _GUARDED_BYTES:
            return Operand(cold.next())
        key = template.name, template.weight_key(self.workload, self._target, config)
        if key not in self._weights:
            while len(self._weights) >= _GUARDED_WEIGHTS:
                self._weights.popitem(last=False)
            self._weights[key] = self._executor.operand(packed)
        self._weights.move_to_end(key)
        return self._weights[key]

    def _tensor(self, name: str, kind: str, layout: Layout, plain: Callable[[], np.ndarray]) -> Operand:
        key = name, kind, layout
        if key not in self._tensors:
            self._tensors[key] = self._executor.operand(_filled(layout, plain()), written=name == "out")
        return self._tensors[key]

    def _by_channel(self, template: AnchorTemplate, kind: Kind, step: int) -> Operand:
        key = f"channel{step}", kind.name, template.name
        if key not in self._tensors:
            packed = template.pack_bias(self.workload, self._target, self._extra(kind, step))
            self._tensors[key] = self._executor.operand(packed)
        return self._tensors[key]

    def operands(self, template: AnchorTemplate, kind: Kind, weight: Operand) -> dict[str, Operand]:
        """Return what a template's function takes, by name and in order: the data, the weight, the epilogue's operands
        in their layouts, and the output."""
        layouts, data = template.layouts(self.workload, self._target), self._plain[kind.base].data
        made = {
            "data": self._tensor("data", kind.name, layouts.data, lambda: _scaled(data, kind.factor)),
            "weight": weight,
        }
        for i, step in enumerate(self._steps):
            shape = OPERANDS[step].shape
            if shape == "channel":
                made[f"{step}{i}"] = self._by_channel(template, kind, i)
            elif shape != "image":
                made[f"{step}{i}"] = self._tensor(f"{step}{i}", kind.name, PLAIN_LAYOUT, partial(self._extra, kind, i))
            else:
                made[f"{step}{i}"] = self._tensor(f"{step}{i}", kind.name, layouts.out, partial(self._extra, kind, i))
        size, dtype = anchor_of(self.workload).out_shape, Types.of(self.workload).out
        made["out"] = self._tensor("out", "", layouts.out, lambda: np.zeros(size, dtype))
        return made

    def error(self, template: AnchorTemplate, out: Any, kind: Kind = NORMAL) -> float:
        """Return the relative error of an output tensor against the reference. It is infinity if the output is not
        finite where the reference is."""
        layout, expected = template.layouts(self.workload, self._target).out, self.expected(kind)
        result, channels = self._executor.array(out), expected.shape[1]
        if layout.block and channels % layout.block:  # channels that fill up the last block are no result
            result = layout.unpack(result, channels)
        else:
            expected = self._laid_out(kind, layout)
        if kind.base == NAN and template.spreads_nan:
            expected = np.where(np.isnan(result), np.float32(np.nan), expected)
        if np.issubdtype(result.dtype, np.integer):
            steps = reference.steps_off(self.workload, self._plain[kind.base].extra)
            return 0.0 if reference.same_integers(result, expected, steps) else float("inf")
        return reference.relative_error(result, expected)

    def _laid_out(self, kind: Kind, layout: Layout) -> np.ndarray:
        """Return what kernels should write, in the kernels' layout. It is kept, because many candidates
        share a layout."""
        key = kind.name, layout
        if key not in self._expected_in:
            self._expected_in[key] = layout.pack(self.expected(kind))
        return self._expected_in[key]

    def call(self, config: Config, cold: Callable[[AnchorTemplate], ColdWeight]) -> Call:
        """See `WorkloadOperands.call`."""
        template, weights = anchor_template(config.template), cold(anchor_template(config.template))
        guarded = self._guarded_weight(template, config, weights)
        timed = self.operands(template, NORMAL, guarded)
        data, _, *behind = (operand.tensor for operand in timed.values())
        out = behind[-1]

        def check(kind: Kind) -> Check:
            made = self.operands(template, kind, guarded)
            return Check(kind, made, lambda: self.error(template, out, kind))

        return Call(lambda: (data, weights.next(), *behind), [out], [check(kind) for kind in self._kinds])


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1.0:
        return array
    return (array.astype(np.float64) * factor).astype(array.dtype)


def unwritten(dtype: str) -> float | int:
    """Return the value that an output is filled with before a kernel is checked, so that elements which the kernel does
    not write are wrong."""
    return float("nan") if np.issubdtype(np.dtype(dtype), np.floating) else np.iinfo(dtype).min


def verdict(error: float, dtype: str, tolerance: float, kind: Kind = NORMAL) -> Failure | None:
    """Return the failure that a relative error means for a kernel, or None where the error is allowed. `tolerance` is
    multiplied by the kind's slack."""
    allowed = tolerance * kind.slack
    if error <= allowed:
        return None
    on = "" if kind.name == NORMAL.name else f" on {kind.name} operands"
    if not np.isfinite(error) and dtype != BFLOAT16 and np.issubdtype(np.dtype(dtype), np.integer):
        return Failure(FailureKind.WRONG_ANSWER, f"integers differ from the reference, or were not written{on}")
    if not np.isfinite(error):
        return Failure(FailureKind.WRONG_ANSWER, f"the result is not finite, or not all of it was written{on}")
    return Failure(FailureKind.WRONG_ANSWER, f"relative error {error:.1e} exceeds {allowed:.1e}{on}")
