"""Finds the best schedule of a network's operators in stages by Deep Optimal Scheduling. The source is algorithm 1 of
the paper on inter-operator parallelism ("Accelerate DNN Inference by Inter-Operator Parallelism", ICLR 2020
submission). Start at `search`.

A schedule costs the sum of its stages. The last stage of the operators that are left is any of their endings. It runs
concurrently or merged, whichever is faster, and what remains is a smaller problem of the same kind. The network is cut
into blocks where it narrows, and large blocks are cut further. Where a block has too many endings, limits are narrowed
until it has few enough, and what they cut off is reported. Where that does not help, the block is cut in two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tuner.errors import BadInput
from tuner.stages.blocks import blocks, chains, halves
from tuner.stages.endings import Cut, Limits, TooLarge
from tuner.stages.lattice import Lattice
from tuner.stages.operators import OperatorGraph, StageOperator, as_set, numbers
from tuner.stages.refinement import Refinement
from tuner.stages.schedule import Costs, Schedule, Stage, check, greedy, sequential, total

PATIENCE = 6  # rounds without gain, where stages are measured
MOST = 100_000  # sets that are examined for one block with the same limits; that takes about a second
LARGEST = 40
_FEW = 20  # operators; in larger blocks, chains are scheduled as one
_SMALL = 6  # operators; smaller blocks are not cut


@dataclass(frozen=True)
class Options:
    """Options that control a search.

    - `limits` holds for every stage. By default there are none, and they are narrowed where a block would have more
      than `most` endings in all.
    - `largest` is the number of operators in a block; larger blocks are cut.
    - `whole` keeps the network from being cut into blocks.
    - `widest` is the number of groups in the greedy schedule's stages (default: as many as the limits allow).
    - `patience` is that of `Refinement` (default: none, so that everything is measured that may be better).
    """

    limits: Limits | None = None
    most: int = MOST
    largest: int | None = LARGEST
    whole: bool = False
    widest: int | None = None
    patience: int | None = None

    def greedy(self, graph: OperatorGraph) -> Schedule:
        """Return the greedy schedule with stages that the device can run."""
        return greedy(graph, self.widest or (None if self.limits is None else self.limits.groups))


@dataclass(frozen=True)
class Block:
    """Describes the search of one block.

    `chains` is the number of units that its operators were scheduled as. A block without `transitions` was too wide for
    any search; it got the better of the greedy schedule and one operator after the other. `unmeasured` is the number of
    stages that might have been better when patience ended.
    """

    operators: int
    chains: int
    limits: Limits
    cut: Cut
    transitions: int
    stages: int
    unmeasured: int = 0

    def cut_text(self, there_is: Limits | None = None) -> str:
        """Describe in one line what limits and patience left out; empty where everything was examined. No stage beyond
        the limits `there_is` is possible."""
        size = f"{self.operators} operators" + (f" in {self.chains} chains" if self.chains < self.operators else "")
        if not self.transitions:
            return f"a block of {size}: too wide to be searched"
        left = []
        if self.cut.operators or (self.cut.groups and self.limits != there_is):
            cut = f"{self.cut.operators} times a group was not made larger, {self.cut.groups} times a stage not wider"
            left.append(f"{self.limits}; {cut}")
        if self.unmeasured:
            left.append(f"{self.unmeasured} stages were not measured, as those that promised most had gained nothing")
        return f"a block of {size}: {'; '.join(left)}" if left else ""


@dataclass(frozen=True)
class StageSearchResult:
    """Holds the best schedule and its seconds, and the seconds of one operator after the other and of the greedy
    schedule by the same costs. `finished` says whether all was measured that could have been better."""

    schedule: Schedule
    seconds: float
    sequential_seconds: float
    greedy_seconds: float
    blocks: tuple[Block, ...]
    finished: bool = True


_Enumerated = tuple[Lattice | None, tuple[tuple[int, ...], ...], Block]


@dataclass
class _Searched:
    """Holds the best schedule so far for one part of the network. A single operator has no block (see
    `StageSearchResult`)."""

    schedule: Schedule
    seconds: float
    block: Block | None = None
    refinement: Refinement | None = None

    def end(self) -> None:
        """Take over what the refinement has found."""
        found = self.refinement
        if found is not None and self.block is not None:
            self.block = replace(self.block, unmeasured=found.unmeasured)
            if found.seconds < self.seconds:
                self.seconds, self.schedule = found.seconds, found.schedule


def search(
    graph: OperatorGraph, costs: Costs, options: Options | None = None, may_go_on: Callable[[], bool] = lambda: True
) -> StageSearchResult:
    """Return the schedule with the least sum of costs within the options' limits.

    It takes no more than one operator after the other, and no more than the greedy schedule if that keeps to the
    limits. Once `may_go_on` returns False, only single operators and the stages of the greedy schedule are still
    measured. The result is then the best of what is known.

    Raises BadInput if an operator's cost cannot be measured.
    """
    options = options or Options()
    plain, rival = sequential(graph), options.greedy(graph)
    costs.prepare((*plain, *rival))
    parts = _searched(graph, costs, options)
    _go_on(parts, costs, may_go_on)
    schedule = tuple(chain.from_iterable(part.schedule for part in parts))
    seconds = sum(part.seconds for part in parts)
    times = total(costs, plain), total(costs, rival)  # greedy stages may cross the border of a block
    for other, its_seconds in zip((plain, rival), times, strict=True):
        if its_seconds < seconds and keeps(other, options.limits):
            schedule, seconds = other, its_seconds
    check(graph, schedule)
    found = tuple(part.block for part in parts if part.block is not None)
    finished = all(part.refinement is None or part.refinement.finished for part in parts)
    return StageSearchResult(schedule, seconds, *times, found, finished)


def _searched(graph: OperatorGraph, costs: Costs, options: Options) -> list[_Searched]:
    """Return the parts of the network, each ready to be searched."""
    found: list[tuple[list[Schedule], _Enumerated | None]] = []
    enumerated: dict[OperatorGraph, _Enumerated] = {}  # as networks repeat their blocks
    waiting = [graph.all] if options.whole else [*blocks(graph, options.largest)][::-1]
    while waiting:
        members = tuple(numbers(waiting.pop()))
        part = _part(graph, members)
        shape = _shape(part)
        if len(part) > 1 and shape not in enumerated:
            enumerated[shape] = _enumerated(part, options)
        way = enumerated.get(shape)
        if way is not None and way[0] is None and not options.whole and len(members) >= _SMALL:
            # Even narrow limits leave too many endings.
            waiting += [as_set([members[i] for i in numbers(half)]) for half in halves(part)][::-1]
        elif members:
            found.append((_rivals(part, members, options), way))
    costs.prepare([stage for rivals, _ in found for rival in rivals for stage in rival])
    return [_begun(graph, rivals, costs, way=way, options=options) for rivals, way in found]


def _rivals(part: OperatorGraph, members: tuple[int, ...], options: Options) -> list[Schedule]:
    """Return schedules of a part of the network: one operator after the other, and the greedy one if it keeps to the
    limits."""
    both = (_shifted(sequential(part), members), _shifted(options.greedy(part), members))
    return [schedule for schedule in both if keeps(schedule, options.limits)]


def _begun(
    graph: OperatorGraph, rivals: Sequence[Schedule], costs: Costs, *, way: _Enumerated | None, options: Options
) -> _Searched:
    times = [total(costs, rival) for rival in rivals]
    members = tuple(stage.groups[0][0] for stage in rivals[0])
    if math.isinf(times[0]):
        at = next(i for i, stage in zip(members, rivals[0], strict=True) if math.isinf(costs.seconds(stage)))
        raise BadInput(f"operator {graph.operators[at].name!r}: its cost cannot be measured")
    least, best = min(zip(times, rivals, strict=True), key=lambda pair: pair[0])
    if way is None:
        return _Searched(best, least)
    lattice, units, block = way
    if lattice is None:
        return _Searched(best, least, block)
    there = replace(lattice, stages=[_unfolded(stage, units).shifted(members) for stage in lattice.stages])
    return _Searched(best, least, block, Refinement(there, costs, options.patience))


def _go_on(parts: Sequence[_Searched], costs: Costs, may_go_on: Callable[[], bool]) -> None:
    """Search all parts in rounds. What they have to measure next is measured together, in few runs of the network. What
    is known roughly is measured well only when no part has anything new to measure."""
    rounds = {number: part.refinement.rounds() for number, part in enumerate(parts) if part.refinement is not None}
    answers: dict[int, bool | None] = dict.fromkeys(rounds)
    asked: dict[int, Sequence[Stage]] = {}
    while answers:
        for number, answer in answers.items():
            try:
                asked[number] = rounds[number].send(answer)
            except StopIteration:
                parts[number].end()
        new = {number: stages for number, stages in asked.items() if not all(map(costs.is_rough, stages))}
        answered = new or asked
        may = bool(answered) and may_go_on()
        if may:
            costs.prepare([*chain.from_iterable(answered.values())], roughly=bool(new))
        answers = dict.fromkeys(answered, may)
        asked = {number: stages for number, stages in asked.items() if number not in answered}


def keeps(schedule: Schedule, limits: Limits | None) -> bool:
    """Tell whether all stages are within the limits that were asked for."""
    groups, operators = (None, None) if limits is None else (limits.groups, limits.operators)
    return all(
        (groups is None or len(stage.groups) <= groups)
        and (operators is None or max(map(len, stage.groups)) <= operators)
        for stage in schedule
    )


def _shifted(schedule: Schedule, there: tuple[int, ...]) -> Schedule:
    return tuple(stage.shifted(there) for stage in schedule)


def _part(graph: OperatorGraph, members: Sequence[int]) -> OperatorGraph:
    """Return some of the operators as a graph of their own, without dependencies on the others, which are computed
    already."""
    place = {i: new for new, i in enumerate(members)}
    operators = (graph.operators[i] for i in members)
    return OperatorGraph(
        tuple(StageOperator(o.name, tuple(place[r] for r in o.reads if r in place), o.merges) for o in operators)
    )


def _shape(part: OperatorGraph) -> OperatorGraph:
    """Return the graph without what does not affect which stages are possible."""
    kinds: dict[Hashable, int] = {}
    merges = [o.merges if o.merges is None else kinds.setdefault(o.merges, len(kinds)) for o in part.operators]
    both = zip(part.operators, merges, strict=True)
    return OperatorGraph(tuple(StageOperator("", o.reads, merged) for o, merged in both))


def _enumerated(part: OperatorGraph, options: Options) -> _Enumerated:
    """Return all stages of a block. Its units are single operators or chains of them. There is no lattice where even
    the narrowest limits leave too many."""
    for limits, units in _narrower(part, options):
        folded = _folded(part, units)
        sizes = [len(unit) for unit in units] if _counts_operators(options) else None
        try:
            lattice = Lattice.of(folded, limits, options.most, sizes)
        except TooLarge:
            continue
        cut = lattice.cut
        return lattice, units, Block(len(part), len(units), limits, cut, lattice.transitions, len(lattice.stages))
    return None, units, Block(len(part), len(units), limits, Cut(), 0, 0)


def _narrower(part: OperatorGraph, options: Options) -> Iterator[tuple[Limits, tuple[tuple[int, ...], ...]]]:
    """Yield ever narrower limits, each with the units to schedule within them."""
    single, chained = tuple((i,) for i in range(len(part))), chains(part)
    first = options.limits or Limits()
    if len(part) <= _FEW or len(chained) == len(part):
        yield first, single
    if len(chained) < len(part):
        yield first, _pieces(chained, first, options)
    for narrow in (Limits(8, 3), Limits(4, 3), Limits(3, 2)):
        limits = _both(narrow, options.limits)
        yield limits, _pieces(chained, limits, options)


def _counts_operators(options: Options) -> bool:
    """Tell whether limits on operators were asked for: then a chain does not count as one."""
    return options.limits is not None and options.limits.operators is not None


def _pieces(chained: tuple[tuple[int, ...], ...], limits: Limits, options: Options) -> tuple[tuple[int, ...], ...]:
    """Return the chains, cut where they are longer than a group may be."""
    if not _counts_operators(options) or limits.operators is None:
        return chained
    length = limits.operators
    return tuple(chain[at : at + length] for chain in chained for at in range(0, len(chain), length))


def _both(one: Limits, other: Limits | None) -> Limits:
    def least(*given: int | None) -> int | None:
        return min((g for g in given if g is not None), default=None)

    other = other or Limits()
    return Limits(least(one.groups, other.groups), least(one.operators, other.operators))


def _folded(part: OperatorGraph, units: Sequence[tuple[int, ...]]) -> OperatorGraph:
    unit_of = {i: u for u, unit in enumerate(units) for i in unit}
    operators = []
    for u, unit in enumerate(units):
        reads = {unit_of[r] for i in unit for r in part.operators[i].reads} - {u}
        merges = part.operators[unit[0]].merges if len(unit) == 1 else None
        operators.append(StageOperator(part.operators[unit[0]].name, tuple(sorted(reads)), merges))
    return OperatorGraph(tuple(operators))


def _unfolded(stage: Stage, units: Sequence[tuple[int, ...]]) -> Stage:
    groups = (tuple(i for u in group for i in units[u]) for group in stage.groups)
    return Stage(tuple(groups), stage.merged)
