"""Prefix sums (products, maxima) along an axis, in three stages: up-sweep, scan of the pieces, down-sweep.

Paper 003, section 3.1.1: an axis is cut into pieces; every item reduces its pieces in registers (up-sweep); one group
of items a row scans the reduced values by Hillis and Steele's method, after reducing several in registers where there
are more pieces than items; then every item goes over its pieces again, from what lies before each (down-sweep). Ours
goes over several at a time: one alone waits for every addition before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.operator import Operator, TensorSpec
from templates.space import Constraint, Knob, Space, Values
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.kernels import Cells, Emitter, choose, function, held, own, scratch, shared, when

KINDS = ("sum", "product", "max")
_PIECES = 1 << 16  # of an axis at most: each is a value that one group of items scans


@dataclass(frozen=True)
class Scan:
    """Along the middle axis of (outer, length, inner). `exclusive`: a result has not its own element; `reverse`: from
    the end. A NaN makes a NaN of everything behind it. Integers wrap around."""

    outer: int
    length: int
    inner: int = 1
    kind: str = "sum"
    exclusive: bool = False
    reverse: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"scan: no such kind: {self.kind!r} (known: {', '.join(KINDS)})")
        if min(self.outer, self.length, self.inner) < 0:
            raise ValueError(f"scan: a negative extent: {self.shape}")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.outer, self.length, self.inner

    def workload(self, dtype: str = "float32") -> Workload:
        return Workload("scan", asdict(self), (), dtype)

    @staticmethod
    def of(workload: Workload) -> Scan:
        return Scan(**workload.attrs)


class ScanOperator(Operator):
    op = "scan"
    view = Scan

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("data", Scan.of(workload).shape, workload.dtype),)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("out", Scan.of(workload).shape, workload.dtype),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        scan = Scan.of(workload)
        if np.issubdtype(workload.dtype, np.integer):
            return (rng.integers(-9, 10, scan.shape, workload.dtype),)
        values = rng.standard_normal(scan.shape)
        if scan.kind == "product":  # stays within what float32 can hold
            values = np.exp(values / np.sqrt(max(scan.length, 1)))
        return (values.astype(workload.dtype),)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        scan, (data,) = Scan.of(workload), inputs
        wide = data if np.issubdtype(data.dtype, np.integer) else data.astype(np.float64)
        ufunc = {"sum": np.add, "product": np.multiply, "max": np.maximum}[scan.kind]
        along = wide[:, ::-1] if scan.reverse else wide
        with np.errstate(invalid="ignore", over="ignore"):
            out = ufunc.accumulate(along, axis=1, dtype=wide.dtype)
        if scan.exclusive:
            first = np.full_like(out[:, :1], _identity(scan.kind, workload.dtype))
            out = np.concatenate([first, out[:, :-1]], axis=1)
        return (out[:, ::-1] if scan.reverse else out,)


def _identity(kind: str, dtype: str) -> Any:
    if kind == "max":
        return np.iinfo(dtype).min if np.issubdtype(np.dtype(dtype), np.integer) else -np.inf
    return {"sum": 0, "product": 1}[kind]


@dataclass(frozen=True)
class Monoid:
    """How values are put together."""

    kind: str
    dtype: str

    @property
    def identity(self) -> Any:
        if self.kind != "max":
            return tirx.const(_identity(self.kind, self.dtype), self.dtype)
        return tirx.min_value(self.dtype) if self.dtype.startswith("int") else -tirx.infinity(self.dtype)

    def combine(self, a: Any, b: Any) -> Any:
        if self.kind == "sum":
            return a + b
        if self.kind == "product":
            return a * b
        # Neither TVM's max nor the devices' agree on what becomes of a NaN: it stays.
        if self.dtype.startswith("int"):
            return tirx.max(a, b)
        return tirx.if_then_else(tirx.any(a > b, tirx.isnan(a)), a, b)


class ScanTemplate(Template):
    """Knobs: elements of a `piece`, pieces that an item goes over `together`, items in a group of the sweeps (`items`)
    and in the one that scans the pieces (`scanners`), and lanes that an up-sweep sums apart (`vec`)."""

    name = "vision.scan"
    op = "scan"
    dtypes = ("float32", "int32")

    def space(self, workload: Workload, target: Target) -> Space | None:
        scan, emitter = Scan.of(workload), Emitter.of(target)
        if 0 in scan.shape:
            return None
        items = tuple(i for i in (1, 16, 32, 64, 128, 256) if i <= emitter.max_items)
        knobs = (
            Knob("piece", _pieces(scan.length)),
            Knob("together", (1, 2, 4, 8, 16)),
            Knob("items", items),
            Knob("scanners", tuple(i for i in (1, 16, 64, 256, 1024) if i <= emitter.max_items)),
            Knob("vec", (1, 4, 8, 16) if scan.inner == 1 else (1,)),
        )
        constraints = (
            Constraint("too many pieces", lambda v: _count(scan, v) <= _PIECES),
            Constraint("an item has more pieces than an axis", lambda v: v["together"] < 2 * _count(scan, v)),
            Constraint("lanes do not divide a piece", lambda v: v["piece"] % v["vec"] == 0),
            Constraint("more items than pieces to scan", lambda v: v["scanners"] <= 2 * _count(scan, v)),
            Constraint("too much local memory", partial(_fits, emitter)),
            Constraint("the vector is wider than the device's", partial(_has_vector, emitter)),
        )
        return Space(self.name, knobs, constraints, _seeds(scan, emitter), partial(_features, scan))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        scan, emitter, monoid = Scan.of(workload), Emitter.of(target), Monoid(workload.attrs["kind"], workload.dtype)
        body = _Body(scan, emitter, monoid, config.knobs)
        return function([("data", scan.shape, workload.dtype), ("out", scan.shape, workload.dtype)], body)


def _pieces(length: int) -> tuple[int, ...]:
    """Powers of two; one of them is enough for the whole axis, if that is not too long for an item."""
    powers = [1 << p for p in range(3, 18)]
    return tuple(p for p in powers if p < 2 * length) or (powers[0],)


def _count(scan: Scan, v: Values) -> int:
    return -(-scan.length // v["piece"])


def _fits(emitter: Emitter, v: Values) -> bool:
    return emitter.limits is None or 8 * v["scanners"] <= max(emitter.limits.local_memory_bytes, 8)


def _has_vector(emitter: Emitter, v: Values) -> bool:
    return emitter.limits is None or v["vec"] <= emitter.limits.max_vector


def _seeds(scan: Scan, emitter: Emitter) -> tuple[Values, ...]:
    """A host and processors behind OpenCL: few long pieces. GPUs: thousands of items."""
    lanes = 1 if scan.inner > 1 else 4
    found = []
    for piece, together, items, scanners in (
        ((1 << 10, 8, 1, 1), (1 << 12, 4, 1, 16), (1 << 15, 4, 1, 1))
        if emitter.on_processor
        else ((32, 1, 64, 256), (128, 1, 64, 64), (16, 1, 64, 1))
    ):
        piece = min(piece, _pieces(scan.length)[-1])
        count = -(-scan.length // piece)
        scanners = min(scanners, emitter.max_items)
        while scanners > 2 * count:
            scanners = 1 if scanners <= 16 else scanners // 4
        while together >= 2 * count:
            together //= 2
        found.append({"piece": piece, "together": together, "items": items, "scanners": scanners, "vec": lanes})
    return tuple(found)


def _features(scan: Scan, v: Values) -> Mapping[str, float]:
    pieces = _count(scan, v) * scan.outer * scan.inner
    return {
        "pieces": float(pieces),
        "groups": pieces / (v["items"] * v["together"]),
        "scanned": _count(scan, v) / v["scanners"],
    }


@dataclass(frozen=True)
class _Body:
    """The launches of one config."""

    scan: Scan
    emitter: Emitter
    monoid: Monoid
    v: Values

    def __call__(self, data: Cells, out: Cells) -> None:
        pieces = _count(self.scan, self.v)
        before = scratch(self.monoid.dtype, self.scan.outer, pieces, self.scan.inner)
        if pieces > 1:
            self._sweep(lambda row, first: self._up(data, before, row, first))
            self._scan_pieces(before, pieces)
        self._sweep(lambda row, first: self._down(data, out, before, row, first))

    def _sweep(self, item: Callable[[Any, Any], None]) -> None:
        """One item for `together` pieces of a row, from `first` on; neighbours take neighbouring elements where the
        axis is not the last."""
        inner, parts = self.scan.inner, -(-_count(self.scan, self.v) // self.v["together"])
        total = self.scan.outer * parts * inner
        with self.emitter.launch(-(-total // self.v["items"]), self.v["items"]) as (group, i):
            at = held(group * self.v["items"] + i)
            with when(at < total):
                row = held(at // (parts * inner) * inner + at % inner)
                item(row, held(at // inner % parts * self.v["together"]))

    def _place(self, row: Any, at: Any) -> tuple[Any, Any, Any]:
        return row // self.scan.inner, at, row % self.scan.inner

    def _element(self, row: Any, at: Any) -> tuple[Any, Any, Any]:
        """The place of the at-th element of a row, in the order of the scan."""
        return self._place(row, self.scan.length - 1 - at if self.scan.reverse else at)

    def _up(self, data: Cells, before: Cells, row: Any, first: Any) -> None:
        with T.serial(0, self.v["together"]) as p, when(first + p < _count(self.scan, self.v)):
            self._reduce(data, before, row, held(first + p))

    def _reduce(self, data: Cells, before: Cells, row: Any, piece: Any) -> None:
        """A piece: `vec` sums of every vec-th element, then those."""
        vec, size, dtype = self.v["vec"], self.v["piece"], self.monoid.dtype
        sums = own(dtype, vec)
        for lane in range(vec):
            sums[lane] = self.monoid.identity
        start = held(piece * size)

        def add(at: Any, lane: Any) -> None:
            sums[lane] = self.monoid.combine(sums[lane], data[self._element(row, at)])

        # The last piece of an axis may be short: whole vectors first, then what is left.
        length = held(tirx.min(tirx.const(size, "int32"), self.scan.length - start))
        with T.serial(0, length // vec) as step, T.vectorized(0, vec) as lane:
            add(start + step * vec + lane, lane)
        if vec > 1:
            with T.serial(0, length % vec) as rest:
                add(start + length // vec * vec + rest, 0)
        for lane in range(1, vec):
            sums[0] = self.monoid.combine(sums[0], sums[lane])
        before[self._place(row, piece)] = sums[0]

    def _scan_pieces(self, before: Cells, pieces: int) -> None:
        """An exclusive scan of the reduced pieces of every row, in place, by one group each."""
        items, dtype, monoid = self.v["scanners"], self.monoid.dtype, self.monoid
        each = -(-pieces // items)
        steps = (items - 1).bit_length()
        with self.emitter.launch(self.scan.outer * self.scan.inner, items) as (row, i):
            total = own(dtype)
            total[0] = monoid.identity
            with T.serial(0, each) as p, when(i * each + p < pieces):
                total[0] = monoid.combine(total[0], before[self._place(row, i * each + p)])
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
                place = self._place(row, i * each + p)
                value[0] = before[place]
                before[place] = total[0]
                total[0] = monoid.combine(total[0], value[0])

    def _down(self, data: Cells, out: Cells, before: Cells, row: Any, first: Any) -> None:
        """Whole pieces take a step each in turn; those at the end of an axis go one after the other."""
        size, together = self.v["piece"], self.v["together"]
        pieces = _count(self.scan, self.v)
        totals = own(self.monoid.dtype, together)
        for p in range(together):
            totals[p] = self.monoid.identity
            if pieces > 1:
                with when(first + p < pieces):
                    totals[p] = before[self._place(row, first + p)]

        def whole() -> None:
            with T.serial(0, size) as step:
                for p in range(together):
                    self._step(data, out, row, (first + p) * size + step, totals, p)

        def rest() -> None:
            for p in range(together):
                start = held((first + p) * size)
                length = tirx.max(0, tirx.min(tirx.const(size, "int32"), self.scan.length - start))
                with T.serial(0, held(length)) as step:
                    self._step(data, out, row, start + step, totals, p)

        choose((first + together) * size <= self.scan.length, whole, rest)

    def _step(self, data: Cells, out: Cells, row: Any, at: Any, totals: Cells, which: int) -> None:
        place = self._element(row, at)
        upto = held(self.monoid.combine(totals[which], data[place]))
        out[place] = totals[which] if self.scan.exclusive else upto
        totals[which] = upto
