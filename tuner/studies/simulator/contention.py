"""Predicts what a strategy takes where devices draw on one memory at the same time. Start at `contended`.

The simulator gives every device the whole rate of its memory, whatever other devices on that memory do. A GPU and a CPU
of one chip would have twice the rate together. Here a task asks for the rate at which it moves its bytes when it runs
alone. Where the tasks that run at the same time ask for more than the memory has, each gets its max-min fair share
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). It runs slower in proportion to what it lacks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.studies.networks import Network
from tuner.studies.simulator.blocks import Blocks
from tuner.studies.simulator.costs import CostModel, Roofline
from tuner.studies.simulator.patterns import TICK, Pattern
from tuner.studies.simulator.timeline import Timeline, timeline_of
from tuner.studies.soap import Strategy
from tuner.studies.topology import Topology

_ENDED = 1e-9  # share of a task's seconds that may be left by rounding


@dataclass
class _Task:
    """A task that takes `seconds` when it runs alone. It then asks for the share `demand` of the rate of `memory`, an
    index; -1 means no memory."""

    lane: int
    seconds: float
    memory: int = -1
    demand: float = 0.0
    waits: int = 0
    after: list[int] = field(default_factory=list)


def contended(
    network: Network, topology: Topology, strategy: Strategy, *, cost: CostModel, reached: float = Roofline().memory
) -> float:
    """Return the seconds of an inference.

    A memory's rate is that of the fastest device on it, of which kernels get the share `reached` (0 to 1) at best.
    Lanes take their tasks in the order in which they became ready, as in the simulator.
    """
    blocks = Blocks(network, topology, cost, training=False)
    times = _times(_tasks(blocks, strategy, _patterns(blocks, strategy), reached))
    return max((end for _, _, end in times), default=0.0)


def contended_timeline(
    network: Network, topology: Topology, strategy: Strategy, *, cost: CostModel, reached: float = Roofline().memory
) -> Timeline:
    """Simulate as `contended` does, and return when every task was ready, started and ended."""
    blocks = Blocks(network, topology, cost, training=False)
    patterns = _patterns(blocks, strategy)
    times = np.array(_times(_tasks(blocks, strategy, patterns, reached))).reshape(-1, 3)
    borders = np.cumsum([len(pattern.exe) for pattern, _ in patterns])[:-1]
    ticks = np.split(np.rint(times / TICK).astype(np.int64), borders)
    return timeline_of(blocks, [pattern for pattern, _ in patterns], ticks)


def _times(tasks: Sequence[_Task]) -> list[tuple[float, float, float]]:
    """Return when each task was ready, started and ended."""
    ready, start, end = ([0.0] * len(tasks) for _ in range(3))
    waits = [task.waits for task in tasks]
    waiting: dict[int, list[tuple[float, int]]] = {}
    for number, task in enumerate(tasks):
        if not task.waits:
            heapq.heappush(waiting.setdefault(task.lane, []), (0.0, number))
    now, running = 0.0, dict[int, list[float]]()  # by lane: a task's number, and the seconds that it still needs alone
    while True:
        for lane, queue in waiting.items():
            if queue and lane not in running:
                number = heapq.heappop(queue)[1]
                start[number] = now
                running[lane] = [number, tasks[number].seconds]
        if not running:
            return list(zip(ready, start, end, strict=True))
        lanes = list(running)
        speeds = _speeds([tasks[int(running[lane][0])] for lane in lanes])
        passed = min(running[lane][1] / speed for lane, speed in zip(lanes, speeds, strict=True))
        now += passed
        for lane, speed in zip(lanes, speeds, strict=True):
            running[lane][1] -= passed * speed
            ended = int(running[lane][0])
            if running[lane][1] > _ENDED * tasks[ended].seconds:
                continue
            del running[lane]
            end[ended] = now
            for number in tasks[ended].after:
                waits[number] -= 1
                if not waits[number]:
                    ready[number] = now
                    heapq.heappush(waiting.setdefault(tasks[number].lane, []), (now, number))


def _speeds(running: Sequence[_Task]) -> list[float]:
    """Return how fast each task runs; 1 is as fast as alone."""
    speeds = [1.0] * len(running)
    for memory in {task.memory for task in running if task.memory >= 0}:
        asking = sorted((task.demand, i) for i, task in enumerate(running) if task.memory == memory and task.demand > 0)
        left = 1.0
        for place, (demand, i) in enumerate(asking):
            given = min(demand, left / (len(asking) - place))
            speeds[i], left = given / demand, left - given
    return speeds


def _patterns(blocks: Blocks, strategy: Strategy) -> list[tuple[Pattern, tuple[int, ...]]]:
    """Return the simulator's patterns of operators and edges, each with the numbers of the patterns that the roles of
    its dependencies stand for."""
    numbers = [blocks.config_id(config) for config in strategy]
    patterns: list[tuple[Pattern, tuple[int, ...]]] = []
    patterns += [(blocks.operator(i, number), (i,)) for i, number in enumerate(numbers)]
    for e, (u, v, _) in enumerate(blocks.edges):
        patterns.append((blocks.edge(e, numbers[u], numbers[v]), (len(patterns), u, v)))
    return patterns


def _tasks(
    blocks: Blocks, strategy: Strategy, patterns: Sequence[tuple[Pattern, tuple[int, ...]]], reached: float
) -> list[_Task]:
    """Return the task graph of an inference."""
    topology = blocks.topology
    tasks, first = list[_Task](), list[int]()
    for pattern, _ in patterns:
        first.append(len(tasks))
        each = zip(pattern.lane.tolist(), pattern.exe.tolist(), strict=True)
        tasks += [_Task(lane, ticks * TICK) for lane, ticks in each]
    for pattern, roles in patterns:
        for role, task, other, following in pattern.deps.tolist():
            target = first[roles[other]] + following
            tasks[first[roles[role]] + task].after.append(target)
            tasks[target].waits += 1
    rates = [0.0] * len(topology.memories)
    for device, memory in zip(topology.devices, topology.memory_of, strict=True):
        rates[memory] = max(rates[memory], reached * device.bandwidth)
    for i, config in enumerate(strategy):
        for part, ((_, moved), _) in enumerate(blocks.works(i, config)):
            task = tasks[first[i] + part]
            task.memory = topology.memory_of[config.devices[part]]
            task.demand = min(moved / (rates[task.memory] * task.seconds), 1.0)
    return tasks
