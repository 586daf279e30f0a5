"""The tuning session: searcher, runner, database and budget in one loop. Start at `tune` (loop.py).

`budget` says when a task or a session is finished, `task` what is known about a task, `gain` which task is worth the
next trials, `final` compares the best few at the end, `report` is what the caller sees.
"""

from tuner.session.budget import PRESETS, Budget, Preset
from tuner.session.loop import check_templates, tune
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
    "check_templates",
    "tune",
]
