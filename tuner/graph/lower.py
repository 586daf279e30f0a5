"""From a fused graph and a config per workload to a Relax module of scheduled functions. Start at `lower`.

Every anchor becomes a call of its template's function, with weights packed into constants; values stay in blocked
layout between anchors and are converted only where somebody needs the other form. `passes.finish` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.target import Target

import templates  # noqa: F401  (registers the built-in templates)
from templates.template import PLAIN, ScheduleError, Template, search_space, template_named
from templates.workloads import anchor_of
from tuner.errors import BadInput
from tuner.graph.bindings import shape_of
from tuner.graph.blocked import emit_blocked
from tuner.graph.emit import OPAQUE, Emitter, Forms
from tuner.graph.fuse import AnchorStep, FusedGraph, PlainStep
from tuner.graph.plain import emit_plain_anchor
from tuning_db.record import Config, Workload

Choices = Mapping[Workload, Config | None]


@dataclass(frozen=True)
class Lowered:
    """`module`: the Relax module, not yet through `passes.finish`. `functions`: for every anchor in order, the node,
    its workload, the config and the name of its function (both None where no template applies)."""

    module: IRModule
    functions: tuple[tuple[str, Workload, Config | None, str | None], ...]


def default_config(workload: Workload, target: Target, exact: bool = False) -> Config | None:
    """The config to use where nothing was measured: the first seed; None where no template applies."""
    space = search_space(workload, target, exact=exact)
    return None if space is None else next(iter(space.seed_configs()), None)


def lower(graph: FusedGraph, choices: Choices, target: Target) -> Lowered:
    """Put a function in place of every anchor.

    `choices` maps a workload to its config, or to None where it is to be computed without a template; workloads that
    are not in it get their default config. Raises BadInput if a config cannot be applied.
    """
    kernels = _kernels(graph, choices, target)
    primitives = {g: f for g, f in graph.module.functions.items() if isinstance(f, tirx.PrimFunc)}
    builder = relax.BlockBuilder(IRModule(primitives))
    emitter = Emitter(builder, target)
    forms = Forms(emitter)
    functions = []
    with builder.function("main", list(graph.parameters)):
        with builder.dataflow():
            for parameter in graph.parameters:
                forms.put(parameter, parameter)
            for step in graph.steps:
                if isinstance(step, AnchorStep):
                    kernel = kernels[step.workload]
                    name = _emit_anchor(emitter, forms, step, kernel)
                    config = None if kernel is None else kernel.config
                    functions.append((step.node, step.workload, config, name))
                else:
                    _emit_other(emitter, forms, step)
            results = [forms.plain(output) for output in graph.outputs]
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return Lowered(builder.get(), tuple(functions))


@dataclass(frozen=True, eq=False)
class _Kernel:
    template: Template
    config: Config
    func: tirx.PrimFunc


def _kernels(graph: FusedGraph, choices: Choices, target: Target) -> dict[Workload, _Kernel | None]:
    """The function of every workload; None where there is none. Made first: nothing is emitted if one fails."""
    kernels: dict[Workload, _Kernel | None] = {}
    for workload in dict.fromkeys(step.workload for step in graph.anchors):
        config = choices[workload] if workload in choices else default_config(workload, target)
        kernels[workload] = None if config is None else _kernel(workload, config, target)
    return kernels


def _kernel(workload: Workload, config: Config, target: Target) -> _Kernel:
    try:
        template = template_named(config.template)
        return _Kernel(template, config, template.prim_func(workload, target, config))
    except (KeyError, ScheduleError) as error:
        raise BadInput(f"{workload.key}: the config {config.key} cannot be applied: {error}") from error


def _emit_other(emitter: Emitter, forms: Forms, step: PlainStep) -> None:
    blocked = emit_blocked(emitter, forms, step.value, step.out)
    if blocked is not None:
        forms.put(step.out, *blocked)
    else:
        forms.put(step.out, emitter.builder.emit(forms.plain(step.value)))


def _emit_anchor(emitter: Emitter, forms: Forms, step: AnchorStep, kernel: _Kernel | None) -> str | None:
    """Emit one anchor; returns the name of its function, None if it has none of its own."""
    anchor = anchor_of(step.workload)
    if kernel is None:
        data, extras = forms.get(step.data, PLAIN), [forms.get(e, PLAIN) for e in step.extras]
        rows = [_reshaped(emitter, e, anchor.out_shape) for e in extras]
        out = emit_plain_anchor(emitter, step, _reshaped(emitter, data, anchor.data_shape), rows)
        forms.put(step.out, _reshaped(emitter, out, shape_of(step.out)))
        return None
    template, config, workload, target = kernel.template, kernel.config, step.workload, emitter.target
    layouts = template.layouts(workload, target)
    name = f"{workload.op}_{config.template.rpartition('.')[2]}"
    function = emitter.function((workload, config), lambda: kernel.func, name, OPAQUE)
    weight = emitter.constant(template.pack_weight(workload, target, config, step.weight))
    extras, shape = list(step.extras), layouts.out.shape(anchor.out_shape)
    arguments = [_reshaped(emitter, forms.get(step.data, layouts.data), layouts.data.shape(anchor.data_shape)), weight]
    for token in workload.epilogue:
        if token == "bias":
            assert step.bias is not None
            arguments.append(emitter.constant(template.pack_bias(workload, target, step.bias)))
        elif token == "add":
            arguments.append(_reshaped(emitter, forms.get(extras.pop(0), layouts.out), shape))
    out = emitter.call(function, arguments, shape)
    forms.put(step.out, out if layouts.out.block else _reshaped(emitter, out, shape_of(step.out)), layouts.out)
    return function.name_hint


def _reshaped(emitter: Emitter, expr: Any, shape: Sequence[int] | None) -> Any:
    """The same values with another shape: the axes of a dense layer's tensors other than the last are rows."""
    if shape is None or shape_of(expr) == tuple(shape):
        return expr
    return emitter.builder.emit(relax.op.reshape(expr, shape))
