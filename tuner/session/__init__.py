"""Run a tuning session: one loop over searcher, runner, database and budget. Start at `tune` (loop.py).

A session (`session`) is composed of parts. `task` keeps the state of a task, and `task_trials` its trials. `clock`
keeps the time, `session_budget` what is left to spend, `sharing` what other sessions do, `proposing` the searchers.
`recorder` writes trials, and `reporter` tells of them. The loop searches with these parts, and `comparison` compares
what it found.

`budget` says when a task or a session is finished. `gain` chooses the task that is worth the next trials. `final`
chooses the configs that are compared at the end. `options` is what the caller chooses, `report` what the caller sees.
"""

from tuner.session.budget import PRESETS, Budget, Preset
from tuner.session.loop import tune
from tuner.session.options import TuneOptions, check_templates
from tuner.session.report import Progress, SessionReport, Stopped, TaskReport
from tuner.tasks import Task

__all__ = [
    "PRESETS",
    "Budget",
    "Preset",
    "Progress",
    "SessionReport",
    "Stopped",
    "Task",
    "TaskReport",
    "TuneOptions",
    "check_templates",
    "tune",
]
