"""Timing many stages at once, each as it runs in the network: behind what the network runs before it. Start at
`passes`.

A stage that is run alone, again and again, finds its weights in caches that the network fills with others' before it
comes to that stage again. So networks are run whole, in such an order that some of the stages come up in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from tuner.stages.operators import OperatorGraph, numbers
from tuner.stages.schedule import Schedule, Stage


def passes(graph: OperatorGraph, stages: Sequence[Stage]) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """Schedules that together have every stage, and where in them the given stages are: all other operators are stages
    of their own. In every schedule are the first stage that was in none so far, and all others that can be."""
    waiting: dict[int, list[Stage]] = defaultdict(list)
    order = list(dict.fromkeys(stages))
    left = set(order)
    for stage in order:
        waiting[_first(stage)].append(stage)
    for stage in order:
        if stage in left:
            schedule, given = _with(graph, stage, waiting)
            for i in given:
                left.discard(schedule[i])
                waiting[_first(schedule[i])].remove(schedule[i])
            yield schedule, given


def _first(stage: Stage) -> int:
    return min(numbers(stage.members))


def _with(
    graph: OperatorGraph, stage: Stage, waiting: Mapping[int, Sequence[Stage]]
) -> tuple[Schedule, tuple[int, ...]]:
    """A schedule with a stage: behind what it needs, before the rest."""
    before = 0
    for i in numbers(stage.members):
        before |= graph.ancestors[i]
    schedule: list[Stage] = []
    given: list[int] = []
    done = 0
    for allowed in (before & ~stage.members, stage.members, graph.all):
        for i in numbers(allowed):
            if done >> i & 1:
                continue
            candidates = [stage] if allowed == stage.members else waiting.get(i, ())
            found = next((s for s in candidates if not s.members & ~allowed and _runs(graph, s, done)), None)
            if found is not None:
                given.append(len(schedule))
            schedule.append(found or Stage(((i,),)))
            done |= schedule[-1].members
    return tuple(schedule), tuple(given)


def _runs(graph: OperatorGraph, stage: Stage, done: int) -> bool:
    """Whether a stage can come next: it has nothing that is done, and all that it reads is, or is before in a group."""
    if stage.members & done:
        return False
    for group in stage.groups:
        before = done
        for i in group:
            if graph.predecessors[i] & ~before:
                return False
            before |= 1 << i
    return True


def around(
    schedule: Schedule,
    given: Sequence[int],
    touched: Callable[[int], Mapping[Hashable, int]],
    cache_bytes: int,
) -> tuple[tuple[tuple[int, ...], Stage], ...]:
    """What is to be run again and again to time some stages of a schedule: each, behind the operators to run before it.
    These are what the schedule has there (before the first of them: what comes last, and then what comes first), but
    no more than the last ones that touch as many bytes as the device's caches hold. `touched` has the tensors of an
    operator, and their bytes."""
    found = []
    for n, at in enumerate(given):
        between = schedule[given[n - 1] + 1 :] + schedule[:at] if n == 0 else schedule[given[n - 1] + 1 : at]
        found.append((_last(between, touched, cache_bytes), schedule[at]))
    return tuple(found)


def _last(
    stages: Sequence[Stage], touched: Callable[[int], Mapping[Hashable, int]], cache_bytes: int
) -> tuple[int, ...]:
    found: list[int] = []
    tensors: dict[Hashable, int] = {}
    for i in (i for stage in reversed(stages) for group in reversed(stage.groups) for i in reversed(group)):
        if sum(tensors.values()) >= cache_bytes:
            break
        tensors.update(touched(i))
        found.append(i)
    return tuple(found[::-1])
