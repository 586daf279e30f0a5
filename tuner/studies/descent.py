"""Local search among strategies. Start at `descend`.

The neighbours of a strategy differ from it in one operator's config (paper 002, section 8.4). A recurrent layer's steps
share their parameters, and one of them alone is seldom better elsewhere: so all of a layer's operators are tried
together, too.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue

from tuner.studies.simulator import Simulator
from tuner.studies.simulator.patterns import TICK
from tuner.studies.soap import PartConfig, Proposals, configs_of

Move = tuple[int, ...]  # operators that get the same config
_AT_ONCE = 16  # moves that are looked at before one is made
_NEAR = 0.003  # what takes this share more at most is nearly as fast


def layer_moves(simulator: Simulator) -> list[Move]:
    """All operators of a layer together, of every layer that has more than one."""
    return [layer.members for layer in simulator.blocks.layers if len(layer.members) > 1]


def better_of(
    simulator: Simulator, operators: Sequence[int], configs: Sequence[PartConfig], margin: float = 0.0
) -> tuple[PartConfig | None, list[PartConfig]]:
    """Of some configs for these operators the one that makes the strategy fastest, None if none makes it faster than it
    is; and those that make it slower by no more than this share."""
    limit = simulator.seconds * (1 + margin) - TICK
    others = [config for config in configs if any(config != simulator.strategy_at(i) for i in operators)]
    found = simulator.look([dict.fromkeys(operators, config) for config in others], limit)
    near = [(config, seconds) for config, seconds in zip(others, found, strict=True) if seconds < math.inf]
    best, least = min(near, key=lambda each: each[1], default=(None, math.inf))
    return best if least <= simulator.seconds - TICK else None, [config for config, _ in near]


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
    network, topology = simulators[0].network, simulators[0].topology
    moves: list[Move] = [(i,) for i in range(len(network.operators))]
    rng.shuffle(moves)
    moves = layer_moves(simulators[0]) + moves
    every = {move: configs(network.operators[move[0]], topology) for move in moves}
    beside, near = _beside(simulators[0], moves), dict[Move, Sequence[PartConfig]]()
    waiting, unchanged = dict.fromkeys(moves), 0  # those that were looked at longest ago come first
    with ThreadPoolExecutor(len(simulators)) as pool:
        while unchanged < len(moves):
            if not go_on():
                return False
            some = {move: every[move] for move in islice(waiting, _AT_ONCE)}
            made = _improve(pool, simulators, some, near)
            waiting = {move: None for move in waiting if move not in some} | dict.fromkeys(some)
            unchanged = 0 if made else unchanged + len(some)
            if made:
                waiting = dict.fromkeys(chain.from_iterable(beside[move] for move in made)) | waiting
            if made and len(near) == len(moves):
                _again(pool, simulators, near, go_on)
    return True


def _again(
    pool: ThreadPoolExecutor,
    simulators: Sequence[Simulator],
    near: dict[Move, Sequence[PartConfig]],
    go_on: Callable[[], bool],
) -> None:
    """Where all moves have been looked at, most of what a change makes better was nearly as fast before it."""
    made = True
    while made:
        made, some = False, [move for move, configs in near.items() if configs]
        for first in range(0, len(some), _AT_ONCE):
            if not go_on():
                return
            part = {move: near[move] for move in some[first : first + _AT_ONCE]}
            made |= bool(_improve(pool, simulators, part, near))


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


def _improve(
    pool: ThreadPoolExecutor,
    simulators: Sequence[Simulator],
    moves: Mapping[Move, Sequence[PartConfig]],
    near: dict[Move, Sequence[PartConfig]],
) -> list[Move]:
    """Looks at all at the same time, takes what is better and returns which moves were; `near`: of each move then."""
    free: SimpleQueue[Simulator] = SimpleQueue()
    for simulator in simulators:
        free.put(simulator)

    def look(move: Move) -> tuple[PartConfig | None, list[PartConfig]]:
        simulator = free.get()
        try:
            return better_of(simulator, move, moves[move], _NEAR)
        finally:
            free.put(simulator)

    found = dict(zip(moves, pool.map(look, moves), strict=True))
    near |= {move: configs for move, (_, configs) in found.items()}
    return _apply(simulators, {move: best for move, (best, _) in found.items() if best is not None})


def _apply(simulators: Sequence[Simulator], better: Mapping[Move, PartConfig]) -> list[Move]:
    """Takes the configs that are better one after the other; the moves that were. All were found for one strategy, so
    that those behind the first may not be better any more."""
    made = []
    for move, config in better.items():
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
    operators, topology = simulator.network.operators, simulator.topology
    return all(better_of(simulator, (i,), configs_of(o, topology))[0] is None for i, o in enumerate(operators))
