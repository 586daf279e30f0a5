"""Times many stages at once, each as it runs in the network: behind what the network runs before it. Start at `passes`.

A stage that runs alone again and again finds its weights in caches. In the network other weights fill these caches
before the stage comes up again. So whole networks are run, in orders in which some of the stages come up in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from tuner.stages.operators import OperatorGraph, numbers
from tuner.stages.schedule import Schedule, Stage


def passes(graph: OperatorGraph, stages: Sequence[Stage]) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """Yield schedules that together contain every stage, with the indices of the given stages in them.

    All other operators are stages of their own. Every schedule contains the first stage that no earlier schedule
    contains. Behind it come those later stages that fit, in their order, so that the stages of one schedule stay
    together. Any other stage that still fits is added.
    """
    left = dict.fromkeys(stages)
    while left:
        schedule, given = _with(graph, tuple(left))
        for i in given:
            del left[schedule[i]]
        yield schedule, given


def _first(stage: Stage) -> int:
    return min(numbers(stage.members))


def _with(graph: OperatorGraph, stages: Sequence[Stage]) -> tuple[Schedule, tuple[int, ...]]:
    """Return a schedule with some of the stages, each after what it needs. The first of them is always included."""
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
    """Return the set of all that some operators depend on."""
    found = 0
    for i in numbers(members):
        found |= graph.ancestors[i]
    return found


def _runs(graph: OperatorGraph, stage: Stage, done: int) -> bool:
    """Tell whether a stage can come next: none of its operators is done, and all that they read is done or earlier in
    the group."""
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
    """Return what to run again and again to time some stages of a schedule: each stage with the operators to run before
    it.

    These operators are the ones that the schedule has between it and the given stage before. For the first stage they
    are those after the last given stage, and then those at the beginning. Only the last ones are kept, as many as touch
    the bytes that the device's caches hold. `touched` returns the tensors of an operator and their bytes.
    """
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
