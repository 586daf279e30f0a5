"""Marks on stored trials: a device that did not keep its speed is often noticed after they were committed."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import ColumnElement, update
from sqlalchemy.sql.expression import FromClause

from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.record import THROTTLED, Trial
from tuning_db.rows import to_row
from tuning_db.store import Store


def mark_throttled(store: Store, trial: Trial, why: str) -> Trial:
    """Mark a stored trial; returns it as it is now. `why`: in a word. Raises DatabaseError if it is not there, or the
    database cannot be written."""
    marked = replace(trial, versions={**trial.versions, THROTTLED: why})
    old, new = to_row(trial), to_row(marked)
    t = schema.trials
    changed = (
        update(t)
        .where(t.c.digest == old["digest"])
        .values(versions=new["versions"], digest=new["digest"])
        .returning(t.c.id)
    )
    with store.writing() as connection:
        if not connection.execute(changed).all():
            raise DatabaseError(f"{store.name}: a trial that was stored there is not there any more")
    return marked


def is_throttled(trials: FromClause) -> ColumnElement[bool]:
    """SQL: Trial.throttled. Versions are stored as their canonical JSON."""
    return trials.c.versions.contains(f'"{THROTTLED}":', autoescape=True)
