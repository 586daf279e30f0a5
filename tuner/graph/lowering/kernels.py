"""The scheduled function of every step of a network that a template computes. Start at `kernels_of`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

import vision_ops  # noqa: F401  (registers the built-in templates and operators)
from templates.template import AnchorTemplate, Layouts, ScheduleError, default_config, template_named
from tuner.errors import BadInput
from tuner.graph.fusion.fuse import TunedStep
from tuning_db.record import Config, Workload

Choices = Mapping[Workload, Config | None]


@dataclass(frozen=True)
class DevicePlan:
    """A device of a placement: its target (of a GPU: with its host) and the configs of its workloads; `steps`: other
    configs for single steps, by their results. None: no template is to compute it."""

    target: Target
    choices: Choices
    steps: Mapping[Var, Config | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A workload's function by one config."""

    config: Config
    func: tirx.PrimFunc

    def name(self, workload: Workload) -> str:
        """Of the function in a module."""
        return f"{workload.op}_{self.config.template.rpartition('.')[2]}"


@dataclass(frozen=True, eq=False)
class AnchorKernel(Kernel):
    """With the layouts that it reads and writes."""

    template: AnchorTemplate
    layouts: Layouts


def kernels_of(steps: Iterable[TunedStep], device_plan: DevicePlan) -> dict[Var, Kernel | None]:
    """A kernel for the result of each step: by its choice, or its workload's default config where it has none; None
    where the choice is None or no template applies. Raises BadInput if a config cannot be applied."""
    default = cache(partial(default_config, target=device_plan.target))
    kernel = cache(partial(_kernel, target=device_plan.target))
    kernels: dict[Var, Kernel | None] = {}
    for step in steps:
        if step.out in device_plan.steps:
            config = device_plan.steps[step.out]
        else:
            known = step.workload in device_plan.choices
            config = device_plan.choices[step.workload] if known else default(step.workload)
        kernels[step.out] = None if config is None else kernel(step.workload, config)
    return kernels


def _kernel(workload: Workload, config: Config, target: Target) -> Kernel:
    try:
        template = template_named(config.template)
        func = template.prim_func(workload, target, config)
    except (KeyError, ScheduleError) as error:
        raise BadInput(f"{workload.key}: the config {config.key} cannot be applied: {error}") from error
    if isinstance(template, AnchorTemplate):
        return AnchorKernel(config, func, template, template.layouts(workload, target))
    return Kernel(config, func)
