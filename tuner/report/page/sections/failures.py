"""Collects the failures of trials, with examples."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from board_agent.parsing import parse_json
from tuner.report.page.context import Context
from tuner.report.page.names import stored_knobs
from tuner.report.text import knobs_text

_LONGEST = 4000  # characters of a compiler's message


def collect(context: Context) -> dict[str, Any]:
    """Return "failures" by kind and template, the most frequent first: how many each task has, and examples."""
    found = context.found
    rows = context.rows([i for idents in found.examples.values() for i in idents])
    listed = []
    for (kind, template), counts in sorted(found.failures.items(), key=lambda entry: -entry[1].total()):
        examples = [_example(context, rows[i]) for i in found.examples[kind, template]]
        tasks = [[context.task_of[pair], count] for pair, count in counts.items()]
        listed.append(
            {"kind": kind, "template": template, "count": counts.total(), "tasks": tasks, "examples": examples}
        )
    return {"failures": listed}


def _example(context: Context, row: Any) -> dict[str, Any]:
    message = _message_of(row.failure_message)
    cut = f" ... ({len(message):,} characters)" if len(message) > _LONGEST else ""
    return {
        "id": row.id,
        "task": context.task_of[row.workload_id, row.device_id],
        "knobs": knobs_text(stored_knobs(row.config) or {}),
        "message": message[:_LONGEST] + cut,
        "when": row.created / 1e6,
    }


def _message_of(stored: Any) -> str:
    """Return the message of a stored failure, or what is stored if that is no JSON."""
    with suppress(TypeError, ValueError):
        return str(parse_json(stored))
    return str(stored)
