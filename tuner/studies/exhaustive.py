"""Finds the fastest of all strategies that a search proposes, by depth-first search with bounds (Jia, Zaharia and
Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", section 8.4).

Operators get their configs one after the other, in the network's order. A branch is left when no strategy in it can be
faster than the best one known, by `bounds.Bounds`. Start at `fastest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.studies.bounds import Bounds
from tuner.studies.simulator import Simulator
from tuner.studies.simulator.patterns import TICK
from tuner.studies.soap import Strategy, configs_of


@dataclass
class Proof:
    """The result of the search: `strategy` takes `seconds`, and if the search was `complete`, none takes less.

    `space` is the number of strategies, `leaves` the number of simulated ones and `nodes` the number of beginnings that
    were examined.
    """

    strategy: Strategy
    seconds: float
    space: float
    leaves: int = 0
    nodes: int = 0
    complete: bool = False


def fastest(simulator: Simulator, known: Strategy, go_on: Callable[[Proof], bool] = lambda _: True) -> Proof:
    """Return the fastest of all strategies made of `configs_of`.

    `known` is a fast strategy to start with. `go_on` is asked after every 1000 beginnings, and the search ends if it
    returns False. It suits networks of a few operators on a few devices: Jia et al. report hours.
    """
    search = _Search(simulator, known, go_on)
    search.proof.complete = search.descend(0)
    return search.proof


class _Search:
    def __init__(self, simulator: Simulator, known: Strategy, go_on: Callable[[Proof], bool]) -> None:
        self._simulator, self._go_on = simulator, go_on
        self._configs = [configs_of(o, simulator.topology) for o in simulator.network.operators]
        simulator.start(known)
        fits = simulator.excess <= 0
        space = math.prod(float(len(c)) for c in self._configs)
        self.proof = Proof(known, simulator.seconds if fits else math.inf, space)
        self._bounds = Bounds(simulator.blocks, self._configs)
        self._chosen: list[int] = []

    def descend(self, operator: int) -> bool:
        """Examine all strategies that begin with the chosen configs. Returns False if `go_on` ended the search."""
        if operator == len(self._configs):
            self._simulate()
            return True
        self.proof.nodes += 1
        if self.proof.nodes % 1000 == 0 and not self._go_on(self.proof):
            return False
        bounds = self._bounds.after(self._chosen)
        for config in np.argsort(bounds, kind="stable").tolist():
            if bounds[config] * TICK >= self.proof.seconds:
                break
            self._chosen.append(config)
            went_on = self.descend(operator + 1)
            self._chosen.pop()
            if not went_on:
                return False
        return True

    def _simulate(self) -> None:
        simulator, proof = self._simulator, self.proof
        wanted = [configs[i] for configs, i in zip(self._configs, self._chosen, strict=True)]
        proof.leaves += 1
        found = simulator.propose(dict(enumerate(wanted)), proof.seconds - TICK)
        if found == math.inf:
            return
        simulator.accept()
        if simulator.excess <= 0:
            proof.strategy, proof.seconds = simulator.strategy, simulator.seconds
