"""Makes one pass over a database's trials, however many there are. Start at `scan`.

The pass yields counts, curves, and the ids of trials to look at more closely. It reads only columns and decodes no
trial.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, func, select

from tuner.report.page.networks import Task
from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.keys import Keys
from tuning_db.record import DeviceKey, Workload, tolerance_of
from tuning_db.rows import is_sound
from tuning_db.store import Store
from tuning_db.trial_flags import is_throttled
from tuning_db.tuning_time import TuningTime, tuning_times_by_id

T = TypeVar("T")
PIECE = "piece"  # the template of what plans measure: steps, transforms, copies (tuner.placement.step_costs)
EXAMPLES = 3  # failures shown of each kind and template, besides the first one of every other task
MOST_EXAMPLES = 600  # most of these first ones, over all kinds and templates
SAMPLE = 400  # most trials of one task and template whose configs are read
SAMPLES = 40_000  # most such trials of all tasks and templates together, as long as each has LEAST
LEAST = 24  # trials of one task and template that are read in any case
MOST_REPEATED = 2000  # repeated measurements shown of one device
MOST_FAILED = 200  # failed trials shown of one curve
BINS = 120  # equal parts of the time that a device's trials span
ALL = ""  # the name of all tasks together, in `Pass.progress`
PAUSE = 120.0  # seconds: where trials are farther apart, nothing was tuned in between

Pair = tuple[int, int]  # ids of a workload and a device


@dataclass
class Curve:
    """A curve of the best time so far that one searcher, with one seed, has reached on one task.

    `points` has (trials, seconds since the task's first trial, seconds a call) for every improvement. `trials` is the
    number of trials. `last` is when the last one was, in seconds since the task's first trial. `failed` has (trials,
    seconds since the first) of trials without a right result: of all, or of every second, fourth ... one.
    """

    trials: int = 0
    best: float = float("inf")
    points: list[tuple[int, float, float]] = field(default_factory=list)
    last: float = 0.0
    failed: list[tuple[int, float]] = field(default_factory=list)
    failures: int = 0
    _every: int = 1

    def add(self, at: float, seconds: float) -> None:
        self.trials += 1
        self.last = at
        if seconds == float("inf"):
            self._fail(at)
        elif seconds < self.best:
            self.best = seconds
            self.points.append((self.trials, at, seconds))

    def _fail(self, at: float) -> None:
        if self.failures % self._every == 0:
            self.failed.append((self.trials, at))
        self.failures += 1
        if len(self.failed) > MOST_FAILED:
            self.failed, self._every = self.failed[::2], 2 * self._every


@dataclass
class Progress:
    """How some tasks of a device were tuned. `active` is the seconds that were spent on them, without pauses. `steps`
    has at which of them a task's best was found, and its seconds a call."""

    active: float = 0.0
    steps: list[tuple[float, Pair, float]] = field(default_factory=list)


@dataclass
class Pass:
    """The results of one pass. Keys are ids of rows. Times are in seconds, moments in microseconds since 1970."""

    workloads: dict[int, Workload]
    devices: dict[int, DeviceKey]
    trials: Counter[Pair] = field(default_factory=Counter)
    failed: Counter[Pair] = field(default_factory=Counter)
    configs: dict[Pair, int] = field(default_factory=dict)
    efforts: dict[Pair, TuningTime] = field(default_factory=dict)
    began: dict[Pair, int] = field(default_factory=dict)
    first: dict[Pair, float] = field(default_factory=dict)  # seconds of the first config that ran
    curves: dict[tuple[Pair, str, int | None], Curve] = field(default_factory=lambda: defaultdict(Curve))
    # These two are by kind and template.
    failures: dict[tuple[str, str], Counter[Pair]] = field(default_factory=lambda: defaultdict(Counter))
    examples: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # first and last moment of each device's trials
    bins: dict[int, list[list[int]]] = field(default_factory=dict)  # of each part of the span: trials, throttled ones
    repeats: dict[int, list[tuple[int, float, bool]]] = field(default_factory=lambda: defaultdict(list))
    samples: dict[tuple[Pair, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    succeeded: Counter[tuple[Pair, str]] = field(default_factory=Counter)  # of each task and template
    pieces: dict[Pair, float] = field(default_factory=dict)  # seconds of the latest measurement
    # By network, or ALL, and device.
    progress: dict[tuple[str, int], Progress] = field(default_factory=lambda: defaultdict(Progress))


def scan(store: Store, networks: Mapping[str, Collection[Task]] | None = None) -> Pass:
    """Read all trials of a store once and return the results, with the progress of these networks by their tasks.

    Raises DatabaseError if the store cannot be read.
    """
    with store.reading() as connection:
        decode = Keys()
        w, d = schema.workloads, schema.devices
        found = Pass(
            _readable(connection, select(w.c.id, w.c.key), decode.workload),
            _readable(connection, select(d.c.id, d.c.key), decode.device),
        )
        repeated = _counted(connection, found)
        _Reader(found, repeated, _sample_size(connection), networks or {}).read(connection)
    return found


def _readable(connection: Connection, query: Any, decode: Callable[[str], T]) -> dict[int, T]:
    """Return the decoded keys of a query's rows by the rows' ids. Rows with damaged keys are left out."""
    found = {}
    for row in connection.execute(query):
        with suppress(DatabaseError):
            found[row.id] = decode(row.key)
    return found


def _counted(connection: Connection, found: Pass) -> set[int]:
    """Store in `found` what SQL can count, and return the digests of configs that were measured more than once."""
    t = schema.trials
    pair = (t.c.workload_id, t.c.device_id)
    for row in connection.execute(select(*pair, func.count(t.c.config_digest.distinct())).group_by(*pair)):
        if row[0] in found.workloads and row[1] in found.devices:
            found.configs[row[0], row[1]] = row[2]
    spans = select(t.c.device_id, func.min(t.c.created), func.max(t.c.created)).group_by(t.c.device_id)
    for row in connection.execute(spans):
        if not (type(row[1]) is type(row[2]) is int):  # something else than a moment was stored
            continue
        found.spans[row[0]] = (row[1], row[2])
        found.bins[row[0]] = [[0, 0] for _ in range(BINS)]
    found.efforts = tuning_times_by_id(connection)
    again = select(t.c.config_digest).group_by(*pair, t.c.config_digest).having(func.count() > 1)
    return set(connection.scalars(again))


def _sample_size(connection: Connection) -> int:
    """Return how many trials to read of each task and template.

    That is SAMPLE, or fewer, so that all together are no more than SAMPLES, but at least LEAST.
    """
    t = schema.trials
    groups = (t.c.workload_id, t.c.device_id, t.c.template)
    counts = list(connection.scalars(select(func.count(t.c.seconds)).group_by(*groups)))
    size = SAMPLE
    while size > LEAST and sum(min(size, count) for count in counts) > SAMPLES:
        size = size * 9 // 10
    return max(LEAST, size)


class _Reader:
    def __init__(self, found: Pass, repeated: set[int], sample: int, networks: Mapping[str, Collection[Task]]) -> None:
        self._found, self._repeated, self._sample, self._networks = found, repeated, sample, networks
        self._tolerances = {i: tolerance_of(w.dtype) for i, w in found.workloads.items()}
        self._known: dict[tuple[Pair, int], float] = {}
        self._bests: dict[Pair, float] = {}
        self._of: dict[Pair, list[str]] = {}
        self._latest: dict[int, int] = {}  # the moment of each device's latest trial
        self._examples = 0  # how many were kept beyond EXAMPLES

    def read(self, connection: Connection) -> None:
        t = schema.trials
        names = ("id", "workload_id", "device_id", "template", "searcher", "seed", "seconds", "failure_kind", "error")
        columns = [*(t.c[name] for name in names), t.c.created, t.c.config_digest, is_throttled(t).label("throttled")]
        query = select(*columns).order_by(t.c.created, t.c.id)
        for row in connection.execution_options(yield_per=5000).execute(query):
            known = row.workload_id in self._found.workloads and row.device_id in self._found.spans
            if known and row.device_id in self._found.devices and is_sound(row):
                self._add(row)

    def _add(self, row: Row[Any]) -> None:
        """Count one trial, which is a row of the columns that `read` selects."""
        found, pair = self._found, (row.workload_id, row.device_id)
        if row.template == PIECE:
            if row.seconds is not None:
                found.pieces[pair] = row.seconds
            return
        found.trials[pair] += 1
        at = (row.created - found.began.setdefault(pair, row.created)) / 1e6
        begin, end = found.spans[row.device_id]
        slot = found.bins[row.device_id][min(BINS - 1, (row.created - begin) * BINS // max(1, end - begin))]
        slot[0] += 1
        slot[1] += bool(row.throttled)
        if row.failure_kind is not None:
            self._failed(row.id, pair, row.failure_kind, row.template)
        right = row.seconds is not None and row.error is not None and row.error <= self._tolerances[row.workload_id]
        seconds = row.seconds if right else float("inf")
        found.curves[pair, row.searcher or "", row.seed].add(at, seconds)
        self._progressed(row.created, pair, seconds)
        if row.seconds is None:
            return
        found.first.setdefault(pair, row.seconds)
        self._sampled(row.id, pair, row.template)
        if row.config_digest in self._repeated:
            known = self._known.setdefault((pair, row.config_digest), row.seconds)
            if known != row.seconds:
                found.repeats[row.device_id].append((row.created, row.seconds / known, bool(row.throttled)))

    def _progressed(self, moment: int, pair: Pair, seconds: float) -> None:
        """Count the time since the device's latest trial, and keep the seconds if they are the task's best so far."""
        device = pair[1]
        since = (moment - self._latest.get(device, moment)) / 1e6
        self._latest[device] = moment
        better = seconds < self._bests.get(pair, float("inf"))
        if better:
            self._bests[pair] = seconds
        for network in self._networks_of(pair):
            progress = self._found.progress[network, device]
            progress.active += since if since <= PAUSE else 0.0
            if better:
                progress.steps.append((progress.active, pair, seconds))

    def _networks_of(self, pair: Pair) -> list[str]:
        """Return the names of the networks that have a task, and that of all tasks."""
        if pair not in self._of:
            task = self._found.workloads[pair[0]].key, self._found.devices[pair[1]].key
            self._of[pair] = [ALL, *(name for name, tasks in self._networks.items() if task in tasks)]
        return self._of[pair]

    def _failed(self, ident: int, pair: Pair, kind: str, template: str) -> None:
        found = self._found
        found.failed[pair] += 1
        counts, examples = found.failures[kind, template], found.examples[kind, template]
        more = len(examples) >= EXAMPLES
        if not more or (pair not in counts and self._examples < MOST_EXAMPLES):
            self._examples += more
            examples.append(ident)
        counts[pair] += 1

    def _sampled(self, ident: int, pair: Pair, template: str) -> None:
        """Add a trial to the sample of its task and template if the hash of its id is among the smallest.

        Such a sample is uniform, and the same every time.
        """
        found = self._found
        found.succeeded[pair, template] += 1
        heap = found.samples[pair, template]
        entry = (-(ident * 2654435761 % 2**32), ident)
        if len(heap) < self._sample:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)


def thinned(points: list[tuple[int, float, bool]], most: int = MOST_REPEATED) -> list[tuple[int, float, bool]]:
    """Return at most `most` of the points. Throttled ones are kept first; the others are thinned evenly."""
    if len(points) <= most:
        return points
    marked = [p for p in points if p[2]][:most]
    rest = [p for p in points if not p[2]]
    step = max(1, -(-len(rest) // max(1, most - len(marked))))
    return sorted(marked + rest[::step])
