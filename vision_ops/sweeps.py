"""This module computes prefix sums by many items in three stages. Start at `Sweeps`.

An axis is cut into pieces. In the up-sweep every item reduces its pieces in registers. Then one group of items per row
scans the reduced values by Hillis and Steele's method. If there are more pieces than items, an item first reduces
several values in registers. In the down-sweep every item goes over its pieces again and starts each with the sum before
it. Our items go over several pieces at a time, because within one piece every addition waits for the previous one.

Source: Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, choose, held, own, scratch, shared, when
from templates.space import Constraint, Knob, Space, Values

KINDS = ("sum", "product", "max")
_PIECES = 1 << 16  # the most pieces of an axis: one group of items scans a value for each

Read = Callable[[Any, Any], Any]  # (row, position) -> value
Write = Callable[[Any, Any, Any, Any], None]  # (row, position, sum before the position, sum including it)


@dataclass(frozen=True)
class Rows:
    """Rows that lie along the middle axis of (outer, length, inner). There are outer times inner rows."""

    outer: int
    length: int
    inner: int = 1

    @property
    def count(self) -> int:
        return self.outer * self.inner

    def place(self, row: Any, at: Any) -> tuple[Any, Any, Any]:
        return row // self.inner, at, row % self.inner


def identity(kind: str, dtype: str) -> Any:
    """Return the value that changes nothing in a sum, a product or a maximum of this dtype."""
    if kind == "max":
        return np.iinfo(dtype).min if np.issubdtype(np.dtype(dtype), np.integer) else -np.inf
    return {"sum": 0, "product": 1}[kind]


@dataclass(frozen=True)
class Monoid:
    """The operation that combines values: "sum", "product" or "max" of a dtype."""

    kind: str
    dtype: str

    @property
    def identity(self) -> Any:
        if self.kind != "max":
            return tirx.const(identity(self.kind, self.dtype), self.dtype)
        return tirx.min_value(self.dtype) if self.dtype.startswith("int") else -tirx.infinity(self.dtype)

    def combine(self, a: Any, b: Any) -> Any:
        if self.kind == "sum":
            return a + b
        if self.kind == "product":
            return a * b
        # TVM's max and those of the devices treat NaN differently. Here a NaN stays a NaN.
        if self.dtype.startswith("int"):
            return tirx.max(a, b)
        return tirx.if_then_else(tirx.any(a > b, tirx.isnan(a)), a, b)


def sweep_space(template: str, rows: Rows, emitter: Emitter, loads: bool = True) -> Space:
    """Return the space of the knobs that all sweeps have.

    A piece has `piece` elements, and an item goes over `together` pieces at a time. A group of the sweeps has `items`
    items, and the group that scans the pieces has `scanners`. An up-sweep keeps a separate sum for each of `vec` lanes.

    `loads` says that elements are loaded and not computed by a comparison, so that the up-sweep can use vectors: a true
    comparison of vectors is 1 on some devices and -1 on others.
    """
    vectors = loads and rows.inner == 1
    knobs = (
        Knob("piece", _pieces(rows.length)),
        Knob("together", (1, 2, 4, 8, 16)),
        Knob("items", emitter.group_sizes(1, 16, 32, 64, 128, 256)),
        Knob("scanners", emitter.group_sizes(1, 16, 64, 256, 1024)),
        Knob("vec", (1, 4, 8, 16) if vectors else (1,)),
    )
    constraints = (
        Constraint("too many pieces", lambda v: _count(rows, v) <= _PIECES),
        Constraint("an item has more pieces than an axis", lambda v: v["together"] < 2 * _count(rows, v)),
        Constraint("lanes do not divide a piece", lambda v: v["piece"] % v["vec"] == 0),
        Constraint("more items than pieces to scan", lambda v: v["scanners"] <= 2 * _count(rows, v)),
        Constraint("too much local memory", partial(_fits, emitter)),
        Constraint("the vector is wider than the device's", partial(_has_vector, emitter)),
    )
    return Space(template, knobs, constraints, _seeds(rows, emitter, vectors), partial(_features, rows))


def _pieces(length: int) -> tuple[int, ...]:
    """Return the lengths of pieces: powers of two, of which the largest covers the axis if that is not too long."""
    powers = [1 << p for p in range(3, 18)]
    return tuple(p for p in powers if p < 2 * length) or (powers[0],)


def _count(rows: Rows, v: Values) -> int:
    return -(-rows.length // v["piece"])


def _fits(emitter: Emitter, v: Values) -> bool:
    return emitter.limits is None or 8 * v["scanners"] <= max(emitter.limits.local_memory_bytes, 8)


def _has_vector(emitter: Emitter, v: Values) -> bool:
    return emitter.limits is None or v["vec"] <= emitter.limits.max_vector


def _seeds(rows: Rows, emitter: Emitter, vectors: bool) -> tuple[Values, ...]:
    """Return the seed configs: a few long pieces for CPUs (with or without OpenCL), thousands of items for GPUs."""
    lanes = 4 if vectors else 1
    found = []
    for piece, together, items, scanners in (
        ((1 << 10, 8, 1, 1), (1 << 12, 4, 1, 16), (1 << 15, 4, 1, 1))
        if emitter.on_processor
        else ((32, 1, 64, 256), (128, 1, 64, 64), (16, 1, 64, 1))
    ):
        piece = min(piece, _pieces(rows.length)[-1])
        count = -(-rows.length // piece)
        scanners = min(scanners, emitter.max_items)
        while scanners > 2 * count:
            scanners = 1 if scanners <= 16 else scanners // 4
        while together >= 2 * count:
            together //= 2
        found.append({"piece": piece, "together": together, "items": items, "scanners": scanners, "vec": lanes})
    return tuple(found)


def _features(rows: Rows, v: Values) -> Mapping[str, float]:
    pieces = _count(rows, v) * rows.count
    return {
        "pieces": float(pieces),
        "groups": pieces / (v["items"] * v["together"]),
        "scanned": _count(rows, v) / v["scanners"],
    }


@dataclass(frozen=True)
class Sweeps:
    """The code that emits the launches of one config."""

    rows: Rows
    emitter: Emitter
    monoid: Monoid
    v: Values

    def __call__(self, read: Read, write: Write) -> None:
        pieces = _count(self.rows, self.v)
        if pieces == 1:
            self._sweep(lambda row, first: self._down(read, write, None, row=row, first=first))
            return
        before = scratch(self.monoid.dtype, self.rows.outer, pieces, self.rows.inner)
        self._sweep(lambda row, first: self._up(read, before, row, first))
        self._scan_pieces(before, pieces)
        self._sweep(lambda row, first: self._down(read, write, before, row=row, first=first))

    def _sweep(self, item: Callable[[Any, Any], None]) -> None:
        """Emit a launch with one item for each `together` pieces of a row; `item(row, first)` emits its code.

        If the scanned axis is not the last, neighbouring items take neighbouring elements in memory.
        """
        inner, parts = self.rows.inner, -(-_count(self.rows, self.v) // self.v["together"])
        total = self.rows.outer * parts * inner
        with self.emitter.each(total, self.v["items"]) as at:
            row = held(at // (parts * inner) * inner + at % inner)
            item(row, held(at // inner % parts * self.v["together"]))

    def _up(self, read: Read, before: Cells, row: Any, first: Any) -> None:
        with T.serial(0, self.v["together"]) as p, when(first + p < _count(self.rows, self.v)):
            self._reduce(read, before, row, held(first + p))

    def _reduce(self, read: Read, before: Cells, row: Any, piece: Any) -> None:
        """Reduce a piece: keep `vec` sums, each of every vec-th element, and then add these up."""
        vec, size, dtype = self.v["vec"], self.v["piece"], self.monoid.dtype
        sums = own(dtype, vec)
        for lane in range(vec):
            sums[lane] = self.monoid.identity
        start = held(piece * size)

        def add(at: Any, lane: Any) -> None:
            sums[lane] = self.monoid.combine(sums[lane], read(row, at))

        # The last piece of an axis may be short: whole vectors are added first, then the elements that are left.
        length = held(tirx.min(tirx.const(size, "int32"), self.rows.length - start))
        with T.serial(0, length // vec) as step, T.vectorized(0, vec) as lane:
            add(start + step * vec + lane, lane)
        if vec > 1:
            with T.serial(0, length % vec) as rest:
                add(start + length // vec * vec + rest, 0)
        for lane in range(1, vec):
            sums[0] = self.monoid.combine(sums[0], sums[lane])
        before[self.rows.place(row, piece)] = sums[0]

    def _scan_pieces(self, before: Cells, pieces: int) -> None:
        """Emit the launch that does an exclusive scan of each row's reduced pieces, in place, by one group per row."""
        items, dtype, monoid = self.v["scanners"], self.monoid.dtype, self.monoid
        each = -(-pieces // items)
        steps = (items - 1).bit_length()
        with self.emitter.launch(self.rows.count, items) as (row, i):
            total = own(dtype)
            total[0] = monoid.identity
            with T.serial(0, each) as p, when(i * each + p < pieces):
                total[0] = monoid.combine(total[0], before[self.rows.place(row, i * each + p)])
            if items > 1:
                sums = shared(dtype, 2, items)
                sums[0, i] = total[0]
                self.emitter.barrier()
                for step in range(steps):  # Hillis and Steele: every sum grows by the one 2^step items before it
                    source, distance = step % 2, 1 << step
                    sums[1 - source, i] = sums[source, i]
                    with when(i >= distance):
                        sums[1 - source, i] = monoid.combine(sums[source, i - distance], sums[source, i])
                    self.emitter.barrier()
                total[0] = monoid.identity
                with when(i >= 1):
                    total[0] = sums[steps % 2, i - 1]
            else:
                total[0] = monoid.identity
            value = own(dtype)
            with T.serial(0, each) as p, when(i * each + p < pieces):
                place = self.rows.place(row, i * each + p)
                value[0] = before[place]
                before[place] = total[0]
                total[0] = monoid.combine(total[0], value[0])

    def _down(self, read: Read, write: Write, before: Cells | None, *, row: Any, first: Any) -> None:
        """Emit the down-sweep of an item.

        If all its pieces are whole, it takes one element of each in turn. At the end of an axis it goes over its pieces
        one after the other.
        """
        size, together = self.v["piece"], self.v["together"]
        pieces = _count(self.rows, self.v)
        totals = own(self.monoid.dtype, together)
        for p in range(together):
            totals[p] = self.monoid.identity
            if before is not None:
                with when(first + p < pieces):
                    totals[p] = before[self.rows.place(row, first + p)]

        def whole() -> None:
            with T.serial(0, size) as step:
                for p in range(together):
                    self._step(read, write, row, at=(first + p) * size + step, totals=totals, which=p)

        def rest() -> None:
            for p in range(together):
                start = held((first + p) * size)
                length = tirx.max(0, tirx.min(tirx.const(size, "int32"), self.rows.length - start))
                with T.serial(0, held(length)) as step:
                    self._step(read, write, row, at=start + step, totals=totals, which=p)

        choose((first + together) * size <= self.rows.length, whole, rest)

    def _step(self, read: Read, write: Write, row: Any, *, at: Any, totals: Cells, which: int) -> None:
        upto = held(self.monoid.combine(totals[which], read(row, at)))
        write(row, at, totals[which], upto)
        totals[which] = upto
