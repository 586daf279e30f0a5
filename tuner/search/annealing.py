"""Search by simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983). It has several chains, because a batch is
measured at once.

A chain steps to a config that differs in a knob or two. It stays there if that config is faster, or with probability
exp(-ln(slower / faster) / temperature) otherwise. The temperature falls with every trial. A step to a config that was
measured before costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from templates.space import SearchSpace
from tuner.search.base import Basis
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class AnnealingOptions:
    """Options that set the course of the annealing. `chains` is the number of chains. `hot` and `cold` are
    temperatures, in units of ln(run time): at 0.1 a config that is 10 % slower is accepted every third time. After
    `trials` trials the search is cold, and begins hot again."""

    chains: int = 8
    hot: float = 0.3
    cold: float = 0.01
    trials: int = 192

    def __post_init__(self) -> None:
        if self.chains < 1 or self.trials < 1 or not 0 < self.cold <= self.hot:
            raise ValueError("chains and trials are at least 1, and temperatures positive, cold not above hot")


class AnnealingSearcher(Basis):
    """See this module's docstring."""

    # A chain takes at most this many steps through known configs; then a random one is proposed instead.
    STEPS = 32

    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: AnnealingOptions | None = None
    ) -> None:
        self._options = options or AnnealingOptions()
        self._known: dict[str, float] = {}
        self._chains: list[Config] = []
        self._turn = 0
        self._pending: dict[str, int] = {}  # by config: the chain that waits for it
        super().__init__(space, seed, history)

    def _take_in(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._known[trial.config.key] = trial.seconds
            chain = self._pending.pop(trial.config.key, None)
            if chain is not None:
                self._step(chain, trial.config)

    def propose(self, n: int) -> list[Config]:
        weights = self._weights()
        batch = self._opening(n, weights)
        self._found_chains()
        while len(batch) < n:
            config = self._walk(weights)
            if config is None:
                break
            batch.append(config)
        return batch

    @property
    def _temperature(self) -> float:
        done = (len(self._trials) % self._options.trials) / self._options.trials
        return self._options.hot * (self._options.cold / self._options.hot) ** done

    def _found_chains(self) -> None:
        """Begin missing chains at the best configs known."""
        missing = self._options.chains - len(self._chains)
        if missing:
            good = sorted((t for t in self._trials if t.ok), key=lambda t: t.seconds)
            taken = {c.key for c in self._chains}
            self._chains += [t.config for t in good if t.config.key not in taken][:missing]

    def _step(self, chain: int, to: Config) -> None:
        ratio = self._known[to.key] / self._known[self._chains[chain].key]
        if ratio <= 1 or (math.isfinite(ratio) and self._rng.random() < math.exp(-math.log(ratio) / self._temperature)):
            self._chains[chain] = to

    def _walk(self, weights: Mapping[str, float]) -> Config | None:
        """Return the next unknown config that the chain whose turn it is comes to. Return a random one if it comes to
        none, or None where the whole space was met."""
        for _ in range(self.STEPS if self._chains else 0):
            chain = self._turn % len(self._chains)
            space = self._space.space_of(self._chains[chain])
            assert space is not None  # chains stand on valid configs
            config = space.mutate(self._chains[chain], self._rng)
            if config is None:
                break
            if self._untried.add(config):
                self._pending[config.key] = chain
                self._turn += 1
                return config
            if config.key in self._known:
                self._step(chain, config)
        self._turn += 1
        return self._random_untried(weights)
