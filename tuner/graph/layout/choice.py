"""Choose the config that each workload of a network gets when it is built. Start at `choose`.

`rivals` returns the best config of every layout, from which a plan chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tvm.ir import Var

from templates.space import SearchSpace
from templates.template import AnchorTemplate, Layouts, search_space, template_named
from tuner.devices import Device
from tuning_db import shipped
from tuning_db.lookup import BestTrial, best
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store

Source = Literal["device", "family", "shipped", "shipped family", "plan", "default", "none"]


@dataclass(frozen=True)
class Choice:
    """A config and the reason why it was chosen.

    `source` says that it was measured on this device ("device") or on one of its family ("family"), that it is shipped
    with the package, that a plan gives it, that it is a template's default, or that no template applies ("none", with
    `config` None). `seconds` per call and `error` are those of the trial, and None if there is no trial. A shipped
    config has no `seconds`, since they are not known for this device.
    """

    config: Config | None
    source: Source
    seconds: float | None = None
    error: float | None = None


@dataclass(frozen=True, eq=False)
class Planned:
    """Says how a network is to be built.

    `placement` has the index of the device of each step. `blocks` maps the results of some plain steps to the layout
    block that these are computed in (see `lower.lower_steps`). `kernels` maps the results of steps that are not to have
    the database's best config to their choices.
    """

    placement: Sequence[int]
    blocks: Mapping[Var, int] = field(default_factory=dict)
    kernels: Mapping[Var, Choice] = field(default_factory=dict)


def choose(
    workloads: Iterable[Workload], device: Device, store: Store | None, exact: bool = False
) -> dict[Workload, Choice]:
    """Return the best known config of every workload. `exact` leaves out templates that round differently (Winograd).

    Raises DatabaseError if the store cannot be read.
    """
    spaces = {w: search_space(w, device.target, exact=exact) for w in dict.fromkeys(workloads)}
    return {workload: _choice(workload, space, device, store) for workload, space in spaces.items()}


def choose_among(
    workload: Workload, layouts: Layouts, device: Device, *, store: Store | None, exact: bool = False
) -> Choice:
    """Choose a config as `choose` does, but only among the templates that read and write `layouts`.

    Raises DatabaseError if the store cannot be read.
    """
    space = search_space(workload, device.target, exact=exact)
    spaces = [] if space is None else [s for s in space.spaces if _layouts(s.template, workload, device) == layouts]
    return _choice(workload, replace(space, spaces=tuple(spaces)) if space and spaces else None, device, store)


def choose_of_each(workload: Workload, device: Device, store: Store | None, exact: bool = False) -> Iterator[Choice]:
    """Yield what `choose` would return if there were only one template, for each template that has a config.

    Raises DatabaseError if the store cannot be read.
    """
    space = search_space(workload, device.target, exact=exact)
    if space is None:
        return
    for part in space.spaces:
        choice = _choice(workload, replace(space, spaces=(part,)), device, store)
        if choice.config is not None:
            yield choice


def _layouts(template: str, workload: Workload, device: Device) -> Layouts | None:
    found = template_named(template)
    return found.layouts(workload, device.target) if isinstance(found, AnchorTemplate) else None


def rivals(
    workloads: Iterable[Workload], device: Device, store: Store, exact: bool = False
) -> dict[Workload, tuple[Choice, ...]]:
    """Return, for each workload, what `choose` returns, followed by alternatives with other layouts. For each of these
    layouts the alternative is the fastest config that was measured on this very device."""
    found: dict[Workload, tuple[Choice, ...]] = {}
    for workload in dict.fromkeys(workloads):
        space = search_space(workload, device.target, exact=exact)
        first = _choice(workload, space, device, store)
        found[workload] = (
            first,
            *(_others(workload, space, first.config, device=device, store=store) if space else ()),
        )
    return found


def _others(
    workload: Workload, space: SearchSpace, first: Config | None, *, device: Device, store: Store
) -> Iterator[Choice]:
    """Yield the best measured config of each pair of layouts, except of the layouts that the config `first` has."""
    by_layouts: dict[Layouts, set[str]] = {}
    for name in (s.template for s in space.spaces):
        layouts = _layouts(name, workload, device)
        if layouts is not None:
            by_layouts.setdefault(layouts, set()).add(name)
    for names in by_layouts.values():
        if first is None or first.template in names:
            continue

        def usable(trial: Trial, names: set[str] = names) -> bool:
            return trial.config.template in names and is_current(trial, space)

        trial = store.best(workload, device.key, usable=usable)
        if trial is not None:
            yield _measured(trial, "device")


def _choice(workload: Workload, space: SearchSpace | None, device: Device, store: Store | None) -> Choice:
    if space is None:
        return Choice(None, "none")
    if store is not None:

        def usable(trial: Trial) -> bool:
            return is_current(trial, space)

        found = best(store, workload, device.key, usable=usable)
        if found is not None and found.source == "device":
            return _measured(found.trial, "device")
        found = found or shipped.best(workload, device.key, usable)
        if found is not None:
            return _of_another(found, workload, space, device)
    config = next(iter(space.seed_configs()), None)
    return Choice(config, "none" if config is None else "default")


def _of_another(found: BestTrial, workload: Workload, space: SearchSpace, device: Device) -> Choice:
    """Return the best config of another device, spread over this device's threads if it was measured with others. Its
    seconds are those of the other device, if any are known."""
    trial = found.trial
    seconds = trial.seconds if found.source == "family" else None
    if device.is_host and trial.device.attrs.get("threads") != device.key.attrs.get("threads"):
        config = template_named(trial.config.template).spread(workload, device.target, trial.config)
        if config != trial.config and space.is_valid(config):
            return Choice(config, found.source, None, trial.error)
    return Choice(trial.config, found.source, seconds, trial.error)


def _measured(trial: Trial, source: Source) -> Choice:
    return Choice(trial.config, source, trial.seconds, trial.error)


def is_current(trial: Trial, space: SearchSpace) -> bool:
    """Return whether the trial's config still gives the kernel that was measured."""
    return space.is_valid(trial.config) and template_named(trial.config.template).version == trial.template_version
