"""Local search among strategies. Start at `descend`.

The neighbours of a strategy differ from it in the config of one operator (Jia, Zaharia and Aiken, "Beyond Data and
Model Parallelism for Deep Neural Networks", section 8.4). The steps of a recurrent layer share their parameters, so
moving one of them alone seldom helps. Therefore all operators of a layer are also tried together.
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
_AT_ONCE = 16  # moves that are evaluated before any is made
_NEAR = 0.003  # a config is nearly as fast if it takes at most this share more


def layer_moves(simulator: Simulator) -> list[Move]:
    """Return one move for every layer of more than one operator: all its operators together."""
    return [layer.members for layer in simulator.blocks.layers if len(layer.members) > 1]


def better_of(
    simulator: Simulator, operators: Sequence[int], configs: Sequence[PartConfig], margin: float = 0.0
) -> tuple[PartConfig | None, list[PartConfig]]:
    """Return the best of some configs for these operators, and the configs that are nearly as fast.

    The best is None if no config makes the strategy faster than it is now. The nearly fast ones make it slower by at
    most the share `margin`; better ones are among them.
    """
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
    """Replace configs of operators and of layers by better ones until no neighbour is faster.

    Returns True if the strategy of the simulators is then a local optimum, False if `go_on` ended the search earlier.
    After a change the neighbours of the changed operators are tried first, as they are likely to improve too. All
    `simulators` have the same strategy, before and after. They evaluate neighbours at the same time, which does not
    change the result.
    """
    network, topology = simulators[0].network, simulators[0].topology
    moves: list[Move] = [(i,) for i in range(len(network.operators))]
    rng.shuffle(moves)
    moves = layer_moves(simulators[0]) + moves
    every = {move: configs(network.operators[move[0]], topology) for move in moves}
    beside, near = _beside(simulators[0], moves), dict[Move, Sequence[PartConfig]]()
    waiting, unchanged = dict.fromkeys(moves), 0  # the moves evaluated longest ago come first
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
    """Evaluate only the configs that were nearly as fast, again and again until none of them is better.

    Once all moves have been evaluated, most configs that become better by a change were nearly as fast before it.
    """
    made = True
    while made:
        made, some = False, [move for move, configs in near.items() if configs]
        for first in range(0, len(some), _AT_ONCE):
            if not go_on():
                return
            part = {move: near[move] for move in some[first : first + _AT_ONCE]}
            made |= bool(_improve(pool, simulators, part, near))


def _beside(simulator: Simulator, moves: Sequence[Move]) -> dict[Move, list[Move]]:
    """Return, for each move of one operator, the moves of the operators that it reads or that read it."""
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
    """Evaluate all moves at the same time, make the better ones and return them. `near` records each move's configs
    that are nearly as fast."""
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
    """Apply the better configs one after the other and return the moves that were made. All were found for one
    strategy, so that a later one may no longer be better; such a move is skipped."""
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
    """Tell whether no strategy that differs in one operator is faster than the simulator's."""
    operators, topology = simulator.network.operators, simulator.topology
    return all(better_of(simulator, (i,), configs_of(o, topology))[0] is None for i, o in enumerate(operators))
