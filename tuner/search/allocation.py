"""How trials are shared between templates: by the best time each has shown, none ever abandoned. Start at `shares`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuning_db.record import Trial

# A template is judged after this many trials: by then its seeds, its author's best guesses, have been measured.
ENOUGH = 4
# Twice as slow: an eighth of the weight. The floor is what a hopeless template still gets.
SHARPNESS = 3.0
FLOOR = 0.02


def best_by_template(trials: Sequence[Trial]) -> dict[str, tuple[int, float]]:
    """Per template: the number of trials and the best seconds (infinity if all failed)."""
    found: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, best = found.get(trial.config.template, (0, math.inf))
        found[trial.config.template] = (count + 1, min(best, trial.seconds))
    return found


def shares(templates: Sequence[str], trials: Sequence[Trial]) -> Mapping[str, float]:
    """The weight of each template, between FLOOR and 1. Those with too few trials to judge count as the best."""
    measured = best_by_template(trials)
    overall = min((best for _, best in measured.values()), default=math.inf)

    def share(template: str) -> float:
        count, best = measured.get(template, (0, math.inf))
        if count < ENOUGH or math.isinf(overall):
            return 1.0
        return max(FLOOR, (overall / best) ** SHARPNESS)

    return {template: share(template) for template in templates}
