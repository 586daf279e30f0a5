"""Run a tuning session: one loop over searcher, runner, database and budget. Start at `tune` (loop.py).

`budget` says when a task or a session is finished. `task` keeps what is known about a task. `gain` chooses the task
that is worth the next trials. `final` chooses the configs that are compared at the end. `report` is what the caller
sees.
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
