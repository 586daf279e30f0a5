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
    of their own. In every schedule is the first stage that was in none so far, those of the next that can be behind it,
    in their order (so stages of one schedule are in one again), and all others that then can be."""
    left = dict.fromkeys(stages)
    while left:
        schedule, given = _with(graph, tuple(left))
        for i in given:
            del left[schedule[i]]
        yield schedule, given


def _first(stage: Stage) -> int:
    return min(numbers(stage.members))


def _with(graph: OperatorGraph, stages: Sequence[Stage]) -> tuple[Schedule, tuple[int, ...]]:
    """A schedule with some of the stages, each behind what it needs: the first of them in any case."""
    waiting: dict[int, list[Stage]] = defaultdict(list)
    for stage in stages:
        waiting[_first(stage)].append(stage)
    schedule: list[Stage] = []
    given: list[int] = []
    done = 0

    def add(stage: Stage) -> None:
        nonlocal done
        schedule.append(stage)
        done |= stage.members

    def fill(allowed: int) -> None:
        for i in numbers(allowed):
            if not done >> i & 1:
                fitting = (s for s in waiting.get(i, ()) if not s.members & ~allowed and _runs(graph, s, done))
                found = next(fitting, None)
                if found is not None:
                    given.append(len(schedule))
                add(found or Stage(((i,),)))

    for stage in stages:
        if not stage.members & done:
            fill(_before(graph, stage.members) & ~stage.members)
            given.append(len(schedule))
            add(stage)
    fill(graph.all)
    return tuple(schedule), tuple(given)


def _before(graph: OperatorGraph, members: int) -> int:
    """All that some operators depend on."""
    found = 0
    for i in numbers(members):
        found |= graph.ancestors[i]
    return found


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
