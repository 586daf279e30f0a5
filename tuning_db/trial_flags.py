"""This module sets flags on stored trials: it marks them as throttled, or withdraws their configs.

That a device did not keep its speed is often noticed only after the trials were committed. A config that turns out to
be bad may be withdrawn. Start at `mark_throttled` and `withdraw`.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.sql.expression import FromClause

from board_agent.parsing import parse_json
from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.record import THROTTLED, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.rows import from_row, to_row
from tuning_db.store import Store

_NAMED_BYTES = 6


def mark_throttled(store: Store, trial: Trial, why: str) -> Trial:
    """Mark a stored trial as throttled and return the marked trial. `why` is a short reason.

    Raises DatabaseError if the trial is not stored, or the database cannot be written.
    """
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
    """Return the SQL condition for Trial.throttled. It searches the versions, which are stored as canonical JSON."""
    return trials.c.versions.contains(f'"{THROTTLED}":', autoescape=True)


def identity(trial: Trial) -> str:
    """Return a short name of a stored trial: the first bytes of its digest in hexadecimal digits."""
    return bytes(to_row(trial)["digest"])[:_NAMED_BYTES].hex()


def trial_of(store: Store, name: str) -> Trial:
    """Return the stored trial that has this name (see `identity`). Raises DatabaseError where there is none."""
    t, w, d = schema.trials, schema.workloads, schema.devices
    try:
        first = bytes.fromhex(name)
    except ValueError:
        first = b""
    if len(first) != _NAMED_BYTES:
        raise DatabaseError(f"{name!r}: is no name of {2 * _NAMED_BYTES} digits: `tune db best` shows those of bests")
    named = select(t, w.c.key.label("workload_key"), d.c.key.label("device_key")).join(w).join(d)
    with store.reading() as connection:
        row = connection.execute(named.where(t.c.digest.between(first, first + b"\xff" * 16))).first()
    if row is None:
        raise DatabaseError(f"{store.name}: has no trial {name}: `tune db best` shows the names of bests")
    workload, device = Workload.from_dict(parse_json(row.workload_key)), DeviceKey.from_dict(parse_json(row.device_key))
    return from_row(row, workload, device)


def withdraw(store: Store, trial: Trial, why: str) -> Trial:
    """Withdraw a trial's config, so that it is never again the best of its workload and device.

    Earlier and later measurements of the config do not change that. The withdrawal is stored as a trial without a time,
    which is returned, and exports and merges include it. Raises DatabaseError if it cannot be written.
    """
    note = Trial(
        trial.workload,
        trial.device,
        trial.config,
        trial.template_version,
        failure=Failure(FailureKind.WITHDRAWN, why),
        versions=trial.versions,
    )
    store.add(note)
    return note
