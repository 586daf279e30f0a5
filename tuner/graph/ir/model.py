"""What a loaded network is: `Model`, the one value that every step of the graph package starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm.ir import IRModule


@dataclass(frozen=True)
class Count:
    """How many entries along `axis` of a result are there: the only value of the result with the index `result`."""

    axis: int
    result: int


@dataclass(frozen=True)
class TensorInfo:
    """Name, static shape and dtype of a network's input or output. With a `count` the shape is the greatest: how many
    entries an output has depends on the values. `below`: an input's integers choose one of so many entries."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: Count | None = None
    below: int | None = None

    def entries(self, index: int, results: Sequence[np.ndarray]) -> np.ndarray:
        """What is there of this output, which is the result with that index."""
        if self.count is None:
            return results[index]
        length = int(results[self.count.result].reshape(-1)[0])
        return results[index][(slice(None),) * self.count.axis + (slice(length),)]


@dataclass(frozen=True)
class Model:
    """A network as one Relax dataflow function `main`, with constant weights and static shapes. Its results are the
    outputs and, behind them, the counts that these name.

    `node_names` maps names of Relax variables to the names of the nodes that they came from. `sha256` is the digest
    of what was loaded (with the sizes that free axes were given), `source` says where from. `remarks`: lines for
    whoever had it loaded. `rounding`: what the file has values rounded to on their way, if that is less than float32:
    "float16" of any half, "int8" of quantised values.
    """

    name: str
    module: IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    sha256: str
    source: str
    node_names: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    rounding: str = "float32"
