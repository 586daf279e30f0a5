"""The operator that finds which scores of each row exceed a threshold, in order. Start at `Compact`.

It is the first half of GluonCV's get_valid_counts. The positions of what is kept are a prefix sum of ones and zeros.

Source: Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.kernels import Cells, Emitter, function, when
from templates.operator import Operator, TensorSpec, View
from templates.space import Space
from templates.template import Template
from tuning_db.record import Config, Workload
from vision_ops.selected import INVALID, invalidate
from vision_ops.sweeps import Monoid, Rows, Sweeps, sweep_space


@dataclass(frozen=True)
class Compact(View):
    """A workload that selects the scores above a threshold.

    The input is the scores (rows, length). The outputs are the indices of those above the threshold (rows, length),
    INVALID behind the last, and their number (rows,). A NaN is not above. Raises ValueError for a negative size.
    """

    op = "compact"

    rows: int
    length: int
    threshold: float

    def __post_init__(self) -> None:
        if min(self.rows, self.length) < 0:
            raise ValueError(f"compact: a negative extent: {self.rows} rows of {self.length}")


class CompactOperator(Operator):
    """The operator that `Compact` describes, with its reference in NumPy."""

    view = Compact

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        compact = Compact.of(workload)
        return (TensorSpec("scores", (compact.rows, compact.length), "float32"),)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        compact = Compact.of(workload)
        indices = TensorSpec("indices", (compact.rows, compact.length), "int32")
        return indices, TensorSpec("count", (compact.rows,), "int32")

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw scores of which about a fifth is above the threshold."""
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
    """A template that has the knobs of all sweeps (see `sweep_space`)."""

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

            invalidate(emitter, indices, count, rows=compact.rows, length=compact.length, items=config["items"])
            sweeps(above, write)

        return function(operator.operands(workload), body)


OPERATOR, TEMPLATE = CompactOperator(), CompactTemplate()
