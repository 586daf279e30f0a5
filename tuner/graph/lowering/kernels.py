"""Make the scheduled functions of the steps of a network that templates compute. Start at `kernels_of`."""

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
from tuner.graph.fusion.steps import TunedStep
from tuning_db.record import Config, Workload

Choices = Mapping[Workload, Config | None]


@dataclass(frozen=True)
class DevicePlan:
    """Says how one device of a placement computes its steps.

    `target` is its target, which has the host if the device is a GPU. `choices` has the configs of its workloads.
    `steps` has other configs for single steps, by their results. A config of None means that no template is to be used.
    """

    target: Target
    choices: Choices
    steps: Mapping[Var, Config | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Kernel:
    """The function that computes a workload with one config."""

    config: Config
    func: tirx.PrimFunc

    def name(self, workload: Workload) -> str:
        """Return the name of the function in a module."""
        return f"{workload.op}_{self.config.template.rpartition('.')[2]}"


@dataclass(frozen=True, eq=False)
class AnchorKernel(Kernel):
    """A kernel of an anchor, with its template and the layouts that it reads and writes."""

    template: AnchorTemplate
    layouts: Layouts


def kernels_of(steps: Iterable[TunedStep], device_plan: DevicePlan) -> dict[Var, Kernel | None]:
    """Return a kernel for the result of each step. It has the step's or its workload's config, or else the workload's
    default config. It is None if the config is None or no template applies.

    Raises BadInput if a config cannot be applied.
    """
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
