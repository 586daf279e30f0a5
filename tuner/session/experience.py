"""Collect what a session knows of other workloads, for the searcher of a task. Start at `TransferData`.

The trials are of the same operator, on this device and on its relatives. Relatives are devices of the same family: a
config that is good on one is worth trying on the other. Trials come from the session's other tasks as they go on, and
from the database. A workload counts only if one of its templates computes this workload, too (a depthwise convolution's
trials say nothing about a dense one's). The nearest workloads come first, by the distance of their sizes in powers of
two. Only near ones are ever read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from tvm.target import Target

from templates.foreign import AUTOTVM, translated
from templates.space import SearchSpace, context_distance
from templates.template import context_of
from tuner.search import Experience
from tuner.session.task import TaskState
from tuner.session.task_trials import is_current
from tuning_db.lookup import relatives
from tuning_db.record import Config, DeviceKey, Trial, Workload
from tuning_db.store import Store

# A searcher is told of this many workloads, and of this many trials of each, spread evenly from the best to the worst.
NEAREST = 4
TRIALS = 150
# A searcher is told of this many configs from another tuner's logs. They are the fastest of each of that tuner's
# templates.
FOREIGN = 3
# A different device adds this much to the distance, which is as much as twice the size in one dimension.
_OTHER_DEVICE = 1.0


@dataclass(frozen=True)
class _RecordedWorkload:
    """A workload that the database has trials of on a device. `extra` is added to the distance of its sizes."""

    workload: Workload
    device: DeviceKey
    extra: float


class TransferData:
    """A source of trials that were measured on other workloads. `space_of` returns the search space of a workload on
    the session's device, or None where no template applies."""

    def __init__(
        self, store: Store, device: DeviceKey, ops: set[str], space_of: Callable[[Workload], SearchSpace | None]
    ) -> None:
        self._store, self._space_of = store, cache(space_of)
        self._relatives = relatives(store, device)
        devices = [(device, 0.0), *((d, _OTHER_DEVICE) for d in self._relatives)]
        self._workloads = [_RecordedWorkload(w, d, e) for d, e in devices for w in store.workloads(d) if w.op in ops]
        self._read: dict[_RecordedWorkload, Experience | None] = {}
        self._recorded: dict[Workload, list[Experience]] = {}

    def nearest(self, state: TaskState, states: Sequence[TaskState]) -> list[Experience]:
        """Return the trials of the nearest other workloads, for the searcher of `state`. `states` are the session's
        tasks, whose trials are newer than the database's."""
        assert state.space is not None  # it has a searcher
        own, here = state.task.workload, state.space.context
        others = [
            (context_distance(here, s.space.context), s.space, s)
            for s in states
            if s is not state
            and s.space is not None
            and akin(s.space, state.space)
            and math.isfinite(s.trials.best_seconds)
        ]
        others.sort(key=lambda other: other[0])
        live = [
            Experience(space, _spread(space, s.trials.recorded), distance) for distance, space, s in others[:NEAREST]
        ]
        if own not in self._recorded:  # the database's part does not change within a session
            self._recorded[own] = self._from_database(own, state.space, {s.task.workload for s in states})
        return sorted([*live, *self._recorded[own]], key=lambda e: e.distance)[:NEAREST]

    def foreign(self, workload: Workload, space: SearchSpace, target: Target) -> list[Config]:
        """Return configs of ours that another tuner's imported logs suggest for this anchor. The logs are those of
        devices of this family."""
        anchor = replace(workload, epilogue=())
        imported = (t for d in self._relatives for t in self._store.trials(anchor, d, ok=True))
        fastest = dict[tuple[DeviceKey, str], Trial]()
        for trial in imported:
            place = trial.device, trial.config.template
            if place[1].startswith(AUTOTVM) and (place not in fastest or trial.seconds < fastest[place].seconds):
                fastest[place] = trial
        configs = islice((t.config for t in fastest.values()), FOREIGN)
        return [ours for config in configs for ours in translated(config, workload, space, target)]

    def _from_database(self, own: Workload, here: SearchSpace, newer: set[Workload]) -> list[Experience]:
        near = [
            (context_distance(here.context, context_of(known.workload)) + known.extra, known)
            for known in self._workloads
            if known.workload.op == own.op and (known.extra or known.workload not in newer)
        ]
        near.sort(key=lambda found: found[0])
        kin = ((d, s) for d, s in near if (space := self._space_of(s.workload)) is not None and akin(space, here))
        loaded = ((self._load(known), distance) for distance, known in islice(kin, 2 * NEAREST))
        return [replace(known, distance=distance) for known, distance in loaded if known is not None][:NEAREST]

    def _load(self, known: _RecordedWorkload) -> Experience | None:
        """Return the trials of a recorded workload. They are read at most once in a session, since several tasks may be
        near to the workload."""
        if known not in self._read:
            self._read[known] = self._of(known)
        return self._read[known]

    def _of(self, known: _RecordedWorkload) -> Experience | None:
        space = self._space_of(known.workload)
        if space is None:
            return None
        templates = {s.template for s in space.spaces}
        trials = [t for t in self._store.trials(known.workload, known.device) if is_current(t, templates)]
        return Experience(space, _spread(space, trials)) if any(t.ok for t in trials) else None


def akin(one: SearchSpace, other: SearchSpace) -> bool:
    """Return whether some template computes both workloads."""
    return not {s.template for s in one.spaces}.isdisjoint(s.template for s in other.spaces)


def _spread(space: SearchSpace, trials: Sequence[Trial]) -> list[Trial]:
    """Return up to TRIALS trials of valid configs, the latest of each config. They are spread evenly from the fastest
    to the failures."""
    latest = {t.config.key: t for t in trials if space.is_valid(t.config)}
    valid = sorted(latest.values(), key=lambda t: t.seconds)
    if len(valid) <= TRIALS:
        return valid
    return [valid[i * len(valid) // TRIALS] for i in range(TRIALS)]
