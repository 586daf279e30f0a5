"""Collects the best time so far of every searcher on every task."""

from __future__ import annotations

from typing import Any

from tuner.report.page.context import Context


def collect(context: Context) -> dict[str, Any]:
    """Return "curves": one for each task, searcher and seed, with its improvements as (trials, at, seconds a call), and
    the number of its failures, with trials and moment of some."""
    curves = [
        {
            "task": context.task_of[pair],
            "searcher": searcher or "unknown",
            "seed": seed,
            "trials": curve.trials,
            "seconds": round(curve.last, 3),
            "points": [[n, round(at, 3), seconds] for n, at, seconds in curve.points],
            "failures": curve.failures,
            "failed": [[n, round(at, 3)] for n, at in curve.failed],
        }
        for (pair, searcher, seed), curve in context.found.curves.items()
    ]
    return {"curves": curves}
