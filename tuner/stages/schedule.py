"""A schedule consists of stages, one after the other, each of groups that run at the same time or are merged.
`sequential` and `greedy` are the schedules to compare with. Start at `Stage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tuner.errors import BadInput
from tuner.stages.operators import OperatorGraph, as_set, numbers

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stage:
    """Groups of operators that run at the same time; the operators of a group run one after the other, in their order.

    In a `merged` stage every group is one operator, and one kernel computes all of them. `threads` is the number of the
    host's threads for each group. It is empty on other devices, whose groups have streams.
    """

    groups: Groups
    merged: bool = False
    threads: tuple[int, ...] = ()

    @property
    def members(self) -> int:
        """Return all its operators as a set."""
        return as_set([i for group in self.groups for i in group])

    @property
    def launched(self) -> Groups:
        """Return the groups as they are launched: the longest one last, on the stream that joins the others."""
        return self.groups[::-1]

    def shifted(self, numbers: tuple[int, ...]) -> Stage:
        """Return the stage with other numbers for its operators."""
        return replace(self, groups=tuple(tuple(numbers[i] for i in group) for group in self.groups))

    def divided(self, works: Sequence[float], threads: int) -> Stage:
        """Return the stage with `threads` threads, divided among its groups in proportion to their work.

        Every group gets one thread. The rest go, one by one, to the group with the most work per thread (Adams's
        method). Raises BadInput where there are fewer threads than groups.
        """
        if len(self.groups) > threads:
            raise BadInput(f"stage {self.text()}: its {len(self.groups)} groups are more than {threads} threads")
        counts = [1] * len(self.groups)
        for _ in range(threads - len(counts)):
            counts[max(range(len(counts)), key=lambda g: works[g] / counts[g])] += 1
        return replace(self, threads=tuple(counts))

    def text(self) -> str:
        """Return the stage as it is stored: "0,1|2". A merged stage begins with "=". Groups with threads end with their
        number: "0,1:3|2:1"."""
        groups = [",".join(map(str, group)) for group in self.groups]
        if self.threads:
            groups = [f"{group}:{count}" for group, count in zip(groups, self.threads, strict=True)]
        return ("=" if self.merged else "") + "|".join(groups)

    @classmethod
    def from_text(cls, text: str) -> Stage:
        """Return the stage of a stored text. Raises ValueError for any other text."""
        parts = [group.partition(":") for group in text.removeprefix("=").split("|")]
        groups = tuple(tuple(map(int, group.split(","))) for group, _, _ in parts)
        threads = tuple(int(count) for _, colon, count in parts if colon)
        if threads and (len(threads) != len(groups) or min(threads) < 1):
            raise ValueError(f"stage {text}: some of its groups have no threads")
        return cls(groups, text.startswith("="), threads)


Schedule = tuple[Stage, ...]


class Costs(Protocol):
    """Provides what stages take on a device."""

    def seconds(self, stage: Stage) -> float:
        """Return the seconds of a stage; infinity where it is impossible. Raises BadInput where they cannot be
        measured."""

    def estimate(self, stage: Stage) -> float | None:
        """Return the least seconds that a stage may take, where measuring it takes long; None means that `seconds` may
        be asked at once."""

    def correction(self) -> float:
        """Return the factor for estimates of stages of several groups that are not merged, as far as it is known."""

    def known(self, stage: Stage) -> bool:
        """Tell whether `seconds` need not measure anything."""

    def is_rough(self, stage: Stage) -> bool:
        """Tell whether the seconds of a stage are known only roughly; `prepare` improves them."""

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        """Measure stages that are asked for next, as measuring several at once may take less. With `roughly`, unknown
        stages may be measured roughly. Without it, stages that are known only roughly are measured again."""


def sequential(graph: OperatorGraph) -> Schedule:
    """Return the schedule that runs one operator after the other."""
    return tuple(Stage(((i,),)) for i in range(len(graph)))


def greedy(graph: OperatorGraph, widest: int | None = None) -> Schedule:
    """Return the schedule whose every stage has all operators that can run by then, or the first `widest` of them (Tang
    et al., 2018)."""
    done, stages = 0, []
    while done != graph.all:
        ready = [i for i in numbers(graph.all & ~done) if not graph.predecessors[i] & ~done]
        ready = ready[:widest]
        stages.append(Stage(tuple((i,) for i in ready)))
        done |= as_set(ready)
    return tuple(stages)


def check(graph: OperatorGraph, schedule: Iterable[Stage]) -> None:
    """Check that a schedule is valid; raises BadInput where it is not.

    Every operator must be in one stage, after all operators that it reads: these are in earlier stages, or earlier in
    its own group. Merged stages need at least two operators, which may be merged.
    """
    done = 0
    for stage in schedule:
        for group in stage.groups:
            before = done
            for i in group:
                if not 0 <= i < len(graph) or (stage.members & done) >> i & 1:
                    raise BadInput(f"stage {stage.text()}: operator {i} is not there, or was computed before")
                if graph.predecessors[i] & ~before:
                    raise BadInput(f"stage {stage.text()}: {graph.operators[i].name!r} runs before what it reads")
                before |= 1 << i
        if sum(map(len, stage.groups)) != stage.members.bit_count():
            raise BadInput(f"stage {stage.text()}: an operator is there twice")
        if stage.merged and not can_merge(graph, stage):
            raise BadInput(f"stage {stage.text()}: its operators cannot be merged")
        done |= stage.members
    if done != graph.all:
        left = graph.operators[next(numbers(graph.all & ~done))].name
        raise BadInput(f"schedule: operator {left!r} is in no stage")


def can_merge(graph: OperatorGraph, stage: Stage) -> bool:
    """Tell whether a stage consists of at least two operators that may be computed as one."""
    kinds = {graph.operators[group[0]].merges for group in stage.groups}
    single = all(len(group) == 1 for group in stage.groups)
    return single and len(stage.groups) > 1 and len(kinds) == 1 and None not in kinds


def total(costs: Costs, schedule: Iterable[Stage]) -> float:
    """Return the seconds of a schedule as the sum of its stages (the paper on inter-operator parallelism, section
    4.1)."""
    return sum(costs.seconds(stage) for stage in schedule)
