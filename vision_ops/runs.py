"""The template of operators that cut rows of positions into runs, each of which one item computes.

Start at `RunTemplate`. Kernels begin with `each_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.kernels import Emitter, function, held
from templates.operator import Operator
from templates.space import Constraint, Knob, Space, Values
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.sweeps import Rows


@dataclass(frozen=True)
class RunKnob:
    """The knob that sets the length of a run. `most` is the largest length.

    `on_processors` and `on_gpus` are the seed configs for CPUs and for GPUs, (length, items in a group).
    """

    name: str
    most: int
    on_processors: Sequence[tuple[int, int]]
    on_gpus: Sequence[tuple[int, int]]

    def space(self, template: str, rows: Rows, emitter: Emitter) -> Space | None:
        """Make a space with this knob and `items`, the items in a group. Returns None if the rows are empty."""
        if not rows.count * rows.length:
            return None
        sizes = tuple(1 << p for p in range(self.most.bit_length()))
        knobs = (Knob(self.name, sizes), Knob("items", emitter.group_sizes(1, 8, 16, 32, 64, 128, 256)))
        constraints = (Constraint("a run is longer than a row", lambda v: v[self.name] < 2 * rows.length),)
        longest = max(size for size in sizes if size < 2 * rows.length)
        shapes = self.on_processors if emitter.on_processor else self.on_gpus
        seeds = tuple({self.name: min(p, longest), "items": min(i, emitter.max_items)} for p, i in shapes)
        return Space(template, knobs, constraints, seeds, partial(_features, self.name, rows))


PLACES = RunKnob("places", 256, ((64, 1), (16, 8)), ((1, 64), (1, 256)))


def _features(knob: str, rows: Rows, v: Values) -> Mapping[str, float]:
    items = rows.count * -(-rows.length // v[knob])
    return {"items_in_all": float(items), "groups": items / v["items"]}


class RunTemplate(Template):
    """A template, called "vision.OP", that works on an operator whose workloads' views have `rows`.

    `body(view, emitter, knobs)` makes the function that emits the launches. The knobs are the length of a run (`knob`)
    and `items`, the items in a group.
    """

    def __init__(self, operator: Operator, body: Callable[[Any, Emitter, Values], Callable[..., None]], knob: RunKnob):
        self.op, self.name = operator.op, f"vision.{operator.op}"
        self._operator, self._body, self._knob = operator, body, knob

    def space(self, workload: Workload, target: Target) -> Space | None:
        rows: Any = self._operator.view.of(workload)
        return self._knob.space(self.name, rows.rows, Emitter.of(target))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        body = self._body(self._operator.view.of(workload), Emitter.of(target), config.knobs)
        return function(self._operator.operands(workload), body)


@dataclass(frozen=True)
class Run:
    """The positions of a row that an item computes: `length` positions from `first` on."""

    row: Any
    first: Any
    length: Any

    @contextmanager
    def each(self) -> Iterator[tuple[Any, Any]]:
        """Emit a loop over the positions. Yields a position's index in the run and its index in the row."""
        with T.serial(0, self.length) as i:
            yield i, held(self.first + i)


@contextmanager
def each_run(rows: Rows, emitter: Emitter, v: Values) -> Iterator[Run]:
    """Emit a launch with an item for every run of `places` positions, the value of the knob. Yields the run."""
    parts = -(-rows.length // v["places"])
    with emitter.each(rows.count * parts, v["items"]) as at:
        first = held(at % parts * v["places"])
        yield Run(held(at // parts), first, held(tirx.min(tirx.const(v["places"], "int32"), rows.length - first)))
