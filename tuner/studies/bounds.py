"""Lower bounds on the seconds of all strategies with a common beginning; the exhaustive search prunes by them. Start at
`Bounds`.

- No lane ends before all its work is done, and the processors together do not end before all their work is done.
- On a path through the network, forward and back again, some part of each operator waits for the part of its
  predecessor that ends last. The least time of that is known for every pair of configs of neighbours. The least sum
  over the operators that have no config yet is computed once, from the end of the path.
- The backward tasks and updates of a path's first operators, up to some operator, cannot begin before the path has come
  back to that operator. A processor needs that time and then the time of all its work of that kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tuner.studies.networks import Network
from tuner.studies.simulator.blocks import Blocks
from tuner.studies.soap import PartConfig

_PATHS = 16


class Pair(NamedTuple):
    """For one edge and each pair of configs, the least ticks between the ends of parts of the two operators.

    `last` counts from the end of the producer's last part to the end of the consumer's last part, `first` does so for
    the first parts. `last_back` and `first_back` count the way back, from consumer to producer.
    """

    last: np.ndarray
    last_back: np.ndarray
    first: np.ndarray
    first_back: np.ndarray


class Bounds:
    """Computes lower bounds for strategies of a network. `configs` are the configs that each operator may have."""

    def __init__(self, blocks: Blocks, configs: Sequence[tuple[PartConfig, ...]]) -> None:
        self._blocks, self._configs = blocks, configs
        self._numbers = [[blocks.config_id(c) for c in of] for of in configs]
        self._processors, self._lanes = len(blocks.topology.processors), len(blocks.topology.lanes) + 1
        operators = range(len(configs))
        self._own = [self._work(i) for i in operators]
        self._edges_to: list[list[tuple[int, np.ndarray]]] = [[] for _ in operators]
        self._complete = [[g for g, x in enumerate(blocks.layers) if x.members[-1] == i] for i in operators]
        pairs: dict[tuple[int, int], Pair] = {}
        for e, (u, v, _) in enumerate(blocks.edges):
            self._edges_to[v].append((u, self._moved(e)))
            pairs.setdefault((u, v), self._pair(e))
        least = [float(own[:, : self._processors].sum(axis=1).min()) for own in self._own]
        self._work_left = np.append(np.cumsum(least[::-1])[::-1], 0.0)
        self._paths = [_Path(path, self, pairs) for path in _paths(blocks.network)]
        self._load_at: list[np.ndarray] = [np.zeros(self._lanes)]
        self._at: list[int] = []

    def after(self, chosen: list[int]) -> np.ndarray:
        """Return the lower bound in ticks for each config of the next operator, given the configs `chosen` (indices)
        before it."""
        operator = len(chosen)
        loads = self._loads(chosen) + self._own[operator]
        for u, moved in self._edges_to[operator]:
            loads = loads + moved[chosen[u]]
        for config in range(len(self._configs[operator])):
            loads[config] += self._exchange(operator, chosen, config)
        computing = loads[:, : self._processors]
        together = (computing.sum(axis=1) + self._work_left[operator + 1]) / self._processors
        found = np.maximum(loads[:, :-1].max(axis=1), together)
        for path in self._paths:
            np.maximum(found, path.after(chosen), out=found)
        return found

    def times(self, i: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each config, the ticks of each part: forward and backward."""
        found = []
        for config, number in zip(self._configs[i], self._numbers[i], strict=True):
            exe, parts = self._blocks.operator(i, number).exe, len(config.devices)
            found.append((exe[:parts], exe[parts:] if self._blocks.training else np.zeros(parts)))
        return found

    def returning(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each config, the work of an operator's backward step and of the update of parameters that only it
        has.

        The first array holds ticks of work on each processor, the second the least ticks of the update alone.
        """
        work, alone = [], []
        layer = next((g for g, x in enumerate(self._blocks.layers) if x.members == (i,)), None)
        for config, number in zip(self._configs[i], self._numbers[i], strict=True):
            pattern, parts = self._blocks.operator(i, number), len(config.devices)
            load = np.bincount(pattern.lane[parts:], pattern.exe[parts:], self._lanes)
            update = 0.0
            if layer is not None and self._blocks.training:
                pattern = self._blocks.layer(layer, [number])[0]
                load += np.bincount(pattern.lane, pattern.exe, self._lanes)
                update = self._update(pattern.exe, pattern.lane)
            work.append(load[: self._processors])
            alone.append(update)
        return np.array(work), np.array(alone)

    def _update(self, exe: np.ndarray, lane: np.ndarray) -> float:
        """Return the least ticks from the last gradient to the end of some update."""
        updates = exe[lane < self._processors]
        links = exe[(lane >= self._processors) & (lane < self._lanes - 1)]
        # There are as many transfers as updates only if every piece goes round a ring; then each update waits for a
        # transfer.
        return float(updates.min() + (links.min() if len(links) == len(updates) else 0))

    def _loads(self, chosen: list[int]) -> np.ndarray:
        """Return the ticks of work on each lane of what is chosen. The part that two successive calls share is computed
        once."""
        same = 0
        while same < min(len(self._at), len(chosen)) and self._at[same] == chosen[same]:
            same += 1
        del self._at[same:], self._load_at[same + 1 :]
        for operator in range(same, len(chosen)):
            load = self._load_at[-1] + self._own[operator][chosen[operator]]
            for u, moved in self._edges_to[operator]:
                load = load + moved[chosen[u], chosen[operator]]
            self._load_at.append(load + self._exchange(operator, chosen, chosen[operator]))
            self._at.append(chosen[operator])
        return self._load_at[-1]

    def _work(self, i: int) -> np.ndarray:
        patterns = [self._blocks.operator(i, number) for number in self._numbers[i]]
        return np.array([np.bincount(p.lane, p.exe, self._lanes) for p in patterns])

    def _exchange(self, operator: int, chosen: list[int], config: int) -> np.ndarray:
        """Return the ticks on each lane of the exchange in those layers whose last operator this is."""
        found = np.zeros(self._lanes)
        for g in self._complete[operator]:
            members = self._blocks.layers[g].members
            indices = [*(chosen[m] for m in members[:-1]), config]
            numbers = [self._numbers[m][c] for m, c in zip(members, indices, strict=True)]
            pattern = self._blocks.layer(g, numbers)[0]
            found += np.bincount(pattern.lane, pattern.exe, self._lanes)
        return found

    def _moved(self, e: int) -> np.ndarray:
        """Return, for each pair of configs, the ticks of work that edge `e` puts on each lane."""
        u, v, _ = self._blocks.edges[e]
        found = np.zeros((len(self._configs[u]), len(self._configs[v]), self._lanes))
        for a, b in np.ndindex(found.shape[:2]):
            pattern = self._blocks.edge(e, self._numbers[u][a], self._numbers[v][b])
            found[a, b] = np.bincount(pattern.lane, pattern.exe, self._lanes)
        return found

    def _pair(self, e: int) -> Pair:
        u, v, _ = self._blocks.edges[e]
        one, other = self.times(u), self.times(v)
        found = Pair(*(np.zeros((len(one), len(other))) for _ in range(4)))
        for a, b in np.ndindex(found.last.shape):
            configs = self._configs[u][a], self._configs[v][b]
            moved = self._blocks.transfers(e, *configs)
            needs = np.isfinite(moved)
            ends = np.where(needs, moved + other[b][0][None, :], 0)
            # If some part is read by none, it may be the last one and delay nothing: there is no bound then.
            found.last[a, b] = ends.max(axis=1).min() if needs.any(axis=1).all() else -np.inf
            found.first[a, b] = ends.max(axis=0).min()
            if self._blocks.training:
                moved = self._blocks.transfers(e, *configs, back=True)
                ends = np.where(needs, moved + one[a][1][:, None], 0)
                found.last_back[a, b] = ends.max(axis=0).min() if needs.any(axis=0).all() else -np.inf
                found.first_back[a, b] = ends.max(axis=1).min()
        return found


class _Path:
    """The least sums along one path. They are exact for operators that have configs. For the others they come from
    tables that are filled from the end of the path and looked up by the last config that is known."""

    def __init__(self, path: tuple[int, ...], bounds: Bounds, pairs: dict[tuple[int, int], Pair]) -> None:
        self._path = path
        self._pairs = [pairs[u, v] for u, v in itertools.pairwise(path)]
        begin, end = bounds.times(path[0]), bounds.times(path[-1])
        returning = [bounds.returning(i) for i in path]
        self._begin_last = np.array([f.max() for f, _ in begin]) + returning[0][1]
        self._begin_first = np.array([float(f.min()) for f, _ in begin])
        self._returning = [work for work, _ in returning]
        self._left_last = [np.array([float(b.max()) for _, b in end])]
        self._left_first = [np.array([float(b.min()) for _, b in end])]
        self._there = [np.zeros(len(end))]  # as `_left_first`, without the last step back to the operator itself
        for pair in reversed(self._pairs):
            self._there.insert(0, (pair.first + self._left_first[0][None, :]).min(axis=1))
            self._left_last.insert(0, (pair.last + pair.last_back + self._left_last[0][None, :]).min(axis=1))
            self._left_first.insert(0, (pair.first + pair.first_back + self._left_first[0][None, :]).min(axis=1))

    def after(self, chosen: list[int]) -> np.ndarray | float:
        """Return the bound for each config of the next operator, or one number for all if that operator is not on the
        path."""
        known = [chosen[i] for i in self._path if i < len(chosen)]
        if not known:
            alone = self._begin_last + self._left_last[0]
            return alone if self._path[0] == len(chosen) else float(alone.min())
        m = len(known) - 1
        if m + 1 < len(self._path) and self._path[m + 1] == len(chosen):
            count = len(self._left_last[m + 1])
            return np.array([self._bound([*known, c]) for c in range(count)])
        return self._bound(known)

    def _bound(self, known: list[int]) -> float:
        """Return the bound where the path's first operators have the configs `known`."""
        m, steps = len(known) - 1, list(itertools.pairwise(known))
        found = float(self._begin_last[known[0]] + self._left_last[m][known[m]])
        found += sum(p.last[s] + p.last_back[s] for p, s in zip(self._pairs, steps, strict=False))
        there = float(self._begin_first[known[0]]) + sum(p.first[s] for p, s in zip(self._pairs, steps, strict=False))
        work = np.sum([returning[c] for returning, c in zip(self._returning, known, strict=False)], axis=0)
        back = float(self._there[m][known[m]])
        for k in range(m, -1, -1):  # operators 0 to k go backward only when the path is back at k
            found = max(found, there + back + float(work.max()))
            work = work - self._returning[k][known[k]]
            back = back + float(self._pairs[k].first_back[steps[k]]) if k < m else float(self._left_first[m][known[m]])
        return found


def _paths(network: Network) -> list[tuple[int, ...]]:
    """Return paths from operators that read no other to operators that no other reads, at most `_PATHS` of them."""
    readers: list[list[int]] = [[] for _ in network.operators]
    for v, operator in enumerate(network.operators):
        for u in dict.fromkeys(operator.inputs):
            readers[u].append(v)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [(i,) for i, o in enumerate(network.operators) if not o.inputs]
    while stack and len(found) < _PATHS:
        path = stack.pop()
        if not readers[path[-1]]:
            found.append(path)
        stack += [(*path, v) for v in readers[path[-1]]]
    return found
