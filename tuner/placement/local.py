"""Local search among strategies. Start at `descend`.

The neighbours of a strategy differ from it in one operator's config (paper 002, section 8.4). A recurrent layer's steps
share their parameters, and one of them alone is seldom better elsewhere: so all of a layer's operators are tried
together, too.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue

from tuner.placement.simulator import Simulator
from tuner.placement.simulator.patterns import TICK
from tuner.placement.soap import Config, Proposals, configs_of

Move = tuple[int, ...]  # operators that get the same config
_AT_ONCE = 16  # moves that are looked at before one is made


def layer_moves(simulator: Simulator) -> list[Move]:
    """All operators of a layer together, of every layer that has more than one."""
    return [layer.members for layer in simulator.blocks.layers if len(layer.members) > 1]


def best_neighbour(simulator: Simulator, operators: Sequence[int], configs: Proposals = configs_of) -> Config | None:
    """The config for these operators that makes the strategy fastest; None if none makes it faster than it is."""
    some = configs(simulator.network.operators[operators[0]], simulator.topology)
    best, _ = simulator.least([dict.fromkeys(operators, config) for config in some], simulator.seconds - TICK)
    return some[best] if best >= 0 else None


def descend(
    simulators: Sequence[Simulator],
    rng: random.Random,
    go_on: Callable[[], bool] = lambda: True,
    configs: Proposals = configs_of,
) -> bool:
    """Takes operators' best of `configs`, and layers', again and again, until none is better: then the simulators'
    strategy is a local optimum and this returns True; False if `go_on` ended it before. Next to one that changed,
    others are likely to become better: they come first. All `simulators` have the same strategy, and have the same in
    the end: they look at neighbours at the same time, which changes nothing in what is found."""
    moves: list[Move] = [(i,) for i in range(len(simulators[0].network.operators))]
    rng.shuffle(moves)
    moves = layer_moves(simulators[0]) + moves
    beside = _beside(simulators[0], moves)
    waiting, unchanged = dict.fromkeys(moves), 0  # those that were looked at longest ago come first
    with ThreadPoolExecutor(len(simulators)) as pool:
        while unchanged < len(moves):
            if not go_on():
                return False
            some = list(islice(waiting, _AT_ONCE))
            for move in some:
                del waiting[move]
            made = _apply(simulators, some, _best_neighbours(pool, simulators, some, configs))
            unchanged = 0 if made else unchanged + len(some)
            waiting |= dict.fromkeys(some)
            if made:
                waiting = dict.fromkeys(chain.from_iterable(beside[move] for move in made)) | waiting
    return True


def _beside(simulator: Simulator, moves: Sequence[Move]) -> dict[Move, list[Move]]:
    """Of each move of one operator, the moves of those that it reads or that read it."""
    of: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        for i in move:
            of[i].append(move)
    found: dict[Move, list[Move]] = {move: [] for move in moves}
    for u, v, _ in simulator.blocks.edges:
        found[(u,)] += of[v]
        found[(v,)] += of[u]
    return found


def _best_neighbours(
    pool: ThreadPoolExecutor, simulators: Sequence[Simulator], moves: Sequence[Move], configs: Proposals
) -> list[Config | None]:
    free: SimpleQueue[Simulator] = SimpleQueue()
    for simulator in simulators:
        free.put(simulator)

    def look(move: Move) -> Config | None:
        simulator = free.get()
        try:
            return best_neighbour(simulator, move, configs)
        finally:
            free.put(simulator)

    return list(pool.map(look, moves))


def _apply(simulators: Sequence[Simulator], moves: Sequence[Move], better: Sequence[Config | None]) -> list[Move]:
    """Takes the configs that are better one after the other; the moves that were. All were found for one strategy, so
    that those behind the first may not be better any more."""
    made = []
    for move, config in zip(moves, better, strict=True):
        if config is None:
            continue
        change = dict.fromkeys(move, config)
        if simulators[0].propose(change, simulators[0].seconds - TICK) == math.inf:
            continue
        made.append(move)
        simulators[0].accept()
        for simulator in simulators[1:]:
            simulator.propose(change)
            simulator.accept()
    return made


def is_local_optimum(simulator: Simulator) -> bool:
    """Whether no strategy that differs in one operator is faster than the simulator's."""
    return all(best_neighbour(simulator, (i,)) is None for i in range(len(simulator.network.operators)))
