"""Decide how much tuning there is to do, and when it is done. Start at `Budget`.

A budget is what tasks may have had in total, over all sessions. What the database has recorded of them is taken off
first, so a session that is run again with a finished budget measures nothing.

A task is done when
  - its recorded trials reach the preset's cap, or
  - its best has not improved by more than 1 % within the preset's patience, or
  - its space is exhausted.
A session is done when all its tasks are, or when the tasks together
  - have had `trials` different configs tried, or
  - have had `seconds` of tuning, less a reserve which the final comparisons may use.
Tasks that no session has met bring their share of the budget with them: a network with one new layer tunes that layer,
even where the others have used up all the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tuner.errors import BadInput

# An improvement below this does not count for patience.
SIGNIFICANT = 0.01
# Each task gets this many trials, its first seeds, before any task gets more.
FLOOR = 8


@dataclass(frozen=True)
class Preset:
    """Limits that one task has. `trials` caps the number of its trials (None: no cap). `patience` is the number of
    trials without a significant improvement that ends its search."""

    trials: int | None
    patience: int


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"quick": Preset(48, 24), "normal": Preset(192, 64), "exhaustive": Preset(1024, 256)}
)
# The comparisons at the end may take this share of a time budget, and about this many seconds per task. On a noisy
# machine they decide as much as the search, whose luckiest measurement is often not of its best config.
_COMPARING_SHARE = 0.2
_COMPARING_SECONDS = 5.0
# This preset applies to a limit by trials or seconds without a preset. That limit ends the session, so a task may be
# more patient.
_LIMITED = Preset(None, 128)


@dataclass(frozen=True)
class Budget:
    """Limits that all apply; None is no limit. With neither trials nor seconds, `preset` defaults to "normal".

    `trials` counts different configs of all tasks together. `seconds` is wall time of all tasks together. Raises
    BadInput for limits that are not positive and for an unknown preset.
    """

    trials: int | None = None
    seconds: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise BadInput(f"a budget of {self.trials} trials measures nothing: give 1 or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise BadInput(f"a time budget of {self.seconds:g} seconds is not one: give a positive number")
        if self.preset is not None and self.preset not in PRESETS:
            raise BadInput(f"no preset is named {self.preset!r}: choose one of {', '.join(PRESETS)}")

    @property
    def per_task(self) -> Preset:
        """Return the limits that the preset gives each task."""
        if self.preset is not None:
            return PRESETS[self.preset]
        return PRESETS["normal"] if self.trials is None and self.seconds is None else _LIMITED


@dataclass(frozen=True)
class Allowance:
    """The part of a budget that is left for one session. `seconds` includes `reserve_seconds`, which are kept for the
    comparisons."""

    trials: float = math.inf
    seconds: float = math.inf
    reserve_seconds: float = 0.0

    @property
    def search_seconds(self) -> float:
        return self.seconds - self.reserve_seconds


def allowance(budget: Budget, trials: int, seconds: float, *, tasks: int, new_tasks: int) -> Allowance:
    """Return what is left of a budget after the `tasks` have had `trials` and `seconds`. No session has met `new_tasks`
    of them.

    Without new tasks the reserve depends on the budget alone, not on what is left. A session that was ended by time has
    used at least all but the reserve, so the next one with the same budget does not search.
    """
    share = new_tasks / tasks if tasks else 0.0
    left_trials = math.inf if budget.trials is None else max(budget.trials - trials, math.ceil(budget.trials * share))
    if budget.seconds is None:
        return Allowance(left_trials)
    left_seconds = max(budget.seconds - seconds, budget.seconds * share)
    reserve = min(_COMPARING_SHARE * budget.seconds, _COMPARING_SECONDS * tasks)
    if new_tasks:  # the share of a few new tasks may be less than the reserve for comparing all tasks
        reserve = min(reserve, _COMPARING_SHARE * left_seconds)
    return Allowance(left_trials, left_seconds, reserve)
