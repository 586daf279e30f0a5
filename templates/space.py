"""The spaces that searchers search, with their knobs and constraints.

Start at `Space` (the configs of one template) and `SearchSpace` (the configs of all templates for a workload).
A space is a product of small ordered knobs with constraints that are checked before anything is compiled. Searchers
see only this module and tuning_db.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuning_db.record import Config

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Knob:
    """A parameter of a template that takes one of `values`. They are ordered: the search steps to neighbouring values.

    Raises ValueError if there are no values or duplicates.
    """

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"knob {self.name}: needs at least one value and no duplicates, got {self.values}")


@dataclass(frozen=True)
class Constraint:
    """A condition that valid configs meet: `holds(values)` is true. `reason` says briefly what is wrong otherwise."""

    reason: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """The configs that one template has for one workload on one target.

    `seeds` are seed configs, which are worth trying first. Partial mappings are allowed: missing knobs take their first
    value. `features` maps a config's knob values to named floats computed from its loops (accumulators, bytes, unrolled
    operations, parallel chunks). A cost model reads them beside the knobs.
    """

    template: str
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...] = ()
    seeds: tuple[Values, ...] = ()
    features: Callable[[Values], Mapping[str, float]] | None = None

    @cached_property
    def raw_size(self) -> int:
        """Count the combinations of knob values, whether they meet the constraints or not."""
        return math.prod(len(k.values) for k in self.knobs)

    def config(self, values: Values) -> Config:
        return Config(self.template, {k.name: values.get(k.name, k.values[0]) for k in self.knobs})

    def why_invalid(self, config: Config) -> str | None:
        """Return the first reason why a config is not valid in this space, or None if it is valid.

        A valid config is of this template, has its knobs and values, and meets every constraint.
        """
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
        """Return the config with these values if they meet every constraint, else None.

        There must be a valid value for each knob. Constraints are checked before a Config is made: most candidates of a
        search fail them, and making a Config takes longer than checking them.
        """
        return Config(self.template, values) if all(c.holds(values) for c in self.constraints) else None

    def __iter__(self) -> Iterator[Config]:
        """Iterate over all valid configs in a fixed order."""
        names = [k.name for k in self.knobs]
        for combination in itertools.product(*(k.values for k in self.knobs)):
            config = self._valid(dict(zip(names, combination, strict=True)))
            if config is not None:
                yield config

    def seed_configs(self) -> list[Config]:
        return [c for c in dict.fromkeys(map(self.config, self.seeds)) if self.is_valid(c)]

    def sample(self, rng: random.Random, attempts: int = 200) -> Config | None:
        """Draw a valid config, uniformly. Returns None if none was met in `attempts` draws."""
        for _ in range(attempts):
            config = self._valid({k.name: rng.choice(k.values) for k in self.knobs})
            if config is not None:
                return config
        return None

    def mutate(self, config: Config, rng: random.Random, attempts: int = 50) -> Config | None:
        """Return a valid config that differs from `config` in one knob, or in two with probability 0.3.

        Returns None if none was met in `attempts` draws.
        """
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
        """Return all valid configs that differ from `config` in one knob, by one position in its order."""
        found = []
        for knob in self.knobs:
            at = knob.values.index(config[knob.name])
            for step in (at - 1, at + 1):
                if 0 <= step < len(knob.values):
                    found.append(self._valid({**config.knobs, knob.name: knob.values[step]}))
        return [c for c in found if c is not None]

    def crossover(self, a: Config, b: Config, rng: random.Random, mutation: float = 0.0) -> Config | None:
        """Combine two configs: each knob takes the value of `a` or of `b`, at random.

        With the probability `mutation` a knob takes any of its values instead. Returns None if the result is invalid.
        """
        values = {k.name: rng.choice((a, b))[k.name] for k in self.knobs}
        for knob in self.knobs if mutation else ():
            if len(knob.values) > 1 and rng.random() < mutation:
                values[knob.name] = rng.choice(knob.values)
        return self._valid(values)

    def encode(self, config: Config) -> dict[str, float]:
        """Return a config's named features: the knobs' values and those of `features`.

        A value that is no number is replaced by its index in the knob's values.
        """
        row: dict[str, float] = {}
        for knob in self.knobs:
            value = config[knob.name]
            numeric = isinstance(value, int | float)
            row[f"{self.template}.{knob.name}"] = float(value) if numeric else float(knob.values.index(value))
        if self.features is not None:
            row.update(self.features(config.knobs))
        return row


def context_distance(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Return how far the sizes of two workloads are apart, as a Euclidean distance in powers of two.

    `a` and `b` are the contexts of their search spaces.
    """
    names = sorted(set(a) | set(b))
    return math.dist([a.get(n, 0.0) for n in names], [b.get(n, 0.0) for n in names])


@dataclass(frozen=True)
class SearchSpace:
    """The union of the spaces of all templates that can compute a workload. Raises ValueError if there are none.

    `context` has named numbers of the workload itself, which `encode` adds to every config's features. A cost model
    that was trained on several workloads needs them.
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
        """Return the seed configs of all spaces, taken from the spaces in turn."""
        rows = itertools.zip_longest(*(s.seed_configs() for s in self.spaces))
        return [c for row in rows for c in row if c is not None]

    def sample(self, rng: random.Random) -> Config | None:
        """Draw a valid config. Every template is equally likely, whatever the size of its space.

        Returns None if no valid config was met.
        """
        for space in rng.sample(self.spaces, len(self.spaces)):
            config = space.sample(rng)
            if config is not None:
                return config
        return None

    def encode(self, configs: Sequence[Config]) -> tuple[list[str], list[list[float]]]:
        """Return the names of all features and one row of values per config.

        A value is NaN if the config's template does not have the feature.
        """
        rows = [self._by_template[c.template].encode(c) for c in configs]
        templates = {f"is.{s.template}" for s in self.spaces}
        names = sorted({name for row in rows for name in row} | templates | set(self.context))
        for row, config in zip(rows, configs, strict=True):
            row.update({f"is.{s.template}": float(s.template == config.template) for s in self.spaces})
            row.update(self.context)
        return names, [[row.get(name, math.nan) for name in names] for row in rows]


def at_most(wanted: Values, knobs: Sequence[Knob]) -> Values:
    """Return wanted values of some knobs as values that the knobs have: the largest ones that are not larger."""
    values = {knob.name: knob.values for knob in knobs}
    return {name: max(value for value in values[name] if value <= most) for name, most in wanted.items()}


def valid_seeds(
    seeds: Iterable[Values], knobs: Sequence[Knob], constraints: Sequence[Constraint], *, most: int = 8
) -> tuple[Values, ...]:
    """Return the first `most` of the seeds that meet all constraints, where missing knobs take their first values."""
    first = {knob.name: knob.values[0] for knob in knobs}
    whole = ({**first, **seed} for seed in seeds)
    return tuple(itertools.islice((seed for seed in whole if all(c.holds(seed) for c in constraints)), most))
