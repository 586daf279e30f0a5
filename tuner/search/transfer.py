"""Fit the best configs of other workloads into the space of this one. Start at `adapted`."""

from __future__ import annotations

from collections.abc import Sequence

from templates.space import Knob, SearchSpace, Space
from tuner.search.base import Experience
from tuning_db.record import Config


def adapted(space: SearchSpace, experience: Sequence[Experience], most: int) -> list[Config]:
    """Return up to `most` different valid configs: the best one of each workload, the nearest workload's first, then
    each workload's second best, and so on."""
    ranked = [sorted((t for t in e.trials if t.ok), key=lambda t: t.seconds) for e in experience]
    found: dict[str, Config] = {}
    for rank in range(max((len(trials) for trials in ranked), default=0)):
        for trials in ranked:
            config = fitted(space, trials[rank].config) if rank < len(trials) else None
            if config is not None:
                found.setdefault(config.key, config)
        if len(found) >= most or rank >= most:
            break
    return list(found.values())[:most]


def fitted(space: SearchSpace, config: Config) -> Config | None:
    """Return the config with each knob at the nearest value that this space has. If that is not valid, return a valid
    config that differs from it in one knob. Return None if there is none, or if the space lacks the template."""
    own = space.space_of(config)
    if own is None:
        return None
    found = Config(own.template, {k.name: _nearest(k, config.knobs.get(k.name, k.values[0])) for k in own.knobs})
    return found if own.is_valid(found) else _repaired(own, found)


def _nearest(knob: Knob, value: object) -> object:
    if value in knob.values or not isinstance(value, int | float):
        return value if value in knob.values else knob.values[0]
    numbers = [v for v in knob.values if isinstance(v, int | float)]
    return min(numbers, key=lambda v: abs(v - value), default=knob.values[0])


def _repaired(space: Space, config: Config) -> Config | None:
    """Return a valid config that differs in one knob, by as few steps as possible, or None. It is needed because a tile
    that divides there may not divide here."""
    options = []
    for knob in space.knobs:
        at = knob.values.index(config[knob.name])
        for i, value in enumerate(knob.values):
            other = Config(space.template, {**config.knobs, knob.name: value})
            if i != at and space.is_valid(other):
                options.append((abs(i - at), other))
    return min(options, key=lambda option: option[0])[1] if options else None
