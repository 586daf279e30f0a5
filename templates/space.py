"""Knobs, constraints and spaces: what a searcher searches. Start at `Space` (one template) and `SearchSpace` (all).

A space is a product of small ordered knobs with constraints that are checked before anything is compiled. Searchers
see only this module and tuning_db.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuning_db.record import Config

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Knob:
    """A named choice; `values` are ordered (neighbouring values are neighbours in the search)."""

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"knob {self.name}: needs at least one value and no duplicates, got {self.values}")


@dataclass(frozen=True)
class Constraint:
    """`holds(values)` must be true; `reason` says in a few words what is wrong otherwise."""

    reason: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """The configs of one template for one workload on one target.

    `seeds` are configs worth trying first (partial mappings are allowed: missing knobs take their first value).
    `features` maps a config's knob values to named floats computed from its loops (accumulators, bytes, unrolled
    operations, parallel chunks); a cost model reads them beside the knobs.
    """

    template: str
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...] = ()
    seeds: tuple[Values, ...] = ()
    features: Callable[[Values], Mapping[str, float]] | None = None

    @cached_property
    def raw_size(self) -> int:
        """Number of knob combinations, constraints not applied."""
        return math.prod(len(k.values) for k in self.knobs)

    def config(self, values: Values) -> Config:
        return Config(self.template, {k.name: values.get(k.name, k.values[0]) for k in self.knobs})

    def why_invalid(self, config: Config) -> str | None:
        """None if the config belongs to this space and meets every constraint, else the first reason why not."""
        if config.template != self.template:
            return f"config is for template {config.template}, not {self.template}"
        if set(config.knobs) != {k.name for k in self.knobs}:
            return f"config has knobs {sorted(config.knobs)}, the space has {sorted(k.name for k in self.knobs)}"
        for knob in self.knobs:
            if config[knob.name] not in knob.values:
                return f"{knob.name}={config[knob.name]!r} is not one of {knob.values}"
        return next((c.reason for c in self.constraints if not c.holds(config.knobs)), None)

    def is_valid(self, config: Config) -> bool:
        return self.why_invalid(config) is None

    def _valid(self, values: Values) -> Config | None:
        """The config with those values, all of them its knobs', if they meet every constraint: a search asks this far
        more often than the answer is yes, and a Config costs more than its constraints."""
        return Config(self.template, values) if all(c.holds(values) for c in self.constraints) else None

    def __iter__(self) -> Iterator[Config]:
        """Every valid config, in a fixed order."""
        names = [k.name for k in self.knobs]
        for combination in itertools.product(*(k.values for k in self.knobs)):
            config = self._valid(dict(zip(names, combination, strict=True)))
            if config is not None:
                yield config

    def seed_configs(self) -> list[Config]:
        return [c for c in map(self.config, self.seeds) if self.is_valid(c)]

    def sample(self, rng: random.Random, attempts: int = 200) -> Config | None:
        """A random valid config, uniform over valid ones; None if none was met in `attempts` draws."""
        for _ in range(attempts):
            config = self._valid({k.name: rng.choice(k.values) for k in self.knobs})
            if config is not None:
                return config
        return None

    def mutate(self, config: Config, rng: random.Random, attempts: int = 50) -> Config | None:
        """A valid config that differs from `config` in one knob (seldom two); None if none was met."""
        free = [k for k in self.knobs if len(k.values) > 1]
        for _ in range(attempts if free else 0):
            values = dict(config.knobs)
            for knob in rng.sample(free, min(len(free), 1 if rng.random() < 0.7 else 2)):
                values[knob.name] = rng.choice([v for v in knob.values if v != values[knob.name]])
            candidate = self._valid(values)
            if candidate is not None:
                return candidate
        return None

    def neighbours(self, config: Config) -> list[Config]:
        """Every valid config that differs in one knob by one step of its order."""
        found = []
        for knob in self.knobs:
            at = knob.values.index(config[knob.name])
            for step in (at - 1, at + 1):
                if 0 <= step < len(knob.values):
                    found.append(self._valid({**config.knobs, knob.name: knob.values[step]}))
        return [c for c in found if c is not None]

    def crossover(self, a: Config, b: Config, rng: random.Random, mutation: float = 0.0) -> Config | None:
        """Each knob from one of two parents at random, or, with the probability `mutation`, of any value; None if the
        child is invalid."""
        values = {k.name: rng.choice((a, b))[k.name] for k in self.knobs}
        for knob in self.knobs if mutation else ():
            if len(knob.values) > 1 and rng.random() < mutation:
                values[knob.name] = rng.choice(knob.values)
        return self._valid(values)

    def encode(self, config: Config) -> dict[str, float]:
        """Named features: each knob's value (its place in the order where not a number) and `features`."""
        row: dict[str, float] = {}
        for knob in self.knobs:
            value = config[knob.name]
            numeric = isinstance(value, int | float)
            row[f"{self.template}.{knob.name}"] = float(value) if numeric else float(knob.values.index(value))
        if self.features is not None:
            row.update(self.features(config.knobs))
        return row


def context_distance(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Between the contexts of two search spaces: how far their workloads' sizes are apart, in powers of two."""
    names = sorted(set(a) | set(b))
    return math.dist([a.get(n, 0.0) for n in names], [b.get(n, 0.0) for n in names])


@dataclass(frozen=True)
class SearchSpace:
    """All templates that can compute one workload: a union of spaces. `len(spaces)` is at least one.

    `context`: named numbers of the workload itself, beside every config's features: a model that has met other
    workloads needs them.
    """

    spaces: tuple[Space, ...]
    context: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("no template applies to this workload on this target")

    @cached_property
    def raw_size(self) -> int:
        return sum(s.raw_size for s in self.spaces)

    @cached_property
    def _by_template(self) -> dict[str, Space]:
        return {s.template: s for s in self.spaces}

    def space_of(self, config: Config) -> Space | None:
        return self._by_template.get(config.template)

    def is_valid(self, config: Config) -> bool:
        space = self.space_of(config)
        return space is not None and space.is_valid(config)

    def __iter__(self) -> Iterator[Config]:
        for space in self.spaces:
            yield from space

    def seed_configs(self) -> list[Config]:
        """The spaces' seeds, taken in turn."""
        rows = itertools.zip_longest(*(s.seed_configs() for s in self.spaces))
        return [c for row in rows for c in row if c is not None]

    def sample(self, rng: random.Random) -> Config | None:
        """A random valid config; every template is equally likely, whatever the size of its space."""
        for space in rng.sample(self.spaces, len(self.spaces)):
            config = space.sample(rng)
            if config is not None:
                return config
        return None

    def encode(self, configs: Sequence[Config]) -> tuple[list[str], list[list[float]]]:
        """Feature names and one row per config; NaN where a feature does not exist for a config's template."""
        rows = [self._by_template[c.template].encode(c) for c in configs]
        templates = {f"is.{s.template}" for s in self.spaces}
        names = sorted({name for row in rows for name in row} | templates | set(self.context))
        for row, config in zip(rows, configs, strict=True):
            row.update({f"is.{s.template}": float(s.template == config.template) for s in self.spaces})
            row.update(self.context)
        return names, [[row.get(name, math.nan) for name in names] for row in rows]
