"""What of each row exceeds a threshold, in order: the first half of GluonCV's get_valid_counts (paper 003, 3.1.1).

The places of what is kept are a prefix sum of ones and zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.operator import Operator, TensorSpec
from templates.space import Space
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.kernels import Cells, Emitter, function, held, when
from vision_ops.sweeps import Monoid, Rows, Sweeps, sweep_space

INVALID = -1
_FILLED = 64  # places that an item makes invalid


@dataclass(frozen=True)
class Compact:
    """The input is scores (rows, length); the outputs are the indices of those above the threshold (rows, length),
    INVALID behind the last, and how many they are (rows,). A NaN is not above."""

    rows: int
    length: int
    threshold: float

    def __post_init__(self) -> None:
        if min(self.rows, self.length) < 0:
            raise ValueError(f"compact: a negative extent: {self.rows} rows of {self.length}")

    def workload(self, dtype: str = "float32") -> Workload:
        return Workload("compact", asdict(self), (), dtype)

    @staticmethod
    def of(workload: Workload) -> Compact:
        return Compact(**workload.attrs)


class CompactOperator(Operator):
    op = "compact"
    view = Compact

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        compact = Compact.of(workload)
        return (TensorSpec("scores", (compact.rows, compact.length), "float32"),)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        compact = Compact.of(workload)
        indices = TensorSpec("indices", (compact.rows, compact.length), "int32")
        return indices, TensorSpec("count", (compact.rows,), "int32")

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """About a fifth of the scores is above the threshold."""
        compact = Compact.of(workload)
        shape = (compact.rows, compact.length)
        return ((compact.threshold + rng.standard_normal(shape) - 0.84).astype(np.float32),)

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        compact, (scores,) = Compact.of(workload), inputs
        above = scores > np.float32(compact.threshold)
        indices = np.full(scores.shape, INVALID, np.int32)
        for row, chosen in enumerate(above):
            found = np.flatnonzero(chosen)
            indices[row, : len(found)] = found
        return indices, above.sum(1).astype(np.int32)


class CompactTemplate(Template):
    """Knobs: those of all sweeps (`sweep_space`)."""

    name = "vision.compact"
    op = "compact"

    def space(self, workload: Workload, target: Target) -> Space | None:
        compact = Compact.of(workload)
        if not compact.rows or not compact.length:
            return None
        return sweep_space(self.name, Rows(compact.rows, compact.length), Emitter.of(target), loads=False)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        compact, emitter, operator = Compact.of(workload), Emitter.of(target), CompactOperator()
        sweeps = Sweeps(Rows(compact.rows, compact.length), emitter, Monoid("sum", "int32"), config.knobs)

        def body(scores: Cells, indices: Cells, count: Cells) -> None:
            def above(row: Any, at: Any) -> Any:
                return (scores[row, at] > tirx.const(compact.threshold, "float32")).astype("int32")

            def write(row: Any, at: Any, before: Any, upto: Any) -> None:
                with when(upto > before):
                    indices[row, before] = at
                with when(at == compact.length - 1):
                    count[row] = upto

            _clear(compact, emitter, indices, config["items"])
            sweeps(above, write)

        specs = (*operator.inputs(workload), *operator.outputs(workload))
        return function([(s.name, s.shape, s.dtype) for s in specs], body)


def _clear(compact: Compact, emitter: Emitter, indices: Cells, items: int) -> None:
    parts = -(-compact.length // _FILLED)
    total = compact.rows * parts
    with emitter.launch(-(-total // items), items) as (group, i):
        at = held(group * items + i)
        with when(at < total), T.serial(0, _FILLED) as step:
            place = held(at % parts * _FILLED + step)
            with when(place < compact.length):
                indices[at // parts, place] = tirx.const(INVALID, "int32")
