"""Recorded spaces keep what every config of a search space took, in one compressed file, so that searchers can be
compared in seconds and without the device. Start at `RecordedSpace`.

The file (`.jsonl.xz`) begins with a head: one JSON object that says what was measured on which device, with the knobs
and seeds of every template. Then comes one JSON array per config, the features' names preceding each template's
configs:

    [template, [index of each knob's value], [seconds, ...] or "kind: message", build seconds, run seconds, [features]]

A space that is too large to be measured whole is thinned (`thinned`): evenly spaced values of its knobs stay, so that
neighbours stay neighbours.
"""

from __future__ import annotations

import json
import lzma
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from board_agent.parsing import parse_json
from templates.space import Constraint, Knob, SearchSpace, Space, Values
from tuner.errors import BadInput
from tuner.measure.replay.runner import trial_of
from tuner.measure.runner import Candidate
from tuning_db import logs
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

FORMAT = 1
SUFFIX = ".jsonl.xz"
# Valid configs are counted in spaces of up to COUNTED combinations. In larger spaces they are estimated from DRAWS
# draws, or from fewer draws with HITS hits.
COUNTED, DRAWS, HITS = 20_000, 200_000, 1000
_NOT_RECORDED = "it was not recorded"


@dataclass(frozen=True)
class Record:
    """The outcome that measuring a config had. `build_seconds` and `run_seconds` are what the tuner spent on this
    trial."""

    result: tuple[float, ...] | Failure
    build_seconds: float
    run_seconds: float
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedSpace:
    """A search space whose configs were all measured. `spaces` hold the knobs and seeds that were recorded; `space`
    admits recorded configs alone. `note` says where the figures come from (date, machine, versions)."""

    workload: Workload
    device: DeviceKey
    spaces: tuple[Space, ...]  # their knobs and seeds; see `space`
    versions: Mapping[str, int]
    context: Mapping[str, float]
    configs: tuple[Config, ...]  # a template's configs in the order of its space
    records: Mapping[str, Record]  # by the config's key
    note: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def space(self) -> SearchSpace:
        return SearchSpace(tuple(self._admitted(space) for space in self.spaces), self.context)

    def _admitted(self, space: Space) -> Space:
        names = [k.name for k in space.knobs]

        def place(values: Values) -> tuple[Any, ...]:
            return tuple(values[name] for name in names)

        configs = tuple(c for c in self.configs if c.template == space.template)
        features = {place(c.knobs): self.records[c.key].features for c in configs}
        return ListedSpace(
            space.template,
            space.knobs,
            (Constraint(_NOT_RECORDED, lambda v: place(v) in features),),
            space.seeds,
            lambda v: features[place(v)],
            configs,
        )

    @cached_property
    def medians(self) -> Mapping[str, float]:
        """Return the median seconds by the config's key, infinity for a failure."""
        return {key: math.inf if isinstance(r.result, Failure) else median(r.result) for key, r in self.records.items()}

    @cached_property
    def best_seconds(self) -> float:
        """Return the least of the medians."""
        return min(self.medians.values())

    def trials(self) -> Iterator[Trial]:
        """Yield one trial of each config."""
        return map(self.trial, self.configs)

    def trial(self, config: Config) -> Trial:
        """Return the trial of a config. Raises KeyError for a config that was not recorded."""
        version = self.versions.get(config.template, 1)
        return trial_of(Candidate(self.workload, config), self.device, version, self.records[config.key].result)

    def answer(self, noise: int | None = None) -> Answerer:
        return Answerer(self, noise)


@dataclass(frozen=True)
class ListedSpace(Space):
    """A space whose valid configs are known: it draws from them without rejection."""

    configs: tuple[Config, ...] = ()

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def sample(self, rng: random.Random, attempts: int = 1) -> Config | None:
        return rng.choice(self.configs) if self.configs else None


class Answerer:
    """Tells a ReplayRunner what a candidate's result is and what its trial cost. With a `noise` seed every result is
    drawn anew from the recorded times, as another measurement would be."""

    def __init__(self, recorded: RecordedSpace, noise: int | None) -> None:
        self._records = recorded.records
        self._rng = None if noise is None else random.Random(noise)

    def __call__(self, candidate: Candidate) -> tuple[float, ...] | Failure:
        record = self._records.get(candidate.config.key)
        if record is None:
            return Failure(FailureKind.INVALID, _NOT_RECORDED)
        if self._rng is None or isinstance(record.result, Failure):
            return record.result
        return tuple(self._rng.choices(record.result, k=len(record.result)))

    def cost(self, candidate: Candidate) -> float:
        """Return the seconds that building and running a candidate took."""
        record = self._records.get(candidate.config.key)
        return 0.0 if record is None else record.build_seconds + record.run_seconds


def thinned(space: Space, most: int, keep: Iterable[Values] = ()) -> Space:
    """Return the space with fewer values per knob, so that about `most` configs are valid, and no fewer if the space
    has that many. Knobs lose every other value, the longest knob first, then one value at a time. They keep the values
    that the seeds and `keep` need."""
    kept = [*space.seeds, *keep]

    def shorter() -> Iterator[Space]:
        for less in (_every_other, _all_but_one):
            yield from (s for s in _shorter(space, kept, less) if _about(s) >= most)

    while (found := next(shorter(), None)) is not None:
        space = found
    return space


def _about(space: Space) -> float:
    """Estimate how many configs are valid. They are counted where the space is small, else estimated from
    random draws."""
    if space.raw_size <= COUNTED:
        return sum(1 for _ in space)
    rng, found, drawn = random.Random(0), 0, 0
    while found < HITS and drawn < DRAWS:
        found += space.sample(rng, attempts=1) is not None
        drawn += 1
    return space.raw_size * found / drawn


def _shorter(
    space: Space, kept: Sequence[Values], less: Callable[[Knob, list[Any]], tuple[Any, ...]]
) -> Iterator[Space]:
    """Yield the space with one knob reduced to the values that `less` leaves, for the longest knob first. Knobs that
    `less` leaves alone are skipped."""
    for knob in sorted(space.knobs, key=lambda k: -len(k.values)):
        values = less(knob, [v.get(knob.name, knob.values[0]) for v in kept])
        if 0 < len(values) < len(knob.values):
            yield replace(space, knobs=tuple(Knob(k.name, values) if k is knob else k for k in space.knobs))


def _every_other(knob: Knob, needed: list[Any]) -> tuple[Any, ...]:
    return tuple(v for i, v in enumerate(knob.values) if i % 2 == 0 or v in needed)


def _all_but_one(knob: Knob, needed: list[Any]) -> tuple[Any, ...]:
    """Return the knob's values without the one nearest to the middle that nothing needs."""
    free = sorted((abs(2 * i - len(knob.values)), i) for i, v in enumerate(knob.values) if v not in needed)
    return tuple(v for i, v in enumerate(knob.values) if not free or i != free[0][1])


def write(recorded: RecordedSpace, path: Path) -> None:
    """Write the file; it appears only when it is complete. Raises OSError if it cannot be written."""
    head = {
        "format": FORMAT,
        "workload": recorded.workload.as_dict(),
        "device": recorded.device.as_dict(),
        "spaces": [_described(space, recorded.versions) for space in recorded.spaces],
        "context": dict(recorded.context),
        "note": dict(recorded.note),
    }
    partial = path.with_name(path.name + ".part")
    with lzma.open(partial, "wt", preset=9, encoding="utf-8") as out:
        out.write(json.dumps(head) + "\n")
        for number, space in enumerate(recorded.spaces):
            configs = [c for c in recorded.configs if c.template == space.template]
            names = sorted({name for c in configs for name in recorded.records[c.key].features})
            out.write(json.dumps(names) + "\n")
            for config in configs:
                out.write(
                    json.dumps(_line(number, space, config, record=recorded.records[config.key], names=names)) + "\n"
                )
    partial.replace(path)


def _described(space: Space, versions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "template": space.template,
        "version": versions.get(space.template, 1),
        "knobs": [[k.name, list(k.values)] for k in space.knobs],
        "seeds": [dict(c.knobs) for c in space.seed_configs()],
    }


def encoded(result: tuple[float, ...] | Failure) -> list[float] | str:
    """Encode a result for JSON, times with five digits."""
    return f"{result.kind}: {result.message}" if isinstance(result, Failure) else [float(f"{s:.5g}") for s in result]


def decoded(value: Sequence[float] | str) -> tuple[float, ...] | Failure:
    """Decode a result that `encoded` wrote. Raises ValueError for an unknown kind of failure."""
    if isinstance(value, str):
        kind, _, message = value.partition(": ")
        return Failure(FailureKind(kind), message)
    return tuple(value)


def _line(number: int, space: Space, config: Config, *, record: Record, names: Sequence[str]) -> list[Any]:
    places = [k.values.index(config[k.name]) for k in space.knobs]
    features = [float(f"{record.features[name]:.6g}") if name in record.features else None for name in names]
    return [
        number,
        places,
        encoded(record.result),
        round(record.build_seconds, 4),
        round(record.run_seconds, 4),
        features,
    ]


def read(path: Path) -> RecordedSpace:
    """Read a recorded space. Raises BadInput, naming the file and the line, if it is not one that this version can
    read."""
    try:
        with logs.opened(path) as lines:
            return _parse(path, (line.decode() for line in lines))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except logs.DAMAGE as error:
        raise BadInput(f"{path}: not a recorded space, or cut short: {error}") from None


def _parse(path: Path, lines: Iterable[str]) -> RecordedSpace:
    number = 1
    try:
        rows = iter(lines)
        head = parse_json(next(rows))
        if head["format"] != FORMAT:
            raise BadInput(f"{path}: format {head['format']}; this version reads format {FORMAT}")
        spaces = tuple(_space(found) for found in head["spaces"])
        records: dict[Config, Record] = {}
        names: list[str] = []
        for number, text in enumerate(rows, 2):  # noqa: B007  the error names it
            row = parse_json(text)
            if not row or isinstance(row[0], str):  # the names of the features of the configs that follow
                names = row
                continue
            config, record = _record(spaces, row, names)
            records[config] = record
        return RecordedSpace(
            Workload.from_dict(head["workload"]),
            DeviceKey.from_dict(head["device"]),
            spaces,
            {found["template"]: found["version"] for found in head["spaces"]},
            head["context"],
            tuple(records),
            {config.key: record for config, record in records.items()},
            head["note"],
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"{path}, line {number}: not a recorded space, or cut short: {why}") from None


def _space(found: Mapping[str, Any]) -> Space:
    knobs = tuple(Knob(name, tuple(values)) for name, values in found["knobs"])
    return Space(found["template"], knobs, (), tuple(found["seeds"]))


def _record(spaces: Sequence[Space], row: Sequence[Any], names: Sequence[str]) -> tuple[Config, Record]:
    number, places, result, build, run, values = row
    space = spaces[number]
    config = Config(space.template, {k.name: k.values[place] for k, place in zip(space.knobs, places, strict=True)})
    features = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return config, Record(decoded(result), build, run, features)
