"""Keep the state of a task that is being tuned. Start at `TaskState`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from templates.space import SearchSpace
from tuner.search import Searcher
from tuner.session.budget import FLOOR, Preset
from tuner.session.task_trials import TaskTrials
from tuner.tasks import Task
from tuning_db.record import Config, Trial


class TaskState:
    """The state that a task is in during a session: its trials, and what the session does with it.

    `recorded` holds the task's trials so far (current templates only), oldest first. `space` is None where no template
    applies. `suspects` are configs that may have killed a session, which are measured again alone.
    """

    def __init__(
        self, task: Task, space: SearchSpace | None, recorded: Iterable[Trial], suspects: Sequence[Config] = ()
    ) -> None:
        self.task, self.space = task, space
        self.trials = TaskTrials(recorded)
        standing = self.trials.standing()
        self.incumbent = standing[0].config if standing else None  # the best config before this session
        self.known = self.trials.tried  # configs that other sessions tried, before this one and meanwhile
        self.suspects = list(suspects)
        self.searcher: Searcher | None = None
        self.unobserved: list[Trial] = []  # trials that the searcher has not seen yet
        self.pending: dict[str, Config] = {}  # configs that are being measured, by key
        self.exhausted = False  # the searcher has nothing left to propose
        self.skipped = False  # a person has asked to skip the task

    def add(self, trial: Trial) -> None:
        """Add a trial, whose config is not being measured any more."""
        self.pending.pop(trial.config.key, None)
        self.trials.add(trial)

    def add_from_others(self, trials: Sequence[Trial]) -> None:
        """Add trials that another session has measured since, and show them to the searcher."""
        before = self.trials.tried
        for trial in trials:
            self.add(trial)
        self.known += self.trials.tried - before
        if self.searcher is not None:
            self.searcher.observe(trials)

    @property
    def new_trials(self) -> int:
        """Return the number of different configs that this session has tried."""
        return self.trials.tried - self.known

    @property
    def begun(self) -> int:
        """Return the number of different configs that were tried or are being measured."""
        return self.trials.tried + len(self.pending)

    @property
    def below_floor(self) -> bool:
        return self.begun < FLOOR

    def is_open(self, preset: Preset) -> bool:
        """Return whether there is anything left to search."""
        capped = preset.trials is not None and self.begun >= preset.trials
        stalled = self.trials.since_improved >= preset.patience
        return self.space is not None and not (self.exhausted or self.skipped or capped or stalled)
