"""What a schedule is: stages, one after the other, each of groups that run at the same time or are merged. `sequential`
and `greedy` are the schedules to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tuner.errors import BadInput
from tuner.stages.operators import OperatorGraph, as_set, numbers

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stage:
    """Groups of operators; those of a group run one after the other, in their order. `merged`: every group is one
    operator, and all are computed by one kernel. `threads`: how many of the host's threads each group has; none on
    other devices, whose groups have streams."""

    groups: Groups
    merged: bool = False
    threads: tuple[int, ...] = ()

    @property
    def members(self) -> int:
        """All its operators, as a set."""
        return as_set([i for group in self.groups for i in group])

    @property
    def launched(self) -> Groups:
        """The groups as they are launched: the longest last, on the stream that the others are joined with."""
        return self.groups[::-1]

    def shifted(self, numbers: tuple[int, ...]) -> Stage:
        """With other numbers for its operators."""
        return replace(self, groups=tuple(tuple(numbers[i] for i in group) for group in self.groups))

    def divided(self, works: Sequence[float], threads: int) -> Stage:
        """With all of so many threads, each group's in proportion to its work, at least one: the rest go, one by one,
        to whoever has most work for each (Adams's method). Raises BadInput where there are fewer than groups."""
        if len(self.groups) > threads:
            raise BadInput(f"stage {self.text()}: its {len(self.groups)} groups are more than {threads} threads")
        counts = [1] * len(self.groups)
        for _ in range(threads - len(counts)):
            counts[max(range(len(counts)), key=lambda g: works[g] / counts[g])] += 1
        return replace(self, threads=tuple(counts))

    def text(self) -> str:
        """As it is stored: "0,1|2"; with "=" in front where it is merged; with a group's threads behind it: "0,1:3|2:1"
        where it has some."""
        groups = [",".join(map(str, group)) for group in self.groups]
        if self.threads:
            groups = [f"{group}:{count}" for group, count in zip(groups, self.threads, strict=True)]
        return ("=" if self.merged else "") + "|".join(groups)

    @classmethod
    def from_text(cls, text: str) -> Stage:
        """Raises ValueError where it is none."""
        parts = [group.partition(":") for group in text.removeprefix("=").split("|")]
        groups = tuple(tuple(map(int, group.split(","))) for group, _, _ in parts)
        threads = tuple(int(count) for _, colon, count in parts if colon)
        if threads and (len(threads) != len(groups) or min(threads) < 1):
            raise ValueError(f"stage {text}: some of its groups have no threads")
        return cls(groups, text.startswith("="), threads)


Schedule = tuple[Stage, ...]


class Costs(Protocol):
    """What stages take on a device."""

    def seconds(self, stage: Stage) -> float:
        """Infinity where the stage cannot be. Raises BadInput where that cannot be found out."""

    def estimate(self, stage: Stage) -> float | None:
        """As little as it may take, where finding out how much it does takes long; None: ask `seconds` at once."""

    def correction(self) -> float:
        """What estimates of stages of several groups, but for merged ones, are to be multiplied by, as far as that is
        known so far."""

    def known(self, stage: Stage) -> bool:
        """Whether `seconds` need not find it out."""

    def is_rough(self, stage: Stage) -> bool:
        """Whether its seconds are known only roughly; `prepare` makes that better."""

    def prepare(self, stages: Sequence[Stage], roughly: bool = False) -> None:
        """What is asked for next: finding out several at once may take less. `roughly`: what is not known need not be
        known well; without, what is known roughly is found out again."""


def sequential(graph: OperatorGraph) -> Schedule:
    """One operator after the other."""
    return tuple(Stage(((i,),)) for i in range(len(graph)))


def greedy(graph: OperatorGraph, widest: int | None = None) -> Schedule:
    """All operators that can run (the first `widest` of them), then all that can run then, and so on (Tang et al.,
    2018)."""
    done, stages = 0, []
    while done != graph.all:
        ready = [i for i in numbers(graph.all & ~done) if not graph.predecessors[i] & ~done]
        ready = ready[:widest]
        stages.append(Stage(tuple((i,) for i in ready)))
        done |= as_set(ready)
    return tuple(stages)


def check(graph: OperatorGraph, schedule: Iterable[Stage]) -> None:
    """Raises BadInput unless every operator is in one stage, behind what it reads: of an earlier stage, or of its own
    group. Merged stages have at least two operators, which may be merged."""
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
    """Whether a stage consists of at least two operators that may be computed as one."""
    kinds = {graph.operators[group[0]].merges for group in stage.groups}
    single = all(len(group) == 1 for group in stage.groups)
    return single and len(stage.groups) > 1 and len(kinds) == 1 and None not in kinds


def total(costs: Costs, schedule: Iterable[Stage]) -> float:
    """Seconds of a schedule by the sum of its stages (paper 000, section 4.1)."""
    return sum(costs.seconds(stage) for stage in schedule)
