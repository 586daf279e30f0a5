"""Which config each workload of a network gets when it is built. Start at `choose`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from templates.space import SearchSpace
from templates.template import search_space, template_named
from tuner.devices import Device
from tuner.graph.kernels import default_config
from tuning_db.lookup import best
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store

Source = Literal["device", "family", "plan", "default", "none"]


@dataclass(frozen=True)
class Choice:
    """A config and why: measured on this device, on one of its family, said by a plan, a template's default, or
    (config None) no template at all. `seconds` per call and `error` are the trial's, None where there is no trial."""

    config: Config | None
    source: Source
    seconds: float | None = None
    error: float | None = None


def choose(
    workloads: Iterable[Workload], device: Device, store: Store | None, exact: bool = False
) -> dict[Workload, Choice]:
    """The best known config of every workload; `exact` leaves out templates that round differently (Winograd).

    Raises DatabaseError if the store cannot be read.
    """
    return {workload: _choice(workload, device, store, exact) for workload in dict.fromkeys(workloads)}


def _choice(workload: Workload, device: Device, store: Store | None, exact: bool) -> Choice:
    space = search_space(workload, device.target, exact=exact)
    if space is None:
        return Choice(None, "none")
    if store is not None:
        found = best(store, workload, device.key, usable=lambda trial: _is_current(trial, space))
        if found is not None:
            trial = found.trial
            return Choice(trial.config, found.source, trial.seconds, trial.error)
    config = default_config(workload, device.target, exact)
    return Choice(config, "none" if config is None else "default")


def _is_current(trial: Trial, space: SearchSpace) -> bool:
    """Whether the trial's config still gives the kernel that was measured."""
    return space.is_valid(trial.config) and template_named(trial.config.template).version == trial.template_version
