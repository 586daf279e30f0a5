"""Makes graphs smaller before they are searched: `blocks` are scheduled one by one, `chains` are scheduled as one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tuner.stages.operators import OperatorGraph


def blocks(graph: OperatorGraph, largest: int | None = None) -> tuple[int, ...]:
    """Return the graph as a sequence of sets, cut wherever all later operators depend on all earlier ones.

    That is after an operator that all branches lead to, or after several that write parts of one tensor. No two
    operators of different blocks could run at the same time. Blocks of more than `largest` operators are cut further,
    where the fewest results are still to be read. At such a cut, some operators could have run at the same time.
    """
    cuts = [0, *(k for k in range(1, len(graph)) if _narrows(graph, k)), len(graph)]
    found = []
    for start, end in pairwise(cuts):
        found += _split(graph, start, end, largest or len(graph))
    return tuple((1 << end) - (1 << start) for start, end in found)


def _narrows(graph: OperatorGraph, k: int) -> bool:
    before = (1 << k) - 1
    return all(not before & ~graph.ancestors[i] for i in range(k, len(graph)))


def _split(graph: OperatorGraph, start: int, end: int, largest: int) -> list[tuple[int, int]]:
    if end - start <= largest:
        return [(start, end)] if end > start else []
    margin = min((end - start) // 4, largest // 2)
    middle = range(start + max(margin, 1), end - max(margin, 1) + 1)
    best = min(middle, key=lambda k: (_read_across(graph, start, k), abs(2 * k - start - end)))
    return _split(graph, start, best, largest) + _split(graph, best, end, largest)


def halves(graph: OperatorGraph) -> tuple[int, int]:
    """Return the graph cut in two near the middle, where the fewest results are still to be read."""
    margin = max(len(graph) // 4, 1)
    at = min(range(margin, len(graph) - margin + 1), key=lambda k: _read_across(graph, 0, k))
    return (1 << at) - 1, graph.all & ~((1 << at) - 1)


def _read_across(graph: OperatorGraph, start: int, k: int) -> int:
    """Return how many of the operators from `start` on have results that are read from the k-th on."""
    return sum(bool(graph.successors[i] >> k) for i in range(start, k))


def chains(graph: OperatorGraph) -> tuple[tuple[int, ...], ...]:
    """Return the operators as chains, in an order in which they can be executed.

    An operator is followed by another if nothing else reads the first and the other reads nothing else. Operators that
    could be merged with others are chains of their own.
    """
    kinds = Counter(o.merges for o in graph.operators if o.merges is not None)
    alone = [kinds[o.merges] > 1 for o in graph.operators]
    found: dict[int, list[int]] = {}
    tails: dict[int, list[int]] = {}
    for i, before in enumerate(graph.predecessors):
        only = before.bit_length() - 1 if before.bit_count() == 1 else -1
        if only >= 0 and graph.successors[only].bit_count() == 1 and not alone[only] and not alone[i]:
            chain = tails.pop(only)
            chain.append(i)
        else:
            chain = found[i] = [i]
        tails[i] = chain
    # The first operator of a chain reads only the last ones of other chains, so the order of the first ones is valid.
    return tuple(tuple(chain) for chain in found.values())
