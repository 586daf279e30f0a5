"""Strategies by Markov chains (paper 002, section 6). Start at `search`.

From every initial strategy a chain proposes another config for an operator that is drawn, takes it always if that is
faster and else with probability exp(-(seconds more) / temperature), and ends when its time is over, or when the best
strategy is half of that time old. The paper leaves the temperature open: here it is a share of the start's seconds. Two
things are not in the paper: a share of the proposals is for all operators of a layer `together`, and the best strategy
is made a local optimum at the end (`polish`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.errors import BadInput
from tuner.placement.local import descend, layer_moves
from tuner.placement.simulator import Simulator
from tuner.placement.soap import Proposals, Strategy, configs_of, random_config


@dataclass(frozen=True)
class Options:
    """`seconds` or `proposals` limits each chain (one of them has to). `temperature`: a proposal that takes this share
    of the start's seconds more is accepted with probability 1/e. `together`: the share of proposals for whole layers.
    `tempering`: that many chains from every start, each warmer than the one before by `ratio`, which exchange
    strategies every `exchange` proposals. `patience`: proposals without gain before a chain may end early. `polish`:
    end in a local optimum, for which there is as much time as all chains may have, and what they left."""

    seconds: float = math.inf
    proposals: float = math.inf
    temperature: float = 0.0005
    together: float = 0.1
    tempering: int = 1
    ratio: float = 3.0
    exchange: int = 50
    patience: int = 200
    polish: bool = True

    def __post_init__(self) -> None:
        if math.isinf(self.seconds) and math.isinf(self.proposals):
            raise BadInput("a search needs an end: give seconds or proposals")
        for name in ("seconds", "proposals", "temperature", "tempering", "ratio", "exchange"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass
class Found:
    """`strategy` takes `seconds`; `start`: from which it was reached. `reached`: the seconds of each chain's best, by
    the start's name. `optimal`: no neighbour is faster. `history`: elapsed time, seconds of the best then."""

    strategy: Strategy = ()
    seconds: float = math.inf
    start: str = ""
    proposals: int = 0
    accepted: int = 0
    elapsed: float = 0.0
    optimal: bool = False
    reached: dict[str, float] = field(default_factory=dict)
    history: list[tuple[float, float]] = field(default_factory=list)


Progress = Callable[[Found], None]


def search(
    make: Callable[[], Simulator],
    starts: Mapping[str, Strategy],
    rng: random.Random,
    options: Options,
    clock: Callable[[], float] = time.monotonic,
    progress: Progress = lambda _: None,
    configs: Proposals = configs_of,
) -> Found:
    """The fastest strategy that chains from the starts come upon and that fits into the memories. `make` gives a
    simulator, one for each temperature. Same `rng` and `proposals`: same result. `progress` is told of each new best;
    what it raises ends the search. `configs`: what may be proposed.

    Raises BadInput if there are no starts, or none of the strategies seen fits into the memories.
    """
    if not starts:
        raise BadInput("a search needs a strategy to start from")
    began, found = clock(), Found()
    simulators = [make() for _ in range(options.tempering)]
    for name, start in starts.items():
        chain = _Chains(simulators, start, name, rng, options, found, lambda: clock() - began, progress, configs)
        chain.run()
        found.reached[name] = chain.best
    if not found.strategy:
        raise BadInput(
            f"{simulators[0].network.name}: no strategy that was tried fits into the memories of "
            f"{simulators[0].topology.name}: take a smaller batch or more devices"
        )
    if options.polish:
        simulator, until = simulators[0], 2 * len(starts) * options.seconds
        simulator.start(found.strategy)
        found.optimal = descend(simulator, rng, lambda: clock() - began < until, configs)
        _keep(found, simulator, found.start, clock() - began, progress)
    found.elapsed = clock() - began
    return found


class _Chains:
    """All temperatures from one start, taking turns."""

    def __init__(
        self,
        simulators: Sequence[Simulator],
        start: Strategy,
        name: str,
        rng: random.Random,
        options: Options,
        found: Found,
        elapsed: Callable[[], float],
        progress: Progress,
        configs: Proposals,
    ) -> None:
        self._simulators, self._name, self._rng, self._options = list(simulators), name, rng, options
        self._found, self._elapsed, self._progress, self._configs = found, elapsed, progress, configs
        for simulator in simulators:
            simulator.start(start)
        scale = simulators[0].seconds
        self._warmth = [options.temperature * scale * options.ratio**i for i in range(len(simulators))]
        self._began, self._layers = elapsed(), layer_moves(simulators[0])
        self.best, self._seen, self._gained = math.inf, 0, (0, self._began)
        self._look(simulators[0])

    def run(self) -> None:
        options = self._options
        while not self._over():
            for simulator, warmth in zip(self._simulators, self._warmth, strict=True):
                self._step(simulator, warmth)
            if len(self._simulators) > 1 and self._seen % (options.exchange * len(self._simulators)) == 0:
                self._exchange()

    def _over(self) -> bool:
        """The paper's two criteria; the second in time where time is the limit, else in proposals."""
        options, (gained, at) = self._options, self._gained
        if self._seen >= options.proposals:
            return True
        passed = self._elapsed() - self._began
        if passed >= options.seconds:
            return True
        if self._seen - gained < options.patience * len(self._simulators):
            return False
        if math.isinf(options.seconds):
            return self._seen - gained >= options.proposals / 2
        return passed - (at - self._began) >= options.seconds / 2

    def _step(self, simulator: Simulator, warmth: float) -> None:
        rng = self._rng
        if self._layers and rng.random() < self._options.together:
            operators = rng.choice(self._layers)
        else:
            operators = (rng.randrange(len(simulator.network.operators)),)
        config = random_config(simulator.network.operators[operators[0]], simulator.topology, rng, self._configs)
        self._seen += 1
        self._found.proposals += 1
        # Drawn before it is simulated: what is above the limit is refused, and need not be simulated to its end.
        limit = simulator.seconds - warmth * math.log(1.0 - rng.random())
        too_large = simulator.excess > 0
        if simulator.propose(dict.fromkeys(operators, config), math.inf if too_large else limit) == math.inf:
            return
        simulator.accept()
        self._found.accepted += 1
        self._look(simulator)

    def _exchange(self) -> None:
        """Replica exchange between neighbouring temperatures: strategies stay where they are, temperatures move."""
        for i in range(len(self._simulators) - 1):
            colder, warmer = self._simulators[i : i + 2]
            gain = (1 / self._warmth[i] - 1 / self._warmth[i + 1]) * (colder.seconds - warmer.seconds)
            if gain >= 0 or self._rng.random() < math.exp(gain):
                self._simulators[i], self._simulators[i + 1] = warmer, colder

    def _look(self, simulator: Simulator) -> None:
        if simulator.excess > 0 or simulator.seconds >= self.best:
            return
        self.best, self._gained = simulator.seconds, (self._seen, self._elapsed())
        _keep(self._found, simulator, self._name, self._elapsed(), self._progress)


def _keep(found: Found, simulator: Simulator, name: str, elapsed: float, progress: Progress) -> None:
    if simulator.seconds < found.seconds and simulator.excess <= 0:
        found.strategy, found.seconds, found.start = simulator.strategy, simulator.seconds, name
        found.history.append((elapsed, found.seconds))
        progress(found)


def neighbours(simulator: Simulator) -> int:
    """How many strategies differ from the simulator's in one operator."""
    return sum(len(configs_of(o, simulator.topology)) - 1 for o in simulator.network.operators)
