"""The scheduled function of every workload of a network. Start at `kernels_of`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

import vision_ops  # noqa: F401  (registers the built-in templates and operators)
from templates.template import AnchorTemplate, Layouts, ScheduleError, search_space, template_named
from tuner.errors import BadInput
from tuning_db.record import Config, Workload

Choices = Mapping[Workload, Config | None]


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


def default_config(workload: Workload, target: Target, exact: bool = False) -> Config | None:
    """The config to use where nothing was measured: the first seed; None where no template applies."""
    space = search_space(workload, target, exact=exact)
    return None if space is None else next(iter(space.seed_configs()), None)


def kernels_of(workloads: Iterable[Workload], choices: Choices, target: Target) -> dict[Workload, Kernel | None]:
    """A kernel for each workload: by its choice, or its default config where it has none; None where the choice is
    None or no template applies. Raises BadInput if a config cannot be applied."""
    kernels: dict[Workload, Kernel | None] = {}
    for workload in dict.fromkeys(workloads):
        config = choices[workload] if workload in choices else default_config(workload, target)
        kernels[workload] = None if config is None else _kernel(workload, config, target)
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
