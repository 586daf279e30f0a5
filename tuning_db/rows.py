"""This module converts trials to JSON records (the content of a log) and to rows of the database, and back.

`to_record` and `from_record` are exact inverses. Every record from outside goes through `from_record`, which says what
is wrong with it. `to_row` and `from_row` do the same for the table `trials`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from board_agent.parsing import parse_json
from tuning_db.errors import DatabaseError
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload, canonical_json, frozen, plain

FORMAT = "edgetune-trial/1"
# Rows of `trials` that still lack their two foreign keys, each with the workload and the device that they refer to.
Batch = list[tuple[dict[str, Any], Workload, DeviceKey]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64 = range(-(2**63), 2**63)


def microseconds(when: datetime) -> int:
    """Return the microseconds since 1970-01-01 UTC.

    Raises DatabaseError for a time without a time zone, which would mean a different moment on every machine.
    """
    if when.tzinfo is None:
        raise DatabaseError(f"the time {when.isoformat()} has no time zone")
    return (when - _EPOCH) // _MICROSECOND


def moment(count: int) -> datetime:
    """Return the time that is `count` microseconds after 1970-01-01 UTC."""
    return _EPOCH + count * _MICROSECOND


def _plain(text: str, what: str) -> str:
    if not isinstance(text, str) or not text or not text.isprintable():
        raise DatabaseError(f"{what} {text!r} is empty or has characters that cannot be printed")
    return text


def _int64(number: Any, what: str) -> int:
    if isinstance(number, bool) or int(number) not in _INT64:
        raise DatabaseError(f"{what} {number!r} is not an integer of 64 bits")
    return int(number)


def _check(trial: Trial) -> None:
    """Raise DatabaseError for a trial that could not be stored, or not be read back by every program."""
    words = (trial.workload.op, trial.device.kind, trial.device.family, trial.config.template)
    if not all(words) or not "".join(words).isprintable():
        for text, what in zip(words, ("operator", "device kind", "device family", "template"), strict=True):
            _plain(text, f"the {what}")
    if trial.searcher is not None:
        _plain(trial.searcher, "the searcher")
    _int64(trial.template_version, "template_version")
    if trial.seed is not None:
        _int64(trial.seed, "seed")
    check_times(trial)


def check_times(trial: Trial) -> None:
    """Raise DatabaseError unless all times of a trial are positive and finite."""
    if not all(map(math.isfinite, trial.times)) or min(trial.times, default=1.0) <= 0:
        raise DatabaseError(f"times {trial.times} are not all positive and finite seconds")


def _times(trial: Trial) -> list[float]:
    return [float(t) for t in trial.times]


def _error_json(trial: Trial) -> float | str | None:
    if trial.error is None:
        return None
    return float(trial.error) if math.isfinite(trial.error) else "inf"


def to_record(trial: Trial) -> dict[str, Any]:
    """Return a trial as a self-describing JSON object.

    An error that is not finite (the kernel computed a NaN) becomes the string "inf". Raises DatabaseError for a trial
    that could not be read back.
    """
    _check(trial)
    failure = trial.failure
    return {
        "format": FORMAT,
        "workload": trial.workload.as_dict(),
        "device": trial.device.as_dict(),
        "config": trial.config.as_dict(),
        "template_version": int(trial.template_version),
        "times": _times(trial),
        "failure": failure and {"kind": str(failure.kind), "message": failure.message},
        "error": _error_json(trial),
        "seed": None if trial.seed is None else int(trial.seed),
        "searcher": trial.searcher,
        "versions": plain(trial.versions),
        "created": moment(microseconds(trial.created)).isoformat(timespec="microseconds"),
    }


_MISSING = object()


def _field(data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """Return a field of a JSON object. `kinds` lists the allowed Python types of its value; subclasses are refused.

    Raises DatabaseError if the field is missing or has another type.
    """
    value = data.get(name, _MISSING)
    if type(value) in kinds:
        return value
    if value is _MISSING:
        raise DatabaseError(f"{name!r} is missing")
    raise DatabaseError(f"{name!r} has the wrong type: {json.dumps(value)[:60]}")


_NONE = type(None)
_NUMBERS = frozenset((int, float))


def _numbers(values: list[Any]) -> tuple[float, ...]:
    if not _NUMBERS.issuperset(map(type, values)):
        raise DatabaseError("'times' is not a list of numbers")
    return tuple(map(float, values))


def _workload(data: Mapping[str, Any]) -> Workload:
    epilogue = _field(data, "epilogue", list)
    if not all(isinstance(token, str) for token in epilogue):
        raise DatabaseError("'epilogue' is not a list of strings")
    return Workload(_field(data, "op", str), _field(data, "attrs", dict), tuple(epilogue), _field(data, "dtype", str))


def _device(data: Mapping[str, Any]) -> DeviceKey:
    kind, family, model = (_field(data, name, str) for name in ("kind", "family", "model"))
    return DeviceKey(kind, family, model, _field(data, "attrs", dict))


def _config(data: Mapping[str, Any]) -> Config:
    return Config(_field(data, "template", str), _field(data, "knobs", dict))


def _failure(data: Mapping[str, Any] | None) -> Failure | None:
    if data is None:
        return None
    kind = _field(data, "kind", str)
    if kind not in list(FailureKind):
        raise DatabaseError(f"failure kind {kind!r} is not known (known: {', '.join(FailureKind)})")
    return Failure(FailureKind(kind), _field(data, "message", str))


def _error(value: Any) -> float | None:
    if isinstance(value, str):
        if value != "inf":
            raise DatabaseError(f"'error' {value!r} is neither a number nor \"inf\"")
        return math.inf
    return None if value is None else float(value)


def _created(text: str) -> datetime:
    when = datetime.fromisoformat(text)
    return moment(microseconds(when))


def _shared(data: dict[str, Any], build: Callable[[Mapping[str, Any]], Any], known: dict[str, Any] | None) -> Any:
    if known is None:
        return build(data)
    text = f"{build.__name__} {data!r}"
    if text not in known:
        known[text] = build(data)
    return known[text]


def from_record(data: Any, known: dict[str, Any] | None = None) -> Trial:
    """Return the trial of a record. Fields that this version does not know are ignored.

    `known` is a cache, empty at first, through which many records share their workloads, devices and versions. Raises
    DatabaseError with a message that says what is wrong.
    """
    if not isinstance(data, dict):
        raise DatabaseError("it is not a JSON object")
    form = data.get("format")
    if form != FORMAT:
        newer = isinstance(form, str) and form.startswith("edgetune-trial/")
        hint = "written by a newer edgetune: upgrade" if newer else f"this is not an edgetune log, whose is {FORMAT!r}"
        raise DatabaseError(f"its format is {form!r}: {hint}")
    try:
        trial = Trial(
            workload=_shared(_field(data, "workload", dict), _workload, known),
            device=_shared(_field(data, "device", dict), _device, known),
            config=_config(_field(data, "config", dict)),
            template_version=_field(data, "template_version", int),
            times=_numbers(_field(data, "times", list)),
            failure=_failure(_field(data, "failure", dict, _NONE)),
            error=_error(_field(data, "error", int, float, str, _NONE)),
            seed=_field(data, "seed", int, _NONE),
            searcher=_field(data, "searcher", str, _NONE),
            versions=_shared(_field(data, "versions", dict), frozen, known),
            created=_created(_field(data, "created", str)),
        )
        _check(trial)
    except (TypeError, ValueError, OverflowError) as error:
        raise error if isinstance(error, DatabaseError) else DatabaseError(str(error)) from error
    return trial


def to_row(trial: Trial) -> dict[str, Any]:
    """Return the columns of `trials` without the ids of workload and device. Raises DatabaseError like `to_record`."""
    _check(trial)
    failure, config = trial.failure, trial.config.key
    row: dict[str, Any] = {
        "config": config,
        "template": trial.config.template,
        "template_version": int(trial.template_version),
        "times": f"[{','.join(map(repr, _times(trial)))}]",  # the same text as JSON has for floats
        "failure_kind": None if failure is None else str(failure.kind),
        "failure_message": None if failure is None else canonical_json(failure.message),
        "error": _error_json(trial),
        "seed": None if trial.seed is None else int(trial.seed),
        "searcher": trial.searcher,
        "versions": frozen(trial.versions).json,
        "created": microseconds(trial.created),
    }
    content = canonical_json([trial.workload.key, trial.device.key, *row.values()])
    row["digest"] = hashlib.sha256(content.encode("ascii")).digest()[:16]
    row["error"] = math.inf if row["error"] == "inf" else row["error"]
    row["config_digest"] = _digest(config)
    row["seconds"] = float(trial.seconds) if trial.ok else None
    return row


def _digest(key: str) -> int:
    """Return a signed 64-bit digest of a canonical key."""
    return int.from_bytes(hashlib.sha256(key.encode("ascii")).digest()[:8], "big", signed=True)


def batches(trials: Iterable[Trial], size: int) -> Iterator[Batch]:
    """Yield batches of `size` trials; the last one may be smaller. Raises DatabaseError like `to_row`."""
    left = iter(trials)
    while batch := [(to_row(t), t.workload, t.device) for t in islice(left, size)]:
        yield batch


_NUMBER, _TEXT = (int, float), (str,)
_TYPES = {
    "config": _TEXT,
    "template": _TEXT,
    "template_version": (int,),
    "times": _TEXT,
    "seconds": (*_NUMBER, _NONE),
    "failure_kind": (*_TEXT, _NONE),
    "error": (*_NUMBER, _NONE),
    "seed": (int, _NONE),
    "searcher": (*_TEXT, _NONE),
    "versions": _TEXT,
    "created": (int,),
}


def is_sound(row: Any) -> bool:
    """Tell whether the values of a row of `trials` have the types of their columns.

    SQLite does not enforce the types, so another program may have written anything.
    """
    values = row._mapping
    return all(type(values[name]) in kinds for name, kinds in _TYPES.items() if name in values)


def from_row(row: Any, workload: Workload, device: DeviceKey) -> Trial:
    """Return the trial of a row of `trials`. Raises DatabaseError for a damaged row."""
    try:
        if not is_sound(row):
            raise TypeError("a value of another type than its column's")
        failure = None
        if row.failure_kind is not None:
            failure = Failure(FailureKind(row.failure_kind), str(parse_json(row.failure_message)))
        return Trial(
            workload=workload,
            device=device,
            config=Config.from_dict(parse_json(row.config)),
            template_version=row.template_version,
            times=_numbers(parse_json(row.times)),
            failure=failure,
            error=row.error,
            seed=row.seed,
            searcher=row.searcher,
            versions=parse_json(row.versions),
            created=moment(row.created),
        )
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
        raise DatabaseError(f"trial {row.id} cannot be read ({error}); `tune db verify` lists all damage") from error
