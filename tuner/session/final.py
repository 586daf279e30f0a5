"""Choose the configs that are compared at the end: the best few of a task and its incumbent, until the leader has been
compared. Start at `finalists`."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.session.task import TaskState
from tuning_db.record import Config

FINALISTS = 4
# After this many repeated measurements, a task's comparison ends in any case. If the machine has become slower, every
# config that was measured before looks faster than those compared now, so new leaders would keep appearing.
ENOUGH = 3 * FINALISTS


def finalists(state: TaskState, advice: Sequence[Config] = ()) -> list[Config]:
    """Return the configs to measure against each other, or none where the leader has been measured again and still
    leads.

    The leader of single measurements is often just the luckiest. If a comparison moves the leader behind a config that
    was not compared, that config is next. It is measured beside those that it has to beat, among them the winner of the
    comparisons so far. `advice` holds the leaders of tasks that differ in the epilogue alone; they are compared too,
    until they have been.
    """
    trials, standing = state.trials, [t.config for t in state.trials.standing()]
    if len(standing) < 2 or trials.repeats >= ENOUGH:
        return []
    valid = [c for c in dict.fromkeys(advice) if state.space is not None and state.space.is_valid(c)]
    advised = [c for c in valid if not trials.has_tried(c) or (c in standing and not trials.is_confirmed(c))]
    if trials.is_confirmed(standing[0]) and not advised:
        return []
    # If the winner so far was compared while the machine was slow, it only looks beaten.
    winner = [c for c in standing if trials.is_confirmed(c)][:1]
    incumbent = [c for c in standing if c == state.incumbent]
    return list(dict.fromkeys([*standing[:FINALISTS], *winner, *advised, *incumbent]))
