"""Searches strategies by Markov chains (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural
Networks", section 6). Start at `search`.

A chain begins at every initial strategy. It proposes another config for an operator drawn at random. It always accepts
a faster strategy, and a slower one with probability exp(-(seconds more) / temperature). It ends when its time is over,
or when its best strategy has not improved for half of that time. The paper does not give the temperature: here it is a
share of the initial strategy's seconds. Two things are not in the paper. A share of the proposals changes all operators
of a layer `together`, and the best strategy is made a local optimum at the end (`_polish`).

Chains from several starts run in threads, each with its own simulator and random numbers. The simulator is written in C
and releases Python's lock while it runs. What the chains find does not depend on how many run at a time, unless they
are limited by time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Lock

from tuner.errors import BadInput
from tuner.studies.descent import descend, layer_moves
from tuner.studies.simulator import Simulator
from tuner.studies.soap import Proposals, Strategy, configs_of, random_config

SHARES = 3  # of a search's time: the chains get one at most, the descents get the rest


@dataclass(frozen=True)
class Options:
    """Options that control a search. At least one of `seconds` and `proposals` must be given; each limits every chain.

    - `temperature`: a proposal that takes this share of the start's seconds more is accepted with probability 1/e.
    - `together` is the share of proposals that change whole layers.
    - `tempering` is the number of chains from every start. Each is warmer than the one before by the factor `ratio`,
      and they exchange strategies every `exchange` proposals.
    - `patience` is the number of proposals without gain before a chain may end early.
    - `descents` is how many times a local optimum is sought from the best strategy, each time in another order; the
      best result is kept. The descents get twice the time that all chains may have, and what the chains left.
    - `threads` is the number of chains that run at a time, and of neighbours that are evaluated at a time.
    - `configs` returns the configs that may be proposed.
    """

    seconds: float = math.inf
    proposals: float = math.inf
    temperature: float = 0.0005
    together: float = 0.1
    tempering: int = 1
    ratio: float = 3.0
    exchange: int = 50
    patience: int = 200
    descents: int = 3
    threads: int = 1
    configs: Proposals = configs_of

    def __post_init__(self) -> None:
        if math.isinf(self.seconds) and math.isinf(self.proposals):
            raise BadInput("a search needs an end: give seconds or proposals")
        for name in ("seconds", "proposals", "temperature", "tempering", "ratio", "exchange", "threads"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass
class ChainResult:
    """The result of a search: `strategy` takes `seconds` and was reached from the start named `start`.

    `reached` holds the seconds of each chain's best by the name of its start. `optimal` means that no neighbour is
    faster. `history` pairs elapsed seconds with the seconds of the best strategy at that time.
    """

    strategy: Strategy = ()
    seconds: float = math.inf
    start: str = ""
    proposals: int = 0
    accepted: int = 0
    elapsed: float = 0.0
    optimal: bool = False
    reached: dict[str, float] = field(default_factory=dict)
    history: list[tuple[float, float]] = field(default_factory=list)


Progress = Callable[[ChainResult], None]


def search(
    simulator: Simulator,
    starts: Mapping[str, Strategy],
    rng: random.Random,
    options: Options,
    *,
    clock: Callable[[], float] = time.monotonic,
    progress: Progress = lambda _: None,
) -> ChainResult:
    """Return the fastest strategy that chains from the starts find and that fits into the memories.

    Every temperature of every thread uses `simulator` or a twin of it; `simulator` is left in an arbitrary strategy.
    The same `rng` and `proposals` give the same result. `progress` is called with each new best, by one thread at a
    time; an exception that it raises ends the search.

    Raises BadInput if there are no starts, or if none of the strategies seen fits into the memories.
    """
    if not starts:
        raise BadInput("a search needs a strategy to start from")
    twins = [simulator, *(simulator.twin() for _ in range(options.tempering * options.threads - 1))]
    crews = [twins[i :: options.threads] for i in range(options.threads)]
    best = _Best(clock, progress)
    chains = [
        _Chains(name, start, random.Random(rng.getrandbits(64)), options=options, shared=best, place=i)
        for i, (name, start) in enumerate(starts.items())
    ]
    _run(chains, crews, best)
    found = best.found
    found.reached = {chain.name: chain.best for chain in chains}
    found.proposals, found.accepted = sum(c.seen for c in chains), sum(c.accepted for c in chains)
    if not found.strategy:
        raise BadInput(
            f"{simulator.network.name}: no strategy that was tried fits into the memories of "
            f"{simulator.topology.name}: take a smaller batch or more devices"
        )
    _polish([crew[0] for crew in crews], rng, options, until=SHARES * len(starts) * options.seconds, best=best)
    found.elapsed = best.elapsed()
    return found


def _polish(
    simulators: Sequence[Simulator],
    rng: random.Random,
    options: Options,
    *,
    until: float,
    best: _Best,
) -> None:
    """Descend from the best strategy several times, in different orders, and keep the best local optimum.

    The order decides which local optimum a descent ends in. After the first descent, another one begins only if it
    would end in time, should it take as long as the longest so far.
    """
    found, start, least, longest = best.found, best.found.strategy, best.found.seconds, 0.0
    for _ in range(options.descents):
        began = best.elapsed()
        if longest and began + longest > until:
            return
        for simulator in simulators:
            simulator.start(start)
        optimal = descend(simulators, rng, lambda: best.elapsed() < until, options.configs)
        longest = max(longest, best.elapsed() - began)
        if simulators[0].seconds == least:
            found.optimal = optimal  # the chains' best has no better neighbour
            return
        if simulators[0].seconds < found.seconds:
            best.keep(simulators[0], found.start, best.place)
            found.optimal = optimal


class _Best:
    """Keeps the best strategy of all chains. Of strategies that are equally fast it keeps that of the first start, by
    `place`."""

    def __init__(self, clock: Callable[[], float], progress: Progress) -> None:
        self.found, self.place, self.ended = ChainResult(), 0, Event()
        self._clock, self._began, self._progress, self._lock = clock, clock(), progress, Lock()

    def elapsed(self) -> float:
        return self._clock() - self._began

    def keep(self, simulator: Simulator, start: str, place: int) -> None:
        with self._lock:
            found = self.found
            if (simulator.seconds, place) >= (found.seconds, self.place) or simulator.excess > 0:
                return
            faster = simulator.seconds < found.seconds
            found.strategy, found.seconds, found.start, self.place = simulator.strategy, simulator.seconds, start, place
            if faster:
                found.history.append((self.elapsed(), found.seconds))
                self._progress(found)


def _run(chains: Sequence[_Chains], crews: Sequence[list[Simulator]], best: _Best) -> None:
    """Run as many chains at a time as there are crews of simulators."""
    free: SimpleQueue[list[Simulator]] = SimpleQueue()
    for crew in crews:
        free.put(crew)

    def run(chain: _Chains) -> None:
        crew = free.get()
        try:
            chain.run(crew)
        finally:
            free.put(crew)

    with ThreadPoolExecutor(len(crews)) as pool:
        try:
            for done in [pool.submit(run, chain) for chain in chains]:
                done.result()
        finally:
            best.ended.set()  # ends the other chains if this was interrupted or one of them failed


class _Chains:
    """The chains of all temperatures from one start, which take turns. `place` is the index of the start."""

    def __init__(
        self,
        name: str,
        start: Strategy,
        rng: random.Random,
        *,
        options: Options,
        shared: _Best,
        place: int,
    ) -> None:
        self.name, self._start, self._rng, self._options, self._shared = name, start, rng, options, shared
        self._place = place
        self.best, self.seen, self.accepted = math.inf, 0, 0

    def run(self, simulators: Sequence[Simulator]) -> None:
        options, self._simulators = self._options, list(simulators)
        for simulator in simulators:
            simulator.start(self._start)
        scale = simulators[0].seconds
        self._warmth = [options.temperature * scale * options.ratio**i for i in range(len(simulators))]
        self._began, self._layers = self._shared.elapsed(), layer_moves(simulators[0])
        self._gained = 0, self._began
        self._look(simulators[0])
        while not self._over():
            for simulator, warmth in zip(self._simulators, self._warmth, strict=True):
                self._step(simulator, warmth)
            if len(self._simulators) > 1 and self.seen % (options.exchange * len(self._simulators)) == 0:
                self._exchange()

    def _over(self) -> bool:
        """Tell whether one of the paper's two criteria ends the chains. The second is measured in time if time is
        limited, else in proposals."""
        options, (gained, at) = self._options, self._gained
        if self.seen >= options.proposals or self._shared.ended.is_set():
            return True
        passed = self._shared.elapsed() - self._began
        if passed >= options.seconds:
            return True
        if self.seen - gained < options.patience * len(self._simulators):
            return False
        if math.isinf(options.seconds):
            return self.seen - gained >= options.proposals / 2
        return passed - (at - self._began) >= options.seconds / 2

    def _step(self, simulator: Simulator, warmth: float) -> None:
        rng = self._rng
        if self._layers and rng.random() < self._options.together:
            operators = rng.choice(self._layers)
        else:
            operators = (rng.randrange(len(simulator.network.operators)),)
        config = random_config(
            simulator.network.operators[operators[0]], simulator.topology, rng, self._options.configs
        )
        self.seen += 1
        # The limit is drawn before the simulation: what exceeds it is refused and need not be simulated to its end.
        limit = simulator.seconds - warmth * math.log(1.0 - rng.random())
        too_large = simulator.excess > 0
        if simulator.propose(dict.fromkeys(operators, config), math.inf if too_large else limit) == math.inf:
            return
        simulator.accept()
        self.accepted += 1
        self._look(simulator)

    def _exchange(self) -> None:
        """Move temperatures between neighbours by replica exchange; the strategies stay in their simulators."""
        for i in range(len(self._simulators) - 1):
            colder, warmer = self._simulators[i : i + 2]
            gain = (1 / self._warmth[i] - 1 / self._warmth[i + 1]) * (colder.seconds - warmer.seconds)
            if gain >= 0 or self._rng.random() < math.exp(gain):
                self._simulators[i], self._simulators[i + 1] = warmer, colder

    def _look(self, simulator: Simulator) -> None:
        if simulator.excess > 0 or simulator.seconds >= self.best:
            return
        self.best, self._gained = simulator.seconds, (self.seen, self._shared.elapsed())
        self._shared.keep(simulator, self.name, self._place)
