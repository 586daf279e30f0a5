"""Lower steps of a fused graph and their kernels to a Relax module of functions. Start at `lower_steps`.

Every anchor becomes a call of its template's function, with weights packed into constants. Values stay in blocked
layout between anchors and are converted only where a reader needs the other form. Other operators of templates read
and write plain layout. `passes.finish` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.ir import IRModule, Var
from tvm.target import Target

from templates.epilogue import OPERANDS, operands
from templates.integers import INTEGERS, Types
from templates.operator import operator_named
from templates.template import PLAIN, Layout, in_blocks
from templates.workloads import anchor_of
from tuner.errors import BadInput
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, OperatorStep, PlainStep, Step, TunedStep
from tuner.graph.ir.bindings import dtype_of, reshaped, shape_of
from tuner.graph.ir.operators import output_types
from tuner.graph.ir.simplify import constant
from tuner.graph.lowering.blocked import emit_blocked
from tuner.graph.lowering.concat import Joints, write
from tuner.graph.lowering.emit import OPAQUE, Emitter, Forms
from tuner.graph.lowering.kernels import AnchorKernel, Kernel
from tuner.graph.lowering.passes import REMEDY
from tuner.graph.lowering.plain import emit_plain, emit_plain_anchor
from tuning_db.record import Config


@dataclass(frozen=True)
class LoweredOperator:
    """Says how one step that templates compute was lowered.

    `config` is its config and `function` the name of its function; both are None if no template applies. Its result
    lies in the function's last tensor from the channel block `first_block` on. The tensor of a concatenation holds the
    results of several steps.
    """

    step: TunedStep
    config: Config | None
    function: str | None
    first_block: int = 0


@dataclass(frozen=True)
class Lowered:
    """Steps that were lowered. `module` is the Relax module before `passes.finish`, and `operators` are in the graph's
    order."""

    module: IRModule
    operators: tuple[LoweredOperator, ...]


@dataclass(frozen=True, eq=False)
class Given:
    """A value that the steps read but do not make: its variable in the graph, and the parameter that holds it."""

    var: Var
    parameter: Var
    layout: Layout


@dataclass(frozen=True)
class Decisions:
    """Holds what was decided of the steps. `kernels` has the kernels of the steps that templates compute, by the
    results of the steps. `blocks` has, for the results of some plain steps, the layout block in which they are computed
    if they can be (0: plain). Other plain steps are computed in the layout of their operands."""

    kernels: Mapping[Var, Kernel | None]
    blocks: Mapping[Var, int]


def lower_steps(
    graph: FusedGraph,
    steps: Sequence[Step],
    given: Sequence[Given],
    *,
    results: Callable[[Forms], Sequence[Any]],
    decisions: Decisions,
    target: Target,
) -> Lowered:
    """Lower steps of a graph, in an order that can be executed, to a function "main" that returns a tuple of `results`.

    Raises BadInput, naming the node, for an operator of templates that no template computes on the target.
    """
    primitives = {g: f for g, f in graph.module.functions.items() if isinstance(f, tirx.PrimFunc)}
    builder = relax.BlockBuilder(IRModule(primitives))
    lowering = _Lowering(graph, steps, given, decisions, Emitter(builder, target))
    operators = []
    with builder.function("main", [g.parameter for g in given]):
        with builder.dataflow():
            for step in steps:
                if isinstance(step, AnchorStep):
                    operators.append(lowering.anchor(step))
                elif isinstance(step, OperatorStep):
                    operators.append(lowering.operator(step))
                else:
                    lowering.other(step)
            result = builder.emit_output(relax.Tuple(list(results(lowering.forms))))
        builder.emit_func_output(result)
    return Lowered(builder.get(), tuple(operators))


class _Lowering:
    """Emits the steps of one graph in order."""

    def __init__(
        self,
        graph: FusedGraph,
        steps: Sequence[Step],
        given: Sequence[Given],
        decisions: Decisions,
        emitter: Emitter,
    ) -> None:
        self.forms = Forms(emitter)
        self._emitter = emitter
        self._kernels = decisions.kernels
        self._plain_blocks = decisions.blocks
        anchors = [s for s in steps if isinstance(s, AnchorStep)]
        blocks = {s.out: k.layouts.out.block for s in anchors if (k := self._anchor_kernel(s)) is not None}
        self._joints = Joints(graph, steps, blocks, decisions.blocks)
        for value in given:
            self.forms.put(value.var, value.parameter, value.layout)

    def other(self, step: PlainStep) -> None:
        if self._joints.emit(self._emitter, self.forms, step.out):
            return
        blocked = emit_blocked(
            self._emitter, self.forms, step.value, out=step.out, block=self._plain_blocks.get(step.out)
        )
        if blocked is not None:
            self.forms.put(step.out, *blocked)
        else:
            self.forms.put(step.out, emit_plain(self._emitter, self.forms, step))

    def operator(self, step: OperatorStep) -> LoweredOperator:
        kernel, specs = self._kernels[step.out], operator_named(step.workload.op).inputs(step.workload)
        if kernel is None:
            kind = self._emitter.target.kind
            raise BadInput(
                f"node {step.node!r}: no template computes {step.workload.op} on this {kind} device; {REMEDY}"
            )
        arguments = [
            self._emitter.typed(self.forms.get(expr, PLAIN), spec.dtype)
            for expr, spec in zip(step.inputs, specs, strict=True)
        ]
        function = self._emitter.function(
            (step.workload, kernel.config), lambda: kernel.func, kernel.name(step.workload), OPAQUE
        )
        out = self._emitter.builder.emit(relax.call_tir(function, arguments, out_ty=output_types(step.workload)))
        self.forms.put(step.out, self._emitter.typed(out, dtype_of(step.out)))
        return LoweredOperator(step, kernel.config, function.name_hint)

    def _anchor_kernel(self, step: AnchorStep) -> AnchorKernel | None:
        kernel = self._kernels[step.out]
        assert kernel is None or isinstance(kernel, AnchorKernel)
        return kernel

    def anchor(self, step: AnchorStep) -> LoweredOperator:
        kernel = self._anchor_kernel(step)
        if kernel is None:
            self._without_template(step)
            return LoweredOperator(step, None, None)
        arguments, key = self._arguments(step, kernel), (step.workload, kernel.config)
        name = kernel.name(step.workload)
        slot = self._joints.slot(step.out)
        if slot is not None:
            function = write(self._emitter, slot, key, func=kernel.func, arguments=arguments, name=name)
            return LoweredOperator(step, kernel.config, function.name_hint, slot.first_block)
        function = self._emitter.function(key, lambda: kernel.func, name, OPAQUE)
        layout = kernel.layouts.out
        out = self._emitter.call(
            function, arguments, layout.shape(anchor_of(step.workload).out_shape), Types.of(step.workload).out
        )
        self.forms.put(
            step.out, out if layout.block else reshaped(self._emitter.builder, out, shape_of(step.out)), layout
        )
        return LoweredOperator(step, kernel.config, function.name_hint)

    def _arguments(self, step: AnchorStep, kernel: AnchorKernel) -> list[Any]:
        """Return the data, the weight, and the operands of the epilogue, in the kernel's layouts."""
        anchor, layouts, emitter = anchor_of(step.workload), kernel.layouts, self._emitter
        data = reshaped(
            self._emitter.builder, self.forms.get(step.data, layouts.data), layouts.data.shape(anchor.data_shape)
        )
        weight = kernel.template.pack_weight(step.workload, emitter.target, kernel.config, step.weight)
        arguments = [data, emitter.constant(weight)]
        extras = list(step.extras)
        for token in operands(step.workload.epilogue):
            if token == "bias":
                assert step.bias is not None
                arguments.append(emitter.constant(kernel.template.pack_bias(step.workload, emitter.target, step.bias)))
            elif OPERANDS[token].shape == "image":
                extra = self.forms.get(extras.pop(0), layouts.out)
                arguments.append(reshaped(self._emitter.builder, extra, layouts.out.shape(anchor.out_shape)))
            else:
                channels = OPERANDS[token].shape == "channel"
                arguments.append(self._operand(extras.pop(0), layouts.out.block if channels else 0))
        return arguments

    def _operand(self, expr: Any, block: int) -> Any:
        """Return a tensor that is no image. If it has one value per channel and the output is blocked, it is (blocks,
        lanes), filled up with zeros."""
        value, builder = constant(expr), self._emitter.builder
        if value is not None:
            return self._emitter.constant(in_blocks(value, block))
        expr = self.forms.get(expr, PLAIN)
        if not block:
            return expr
        (channels,) = shape_of(expr) or (0,)
        blocks = -(-channels // block)
        if channels % block:
            expr = builder.emit(relax.op.nn.pad(expr, [0, blocks * block - channels]))
        return reshaped(builder, expr, (blocks, block))

    def _without_template(self, step: AnchorStep) -> None:
        if step.workload.dtype == INTEGERS:
            raise BadInput(f"node {step.node!r}: no template multiplies its integers")
        anchor = anchor_of(step.workload)
        data = reshaped(self._emitter.builder, self.forms.get(step.data, PLAIN), anchor.data_shape)
        extras = [reshaped(self._emitter.builder, self.forms.get(e, PLAIN), anchor.out_shape) for e in step.extras]
        out = emit_plain_anchor(self._emitter, step, data, extras)
        self.forms.put(step.out, reshaped(self._emitter.builder, out, shape_of(step.out)))
