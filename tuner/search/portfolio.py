"""Define `auto`, a portfolio of searchers that share the trials by what each has gained lately.

All members learn from every trial, whichever proposed it. A batch is divided by weights. A member's weight is its
prior, which is what the author expects of it, plus its share of the recent gains. A gain is ln(best before / new best),
and counts less with every trial since. No weight falls below a floor, so a member that becomes better late is found out
late. The scheme follows the multi-armed bandit of OpenTuner (Ansel et al., PACT 2014, section 4.2), with gains in place
of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from templates.space import SearchSpace
from tuner.errors import SearchFailed
from tuner.search.annealing import AnnealingSearcher
from tuner.search.base import Experience, Searcher, rng_of
from tuner.search.genetic import GeneticSearcher
from tuner.search.model_guided import ModelGuidedSearcher
from tuning_db.record import Config, Trial


@dataclass(frozen=True)
class PortfolioOptions:
    """Options that set the weights of the portfolio. `model`, `genetic` and `annealing` are the priors (0 leaves a
    member out). `floor` is the least weight of a member. After `memory` trials a gain counts half. Before `opening`
    trials the model alone proposes: it opens with the seeds, a spread-out set, and what is known of other workloads."""

    model: float = 0.8
    genetic: float = 0.1
    annealing: float = 0.1
    floor: float = 0.05
    memory: int = 48
    opening: int = 48

    def __post_init__(self) -> None:
        if not any((self.model, self.genetic, self.annealing)):
            raise ValueError("at least one of model, genetic and annealing is above 0")
        if min(self.model, self.genetic, self.annealing, self.floor, self.opening) < 0 or self.memory < 1:
            raise ValueError("weights and opening are not negative, and memory is at least 1")


@dataclass
class _Member:
    name: str
    searcher: Searcher
    prior: float
    gain: float = 0.0
    spent: bool = False  # has nothing more to propose, or failed
    proposed: set[str] = field(default_factory=set)


class PortfolioSearcher:
    """A searcher that works as this module's docstring says. A member whose library fails is left out."""

    def __init__(
        self, space: SearchSpace, seed: int, history: Sequence[Trial] = (), options: PortfolioOptions | None = None
    ) -> None:
        self._options = options or PortfolioOptions()
        self._rng = rng_of(seed, history)
        made = (
            ("model", ModelGuidedSearcher, self._options.model),
            ("genetic", GeneticSearcher, self._options.genetic),
            ("annealing", AnnealingSearcher, self._options.annealing),
        )
        self._members = [_Member(name, kind(space, seed, history), prior) for name, kind, prior in made if prior]
        self._met = {t.config.key for t in history}
        self._trials = len(history)
        self._best = min((t.seconds for t in history), default=math.inf)
        self.failures: dict[str, str] = {}

    def observe(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._met.add(trial.config.key)
            self._credit(trial)
        self._trials += len(trials)
        for member in self._members:
            member.searcher.observe(trials)

    def _credit(self, trial: Trial) -> None:
        for member in self._members:
            member.gain *= 0.5 ** (1 / self._options.memory)
        if trial.seconds < self._best:
            for member in self._members:
                if trial.config.key in member.proposed and math.isfinite(self._best):
                    member.gain += math.log(self._best / trial.seconds)
            self._best = trial.seconds

    def suggest(self, configs: Sequence[Config]) -> None:
        for member in self._members:
            member.searcher.suggest(configs)

    def learn_from(self, experience: Sequence[Experience]) -> None:
        for member in self._members:
            member.searcher.learn_from(experience)

    def propose(self, n: int) -> list[Config]:
        batch: list[Config] = []
        while len(batch) < n and (open_members := [m for m in self._members if not m.spent]):
            for member, slots in self._slots(open_members, n - len(batch)):
                self._ask(member, slots, batch)
        if not batch and self.failures and len(self.failures) == len(self._members):
            raise SearchFailed("; ".join(f"{name}: {why}" for name, why in self.failures.items()))
        return batch

    def weights(self) -> dict[str, float]:
        """Return the weights of the members, which add up to 1."""
        gained = sum(m.gain for m in self._members)
        raw = {m.name: m.prior + (m.gain / gained if gained else 0.0) for m in self._members}
        floored = {name: max(self._options.floor, weight / sum(raw.values())) for name, weight in raw.items()}
        return {name: weight / sum(floored.values()) for name, weight in floored.items()}

    def _slots(self, members: Sequence[_Member], n: int) -> list[tuple[_Member, int]]:
        """Return each member's part of `n` trials, drawn by weight."""
        if self._trials < self._options.opening:
            return [(members[0], n)]
        weights = self.weights()
        drawn = self._rng.choices(range(len(members)), [weights[m.name] for m in members], k=n)
        return [(member, drawn.count(i)) for i, member in enumerate(members) if i in drawn]

    def _ask(self, member: _Member, n: int, batch: list[Config]) -> None:
        """Add up to `n` configs of a member to the batch, none of which another member has proposed."""
        wanted = len(batch) + n
        while len(batch) < wanted and not member.spent:
            try:
                found = member.searcher.propose(wanted - len(batch))
            except SearchFailed as error:
                self.failures[member.name] = str(error)
                found = []
            member.spent = not found
            new = [c for c in found if c.key not in self._met]
            self._met.update(c.key for c in new)
            member.proposed.update(c.key for c in new)
            batch += new
