"""The contract of a searcher, the registry, and the record of what was already proposed. Start at `Searcher`.

A new searcher is one file with a class `(space, seed, history)` and one line in `tuner/search/__init__.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from templates.space import SearchSpace, Space
from tuner.errors import BadInput
from tuning_db.record import Config, Trial


class Searcher(Protocol):
    """Decides what to measure next. Same seed and same observations: same proposals."""

    def propose(self, n: int) -> list[Config]:
        """Up to `n` valid configs, none of them proposed, observed or in the history before; fewer than `n` only
        where the space has no more, so that an empty list means: exhausted."""

    def observe(self, trials: Sequence[Trial]) -> None:
        """Learn from trials, failures included; they need not be ones that this searcher proposed."""

    def suggest(self, configs: Sequence[Config]) -> None:
        """Configs that did well on a similar workload, best first. A searcher may try them soon, or ignore them;
        those that are not valid here are ignored."""


SearcherFactory = Callable[[SearchSpace, int, Sequence[Trial]], Searcher]
_REGISTRY: dict[str, SearcherFactory] = {}


def register(name: str, factory: SearcherFactory) -> None:
    """Make a searcher known under its name. Another factory under the same name raises ValueError."""
    if _REGISTRY.setdefault(name, factory) is not factory:
        raise ValueError(f"searcher {name!r} is registered twice")


def searcher_names() -> list[str]:
    return sorted(_REGISTRY)


def check_searcher(name: str) -> str:
    """The name, if a searcher has it. Raises BadInput with the known names otherwise."""
    if name not in _REGISTRY:
        raise BadInput(f"no searcher is named {name!r} (known: {', '.join(searcher_names())})")
    return name


def make_searcher(name: str, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> Searcher:
    """A searcher over `space` that has observed `history`. Raises BadInput for an unknown name."""
    return _REGISTRY[check_searcher(name)](space, seed, history)


def rng_of(seed: int, history: Sequence[Trial]) -> random.Random:
    """The generator of a searcher. It depends on the length of the history too: a search that goes on would otherwise
    draw what it drew in its first session, all of it known by now."""
    return random.Random(f"{seed}/{len(history)}")


class Unseen:
    """Which configs were met so far, and random ones that were not.

    Configs are drawn by rejection; where that keeps meeting known ones, what is left of the template is listed.
    """

    # This many known configs in a row: less than half of the space can be left.
    MISSES = 12
    # Listing (and shuffling) more combinations than this takes more than about a second: go in order instead.
    SHUFFLED = 100_000

    def __init__(self, space: SearchSpace, rng: random.Random) -> None:
        self._space = space
        self._rng = rng
        self._keys: set[str] = set()
        self._open: dict[str, Space] = {s.template: s for s in space.spaces}
        self._rest: dict[str, Iterator[Config]] = {}

    def __contains__(self, config: Config) -> bool:
        return config.key in self._keys

    def add(self, config: Config) -> bool:
        """Mark as met; true if it was new."""
        known = len(self._keys)
        self._keys.add(config.key)
        return len(self._keys) > known

    @property
    def open_templates(self) -> list[str]:
        """Templates that are not known to be exhausted."""
        return list(self._open)

    def take(self, template: str | None = None) -> Config | None:
        """A random valid config that was not met, now marked: of `template`, or of any (all equally likely, whatever
        the size of their spaces). None if there is none left."""
        while self._open and (template is None or template in self._open):
            space = self._open[template or self._rng.choice(self.open_templates)]
            config = self._take_from(space)
            if config is not None:
                self.add(config)
                return config
            del self._open[space.template]
        return None

    def _take_from(self, space: Space) -> Config | None:
        if space.template not in self._rest:
            for _ in range(self.MISSES):
                config = space.sample(self._rng)
                if config is None:
                    break
                if config not in self:
                    return config
            self._rest[space.template] = self._list_rest(space)
        return next((c for c in self._rest[space.template] if c not in self), None)

    def _list_rest(self, space: Space) -> Iterator[Config]:
        if space.raw_size > self.SHUFFLED:
            return iter(space)
        rest = [c for c in space if c not in self]
        self._rng.shuffle(rest)
        return iter(rest)
