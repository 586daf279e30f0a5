"""Local search among strategies. Start at `descend`.

The neighbours of a strategy differ from it in one operator's config (paper 002, section 8.4). A recurrent layer's steps
share their parameters, and one of them alone is seldom better elsewhere: so all of a layer's operators are tried
together, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from tuner.placement.simulator import Simulator
from tuner.placement.simulator.patterns import TICK
from tuner.placement.soap import Config, Proposals, configs_of

Move = tuple[int, ...]  # operators that get the same config


def layer_moves(simulator: Simulator) -> list[Move]:
    """All operators of a layer together, of every layer that has more than one."""
    return [layer.members for layer in simulator.blocks.layers if len(layer.members) > 1]


def best_neighbour(simulator: Simulator, operators: Sequence[int], configs: Proposals = configs_of) -> Config | None:
    """The config for these operators that makes the strategy fastest; None if none makes it faster than it is."""
    best, least = None, simulator.seconds - TICK
    for config in configs(simulator.network.operators[operators[0]], simulator.topology):
        if all(config == simulator.strategy_at(i) for i in operators):
            continue
        found = simulator.propose(dict.fromkeys(operators, config), least)
        if found < math.inf:
            best, least = config, found - TICK
    simulator.reject()
    return best


def descend(
    simulator: Simulator,
    rng: random.Random,
    go_on: Callable[[], bool] = lambda: True,
    configs: Proposals = configs_of,
) -> bool:
    """Takes each operator's best of `configs`, and each layer's, again and again, until none is better: then the
    simulator's strategy is a local optimum and this returns True; False if `go_on` ended it before."""
    moves: list[Move] = [(i,) for i in range(len(simulator.network.operators))]
    rng.shuffle(moves)
    moves = layer_moves(simulator) + moves
    unchanged, place = 0, 0
    while unchanged < len(moves):
        if not go_on():
            return False
        move = moves[place % len(moves)]
        place += 1
        better = best_neighbour(simulator, move, configs)
        if better is None:
            unchanged += 1
            continue
        simulator.propose(dict.fromkeys(move, better))
        simulator.accept()
        unchanged = 1  # its own neighbours have just been seen
    return True


def is_local_optimum(simulator: Simulator) -> bool:
    """Whether no strategy that differs in one operator is faster than the simulator's."""
    return all(best_neighbour(simulator, (i,)) is None for i in range(len(simulator.network.operators)))
