"""A loaded network is a `Model`, which is what every step of the graph package starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm.ir import IRModule


@dataclass(frozen=True)
class Count:
    """Says how many entries of an output along `axis` are valid: the number is the only value of the result with the
    index `result`."""

    axis: int
    result: int


@dataclass(frozen=True)
class TensorInfo:
    """The name, static shape and dtype that an input or output of a network has.

    If an output has a `count`, its number of entries depends on the values, and `shape` is the largest it can have. If
    an input has `below`, its integers each choose one of that many entries, so they are less than `below`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: Count | None = None
    below: int | None = None

    def entries(self, index: int, results: Sequence[np.ndarray]) -> np.ndarray:
        """Return the valid entries of this output, which is `results[index]`."""
        if self.count is None:
            return results[index]
        length = int(results[self.count.result].reshape(-1)[0])
        return results[index][(slice(None),) * self.count.axis + (slice(length),)]


@dataclass(frozen=True)
class Model:
    """A network that is one Relax dataflow function `main` with constant weights and static shapes. The function's
    results are the outputs, followed by the counts that the outputs refer to.

    `node_names` maps names of Relax variables to the names of the nodes that they came from. `sha256` is the digest
    of what was loaded (with the sizes that free axes were given), and `source` says where it came from. `remarks` are
    lines for the user who loaded it. `rounding` is the type that the file rounds values to on their way, if that is
    coarser than float32: "float16" if it has any halves, "int8" if it has quantised values.
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
