"""Record which configs were already proposed, and draw random ones that were not. Start at `UntriedConfigs`."""

from __future__ import annotations

import random
from collections.abc import Iterator

from templates.space import SearchSpace, Space
from tuning_db.record import Config


class UntriedConfigs:
    """A record that holds the configs met so far, and draws random ones that were not met.

    Configs are drawn by rejection. Where that keeps meeting known configs, what is left of the template is listed.
    """

    # Configs are listed after this many draws in a row that were known, or met nothing valid. Either less than half of
    # the space is left then, or valid configs are so rare that listing is faster.
    MISSES = 12
    # Listing (and shuffling) more combinations than this takes more than about a second, so they are taken in order
    # instead.
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
        """Mark a config as met, and return whether it was new."""
        known = len(self._keys)
        self._keys.add(config.key)
        return len(self._keys) > known

    @property
    def open_templates(self) -> list[str]:
        """Return the templates that are not known to be exhausted."""
        return list(self._open)

    def take(self, template: str | None = None) -> Config | None:
        """Return a random valid config that was not met, and mark it as met. It is of `template`, or of any template
        (all are equally likely, whatever the size of their spaces). Return None if there is none left."""
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
                if config is not None and config not in self:
                    return config
            self._rest[space.template] = self._list_rest(space)
        return next((c for c in self._rest[space.template] if c not in self), None)

    def _list_rest(self, space: Space) -> Iterator[Config]:
        if space.raw_size > self.SHUFFLED:
            return iter(space)
        rest = [c for c in space if c not in self]
        self._rng.shuffle(rest)
        return iter(rest)
