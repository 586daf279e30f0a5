"""Search by reinforcement learning, after Liu et al., "Woodpecker-DL: Accelerating Deep Neural Networks via
Hardware-Aware Multifaceted Optimizations", section 2.4. Start at `ReinforcementSearcher`.

PPO predicts actions, each of which sets one knob. After some rounds of actions the config is measured. The reward
compares its run time with the moving average of run times.

Some things go beyond the paper. Every template has an agent of its own, and trials go to templates by what they have
shown (`allocation`). An action that leads out of the space changes nothing. An episode that ends at a known config is
learnt from at once, and measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from templates.space import SearchSpace, Space
from tuner.errors import BadInput
from tuner.search.base import Basis, library_calls
from tuner.search.reinforcement.observation import (
    fits_paper,
    general_observation,
    next_average,
    paper_observation,
    reward,
)
from tuner.search.reinforcement.options import ReinforcementOptions
from tuning_db.record import Config, Trial

if TYPE_CHECKING:
    from tuner.search.reinforcement.agent import Agent, Step


@dataclass
class _Episode:
    config: Config
    average: float  # alpha when the episode began, which its reward is relative to
    steps: list[Step] = field(default_factory=list)


@dataclass
class _Player:
    """An agent that works on one template, with its episodes. `waiting` holds the episodes whose config is being
    measured, and `done` those to learn from."""

    space: Space
    actions: list[tuple[str, object]]  # each sets a knob to a value
    agent: Agent | None = None
    average: float = 0.0  # alpha, in seconds
    first: float = 0.0  # the first run time, in seconds; observations have alpha in this unit
    step: int = 0
    waiting: dict[str, _Episode] = field(default_factory=dict)
    done: list[tuple[_Episode, float]] = field(default_factory=list)


class ReinforcementSearcher(Basis):
    """A searcher that works as this module's docstring says, with one agent per template."""

    # For one batch, parallel episodes are played at most this often; what is missing then is random.
    WAVES = 6
    # An agent learns from at least this many episodes at a time, because advantages of fewer cannot be compared.
    LEAST = 8

    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: ReinforcementOptions | None = None
    ) -> None:
        self._options = options or ReinforcementOptions()
        _check_installed()
        self._known: dict[str, float] = {}
        self._players = {
            s.template: _Player(s, [(k.name, v) for k in s.knobs if len(k.values) > 1 for v in k.values])
            for s in space.spaces
        }
        super().__init__(space, seed, history)

    def _take_in(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            player = self._players[trial.config.template]
            self._known[trial.config.key] = trial.seconds
            episode = player.waiting.pop(trial.config.key, None)
            if episode is not None:
                player.done.append((episode, trial.seconds))
            self._average(player, trial.seconds)

    def _average(self, player: _Player, seconds: float) -> None:
        if math.isfinite(seconds):
            player.step += 1
            player.average = next_average(player.average, seconds, player.step, self._options.printed)
            player.first = player.first or seconds

    def propose(self, n: int) -> list[Config]:
        """Return configs of the opening, then of episodes that are played in parallel. Random configs fill what these
        leave open."""
        weights = self._weights()
        batch = self._opening(n, weights)
        if len(batch) < n and any(p.first and p.actions for p in self._players.values()):
            with library_calls("torch", RuntimeError):
                self._play(batch, n, weights)
        return self._fill(batch, n, weights)

    def _play(self, batch: list[Config], n: int, weights: Mapping[str, float]) -> None:
        players = [p for p in self._players.values() if p.first and p.actions]
        for player in players:
            self._learn(player)
        for _ in range(self.WAVES):
            missing = n - len(batch)
            if missing <= 0:
                break
            chosen = self._rng.choices(players, [weights[p.space.template] for p in players], k=missing)
            for player in players:
                self._wave(player, chosen.count(player), batch)

    def _learn(self, player: _Player) -> None:
        if len(player.done) >= self.LEAST:
            rewards = [reward(e.average, seconds, self._options.printed) for e, seconds in player.done]
            self._agent(player).learn([e.steps for e, _ in player.done], rewards, self._rng.getrandbits(63))
            player.done.clear()

    def _wave(self, player: _Player, count: int, batch: list[Config]) -> None:
        """Run `count` episodes side by side, and add their new configs to the batch."""
        if count == 0:
            return
        agent = self._agent(player)
        ran = self._ran(player)
        episodes = [_Episode(self._beginning(ran), player.average) for _ in range(count)]
        for _ in range(self._options.rounds):
            seen = [self._observation(player, e.config) for e in episodes]
            for episode, step in zip(episodes, agent.act(seen, self._rng.getrandbits(63)), strict=True):
                episode.steps.append(step)
                episode.config = self._after(player, episode.config, step.action)
        for episode in episodes:
            known = self._known.get(episode.config.key)
            if known is not None:
                player.done.append((episode, known))
            elif self._untried.add(episode.config):
                player.waiting[episode.config.key] = episode
                batch.append(episode.config)

    def _agent(self, player: _Player) -> Agent:
        if player.agent is None:
            from tuner.search.reinforcement.agent import Agent

            size = len(self._observation(player, self._beginning(self._ran(player))))
            player.agent = Agent(size, len(player.actions), self._options, self._rng.getrandbits(63))
        return player.agent

    def _ran(self, player: _Player) -> list[Trial]:
        return [t for t in self._trials if t.ok and t.config.template == player.space.template]

    def _beginning(self, ran: Sequence[Trial]) -> Config:
        """Return the config that an episode begins at: the best known, or any that ran."""
        if self._rng.random() < self._options.best:
            return min(ran, key=lambda t: t.seconds).config
        return self._rng.choice(ran).config

    def _observation(self, player: _Player, config: Config) -> list[float]:
        context = self._space.context
        paper = self._options.observation == "paper" and fits_paper(context)
        observe = paper_observation if paper else general_observation
        return observe(player.space, config, context, player.average / player.first)

    def _after(self, player: _Player, config: Config, action: int) -> Config:
        name, value = player.actions[action]
        changed = Config(config.template, {**config.knobs, name: value})
        return changed if player.space.is_valid(changed) else config


def _check_installed() -> None:
    """Raise BadInput where the extra is missing."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"the searcher reinforcement needs the extra rl ({error.name or error}): pip install 'edgetune[rl]'"
        ) from None
