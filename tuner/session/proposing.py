"""Tell a task's searcher what is known, and let it propose what to measure next. Start at `Proposer`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from tvm.target import Target

from templates.space import SearchSpace
from tuner.errors import SearchFailed
from tuner.search import FALLBACK, Searcher, make_searcher
from tuner.session.experience import TransferData
from tuner.session.task import TaskState
from tuner.tasks import Task
from tuning_db.record import Config, Trial

# Makes a searcher from its name with options, a space, a seed and a history (see tuner.search.make_searcher).
Making = Callable[[str, SearchSpace, int, Sequence[Trial]], Searcher]
# A task hands this many of its best configs to tasks that differ in the epilogue alone.
ADVICE = 3


def task_seed(seed: int, task: Task) -> int:
    """Return the seed of a task, so that tasks of one session do not search in step."""
    digest = hashlib.sha256(f"{seed}/{task.workload.key}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


class Proposer:
    """An owner of the searchers of a session's tasks, which are `states`. Each task has a searcher of the name
    `searcher`, made when it is first asked. `remarks` returns what failed and was done without."""

    def __init__(
        self,
        states: Sequence[TaskState],
        library: TransferData,
        target: Target,
        *,
        searcher: str,
        seed: int,
        make: Making = make_searcher,
    ) -> None:
        self._states, self._library, self._target = states, library, target
        self._name, self._seed, self._make = searcher, seed, make
        self._remarks: list[str] = []

    def batch(self, state: TaskState, size: int) -> list[Config]:
        """Return up to `size` configs that were never proposed, or none where the task's space is exhausted."""
        assert state.space is not None
        if state.searcher is None:
            state.searcher = self._make(
                self._name, state.space, task_seed(self._seed, state.task), state.trials.recorded
            )
            state.searcher.suggest(self._library.foreign(state.task.workload, state.space, self._target))
        self.observe(state)
        state.searcher.learn_from(self._library.nearest(state, self._states))
        state.searcher.suggest(self.advice(state, ADVICE))
        try:
            return state.searcher.propose(size)
        except SearchFailed as error:  # a library that the searcher uses has failed
            self._remarks.append(f"{state.task.name}: {self._name} failed ({error}); going on with {FALLBACK}")
            state.searcher = make_searcher(
                FALLBACK, state.space, task_seed(self._seed, state.task), state.trials.recorded
            )
            return state.searcher.propose(size)

    def observe(self, state: TaskState) -> None:
        """Show the task's searcher the trials that it has not seen yet."""
        if state.searcher is not None and state.unobserved:
            state.searcher.observe(state.unobserved)
        state.unobserved = []

    def advice(self, state: TaskState, most: int) -> list[Config]:
        """Return the best configs of tasks that differ in the epilogue alone, up to `most` of each. What is good for
        one such task is nearly as good for all."""
        anchor = state.task.workload
        siblings = [
            s
            for s in self._states
            if s is not state and (s.task.workload.op, s.task.workload.attrs) == (anchor.op, anchor.attrs)
        ]
        return [trial.config for s in siblings for trial in s.trials.standing()[:most]]

    def remarks(self) -> list[str]:
        parts = [
            f"{s.task.name}: {self._name} goes on without {part}, which failed: {why}"
            for s in self._states
            if s.searcher is not None
            for part, why in s.searcher.failures.items()
        ]
        return [*self._remarks, *parts]
