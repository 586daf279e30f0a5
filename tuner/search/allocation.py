"""Share trials between templates by the best time that each has shown. No template is ever abandoned. Start at
`shares`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuning_db.record import Trial

# A template is judged after this many trials: by then its seeds, its author's best guesses, have been measured.
ENOUGH = 4
# A template that is twice as slow has an eighth of the weight. A hopeless template still gets the floor.
SHARPNESS = 3.0
FLOOR = 0.02


def best_by_template(trials: Sequence[Trial]) -> dict[str, tuple[int, float]]:
    """Return the number of trials and the best seconds of each template (infinity if all failed)."""
    found: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, best = found.get(trial.config.template, (0, math.inf))
        found[trial.config.template] = (count + 1, min(best, trial.seconds))
    return found


def shares(templates: Sequence[str], trials: Sequence[Trial]) -> Mapping[str, float]:
    """Return the weight of each template, between FLOOR and 1. Templates with too few trials to judge count as the
    best."""
    measured = best_by_template(trials)
    overall = min((best for _, best in measured.values()), default=math.inf)

    def share(template: str) -> float:
        count, best = measured.get(template, (0, math.inf))
        if count < ENOUGH or math.isinf(overall):
            return 1.0
        return max(FLOOR, (overall / best) ** SHARPNESS)

    return {template: share(template) for template in templates}
