"""A loaded network is a `Model`, which is what every step of the graph package starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm.ir import IRModule

from tuner.tensors import TensorInfo


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
