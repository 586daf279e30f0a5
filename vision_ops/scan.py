"""The operator that computes prefix sums, products and maxima along an axis. Start at `Scan`.

It takes three stages (vision_ops/sweeps.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.kernels import Cells, Emitter, function
from templates.operator import Operator, TensorSpec, View
from templates.space import Space
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.sweeps import KINDS, Monoid, Rows, Sweeps, identity, sweep_space


@dataclass(frozen=True)
class Scan(View):
    """A workload that computes a scan of `kind` along the middle axis of (outer, length, inner).

    If `exclusive`, a result does not include its own element. If `reverse`, the scan runs from the end. A NaN makes all
    results behind it NaN. Integers wrap around. Raises ValueError for an unknown kind and negative extents.
    """

    op = "scan"

    outer: int
    length: int
    inner: int = 1
    kind: str = "sum"
    exclusive: bool = False
    reverse: bool = False

    @classmethod
    def sizes(cls) -> tuple[str, ...]:
        return "outer", "length", "inner"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"scan: no such kind: {self.kind!r} (known: {', '.join(KINDS)})")
        if min(self.outer, self.length, self.inner) < 0:
            raise ValueError(f"scan: a negative extent: {self.shape}")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.outer, self.length, self.inner


class ScanOperator(Operator):
    """The operator that `Scan` describes, with NumPy's accumulate as the reference."""

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
        if scan.kind == "product":  # factors near 1 keep the products within the range of float32
            values = np.exp(values / np.sqrt(max(scan.length, 1)))
        return (values.astype(workload.dtype),)

    def hostile_inputs(
        self, workload: Workload, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        (data,) = inputs
        if not data.size or not np.issubdtype(data.dtype, np.floating):
            return
        if Scan.of(workload).kind != "product":  # products would leave the range of the type
            yield "large", (data * data.dtype.type(32),)
            yield "small", (data * data.dtype.type(1 / 32),)
        yield "zero", (np.zeros_like(data),)
        spoiled = data.copy()
        spoiled.reshape(-1)[data.size // 2] = np.nan
        yield "nan", (spoiled,)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        scan, (data,) = Scan.of(workload), inputs
        wide = data if np.issubdtype(data.dtype, np.integer) else data.astype(np.float64)
        ufunc = {"sum": np.add, "product": np.multiply, "max": np.maximum}[scan.kind]
        along = wide[:, ::-1] if scan.reverse else wide
        with np.errstate(invalid="ignore", over="ignore"):
            out = ufunc.accumulate(along, axis=1, dtype=wide.dtype)
        if scan.exclusive:
            first = np.full_like(out[:, :1], identity(scan.kind, workload.dtype))
            out = np.concatenate([first, out[:, :-1]], axis=1)
        return (out[:, ::-1] if scan.reverse else out,)


class ScanTemplate(Template):
    """A template that has the knobs of all sweeps (see `sweep_space`)."""

    name = "vision.scan"
    op = "scan"
    dtypes = ("float32", "int32")

    def space(self, workload: Workload, target: Target) -> Space | None:
        scan = Scan.of(workload)
        return None if 0 in scan.shape else sweep_space(self.name, Rows(*scan.shape), Emitter.of(target))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        scan, monoid = Scan.of(workload), Monoid(workload.attrs["kind"], workload.dtype)
        rows = Rows(*scan.shape)
        sweeps = Sweeps(rows, Emitter.of(target), monoid, config.knobs)

        def body(data: Cells, out: Cells) -> None:
            def element(row: Any, at: Any) -> tuple[Any, Any, Any]:
                return rows.place(row, scan.length - 1 - at if scan.reverse else at)

            def write(row: Any, at: Any, before: Any, upto: Any) -> None:
                out[element(row, at)] = before if scan.exclusive else upto

            sweeps(lambda row, at: data[element(row, at)], write)

        return function(ScanOperator().operands(workload), body)


OPERATOR, TEMPLATE = ScanOperator(), ScanTemplate()
