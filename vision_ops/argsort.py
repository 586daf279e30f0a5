"""The operator that sorts rows or segments and returns indices (argsort). Start at `Argsort`.

Segments of any lengths are flattened and cut into equal blocks, each of which an item sorts. Pairs of runs are then
merged cooperatively, until one run is left. A merge changes only the segment that both runs have a part of. Segments of
one length are rows, which are cut into blocks separately, so that short ones need no merges but their own.

Source: Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.1.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, function, held, inside, own, scratch, when
from templates.operator import Operator, TensorSpec, View
from templates.space import Constraint, Knob, Space, Values
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.merging import Runs, merge_stretch
from vision_ops.selected import INVALID, invalidate
from vision_ops.sort_keys import argsorted, packed, place_of, ranked

_STACK_BYTES = 16 << 10  # limit of an item's block, stored twice, on a CPU
_REGISTER_BYTES = 512  # the same limit on a GPU, where larger arrays are in the device's memory


@dataclass(frozen=True)
class Argsort(View):
    """A workload that sorts `rows` rows of `length` values each, or `segments` segments of one row.

    The output is the indices, within the row, of the first `top` values of every row. The sort is stable, and NaN comes
    last in either direction. If `segments` > 0, the second input is the segments' offsets (segments + 1), which go from
    0 to `length` and never fall; `top` is then `length`.

    If `counted`, only some values of each row are sorted. The second input is their positions (rows, length), rising,
    and the third is how many of these are valid in each row (rows,), as `compact` finds them. Indices behind the last
    are INVALID. Raises ValueError for attributes that do not fit together.
    """

    op = "argsort"

    rows: int
    length: int
    top: int
    descending: bool = False
    segments: int = 0
    counted: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.top <= self.length or self.rows < 0 or self.segments < 0:
            raise ValueError(f"argsort: the first {self.top} of {self.rows} rows of {self.length} cannot be had")
        if self.segments and (self.rows != 1 or self.top != self.length):
            raise ValueError("argsort: segments are sorted in one row, and whole")
        if self.segments and self.counted:
            raise ValueError("argsort: segments are not counted")


class ArgsortOperator(Operator):
    """The operator that `Argsort` describes, with NumPy's stable argsort as the reference."""

    view = Argsort

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        sort = Argsort.of(workload)
        data = TensorSpec("data", (sort.rows, sort.length), workload.dtype)
        if sort.counted:
            places = TensorSpec("places", (sort.rows, sort.length), "int32")
            return data, places, TensorSpec("count", (sort.rows,), "int32")
        return (data, TensorSpec("offsets", (sort.segments + 1,), "int32")) if sort.segments else (data,)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        sort = Argsort.of(workload)
        return (TensorSpec("indices", (sort.rows, sort.top), "int32"),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        sort = Argsort.of(workload)
        shape = (sort.rows, sort.length)
        if np.issubdtype(workload.dtype, np.integer):
            data = rng.integers(-1000, 1000, shape, workload.dtype)
        else:
            data = rng.standard_normal(shape).astype(workload.dtype)
        if sort.counted:
            return data, *_numpy_chosen(rng, shape)
        if not sort.segments:
            return (data,)
        inside = np.sort(rng.integers(0, sort.length + 1, sort.segments - 1))
        return data, np.concatenate([[0], inside, [sort.length]]).astype(np.int32)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        sort, data = Argsort.of(workload), inputs[0]
        if sort.counted:
            out = np.full((sort.rows, sort.top), INVALID, np.int32)
            for row, places, count, indices in zip(data, *inputs[1:], out, strict=True):
                found = places[:count][argsorted(row[places[:count]], sort.descending)][: sort.top]
                indices[: len(found)] = found
            return (out,)
        if not sort.segments:
            return (argsorted(data, sort.descending)[:, : sort.top],)
        offsets = inputs[1]
        parts = [begin + argsorted(data[0, begin:end], sort.descending) for begin, end in itertools.pairwise(offsets)]
        return (np.concatenate(parts).astype(np.int32)[None],)


def _numpy_chosen(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Draw the positions and the counts of chosen values: on average a fifth of a row, and up to two fifths."""
    chosen = rng.random(shape) < 0.4 * rng.random((shape[0], 1))
    places = np.full(shape, INVALID, np.int32)
    for row, picked in zip(places, chosen, strict=True):
        row[: picked.sum()] = np.flatnonzero(picked)
    return places, chosen.sum(1).astype(np.int32)


class ArgsortTemplate(Template):
    """A template whose items sort `block` values each by themselves and then write stretches of merged runs.

    Its other knobs: `stretch` is the length of a stretch, and a group has `items` items.
    """

    name = "vision.argsort"
    op = "argsort"
    dtypes = ("float32", "int32")

    def space(self, workload: Workload, target: Target) -> Space | None:
        sort, emitter = Argsort.of(workload), Emitter.of(target)
        if not sort.rows or not sort.top:
            return None
        knobs = (
            Knob("block", (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
            Knob("stretch", (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
            Knob("items", emitter.group_sizes(1, 8, 16, 32, 64, 128, 256)),
        )
        most = _STACK_BYTES if emitter.on_processor else _REGISTER_BYTES
        constraints = (
            Constraint("an item's block is too large", lambda v: 16 * v["block"] <= most),
            Constraint("a stretch is longer than two runs", lambda v: v["stretch"] <= 2 * v["block"]),
            Constraint("most of a block is empty", lambda v: v["block"] < 2 * max(sort.length, 4)),
        )
        return Space(self.name, knobs, constraints, _seeds(sort, emitter), partial(_features, sort))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        operator = ArgsortOperator()
        body = _Body(Argsort.of(workload), Emitter.of(target), config.knobs)
        return function(operator.operands(workload), body)


def _seeds(sort: Argsort, emitter: Emitter) -> tuple[Values, ...]:
    longest = max(sort.length, 4)
    found = []
    for block, stretch, items in (
        ((256, 256, 1), (64, 128, 1), (512, 512, 8)) if emitter.on_processor else ((16, 16, 64), (32, 16, 128))
    ):
        while block >= 2 * longest:
            block //= 2
        found.append({"block": block, "stretch": min(stretch, 2 * block), "items": min(items, emitter.max_items)})
    return tuple(found)


def _levels(sort: Argsort, v: Values) -> int:
    return max(0, (-(-sort.length // v["block"]) - 1).bit_length())


def _features(sort: Argsort, v: Values) -> Mapping[str, float]:
    return {
        "levels": float(_levels(sort, v)),
        "sorting_items": float(sort.rows * -(-sort.length // v["block"])),
        "merging_items": float(sort.rows * -(-sort.length // v["stretch"])),
    }


@dataclass(frozen=True)
class _Given:
    """The inputs that a sort has. Those that it does not have are None."""

    sort: Argsort
    data: Cells
    offsets: Cells | None = None
    places: Cells | None = None
    count: Cells | None = None

    @staticmethod
    def of(sort: Argsort, cells: Sequence[Cells]) -> _Given:
        data, *rest = cells
        if sort.counted:
            return _Given(sort, data, places=rest[0], count=rest[1])
        return _Given(sort, data, offsets=rest[0] if sort.segments else None)

    def length(self, row: Any) -> Any:
        """Return how many values of a row are sorted. A count above the row's length is limited to it."""
        length = tirx.const(self.sort.length, "int32")
        return length if self.count is None else held(tirx.min(self.count[row], length))

    def place(self, row: Any, at: Any) -> Any:
        """Return the index in the row of the `at`-th value that is sorted. An invalid one is clipped to a valid one."""
        return at if self.places is None else inside(self.places[row, at], self.sort.length)


@dataclass(frozen=True)
class _Body:
    """The code that emits the launches of one config.

    Keys are moved back and forth between the two halves of `keys`. The last launch writes indices instead of keys.
    """

    sort: Argsort
    emitter: Emitter
    v: Values

    def __call__(self, *cells: Cells) -> None:
        given, out = _Given.of(self.sort, cells[:-1]), cells[-1]
        levels = _levels(self.sort, self.v)

        def indices(row: Any, at: Any, key: Any) -> None:
            with when(at < self.sort.top):
                out[row, at] = place_of(key)

        if self.sort.counted:
            invalidate(self.emitter, out, None, rows=self.sort.rows, length=self.sort.top, items=self.v["items"])
        if not levels:
            self._sort_blocks(given, indices)
            return
        keys = scratch("uint64", 2, self.sort.rows, self.sort.length)

        def first_half(row: Any, at: Any, key: Any) -> None:
            keys[0, row, at] = key

        self._sort_blocks(given, first_half)
        if levels > 1:
            with T.serial(0, levels - 1) as level:

                def other_half(row: Any, at: Any, key: Any) -> None:
                    keys[1 - level % 2, row, at] = key

                self._merge(keys, level, given, wanted=self.sort.length, write=other_half)
        self._merge(keys, tirx.const(levels - 1, "int32"), given, wanted=self.sort.top, write=indices)

    def _each(self, parts: int, item: Callable[[Any, Any], None]) -> None:
        """Emit a launch with one item for each of `parts` parts of every row."""
        with self.emitter.each(self.sort.rows * parts, self.v["items"]) as at:
            item(held(at // parts), held(at % parts))

    def _sort_blocks(self, given: _Given, write: Callable[[Any, Any, Any], None]) -> None:
        def block(row: Any, part: Any) -> None:
            self._sort_block(given, row, part, write)

        self._each(-(-self.sort.length // self.v["block"]), block)

    def _sort_block(self, given: _Given, row: Any, part: Any, write: Callable[[Any, Any, Any], None]) -> None:
        """Emit the code by which an item sorts a block in its own memory: it merges neighbours, from single keys on.

        If there are segments, the upper 16 bits of a key are the segment's number within the block, and the lower 16
        bits are the value's index in the block.
        """
        block = self.v["block"]
        start = held(part * block)
        count = held(tirx.max(tirx.min(tirx.const(block, "int32"), given.length(row) - start), 0))
        own_keys = own("uint64", 2 * block)
        self._load(given, row, start, count=count, keys=own_keys)
        steps = block.bit_length() - 2
        with T.serial(0, steps) as step:
            self._merge_own(own_keys, step % 2 * block, (step + 1) % 2 * block, step=step, count=count)

        def put(at: Any, key: Any) -> None:
            if given.offsets is not None:
                key = held(key)
                place = (key & tirx.const(0xFFFF, "uint64")).astype("int32")
                key = packed((key >> tirx.const(16, "uint64")).astype("uint32"), start + place)
            write(row, start + at, key)

        # The last merge writes the result itself. LLVM would vectorise a loop that copied it, and LLVM 22 stores more
        # than the active lanes of a masked vector that it truncates (AVX-512).
        half = tirx.min(tirx.const(block // 2, "int32"), count)
        runs = Runs(tirx.const(0, "int32"), held(half), count)
        merge_stretch(runs, lambda at: own_keys[steps % 2 * block + at], runs.begin, count=count, write=put)

    def _load(self, given: _Given, row: Any, start: Any, *, count: Any, keys: Cells) -> None:
        data, offsets = given.data, given.offsets
        if offsets is None:
            with T.serial(0, count) as i:
                at = given.place(row, start + i)
                keys[i] = packed(ranked(data[row, at], self.sort.descending), at)
            return
        segment, number, before = own("int32"), own("int32"), own("int32")
        segment[0] = held(self._segment_of(offsets, start))
        number[0] = 0
        with T.serial(0, count) as i:
            before[0] = segment[0]
            # If the offsets do not end at the length, the search must not leave them.
            with T.While(
                tirx.if_then_else(
                    segment[0] + 1 < self.sort.segments, offsets[segment[0] + 1] <= start + i, tirx.const(False, "bool")
                )
            ):
                segment[0] = segment[0] + 1
            # The number fits into 16 bits, because empty segments do not count.
            number[0] = number[0] + (segment[0] > before[0]).astype("int32")
            value = held(ranked(data[row, start + i], self.sort.descending))
            upper = (number[0].astype("uint64") << tirx.const(48, "uint64")) | (
                value.astype("uint64") << tirx.const(16, "uint64")
            )
            keys[i] = upper | i.astype("uint64")

    def _merge_own(self, keys: Cells, source: Any, target: Any, *, step: Any, count: Any) -> None:
        """Merge all pairs of runs of 2^step keys within an item's block."""
        width = held(tirx.const(1, "int32") << step)
        with T.serial(0, self.v["block"] // (2 * width)) as pair:
            begin = held(tirx.min(pair * 2 * width, count))
            runs = Runs(begin, held(tirx.min(begin + width, count)), held(tirx.min(begin + 2 * width, count)))

            def write(at: Any, key: Any) -> None:
                keys[target + at] = key

            merge_stretch(runs, lambda at: keys[source + at], begin, count=runs.end - begin, write=write)

    def _merge(
        self, keys: Cells, level: Any, given: _Given, *, wanted: int, write: Callable[[Any, Any, Any], None]
    ) -> None:
        """Emit a launch that merges neighbouring runs of block * 2^level keys, for the first `wanted` keys of a row."""
        stretch = self.v["stretch"]

        def item(row: Any, part: Any) -> None:
            start, length = held(part * stretch), given.length(row)
            width = held(tirx.const(self.v["block"], "int32") << level)
            begin = held(start // (2 * width) * (2 * width))
            middle = held(tirx.min(begin + width, length))
            end = held(tirx.min(begin + 2 * width, length))
            count = held(tirx.min(tirx.const(stretch, "int32"), end - start))
            if given.offsets is not None:
                runs = Runs(begin, middle, end)
                self._merge_segment(given.offsets, runs, lambda at: keys[level % 2, 0, at], start, count, write)
                return

            def put(at: Any, key: Any) -> None:
                write(row, at, key)

            merge_stretch(Runs(begin, middle, end), lambda at: keys[level % 2, row, at], start, count=count, write=put)

        self._each(-(-wanted // stretch), item)

    def _merge_segment(
        self,
        offsets: Cells,
        runs: Runs,
        read: Callable[[Any], Any],
        start: Any,
        count: Any,
        write: Callable[[Any, Any, Any], None],
    ) -> None:
        """Merge two runs of several segments. They have at most one segment in common; keys around it are copied."""
        segment = held(self._segment_of(offsets, tirx.min(runs.middle, self.sort.length - 1)))
        begin = held(tirx.min(tirx.max(runs.begin, offsets[segment]), runs.middle))
        end = held(tirx.max(tirx.min(runs.end, offsets[segment + 1]), runs.middle))

        def put(at: Any, key: Any) -> None:
            write(0, at, key)

        before = held(tirx.max(0, tirx.min(begin - start, count)))
        with T.serial(0, before) as i:
            put(start + i, read(start + i))
        merged_from = held(start + before)
        merged = held(tirx.max(0, tirx.min(end, start + count) - merged_from))
        merge_stretch(Runs(begin, runs.middle, end), read, merged_from, count=merged, write=put)
        behind = held(merged_from + merged)
        with T.serial(0, start + count - behind) as i:
            put(behind + i, read(behind + i))

    def _segment_of(self, offsets: Cells, place: Any) -> Any:
        """Return the index of the last segment that begins at or before a position."""
        low, high = own("int32"), own("int32")
        low[0] = 0
        high[0] = self.sort.segments
        with T.While(high[0] - low[0] > 1):
            at = held((low[0] + high[0]) // 2)
            left = held(offsets[at] > place)
            high[0] = tirx.if_then_else(left, at, high[0])
            low[0] = tirx.if_then_else(left, low[0], at)
        return low[0]


OPERATOR, TEMPLATE = ArgsortOperator(), ArgsortTemplate()
