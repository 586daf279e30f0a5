"""Makes the merged kernels of a network on its device: which calls may be merged, and what they become. Start at
`Merging`.

A merged kernel is that of an ordinary workload (`graph.lowering.merge`). It has the best known config among the
templates with the layouts of its members. It writes each member's channels straight into the member's own tensor, or
into the part of a joined tensor that the member would write. Nothing is copied afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from templates.template import AnchorTemplate, Layouts, ScheduleError, template_named
from templates.workloads import anchor_of, conv_of
from tuner.devices import Device
from tuner.graph import AnchorStep, MergedOperator, Part, Placed, PlacedOperator, host_of
from tuner.graph.ir.simplify import as_constant
from tuner.graph.layout.choice import Choice, choose_among
from tuner.graph.lowering.merge import Piece, merge_kind, merged_step, merged_workload, merges_to_tune, spread
from tuner.stages.calls import Calls, KernelCall
from tuner.stages.schedule import Stage
from tuning_db.record import Workload
from tuning_db.store import Store


@dataclass(frozen=True, eq=False)
class MergedKernel:
    """A kernel that computes several calls. `function` is scheduled and is called with `arguments`: variables of the
    calls' "main", and constants. `parts` are those of its results, in the members' order."""

    node: str
    workload: Workload
    choice: Choice
    name: str
    function: tirx.PrimFunc
    arguments: tuple[Any, ...]
    parts: tuple[Part, ...]

    def operator(self, function: str) -> MergedOperator:
        return MergedOperator(self.node, self.workload, self.choice, function, self.parts)


@dataclass(frozen=True, eq=False)
class _Member:
    """A call of a convolution that may be merged. `first_block` is where its result begins in the tensor that it
    writes; that tensor has the number `root`."""

    step: AnchorStep
    layouts: Layouts
    call: KernelCall
    root: int
    first_block: int


class Merging:
    """Finds the merges of a network's calls. `kinds` holds the `StageOperator.merges` of every call.

    `exact` leaves out templates that round differently (Winograd). Raises DatabaseError if the store cannot be read.
    """

    def __init__(
        self, placed: Placed, calls: Calls, device: Device, *, store: Store | None = None, exact: bool = False
    ) -> None:
        self._calls, self._device, self._store, self._exact = calls, device, store, exact
        self._made: dict[tuple[int, ...], MergedKernel | None] = {}
        self._members: dict[int, _Member] = {}
        tensors: dict[Var, int] = {}
        found: dict[int, Hashable] = {}
        for i, operator in operators_by_call(placed, calls).items():
            call = calls.kernels[i]
            member = _member(operator, call, device, tensors.setdefault(call.writes[-1], len(tensors)))
            if member is not None:
                data = tensors.setdefault(self._named(call.value.args[0]), len(tensors))
                found[i] = data, member.layouts, merge_kind(member.step)
                self._members[i] = member
        counts = Counter(found.values())
        self.kinds = tuple(found[i] if i in found and counts[found[i]] > 1 else None for i in range(len(calls.kernels)))

    def kernel(self, stage: Stage) -> MergedKernel | None:
        """Return the kernel that computes a stage whose operators have one kind; None where no template can."""
        numbers = tuple(sorted(i for group in stage.groups for i in group))
        if numbers not in self._made:
            self._made[numbers] = self._merged([self._members[i] for i in numbers])
        return self._made[numbers]

    def flop(self, i: int) -> float:
        """Return the operations of a call that may be merged, by the direct algorithm."""
        return conv_of(self._members[i].step.workload).flop

    def known(self) -> dict[str, str]:
        """Return the keys of the configs that the merges which are worth tuning get, by the keys of their workloads."""
        sets: dict[Hashable, list[_Member]] = defaultdict(list)
        for i, member in self._members.items():
            if self.kinds[i] is not None:
                sets[self.kinds[i]].append(member)
        found = {}
        for members in sets.values():
            for merge in merges_to_tune(members):
                workload = merged_workload([m.step for m in merge])
                config = self._choice(workload, members[0].layouts).config
                found[workload.key] = "" if config is None else config.key
        return found

    def _named(self, expr: Any) -> Any:
        """Return the variable that holds a tensor, where `expr` may be another name for it."""
        while isinstance(expr, Var) and isinstance(self._calls.values.get(expr), Var):
            expr = self._calls.values[expr]
        return expr

    def _choice(self, workload: Workload, layouts: Layouts) -> Choice:
        return choose_among(workload, layouts, self._device, store=self._store, exact=self._exact)

    def _merged(self, members: Sequence[_Member]) -> MergedKernel | None:
        """Return the kernel of some members. Members that write parts of one tensor are sorted by these parts, which
        makes them one part."""
        members = sorted(members, key=lambda m: (m.root, m.first_block))
        step, layouts = merged_step([m.step for m in members]), members[0].layouts
        choice = self._choice(step.workload, layouts)
        if choice.config is None:
            return None
        template = template_named(choice.config.template)
        assert isinstance(template, AnchorTemplate)
        results = list(dict.fromkeys(m.root for m in members))
        tensors = {m.root: m.call.value.args[-1] for m in members}
        pieces = [Piece(results.index(m.root), m.first_block, _blocks(m)) for m in members]
        try:
            function = template.prim_func(step.workload, self._device.target, choice.config)
            function = spread(function, [[int(s) for s in tensors[r].ty.shape] for r in results], pieces)
        except ScheduleError:
            return None
        weight = template.pack_weight(step.workload, self._device.target, choice.config, step.weight)
        constants = [as_constant(weight)]
        if step.bias is not None:
            constants.append(as_constant(template.pack_bias(step.workload, self._device.target, step.bias)))
        host = host_of([self._device.target])
        return MergedKernel(
            step.node,
            step.workload,
            choice,
            f"merged_{step.workload.op}_{choice.config.template.rpartition('.')[2]}",
            function.without_attr("global_symbol").with_attr("target", self._device.target.with_host(host)),
            (members[0].call.value.args[0], *constants, *(tensors[r] for r in results)),
            tuple(Part(m.step, piece.result, piece.first) for m, piece in zip(members, pieces, strict=True)),
        )


def _member(operator: PlacedOperator, call: KernelCall, device: Device, root: int) -> _Member | None:
    """Return a call as a member of merges; None if it cannot be merged."""
    lowered = operator.operator
    step, config = lowered.step, lowered.config
    if not isinstance(step, AnchorStep) or config is None or merge_kind(step) is None:
        return None
    template = template_named(config.template)
    if not isinstance(template, AnchorTemplate) or not isinstance(call.value.args[0], Var):
        return None
    layouts = template.layouts(step.workload, device.target)
    if layouts.out.block and anchor_of(step.workload).out_shape[1] % layouts.out.block:
        return None  # its last block would be shared with the next member
    return _Member(step, layouts, call, root, lowered.first_block)


def _blocks(member: _Member) -> int:
    return member.layouts.out.shape(anchor_of(member.step.workload).out_shape)[1]


def operators_by_call(placed: Placed, calls: Calls) -> dict[int, PlacedOperator]:
    """Return, for every call that a template computes, its operator. The calls of one function come in the order of its
    operators."""
    waiting: dict[str | None, deque[PlacedOperator]] = defaultdict(deque)
    for operator in placed.operators:
        assert isinstance(operator, PlacedOperator), "the network has merged kernels already"
        waiting[operator.operator.function].append(operator)
    return {i: waiting[c.name].popleft() for i, c in enumerate(calls.kernels) if waiting[c.name]}
