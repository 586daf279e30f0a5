"""The execution simulator of Jia et al., algorithm 1, written once more with objects and without haste.

The compiled one is compared with it. It makes its tasks from `Blocks` and nothing else.
"""

from __future__ import annotations

import heapq

from tuner.studies.simulator.blocks import Blocks
from tuner.studies.soap import Strategy

Times = dict[tuple[int, int], tuple[int, int, int]]


def simulated(blocks: Blocks, strategy: Strategy) -> Times:
    """Ready, start and end of every task, by its block and its place there."""
    numbers = [blocks.config_id(c) for c in strategy]
    patterns = [(blocks.operator(i, number), ()) for i, number in enumerate(numbers)]
    for e, (u, v, _) in enumerate(blocks.edges):
        patterns.append((blocks.edge(e, numbers[u], numbers[v]), (u, v)))
    waiting = []
    for g, layer in enumerate(blocks.layers):
        members = layer.members
        exchange, *waits = blocks.layer(g, [numbers[m] for m in members])
        waiting += [(wait, (m, len(patterns))) for m, wait in zip(members, waits, strict=blocks.training)]
        patterns.append((exchange, ()))
    patterns += waiting
    before: dict[tuple[int, int], int] = {}
    after: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for block, (pattern, roles) in enumerate(patterns):
        blocks_of = (block, *roles)
        for task in range(len(pattern.exe)):
            before.setdefault((block, task), 0)
        for role, task, other, following in pattern.deps.tolist():
            source, target = (blocks_of[role], task), (blocks_of[other], following)
            before[target] = before.get(target, 0) + 1
            after.setdefault(source, []).append(target)
    ready = dict.fromkeys(before, 0)
    queue = [(0, task) for task, count in before.items() if not count]
    heapq.heapify(queue)
    free_at: dict[int, int] = {}
    found: Times = {}
    while queue:
        time, task = heapq.heappop(queue)
        pattern = patterns[task[0]][0]
        lane = int(pattern.lane[task[1]])
        start = max(time, free_at.get(lane, 0))
        end = free_at[lane] = start + int(pattern.exe[task[1]])
        found[task] = time, start, end
        for following in after.get(task, ()):
            ready[following] = max(ready[following], end)
            before[following] -= 1
            if not before[following]:
                heapq.heappush(queue, (ready[following], following))
    assert len(found) == len(ready)
    return found
