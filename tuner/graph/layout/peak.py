"""Find the kernels of a network with which its peak of memory is least, or that keep a limit of it at the least cost in
time, while layouts stay as they are. Start at `Problem`.

A peak is then a sum over all operators, of what their weights take, and one maximum, of what their kernels take for
themselves. For each value that the maximum can have, the kernels that keep it are compared operator by operator. So the
least peak is found of all combinations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.graph.layout.weights import Option, by_size, reduce, seconds_more
from tuning_db.record import Config, Workload

Kernels = Mapping[Workload, Option]

# Peaks that differ by less, relatively, count as equal: no measured kernel gives way to an unknown one for some bytes.
EQUAL = 1e-3


@dataclass(frozen=True)
class Problem:
    """The kernels of each workload among which there is a choice; no choice changes layouts.

    `now` has those that are there to begin with. `spaces` has what each takes for itself, by workload and config, in
    bytes. `fixed` is the part of the peak that is the same for all, and `others` the largest workspace of other
    kernels. `most_weights` is what the weights may take.
    """

    now: Kernels
    offered: Mapping[Workload, Sequence[Option]]
    spaces: Mapping[tuple[Workload, Config], float]
    fixed: int
    others: int
    most_weights: float

    def space(self, workload: Workload, option: Option) -> float:
        """Return what a kernel takes for itself, in bytes, or infinity if it cannot be used."""
        assert option.choice.config is not None
        return self.spaces[workload, option.choice.config]

    def largest(self, kernels: Kernels) -> float:
        """Return the largest workspace of all."""
        return max((self.space(w, option) for w, option in kernels.items()), default=0)

    def peak(self, kernels: Kernels) -> float:
        """Return how many bytes an inference needs with some kernels."""
        return self.fixed + size_of(kernels) + max(self.others, self.largest(kernels))

    def cost(self, kernels: Kernels) -> tuple[int, float]:
        """Return a sort key for what kernels cost in time: how many are not known to be slower or faster than those of
        `now`, and how many seconds the others take more."""
        more = [seconds_more(self.now[w], option) for w, option in kernels.items()]
        return more.count(None), sum(seconds for seconds in more if seconds is not None)

    def bounded(self) -> Iterator[tuple[float, dict[Workload, list[Option]]]]:
        """Yield each bound that workspaces can be kept to, with the kernels that keep it."""
        found = {self.space(w, option) for w, offered in self.offered.items() for option in offered}
        for bound in sorted({max(self.others, space) for space in (0, *found)} - {math.inf}):
            allowed = {w: [o for o in offered if self.space(w, o) <= bound] for w, offered in self.offered.items()}
            if all(allowed.values()):
                yield bound, allowed

    def least(self) -> Kernels | None:
        """Return the kernels with the least peak, of equal ones (see EQUAL) those that cost least time, or None if the
        weights are too large."""
        found = [{w: min(options, key=by_size) for w, options in allowed.items()} for _, allowed in self.bounded()]
        fitting = [kernels for kernels in found if size_of(kernels) <= self.most_weights]
        most = min(map(self.peak, fitting), default=0) * (1 + EQUAL)
        equal = [kernels for kernels in fitting if self.peak(kernels) <= most]
        return min(equal, key=lambda kernels: (*self.cost(kernels), self.peak(kernels)), default=None)

    def fastest(self, most_bytes: float) -> Kernels | None:
        """Return the kernels with a peak of at most `most_bytes` that cost least time, or None if there are none."""
        found = []
        for bound, allowed in self.bounded():
            kernels = {w: self._quick(w, options) for w, options in allowed.items()}
            room = min(self.most_weights, most_bytes - self.fixed - bound)
            if reduce(kernels, allowed, room) <= room:
                found.append(kernels)
        return min(found, key=self.cost, default=None)

    def _quick(self, workload: Workload, options: Sequence[Option]) -> Option:
        now = self.now[workload]

        def key(option: Option) -> tuple[bool, float, int]:
            more = seconds_more(now, option)
            return more is None, option.seconds if more is None else more, option.size

        return now if now in options else min(options, key=key)


def size_of(kernels: Kernels) -> int:
    """Return what the weights of all kernels take, in bytes."""
    return sum(option.size for option in kernels.values())
