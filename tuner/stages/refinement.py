"""Finds the best stages of a block where measuring a stage is expensive. Start at `Refinement`."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np

from tuner.stages.lattice import Lattice
from tuner.stages.schedule import Costs, Schedule, Stage

_GAIN = 0.005  # a gain below this share does not reset the patience


class Refinement:
    """Measures the stages of the schedule that is best by estimates, until all of its stages are measured well.

    If no estimate exceeds the measured seconds, and without `patience`, no schedule takes less than the result.
    `patience` is the number of rounds without gain after which the best of what is known is taken. `unmeasured` then
    counts the stages that promised more. `finished` is False if the search was not allowed to go on.
    """

    def __init__(self, lattice: Lattice, costs: Costs, patience: int | None = None) -> None:
        self.schedule: Schedule = ()
        self.seconds = math.inf
        self.finished = True
        self.unmeasured = 0
        self._lattice, self._costs, self._patience = lattice, costs, patience
        estimates = [costs.estimate(stage) for stage in lattice.stages]
        both = zip(lattice.stages, estimates, strict=True)
        self._times = np.array([costs.seconds(s) if e is None else e for s, e in both])
        self._least = self._times.copy()
        self._open = np.array([e is not None for e in estimates], bool)
        self._wide = np.array([not stage.merged for stage in lattice.stages], bool)
        self._best, self._since = math.inf, 0

    def rounds(self) -> Generator[Sequence[Stage], bool | None, None]:
        """Yield the stages to measure next, and receive whether they may be measured. Once they may not, unknown stages
        are not used."""
        while True:
            estimated = self._open & self._wide
            self._times[estimated] = self._least[estimated] * self._costs.correction()
            self.seconds, found = self._lattice.solve(self._times)
            stages = [self._lattice.stages[i] for i in found]
            waiting = [i for i in found if self._open[i]]
            if waiting and self._is_stalled():
                self.unmeasured = self._close()
                continue
            if not waiting:
                again = [self._costs.seconds(stage) for stage in stages]
                if not np.array_equal(again, self._times[found]):  # an equal stage of another block was measured better
                    self._times[found] = again
                    continue
                self.schedule = tuple(stages)
                waiting = [i for i in found if self.finished and self._costs.is_rough(self._lattice.stages[i])]
            if not waiting:
                return
            if (yield [self._lattice.stages[i] for i in waiting]):
                self._times[waiting] = [self._costs.seconds(self._lattice.stages[i]) for i in waiting]
                self._open[waiting] = False
            else:
                self.finished = False
                self._close()

    def _is_stalled(self) -> bool:
        """Tell whether the best known schedule has not improved for longer than the patience."""
        if self._patience is None:
            return False
        known, _ = self._lattice.solve(np.where(self._open, math.inf, self._times))
        if known < (1 - _GAIN) * self._best:
            self._best, self._since = known, 0
        self._since += 1
        return self._since > self._patience

    def _close(self) -> int:
        """Continue without unknown stages, and return how many these are."""
        known = {i: self._costs.known(self._lattice.stages[i]) for i in np.flatnonzero(self._open)}
        for i, is_known in known.items():
            self._times[i] = self._costs.seconds(self._lattice.stages[i]) if is_known else math.inf
        self._open[:] = False
        return len(known) - sum(known.values())
