"""Converts MetaSchedule's databases (a folder with two files) to trials for the database. Start at `read`.

A record says that a schedule of MetaSchedule's computed a function in some time on its target. Where the function is
one of our operators with an epilogue of ours, the record becomes a trial of the template "metaschedule". Its knobs are
the trace's digest and decisions. The result of the kernel was never checked, so it never becomes a best. MetaSchedule
does not note when it measured: records count as made in 1970, in their order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from tvm import ir

from board_agent.parsing import parse_json
from tuner.interop.autotvm import device_of
from tuner.interop.functions import workload_of
from tuning_db.errors import DatabaseError
from tuning_db.logs import BadLine
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload, canonical_json
from tuning_db.rows import check_times

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
TEMPLATE = "metaschedule"
_FAILED = 1e9  # seconds; MetaSchedule writes more than this for a schedule that could not be measured
T = TypeVar("T")
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def is_database(path: Path) -> bool:
    """Tell whether a folder is a database that MetaSchedule has written."""
    return (path / WORKLOADS).is_file() and (path / RECORDS).is_file()


def read(folder: Path) -> Iterator[Trial | BadLine]:
    """Yield what every record holds. Line numbers are those of the file of records. Raises OSError if a file cannot be
    read."""
    with (folder / WORKLOADS).open("rb") as lines:
        functions = [_said(_workload, line) for line in lines if line.strip()]
    with (folder / RECORDS).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                trial = _said(_trial, line, functions, number)
                yield BadLine(number, trial) if isinstance(trial, str) else trial


def _said(make: Callable[..., T], *arguments: Any) -> T | str:
    """Return the result of `make`, or a text that says why it cannot be made."""
    try:
        return make(*arguments)
    except DatabaseError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        text = str(error).strip().splitlines() or [""]
        return f"it is a damaged record of MetaSchedule: {type(error).__name__}: {text[-1]}"


def _workload(line: bytes) -> Workload:
    """Return the workload of a line [hash, module]: TVM's JSON in base64, behind its length."""
    _, encoded = parse_json(line)
    text = base64.b64decode(encoded, validate=True)[8:].decode()
    try:
        module = ir.load_json(text)
    except Exception as error:  # TVM may raise anything for what another version wrote
        raise DatabaseError("its function was saved by another TVM, and cannot be read by this one") from error
    functions = list(module.functions.values()) if isinstance(module, ir.IRModule) else []
    if len(functions) != 1:
        raise DatabaseError("its module does not hold one function")
    return workload_of(functions[0])


def _trial(line: bytes, functions: list[Workload | str], number: int) -> Trial:
    index, (trace, seconds, target, _) = parse_json(line)
    workload = functions[index]
    if isinstance(workload, str):
        raise DatabaseError(workload)
    failed = seconds is None or not seconds or max(seconds) >= _FAILED
    trial = Trial(
        workload=workload,
        device=_device(target),
        config=Config(TEMPLATE, _knobs(trace)),
        template_version=0,
        times=() if failed else tuple(map(float, seconds)),
        failure=Failure(FailureKind.RUN, "MetaSchedule could not measure it") if failed else None,
        created=_BEGINNING + timedelta(microseconds=number),
    )
    check_times(trial)
    return trial


def _device(target: str | Mapping[str, Any]) -> DeviceKey:
    return device_of(target if isinstance(target, str) else json.dumps(target))


def _knobs(trace: Any) -> dict[str, Any]:
    """Return the decisions by the instruction that each belongs to, and a digest of the instructions."""
    instructions, decisions = trace
    digest = hashlib.sha256(canonical_json(instructions).encode()).hexdigest()[:16]
    return {"trace": digest, **{f"decision{at}": _value(made) for at, made in decisions}}


def _value(made: Any) -> Any:
    return tuple(made) if isinstance(made, list) else made
