"""Who is compared at the end: the best few of a task and its incumbent, until the leader has been compared."""

from __future__ import annotations

from tuner.session.task import TaskState
from tuning_db.record import Config

FINALISTS = 4
# Repeated measurements after which a task's comparison ends in any case. Where the machine has become slower, every
# config measured before looks faster than those compared now.
ENOUGH = 3 * FINALISTS


def finalists(state: TaskState) -> list[Config]:
    """Configs to measure against each other, or none where the leader has been measured again and still leads.

    The leader of single measurements is often just the luckiest. When a comparison moves it behind a config that was
    not compared, that one is next, beside those that it has to beat.
    """
    standing = [t.config for t in state.standing()]
    if len(standing) < 2 or state.comparison_failure is not None or state.is_confirmed(standing[0]):
        return []
    if state.repeats >= ENOUGH:
        return []
    chosen = standing[:FINALISTS]
    if state.incumbent is not None and state.incumbent in standing and state.incumbent not in chosen:
        chosen.append(state.incumbent)
    return chosen
